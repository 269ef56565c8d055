"""Cells of runs that wait, stop, break and come back: what clients ask, and what time does."""

from typing import Any

from runlane_server.core.commands import InterruptRun, PauseRun, RestoreRun, SettleRun, UnpauseRun
from runlane_server.core.errors import Reason
from runlane_server.core.model import SessionState
from runlane_server.core.words import Mode, StopReason

from support.steps import (
    GRACE,
    LEASE,
    SECOND,
    UNCONFIRMED,
    Step,
    close,
    close_cancel,
    delete,
    delete_force,
    interrupt,
    passes,
    pause,
    put,
    reopen,
    reply,
    restore,
    settle,
    unpause,
)
from support.table import (
    HOUR,
    MISSED,
    NEXT,
    PENDING,
    START,
    Cell,
    Look,
    column_of,
    refused,
    run_id_of,
)

MESSAGE = "MESSAGE_APPENDED"
TERMINAL = "RUN_TERMINAL"
QUEUED = "ACTIVATION_QUEUED"
PAUSED = "RUN_PAUSED"
_REQUEST = "RUN_CANCELLATION_REQUESTED"
_ABANDONED = ["ACTIVATION_ABANDONED"]
_CANCELLED = ["TOOL_CALL_CANCELLED", "TOOL_CALL_CANCELLED", MESSAGE, MESSAGE]
_UNKNOWN = ["TOOL_CALL_OUTCOME_UNKNOWN", "TOOL_CALL_CANCELLED", MESSAGE, MESSAGE]
_CLOSED = ["INTERACTION_CLOSED"]

# What a lost executor leaves behind, and the events that its end begins with.
FACTS = {"reserved": [], "batch": _CANCELLED, "claimed": _UNKNOWN, "idem": _UNKNOWN, "final": []}
LEASED = {f"L {name} alive": [*events, *_ABANDONED] for name, events in FACTS.items()}
PAUSING = {f"Lp {name}": [*events, *_ABANDONED] for name, events in FACTS.items()}
CANCELLING = {f"Lc {name} alive": [*events, *_ABANDONED] for name, events in FACTS.items()}
STALLED = {
    "ST": [],
    **{f"ST {name}": events for name, events in FACTS.items() if name != "reserved"},
    "STp": [],
    **{f"STp {name}": events for name, events in FACTS.items() if name != "reserved"},
}
WAITING = {
    "W": _CLOSED,
    "W ask": ["TOOL_CALL_CANCELLED", MESSAGE, *_CLOSED],
    "W permission": [*_CANCELLED, *_CLOSED],
    "Wp": _CLOSED,
    "Wp ask": ["TOOL_CALL_CANCELLED", MESSAGE, *_CLOSED],
}
QUEUING = {
    "Q alive": _ABANDONED,
    "Q batch": [*_CANCELLED, *_ABANDONED],
    "Q backoff": _ABANDONED,
}
STOPPED = {"P": [], "P batch": _CANCELLED}
PARKED = {**QUEUING, **STALLED, **WAITING, **STOPPED}
"""Nobody has the run: it ends at once."""


def _end(state: str, reason: str) -> list[str]:
    unknown = "claimed" in state
    return [f"first {'OUTCOME_UNKNOWN' if unknown else reason}"]


def _is_ended(reason: str) -> Look:
    """The answer says how the run ended, and why where that is not it."""

    def look(answer: Any, before: SessionState, after: SessionState) -> None:
        run = answer.run
        assert (run.run_id, run.phase.name) == (before.run.run_id, "TERMINAL")
        assert run.activation is None
        assert (run.cause or run.stop_reason).name == reason
        assert run.stop_reason.name == ("OUTCOME_UNKNOWN" if run.cause else reason)

    return look


def _receipt(name: str) -> Look:
    def look(answer: Any, before: SessionState, after: SessionState) -> None:
        assert (answer.receipt.name, answer.run.run_id) == (name, after.run.run_id)
        assert answer.run.phase is after.run.phase
        assert answer.run.pause_requested is after.run.pause_requested
        assert after.revision == before.revision

    return look


def _outcome(name: str) -> Look:
    def look(answer: Any, before: SessionState, after: SessionState) -> None:
        assert (answer.outcome.name, answer.run.run_id) == (name, before.run.run_id)
        assert (answer.run.phase.name == "TERMINAL") is (name == "SETTLED")
        if name == "RECOVERY_QUEUED":
            assert (after.run.not_before, after.run.recoveries) == (0, before.run.recoveries)

    return look


def _kept(answer: Any, before: SessionState, after: SessionState) -> None:
    """The run goes on where it was: its reservation, and what was done of its batch."""
    assert after.run.reserved_step == before.run.reserved_step
    assert [one.appended for one in after.run.calls] == [one.appended for one in before.run.calls]
    assert not any(one.state.name == "CLAIMED" for one in after.run.calls)
    if after.run.activation is not None:
        assert after.run.activation.epoch == before.run.attempt + 1


def _again(kind: str, *, counted: bool) -> Look:
    def look(answer: Any, before: SessionState, after: SessionState) -> None:
        _kept(answer, before, after)
        assert after.run.activation.kind.name == kind
        assert after.run.recoveries == before.run.recoveries + counted
        assert (after.run.not_before > 0) is counted

    return look


# --- submit, withdraw, close, reopen, delete -------------------------------

_STEERABLE = (*PARKED, "Lp", "Lp reserved", "L batch", "L claimed")
_SUBMIT = [
    *(
        Cell(state, mode.name, put("new", mode), column_of(state), PENDING, {"new": "PENDING"},
             look=lambda a, b, s, route=route: _routed(a, s, route))
        for state in _STEERABLE
        for mode, route in ((Mode.AUTO, "STEER"), (Mode.STEER, "STEER"), (Mode.QUEUE, "FOLLOW_UP"), (Mode.FOLLOW_UP, "FOLLOW_UP"))
    ),
    *(
        refused(state, "START", put("new", Mode.START), Reason.SESSION_BUSY, run_id=run_id_of, phase=_phase, activation_id=activation, allowed_commands=allowed)
        for state, _phase, activation, allowed in (
            ("Q backoff", "ACTIVE", lambda s: s.run.activation.activation_id, "AUTO,QUEUE,STEER,FOLLOW_UP,REPLACE,INTERRUPT,CLOSE,PAUSE,RESTORE"),
            ("Lp", "ACTIVE", lambda s: s.run.activation.activation_id, "AUTO,QUEUE,STEER,FOLLOW_UP,REPLACE,INTERRUPT,CLOSE,UNPAUSE,RESTORE"),
            ("ST", "ACTIVE", lambda s: s.run.activation.activation_id, "AUTO,QUEUE,STEER,FOLLOW_UP,REPLACE,INTERRUPT,CLOSE,PAUSE,RESTORE"),
            ("STp", "ACTIVE", lambda s: s.run.activation.activation_id, "AUTO,QUEUE,STEER,FOLLOW_UP,REPLACE,INTERRUPT,CLOSE,UNPAUSE,RESTORE"),
            ("W", "WAITING", "", "AUTO,QUEUE,STEER,FOLLOW_UP,REPLACE,INTERRUPT,CLOSE,PAUSE,ANSWER"),
            ("Wp", "WAITING", "", "AUTO,QUEUE,STEER,FOLLOW_UP,REPLACE,INTERRUPT,CLOSE,UNPAUSE,ANSWER"),
            ("P", "PAUSED", "", "AUTO,QUEUE,STEER,FOLLOW_UP,REPLACE,INTERRUPT,CLOSE,UNPAUSE"),
        )
    ),
    *(refused(state, mode.name, put("new", mode), Reason.SESSION_CLOSED) for state in ("closed ST", "closed Lp", "closed W", "closed P") for mode in Mode),
    *(
        Cell(state, "REPLACE", put("new", Mode.REPLACE), "Q", [_REQUEST, *events, TERMINAL, *START], {"new": "DELIVERED"}, [*_end(state, "CANCELLED"), "new LIVE"])
        for state, events in PARKED.items()
    ),
    *(
        Cell(state, "REPLACE", put("new", Mode.REPLACE), "Q", [_REQUEST, *PARKED[state.split()[0]], TERMINAL, *MISSED, *START],
             {"new": "DELIVERED", "s1": "FAILED TARGET_CANCELLING"}, ["first CANCELLED", "new LIVE"])
        for state in ("ST queues", "W queues", "Wp queues", "P queues")
    ),
    *(Cell(state, "REPLACE", put("new", Mode.REPLACE), "Lc", [_REQUEST, *PENDING], {"new": "PENDING"}, look=lambda a, b, s: _unpaused(s)) for state in ("Lp", "Lp claimed", "L claimed")),
    Cell("Lp queues", "REPLACE", put("new", Mode.REPLACE), "Lc", [_REQUEST, *MISSED, *PENDING], {"new": "PENDING", "s1": "FAILED TARGET_CANCELLING"}),
    *(Cell(state, "close", close, column_of(state), ["SESSION_CLOSED"]) for state in (*PARKED, "Lp", "Lp claimed")),
    *(Cell(state, "close and cancel", close_cancel, "IDLE", ["SESSION_CLOSED", _REQUEST, *events, TERMINAL], {}, _end(state, "CANCELLED")) for state, events in PARKED.items()),
    Cell("Lp", "close and cancel", close_cancel, "Lc", ["SESSION_CLOSED", _REQUEST]),
    Cell(
        "W queues", "close and cancel", close_cancel, "IDLE", ["SESSION_CLOSED", _REQUEST, *_CLOSED, TERMINAL, *["SUBMISSION_FAILED"] * 3],
        dict.fromkeys(("s1", "m1", "f1"), "FAILED SESSION_CLOSED"), ["first CANCELLED"],
    ),
    *(Cell(state, "reopen", reopen, column_of(state), ["SESSION_REOPENED"]) for state in ("closed ST", "closed Lp", "closed W", "closed P")),
    *(refused(state, "delete", delete, Reason.SESSION_LIVE, run_id=run_id_of) for state in (*PARKED, "Lp", "closed W")),
    *(Cell(state, "delete by force", delete_force, "", ["SESSION_DELETED"]) for state in (*PARKED, "Lp", "L claimed", "W queues", "closed P")),
]  # fmt: skip


def _routed(answer: Any, after: SessionState, route: str) -> None:
    it = answer.submission
    assert (it.route.name, it.state.name) == (route, "PENDING")
    assert (it.run_id == after.run.run_id) is (route == "STEER")


def _unpaused(after: SessionState) -> None:
    assert not after.run.pause_requested


# --- interrupt, pause, unpause ---------------------------------------------

_QUEUES = ("Q backoff queues", "ST queues", "W queues", "Wp queues", "P queues")
_INTERRUPT = [
    *(Cell(state, "interrupt", interrupt(), "IDLE", [_REQUEST, *events, TERMINAL], {}, _end(state, "CANCELLED"), look=_is_ended("CANCELLED")) for state, events in PARKED.items()),
    *(
        Cell(state, "interrupt", interrupt(), "Q", [_REQUEST, *PARKED[state.removesuffix(" queues")], TERMINAL, *MISSED, *NEXT],
             {"s1": "FAILED TARGET_CANCELLING", "m1": "DELIVERED"}, ["first CANCELLED", "m1 LIVE"], look=_is_ended("CANCELLED"))
        for state in _QUEUES
    ),
    *(Cell(state, "interrupt", interrupt(), "Lc", [_REQUEST], look=lambda a, b, s: _unpaused(s)) for state in ("Lp", "Lp claimed", "L claimed", "closed Lp")),
    *(Cell(state, "interrupt", interrupt("later"), "Lc") for state in ("Lc batch", "Lc claimed", "Lc manual")),
    *(refused(state, "interrupt another", Step(lambda _: InterruptRun("run_x")), Reason.RUN_NOT_FOUND) for state in ("IDLE", "W", "P", "ST", "Lp")),
]  # fmt: skip


def _resumed(answer: Any, before: SessionState, after: SessionState) -> None:
    _receipt("RESUMED")(answer, before, after)
    _again("CONTINUE", counted=False)(answer, before, after)
    assert (after.steers, after.run.usage) == (before.steers, before.run.usage)


_IDLE_ALLOWED = "START,AUTO,QUEUE,REPLACE,CLOSE,DELETE"
_PAUSE = [
    *(Cell(state, "pause", pause, "P", ["ACTIVATION_ABANDONED", PAUSED], look=_receipt("PAUSED")) for state in ("Q", *QUEUING, "Q queues", "closed Q")),
    *(Cell(state, "pause", pause, f"{column_of(state)}p", ["RUN_PAUSE_REQUESTED"], look=_receipt("REQUESTED")) for state in ("L", *LEASED, "ST", "ST claimed", "ST final", "W", "W ask", "closed L", "closed W", "closed ST")),
    *(Cell(state, "pause", pause, column_of(state), look=_receipt("REQUESTED")) for state in ("Lp", *PAUSING, "STp", "STp claimed", "Wp", "Wp ask")),
    *(Cell(state, "pause", pause, "P", look=_receipt("PAUSED")) for state in (*STOPPED, "closed P")),
    *(Cell(state, "unpause", unpause, column_of(state), look=_receipt("UNCHANGED")) for state in ("Q", *QUEUING, "L", *LEASED, "ST", "ST claimed", "W", "W ask")),
    *(Cell(state, "unpause", unpause, column_of(state)[:-1], ["RUN_UNPAUSED"], look=_receipt("RESUMED")) for state in ("Lp", *PAUSING, "STp", "STp claimed", "Wp", "Wp ask", "closed Lp")),
    *(Cell(state, "unpause", unpause, "Q", ["RUN_UNPAUSED", QUEUED], look=_resumed) for state in ("P", "P batch", "P queues", "closed P")),
    *(
        refused(state, what, step, Reason.RUN_CANCELLING, run_id=run_id_of)
        for state in ("Lc", *CANCELLING, "closed Lc")
        for what, step in (("pause", pause), ("unpause", unpause))
    ),
    *(refused("IDLE", what, step, Reason.SESSION_IDLE, allowed_commands=_IDLE_ALLOWED) for what, step in (("pause", pause), ("unpause", unpause))),
    *(
        refused(state, f"{kind.__name__} of another", Step(lambda _, kind=kind: kind("run_x")), Reason.RUN_NOT_FOUND)
        for state in ("IDLE", "Q", "L", "Lc", "ST", "W", "P", "deleted")
        for kind in (PauseRun, UnpauseRun)
    ),
    *(refused(state, "pause", pause, Reason.SESSION_NOT_FOUND) for state in ("none", "deleted")),
]  # fmt: skip

# --- answers ---------------------------------------------------------------


def _answered(answer: Any, before: SessionState, after: SessionState) -> None:
    wait = before.run.wait
    it = answer.interaction
    assert (it.interaction_id, it.version, it.state.name) == (wait.interaction_id, 1, "ANSWERED")
    assert it.settle_time == after.last_time
    if after.run is not None:
        assert after.run.wait is None
        assert answer.run.phase is after.run.phase


_ANSWERED = "INTERACTION_ANSWERED"
_RESULT = ["TOOL_CALL_COMMITTED", MESSAGE]
_STEERED = [MESSAGE, "SUBMISSION_DELIVERED"]
_ANSWER = [
    *(Cell(state, "answer", reply(), "Q", [_ANSWERED, QUEUED], look=_answered) for state in ("W", "W queues", "W expires", "W permission", "closed W")),
    *(Cell(state, "answer", reply(), "P", [_ANSWERED, PAUSED], look=_answered) for state in ("Wp", "Wp queues", "Wp expires")),
    Cell("W ask", "answer", reply(), "Q", [_ANSWERED, *_RESULT, QUEUED], look=_answered),
    Cell("Wp ask", "answer", reply(), "P", [_ANSWERED, *_RESULT, PAUSED], look=_answered),
    Cell("W ask queues", "answer", reply(), "Q", [_ANSWERED, *_RESULT, *_STEERED, QUEUED], {"s1": "DELIVERED"}, look=_answered),
    Cell("W permission", "answer no", reply("no"), "Q", [_ANSWERED, *_RESULT, *_RESULT, QUEUED], look=_answered),
    Cell("W stop", "answer no", reply("no"), "IDLE", [_ANSWERED, *_RESULT, *_RESULT, TERMINAL], {}, ["first FAILED"], look=_answered),
    *(
        refused(state, "answer an older question", reply(version=2), Reason.INTERACTION_CONFLICT, interaction_id=lambda s: s.run.wait.interaction_id, version="1")
        for state in ("W", "Wp", "closed W")
    ),
    *(refused(state, "answer another", reply(interaction_id="int_x"), Reason.INTERACTION_NOT_FOUND) for state in ("W", "Wp")),
    *(refused(state, "answer", reply(), Reason.INTERACTION_NOT_FOUND) for state in ("Q", "L", "Lp", "Lc", "ST", "STp", "P")),
    *(refused(state, "answer", Step(lambda s: reply().make(s)), Reason.RUN_NOT_FOUND) for state in ("IDLE", "IDLE after a run", "deleted")),
]  # fmt: skip

# --- restore, settle by hand, and time -------------------------------------


def _recovered(state: str) -> list[str]:
    """The events between the end of the activation and what comes next."""
    return ["TOOL_CALL_PREPARED"] if "idem" in state else []


def _lost(state: str, what: str, step: Step, ended: list[str], *, forced: bool) -> Cell:
    """The table of recovery: what becomes of a run of which nobody is left."""
    column = column_of(state)
    terminal = "claimed" in state or "final" in state or column == "Lc"
    if terminal:
        reason = "CANCELLED" if column == "Lc" else "COMPLETED" if "final" in state else "FAILED"
        look = _outcome("SETTLED") if forced else None
        return Cell(state, what, step, "IDLE", [*ended, TERMINAL], {}, _end(state, reason), look=look)  # fmt: skip
    gone = [] if column.startswith("ST") else _ABANDONED
    if column.endswith("p"):
        events, look = [*gone, *_recovered(state), PAUSED], _kept
        return Cell(state, what, step, "P", events, look=_outcome("ATTACHED") if forced else look)
    events = [*gone, *_recovered(state), "RUN_RECOVERING", QUEUED]
    look = _outcome("RECOVERY_QUEUED") if forced else _again("RECOVER", counted=True)
    return Cell(state, what, step, "Q", events, look=look)


def _hurried(answer: Any, before: SessionState, after: SessionState) -> None:
    """It waits no longer; it is the same activation, and the recovery is counted."""
    assert answer.outcome.name == "RECOVERY_QUEUED"
    assert after.run.activation == before.run.activation
    assert (before.run.not_before > 0, after.run.not_before) == (True, 0)
    assert after.run.recoveries == before.run.recoveries == 1


_HELD = {**LEASED, **PAUSING, **CANCELLING}
_other = restore(activation_id="act_x")
_RESTORE = [
    *(_lost(state, "restore by force", restore(), events, forced=True) for state, events in _HELD.items()),
    *(_lost(state, "restore", restore(force=False), events, forced=True) for state, events in STALLED.items()),
    *(Cell(state, "restore", restore(force=False), column_of(state), look=_outcome("STILL_LEASED")) for state in ("L", "Lp", "Lc", *_HELD)),
    *(Cell(state, "restore", restore(), column_of(state), look=_outcome("ATTACHED")) for state in ("Q", "Q alive", "Q batch", *WAITING, *STOPPED)),
    *(Cell(state, "restore with another id", _other, column_of(state), look=_outcome("ATTACHED")) for state in (*WAITING, *STOPPED)),
    Cell("Q backoff", "restore", restore(force=False), "Q", [QUEUED], look=_hurried),
    *(
        refused(state, f"restore with {what}", step, Reason.ACTIVATION_MISMATCH, activation_id=lambda s: s.run.activation.activation_id)
        for state in ("Q", "Q backoff", "L", "Lp", "Lc", "ST", "STp")
        for what, step in (("another id", _other), ("no id", restore(activation_id="")))
    ),
    *(refused(state, "restore another", Step(lambda _: RestoreRun("run_x")), Reason.RUN_NOT_FOUND) for state in ("none", "IDLE", "Q", "L", "ST", "W", "P", "deleted")),
]  # fmt: skip


def _by_hand(state: str, events: list[str], how: StopReason) -> Cell:
    asked = how is StopReason.CANCELLED and column_of(state) != "Lc"
    reason = "CANCELLED" if column_of(state) == "Lc" else how.name
    return Cell(
        state, f"settle {how.name}", settle(how), "IDLE", [*([_REQUEST] if asked else []), *events, TERMINAL], {}, _end(state, reason), look=_is_ended(reason),
    )  # fmt: skip


_SETTLE = [
    *(_by_hand(state, events, how) for state, events in {**PARKED, **_HELD}.items() for how in (StopReason.FAILED, StopReason.CANCELLED)),
    *(
        Cell(state, f"settle {how}", settle(StopReason[how]), "Q", [*asked, *events, TERMINAL, *MISSED, *NEXT],
             {"s1": f"FAILED {why}", "m1": "DELIVERED"}, [f"first {how}", "m1 LIVE"])
        for state, events in (("ST queues", []), ("W queues", _CLOSED), ("L queues", _ABANDONED))
        for how, asked, why in (("FAILED", [], "TARGET_TERMINAL"), ("CANCELLED", [_REQUEST], "TARGET_CANCELLING"))
    ),
    *(refused(state, "settle another", Step(lambda _: SettleRun("run_x")), Reason.RUN_NOT_FOUND) for state in ("none", "IDLE", "L", "W", "deleted")),
]  # fmt: skip


def _deadline(state: str, events: list[str]) -> Cell:
    cancelling = column_of(state) == "Lc"
    reason = "CANCELLED" if cancelling else "COMPLETED" if "final" in state else "DEADLINE_EXCEEDED"
    return Cell(state, "deadline", passes(HOUR), "IDLE", [*events, TERMINAL], {}, _end(state, reason))  # fmt: skip


def _requeued(answer: Any, before: SessionState, after: SessionState) -> None:
    _again("START", counted=False)(answer, before, after)


_TIME = [
    *(_lost(state, "lease expiry", passes(LEASE), events, forced=False) for state, events in _HELD.items()),
    *(Cell(state, "lease expiry", passes(LEASE), column_of(state)) for state in (*QUEUING, *STALLED, *WAITING, *STOPPED)),
    Cell("L", "unconfirmed", passes(UNCONFIRMED), "Q", [*_ABANDONED, QUEUED], look=_requeued),
    Cell("L queues", "unconfirmed", passes(UNCONFIRMED), "Q", [*_ABANDONED, QUEUED], look=_requeued),
    Cell("Lp", "unconfirmed", passes(UNCONFIRMED), "P", [*_ABANDONED, PAUSED], look=_kept),
    Cell("Lc", "unconfirmed", passes(UNCONFIRMED), "IDLE", [*_ABANDONED, TERMINAL], {}, ["first CANCELLED"]),
    *(Cell(state, "not yet", passes(UNCONFIRMED - 1), column_of(state)) for state in ("L", "Lp", "Lc")),
    *(Cell(state, "not yet", passes(LEASE - 1), column_of(state)) for state in _HELD),
    Cell("L manual", "lease expiry", passes(LEASE), "ST", [*_ABANDONED, "RUN_STALLED"]),
    Cell("Lp manual", "lease expiry", passes(LEASE), "STp", [*_ABANDONED, "RUN_STALLED"]),
    Cell("Lc manual", "lease expiry", passes(LEASE), "IDLE", [*_ABANDONED, TERMINAL], {}, ["first CANCELLED"]),
    Cell("L no recoveries", "lease expiry", passes(LEASE), "IDLE", [*_ABANDONED, TERMINAL, "SUBMISSION_FAILED"], {"s1": "FAILED TARGET_TERMINAL"}, ["first FAILED"]),
    *(_deadline(state, events) for state, events in {**PARKED, **_HELD}.items()),
    *(
        Cell(state, "deadline", passes(HOUR), "Q", [*PARKED[state.removesuffix(" queues")], TERMINAL, *MISSED, *NEXT],
             {"s1": "FAILED TARGET_TERMINAL", "m1": "DELIVERED"}, ["first DEADLINE_EXCEEDED", "m1 LIVE"])
        for state in _QUEUES
    ),
    *(Cell(state, "not yet the deadline", passes(HOUR - LEASE - SECOND), column_of(state)) for state in (*QUEUING, *STALLED, *WAITING, *STOPPED)),
    *(Cell(state, "interaction expiry", passes(60 * SECOND), "IDLE", [*_CLOSED, TERMINAL], {}, ["first INTERACTION_EXPIRED"]) for state in ("W expires", "Wp expires")),
    *(Cell(state, "not yet expired", passes(60 * SECOND - 1), column_of(state)) for state in ("W expires", "Wp expires")),
    *(Cell(state, "grace expiry", passes(GRACE), "IDLE", [*events, TERMINAL], {}, _end(state, "CANCELLED")) for state, events in CANCELLING.items()),
]  # fmt: skip

WAIT_CELLS = [*_SUBMIT, *_INTERRUPT, *_PAUSE, *_ANSWER, *_RESTORE, *_SETTLE, *_TIME]
