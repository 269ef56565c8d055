"""What a commit answers, and what is there afterwards."""

import asyncio
import contextlib
import sqlite3

import msgspec
import pytest
from runlane_server.core.model import Cancellation, Failure, SessionKey, SessionRecord
from runlane_server.core.rows import (
    LeaseDropped,
    RunInserted,
    SessionUpdated,
    SubmissionMoved,
    SubmissionSettled,
    TimerSet,
)
from runlane_server.core.words import (
    Mode,
    Phase,
    Route,
    RunFailure,
    StopReason,
    SubmissionFailure,
    SubmissionState,
    TimerKind,
)
from runlane_server.store.base import (
    Committed,
    CommitUnit,
    Conflict,
    Duplicate,
    LeaseRenewal,
    Rejected,
    Unavailable,
)
from runlane_server.store.errors import StoreUnavailable
from store_builders import Scripted, fresh, request

pytestmark = pytest.mark.asyncio


async def write(store, *units):
    outcomes = await store.commit(units)
    assert outcomes == [Committed()] * len(units)


async def test_new_session_is_read_back(store):
    s = Scripted()
    record = SessionRecord("Name", {"team": "a", "x": ""}, '{"k":1}', "coder")
    await write(store, s.create(record).unit(), s.start(b"hello").unit(events=3))
    loaded = await store.load(s.key)
    assert (loaded.token, loaded.state, loaded.lease_expire_time) == (s.token, s.state, 0)
    row = await store.session(s.key)
    assert (row.record, row.state, row.source_session_id) == (record, s.state, "")
    assert await store.last_sequence(s.key) == 4
    groups = await store.events(s.key, 0, 10, 100, 10_000)
    assert [(g.first, g.last) for g in groups] == [(1, 1), (2, 4)]
    live = await store.live(s.key, 10, 1000, 1000)
    assert live.run.run_id == s.run_id
    assert live.run.state == s.state
    assert [m.data for m in live.messages] == [b"hello"]
    assert await store.find_session_of_run("default", s.run_id) == s.session_id
    assert await store.find_session_of_run("other", s.run_id) is None


async def test_what_is_not_there_is_none_or_nothing(store):
    key = SessionKey("default", "nobody")
    assert await store.load(key) is None
    assert await store.session(key) is None
    assert await store.live(key, 1, 1, 1) is None
    assert await store.list_runs(key, (), None, 5) is None
    assert await store.list_submissions(key, (), None, 5, 5) is None
    assert await store.last_sequence(key) is None
    assert await store.events(key, 0, 9, 9, 9) == []
    assert await store.messages(key, 1, 9, 9, 9) == []
    assert await store.messages_by_number(key, [1]) == []
    assert await store.ancestors(key, 9) == []
    assert await store.run("default", "run_x") is None
    assert await store.submission("default", "sub_x") is None
    assert await store.submission_of_reserved_run("default", "run_x") is None
    assert await store.find_request(request().key) is None
    assert await store.commit([]) == []


async def test_token_that_is_not_the_stored_one_is_a_conflict_and_writes_nothing(store):
    s = Scripted()
    await write(store, s.create().unit())
    before = await store.load(s.key)
    asked = request(s.session_id)
    s.token = b"another"
    assert await store.commit([s.start().unit(asked)]) == [Conflict()]
    assert await store.load(s.key) == before
    assert await store.find_request(asked.key) is None
    assert await store.queued_activations() == []
    again = Scripted(s.session_id)
    assert await store.commit([again.create().unit(request(method="CreateSession"))]) == [
        Conflict()
    ]


async def test_namespaces_share_no_session(store):
    a, b = Scripted("same", "a"), Scripted("same", "b")
    await write(store, a.create().unit(), b.create().unit())
    await write(store, a.start(b"of a").unit(), b.start(b"of b").unit())
    assert (await store.messages(a.key, 1, 9, 9, 99))[0].data == b"of a"
    assert await store.run("b", a.run_id) is None
    assert await store.submission("b", a.submission_id) is None


async def test_request_id_that_has_an_answer_is_a_duplicate_with_its_record(store):
    s = Scripted()
    first = request(s.session_id, request_id="one")
    await write(store, s.create().unit(), s.start().unit(first))
    token, second = s.token, request(s.session_id, request_id="one")
    second.answer, second.hash = b"other", b"else"
    outcome = (await store.commit([s.unit(second)]))[0]
    assert outcome == Duplicate(first)
    assert (await store.load(s.key)).token == token
    assert await store.find_request(first.key) == first
    # The same id of another method, scope or namespace is another one.
    s.token, s.sequence = token, 2
    await write(store, s.end().unit(request("elsewhere", request_id="one")))


async def test_duplicate_wins_over_a_stale_token(store):
    s = Scripted()
    first = request(s.session_id, request_id="one")
    await write(store, s.create().unit(first))
    s.token = b"stale"
    assert (await store.commit([s.start().unit(first)])) == [Duplicate(first)]


async def test_commits_stacked_in_one_batch_stand_or_fall_together(store):
    s, other = Scripted(), Scripted()
    await write(store, s.create().unit(), s.start().unit(), s.end().unit(), other.create().unit())
    assert (await store.load(s.key)).token == s.token
    good = s.token
    s.token = b"lost"
    batch = [s.start().unit(), s.end().unit(), other.start().unit()]
    assert await store.commit(batch) == [Conflict(), Conflict(), Committed()]
    assert (await store.load(s.key)).token == good


async def test_unchanged_token_is_tested(store):
    s, asked = Scripted(), request()
    await write(store, s.create().unit())
    noop = CommitUnit([], asked, unchanged=[(s.key, b"other")])
    assert await store.commit([noop]) == [Conflict()]
    assert await store.find_request(asked.key) is None
    await write(store, CommitUnit([], asked, unchanged=[(s.key, s.token)]))
    assert await store.find_request(asked.key) == asked


async def test_two_sessions_are_all_or_none(store):
    a, b = sorted((Scripted(), Scripted()), key=lambda one: one.session_id)
    await write(store, CommitUnit([a.create().commit(), b.create().commit()]))
    for spoiled in (a, b):
        tokens = a.token, b.token
        asked = request()
        spoiled.token = b"other"
        unit = CommitUnit([a.commit(), b.commit()], asked)
        assert await store.commit([unit]) == [Conflict()]
        assert (await store.load(a.key)).token == tokens[0]
        assert (await store.load(b.key)).token == tokens[1]
        assert await store.find_request(asked.key) is None
        a.token, b.token = tokens
        a.sequence = b.sequence = 1
    await write(store, CommitUnit([a.commit(), b.commit()]))


async def test_bad_row_is_rejected_and_its_neighbours_are_committed(store):
    good, bad, later = Scripted(), Scripted(), Scripted()
    await write(store, *(s.create().unit() for s in (good, bad, later)))
    token = bad.token
    asked = request(bad.session_id)
    bad.messages = 0
    bad.start(run_id=fresh("run"))
    bad.messages -= 1
    bad.message(b"the same number")
    batch = [good.start().unit(), bad.unit(asked), later.start().unit()]
    outcomes = await store.commit(batch)
    assert [type(one) for one in outcomes] == [Committed, Rejected, Committed]
    assert (await store.load(bad.key)).token == token
    assert await store.find_request(asked.key) is None
    assert await store.messages(bad.key, 1, 9, 9, 999) == []
    assert len(await store.messages(later.key, 1, 9, 9, 999)) == 1
    assert len(await store.queued_activations()) == 2


@pytest.mark.parametrize(
    "what",
    [
        "number too big",
        "surrogate",
        "no type",
        "no such submission",
        "no such run",
        "other submission",
    ],
)
async def test_what_cannot_be_written_is_rejected_alone(store, what):
    good, bad = Scripted(), Scripted()
    await write(store, good.create().unit(), bad.create().unit())
    if what == "number too big":
        bad.add(TimerSet(TimerKind.GRACE, 2**64))
    elif what == "surrogate":
        bad.add(SessionUpdated(display_name="\ud800"))
    elif what == "no type":
        bad.add(object())
    elif what == "no such submission":
        bad.add(SubmissionSettled("sub_none", SubmissionState.WITHDRAWN, 1))
    elif what == "no such run":
        bad.run_id = "run_none"
        bad.end()
    else:
        bad.add(RunInserted("run_1", "sub_2", "a", Mode.AUTO, 1, 1, 1), b"")
    outcomes = await store.commit([good.start().unit(), bad.unit(), good.end().unit()])
    assert [type(one) for one in outcomes] == [Committed, Rejected, Committed]


@pytest.mark.parametrize("point", ["begin", "unit", "commit"])
async def test_failing_store_makes_a_whole_batch_unavailable_and_keeps_nothing(store, point):
    s, new = Scripted(), Scripted()
    await write(store, s.create().unit())
    token = s.token
    calls = []

    def fail(where):
        calls.append(where)
        if where == point:
            raise sqlite3.OperationalError("database or disk is full")

    store.committer.faults = fail
    outcomes = await store.commit([s.start().unit(), new.create().unit()])
    assert [type(one) for one in outcomes] == [Unavailable, Unavailable]
    assert calls.count("begin") == 1, "nothing is run again"
    store.committer.faults = None
    assert (await store.load(s.key)).token == token
    assert await store.load(new.key) is None
    # Keys that were cached in the lost transaction are not trusted afterwards.
    s.token, s.sequence, s.messages = token, 1, 0
    other = Scripted()
    await write(store, other.create().unit(), s.start().unit())
    assert await store.messages(other.key, 1, 9, 9, 999) == []


async def test_bad_row_and_then_a_failing_store_is_unavailable(store):
    s, bad = Scripted(), Scripted()
    await write(store, s.create().unit(), bad.create().unit())
    seen = []

    def fail(where):
        seen.append(where)
        if seen.count("begin") == 2 and where == "commit":
            raise sqlite3.OperationalError("disk I/O error")

    store.committer.faults = fail
    outcomes = await store.commit([s.start().unit(), bad.add(object()).unit()])
    assert [type(one) for one in outcomes] == [Unavailable, Unavailable]
    store.committer.faults = None
    assert await store.queued_activations() == []


async def test_cancelled_commit_is_written_all_the_same(store):
    s = Scripted()
    task = asyncio.ensure_future(store.commit([s.create().unit()]))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await store.commit([])  # Goes behind it.
    assert (await store.load(s.key)).token == s.token


async def test_cancelled_read_leaves_no_snapshot_behind(store):
    s = Scripted()
    await write(store, s.create().unit())
    for _ in range(20):
        task = asyncio.ensure_future(store.session(s.key))
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await write(store, s.start().unit())
    for _ in range(8):
        assert (await store.live(s.key, 5, 999, 9)).run is not None


async def test_lease_is_renewed_by_activation_and_epoch_alone(store):
    s = Scripted()
    await write(store, s.create().unit(), s.start().unit(), s.lease(expire=500).unit())
    assert (await store.load(s.key)).lease_expire_time == 500
    assert await store.queued_activations() == []
    assert await store.commit([LeaseRenewal(s.activation_id, 2, 30, 900)]) == [Conflict()]
    assert await store.commit([LeaseRenewal("act_none", 1, 30, 900)]) == [Conflict()]
    await write(store, LeaseRenewal(s.activation_id, 1, 30, 800))
    (lease,) = await store.leases()
    assert (lease.key, lease.activation_id, lease.agent, lease.executor_id, lease.expire_time) == (
        s.key,
        s.activation_id,
        "main",
        "x1",
        800,
    )


async def test_lease_that_was_renewed_meanwhile_does_not_end_by_expiry(store):
    s = Scripted()
    await write(store, s.create().unit(), s.start().unit(), s.lease(expire=500).unit())
    token = s.token
    unit = s.add(LeaseDropped(s.activation_id, 500)).unit(request(s.session_id))
    assert await store.commit([LeaseRenewal(s.activation_id, 1, 30, 501), unit]) == [
        Committed(),
        Conflict(),
    ]
    assert len(await store.leases()) == 1
    s.token, s.sequence = token, 3
    await write(store, s.add(LeaseDropped(s.activation_id, 501)).unit())
    assert await store.leases() == []
    assert await store.commit([s.add(LeaseDropped(s.activation_id, 900)).unit()]) == [Conflict()]


async def test_ended_run_keeps_what_ended_it(store):
    s = Scripted()
    await write(store, s.create().unit(), s.start().unit())
    run_id = s.run_id
    cancellation = Cancellation("enough", 5, 6)
    failure = Failure(RunFailure.EXECUTOR_ERROR, "broke", retryable=True)
    await write(
        store,
        s.end(
            StopReason.FAILED, failure=failure, cancellation=cancellation, output_json="{}"
        ).unit(),
    )
    row = await store.run("default", run_id)
    assert (row.phase, row.stop_reason, row.state) == (Phase.TERMINAL, StopReason.FAILED, None)
    assert (row.failure_reason, row.failure_message, row.failure_retryable) == (7, "broke", True)
    assert (row.message_cutoff, row.digest, row.output_json, row.attempt) == (1, b"d" * 32, "{}", 1)
    assert row.end_time == s.time
    assert row.last_sequence == 3
    assert msgspec.msgpack.decode(row.cancellation, type=Cancellation) == cancellation
    usage = msgspec.msgpack.decode(row.usage)
    assert (usage["usage"]["output_tokens"], usage["steps_reserved"], usage["steps_committed"]) == (
        2,
        2,
        1,
    )
    assert (await store.live(s.key, 1, 9, 9)).run is None


async def test_queued_input_becomes_a_message_byte_for_byte(store):
    s = Scripted()
    run_id = fresh("run")
    text = b"\x00\xff text \x80"
    await write(store, s.create().unit(), s.start(b"first").unit())
    queued = s.queue(text, run_id=run_id)
    steer = s.queue(b"steer\x00", Route.STEER, run_id=s.run_id)
    await write(store, s.unit())
    row = await store.submission("default", queued)
    assert (row.state, row.content, row.run_id, row.route) == (
        SubmissionState.PENDING,
        text,
        run_id,
        Route.FOLLOW_UP,
    )
    assert (await store.submission_of_reserved_run("default", run_id)).submission_id == queued
    assert await store.submission_of_reserved_run("default", s.run_id) is None
    assert {p.submission_id for p in (await store.live(s.key, 9, 999, 99)).pending} == {
        queued,
        steer,
    }
    await write(store, s.deliver(steer, b"S:").unit())
    await write(store, s.end().deliver(queued, b"Q:\x00", run_id).unit())
    assert [m.data for m in await store.messages(s.key, 1, 9, 9, 999)] == [
        b"first",
        b"S:steer\x00",
        b"Q:\x00" + text,
    ]
    run = await store.run("default", run_id)
    assert (run.options, run.preview, run.submission_id, run.request_id) == (
        b"queued options",
        "queued",
        queued,
        "r2",
    )
    row = await store.submission("default", queued)
    assert (row.state, row.message_number, row.content) == (
        SubmissionState.DELIVERED,
        3,
        b"Q:\x00" + text,
    )
    assert (await store.live(s.key, 9, 999, 99)).pending == []
    assert (await store.submission_of_reserved_run("default", run_id)).submission_id == queued


async def test_moved_failed_and_withdrawn_input(store):
    s = Scripted()
    await write(store, s.create().unit(), s.start().unit())
    moved = s.queue(b"moved", Route.STEER, s.run_id)
    failed = s.queue(b"failed", Route.STEER, s.run_id)
    await write(store, s.unit())
    s.add(SubmissionMoved(moved, "run_next"))
    s.add(SubmissionSettled(failed, SubmissionState.FAILED, 9, SubmissionFailure.TARGET_TERMINAL))
    await write(store, s.unit())
    row = await store.submission("default", moved)
    assert (row.run_id, row.route, row.state) == (
        "run_next",
        Route.FOLLOW_UP,
        SubmissionState.PENDING,
    )
    row = await store.submission("default", failed)
    assert (row.failure, row.settle_time, row.content, row.state) == (
        1,
        9,
        b"failed",
        SubmissionState.FAILED,
    )
    token = s.token
    twice = s.add(SubmissionSettled(failed, SubmissionState.WITHDRAWN, 10)).unit()
    assert isinstance((await store.commit([twice]))[0], Rejected)
    assert (await store.load(s.key)).token == token


async def test_input_that_started_a_run_has_a_submission_without_a_row(store):
    s = Scripted()
    await write(store, s.create().unit(), s.start(b"its message", time=7).unit())
    row = await store.submission("default", s.submission_id)
    assert (row.run_id, row.route, row.state, row.content, row.mode) == (
        s.run_id,
        Route.RUN,
        SubmissionState.DELIVERED,
        b"its message",
        Mode.AUTO,
    )
    assert (row.create_time, row.settle_time, row.message_number, row.request_id) == (7, 7, 1, "r1")
    assert await store.find_session_of_submission("default", s.submission_id) == s.session_id
    assert await store.find_session_of_submission("other", s.submission_id) is None
    assert await store.submission("default", s.run_id) is None, "a run's id is no submission's"


async def test_record_updates_and_timers(store):
    s = Scripted()
    await write(store, s.create(SessionRecord("n", {"a": "1", "b": "2"}, "{}", "x")).unit())
    s.add(
        SessionUpdated(display_name="m", set_labels={"a": "9", "c": "3"}, remove_labels=["b", "zz"])
    )
    s.add(TimerSet(TimerKind.GRACE, 50)).add(TimerSet(TimerKind.GRACE, 40))
    await write(store, s.unit())
    assert (await store.session(s.key)).record == SessionRecord(
        "m", {"a": "9", "c": "3"}, "{}", "x"
    )
    (timer,) = await store.timers()
    assert (timer.key, timer.kind, timer.due_time) == (s.key, TimerKind.GRACE, 40)
    await write(store, s.add(TimerSet(TimerKind.GRACE, None)).unit())
    assert await store.timers() == []


async def test_drained_executors(store):
    unit = CommitUnit([], request(), drained_executor=("default", "x1"))
    await write(store, unit, CommitUnit(drained_executor=("default", "x1")))
    assert await store.drained_executors() == [("default", "x1")]


async def test_closed_store_is_unavailable(store):
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.commit([])
    with pytest.raises(StoreUnavailable):
        await store.load(SessionKey("default", "x"))
