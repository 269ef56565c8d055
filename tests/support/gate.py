"""A gate before the store: batches wait there until it is opened."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from support.world import World


async def yielded(times: int = 25) -> None:
    """Lets all that can go on do so; no time has to pass."""
    for _ in range(times):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool]) -> None:
    """Waits for what a thread of the store brings about."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - the thread sets no event
            await asyncio.sleep(0)


class Gate:
    """Holds the batches of a world's engine; the state of the store is the caller's to choose."""

    def __init__(self, world: World) -> None:
        self._committer = world.engine._committer
        self._commit = self._committer._commit
        self._committer._commit = self._pass
        self._shut = False
        self._permits = asyncio.Semaphore(0)
        self._entered = asyncio.Event()

    async def _pass(self, batch: Sequence[Any]) -> Any:
        self._entered.set()
        if self._shut:
            await self._permits.acquire()
        return await self._commit(batch)

    @property
    def waiting(self) -> int:
        """Writes that wait behind the batch that stands here."""
        return len(self._committer._queue)

    def shut(self) -> None:
        self._shut = True
        self._entered.clear()

    async def entered(self) -> None:
        """Waits until a batch stands before the gate."""
        await self._entered.wait()
        self._entered.clear()

    def let(self) -> None:
        """Lets the batch pass that stands here."""
        self._permits.release()

    def open(self) -> None:
        self._shut = False
        self.let()
