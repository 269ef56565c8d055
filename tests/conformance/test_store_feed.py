"""The feed: one order over all sessions, nothing twice, nothing left out, bounded reads."""

import asyncio
import random

import pytest
from runlane_server.core.rows import SessionDeleted, TimerSet
from runlane_server.core.words import TimerKind
from runlane_server.store import base
from runlane_server.store.base import FEED_START, Committed, FeedPlace
from runlane_server.store.postgres import Address, PostgresStore
from store_builders import Scripted

pytestmark = pytest.mark.asyncio


async def write(store, *units):
    assert await store.commit(units) == [Committed()] * len(units)


async def read(store, namespace="default", after=FEED_START, events=256, size=2**20):
    """Reads up to the end; returns the groups and where that is."""
    groups, more = [], True
    while more:
        page = await store.feed(namespace, after, events, size)
        assert page.through > after or not page.more, "a read gets on"
        assert all(after < one.place <= page.through for one in page.groups)
        groups += page.groups
        after, more = page.through, page.more
    return groups, after


def told(groups):
    return [(one.session_id, one.events.first, one.events.last) for one in groups]


async def test_all_sessions_of_a_namespace_are_in_one_order_and_each_in_its_own(store):
    random.seed(5)
    sessions = [Scripted(namespace="default" if n % 3 else "other") for n in range(9)]
    await write(store, *[one.create().unit() for one in sessions])
    wanted = {one.session_id: [(1, 1)] for one in sessions}
    data = {}
    for _ in range(40):
        some = random.sample(sessions, random.randint(1, 6))
        units = []
        for one in some:
            unit = one.message(b"m" * 50, "run_1").unit(events=random.randint(1, 4))
            group = unit.sessions[0].events
            wanted[one.session_id].append((group.first, group.last))
            data[one.session_id, group.last] = group.data
            units.append(unit)
        await write(store, *units)
    for namespace in ("default", "other"):
        groups, end = await read(store, namespace, events=7)
        assert [one.place for one in groups] == sorted({one.place for one in groups})
        for one in sessions:
            mine = [(f, last) for name, f, last in told(groups) if name == one.session_id]
            assert mine == (wanted[one.session_id] if one.namespace == namespace else [])
        for one in groups:
            assert one.events.data == data.get(
                (one.session_id, one.events.last), one.events.data
            ), "whole"
            assert one.place.sequence == one.events.last
        assert (await read(store, namespace))[0] == groups, "the bounds change nothing"
        # From each place it goes on with what comes after.
        for number, one in enumerate(groups[:30]):
            assert (await read(store, namespace, one.place, events=50))[0] == groups[number + 1 :]
        assert await read(store, namespace, end) == ([], end)


async def test_a_place_within_a_group_gives_the_group_again(store):
    s = Scripted()
    await write(store, s.create().unit(events=5), s.message(b"m", "run_1").unit(events=1))
    groups, _ = await read(store)
    place = groups[0].place
    within = FeedPlace(place.feed, place.session_key, 3)
    assert (await read(store, after=within))[0] == groups
    assert (await read(store, after=place))[0] == groups[1:]


async def test_a_read_is_bounded_by_events_and_bytes_and_gives_one_group_at_least(store):
    s = Scripted()
    await write(store, s.create().unit(), *[s.unit(events=3, size=100) for _ in range(10)])
    page = await store.feed("default", FEED_START, 7, 2**20)
    assert told(page.groups) == [(s.session_id, 1, 1)] + [(s.session_id, n, n + 2) for n in (2, 5)]
    assert page.more
    page = await store.feed("default", page.through, 99, 650)
    assert [one.events.first for one in page.groups] == [8, 11]
    page = await store.feed("default", page.through, 99, 1)
    assert [one.events.first for one in page.groups] == [14]
    assert page.more
    # What ends with the bound is not the end of the feed.
    page = await store.feed("default", page.through, 15, 2**20)
    assert (len(page.groups), page.through >= page.groups[-1].place) == (5, True)
    assert (await read(store, events=1))[0] == (await read(store))[0]


async def test_a_namespace_among_many_is_read_in_bounded_steps(store, monkeypatch):
    scan = base.FEED_SCAN
    mine, others = Scripted(namespace="mine"), Scripted()
    await write(store, mine.create().unit(), others.create().unit())
    end = await store.feed_end()
    for _ in range(20):
        await write(store, *[others.unit() for _ in range(256)])
    page = await store.feed("mine", FEED_START, 256, 2**20)
    assert told(page.groups) == [(mine.session_id, 1, 1)]
    assert page.more, "it has looked at a part"
    page = await store.feed("mine", end, 256, 2**20)
    assert (page.groups, page.more) == ([], True)
    assert end < page.through < await store.feed_end()
    page = await store.feed("mine", page.through, 256, 2**20)
    assert (page.groups, page.more) == ([], False), f"two times {scan} is more than there is"
    await write(store, mine.unit())
    page = await store.feed("mine", page.through, 256, 2**20)
    assert told(page.groups) == [(mine.session_id, 2, 2)]
    # The one that a read of bounded bytes ends with is the last that it says it has seen.
    page = await store.feed("default", FEED_START, 10, 2**20)
    assert len(page.groups) == 10
    assert page.through <= FeedPlace(page.groups[-1].place.feed + 1, 0, 0)


async def test_the_end_comes_before_all_that_is_written_later(store):
    assert await read(store, "nobody") == ([], await store.feed_end())
    s = Scripted()
    await write(store, s.create().unit(), s.start().unit())
    end = await store.feed_end()
    assert (await read(store, after=end))[0] == []
    await write(store, s.end().unit(), s.start().unit())
    assert [one.events.first for one in (await read(store, after=end))[0]] == [3, 4]
    assert await store.feed_end() > end


async def test_of_a_deleted_session_the_feed_keeps_what_tells_so(store):
    s, other = Scripted(), Scripted()
    await write(store, s.create().unit(), other.create().unit(), *[s.unit() for _ in range(9)])
    behind = (await read(store))[0][1].place
    s.add(SessionDeleted(100)).add(TimerSet(TimerKind.SWEEP, 160))
    await write(store, s.unit(events=2), other.unit())
    for step in range(99):
        groups, _ = await read(store, after=behind)
        own = [one.events.last for one in groups if one.session_id == s.session_id]
        assert own == sorted(own)
        assert own[-1] == 12
        if await store.sweep(s.key, 2):
            break
        assert step < 20
    assert told((await read(store))[0]) == [
        (other.session_id, 1, 1),
        (s.session_id, 11, 12),
        (other.session_id, 2, 2),
    ]
    assert await store.last_sequence(s.key) == 12
    assert [one.first for one in await store.events(s.key, 0, 99, 99, 9999)] == [11]
    # A place is never given out again, whatever was removed above it.
    _, end = await read(store)
    await write(store, other.unit())
    assert told((await read(store, after=end))[0]) == [(other.session_id, 3, 3)]


# --- on PostgreSQL ---------------------------------------------------------------------


async def test_a_transaction_that_ends_late_is_never_skipped(postgres, one):
    """The older transaction commits after the younger one, which a reader might see first."""
    first, second = Scripted(), Scripted()
    await write(one, first.create().unit(), second.create().unit())
    _, end = await read(one)
    other = PostgresStore(Address(postgres), readers=1)
    begun, go = asyncio.Event(), asyncio.Event()
    together = one.committer._together

    async def slow(conn, **how):
        done = await together(conn, **how)
        begun.set()
        await go.wait()
        return done

    one.committer._together = slow
    late = asyncio.ensure_future(one.commit([first.unit()]))
    await begun.wait()
    # Another writer, who began later and is done before.
    young = await other._address.connect("write")
    written = await young.execute(
        "INSERT INTO events (session_key, last, first, data)"
        " SELECT key, 2, 2, 'young' FROM sessions WHERE session_id = $1",
        second.session_id,
    )
    assert written == "INSERT 0 1", "and it is committed"
    page = await one.feed("default", end, 256, 2**20)
    assert (page.groups, page.more) == ([], False), "what may still come before it holds it back"
    go.set()
    assert await late == [Committed()]
    groups, _ = await read(one, after=page.through)
    assert told(groups) == [(first.session_id, 2, 2), (second.session_id, 2, 2)]
    await young.close()


async def test_a_dump_that_is_restored_has_a_new_epoch_and_a_feed_in_order(postgres):
    made = PostgresStore(Address(postgres), readers=1)
    await made.open(0, "")
    s = Scripted()
    await write(made, s.create().unit(), *[s.unit() for _ in range(3)])
    epoch = made.info.epoch
    conn = await made._address.connect("write")
    await made.close()
    # As after a dump: other tables, and ids of a cluster that is far ahead of this one.
    await conn.execute(
        "UPDATE events SET feed = (feed::text::bigint + 1000000000)::text::xid8;"
        " UPDATE store SET origin = '77/88'"
    )
    await made.open(0, "")
    assert made.info.epoch == epoch + 1
    await write(made, s.unit())
    assert [one.events.last for one in (await read(made))[0]] == [1, 2, 3, 4, 5]
    await made.close()
    await made.open(0, "")
    assert made.info.epoch == epoch + 1, "it is the same one from then on"
    await made.close()
    await conn.close()
