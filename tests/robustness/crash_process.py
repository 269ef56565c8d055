"""Executor processes that stand at their points, and the sessions that they stand in."""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import crash_points
from crash_points import SECOND_TURN
from runlane.v1 import history_service_pb2, run_pb2
from support_server import Link, until, within
from support_server.turns import answer_to

SECONDS = 90


def sessions_at(points: Iterable[str], rounds: int) -> list[str]:
    """Names so many sessions for each point; the tools take turns."""
    tools = ("once", "again")
    return [
        f"{point}.{tools[number % 2]}.{uuid.uuid4().hex}"
        for point in points
        for number in range(rounds)
    ]


class HeldProcess:
    """A process of `crash_points`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.stand: set[str] = set()

    @property
    def pid(self) -> int:
        return self.process.pid

    async def stands(self, sessions: Iterable[str]) -> None:
        """Waits until all these runs have come to their points."""
        wanted = set(sessions)
        async with asyncio.timeout(SECONDS):
            while not wanted <= self.stand:
                line = await self.process.stdout.readline()
                assert line, "the executor has ended"
                self.stand.add(line.decode().strip())

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    def let_go(self) -> None:
        self.process.stdin.write(b"go\n")


@asynccontextmanager
async def held_process(
    address: str,
    name: str,
    marks: Path,
    *,
    lease: float,
    concurrency: int = 0,
    executor_id: str = "",
) -> AsyncIterator[HeldProcess]:
    """An executor process that ends with the block."""
    program = [sys.executable, crash_points.__file__, address, name, str(marks), str(lease)]
    process = await asyncio.create_subprocess_exec(
        *program,
        str(concurrency or crash_points.HELD_MOST),
        executor_id,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": str(Path(crash_points.__file__).parent)},
    )
    held = HeldProcess(process)
    try:
        assert await within(30, process.stdout.readline()) == b"ready\n"
        yield held
    finally:
        if process.returncode is None:
            await held.kill()
        process.stdin.close()
        process._transport.close()


async def start(link: Link, agent: str, sessions: list[str], **options) -> dict[str, str]:
    """Submits to each session; returns the ids of the runs by session."""
    given = run_pb2.RunOptions(**options)

    async def one(session: str) -> str:
        await link.create(session, default_agent=agent)
        return (await link.submit(session, "go", run_options=given)).submission.run_id

    runs = await asyncio.gather(*(one(session) for session in sessions))
    return dict(zip(sessions, runs, strict=True))


async def open_interactions(link: Link) -> dict[str, object]:
    """Returns what is asked, by session."""
    request = history_service_pb2.ListInteractionsRequest()
    found = await link.pages(link.history.ListInteractions, request, "interactions", 1000)
    return {one.session_id: one for one in found}


async def approve_second_turns(link: Link, sessions: Iterable[str]) -> None:
    """Approves the call of each run that is to go beyond its question."""
    wanted = {one for one in sessions if one.split(".")[0] in SECOND_TURN}

    async def all_ask() -> bool:
        return wanted <= set(await open_interactions(link))

    await until(all_ask, SECONDS)
    asked = await open_interactions(link)
    await asyncio.gather(*(answer_to(link, asked[one]) for one in wanted))


@asynccontextmanager
async def approving(link: Link, *, to_the_end: bool = True) -> AsyncIterator[None]:
    """Approves whatever is asked until the end of the block, or of the server."""

    async def approve() -> None:
        while True:
            for one in (await open_interactions(link)).values():
                await answer_to(link, one)
            await asyncio.sleep(0.05)

    task = asyncio.create_task(approve())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        if to_the_end and not task.cancelled():
            await task
