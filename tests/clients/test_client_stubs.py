"""The generated stubs, blocking, on the channel of grpcio-testing."""

from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc_testing
import pytest
from client_fakes import details_of
from runlane import errors
from runlane.v1 import message_pb2, session_pb2, submission_pb2
from runlane.v1 import session_service_pb2 as pb
from runlane.v1.session_service_pb2_grpc import SessionServiceStub

SERVICE = pb.DESCRIPTOR.services_by_name["SessionService"]


@pytest.fixture
def channel():
    return grpc_testing.channel([SERVICE], grpc_testing.strict_real_time())


@pytest.fixture
def threads():
    with ThreadPoolExecutor(1) as pool:
        yield pool


def answer(channel, method, response, *, code=grpc.StatusCode.OK, trailing=()):
    metadata, request, rpc = channel.take_unary_unary(SERVICE.methods_by_name[method])
    rpc.send_initial_metadata(())
    rpc.terminate(response, trailing, code, "" if code is grpc.StatusCode.OK else "no")
    return metadata, request


def test_submit(channel, threads):
    stub = SessionServiceStub(channel)
    request = pb.SubmitRequest(
        session_id="main",
        mode=submission_pb2.Submission.MODE_STEER,
        content=[message_pb2.Block(text="go on")],
        request_id="r-1",
    )
    future = threads.submit(stub.Submit, request, timeout=5)
    submission = submission_pb2.Submission(
        submission_id="sub_1", state=submission_pb2.Submission.STATE_PENDING
    )
    _, seen = answer(channel, "Submit", pb.SubmitResponse(submission=submission, sequence=7))
    assert seen == request
    response = future.result(timeout=5)
    assert response.submission.submission_id == "sub_1"
    assert response.sequence == 7


def test_get_live_state(channel, threads):
    stub = SessionServiceStub(channel)
    request = pb.GetLiveStateRequest(session_id="main", message_limit=0)
    future = threads.submit(stub.GetLiveState, request, timeout=5)
    live = session_pb2.LiveState(sequence=3, allowed_commands=[session_pb2.COMMAND_START])
    _, seen = answer(channel, "GetLiveState", pb.GetLiveStateResponse(live_state=live))
    assert seen.HasField("message_limit")
    assert future.result(timeout=5).live_state == live


def test_an_error_status_becomes_the_class_of_its_reason(channel, threads):
    stub = SessionServiceStub(channel)
    future = threads.submit(stub.Submit, pb.SubmitRequest(session_id="main"), timeout=5)
    code = grpc.StatusCode.FAILED_PRECONDITION
    details = details_of(code, "SESSION_BUSY", run_id="run_1", phase="ACTIVE")
    answer(channel, "Submit", None, code=code, trailing=(("grpc-status-details-bin", details),))
    with pytest.raises(grpc.RpcError) as caught:
        future.result(timeout=5)
    error = errors.from_rpc_error(caught.value)
    assert type(error) is errors.SessionBusy
    assert error.metadata["run_id"] == "run_1"
