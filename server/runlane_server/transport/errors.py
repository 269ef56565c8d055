"""The one table of errors: reason -> code and details of google.rpc.Status.

Whatever is raised behind the door leaves it through `status_of`. Nothing but
what a Refused says of itself reaches a caller; the rest is INTERNAL_ERROR with
an id that finds it in the log.
"""

import traceback
from enum import Enum
from typing import Any, NamedTuple
from uuid import uuid4

import grpc
import structlog
from google.protobuf import any_pb2
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from runlane_server.core.errors import Reason, Refused
from runlane_server.store.errors import StoreCorrupt, StoreError, StoreUnavailable
from runlane_server.transport.counting import call_ids

DOMAIN = "runlane.dev"
MESSAGE_BYTES_MAX = 512
STATUS_BYTES_MAX = 4096
_VALUE_BYTES_MAX = 256
_VIOLATIONS_MAX = 16
_SUBJECTS = ("run_id", "submission_id", "interaction_id", "tool_call_id")

_log = structlog.get_logger(__name__)


class Detail(Enum):
    """What stands beside ErrorInfo."""

    NONE = 0
    FIELDS = 1
    PRECONDITION = 2
    QUOTA = 3


class ErrorRow(NamedTuple):
    """How a reason is told.

    Attributes:
        retry_ms: When to try again, where the refusal does not say.
    """

    code: grpc.StatusCode
    detail: Detail = Detail.NONE
    retry_ms: int = 0


_ARGUMENT = ErrorRow(grpc.StatusCode.INVALID_ARGUMENT, Detail.FIELDS)
_NOT_FOUND = ErrorRow(grpc.StatusCode.NOT_FOUND)
_EXISTS = ErrorRow(grpc.StatusCode.ALREADY_EXISTS)
_PRECONDITION = ErrorRow(grpc.StatusCode.FAILED_PRECONDITION, Detail.PRECONDITION)
_ABORTED = ErrorRow(grpc.StatusCode.ABORTED)
_EXHAUSTED = ErrorRow(grpc.StatusCode.RESOURCE_EXHAUSTED, Detail.QUOTA)

TABLE: dict[Reason, ErrorRow] = {
    Reason.FIELD_INVALID: _ARGUMENT,
    Reason.INPUT_EMPTY: _ARGUMENT,
    Reason.OPTIONS_NOT_ALLOWED: _ARGUMENT,
    Reason.PAGE_TOKEN_INVALID: _ARGUMENT,
    Reason.PAGE_TOKEN_MISMATCH: _ARGUMENT,
    Reason.OPERATION_INVALID: _ARGUMENT,
    Reason.ANSWER_INVALID: _ARGUMENT,
    Reason.SESSION_NOT_FOUND: _NOT_FOUND,
    Reason.RUN_NOT_FOUND: _NOT_FOUND,
    Reason.SUBMISSION_NOT_FOUND: _NOT_FOUND,
    Reason.INTERACTION_NOT_FOUND: _NOT_FOUND,
    Reason.TOOL_CALL_NOT_FOUND: _NOT_FOUND,
    Reason.AGENT_NOT_FOUND: _NOT_FOUND,
    Reason.KEY_NOT_FOUND: _NOT_FOUND,
    Reason.SESSION_EXISTS: _EXISTS,
    Reason.REQUEST_ID_REUSED: _EXISTS,
    Reason.SESSION_BUSY: _PRECONDITION,
    Reason.SESSION_IDLE: _PRECONDITION,
    Reason.SESSION_CLOSED: _PRECONDITION,
    Reason.SESSION_LIVE: _PRECONDITION,
    Reason.CHILD_SESSION: _PRECONDITION,
    Reason.RUN_NOT_CURRENT: _PRECONDITION,
    Reason.RUN_NOT_TERMINAL: _PRECONDITION,
    Reason.RUN_NOT_TOP_LEVEL: _PRECONDITION,
    Reason.RUN_TERMINAL: _PRECONDITION,
    Reason.RUN_CANCELLING: _PRECONDITION,
    Reason.INTERACTION_CLOSED: _PRECONDITION,
    Reason.INTERACTION_CONFLICT: _PRECONDITION,
    Reason.SUBMISSION_SETTLED: _PRECONDITION,
    Reason.CALL_UNRESOLVED: _PRECONDITION,
    Reason.CALL_HAS_CHILD: _PRECONDITION,
    Reason.STALE_ACTIVATION: _PRECONDITION,
    Reason.REVISION_MISMATCH: _ABORTED,
    Reason.ETAG_MISMATCH: _ABORTED,
    Reason.ACTIVATION_MISMATCH: _ABORTED,
    Reason.QUEUE_FULL: _EXHAUSTED,
    Reason.QUOTA_EXCEEDED: _EXHAUSTED,
    Reason.STREAM_LIMIT: _EXHAUSTED,
    Reason.MESSAGE_TOO_LARGE: _EXHAUSTED,
    Reason.SEQUENCE_AHEAD: ErrorRow(grpc.StatusCode.OUT_OF_RANGE),
    Reason.CREDENTIAL_MISSING: ErrorRow(grpc.StatusCode.UNAUTHENTICATED),
    Reason.CREDENTIAL_INVALID: ErrorRow(grpc.StatusCode.UNAUTHENTICATED),
    Reason.SCOPE_MISSING: ErrorRow(grpc.StatusCode.PERMISSION_DENIED),
    Reason.DRAINING: ErrorRow(grpc.StatusCode.UNAVAILABLE, retry_ms=1000),
    Reason.STREAM_ENDED: ErrorRow(grpc.StatusCode.UNAVAILABLE, retry_ms=200),
    Reason.STORE_UNAVAILABLE: ErrorRow(grpc.StatusCode.UNAVAILABLE, retry_ms=1000),
    Reason.STORE_CORRUPT: ErrorRow(grpc.StatusCode.DATA_LOSS),
    Reason.INTERNAL_ERROR: ErrorRow(grpc.StatusCode.INTERNAL),
}


class Status(NamedTuple):
    """A status as gRPC sends it."""

    code: grpc.StatusCode
    message: str
    trailers: tuple[tuple[str, str | bytes], ...]
    reason: str


def is_of_request(refused: Refused) -> bool:
    """Tells whether a request is refused for itself, whatever the state of things."""
    if refused.reason in {Reason.MESSAGE_TOO_LARGE, Reason.REQUEST_ID_REUSED}:
        return True
    return TABLE[refused.reason] is _ARGUMENT


def status_of(error: BaseException, method: str) -> Status:
    """Returns the status of whatever was raised; logs it where it is a fault."""
    return _encode(refusal_of(error, method))


def refusal_of(error: BaseException, method: str) -> Refused:
    """Returns the refusal that tells a caller of an error."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, StoreUnavailable):
        _log.warning("store unavailable", method=method, error=str(error), **call_ids())
        return Refused(Reason.STORE_UNAVAILABLE, "the store does not take or give data now")
    incident = uuid4().hex
    # The text of a foreign exception may quote what a user wrote: only its kind and the
    # places it came through are logged. What a store says of itself is meant for operators.
    _log.error(
        "incident",
        incident_id=incident,
        method=method,
        kind=type(error).__qualname__,
        error=str(error) if isinstance(error, StoreError) else "",
        frames=_frames(error),
        **call_ids(),
    )
    if isinstance(error, StoreCorrupt):
        return Refused(
            Reason.STORE_CORRUPT, "what the store holds fails its checks", incident_id=incident
        )
    return Refused(Reason.INTERNAL_ERROR, "a fault of the server", incident_id=incident)


def _frames(error: BaseException) -> list[str]:
    frames: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(frames) < 64:
        frames.append(type(cause).__qualname__)
        frames += [
            f"{frame.filename}:{frame.lineno} {frame.name}"
            for frame in traceback.extract_tb(cause.__traceback__, limit=-24)
        ]
        cause = cause.__cause__
    return frames


def _cut(text: str, limit: int) -> str:
    data = text.encode("utf-8", "replace")
    return text if len(data) <= limit else data[:limit].decode("utf-8", "ignore")


def _pack(detail: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def _encode(refused: Refused) -> Status:
    row = TABLE[refused.reason]
    message = _cut(refused.message, MESSAGE_BYTES_MAX)
    details: list[Any] = [
        error_details_pb2.ErrorInfo(
            reason=refused.reason.value,
            domain=DOMAIN,
            metadata={
                key: _cut(value, _VALUE_BYTES_MAX) for key, value in refused.metadata.items()
            },
        )
    ]
    extra = _extra(row, refused, message)
    if extra is not None:
        details.append(extra)
    retry_ms = refused.retry_milliseconds or row.retry_ms
    if retry_ms:
        seconds, millis = divmod(retry_ms, 1000)
        delay = Duration(seconds=seconds, nanos=millis * 1_000_000)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(
        code=row.code.value[0], message=message, details=[_pack(detail) for detail in details]
    )
    packed = status.SerializeToString()
    while len(packed) > STATUS_BYTES_MAX and len(status.details) > 1:
        # The reason and its metadata are the contract; what else is told may go.
        del status.details[-1]
        packed = status.SerializeToString()
    trailers: tuple[tuple[str, str | bytes], ...] = (("grpc-status-details-bin", packed),)
    if retry_ms:
        trailers += (("grpc-retry-pushback-ms", str(retry_ms)),)
    return Status(row.code, message, trailers, refused.reason.value)


def _extra(row: ErrorRow, refused: Refused, message: str) -> Any:
    if row.detail is Detail.FIELDS:
        return _bad_request(refused)
    if row.detail is Detail.PRECONDITION:
        subject = next(
            (refused.metadata[key] for key in _SUBJECTS if refused.metadata.get(key)), ""
        )
        failure = error_details_pb2.PreconditionFailure()
        failure.violations.add(
            type=refused.reason.value, subject=_cut(subject, _VALUE_BYTES_MAX), description=message
        )
        return failure
    if row.detail is Detail.QUOTA:
        quota = error_details_pb2.QuotaFailure()
        subject = refused.metadata.get("queue") or refused.metadata.get("quota", "")
        quota.violations.add(subject=_cut(subject, _VALUE_BYTES_MAX), description=message)
        return quota
    return None


def _bad_request(refused: Refused) -> Any:
    if not refused.violations:
        return None
    request = error_details_pb2.BadRequest()
    room = STATUS_BYTES_MAX - 2 * MESSAGE_BYTES_MAX
    for field, description in refused.violations[:_VIOLATIONS_MAX]:
        request.field_violations.add(
            field=_cut(field, _VALUE_BYTES_MAX), description=_cut(description, _VALUE_BYTES_MAX)
        )
        if len(request.field_violations) > 1 and request.ByteSize() > room:
            del request.field_violations[-1]
            break
    return request
