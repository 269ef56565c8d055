"""What an event stream yields."""

from datetime import datetime
from typing import TypeAlias

from runlane._content import Message, Record
from runlane._enums import (
    ActivationEnd,
    ActivationKind,
    Command,
    DeltaKind,
    InteractionCloseReason,
    MessageAuthor,
    MessageRole,
    RunEventKind,
    RunFailureReason,
    RunPhase,
    SessionEventKind,
    StopReason,
    SubmissionEventKind,
    SubmissionFailure,
    SubmissionState,
    SubmitMode,
    SubmitRoute,
    ToolOutcome,
)
from runlane._interactions import ProxySource
from runlane._run_models import Activation, ChildrenWait, ParentRun, Usage


class Event(Record):
    """A durable fact.

    Attributes:
        sequence: Place in the session's order, from 1 without gaps.
        session_id: The session.
        time: When it was committed.
        run_id: The run that it is about; of a pending next run a reserved id; empty where
            it is about no run.
        run_sequence: Place among the events of its run; for display.
        activation_id: The activation that was current.
        attempt: The attempt that was current.
        actor: Who caused it: `client`, `client:` and a name, `executor:` and its id, or
            `server`.
        request_id: The request id of the call that caused it.
        may_skip: Whether a reader that does not know its kind may skip it.
    """

    sequence: int
    session_id: str
    time: datetime | None
    run_id: str
    run_sequence: int
    activation_id: str
    attempt: int
    actor: str
    request_id: str
    may_skip: bool


class SessionEvent(Event):
    """A fact about a session.

    Attributes:
        kind: What happened.
        revision: The revision after a change of the record.
        message_count: Messages that a new session, a fork or an import began with.
        source_session_id: Of a fork, the session that was forked; of an import, what its
            archive calls its session.
        source_run_id: Of a fork, the run at whose end it was forked.
        fork_session_id: Of a fork, the new session.
        parent_run_id: Of a new session of a child run, the run that started it.
        compacted_through: Of session.compacted: number of the last message that is covered.
        usage: Of session.compacted: what the summary took.
        model: Of session.compacted: the model that wrote it.
        run_count: Of an import, the runs that it began with.
        content_digest: Of an import, SHA-256 of what it took over, in hex.
    """

    kind: SessionEventKind
    revision: int | None = None
    message_count: int | None = None
    source_session_id: str = ""
    source_run_id: str = ""
    fork_session_id: str = ""
    parent_run_id: str | None = None
    compacted_through: int | None = None
    usage: Usage | None = None
    model: str = ""
    run_count: int | None = None
    content_digest: str = ""


class SubmissionEvent(Event):
    """A fact about an input that was queued.

    Attributes:
        kind: What happened.
        submission_id: The input.
        state: How far it has come by this.
        mode: What was asked.
        route: What was done.
        reason: Why it failed.
        message_number: Number of its message, where it was delivered.
        from_run_id: The run that it missed, where it moved.
    """

    kind: SubmissionEventKind
    submission_id: str
    state: SubmissionState
    mode: SubmitMode
    route: SubmitRoute
    reason: SubmissionFailure | None = None
    message_number: int | None = None
    from_run_id: str = ""


class RunEvent(Event):
    """A fact about a run; the fields that its kind does not have are unset.

    Attributes:
        kind: What happened.
        agent: Of run.created and activation.queued: the name that executors poll for.
        submission_id: Of run.created and message.appended: the submission.
        replaced: Of run.cancellation_requested: replaced rather than interrupted.
        parent: Of run.created, where it is a child run: where it comes from.
        children: Of run.waiting, where it waits for child runs: which.
        stop_reason: Of run.terminal and child_run.finished: why it ended; of run.ending: what
            it will end with.
        cause: Of run.terminal and run.ending: what ended it, where its outcome is unknown.
        failure_reason: Of run.terminal: what kind of failure.
        output_message_number: Of run.terminal: number of its answer.
        message_cutoff: Of run.terminal: number of the session's last message.
        recoveries: Of run.recovering: recoveries since its last progress, this one
            included; 0: not counted.
        not_before_time: Of run.recovering: when it may be leased again.
        activation_kind: Of activation.queued: why the turn is taken.
        executor_id: Of activation.leased: the executor.
        end_reason: Of activation.ended and activation.abandoned: what ended it.
        message_number: Of message.appended: its number.
        role: Of message.appended: whose turn it is.
        author: Of message.appended: how it came to be.
        message: Of message.appended: the message, where messages were asked for.
        step: The model step, where it belongs to one.
        model_stream_id: Ties it to deltas.
        usage: Of model_step.committed: what it used.
        model: Of model_step.committed: the model that answered.
        finish_reason: Of model_step.committed: why the model stopped.
        tool_call_id: Of tool_call and child_run kinds: the call.
        tool_name: Of tool_call.prepared: the tool.
        tool_ordinal: Of tool_call.prepared: place in its batch.
        idempotent: Of tool_call.claimed: whether it may be run again.
        tool_outcome: Of tool_call.committed: what became of it.
        interaction_id: Of run.waiting and interaction kinds: the interaction.
        interaction_version: Of interaction kinds: its version.
        interaction_expire_time: Of interaction.opened: when it expires.
        close_reason: Of interaction.closed: why it ended without an answer.
        proxy_for: Of interaction.opened, where it is a proxy: the question that it shows.
        child_run_id: Of child_run kinds: the child run.
        child_session_id: Of child_run.started: its session.
    """

    kind: RunEventKind
    agent: str = ""
    submission_id: str = ""
    replaced: bool = False
    parent: ParentRun | None = None
    children: ChildrenWait | None = None
    stop_reason: StopReason | None = None
    cause: StopReason | None = None
    failure_reason: RunFailureReason | None = None
    output_message_number: int | None = None
    message_cutoff: int | None = None
    recoveries: int | None = None
    not_before_time: datetime | None = None
    activation_kind: ActivationKind | None = None
    executor_id: str = ""
    end_reason: ActivationEnd | None = None
    message_number: int | None = None
    role: MessageRole | None = None
    author: MessageAuthor | None = None
    message: Message | None = None
    step: int | None = None
    model_stream_id: str = ""
    usage: Usage | None = None
    model: str = ""
    finish_reason: str = ""
    tool_call_id: str = ""
    tool_name: str = ""
    tool_ordinal: int | None = None
    idempotent: bool | None = None
    tool_outcome: ToolOutcome | None = None
    interaction_id: str = ""
    interaction_version: int | None = None
    interaction_expire_time: datetime | None = None
    close_reason: InteractionCloseReason | None = None
    proxy_for: ProxySource | None = None
    child_run_id: str = ""
    child_session_id: str = ""


class UnknownEvent(Event):
    """A fact of a kind that this client does not know.

    Where `may_skip` is false, read the live state again.

    Attributes:
        type: Number of the kind.
    """

    type: int


class Delta(Record):
    """A piece of a model answer on its way; best effort, replaced by its message.

    Drop what is held of a stream at its message.appended, at a newer stream of the same
    step, when the activation ends, and at run.terminal.

    Attributes:
        model_stream_id: Names the request to the model.
        run_id: The run.
        activation_id: The activation that sent the request.
        step: The model step.
        block_index: The block of the answer, from 0.
        kind: What the block is.
        base_revision: The revision that `append_text` extends.
        revision: The revision of the block after this piece.
        append_text: Text to append, by a reader that holds exactly `base_revision`.
        snapshot_text: The whole text of the block so far.
        block_done: Whether the block is complete.
    """

    model_stream_id: str
    run_id: str
    activation_id: str
    step: int
    block_index: int
    kind: DeltaKind
    base_revision: int
    revision: int
    append_text: str | None
    snapshot_text: str | None
    block_done: bool


class Control(Record):
    """The state of a session's control plane; the newest replaces all before it.

    Attributes:
        run_id: The live run; None while the session is idle.
        phase: Its phase.
        activation: Its newest activation.
        cancelling: Whether cancellation of it was requested.
        pause_requested: Whether a pause was asked for and no boundary has taken it yet.
        pending_steers: Number of pending steers.
        pending_next_runs: Number of pending next runs.
        allowed_commands: What the session would accept.
        waiting_for_executor: Whether it waits and nobody polls for its agent.
        as_of_sequence: The sequence at which this is true.
    """

    run_id: str | None
    phase: RunPhase | None
    activation: Activation | None
    cancelling: bool
    pause_requested: bool
    pending_steers: int
    pending_next_runs: int
    allowed_commands: tuple[Command, ...]
    waiting_for_executor: bool
    as_of_sequence: int


AnyEvent: TypeAlias = SessionEvent | SubmissionEvent | RunEvent | UnknownEvent
StreamItem: TypeAlias = AnyEvent | Delta | Control
