"""The conformance kit's scenarios pass, and each planted fault makes its driver fail."""

import asyncio
import json
from pathlib import Path
from xml.etree import ElementTree as ET

import jsonschema
import pytest
from runlane import _convert, _events, _session_calls
from support_server import ServerProcess

from conformance.__main__ import main, played
from conformance.binding import METHODS, ClientBinding
from conformance.blocking import BlockingBinding
from conformance.faulty import FAULTS, served
from conformance.match import mismatch
from conformance.report import Result, table, write_junit
from conformance.scenario import load
from conformance.values import ScenarioError, filled

KIT = Path(__file__).resolve().parents[2] / "conformance"
FOLDER = KIT / "scenarios"
SCENARIOS = load([FOLDER])


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def store(request, tmp_path_factory):
    """A server on each store."""
    address = ""
    if request.param == "postgres":
        address = request.getfixturevalue("postgres_server").clean()
    made = ServerProcess(tmp_path_factory.mktemp("kit"), store=address).start()
    yield made
    made.kill()
    assert made.incidents() == []


def failures(results):
    return {one.name: one.failure for one in results if one.failure}


@pytest.fixture(params=[ClientBinding, BlockingBinding], ids=["async", "blocking"])
def bind(request):
    """Python's clients."""
    return request.param


def test_all_scenarios_pass(store, bind):
    results = asyncio.run(played(SCENARIOS, lambda: bind(store.address), jobs=16))
    assert not failures(results), table([one for one in results if one.failure])
    assert [one.name for one in results if one.skipped] == []


async def with_fault(target, fault, bind):
    proxy, address = await served(target, fault)
    try:
        chosen = [one for one in SCENARIOS if one.name in SHOWN[fault]]
        assert len(chosen) == len(SHOWN[fault])
        return await played(chosen, lambda: bind(address), jobs=4)
    finally:
        await proxy.stop(None)


# What shows each fault; more may.
SHOWN = {
    "event_left_out": ["a_steer_is_delivered_at_the_final_answer"],
    "order_swapped": ["a_steer_is_delivered_at_the_final_answer"],
    "piece_after_message": ["pieces_of_an_answer_come_before_their_message"],
    "input_doubled": ["a_steer_is_delivered_at_the_final_answer"],
    "request_id_ignored": ["a_request_id_gives_its_first_answer_again"],
    "reason_changed": ["a_race_for_the_lane_has_one_winner"],
    "field_unnamed": ["wrong_requests_name_the_wrong_field"],
    "stale_accepted": ["a_fence_is_dead_after_the_end"],
    "page_item_lost": ["a_fork_has_the_prefix_and_leaves_its_source_alone"],
    "astral_lost": ["pieces_of_an_answer_come_before_their_message"],
    "number_rounded": ["arguments_are_handed_on_byte_for_byte"],
}
SHOWN["none"] = sorted({name for names in SHOWN.values() for name in names})


def test_every_fault_is_shown():
    assert SHOWN.keys() == FAULTS.keys()


@pytest.mark.parametrize("fault", SHOWN)
def test_a_planted_fault_is_found(shared, fault, bind):
    results = asyncio.run(with_fault(shared.address, fault, bind))
    expected = [] if fault == "none" else SHOWN[fault]
    assert sorted(failures(results)) == sorted(expected)


def play_with(target, name):
    (chosen,) = (one for one in SCENARIOS if one.name == name)
    (result,) = asyncio.run(played([chosen], lambda: ClientBinding(target), jobs=1))
    return result.failure


def test_a_client_that_sends_something_else_is_found(shared, monkeypatch):
    whole = _session_calls.content_to_pb
    monkeypatch.setattr(_session_calls, "content_to_pb", lambda content: whole(content)[:1])
    told = play_with(shared.address, "blocks_of_every_kind_come_back_as_they_went")
    assert "the client sends another content" in told


def test_a_client_that_tells_something_else_is_found(shared, monkeypatch):
    whole = _convert.session

    def wrong(record):
        return whole(record).model_copy(update={"revision": record.revision + 1})

    monkeypatch.setattr(_convert, "session", wrong)
    told = play_with(shared.address, "an_expected_revision_is_compared")
    assert "the client tells another answer: Session.revision" in told


def test_a_client_that_tells_another_event_is_found(shared, monkeypatch):
    whole = _events.event_from_pb

    def wrong(event):
        return whole(event).model_copy(update={"attempt": 7})

    monkeypatch.setattr(_events, "event_from_pb", wrong)
    told = play_with(shared.address, "a_stream_goes_on_from_any_cursor")
    assert "the client tells another event" in told


def test_the_driver_is_a_program(shared, tmp_path, capsys):
    name = "wrong_requests_name_the_wrong_field"
    report = tmp_path / "junit.xml"
    arguments = ["--target", shared.address, "--only", name, "--junit", str(report), str(FOLDER)]
    assert main(arguments) == 0
    assert f"ok      {name}" in capsys.readouterr().out
    (case,) = ET.parse(report).getroot()  # noqa: S314 - written above
    assert case.get("name") == name


def test_a_report_tells_what_failed(tmp_path):
    results = [
        Result("good", "a.json", 0.1),
        Result("bad", "a.json", 0.2, failure="step 1 (call Submit): it broke"),
        Result("other", "a.json", 0.0, skipped="the server lacks x"),
    ]
    told = table(results)
    assert "FAILED  bad" in told
    assert "it broke" in told
    assert told.endswith("1 ok, 1 failed, 1 skipped")
    write_junit(tmp_path / "junit.xml", results, "kit")
    suite = ET.parse(tmp_path / "junit.xml").getroot()  # noqa: S314 - written above
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert [len(case) for case in suite] == [0, 1, 1]


# --- the files ---------------------------------------------------------------


def schema(part=None):
    whole = json.loads((KIT / "scenario.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(whole)
    if part:
        whole = {"$ref": f"#/$defs/{part}", "$defs": whole["$defs"]}
    return jsonschema.Draft202012Validator(whole)


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.json")), ids=lambda file: file.name)
def test_a_file_is_as_its_schema_says(file):
    schema().validate(json.loads(file.read_text(encoding="utf-8")))


def test_the_shared_steps_are_as_their_schema_says():
    schema("shared").validate(json.loads((KIT / "steps.json").read_text(encoding="utf-8")))


def test_names_are_unique_and_there_are_many():
    names = [one.name for one in SCENARIOS]
    assert len(names) == len(set(names))
    assert len(names) >= 60


def calls_in(step):
    if isinstance(step, dict):
        if isinstance(step.get("call"), str):
            yield step["call"]
        if "open" in step:
            yield step.get("stream", "StreamEvents")
        for value in step.values():
            yield from calls_in(value)
    elif isinstance(step, list):
        for value in step:
            yield from calls_in(value)


# What no scenario on a shared server can play: it needs keys, counts what others did, or sends
# what another call gave, piece by piece (archives have tests of their own, on both stores).
ELSEWHERE = {
    "CreateKey",
    "ListKeys",
    "RevokeKey",
    "GetOverview",
    "ExportSession",
    "ImportSession",
}


def test_every_method_is_called():
    called = set()
    for one in SCENARIOS:
        called.update(calls_in(list(one.steps)), calls_in(dict(one.shared)))
    assert called == METHODS.keys() - ELSEWHERE


# --- expectations ------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "value", "fits"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, True),
        ({"a": 1}, {"b": 2}, False),
        ({"a": 1}, {"a": True}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({}, {"a": 1}, True),
        ({}, "a", False),
        ([1, 2], [1, 2], True),
        ([1, 2], [2, 1], False),
        ([1], [1, 2], False),
        ([1, 2], [1], False),
        ({"a": {"$absent": True}}, {}, True),
        ({"a": {"$absent": True}}, {"a": 1}, False),
        ({"a": {"$any": True}}, {"a": 0}, True),
        ({"a": {"$any": True}}, {}, False),
        ({"a": {"$not": 1}}, {}, True),
        ({"a": {"$not": 1}}, {"a": 1}, False),
        ({"$regex": "^b"}, "abc", False),
        ({"$regex": "b"}, "abc", True),
        ({"$regex": "1"}, 1, False),
        ({"$min": 3}, "3", True),
        ({"$min": 3}, "2", False),
        ({"$max": 3, "$min": 3}, 4, False),
        ({"$length": 2}, [1, 2], True),
        ({"$length": 2}, "ab", False),
        ({"$contains": [1, 3]}, [1, 2, 3], True),
        ({"$contains": [3, 1]}, [1, 2, 3], False),
        ({"$contains": [1, 1]}, [1, 2], False),
        ({"$unordered": [3, 1]}, [1, 3], True),
        ({"$unordered": [1, 1]}, [1, 3], False),
        ({"$unordered": [1]}, [1, 3], False),
        ({"$as": "x", "$is": {"a": 1}}, {"a": 2}, False),
    ],
)
def test_an_expectation_fits_or_not(pattern, value, fits):
    assert (mismatch(pattern, value, {}) is None) is fits


def test_an_unknown_matcher_is_no_pattern():
    with pytest.raises(KeyError):
        mismatch({"$like": 1}, 1, {})


def test_what_fits_is_kept_by_name():
    kept = {}
    pattern = {
        "a": {"$as": "whole", "$is": {"b": {"$as": "inner"}}},
        "c": {"$contains": [{"$as": "first"}]},
    }
    assert mismatch(pattern, {"a": {"b": 1}, "c": [7, 8]}, kept) is None
    assert kept == {"whole": {"b": 1}, "inner": 1, "first": 7}


def test_names_are_filled_in():
    scope = {"n": 3, "fence": {"run_id": "run_1"}}
    assert filled("${n}", scope) == 3
    assert filled(["a ${n}", {"b": "${fence.run_id}"}], scope) == ["a 3", {"b": "run_1"}]
    assert filled({"$repeat": "é", "$times": 3}, scope) == "ééé"
    with pytest.raises(ScenarioError, match=r"fence\.epoch"):
        filled("${fence.epoch}", scope)
