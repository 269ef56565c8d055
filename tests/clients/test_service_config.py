"""The table of deadlines and retries, as gRPC itself takes it."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from runlane._retry import TABLE
from runlane.v1 import history_service_pb2 as history_pb
from runlane.v1 import session_service_pb2 as pb
from runlane.v1.history_service_pb2_grpc import HistoryServiceStub
from runlane.v1.session_service_pb2_grpc import SessionServiceStub

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "clients" / "service_config.json").read_text(encoding="utf-8")


def rows() -> dict[str, dict[str, object]]:
    return {
        f"{name['service']}/{name['method']}": config
        for config in json.loads(TEXT)["methodConfig"]
        for name in config["name"]
    }


def test_each_call_is_in_it_once():
    names = [
        f"{name['service']}/{name['method']}"
        for config in json.loads(TEXT)["methodConfig"]
        for name in config["name"]
    ]
    assert sorted(names) == sorted(TABLE["methods"])
    assert len(set(names)) == len(names)


def test_only_what_gRPC_can_see_to_be_safe_is_repeated():
    for name, config in rows().items():
        safe = TABLE["methods"][name]["repeat"] in {"read", "same", "cursor", "anew"}
        assert ("retryPolicy" in config) == safe, name


class Away(grpc.GenericRpcHandler):
    """Is away for the first two attempts of each method."""

    def __init__(self) -> None:
        self.attempts = Counter()

    def service(self, handler_call_details):
        method = handler_call_details.method.rpartition("/")[2]

        def answer(request, context):
            self.attempts[method] += 1
            if self.attempts[method] < 3:
                context.abort(grpc.StatusCode.UNAVAILABLE, "away")
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def away():
    handler = Away()
    server = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    options = [("grpc.service_config", TEXT)]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        yield handler, channel
    server.stop(None).wait()


def test_grpc_repeats_a_read_and_no_mutation(away):
    handler, channel = away
    sessions, history = SessionServiceStub(channel), HistoryServiceStub(channel)
    sessions.GetSession(pb.GetSessionRequest(session_id="main"))
    history.GetRun(history_pb.GetRunRequest(run_id="run"))
    with pytest.raises(grpc.RpcError) as raised:
        sessions.Submit(pb.SubmitRequest(session_id="main"))
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    assert handler.attempts == {"GetSession": 3, "GetRun": 3, "Submit": 1}
