"""Two servers on one database that want the same at the same moment."""

import asyncio

import pytest
import pytest_asyncio
from runlane_server.core.rows import SessionDeleted, TimerSet
from runlane_server.core.words import TimerKind
from runlane_server.store.base import Committed, PollingExecutor
from runlane_server.store.errors import StoreUnavailable
from runlane_server.store.postgres import Address, PostgresStore, upkeep
from runlane_server.store.postgres.connect import NOW
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


# --- a start ---------------------------------------------------------------------------


SECOND = 1_000_000


async def _ends_after_start(postgres, now):
    """The ends of leases, by executor, after a server started."""
    store = PostgresStore(Address(postgres))
    await store.open(now, "embedded-")
    found = {lease.executor_id: lease.expire_time for lease in await store.leases()}
    await store.close()
    return found


async def _leased(store, **ends):
    for executor, end in ends.items():
        s = Scripted()
        await write(store, s.create().unit(), s.start().unit())
        name = executor.replace("_", "-")
        await write(store, s.lease(name, end, duration=30 * SECOND).unit())


async def test_a_start_goes_by_the_clock_of_the_database(postgres, one):
    async def read(conn):
        return await conn.fetchval(f"SELECT {NOW}")

    now = await one._read(read)
    await _leased(one, far=now - 5 * SECOND, embedded_1=now + 90 * SECOND)
    await one.close()
    ends = await _ends_after_start(postgres, None)
    started = ends["far"] - 30 * SECOND
    assert now < started < now + 60 * SECOND
    assert ends["embedded-1"] == started


@pytest.mark.parametrize("young", [False, True])
async def test_a_server_whose_listener_is_away_keeps_its_own_executors(
    postgres, one, young, monkeypatch
):
    """All the rest of it works. After the database was away nobody was seen lately."""
    alive, now = 3600 * SECOND if young else 1000, 7200 * SECOND
    monkeypatch.setattr(upkeep, "_ALIVE", alive)
    await _leased(one, far=now - 1, embedded_1=now + 9, embedded_2=now + 9, embedded_3=now + 9)
    for name, seen in (("embedded-1", now - alive + 1), ("embedded-2", now - alive)):
        await one.shared.met(name, [PollingExecutor("default", name, ("main",), seen, True)], 0)

    async def away():
        raise StoreUnavailable("too many connections")

    monkeypatch.setattr(one._listener, "connect", away)
    one._listener.conn.terminate()
    assert await _ends_after_start(postgres, now) == {
        "far": now + 30 * SECOND,
        "embedded-1": now + 30 * SECOND,
        "embedded-2": now + 30 * SECOND if young else now,
        "embedded-3": now,
    }
