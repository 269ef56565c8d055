"""Cells of clients: submit, withdraw, interrupt, close, reopen, delete."""

from typing import Any

from runlane_server.core.commands import InterruptRun, WithdrawSubmission
from runlane_server.core.errors import Reason
from runlane_server.core.model import SessionRecord, SessionState
from runlane_server.core.words import Mode

from support.steps import (
    AGENT,
    GRACE,
    Step,
    aimed,
    close,
    close_cancel,
    create,
    delete,
    delete_force,
    interrupt,
    put,
    reopen,
    text,
)
from support.table import (
    MISSED,
    NEXT,
    PENDING,
    SETTLED,
    START,
    Cell,
    Look,
    activation_id_of,
    refused,
    run_id_of,
)

_BUSY_ALLOWED = "AUTO,QUEUE,STEER,FOLLOW_UP,REPLACE,INTERRUPT,CLOSE,PAUSE"
_LEASED_ALLOWED = f"{_BUSY_ALLOWED},RESTORE"
_CANCELLING_ALLOWED = "AUTO,QUEUE,FOLLOW_UP,REPLACE,CLOSE,RESTORE"
_IDLE_ALLOWED = "START,AUTO,QUEUE,REPLACE,CLOSE,DELETE"
_FIRST = "first LIVE"


def _ran(answer: Any, before: Any, after: SessionState) -> None:
    it = answer.submission
    assert (it.route.name, it.state.name, it.run_id) == ("RUN", "DELIVERED", after.run.run_id)
    assert it.message_number == after.message_count
    assert it.submission_id == after.run.submission_id


def _steered(answer: Any, before: Any, after: SessionState) -> None:
    it = answer.submission
    assert (it.route.name, it.state.name, it.run_id) == ("STEER", "PENDING", after.run.run_id)
    assert after.steers[-1].submission_id == it.submission_id
    assert after.revision == before.revision


def _followed(answer: Any, before: Any, after: SessionState) -> None:
    it = answer.submission
    assert (it.route.name, it.state.name) == ("FOLLOW_UP", "PENDING")
    assert it.run_id not in {after.run.run_id, before.run.run_id}
    assert it.run_id in {one.run_id for one in after.next_runs}


def _order(*labels: str) -> Look:
    """The order of the next-run queue, by the texts' sizes and ranks: see `_labels`."""

    def look(answer: Any, before: Any, after: SessionState) -> None:
        _followed(answer, before, after)
        assert _labels(after) == list(labels)

    return look


def _labels(state: SessionState) -> list[str]:
    known = {text(word).hash: word for word in ("new", "s1", "m1", "f1", "r1", "r2")}
    return [known[one.content_hash] for one in state.next_runs]


def _cells_submit() -> list[Cell]:
    cells: list[Cell] = []
    for state in ("IDLE", "IDLE after a run"):
        runs = [] if state == "IDLE" else ["first COMPLETED"]
        cells += [
            Cell(state, mode.name, put("new", mode), "Q", START, {"new": "DELIVERED"}, [*runs, "new LIVE"], look=_ran)
            for mode in (Mode.START, Mode.AUTO, Mode.QUEUE, Mode.REPLACE)
        ]  # fmt: skip
        cells += [
            refused(state, mode.name, put("new", mode), Reason.SESSION_IDLE, allowed_commands=_IDLE_ALLOWED)
            for mode in (Mode.STEER, Mode.FOLLOW_UP)
        ]  # fmt: skip
    for state, allowed in (("Q", _BUSY_ALLOWED), ("L", _LEASED_ALLOWED), ("L final", _LEASED_ALLOWED), ("Lc", _CANCELLING_ALLOWED)):  # fmt: skip
        cells.append(
            refused(
                state, "START", put("new", Mode.START), Reason.SESSION_BUSY,
                run_id=run_id_of, phase="ACTIVE", activation_id=activation_id_of, allowed_commands=allowed,
            )
        )  # fmt: skip
        column = "Lc" if state == "Lc" else state[0]
        pending = {"new": "PENDING"}
        cells += [
            Cell(state, mode.name, put("new", mode), column, PENDING, pending, look=_followed)
            for mode in (Mode.QUEUE, Mode.FOLLOW_UP)
        ]
        if state == "Lc":
            cells += [
                Cell(state, "AUTO", put("new", Mode.AUTO), column, PENDING, pending, look=_followed),
                refused(state, "STEER", put("new", Mode.STEER), Reason.RUN_CANCELLING, run_id=run_id_of),
                Cell(state, "AUTO at it", aimed("new", Mode.AUTO), column, PENDING, pending, look=_followed),
                refused(state, "STEER at it", aimed("new", Mode.STEER), Reason.RUN_CANCELLING, run_id=run_id_of),
            ]  # fmt: skip
        else:
            cells += [
                Cell(state, f"{mode.name}{how}", make("new", mode), column, PENDING, pending, look=_steered)
                for mode in (Mode.AUTO, Mode.STEER)
                for how, make in (("", put), (" at it", aimed))
            ]  # fmt: skip
        cells += [
            refused(state, f"{mode.name} at another", put("new", mode, target_run_id="run_x"), Reason.RUN_NOT_CURRENT, run_id=run_id_of)
            for mode in (Mode.STEER, Mode.AUTO, Mode.REPLACE)
        ]  # fmt: skip
    cells += [
        refused("IDLE", f"{mode.name} at a run", put("new", mode, target_run_id="run_x"), Reason.RUN_NOT_CURRENT)
        for mode in (Mode.STEER, Mode.AUTO, Mode.REPLACE)
    ]  # fmt: skip
    return cells


_CELLS_REPLACE = [
    Cell("Q", "REPLACE", put("new", Mode.REPLACE), "Q", [*SETTLED, *START], {"new": "DELIVERED"}, ["first CANCELLED", "new LIVE"], look=_ran),
    Cell("Q", "REPLACE at it", aimed("new", Mode.REPLACE), "Q", [*SETTLED, *START], {"new": "DELIVERED"}, ["first CANCELLED", "new LIVE"], look=_ran),
    Cell(
        "Q queues", "REPLACE", put("new", Mode.REPLACE), "Q", [*SETTLED, *MISSED, *START],
        {"new": "DELIVERED", "s1": "FAILED TARGET_CANCELLING"}, ["first CANCELLED", "new LIVE"],
        look=lambda answer, before, after: _check_labels(after, "m1", "f1"),
    ),
    Cell(
        "Q behind r2", "REPLACE", put("new", Mode.REPLACE), "Q", [*SETTLED, *PENDING, *NEXT],
        {"new": "PENDING", "r2": "DELIVERED"}, ["first CANCELLED", "r1 CANCELLED", "r2 LIVE"], look=_order("new", "f1"),
    ),
    Cell("L", "REPLACE", put("new", Mode.REPLACE), "Lc", ["RUN_CANCELLATION_REQUESTED", *PENDING], {"new": "PENDING"}, look=_order("new")),
    Cell(
        "L queues", "REPLACE", put("new", Mode.REPLACE), "Lc", ["RUN_CANCELLATION_REQUESTED", *MISSED, *PENDING],
        {"new": "PENDING", "s1": "FAILED TARGET_CANCELLING"}, look=_order("new", "m1", "f1"),
    ),
    Cell("Lc", "REPLACE", put("new", Mode.REPLACE), "Lc", PENDING, {"new": "PENDING"}, look=_order("new")),
    Cell("Lc follow", "REPLACE", put("new", Mode.REPLACE), "Lc", PENDING, {"new": "PENDING"}, look=_order("new", "f1")),
    Cell("Lc replaced", "REPLACE", put("new", Mode.REPLACE), "Lc", PENDING, {"new": "PENDING"}, look=_order("r1", "r2", "new")),
    Cell("Lc replaced", "QUEUE", put("new", Mode.QUEUE), "Lc", PENDING, {"new": "PENDING"}, look=_order("r1", "r2", "new")),
]  # fmt: skip


def _check_labels(state: SessionState, *labels: str) -> None:
    assert _labels(state) == list(labels)


def _created(answer: Any, before: Any, after: SessionState) -> None:
    _ran(answer, before, after)
    assert answer.session_created
    assert after.revision == 1


_MAKES = {"create_session": SessionRecord(default_agent=AGENT)}
_CELLS_NO_SESSION = [
    *(
        refused(state, mode.name, put("new", mode), Reason.SESSION_NOT_FOUND)
        for state in ("none", "deleted", "deleted L")
        for mode in Mode
    ),
    *(
        refused(state, f"{mode.name} that makes one", put("new", mode, **_MAKES), Reason.SESSION_NOT_FOUND)
        for state in ("deleted", "deleted L")
        for mode in Mode
    ),
    *(
        Cell("none", f"{mode.name} that makes one", put("new", mode, **_MAKES), "Q", ["SESSION_CREATED", *START], {"new": "DELIVERED"}, ["new LIVE"], look=_created)
        for mode in (Mode.START, Mode.AUTO, Mode.QUEUE, Mode.REPLACE)
    ),
    *(
        refused("none", f"{mode.name} that makes one", put("new", mode, **_MAKES), Reason.SESSION_IDLE, allowed_commands=_IDLE_ALLOWED)
        for mode in (Mode.STEER, Mode.FOLLOW_UP)
    ),
    *(
        refused(state, mode.name, put("new", mode), Reason.SESSION_CLOSED)
        for state in ("closed", "closed Q", "closed L", "closed Lc")
        for mode in Mode
    ),
    Cell("none", "create", create, "IDLE", ["SESSION_CREATED"]),
    *(
        refused(state, "create", create, Reason.SESSION_EXISTS, session_id=lambda s: s.session_id, deleted=str(state.startswith("deleted")).lower())
        for state in ("IDLE", "L", "closed", "deleted", "deleted L")
    ),
]  # fmt: skip

# --- withdraw, interrupt, close, reopen, delete ----------------------------


def _take_back(queue: str, place: int = 0) -> Step:
    return Step(lambda s: WithdrawSubmission(getattr(s, queue)[place].submission_id))


def _withdrawn(answer: Any, before: SessionState, after: SessionState) -> None:
    assert answer.submission.state.name == "WITHDRAWN"
    waiting = before.steers + before.next_runs
    it = next(one for one in waiting if one.submission_id == answer.submission.submission_id)
    assert answer.submission.route is it.route
    assert after.pending_bytes == before.pending_bytes - it.size


def _interrupted(answer: Any, before: SessionState, after: SessionState) -> None:
    """The answer is of the run that was live, with its first cancellation."""
    assert answer.run.run_id == before.run.run_id
    assert answer.run.cancellation is not None
    if before.run.cancellation is not None:
        assert answer.run.cancellation == before.run.cancellation
    if after.run is not None and after.run.run_id == before.run.run_id:
        assert answer.run.phase.name == "ACTIVE"
        assert after.run.cancellation.grace_expire_time == after.run.cancellation.request_time + GRACE  # fmt: skip
    else:
        assert (answer.run.phase.name, answer.run.stop_reason.name) == ("TERMINAL", "CANCELLED")


_WITHDRAWN = ["SUBMISSION_WITHDRAWN"]
_this_run = Step(lambda s: InterruptRun(s.run.run_id, "enough"))
_CELLS_CONTROL = [
    *(Cell(state, "withdraw a steer", _take_back("steers"), state[0], _WITHDRAWN, {"s1": "WITHDRAWN"}, look=_withdrawn) for state in ("Q queues", "L queues")),
    *(Cell(state, "withdraw a follow-up", _take_back("next_runs"), state.split()[0], _WITHDRAWN, {"f1": "WITHDRAWN"}, look=_withdrawn) for state in ("Q queues", "L queues", "Lc follow")),
    Cell("Lc replaced", "withdraw the second", _take_back("next_runs", 1), "Lc", _WITHDRAWN, {"r2": "WITHDRAWN"}, look=_withdrawn),
    refused("IDLE", "interrupt", interrupt(), Reason.SESSION_IDLE, allowed_commands=_IDLE_ALLOWED),
    refused("closed", "interrupt", interrupt(), Reason.SESSION_IDLE, allowed_commands="REOPEN,DELETE"),
    Cell("Q", "interrupt", interrupt(), "IDLE", SETTLED, {}, ["first CANCELLED"], look=_interrupted),
    Cell("Q", "interrupt it", _this_run, "IDLE", SETTLED, {}, ["first CANCELLED"], look=_interrupted),
    Cell("closed Q", "interrupt", interrupt(), "IDLE", SETTLED, {}, ["first CANCELLED"], look=_interrupted),
    Cell(
        "Q queues", "interrupt", interrupt(), "Q", [*SETTLED, *MISSED, *NEXT],
        {"s1": "FAILED TARGET_CANCELLING", "m1": "DELIVERED"}, ["first CANCELLED", "m1 LIVE"], look=_interrupted,
    ),
    Cell("L", "interrupt", interrupt(), "Lc", ["RUN_CANCELLATION_REQUESTED"], look=_interrupted),
    Cell("L", "interrupt it", _this_run, "Lc", ["RUN_CANCELLATION_REQUESTED"], look=_interrupted),
    Cell("closed L", "interrupt", interrupt(), "Lc", ["RUN_CANCELLATION_REQUESTED"], look=_interrupted),
    Cell("L queues", "interrupt", interrupt(), "Lc", ["RUN_CANCELLATION_REQUESTED", *MISSED], {"s1": "FAILED TARGET_CANCELLING"}, look=_interrupted),
    *(Cell(state, "interrupt", interrupt("later"), "Lc", look=_interrupted) for state in ("Lc", "Lc replaced", "Lc final", "closed Lc")),
    refused("none", "interrupt", interrupt(), Reason.SESSION_NOT_FOUND),
    refused("deleted L", "interrupt", interrupt(), Reason.SESSION_NOT_FOUND),
    Cell("IDLE", "close", close, "IDLE", ["SESSION_CLOSED"], look=lambda a, b, s: _revised(b, s)),
    *(Cell(state, "close", close, state.split()[0], ["SESSION_CLOSED"]) for state in ("Q", "L", "Lc", "L final")),
    *(
        Cell(
            state, "close", close, state[0], ["SESSION_CLOSED", *["SUBMISSION_FAILED"] * 3],
            {"s1": "FAILED SESSION_CLOSED", "m1": "FAILED SESSION_CLOSED", "f1": "FAILED SESSION_CLOSED"},
        )
        for state in ("Q queues", "L queues")
    ),
    Cell("Lc replaced", "close", close, "Lc", ["SESSION_CLOSED", *["SUBMISSION_FAILED"] * 2], {"r1": "FAILED SESSION_CLOSED", "r2": "FAILED SESSION_CLOSED"}),
    *(Cell(state, "close", close, column) for state, column in (("closed", "IDLE"), ("closed Q", "Q"), ("closed L", "L"), ("closed Lc", "Lc"))),
    Cell("IDLE", "close and cancel", close_cancel, "IDLE", ["SESSION_CLOSED"]),
    Cell("Q", "close and cancel", close_cancel, "IDLE", ["SESSION_CLOSED", *SETTLED], {}, ["first CANCELLED"]),
    Cell("L", "close and cancel", close_cancel, "Lc", ["SESSION_CLOSED", "RUN_CANCELLATION_REQUESTED"]),
    Cell("Lc", "close and cancel", close_cancel, "Lc", ["SESSION_CLOSED"]),
    Cell(
        "Q queues", "close and cancel", close_cancel, "IDLE", ["SESSION_CLOSED", *SETTLED, *["SUBMISSION_FAILED"] * 3],
        {"s1": "FAILED SESSION_CLOSED", "m1": "FAILED SESSION_CLOSED", "f1": "FAILED SESSION_CLOSED"}, ["first CANCELLED"],
    ),
    Cell(
        "L queues", "close and cancel", close_cancel, "Lc", ["SESSION_CLOSED", "RUN_CANCELLATION_REQUESTED", *["SUBMISSION_FAILED"] * 3],
        {"s1": "FAILED SESSION_CLOSED", "m1": "FAILED SESSION_CLOSED", "f1": "FAILED SESSION_CLOSED"},
    ),
    Cell("closed", "close and cancel", close_cancel, "IDLE"),
    Cell("closed Q", "close and cancel", close_cancel, "IDLE", SETTLED, {}, ["first CANCELLED"]),
    Cell("closed L", "close and cancel", close_cancel, "Lc", ["RUN_CANCELLATION_REQUESTED"]),
    Cell("closed Lc", "close and cancel", close_cancel, "Lc"),
    *(Cell(state, "reopen", reopen, column, ["SESSION_REOPENED"]) for state, column in (("closed", "IDLE"), ("closed Q", "Q"), ("closed L", "L"), ("closed Lc", "Lc"))),
    *(Cell(state, "reopen", reopen, state.split()[0]) for state in ("IDLE", "Q", "L", "Lc")),
    *(Cell(state, "delete", delete, "", ["SESSION_DELETED"]) for state in ("IDLE", "IDLE after a run", "closed")),
    *(refused(state, "delete", delete, Reason.SESSION_LIVE, run_id=run_id_of) for state in ("Q", "L", "Lc", "closed Q", "closed L")),
    *(Cell(state, "delete by force", delete_force, "", ["SESSION_DELETED"]) for state in ("IDLE", "Q", "L", "Lc", "Q queues", "L queues", "Lc replaced", "closed Lc")),
    *(refused(state, what, step, Reason.SESSION_NOT_FOUND) for state in ("none", "deleted") for what, step in (("close", close), ("reopen", reopen), ("delete", delete), ("delete by force", delete_force))),
]  # fmt: skip


def _revised(before: SessionState, after: SessionState) -> None:
    assert after.revision == before.revision + 1
    assert after.etag != before.etag


CLIENT_CELLS = [*_cells_submit(), *_CELLS_REPLACE, *_CELLS_NO_SESSION, *_CELLS_CONTROL]
