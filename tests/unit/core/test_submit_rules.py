"""Submit: order of refusals, options, revision, limits and the order of the queues."""

import itertools

import pytest
from runlane_server.core.commands import CreateSession, Submit
from runlane_server.core.errors import Reason
from runlane_server.core.inputs import resolve_options
from runlane_server.core.model import Rules, RunLimits, RunOptions, SessionRecord
from runlane_server.core.rows import SubmissionInserted
from runlane_server.core.words import Mode, OnMiss, Rank, Recovery, Route, ToolErrorPolicy
from support.lane import Lane
from support.steps import (
    AGENT,
    CANCELLED,
    COMPLETED,
    FAILED,
    SECOND,
    Step,
    aimed,
    answer,
    close,
    commit,
    create,
    delete,
    first,
    interrupt,
    lease,
    put,
    reserve,
    steer,
    text,
)

ONLY = Rules(agents=frozenset({AGENT}), max_steers=1, max_next_runs=1)
OTHER = RunOptions(agent="other")
FULL = (create, first, lease(), put("f1", Mode.QUEUE), steer("s1"))

# Each of these breaks two rules or more; the first in the order of refusals is the answer.
ORDER = {
    "no session, revision": ((create, delete), put("n", Mode.START, expected_revision=99), Reason.SESSION_NOT_FOUND),
    "closed, revision": ((create, close), put("n", Mode.START, expected_revision=99), Reason.SESSION_CLOSED),
    "closed, target": ((create, first, close), put("n", Mode.STEER, target_run_id="run_x"), Reason.SESSION_CLOSED),
    "revision, target": ((create, first), put("n", Mode.STEER, expected_revision=99, target_run_id="run_x"), Reason.REVISION_MISMATCH),
    "revision, lane": ((create, first), put("n", Mode.START, expected_revision=99), Reason.REVISION_MISMATCH),
    "target, idle": ((create,), put("n", Mode.STEER, target_run_id="run_x"), Reason.RUN_NOT_CURRENT),
    "target, cancelling": ((create, first, lease(), interrupt()), put("n", Mode.STEER, target_run_id="run_x"), Reason.RUN_NOT_CURRENT),
    "idle, options": ((create,), put("n", Mode.STEER, options=OTHER), Reason.SESSION_IDLE),
    "idle, agent": ((create,), put("n", Mode.FOLLOW_UP, options=OTHER), Reason.SESSION_IDLE),
    "busy, agent": ((create, first), put("n", Mode.START, options=OTHER), Reason.SESSION_BUSY),
    "cancelling, options": ((create, first, lease(), interrupt()), put("n", Mode.STEER, options=OTHER), Reason.RUN_CANCELLING),
    "options, agent": ((create, first), put("n", Mode.STEER, options=OTHER), Reason.OPTIONS_NOT_ALLOWED),
    "options, full": (FULL, put("n", Mode.STEER, options=OTHER), Reason.OPTIONS_NOT_ALLOWED),
    "agent, full": (FULL, put("n", Mode.QUEUE, options=OTHER), Reason.AGENT_NOT_FOUND),
    "agent that is not reached, full": (FULL, put("n", Mode.AUTO, options=OTHER), Reason.QUEUE_FULL),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDER.values(), ids=list(ORDER))
def test_the_first_rule_that_fails_is_the_answer(case):
    given, step, reason = case
    lane = Lane(ONLY)
    lane.do(*given)
    before = lane.state
    assert lane.refused(step).reason is reason
    assert lane.state is before


@pytest.mark.parametrize("mode", [Mode.START, Mode.AUTO, Mode.QUEUE, Mode.REPLACE])
def test_no_agent_anywhere_names_the_field(mode):
    lane = Lane(Rules(max_next_runs=0))
    lane.do(Step(lambda _: CreateSession(SessionRecord())))
    refusal = lane.refused(put("n", mode))
    assert refusal.reason is Reason.FIELD_INVALID
    assert [field for field, _ in refusal.violations] == ["run_options.agent"]


def test_expected_revision():
    lane = Lane()
    lane.do(create)
    refusal = lane.refused(put("n", Mode.START, expected_revision=0))
    assert (refusal.reason, refusal.metadata) == (Reason.REVISION_MISMATCH, {"revision": "1"})
    lane.do(put("n", Mode.START, expected_revision=1))
    lane.do(put("f1", Mode.QUEUE, expected_revision=2))  # what is queued is no new revision
    lane.do(put("f2", Mode.QUEUE, expected_revision=2))
    fresh = Lane()
    made = {"create_session": SessionRecord(default_agent=AGENT)}
    assert fresh.refused(put("n", Mode.START, expected_revision=1, **made)).metadata == {"revision": "0"}  # fmt: skip
    fresh.do(put("n", Mode.START, expected_revision=0, **made))


# --- options ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "session", "rules", "fallback", "agent"),
    [
        (RunOptions("asked"), "session", Rules(default_agent="server"), "run", "asked"),
        (None, "session", Rules(default_agent="server"), "run", "session"),
        (RunOptions(), "", Rules(default_agent="server"), "run", "server"),
        (None, "", Rules(), "run", "run"),
    ],
)
def test_the_agent_is_the_first_that_is_named(asked, session, rules, fallback, agent):
    assert resolve_options(asked, session, rules, fallback).agent == agent


def test_options_are_resolved_when_the_input_is_accepted():
    rules = Rules(max_model_steps=7, agent_model_steps={"slow": 3}, cancel_grace=5)
    assert resolve_options(None, "main", rules) == RunOptions(
        "main", limits=RunLimits(max_model_steps=7), max_recoveries=3, cancel_grace=5
    )
    assert resolve_options(RunOptions("slow"), "", rules).limits.max_model_steps == 3
    asked = RunOptions(
        "slow",
        "m",
        RunLimits(2, 3, 4, 5, 6, 7, 8),
        ("a",),
        9,
        ToolErrorPolicy.STOP,
        Recovery.MANUAL,
        max_recoveries=0,
        cancel_grace=0,
        request_options_json="{}",
    )
    assert resolve_options(asked, "main", rules) == asked
    lane = Lane(rules)
    lane.do(create, first, put("f1", Mode.QUEUE))
    lane.with_rules(max_model_steps=99)
    lane.do(interrupt())
    assert lane.state.run.limits.max_model_steps == 7


def test_a_steer_keeps_the_options_for_the_run_that_it_may_become():
    lane = Lane()
    lane.do(create, first, lease())
    wanted = RunOptions(
        "other", "m-2", RunLimits(4), recovery=Recovery.MANUAL, max_recoveries=1, cancel_grace=9
    )
    lane.do(put("m1", Mode.AUTO, on_miss=OnMiss.FOLLOW_UP, options=wanted))
    lane.do(put("m2", Mode.STEER, on_miss=OnMiss.FOLLOW_UP))
    lane.do(commit(outcome=FAILED))
    run = lane.state.run
    assert (run.agent, run.limits.max_model_steps, run.cancel_grace) == ("other", 4, 9)
    assert (run.recovery, run.max_recoveries) == (Recovery.MANUAL, 1)
    lane.do(interrupt())
    assert lane.state.run.agent == AGENT


def test_auto_ignores_options_where_it_steers_for_good():
    lane = Lane(ONLY)
    lane.do(create, first, lease(), put("s1", Mode.AUTO, options=OTHER))
    assert lane.inputs["s1"] == "PENDING"


def test_the_hot_state_keeps_no_option_that_only_the_run_needs():
    lane = Lane()
    lane.do(create, first)
    wanted = RunOptions(request_options_json='{"a":1}')
    decision = lane.decided(Submit(text("f1"), Mode.QUEUE, options=wanted), "f1")
    (row,) = [row for row in decision.rows if isinstance(row, SubmissionInserted)]
    assert row.options.request_options_json == '{"a":1}'
    assert lane.state.next_runs[0].options.request_options_json == ""


# --- limits ----------------------------------------------------------------


def test_each_queue_has_a_limit_of_its_own():
    lane = Lane(Rules(max_steers=2, max_next_runs=2))
    lane.do(create, first, lease(), steer("s1"), steer("s2"))
    refusal = lane.refused(steer("s3"))
    assert (refusal.reason, refusal.metadata) == (Reason.QUEUE_FULL, {"limit": "2", "queue": "steers"})  # fmt: skip
    assert lane.refused(put("s3", Mode.AUTO)).reason is Reason.QUEUE_FULL
    lane.do(put("f1", Mode.QUEUE), put("f2", Mode.FOLLOW_UP))
    for mode in (Mode.QUEUE, Mode.FOLLOW_UP, Mode.REPLACE):
        before = lane.state
        refusal = lane.refused(put("n", mode))
        assert (refusal.reason, refusal.metadata) == (Reason.QUEUE_FULL, {"limit": "2", "queue": "next_runs"})  # fmt: skip
        assert lane.state is before, "a refused REPLACE cancels nothing"


def test_the_bytes_of_both_queues_have_one_limit():
    size = text("1234").size
    lane = Lane(Rules(max_pending_bytes=2 * size))
    lane.do(create, first, lease(), steer("abcd"), put("efgh", Mode.QUEUE))
    for step in (steer("n"), put("n", Mode.QUEUE), put("n", Mode.REPLACE)):
        refusal = lane.refused(step)
        assert (refusal.reason, refusal.metadata) == (Reason.QUEUE_FULL, {"limit": str(2 * size), "queue": "bytes"})  # fmt: skip
    lane.do(reserve, commit(answer()))  # delivers the steer: there is room again
    lane.do(steer("ijkl"))


def test_what_starts_at_once_is_never_refused_for_a_limit():
    lane = Lane(Rules(max_steers=0, max_next_runs=0, max_pending_bytes=0))
    lane.do(create)
    for number, mode in enumerate((Mode.START, Mode.AUTO, Mode.QUEUE, Mode.REPLACE)):
        lane.do(put(f"n{number}", mode))
        lane.do(put(f"r{number}", Mode.REPLACE))  # Q: the run before it ends here
        lane.do(interrupt())
    assert set(lane.inputs.values()) == {"DELIVERED"}


def test_a_move_is_never_refused():
    lane = Lane(Rules(max_steers=3, max_next_runs=1))
    steers = [steer(f"m{number}", moves=True) for number in range(3)]
    lane.do(create, first, lease(), put("f1", Mode.QUEUE), *steers, interrupt())
    assert len(lane.state.next_runs) == 4
    assert lane.refused(put("n", Mode.QUEUE)).reason is Reason.QUEUE_FULL


# --- order -----------------------------------------------------------------


def _drain(lane: Lane) -> list[str]:
    """Ends run after run; returns what they began with, in order."""
    begun = []
    while lane.state.run is not None:
        begun.append(lane.runs[lane.state.run.run_id][0])
        lane.do(interrupt())
        if lane.state.run is not None and lane.state.run.cancellation is not None:
            lane.do(commit(outcome=CANCELLED))
    return begun


def test_replace_then_moved_steers_then_follow_ups_each_in_turn():
    lane = Lane()
    lane.do(create, first, lease())
    lane.do(put("f1", Mode.QUEUE), steer("m1", moves=True), put("f2", Mode.FOLLOW_UP), steer("s1"))
    lane.do(steer("m2", moves=True), put("r1", Mode.REPLACE), put("r2", Mode.REPLACE))
    lane.do(put("f3", Mode.AUTO))  # cancelling: a follow-up
    assert [one.rank for one in lane.state.next_runs] == [
        Rank.REPLACE, Rank.REPLACE, Rank.MOVED_STEER, Rank.MOVED_STEER, *[Rank.FOLLOW_UP] * 3,
    ]  # fmt: skip
    assert _drain(lane) == ["first", "r1", "r2", "m1", "m2", "f1", "f2", "f3"]
    assert lane.inputs["s1"] == "FAILED TARGET_CANCELLING"


def test_a_moved_steer_keeps_its_submission_and_gets_a_run_id_and_route_of_its_own():
    lane = Lane()
    lane.do(create, first, lease())
    steered = lane.do(steer("m1", moves=True)).submission
    target = lane.state.run.run_id
    assert steered.run_id == target
    lane.do(interrupt())
    (moved,) = lane.state.next_runs
    assert moved.submission_id == steered.submission_id
    assert (moved.route, moved.mode) == (Route.FOLLOW_UP, Mode.STEER)
    assert moved.run_id not in {target, ""}
    (event,) = [event for event in lane.events if event.type.name == "SUBMISSION_MOVED"]
    assert (event.run_id, event.body["from_run_id"]) == (moved.run_id, target)
    lane.do(commit(outcome=CANCELLED))
    assert lane.state.run.run_id == moved.run_id
    assert lane.state.run.submission_id == steered.submission_id


def test_neither_queue_holds_back_the_other():
    lane = Lane()
    lane.do(create, first, lease(), put("f1", Mode.QUEUE), steer("s1"), reserve)
    lane.do(commit(answer(), outcome=COMPLETED))
    assert (lane.inputs["s1"], lane.inputs["f1"]) == ("DELIVERED", "PENDING")
    lane.do(reserve, commit(answer(), outcome=COMPLETED))
    assert lane.inputs["f1"] == "DELIVERED"


def test_one_that_cannot_start_fails_and_the_next_is_tried():
    lane = Lane()
    lane.do(create, first, put("f1", Mode.QUEUE, options=OTHER), put("f2", Mode.QUEUE))
    lane.do(put("f3", Mode.QUEUE, options=OTHER))
    lane.with_rules(agents=frozenset({AGENT}))
    last = lane.state.sequence
    lane.do(interrupt())
    assert lane.event_names(last) == [
        "RUN_CANCELLATION_REQUESTED", "ACTIVATION_ABANDONED", "RUN_TERMINAL", "SUBMISSION_FAILED",
        "SUBMISSION_DELIVERED", "RUN_CREATED", "MESSAGE_APPENDED", "ACTIVATION_QUEUED",
    ]  # fmt: skip
    assert lane.inputs["f1"] == "FAILED START_FAILED"
    assert lane.run_ends[-1] == "f2 LIVE"
    lane.do(interrupt())
    assert (lane.inputs["f3"], lane.state.run) == ("FAILED START_FAILED", None)


def test_runs_of_a_session_have_growing_times_though_the_clock_stands():
    lane = Lane()
    lane.do(create)
    times = []
    for number in range(5):
        lane.do(put(f"n{number}", Mode.REPLACE))
        times.append(lane.state.run.create_time)
    lane.now -= 10 * SECOND  # and though it goes back
    lane.do(put("n9", Mode.REPLACE))
    times.append(lane.state.run.create_time)
    assert all(one < other for one, other in itertools.pairwise(times))
    event_times = [event.time for event in lane.events]
    assert event_times == sorted(event_times)


def test_a_target_is_that_run_alone():
    lane = Lane()
    lane.do(create, first)
    reserved = lane.do(put("f1", Mode.QUEUE)).submission.run_id
    assert lane.refused(put("n", Mode.STEER, target_run_id=reserved)).reason is Reason.RUN_NOT_CURRENT  # fmt: skip
    lane.do(aimed("r1", Mode.REPLACE))
    assert lane.run_ends == ["first CANCELLED", "r1 LIVE"]
