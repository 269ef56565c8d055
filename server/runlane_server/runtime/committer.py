"""Group commit: many sessions' writes in one transaction.

A lone write goes at once. Under load a batch goes when as many wait as the
last one held (that number falls, so it follows the load down), or after the
linger time: group commit does not form by itself behind gRPC, where answers
and new calls trickle. One batch is in flight at a time, so a session has at
most one unresolved batch, and what is decided meanwhile joins the next.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from runlane_server.runtime.stats import Stats
from runlane_server.store.base import Conflict, Outcome, Unavailable, Write

FALL = 0.8
"""How the expected size of a batch falls where fewer come."""


class Entry(Protocol):
    """A write that waits, and who is told of its outcome."""

    write: Write

    def alive(self) -> bool:
        """Whether what it was decided on still stands."""

    def resolve(self, outcome: Outcome) -> None:
        """Tells the outcome; must not raise."""


E = TypeVar("E", bound=Entry)
Commit = Callable[[Sequence[Write]], Awaitable[list[Outcome]]]


class Committer(Generic[E]):
    """Forms batches of writes and hands them to the store."""

    def __init__(
        self,
        commit: Commit,
        *,
        linger: float = 0.005,
        batch_max: int = 512,
        waiting_max: int = 8192,
        stats: Stats | None = None,
    ) -> None:
        """Makes a committer.

        Args:
            commit: Writes a batch.
            linger: Seconds that a batch waits for more, at most.
            batch_max: Writes in a batch.
            waiting_max: Writes that wait; beyond it `room` waits.
            stats: Counts batches.
        """
        self._commit = commit
        self._linger = linger
        self._batch_max = batch_max
        self._waiting_max = waiting_max
        self._stats = stats or Stats()
        self._queue: list[E] = []
        self._expected = 1.0
        self._flight: asyncio.Task[None] | None = None
        self._flight_start = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._room: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        """Returns how many writes wait."""
        return len(self._queue)

    @property
    def flight_seconds(self) -> float:
        """How long the batch that is in flight has been; 0 where none is."""
        return time.perf_counter() - self._flight_start if self._flight is not None else 0.0

    async def room(self) -> None:
        """Waits while too many writes wait. To be awaited before a decision, never after."""
        while len(self._queue) >= self._waiting_max:
            future = asyncio.get_running_loop().create_future()
            self._room.append(future)
            await future

    def enqueue(self, entry: E) -> None:
        """Queues a write; its entry is resolved once it is durable, or is not."""
        self._queue.append(entry)
        if self._flight is None:
            self._consider()

    async def flush(self) -> None:
        """Waits until nothing waits or is in flight."""
        while self._queue or self._flight is not None:
            if self._flight is None:
                self._send()
            if self._flight is not None:
                await asyncio.shield(self._flight)

    def _consider(self) -> None:
        if len(self._queue) >= min(self._expected, self._batch_max):
            self._send()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._linger, self._send)

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._flight is not None:
            return
        waiting, self._queue = self._queue, []
        batch: list[E] = []
        for index, entry in enumerate(waiting):
            if len(batch) == self._batch_max:
                self._queue = waiting[index:]
                break
            if entry.alive():
                batch.append(entry)
            else:
                entry.resolve(Conflict())
        if batch:
            self._flight_start = time.perf_counter()
            self._flight = asyncio.get_running_loop().create_task(self._fly(batch))

    async def _fly(self, batch: list[E]) -> None:
        start = self._flight_start
        try:
            outcomes = await self._commit([entry.write for entry in batch])
        except Exception as error:  # noqa: BLE001 - nobody may be left waiting
            outcomes = [Unavailable(repr(error)) for _ in batch]
        self._stats.batch_size.add(len(batch))
        self._stats.commit_seconds.add(time.perf_counter() - start)
        self._flight = None
        self._expected = max(1.0, len(batch), self._expected * FALL)
        for entry, outcome in zip(batch, outcomes, strict=True):
            entry.resolve(outcome)
        for future in self._room:
            if not future.done():
                future.set_result(None)
        self._room.clear()
        if self._queue and self._flight is None:
            self._consider()
