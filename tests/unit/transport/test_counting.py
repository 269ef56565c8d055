"""Calls are counted by how they end, and a fault names what it was about."""

import grpc
import pytest
from fakes import FakeApp, serving
from runlane.v1 import (
    executor_service_pb2,
    executor_service_pb2_grpc,
    run_pb2,
    session_service_pb2_grpc,
)
from runlane.v1 import session_service_pb2 as pb
from runlane_server.store.errors import StoreUnavailable
from structlog.testing import capture_logs

pytestmark = pytest.mark.asyncio


async def failed(app: FakeApp, error: Exception, call) -> dict:
    app.raising = error
    async with serving(app) as (_, channel):
        with capture_logs() as lines, pytest.raises(grpc.aio.AioRpcError):
            await call(channel)
    (line,) = lines
    assert "said" not in repr(line)
    return line


async def get(channel):
    stub = session_service_pb2_grpc.SessionServiceStub(channel)
    request = pb.CloseSessionRequest(session_id="ses_1", request_id="req_1")
    await stub.CloseSession(request)


async def beat(channel):
    stub = executor_service_pb2_grpc.ExecutorServiceStub(channel)
    fence = run_pb2.Fence(session_id="s", run_id="run_1", activation_id="act_1", epoch=1)
    await stub.Heartbeat(executor_service_pb2.HeartbeatRequest(fence=fence))


async def test_a_fault_names_request_and_session():
    line = await failed(FakeApp(), ValueError("what somebody said"), get)
    assert line["event"] == "incident"
    assert (line["session_id"], line["request_id"]) == ("ses_1", "req_1")
    assert line["method"] == "CloseSession"


async def test_an_outage_names_the_run_of_a_fence():
    line = await failed(FakeApp(), StoreUnavailable("full"), beat)
    assert line["event"] == "store unavailable"
    told = {name: line[name] for name in ("session_id", "run_id", "activation_id")}
    assert told == {"session_id": "s", "run_id": "run_1", "activation_id": "act_1"}
