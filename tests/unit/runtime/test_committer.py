"""Group commit: who goes when, and who is told what."""

import asyncio

import pytest
from runlane_server.runtime.committer import Committer
from runlane_server.store.base import Committed, Conflict, Unavailable
from support.gate import yielded


class Entry:
    def __init__(self, write, *, alive: bool = True) -> None:
        self.write = write
        self.living = alive
        self.outcomes: list[object] = []

    def alive(self) -> bool:
        return self.living

    def resolve(self, outcome) -> None:
        self.outcomes.append(outcome)


class Disk:
    """Holds each batch until it is let go."""

    def __init__(self, error: Exception | None = None) -> None:
        self.batches: list[list[object]] = []
        self.go = asyncio.Semaphore(0)
        self.error = error

    async def commit(self, batch):
        self.batches.append(list(batch))
        await self.go.acquire()
        if self.error is not None:
            raise self.error
        return [Committed() for _ in batch]


def _made(disk: Disk, **how) -> Committer[Entry]:
    return Committer(disk.commit, **{"linger": 60.0, **how})


@pytest.mark.asyncio
async def test_a_lone_write_goes_at_once_and_one_batch_is_in_flight():
    disk = Disk()
    committer = _made(disk)
    entries = [Entry(number) for number in range(4)]
    for entry in entries:
        committer.enqueue(entry)
    await yielded()
    assert disk.batches == [[0]]
    disk.go.release()
    await yielded()
    assert disk.batches == [[0], [1, 2, 3]]
    disk.go.release()
    await committer.flush()
    assert [entry.outcomes for entry in entries] == [[Committed()]] * 4


@pytest.mark.asyncio
async def test_after_a_batch_of_three_as_many_are_waited_for_and_the_number_falls():
    disk = Disk()
    committer = _made(disk)
    for number in range(4):
        committer.enqueue(Entry(number))
    for _ in range(2):
        disk.go.release()
        await yielded()
    sizes = []
    for _ in range(4):
        count = 0
        before = len(disk.batches)
        while len(disk.batches) == before:
            committer.enqueue(Entry("more"))
            count += 1
            await yielded()
        disk.go.release()
        await yielded()
        sizes.append(count)
    assert sizes == [3, 3, 3, 3], "as many as the last one held"
    committer.enqueue(Entry("alone"))
    disk.go.release()
    await committer.flush()  # stands for the linger time
    committer.enqueue(Entry(1))
    committer.enqueue(Entry(2))
    await yielded()
    assert len(disk.batches[-1]) == 1, "not yet: 3 have fallen to 2.4"
    committer.enqueue(Entry(3))
    await yielded()
    assert len(disk.batches[-1]) == 3
    disk.go.release()
    await committer.flush()


@pytest.mark.asyncio
async def test_what_stands_on_nothing_is_never_sent():
    disk = Disk()
    committer = _made(disk)
    committer.enqueue(Entry(0))
    dead, living = Entry(1, alive=False), Entry(2)
    committer.enqueue(dead)
    committer.enqueue(living)
    await yielded()
    disk.go.release()
    disk.go.release()
    await committer.flush()
    assert disk.batches == [[0], [2]]
    assert dead.outcomes == [Conflict()]
    assert living.outcomes == [Committed()]


@pytest.mark.asyncio
async def test_a_store_that_raises_leaves_nobody_waiting():
    disk = Disk(error=RuntimeError("gone"))
    committer = _made(disk)
    entries = [Entry(number) for number in range(3)]
    for entry in entries:
        committer.enqueue(entry)
    for _ in range(2):
        disk.go.release()
    await committer.flush()
    assert all(isinstance(entry.outcomes[0], Unavailable) for entry in entries)


@pytest.mark.asyncio
async def test_batches_and_what_waits_have_limits():
    disk = Disk()
    committer = _made(disk, batch_max=2, waiting_max=3)
    for number in range(4):
        committer.enqueue(Entry(number))
    late = [asyncio.ensure_future(committer.room()) for _ in range(3)]
    await yielded()
    assert not any(one.done() for one in late)
    late[0].cancel()
    disk.go.release()
    await yielded()
    assert disk.batches == [[0], [1, 2]]
    await asyncio.gather(*late[1:])
    for _ in range(2):
        disk.go.release()
    await committer.flush()
    assert disk.batches[-1] == [3]
