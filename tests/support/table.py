"""The table of states, cell by cell: a state, a command, and what must come of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runlane_server.core.errors import Reason
from runlane_server.core.model import RunLimits, RunOptions, SessionState
from runlane_server.core.words import Mode, PromptKind, Recovery, ToolErrorPolicy

from support.states_children import child_states
from support.steps import (
    ALL_CHILDREN,
    ANY_CHILD,
    CANCELLED,
    COMPLETED,
    LEASE,
    RELEASE,
    SECOND,
    Step,
    answer,
    asks,
    child_asks,
    claims,
    close,
    close_cancel,
    commit,
    create,
    delete,
    delete_force,
    first,
    interrupt,
    lease,
    passes,
    pause,
    put,
    question,
    reserve,
    results,
    starts,
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

# Runs that have a deadline, and executors that were heard of.
HOUR = 3600 * SECOND


def _run(**options: Any) -> tuple[Step, ...]:
    asked = RunOptions(limits=RunLimits(max_duration=HOUR), **options)
    return (*_IDLE, put("first", Mode.START, options=asked), lease(), reserve)


_AUTO, _MANUAL, _STOP = (
    _run(),
    _run(recovery=Recovery.MANUAL),
    _run(tool_error_policy=ToolErrorPolicy.STOP),
)
_ASKS = commit(asks("c1", "c2"))
_CLAIMED, _IDEM = commit(claims("c1")), commit(claims("c1", idempotent=True))
_FINAL = commit(answer())
_LOST = passes(LEASE)
_PARENT = commit(asks("c1", "c2"), starts("c1"))
_ASK = commit(outcome=question())
_EXPIRES = commit(outcome=question(expire=60 * SECOND))


def _leased(column: str, *then: Step) -> dict[str, tuple[Step, ...]]:
    """Where a leased run may stand, and then what was asked of it."""
    return {
        f"{column} reserved": (*_AUTO, *then),
        f"{column} batch": (*_AUTO, _ASKS, *then),
        f"{column} claimed": (*_AUTO, _ASKS, _CLAIMED, *then),
        f"{column} idem": (*_AUTO, _ASKS, _IDEM, *then),
        f"{column} final": (*_AUTO, _FINAL, *then),
    }


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
    **{f"{name} alive": steps for name, steps in _leased("L").items()},
    "L batch": (*_AUTO, _ASKS),
    "L claimed": (*_AUTO, _ASKS, _CLAIMED),
    "L idem": (*_AUTO, _ASKS, _IDEM),
    "L batch queues": (*_AUTO, _ASKS, _CLAIMED, commit(results("c1")), commit(claims("c2")), *_QUEUES),
    "L second first": (*_AUTO, _ASKS, commit(claims("c1", "c2")), commit(results("c2"))),
    "L stop": (*_STOP, _ASKS, _CLAIMED),
    "L manual": _MANUAL,
    "L no recoveries": (*_run(max_recoveries=0), steer("s1")),
    "L one call": (*_IDLE, put("first", Mode.START, options=RunOptions(limits=RunLimits(max_tool_calls=1))), lease(), reserve),
    "L no steps": (*_IDLE, put("first", Mode.START, options=RunOptions(limits=RunLimits(max_model_steps=1))), lease(), reserve, commit(asks("c1")), commit(claims("c1")), commit(results("c1"))),
    "Lp": (*_L, pause),
    **_leased("Lp", pause),
    "Lp queues": (*_AUTO, pause, *_QUEUES),
    "Lp final queues": (*_AUTO, _FINAL, pause, *_QUEUES),
    "Lp last call": (*_AUTO, _ASKS, _CLAIMED, commit(results("c1")), commit(claims("c2")), pause),
    "Lp last call queues": (*_AUTO, _ASKS, _CLAIMED, commit(results("c1")), commit(claims("c2")), pause, *_QUEUES),
    "Lp manual": (*_MANUAL, pause),
    **{f"{name} alive": steps for name, steps in _leased("Lc", interrupt()).items()},
    "Lc batch": (*_AUTO, _ASKS, interrupt()),
    "Lc claimed": (*_AUTO, _ASKS, _CLAIMED, interrupt()),
    "Lc idem": (*_AUTO, _ASKS, _IDEM, interrupt()),
    "Lc manual": (*_MANUAL, interrupt()),
    "Q alive": (*_AUTO, commit(outcome=RELEASE)),
    "Q batch": (*_AUTO, _ASKS, commit(outcome=RELEASE)),
    "Q backoff": (*_AUTO, _LOST),
    "Q backoff queues": (*_AUTO, *_QUEUES, _LOST),
    "ST": (*_MANUAL, _LOST),
    "ST queues": (*_MANUAL, *_QUEUES, _LOST),
    "ST batch": (*_MANUAL, _ASKS, _LOST),
    "ST claimed": (*_MANUAL, _ASKS, _CLAIMED, _LOST),
    "ST idem": (*_MANUAL, _ASKS, _IDEM, _LOST),
    "ST final": (*_MANUAL, _FINAL, _LOST),
    "STp": (*_MANUAL, _LOST, pause),
    "STp batch": (*_MANUAL, _ASKS, pause, _LOST),
    "STp claimed": (*_MANUAL, _ASKS, _CLAIMED, _LOST, pause),
    "STp idem": (*_MANUAL, _ASKS, _IDEM, _LOST, pause),
    "STp final": (*_MANUAL, _FINAL, _LOST, pause),
    "W": (*_AUTO, _ASK),
    "W queues": (*_AUTO, *_QUEUES, _ASK),
    "W expires": (*_AUTO, _EXPIRES),
    "W ask": (*_AUTO, commit(asks("c1")), commit(outcome=question("c1"))),
    "W ask queues": (*_AUTO, commit(asks("c1")), *_QUEUES, commit(outcome=question("c1"))),
    "W permission": (*_AUTO, _ASKS, commit(outcome=question("c1", "c2", kind=PromptKind.PERMISSION))),
    "W stop": (*_STOP, _ASKS, commit(outcome=question("c1", "c2", kind=PromptKind.PERMISSION))),
    "Wp": (*_AUTO, _ASK, pause),
    "Wp queues": (*_AUTO, *_QUEUES, pause, _ASK),
    "Wp expires": (*_AUTO, _EXPIRES, pause),
    "Wp ask": (*_AUTO, commit(asks("c1")), pause, commit(outcome=question("c1"))),
    "C": (*_AUTO, _PARENT, commit(outcome=ALL_CHILDREN)),
    "C any": (*_AUTO, _PARENT, commit(starts("c2")), commit(outcome=ANY_CHILD)),
    "C two": (*_AUTO, _PARENT, commit(starts("c2")), commit(outcome=ALL_CHILDREN)),
    "C asked": (*_AUTO, _PARENT, commit(outcome=ALL_CHILDREN), child_asks),
    "C queues": (*_AUTO, _PARENT, *_QUEUES, commit(outcome=ALL_CHILDREN)),
    "Cp": (*_AUTO, _PARENT, commit(outcome=ALL_CHILDREN), pause),
    "K": (*_AUTO, _PARENT, commit(outcome=ALL_CHILDREN), interrupt()),
    "K queues": (*_AUTO, _PARENT, *_QUEUES, commit(outcome=ALL_CHILDREN), interrupt()),
    "K late": (*_AUTO, _PARENT, commit(outcome=RELEASE), passes(HOUR)),
    "P": (*_AUTO, pause, commit(outcome=RELEASE)),
    "P queues": (*_AUTO, pause, *_QUEUES, commit(outcome=RELEASE)),
    "P batch": (*_AUTO, _ASKS, pause, _LOST),
    "closed ST": (*_MANUAL, _LOST, close),
    "closed Lp": (*_AUTO, pause, close),
    "closed W": (*_AUTO, _ASK, close),
    "closed P": (*_AUTO, pause, commit(outcome=RELEASE), close),
    "closed C": (*_AUTO, _PARENT, commit(outcome=ALL_CHILDREN), close),
    "closed K": (*_AUTO, _PARENT, commit(outcome=ALL_CHILDREN), close_cancel),
    "closed": (*_IDLE, close),
    "closed Q": (*_Q, close),
    "closed L": (*_L, close),
    "closed Lc": (*_LC, close),
    "closed L reserved": (*_R, close),
    "deleted": (*_IDLE, delete),
    "deleted L": (*_L, delete_force),
    **child_states(_run, _QUEUES),
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
        child: The number of the child run in whose session it is all said and seen; below 0:
            in that of the run itself.
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
    child: int = -1

    @property
    def name(self) -> str:
        there = f", child {self.child}" if self.child >= 0 else ""
        return f"{self.state}{there}: {self.what}"


def refused(
    state: str, what: str, step: Step, reason: Reason, child: int = -1, **metadata: Any
) -> Cell:
    """A refusal; values of metadata are strings, or made from the state."""
    return Cell(
        state,
        what,
        step,
        refused=reason,
        metadata=lambda s: {k: v(s) if callable(v) else v for k, v in metadata.items()},
        child=child,
    )


def column_of(state: str) -> str:
    """The column that a state is named after."""
    return state.removeprefix("closed ").split()[0]


def run_id_of(state: SessionState) -> str:
    return state.run.run_id


def activation_id_of(state: SessionState) -> str:
    return state.run.activation.activation_id
