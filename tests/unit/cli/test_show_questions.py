"""How questions look in a terminal."""

import json

import pytest
import runlane
from runlane_server.cli import _show, _waits

TEXT = "Where does Ann live?"


def form(schema: str) -> runlane.Interaction:
    return runlane.Interaction.model_construct(
        interaction_id="int_1",
        session_id="s",
        kind=runlane.PromptKind.FORM,
        prompt=runlane.FormPrompt(text=TEXT, json_schema=schema),
    )


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        (
            {
                "type": "object",
                "properties": {"street": {"type": "string"}, "floor": {"type": "integer"}, "x": {}},
                "required": ["street", "x"],
            },
            "a JSON object with street (string), floor (integer, optional), x (any)",
        ),
        ({"type": "string"}, '{"type": "string"}'),
        ({"properties": {"odd": True}}, '{"properties": {"odd": true}}'),
        ({"properties": [1]}, '{"properties": [1]}'),
        (True, "true"),
    ],
)
def test_a_form_tells_its_fields_and_not_its_schema(schema, told):
    item = form(json.dumps(schema))
    assert _show.question(item) == [TEXT, told]
    assert _show.brief(item) == f"int_1 ({TEXT})"


@pytest.mark.parametrize("given", ["nonsense", "[1]", "", "5"])
def test_what_fills_no_form_is_told_what_does(given):
    with pytest.raises(ValueError, match="a JSON object, such as"):
        _waits.given(form("{}"), given)
    assert _waits.given(form("{}"), '{"a": 1}') == {"a": 1}
