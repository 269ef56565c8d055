"""From the blocks of a request to a core Content.

What is stored is a serialised runlane.v1.Message that has only content and
metadata: behind an encoded header it is the whole message, and behind that of a
Submission, which has them under the same numbers, the whole submission.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from google.protobuf.message import Message
from runlane.v1 import message_pb2

from runlane_server.core.errors import Reason, Refused, invalid
from runlane_server.core.model import Content, ToolUse
from runlane_server.core.words import ToolOutcome
from runlane_server.transport.values import check_json

CONTENT_BYTES_MAX = 3 * 1024 * 1024
METADATA_BYTES_MAX = 4096
PREVIEW_CHARACTERS = 200
_RESULT_FRAMING = 256
_TOO_LONG = "The rest of the child run's answer is too long."

_NO_ARGUMENTS = "{}"
_RESULT_KINDS = frozenset({"text", "media", "data"})
_KIND_NAMES = {
    message_pb2.Media.KIND_IMAGE: "image",
    message_pb2.Media.KIND_AUDIO: "audio",
    message_pb2.Media.KIND_VIDEO: "video",
    message_pb2.Media.KIND_FILE: "file",
}


def check_size(size: int) -> None:
    """Refuses content that is too large."""
    if size > CONTENT_BYTES_MAX:
        raise Refused(
            Reason.MESSAGE_TOO_LARGE,
            f"content of {size} bytes is over the limit of {CONTENT_BYTES_MAX} bytes",
            size_bytes=str(size),
            limit_bytes=str(CONTENT_BYTES_MAX),
        )


def content_size(blocks: Iterable[Message]) -> int:
    """Returns the size of blocks, or of results, without their framing."""
    return sum(block.ByteSize() for block in blocks)


def input_content(
    blocks: Sequence[message_pb2.Block], metadata: Mapping[str, str], path: str = ""
) -> Content:
    """Returns the content of an input; `path` is that of the fields around it."""
    if len(blocks) == 1:
        # What nearly all inputs are: one text with nothing beside it.
        block = blocks[0]
        text = block.text
        if text and not text.isspace() and not block.provider_json and not block.metadata:
            return _content(blocks, metadata, path, text[:PREVIEW_CHARACTERS])
    for index, block in enumerate(blocks):
        field = f"{path}content[{index}]"
        kind = _check_block(block, field)
        if kind in {"tool_use", "tool_result"}:
            raise invalid(f"{field}.{kind}", "must not be in an input")
    if _is_blank(blocks):
        raise Refused(
            Reason.INPUT_EMPTY,
            "the input is empty, or white space alone",
            violations=((f"{path}content", "must hold more than white space"),),
        )
    return _content(blocks, metadata, path, preview(blocks))


def step_content(blocks: Sequence[message_pb2.Block], path: str) -> Content:
    """Returns the content of a model step; it may be empty.

    Arguments that are no JSON object are stored as text: the call is malformed.
    """
    uses: list[ToolUse] = []
    malformed: list[int] = []
    for index, block in enumerate(blocks):
        field = f"{path}content[{index}]"
        kind = _check_block(block, field)
        if kind == "tool_result":
            raise invalid(f"{field}.tool_result", "is committed with commit_tool_results alone")
        if kind != "tool_use":
            continue
        given = block.tool_use
        arguments = _arguments(given, f"{field}.tool_use")
        if arguments is None and given.HasField("arguments_json"):
            malformed.append(index)
        uses.append(ToolUse(given.tool_call_id, given.name, arguments))
    if malformed:
        blocks = message_pb2.Message(content=blocks).content
        for index in malformed:
            broken = blocks[index].tool_use
            broken.arguments_text = broken.arguments_json
    content = _content(blocks, {}, path, preview(blocks))
    content.tool_uses = tuple(uses)
    return content


def _arguments(given: message_pb2.ToolUse, field: str) -> str | None:
    """Returns the arguments of a call; None: they are malformed."""
    kind = given.WhichOneof("arguments")
    if kind is None:
        return _NO_ARGUMENTS
    if kind == "arguments_text":
        return None
    text = given.arguments_json
    if "\0" in text:
        raise invalid(f"{field}.arguments_json", "must not contain U+0000")
    try:
        check_json(text, field, is_object=True)
    except Refused:
        return None
    return text


def tool_result(tool_call_id: str, outcome: ToolOutcome, text: str) -> message_pb2.Block:
    """Returns the block of a result that is one text."""
    return message_pb2.Block(
        tool_result=message_pb2.ToolResult(
            tool_call_id=tool_call_id,
            outcome=outcome,  # type: ignore[arg-type]
            content=[message_pb2.Block(text=text)],
        )
    )


def text_result(tool_call_id: str, outcome: ToolOutcome, text: str) -> Content:
    """Returns the content of a message that is the result of a call: one text."""
    block = tool_result(tool_call_id, outcome, text)
    return _content([block], {}, "", text[:PREVIEW_CHARACTERS])


def child_result(
    tool_call_id: str, outcome: ToolOutcome, message: bytes, output_json: str, told: str
) -> Content:
    """Returns the content of a message that is the result of a call: the end of a child run.

    What does not fit beside the rest is left out, and that is said.
    """
    blocks = [message_pb2.Block(text=told)] if told else []
    for block in message_pb2.Message.FromString(message).content:
        if block.WhichOneof("block") in _RESULT_KINDS:
            kept = message_pb2.Block()
            kept.CopyFrom(block)
            kept.ClearField("provider_json")  # it is of the child's own requests
            blocks.append(kept)
    if output_json:
        data = message_pb2.Data(content_type="application/json", json=output_json)
        blocks.append(message_pb2.Block(data=data))
    room = CONTENT_BYTES_MAX - _RESULT_FRAMING
    fitting = []
    for block in blocks:
        room -= block.ByteSize() + _RESULT_FRAMING
        if room < 0:
            fitting.append(message_pb2.Block(text=_TOO_LONG))
            break
        fitting.append(block)
    result = message_pb2.ToolResult(
        tool_call_id=tool_call_id,
        outcome=outcome,  # type: ignore[arg-type]
        content=fitting,
    )
    return _content([message_pb2.Block(tool_result=result)], {}, "", preview(fitting))


def result_content(given: message_pb2.ToolResult, path: str) -> Content:
    """Returns the content of a message that is the result of a call."""
    for index, block in enumerate(given.content):
        field = f"{path}content[{index}]"
        kind = _check_block(block, field)
        if kind not in _RESULT_KINDS:
            raise invalid(f"{field}.{kind}", "must not be in a result: text, media and data alone")
    return _content([message_pb2.Block(tool_result=given)], {}, path, preview(given.content))


def stored_content(message: message_pb2.Message) -> bytes:
    """Returns the content of a message as it was stored, whatever stands before it."""
    data = message_pb2.Message(content=message.content).SerializeToString(deterministic=True)
    if message.metadata:
        kept = message_pb2.Message(metadata=message.metadata)
        data += kept.SerializeToString(deterministic=True)
    return data


def _content(
    blocks: Sequence[message_pb2.Block], metadata: Mapping[str, str], path: str, shown: str
) -> Content:
    message = message_pb2.Message(content=blocks)
    # A field that is unknown here was checked by nobody, and a later server would know it.
    message.DiscardUnknownFields()
    data = message.SerializeToString(deterministic=True)
    size = len(data)
    check_size(size)
    if metadata:
        check_metadata(metadata, f"{path}metadata")
        data += message_pb2.Message(metadata=metadata).SerializeToString(deterministic=True)
    return Content(data, size, sha256(data).digest(), shown)


def check_metadata(metadata: Mapping[str, str], path: str) -> None:
    """Refuses entries that are too large in all."""
    # Four bytes are the most that a character takes.
    characters = sum(len(key) + len(value) for key, value in metadata.items())
    if characters * 4 <= METADATA_BYTES_MAX:
        return
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    if size > METADATA_BYTES_MAX:
        raise invalid(path, f"must hold at most {METADATA_BYTES_MAX} bytes in all")


def _is_blank(blocks: Iterable[message_pb2.Block]) -> bool:
    for block in blocks:
        text = block.text
        if (text and not text.isspace()) or (not text and block.WhichOneof("block") != "text"):
            return False
    return True


def _check_block(block: message_pb2.Block, field: str) -> str | None:
    """Checks what the rules of the proto cannot say; returns the kind of the block."""
    if block.provider_json:
        check_json(block.provider_json, f"{field}.provider_json")
    if block.metadata:
        check_metadata(block.metadata, f"{field}.metadata")
    kind = block.WhichOneof("block")
    if kind == "data" and block.data.WhichOneof("data") == "json":
        check_json(block.data.json, f"{field}.data.json")
    return kind


def preview(blocks: Iterable[message_pb2.Block]) -> str:
    """Returns the first characters of the text, or what there is instead of text."""
    texts: list[str] = []
    labels: list[str] = []
    room = PREVIEW_CHARACTERS
    for block in blocks:
        kind = block.WhichOneof("block")
        if kind == "text":
            texts.append(block.text[:room])
            room -= len(texts[-1]) + 1
            if room <= 0:
                break
        elif kind == "media":
            labels.append(f"[{_KIND_NAMES.get(block.media.kind, 'media')}]")
        elif kind is not None:
            labels.append(f"[{kind}]")
    return ("\n".join(texts) or " ".join(labels))[:PREVIEW_CHARACTERS]
