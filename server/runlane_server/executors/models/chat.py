"""From messages of a session to messages of chat completions."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any

from runlane import (
    Block,
    DataBlock,
    MediaBlock,
    MediaKind,
    Message,
    MessageRole,
    ModelError,
    TextBlock,
    ToolOutcome,
    ToolResultBlock,
    ToolSpec,
    ToolUseBlock,
)

# What these endpoints take as the id of a call, and as the name of a tool.
_ID_CHARACTERS = 40
_NAME_CHARACTERS = 64
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")


_BEFORE = "A summary of the conversation before what follows:"


def to_chat(system: str, messages: Iterable[Message], summary: str = "") -> list[dict[str, Any]]:
    """Returns the messages of a request.

    Reasoning is left out: chat completions do not take it back.

    Raises:
        ModelError: A user message holds what these endpoints cannot take.
    """
    chat: list[dict[str, Any]] = []
    if system:
        chat.append({"role": "system", "content": system})
    if summary:
        chat.append({"role": "system", "content": f"{_BEFORE}\n{summary}"})
    for message in messages:
        if message.role is MessageRole.ASSISTANT:
            chat.append(_assistant(message))
        elif (result := message.tool_result) is not None:
            chat.append(_result(result))
        else:
            chat.append({"role": "user", "content": _content(message)})
    return chat


def to_tools(tools: Iterable[ToolSpec]) -> list[dict[str, Any]]:
    """Returns the tools of a request."""
    return [
        {
            "type": "function",
            "function": {
                "name": chat_name(spec.name),
                "description": spec.description,
                "parameters": dict(spec.schema) or {"type": "object", "properties": {}},
            },
        }
        for spec in tools
    ]


def chat_name(name: str) -> str:
    """Returns a name of a tool as these endpoints take it; others become one that tells it."""
    if len(name) <= _NAME_CHARACTERS and not _NO_NAME.search(name):
        return name
    # Two names that differ only in what is not taken stay two.
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{_NO_NAME.sub('_', name)[: _NAME_CHARACTERS - 9]}_{mark}"


def chat_id(tool_call_id: str) -> str:
    """Returns an id of a call as these endpoints take it, the same each time."""
    if len(tool_call_id) <= _ID_CHARACTERS:
        return tool_call_id
    return "call_" + hashlib.sha256(tool_call_id.encode()).hexdigest()[:32]


def _assistant(message: Message) -> dict[str, Any]:
    uses = message.tool_uses
    if not uses:
        return {"role": "assistant", "content": message.text}
    calls = [
        {
            "id": chat_id(use.tool_call_id),
            "type": "function",
            "function": {"name": chat_name(use.name), "arguments": _arguments(use)},
        }
        for use in uses
    ]
    return {"role": "assistant", "content": message.text or None, "tool_calls": calls}


def _arguments(use: ToolUseBlock) -> str:
    """Returns the arguments as JSON: not every endpoint takes back what is none."""
    if use.arguments is None:
        return json.dumps({"malformed": use.arguments_text or ""})
    return json.dumps(dict(use.arguments))


def _result(result: ToolResultBlock) -> dict[str, Any]:
    """Returns the result of a call as a text: these endpoints take nothing else there."""
    text = "\n".join(_told(block) for block in result.content)
    if result.outcome is not ToolOutcome.OK:
        text = f"[{result.outcome}] {text}"
    return {"role": "tool", "tool_call_id": chat_id(result.tool_call_id), "content": text}


def _told(block: Block) -> str:
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, DataBlock) and block.json_text is not None:
        return block.json_text
    if isinstance(block, MediaBlock):
        where = f" at {block.uri}" if block.uri else ""
        return f"[{block.kind} {block.filename or block.media_type}{where}, not shown]"
    return "[content that cannot be shown]"


def _content(message: Message) -> str | list[dict[str, Any]]:
    """Returns a plain text where it is one: not every endpoint takes parts."""
    if all(isinstance(block, TextBlock) for block in message.content):
        return message.text
    return [_part(block) for block in message.content]


def _part(block: Block) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    if isinstance(block, MediaBlock) and block.kind is MediaKind.IMAGE:
        return {"type": "image_url", "image_url": {"url": _url(block)}}
    if isinstance(block, DataBlock) and block.json_text is not None:
        return {"type": "text", "text": block.json_text}
    what = block.kind if isinstance(block, MediaBlock) else type(block).__name__
    raise ModelError("refused", f"the model takes text and images, and no {what}")


def _url(block: MediaBlock) -> str:
    if block.uri:
        return block.uri
    data = base64.b64encode(block.inline_data).decode()
    return f"data:{block.media_type or 'image/png'};base64,{data}"
