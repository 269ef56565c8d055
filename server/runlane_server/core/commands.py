"""What can be asked of a session, and what is answered.

Commands are what `machine.decide` takes; answers hold ids and states only, since
they are stored under their request_id and outlive their session.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from runlane_server.core.archives import Archive
from runlane_server.core.model import (
    Content,
    Failure,
    Fence,
    RunOptions,
    SessionRecord,
    Usage,
)
from runlane_server.core.words import (
    ChildrenMode,
    InteractionClose,
    InteractionState,
    Mode,
    NoticeKind,
    OnMiss,
    PromptKind,
    Role,
    StopReason,
    ToolOutcome,
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
class ImportSession:
    """Makes a session of an archive; its caller has checked that."""

    archive: Archive


@dataclass(slots=True)
class ForkSession:
    """Makes a session from the prefix that ended with a terminal run of another.

    The source's state is changed only by its session.forked.

    Attributes:
        source_run_id: The terminal run.
        message_count: Its cutoff.
        digest: The digest of the prefix.
        summary_through: Names the summary that was in force there; 0: none.
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
    summary_through: int = 0


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


@dataclass(slots=True)
class StartChildRun:
    """A call is to be answered by a run of another agent."""

    tool_call_id: str
    content: Content
    record: SessionRecord
    options: RunOptions | None = None


@dataclass(slots=True)
class RecordCompaction:
    """A summary of the first messages.

    Attributes:
        next_role: Of the first message that it does not cover, as it was read from the store;
            None: it was not there.
    """

    through: int
    text: str
    usage: Usage
    model: str = ""
    next_role: Role | None = None


Operation = (
    ReserveModelStep
    | CommitModelStep
    | ClaimToolCalls
    | CommitToolResults
    | StartChildRun
    | RecordCompaction
)


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
class SuspendForChildren:
    """Waits for child runs; `run_ids` empty: for all that live."""

    mode: ChildrenMode
    run_ids: tuple[str, ...] = ()


@dataclass(slots=True)
class Release:
    """Gives the run back to the queue."""

    reason: str = ""


@dataclass(slots=True)
class CommitRun:
    """Facts of an executor, under its fence."""

    fence: Fence
    operations: list[Operation] = field(default_factory=list)
    outcome: Finish | Suspend | SuspendForChildren | Release | None = None
    lease_duration: int = 30_000_000


@dataclass(slots=True)
class TakeNotice:
    """Applies CANCEL or DELETE to a child's session, or takes a notice that is void."""

    kind: NoticeKind
    cause: str


@dataclass(slots=True)
class TakeChild:
    """Tells a run what has become of its child run: questions, and the end.

    Attributes:
        run_id: The child run.
        settled: What became of questions that proxies of the parent show, by interaction.
        outcome: Of the call that the child run answers; None: it had not ended when read.
        stop_reason: Of the child run that has ended.
        result: What the call gets; None: the server's own words for the outcome.
    """

    run_id: str
    settled: dict[str, tuple[InteractionState, InteractionClose | None]] = field(
        default_factory=dict
    )
    outcome: ToolOutcome | None = None
    stop_reason: StopReason = StopReason.CANCELLED
    result: Content | None = None
