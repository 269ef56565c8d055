"""The golden files are what the code says, and Python's client reads them."""

import base64
import json

import grpc.aio
import pytest
import runlane
from google.protobuf import descriptor_pool, json_format
from google.protobuf.message_factory import GetMessageClass
from runlane import ServiceError, TransportError
from runlane._access import call_metadata
from runlane._content import message_from_pb
from runlane._event_convert import event_from_pb
from runlane.errors import from_rpc_error
from runlane.v1 import message_pb2, session_service_pb2

from conformance.golden import FILES, FOLDER, text


def golden(name):
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


WIRE = {one["name"]: one for one in golden("wire")}


def read(one):
    described = descriptor_pool.Default().FindMessageTypeByName(one["message"])
    return GetMessageClass(described), base64.b64decode(one["binary"])


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_what_the_code_says(name):
    """Where it is not, the contract changes: `python -m conformance.golden` writes it anew."""
    assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == text(name)


def test_there_is_no_other_file():
    assert {path.stem for path in FOLDER.iterdir()} == FILES.keys()


@pytest.mark.parametrize("name", WIRE)
def test_a_message_is_read_and_written_with_equal_content(name):
    kind, binary = read(WIRE[name])
    message = kind.FromString(binary)
    assert message.SerializeToString(deterministic=True) == binary
    told = json_format.MessageToDict(message, preserving_proto_field_name=True)
    assert told == WIRE[name]["json"]


@pytest.mark.parametrize(
    "name", sorted(WIRE.keys() - {"a_batch_of_events", "the_details_of_an_error"})
)
def test_a_message_is_made_from_its_json(name):
    kind, binary = read(WIRE[name])
    made = json_format.ParseDict(WIRE[name]["json"], kind())
    assert made == kind.FromString(binary)


def test_what_is_not_known_yet_is_kept():
    _, binary = read(WIRE["a_batch_of_events"])
    frame = session_service_pb2.StreamEventsResponse.FromString(binary)
    unknown = event_from_pb(frame.batch.events[2])
    assert isinstance(unknown, runlane.UnknownEvent)
    assert (unknown.type, unknown.may_skip, unknown.sequence) == (1000, True, 7)


def test_the_records_of_the_client_hold_the_same():
    _, binary = read(WIRE["blocks_of_every_kind"])
    message = message_from_pb(message_pb2.Message.FromString(binary))
    assert message.number == 2**53 - 1
    asked, malformed, empty = message.tool_uses
    assert asked.arguments == {"n": 9007199254740993, "b": 1.0, "a": 1, "e": "é🚀"}
    assert isinstance(asked.arguments["b"], float)
    assert (malformed.arguments, malformed.arguments_text) == (None, '{"n": 1')
    assert not empty.arguments
    assert message.content[0].text.endswith("👩‍🚀")
    assert message.content[1].inline_data == bytes(range(256))


def test_every_reason_has_an_error_of_its_own():
    classes = {
        one.REASON: one
        for one in vars(runlane).values()
        if isinstance(one, type) and issubclass(one, ServiceError) and one is not ServiceError
    }
    assert classes.keys() == golden("reasons").keys()


def test_the_details_of_an_error_are_read():
    _, binary = read(WIRE["the_details_of_an_error"])
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.aio.Metadata(),
        grpc.aio.Metadata(("grpc-status-details-bin", binary)),
        details="a run is live",
    )
    told = from_rpc_error(error)
    assert isinstance(told, runlane.SessionBusy)
    assert told.metadata == {"run_id": "run_1", "phase": "ACTIVE"}
    assert told.violations == (("content[0].text", "must not contain NUL"),)
    assert told.retry_after == pytest.approx(0.2)


def test_an_error_without_details_is_of_the_transport():
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata()
    )
    assert isinstance(from_rpc_error(error), TransportError)


def test_the_keys_of_requests_are_those_that_the_client_sends():
    sent = call_metadata("127.0.0.1:1", None, "secret", "space", "me", None)
    assert {key for key, _ in sent} == golden("metadata")["requests"].keys()
