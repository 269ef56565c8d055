"""LangGraph's SQLite checkpoints: the messages of each thread, and of each branch of it."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from runlane._transcripts.draft import Draft
from runlane._transcripts.msgpack import Extension, unpack
from runlane._transcripts.parts import Part, call_part, content_part, reasoning_part
from runlane._transcripts.report import Piece, Report, TranscriptError, holds, read_json
from runlane.v1 import run_pb2

_COUNT_MAX = 10**12
_ARGUMENTS = ("input", "args", "arguments")
# What LangGraph keeps of a checkpoint for itself.
_OWN = ("v", "id", "ts", "channel_values", "channel_versions", "versions_seen", "updated_channels")


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
    if row.kind == "json":
        value = read_json(row.data, where)
    elif row.kind == "msgpack":
        try:
            value = unpack(row.data)
        except (ValueError, RecursionError) as error:
            raise TranscriptError(f"{where}: {error}") from None
    else:
        raise TranscriptError(f"{where}: is stored as {row.kind!r}, which is not read")
    if not isinstance(value, dict) or not isinstance(value.get("channel_values"), dict):
        raise TranscriptError(f"{where}: has no channel_values")
    return value


def messages(checkpoint: Mapping[str, Any]) -> list[Any] | None:
    """Returns the messages of a checkpoint, as they are stored; None: it has none."""
    found = checkpoint["channel_values"].get("messages")
    return found if isinstance(found, list) else None


def count_channels(checkpoint: Mapping[str, Any], report: Report) -> None:
    """Counts what a checkpoint holds beside its messages."""
    report.open(checkpoint, "checkpoint", "").leave(*_OWN)
    for name, value in checkpoint["channel_values"].items():
        if (name != "messages" or not isinstance(value, list)) and holds(value):
            report.drop(f"channel {name}")


def convert(checkpoint: Mapping[str, Any], draft: Draft) -> None:
    """Takes the messages of a checkpoint."""
    draft.extra["checkpoint_id"] = str(checkpoint.get("id", ""))
    if isinstance(checkpoint.get("ts"), str):
        draft.extra["checkpoint_time"] = checkpoint["ts"]
    count_channels(checkpoint, draft.report)
    found = messages(checkpoint)
    if found is None:
        draft.report.drop("thread without a channel of messages")
        return
    for number, message in enumerate(found, 1):
        where = f"{draft.name}: message {number}"
        fields = _fields(message)
        if fields is None:
            raise TranscriptError(f"{where}: is no message")
        _message(draft.report.open(fields, "message", where), draft)


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


def _message(message: Piece, draft: Draft) -> None:
    given, report = message.text("type"), draft.report
    kind = given.removesuffix("MessageChunk").lower()
    message.leave("id")
    message.says("example", False)
    if kind == "ai":
        _answer(message, draft)
        return
    details = message.piece("response_metadata")
    time = details.time("created_at") if details is not None and kind != "system" else None
    parts = [content_part(part, report) for part in message.content()]
    if kind == "system":
        draft.system(parts)
    elif kind == "human":
        draft.user(parts, time)
    elif kind in {"tool", "function"}:
        call_id = message.name("tool_call_id", "name")
        message.says("name", draft.name_of(call_id))
        error = message.says("status", "error")
        message.says("status", "success")
        draft.result(call_id, parts, time, error=error)
    elif kind == "remove":
        message.whole()
        report.drop("remove message")
    else:
        raise TranscriptError(f"{message.place}: is of a kind that is not known, {given!r}"[:200])


def _answer(message: Piece, draft: Draft) -> None:
    report = draft.report
    calls: list[Part] = []
    asked: dict[str, tuple[str, Any]] = {}
    for field in ("tool_calls", "invalid_tool_calls"):
        for call in message.pieces(field, "tool call"):
            call.says("type", "tool_call", "invalid_tool_call")
            call_id, name, args = call.name("id"), call.text("name"), call.value("args")
            asked[call_id] = name, args
            calls.append(call_part(call_id, name, args, report))
    parts = []
    for part in message.content():
        kind = part.text("type")
        if kind in {"tool_use", "tool_call", "function_call"}:
            call_id = part.name("call_id", "id")
            if call_id in asked:
                _leave_call(part, *asked[call_id])
                continue
            args = part.value(*_ARGUMENTS)
            parts.append(call_part(call_id, part.text("name"), args, report))
        elif kind in {"thinking", "reasoning", "redacted_thinking"}:
            text = part.text("thinking", "reasoning")
            parts.append(reasoning_part(text, report, sealed=part.whole()))
        else:
            parts.append(content_part(part, report))
    extra = message.piece("additional_kwargs")
    if extra is not None:
        _leave_raw_calls(extra, asked)
    details = message.piece("response_metadata")
    time, model = None, ""
    if details is not None:
        time, model = details.time("created_at"), details.text("model_name", "model")
    draft.assistant([*parts, *calls], time, model, _usage(message.piece("usage_metadata")))


def _leave_raw_calls(extra: Piece, asked: Mapping[str, tuple[str, Any]]) -> None:
    """Leaves out calls as their provider wrote them, where `tool_calls` says the same."""
    if isinstance(extra.peek("tool_calls"), list):
        for call in extra.pieces("tool_calls", "raw tool call"):
            call.says("type", "function")
            function = call.piece("function")
            same = asked.get(call.name("id"))
            if function is not None and same is not None:
                _leave_call(function, *same)
    old = extra.piece("function_call")
    if old is not None:
        for name, args in asked.values():
            _leave_call(old, name, args)


def _leave_call(given: Piece, name: str, args: Any) -> None:
    """Leaves out of a call what `tool_calls` says of it, too."""
    given.says("name", name)
    for field in _ARGUMENTS:
        written = given.peek(field)
        try:
            meant = json.loads(written) if isinstance(written, str) else written
        except (ValueError, RecursionError):
            meant = written
        if args in (written, meant):
            given.leave(field)


def _usage(given: Piece | None) -> run_pb2.Usage | None:
    if given is None:
        return None
    read, written = (given.count(f"{way}_tokens", _COUNT_MAX) for way in ("input", "output"))
    given.says("total_tokens", read + written)
    of_input, of_output = given.piece("input_token_details"), given.piece("output_token_details")
    return run_pb2.Usage(
        input_tokens=read,
        output_tokens=written,
        cached_input_tokens=of_input.count("cache_read", _COUNT_MAX) if of_input else 0,
        reasoning_tokens=of_output.count("reasoning", _COUNT_MAX) if of_output else 0,
    )
