"""The table of states, cell by cell: a state, a command, and what must come of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runlane_server.core.errors import Reason
from runlane_server.core.model import Mode, RunLimits, RunOptions, SessionState

from support.steps import (
    CANCELLED,
    COMPLETED,
    Step,
    answer,
    close,
    commit,
    create,
    delete,
    delete_force,
    first,
    interrupt,
    lease,
    put,
    reserve,
    steer,
)

# --- states ----------------------------------------------------------------

_IDLE = (create,)
_Q = (*_IDLE, first)
_L = (*_Q, lease())
_LC = (*_L, interrupt())
_R = (*_L, reserve)
_F = (*_R, commit(answer()))
_QUEUES = (steer("s1"), steer("m1", moves=True), put("f1", Mode.FOLLOW_UP))
_REPLACED = (*_L, put("r1", Mode.REPLACE), put("r2", Mode.REPLACE))

STATES: dict[str, tuple[Step, ...]] = {
    "none": (),
    "IDLE": _IDLE,
    "IDLE after a run": (*_F, commit(outcome=COMPLETED)),
    "Q": _Q,
    "Q queues": (*_Q, *_QUEUES),
    "Q behind r2": (*_REPLACED, put("f1", Mode.QUEUE), commit(outcome=CANCELLED)),
    "L": _L,
    "L queues": (*_L, *_QUEUES),
    "L reserved": _R,
    "L reserved queues": (*_R, *_QUEUES),
    "L two steers": (*_R, steer("s1"), steer("s2")),
    "L last step": (*_IDLE, put("first", Mode.START, options=RunOptions(limits=RunLimits(max_model_steps=1))), lease(), reserve, steer("s1")),
    "L final": _F,
    "L final queues": (*_F, *_QUEUES),
    "L spent": (*_IDLE, put("first", Mode.START, options=RunOptions(limits=RunLimits(max_model_steps=1))), lease(), steer("s1"), reserve, commit(answer())),
    "Lc": _LC,
    "Lc follow": (*_L, put("f1", Mode.FOLLOW_UP), interrupt()),
    "Lc reserved": (*_R, interrupt()),
    "Lc final": (*_F, interrupt()),
    "Lc replaced": _REPLACED,
    "closed": (*_IDLE, close),
    "closed Q": (*_Q, close),
    "closed L": (*_L, close),
    "closed Lc": (*_LC, close),
    "closed L reserved": (*_R, close),
    "deleted": (*_IDLE, delete),
    "deleted L": (*_L, delete_force),
}  # fmt: skip

# --- events ----------------------------------------------------------------

START = ["RUN_CREATED", "MESSAGE_APPENDED", "ACTIVATION_QUEUED"]
NEXT = ["SUBMISSION_DELIVERED", *START]
PENDING = ["SUBMISSION_PENDING"]
SETTLED = ["RUN_CANCELLATION_REQUESTED", "ACTIVATION_ABANDONED", "RUN_TERMINAL"]
ENDED = ["ACTIVATION_ENDED", "RUN_TERMINAL"]
ANSWERED = ["MODEL_STEP_COMMITTED", "MESSAGE_APPENDED"]
STEERED = ["MESSAGE_APPENDED", "SUBMISSION_DELIVERED"]
RELEASED = ["ACTIVATION_ENDED", "ACTIVATION_QUEUED"]
MISSED = ["SUBMISSION_FAILED", "SUBMISSION_MOVED"]

Look = Callable[[Any, SessionState | None, SessionState], None]


@dataclass(frozen=True)
class Cell:
    """A cell: its state, its command and what must come of it.

    Attributes:
        column: The column afterwards; empty: refused, or the session is deleted.
        events: Their names, in order; none for what changes nothing.
        inputs: What became of inputs, by label; the others stay as they were.
        runs: All runs in order of the lane, each with its end; None: as they were.
        refused: The reason of a refusal, with all its metadata.
        look: Looks at the answer, the state before and the state after.
    """

    state: str
    what: str
    step: Step
    column: str = ""
    events: list[str] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)
    runs: list[str] | None = None
    refused: Reason | None = None
    metadata: Callable[[SessionState], dict[str, str]] = lambda _: {}
    look: Look | None = None

    @property
    def name(self) -> str:
        return f"{self.state}: {self.what}"


def refused(state: str, what: str, step: Step, reason: Reason, **metadata: Any) -> Cell:
    """A refusal; values of metadata are strings, or made from the state."""
    return Cell(
        state,
        what,
        step,
        refused=reason,
        metadata=lambda s: {k: v(s) if callable(v) else v for k, v in metadata.items()},
    )


def run_id_of(state: SessionState) -> str:
    return state.run.run_id


def activation_id_of(state: SessionState) -> str:
    return state.run.activation.activation_id
