"""From messages of a session to messages of chat completions."""

import base64
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
)


def to_chat(system: str, messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Returns the messages of a request.

    Reasoning is left out: chat completions do not take it back.

    Raises:
        ModelError: A user message holds what these endpoints cannot take.
    """
    chat: list[dict[str, Any]] = []
    if system:
        chat.append({"role": "system", "content": system})
    for message in messages:
        if message.role is MessageRole.ASSISTANT:
            chat.append({"role": "assistant", "content": message.text})
        else:
            chat.append({"role": "user", "content": _content(message)})
    return chat


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
