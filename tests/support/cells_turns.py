"""Cells of executors where runs wait, stop, break and come back."""

from typing import Any

from runlane_server.core.commands import CommitRun, LeaseActivation
from runlane_server.core.errors import Reason
from runlane_server.core.model import Fence, SessionState
from runlane_server.core.words import PromptKind, ToolOutcome

from support.cells_waits import (
    CANCELLING,
    FACTS,
    LEASED,
    MESSAGE,
    PARKED,
    PAUSED,
    PAUSING,
    QUEUED,
    STALLED,
    STOPPED,
    WAITING,
)
from support.steps import (
    CANCELLED,
    COMPLETED,
    FAILED,
    LEASE,
    RELEASE,
    RESERVE,
    Step,
    answer,
    asks,
    claims,
    commit,
    fence_of,
    lease,
    question,
    results,
)
from support.table import ANSWERED, ENDED, STEERED, Cell, column_of, refused, run_id_of

_OVER = "ACTIVATION_ENDED"
_RESULT = ["TOOL_CALL_COMMITTED", MESSAGE]
_WAITS = [_OVER, "RUN_WAITING", "INTERACTION_OPENED"]
_STOPS = [_OVER, PAUSED]
_ERROR = results("c1", outcome=ToolOutcome.ERROR)


def _invalid(state: str, what: str, step: Step, detail: str, index: str = "0", **more: str) -> Cell:
    where = {"operation_index": index} if index else {}
    return refused(state, what, step, Reason.OPERATION_INVALID, detail=detail, **more, **where)


def _stale(state: str, what: str, *operations: Any, outcome: Any = None) -> Cell:
    def make(it: SessionState) -> CommitRun:
        lost = Fence(it.session_id, it.run.run_id, "act_x", it.run.attempt)
        fence = fence_of(it) if it.run.activation is not None else lost
        return CommitRun(fence, list(operations), outcome, LEASE)

    return refused(state, f"{what} too late", Step(make), Reason.STALE_ACTIVATION, run_id=run_id_of)


def _first(answer: Any) -> Any:
    return answer.results[-1]


def _paused(answer: Any, before: SessionState, after: SessionState) -> None:
    assert answer.lease_expire_time == 0
    assert not answer.outcome_applied
    assert (answer.run.phase.name, answer.run.pause_requested) == ("PAUSED", False)
    assert after.run.reserved_step == before.run.reserved_step or before.run.reserved_step


def _not_granted(answer: Any, before: SessionState, after: SessionState) -> None:
    _paused(answer, before, after)
    assert (_first(answer).granted, _first(answer).paused, _first(answer).run_ended) == (False, True, False)  # fmt: skip


def _spent(answer: Any, before: SessionState, after: SessionState) -> None:
    assert (answer.run.phase.name, answer.lease_expire_time) == ("TERMINAL", 0)


def _goes_on(answer: Any, before: SessionState, after: SessionState) -> None:
    assert answer.lease_expire_time == after.last_time + LEASE
    assert not answer.outcome_applied


def _opened(answer: Any, before: SessionState, after: SessionState) -> None:
    assert answer.outcome_applied
    assert answer.interaction_id == after.run.wait.interaction_id
    assert (answer.run.phase.name, answer.lease_expire_time) == ("WAITING", 0)
    assert after.run.pause_requested is before.run.pause_requested
    assert after.run.reserved_step == before.run.reserved_step


def _closed(answer: Any, before: SessionState, after: SessionState) -> None:
    assert _first(answer).batch_closed
    if after.run is not None:
        assert (after.run.calls, after.run.position.name) == ([], "BEFORE_MODEL")


def _open(answer: Any, before: SessionState, after: SessionState) -> None:
    _goes_on(answer, before, after)
    assert not _first(answer).batch_closed
    assert after.run.position.name == "TOOL_BATCH"


def _prepared(answer: Any, before: SessionState, after: SessionState) -> None:
    _open(answer, before, after)
    assert _first(answer).calls == after.run.calls
    assert after.run.tool_calls == before.run.tool_calls + 2


_NOBODY = (*PARKED, "closed W", "closed ST", "closed P")
_LEASE = [
    *(Cell(state, "lease", lease(), "L", ["ACTIVATION_LEASED"]) for state in ("Q alive", "Q batch")),
    refused("Q backoff", "lease", lease(), Reason.STALE_ACTIVATION),
    *(refused(state, "lease", lease(), Reason.STALE_ACTIVATION) for state in ("Lp", *LEASED, *PAUSING, *CANCELLING, *STALLED)),
    *(refused(state, "lease", Step(lambda _: LeaseActivation("act_x", "x1", LEASE)), Reason.STALE_ACTIVATION) for state in (*WAITING, *STOPPED)),
    *(
        _stale(state, what, *operations, outcome=outcome)
        for state in _NOBODY
        for what, operations, outcome in (
            ("nothing", (), None), ("reserve", (RESERVE,), None), ("step", (answer(),), None), ("claim", (claims("c1"),), None),
            ("result", (results("c1"),), None), ("suspend", (), question()), ("completed", (), COMPLETED),
            ("failed", (), FAILED), ("cancelled", (), CANCELLED), ("release", (), RELEASE),
        )
    ),
]  # fmt: skip

_OPEN = "tool calls are open"
_HAS_ANSWER = "the run has its final answer; finish it"
_RESERVE = [
    Cell("L reserved alive", "reserve", commit(RESERVE), "L", look=_goes_on),
    Cell("L no steps", "reserve", commit(RESERVE), "IDLE", ENDED, {}, ["first BUDGET_EXHAUSTED"], look=_spent),
    *(Cell(state, "reserve", commit(RESERVE), "P", _STOPS, look=_not_granted) for state in ("Lp", "Lp reserved", "Lp queues")),
    *(refused(state, "reserve", commit(RESERVE), Reason.RUN_CANCELLING, run_id=run_id_of) for state in CANCELLING),
    *(_invalid(state, "reserve", commit(RESERVE), _OPEN) for state in ("L batch", "L claimed", "Lp batch", "Lp claimed")),
    _invalid("Lp final", "reserve", commit(RESERVE), _HAS_ANSWER),
    # What ended the turn before it is no error of the executor: it could not know.
    Cell("Lp last call", "result, reserve", commit(results("c2"), RESERVE), "P", [*_RESULT, *_STOPS], look=_not_granted),
    Cell("Lp queues", "step, reserve", commit(answer(), RESERVE), "P", [*ANSWERED, *STEERED, *_STOPS], {"s1": "DELIVERED"}, look=_not_granted),
    Cell(
        "L stop", "error, reserve", commit(_ERROR, RESERVE), "IDLE",
        [*_RESULT, "TOOL_CALL_CANCELLED", MESSAGE, *ENDED], {}, ["first FAILED"], look=_spent,
    ),
]  # fmt: skip

_NOT_PREPARED = "the call is not prepared"
_NOT_CLAIMED = "the call is not claimed"
_CLAIM = [
    *(Cell(state, "claim", commit(claims("c1")), column_of(state), ["TOOL_CALL_CLAIMED"], look=_goes_on) for state in ("L batch", "Lp batch")),
    Cell("L batch", "claim both", commit(claims("c2", "c1", idempotent=True)), "L", ["TOOL_CALL_CLAIMED"] * 2),
    *(Cell(state, "claim the other", commit(claims("c2")), column_of(state), ["TOOL_CALL_CLAIMED"]) for state in ("L claimed", "Lp claimed", "L idem")),
    *(refused(state, "claim", commit(claims("c2")), Reason.RUN_CANCELLING, run_id=run_id_of) for state in ("Lc batch", "Lc claimed", "Lc idem")),
    *(_invalid(state, "claim again", commit(claims("c1")), _NOT_PREPARED, tool_call_id="c1") for state in ("L claimed", "L idem", "Lp claimed", "L second first")),
    _invalid("L batch", "claim one twice", commit(claims("c1", "c1")), _NOT_PREPARED, tool_call_id="c1"),
    _invalid("L second first", "claim what is done", commit(claims("c2")), _NOT_PREPARED, tool_call_id="c2"),
    *(refused(state, "claim none", commit(claims("c9")), Reason.TOOL_CALL_NOT_FOUND, tool_call_id="c9", operation_index="0") for state in ("L", "L batch", "L final alive", "L no steps")),
]  # fmt: skip

_TWO = ["TOOL_CALL_PREPARED"] * 2
_STEP = [
    *(Cell(state, "step that asks", commit(asks("c1", "c2")), column_of(state), [*ANSWERED, *_TWO], look=_prepared) for state in ("L reserved", "L reserved queues", "Lp reserved", "Lp queues", "Lc reserved")),
    Cell("L reserved", "step that asks, claim", commit(asks("c1", "c2"), claims("c1")), "L", [*ANSWERED, *_TWO, "TOOL_CALL_CLAIMED"]),
    _invalid("L reserved", "step that asks, completed", commit(asks("c1", "c2"), outcome=COMPLETED), _OPEN, ""),
    _invalid("L reserved", "step that asks one twice", commit(asks("c1", "c1")), "two tool uses have one tool_call_id"),
    Cell("L reserved", "one malformed", commit(asks("c1", "c2", malformed="c1")), "L", [*ANSWERED, *_TWO, *_RESULT], look=_open),
    Cell("L reserved", "the second malformed", commit(asks("c1", "c2", malformed="c2")), "L", [*ANSWERED, *_TWO, "TOOL_CALL_COMMITTED"], look=_open),
    Cell("L reserved", "all malformed", commit(asks("c1", malformed="c1")), "L", [*ANSWERED, "TOOL_CALL_PREPARED", *_RESULT], look=_closed),
    Cell("L reserved queues", "all malformed", commit(asks("c1", malformed="c1")), "L", [*ANSWERED, "TOOL_CALL_PREPARED", *_RESULT, *STEERED], {"s1": "DELIVERED"}, look=_closed),
    Cell(
        "L one call", "step that asks too much", commit(asks("c1", "c2")), "IDLE",
        [*ANSWERED, *_TWO, *FACTS["batch"], *ENDED], {}, ["first BUDGET_EXHAUSTED"], look=_spent,
    ),
    Cell("L one call", "step that asks", commit(asks("c1")), "L", [*ANSWERED, "TOOL_CALL_PREPARED"]),
    Cell("Lp reserved", "step", commit(answer()), "Lp", ANSWERED, look=_goes_on),
    Cell("Lp reserved", "step, completed", commit(answer(), outcome=COMPLETED), "IDLE", [*ANSWERED, *ENDED], {}, ["first COMPLETED"], look=_spent),
    Cell("Lp queues", "step", commit(answer()), "P", [*ANSWERED, *STEERED, *_STOPS], {"s1": "DELIVERED"}, look=_paused),
    Cell("Lp queues", "step, completed", commit(answer(), outcome=COMPLETED), "P", [*ANSWERED, *STEERED, *_STOPS], {"s1": "DELIVERED"}, look=_paused),
]  # fmt: skip

_RESULTS = [
    *(Cell(state, "result", commit(results("c1")), column_of(state), _RESULT, look=_open) for state in ("L claimed", "L idem", "Lp claimed", "Lc claimed", "Lc idem", "L stop")),
    *(Cell(state, "error", commit(_ERROR), column_of(state), _RESULT, look=_open) for state in ("L claimed", "L batch", "Lc claimed")),
    Cell("L stop", "error", commit(_ERROR), "IDLE", [*_RESULT, "TOOL_CALL_CANCELLED", MESSAGE, *ENDED], {}, ["first FAILED"], look=_spent),
    Cell("L batch", "claims and results", commit(claims("c1", "c2"), results("c2", "c1")), "L", [*["TOOL_CALL_CLAIMED"] * 2, "TOOL_CALL_COMMITTED", *_RESULT, MESSAGE], look=_closed),
    Cell("L second first", "the first", commit(results("c1")), "L", [*_RESULT, MESSAGE], look=_closed),
    Cell("L batch queues", "the last", commit(results("c2")), "L", [*_RESULT, *STEERED], {"s1": "DELIVERED"}, look=_closed),
    Cell("L batch queues", "the last, completed", commit(results("c2"), outcome=COMPLETED), "L", [*_RESULT, *STEERED], {"s1": "DELIVERED"}, look=_closed),
    Cell("L batch queues", "the last, reserve", commit(results("c2"), RESERVE), "L", [*_RESULT, *STEERED, "MODEL_STEP_RESERVED"], {"s1": "DELIVERED"}),
    Cell("Lp last call", "the last", commit(results("c2")), "P", [*_RESULT, *_STOPS], look=_paused),
    Cell("Lp last call queues", "the last", commit(results("c2")), "P", [*_RESULT, *STEERED, *_STOPS], {"s1": "DELIVERED"}, look=_paused),
    Cell("Lp last call", "the last, completed", commit(results("c2"), outcome=COMPLETED), "P", [*_RESULT, *_STOPS], look=_paused),
    *(_invalid(state, "result of what is not claimed", commit(results("c2")), _NOT_CLAIMED, tool_call_id="c2") for state in ("L batch", "L claimed", "Lp batch", "L second first", "Lc batch")),
    refused("L batch", "result of none", commit(results("c9")), Reason.TOOL_CALL_NOT_FOUND, tool_call_id="c9", operation_index="0"),
]  # fmt: skip

_SUSPEND = [
    *(Cell(state, "suspend", commit(outcome=question()), column_of(state).replace("L", "W"), _WAITS, look=_opened) for state in ("L", "L reserved", "L batch", "Lp", "Lp reserved", "Lp batch", "Lp queues", "L queues")),
    *(Cell(state, "suspend for a call", commit(outcome=question("c2")), column_of(state).replace("L", "W"), _WAITS, look=_opened) for state in ("L batch", "Lp batch")),
    Cell("L batch", "suspend for both", commit(outcome=question("c1", "c2", kind=PromptKind.PERMISSION)), "W", _WAITS, look=_opened),
    *(refused(state, "suspend", commit(outcome=question()), Reason.RUN_CANCELLING, run_id=run_id_of) for state in CANCELLING),
    *(refused(state, "suspend", commit(outcome=question("c2")), Reason.CALL_UNRESOLVED, tool_call_id="c1") for state in ("L claimed", "L idem", "Lp claimed", "Lp idem")),
    *(_invalid(state, "suspend", commit(outcome=question()), _HAS_ANSWER, "") for state in ("L final", "Lp final")),
    refused("L batch", "suspend for none", commit(outcome=question("c9")), Reason.TOOL_CALL_NOT_FOUND, tool_call_id="c9"),
    _invalid("L batch", "result, suspend for it", commit(claims("c1"), results("c1"), outcome=question("c1")), _NOT_PREPARED, "", tool_call_id="c1"),
]  # fmt: skip


def _by_facts(state: str, events: list[str], what: str, outcome: Any, reason: str) -> Cell:
    """An end by the executor: as one by force, but that the activation has ENDED."""
    end = "OUTCOME_UNKNOWN" if "claimed" in state else reason
    return Cell(state, what, commit(outcome=outcome), "IDLE", [*events[:-1], *ENDED], {}, [f"first {end}"], look=_spent)  # fmt: skip


_FINISH = [
    *(_by_facts(state, events, "failed", FAILED, "FAILED") for state, events in {**LEASED, **PAUSING}.items()),
    *(_by_facts(state, events, what, outcome, "CANCELLED") for state, events in CANCELLING.items() for what, outcome in (("completed", COMPLETED), ("failed", FAILED), ("cancelled", CANCELLED), ("release", RELEASE))),
    *(_invalid(state, "completed", commit(outcome=COMPLETED), _OPEN, "") for state in ("L batch", "L claimed", "L idem", "Lp batch", "Lp claimed")),
    *(_invalid(state, "cancelled", commit(outcome=CANCELLED), "cancellation of the run was not requested", "") for state in (*LEASED, *PAUSING)),
    *(Cell(state, "completed", commit(outcome=COMPLETED), "IDLE", ENDED, {}, ["first COMPLETED"], look=_spent) for state in ("Lp", "Lp reserved", "Lp final", "L no steps")),
    *(Cell(state, "completed", commit(outcome=COMPLETED), "P", [*STEERED, *_STOPS], {"s1": "DELIVERED"}, look=_paused) for state in ("Lp queues", "Lp final queues")),
    Cell("L batch", "release", commit(outcome=RELEASE), "Q", [_OVER, QUEUED]),
    *(Cell(state, "release", commit(outcome=RELEASE), "P", _STOPS) for state in ("Lp", "Lp reserved", "Lp batch", "Lp queues")),
    *(refused(state, "release", commit(outcome=RELEASE), Reason.CALL_UNRESOLVED, tool_call_id="c1") for state in ("L claimed", "L idem", "Lp claimed", "Lp idem")),
    *(Cell(state, "release", commit(outcome=RELEASE), "IDLE", ENDED, {}, ["first COMPLETED"], look=_spent) for state in ("L final alive", "Lp final")),
]  # fmt: skip

TURN_CELLS = [*_LEASE, *_RESERVE, *_CLAIM, *_STEP, *_RESULTS, *_SUSPEND, *_FINISH]
