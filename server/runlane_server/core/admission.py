"""One table: what a session does with a command, by the state that it is in.

Rows and columns are those of the design's table of states. Admission and
`allowed_commands` both read it, so they cannot disagree.
"""

from enum import Enum

from runlane_server.core.model import SessionState
from runlane_server.core.words import ActivationState, Command, Mode, SessionStatus


class Column(Enum):
    """The states of a session; exactly one holds."""

    IDLE = "IDLE"
    """No live run."""
    Q = "Q"
    """ACTIVE, its activation QUEUED."""
    L = "L"
    """ACTIVE, its activation LEASED."""
    LP = "Lp"
    """ACTIVE, LEASED, pause requested."""
    LC = "Lc"
    """ACTIVE, LEASED, cancellation requested."""
    ST = "ST"
    """ACTIVE, stalled: recovery is MANUAL and its lease ran out."""
    STP = "STp"
    """Stalled, pause requested."""
    W = "W"
    """WAITING for the answer to its interaction."""
    WP = "Wp"
    """WAITING, pause remembered."""
    C = "C"
    """WAITING for child runs."""
    CP = "Cp"
    """WAITING for child runs, pause remembered."""
    P = "P"
    """PAUSED."""
    K = "K"
    """Ending: it waits for the last end of its child runs."""


class Cell(Enum):
    """What happens."""

    START = "a run is started"
    STEER = "the input waits for a boundary of the live run"
    FOLLOW_UP = "the input waits for a run of its own"
    SETTLE = "the live run ends in this transaction; then the rest"
    REQUEST = "it is requested of the live run; then the rest"
    DO = "it is done"
    SAME = "nothing changes"
    BUSY = "refused: SESSION_BUSY"
    IDLE = "refused: SESSION_IDLE"
    CANCELLING = "refused: RUN_CANCELLING"
    LIVE = "refused: SESSION_LIVE"


_WITHOUT_EFFECT = frozenset({Cell.SAME, Cell.BUSY, Cell.IDLE, Cell.CANCELLING, Cell.LIVE})

_WORDS = {
    "start": Cell.START,
    "steer": Cell.STEER,
    "follow": Cell.FOLLOW_UP,
    "settle": Cell.SETTLE,
    "request": Cell.REQUEST,
    "do": Cell.DO,
    "=": Cell.SAME,
    "busy": Cell.BUSY,
    "idle": Cell.IDLE,
    "canc": Cell.CANCELLING,
    "live": Cell.LIVE,
}

# fmt: off
# ruff: noqa: E501 - a table is read by its columns
_ROWS = """
             IDLE   Q       L        Lp       Lc      ST       STp      W        Wp      C        Cp      P       K
START        start  busy    busy     busy     busy    busy     busy     busy     busy    busy     busy    busy    busy
AUTO         start  steer   steer    steer    follow  steer    steer    steer    steer   steer    steer   steer   follow
QUEUE        start  follow  follow   follow   follow  follow   follow   follow   follow  follow   follow  follow  follow
STEER        idle   steer   steer    steer    canc    steer    steer    steer    steer   steer    steer   steer   canc
FOLLOW_UP    idle   follow  follow   follow   follow  follow   follow   follow   follow  follow   follow  follow  follow
REPLACE      start  settle  request  request  follow  settle   settle   settle   settle  settle   settle  settle  follow
INTERRUPT    idle   settle  request  request  =       settle   settle   settle   settle  settle   settle  settle  =
PAUSE        idle   do      request  =        canc    request  =        request  =       request  =       =       canc
UNPAUSE      idle   =       =        do       canc    =        do       =        do      =        do      do      canc
DELETE       do     live    live     live     live    live     live     live     live    live     live    live    live
"""
# fmt: on


def _table() -> dict[Command, dict[Column, Cell]]:
    head, *rows = [line.split() for line in _ROWS.strip().splitlines()]
    columns = [Column(name) for name in head]
    return {
        Command[row[0]]: dict(zip(columns, (_WORDS[word] for word in row[1:]), strict=True))
        for row in rows
    }


TABLE = _table()

SUBMIT_COMMANDS: dict[Mode, Command] = {mode: Command[mode.name] for mode in Mode}
_SUBMITS = frozenset(SUBMIT_COMMANDS.values())
_CHILDS = frozenset({Command.INTERRUPT, Command.PAUSE, Command.UNPAUSE, Command.STEER})
_RESTORABLE = frozenset({Column.L, Column.LP, Column.LC, Column.ST, Column.STP})


def column(state: SessionState) -> Column:
    """Returns the column that the session is in."""
    run = state.run
    if run is None:
        return Column.IDLE
    if run.ending is not None:
        return Column.K
    pause = run.pause_requested
    if run.children_wait is not None:
        return Column.CP if pause else Column.C
    if run.wait is not None:
        return Column.WP if pause else Column.W
    activation = run.activation
    if run.paused or activation is None:
        return Column.P
    if activation.state is ActivationState.QUEUED:
        return Column.Q
    if activation.state is ActivationState.ABANDONED:
        return Column.STP if pause else Column.ST
    if run.cancellation is not None:
        return Column.LC
    return Column.LP if pause else Column.L


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
    if state.parent is None:
        allowed.add(Command.REOPEN if closed else Command.CLOSE)
    else:
        allowed = {one for one in allowed if takes_as_child(one, TABLE[one][where])}
    if state.steers or state.next_runs:
        allowed.add(Command.WITHDRAW)
    run = state.run
    if where in _RESTORABLE or (run is not None and where is Column.Q and run.not_before):
        allowed.add(Command.RESTORE)
    if run is not None and (run.wait is not None or run.proxies):
        allowed.add(Command.ANSWER)
    return sorted(allowed)


def takes_as_child(command: Command, cell: Cell) -> bool:
    """Whether the session of a child run takes a command at all: it has one run, and no lane."""
    return command in _CHILDS or (command is Command.AUTO and cell is Cell.STEER)
