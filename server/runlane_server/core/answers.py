"""What is answered: ids and states only.

Answers are stored under their request_id and outlive their session.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from runlane_server.core.model import (
    Activation,
    Cancellation,
    ChildrenWait,
    Fence,
    ParentLink,
    ToolCall,
    Usage,
)
from runlane_server.core.words import (
    InteractionState,
    Mode,
    Phase,
    Position,
    Route,
    RunFailure,
    SessionStatus,
    StopReason,
    SubmissionFailure,
    SubmissionState,
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
    cause: StopReason | None = None
    tool_calls: int = 0
    deadline_time: int = 0
    interaction_id: str = ""
    pause_requested: bool = False
    stalled: bool = False
    recoveries: int = 0
    parent: ParentLink | None = None
    children_wait: ChildrenWait | None = None
    ending_cause: StopReason | None = None
    live_children: int = 0


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
    parent_run_id: str = ""
    compacted_through: int = 0


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
    """Answer of InterruptRun and SettleRun."""

    sequence: int
    run: RunFacts


class PauseReceipt(IntEnum):
    """What became of a request to pause or unpause."""

    REQUESTED = 1
    PAUSED = 2
    RESUMED = 3
    UNCHANGED = 4


@dataclass(slots=True)
class PauseAnswer:
    """Answer of PauseRun and UnpauseRun."""

    sequence: int
    receipt: PauseReceipt
    run: RunFacts


@dataclass(slots=True)
class InteractionFacts:
    """Ids and states of an interaction, as an answer holds them."""

    interaction_id: str
    run_id: str
    session_id: str
    version: int
    state: InteractionState
    settle_time: int


@dataclass(slots=True)
class InteractionAnswered:
    """Answer of AnswerInteraction and CompleteExternal."""

    sequence: int
    interaction: InteractionFacts
    run: RunFacts


class RestoreOutcome(IntEnum):
    """What became of RestoreRun."""

    ATTACHED = 1
    STILL_LEASED = 2
    RECOVERY_QUEUED = 3
    SETTLED = 4


@dataclass(slots=True)
class RestoreAnswer:
    """Answer of RestoreRun."""

    sequence: int
    outcome: RestoreOutcome
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
class ImportAnswer:
    """Answer of ImportSession; `digest` is that of the content."""

    sequence: int
    session: SessionFacts
    run_count: int
    digest: bytes


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
        paused: A reservation: whether a request to pause was taken instead.
        run_ended: A reservation: whether it ended the run instead.
        step: The step that was granted.
        model_stream_id: Names the deltas of its request.
        message_number: A committed step: the number of its message.
        calls: A committed step: the batch that it opened.
        batch_closed: Results: whether every call has its result message.
        child_run_id: Of a child run.
        child_session_id: Of a child run.
        existing: Whether that was there already.
    """

    granted: bool = False
    paused: bool = False
    run_ended: bool = False
    step: int = 0
    model_stream_id: str = ""
    message_number: int = 0
    calls: list[ToolCall] = field(default_factory=list)
    batch_closed: bool = False
    child_run_id: str = ""
    child_session_id: str = ""
    existing: bool = False


@dataclass(slots=True)
class CommitAnswer:
    """Answer of Commit.

    Attributes:
        interaction_id: What a suspend opened; empty: nothing.
        delivered: Numbers of the messages appended that the executor has not written.
    """

    sequence: int
    run: RunFacts
    results: list[OperationResult]
    outcome_applied: bool
    delivered: list[int]
    lease_expire_time: int
    interaction_id: str = ""


@dataclass(slots=True)
class DrainAnswer:
    """Answer of DrainExecutor."""

    leased_count: int
    sequence: int = 0


@dataclass(slots=True)
class NoticeAnswer:
    """Answer of a notice; nobody but the server asks, so it is stored nowhere."""

    sequence: int = 0


Answer = (
    SessionAnswer
    | SubmitAnswer
    | RunAnswer
    | PauseAnswer
    | InteractionAnswered
    | RestoreAnswer
    | ForkAnswer
    | ImportAnswer
    | LeaseAnswer
    | CommitAnswer
    | DrainAnswer
    | NoticeAnswer
)
