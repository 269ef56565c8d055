"""Two servers on one database that want the same at the same moment."""

import asyncio

import pytest
import pytest_asyncio
from runlane_server.core.rows import SessionDeleted, TimerSet
from runlane_server.core.words import TimerKind
from runlane_server.store.base import Committed
from runlane_server.store.postgres import Address, PostgresStore, upkeep
from store_builders import Scripted
from store_inside import inside

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def other(postgres, one):
    """A second server's store on the same database."""
    made = PostgresStore(Address(postgres), readers=2)
    await made.open(0, "embedded-")
    yield made
    await made.close()


async def write(store, *units):
    assert await store.commit(units) == [Committed()] * len(units)


# --- sweeps ----------------------------------------------------------------------------


async def _family(store):
    """A source and two forks, all deleted."""
    root = Scripted()
    await write(store, root.create().unit(), root.start().unit(), root.end().unit())
    forks = [root.fork("run_1", 1) for _ in range(2)]
    await write(store, *(fork.unit() for fork in forks))
    for s in (root, *forks):
        s.add(SessionDeleted(100)).add(TimerSet(TimerKind.SWEEP, 160))
        await write(store, s.unit())
    return root, *forks


async def _swept(store, s):
    async with asyncio.timeout(10):
        while not await store.sweep(s.key, 500):
            pass


@pytest.mark.parametrize("together", [(0, 1), (1, 2)])
async def test_a_family_that_two_servers_sweep_at_once_leaves_nothing(
    one, other, together, monkeypatch
):
    """A source with its fork, and two forks: each would leave the messages to the other."""
    family = await _family(one)
    for s in (s for n, s in enumerate(family) if n not in together):
        await _swept(one, s)
    barrier, step = asyncio.Barrier(2), upkeep._sweep_step

    async def held(conn, key, room):
        left = await step(conn, key, room)
        try:  # Both are open, where both may be.
            async with asyncio.timeout(0.5):
                await barrier.wait()
        except (TimeoutError, asyncio.BrokenBarrierError):
            pass
        return left

    monkeypatch.setattr(upkeep, "_sweep_step", held)
    first, second = (family[n] for n in together)
    await asyncio.gather(_swept(one, first), _swept(other, second))
    assert await inside(one, "messages") == 0
    assert await one.timers() == []
