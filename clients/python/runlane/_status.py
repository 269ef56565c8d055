"""What a failed call says: the status, its details and its trailers."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, cast

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

_DOMAIN: Final = "runlane.dev"
_DETAILS_KEY: Final = "grpc-status-details-bin"
_PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"


class Told(NamedTuple):
    """What was said; without a reason the service itself said nothing."""

    code: grpc.StatusCode
    message: str
    retry_after: float | None
    reason: str = ""
    metadata: Mapping[str, str] | None = None
    violations: tuple[tuple[str, str], ...] = ()


def read_status(error: grpc.RpcError) -> Told:
    """Reads what a stub raised."""
    code = error.code()
    message = error.details() or ""
    details: bytes | None = None
    pushback: float | None = None
    for key, value in cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ()):
        if key == _DETAILS_KEY and isinstance(value, bytes):
            details = value
        elif key == _PUSHBACK_KEY:
            pushback = _milliseconds(value)
    if details is None:
        return Told(code, message, pushback)
    return _read_details(code, message, details, pushback)


def _milliseconds(value: str | bytes) -> float | None:
    try:
        return int(value) / 1000
    except ValueError:
        return None


def _read_details(
    code: grpc.StatusCode, message: str, details: bytes, pushback: float | None
) -> Told:
    status = status_pb2.Status()
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    bad = error_details_pb2.BadRequest()
    retry_after = pushback
    try:
        status.ParseFromString(details)
        for detail in status.details:
            if detail.Unpack(retry):
                retry_after = retry.retry_delay.ToTimedelta().total_seconds()
            elif not detail.Unpack(bad):
                detail.Unpack(info)
    except DecodeError:
        return Told(code, message, pushback)
    if not info.reason or info.domain != _DOMAIN:
        return Told(code, message, retry_after)
    return Told(
        code,
        message or status.message,
        retry_after,
        info.reason,
        dict(info.metadata),
        tuple((one.field, one.description) for one in bad.field_violations),
    )
