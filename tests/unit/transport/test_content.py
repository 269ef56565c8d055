import json

import pytest
from runlane.v1 import message_pb2
from runlane_server.core.errors import Reason, Refused
from runlane_server.transport.content import CONTENT_BYTES_MAX, input_content, step_content

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


def test_tools():
    tool = Block(tool_use=message_pb2.ToolUse(tool_call_id="c", name="n", arguments_json="{}"))
    assert refused([tool]).violations[0][0] == "content[0].tool_use"
    assert step_content([tool], "").has_tool_use
    assert not step_content([text("a")], "").has_tool_use
    tool.tool_use.arguments_json = "[]"
    with pytest.raises(Refused) as caught:
        step_content([tool], "operations[0].commit_model_step.")
    field = "operations[0].commit_model_step.content[0].tool_use.arguments_json"
    assert caught.value.violations[0][0] == field


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
