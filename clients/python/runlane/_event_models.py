"""What an event stream yields."""

from datetime import datetime
from typing import Any, TypeAlias

from google.protobuf.descriptor import EnumValueDescriptor

from runlane._content import Message, Record, message_from_pb
from runlane._convert import activation, usage
from runlane._enums import (
    ActivationEnd,
    Command,
    DeltaKind,
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
    event_kind,
    member,
    optional_member,
)
from runlane._models import Activation, Usage
from runlane._time import to_datetime
from runlane.v1 import event_pb2 as pb

_STATES = {
    SubmissionEventKind.SUBMISSION_PENDING: SubmissionState.PENDING,
    SubmissionEventKind.SUBMISSION_MOVED: SubmissionState.PENDING,
    SubmissionEventKind.SUBMISSION_DELIVERED: SubmissionState.DELIVERED,
    SubmissionEventKind.SUBMISSION_FAILED: SubmissionState.FAILED,
    SubmissionEventKind.SUBMISSION_WITHDRAWN: SubmissionState.WITHDRAWN,
}


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
        message_count: Messages that a new session, or a fork, began with.
        source_session_id: Of a fork, the session that was forked.
        source_run_id: Of a fork, the run at whose end it was forked.
        fork_session_id: Of a fork, the new session.
    """

    kind: SessionEventKind
    revision: int | None = None
    message_count: int | None = None
    source_session_id: str = ""
    source_run_id: str = ""
    fork_session_id: str = ""


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
        stop_reason: Of run.terminal: why it ended.
        failure_reason: Of run.terminal: what kind of failure.
        output_message_number: Of run.terminal: number of its answer.
        message_cutoff: Of run.terminal: number of the session's last message.
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
    """

    kind: RunEventKind
    agent: str = ""
    submission_id: str = ""
    replaced: bool = False
    stop_reason: StopReason | None = None
    failure_reason: RunFailureReason | None = None
    output_message_number: int | None = None
    message_cutoff: int | None = None
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
    pending_steers: int
    pending_next_runs: int
    allowed_commands: tuple[Command, ...]
    waiting_for_executor: bool
    as_of_sequence: int


AnyEvent: TypeAlias = SessionEvent | SubmissionEvent | RunEvent | UnknownEvent
StreamItem: TypeAlias = AnyEvent | Delta | Control


def event_from_pb(event: pb.Event) -> AnyEvent:
    """Reads an event."""
    kind = event_kind(event.type)
    if isinstance(kind, SubmissionEventKind):
        return SubmissionEvent(**_envelope(event), kind=kind, **_submission_fields(event, kind))
    if isinstance(kind, RunEventKind):
        return RunEvent(**_envelope(event), kind=kind, **_run_fields(event, kind))
    if isinstance(kind, SessionEventKind):
        return SessionEvent(**_envelope(event), kind=kind, **_session_fields(event, kind))
    return UnknownEvent(**_envelope(event), type=int(event.type))


def _envelope(event: pb.Event) -> dict[str, Any]:
    return {
        "sequence": event.sequence,
        "session_id": event.session_id,
        "time": to_datetime(event, "event_time"),
        "run_id": event.run_id,
        "run_sequence": event.run_sequence,
        "activation_id": event.activation_id,
        "attempt": event.attempt,
        "actor": event.actor,
        "request_id": event.request_id,
        "may_skip": event.may_skip,
    }


def _session_fields(event: pb.Event, kind: SessionEventKind) -> dict[str, Any]:
    if kind is SessionEventKind.SESSION_CREATED:
        return {"message_count": event.session_created.message_count}
    if kind is SessionEventKind.SESSION_UPDATED:
        return {"revision": event.session_updated.revision}
    if kind is SessionEventKind.SESSION_FORKED:
        fork = event.session_forked
        return {
            "message_count": fork.message_count,
            "source_session_id": fork.source_session_id,
            "source_run_id": fork.source_run_id,
            "fork_session_id": fork.session_id,
        }
    return {}


def _submission_fields(event: pb.Event, kind: SubmissionEventKind) -> dict[str, Any]:
    fields: dict[str, Any] = {"state": _STATES[kind]}
    if kind is SubmissionEventKind.SUBMISSION_MOVED:
        moved = event.submission_moved
        return fields | {
            "submission_id": moved.submission_id,
            "mode": member(SubmitMode, moved.mode),
            "route": SubmitRoute.FOLLOW_UP,
            "from_run_id": moved.from_run_id,
        }
    if kind is SubmissionEventKind.SUBMISSION_DELIVERED:
        delivered = event.submission_delivered
        fields["message_number"] = delivered.message_number or None
        return fields | _submission_common(delivered)
    if kind is SubmissionEventKind.SUBMISSION_FAILED:
        failed = event.submission_failed
        fields["reason"] = member(SubmissionFailure, failed.reason)
        return fields | _submission_common(failed)
    if kind is SubmissionEventKind.SUBMISSION_PENDING:
        return fields | _submission_common(event.submission_pending)
    return fields | _submission_common(event.submission_withdrawn)


def _submission_common(
    body: pb.SubmissionPending
    | pb.SubmissionDelivered
    | pb.SubmissionFailed
    | pb.SubmissionWithdrawn,
) -> dict[str, Any]:
    return {
        "submission_id": body.submission_id,
        "mode": member(SubmitMode, body.mode),
        "route": member(SubmitRoute, body.route),
    }


def _run_fields(event: pb.Event, kind: RunEventKind) -> dict[str, Any]:
    match kind:
        case RunEventKind.RUN_CREATED:
            created = event.run_created
            return {"submission_id": created.submission_id, "agent": created.agent}
        case RunEventKind.RUN_CANCELLATION_REQUESTED:
            return {"replaced": event.run_cancellation_requested.replaced}
        case RunEventKind.RUN_TERMINAL:
            end = event.run_terminal
            return {
                "stop_reason": member(StopReason, end.stop_reason),
                "failure_reason": optional_member(RunFailureReason, end.failure_reason),
                "output_message_number": end.output_message_number or None,
                "message_cutoff": end.message_cutoff,
            }
        case RunEventKind.MESSAGE_APPENDED:
            return _message_fields(event)
        case RunEventKind.MODEL_STEP_RESERVED:
            reserved = event.model_step_reserved
            return {"step": reserved.step, "model_stream_id": reserved.model_stream_id}
        case RunEventKind.MODEL_STEP_COMMITTED:
            step = event.model_step_committed
            return {
                "step": step.step,
                "model_stream_id": step.model_stream_id,
                "usage": usage(step.usage),
                "model": step.model,
                "finish_reason": step.finish_reason,
            }
        case _:
            return _activation_fields(event, kind)


def _message_fields(event: pb.Event) -> dict[str, Any]:
    body = event.message_appended
    return {
        "message_number": body.number,
        "role": member(MessageRole, body.role),
        "author": member(MessageAuthor, body.author),
        "step": body.step or None,
        "submission_id": body.submission_id,
        "model_stream_id": body.model_stream_id,
        "message": message_from_pb(event.message) if event.HasField("message") else None,
    }


def _activation_fields(event: pb.Event, kind: RunEventKind) -> dict[str, Any]:
    if kind is RunEventKind.ACTIVATION_QUEUED:
        return {"agent": event.activation_queued.agent}
    if kind is RunEventKind.ACTIVATION_LEASED:
        return {"executor_id": event.activation_leased.executor_id}
    if kind is RunEventKind.ACTIVATION_ENDED:
        return {"end_reason": _ended_reason(event.activation_ended.reason)}
    return {"end_reason": _abandoned_reason(event.activation_abandoned.reason)}


def _ended_reason(number: int) -> ActivationEnd:
    """Reads the act that ended an activation; `UNKNOWN` for one that is new."""
    return _end_word(pb.ActivationEnded.Reason.DESCRIPTOR.values_by_number.get(number))


def _abandoned_reason(number: int) -> ActivationEnd:
    """Reads what else ended an activation; `UNKNOWN` for what is new."""
    return _end_word(pb.ActivationAbandoned.Reason.DESCRIPTOR.values_by_number.get(number))


def _end_word(value: EnumValueDescriptor | None) -> ActivationEnd:
    if value is None or not value.number:
        return ActivationEnd.UNKNOWN
    return ActivationEnd(value.name.removeprefix("REASON_").lower())


def delta_from_pb(delta: pb.Delta) -> Delta:
    """Reads a delta."""
    piece = delta.WhichOneof("piece")
    return Delta(
        model_stream_id=delta.model_stream_id,
        run_id=delta.run_id,
        activation_id=delta.activation_id,
        step=delta.step,
        block_index=delta.block_index,
        kind=member(DeltaKind, delta.kind),
        base_revision=delta.base_revision,
        revision=delta.revision,
        append_text=delta.append_text if piece == "append_text" else None,
        snapshot_text=delta.snapshot_text if piece == "snapshot_text" else None,
        block_done=delta.block_done,
    )


def control_from_pb(control: pb.Control) -> Control:
    """Reads a control state."""
    has_activation = control.HasField("activation")
    return Control(
        run_id=control.run_id or None,
        phase=optional_member(RunPhase, control.phase),
        activation=activation(control.activation) if has_activation else None,
        cancelling=control.cancelling,
        pending_steers=control.pending_steers,
        pending_next_runs=control.pending_next_runs,
        allowed_commands=tuple(member(Command, number) for number in control.allowed_commands),
        waiting_for_executor=control.waiting_for_executor,
        as_of_sequence=control.as_of_sequence,
    )
