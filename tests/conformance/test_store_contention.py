"""Two servers on one database that want the same at the same moment."""

import asyncio
import contextlib

import asyncpg
import pytest
from runlane_server.app.keys import NO_GRANT, KeyRing, NewKey
from runlane_server.core.keys import ALL_SCOPES
from runlane_server.core.rows import SessionDeleted, SessionUpdated, TimerSet
from runlane_server.core.words import TimerKind
from runlane_server.store.base import (
    Committed,
    CommitUnit,
    Conflict,
    Duplicate,
    LeaseRenewal,
    PollingExecutor,
    Rejected,
)
from runlane_server.store.errors import StoreUnavailable
from runlane_server.store.postgres import Address, PostgresStore, connect, upkeep
from runlane_server.store.postgres.connect import NOW
from store_builders import Scripted, request
from store_inside import inside

pytestmark = pytest.mark.asyncio
SECOND = 1_000_000


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


# --- locks -----------------------------------------------------------------------------


async def test_a_server_that_stands_still_in_a_transaction_stops_nobody_for_long(
    postgres, monkeypatch
):
    monkeypatch.setattr(connect, "_IDLE_SECONDS", 0.3)
    address = Address(postgres)
    store = PostgresStore(address, readers=1)
    await store.open(0, "")
    s = Scripted()
    await write(store, s.create().unit())
    frozen = await asyncpg.connect(**address.arguments("write"))
    await frozen.execute("BEGIN")
    await frozen.execute("SELECT 1 FROM sessions FOR NO KEY UPDATE")
    async with asyncio.timeout(10):
        await write(store, s.start().unit())
    frozen.terminate()
    await store.close()


async def test_a_lock_that_was_waited_for_in_vain_is_waited_for_again(postgres):
    """A role may have been told to wait for none that long."""
    holder = await asyncpg.connect(postgres)
    await holder.execute("ALTER DATABASE test SET lock_timeout = '50ms'")
    store = PostgresStore(Address(postgres), readers=1)
    try:
        await store.open(0, "")
        s = Scripted()
        await write(store, s.create().unit())
        await holder.execute("BEGIN")
        await holder.execute("SELECT 1 FROM runlane.sessions FOR NO KEY UPDATE")
        tried, lock = asyncio.Event(), store.committer._lock

        async def again(conn, batch):
            store.committer._lock = again_and_free
            return await lock(conn, batch)

        async def again_and_free(conn, batch):
            await holder.execute("ROLLBACK")
            tried.set()
            return await lock(conn, batch)

        store.committer._lock = again
        await write(store, s.start().unit())
        assert tried.is_set()
    finally:
        await holder.execute("ALTER DATABASE test RESET lock_timeout")
        await store.close()
        await holder.close()


async def test_heartbeats_and_ends_of_the_same_leases_wait_in_no_circle(one, other):
    """Each server has a heartbeat of the activation that the other one ends."""
    x, y = Scripted(), Scripted()
    await write(one, *(s.create().unit() for s in (x, y)), *(s.start().unit() for s in (x, y)))
    await write(one, x.lease().unit(), y.lease().unit())
    beats = [LeaseRenewal(s.activation_id, 1, 30, 900) for s in (x, y)]
    barrier, rounds = asyncio.Barrier(2), []
    for store in (one, other):
        committer = store.committer

        async def locked(conn, batch, keys=committer._fresh_keys):
            rounds.append(1)
            with contextlib.suppress(TimeoutError, asyncio.BrokenBarrierError):
                async with asyncio.timeout(0.5):
                    await barrier.wait()
            return await keys(conn, batch)

        committer._fresh_keys = locked
    async with asyncio.timeout(10):
        first, second = await asyncio.gather(
            one.commit([beats[1], x.end().unit()]), other.commit([beats[0], y.end().unit()])
        )
    assert len(rounds) == 2, "nothing was written twice: there was no deadlock"
    assert sorted([first, second], key=lambda outcomes: type(outcomes[0]).__name__) == [
        [Committed(), Committed()],
        [Conflict(), Committed()],
    ]


async def test_a_race_that_is_lost_beside_a_bad_row_takes_nobody_along(one, other):
    good, bad = Scripted(), Scripted()
    await write(one, good.create().unit(), bad.create().unit())
    asked = request()
    bad.add(SessionUpdated(display_name="a\0b"))
    look = one.committer._requests

    async def overtaken(conn, batch):
        found = await look(conn, batch)
        one.committer._requests = look
        await write(other, CommitUnit(request=asked))
        return found

    one.committer._requests = overtaken
    outcomes = await one.commit([CommitUnit(request=asked), bad.unit(), good.start().unit()])
    assert [type(one) for one in outcomes] == [Duplicate, Rejected, Committed]


# --- keys ------------------------------------------------------------------------------


async def test_one_request_for_a_key_at_two_servers_makes_one(one, other):
    class Now:
        def now(self):
            return SECOND

    barrier = asyncio.Barrier(2)
    rings = []
    for store, digit in ((one, "1"), (other, "2")):
        read = store.api_keys

        async def both_have_looked(*args, read=read):
            await barrier.wait()
            return await read(*args)

        store.api_keys = both_have_looked
        rings.append(KeyRing(store, Now(), lambda prefix, digit=digit: f"{prefix}_{digit * 32}"))
    asked = NewKey("n", "default", ALL_SCOPES, request_id="r")
    made = await asyncio.gather(*(ring.create(NO_GRANT, "default", asked) for ring in rings))
    (row,) = await PostgresStore.api_keys(one)
    assert [each.key for each in made] == [row, row]
    assert sorted(bool(each.secret) for each in made) == [False, True]


# --- a start ---------------------------------------------------------------------------


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
    await _leased(one, far=now - 5 * SECOND, embedded_1=now + 10 * SECOND)
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
    heard = now - alive + 30 * SECOND  # the end of a lease that was renewed just too long ago
    await _leased(
        one, far=now - 1, embedded_1=heard, embedded_2=heard, embedded_3=heard, embedded_4=heard + 1
    )
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
        "embedded-3": min(heard, now),
        "embedded-4": now + 30 * SECOND,
    }
