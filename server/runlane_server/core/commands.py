"""What can be asked of a session, and what is answered.

Commands are what `machine.decide` takes; answers hold ids and states only, since
they are stored under their request_id and outlive their session.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from runlane_server.core.model import (
    Activation,
    Cancellation,
    Content,
    Failure,
    Fence,
    Mode,
    OnMiss,
    Phase,
    Position,
    Route,
    RunFailure,
    RunOptions,
    SessionRecord,
    SessionStatus,
    StopReason,
    SubmissionFailure,
    SubmissionState,
    Usage,
)


@dataclass(slots=True)
class CreateSession:
    """Creates a session; `return_existing`: or returns the live one of that id."""

    record: SessionRecord
    return_existing: bool = False


@dataclass(slots=True)
class UpdateSession:
    """Changes the record; None: that part stays. `etag` empty: whatever it is."""

    display_name: str | None = None
    metadata_json: str | None = None
    default_agent: str | None = None
    set_labels: dict[str, str] = field(default_factory=dict)
    remove_labels: list[str] = field(default_factory=list)
    etag: str = ""


@dataclass(slots=True)
class DeleteSession:
    """Deletes the session; `force`: also while a run is live."""

    force: bool = False


@dataclass(slots=True)
class CloseSession:
    """Closes the session; `cancel_run`: and interrupts the live run."""

    cancel_run: bool = False


@dataclass(slots=True)
class ReopenSession:
    """Opens the session again."""


@dataclass(slots=True)
class Submit:
    """Gives the session an input."""

    content: Content
    mode: Mode = Mode.START
    target_run_id: str = ""
    on_miss: OnMiss = OnMiss.FAIL
    options: RunOptions | None = None
    create_session: SessionRecord | None = None
    expected_revision: int | None = None


@dataclass(slots=True)
class WithdrawSubmission:
    """Takes back a pending input. NotPending where it is not."""

    submission_id: str


@dataclass(slots=True)
class InterruptRun:
    """Asks for the live run to be cancelled. NotLive where `run_id` is another."""

    run_id: str = ""
    reason: str = ""


@dataclass(slots=True)
class ForkSession:
    """Makes a session from the prefix that ended with a terminal run of another.

    The source's state is changed only by its session.forked.

    Attributes:
        source_run_id: The terminal run.
        message_count: Its cutoff.
        digest: The digest of the prefix.
        record: What the new session says of itself.
        input: A first input, with its options.
    """

    source_session_id: str
    source_run_id: str
    message_count: int
    digest: bytes
    record: SessionRecord
    input: Content | None = None
    options: RunOptions | None = None


@dataclass(slots=True)
class LeaseActivation:
    """Gives a queued activation to an executor. STALE_ACTIVATION where it is not queued."""

    activation_id: str
    executor_id: str
    lease_duration: int


@dataclass(slots=True)
class ReserveModelStep:
    """Asks for a model step."""


@dataclass(slots=True)
class CommitModelStep:
    """The answer to a model step."""

    content: Content
    usage: Usage
    model: str = ""
    finish_reason: str = ""


Operation = ReserveModelStep | CommitModelStep


class FinishKind(IntEnum):
    """How an executor ends a run."""

    COMPLETED = 1
    FAILED = 2
    CANCELLED = 3


@dataclass(slots=True)
class Finish:
    """Ends the run; `failure` is set for FAILED alone."""

    kind: FinishKind
    output_json: str = ""
    failure: Failure | None = None


@dataclass(slots=True)
class Release:
    """Gives the run back to the queue."""

    reason: str = ""


@dataclass(slots=True)
class CommitRun:
    """Facts of an executor, under its fence."""

    fence: Fence
    operations: list[Operation] = field(default_factory=list)
    outcome: Finish | Release | None = None
    lease_duration: int = 30_000_000


@dataclass(slots=True)
class SettleDue:
    """Decides what is due and nothing else."""


AnyCommand = (
    CreateSession
    | UpdateSession
    | DeleteSession
    | CloseSession
    | ReopenSession
    | Submit
    | WithdrawSubmission
    | InterruptRun
    | LeaseActivation
    | CommitRun
    | SettleDue
)


@dataclass(slots=True)
class RunFacts:
    """Ids and states of a run, as an answer holds them."""

    run_id: str
    session_id: str
    submission_id: str
    agent: str
    phase: Phase
    attempt: int
    position: Position
    create_time: int
    usage: Usage
    steps_reserved: int
    steps_committed: int
    activation: Activation | None = None
    cancellation: Cancellation | None = None
    stop_reason: StopReason | None = None
    failure_reason: RunFailure | None = None
    failure_retryable: bool = False
    output_message_number: int = 0
    message_cutoff: int = 0
    end_time: int = 0


@dataclass(slots=True)
class SubmissionFacts:
    """Ids and states of a submission, as an answer holds them."""

    submission_id: str
    session_id: str
    run_id: str
    mode: Mode
    route: Route
    state: SubmissionState
    create_time: int
    settle_time: int = 0
    message_number: int = 0
    failure: SubmissionFailure | None = None
    request_id: str = ""


@dataclass(slots=True)
class SessionFacts:
    """Ids and states of a session, as an answer holds them."""

    session_id: str
    status: SessionStatus
    revision: int
    etag: str
    message_count: int
    current_run_id: str
    create_time: int
    update_time: int


@dataclass(slots=True)
class SessionAnswer:
    """Answer of the commands on the record of a session."""

    sequence: int
    session: SessionFacts
    created: bool = False


@dataclass(slots=True)
class SubmitAnswer:
    """Answer of Submit and WithdrawSubmission."""

    sequence: int
    submission: SubmissionFacts
    session_created: bool = False


@dataclass(slots=True)
class RunAnswer:
    """Answer of InterruptRun."""

    sequence: int
    run: RunFacts


@dataclass(slots=True)
class ForkAnswer:
    """Answer of ForkSession; `sequence` is the new session's."""

    sequence: int
    session: SessionFacts
    source_session_id: str
    source_run_id: str
    message_count: int
    digest: bytes
    submission: SubmissionFacts | None = None


@dataclass(slots=True)
class LeaseAnswer:
    """Answer of PollActivation."""

    sequence: int
    fence: Fence
    lease_expire_time: int


@dataclass(slots=True)
class OperationResult:
    """What became of an operation; zero: does not apply.

    Attributes:
        granted: A reservation: whether the step was granted.
        run_ended: A reservation: whether it ended the run instead.
        step: The step that was granted.
        model_stream_id: Names the deltas of its request.
        message_number: A committed step: the number of its message.
    """

    granted: bool = False
    run_ended: bool = False
    step: int = 0
    model_stream_id: str = ""
    message_number: int = 0


@dataclass(slots=True)
class CommitAnswer:
    """Answer of Commit.

    Attributes:
        delivered: Numbers of the messages appended that the executor has not written.
    """

    sequence: int
    run: RunFacts
    results: list[OperationResult]
    outcome_applied: bool
    delivered: list[int]
    lease_expire_time: int


@dataclass(slots=True)
class DrainAnswer:
    """Answer of DrainExecutor."""

    leased_count: int
    sequence: int = 0


Answer = (
    SessionAnswer | SubmitAnswer | RunAnswer | ForkAnswer | LeaseAnswer | CommitAnswer | DrainAnswer
)
