"""Errors are made from what the call failed with."""

import grpc
import grpc.aio
import pytest
from client_fakes import details_of
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from runlane import errors
from runlane._retry import Policy, delay, reopenable, retryable

DETAILS = "grpc-status-details-bin"


def rpc_error(code: grpc.StatusCode, *trailing: tuple[str, str | bytes]) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), "text")


@pytest.mark.parametrize("kind", errors.ServiceError.__subclasses__(), ids=lambda k: k.REASON)
def test_each_reason_gives_its_class(kind: type[errors.ServiceError]):
    code = grpc.StatusCode.FAILED_PRECONDITION
    details = details_of(code, kind.REASON, run_id="run_1")
    error = errors.from_rpc_error(rpc_error(code, (DETAILS, details)))
    assert type(error) is kind
    assert isinstance(error, errors.RunlaneError)
    assert (error.reason, error.code, error.message) == (kind.REASON, code, "text")
    assert dict(error.metadata) == {"run_id": "run_1"}
    assert str(error) == f"{kind.REASON}: text"


def test_a_new_reason_is_a_plain_service_error():
    code = grpc.StatusCode.FAILED_PRECONDITION
    details = details_of(code, "MOON_IS_FULL")
    error = errors.from_rpc_error(rpc_error(code, (DETAILS, details)))
    assert type(error) is errors.ServiceError
    assert error.reason == "MOON_IS_FULL"


def test_an_error_without_error_info_came_from_the_transport():
    error = errors.from_rpc_error(rpc_error(grpc.StatusCode.UNAVAILABLE))
    assert type(error) is errors.TransportError
    assert error.code is grpc.StatusCode.UNAVAILABLE
    assert error.retry_after is None


def test_broken_details_and_foreign_domains_are_the_transports():
    code = grpc.StatusCode.INTERNAL
    broken = errors.from_rpc_error(rpc_error(code, (DETAILS, b"\xff\xff\xff")))
    assert type(broken) is errors.TransportError
    foreign = details_of(code, "SESSION_BUSY").replace(b"runlane.dev", b"example.dev")
    error = errors.from_rpc_error(rpc_error(code, (DETAILS, foreign)))
    assert type(error) is errors.TransportError


def test_retry_info_is_heeded_before_pushback():
    code = grpc.StatusCode.UNAVAILABLE
    retry = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=1, nanos=500_000_000))
    details = details_of(code, "DRAINING", "no", retry)
    pushback = ("grpc-retry-pushback-ms", "250")
    both = errors.from_rpc_error(rpc_error(code, pushback, (DETAILS, details)))
    assert both.retry_after == 1.5
    alone = errors.from_rpc_error(rpc_error(code, pushback))
    assert alone.retry_after == 0.25
    nonsense = errors.from_rpc_error(rpc_error(code, ("grpc-retry-pushback-ms", "soon")))
    assert nonsense.retry_after is None


def test_violations_name_the_fields():
    code = grpc.StatusCode.INVALID_ARGUMENT
    violation = error_details_pb2.BadRequest.FieldViolation(field="content", description="empty")
    bad = error_details_pb2.BadRequest(field_violations=[violation])
    error = errors.from_rpc_error(
        rpc_error(code, (DETAILS, details_of(code, "FIELD_INVALID", "no", bad)))
    )
    assert isinstance(error, errors.FieldInvalid)
    assert error.violations == (("content", "empty"),)
    assert error.violations[0].field == "content"


@pytest.mark.parametrize(("retry_after", "again"), [(0.25, True), (None, False)])
def test_only_what_time_heals_of_a_quota_is_tried_again(retry_after, again):
    error = errors.QuotaExceeded(
        "QUOTA_EXCEEDED",
        "too much",
        code=grpc.StatusCode.RESOURCE_EXHAUSTED,
        retry_after=retry_after,
    )
    assert retryable(error, Policy()) is again
    for connected in (False, True):
        assert reopenable(error, connected=connected) is again
    if retry_after is not None:
        assert delay(1, error) > retry_after
