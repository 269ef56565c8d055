"""What tools return and models ask for, as blocks that the service takes."""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, cast

from pydantic_core import PydanticSerializationError, to_json

from runlane._content import (
    Block,
    DataBlock,
    MediaBlock,
    ReasoningBlock,
    TextBlock,
    block_to_pb,
)
from runlane._enums import ToolOutcome, number_of
from runlane._executor.tools import ToolError
from runlane.v1 import message_pb2 as pb

_BLOCKS: Final = 256
# What one result may hold; all of a commit are at most 3 MiB.
RESULT_BYTES: Final = 1024 * 1024
_ERROR_BYTES: Final = 2048
_ID_CHARACTERS: Final = 128
_ID_MARKS: Final = frozenset("._:@-")
_RETURNED: Final = (TextBlock, MediaBlock, DataBlock, ReasoningBlock)


def clean(text: str, limit: int | None = None) -> str:
    """Takes out what the service does not take, and cuts to a number of UTF-8 bytes."""
    data = text.encode(errors="replace")
    if limit is not None and len(data) > limit:
        data = data[:limit]
    return data.decode(errors="ignore").replace("\0", "")


def tool_result(
    tool_call_id: str, outcome: ToolOutcome, content: Iterable[pb.Block]
) -> pb.ToolResult:
    """Makes a result."""
    return pb.ToolResult(
        tool_call_id=tool_call_id,
        outcome=pb.ToolResult.Outcome.ValueType(number_of(ToolOutcome, outcome)),
        content=content,
    )


def error_result(
    tool_call_id: str, text: str, outcome: ToolOutcome = ToolOutcome.ERROR
) -> pb.ToolResult:
    """Makes the result of a call that went wrong."""
    return tool_result(tool_call_id, outcome, [pb.Block(text=clean(text, _ERROR_BYTES))])


def raised_result(tool_call_id: str, error: BaseException) -> pb.ToolResult:
    """Makes the result of a call whose tool raised: what the model is told of it."""
    if isinstance(error, ToolError):
        if error.content:
            try:
                blocks = result_blocks(error.content)
            except ValueError as problem:
                return error_result(tool_call_id, str(problem))
            return tool_result(tool_call_id, ToolOutcome.ERROR, blocks)
        return error_result(tool_call_id, error.message)
    said = str(error)
    name = type(error).__name__
    return error_result(tool_call_id, f"{name}: {said}" if said else name)


def result_blocks(value: object) -> list[pb.Block]:
    """Writes what a tool returned.

    Nothing is no block, a text and a block are themselves, a sequence of blocks too, and
    anything else is JSON.

    Raises:
        ValueError: It cannot be written, or is too large.
    """
    if value is None:
        return []
    if isinstance(value, str):
        return [_text(value)]
    if isinstance(value, _RETURNED):
        return _checked([block_to_pb(value)])
    if isinstance(value, list | tuple) and value and all(isinstance(v, _RETURNED) for v in value):
        return _checked([block_to_pb(block) for block in cast("Sequence[Block]", value)])
    try:
        return [_text(to_json(value, inf_nan_mode="null").decode())]
    except PydanticSerializationError as error:
        raise ValueError(f"the tool returned what is no JSON: {error}") from error


def _text(text: str, room: int = RESULT_BYTES) -> pb.Block:
    kept = clean(text)
    size = len(kept.encode())
    if size > room:
        note = f"\n[cut: the whole has {size} bytes]"
        kept = clean(kept, max(0, room - len(note))) + note
    return pb.Block(text=kept)


def _checked(blocks: list[pb.Block]) -> list[pb.Block]:
    if len(blocks) > _BLOCKS:
        raise ValueError(f"the tool returned {len(blocks)} blocks; at most {_BLOCKS} are taken")
    size = sum(block.ByteSize() for block in blocks if block.WhichOneof("block") != "text")
    if size > RESULT_BYTES:
        raise ValueError(f"the tool returned {size} bytes; at most {RESULT_BYTES} are taken")
    for block in blocks:
        if block.WhichOneof("block") == "text":
            # Texts share what the others leave.
            block.text = _text(block.text, max(0, RESULT_BYTES - size)).text
            size += block.ByteSize()
    return blocks


def settle_uses(
    blocks: Sequence[pb.Block], taken: Collection[str], step: int, *, always: bool
) -> None:
    """Makes the tool uses of an answer such as the service takes.

    Ids that the model repeats within the run, or that are none, are replaced; arguments that
    are no JSON object are kept as text.

    Args:
        blocks: The answer; changed in place.
        taken: Ids that the run has used, as far as they are seen.
        step: The model step.
        always: Makes each id the step's own: others of the run are not seen.
    """
    known = set(taken)
    uses = [block.tool_use for block in blocks if block.WhichOneof("block") == "tool_use"]
    for ordinal, use in enumerate(uses, 1):
        given = f"{use.tool_call_id[: _ID_CHARACTERS - 16]}-{step}" if always else use.tool_call_id
        use.tool_call_id = _unique(given, known, f"call_{step}_{ordinal}")
        known.add(use.tool_call_id)
        use.name = clean(use.name, 255) or "unnamed"
        if use.WhichOneof("arguments") == "arguments_text":
            if parse_arguments(use.arguments_text) is not None:
                use.arguments_json = use.arguments_text
            else:
                use.arguments_text = clean(use.arguments_text)
        elif parse_arguments(use.arguments_json or "{}") is None:
            use.arguments_text = clean(use.arguments_json)
        elif not use.arguments_json:
            use.arguments_json = "{}"


def parse_arguments(text: str) -> dict[str, Any] | None:
    """Reads arguments; None where they are no JSON object."""
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _unique(given: str, taken: Collection[str], otherwise: str) -> str:
    kept = "".join(
        one if (one.isascii() and one.isalnum()) or one in _ID_MARKS else "-" for one in given
    ).lstrip("".join(_ID_MARKS))
    base = kept[:_ID_CHARACTERS] or otherwise
    if base not in taken:
        return base
    count = 2
    while (name := f"{base[: _ID_CHARACTERS - 8]}-{count}") in taken:
        count += 1
    return name
