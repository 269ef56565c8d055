"""The words of the domain as records.

`SessionState` is the *hot state*: all that a decision needs, and no message or
input text. Enum numbers equal those of the protos (`runlane.v1`); a test holds
them together. Times are integers, microseconds since 1970 UTC; spans too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from runlane_server.core.words import (
    ActivationKind,
    ActivationState,
    ChildrenMode,
    DeltaKind,
    Mode,
    OnMiss,
    Phase,
    Position,
    PromptKind,
    Rank,
    Recovery,
    Route,
    RunFailure,
    SessionStatus,
    StopReason,
    ToolCallState,
    ToolErrorPolicy,
    ToolOutcome,
)

_TOTAL_MAX = 2**53 - 1


@dataclass(slots=True, frozen=True)
class SessionKey:
    """Names a session: its namespace and its id there."""

    namespace: str
    session_id: str


@dataclass(slots=True)
class Usage:
    """What a run or a step of it has used.

    Attributes:
        compaction_input_tokens: Read for summaries; these two count against no budget.
        compaction_output_tokens: Written as summaries.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd_micros: int = 0
    compaction_input_tokens: int = 0
    compaction_output_tokens: int = 0

    def plus(self, other: "Usage") -> "Usage":
        """Returns the sum of both; a number stays below 2^53, which every language can hold."""
        return Usage(
            *(
                min(one + more, _TOTAL_MAX)
                for one, more in zip(_usage_values(self), _usage_values(other), strict=True)
            )
        )


@dataclass(slots=True)
class RunLimits:
    """Budgets of a run; spans in microseconds. 0: no limit, or in a request the default.

    Attributes:
        max_duration: From creation to the deadline.
        interaction_timeout: Of an interaction without an expiry of its own.
        start_timeout: Until the first executor.
    """

    max_model_steps: int = 0
    max_tool_calls: int = 0
    max_total_tokens: int = 0
    max_cost_usd_micros: int = 0
    max_duration: int = 0
    interaction_timeout: int = 0
    start_timeout: int = 0


@dataclass(slots=True)
class RunOptions:
    """What a run is started with. In a resolved one every field is set.

    Attributes:
        agent: The name that executors poll for; empty in a request: the default.
        model: The model to use; empty: the agent's own.
        limits: Budgets.
        tools: Names of the tools that may be used; empty: all.
        tool_timeout: Microseconds; 0: the executor's own.
        max_recoveries: Recoveries without progress; None in a request: the default.
        cancel_grace: How long an executor may take to settle a cancelled run, in
            microseconds; None in a request: the default.
        request_options_json: A JSON object for the model; may be empty.
    """

    agent: str = ""
    model: str = ""
    limits: RunLimits = field(default_factory=RunLimits)
    tools: tuple[str, ...] = ()
    tool_timeout: int = 0
    tool_error_policy: ToolErrorPolicy = ToolErrorPolicy.RETURN_TO_MODEL
    recovery: Recovery = Recovery.AUTO
    max_recoveries: int | None = None
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
    kind: ActivationKind = ActivationKind.START
    state: ActivationState = ActivationState.QUEUED
    executor_id: str = ""


@dataclass(slots=True)
class ToolUse:
    """A tool call as a model step asks for it; its arguments stay in the content.

    Attributes:
        arguments_json: None where the arguments are malformed.
    """

    tool_call_id: str
    name: str
    arguments_json: str | None


@dataclass(slots=True)
class ToolCall:
    """A call of the open batch.

    Attributes:
        ordinal: Place in the batch, from 1.
        outcome: Of COMMITTED.
        result_hash: SHA-256 of the stored result of COMMITTED; empty: it is a closer's.
        appended: Whether its result message is in the history.
        child_run_id: The child run that answers it; empty: none.
        child_session_id: The session of that.
    """

    tool_call_id: str
    name: str
    ordinal: int
    state: ToolCallState = ToolCallState.PREPARED
    idempotent: bool = False
    outcome: ToolOutcome | None = None
    result_hash: bytes = b""
    appended: bool = False
    child_run_id: str = ""
    child_session_id: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether it has a result that is no error."""
        return self.outcome is ToolOutcome.OK


@dataclass(slots=True)
class Wait:
    """The interaction that a run waits for.

    Attributes:
        tool_call_ids: Of PERMISSION, the calls that ask; else the call that the answer is
            the result of, or none.
        expire_time: 0: never.
    """

    interaction_id: str
    version: int
    kind: PromptKind
    tool_call_ids: tuple[str, ...] = ()
    expire_time: int = 0


@dataclass(slots=True, frozen=True)
class ParentLink:
    """Where the run of a session comes from.

    Attributes:
        depth: Parents above it, from 1.
        deadline_time: Of the parent; 0: none.
    """

    session_id: str
    run_id: str
    tool_call_id: str
    depth: int
    deadline_time: int = 0


@dataclass(slots=True, frozen=True)
class Child:
    """A child run that lives, as far as its parent knows."""

    run_id: str
    session_id: str
    tool_call_id: str


@dataclass(slots=True, frozen=True)
class Question:
    """An open interaction: who asks, and which version is to be answered."""

    session_id: str
    run_id: str
    interaction_id: str
    version: int


@dataclass(slots=True, frozen=True)
class Proxy:
    """A question of a child run, or of one below it, as it shows on the parent.

    Attributes:
        interaction_id: Of the proxy itself.
        child_run_id: The child that it came by.
        question: The one that decides.
    """

    interaction_id: str
    child_run_id: str
    question: Question


@dataclass(slots=True, frozen=True)
class ChildrenWait:
    """The child runs that a run waits for."""

    mode: ChildrenMode
    run_ids: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Ending:
    """What a run ends with once its child runs have ended.

    Attributes:
        phase: The one that it keeps until then.
        cause: Where `stop_reason` is OUTCOME_UNKNOWN.
    """

    phase: Phase
    stop_reason: StopReason
    cause: StopReason | None = None
    failure: Failure | None = None


@dataclass(slots=True)
class Run:
    """The live run of a session.

    Attributes:
        attempt: Epoch of the newest activation.
        activation: None while WAITING, PAUSED or ending.
        recoveries: Since its last progress.
        not_before: Of a queued activation in back-off; else 0.
        deadline_time: 0: none.
        start_expire_time: Until the first lease; 0: none.
        children: Child runs that live.
        children_started: How many there ever were.
        proxies: Their open questions.
        ending: Its end is decided, and waits for the last child's.
        input_number: Of the message that is its first input.
        steer_number: Of its latest steer; 0: none.
        trace: The W3C traceparent of the call that gave its input; empty: none.
    """

    run_id: str
    submission_id: str
    agent: str
    create_time: int
    limits: RunLimits
    cancel_grace: int
    tool_error_policy: ToolErrorPolicy
    recovery: Recovery
    max_recoveries: int
    attempt: int
    activation: Activation | None
    position: Position = Position.BEFORE_MODEL
    run_sequence: int = 0
    steps_reserved: int = 0
    steps_committed: int = 0
    model_stream_id: str = ""
    output_message_number: int = 0
    usage: Usage = field(default_factory=Usage)
    cancellation: Cancellation | None = None
    pause_requested: bool = False
    paused: bool = False
    wait: Wait | None = None
    calls: list[ToolCall] = field(default_factory=list)
    tool_calls: int = 0
    recoveries: int = 0
    not_before: int = 0
    deadline_time: int = 0
    start_expire_time: int = 0
    children: tuple[Child, ...] = ()
    children_started: int = 0
    children_wait: ChildrenWait | None = None
    proxies: tuple[Proxy, ...] = ()
    ending: Ending | None = None
    input_number: int = 0
    steer_number: int = 0
    trace: str = ""

    @property
    def phase(self) -> Phase:
        """Whether somebody may work on it."""
        if self.ending is not None:
            return self.ending.phase
        if self.wait is not None or self.children_wait is not None:
            return Phase.WAITING
        return Phase.PAUSED if self.paused else Phase.ACTIVE

    @property
    def claims(self) -> bool:
        """Whether a call is claimed that must not be run again."""
        return any(
            call.state is ToolCallState.CLAIMED and not call.idempotent for call in self.calls
        )

    @property
    def steps_left(self) -> bool:
        """Whether its budgets leave another model step."""
        limits, usage = self.limits, self.usage
        tokens = usage.input_tokens + usage.output_tokens
        return (
            self.steps_reserved < limits.max_model_steps
            and not 0 < limits.max_total_tokens <= tokens
            and not 0 < limits.max_cost_usd_micros <= usage.cost_usd_micros
        )

    @property
    def reserved_step(self) -> int:
        """The step that is reserved and not committed; 0: none."""
        return self.steps_reserved if self.steps_reserved > self.steps_committed else 0


@dataclass(slots=True)
class Queued:
    """A pending input, without its text; `trace` as a run has it."""

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
    trace: str = ""


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
        parent: Of the session of a child run.
        compacted_through: Number of the last message that the newest summary covers; 0: none.
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
    parent: ParentLink | None = None
    compacted_through: int = 0

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
            if run.activation is not None:
                run.activation = Activation(*_activation_values(run.activation))
            run.calls = [ToolCall(*_call_values(call)) for call in run.calls]
        return state


def _values(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    # Every command copies a state: this takes a fifth of what dataclasses.replace does.
    return attrgetter(*(one.name for one in fields(kind)))


_state_values = _values(SessionState)
_usage_values = _values(Usage)
_run_values = _values(Run)
_activation_values = _values(Activation)
_call_values = _values(ToolCall)


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
        tool_uses: The tool calls that it asks for.
    """

    data: bytes
    size: int
    hash: bytes
    preview: str = ""
    tool_uses: tuple[ToolUse, ...] = ()


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
        max_recoveries: Default of recoveries without progress.
        unconfirmed_lease: How long a lease lasts that nothing was heard on, in microseconds.
        backoff_first: Before the first recovery, in microseconds; doubled for each next one.
        backoff_max: The longest back-off, in microseconds.
        sweep_delay: How long the rows of a deleted session stay, in microseconds.
        max_child_depth: Parents above a child run.
        max_children: Live child runs of a run.
        max_proxies: Questions of child runs that show on a run; others show in the inbox
            alone, until there is room.
    """

    default_agent: str = ""
    agents: frozenset[str] = frozenset()
    max_steers: int = 64
    max_next_runs: int = 64
    max_pending_bytes: int = 8 * 1024 * 1024
    max_model_steps: int = 20
    agent_model_steps: Mapping[str, int] = field(default_factory=dict)
    cancel_grace: int = 30_000_000
    max_recoveries: int = 3
    unconfirmed_lease: int = 10_000_000
    backoff_first: int = 1_000_000
    backoff_max: int = 60_000_000
    sweep_delay: int = 60_000_000
    max_child_depth: int = 8
    max_children: int = 64
    max_proxies: int = 256


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
