"""OpenAI's chat completions: a list of messages, or a list of conversations."""

from collections.abc import Mapping
from typing import Any

from runlane._transcripts.draft import Draft
from runlane._transcripts.parts import Part, call_part, content_part, reasoning_part, text_part
from runlane._transcripts.report import Piece, TranscriptError


def conversations(value: Any) -> list[tuple[str, Any]]:
    """Finds the conversations in what a file holds; each with its place."""
    if isinstance(value, Mapping):
        return [("conversation", value)]
    if isinstance(value, list) and value and all(_is_message(one) for one in value):
        return [("conversation", value)]
    if isinstance(value, list):
        return [(f"conversation {number}", one) for number, one in enumerate(value, 1)]
    raise TranscriptError("is neither a list of messages nor a list of conversations")


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and "role" in value and "messages" not in value


def convert(given: Any, draft: Draft) -> None:
    """Takes one conversation: an object that has its messages, or a list of them.

    Raises:
        TranscriptError: One is no message; the text names its place, from 1.
    """
    fields = given if isinstance(given, Mapping) else {"messages": given}
    one = draft.report.open(fields, "conversation", draft.name)
    draft.name = one.place = one.name("id") or draft.name
    draft.title = one.text("title")
    if not isinstance(fields.get("messages"), list):
        raise TranscriptError(f"{draft.name}: has no list of messages")
    for message in one.pieces("messages", "message"):
        _message(message, draft)


def _message(message: Piece, draft: Draft) -> None:
    role, report = message.text("role"), draft.report
    parts = [content_part(part, report) for part in message.content()]
    if role in {"system", "developer"}:
        draft.system(parts)
    elif role == "user":
        draft.user(parts, _time(message))
    elif role == "assistant":
        reasoning = message.text("reasoning_content")
        if reasoning:
            parts.insert(0, reasoning_part(reasoning, report))
        refusal = message.text("refusal")
        if refusal:
            parts.append(text_part(refusal, report, "refusal (kept as text)"))
        draft.assistant([*parts, *_calls(message, draft)], _time(message))
    elif role in {"tool", "function"}:
        call = message.text("tool_call_id", "name")
        if not call:
            raise TranscriptError(f"{message.place}: has no tool_call_id")
        message.says("name", draft.name_of(call))
        draft.result(call, parts, _time(message))
    else:
        raise TranscriptError(
            f"{message.place}: has no role that is known, but {message.value('role')!r}"[:200]
        )


def _time(message: Piece) -> int | None:
    return message.time("created_at", "timestamp")


def _calls(message: Piece, draft: Draft) -> list[Part]:
    found = []
    for call in message.pieces("tool_calls", "tool call"):
        call.says("type", "function", "custom")
        asked = call.piece("function") or call.piece("custom")
        name = asked.text("name") if asked is not None else ""
        if asked is None or not name:
            raise TranscriptError(f"{call.place} has no function with a name")
        arguments = asked.value("arguments", "input")
        found.append(call_part(call.name("id"), name, arguments, draft.report))
    old = message.piece("function_call")
    if old is not None:
        name = old.text("name")
        part = call_part(name, name, old.value("arguments"), draft.report)
        found.append(part._replace(changed=part.changed or "function_call (kept as a tool call)"))
    return found
