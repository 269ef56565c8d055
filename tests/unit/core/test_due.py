"""Time: grace first, then leases; a decision at a later time sees no other past."""

import pytest
from runlane_server.core.errors import Reason
from runlane_server.core.machine import decide_due
from runlane_server.core.model import RunLimits, RunOptions
from runlane_server.core.rows import LeaseDropped, TimerSet
from runlane_server.core.words import AbandonReason, Mode, RunFailure, TimerKind
from support.lane import START, Lane
from support.steps import (
    COMPLETED,
    GRACE,
    LEASE,
    SECOND,
    UNCONFIRMED,
    Step,
    answer,
    asks,
    beat,
    claims,
    commit,
    create,
    first,
    interrupt,
    lease,
    put,
    question,
    reserve,
    steer,
)

FORCED = ["ACTIVATION_ABANDONED", "RUN_TERMINAL"]
NEXT = ["SUBMISSION_DELIVERED", "RUN_CREATED", "MESSAGE_APPENDED", "ACTIVATION_QUEUED"]


def _names(events) -> list[str]:
    return [event.type.name for event in events]


_LOST = put("first", Mode.START, options=RunOptions(max_recoveries=0))


@pytest.mark.parametrize(
    ("steps", "end", "failure"),
    [
        ((beat,), "FAILED", RunFailure.RECOVERY_EXHAUSTED),
        ((reserve,), "FAILED", RunFailure.RECOVERY_EXHAUSTED),
        ((reserve, commit(answer())), "COMPLETED", None),
        ((reserve, commit(asks("c1")), commit(claims("c1"))), "OUTCOME_UNKNOWN", RunFailure.LEASE_EXPIRED),
    ],
)  # fmt: skip
def test_a_lease_that_ran_out_ends_a_run_that_cannot_go_on(steps, end, failure):
    lane = Lane()
    lane.do(create, _LOST, lease(), *steps, steer("s1"), steer("m1", moves=True))
    stale = commit(outcome=COMPLETED).make(lane.state)
    lane.now += LEASE - 1
    assert lane.due() == []
    lane.now += 1
    events = lane.due()
    assert _names(events)[-8:] == [*FORCED, "SUBMISSION_FAILED", "SUBMISSION_MOVED", *NEXT]
    abandoned, terminal = events[-8:-6]
    assert abandoned.body["reason"] is AbandonReason.LEASE_EXPIRED
    assert terminal.body.get("failure_reason") is failure
    assert lane.inputs["s1"] == "FAILED TARGET_TERMINAL"
    assert lane.run_ends == [f"first {end}", "m1 LIVE"]
    refusal = lane.refused(Step(lambda _: stale))
    assert refusal.reason is Reason.STALE_ACTIVATION


def test_a_lease_that_nothing_was_heard_on_is_short_and_costs_nothing():
    lane = Lane()
    lane.do(create, _LOST, lease(), steer("s1"))
    lane.now += UNCONFIRMED - 1
    assert lane.due() == []
    lane.now += 1
    (abandoned, _) = lane.due()
    assert abandoned.body["reason"] is AbandonReason.UNCONFIRMED
    assert (lane.state.run.activation.epoch, lane.state.run.recoveries) == (2, 0)
    assert lane.inputs["s1"] == "PENDING"


def test_a_cancelled_run_whose_lease_ran_out_is_cancelled():
    lane = Lane()
    lane.do(create, put("first", Mode.START, options=RunOptions(cancel_grace=90 * SECOND)), lease())
    lane.do(beat, interrupt())
    lane.now += LEASE
    (abandoned, terminal) = lane.due()
    assert abandoned.body["reason"] is AbandonReason.LEASE_EXPIRED
    assert terminal.body["stop_reason"].name == "CANCELLED"


def test_the_grace_is_absolute_and_commits_do_not_move_it():
    lane = Lane()
    lane.do(create, first, lease(), reserve)
    lane.now += 10 * SECOND
    lane.do(interrupt())
    for _ in range(4):
        lane.now += 7 * SECOND
        lane.do(commit(), interrupt("again"))
    lane.now += 2 * SECOND - 1
    assert lane.due() == []
    lane.now += 1
    (abandoned, terminal) = lane.due()
    assert abandoned.body["reason"] is AbandonReason.GRACE_EXPIRED
    assert terminal.body["stop_reason"].name == "CANCELLED"


def test_grace_comes_before_the_lease_where_both_are_due():
    lane = Lane()
    lane.do(create, first, lease(), interrupt())
    lane.now += GRACE + LEASE
    (abandoned, _) = lane.due()
    assert abandoned.body["reason"] is AbandonReason.GRACE_EXPIRED


def test_a_grace_of_zero_is_due_at_once():
    lane = Lane()
    lane.do(create, put("first", Mode.START, options=RunOptions(cancel_grace=0)), lease())
    lane.do(interrupt())
    assert _names(lane.due()) == FORCED


def test_a_waiting_run_is_never_due():
    lane = Lane()
    lane.do(create, first)
    lane.now += 10**15
    assert lane.due() == []


def test_due_first_a_late_command_meets_what_was_due():
    lane = Lane()
    lane.do(create, _LOST, lease(), beat)
    lane.now += LEASE
    answered = lane.do(put("n", Mode.AUTO))
    assert answered.submission.route.name == "RUN"
    assert lane.run_ends == ["first FAILED", "n LIVE"]


def test_timers_are_set_with_the_request_and_cleared_with_the_end():
    lane = Lane()
    lane.do(create, first, lease())
    request = lane.decided(interrupt().make(lane.state))
    (timer,) = [row for row in request.rows if isinstance(row, TimerSet)]
    assert (timer.kind, timer.due_time) == (TimerKind.GRACE, lane.now + GRACE)
    end = lane.decided(commit(outcome=COMPLETED).make(lane.state))
    (timer,) = [row for row in end.rows if isinstance(row, TimerSet)]
    assert (timer.kind, timer.due_time) == (TimerKind.GRACE, None)


@pytest.mark.parametrize("steps", [(), (beat,)])
def test_a_fence_that_ends_by_expiry_ends_only_if_the_store_agrees(steps):
    lane = Lane()
    lane.do(create, first, lease(), *steps)
    lane.now += LEASE
    rows = decide_due(lane.state, lane.context()).rows
    (dropped,) = [row for row in rows if isinstance(row, LeaseDropped)]
    assert dropped.expired_at == lane.now
    other = Lane()
    other.do(create, first, lease(), interrupt())
    other.now += GRACE
    rows = decide_due(other.state, other.context()).rows
    (dropped,) = [row for row in rows if isinstance(row, LeaseDropped)]
    assert dropped.expired_at is None, "a grace is absolute"


# --- all that is due at once, in order ---------------------------------------

_EXPIRES = commit(outcome=question(expire=60 * SECOND))


def _limited(**how) -> Step:
    return put("first", Mode.START, options=RunOptions(limits=RunLimits(max_duration=60 * SECOND), **how))  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "how", "end", "abandoned"),
    [
        ((lease(), reserve, interrupt()), {}, "CANCELLED", AbandonReason.GRACE_EXPIRED),
        (
            (lease(), reserve, interrupt()),
            {"cancel_grace": 90 * SECOND},
            "CANCELLED",
            AbandonReason.DEADLINE_EXCEEDED,
        ),
        ((lease(), reserve), {}, "DEADLINE_EXCEEDED", AbandonReason.DEADLINE_EXCEEDED),
        ((lease(), reserve, commit(answer())), {}, "COMPLETED", AbandonReason.DEADLINE_EXCEEDED),
        ((lease(), _EXPIRES), {}, "DEADLINE_EXCEEDED", None),
        ((), {}, "DEADLINE_EXCEEDED", AbandonReason.DEADLINE_EXCEEDED),
    ],
)
def test_of_what_is_due_at_once_the_first_decides(steps, how, end, abandoned):
    lane = Lane()
    lane.do(create, _limited(**how), *steps)
    lane.now += 60 * SECOND
    events = lane.due()
    assert lane.run_ends == [f"first {end}"]
    reasons = [one.body["reason"] for one in events if one.type.name == "ACTIVATION_ABANDONED"]
    assert reasons == ([] if abandoned is None else [abandoned])


def test_a_grace_that_is_longer_than_its_lease_ends_with_the_lease():
    lane = Lane()
    lane.do(create, _limited(cancel_grace=90 * SECOND), lease(), reserve, interrupt())
    lane.now += LEASE
    (abandoned, _) = lane.due()
    assert abandoned.body["reason"] is AbandonReason.LEASE_EXPIRED
    assert lane.run_ends == ["first CANCELLED"]


def test_what_became_of_a_run_is_decided_from_what_was_due_then():
    """Each run of a queue has its own deadline, from its own beginning."""
    lane = Lane()
    limited = RunOptions(limits=RunLimits(max_duration=60 * SECOND))
    lane.do(create, _limited(), put("f1", Mode.QUEUE, options=limited))
    lane.now += 200 * SECOND
    lane.due()
    assert lane.run_ends == ["first DEADLINE_EXCEEDED", "f1 LIVE"]
    assert lane.state.run.deadline_time == lane.now + 60 * SECOND


def test_the_timers_of_a_run_are_cleared_with_its_end():
    lane = Lane()
    limits = RunLimits(max_duration=60 * SECOND, start_timeout=30 * SECOND)
    start = put("first", Mode.START, options=RunOptions(limits=limits))
    lane.do(create)
    rows = lane.decided(start.make(lane.state), "first").rows
    assert _timers(rows) == {TimerKind.DEADLINE: 60, TimerKind.START_TIMEOUT: 30}
    # An alarm that has nothing to do would ring at each look of each server.
    assert _timers(lane.decided(lease().make(lane.state)).rows) == {TimerKind.START_TIMEOUT: None}
    assert _timers(lane.decided(_EXPIRES.make(lane.state)).rows) == {
        TimerKind.INTERACTION: 60,
        TimerKind.START_TIMEOUT: None,
    }
    ended = lane.decided(interrupt().make(lane.state)).rows
    cleared = {TimerKind.DEADLINE, TimerKind.INTERACTION, TimerKind.GRACE}
    assert _timers(ended) == dict.fromkeys(cleared)


def _timers(rows) -> dict[TimerKind, int | None]:
    """The timers that are set, in seconds from the start, and those that are cleared."""
    set_ = [row for row in rows if isinstance(row, TimerSet)]
    return {
        row.kind: (row.due_time - START) // SECOND if row.due_time is not None else None
        for row in set_
    }
