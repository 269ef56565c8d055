"""Deleting, sweeping, expiring."""

import pytest
from runlane_server.core.rows import SessionDeleted, TimerSet
from runlane_server.core.words import TimerKind
from runlane_server.store.base import Committed, Conflict, SessionFilter, SessionOrder
from store_builders import Scripted, request
from store_inside import inside

pytestmark = pytest.mark.asyncio


async def write(store, *units):
    assert await store.commit(units) == [Committed()] * len(units)


async def delete(store, s, time=100):
    s.add(SessionDeleted(time)).add(TimerSet(TimerKind.SWEEP, time + 60))
    await write(store, s.unit())


async def sweep(store, s, step=3):
    for steps in range(1, 100):
        if await store.sweep(s.key, step):
            return steps
    raise AssertionError("a sweep never ends")


async def busy(store):
    s = Scripted()
    await write(
        store,
        s.create().unit(request(method="CreateSession", time=1)),
        s.start().unit(),
        s.lease().unit(),
        s.end().unit(),
    )
    await write(store, s.start().unit(), s.add(TimerSet(TimerKind.GRACE, 5)).unit())
    s.queue(b"waits")
    await write(store, s.unit())
    return s


async def test_deleted_session_is_there_for_load_and_events_alone(store):
    s = await busy(store)
    await delete(store, s)
    assert (await store.load(s.key)).token == s.token
    assert await store.session(s.key) is None
    assert await store.live(s.key, 9, 99, 9) is None
    assert await store.list_runs(s.key, (), None, 9) is None
    assert await store.list_submissions(s.key, (), None, 9, 9) is None
    assert await store.run("default", s.run_id) is None
    assert await store.submission("default", s.submission_id) is None
    assert await store.find_session_of_run("default", s.run_id) is None
    assert await store.find_session_of_submission("default", s.submission_id) is None
    assert await store.messages(s.key, 1, 9, 9, 999) == []
    assert (
        await store.list_sessions("default", SessionFilter(), SessionOrder.CREATED_ASC, None, 9)
        == []
    )
    assert await store.queued_activations() == []
    assert await store.leases() == []
    assert [t.kind for t in await store.timers()] == [TimerKind.SWEEP]
    assert await store.last_sequence(s.key) == s.sequence
    assert len(await store.events(s.key, 0, 99, 99, 9999)) == s.sequence
    again = Scripted(s.session_id)
    assert await store.commit([again.create().unit()]) == [Conflict()]


async def test_sweep_goes_in_steps_and_ends_with_its_timer(store):
    s, other = await busy(store), await busy(store)
    assert await store.sweep(s.key, 5), "one that is not deleted has nothing to be swept"
    await delete(store, s)
    assert await sweep(store, s) > 3
    assert await store.timers() == [t for t in await store.timers() if t.key == other.key]
    (told,) = await store.events(s.key, 0, 99, 99, 9999)
    assert told.last == await store.last_sequence(s.key) == s.sequence
    assert (await store.load(s.key)).token == s.token
    assert await store.sweep(s.key, 5)
    assert len(await store.messages(other.key, 1, 9, 9, 999)) == other.messages
    assert len(await store.events(other.key, 0, 99, 99, 9999)) == other.sequence


async def test_messages_that_forks_show_outlive_their_session(store):
    root = Scripted()
    await write(store, root.create().unit())
    for n in range(1, 9):
        await write(store, root.message(b"%d" % n, "run_1").unit())
    near, far = root.fork("run_1", 3), root.fork("run_1", 5)
    await write(store, near.unit(), far.unit())
    deep = far.fork("run_1", 4)
    await write(store, deep.unit())
    await delete(store, root)
    await sweep(store, root, 2)
    assert await inside(store, "messages") == 5

    async def shown(s):
        return [m.data for m in await store.messages(s.key, 1, 99, 99, 999)]

    assert await shown(far) == [b"1", b"2", b"3", b"4", b"5"]
    await delete(store, far)
    await sweep(store, far, 2)
    assert await shown(deep) == [b"1", b"2", b"3", b"4"]
    assert await shown(near) == [b"1", b"2", b"3"]
    assert await inside(store, "messages") == 4, "what nobody shows any more is gone"
    await delete(store, deep)
    await sweep(store, deep, 2)
    await delete(store, near)
    await sweep(store, near, 2)
    assert await inside(store, "messages") == 0


async def test_feed_keys_are_never_given_again(store):
    highest = 0
    for _ in range(3):
        s = await busy(store)
        now = await inside(store, "feed")
        assert now > highest
        await delete(store, s)
        highest = await inside(store, "feed")
        await sweep(store, s)
        await sweep(store, s)


async def test_requests_expire_but_for_those_that_made_a_session(store):
    s = Scripted()
    made = request(method="CreateSession", time=10)
    old, new = request(s.session_id, time=10), request(s.session_id, time=30)
    await write(store, s.create().unit(made), s.start().unit(old), s.end().unit(new))
    assert await store.expire_requests(20, 100) == 1
    assert await store.find_request(old.key) is None
    assert await store.find_request(new.key) == new
    assert await store.find_request(made.key) == made
    await delete(store, s, time=40)
    await sweep(store, s)
    assert await store.find_request(made.key) == made, "records outlive their session"
    assert await store.expire_requests(40, 100) == 1
    assert await store.find_request(made.key) == made
    assert await store.expire_requests(41, 100) == 1
    assert await store.find_request(made.key) is None


async def test_an_input_keeps_its_request_while_it_waits_and_as_long_after_it(store):
    """Else a retry of one that waited for a person over a weekend would be a second input."""
    s = Scripted()
    await write(store, s.create().unit(), s.start().unit())
    submission_id = s.queue(b"later")
    queued = request(s.session_id, request_id="r2", time=s.time + 5)
    other = request(s.session_id, time=s.time + 5)
    await write(store, s.unit(queued), s.unit(other))
    hours = 10**12
    assert await store.expire_requests(s.time + hours, 100) == 1
    assert await store.find_request(other.key) is None
    assert await store.find_request(queued.key) == queued
    s.time += hours
    await write(store, s.deliver(submission_id, b"prefix").unit())
    assert await store.expire_requests(s.time, 100) == 0
    assert await store.find_request(queued.key) == queued
    assert await store.expire_requests(s.time + 1, 100) == 1
    assert await store.find_request(queued.key) is None


async def test_requests_expire_in_steps(store):
    s = Scripted()
    await write(store, s.create().unit())
    for _ in range(10):
        await write(store, s.unit(request(s.session_id, time=1)))
    assert [await store.expire_requests(5, 4) for _ in range(4)] == [4, 4, 2, 0]
