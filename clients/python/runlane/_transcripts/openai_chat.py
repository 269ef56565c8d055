"""OpenAI's chat completions: a list of messages, or a list of conversations."""

from collections.abc import Mapping
from typing import Any

from runlane._transcripts.draft import Draft, TranscriptError
from runlane._transcripts.parts import (
    call_block,
    data_block,
    link_block,
    media_block,
    reasoning_block,
    text_block,
    time_of,
    word,
)
from runlane.v1 import message_pb2

_KNOWN = ("role", "content", "tool_calls", "function_call", "tool_call_id", "refusal")
_KNOWN_TOO = ("reasoning_content", "created_at", "timestamp")


def conversations(value: Any) -> list[tuple[str, Any]]:
    """Finds the conversations in what a file holds; each with its place, or its own name."""
    if isinstance(value, Mapping):
        return [(str(value.get("id") or "conversation"), value.get("messages"))]
    if isinstance(value, list) and value and all(_is_message(one) for one in value):
        return [("conversation", value)]
    if isinstance(value, list):
        found = []
        for index, one in enumerate(value, 1):
            if isinstance(one, Mapping):
                found.append((str(one.get("id") or f"conversation {index}"), one.get("messages")))
            else:
                found.append((f"conversation {index}", one))
        return found
    raise TranscriptError("is neither a list of messages nor a list of conversations")


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value and "messages" not in value


def convert(messages: Any, draft: Draft) -> None:
    """Takes the messages of one conversation.

    Raises:
        TranscriptError: One is no message; the text names its place, from 1.
    """
    if not isinstance(messages, list):
        raise TranscriptError(f"{draft.name}: has no list of messages")
    for number, message in enumerate(messages, 1):
        where = f"{draft.name}: message {number}"
        if not isinstance(message, Mapping):
            raise TranscriptError(f"{where}: is no object")
        draft.report.drop_fields("message", message, (*_KNOWN, *_KNOWN_TOO))
        _message(message, draft, where)


def _message(message: Mapping[str, Any], draft: Draft, where: str) -> None:
    role, report = word(message.get("role")), draft.report
    time = time_of(message.get("created_at") or message.get("timestamp"))
    blocks = _content(message.get("content"), draft, where)
    if role in {"system", "developer"}:
        draft.system("\n".join(block.text for block in blocks))
    elif role == "user":
        draft.user(blocks, time)
    elif role == "assistant":
        reasoning = message.get("reasoning_content")
        if isinstance(reasoning, str) and reasoning:
            blocks.insert(0, reasoning_block(reasoning, report))
        if isinstance(message.get("refusal"), str) and message["refusal"]:
            blocks.append(text_block(message["refusal"], report))
            report.changed["refusal (kept as text)"] += 1
        draft.assistant([*blocks, *_calls(message, draft, where)], time)
    elif role in {"tool", "function"}:
        call = message.get("tool_call_id") or message.get("name")
        if not isinstance(call, str):
            raise TranscriptError(f"{where}: has no tool_call_id")
        draft.result(call, blocks, time)
    else:
        raise TranscriptError(f"{where}: has no role that is known, but {role!r}"[:200])


def _calls(message: Mapping[str, Any], draft: Draft, where: str) -> list[message_pb2.Block]:
    calls = message.get("tool_calls") or []
    old = message.get("function_call")
    if old:
        calls = [{"id": old.get("name", ""), "function": old}]
        draft.report.changed["function_call (kept as a tool call)"] += 1
    if not isinstance(calls, list):
        raise TranscriptError(f"{where}: tool_calls is no list")
    found = []
    for index, call in enumerate(calls, 1):
        if not isinstance(call, Mapping):
            raise TranscriptError(f"{where}: tool call {index} is no object")
        asked = call.get("function") or call.get("custom")
        if not isinstance(asked, Mapping) or not isinstance(asked.get("name"), str):
            raise TranscriptError(f"{where}: tool call {index} has no function with a name")
        arguments = asked.get("arguments", asked.get("input", ""))
        found.append(call_block(str(call.get("id", "")), asked["name"], arguments, draft.report))
    return found


def _content(content: Any, draft: Draft, where: str) -> list[message_pb2.Block]:
    if content is None:
        return []
    if isinstance(content, str):
        return [text_block(content, draft.report)] if content else []
    if not isinstance(content, list):
        raise TranscriptError(f"{where}: its content is neither text nor a list of parts")
    return [part_block(part, draft, f"{where}, part {n}") for n, part in enumerate(content, 1)]


def part_block(part: Any, draft: Draft, where: str) -> message_pb2.Block:
    """Returns the block of a part of a content, also of the Responses API."""
    report = draft.report
    if isinstance(part, str):
        return text_block(part, report)
    if not isinstance(part, Mapping):
        raise TranscriptError(f"{where}: is no object")
    kind = word(part.get("type"))
    if kind in {"text", "input_text", "output_text", "refusal"}:
        report.drop_fields("part", part, ("type", "text", "refusal", "cache_control"))
        return text_block(str(part.get("text", part.get("refusal", ""))), report)
    if kind in {"image_url", "input_image"}:
        given = part.get("image_url")
        url = given.get("url") if isinstance(given, Mapping) else given
        if isinstance(url, str):
            return link_block(url, "image", report)
    if kind == "input_audio" and isinstance(part.get("input_audio"), Mapping):
        audio = part["input_audio"]
        return media_block(f"audio/{audio.get('format', '*')}", str(audio.get("data", "")), report)
    if kind == "image" and isinstance(part.get("source"), Mapping):
        source = part["source"]
        if source.get("type") == "base64":
            return media_block(str(source.get("media_type")), str(source.get("data")), report)
        if isinstance(source.get("url"), str):
            return link_block(source["url"], "image", report)
    return data_block(part, report)
