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
    InteractionState,
    Mode,
    OnMiss,
    Phase,
    Position,
    PromptKind,
    Route,
    RunFailure,
    RunOptions,
    SessionRecord,
    SessionStatus,
    StopReason,
    SubmissionFailure,
    SubmissionState,
    ToolCall,
    ToolOutcome,
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
class PauseRun:
    """Stops the live run at a boundary. NotLive where `run_id` is another."""

    run_id: str = ""


@dataclass(slots=True)
class UnpauseRun:
    """Takes a pause, or the request for one, back. NotLive where `run_id` is another."""

    run_id: str = ""


@dataclass(slots=True)
class Verdict:
    """What a person says of a tool call; `result`: what the model gets of a rejection."""

    tool_call_id: str
    approve: bool
    result: Content | None = None


@dataclass(slots=True)
class AnswerInteraction:
    """Answers the interaction that the live run waits for. NotOpen where it is another.

    Attributes:
        data: The encoded answer; opaque here.
        hash: SHA-256 of our own encoding of it: the same answer has the same.
        verdicts: Of PERMISSION, one for each call.
        outcome: Of the call that the answer is the result of.
        result: That result; None where there is no call.
    """

    run_id: str
    interaction_id: str
    version: int
    kind: PromptKind
    data: bytes
    hash: bytes
    verdicts: tuple[Verdict, ...] = ()
    outcome: ToolOutcome = ToolOutcome.OK
    result: Content | None = None


@dataclass(slots=True)
class RestoreRun:
    """Brings back a run whose executor was lost. NotLive where the run is not live."""

    run_id: str
    expected_activation_id: str = ""
    force: bool = False


@dataclass(slots=True)
class SettleRun:
    """Ends a live run by hand, FAILED or CANCELLED. NotLive where it is not live."""

    run_id: str
    stop_reason: StopReason = StopReason.FAILED
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


@dataclass(slots=True)
class ClaimToolCalls:
    """Calls that are about to be run."""

    tool_call_ids: tuple[str, ...]
    idempotent: bool = False


@dataclass(slots=True)
class ToolResult:
    """What became of a call."""

    tool_call_id: str
    outcome: ToolOutcome
    content: Content


@dataclass(slots=True)
class CommitToolResults:
    """Results of calls."""

    results: tuple[ToolResult, ...]


Operation = ReserveModelStep | CommitModelStep | ClaimToolCalls | CommitToolResults


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
class Suspend:
    """Waits for an answer.

    Attributes:
        prompt: The encoded question; opaque here.
        tool_call_ids: The open calls that it is about.
        expire_duration: Microseconds; 0: the run's interaction_timeout.
    """

    kind: PromptKind
    prompt: bytes
    tool_call_ids: tuple[str, ...] = ()
    expire_duration: int = 0


@dataclass(slots=True)
class Release:
    """Gives the run back to the queue."""

    reason: str = ""


@dataclass(slots=True)
class CommitRun:
    """Facts of an executor, under its fence."""

    fence: Fence
    operations: list[Operation] = field(default_factory=list)
    outcome: Finish | Suspend | Release | None = None
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
    | PauseRun
    | UnpauseRun
    | AnswerInteraction
    | RestoreRun
    | SettleRun
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
    cause: StopReason | None = None
    tool_calls: int = 0
    deadline_time: int = 0
    interaction_id: str = ""
    pause_requested: bool = False
    stalled: bool = False
    recoveries: int = 0


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
    """

    granted: bool = False
    paused: bool = False
    run_ended: bool = False
    step: int = 0
    model_stream_id: str = ""
    message_number: int = 0
    calls: list[ToolCall] = field(default_factory=list)
    batch_closed: bool = False


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


Answer = (
    SessionAnswer
    | SubmitAnswer
    | RunAnswer
    | PauseAnswer
    | InteractionAnswered
    | RestoreAnswer
    | ForkAnswer
    | LeaseAnswer
    | CommitAnswer
    | DrainAnswer
)
