"""Servers that hold a transaction, or die at one, when a test says so."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from runlane.v1 import session_service_pb2
from support_server import Link, ServerProcess, unique, until, within

PROGRAM = Path(__file__).with_name("dying_server.py")


class DyingServer(ServerProcess):
    """`runlane serve` out of `dying_server`."""

    def command(self) -> list[str]:
        return [sys.executable, str(PROGRAM), *super().command()[3:]]

    def _file(self, name: str) -> Path:
        return self.log.parent / name

    def arm(self, told: str) -> None:
        self._file("held").unlink(missing_ok=True)
        self._file("armed").write_text(told, encoding="ascii")

    def disarm(self) -> None:
        self._file("armed").unlink()

    async def holds(self, link: Link) -> asyncio.Task[object]:
        """Writes something, and waits until the server holds it; returns its call."""
        decoy = unique("decoy")
        request = session_service_pb2.CreateSessionRequest(session_id=decoy)
        call = asyncio.ensure_future(link.sessions.CreateSession(request, timeout=60))
        await until(self._file("held").exists)
        return call

    async def dies_at(
        self, link: Link, when: str, calls: Sequence[Callable[[Link], Awaitable[object]]]
    ) -> list[object]:
        """Sends calls whose one transaction the server dies before or after.

        Returns:
            What the callers met.
        """
        self.arm(f"{when} {len(calls)}")
        decoy = await self.holds(link)
        sent = asyncio.gather(*(call(link) for call in calls), return_exceptions=True)
        met = await within(60, sent)
        await asyncio.wait({decoy})
        decoy.exception()
        assert self.process.wait(30) == -9
        self.process.stdout.close()
        self.disarm()
        return met
