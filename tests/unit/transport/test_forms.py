import json
import time

import pytest
from runlane_server.core.errors import Reason, Refused
from runlane_server.transport import forms
from runlane_server.transport.forms import check_form, check_schema

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def refused(check, *given):
    with pytest.raises(Refused) as caught:
        check(*given, "f")
    (violation,) = caught.value.violations
    assert violation[0] == "f"
    return caught.value


def deep(levels):
    schema = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"$schema": DRAFT, "type": "object", "properties": {"$ref": {"type": "string"}}},
        {"$schema": f"{DRAFT}#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"$ref": "#/definitions/a", "definitions": {"a": {}}},
        {"$ref": "#"},
        {"$ref": "urn:a#z", "$defs": {"x": {"$id": "urn:a", "$anchor": "z"}}},
        {"$dynamicRef": "#n", "$defs": {"a": {"$dynamicAnchor": "n"}}},
        {"$ref": "#/allOf/0", "allOf": [True]},
        {"pattern": "(a+)+$", "patternProperties": {"^x-": {}}},
        {"pattern": "^\\p{L}+$"},
        {"default": {"$ref": "https://example.com/x"}, "enum": [{"$ref": "#/nowhere"}]},
        deep(31),
    ],
)
def test_schemas_that_are_taken(schema):
    check_schema(json.dumps(schema), "f")


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "[",
        "null",
        "[]",
        '"string"',
        {"type": "strin"},
        {"properties": []},
        {"minLength": -1},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"$defs": {"a": {"$schema": DRAFT}}},
        {"$ref": "https://example.com/schema"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "http://[/a"},
        {"$ref": DRAFT},
        {"$ref": "#/$defs/a"},
        {"$ref": "#a"},
        {"$ref": "#/type/x", "type": "string"},
        {"$ref": "#/allOf/x", "allOf": [True]},
        {"$ref": "#/default", "default": {"pattern": 5}},
        {"$dynamicRef": "https://example.com/schema"},
        {"pattern": "["},
        {"pattern": "(?=a)"},
        {"pattern": "(a)\\1"},
        {"pattern": "a" * 1025},
        {"patternProperties": {"(?!a)": {}}},
        {"not": {"patternProperties": {"a": {}}}, "unevaluatedProperties": False},
        deep(32),
    ],
)
def test_schemas_that_are_refused(schema):
    assert (
        refused(check_schema, schema if isinstance(schema, str) else json.dumps(schema)).reason
        is Reason.FIELD_INVALID
    )


FITS = [
    ({"type": "integer"}, 1.0, None),
    ({"type": "integer"}, 1.5, "type"),
    ({"$schema": DRAFT, "required": ["a"]}, {}, "required"),
    ({"properties": {"a": {"type": "string"}}}, {"a": 1}, "type"),
    ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1}, None),
    ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}, "additionalProperties"),
    ({"additionalProperties": {"type": "string"}}, {"b": 1}, "type"),
    ({"patternProperties": {"^x": {"type": "string"}}, "additionalProperties": False}, {"x1": "a"}, None),
    ({"patternProperties": {"^x": {"type": "string"}}, "additionalProperties": False}, {"y": "a"}, "additionalProperties"),
    ({"patternProperties": {"^x": {"type": "string"}}}, {"x1": 1}, "type"),
    ({"properties": {"a": {}}, "unevaluatedProperties": False}, {"b": 1}, "unevaluatedProperties"),
    ({"pattern": "b"}, "abc", None),
    ({"pattern": "^b"}, "abc", "pattern"),
    ({"pattern": "^b"}, 5, None),
    ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}], None),
    ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], "uniqueItems"),
    ({"uniqueItems": True}, [1e300, 1e301], None),
    ({"uniqueItems": True}, [0, False], None),
    ({"uniqueItems": False}, [1, 1], None),
    ({"enum": ["a", "b"]}, "c", "enum"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}, 1, "type"),
    (False, 1, "None"),
    ({"format": "email"}, "no address", None),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value", "keyword"), FITS)
def test_whether_json_fits(schema, value, keyword):
    check_schema(json.dumps(schema), "f")
    if keyword is None:
        check_form(json.dumps(schema), json.dumps(value), "f")
        return
    error = refused(check_form, json.dumps(schema), json.dumps(value))
    assert error.reason is Reason.ANSWER_INVALID
    assert f"`{keyword}`" in error.message


def test_a_refusal_names_the_place_and_not_the_value():
    schema = {"properties": {"list": {"items": {"type": "integer"}}}}
    error = refused(check_form, json.dumps(schema), '{"list":[1,"hunter2"]}')
    assert error.violations == (("f", "at `/list/1` does not fit `type` of the schema"),)


def doubling(levels):
    parts = {"a0": {"type": "string"}}
    for level in range(1, levels):
        parts[f"a{level}"] = {"allOf": [{"$ref": f"#/$defs/a{level - 1}"}] * 2}
    return {"$defs": parts, "$ref": f"#/$defs/a{levels - 1}"}


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        (doubling(60), "x", "takes too long"),
        ({"$ref": "#"}, 1, "takes too long"),
        ({"items": {"enum": list(range(9000))}}, [8999] * 40_000, "takes too long"),
        ({"pattern": "(a+)+$"}, "a" * 100_000 + "b", "does not fit"),
        ({"patternProperties": {"(a+)+$": False}}, {"a" * 40 + "b": 1}, None),
        ({"uniqueItems": True}, [{"a": number} for number in range(20_000)], None),
    ],
)
def test_no_schema_holds_up_the_server(schema, value, reason):
    check_schema(json.dumps(schema), "f")
    began = time.perf_counter()
    if reason is None:
        check_form(json.dumps(schema), json.dumps(value), "f")
    else:
        assert reason in refused(check_form, json.dumps(schema), json.dumps(value)).message
    assert time.perf_counter() - began < 10


def test_nothing_is_fetched(monkeypatch):
    import urllib.request

    def fetched(*_args, **_kwargs):
        raise AssertionError

    monkeypatch.setattr(urllib.request, "urlopen", fetched)
    for keyword in ("$ref", "$dynamicRef"):
        refused(check_schema, json.dumps({"not": {keyword: "https://example.com/schema"}}))


def test_what_one_check_costs_is_not_the_next_ones(monkeypatch):
    monkeypatch.setattr(forms, "COST_MAX", 5)
    for _ in range(10):
        check_form('{"type":"integer","minimum":0}', "1", "f")
    refused(check_form, '{"items":{"type":"integer"}}', json.dumps([1] * 10))
