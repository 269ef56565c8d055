"""Cells of child runs: their start and end, their sessions; and of summaries."""

from typing import Any

from runlane_server.core.commands import InterruptRun, SuspendForChildren, WithdrawSubmission
from runlane_server.core.errors import Reason
from runlane_server.core.model import SessionState
from runlane_server.core.words import ChildrenMode, Mode, OnMiss, StopReason

from support.cells_waits import MESSAGE, PAUSED, QUEUED, TERMINAL
from support.states_children import COUNT, DEPTH, TURNS, deepest
from support.steps import (
    ALL_CHILDREN,
    ANY_CHILD,
    COMPLETED,
    FAILED,
    RESERVE,
    Step,
    aimed,
    answer,
    asks,
    child_asks,
    child_ends,
    child_fails,
    child_is_answered,
    claims,
    close,
    close_cancel,
    commit,
    compacts,
    delete,
    delete_force,
    interrupt,
    lease,
    on_child,
    passes,
    pause,
    put,
    question,
    reopen,
    reply,
    reserve,
    restore,
    results,
    second_ends,
    settle,
    starts,
    unpause,
)
from support.table import (
    HOUR,
    NEXT,
    PENDING,
    SETTLED,
    STEERED,
    Cell,
    Look,
    column_of,
    refused,
    run_id_of,
)

_OVER, _GONE = "ACTIVATION_ENDED", "ACTIVATION_ABANDONED"
_RESULT = ["CHILD_RUN_FINISHED", "TOOL_CALL_COMMITTED", MESSAGE]
_LEFT = ["TOOL_CALL_CANCELLED", MESSAGE]
_TURN = {
    "Q": [_GONE], "L": [_GONE], "Lp": [_GONE], "ST": [], "STp": [],
    "W": ["INTERACTION_CLOSED"], "Wp": ["INTERACTION_CLOSED"], "C": [], "Cp": [], "P": [],
}  # fmt: skip
_GOES_ON: dict[str, tuple[str, list[str]]] = {"C": ("Q", [QUEUED]), "Cp": ("P", [PAUSED])}
"""Where the end of a child run moves its parent."""

# --- child ended (notice) --------------------------------------------------


def _taken(closed: bool) -> Look:
    """The end is taken in, and counts as progress; who has the run has it still."""

    def look(answer: Any, before: SessionState, after: SessionState) -> None:
        run, was = after.run, before.run
        assert (run.run_id, run.children, run.recoveries) == (was.run_id, (), 0)
        assert run.position.name == ("BEFORE_MODEL" if closed else "TOOL_BATCH")
        assert [one.appended for one in run.calls] == ([] if closed else [True, False])
        if was.children_wait is None:
            assert (run.activation, run.wait, run.pause_requested) == (was.activation, was.wait, was.pause_requested)  # fmt: skip
        elif run.activation is not None:
            assert (run.activation.kind.name, run.attempt) == ("CONTINUE", was.attempt + 1)

    return look


def _one_left(answer: Any, before: SessionState, after: SessionState) -> None:
    assert len(after.run.children) == len(before.run.children) - 1 == 1
    assert (after.run.ending, after.run.children_wait) == (before.run.ending, before.run.children_wait)  # fmt: skip


def _notice(state: str, step: Step, what: str, closed: bool, steered: bool) -> Cell:
    column = column_of(state)
    then, events = _GOES_ON.get(column, (column, []))
    inputs = {"s1": "DELIVERED"} if steered else {}
    shown = [*_RESULT, *(STEERED if steered else []), *events]
    return Cell(state, what, step, then, shown, inputs, look=_taken(closed))


_STOPPED = {column: [*_RESULT, *_LEFT, *turn, TERMINAL] for column, turn in _TURN.items()}
_LIVE = [column for column in TURNS if column != "K"]
_CANCELLED_FIRST = ["first CANCELLED"]
_NOTICES = [
    *(_notice(f"{column} child", child_ends, "child ended", False, False) for column in _LIVE),
    *(_notice(f"{column} child queues", child_ends, "child ended", False, False) for column in _LIVE),
    *(_notice(f"{column} only", child_ends, "child ended, batch closed", True, False) for column in _LIVE),
    *(_notice(f"{column} only queues", child_ends, "child ended, batch closed", True, column != "Lc") for column in _LIVE),
    *(_notice(f"{column} child", child_fails, "child failed", False, False) for column in _LIVE),
    *(_notice(f"{column} child stop", child_ends, "child ended", False, False) for column in _LIVE),
    *(Cell(f"{column} child stop", "child failed", child_fails, "IDLE", events, {}, ["first FAILED"]) for column, events in _STOPPED.items()),
    _notice("Lc child stop", child_fails, "child failed", False, False),
    Cell("K child stop", "child failed", child_fails, "IDLE", [*_RESULT, MESSAGE, TERMINAL], {}, _CANCELLED_FIRST),
    # A call is at work: the commit of its result ends the run.
    Cell("L child stop claimed", "child failed", child_fails, "L", _RESULT),
    Cell("Lp only done", "reserve", reserve, "P", [_OVER, PAUSED]),
    Cell("Lp only done", "nothing", commit(), "Lp"),
    Cell("Lp only done", "compact", commit(compacts(3)), "Lp", ["SESSION_COMPACTED"]),
    Cell("Lp only done", "completed", commit(outcome=COMPLETED), "IDLE", [_OVER, TERMINAL], {}, ["first COMPLETED"]),
    Cell("C two stop", "child failed", child_fails, "IDLE", [*_RESULT, "RUN_ENDING", *_RESULT, TERMINAL], {}, ["first FAILED"]),
    Cell("K child", "child ended", child_ends, "IDLE", [*_RESULT, MESSAGE, TERMINAL], {}, _CANCELLED_FIRST),
    Cell("K only", "child ended", child_ends, "IDLE", [*_RESULT, TERMINAL], {}, _CANCELLED_FIRST),
    Cell("K late", "child is late too", on_child(0, passes(1)), "IDLE", [*_RESULT, MESSAGE, TERMINAL], {}, ["first DEADLINE_EXCEEDED"]),
    Cell("K failed", "child ended", child_ends, "IDLE", [*_RESULT, MESSAGE, TERMINAL], {}, ["first FAILED"]),
    Cell("K unknown", "child ended", child_ends, "IDLE", [*_RESULT, MESSAGE, TERMINAL], {}, ["first OUTCOME_UNKNOWN"]),
    Cell("K asked", "child is cancelled", on_child(0, interrupt()), "IDLE", [*_RESULT, MESSAGE, TERMINAL], {}, _CANCELLED_FIRST),
    Cell("closed K", "child ended", child_ends, "IDLE", [*_RESULT, MESSAGE, TERMINAL], {}, _CANCELLED_FIRST),
    Cell("K child queues", "child ended", child_ends, "Q", [*_RESULT, MESSAGE, TERMINAL, *NEXT], {"m1": "DELIVERED"}, ["first CANCELLED", "m1 LIVE"]),
    Cell("K only queues", "child ended", child_ends, "Q", [*_RESULT, TERMINAL, *NEXT], {"m1": "DELIVERED"}, ["first CANCELLED", "m1 LIVE"]),
    Cell("K replaced", "child ended", child_ends, "Q", [*_RESULT, MESSAGE, TERMINAL, *NEXT], {"r1": "DELIVERED"}, ["first CANCELLED", "r1 LIVE"]),
    Cell("K two", "one child ended", child_ends, "K", _RESULT, look=_one_left),
    Cell("C two", "one child ended", child_ends, "C", _RESULT, look=_one_left),
    Cell("C two", "the second ended", second_ends, "C", _RESULT[:2], look=_one_left),
    Cell("C any", "one child ended", child_ends, "Q", [*_RESULT, QUEUED]),
    Cell("C any", "the second ended", second_ends, "Q", [*_RESULT[:2], QUEUED]),
    Cell("C second done", "child ended", child_ends, "Q", [*_RESULT, MESSAGE, QUEUED], look=_taken(True)),
    Cell("L second done", "child ended", child_ends, "L", [*_RESULT, MESSAGE], look=_taken(True)),
    Cell("Q child backoff", "child ended", child_ends, "Q", _RESULT, look=lambda a, b, s: _backed_off(b, s)),
    *(Cell(f"{column} child", "child asks", child_asks, column, ["INTERACTION_OPENED"], look=lambda a, b, s: _shown(s, 1)) for column in _LIVE if column != "Lc"),
    *(Cell(f"{column} asked", "child is answered", child_is_answered, column, ["INTERACTION_ANSWERED"], look=lambda a, b, s: _shown(s, 0)) for column in _LIVE if column != "Lc"),
    *(
        Cell(f"{column} asked", "child is interrupted", on_child(0, interrupt()), _GOES_ON.get(column, (column, []))[0], ["INTERACTION_CLOSED", *_RESULT, *_GOES_ON.get(column, ("", []))[1]], look=_taken(False))
        for column in _LIVE
    ),
    Cell("L asked", "start beside what is shown", commit(starts("c2")), "L", ["CHILD_RUN_STARTED"], look=lambda a, b, s: _shown(s, 1)),
]  # fmt: skip


def _backed_off(before: SessionState, after: SessionState) -> None:
    assert after.run.not_before == before.run.not_before > 0
    assert (before.run.recoveries, after.run.recoveries) == (1, 0)


def _shown(after: SessionState, count: int) -> None:
    assert len(after.run.proxies) == count
    assert all(one.child_run_id == after.run.children[0].run_id for one in after.run.proxies)


# --- start, suspend for children -------------------------------------------


def _started(number: int) -> Look:
    def look(answer: Any, before: SessionState, after: SessionState) -> None:
        result, child = answer.results[-1], after.run.children[number]
        assert (result.child_run_id, result.child_session_id) == (child.run_id, child.session_id)
        existing = len(before.run.children) == len(after.run.children)
        assert result.existing is existing
        assert after.run.children_started == before.run.children_started + (not existing)
        call = next(one for one in after.run.calls if one.tool_call_id == child.tool_call_id)
        assert (call.state.name, call.child_run_id) == ("PREPARED", child.run_id)

    return look


def _invalid(state: str, what: str, step: Step, detail: str, index: str = "0", **more: Any) -> Cell:
    where = {"operation_index": index} if index else {}
    return refused(state, what, step, Reason.OPERATION_INVALID, detail=detail, **more, **where)


def _waits(column: str) -> Look:
    def look(answer: Any, before: SessionState, after: SessionState) -> None:
        assert (answer.outcome_applied, answer.lease_expire_time) == (True, 0)
        assert after.run.pause_requested is (column == "Cp")
        if column.startswith("C"):
            assert answer.run.children_wait == after.run.children_wait
            ids = tuple(one.run_id for one in before.run.children)
            assert after.run.children_wait.run_ids == ids

    return look


_NOT_PREPARED = "the call is not prepared"
_STARTED = ["CHILD_RUN_STARTED"]
_WAITING = [_OVER, "RUN_WAITING"]
_NONE_STARTED = "the run has started no child run"
_HAS_ANSWER = "the run has its final answer; finish it"
_TOO_DEEP, _TOO_MANY = f"child runs go {DEPTH} deep", f"a run has {COUNT} live child runs at most"
_BOTH = (("all", ALL_CHILDREN), ("any", ANY_CHILD))
_START = [
    *(Cell(state, "start child", commit(starts("c1")), column_of(state), _STARTED, look=_started(0)) for state in ("L batch", "Lp batch")),
    *(Cell(state, "start another", commit(starts("c2")), column_of(state), _STARTED, look=_started(1)) for state in ("L child", "Lp child", "closed L child", "L asked")),
    *(Cell(state, "start it again", commit(starts("c1")), column_of(state), look=_started(0)) for state in ("L child", "Lp child", "L only", "closed L child")),
    *(Cell(state, "start again what ended", commit(starts("c1")), column_of(state), look=lambda a, b, s: _the_same(a, s)) for state in ("L child done", "Lp child done")),
    refused("Lc child done", "start again what ended", commit(starts("c1")), Reason.RUN_CANCELLING, run_id=run_id_of),
    *(refused("L child done", what, commit(operation), Reason.CALL_HAS_CHILD, tool_call_id="c1", run_id=lambda s: s.run.calls[0].child_run_id, operation_index="0") for what, operation in (("claim what a child did", claims("c1")), ("result of what a child did", results("c1")))),
    Cell("L reserved", "step, start child", commit(asks("c1"), starts("c1")), "L", ["MODEL_STEP_COMMITTED", MESSAGE, "TOOL_CALL_PREPARED", *_STARTED], look=lambda a, b, s: _one(s)),
    Cell("L batch", "start, suspend", commit(starts("c1"), outcome=ALL_CHILDREN), "C", [*_STARTED, *_WAITING]),
    Cell("L child", "again, suspend", commit(starts("c1"), outcome=ALL_CHILDREN), "C", _WAITING, look=_waits("C")),
    _invalid("L batch", "two in one", commit(starts("c1"), starts("c2")), "a Commit starts one child run", "1"),
    Cell("L child", "again and another", commit(starts("c1"), starts("c2")), "L", _STARTED),
    _invalid("L child claimed", "start for what is claimed", commit(starts("c2")), _NOT_PREPARED, tool_call_id="c2"),
    _invalid("L second done", "start for what is done", commit(starts("c2")), _NOT_PREPARED, tool_call_id="c2"),
    _invalid("L malformed", "start for malformed arguments", commit(starts("c2")), _NOT_PREPARED, tool_call_id="c2"),
    _invalid("L malformed", "claim malformed arguments", commit(claims("c2")), _NOT_PREPARED, tool_call_id="c2"),
    Cell("L malformed", "start for the other", commit(starts("c1")), "L", _STARTED, look=_started(0)),
    refused("L batch", "start for none", commit(starts("c9")), Reason.TOOL_CALL_NOT_FOUND, tool_call_id="c9", operation_index="0"),
    refused("L reserved", "start without a batch", commit(starts("c1")), Reason.TOOL_CALL_NOT_FOUND, tool_call_id="c1", operation_index="0"),
    _invalid("L deep", "start below", deepest(commit(starts("c1"))), _TOO_DEEP),
    Cell("L deep", "start beside", deepest(commit(claims("c1"))), "L"),
    _invalid("L many", "start one more", commit(starts(f"c{COUNT + 1}")), _TOO_MANY),
    *(Cell(state, f"suspend for {what}", commit(outcome=wait), column, _WAITING, look=_waits(column)) for state, column in (("L child", "C"), ("L two", "C"), ("Lp child", "Cp"), ("L asked", "C"), ("closed L child", "C"), ("L second done", "C")) for what, wait in _BOTH),
    *(Cell(state, f"suspend for {what} that ended", commit(outcome=wait), column, [*_WAITING, event], look=_waits(column)) for state, column, event in (("L child done", "Q", QUEUED), ("Lp child done", "P", PAUSED), ("L only done", "Q", QUEUED)) for what, wait in _BOTH),
    Cell("L two", "suspend for the second", Step(lambda s: commit(outcome=SuspendForChildren(ChildrenMode.ALL, (s.run.children[1].run_id,))).make(s)), "C", _WAITING),
    refused("Lc child done", "suspend for children", commit(outcome=ALL_CHILDREN), Reason.RUN_CANCELLING, run_id=run_id_of),
    *(_invalid(state, "suspend for children", commit(outcome=ALL_CHILDREN), _NONE_STARTED, "") for state in ("L", "L reserved", "Lp", "L batch", "Lp batch")),
    *(_invalid(state, "suspend for children", commit(outcome=ALL_CHILDREN), _HAS_ANSWER, "") for state in ("L final", "Lp final")),
    *(refused(state, "suspend for children", commit(outcome=ALL_CHILDREN), Reason.CALL_UNRESOLVED, tool_call_id="c2") for state in ("L child claimed", "L child idem", "Lp child claimed")),
]  # fmt: skip


def _the_same(answer: Any, after: SessionState) -> None:
    (result,), call = answer.results, after.run.calls[0]
    assert (result.existing, result.child_run_id) == (True, call.child_run_id)
    assert result.child_session_id == call.child_session_id
    assert (after.run.children, after.run.children_started) == ((), 1)


def _one(after: SessionState) -> None:
    assert (len(after.run.children), after.run.tool_calls) == (1, 1)


# --- the session of a child run --------------------------------------------


def _parent_run(state: SessionState) -> str:
    return state.parent.run_id


def _of_child(state: str, what: str, step: Step) -> Cell:
    return refused(state, what, step, Reason.CHILD_SESSION, child=0, parent_run_id=_parent_run)


_MOVES = {"on_miss": OnMiss.FOLLOW_UP}
_CONTROL = (("close", close), ("close and cancel", close_cancel), ("reopen", reopen), ("delete", delete), ("delete by force", delete_force))  # fmt: skip
_NO_LANE = (Mode.START, Mode.QUEUE, Mode.FOLLOW_UP, Mode.REPLACE)
_CHILD_STATES = {
    "L child": "Q",
    "C asked": "W",
    "child L": "L",
    "child Lc": "Lc",
    "child P": "P",
    "child over": "IDLE",
}


def _there(state: str, what: str, step: Step, events: list[str], column: str = "", **how: Any) -> Cell:  # fmt: skip
    return Cell(state, what, step, column or _CHILD_STATES[state], events, child=0, **how)


_NEW = {"new": "PENDING"}
_CHILDREN = [
    *(_of_child(state, mode.name, put("new", mode)) for state in _CHILD_STATES for mode in _NO_LANE),
    *(_of_child(state, what, step) for state in _CHILD_STATES for what, step in _CONTROL),
    *(_of_child(state, f"{mode.name} that moves", put("new", mode, **_MOVES)) for state in _CHILD_STATES for mode in (Mode.STEER, Mode.AUTO)),
    *(_of_child(state, "AUTO", put("new", Mode.AUTO)) for state in ("child Lc", "child over")),
    *(_there(state, mode.name, put("new", mode), PENDING, inputs=_NEW) for state in ("L child", "C asked", "child L", "child P") for mode in (Mode.STEER, Mode.AUTO)),
    *(_there(state, f"{mode.name} at it", aimed("new", mode), PENDING, inputs=_NEW) for state in ("L child", "C asked") for mode in (Mode.STEER, Mode.AUTO)),
    refused("child Lc", "STEER", put("new", Mode.STEER), Reason.RUN_CANCELLING, child=0, run_id=run_id_of),
    *(refused("child over", what, step, Reason.SESSION_IDLE, child=0, allowed_commands="") for what, step in (("STEER", put("new", Mode.STEER)), ("interrupt", interrupt()), ("pause", pause), ("unpause", unpause))),
    _there("L child", "interrupt", interrupt(), SETTLED, "IDLE", runs=[" CANCELLED"]),
    _there("C asked", "interrupt", interrupt(), ["RUN_CANCELLATION_REQUESTED", "INTERACTION_CLOSED", TERMINAL], "IDLE", runs=[" CANCELLED"]),
    _there("child L", "interrupt", interrupt(), ["RUN_CANCELLATION_REQUESTED"], "Lc"),
    _there("child L", "interrupt it", Step(lambda s: InterruptRun(s.run.run_id)), ["RUN_CANCELLATION_REQUESTED"], "Lc"),
    _there("child Lc", "interrupt", interrupt(), []),
    _there("child P", "interrupt", interrupt(), ["RUN_CANCELLATION_REQUESTED", TERMINAL], "IDLE", runs=[" CANCELLED"]),
    _there("L child", "pause", pause, [_GONE, PAUSED], "P"),
    _there("C asked", "pause", pause, ["RUN_PAUSE_REQUESTED"], "Wp"),
    _there("child L", "pause", pause, ["RUN_PAUSE_REQUESTED"], "Lp"),
    _there("child P", "pause", pause, []),
    _there("child P", "unpause", unpause, ["RUN_UNPAUSED", QUEUED], "Q"),
    _there("child L", "unpause", unpause, []),
    *(refused("child Lc", what, step, Reason.RUN_CANCELLING, child=0, run_id=run_id_of) for what, step in (("pause", pause), ("unpause", unpause))),
    _there("C asked", "answer", reply(), ["INTERACTION_ANSWERED", QUEUED], "Q"),
    refused("L child", "answer in its session", reply(), Reason.INTERACTION_NOT_FOUND, child=0),
    *(_there(state, "restore", restore(), []) for state in ("L child", "C asked", "child P")),
    _there("child L", "restore by force", restore(), [_GONE, "RUN_RECOVERING", QUEUED], "Q"),
    _there("child Lc", "restore by force", restore(), [_GONE, TERMINAL], "IDLE", runs=[" CANCELLED"]),
    _there("child L", "settle FAILED", settle(StopReason.FAILED), [_GONE, TERMINAL], "IDLE", runs=[" FAILED"]),
    _there("L child", "deadline", passes(HOUR), [_GONE, TERMINAL], "IDLE", runs=[" DEADLINE_EXCEEDED"]),
    _there("L child", "lease", lease(), ["ACTIVATION_LEASED"], "L"),
    _there("child L", "step, completed", commit(answer(), outcome=COMPLETED), ["MODEL_STEP_COMMITTED", MESSAGE, _OVER, TERMINAL], "IDLE", runs=[" COMPLETED"]),
    _there("child steered", "withdraw", Step(lambda s: WithdrawSubmission(s.steers[0].submission_id)), ["SUBMISSION_WITHDRAWN"], "L", inputs={"s1": "WITHDRAWN"}),
    _there("child steered", "completed", commit(outcome=COMPLETED), STEERED, "L", inputs={"s1": "DELIVERED"}),
    _there("child steered", "failed", commit(outcome=FAILED), [_OVER, TERMINAL, "SUBMISSION_FAILED"], "IDLE", inputs={"s1": "FAILED TARGET_TERMINAL"}, runs=[" FAILED"]),
]  # fmt: skip

# --- compaction ------------------------------------------------------------

_COMPACTED = ["SESSION_COMPACTED"]
_PARTS = "the summary would part tool calls from their results"
_NOT_BEFORE = "the next thing is not a model step"


def _covers(through: int) -> Look:
    """What the model sees is another thing; the usage is apart, and the cost is counted."""

    def look(answer: Any, before: SessionState, after: SessionState) -> None:
        assert after.compacted_through == through
        assert (after.message_count, after.digest) == (before.message_count, before.digest)
        assert after.revision == before.revision
        used, was = after.run.usage, before.run.usage
        assert (used.input_tokens, used.output_tokens) == (was.input_tokens, was.output_tokens)
        assert used.cost_usd_micros == was.cost_usd_micros + 7
        assert used.compaction_input_tokens == was.compaction_input_tokens + 30
        assert used.compaction_output_tokens == was.compaction_output_tokens + 3
        assert after.run.recoveries == 0

    return look


def _beyond(state: str, through: int, first: int, last: int) -> Cell:
    return _invalid(state, f"compact {through}", commit(compacts(through)), f"through_message_number is from {first} to {last}")  # fmt: skip


_REACHES = (
    ("L first", 1), ("L reserved", 1), ("Lp", 1), ("Lp reserved", 1), ("Lc", 1), ("Lc reserved", 1), ("closed L", 1),
    *((state, through) for state in ("L after batch", "L after batch reserved", "Lp after batch", "Lc after batch", "L after batch queues") for through in (1, 3)),
    ("L compacted", 3),
)  # fmt: skip
_COMPACT = [
    *(Cell(state, f"compact {through}", commit(compacts(through)), column_of(state), _COMPACTED, look=_covers(through)) for state, through in _REACHES),
    *(_invalid(state, "compact 2", commit(compacts(2)), _PARTS) for state in ("L after batch", "Lp after batch", "Lc after batch", "L compacted")),
    *(_beyond(state, through, first, last) for state, through, first, last in (("L first", 2, 1, 1), ("L first", 0, 1, 1), ("L after batch", 4, 1, 3), ("L compacted", 1, 2, 3), ("L compacted", 4, 2, 3))),
    *(_invalid(state, "compact", commit(compacts(1)), _NOT_BEFORE) for state in ("L batch", "L child", "L final", "Lp batch", "Lp final", "Lc batch", "Lc final", "L claimed")),
    _invalid("L reserved", "step, compact", commit(answer(), compacts(1)), _NOT_BEFORE, "1"),
    _invalid("L after batch", "compact twice", commit(compacts(1), compacts(1)), "through_message_number is from 2 to 3", "1"),
    Cell("L after batch", "compact further", commit(compacts(1), compacts(3)), "L", _COMPACTED * 2),
    Cell("L to second", "last result, compact", commit(results("c2"), compacts(4)), "L", ["TOOL_CALL_COMMITTED", MESSAGE, *_COMPACTED]),
    _invalid("L to second", "last result, compact between", commit(results("c2"), compacts(3)), _PARTS, "1"),
    Cell("L after batch", "compact, reserve", commit(compacts(1), RESERVE), "L", [*_COMPACTED, "MODEL_STEP_RESERVED"]),
    Cell("L after batch", "compact, suspend", commit(compacts(1), outcome=question()), "W", [*_COMPACTED, *_WAITING, "INTERACTION_OPENED"]),
    Cell("L tight", "reserve", reserve, "L", ["MODEL_STEP_RESERVED"]),
    Cell("L tight", "compact, reserve", commit(compacts(1), RESERVE), "IDLE", [*_COMPACTED, _OVER, TERMINAL], {}, ["first BUDGET_EXHAUSTED"]),
    Cell("L few tokens", "compact, reserve", commit(compacts(1), RESERVE), "L", [*_COMPACTED, "MODEL_STEP_RESERVED"]),
]  # fmt: skip

FAMILY_CELLS = [*_NOTICES, *_START, *_CHILDREN, *_COMPACT]
