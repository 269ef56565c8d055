"""Cells of executors: lease, reserve, step, finish, release."""

from typing import Any

from runlane_server.core.commands import CommitRun, LeaseActivation
from runlane_server.core.errors import Reason
from runlane_server.core.model import Fence, SessionState

from support.steps import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LEASE,
    RELEASE,
    RESERVE,
    UNCONFIRMED,
    Step,
    answer,
    commit,
    fence_of,
    lease,
    reserve,
)
from support.table import (
    ANSWERED,
    ENDED,
    MISSED,
    NEXT,
    RELEASED,
    STEERED,
    Cell,
    Look,
    refused,
    run_id_of,
)


def _leased(answer: Any, before: SessionState, after: SessionState) -> None:
    assert answer.fence == fence_of(after)
    assert answer.lease_expire_time == after.last_time + UNCONFIRMED
    assert after.run.activation.executor_id == "x1"


def _granted(answer: Any, before: SessionState, after: SessionState) -> None:
    (result,) = answer.results
    assert (result.granted, result.step) == (True, after.run.steps_reserved)
    assert result.model_stream_id == after.run.model_stream_id
    assert after.revision == before.revision


def _applied(answer: Any, before: SessionState, after: SessionState) -> None:
    assert answer.outcome_applied
    assert not answer.delivered
    assert answer.lease_expire_time == 0


def _ends(position_output: bool) -> Look:
    def look(answer: Any, before: SessionState, after: SessionState) -> None:
        _applied(answer, before, after)
        assert answer.run.phase.name == "TERMINAL"
        assert bool(answer.run.output_message_number) is position_output
        assert answer.run.message_cutoff == answer.run.output_message_number or not position_output

    return look


def _goes_on(answer: Any, before: SessionState, after: SessionState) -> None:
    """A steer made the run go on: nothing else of the outcome happened."""
    assert not answer.outcome_applied
    assert answer.delivered == [after.message_count]
    assert answer.lease_expire_time == after.last_time + LEASE
    assert (after.run.position.name, after.run.output_message_number) == ("BEFORE_MODEL", 0)


def _queued_again(answer: Any, before: SessionState, after: SessionState) -> None:
    _applied(answer, before, after)
    assert after.run.activation.epoch == before.run.activation.epoch + 1
    assert after.run.activation.activation_id != before.run.activation.activation_id
    assert after.run.reserved_step == before.run.reserved_step


_A = answer()
_DONE = {"first": "DELIVERED"}


def _invalid(state: str, what: str, step: Step, detail: str, index: str = "") -> Cell:
    where = {"operation_index": index} if index else {}
    return refused(state, what, step, Reason.OPERATION_INVALID, detail=detail, **where)


_LAST = "reserve_model_step is last in its list, without an outcome"
_NONE_RESERVED = "no model step is reserved"
_HAS_ANSWER = "the run has its final answer; finish it"
_NOT_ASKED = "cancellation of the run was not requested"

EXECUTOR_CELLS = [
    Cell("Q", "lease", lease(), "L", ["ACTIVATION_LEASED"], look=_leased),
    Cell("closed Q", "lease", lease(), "L", ["ACTIVATION_LEASED"], look=_leased),
    *(refused(state, "lease", lease(), Reason.STALE_ACTIVATION) for state in ("L", "Lc")),
    *(refused(state, "lease another", Step(lambda _: LeaseActivation("act_x", "x1", LEASE)), Reason.STALE_ACTIVATION) for state in ("none", "IDLE", "Q", "deleted", "deleted L")),
    *(
        refused(state, f"{what} by a wrong {name}", commit(*operations, outcome=outcome, **{name: value}), Reason.STALE_ACTIVATION,
                 run_id=(value if name == "run_id" else run_id_of))
        for state in ("L", "Lc")
        for name, value in (("run_id", "run_x"), ("activation_id", "act_x"), ("epoch", 7))
        for what, operations, outcome in (("reserve", [RESERVE], None), ("finish", [], COMPLETED), ("release", [], RELEASE))
    ),
    *(
        refused("Q", what, commit(*operations, outcome=outcome), Reason.STALE_ACTIVATION, run_id=run_id_of)
        for what, operations, outcome in (
            ("reserve", [RESERVE], None), ("step", [_A], None), ("completed", [], COMPLETED), ("failed", [], FAILED),
            ("cancelled", [], CANCELLED), ("release", [], RELEASE), ("nothing", [], None),
        )
    ),
    refused("IDLE", "commit", Step(lambda s: CommitRun(_fence("run_x"), [RESERVE])), Reason.STALE_ACTIVATION, run_id="run_x"),
    *(refused(state, "commit", Step(lambda s: CommitRun(_fence("run_x"), [RESERVE])), Reason.RUN_NOT_FOUND) for state in ("none", "deleted", "deleted L")),
    Cell("L", "reserve", reserve, "L", ["MODEL_STEP_RESERVED"], look=_granted),
    Cell("closed L", "reserve", reserve, "L", ["MODEL_STEP_RESERVED"], look=_granted),
    Cell("L reserved", "reserve", reserve, "L", look=_granted),
    refused("Lc", "reserve", reserve, Reason.RUN_CANCELLING, run_id=run_id_of),
    refused("Lc reserved", "reserve", reserve, Reason.RUN_CANCELLING, run_id=run_id_of),
    _invalid("L final", "reserve", reserve, _HAS_ANSWER, "0"),
    _invalid("L reserved", "step, reserve", commit(_A, RESERVE), _HAS_ANSWER, "1"),
    _invalid("L", "reserve first of two", commit(RESERVE, _A), _LAST, "0"),
    _invalid("L", "reserve with an outcome", commit(RESERVE, outcome=RELEASE), _LAST, "0"),
    _invalid("Lc", "reserve with an outcome", commit(RESERVE, outcome=COMPLETED), _LAST, "0"),
    _invalid("L", "step without a reservation", commit(_A), _NONE_RESERVED, "0"),
    _invalid("L final", "step", commit(_A), _NONE_RESERVED, "0"),
    _invalid("L reserved", "two steps", commit(_A, _A), _NONE_RESERVED, "1"),
    _invalid("L", "finish cancelled", commit(outcome=CANCELLED), _NOT_ASKED),
    _invalid("L reserved", "step, finish cancelled", commit(_A, outcome=CANCELLED), _NOT_ASKED),
    Cell("L reserved", "nothing", commit(), "L", look=lambda a, b, s: _renewed(a, s)),
    Cell("L reserved", "step", commit(_A), "L", ANSWERED, look=lambda a, b, s: _answered(a, s)),
    Cell("closed L reserved", "step", commit(_A), "L", ANSWERED, look=lambda a, b, s: _answered(a, s)),
    Cell("Lc reserved", "step", commit(_A), "Lc", ANSWERED, look=lambda a, b, s: _answered(a, s)),
    Cell("L reserved queues", "step", commit(_A), "L", [*ANSWERED, *STEERED], {"s1": "DELIVERED"}, look=_goes_on),
    Cell("L two steers", "step", commit(_A), "L", [*ANSWERED, *STEERED], {"s1": "DELIVERED"}, look=_goes_on),
    Cell("L two steers", "step, reserve", commit(_A, RESERVE), "L", [*ANSWERED, *STEERED, "MODEL_STEP_RESERVED"], {"s1": "DELIVERED"}),
    Cell("L two steers", "step, completed", commit(_A, outcome=COMPLETED), "L", [*ANSWERED, *STEERED], {"s1": "DELIVERED"}, look=_goes_on),
    Cell(
        "L two steers", "step, failed", commit(_A, outcome=FAILED), "IDLE", [*ANSWERED, *ENDED, *["SUBMISSION_FAILED"] * 2],
        {"s1": "FAILED TARGET_TERMINAL", "s2": "FAILED TARGET_TERMINAL"}, ["first FAILED"], look=_ends(False),
    ),
    Cell("L two steers", "step, release", commit(_A, outcome=RELEASE), "Q", [*ANSWERED, *STEERED, *RELEASED], {"s1": "DELIVERED"}),
    Cell("L last step", "step", commit(_A), "L", ANSWERED, look=lambda a, b, s: _answered(a, s)),
    Cell(
        "L last step", "step, completed", commit(_A, outcome=COMPLETED), "IDLE", [*ANSWERED, *ENDED, "SUBMISSION_FAILED"],
        {"s1": "FAILED TARGET_TERMINAL"}, ["first COMPLETED"], look=_ends(True),
    ),
    Cell("L spent", "completed", commit(outcome=COMPLETED), "IDLE", [*ENDED, "SUBMISSION_FAILED"], {"s1": "FAILED TARGET_TERMINAL"}, ["first COMPLETED"], look=_ends(True)),
    Cell("L", "completed", commit(outcome=COMPLETED), "IDLE", ENDED, {}, ["first COMPLETED"], look=_ends(False)),
    Cell("L reserved", "completed", commit(outcome=COMPLETED), "IDLE", ENDED, {}, ["first COMPLETED"], look=_ends(False)),
    Cell("closed L", "completed", commit(outcome=COMPLETED), "IDLE", ENDED, {}, ["first COMPLETED"], look=_ends(False)),
    Cell("L final", "completed", commit(outcome=COMPLETED), "IDLE", ENDED, {}, ["first COMPLETED"], look=_ends(True)),
    Cell("L final queues", "completed", commit(outcome=COMPLETED), "L", STEERED, {"s1": "DELIVERED"}, look=_goes_on),
    Cell("L queues", "completed", commit(outcome=COMPLETED), "L", STEERED, {"s1": "DELIVERED"}, look=_goes_on),
    Cell("L reserved", "step, completed", commit(_A, outcome=COMPLETED), "IDLE", [*ANSWERED, *ENDED], {}, ["first COMPLETED"], look=_ends(True)),
    Cell(
        "L queues", "failed", commit(outcome=FAILED), "Q", [*ENDED, *MISSED, *NEXT],
        {"s1": "FAILED TARGET_TERMINAL", "m1": "DELIVERED"}, ["first FAILED", "m1 LIVE"], look=_ends(False),
    ),
    Cell("L", "failed", commit(outcome=FAILED), "IDLE", ENDED, {}, ["first FAILED"], look=_ends(False)),
    *(
        Cell(state, what, commit(outcome=outcome), "IDLE", ENDED, {}, ["first CANCELLED"], look=_ends(False))
        for state in ("Lc", "Lc reserved", "Lc final", "closed Lc")
        for what, outcome in (("completed", COMPLETED), ("failed", FAILED), ("cancelled", CANCELLED), ("release", RELEASE))
    ),
    Cell("Lc reserved", "step, completed", commit(_A, outcome=COMPLETED), "IDLE", [*ANSWERED, *ENDED], {}, ["first CANCELLED"], look=_ends(False)),
    Cell("Lc follow", "cancelled", commit(outcome=CANCELLED), "Q", [*ENDED, *NEXT], {"f1": "DELIVERED"}, ["first CANCELLED", "f1 LIVE"]),
    Cell("Lc replaced", "completed", commit(outcome=COMPLETED), "Q", [*ENDED, *NEXT], {"r1": "DELIVERED"}, ["first CANCELLED", "r1 LIVE"]),
    Cell("L", "release", commit(outcome=RELEASE), "Q", RELEASED, look=_queued_again),
    Cell("L reserved", "release", commit(outcome=RELEASE), "Q", RELEASED, look=_queued_again),
    Cell("L queues", "release", commit(outcome=RELEASE), "Q", RELEASED, look=_queued_again),
    Cell("L final", "release", commit(outcome=RELEASE), "IDLE", ENDED, {}, ["first COMPLETED"], look=_ends(True)),
    Cell("L reserved", "step, release", commit(_A, outcome=RELEASE), "IDLE", [*ANSWERED, *ENDED], {}, ["first COMPLETED"], look=_ends(True)),
]  # fmt: skip


def _fence(run_id: str) -> Any:
    return Fence("ses_1", run_id, "act_x", 1)


def _renewed(answer: Any, after: SessionState) -> None:
    assert answer.lease_expire_time == after.last_time + LEASE
    assert not answer.outcome_applied


def _answered(answer: Any, after: SessionState) -> None:
    (result,) = answer.results
    assert result.message_number == after.message_count == after.run.output_message_number
    assert after.run.position.name == "OUTCOME_READY"
    assert (after.run.reserved_step, after.run.model_stream_id) == (0, "")
    assert after.run.usage.input_tokens == 10
    assert not answer.delivered
