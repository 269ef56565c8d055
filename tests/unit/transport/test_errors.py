import grpc
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2
from runlane.v1 import error_reason_pb2
from runlane_server.core.errors import Reason, Refused, invalid
from runlane_server.core.quotas import exceeded
from runlane_server.transport.errors import TABLE, Detail, is_of_request, status_of

CODES = {
    grpc.StatusCode.INVALID_ARGUMENT: "FIELD_INVALID INPUT_EMPTY OPTIONS_NOT_ALLOWED PAGE_TOKEN_INVALID PAGE_TOKEN_MISMATCH OPERATION_INVALID ANSWER_INVALID",
    grpc.StatusCode.NOT_FOUND: "SESSION_NOT_FOUND RUN_NOT_FOUND SUBMISSION_NOT_FOUND INTERACTION_NOT_FOUND TOOL_CALL_NOT_FOUND AGENT_NOT_FOUND KEY_NOT_FOUND",
    grpc.StatusCode.ALREADY_EXISTS: "SESSION_EXISTS REQUEST_ID_REUSED",
    grpc.StatusCode.FAILED_PRECONDITION: "SESSION_BUSY SESSION_IDLE SESSION_CLOSED SESSION_LIVE CHILD_SESSION RUN_NOT_CURRENT RUN_NOT_TERMINAL RUN_NOT_TOP_LEVEL RUN_TERMINAL RUN_CANCELLING INTERACTION_CLOSED INTERACTION_CONFLICT SUBMISSION_SETTLED CALL_UNRESOLVED CALL_HAS_CHILD STALE_ACTIVATION",
    grpc.StatusCode.ABORTED: "REVISION_MISMATCH ETAG_MISMATCH ACTIVATION_MISMATCH",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "QUEUE_FULL QUOTA_EXCEEDED STREAM_LIMIT MESSAGE_TOO_LARGE",
    grpc.StatusCode.OUT_OF_RANGE: "SEQUENCE_AHEAD",
    grpc.StatusCode.UNAUTHENTICATED: "CREDENTIAL_MISSING CREDENTIAL_INVALID",
    grpc.StatusCode.PERMISSION_DENIED: "SCOPE_MISSING",
    grpc.StatusCode.UNAVAILABLE: "DRAINING STREAM_ENDED STORE_UNAVAILABLE",
    grpc.StatusCode.DATA_LOSS: "STORE_CORRUPT",
    grpc.StatusCode.INTERNAL: "INTERNAL_ERROR",
}


def unpacked(status):
    trailers = dict(status.trailers)
    packed = trailers["grpc-status-details-bin"]
    assert len(packed) <= 4096
    read = status_pb2.Status.FromString(packed)
    assert read.code == status.code.value[0]
    assert read.message == status.message
    assert len(read.message.encode()) <= 512
    found = {}
    for detail in read.details:
        kind = detail.TypeName().rpartition(".")[2]
        found[kind] = getattr(error_details_pb2, kind)()
        assert detail.Unpack(found[kind])
    return found, trailers


def test_the_table_is_whole():
    assert set(TABLE) == set(Reason)
    found = {}
    for reason, row in TABLE.items():
        found.setdefault(row.code, []).append(reason.value)
    assert found == {code: words.split() for code, words in CODES.items()}


def test_the_reasons_are_those_of_the_proto():
    names = [name.removeprefix("ERROR_REASON_") for name in error_reason_pb2.ErrorReason.keys()]  # noqa: SIM118
    assert names[1:] == [reason.value for reason in Reason]


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_told_in_full(reason):
    error = Refused(
        reason, "text", violations=(("a.b", "is wrong"),), run_id="run_1", queue="steers"
    )
    status = status_of(error, "Submit")
    found, trailers = unpacked(status)
    info = found.pop("ErrorInfo")
    assert (info.reason, info.domain, info.metadata["run_id"]) == (
        reason.value,
        "runlane.dev",
        "run_1",
    )
    expected = {
        Detail.NONE: [],
        Detail.FIELDS: ["BadRequest"],
        Detail.PRECONDITION: ["PreconditionFailure"],
        Detail.QUOTA: ["QuotaFailure"],
    }[TABLE[reason].detail]
    assert list(found) == expected + ["RetryInfo"] * bool(TABLE[reason].retry_ms)
    if "BadRequest" in found:
        assert found["BadRequest"].field_violations[0].field == "a.b"
    if "PreconditionFailure" in found:
        assert found["PreconditionFailure"].violations[0].type == reason.value
    if "QuotaFailure" in found:
        assert found["QuotaFailure"].violations[0].subject == "steers"
    assert ("grpc-retry-pushback-ms" in trailers) == ("RetryInfo" in found)
    if "RetryInfo" in found:
        delay = found["RetryInfo"].retry_delay
        assert delay.ToMilliseconds() == int(trailers["grpc-retry-pushback-ms"]) > 0
    assert (status.code is grpc.StatusCode.UNAVAILABLE) == ("RetryInfo" in found)


def test_a_refusal_that_says_when_to_try_again_is_told_with_it():
    refused = exceeded("requests_per_second", 5, "too many", 1_234_567)
    found, trailers = unpacked(status_of(refused, "Submit"))
    assert found["ErrorInfo"].metadata == {"quota": "requests_per_second", "limit": "5"}
    violation = found["QuotaFailure"].violations[0]
    assert (violation.subject, violation.description) == ("requests_per_second", "too many")
    assert found["RetryInfo"].retry_delay.ToMilliseconds() == 1235
    assert trailers["grpc-retry-pushback-ms"] == "1235"


def test_what_is_refused_for_itself():
    told = {reason for reason in Reason if is_of_request(Refused(reason))}
    arguments = {reason for reason in Reason if TABLE[reason].detail is Detail.FIELDS}
    assert told == arguments | {Reason.MESSAGE_TOO_LARGE, Reason.REQUEST_ID_REUSED}


@pytest.mark.parametrize("key", ["run_id", "submission_id", "interaction_id", "tool_call_id"])
def test_a_precondition_names_its_subject(key):
    found, _ = unpacked(status_of(Refused(Reason.CALL_UNRESOLVED, **{key: "x"}), "Commit"))
    assert found["PreconditionFailure"].violations[0].subject == "x"


def test_what_is_large_is_cut():
    many = tuple((f"field[{n}]." + "é" * 500, "é" * 5000) for n in range(1000))
    error = Refused(Reason.FIELD_INVALID, "é" * 5000, violations=many, value="é" * 5000)
    status = status_of(error, "Submit")
    found, _ = unpacked(status)
    assert found["ErrorInfo"].reason == "FIELD_INVALID"
    assert found["BadRequest"].field_violations[0].field.startswith("field[0].")
    many = {f"key{n}": "v" * 5000 for n in range(12)}
    found, _ = unpacked(status_of(Refused(Reason.SESSION_BUSY, "x" * 600, **many), "Submit"))
    assert len(found["ErrorInfo"].metadata) == 12


def test_one_field():
    found, _ = unpacked(status_of(invalid("content[0].text", "is wrong"), "Submit"))
    violation = found["BadRequest"].field_violations[0]
    assert (violation.field, violation.description) == ("content[0].text", "is wrong")


def test_a_fault_is_logged_under_its_id_without_its_text():
    def broken():
        raise ValueError("the user's secret")

    with structlog.testing.capture_logs() as logs:
        try:
            broken()
        except ValueError as error:
            status = status_of(error, "Submit")
    found, trailers = unpacked(status)
    assert dict(found["ErrorInfo"].metadata) == {"incident_id": logs[0]["incident_id"]}
    assert status.message == "a fault of the server"
    assert b"secret" not in trailers["grpc-status-details-bin"]
    assert "secret" not in repr(logs)
    assert any("broken" in frame for frame in logs[0]["frames"])
    assert (logs[0]["method"], logs[0]["kind"]) == ("Submit", "ValueError")
