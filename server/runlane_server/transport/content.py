"""From the blocks of a request to a core Content.

What is stored is a serialised runlane.v1.Message that has only content and
metadata: behind an encoded header it is the whole message, and behind that of a
Submission, which has them under the same numbers, the whole submission.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

from runlane.v1 import message_pb2

from runlane_server.core.errors import Reason, Refused, invalid
from runlane_server.core.model import Content
from runlane_server.transport.values import check_json

CONTENT_BYTES_MAX = 3 * 1024 * 1024
METADATA_BYTES_MAX = 4096
PREVIEW_CHARACTERS = 200

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


def content_size(blocks: Iterable[message_pb2.Block]) -> int:
    """Returns the size of blocks without their framing."""
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
            return _content(blocks, metadata, path, text[:PREVIEW_CHARACTERS], has_tool_use=False)
    _check_blocks(blocks, f"{path}content", is_input=True)
    if _is_blank(blocks):
        raise Refused(
            Reason.INPUT_EMPTY,
            "the input is empty, or white space alone",
            violations=((f"{path}content", "must hold more than white space"),),
        )
    return _content(blocks, metadata, path, preview(blocks), has_tool_use=False)


def step_content(blocks: Sequence[message_pb2.Block], path: str) -> Content:
    """Returns the content of a model step; it may be empty."""
    has_tool_use = _check_blocks(blocks, f"{path}content", is_input=False)
    return _content(blocks, {}, path, preview(blocks), has_tool_use=has_tool_use)


def _content(
    blocks: Sequence[message_pb2.Block],
    metadata: Mapping[str, str],
    path: str,
    shown: str,
    *,
    has_tool_use: bool,
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
    return Content(data, size, sha256(data).digest(), shown, has_tool_use)


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


def _check_blocks(blocks: Iterable[message_pb2.Block], path: str, *, is_input: bool) -> bool:
    """Checks what the rules of the proto cannot say; returns whether a tool is asked for."""
    has_tool_use = False
    for index, block in enumerate(blocks):
        if block.provider_json:
            check_json(block.provider_json, f"{path}[{index}].provider_json")
        if block.metadata:
            check_metadata(block.metadata, f"{path}[{index}].metadata")
        kind = block.WhichOneof("block")
        if kind == "data":
            if block.data.WhichOneof("data") == "json":
                check_json(block.data.json, f"{path}[{index}].data.json")
        elif kind == "tool_use":
            if is_input:
                raise invalid(f"{path}[{index}].tool_use", "must not be in an input")
            has_tool_use = True
            if block.tool_use.WhichOneof("arguments") == "arguments_json":
                check_json(
                    block.tool_use.arguments_json,
                    f"{path}[{index}].tool_use.arguments_json",
                    is_object=True,
                )
    return has_tool_use


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
