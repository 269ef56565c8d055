"""What a decision writes besides the hot state: events and rows.

Rows carry records, not encodings; the engine encodes what is stored as bytes.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from runlane_server.core.model import (
    Cancellation,
    Content,
    Failure,
    ParentLink,
    Question,
    RunOptions,
    SessionRecord,
    Usage,
)
from runlane_server.core.words import (
    Author,
    InteractionClose,
    InteractionState,
    Mode,
    NoticeKind,
    Phase,
    PromptKind,
    Role,
    Route,
    StopReason,
    SubmissionFailure,
    SubmissionState,
    TimerKind,
    ToolCallState,
    ToolOutcome,
)


class EventType(IntEnum):
    """Kinds of event; each number is the field number of its body in runlane.v1.Event."""

    SESSION_CREATED = 20
    SESSION_UPDATED = 21
    SESSION_CLOSED = 22
    SESSION_REOPENED = 23
    SESSION_FORKED = 24
    SESSION_COMPACTED = 25
    SESSION_IMPORTED = 26
    SESSION_DELETED = 27
    SUBMISSION_PENDING = 30
    SUBMISSION_MOVED = 31
    SUBMISSION_DELIVERED = 32
    SUBMISSION_FAILED = 33
    SUBMISSION_WITHDRAWN = 34
    RUN_CREATED = 40
    RUN_WAITING = 41
    RUN_CANCELLATION_REQUESTED = 42
    RUN_PAUSE_REQUESTED = 43
    RUN_PAUSED = 44
    RUN_UNPAUSED = 45
    RUN_RECOVERING = 46
    RUN_STALLED = 47
    RUN_ENDING = 48
    RUN_TERMINAL = 49
    ACTIVATION_QUEUED = 50
    ACTIVATION_LEASED = 51
    ACTIVATION_ENDED = 52
    ACTIVATION_ABANDONED = 53
    MESSAGE_APPENDED = 60
    MODEL_STEP_RESERVED = 70
    MODEL_STEP_COMMITTED = 71
    TOOL_CALL_PREPARED = 80
    TOOL_CALL_CLAIMED = 81
    TOOL_CALL_COMMITTED = 82
    TOOL_CALL_OUTCOME_UNKNOWN = 83
    TOOL_CALL_CANCELLED = 84
    INTERACTION_OPENED = 90
    INTERACTION_ANSWERED = 92
    INTERACTION_CLOSED = 93
    CHILD_RUN_STARTED = 110
    CHILD_RUN_FINISHED = 111


@dataclass(slots=True)
class Event:
    """A fact to be appended. `body` has the fields of its kind's body in runlane.v1."""

    type: EventType
    sequence: int
    time: int
    run_id: str = ""
    run_sequence: int = 0
    activation_id: str = ""
    attempt: int = 0
    body: dict[str, Any] = field(default_factory=dict)
    message_number: int = 0


@dataclass(slots=True)
class SessionInserted:
    """A session's record is new. For a fork: where its first messages are.

    `source_*` and `message_count` are set for a fork only; `summary_through` names the
    summary of the source that it takes over, 0 for none. `parent` is set for the session of
    a child run only.
    """

    record: SessionRecord
    create_time: int
    source_session_id: str = ""
    source_run_id: str = ""
    message_count: int = 0
    summary_through: int = 0
    parent: ParentLink | None = None


@dataclass(slots=True)
class SessionUpdated:
    """A session's record changed; None: that part stays."""

    display_name: str | None = None
    metadata_json: str | None = None
    default_agent: str | None = None
    set_labels: dict[str, str] = field(default_factory=dict)
    remove_labels: list[str] = field(default_factory=list)


@dataclass(slots=True)
class SessionDeleted:
    """A session became a tombstone; its other rows are swept later."""

    delete_time: int


@dataclass(slots=True)
class RunInserted:
    """A run is new.

    With `from_submission` the stored options and preview of that queued input are taken;
    else `options` and `preview` are given.
    """

    run_id: str
    submission_id: str
    agent: str
    mode: Mode
    create_time: int
    first_sequence: int
    message_number: int
    request_id: str = ""
    options: RunOptions | None = None
    preview: str = ""
    from_submission: bool = False
    parent: ParentLink | None = None


@dataclass(slots=True)
class RunMoved:
    """A live run went into another phase, or was stalled."""

    run_id: str
    phase: Phase
    stalled: bool


@dataclass(slots=True)
class RunEnded:
    """A run turned TERMINAL.

    The agent, the time it was created and its trace are for who watches: the store has the
    first two, and drops the last.
    """

    run_id: str
    stop_reason: StopReason
    cause: StopReason | None
    end_time: int
    last_sequence: int
    attempt: int
    message_cutoff: int
    digest: bytes
    output_message_number: int
    output_json: str
    failure: Failure | None
    cancellation: Cancellation | None
    usage: Usage
    steps_reserved: int
    steps_committed: int
    tool_calls: int
    summary_through: int = 0
    agent: str = ""
    create_time: int = 0
    trace: str = ""


@dataclass(slots=True)
class SubmissionInserted:
    """An input was queued."""

    submission_id: str
    run_id: str
    mode: Mode
    route: Route
    content: Content
    options: RunOptions
    request_id: str
    create_time: int


@dataclass(slots=True)
class SubmissionMoved:
    """A steer became a next run."""

    submission_id: str
    run_id: str


@dataclass(slots=True)
class SubmissionSettled:
    """A queued input had its end. Delivered, its content is a message's from then on."""

    submission_id: str
    state: SubmissionState
    settle_time: int
    failure: SubmissionFailure | None = None
    message_number: int = 0


@dataclass(slots=True)
class Closer:
    """Stands in for the result of a call that has none; `text` is for the model."""

    tool_call_id: str
    outcome: ToolOutcome
    text: str


@dataclass(slots=True)
class MessageAppended:
    """A message is new.

    Its content is `content`, or that of `closer`, or the stored result of the call that
    `from_call` names by step and ordinal, or else that of the queued submission.

    Attributes:
        call: Step and ordinal of the call that it is the result message of.
    """

    number: int
    run_id: str
    role: Role
    author: Author
    create_time: int
    step: int = 0
    submission_id: str = ""
    model_stream_id: str = ""
    model: str = ""
    content: Content | None = None
    closer: Closer | None = None
    from_call: tuple[int, int] | None = None
    call: tuple[int, int] | None = None


@dataclass(slots=True)
class ToolCallInserted:
    """A model step asked for a call."""

    run_id: str
    step: int
    ordinal: int
    tool_call_id: str
    name: str
    arguments_json: str | None
    create_time: int


@dataclass(slots=True)
class ToolCallMoved:
    """A call got further, or back to PREPARED.

    Attributes:
        result: Stored until its message can be appended; None: nothing is stored.
    """

    run_id: str
    step: int
    ordinal: int
    state: ToolCallState
    idempotent: bool
    outcome: ToolOutcome | None
    time: int
    result: Content | None = None


@dataclass(slots=True)
class ToolCallGiven:
    """A child run will answer a call."""

    run_id: str
    step: int
    ordinal: int
    child_run_id: str


@dataclass(slots=True)
class SummaryInserted:
    """A summary covers the messages up to a number."""

    through: int
    text: str
    model: str
    create_time: int


@dataclass(slots=True)
class NoticePut:
    """Something is to be told to another session of the namespace.

    Attributes:
        session_id: The one that is told.
        cause: Names what it is about; the same notice again is the same.
    """

    session_id: str
    kind: NoticeKind
    cause: str


@dataclass(slots=True)
class NoticeTaken:
    """The session has applied what it was told."""

    kind: NoticeKind
    cause: str


@dataclass(slots=True)
class ProxyInserted:
    """A question of a child run shows on its parent; the prompt is that of the question."""

    interaction_id: str
    run_id: str
    step: int
    question: Question
    create_time: int


@dataclass(slots=True)
class ProxySettled:
    """The question of a proxy was answered or closed, and so is the proxy."""

    interaction_id: str
    question: Question
    settle_time: int


@dataclass(slots=True)
class InteractionInserted:
    """An interaction was opened. `prompt` is encoded; opaque here.

    Attributes:
        step: The newest committed model step.
    """

    interaction_id: str
    run_id: str
    step: int
    version: int
    kind: PromptKind
    prompt: bytes
    expire_time: int
    create_time: int


@dataclass(slots=True)
class InteractionSettled:
    """An interaction was answered or closed. `answer` is encoded; opaque here."""

    interaction_id: str
    state: InteractionState
    settle_time: int
    answer: bytes = b""
    answer_hash: bytes = b""
    reason: InteractionClose | None = None


@dataclass(slots=True)
class ActivationQueued:
    """An activation waits for an executor, from `not_before` on."""

    activation_id: str
    run_id: str
    agent: str
    queue_time: int
    not_before: int


@dataclass(slots=True)
class ActivationDequeued:
    """An activation waits no longer."""

    activation_id: str


@dataclass(slots=True)
class LeasePut:
    """A lease is new, or was renewed by a commit."""

    activation_id: str
    run_id: str
    epoch: int
    agent: str
    executor_id: str
    duration: int
    expire_time: int
    confirmed: bool


@dataclass(slots=True)
class LeaseDropped:
    """A lease is gone. With `expired_at` only if it had expired at that time in the store."""

    activation_id: str
    expired_at: int | None = None


@dataclass(slots=True)
class TimerSet:
    """A durable timer is set; None: it is cleared."""

    kind: TimerKind
    due_time: int | None


Row = (
    SessionInserted
    | SessionUpdated
    | SessionDeleted
    | RunInserted
    | RunMoved
    | RunEnded
    | SubmissionInserted
    | SubmissionMoved
    | SubmissionSettled
    | MessageAppended
    | ToolCallInserted
    | ToolCallMoved
    | ToolCallGiven
    | SummaryInserted
    | NoticePut
    | NoticeTaken
    | InteractionInserted
    | InteractionSettled
    | ProxyInserted
    | ProxySettled
    | ActivationQueued
    | ActivationDequeued
    | LeasePut
    | LeaseDropped
    | TimerSet
)
