"""Between the messages of the contract and the client's records."""

import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeVar

from google.protobuf.message import Message

from runlane import _models as m
from runlane import _run_models as r
from runlane._content import content_from_pb, message_from_pb
from runlane._enums import (
    ActivationKind,
    ActivationState,
    ChildrenMode,
    Command,
    Durability,
    PauseReceipt,
    Recovery,
    RunFailureReason,
    RunPhase,
    RunPosition,
    SessionState,
    StopReason,
    SubmissionFailure,
    SubmissionState,
    SubmitMode,
    SubmitRoute,
    ToolCallState,
    ToolErrorPolicy,
    ToolOutcome,
    member,
    number_of,
    optional_member,
)
from runlane._interactions import interaction_from_pb
from runlane._time import to_datetime, to_duration, to_seconds
from runlane.v1 import (
    admin_service_pb2,
    message_pb2,
    run_pb2,
    server_service_pb2,
    session_pb2,
    submission_pb2,
)
from runlane.v1 import executor_service_pb2 as executor_pb
from runlane.v1 import history_service_pb2 as history_pb
from runlane.v1 import session_service_pb2 as session_pb

_T = TypeVar("_T")
Options: TypeAlias = r.RunOptions | Mapping[str, object] | None


def session(record: session_pb2.Session) -> m.Session:
    """Reads a session."""
    return m.Session(
        session_id=record.session_id,
        display_name=record.display_name,
        labels=dict(record.labels),
        metadata_json=record.metadata_json,
        default_agent=record.default_agent,
        state=member(SessionState, record.state),
        current_run_id=record.current_run_id or None,
        message_count=record.message_count,
        forked_from=fork_source(record.forked_from) if record.HasField("forked_from") else None,
        revision=record.revision,
        etag=record.etag,
        create_time=to_datetime(record, "create_time"),
        update_time=to_datetime(record, "update_time"),
        parent_run_id=record.parent_run_id or None,
        compacted_through=record.compacted_through or None,
    )


def fork_source(source: session_pb2.ForkSource) -> m.ForkSource:
    """Reads where a fork comes from."""
    return m.ForkSource(session_id=source.session_id, run_id=source.run_id)


def usage(record: run_pb2.Usage) -> r.Usage:
    """Reads what was used."""
    return r.Usage(
        model_steps_reserved=record.model_steps_reserved,
        model_steps_committed=record.model_steps_committed,
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        cached_input_tokens=record.cached_input_tokens,
        reasoning_tokens=record.reasoning_tokens,
        tool_calls=record.tool_calls,
        cost_usd_micros=record.cost_usd_micros,
        compaction_input_tokens=record.compaction_input_tokens,
        compaction_output_tokens=record.compaction_output_tokens,
    )


def usage_to_pb(record: r.Usage) -> run_pb2.Usage:
    """Writes what a step used."""
    return run_pb2.Usage(
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        cached_input_tokens=record.cached_input_tokens,
        reasoning_tokens=record.reasoning_tokens,
        cost_usd_micros=record.cost_usd_micros,
    )


def run_options(record: run_pb2.RunOptions) -> r.RunOptions:
    """Reads the options of a run."""
    limits = record.limits
    return r.RunOptions(
        agent=record.agent or None,
        model=record.model or None,
        max_model_steps=limits.max_model_steps or None,
        max_tool_calls=limits.max_tool_calls or None,
        max_total_tokens=limits.max_total_tokens or None,
        max_cost_usd_micros=limits.max_cost_usd_micros or None,
        max_duration=_seconds(limits, "max_duration"),
        interaction_timeout=_seconds(limits, "interaction_timeout_duration"),
        start_timeout=_seconds(limits, "start_timeout_duration"),
        tools=tuple(record.tools) or None,
        tool_timeout=_seconds(record, "tool_timeout_duration"),
        tool_error_policy=optional_member(ToolErrorPolicy, record.tool_error_policy),
        recovery=optional_member(Recovery, record.recovery),
        max_recoveries=record.max_recoveries if record.HasField("max_recoveries") else None,
        cancel_grace=_seconds(record, "cancel_grace_duration"),
        request_options=json.loads(record.request_options_json)
        if record.request_options_json
        else None,
    )


def _seconds(message: Message, field: str) -> float | None:
    return to_seconds(getattr(message, field)) if message.HasField(field) else None


def as_options(options: Options) -> r.RunOptions | None:
    """Takes options as a record or as a mapping of its fields.

    Raises:
        ValueError: A field does not exist or breaks its rule.
    """
    if options is None or isinstance(options, r.RunOptions):
        return options
    return r.RunOptions.model_validate(dict(options))


def options_to_pb(options: Options) -> run_pb2.RunOptions | None:
    """Writes the options of a run; None stays None."""
    record = as_options(options)
    if record is None:
        return None
    result = run_pb2.RunOptions(
        agent=record.agent or "",
        model=record.model or "",
        tools=record.tools or (),
        max_recoveries=record.max_recoveries,
    )
    if record.tool_error_policy is not None:
        policy = number_of(ToolErrorPolicy, record.tool_error_policy)
        result.tool_error_policy = run_pb2.ToolErrorPolicy.ValueType(policy)
    if record.recovery is not None:
        result.recovery = run_pb2.Recovery.ValueType(number_of(Recovery, record.recovery))
    if record.tool_timeout is not None:
        result.tool_timeout_duration.CopyFrom(to_duration(record.tool_timeout))
    if record.cancel_grace is not None:
        result.cancel_grace_duration.CopyFrom(to_duration(record.cancel_grace))
    limits = _limits_to_pb(record)
    if limits.ByteSize():
        result.limits.CopyFrom(limits)
    if record.request_options is not None:
        result.request_options_json = json.dumps(dict(record.request_options))
    return result


def _limits_to_pb(record: r.RunOptions) -> run_pb2.RunLimits:
    limits = run_pb2.RunLimits(
        max_model_steps=record.max_model_steps or 0,
        max_tool_calls=record.max_tool_calls or 0,
        max_total_tokens=record.max_total_tokens or 0,
        max_cost_usd_micros=record.max_cost_usd_micros or 0,
    )
    if record.max_duration is not None:
        limits.max_duration.CopyFrom(to_duration(record.max_duration))
    if record.interaction_timeout is not None:
        limits.interaction_timeout_duration.CopyFrom(to_duration(record.interaction_timeout))
    if record.start_timeout is not None:
        limits.start_timeout_duration.CopyFrom(to_duration(record.start_timeout))
    return limits


def run(record: run_pb2.Run) -> r.Run:
    """Reads a run."""
    ended = record.HasField("outcome")
    outcome = record.outcome
    failure = outcome.failure
    return r.Run(
        run_id=record.run_id,
        session_id=record.session_id,
        agent=record.agent,
        phase=member(RunPhase, record.phase),
        attempt=record.attempt,
        activation=activation(record.activation) if record.HasField("activation") else None,
        position=optional_member(RunPosition, record.position),
        options=run_options(record.options),
        usage=usage(record.usage),
        submission_id=record.submission_id,
        input_preview=record.input_preview,
        cancelling=record.HasField("cancellation"),
        cancel_reason=record.cancellation.reason,
        pause_requested=record.pause_requested,
        stalled=record.stalled,
        recoveries=record.recoveries,
        interaction_id=record.interaction_id or None,
        waiting_children=(
            children_wait(record.waiting_children) if record.HasField("waiting_children") else None
        ),
        parent=parent_run(record.parent) if record.HasField("parent") else None,
        ending_cause=optional_member(StopReason, record.ending_cause),
        live_child_count=record.live_child_count,
        deadline_time=to_datetime(record, "deadline_time"),
        stop_reason=member(StopReason, outcome.stop_reason) if ended else None,
        cause=optional_member(StopReason, outcome.cause),
        failure=r.RunFailure(
            reason=member(RunFailureReason, failure.reason),
            message=failure.message,
            retryable=failure.retryable,
        )
        if outcome.HasField("failure")
        else None,
        output_message_number=outcome.output_message_number or None,
        output_json=outcome.output_json,
        message_cutoff=outcome.message_cutoff if ended else None,
        create_time=to_datetime(record, "create_time"),
        end_time=to_datetime(record, "end_time"),
    )


def parent_run(record: run_pb2.ParentRun) -> r.ParentRun:
    """Reads where a child run comes from."""
    return r.ParentRun(
        run_id=record.run_id,
        session_id=record.session_id,
        tool_call_id=record.tool_call_id,
        depth=record.depth,
    )


def children_wait(record: run_pb2.ChildrenWait) -> r.ChildrenWait:
    """Reads a wait for child runs."""
    return r.ChildrenWait(mode=member(ChildrenMode, record.mode), run_ids=tuple(record.run_ids))


def summary(record: message_pb2.Summary) -> m.Summary:
    """Reads a summary."""
    return m.Summary(
        text=record.text,
        through_message_number=record.through_message_number,
        model=record.model,
        create_time=to_datetime(record, "create_time"),
    )


def activation(record: run_pb2.Activation) -> r.Activation:
    """Reads an activation."""
    return r.Activation(
        activation_id=record.activation_id,
        epoch=record.epoch,
        kind=member(ActivationKind, record.kind),
        state=member(ActivationState, record.state),
        executor_id=record.executor_id,
    )


def tool_call(record: executor_pb.ToolCall) -> r.ToolCall:
    """Reads a tool call."""
    result = record.result if record.HasField("result") else None
    return r.ToolCall(
        tool_call_id=record.tool_call_id,
        run_id=record.run_id,
        step=record.step,
        ordinal=record.ordinal,
        name=record.name,
        arguments_json=record.arguments_json,
        state=member(ToolCallState, record.state),
        idempotent=record.idempotent,
        child_run_id=record.child_run_id or None,
        outcome=member(ToolOutcome, result.outcome) if result is not None else None,
        content=content_from_pb(result.content) if result is not None else (),
        create_time=to_datetime(record, "create_time"),
        settle_time=to_datetime(record, "settle_time"),
    )


def pausing(answer: session_pb.PauseRunResponse | session_pb.UnpauseRunResponse) -> m.Pausing:
    """Reads what became of a request to pause or unpause."""
    return m.Pausing(
        receipt=member(PauseReceipt, answer.receipt),
        run=run(answer.run),
        sequence=answer.sequence,
        replayed=answer.replayed,
    )


def answered(
    answer: session_pb.AnswerInteractionResponse | session_pb.CompleteExternalResponse,
) -> m.Answered:
    """Reads the receipt of an answer."""
    interaction = interaction_from_pb(answer.interaction)
    return m.Answered(
        run_id=interaction.run_id,
        interaction_id=interaction.interaction_id,
        interaction=interaction,
        run=run(answer.run) if isinstance(answer, session_pb.AnswerInteractionResponse) else None,
        sequence=answer.sequence,
        replayed=answer.replayed,
    )


def submission(record: submission_pb2.Submission) -> m.Submission:
    """Reads a submission."""
    return m.Submission(
        submission_id=record.submission_id,
        session_id=record.session_id,
        run_id=record.run_id,
        mode=member(SubmitMode, record.mode),
        route=member(SubmitRoute, record.route),
        state=member(SubmissionState, record.state),
        failure_reason=optional_member(SubmissionFailure, record.failure_reason),
        content=content_from_pb(record.content),
        content_truncated=record.content_truncated,
        message_number=record.message_number or None,
        metadata=dict(record.metadata),
        request_id=record.request_id,
        create_time=to_datetime(record, "create_time"),
        settle_time=to_datetime(record, "settle_time"),
    )


def receipt(
    record: submission_pb2.Submission, *, sequence: int, created: bool, replayed: bool
) -> m.Receipt:
    """Reads the submission in the answer of a call that took an input."""
    return m.Receipt(
        submission_id=record.submission_id,
        session_id=record.session_id,
        run_id=record.run_id,
        mode=member(SubmitMode, record.mode),
        route=member(SubmitRoute, record.route),
        state=member(SubmissionState, record.state),
        sequence=sequence,
        session_created=created,
        replayed=replayed,
    )


def live_state(record: session_pb2.LiveState) -> m.LiveState:
    """Reads the live state."""
    return m.LiveState(
        session=session(record.session),
        run=run(record.run) if record.HasField("run") else None,
        open_interactions=tuple(map(interaction_from_pb, record.open_interactions)),
        pending=tuple(submission(pending) for pending in record.pending_submissions),
        messages=tuple(message_from_pb(message) for message in record.messages),
        first_message_number=record.first_message_number or None,
        allowed_commands=tuple(member(Command, number) for number in record.allowed_commands),
        waiting_for_executor=record.waiting_for_executor,
        sequence=record.sequence,
    )


def fork_point(record: history_pb.ForkPoint) -> m.ForkPoint:
    """Reads a fork point."""
    return m.ForkPoint(
        run_id=record.run_id,
        session_id=record.session_id,
        agent=record.agent,
        stop_reason=member(StopReason, record.stop_reason),
        message_count=record.message_count,
        input_preview=record.input_preview,
        create_time=to_datetime(record, "create_time"),
        end_time=to_datetime(record, "end_time"),
    )


def agent(record: session_pb.Agent) -> m.AgentStatus:
    """Reads what is known of an agent."""
    return m.AgentStatus(
        name=record.name,
        last_poll_time=to_datetime(record, "last_poll_time"),
        executor_count=record.executor_count,
        queued_count=record.queued_count,
        leased_count=record.leased_count,
    )


def executor_status(record: admin_service_pb2.ExecutorStatus) -> m.ExecutorStatus:
    """Reads what is known of an executor."""
    return m.ExecutorStatus(
        executor_id=record.executor_id,
        agents=tuple(record.agents),
        last_poll_time=to_datetime(record, "last_poll_time"),
        polling=record.polling,
        leased_count=record.leased_count,
        draining=record.draining,
    )


def overview(record: admin_service_pb2.GetOverviewResponse) -> m.Overview:
    """Reads how a server is doing."""
    waited = record.HasField("oldest_queued_duration")
    return m.Overview(
        open_session_count=record.open_session_count,
        closed_session_count=record.closed_session_count,
        more_sessions=record.more_sessions,
        active_run_count=record.active_run_count,
        waiting_run_count=record.waiting_run_count,
        paused_run_count=record.paused_run_count,
        stalled_run_count=record.stalled_run_count,
        open_interaction_count=record.open_interaction_count,
        queued_activation_count=record.queued_activation_count,
        oldest_queued_seconds=to_seconds(record.oldest_queued_duration) if waited else None,
        leased_activation_count=record.leased_activation_count,
        executor_count=record.executor_count,
        stream_count=record.stream_count,
        store_size_bytes=record.store_size_bytes,
        store_available=record.store_available,
        server_time=to_datetime(record, "server_time"),
        quotas={one.quota: m.QuotaUsage(used=one.used, limit=one.limit) for one in record.quotas},
    )


def server_info(record: server_service_pb2.GetServerInfoResponse) -> m.ServerInfo:
    """Reads what the server is."""
    return m.ServerInfo(
        version=record.version,
        store_kind=record.store_kind,
        durability=member(Durability, record.durability),
        store_id=record.store_id,
        store_epoch=record.store_epoch,
        features=tuple(record.features),
        limits={limit.name: m.Limit(value=limit.value, unit=limit.unit) for limit in record.limits},
    )


def page(items: Iterable[_T], next_page_token: str) -> m.Page[_T]:
    """Makes a page."""
    return m.Page(items=tuple(items), next_cursor=next_page_token or None)
