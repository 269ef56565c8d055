"""From requests, valid by their protos, to what the core and the app take.

Zero of an enum becomes its stated default here. What no rule of a proto can
say is tested here too, each naming its field.
"""

from collections.abc import Mapping

from google.protobuf.duration_pb2 import Duration
from runlane.v1 import (
    admin_service_pb2,
    event_pb2,
    executor_service_pb2,
    history_service_pb2,
    run_pb2,
    session_service_pb2,
)

from runlane_server.app.views import EventQuery, ForkRequest
from runlane_server.core.commands import (
    ClaimToolCalls,
    CloseSession,
    CommitModelStep,
    CommitRun,
    CommitToolResults,
    CreateSession,
    DeleteSession,
    Finish,
    FinishKind,
    Operation,
    RecordCompaction,
    Release,
    ReserveModelStep,
    RestoreRun,
    SettleRun,
    StartChildRun,
    Submit,
    Suspend,
    SuspendForChildren,
    ToolResult,
    UpdateSession,
)
from runlane_server.core.errors import Refused, invalid
from runlane_server.core.model import (
    Content,
    Delta,
    Failure,
    Fence,
    RunLimits,
    RunOptions,
    SessionRecord,
    Usage,
)
from runlane_server.core.words import (
    ChildrenMode,
    DeltaKind,
    Mode,
    OnMiss,
    Recovery,
    RunFailure,
    SessionStatus,
    StopReason,
    ToolErrorPolicy,
    ToolOutcome,
)
from runlane_server.store.base import SessionFilter, SessionOrder
from runlane_server.transport.content import (
    check_metadata,
    check_size,
    input_content,
    result_content,
    step_content,
)
from runlane_server.transport.interactions import suspend
from runlane_server.transport.values import check_json, duration_micros, time_micros

LEASE_DURATION_DEFAULT = 30_000_000
DELTA_TEXT_BYTES_MAX = 256 * 1024

_STEERS = frozenset({Mode.STEER, Mode.AUTO})
_TAKES_TARGET = frozenset({Mode.STEER, Mode.AUTO, Mode.REPLACE})
_MODES = {0: Mode.START, **{int(mode): mode for mode in Mode}}
_ON_MISS = {0: OnMiss.FAIL, **{int(on_miss): on_miss for on_miss in OnMiss}}
_FAILURES = {int(reason): reason for reason in RunFailure}
_DELTA_KINDS = {int(kind): kind for kind in DeltaKind}
_ID_CHARACTERS_MAX = 128
_BLOCK_INDEX_MAX = 255
_INT32_MAX = 2**31 - 1


def _object(text: str, field: str) -> str:
    if text:
        check_json(text, field, is_object=True)
    return text


def options(given: run_pb2.RunOptions, path: str) -> RunOptions:
    """Returns run options as they were asked for."""
    has = given.HasField
    grace: int | None = None
    if has("cancel_grace_duration"):
        grace = duration_micros(given.cancel_grace_duration, f"{path}.cancel_grace_duration")
    policy, recovery = given.tool_error_policy, given.recovery
    return RunOptions(
        given.agent,
        given.model,
        _limits(given.limits, f"{path}.limits") if has("limits") else RunLimits(),
        tuple(given.tools),
        duration_micros(given.tool_timeout_duration, f"{path}.tool_timeout_duration"),
        ToolErrorPolicy(policy) if policy else ToolErrorPolicy.RETURN_TO_MODEL,
        Recovery(recovery) if recovery else Recovery.AUTO,
        given.max_recoveries if has("max_recoveries") else None,
        grace,
        _object(given.request_options_json, f"{path}.request_options_json"),
    )


def _limits(given: run_pb2.RunLimits, path: str) -> RunLimits:
    return RunLimits(
        given.max_model_steps,
        given.max_tool_calls,
        given.max_total_tokens,
        given.max_cost_usd_micros,
        duration_micros(given.max_duration, f"{path}.max_duration"),
        duration_micros(given.interaction_timeout_duration, f"{path}.interaction_timeout_duration"),
        duration_micros(given.start_timeout_duration, f"{path}.start_timeout_duration"),
    )


def _record(
    given: session_service_pb2.SessionSpec | session_service_pb2.CreateSessionRequest, path: str
) -> SessionRecord:
    return SessionRecord(
        given.display_name,
        dict(given.labels),
        _object(given.metadata_json, f"{path}metadata_json"),
        given.default_agent,
    )


def create_session(request: session_service_pb2.CreateSessionRequest) -> CreateSession:
    """Converts CreateSession."""
    return CreateSession(
        _record(request, ""),
        request.if_exists == session_service_pb2.CreateSessionRequest.IF_EXISTS_RETURN,
    )


def update_session(request: session_service_pb2.UpdateSessionRequest) -> UpdateSession:
    """Converts UpdateSession."""
    has = request.HasField
    metadata_json = None
    if has("metadata_json"):
        metadata_json = _object(request.metadata_json, "metadata_json")
    return UpdateSession(
        request.display_name if has("display_name") else None,
        metadata_json,
        request.default_agent if has("default_agent") else None,
        dict(request.set_labels),
        list(request.remove_labels),
        request.etag,
    )


def delete_session(request: session_service_pb2.DeleteSessionRequest) -> DeleteSession:
    """Converts DeleteSession."""
    return DeleteSession(request.force)


def close_session(request: session_service_pb2.CloseSessionRequest) -> CloseSession:
    """Converts CloseSession."""
    return CloseSession(request.cancel_run)


def submit(request: session_service_pb2.SubmitRequest) -> Submit:
    """Converts Submit."""
    has = request.HasField
    mode = _MODES[request.mode]
    creates = has("create_session")
    if not request.session_id and not creates:
        raise invalid("session_id", "is required without create_session")
    if request.target_run_id and mode not in _TAKES_TARGET:
        raise invalid("target_run_id", "is allowed with STEER, AUTO and REPLACE alone")
    if request.on_miss and mode not in _STEERS:
        raise invalid("on_miss", "is allowed with STEER and AUTO alone")
    return Submit(
        input_content(request.content, request.metadata),
        mode,
        request.target_run_id,
        _ON_MISS[request.on_miss],
        options(request.run_options, "run_options") if has("run_options") else None,
        _record(request.create_session, "create_session.") if creates else None,
        request.expected_revision if has("expected_revision") else None,
    )


def run_target(
    request: session_service_pb2.InterruptRunRequest
    | session_service_pb2.PauseRunRequest
    | session_service_pb2.UnpauseRunRequest,
) -> None:
    """Refuses a request on the live run that names nothing."""
    if not request.session_id and not request.run_id:
        raise invalid("session_id", "is required without run_id")


def restore_run(request: session_service_pb2.RestoreRunRequest) -> RestoreRun:
    """Converts RestoreRun."""
    return RestoreRun(request.run_id, request.expected_activation_id, request.force)


def settle_run(request: admin_service_pb2.SettleRunRequest) -> SettleRun:
    """Converts SettleRun."""
    reason = StopReason(request.stop_reason) if request.stop_reason else StopReason.FAILED
    return SettleRun(request.run_id, reason, request.reason)


def fork(request: history_service_pb2.ForkSessionRequest) -> ForkRequest:
    """Converts ForkSession."""
    has = request.HasField
    metadata_json = None
    if has("metadata_json"):
        metadata_json = _object(request.metadata_json, "metadata_json")
    content: Content | None = None
    run_options: RunOptions | None = None
    if has("input"):
        first = request.input
        content = input_content(first.content, first.metadata, "input.")
        if first.HasField("run_options"):
            run_options = options(first.run_options, "input.run_options")
    return ForkRequest(
        display_name=request.display_name,
        labels=dict(request.labels) or None,
        metadata_json=metadata_json,
        default_agent=request.default_agent if has("default_agent") else None,
        input=content,
        options=run_options,
    )


def event_query(request: session_service_pb2.StreamEventsRequest) -> EventQuery:
    """Converts StreamEvents."""
    start = request.WhichOneof("start")
    return EventQuery(
        after=request.after_sequence if start == "after_sequence" else None,
        last_events=request.last_events if start == "last_events" else None,
        follow=request.follow if request.HasField("follow") else True,
        run_ids=frozenset(request.run_ids),
        types=frozenset(request.types),
        include_messages=request.include_messages,
        include_deltas=request.include_deltas,
        include_control=request.include_control,
    )


def session_filter(request: history_service_pb2.ListSessionsRequest) -> SessionFilter:
    """Converts the filters of ListSessions."""
    _check_labels(request.labels)
    first = before = 0
    if request.HasField("create_time_from"):
        # No session is older than 1970, and 0 means no bound.
        first = max(0, time_micros(request.create_time_from, "create_time_from"))
    if request.HasField("create_time_before"):
        before = max(1, time_micros(request.create_time_before, "create_time_before"))
    return SessionFilter(
        labels=dict(request.labels),
        status=SessionStatus(request.state) if request.state else None,
        create_time_from=first,
        create_time_before=before,
        roots_only=request.roots_only,
    )


def session_order(request: history_service_pb2.ListSessionsRequest) -> int:
    """Returns the order that is asked for."""
    return int(request.order) or SessionOrder.CREATED_DESC


def _check_labels(labels: Mapping[str, str], field: str = "labels") -> None:
    for key, value in labels.items():
        if "\0" in key or "\0" in value:
            raise invalid(field, "must not contain U+0000")
    check_metadata(labels, field)


def wait_micros(given: Duration) -> int:
    """Returns how long a call asks to wait."""
    return duration_micros(given, "wait_duration")


def lease_micros(
    request: executor_service_pb2.PollActivationRequest
    | executor_service_pb2.HeartbeatRequest
    | executor_service_pb2.CommitRequest,
) -> int:
    """Returns how long a lease is to last."""
    if not request.HasField("lease_duration"):
        return LEASE_DURATION_DEFAULT
    return duration_micros(request.lease_duration, "lease_duration")


def fence(given: run_pb2.Fence) -> Fence:
    """Converts a fence."""
    return Fence(given.session_id, given.run_id, given.activation_id, given.epoch)


def commit(request: executor_service_pb2.CommitRequest) -> CommitRun:
    """Converts Commit."""
    return CommitRun(
        fence(request.fence),
        [
            _operation(operation, f"operations[{index}].")
            for index, operation in enumerate(request.operations)
        ],
        _outcome(request),
        lease_micros(request),
    )


def _operation(given: executor_service_pb2.Operation, path: str) -> Operation:
    kind = given.WhichOneof("operation")
    if kind == "reserve_model_step":
        return ReserveModelStep()
    if kind == "claim_tool_calls":
        claim = given.claim_tool_calls
        return ClaimToolCalls(tuple(claim.tool_call_ids), claim.idempotent)
    if kind == "commit_tool_results":
        return _results(given.commit_tool_results, f"{path}commit_tool_results.")
    if kind == "start_child_run":
        return _start_child(given.start_child_run, f"{path}start_child_run.")
    if kind == "record_compaction":
        return _compaction(given.record_compaction)
    step = given.commit_model_step
    used = step.usage
    return CommitModelStep(
        step_content(step.content, f"{path}commit_model_step."),
        Usage(
            used.input_tokens,
            used.output_tokens,
            used.cached_input_tokens,
            used.reasoning_tokens,
            used.cost_usd_micros,
        ),
        step.model,
        step.finish_reason,
    )


def _start_child(given: executor_service_pb2.StartChildRun, path: str) -> StartChildRun:
    _check_labels(given.labels, f"{path}labels")
    asked = None
    if given.HasField("run_options"):
        asked = options(given.run_options, f"{path}run_options")
    return StartChildRun(
        given.tool_call_id,
        input_content(given.content, {}, path),
        SessionRecord(given.display_name, dict(given.labels)),
        asked,
    )


def _compaction(given: executor_service_pb2.RecordCompaction) -> RecordCompaction:
    used = given.usage
    return RecordCompaction(
        given.through_message_number,
        given.summary,
        Usage(
            cost_usd_micros=used.cost_usd_micros,
            compaction_input_tokens=used.input_tokens,
            compaction_output_tokens=used.output_tokens,
        ),
        given.model,
    )


def _results(given: executor_service_pb2.CommitToolResults, path: str) -> CommitToolResults:
    check_size(given.ByteSize())
    results: list[ToolResult] = []
    names: set[str] = set()
    for index, one in enumerate(given.results):
        field = f"{path}results[{index}]."
        if one.tool_call_id in names:
            raise invalid(f"{field}tool_call_id", "has a result in this list already")
        names.add(one.tool_call_id)
        content = result_content(one, field)
        results.append(ToolResult(one.tool_call_id, ToolOutcome(one.outcome), content))
    return CommitToolResults(tuple(results))


def _outcome(
    request: executor_service_pb2.CommitRequest,
) -> Finish | Suspend | SuspendForChildren | Release | None:
    kind = request.WhichOneof("outcome")
    if kind is None:
        return None
    if kind == "suspend":
        if request.suspend.WhichOneof("wait") == "children":
            wait = request.suspend.children
            if request.suspend.HasField("expire_duration"):
                raise invalid("suspend.expire_duration", "is allowed with a prompt alone")
            mode = ChildrenMode(wait.mode or ChildrenMode.ALL)
            return SuspendForChildren(mode, tuple(wait.run_ids))
        return suspend(request.suspend, "suspend.")
    if kind == "release":
        return Release(request.release.reason)
    finish = request.finish
    how = finish.WhichOneof("outcome")
    if how == "completed":
        output = finish.completed.output_json
        if output:
            check_json(output, "finish.completed.output_json")
        return Finish(FinishKind.COMPLETED, output)
    if how == "cancelled":
        return Finish(FinishKind.CANCELLED)
    failed = finish.failed
    return Finish(
        FinishKind.FAILED,
        failure=Failure(_FAILURES[failed.reason], failed.message, failed.retryable),
    )


def deltas(request: executor_service_pb2.PublishDeltasRequest, of: Fence) -> list[Delta]:
    """Converts pieces of a model answer; run and activation are those of the fence."""
    return [_delta(given, of, f"deltas[{index}]") for index, given in enumerate(request.deltas)]


def _delta(given: event_pb2.Delta, of: Fence, path: str) -> Delta:
    kind = _DELTA_KINDS.get(given.kind)
    if kind is None:
        raise invalid(f"{path}.kind", "must be one of the defined enum values, not 0")
    if not 0 < len(given.model_stream_id) <= _ID_CHARACTERS_MAX:
        raise _range(f"{path}.model_stream_id", 1, _ID_CHARACTERS_MAX, " characters")
    if given.step < 1:
        raise _range(f"{path}.step", 1, _INT32_MAX)
    if not 0 <= given.block_index <= _BLOCK_INDEX_MAX:
        raise _range(f"{path}.block_index", 0, _BLOCK_INDEX_MAX)
    if given.base_revision < 0:
        raise _range(f"{path}.base_revision", 0, _INT32_MAX)
    if given.revision < 1:
        raise _range(f"{path}.revision", 1, _INT32_MAX)
    piece = given.WhichOneof("piece")
    append_text = snapshot_text = None
    if piece == "append_text":
        append_text = _piece(given.append_text, f"{path}.append_text")
    elif piece == "snapshot_text":
        snapshot_text = _piece(given.snapshot_text, f"{path}.snapshot_text")
    elif not given.block_done:
        raise invalid(f"{path}.piece", "exactly one field is required in oneof")
    return Delta(
        given.model_stream_id,
        of.run_id,
        of.activation_id,
        given.step,
        given.block_index,
        kind,
        given.base_revision,
        given.revision,
        append_text,
        snapshot_text,
        piece == "block_done",
    )


def _piece(text: str, field: str) -> str:
    if len(text) * 4 > DELTA_TEXT_BYTES_MAX and len(text.encode()) > DELTA_TEXT_BYTES_MAX:
        raise invalid(field, f"must hold at most {DELTA_TEXT_BYTES_MAX} bytes")
    if "\0" in text:
        raise invalid(field, "must not contain U+0000")
    return text


def _range(field: str, first: int, last: int, unit: str = "") -> Refused:
    return invalid(field, f"must be from {first} to {last}{unit}")
