"""What the package shows agrees with itself and with the contract."""

import importlib
import inspect
import json
import pkgutil
import re
from enum import StrEnum
from pathlib import Path

import grpc
import pytest
import runlane
from google.protobuf.descriptor_pb2 import MethodOptions
from pydantic import BaseModel, ValidationError
from runlane import _enums, _interactions, _models, _run_models, errors
from runlane._retry import POLICIES, TABLE
from runlane.v1 import (
    admin_service_pb2,
    error_reason_pb2,
    event_pb2,
    executor_service_pb2,
    history_service_pb2,
    server_service_pb2,
    session_service_pb2,
)

PROTO = Path(__file__).resolve().parents[2] / "proto"
NO_SIDE_EFFECTS = MethodOptions.IdempotencyLevel.NO_SIDE_EFFECTS
SERVICES = [
    session_service_pb2.DESCRIPTOR.services_by_name["SessionService"],
    history_service_pb2.DESCRIPTOR.services_by_name["HistoryService"],
    executor_service_pb2.DESCRIPTOR.services_by_name["ExecutorService"],
    admin_service_pb2.DESCRIPTOR.services_by_name["AdminService"],
    server_service_pb2.DESCRIPTOR.services_by_name["ServerService"],
]


def test_all_names_what_is_public_and_nothing_else():
    public = {
        name
        for name, value in vars(runlane).items()
        if not name.startswith("_") and type(value).__name__ != "module"
    }
    assert public == set(runlane.__all__)
    assert runlane.__all__ == sorted(runlane.__all__)


def test_modules_are_private_or_documented_as_public():
    public = {m.name for m in pkgutil.iter_modules(runlane.__path__) if not m.name.startswith("_")}
    assert public == {"errors", "sync", "v1"}


def test_every_module_imports_without_the_server():
    for module in pkgutil.walk_packages(runlane.__path__, "runlane."):
        source = Path(importlib.import_module(module.name).__file__)
        assert "runlane_server" not in source.read_text(encoding="utf-8"), module.name


def test_every_reason_has_its_class_and_every_class_its_reason():
    reasons = {
        name.removeprefix("ERROR_REASON_")
        for name, number in error_reason_pb2.ErrorReason.items()
        if number
    }
    assert set(errors._BY_REASON) == reasons
    for reason, kind in errors._BY_REASON.items():
        camel = "".join(word.capitalize() for word in reason.split("_"))
        assert kind.__name__ == camel
        assert getattr(runlane, camel) is kind


def test_the_drawn_tree_names_every_error():
    drawn = re.findall(r"\+-- (\w+)", errors.__doc__)
    kinds = [k.__name__ for k in (errors.ServiceError, *errors.ServiceError.__subclasses__())]
    others = {"TransportError", "StreamGapError", "ClientClosedError", "ManagerClosedError"}
    assert set(drawn) == {*kinds, *others}
    assert len(drawn) == len(set(drawn))
    made_here = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert made_here == {"RunlaneError", *drawn, "FieldViolation"}


@pytest.mark.parametrize("kind", list(_enums._SOURCES), ids=lambda kind: kind.__name__)
def test_words_are_those_of_the_contract(kind: type[StrEnum]):
    descriptor, prefix = _enums._SOURCES[kind]
    words = {v.name.removeprefix(prefix).lower() for v in descriptor.values if v.number}
    assert {member.value for member in kind} == words | {"unknown"}
    for value in descriptor.values:
        if value.number:
            assert str(_enums.member(kind, value.number)) == value.name.removeprefix(prefix).lower()
    assert _enums.member(kind, 9999) == "unknown"
    assert _enums.optional_member(kind, 0) is None


def test_event_kinds_are_those_of_the_contract():
    numbers = {number for number in event_pb2.Event.Type.values() if number}
    assert set(_enums._EVENT_KINDS) == numbers
    fields = event_pb2.Event.DESCRIPTOR.fields_by_number
    for number, kind in _enums._EVENT_KINDS.items():
        assert kind.value.replace(".", "_") == fields[number].name
        assert kind.value.count(".") == 1


def test_activation_ends_are_those_of_the_contract():
    words = {
        value.name.removeprefix("REASON_").lower()
        for owner in (event_pb2.ActivationEnded, event_pb2.ActivationAbandoned)
        for value in owner.Reason.DESCRIPTOR.values
        if value.number
    }
    assert {end.value for end in runlane.ActivationEnd} == words | {"unknown"}


def test_each_call_has_exactly_one_row_and_it_says_what_the_protos_say():
    methods = {f"{s.full_name}/{m.name}": m for s in SERVICES for m in s.methods}
    text = (PROTO / "calls.json").read_text(encoding="utf-8")
    written = re.findall(r'"(runlane\.v1\.\w+/\w+)":', text)
    assert written == list(methods), "a row for each call, in the order of the protos"
    assert json.loads(text) == TABLE, "run make gen"
    for name, row in TABLE["methods"].items():
        method = methods[name]
        fields = method.input_type.fields_by_name
        streams = method.client_streaming or method.server_streaming
        waits = "wait_duration" in fields
        assert row["deadline"] == ("stream" if streams else "wait" if waits else "call"), name
        reads = method.GetOptions().idempotency_level == NO_SIDE_EFFECTS
        if method.client_streaming:
            # It can be sent again where its first message names it.
            repeats = {"request_id"} if "request_id" in fields else {"never"}
        elif method.server_streaming:
            assert reads, name
            repeats = {"cursor", "anew"}
        elif reads:
            repeats = {"read"}
        else:
            repeats = {"request_id"} if "request_id" in fields else {"same"}
        assert row["repeat"] in repeats, name
        assert not row.keys() - {"repeat", "deadline", "attempt_seconds", "silence_seconds"}
        if row["repeat"] == "cursor":
            assert any(f.startswith("after_") for f in fields), name


def test_the_client_calls_as_the_table_says():
    requests = {
        method.input_type._concrete_class: TABLE["methods"][f"{service.full_name}/{method.name}"]
        for service in SERVICES
        for method in service.methods
        if not method.server_streaming
        and TABLE["methods"][f"{service.full_name}/{method.name}"]["repeat"] != "never"
    }
    assert set(POLICIES) == set(requests)
    for request, policy in POLICIES.items():
        assert policy.waits == (requests[request]["deadline"] == "wait")
        assert policy.attempt_timeout == requests[request].get("attempt_seconds")
    defaults = inspect.signature(runlane.Client).parameters
    assert defaults["timeout"].default == TABLE["call_seconds"]
    assert defaults["reconnect_timeout"].default == TABLE["reconnect_seconds"]


def test_the_table_names_codes_and_reasons_that_there_are():
    reasons = set(errors._BY_REASON)
    for part in (TABLE["again"], TABLE["reopen"]):
        for key, names in part.items():
            known = reasons if "reasons" in key else set(grpc.StatusCode.__members__)
            assert set(names) <= known, key


def test_models_are_frozen():
    usage = runlane.Usage(input_tokens=1)
    with pytest.raises(ValidationError):
        usage.input_tokens = 2
    modules = (_models, _run_models, _interactions)
    for kind in [kind for module in modules for kind in vars(module).values()]:
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not BaseModel:
            assert kind.model_config["frozen"], kind


def test_no_public_thing_is_undocumented():
    for name in runlane.__all__:
        thing = getattr(runlane, name)
        if isinstance(thing, type) and thing.__module__.startswith("runlane"):
            assert thing.__doc__, name
