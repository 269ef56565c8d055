"""Between the events of the contract and what a stream yields."""

from typing import Any

from google.protobuf.descriptor import EnumValueDescriptor

from runlane._content import message_from_pb
from runlane._convert import activation, children_wait, parent_run, usage
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
    event_kind,
    member,
    optional_member,
)
from runlane._event_models import (
    AnyEvent,
    Control,
    Delta,
    RunEvent,
    SessionEvent,
    SubmissionEvent,
    UnknownEvent,
)
from runlane._interactions import proxy_source
from runlane._time import to_datetime
from runlane.v1 import event_pb2 as pb

_STATES = {
    SubmissionEventKind.SUBMISSION_PENDING: SubmissionState.PENDING,
    SubmissionEventKind.SUBMISSION_MOVED: SubmissionState.PENDING,
    SubmissionEventKind.SUBMISSION_DELIVERED: SubmissionState.DELIVERED,
    SubmissionEventKind.SUBMISSION_FAILED: SubmissionState.FAILED,
    SubmissionEventKind.SUBMISSION_WITHDRAWN: SubmissionState.WITHDRAWN,
}


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
        created = event.session_created
        return {
            "message_count": created.message_count,
            "parent_run_id": created.parent_run_id or None,
        }
    if kind is SessionEventKind.SESSION_COMPACTED:
        compacted = event.session_compacted
        return {
            "compacted_through": compacted.through_message_number,
            "usage": usage(compacted.usage),
            "model": compacted.model,
        }
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
    if kind is SessionEventKind.SESSION_IMPORTED:
        imported = event.session_imported
        return {
            "message_count": imported.message_count,
            "run_count": imported.run_count,
            "source_session_id": imported.source_session_id,
            "content_digest": imported.content_digest,
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
            return {
                "submission_id": created.submission_id,
                "agent": created.agent,
                "parent": parent_run(created.parent) if created.HasField("parent") else None,
            }
        case RunEventKind.RUN_CANCELLATION_REQUESTED:
            return {"replaced": event.run_cancellation_requested.replaced}
        case RunEventKind.RUN_TERMINAL:
            end = event.run_terminal
            return {
                "stop_reason": member(StopReason, end.stop_reason),
                "cause": optional_member(StopReason, end.cause),
                "failure_reason": optional_member(RunFailureReason, end.failure_reason),
                "output_message_number": end.output_message_number or None,
                "message_cutoff": end.message_cutoff,
            }
        case RunEventKind.RUN_WAITING:
            waiting = event.run_waiting
            children = children_wait(waiting.children) if waiting.HasField("children") else None
            return {"interaction_id": waiting.interaction_id, "children": children}
        case RunEventKind.RUN_ENDING:
            ending = event.run_ending
            return {
                "stop_reason": member(StopReason, ending.stop_reason),
                "cause": optional_member(StopReason, ending.cause),
            }
        case RunEventKind.CHILD_RUN_STARTED:
            started = event.child_run_started
            return {
                "tool_call_id": started.tool_call_id,
                "child_run_id": started.child_run_id,
                "child_session_id": started.child_session_id,
                "agent": started.agent,
            }
        case RunEventKind.CHILD_RUN_FINISHED:
            finished = event.child_run_finished
            return {
                "tool_call_id": finished.tool_call_id,
                "child_run_id": finished.child_run_id,
                "stop_reason": member(StopReason, finished.stop_reason),
            }
        case RunEventKind.RUN_RECOVERING:
            return {
                "recoveries": event.run_recovering.recoveries,
                "not_before_time": to_datetime(event.run_recovering, "not_before_time"),
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
    noun = kind.value.partition(".")[0]
    if noun == "tool_call":
        return _tool_call_fields(event, kind)
    if noun == "interaction":
        return _interaction_fields(event, kind)
    if noun == "activation":
        return _activation_fields(event, kind)
    # The others say all by their kind.
    return {}


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
        queued = event.activation_queued
        return {
            "agent": queued.agent,
            "activation_kind": optional_member(ActivationKind, queued.kind),
        }
    if kind is RunEventKind.ACTIVATION_LEASED:
        return {"executor_id": event.activation_leased.executor_id}
    if kind is RunEventKind.ACTIVATION_ENDED:
        return {"end_reason": _ended_reason(event.activation_ended.reason)}
    return {"end_reason": _abandoned_reason(event.activation_abandoned.reason)}


def _tool_call_fields(event: pb.Event, kind: RunEventKind) -> dict[str, Any]:
    match kind:
        case RunEventKind.TOOL_CALL_PREPARED:
            prepared = event.tool_call_prepared
            return {
                "tool_call_id": prepared.tool_call_id,
                "tool_name": prepared.name,
                "tool_ordinal": prepared.ordinal,
            }
        case RunEventKind.TOOL_CALL_CLAIMED:
            claimed = event.tool_call_claimed
            return {"tool_call_id": claimed.tool_call_id, "idempotent": claimed.idempotent}
        case RunEventKind.TOOL_CALL_COMMITTED:
            done = event.tool_call_committed
            return {
                "tool_call_id": done.tool_call_id,
                "tool_outcome": member(ToolOutcome, done.outcome),
            }
        case RunEventKind.TOOL_CALL_OUTCOME_UNKNOWN:
            return {"tool_call_id": event.tool_call_outcome_unknown.tool_call_id}
    return {"tool_call_id": event.tool_call_cancelled.tool_call_id}


def _interaction_fields(event: pb.Event, kind: RunEventKind) -> dict[str, Any]:
    if kind is RunEventKind.INTERACTION_OPENED:
        opened = event.interaction_opened
        return {
            "interaction_id": opened.interaction_id,
            "interaction_version": opened.version,
            "interaction_expire_time": to_datetime(opened, "expire_time"),
            "proxy_for": proxy_source(opened.proxy_for) if opened.HasField("proxy_for") else None,
        }
    if kind is RunEventKind.INTERACTION_ANSWERED:
        answered = event.interaction_answered
        return {
            "interaction_id": answered.interaction_id,
            "interaction_version": answered.version,
        }
    closed = event.interaction_closed
    return {
        "interaction_id": closed.interaction_id,
        "close_reason": member(InteractionCloseReason, closed.reason),
    }


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
        pause_requested=control.pause_requested,
        pending_steers=control.pending_steers,
        pending_next_runs=control.pending_next_runs,
        allowed_commands=tuple(member(Command, number) for number in control.allowed_commands),
        waiting_for_executor=control.waiting_for_executor,
        as_of_sequence=control.as_of_sequence,
    )
