"""The words of the domain as records.

`SessionState` is the *hot state*: all that a decision needs, and no message or
input text. Enum numbers equal those of the protos (`runlane.v1`); a test holds
them together. Times are integers, microseconds since 1970 UTC; spans too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import IntEnum
from operator import attrgetter
from typing import Any


class SessionStatus(IntEnum):
    """Whether a session takes input."""

    OPEN = 1
    CLOSED = 2


class Mode(IntEnum):
    """What the caller asked to be done with an input."""

    START = 1
    AUTO = 2
    QUEUE = 3
    STEER = 4
    FOLLOW_UP = 5
    REPLACE = 6


class Route(IntEnum):
    """What was done with an input."""

    RUN = 1
    STEER = 2
    FOLLOW_UP = 3


class SubmissionState(IntEnum):
    """How far an input has come; all but PENDING are ends."""

    PENDING = 1
    DELIVERED = 2
    FAILED = 3
    WITHDRAWN = 4


class OnMiss(IntEnum):
    """What happens to a steer that misses its run."""

    FAIL = 1
    FOLLOW_UP = 2


class SubmissionFailure(IntEnum):
    """Why an input failed."""

    TARGET_TERMINAL = 1
    TARGET_CANCELLING = 2
    START_FAILED = 3
    SESSION_CLOSED = 4


class Phase(IntEnum):
    """Whether a run lives."""

    ACTIVE = 1
    TERMINAL = 4


class Position(IntEnum):
    """Where in its loop a run stands."""

    BEFORE_MODEL = 1
    OUTCOME_READY = 3


class StopReason(IntEnum):
    """Why a run ended."""

    COMPLETED = 1
    FAILED = 2
    CANCELLED = 3
    BUDGET_EXHAUSTED = 6


class RunFailure(IntEnum):
    """What kind of failure ended a run."""

    LEASE_EXPIRED = 2
    MODEL_UNAVAILABLE = 5
    MODEL_REFUSED = 6
    EXECUTOR_ERROR = 7


class ActivationKind(IntEnum):
    """Why an executor's turn is taken."""

    START = 1


class ActivationState(IntEnum):
    """Whether an executor has the activation."""

    QUEUED = 1
    LEASED = 2


class EndReason(IntEnum):
    """The act of its executor that ended an activation."""

    FINISHED = 1
    RELEASED = 2
    BUDGET_EXHAUSTED = 5


class AbandonReason(IntEnum):
    """What ended an activation without an act of its executor."""

    CANCELLED = 1
    GRACE_EXPIRED = 2
    LEASE_EXPIRED = 3


class Role(IntEnum):
    """Whose turn a message is."""

    USER = 1
    ASSISTANT = 2


class Author(IntEnum):
    """How a message came to be."""

    INPUT = 1
    STEER = 2
    MODEL = 3


class Command(IntEnum):
    """What a client may ask of a session; the words of `allowed_commands`."""

    START = 1
    AUTO = 2
    QUEUE = 3
    STEER = 4
    FOLLOW_UP = 5
    REPLACE = 6
    INTERRUPT = 7
    WITHDRAW = 8
    CLOSE = 9
    REOPEN = 10
    DELETE = 11


class Rank(IntEnum):
    """Order of the next-run queue; FIFO within a rank."""

    REPLACE = 1
    MOVED_STEER = 2
    FOLLOW_UP = 3


class TimerKind(IntEnum):
    """Durable timers of a session; at most one of a kind."""

    GRACE = 1
    SWEEP = 2


@dataclass(slots=True, frozen=True)
class SessionKey:
    """Names a session: its namespace and its id there."""

    namespace: str
    session_id: str


@dataclass(slots=True)
class Usage:
    """What a run or a step of it has used."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd_micros: int = 0

    def plus(self, other: "Usage") -> "Usage":
        """Returns the sum of both."""
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cost_usd_micros + other.cost_usd_micros,
        )


@dataclass(slots=True)
class RunOptions:
    """What a run is started with. In a resolved one every field is set.

    Attributes:
        agent: The name that executors poll for; empty in a request: the default.
        model: The model to use; empty: the agent's own.
        max_model_steps: Model steps that may be reserved; 0 in a request: the default.
        cancel_grace: How long an executor may take to settle a cancelled run, in
            microseconds; None in a request: the default.
        request_options_json: A JSON object for the model; may be empty.
    """

    agent: str = ""
    model: str = ""
    max_model_steps: int = 0
    cancel_grace: int | None = None
    request_options_json: str = ""


@dataclass(slots=True)
class Failure:
    """What made a run fail."""

    reason: RunFailure
    message: str = ""
    retryable: bool = False


@dataclass(slots=True)
class Cancellation:
    """The first request to cancel a run."""

    reason: str
    request_time: int
    grace_expire_time: int


@dataclass(slots=True)
class Activation:
    """One executor's turn at advancing a run."""

    activation_id: str
    epoch: int
    state: ActivationState = ActivationState.QUEUED
    executor_id: str = ""


@dataclass(slots=True)
class Run:
    """The live run of a session."""

    run_id: str
    submission_id: str
    agent: str
    create_time: int
    max_model_steps: int
    cancel_grace: int
    activation: Activation
    position: Position = Position.BEFORE_MODEL
    run_sequence: int = 0
    steps_reserved: int = 0
    steps_committed: int = 0
    model_stream_id: str = ""
    output_message_number: int = 0
    usage: Usage = field(default_factory=Usage)
    cancellation: Cancellation | None = None

    @property
    def reserved_step(self) -> int:
        """The step that is reserved and not committed; 0: none."""
        return self.steps_reserved if self.steps_reserved > self.steps_committed else 0


@dataclass(slots=True)
class Queued:
    """A pending input, without its text."""

    submission_id: str
    run_id: str
    mode: Mode
    route: Route
    rank: Rank
    on_miss: OnMiss
    size: int
    content_hash: bytes
    options: RunOptions
    create_time: int
    request_id: str = ""


@dataclass(slots=True)
class SessionState:
    """The hot state of a session. A decision never changes it in place.

    Attributes:
        revision: Grows with each transaction that appends messages or changes the record.
        record_revision: Grows with each change of the record; the etag is made from it.
        sequence: The last event's.
        digest: Chained SHA-256 over the messages.
        last_run_time: create_time of the newest run.
        last_time: The newest time that a decision was made at.
        steers: Pending steers of the live run, in order.
        next_runs: Pending next runs, in order.
        pending_bytes: Size of all pending input.
    """

    namespace: str
    session_id: str
    create_time: int
    default_agent: str = ""
    status: SessionStatus = SessionStatus.OPEN
    deleted: bool = False
    revision: int = 0
    record_revision: int = 1
    sequence: int = 0
    message_count: int = 0
    digest: bytes = b""
    last_run_time: int = 0
    last_time: int = 0
    update_time: int = 0
    run: Run | None = None
    steers: list[Queued] = field(default_factory=list)
    next_runs: list[Queued] = field(default_factory=list)
    pending_bytes: int = 0

    @property
    def key(self) -> SessionKey:
        """The session's name."""
        return SessionKey(self.namespace, self.session_id)

    @property
    def etag(self) -> str:
        """Opaque tag of the record."""
        return f"r{self.record_revision}"

    def copy(self) -> "SessionState":
        """Returns a copy that can be changed; the queued inputs in it are shared."""
        state = SessionState(*_state_values(self))
        state.steers = self.steers[:]
        state.next_runs = self.next_runs[:]
        if self.run is not None:
            state.run = run = Run(*_run_values(self.run))
            run.activation = Activation(*_activation_values(run.activation))
        return state


def _values(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    # Every command copies a state: this takes a fifth of what dataclasses.replace does.
    return attrgetter(*(one.name for one in fields(kind)))


_state_values = _values(SessionState)
_run_values = _values(Run)
_activation_values = _values(Activation)


@dataclass(slots=True)
class SessionRecord:
    """What a user says of a session.

    Attributes:
        labels: Labels by key.
        metadata_json: A JSON object; empty: none.
    """

    display_name: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    metadata_json: str = ""
    default_agent: str = ""


@dataclass(slots=True, frozen=True)
class Fence:
    """The right to write for a run."""

    session_id: str
    run_id: str
    activation_id: str
    epoch: int


@dataclass(slots=True)
class Content:
    """Content of a message, checked at the door.

    Attributes:
        data: Encoded blocks and metadata, ready to be stored; opaque here.
        size: Size of the blocks in bytes.
        hash: SHA-256 of `data`.
        preview: The first 200 characters.
        has_tool_use: Whether a block asks for a tool.
    """

    data: bytes
    size: int
    hash: bytes
    preview: str = ""
    has_tool_use: bool = False


@dataclass(slots=True, frozen=True)
class Rules:
    """Settings that decisions depend on.

    Attributes:
        default_agent: Agent of runs where neither options nor session name one; may be empty.
        agents: The only names that are allowed; empty: all are.
        max_steers: Pending steers of a session.
        max_next_runs: Pending next runs of a session.
        max_pending_bytes: Pending input of a session, in bytes.
        max_model_steps: Default budget of model steps of a run.
        agent_model_steps: The same for single agents, by name.
        cancel_grace: Default grace, in microseconds.
        sweep_delay: How long the rows of a deleted session stay, in microseconds.
    """

    default_agent: str = ""
    agents: frozenset[str] = frozenset()
    max_steers: int = 64
    max_next_runs: int = 64
    max_pending_bytes: int = 8 * 1024 * 1024
    max_model_steps: int = 20
    agent_model_steps: Mapping[str, int] = field(default_factory=dict)
    cancel_grace: int = 30_000_000
    sweep_delay: int = 60_000_000


class DeltaKind(IntEnum):
    """What block a delta is of."""

    TEXT = 1
    REASONING = 2


@dataclass(slots=True)
class Delta:
    """A piece of a model answer on its way; exactly one of the last three is set.

    Attributes:
        base_revision: What `append_text` extends, or `block_done` closes; 0 with
            `snapshot_text`.
        revision: Of the block after this piece.
    """

    model_stream_id: str
    run_id: str
    activation_id: str
    step: int
    block_index: int
    kind: DeltaKind
    base_revision: int
    revision: int
    append_text: str | None = None
    snapshot_text: str | None = None
    block_done: bool = False
