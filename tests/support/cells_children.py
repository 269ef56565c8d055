"""Cells of runs that have child runs: what clients ask, what executors commit, what time does."""

from typing import Any

from runlane_server.core.commands import (
    CommitRun,
    InterruptRun,
    LeaseActivation,
    PauseRun,
    RestoreRun,
    SettleRun,
    UnpauseRun,
    WithdrawSubmission,
)
from runlane_server.core.errors import Reason
from runlane_server.core.model import Fence, SessionState
from runlane_server.core.words import Mode, PromptKind, StopReason, ToolOutcome

from support.cells_family import FAMILY_CELLS
from support.cells_waits import PAUSED, QUEUED
from support.states_children import TURNS
from support.steps import (
    ALL_CHILDREN,
    ANY_CHILD,
    CANCELLED,
    COMPLETED,
    FAILED,
    GRACE,
    LEASE,
    RELEASE,
    RESERVE,
    SECOND,
    Step,
    aimed,
    answer,
    claims,
    close,
    close_cancel,
    commit,
    compacts,
    delete,
    delete_force,
    interrupt,
    passes,
    pause,
    put,
    question,
    reopen,
    reply,
    restore,
    results,
    settle,
    starts,
    unpause,
)
from support.table import HOUR, MISSED, PENDING, Cell, Look, column_of, refused, run_id_of

ENDING = "RUN_ENDING"
_REQUEST = "RUN_CANCELLATION_REQUESTED"
_LEFT = "TOOL_CALL_CANCELLED"
_GONE = "ACTIVATION_ABANDONED"
_OVER = "ACTIVATION_ENDED"
_CLOSED = "INTERACTION_CLOSED"

# What the end of a run in each column begins with, where c2 is open and a child run lives.
TURN = {
    "Q": [_GONE],
    "ST": [],
    "STp": [],
    "W": [_CLOSED],
    "Wp": [_CLOSED],
    "C": [],
    "Cp": [],
    "P": [],
}
_PARKED = {f"{column} child": [_LEFT, *turn, ENDING] for column, turn in TURN.items()}
_PARKED |= {
    f"{column} asked": [_LEFT, *[_CLOSED] * (1 + turn.count(_CLOSED)), *([_GONE] if _GONE in turn else []), ENDING]
    for column, turn in TURN.items()
}  # fmt: skip
_PARKED["Q child backoff"] = _PARKED["Q child"]
_LEASED = {
    "L child": [_LEFT, _GONE, ENDING],
    "Lp child": [_LEFT, _GONE, ENDING],
    "L asked": [_LEFT, _CLOSED, _GONE, ENDING],
}
_CANCELLING = {"Lc child": [_LEFT, _GONE, ENDING], "Lc asked": [_LEFT, _CLOSED, _GONE, ENDING]}
_UNKNOWN = {
    "L child claimed": ["TOOL_CALL_OUTCOME_UNKNOWN", _GONE, ENDING],
    "Lp child claimed": ["TOOL_CALL_OUTCOME_UNKNOWN", _GONE, ENDING],
}
_COLUMNS = ("C", "C any", "C two", "C asked", "Cp", "C child", "Cp child", "Cp asked")
_ENDINGS = ("K", "K child", "K two", "K late", "K failed", "K unknown", "K asked")
_CAUSES = dict.fromkeys(_ENDINGS, "CANCELLED") | {
    "K late": "DEADLINE_EXCEEDED",
    "K failed": "FAILED",
    "K unknown": "OUTCOME_UNKNOWN",
}


def _ends(cause: str) -> Look:
    """The run is ending, with its cause; nothing of a turn is left."""

    def look(answer: Any, before: SessionState, after: SessionState) -> None:
        run = after.run
        assert run.run_id == before.run.run_id
        assert (run.ending.cause or run.ending.stop_reason).name == cause
        assert run.ending.phase is before.run.phase
        assert (run.activation, run.wait, run.children_wait, run.proxies) == (None, None, None, ())
        assert (run.pause_requested, run.paused, run.not_before) == (False, False, 0)
        assert run.children == before.run.children
        assert not after.steers
        if answer is not None and hasattr(answer, "run"):
            assert answer.run.ending_cause is run.ending.stop_reason
            assert (answer.run.phase, answer.run.live_children) == (run.phase, len(run.children))

    return look


def _same(answer: Any, before: SessionState, after: SessionState) -> None:
    assert after.run == before.run


# --- submit, withdraw, close, reopen, delete -------------------------------


def _routed(route: str) -> Look:
    def look(answer: Any, before: SessionState, after: SessionState) -> None:
        it = answer.submission
        assert (it.route.name, it.state.name) == (route, "PENDING")
        assert (it.run_id == after.run.run_id) is (route == "STEER")

    return look


def _place(number: int) -> Look:
    """Where the input stands among the next runs."""

    def look(answer: Any, before: SessionState, after: SessionState) -> None:
        _routed("FOLLOW_UP")(answer, before, after)
        ids = [one.submission_id for one in after.next_runs]
        assert ids.index(answer.submission.submission_id) == number
        assert after.run.cancellation == before.run.cancellation

    return look


_BUSY = "AUTO,QUEUE,STEER,FOLLOW_UP,REPLACE,INTERRUPT,CLOSE"
_NEW = {"new": "PENDING"}
_ROUTES = {Mode.AUTO: "STEER", Mode.STEER: "STEER", Mode.QUEUE: "FOLLOW_UP", Mode.FOLLOW_UP: "FOLLOW_UP"}  # fmt: skip
_STEERED_COLUMNS = ("C", "C any", "C asked", "Cp", "Cp asked", "C queues")
_SUBMIT = [
    *(
        refused(state, "START", put("new", Mode.START), Reason.SESSION_BUSY, run_id=run_id_of, phase=phase, activation_id="", allowed_commands=allowed)
        for state, phase, allowed in (
            ("C", "WAITING", f"{_BUSY},PAUSE"),
            ("C asked", "WAITING", f"{_BUSY},PAUSE,ANSWER"),
            ("Cp", "WAITING", f"{_BUSY},UNPAUSE"),
            ("Cp asked", "WAITING", f"{_BUSY},UNPAUSE,ANSWER"),
            ("K", "WAITING", "AUTO,QUEUE,FOLLOW_UP,REPLACE,CLOSE"),
            ("K asked", "WAITING", "AUTO,QUEUE,FOLLOW_UP,REPLACE,CLOSE"),
            ("K late", "ACTIVE", "AUTO,QUEUE,FOLLOW_UP,REPLACE,CLOSE"),
            ("K queues", "WAITING", "AUTO,QUEUE,FOLLOW_UP,REPLACE,WITHDRAW,CLOSE"),
        )
    ),
    *(Cell(state, mode.name, put("new", mode), column_of(state), PENDING, _NEW, look=_routed(route)) for state in _STEERED_COLUMNS for mode, route in _ROUTES.items()),
    *(Cell(state, f"{mode.name} at it", aimed("new", mode), column_of(state), PENDING, _NEW, look=_routed("STEER")) for state in ("C", "Cp") for mode in (Mode.AUTO, Mode.STEER)),
    *(
        refused(state, f"{mode.name} at another", put("new", mode, target_run_id="run_x"), Reason.RUN_NOT_CURRENT, run_id=run_id_of)
        for state in ("C", "Cp", "K")
        for mode in (Mode.STEER, Mode.AUTO, Mode.REPLACE)
    ),
    *(Cell(state, "REPLACE", put("new", Mode.REPLACE), "K", [_REQUEST, *events, *PENDING], _NEW, look=_ends("CANCELLED")) for state, events in _PARKED.items()),
    *(
        Cell(f"{column} child queues", "REPLACE", put("new", Mode.REPLACE), "K", [_REQUEST, *_PARKED[f"{column} child"], *MISSED, *PENDING], {"new": "PENDING", "s1": "FAILED TARGET_CANCELLING"}, look=_ends("CANCELLED"))
        for column in TURN
    ),
    *(Cell(state, "REPLACE", put("new", Mode.REPLACE), "Lc", [_REQUEST, *PENDING], _NEW) for state in ("L child", "Lp child", "L asked")),
    *(Cell(state, mode.name, put("new", mode), "K", PENDING, _NEW, look=_routed("FOLLOW_UP")) for state in _ENDINGS for mode in (Mode.AUTO, Mode.QUEUE, Mode.FOLLOW_UP, Mode.REPLACE)),
    *(Cell("K", f"{mode.name} at it", aimed("new", mode), "K", PENDING, _NEW, look=_routed("FOLLOW_UP")) for mode in (Mode.AUTO, Mode.REPLACE)),
    *(refused(state, "STEER", put("new", Mode.STEER), Reason.RUN_CANCELLING, run_id=run_id_of, cause=cause) for state, cause in _CAUSES.items()),
    refused("K", "STEER at it", aimed("new", Mode.STEER), Reason.RUN_CANCELLING, run_id=run_id_of, cause="CANCELLED"),
    Cell("K queues", "REPLACE", put("new", Mode.REPLACE), "K", PENDING, _NEW, look=_place(0)),
    Cell("K replaced", "REPLACE", put("new", Mode.REPLACE), "K", PENDING, _NEW, look=_place(1)),
    Cell("K queues", "QUEUE", put("new", Mode.QUEUE), "K", PENDING, _NEW, look=_place(2)),
    Cell("K replaced", "AUTO", put("new", Mode.AUTO), "K", PENDING, _NEW, look=_place(3)),
    *(refused(state, mode.name, put("new", mode), Reason.SESSION_CLOSED) for state in ("closed C", "closed K") for mode in Mode),
    *(Cell(state, "withdraw a steer", Step(lambda s: WithdrawSubmission(s.steers[0].submission_id)), column_of(state), ["SUBMISSION_WITHDRAWN"], {"s1": "WITHDRAWN"}) for state in ("C queues", "Cp child queues")),
    *(Cell(state, "withdraw a follow-up", Step(lambda s: WithdrawSubmission(s.next_runs[-1].submission_id)), column_of(state), ["SUBMISSION_WITHDRAWN"], {"f1": "WITHDRAWN"}) for state in ("C queues", "Cp child queues", "K queues", "K child queues")),
    Cell("K queues", "withdraw what was moved", Step(lambda s: WithdrawSubmission(s.next_runs[0].submission_id)), "K", ["SUBMISSION_WITHDRAWN"], {"m1": "WITHDRAWN"}),
    *(Cell(state, "close", close, column_of(state), ["SESSION_CLOSED"], look=_same) for state in (*_COLUMNS, *_ENDINGS)),
    Cell("C queues", "close", close, "C", ["SESSION_CLOSED", *["SUBMISSION_FAILED"] * 3], dict.fromkeys(("s1", "m1", "f1"), "FAILED SESSION_CLOSED")),
    *(Cell("K queues", what, step, "K", ["SESSION_CLOSED", *["SUBMISSION_FAILED"] * 2], dict.fromkeys(("m1", "f1"), "FAILED SESSION_CLOSED"), look=_same) for what, step in (("close", close), ("close and cancel", close_cancel))),
    *(Cell(state, "close", close, column_of(state)) for state in ("closed C", "closed K")),
    *(Cell(state, "close and cancel", close_cancel, "K", ["SESSION_CLOSED", _REQUEST, *events], look=_ends("CANCELLED")) for state, events in _PARKED.items()),
    *(Cell(state, "close and cancel", close_cancel, "Lc", ["SESSION_CLOSED", _REQUEST]) for state in _LEASED),
    *(Cell(state, "close and cancel", close_cancel, "K", ["SESSION_CLOSED"], look=_same) for state in _ENDINGS),
    Cell(
        "C queues", "close and cancel", close_cancel, "K", ["SESSION_CLOSED", _REQUEST, _LEFT, ENDING, *["SUBMISSION_FAILED"] * 3],
        dict.fromkeys(("s1", "m1", "f1"), "FAILED SESSION_CLOSED"), look=_ends("CANCELLED"),
    ),
    Cell("closed C", "close and cancel", close_cancel, "K", [_REQUEST, _LEFT, ENDING], look=_ends("CANCELLED")),
    Cell("closed K", "close and cancel", close_cancel, "K"),
    *(Cell(state, "reopen", reopen, column_of(state), ["SESSION_REOPENED"], look=_same) for state in ("closed C", "closed K", "closed Q child", "closed L child")),
    *(Cell(state, "reopen", reopen, column_of(state)) for state in ("C", "Cp", "K")),
    *(refused(state, "delete", delete, Reason.SESSION_LIVE, run_id=run_id_of) for state in (*_COLUMNS, *_ENDINGS, "closed C", "closed K", *(f"{column} child" for column in ("Q", "L", "Lp", "Lc", "ST", "W", "P")))),
    *(Cell(state, "delete by force", delete_force, "", ["SESSION_DELETED"]) for state in (*_COLUMNS, *_ENDINGS, "C queues", "K queues", "closed C", "closed K", *(f"{column} child" for column in TURNS if column not in {"C", "Cp", "K"}))),
]  # fmt: skip

# --- interrupt, pause, unpause, answer, restore, settle by hand --------------


def _receipt(name: str) -> Look:
    def look(answer: Any, before: SessionState, after: SessionState) -> None:
        assert (answer.receipt.name, answer.run.run_id) == (name, after.run.run_id)
        assert answer.run.pause_requested is after.run.pause_requested
        assert (after.revision, after.run.children) == (before.revision, before.run.children)

    return look


def _outcome(name: str) -> Look:
    def look(answer: Any, before: SessionState, after: SessionState) -> None:
        assert (answer.outcome.name, answer.run.run_id) == (name, before.run.run_id)
        assert after.run.children == before.run.children, "they keep running"

    return look


_CONTROL = [
    *(Cell(state, "interrupt", interrupt(), "K", [_REQUEST, *events], look=_ends("CANCELLED")) for state, events in _PARKED.items()),
    *(Cell(state, "interrupt it", Step(lambda s: InterruptRun(s.run.run_id)), "K", [_REQUEST, _LEFT, ENDING], look=_ends("CANCELLED")) for state in ("C", "Cp")),
    Cell("closed C", "interrupt", interrupt(), "K", [_REQUEST, _LEFT, ENDING], look=_ends("CANCELLED")),
    Cell("C two", "interrupt", interrupt(), "K", [_REQUEST, ENDING], look=_ends("CANCELLED")),
    *(Cell(f"{column} only", "interrupt", interrupt(), "K", [_REQUEST, *turn, ENDING], look=_ends("CANCELLED")) for column, turn in TURN.items()),
    *(
        Cell(f"{column} child queues", "interrupt", interrupt(), "K", [_REQUEST, *_PARKED[f"{column} child"], *MISSED], {"s1": "FAILED TARGET_CANCELLING"}, look=_ends("CANCELLED"))
        for column in TURN
    ),
    *(Cell(state, "interrupt", interrupt(), "Lc", [_REQUEST]) for state in _LEASED),
    *(Cell(state, "interrupt", interrupt("again"), column_of(state), look=_same) for state in (*_CANCELLING, *_ENDINGS, "K queues", "closed K")),
    Cell("K", "interrupt it", Step(lambda s: InterruptRun(s.run.run_id)), "K", look=_same),
    *(refused(state, "interrupt another", Step(lambda _: InterruptRun("run_x")), Reason.RUN_NOT_FOUND) for state in ("C", "Cp", "K")),
    *(Cell(state, "pause", pause, "Cp", ["RUN_PAUSE_REQUESTED"], look=_receipt("REQUESTED")) for state in ("C", "C any", "C two", "C asked", "closed C")),
    *(Cell(state, "pause", pause, "Cp", look=_receipt("REQUESTED")) for state in ("Cp", "Cp asked")),
    *(Cell(state, "unpause", unpause, "C", look=_receipt("UNCHANGED")) for state in ("C", "C any", "C asked")),
    *(Cell(state, "unpause", unpause, "C", ["RUN_UNPAUSED"], look=_receipt("RESUMED")) for state in ("Cp", "Cp asked")),
    *(refused(state, what, step, Reason.RUN_CANCELLING, run_id=run_id_of, cause=_CAUSES.get(state, "CANCELLED")) for state in (*_ENDINGS, "closed K") for what, step in (("pause", pause), ("unpause", unpause))),
    *(refused(state, f"{kind.__name__} of another", Step(lambda _, kind=kind: kind("run_x")), Reason.RUN_NOT_FOUND) for state in ("C", "Cp", "K") for kind in (PauseRun, UnpauseRun)),
    *(refused(state, "answer", reply(), Reason.INTERACTION_NOT_FOUND) for state in (*_COLUMNS, *_ENDINGS)),
    *(Cell(state, what, step, column_of(state), look=_outcome("ATTACHED")) for state in (*_COLUMNS, *_ENDINGS, "closed C", "closed K") for what, step in (("restore", restore(force=False)), ("restore by force", restore()), ("restore with another id", restore(activation_id="act_x")))),
    *(refused(state, "restore another", Step(lambda _: RestoreRun("run_x")), Reason.RUN_NOT_FOUND) for state in ("C", "Cp", "K")),
    Cell("L child", "restore by force", restore(), "Q", [_GONE, "RUN_RECOVERING", QUEUED], look=_outcome("RECOVERY_QUEUED")),
    Cell("L child idem", "restore by force", restore(), "Q", [_GONE, "TOOL_CALL_PREPARED", "RUN_RECOVERING", QUEUED], look=_outcome("RECOVERY_QUEUED")),
    Cell("Lp child", "restore by force", restore(), "P", [_GONE, PAUSED], look=_outcome("ATTACHED")),
    Cell("ST child", "restore", restore(force=False), "Q", ["RUN_RECOVERING", QUEUED], look=_outcome("RECOVERY_QUEUED")),
    Cell("STp child", "restore", restore(force=False), "P", [PAUSED], look=_outcome("ATTACHED")),
    *(Cell(state, "restore by force", restore(), "K", events, look=_outcome("ATTACHED")) for state, events in {**_CANCELLING, **_UNKNOWN}.items()),
    *(
        Cell(state, f"settle {how.name}", settle(how), "K", [*([_REQUEST] if how is StopReason.CANCELLED else []), *events], look=_ends(how.name))
        for state, events in {**_PARKED, **_LEASED, **_UNKNOWN}.items()
        for how in (StopReason.FAILED, StopReason.CANCELLED)
    ),
    *(Cell(state, f"settle {how.name}", settle(how), "K", events, look=_ends("CANCELLED")) for state, events in _CANCELLING.items() for how in (StopReason.FAILED, StopReason.CANCELLED)),
    *(
        refused(state, f"settle {how.name}", settle(how), Reason.RUN_CANCELLING, run_id=run_id_of, cause=_CAUSES.get(state, "CANCELLED"))
        for state in _ENDINGS for how in (StopReason.FAILED, StopReason.CANCELLED)
    ),
    *(
        Cell("C queues", f"settle {how}", settle(StopReason[how]), "K", [*asked, _LEFT, ENDING, *MISSED], {"s1": f"FAILED {why}"}, look=_ends(how))
        for how, asked, why in (("FAILED", [], "TARGET_TERMINAL"), ("CANCELLED", [_REQUEST], "TARGET_CANCELLING"))
    ),
    *(refused(state, "settle another", Step(lambda _: SettleRun("run_x")), Reason.RUN_NOT_FOUND) for state in ("C", "Cp", "K")),
]  # fmt: skip

# --- time ------------------------------------------------------------------

_TIME = [
    *(Cell(state, "deadline", passes(HOUR), "K", events, look=_ends("DEADLINE_EXCEEDED")) for state, events in {**_PARKED, **_LEASED}.items()),
    *(Cell(state, "deadline", passes(HOUR), "K", events, look=_ends("DEADLINE_EXCEEDED")) for state, events in _UNKNOWN.items()),
    *(Cell(state, "deadline", passes(HOUR), "K", events, look=_ends("CANCELLED")) for state, events in _CANCELLING.items()),
    *(
        Cell(f"{column} child queues", "deadline", passes(HOUR), "K", [*_PARKED[f"{column} child"], *MISSED], {"s1": "FAILED TARGET_TERMINAL"}, look=_ends("DEADLINE_EXCEEDED"))
        for column in TURN
    ),
    *(Cell(state, what, passes(time), "K", look=_same) for state in (*_ENDINGS, "K queues") for what, time in (("deadline", HOUR), ("lease expiry", LEASE), ("grace expiry", GRACE), ("interaction expiry", 60 * SECOND))),
    *(Cell(state, "not yet the deadline", passes(HOUR - LEASE - SECOND), column_of(state), look=_same) for state in _COLUMNS),
    *(Cell(state, "lease expiry", passes(LEASE), column_of(state), look=_same) for state in _COLUMNS),
    *(Cell(state, "interaction expiry", passes(60 * SECOND), "K", [_LEFT, _CLOSED, ENDING], look=_ends("INTERACTION_EXPIRED")) for state in ("W child expires", "Wp child expires")),
    *(Cell(state, "grace expiry", passes(GRACE), "K", events, look=_ends("CANCELLED")) for state, events in _CANCELLING.items()),
    Cell("L child", "lease expiry", passes(LEASE), "Q", [_GONE, "RUN_RECOVERING", QUEUED]),
    Cell("Lp child", "lease expiry", passes(LEASE), "P", [_GONE, PAUSED]),
    *(Cell(state, "lease expiry", passes(LEASE), "K", events, look=_ends("FAILED")) for state, events in _UNKNOWN.items()),
    *(Cell(state, "lease expiry", passes(LEASE), "K", events, look=_ends("CANCELLED")) for state, events in _CANCELLING.items()),
]  # fmt: skip

# --- what executors commit -------------------------------------------------


def _stale(state: str, what: str, *operations: Any, outcome: Any = None) -> Cell:
    def make(it: SessionState) -> CommitRun:
        fence = Fence(it.session_id, it.run.run_id, "act_x", it.run.attempt)
        return CommitRun(fence, list(operations), outcome, LEASE)

    return refused(state, f"{what} too late", Step(make), Reason.STALE_ACTIVATION, run_id=run_id_of)


def _child_of(number: int) -> Any:
    return lambda s: s.run.children[number].run_id


def _has_child(state: str, what: str, step: Step, index: str = "0") -> Cell:
    where = {"operation_index": index} if index else {}
    return refused(state, what, step, Reason.CALL_HAS_CHILD, tool_call_id="c1", run_id=_child_of(0), **where)  # fmt: skip


_ERROR = results("c2", outcome=ToolOutcome.ERROR)
_ASK_BOTH = question("c1", "c2", kind=PromptKind.PERMISSION)
_FINISHES = (("completed", COMPLETED), ("failed", FAILED), ("cancelled", CANCELLED), ("release", RELEASE))  # fmt: skip
_COMMITS = [
    *(refused(state, "lease", Step(lambda _: LeaseActivation("act_x", "x1", LEASE)), Reason.STALE_ACTIVATION) for state in (*_COLUMNS, *_ENDINGS)),
    *(
        _stale(state, what, *operations, outcome=outcome)
        for state in ("C", "Cp", "C asked", "K", "K late", "K unknown", "closed C", "closed K")
        for what, operations, outcome in (
            ("nothing", (), None), ("reserve", (RESERVE,), None), ("step", (answer(),), None), ("claim", (claims("c2"),), None),
            ("start child", (starts("c2"),), None), ("result", (results("c2"),), None), ("compaction", (compacts(1),), None),
            ("suspend", (), question()), ("suspend for children", (), ALL_CHILDREN), *((what, (), end) for what, end in _FINISHES),
        )
    ),
    *(_stale(f"{column} child", what, *operations, outcome=outcome) for column in ("Q", "ST", "STp", "W", "Wp", "P") for what, operations, outcome in (("start child", (starts("c2"),), None), ("compaction", (compacts(1),), None), ("suspend for children", (), ANY_CHILD))),
    *(_has_child(state, what, step) for state in ("L child", "Lp child", "L second done") for what, step in (("claim", commit(claims("c1"))), ("result", commit(results("c1"))), ("error", commit(results("c1", outcome=ToolOutcome.ERROR))))),
    _has_child("Lc child", "result", commit(results("c1"))),
    *(_has_child(state, what, commit(outcome=asked), "") for state in ("L child", "Lp child") for what, asked in (("suspend for it", question("c1")), ("suspend for both", _ASK_BOTH))),
    _has_child("L child", "claim the other, then it", commit(claims("c2"), claims("c1")), "1"),
    refused("L two", "claim the second", commit(claims("c2")), Reason.CALL_HAS_CHILD, tool_call_id="c2", run_id=_child_of(1), operation_index="0"),
    *(refused("Lc child", what, commit(operation), Reason.RUN_CANCELLING, run_id=run_id_of) for what, operation in (("claim", claims("c2")), ("start child", starts("c2")), ("start it again", starts("c1")))),
    refused("Lc child", "suspend for children", commit(outcome=ALL_CHILDREN), Reason.RUN_CANCELLING, run_id=run_id_of),
    *(Cell(state, "claim the other", commit(claims("c2")), column_of(state), ["TOOL_CALL_CLAIMED"]) for state in ("L child", "Lp child", "closed L child")),
    *(Cell(state, "failed", commit(outcome=FAILED), "K", [_LEFT, *shown, _OVER, ENDING], look=_ends("FAILED")) for state, shown in (("L child", []), ("Lp child", []), ("L asked", [_CLOSED]), ("closed L child", []))),
    *(Cell(state, "failed", commit(outcome=FAILED), "K", ["TOOL_CALL_OUTCOME_UNKNOWN", _OVER, ENDING], look=_ends("FAILED")) for state in ("L child claimed", "Lp child claimed")),
    Cell("L child idem", "failed", commit(outcome=FAILED), "K", ["TOOL_CALL_OUTCOME_UNKNOWN", _OVER, ENDING], look=_ends("FAILED")),
    Cell("L child queues", "failed", commit(outcome=FAILED), "K", [_LEFT, _OVER, ENDING, *MISSED], {"s1": "FAILED TARGET_TERMINAL"}, look=_ends("FAILED")),
    *(Cell(state, what, commit(outcome=outcome), "K", [_LEFT, *shown, _OVER, ENDING], look=_ends("CANCELLED")) for state, shown in (("Lc child", []), ("Lc asked", [_CLOSED])) for what, outcome in _FINISHES),
    *(refused(state, "completed", commit(outcome=COMPLETED), Reason.OPERATION_INVALID, detail="tool calls are open") for state in ("L child", "Lp child", "L only")),
    *(refused(state, "cancelled", commit(outcome=CANCELLED), Reason.OPERATION_INVALID, detail="cancellation of the run was not requested") for state in ("L child", "Lp child")),
    Cell("L child", "release", commit(outcome=RELEASE), "Q", [_OVER, QUEUED]),
    Cell("Lp child", "release", commit(outcome=RELEASE), "P", [_OVER, PAUSED]),
    *(refused(state, "release", commit(outcome=RELEASE), Reason.CALL_UNRESOLVED, tool_call_id="c2") for state in ("L child claimed", "L child idem", "Lp child claimed")),
    Cell("L child stop claimed", "error", commit(_ERROR), "K", ["TOOL_CALL_COMMITTED", _OVER, ENDING], look=_ends("FAILED")),
    Cell("L child stop claimed", "result", commit(results("c2")), "L", ["TOOL_CALL_COMMITTED"]),
    *(Cell(state, "suspend", commit(outcome=question()), column, [_OVER, "RUN_WAITING", "INTERACTION_OPENED"]) for state, column in (("L child", "W"), ("Lp child", "Wp"))),
    Cell("L child", "suspend for the other", commit(outcome=question("c2")), "W", [_OVER, "RUN_WAITING", "INTERACTION_OPENED"]),
]  # fmt: skip

CHILD_CELLS = [*_SUBMIT, *_CONTROL, *_TIME, *_COMMITS, *FAMILY_CELLS]
