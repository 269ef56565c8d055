"""A gate before the store: batches wait there until it is opened."""

import asyncio
from collections.abc import Sequence
from typing import Any

from support.world import World


async def yielded(times: int = 25) -> None:
    """Lets all that can go on do so; no time has to pass."""
    for _ in range(times):
        await asyncio.sleep(0)


class Gate:
    """Holds the batches of a world's engine; the state of the store is the caller's to choose."""

    def __init__(self, world: World) -> None:
        committer = world.engine._committer
        self._commit = committer._commit
        committer._commit = self._pass
        self._open = asyncio.Event()
        self._open.set()
        self._entered = asyncio.Event()
        self.batches: list[int] = []

    async def _pass(self, batch: Sequence[Any]) -> Any:
        self.batches.append(len(batch))
        self._entered.set()
        await self._open.wait()
        return await self._commit(batch)

    def shut(self) -> None:
        self._open.clear()
        self._entered.clear()

    async def entered(self) -> None:
        """Waits until a batch stands before the gate."""
        await self._entered.wait()
        self._entered.clear()

    def open(self) -> None:
        self._open.set()
