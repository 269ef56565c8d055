"""OpenAI Agents SDK's SQLite sessions: items of the Responses API, a row each."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runlane._transcripts.draft import Draft, TranscriptError
from runlane._transcripts.openai_chat import part_block
from runlane._transcripts.parts import (
    call_block,
    data_block,
    reasoning_block,
    text_block,
    time_of,
    word,
)
from runlane.v1 import message_pb2

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_RESULTS = {"function_call_output", "custom_tool_call_output"}
_KNOWN = (
    *("role", "type", "content", "id", "status", "call_id", "name", "arguments", "input"),
    *("output", "summary", "encrypted_content", "phase"),
)


class Row(NamedTuple):
    """A row of the table of messages."""

    number: int
    session: str
    data: str
    created: str


def convert(rows: Sequence[Row], draft: Draft) -> None:
    """Takes the items of one session. Items of the agent up to a result are one model step.

    Raises:
        TranscriptError: A row is no item; the text names its id.
    """
    waiting: list[message_pb2.Block] = []
    time: int | None = None

    def flush() -> None:
        if waiting:
            draft.assistant(list(waiting), time)
            waiting.clear()

    for row in rows:
        where = f"session {row.session!r}, row {row.number}"
        try:
            item = json.loads(row.data)
        except (ValueError, TypeError, RecursionError):
            raise TranscriptError(f"{where}: is no JSON") from None
        if not isinstance(item, Mapping):
            raise TranscriptError(f"{where}: is no object")
        kind, role = word(item.get("type", "message")), word(item.get("role"))
        given = time_of(row.created)
        if kind == "message" and role == "assistant":
            if any(block.WhichOneof("block") == "text" for block in waiting):
                flush()
            waiting += _content(item, draft, where)
        elif kind == "message" and role in {"user", "system", "developer"}:
            flush()
            blocks = _content(item, draft, where)
            if role == "user":
                draft.user(blocks, given)
            else:
                draft.system("\n".join(block.text for block in blocks))
        elif kind in _CALLS:
            asked = item.get(_CALLS[kind], "")
            named = str(item.get("call_id") or ""), str(item.get("name") or "")
            waiting.append(call_block(*named, asked, draft.report))
        elif kind in _RESULTS:
            flush()
            draft.result(str(item.get("call_id") or ""), _output(item, draft, where), given)
        elif kind == "reasoning":
            if any(block.WhichOneof("block") in {"text", "tool_use"} for block in waiting):
                flush()
            waiting.append(_reasoning(item, draft))
        elif kind == "message":
            raise TranscriptError(f"{where}: has no role that is known, but {role!r}"[:200])
        else:
            # A call that the provider ran itself, say a search: the model knows its result.
            waiting.append(data_block(item, draft.report))
        if kind in _CALLS or kind in _RESULTS or kind in {"message", "reasoning"}:
            draft.report.drop_fields("item", item, _KNOWN)
        time = given
    flush()


def _content(item: Mapping[str, Any], draft: Draft, where: str) -> list[message_pb2.Block]:
    content = item.get("content")
    if isinstance(content, str):
        return [text_block(content, draft.report)] if content else []
    if not isinstance(content, list):
        raise TranscriptError(f"{where}: its content is neither text nor a list of parts")
    return [part_block(part, draft, f"{where}, part {n}") for n, part in enumerate(content, 1)]


def _output(item: Mapping[str, Any], draft: Draft, where: str) -> list[message_pb2.Block]:
    output = item.get("output")
    if isinstance(output, str):
        return [text_block(output, draft.report)] if output else []
    if isinstance(output, list):
        return [part_block(part, draft, f"{where}, part {n}") for n, part in enumerate(output, 1)]
    return [data_block(output, draft.report)]


def _reasoning(item: Mapping[str, Any], draft: Draft) -> message_pb2.Block:
    summary = item.get("summary")
    texts = [
        str(one.get("text", ""))
        for one in (summary if isinstance(summary, list) else [])
        if isinstance(one, Mapping)
    ]
    return reasoning_block("\n\n".join(texts), draft.report, sealed=item)
