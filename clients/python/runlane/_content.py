"""Content of messages: blocks, and the messages made of them."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict

from runlane._enums import (
    MediaKind,
    MessageAuthor,
    MessageRole,
    ToolOutcome,
    member,
    number_of,
)
from runlane._time import to_datetime
from runlane.v1 import message_pb2 as pb


class Record(BaseModel):
    """A frozen record; what this client does not know is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class _Block(Record):
    """What every block has.

    Attributes:
        provider_json: Opaque JSON of the model provider, handed back to it unchanged.
        metadata: Entries of the application.
    """

    provider_json: str = ""
    metadata: Mapping[str, str] = {}


class TextBlock(_Block):
    """Text."""

    text: str


class MediaBlock(_Block):
    """A reference to bytes that live elsewhere, or at most 256 KiB inline.

    Attributes:
        kind: What the bytes are for.
        media_type: The IANA media type, such as image/png.
        filename: A name for people.
        size_bytes: Size of the bytes; 0 where unknown.
        sha256: SHA-256 of the bytes in lower-case hex; empty where unknown.
        uri: Where the bytes are; exactly one of `uri` and `inline_data` is given.
        inline_data: The bytes themselves.
    """

    kind: MediaKind
    media_type: str = ""
    filename: str = ""
    size_bytes: int = 0
    sha256: str = ""
    uri: str = ""
    inline_data: bytes = b""


class ReasoningBlock(_Block):
    """Reasoning of a model.

    Attributes:
        reasoning: The text; empty where it is redacted.
        redacted: Whether the provider withheld the text.
    """

    reasoning: str = ""
    redacted: bool = False


class DataBlock(_Block):
    """Typed data of the application or the model.

    Attributes:
        content_type: The IANA media type.
        json_text: JSON text; unset where `binary` is given.
        binary: Bytes.
    """

    content_type: str
    json_text: str | None = None
    binary: bytes = b""


class ToolUseBlock(_Block):
    """A tool call that the model asks for; in an answer of a model alone.

    Attributes:
        tool_call_id: Id of the call in its run.
        name: The tool.
        arguments: The arguments; None where they are malformed.
        arguments_text: What the model wrote, where it is no JSON object.
    """

    tool_call_id: str
    name: str
    arguments: Mapping[str, Any] | None = None
    arguments_text: str | None = None


class ToolResultBlock(_Block):
    """What became of a tool call; in a message of a tool alone.

    Attributes:
        tool_call_id: The call.
        outcome: What became of it.
        content: What the model is to see.
    """

    tool_call_id: str
    outcome: ToolOutcome
    content: "tuple[Block, ...]" = ()

    @property
    def text(self) -> str:
        """The text blocks of it, joined."""
        return text_of(self.content)


class UnknownBlock(_Block):
    """A block of a kind that this client does not know.

    Attributes:
        raw: The serialised `runlane.v1.Block`.
    """

    raw: bytes


Block: TypeAlias = (
    TextBlock
    | MediaBlock
    | ToolUseBlock
    | ToolResultBlock
    | ReasoningBlock
    | DataBlock
    | UnknownBlock
)
BlockInput: TypeAlias = str | Block | pb.Block
Input: TypeAlias = BlockInput | Sequence[BlockInput]


ToolResultBlock.model_rebuild()


class Message(Record):
    """A committed message; it never changes.

    Attributes:
        number: Place in the session's history, from 1.
        session_id: The session it was appended to; of what a fork took over, the source.
        run_id: The run that appended it.
        role: Whose turn it is.
        author: How it came to be.
        step: The model step it belongs to; 0 for an input.
        content: The blocks, in order.
        submission_id: The submission it came from; empty for an answer of a model.
        model_stream_id: Ties an answer to the deltas that preceded it.
        model: The model that answered, as its executor named it.
        create_time: When it was committed.
        metadata: Entries of the application.
    """

    number: int
    session_id: str
    run_id: str
    role: MessageRole
    author: MessageAuthor
    step: int
    content: tuple[Block, ...]
    submission_id: str
    model_stream_id: str
    model: str
    create_time: datetime | None
    metadata: Mapping[str, str]

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return text_of(self.content)

    @property
    def tool_uses(self) -> tuple[ToolUseBlock, ...]:
        """The tool calls that it asks for."""
        return tuple(block for block in self.content if isinstance(block, ToolUseBlock))

    @property
    def tool_result(self) -> ToolResultBlock | None:
        """The result of a tool call that it is; None where it is none."""
        return next((one for one in self.content if isinstance(one, ToolResultBlock)), None)


def text_of(content: Sequence[Block]) -> str:
    """Joins the text blocks of some content."""
    return "".join(block.text for block in content if isinstance(block, TextBlock))


def block_from_pb(block: pb.Block) -> Block:
    """Reads a block."""
    provider_json, metadata = block.provider_json, dict(block.metadata)
    kind = block.WhichOneof("block")
    if kind == "text":
        return TextBlock(text=block.text, provider_json=provider_json, metadata=metadata)
    if kind == "media":
        media = block.media
        return MediaBlock(
            kind=member(MediaKind, media.kind),
            media_type=media.media_type,
            filename=media.filename,
            size_bytes=media.size_bytes,
            sha256=media.sha256,
            uri=media.uri,
            inline_data=media.inline_data,
            provider_json=provider_json,
            metadata=metadata,
        )
    if kind == "reasoning":
        return ReasoningBlock(
            reasoning=block.reasoning.text,
            redacted=block.reasoning.redacted,
            provider_json=provider_json,
            metadata=metadata,
        )
    if kind == "data":
        return DataBlock(
            content_type=block.data.content_type,
            json_text=block.data.json if block.data.HasField("json") else None,
            binary=block.data.binary,
            provider_json=provider_json,
            metadata=metadata,
        )
    if kind == "tool_use":
        use = block.tool_use
        malformed = use.HasField("arguments_text")
        return ToolUseBlock(
            tool_call_id=use.tool_call_id,
            name=use.name,
            arguments=None if malformed else json.loads(use.arguments_json or "{}"),
            arguments_text=use.arguments_text if malformed else None,
            provider_json=provider_json,
            metadata=metadata,
        )
    if kind == "tool_result":
        result = block.tool_result
        return ToolResultBlock(
            tool_call_id=result.tool_call_id,
            outcome=member(ToolOutcome, result.outcome),
            content=content_from_pb(result.content),
            provider_json=provider_json,
            metadata=metadata,
        )
    return UnknownBlock(
        raw=block.SerializeToString(), provider_json=provider_json, metadata=metadata
    )


def block_to_pb(block: BlockInput) -> pb.Block:
    """Writes a block.

    Raises:
        TypeError: It is no block.
        ValueError: A media block has both a uri and inline data, or neither.
    """
    if isinstance(block, str):
        return pb.Block(text=block)
    if isinstance(block, pb.Block):
        return block
    if isinstance(block, UnknownBlock):
        return pb.Block.FromString(block.raw)
    if not isinstance(block, _Block):
        raise TypeError(f"{type(block).__name__} is no block")
    result = pb.Block(provider_json=block.provider_json, metadata=block.metadata)
    if isinstance(block, TextBlock):
        result.text = block.text
    elif isinstance(block, ToolUseBlock):
        result.tool_use.CopyFrom(_tool_use_to_pb(block))
    elif isinstance(block, ToolResultBlock):
        result.tool_result.CopyFrom(
            pb.ToolResult(
                tool_call_id=block.tool_call_id,
                outcome=pb.ToolResult.Outcome.ValueType(number_of(ToolOutcome, block.outcome)),
                content=[block_to_pb(one) for one in block.content],
            )
        )
    elif isinstance(block, ReasoningBlock):
        result.reasoning.CopyFrom(pb.Reasoning(text=block.reasoning, redacted=block.redacted))
    elif isinstance(block, DataBlock):
        result.data.content_type = block.content_type
        if block.json_text is not None:
            result.data.json = block.json_text
        else:
            result.data.binary = block.binary
    else:
        result.media.CopyFrom(_media_to_pb(block))
    return result


def _tool_use_to_pb(block: ToolUseBlock) -> pb.ToolUse:
    use = pb.ToolUse(tool_call_id=block.tool_call_id, name=block.name)
    if block.arguments is None:
        use.arguments_text = block.arguments_text or ""
    else:
        try:
            use.arguments_json = json.dumps(dict(block.arguments), allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            # What JSON does not hold is as malformed as what a model wrote so.
            use.arguments_text = repr(dict(block.arguments))
    return use


def _media_to_pb(block: MediaBlock) -> pb.Media:
    if bool(block.uri) == bool(block.inline_data):
        raise ValueError("a media block has either a uri or inline data")
    media = pb.Media(
        kind=pb.Media.Kind.ValueType(number_of(MediaKind, block.kind)),
        media_type=block.media_type,
        filename=block.filename,
        size_bytes=block.size_bytes,
        sha256=block.sha256,
    )
    if block.uri:
        media.uri = block.uri
    else:
        media.inline_data = block.inline_data
    return media


def content_to_pb(content: Input) -> list[pb.Block]:
    """Writes content: one text, one block, or a sequence of them."""
    if isinstance(content, str | pb.Block | _Block):
        return [block_to_pb(content)]
    return [block_to_pb(block) for block in content]


def content_from_pb(blocks: Sequence[pb.Block]) -> tuple[Block, ...]:
    """Reads content."""
    return tuple(block_from_pb(block) for block in blocks)


def message_from_pb(message: pb.Message) -> Message:
    """Reads a message."""
    return Message(
        number=message.number,
        session_id=message.session_id,
        run_id=message.run_id,
        role=member(MessageRole, message.role),
        author=member(MessageAuthor, message.author),
        step=message.step,
        content=content_from_pb(message.content),
        submission_id=message.submission_id,
        model_stream_id=message.model_stream_id,
        model=message.model,
        create_time=to_datetime(message, "create_time"),
        metadata=dict(message.metadata),
    )
