import json

import pytest
from runlane.v1 import message_pb2
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.words import ToolOutcome
from runlane_server.transport.content import (
    CONTENT_BYTES_MAX,
    input_content,
    result_content,
    step_content,
    text_result,
)

Block = message_pb2.Block
IMAGE = Block(media=message_pb2.Media(kind=1, uri="https://example.com/a.png"))


def text(value):
    return Block(text=value)


def data(value):
    return Block(data=message_pb2.Data(content_type="application/json", json=value))


def refused(blocks, metadata=None):
    with pytest.raises(Refused) as caught:
        input_content(blocks, metadata or {})
    return caught.value


@pytest.mark.parametrize("blocks", [[], [text("")], [text(" \n\t\u2003"), text("")]])
def test_an_input_of_white_space_is_empty(blocks):
    error = refused(blocks)
    assert error.reason is Reason.INPUT_EMPTY
    assert error.violations[0][0] == "content"


@pytest.mark.parametrize(
    "blocks", [[IMAGE], [text(" "), IMAGE], [text(" "), text("x")], [data("1")]]
)
def test_other_inputs_are_not(blocks):
    assert input_content(blocks, {}).data


def test_equal_content_has_equal_bytes():
    many = {f"k{n}": "v" for n in range(30)}
    one = input_content([text("a"), IMAGE], many)
    two = input_content([text("a"), IMAGE], dict(reversed(many.items())))
    assert one == two
    assert one.hash != input_content([text("a"), IMAGE], {**many, "k1": "w"}).hash
    read = message_pb2.Message.FromString(one.data)
    assert (list(read.content), dict(read.metadata)) == ([text("a"), IMAGE], many)
    assert one.size == len(message_pb2.Message(content=[text("a"), IMAGE]).SerializeToString())


def test_unknown_fields_are_left_out():
    block = Block.FromString(text("a").SerializeToString() + b"\xa2\x06\x01x")
    assert input_content([block], {}).data == input_content([text("a")], {}).data


def test_too_large():
    fits = input_content([text("x" * (CONTENT_BYTES_MAX - 10))], {})
    assert fits.size <= CONTENT_BYTES_MAX
    error = refused([text("x" * CONTENT_BYTES_MAX)])
    assert error.reason is Reason.MESSAGE_TOO_LARGE
    assert error.metadata["limit_bytes"] == str(CONTENT_BYTES_MAX)
    assert int(error.metadata["size_bytes"]) > CONTENT_BYTES_MAX


@pytest.mark.parametrize(
    "value",
    [
        "", "{", "NaN", "[1,]", "'a'", '"\ud83d', '"\\ud800"', '"\\udc00"', '"\\ud800x"', '"\\u0000"', '"\0"',
        '{"a\\u0000":1}', "1e999", "01", "[" * 100_000, "\ufeff{}", "{} {}",
    ],
)  # fmt: skip
def test_bad_json_is_refused_by_name(value):
    block = data("x")
    try:
        block.data.json = value
    except (ValueError, UnicodeError):
        pytest.skip("protobuf does not hold it")
    for name, holder in (("data.json", block), ("provider_json", None)):
        given = holder
        if given is None:
            if not value:
                continue
            given = text("a")
            given.provider_json = value
        error = refused([text("a"), given])
        assert error.reason is Reason.FIELD_INVALID
        assert error.violations[0][0] == f"content[1].{name}"
        if len(value) > 3:
            assert value not in error.message


@pytest.mark.parametrize(
    "value",
    [
        '{"a":1,"a":2}',
        "null",
        '"\\\\u0000"',
        '"\\ud83d\\ude00"',
        "[" * 200 + "]" * 200,
        json.dumps("é"),
    ],
)
def test_good_json(value):
    assert input_content([data(value)], {}).data


def test_metadata_is_bounded_in_all():
    metadata = {f"k{n}": "v" * 200 for n in range(21)}
    assert refused([text("a")], metadata).violations[0][0] == "metadata"
    block = text("a")
    block.metadata.update(metadata)
    assert refused([block]).violations[0][0] == "content[0].metadata"
    assert input_content([text("a")], {f"k{n}": "v" * 200 for n in range(20)})


def use(**arguments):
    return Block(tool_use=message_pb2.ToolUse(tool_call_id="c", name="n", **arguments))


def result(*content, outcome=1):
    return message_pb2.ToolResult(tool_call_id="c", outcome=outcome, content=content)


def test_tools_are_in_steps_alone():
    assert refused([use()]).violations[0][0] == "content[0].tool_use"
    block = Block(tool_result=result(text("a")))
    assert refused([block]).violations[0][0] == "content[0].tool_result"
    with pytest.raises(Refused) as caught:
        step_content([text("a"), block], "operations[0].commit_model_step.")
    field = "operations[0].commit_model_step.content[1].tool_result"
    assert caught.value.violations[0][0] == field


def test_the_calls_of_a_step():
    blocks = [
        text("a"),
        use(arguments_json='{"a": 1}'),
        use(arguments_json="[]"),
        use(arguments_json="{"),
        use(arguments_json='{"a":"\\u0000"}'),
        use(arguments_json=""),
        use(arguments_text="oops"),
        use(arguments_text="{}"),
        use(),
    ]
    content = step_content(blocks, "")
    arguments = [one.arguments_json for one in content.tool_uses]
    assert arguments == ['{"a": 1}', None, None, None, None, None, None, "{}"]
    assert {(one.tool_call_id, one.name) for one in content.tool_uses} == {("c", "n")}
    # What is stored says JSON of what is JSON alone; what was given stays as it was.
    read = message_pb2.Message.FromString(content.data).content
    kinds = [block.tool_use.WhichOneof("arguments") for block in read[1:]]
    assert kinds == ["arguments_json", *["arguments_text"] * 6, None]
    assert [read[place].tool_use.arguments_text for place in (2, 3)] == ["[]", "{"]
    assert blocks[2].tool_use.arguments_json == "[]"
    assert step_content([text("a")], "").tool_uses == ()
    with pytest.raises(Refused) as caught:
        step_content([use(arguments_json="\0")], "")
    assert caught.value.violations[0][0] == "content[0].tool_use.arguments_json"


def test_the_result_of_a_call():
    content = result_content(result(text("a"), IMAGE, data("1"), outcome=2), "")
    read = message_pb2.Message.FromString(content.data).content
    assert [block.WhichOneof("block") for block in read] == ["tool_result"]
    assert read[0].tool_result == result(text("a"), IMAGE, data("1"), outcome=2)
    assert content.preview == "a"
    assert len(content.hash) == 32
    assert result_content(result(), "").hash != result_content(result(outcome=2), "").hash
    told = text_result("c", ToolOutcome.OK, "a")
    assert told == result_content(result(text("a")), "")


@pytest.mark.parametrize(
    ("block", "field"),
    [
        (use(), "tool_use"),
        (Block(tool_result=result()), "tool_result"),
        (Block(reasoning=message_pb2.Reasoning(text="a")), "reasoning"),
        (data("{"), "data.json"),
        (Block(text="a", provider_json="{"), "provider_json"),
    ],
)
def test_what_a_result_may_not_hold(block, field):
    with pytest.raises(Refused) as caught:
        result_content(result(text("a"), block), "results[0].")
    assert caught.value.reason is Reason.FIELD_INVALID
    assert caught.value.violations[0][0] == f"results[0].content[1].{field}"


def test_a_step_may_be_empty():
    content = step_content([], "")
    assert (content.data, content.size, content.preview) == (b"", 0, "")


@pytest.mark.parametrize(
    ("blocks", "preview"),
    [
        ([text("hello")], "hello"),
        ([text("é" * 300)], "é" * 200),
        ([text("a"), IMAGE, text("b")], "a\nb"),
        ([IMAGE, IMAGE], "[image] [image]"),
        ([data("1")], "[data]"),
        ([text("x" * 150), text("y" * 150)], "x" * 150 + "\n" + "y" * 49),
    ],
)
def test_previews(blocks, preview):
    assert input_content(blocks, {}).preview == preview
