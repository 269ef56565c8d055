"""Time: grace first, then leases; a decision at a later time sees no other past."""

import pytest
from runlane_server.core.errors import Reason
from runlane_server.core.machine import decide_due
from runlane_server.core.model import AbandonReason, Mode, RunFailure, RunOptions, TimerKind
from runlane_server.core.rows import LeaseDropped, TimerSet
from support.lane import Lane
from support.steps import (
    COMPLETED,
    GRACE,
    LEASE,
    SECOND,
    Step,
    answer,
    commit,
    create,
    first,
    interrupt,
    lease,
    put,
    reserve,
    steer,
)

FORCED = ["ACTIVATION_ABANDONED", "RUN_TERMINAL"]
NEXT = ["SUBMISSION_DELIVERED", "RUN_CREATED", "MESSAGE_APPENDED", "ACTIVATION_QUEUED"]


def _names(events) -> list[str]:
    return [event.type.name for event in events]


@pytest.mark.parametrize("steps", [(), (reserve,), (reserve, commit(answer()))])
def test_a_lease_that_ran_out_fails_the_run(steps):
    lane = Lane()
    lane.do(create, first, lease(), *steps, steer("s1"), steer("m1", moves=True))
    stale = commit(outcome=COMPLETED).make(lane.state)
    lane.now += LEASE - 1
    assert lane.due() == []
    lane.now += 1
    events = lane.due()
    assert _names(events) == [*FORCED, "SUBMISSION_FAILED", "SUBMISSION_MOVED", *NEXT]
    assert events[0].body["reason"] is AbandonReason.LEASE_EXPIRED
    assert events[1].body["failure_reason"] is RunFailure.LEASE_EXPIRED
    assert lane.inputs["s1"] == "FAILED TARGET_TERMINAL"
    assert lane.run_ends == ["first FAILED", "m1 LIVE"]
    refusal = lane.refused(Step(lambda _: stale))
    assert refusal.reason is Reason.STALE_ACTIVATION


def test_a_cancelled_run_whose_lease_ran_out_is_cancelled():
    lane = Lane()
    lane.do(create, put("first", Mode.START, options=RunOptions(cancel_grace=90 * SECOND)), lease())
    lane.do(interrupt())
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
    lane.do(create, first, lease())
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


def test_a_fence_that_ends_by_expiry_ends_only_if_the_store_agrees():
    lane = Lane()
    lane.do(create, first, lease())
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
