"""LangGraph's SQLite checkpoints: the messages of each thread, and of each branch of it."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from runlane._transcripts.draft import Draft, TranscriptError
from runlane._transcripts.msgpack import Extension, unpack
from runlane._transcripts.openai_chat import part_block
from runlane._transcripts.parts import call_block, reasoning_block, text_block, time_of, word
from runlane.v1 import message_pb2, run_pb2

_KNOWN = (
    *("type", "content", "name", "id", "tool_calls", "tool_call_id", "status"),
    *("invalid_tool_calls", "usage_metadata", "response_metadata", "additional_kwargs"),
)
_INTERNAL = ("__", "branch:")


class Checkpoint(NamedTuple):
    """A row of the table of checkpoints."""

    thread: str
    namespace: str
    checkpoint_id: str
    parent: str | None
    kind: str
    data: bytes


def leaves(rows: list[Checkpoint]) -> list[tuple[str, Checkpoint]]:
    """Finds the ends of all branches of the threads, the newest of each thread first."""
    found: list[tuple[str, Checkpoint]] = []
    threads: dict[str, list[Checkpoint]] = {}
    for row in rows:
        if not row.namespace:
            threads.setdefault(row.thread, []).append(row)
    for thread, own in threads.items():
        parents = {row.parent for row in own}
        ends = sorted(
            (row for row in own if row.checkpoint_id not in parents),
            key=lambda row: row.checkpoint_id,
            reverse=True,
        )
        for number, row in enumerate(ends):
            found.append((f"{thread} (branch {number + 1})" if number else thread, row))
    return found


def read(row: Checkpoint) -> dict[str, Any]:
    """Decodes a checkpoint.

    Raises:
        TranscriptError: It cannot be read; the text names thread and checkpoint.
    """
    where = f"thread {row.thread!r}, checkpoint {row.checkpoint_id}"
    try:
        if row.kind == "msgpack":
            value = unpack(row.data)
        elif row.kind == "json":
            value = json.loads(row.data)
        else:
            raise TranscriptError(f"{where}: is stored as {row.kind!r}, which is not read")
    except (ValueError, RecursionError) as error:
        if isinstance(error, TranscriptError):
            raise
        raise TranscriptError(f"{where}: {error}") from None
    if not isinstance(value, dict) or not isinstance(value.get("channel_values"), dict):
        raise TranscriptError(f"{where}: has no channel_values")
    return value


def ids(checkpoint: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns what names the messages of a checkpoint, in order."""
    messages = checkpoint["channel_values"].get("messages")
    listed = messages if isinstance(messages, list) else []
    return tuple(str((_fields(one) or {}).get("id") or one) for one in listed)


def convert(checkpoint: Mapping[str, Any], draft: Draft) -> None:
    """Takes the messages of a checkpoint."""
    draft.extra["checkpoint_id"] = str(checkpoint.get("id", ""))
    values = checkpoint["channel_values"]
    for name in values:
        if name != "messages" and not str(name).startswith(_INTERNAL):
            draft.report.dropped[f"channel {name}"] += 1
    messages = values.get("messages")
    if not isinstance(messages, list):
        draft.report.dropped["thread without a channel of messages"] += 1
        return
    for number, message in enumerate(messages, 1):
        where = f"{draft.name}: message {number}"
        fields = _fields(message)
        if fields is None:
            raise TranscriptError(f"{where}: is no message")
        draft.report.drop_fields("message", fields, _KNOWN)
        _message(fields, draft, where)


def _fields(message: Any) -> Mapping[str, Any] | None:
    """Returns the fields of a message, however it was stored."""
    if isinstance(message, Extension):
        # Module, class, arguments and, of some, the method that makes it of them.
        parts = message.value
        message = parts[2] if isinstance(parts, list) and len(parts) > 2 else None
    elif isinstance(message, Mapping) and "lc" in message:
        message = message.get("kwargs")
    if isinstance(message, Mapping) and isinstance(message.get("type"), str):
        return message
    return None


def _message(fields: Mapping[str, Any], draft: Draft, where: str) -> None:
    kind, report = fields["type"].removesuffix("MessageChunk").lower(), draft.report
    extra = fields.get("additional_kwargs")
    if isinstance(extra, Mapping):
        report.drop_fields("additional_kwargs", extra, ("tool_calls", "function_call"))
    details = fields.get("response_metadata")
    details = details if isinstance(details, Mapping) else {}
    report.drop_fields("response_metadata", details, ("model_name", "model", "created_at"))
    time = time_of(details.get("created_at"))
    blocks = _content(fields.get("content"), draft, where)
    if kind == "system":
        draft.system("\n".join(block.text for block in blocks))
    elif kind == "human":
        draft.user(blocks, time)
    elif kind == "ai":
        asked_for = [fields.get("tool_calls") or [], fields.get("invalid_tool_calls") or []]
        if not all(isinstance(some, list) for some in asked_for):
            raise TranscriptError(f"{where}: tool_calls is no list")
        for call in [call for some in asked_for for call in some]:
            if not isinstance(call, Mapping):
                raise TranscriptError(f"{where}: has a tool call that is no object")
            asked = call.get("args")
            named = str(call.get("id") or ""), str(call.get("name") or "")
            blocks.append(call_block(*named, asked, report))
        model = str(details.get("model_name") or details.get("model") or "")
        draft.assistant(blocks, time, model, _usage(fields.get("usage_metadata")))
    elif kind in {"tool", "function"}:
        call_id = str(fields.get("tool_call_id") or fields.get("name") or "")
        draft.result(call_id, blocks, time, error=fields.get("status") == "error")
    elif kind == "remove":
        report.dropped["remove message"] += 1
    else:
        raise TranscriptError(f"{where}: is of a kind that is not known, {fields['type']!r}"[:200])


def _usage(given: Any) -> run_pb2.Usage | None:
    if not isinstance(given, Mapping):
        return None

    def count(value: Any) -> int:
        return value if isinstance(value, int) and 0 <= value <= 10**12 else 0

    def detail(name: str, of: str) -> Any:
        details = given.get(name)
        return details.get(of) if isinstance(details, Mapping) else None

    return run_pb2.Usage(
        input_tokens=count(given.get("input_tokens")),
        output_tokens=count(given.get("output_tokens")),
        cached_input_tokens=count(detail("input_token_details", "cache_read")),
        reasoning_tokens=count(detail("output_token_details", "reasoning")),
    )


def _content(content: Any, draft: Draft, where: str) -> list[message_pb2.Block]:
    if isinstance(content, str):
        return [text_block(content, draft.report)] if content else []
    if content is None:
        return []
    if not isinstance(content, list):
        raise TranscriptError(f"{where}: its content is neither text nor a list of parts")
    found = []
    for part in content:
        kind = word(part.get("type")) if isinstance(part, Mapping) else "text"
        if kind in {"tool_use", "tool_call", "function_call"}:
            continue  # tool_calls has it, too
        if kind in {"thinking", "reasoning", "redacted_thinking"}:
            text = str(part.get("thinking") or part.get("reasoning") or "")
            found.append(reasoning_block(text, draft.report, sealed=part))
        else:
            found.append(part_block(part, draft, where))
    return found
