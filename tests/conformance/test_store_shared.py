"""Several servers on one database: each sees what the others wrote, and none holds it."""

import asyncio

import asyncpg
import pytest
from runlane_server.core.model import SessionKey
from runlane_server.store.base import (
    Committed,
    CommitUnit,
    Conflict,
    Duplicate,
    PollingExecutor,
    Unavailable,
)
from runlane_server.store.postgres import Address, PostgresStore, shared
from store_builders import Scripted, request

pytestmark = pytest.mark.asyncio

SECOND = 1_000_000


async def write(store, *units):
    assert await store.commit(units) == [Committed()] * len(units)


async def begun(store):
    """A cursor from which on a store leaves out its own."""
    return (await store.shared.moved((await store.shared.moved("")).cursor)).cursor


# --- who is there ----------------------------------------------------------------------


async def test_leases_end_with_their_server_only_where_no_other_one_is(postgres, one):
    s, t = Scripted(), Scripted()
    await write(one, s.create().unit(), s.start().unit(), t.create().unit(), t.start().unit())
    of = {"duration": 30 * SECOND}
    far, near = s.lease("far", 60 * SECOND, **of), t.lease("embedded-gone", 60 * SECOND, **of)
    await write(one, far.unit(), near.unit())
    ends = {lease.executor_id: lease.expire_time for lease in await one.leases()}

    async def after_start(now):
        store = PostgresStore(Address(postgres))
        await store.open(now, "embedded-")
        found = {lease.executor_id: lease.expire_time for lease in await store.leases()}
        await store.close()
        return found

    assert await after_start(50 * SECOND) == ends, "others live: they took heartbeats all the time"
    await one.close()
    assert await after_start(50 * SECOND) == {"far": 80 * SECOND, "embedded-gone": 50 * SECOND}


async def test_servers_that_start_together_migrate_once(database):
    stores = [PostgresStore(Address(database)) for _ in range(4)]
    await asyncio.gather(*(store.open(0, "") for store in stores))
    assert len({store.info.store_id for store in stores}) == 1
    for store in stores:
        await store.close()


# --- what others wrote -----------------------------------------------------------------


async def test_what_others_commit_is_told_and_read_once(one, other):
    mine, theirs = Scripted(), Scripted()
    cursor = await begun(one)
    await write(one, mine.create().unit())
    await write(other, theirs.create().unit(), theirs.start().unit())
    assert "moved" in await one.shared.wait_told(10)
    found = await one.shared.moved(cursor)
    assert found.sessions == {theirs.key: theirs.sequence}
    assert (await one.shared.moved(found.cursor)).sessions == {}
    assert await one.shared.tokens([mine.key, theirs.key, SessionKey("default", "none")]) == {
        mine.key: mine.token,
        theirs.key: theirs.token,
    }


async def test_a_commit_that_began_early_and_ends_late_is_not_left_out(one, other):
    """Two transactions that end in the other order than they began, with reads between."""
    slow, fast = Scripted(), Scripted()
    await write(one, slow.create().unit(), fast.create().unit())
    entered, go = asyncio.Event(), asyncio.Event()
    together = other.committer._together

    async def waiting(conn, **how):
        done = await together(conn, **how)
        entered.set()
        await go.wait()
        return done

    other.committer._together = waiting
    late = asyncio.ensure_future(other.commit([slow.start().unit()]))
    await entered.wait()
    cursor = await begun(one)
    third = PostgresStore(Address(one._address.dsn))
    await third.open(0, "")
    await write(third, fast.start().unit())
    found = await one.shared.moved(cursor)
    assert found.sessions == {fast.key: fast.sequence}
    assert (await one.shared.moved(found.cursor)).sessions == {}
    go.set()
    assert await late == [Committed()]
    found = await one.shared.moved(found.cursor)
    assert found.sessions == {slow.key: slow.sequence}
    assert (await one.shared.moved(found.cursor)).sessions == {}
    await third.close()


async def test_too_many_moves_count_as_all(one, other, monkeypatch):
    monkeypatch.setattr(shared, "MOVES_MAX", 3)
    for count, all_of_them in ((3, False), (4, True)):
        cursor = await begun(one)
        made = [Scripted() for _ in range(count)]
        await write(other, *(s.create().unit() for s in made))
        assert ((await one.shared.moved(cursor)).sessions is None) is all_of_them


async def test_a_listener_that_was_lost_comes_back_and_counts_all_as_moved(one, other, postgres):
    cursor = await begun(one)
    conn = await asyncpg.connect(postgres)
    sql = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'runlane listen %' AND pid = $1"
    )
    assert await conn.fetchval(sql, one._listener.conn.get_server_pid())
    await conn.close()
    async with asyncio.timeout(10):
        while "moved" not in await one.shared.wait_told(1):
            pass
    found = await one.shared.moved(cursor)
    assert found.sessions is None
    s = Scripted()
    await write(other, s.create().unit())
    async with asyncio.timeout(10):
        assert "moved" in await one.shared.wait_told(10)
    assert (await one.shared.moved(found.cursor)).sessions == {s.key: s.sequence}


# --- writing the same ------------------------------------------------------------------


async def test_a_request_is_answered_once_whoever_writes_it(one, other):
    s = Scripted()
    await write(one, s.create().unit())
    asked = request(s.session_id)
    unit = s.start().unit(asked)
    first, second = await asyncio.gather(one.commit([unit]), other.commit([unit]))
    outcomes = sorted((*first, *second), key=lambda outcome: type(outcome).__name__)
    assert outcomes == [Committed(), Duplicate(asked)]


async def test_of_two_that_write_one_session_one_has_a_conflict(one, other):
    s = Scripted()
    await write(one, s.create().unit())
    units = [s.start().unit(), s.start().unit()]
    units[1].sessions[0].expected_token = units[0].sessions[0].expected_token
    found = await asyncio.gather(one.commit(units[:1]), other.commit(units[1:]))
    assert sorted(type(outcome).__name__ for (outcome,) in found) == ["Committed", "Conflict"]


async def test_batches_that_meet_in_two_orders_are_both_written(one, other):
    """Requests and leases that both servers write, from either end."""
    made = [Scripted() for _ in range(20)]
    await write(one, *(s.create().unit() for s in made))
    for _ in range(10):
        asked = [CommitUnit(request=request(s.session_id)) for s in made]
        found = await asyncio.gather(one.commit(asked), other.commit(asked[::-1]))
        for mine, theirs in zip(found[0], found[1][::-1], strict=True):
            assert {type(mine), type(theirs)} == {Committed, Duplicate}


async def test_what_is_decided_under_lock_stands(one, other):
    s, new = Scripted(), Scripted()
    await write(one, s.create().unit())
    unit = s.start().unit()
    stale = unit.sessions[0].expected_token
    seen = []

    def decide(loaded):
        seen.append([None if one is None else one.token for one in loaded])
        # Whoever else writes it now comes behind.
        others.append(asyncio.ensure_future(other.commit([unit])))
        mine = CommitUnit([*Scripted.start(again).unit().sessions])
        mine.sessions[0].expected_token = loaded[0].token
        return [mine]

    others = []
    again = Scripted()
    again.__dict__.update(s.__dict__ | {"sequence": 1, "messages": 0, "token": stale})
    assert await one.shared.commit_locked([s.key, new.key], decide) == [Committed()]
    assert seen == [[stale, None]]
    assert await others[0] == [Conflict()]
    assert await one.shared.commit_locked([s.key], lambda _: []) == []


async def test_a_database_that_fails_under_lock_is_unavailable(one):
    s = Scripted()
    await write(one, s.create().unit())

    def fault(place):
        if place == "commit":
            one.committer.faults = None
            raise asyncpg.ConnectionDoesNotExistError("cut")

    one.committer.faults = fault
    (outcome,) = await one.shared.commit_locked([s.key], lambda _: [s.start().unit()])
    assert isinstance(outcome, Unavailable)


# --- what is left to do ----------------------------------------------------------------


async def test_what_waits_is_read_by_agent_oldest_first(one, other):
    made = [Scripted() for _ in range(4)]
    for s in made:
        await write(one, s.create().unit())
        await write(one, s.start().unit())
    everything = await one.queued_activations()
    agent = everything[0].agent
    lanes = [("default", agent), ("default", "nobody"), ("elsewhere", agent)]
    found = await other.shared.queued_for(lanes, 2**60, 3)
    assert found == everything[:3]
    await write(one, made[0].lease().unit())
    assert await other.shared.queued_for(lanes, 2**60, 3) == everything[1:4]


async def test_what_is_due_is_read_whoever_wrote_it(one, other):
    s = Scripted()
    await write(one, s.create().unit(), s.start().unit())
    await write(one, s.lease().unit())
    (lease,) = await one.leases()
    assert (await other.shared.due(lease.expire_time - 1, 0, 10)).leases == []
    assert (await other.shared.due(lease.expire_time, 0, 10)).leases == [lease]


async def test_who_works_is_known_on_all_servers(one, other):
    s = Scripted()
    await write(one, s.create().unit(), s.start().unit())
    (queued,) = await one.queued_activations()
    seen = PollingExecutor("default", "exe", ["coder", "helper"], 5 * SECOND, True)
    gone = PollingExecutor("default", "old", ["coder"], 1 * SECOND, False)
    await one.shared.met("a", [seen, gone], 0)
    assert (await one.shared.roster("a", 0, 2**60)).executors == []
    found = await other.shared.roster("b", 2 * SECOND, 2**60)
    assert found.executors == [seen]
    assert found.queued == {("default", queued.agent): (1, queued.queue_time)}
    seen.polling = False
    await one.shared.met("a", [seen], 2 * SECOND)
    assert (await other.shared.roster("b", 0, 2**60)).executors == [seen]
    await write(one, s.lease().unit())
    (lease,) = await one.leases()
    found = await other.shared.roster("b", 0, 2**60)
    assert (found.queued, list(found.leased.values())) == ({}, [1])
    assert ("default", lease.agent, lease.executor_id) in found.leased


async def test_drained_executors_are_known_on_all_servers(one, other):
    await write(one, CommitUnit(drained_executor=("default", "exe")))
    assert "executors" in await other.shared.wait_told(10)
    names = [("default", "exe"), ("default", "another"), ("elsewhere", "exe")]
    assert await other.shared.drained_among(names) == [("default", "exe")]
