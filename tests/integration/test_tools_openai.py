"""Tools of a model behind chat completions, both ways."""

from dataclasses import replace

import pytest
from runlane import (
    MessageRole,
    RunFailureReason,
    ToolOutcome,
    ToolResultBlock,
    ToolSpec,
    ToolUseBlock,
)
from test_openai_model import ANSWER, ask, chunk, endpoint, fail, message, request, stream

pytestmark = pytest.mark.asyncio
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def with_tools(*names: str, messages=()):
    specs = tuple(ToolSpec(name, f"does {name}", SCHEMA) for name in names)
    return replace(request(*messages), tools=specs)


def piece(index, key=None, name=None, arguments=None) -> dict:
    function = {"name": name, "arguments": arguments}
    call = {"index": index, "id": key, "type": "function", "function": function}
    return chunk({"tool_calls": [call]})


def told(response) -> list[tuple]:
    return [(one.tool_call_id, one.name, one.arguments_text) for one in response.tool_calls]


async def test_tools_are_offered_and_calls_are_put_together():
    reply = stream(
        chunk({"role": "assistant", "content": "let me "}),
        chunk({"content": "see"}),
        piece(0, "call_a", "look", ""),
        piece(0, arguments='{"x"'),
        piece(1, "call_b", "look", '{"x": 2'),
        piece(0, arguments=": 1}"),
        piece(1, "", None, "}"),
        chunk({}, "tool_calls"),
    )
    async with endpoint(reply) as served:
        pieces, response = await ask(served, with_tools("look"))
    assert pieces == ["let me ", "see"]
    assert response.text == "let me see"
    assert told(response) == [("call_a", "look", '{"x": 1}'), ("call_b", "look", '{"x": 2}')]
    assert served.requests[0]["tools"] == [
        {
            "type": "function",
            "function": {"name": "look", "description": "does look", "parameters": SCHEMA},
        }
    ]


async def test_calls_that_are_numbered_alike_are_told_by_their_ids():
    reply = stream(
        piece(0, "a", "look", '{"x": 1}'), piece(0, "b", "look", '{"x": 2}'), chunk({}, "stop")
    )
    async with endpoint(reply) as served:
        _, response = await ask(served, with_tools("look"))
    assert told(response) == [("a", "look", '{"x": 1}'), ("b", "look", '{"x": 2}')]


async def test_a_call_without_id_or_arguments_is_one():
    reply = stream(piece(0, None, "look", None), chunk({}, "tool_calls"))
    async with endpoint(reply) as served:
        _, response = await ask(served, with_tools("look"))
    assert told(response) == [("", "look", "{}")]


async def test_names_that_the_endpoint_does_not_take_are_mapped_both_ways():
    wanted = "files.read/" + "x" * 80
    async with endpoint(ANSWER) as served:
        await ask(served, with_tools(wanted, "files read", "files.read"))
    names = [one["function"]["name"] for one in served.requests[0]["tools"]]
    assert len(set(names)) == 3
    assert all(len(name) <= 64 and name.replace("_", "").isalnum() for name in names)
    reply = stream(piece(0, "a", names[0], "{}"), chunk({}, "tool_calls"))
    async with endpoint(reply) as served:
        _, response = await ask(served, with_tools(wanted))
    assert response.tool_calls[0].name == wanted


async def test_calls_and_results_go_back_as_the_endpoint_knows_them():
    long = "call-" + "y" * 100
    calls = [
        ToolUseBlock(tool_call_id="a", name="look", arguments={"x": 1}),
        ToolUseBlock(tool_call_id=long, name="look", arguments_text="{x"),
    ]
    results = [
        ToolResultBlock(
            tool_call_id="a",
            outcome=ToolOutcome.OK,
            content=message(MessageRole.USER, "one", "two").content,
        ),
        ToolResultBlock(
            tool_call_id=long,
            outcome=ToolOutcome.ERROR,
            content=message(MessageRole.USER, "no").content,
        ),
    ]
    messages = (
        message(MessageRole.USER, "go"),
        message(MessageRole.ASSISTANT, *calls),
        *(message(MessageRole.TOOL, one) for one in results),
    )
    async with endpoint(ANSWER) as served:
        await ask(served, with_tools("look", messages=messages))
    _, assistant, first, second = served.requests[0]["messages"]
    assert assistant["content"] is None
    ids = [one["id"] for one in assistant["tool_calls"]]
    assert ids == [first["tool_call_id"], second["tool_call_id"]]
    assert ids[0] == "a"
    assert len(ids[1]) <= 40
    arguments = [one["function"]["arguments"] for one in assistant["tool_calls"]]
    assert arguments == ['{"x": 1}', '{"malformed": "{x"}']
    assert first == {"role": "tool", "tool_call_id": "a", "content": "one\ntwo"}
    assert second["content"] == "[error] no"


async def test_an_answer_that_promises_tools_and_names_none_broke_off():
    async with endpoint(stream(chunk({}, "tool_calls"))) as served:
        error = await fail(served, with_tools("look"))
    assert error.reason is RunFailureReason.MODEL_UNAVAILABLE
