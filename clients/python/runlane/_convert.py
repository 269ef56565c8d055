"""Between the messages of the contract and the client's records."""

import json
from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeVar

from runlane import _models as m
from runlane._content import content_from_pb, message_from_pb
from runlane._enums import (
    ActivationState,
    Command,
    Durability,
    RunFailureReason,
    RunPhase,
    RunPosition,
    SessionState,
    StopReason,
    SubmissionFailure,
    SubmissionState,
    SubmitMode,
    SubmitRoute,
    member,
    optional_member,
)
from runlane._time import to_datetime, to_duration, to_seconds
from runlane.v1 import history_service_pb2 as history_pb
from runlane.v1 import run_pb2, server_service_pb2, session_pb2, submission_pb2
from runlane.v1 import session_service_pb2 as session_pb

_T = TypeVar("_T")
Options: TypeAlias = m.RunOptions | Mapping[str, object] | None


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
    )


def fork_source(source: session_pb2.ForkSource) -> m.ForkSource:
    """Reads where a fork comes from."""
    return m.ForkSource(session_id=source.session_id, run_id=source.run_id)


def usage(record: run_pb2.Usage) -> m.Usage:
    """Reads what was used."""
    return m.Usage(
        model_steps_reserved=record.model_steps_reserved,
        model_steps_committed=record.model_steps_committed,
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        cached_input_tokens=record.cached_input_tokens,
        reasoning_tokens=record.reasoning_tokens,
        cost_usd_micros=record.cost_usd_micros,
    )


def usage_to_pb(record: m.Usage) -> run_pb2.Usage:
    """Writes what a step used."""
    return run_pb2.Usage(
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        cached_input_tokens=record.cached_input_tokens,
        reasoning_tokens=record.reasoning_tokens,
        cost_usd_micros=record.cost_usd_micros,
    )


def run_options(record: run_pb2.RunOptions) -> m.RunOptions:
    """Reads the options of a run."""
    grace = record.cancel_grace_duration if record.HasField("cancel_grace_duration") else None
    return m.RunOptions(
        agent=record.agent or None,
        model=record.model or None,
        max_model_steps=record.limits.max_model_steps or None,
        cancel_grace=to_seconds(grace) if grace is not None else None,
        request_options=json.loads(record.request_options_json)
        if record.request_options_json
        else None,
    )


def as_options(options: Options) -> m.RunOptions | None:
    """Takes options as a record or as a mapping of its fields.

    Raises:
        ValueError: A field does not exist or breaks its rule.
    """
    if options is None or isinstance(options, m.RunOptions):
        return options
    return m.RunOptions.model_validate(dict(options))


def options_to_pb(options: Options) -> run_pb2.RunOptions | None:
    """Writes the options of a run; None stays None."""
    record = as_options(options)
    if record is None:
        return None
    result = run_pb2.RunOptions(agent=record.agent or "", model=record.model or "")
    if record.max_model_steps is not None:
        result.limits.max_model_steps = record.max_model_steps
    if record.cancel_grace is not None:
        result.cancel_grace_duration.CopyFrom(to_duration(record.cancel_grace))
    if record.request_options is not None:
        result.request_options_json = json.dumps(dict(record.request_options))
    return result


def run(record: run_pb2.Run) -> m.Run:
    """Reads a run."""
    ended = record.HasField("outcome")
    outcome = record.outcome
    failure = outcome.failure
    return m.Run(
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
        stop_reason=member(StopReason, outcome.stop_reason) if ended else None,
        failure=m.RunFailure(
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


def activation(record: run_pb2.Activation) -> m.Activation:
    """Reads an activation."""
    return m.Activation(
        activation_id=record.activation_id,
        epoch=record.epoch,
        state=member(ActivationState, record.state),
        executor_id=record.executor_id,
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
