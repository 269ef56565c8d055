"""Steers meet boundaries: one each, in order, and none where no step is left to read it in."""

from dataclasses import replace

import pytest
from runlane_server.core.commands import Finish, FinishKind
from runlane_server.core.model import Failure, RunLimits, RunOptions, Usage
from runlane_server.core.rows import LeasePut, RunEnded
from runlane_server.core.words import Author, Mode, Role, RunFailure
from support.lane import Lane
from support.steps import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LEASE,
    RELEASE,
    SECOND,
    answer,
    commit,
    create,
    interrupt,
    lease,
    put,
    reserve,
    steer,
)


def _started(**limits) -> Lane:
    lane = Lane()
    options = RunOptions(limits=RunLimits(**limits))
    lane.do(create, put("first", Mode.START, options=options), lease())
    return lane


def _authors(lane: Lane) -> list[str]:
    return [message.author.name for message in lane.messages]


def test_one_steer_a_boundary_first_come_first_served():
    lane = _started()
    lane.do(steer("s1"), steer("s2"), steer("s3"))
    for number in (1, 2, 3):
        done = lane.do(reserve, commit(answer(), outcome=COMPLETED))
        assert not done.outcome_applied
        assert list(lane.inputs.values()).count("PENDING") == 3 - number
    done = lane.do(reserve, commit(answer(), outcome=COMPLETED))
    assert done.outcome_applied
    assert _authors(lane) == ["INPUT", *["MODEL", "STEER"] * 3, "MODEL"]
    assert [message.step for message in lane.messages] == [0, 1, 1, 2, 2, 3, 3, 4]
    assert lane.run_ends == ["first COMPLETED"]


def test_the_finish_of_an_earlier_answer_is_a_boundary_of_its_own():
    lane = _started()
    lane.do(steer("s1"), reserve, commit(answer()), steer("s2"))
    assert lane.inputs == {"first": "DELIVERED", "s1": "DELIVERED", "s2": "PENDING"}
    done = lane.do(commit(outcome=COMPLETED))
    assert (done.outcome_applied, len(done.delivered)) == (False, 1)
    assert _authors(lane) == ["INPUT", "MODEL", "STEER", "STEER"]


def test_no_steer_where_no_step_is_left():
    lane = _started(max_model_steps=2)
    lane.do(steer("s1"), steer("s2"), reserve, commit(answer()))
    assert lane.inputs["s1"] == "DELIVERED"
    lane.do(reserve, commit(answer()))
    assert lane.inputs["s2"] == "PENDING"
    done = lane.do(commit(outcome=COMPLETED))
    assert (done.outcome_applied, done.run.output_message_number) == (True, 4)
    assert lane.inputs["s2"] == "FAILED TARGET_TERMINAL"


def test_no_steer_with_the_last_step_reserved_and_open():
    lane = _started(max_model_steps=1)
    lane.do(steer("s1"), reserve)
    assert lane.do(commit(outcome=COMPLETED)).outcome_applied
    assert lane.inputs["s1"] == "FAILED TARGET_TERMINAL"


def test_no_steer_after_a_cancellation_request():
    lane = _started()
    lane.do(reserve, steer("m1", moves=True), interrupt())
    done = lane.do(commit(answer(), outcome=COMPLETED))
    assert (done.run.stop_reason.name, done.delivered) == ("CANCELLED", [])
    assert lane.run_ends == ["first CANCELLED", "m1 LIVE"]
    assert _authors(lane) == ["INPUT", "MODEL", "INPUT"]


def test_a_failed_finish_takes_an_answer_and_no_steer():
    lane = _started()
    lane.do(reserve, steer("m1", moves=True))
    done = lane.do(commit(answer(), outcome=FAILED))
    assert (done.outcome_applied, done.run.failure_reason) == (True, RunFailure.EXECUTOR_ERROR)
    assert done.run.output_message_number == 0
    assert lane.run_ends == ["first FAILED", "m1 LIVE"]


def test_reserve_again_gives_the_same_step_and_no_event():
    lane = _started()
    granted = lane.do(reserve).results
    last = lane.state.sequence
    assert lane.do(reserve).results == granted
    assert lane.state.sequence == last
    lane.do(commit(outcome=RELEASE), lease("x2"))
    assert lane.do(reserve).results == granted, "the reservation outlives its activation"
    assert (lane.state.run.steps_reserved, lane.state.run.activation.epoch) == (1, 2)
    lane.do(commit(answer()))
    assert lane.messages[-1].model_stream_id == granted[0].model_stream_id


def test_a_reserve_beyond_the_budget_ends_the_run():
    lane = _started(max_model_steps=3)
    lane.do(put("f1", Mode.QUEUE), steer("s1"))
    # Of the steps that this version has, none leads here: a steer is not delivered.
    lane.state = replace(lane.state, run=replace(lane.state.run, steps_reserved=3, steps_committed=3))  # fmt: skip
    last = lane.state.sequence
    done = lane.do(reserve)
    (result,) = done.results
    assert (result.granted, result.run_ended, done.outcome_applied) == (False, True, False)
    assert done.run.stop_reason.name == "BUDGET_EXHAUSTED"
    assert done.lease_expire_time == 0
    assert lane.event_names(last) == [
        "ACTIVATION_ENDED", "RUN_TERMINAL", "SUBMISSION_FAILED",
        "SUBMISSION_DELIVERED", "RUN_CREATED", "MESSAGE_APPENDED", "ACTIVATION_QUEUED",
    ]  # fmt: skip
    ended = next(event for event in lane.events if event.type.name == "ACTIVATION_ENDED")
    assert ended.body["reason"].name == "BUDGET_EXHAUSTED"


def test_the_budget_is_of_the_run_and_nothing_resets_it():
    lane = _started(max_model_steps=2)
    lane.do(reserve, commit(outcome=RELEASE), lease(), reserve, steer("s1"), commit(answer()))
    lane.do(commit(outcome=RELEASE), lease("x2"), reserve, commit(answer()))
    assert (lane.state.run.steps_reserved, lane.state.run.steps_committed) == (2, 2)
    assert lane.do(commit(outcome=COMPLETED)).outcome_applied
    lane.do(
        put("next", Mode.START, options=RunOptions(limits=RunLimits(max_model_steps=1))),
        lease(),
        reserve,
    )
    assert lane.state.run.steps_reserved == 1


def test_usage_is_the_sum_of_the_steps():
    lane = _started()
    lane.do(steer("s1"), reserve, commit(answer()), reserve)
    done = lane.do(commit(answer(), outcome=COMPLETED))
    assert done.run.usage == Usage(20, 10, 2, 4, 200)
    assert (done.run.steps_reserved, done.run.steps_committed) == (2, 2)


def test_the_end_of_a_run_freezes_its_cutoff_and_digest():
    lane = _started()
    lane.do(reserve)
    decision = lane.decided(commit(answer(), outcome=COMPLETED).make(lane.state))
    (row,) = [row for row in decision.rows if isinstance(row, RunEnded)]
    assert (row.message_cutoff, row.digest) == (2, lane.state.digest)
    assert row.last_sequence == decision.events[-1].sequence
    lane.do(put("n", Mode.START))
    assert lane.state.digest != row.digest


@pytest.mark.parametrize(
    ("outcome", "output"),
    [(Finish(FinishKind.COMPLETED, '{"a":1}'), '{"a":1}'), (FAILED, "")],
)
def test_what_a_finish_says_is_kept(outcome, output):
    lane = _started()
    decision = lane.decided(commit(outcome=outcome).make(lane.state))
    (row,) = [row for row in decision.rows if isinstance(row, RunEnded)]
    assert row.output_json == output
    if outcome is FAILED:
        assert row.failure == Failure(RunFailure.EXECUTOR_ERROR, "broken")


def test_every_commit_that_goes_on_renews_the_lease():
    lane = _started()
    for step in (reserve, reserve, commit(), commit(answer())):
        lane.now += SECOND
        decision = lane.decided(step.make(lane.state))
        (row,) = [row for row in decision.rows if isinstance(row, LeasePut)]
        assert row.expire_time == decision.lease_expire_time == lane.now + LEASE
    lane.now += SECOND
    assert lane.decided(commit(outcome=COMPLETED).make(lane.state)).lease_expire_time == 0


def test_every_event_of_a_run_names_its_activation_and_counts_on():
    lane = _started()
    lane.do(reserve, commit(outcome=RELEASE), lease("x2"), steer("s1"), reserve, commit(answer()))
    lane.do(reserve, commit(answer(), outcome=COMPLETED))
    (run_id,) = lane.runs
    events = [event for event in lane.events if event.run_id == run_id]
    assert [event.run_sequence for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type.name == "RUN_TERMINAL"
    assert all(event.activation_id for event in events)
    attempts = [event.attempt for event in events]
    assert attempts == sorted(attempts)
    assert set(attempts) == {1, 2}
    messages = [event for event in lane.events if event.message_number]
    assert [event.message_number for event in messages] == [row.number for row in lane.messages]
    assert [row.role for row in lane.messages] == [Role.USER, Role.ASSISTANT, Role.USER, Role.ASSISTANT]  # fmt: skip
    assert lane.messages[2].author is Author.STEER


def test_a_cancelled_finish_needs_a_request():
    lane = _started()
    lane.do(interrupt())
    assert lane.do(commit(outcome=CANCELLED)).run.stop_reason.name == "CANCELLED"
