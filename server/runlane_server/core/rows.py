"""What a decision writes besides the hot state: events and rows.

Rows carry records, not encodings; the engine encodes what is stored as bytes.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from runlane_server.core.model import (
    Author,
    Cancellation,
    Content,
    Failure,
    Mode,
    Role,
    Route,
    RunOptions,
    SessionRecord,
    StopReason,
    SubmissionFailure,
    SubmissionState,
    TimerKind,
    Usage,
)


class EventType(IntEnum):
    """Kinds of event; each number is the field number of its body in runlane.v1.Event."""

    SESSION_CREATED = 20
    SESSION_UPDATED = 21
    SESSION_CLOSED = 22
    SESSION_REOPENED = 23
    SESSION_FORKED = 24
    SESSION_DELETED = 27
    SUBMISSION_PENDING = 30
    SUBMISSION_MOVED = 31
    SUBMISSION_DELIVERED = 32
    SUBMISSION_FAILED = 33
    SUBMISSION_WITHDRAWN = 34
    RUN_CREATED = 40
    RUN_CANCELLATION_REQUESTED = 42
    RUN_TERMINAL = 49
    ACTIVATION_QUEUED = 50
    ACTIVATION_LEASED = 51
    ACTIVATION_ENDED = 52
    ACTIVATION_ABANDONED = 53
    MESSAGE_APPENDED = 60
    MODEL_STEP_RESERVED = 70
    MODEL_STEP_COMMITTED = 71


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

    `source_*` and `message_count` are set for a fork only; `source_digest` is the
    digest of the prefix.
    """

    record: SessionRecord
    create_time: int
    source_session_id: str = ""
    source_run_id: str = ""
    message_count: int = 0


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


@dataclass(slots=True)
class RunEnded:
    """A run turned TERMINAL."""

    run_id: str
    stop_reason: StopReason
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
class MessageAppended:
    """A message is new; its content is given, or is that of a queued submission."""

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


@dataclass(slots=True)
class ActivationQueued:
    """An activation waits for an executor."""

    activation_id: str
    run_id: str
    agent: str
    queue_time: int


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
    | RunEnded
    | SubmissionInserted
    | SubmissionMoved
    | SubmissionSettled
    | MessageAppended
    | ActivationQueued
    | ActivationDequeued
    | LeasePut
    | LeaseDropped
    | TimerSet
)
