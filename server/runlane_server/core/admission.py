"""One table: what a session does with a command, by the state that it is in.

Rows and columns are those of the design's table of states. Admission and
`allowed_commands` both read it, so they cannot disagree.
"""

from enum import Enum

from runlane_server.core.model import (
    ActivationState,
    Command,
    Mode,
    SessionState,
    SessionStatus,
)


class Column(Enum):
    """The states of a session; exactly one holds."""

    IDLE = "IDLE"
    """No live run."""
    Q = "Q"
    """ACTIVE, its activation QUEUED."""
    L = "L"
    """ACTIVE, its activation LEASED."""
    LC = "Lc"
    """ACTIVE, LEASED, cancellation requested."""


class Cell(Enum):
    """What happens."""

    START = "a run is started"
    STEER = "the input waits for a boundary of the live run"
    FOLLOW_UP = "the input waits for a run of its own"
    SETTLE = "the live run ends in this transaction; then the rest"
    REQUEST = "cancellation of the live run is requested; then the rest"
    DO = "it is done"
    SAME = "nothing changes"
    BUSY = "refused: SESSION_BUSY"
    IDLE = "refused: SESSION_IDLE"
    CANCELLING = "refused: RUN_CANCELLING"
    LIVE = "refused: SESSION_LIVE"


_WITHOUT_EFFECT = frozenset({Cell.SAME, Cell.BUSY, Cell.IDLE, Cell.CANCELLING, Cell.LIVE})

_COLUMNS = (Column.IDLE, Column.Q, Column.L, Column.LC)
_ROWS: dict[Command, tuple[Cell, Cell, Cell, Cell]] = {
    Command.START: (Cell.START, Cell.BUSY, Cell.BUSY, Cell.BUSY),
    Command.AUTO: (Cell.START, Cell.STEER, Cell.STEER, Cell.FOLLOW_UP),
    Command.QUEUE: (Cell.START, Cell.FOLLOW_UP, Cell.FOLLOW_UP, Cell.FOLLOW_UP),
    Command.STEER: (Cell.IDLE, Cell.STEER, Cell.STEER, Cell.CANCELLING),
    Command.FOLLOW_UP: (Cell.IDLE, Cell.FOLLOW_UP, Cell.FOLLOW_UP, Cell.FOLLOW_UP),
    Command.REPLACE: (Cell.START, Cell.SETTLE, Cell.REQUEST, Cell.FOLLOW_UP),
    Command.INTERRUPT: (Cell.IDLE, Cell.SETTLE, Cell.REQUEST, Cell.SAME),
    Command.DELETE: (Cell.DO, Cell.LIVE, Cell.LIVE, Cell.LIVE),
}
TABLE: dict[Command, dict[Column, Cell]] = {
    command: dict(zip(_COLUMNS, cells, strict=True)) for command, cells in _ROWS.items()
}

SUBMIT_COMMANDS: dict[Mode, Command] = {mode: Command[mode.name] for mode in Mode}
_SUBMITS = frozenset(SUBMIT_COMMANDS.values())


def column(state: SessionState) -> Column:
    """Returns the column that the session is in."""
    run = state.run
    if run is None:
        return Column.IDLE
    if run.activation.state is ActivationState.QUEUED:
        return Column.Q
    return Column.L if run.cancellation is None else Column.LC


def allowed_commands(state: SessionState) -> list[Command]:
    """Returns what the session would neither refuse nor answer unchanged, ascending."""
    if state.deleted:
        return []
    where = column(state)
    closed = state.status is SessionStatus.CLOSED
    allowed = {
        command
        for command, cells in TABLE.items()
        if cells[where] not in _WITHOUT_EFFECT and not (closed and command in _SUBMITS)
    }
    allowed.add(Command.REOPEN if closed else Command.CLOSE)
    if state.steers or state.next_runs:
        allowed.add(Command.WITHDRAW)
    return sorted(allowed)
