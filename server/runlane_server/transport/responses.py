"""From answers and views to messages of runlane.v1.

Enum members of the core are the numbers of the protos, so they pass as they are.
"""

from typing import Any

from runlane.v1 import (
    event_pb2,
    executor_service_pb2,
    history_service_pb2,
    interaction_pb2,
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
from runlane_server.core.answers import InteractionFacts, OperationResult, RunFacts, SubmissionFacts
from runlane_server.core.commands import (
    ClaimToolCalls,
    CommitModelStep,
    Operation,
    RecordCompaction,
    ReserveModelStep,
    StartChildRun,
)
from runlane_server.core.model import (
    Activation,
    ChildrenWait,
    Delta,
    Fence,
    ParentLink,
    Question,
    Usage,
)
from runlane_server.core.words import Phase, ToolCallState
from runlane_server.store.base import InteractionRow, SummaryRow, ToolCallRow
from runlane_server.transport.values import SEND_BYTES_MAX, length_delimited, timestamp

_LIVE_STATE_MESSAGES = b"\x2a"  # field 5
_FIELD_1 = b"\x0a"
_FRAMING = 64


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
        parent_run_id=facts.parent_run_id,
        compacted_through=facts.compacted_through,
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
    elif view.preview:
        shown.content.add(text=view.preview)
    return shown


def usage(used: Usage, reserved: int = 0, committed: int = 0, tool_calls: int = 0) -> run_pb2.Usage:
    """Shows what was used."""
    return run_pb2.Usage(
        model_steps_reserved=reserved,
        model_steps_committed=committed,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cached_input_tokens=used.cached_input_tokens,
        reasoning_tokens=used.reasoning_tokens,
        tool_calls=tool_calls,
        cost_usd_micros=used.cost_usd_micros,
        compaction_input_tokens=used.compaction_input_tokens,
        compaction_output_tokens=used.compaction_output_tokens,
    )


def parent(link: ParentLink) -> run_pb2.ParentRun:
    """Shows where a child run comes from."""
    return run_pb2.ParentRun(
        run_id=link.run_id,
        session_id=link.session_id,
        tool_call_id=link.tool_call_id,
        depth=link.depth,
    )


def children_wait(wait: ChildrenWait) -> run_pb2.ChildrenWait:
    """Shows a wait for child runs."""
    return run_pb2.ChildrenWait(mode=wait.mode, run_ids=wait.run_ids)  # type: ignore[arg-type]


def proxy_source(question: Question) -> interaction_pb2.ProxySource:
    """Shows the question that a proxy shows."""
    return interaction_pb2.ProxySource(
        run_id=question.run_id,
        interaction_id=question.interaction_id,
        session_id=question.session_id,
    )


def summary(row: SummaryRow) -> message_pb2.Summary:
    """Shows a summary."""
    return message_pb2.Summary(
        text=row.text,
        through_message_number=row.through,
        create_time=timestamp(row.create_time),
        model=row.model,
    )


def activation(of: Activation) -> run_pb2.Activation:
    """Shows an activation."""
    return run_pb2.Activation(
        activation_id=of.activation_id,
        epoch=of.epoch,
        kind=of.kind,  # type: ignore[arg-type]
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
        usage=usage(facts.usage, facts.steps_reserved, facts.steps_committed, facts.tool_calls),
        deadline_time=timestamp(facts.deadline_time),
        submission_id=facts.submission_id,
        input_preview="" if view is None else view.preview,
        cancellation=cancellation,
        outcome=_outcome(facts, view) if terminal else None,
        create_time=timestamp(facts.create_time),
        end_time=timestamp(facts.end_time),
        interaction_id=facts.interaction_id,
        pause_requested=facts.pause_requested,
        stalled=facts.stalled,
        recoveries=facts.recoveries,
        parent=None if facts.parent is None else parent(facts.parent),
        waiting_children=(
            None if facts.children_wait is None else children_wait(facts.children_wait)
        ),
        ending_cause=facts.ending_cause or 0,  # type: ignore[arg-type]
        live_child_count=facts.live_children,
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
        cause=facts.cause or 0,  # type: ignore[arg-type]
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
    state = session_pb2.LiveState(
        session=session(view.session),
        run=None if view.run is None else run_of(view.run),
        pending_submissions=[submission(one) for one in view.pending],
        first_message_number=view.messages[0].number if view.messages else 0,
        allowed_commands=view.allowed_commands,  # type: ignore[arg-type]
        waiting_for_executor=view.waiting_for_executor,
        sequence=view.sequence,
    )
    parts = [length_delimited(_LIVE_STATE_MESSAGES, row.data) for row in view.messages]
    room = SEND_BYTES_MAX - state.ByteSize() - sum(len(part) for part in parts)
    for row in view.interactions:
        shown = interaction(row)
        if shown.ByteSize() + _FRAMING > room:
            without_arguments(shown)
        if shown.ByteSize() + _FRAMING > room:
            shown.ClearField("prompt")
        room -= shown.ByteSize() + _FRAMING
        state.open_interactions.append(shown)
    return length_delimited(_FIELD_1, b"".join((state.SerializeToString(), *parts)))


def interaction(row: InteractionRow) -> interaction_pb2.Interaction:
    """Shows an interaction."""
    answer = proxy_for = None
    if row.proxy_interaction_id:
        proxy_for = interaction_pb2.ProxySource(
            run_id=row.proxy_run_id,
            interaction_id=row.proxy_interaction_id,
            session_id=row.proxy_session_id,
        )
    if row.answer:
        answer = interaction_pb2.InteractionAnswer.FromString(row.answer)
    return interaction_pb2.Interaction(
        interaction_id=row.interaction_id,
        run_id=row.run_id,
        session_id=row.session_id,
        version=row.version,
        state=row.state,  # type: ignore[arg-type]
        prompt=interaction_pb2.Prompt.FromString(row.prompt),
        answer=answer,
        close_reason=row.close_reason,  # type: ignore[arg-type]
        expire_time=timestamp(row.expire_time),
        proxy_for=proxy_for,
        create_time=timestamp(row.create_time),
        settle_time=timestamp(row.settle_time),
    )


def without_arguments(shown: interaction_pb2.Interaction) -> None:
    """Takes the arguments out of calls that ask for permission: the calls have them."""
    if shown.prompt.HasField("permission"):
        for call in shown.prompt.permission.calls:
            call.ClearField("arguments_json")


def settled_interaction(facts: InteractionFacts) -> interaction_pb2.Interaction:
    """Shows an interaction without its prompt, as answers of mutating calls have it."""
    return interaction_pb2.Interaction(
        interaction_id=facts.interaction_id,
        run_id=facts.run_id,
        session_id=facts.session_id,
        version=facts.version,
        state=facts.state,  # type: ignore[arg-type]
        settle_time=timestamp(facts.settle_time),
    )


def tool_call(row: ToolCallRow) -> executor_service_pb2.ToolCall:
    """Shows a tool call. A result that does not fit beside large arguments has no content."""
    shown = executor_service_pb2.ToolCall(
        tool_call_id=row.tool_call_id,
        run_id=row.run_id,
        step=row.step,
        ordinal=row.ordinal,
        name=row.name,
        arguments_json=row.arguments_json or "",
        state=row.state,  # type: ignore[arg-type]
        idempotent=row.idempotent,
        child_run_id=row.child_run_id,
        create_time=timestamp(row.create_time),
        settle_time=timestamp(row.settle_time),
    )
    if row.state is not ToolCallState.COMMITTED:
        return shown
    if row.result and shown.ByteSize() + len(row.result) + _FRAMING <= SEND_BYTES_MAX:
        for block in message_pb2.Message.FromString(row.result).content[:1]:
            shown.result.CopyFrom(block.tool_result)
    shown.result.tool_call_id = row.tool_call_id
    shown.result.outcome = row.outcome  # type: ignore[assignment]
    return shown


def control(view: ControlView) -> event_pb2.Control:
    """Shows the control state of a session."""
    return event_pb2.Control(
        run_id=view.run_id,
        phase=view.phase or 0,  # type: ignore[arg-type]
        activation=None if view.activation is None else activation(view.activation),
        cancelling=view.cancelling,
        pause_requested=view.pause_requested,
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
        pause_requested=view.pause_requested,
        lease_expire_time=timestamp(view.lease_expire_time),
        ended=view.ended,
    )


def operation_result(
    operation: Operation, result: OperationResult, run: RunFacts
) -> executor_service_pb2.OperationResult:
    """Shows what became of an operation on a run."""
    if isinstance(operation, ReserveModelStep):
        states = executor_service_pb2.ReserveModelStepResult
        state = states.STATE_UNSPECIFIED
        if result.granted:
            state = states.STATE_GRANTED
        elif result.paused:
            state = states.STATE_PAUSED
        elif result.run_ended:
            state = states.STATE_RUN_ENDED
        return executor_service_pb2.OperationResult(
            reserve_model_step=states(
                state=state, step=result.step, model_stream_id=result.model_stream_id
            )
        )
    if isinstance(operation, CommitModelStep):
        return executor_service_pb2.OperationResult(
            commit_model_step=executor_service_pb2.CommitModelStepResult(
                message_number=result.message_number,
                tool_calls=_batch(operation, result, run),
            )
        )
    if isinstance(operation, ClaimToolCalls):
        return executor_service_pb2.OperationResult(
            claim_tool_calls=executor_service_pb2.ClaimToolCallsResult()
        )
    if isinstance(operation, StartChildRun):
        return executor_service_pb2.OperationResult(
            start_child_run=executor_service_pb2.StartChildRunResult(
                run_id=result.child_run_id,
                session_id=result.child_session_id,
                existing=result.existing,
            )
        )
    if isinstance(operation, RecordCompaction):
        return executor_service_pb2.OperationResult(
            record_compaction=executor_service_pb2.RecordCompactionResult()
        )
    return executor_service_pb2.OperationResult(
        commit_tool_results=executor_service_pb2.CommitToolResultsResult(
            batch_closed=result.batch_closed
        )
    )


def _batch(
    operation: CommitModelStep, result: OperationResult, run: RunFacts
) -> list[executor_service_pb2.ToolCall]:
    """Shows the calls that a model step asked for, as they stood after the commit."""
    shown = []
    # Zipped to the shorter: a step that went beyond a budget opened no batch.
    for call, use in zip(result.calls, operation.content.tool_uses, strict=False):
        one = executor_service_pb2.ToolCall(
            tool_call_id=call.tool_call_id,
            run_id=run.run_id,
            step=run.steps_committed,
            ordinal=call.ordinal,
            name=call.name,
            arguments_json=use.arguments_json or "",
            state=call.state,  # type: ignore[arg-type]
            idempotent=call.idempotent,
        )
        if call.outcome is not None and call.state is ToolCallState.COMMITTED:
            one.result.tool_call_id = call.tool_call_id
            one.result.outcome = call.outcome  # type: ignore[assignment]
        shown.append(one)
    return shown


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
