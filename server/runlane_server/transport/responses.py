"""From answers and views to messages of runlane.v1.

Enum members of the core are the numbers of the protos, so they pass as they are.
"""

from typing import Any

from runlane.v1 import (
    event_pb2,
    executor_service_pb2,
    history_service_pb2,
    message_pb2,
    run_pb2,
    server_service_pb2,
    session_pb2,
    session_service_pb2,
    submission_pb2,
)

from runlane_server.app.views import (
    ActivationControl,
    AgentView,
    ControlView,
    LiveView,
    RunView,
    ServerInfoView,
    SessionView,
    SubmissionView,
)
from runlane_server.core.commands import (
    Operation,
    OperationResult,
    ReserveModelStep,
    RunFacts,
    SubmissionFacts,
)
from runlane_server.core.model import Activation, Delta, Fence, Phase, Usage
from runlane_server.transport.values import length_delimited, timestamp

_LIVE_STATE_MESSAGES = b"\x2a"  # field 5
_FIELD_1 = b"\x0a"


def session(view: SessionView) -> session_pb2.Session:
    """Shows a session."""
    facts, record = view.facts, view.record
    forked_from = None
    if view.source_session_id:
        forked_from = session_pb2.ForkSource(
            session_id=view.source_session_id, run_id=view.source_run_id
        )
    return session_pb2.Session(
        session_id=facts.session_id,
        display_name=record.display_name,
        labels=record.labels,
        metadata_json=record.metadata_json,
        default_agent=record.default_agent,
        state=facts.status,  # type: ignore[arg-type]
        current_run_id=facts.current_run_id,
        message_count=facts.message_count,
        forked_from=forked_from,
        revision=facts.revision,
        etag=facts.etag,
        create_time=timestamp(facts.create_time),
        update_time=timestamp(facts.update_time),
    )


def settled_submission(facts: SubmissionFacts, request_id: str) -> submission_pb2.Submission:
    """Shows a submission without its content, as answers of mutating calls have it."""
    return submission_pb2.Submission(
        submission_id=facts.submission_id,
        session_id=facts.session_id,
        run_id=facts.run_id,
        mode=facts.mode,  # type: ignore[arg-type]
        route=facts.route,  # type: ignore[arg-type]
        state=facts.state,  # type: ignore[arg-type]
        failure_reason=facts.failure or 0,  # type: ignore[arg-type]
        content_truncated=True,
        message_number=facts.message_number,
        request_id=facts.request_id or request_id,
        create_time=timestamp(facts.create_time),
        settle_time=timestamp(facts.settle_time),
    )


def submission(view: SubmissionView) -> submission_pb2.Submission:
    """Shows a submission with as much of its content as the view has."""
    shown = settled_submission(view.facts, view.request_id)
    shown.content_truncated = view.truncated
    if view.content:
        # It may be a whole message, whose other numbers mean something else here.
        content = message_pb2.Message.FromString(view.content)
        shown.content.extend(content.content)
        shown.metadata.update(content.metadata)
    return shown


def usage(used: Usage, reserved: int = 0, committed: int = 0) -> run_pb2.Usage:
    """Shows what was used."""
    return run_pb2.Usage(
        model_steps_reserved=reserved,
        model_steps_committed=committed,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cached_input_tokens=used.cached_input_tokens,
        reasoning_tokens=used.reasoning_tokens,
        cost_usd_micros=used.cost_usd_micros,
    )


def activation(of: Activation) -> run_pb2.Activation:
    """Shows an activation."""
    return run_pb2.Activation(
        activation_id=of.activation_id,
        epoch=of.epoch,
        kind=run_pb2.Activation.KIND_START,
        state=of.state,  # type: ignore[arg-type]
        executor_id=of.executor_id,
    )


def run(facts: RunFacts, view: RunView | None = None) -> run_pb2.Run:
    """Shows a run; without a view, as answers of mutating calls have it."""
    cancellation = None
    if facts.cancellation is not None:
        cancellation = run_pb2.Cancellation(
            reason=facts.cancellation.reason,
            request_time=timestamp(facts.cancellation.request_time),
            grace_expire_time=timestamp(facts.cancellation.grace_expire_time),
        )
    terminal = facts.phase is Phase.TERMINAL
    options = None
    if view is not None and view.options:
        options = run_pb2.RunOptions.FromString(view.options)
    return run_pb2.Run(
        run_id=facts.run_id,
        session_id=facts.session_id,
        agent=facts.agent,
        phase=facts.phase,  # type: ignore[arg-type]
        attempt=facts.attempt,
        activation=None if terminal or facts.activation is None else activation(facts.activation),
        position=facts.position,  # type: ignore[arg-type]
        options=options,
        usage=usage(facts.usage, facts.steps_reserved, facts.steps_committed),
        submission_id=facts.submission_id,
        input_preview="" if view is None else view.preview,
        cancellation=cancellation,
        outcome=_outcome(facts, view) if terminal else None,
        create_time=timestamp(facts.create_time),
        end_time=timestamp(facts.end_time),
    )


def run_of(view: RunView) -> run_pb2.Run:
    """Shows a run with all that the view has."""
    return run(view.facts, view)


def _outcome(facts: RunFacts, view: RunView | None) -> run_pb2.RunOutcome:
    failure = None
    if facts.failure_reason is not None:
        failure = run_pb2.RunFailure(
            reason=facts.failure_reason,  # type: ignore[arg-type]
            message="" if view is None else view.failure_message,
            retryable=facts.failure_retryable,
        )
    return run_pb2.RunOutcome(
        stop_reason=facts.stop_reason or 0,  # type: ignore[arg-type]
        failure=failure,
        output_message_number=facts.output_message_number,
        output_json="" if view is None else view.output_json,
        message_cutoff=facts.message_cutoff,
    )


def fork_point(view: RunView) -> history_service_pb2.ForkPoint:
    """Shows a terminal run as a place to fork at."""
    facts = view.facts
    return history_service_pb2.ForkPoint(
        run_id=facts.run_id,
        session_id=facts.session_id,
        agent=facts.agent,
        stop_reason=facts.stop_reason or 0,  # type: ignore[arg-type]
        message_count=facts.message_cutoff,
        input_preview=view.preview,
        create_time=timestamp(facts.create_time),
        end_time=timestamp(facts.end_time),
    )


def live_state(view: LiveView) -> bytes:
    """Encodes a GetLiveStateResponse; the messages are joined as they are stored."""
    head = session_pb2.LiveState(
        session=session(view.session),
        run=None if view.run is None else run_of(view.run),
        pending_submissions=[submission(one) for one in view.pending],
        first_message_number=view.messages[0].number if view.messages else 0,
        allowed_commands=view.allowed_commands,  # type: ignore[arg-type]
        waiting_for_executor=view.waiting_for_executor,
        sequence=view.sequence,
    ).SerializeToString()
    parts = [length_delimited(_LIVE_STATE_MESSAGES, row.data) for row in view.messages]
    return length_delimited(_FIELD_1, b"".join((head, *parts)))


def control(view: ControlView) -> event_pb2.Control:
    """Shows the control state of a session."""
    return event_pb2.Control(
        run_id=view.run_id,
        phase=view.phase or 0,  # type: ignore[arg-type]
        activation=None if view.activation is None else activation(view.activation),
        cancelling=view.cancelling,
        pending_steers=view.pending_steers,
        pending_next_runs=view.pending_next_runs,
        allowed_commands=view.allowed_commands,  # type: ignore[arg-type]
        waiting_for_executor=view.waiting_for_executor,
        as_of_sequence=view.as_of_sequence,
    )


def delta(piece: Delta) -> event_pb2.Delta:
    """Shows a piece of a model answer."""
    held: dict[str, Any] = {}
    if piece.append_text is not None:
        held["append_text"] = piece.append_text
    elif piece.snapshot_text is not None:
        held["snapshot_text"] = piece.snapshot_text
    elif piece.block_done:
        held["block_done"] = True
    return event_pb2.Delta(
        model_stream_id=piece.model_stream_id,
        run_id=piece.run_id,
        activation_id=piece.activation_id,
        step=piece.step,
        block_index=piece.block_index,
        kind=piece.kind,  # type: ignore[arg-type]
        base_revision=piece.base_revision,
        revision=piece.revision,
        **held,
    )


def fence(of: Fence) -> run_pb2.Fence:
    """Shows a fence."""
    return run_pb2.Fence(
        session_id=of.session_id,
        run_id=of.run_id,
        activation_id=of.activation_id,
        epoch=of.epoch,
    )


def activation_control(view: ActivationControl) -> executor_service_pb2.ActivationControl:
    """Shows what the server asks of an executor."""
    return executor_service_pb2.ActivationControl(
        cancel_requested=view.cancel_requested,
        cancel_grace_expire_time=timestamp(view.cancel_grace_expire_time),
        lease_expire_time=timestamp(view.lease_expire_time),
        ended=view.ended,
    )


def operation_result(
    operation: Operation, result: OperationResult
) -> executor_service_pb2.OperationResult:
    """Shows what became of an operation."""
    if isinstance(operation, ReserveModelStep):
        states = executor_service_pb2.ReserveModelStepResult
        state = states.STATE_UNSPECIFIED
        if result.granted:
            state = states.STATE_GRANTED
        elif result.run_ended:
            state = states.STATE_RUN_ENDED
        return executor_service_pb2.OperationResult(
            reserve_model_step=states(
                state=state, step=result.step, model_stream_id=result.model_stream_id
            )
        )
    return executor_service_pb2.OperationResult(
        commit_model_step=executor_service_pb2.CommitModelStepResult(
            message_number=result.message_number
        )
    )


def agent(view: AgentView) -> session_service_pb2.Agent:
    """Shows a name that executors poll for."""
    return session_service_pb2.Agent(
        name=view.name,
        last_poll_time=timestamp(view.last_poll_time),
        executor_count=view.executor_count,
        queued_count=view.queued_count,
        leased_count=view.leased_count,
    )


def server_info(view: ServerInfoView) -> server_service_pb2.GetServerInfoResponse:
    """Shows what the server is."""
    shown = server_service_pb2.GetServerInfoResponse
    return shown(
        version=view.version,
        store_kind=view.store_kind,
        durability=shown.DURABILITY_DISK if view.durable else shown.DURABILITY_PROCESS,
        store_id=view.store_id,
        store_epoch=view.store_epoch,
        features=view.features,
        limits=[
            server_service_pb2.Limit(name=name, value=value, unit=unit)
            for name, value, unit in view.limits
        ],
    )
