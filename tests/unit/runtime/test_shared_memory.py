"""What one of several servers keeps in memory, and how it hears that it is old."""

import asyncio

import pytest
from runlane_server.core.model import SessionKey
from runlane_server.core.rows import ActivationDequeued, ActivationQueued
from runlane_server.runtime.bus import Bus
from runlane_server.runtime.clock import StoreClock
from runlane_server.runtime.fresh import Fresh
from runlane_server.runtime.roster import SharedDispatch
from runlane_server.runtime.slots import Slots
from runlane_server.store.base import EventGroup, PollingExecutor, QueuedActivation, Roster

KEY = SessionKey("default", "ses_1")
SECOND = 1_000_000


def group(first, last):
    return EventGroup(first, last, b"")


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr("runlane_server.runtime.bus.decode_group", lambda _: [])
    return Bus().hub(KEY)


# --- readers ---------------------------------------------------------------------------


def test_what_is_heard_sends_readers_to_the_store(hub):
    hub.publish(group(1, 2))
    assert (hub.newest, hub.after(1)) == (2, [group(1, 2)])
    hub.heard(2)
    assert hub.after(1) is not None, "that was its own"
    hub.heard(4)
    assert (hub.newest, hub.after(2), hub.after(4)) == (4, None, None)
    hub.publish(group(5, 5))
    assert (hub.newest, hub.after(4), hub.after(3)) == (5, [group(5, 5)], None)


def test_what_is_published_after_later_ones_were_heard_is_not_the_newest(hub):
    hub.publish(group(1, 2))
    hub.heard(6)
    hub.publish(group(3, 4))
    assert (hub.newest, hub.after(2), hub.after(4)) == (6, None, None)
    hub.publish(group(5, 8))
    assert hub.newest == 8
    hub.doubt()
    assert (hub.newest, hub.after(8)) == (0, None)


# --- states ----------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_slots_fall_by_what_is_heard_and_loads_under_way_are_done_again():
    loads, go = 0, asyncio.Event()

    async def load(_):
        nonlocal loads
        loads += 1
        if loads == 2:
            await go.wait()

    slots = Slots(load, 10, 2**20)
    slot = await slots.take(KEY)
    assert slots.heard(KEY, 1)
    assert not slot.valid
    taking = asyncio.ensure_future(slots.take(KEY))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert slots.heard(KEY, 2)
    go.set()
    slot = await taking
    assert loads == 3
    slots.doubt_all()
    assert not slot.valid
    assert len(slots) == 0


@pytest.mark.asyncio
async def test_a_token_is_read_after_it_was_asked_for_and_reads_are_shared():
    asked, go = [], asyncio.Event()

    async def read(keys):
        asked.append(list(keys))
        await go.wait()
        return {KEY: b"t%d" % len(asked)}

    fresh = Fresh(read)
    first = asyncio.ensure_future(fresh.token(KEY))
    while not asked:  # noqa: ASYNC110 - one turn of the loop
        await asyncio.sleep(0)
    others = [asyncio.ensure_future(fresh.token(KEY)) for _ in range(5)]
    none = asyncio.ensure_future(fresh.token(SessionKey("default", "none")))
    await asyncio.sleep(0)
    others[0].cancel()
    go.set()
    assert await first == b"t1", "who came later shares a later read"
    assert await asyncio.gather(*others[1:]) == [b"t2"] * 4
    assert await none is None
    assert len(asked) == 2


@pytest.mark.asyncio
async def test_a_read_of_tokens_that_fails_is_told_to_each():
    async def read(_):
        raise OSError("away")

    fresh = Fresh(read)
    found = await asyncio.gather(fresh.token(KEY), fresh.token(KEY), return_exceptions=True)
    assert [type(one) for one in found] == [OSError, OSError]


# --- time ------------------------------------------------------------------------------


def test_the_time_is_the_stores_and_never_goes_back(monkeypatch):
    monotonic = 5_000
    monkeypatch.setattr("time.monotonic_ns", lambda: monotonic * 1000)
    monkeypatch.setattr("time.time_ns", lambda: 60_000_000_000_000)
    clock = StoreClock(1_000)
    monotonic += 40
    assert clock.now() == 1_040
    clock.heard(1_010)
    assert clock.now() == 1_040
    monotonic += 29
    assert clock.now() == 1_040
    monotonic += 5
    assert clock.now() == 1_044
    clock.heard(2_000)
    assert clock.now() == 2_000


# --- what waits, and who works ---------------------------------------------------------


def queued(number):
    return QueuedActivation(SessionKey("default", f"s{number}"), f"act_{number}", "main", number)


@pytest.mark.asyncio
async def test_an_index_of_what_waits_here_and_of_what_was_read_for_who_waits_here():
    dispatch, words = SharedDispatch(), []
    dispatch.ask = words.append
    dispatch.committed(KEY, [ActivationQueued("act_1", "run_1", "main", 7, 0)])
    assert dispatch.hungry() == []
    polls = [
        asyncio.ensure_future(dispatch.wait("default", [agent], 9)) for agent in ("main", "other")
    ]
    await asyncio.sleep(0)
    assert words == ["hungry"] * 2
    assert dispatch.hungry() == [("default", "other")]
    dispatch.forget(KEY)
    assert dispatch.hungry() == [("default", "main"), ("default", "other")]
    dispatch.feed([queued(2), queued(3), queued(2)])
    await polls[0]
    assert [dispatch.take("default", ["main"]).activation_id for _ in range(2)] == [
        "act_2",
        "act_3",
    ]
    assert dispatch.take("default", ["main"]) is None
    waiting = queued(4)
    dispatch.feed([waiting])
    taken = dispatch.take("default", ["main"])
    dispatch.put_back(taken)
    dispatch.committed(waiting.key, [ActivationDequeued("act_4")])
    assert dispatch.take("default", ["main"]) is None
    assert dispatch._of_session == {}
    dispatch.wake_all()
    await polls[1]


def test_executors_of_all_servers_count_once():
    dispatch = SharedDispatch()
    dispatch.seen("default", "x1", ["main"], 100 * SECOND).polling += 1
    others = [
        PollingExecutor("default", "x1", ["main"], 90 * SECOND, True),
        PollingExecutor("default", "x2", ["main", "other"], 100 * SECOND, True),
        PollingExecutor("default", "dead", ["main"], 20 * SECOND, True),
        PollingExecutor("elsewhere", "x9", ["main"], 100 * SECOND, True),
    ]
    told = Roster(
        others, {("default", "main"): (3, 50)}, {("default", "main", "x2"): 2, ("e", "m", "x"): 1}
    )
    dispatch.meet(told, 95 * SECOND)
    assert dispatch.served("default", "main", 100 * SECOND) == 2
    assert dispatch.served("default", "other", 100 * SECOND) == 1
    dispatch.drained.add(("default", "x2"))
    assert dispatch.served("default", "other", 100 * SECOND) == 0
    seen = dispatch.seen_since("default", 95 * SECOND)
    assert {name: one.polling for name, one in seen.items()} == {"x1": 1, "x2": 1}
    assert dispatch.seen_since("default", 0)["dead"].polling == 0
    assert (dispatch.queued("default"), dispatch.queued("e"), dispatch.queued()) == (
        (3, 50),
        (0, 0),
        (3, 50),
    )
    assert (dispatch.leased("default"), dispatch.leased()) == (2, 3)
    assert dispatch.leased_by("default", "x2") == 2
    assert dispatch.agents("default") == [
        ("main", 100 * SECOND, 3, 2),
        ("other", 100 * SECOND, 0, 0),
    ]
    assert [one.executor_id for one in dispatch.here(0, 101 * SECOND)] == ["x1"]
