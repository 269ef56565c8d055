"""Which cells of the table of states were reached: by what was asked, and in which column."""

from collections.abc import Iterable
from typing import Any

from runlane_server.core.commands import (
    AnswerInteraction,
    ClaimToolCalls,
    CloseSession,
    CommitModelStep,
    CommitRun,
    CommitToolResults,
    DeleteSession,
    Finish,
    InterruptRun,
    LeaseActivation,
    PauseRun,
    RecordCompaction,
    Release,
    ReopenSession,
    ReserveModelStep,
    RestoreRun,
    StartChildRun,
    Submit,
    Suspend,
    SuspendForChildren,
    UnpauseRun,
    WithdrawSubmission,
)
from runlane_server.core.model import SessionState

from support.table import Cell

COLUMNS = ["IDLE", "Q", "L", "Lp", "Lc", "ST", "STp", "W", "Wp", "C", "Cp", "P", "K", "T"]
_LIVE = set(COLUMNS) - {"IDLE", "T"}
_SESSION = _LIVE | {"IDLE"}
_RUN = _LIVE | {"T"}
_COMMITS = {
    "reserve": ReserveModelStep,
    "claim": ClaimToolCalls,
    "start child": StartChildRun,
    "model step": CommitModelStep,
    "result": CommitToolResults,
    "compaction": RecordCompaction,
}
_OUTCOMES = {
    "suspend": Suspend,
    "suspend for children": SuspendForChildren,
    "release": Release,
}
_SIMPLE = {
    "withdraw": WithdrawSubmission,
    "interrupt": InterruptRun,
    "pause": PauseRun,
    "unpause": UnpauseRun,
    "reopen": ReopenSession,
    "poll": LeaseActivation,
}
ROWS: dict[str, set[str]] = {
    **{f"submit {mode}": _SESSION for mode in ("START", "AUTO", "STEER", "FOLLOW_UP", "QUEUE", "REPLACE")},
    "withdraw": _SESSION,
    "interrupt": _SESSION | _RUN,
    "pause": _SESSION | _RUN,
    "unpause": _SESSION | _RUN,
    "answer what is open": {"W", "Wp", "C", "Cp"},
    "answer another": _LIVE,
    "restore": _RUN,
    "restore with another id": _RUN,
    "close": _SESSION,
    "close and cancel": _SESSION,
    "reopen": _SESSION,
    "delete": _SESSION,
    "delete by force": _SESSION,
    "fork a run that ended": _SESSION | {"T"},
    "fork a live run": _LIVE,
    "poll": {"Q"},
    "heartbeat": _RUN,
    **dict.fromkeys((*_COMMITS, *_OUTCOMES), _RUN),
    **{f"finish {how}": _RUN for how in ("COMPLETED", "FAILED", "CANCELLED")},
    "lease expiry": {"L", "Lp", "Lc"},
    "deadline": _LIVE,
    "interaction expiry": {"W", "Wp"},
    "grace expiry": {"Lc", "K"},
    "child ended": _RUN,
    "restart": _SESSION,
}  # fmt: skip
"""The rows, and the columns in which each says something; those of snapshots come later."""


class Coverage:
    """Counts how often each cell was reached."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], int] = {}

    def reached(self, row: str, column: str) -> None:
        assert row in ROWS, row
        self.counts[row, column] = self.counts.get((row, column), 0) + 1

    def missing(self) -> list[str]:
        return [
            f"{row} x {column}"
            for row, columns in ROWS.items()
            for column in COLUMNS
            if column in columns and (row, column) not in self.counts
        ]

    def table(self) -> str:
        """The counts as lines; `.`: the table says nothing there."""
        lines = [" " * 24 + "".join(f"{column:>7}" for column in COLUMNS)]
        for row, columns in ROWS.items():
            shown = [
                str(self.counts.get((row, column), 0)) if column in columns else "."
                for column in COLUMNS
            ]
            lines.append(f"{row:24}" + "".join(f"{one:>7}" for one in shown))
        return "\n".join(lines)


def rows_of(cell: Cell, state: SessionState) -> Iterable[str]:
    """The rows that a cell is of; `state`: what its command meets."""
    if cell.step.on_child is not None:
        return ["child ended"] if "CHILD_RUN_FINISHED" in cell.events else []
    if cell.step.passes:
        what = "lease expiry" if cell.what == "unconfirmed" else cell.what
        return [what] if what in ROWS else []
    return _rows_of_command(cell.step.make(state), state)


def rows_of_commit(command: CommitRun) -> list[str]:
    rows = [
        row
        for row, kind in _COMMITS.items()
        if any(isinstance(one, kind) for one in command.operations)
    ]
    outcome = command.outcome
    rows += [row for row, kind in _OUTCOMES.items() if isinstance(outcome, kind)]
    if isinstance(outcome, Finish):
        rows.append(f"finish {outcome.kind.name}")
    return rows


def _rows_of_command(command: Any, state: SessionState) -> list[str]:
    if isinstance(command, CommitRun):
        return rows_of_commit(command)
    if isinstance(command, Submit):
        return [f"submit {command.mode.name}"]
    run = state.run
    if isinstance(command, AnswerInteraction):
        wait = run.wait if run is not None else None
        fits = wait is not None and wait.interaction_id == command.interaction_id
        return ["answer what is open" if fits else "answer another"]
    if isinstance(command, RestoreRun):
        current = run.activation.activation_id if run is not None and run.activation else ""
        fits = command.expected_activation_id == current
        return ["restore" if fits else "restore with another id"]
    if isinstance(command, CloseSession):
        return ["close and cancel" if command.cancel_run else "close"]
    if isinstance(command, DeleteSession):
        return ["delete by force" if command.force else "delete"]
    return [row for row, kind in _SIMPLE.items() if isinstance(command, kind)]
