"""OpenAI Agents SDK's SQLite sessions: items of the Responses API, a row each."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from runlane._transcripts.draft import Draft
from runlane._transcripts.parts import Part, call_part, content_part, data_part, reasoning_part
from runlane._transcripts.report import Piece, TranscriptError, read_json

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
_RESULTS = {"function_call_output", "custom_tool_call_output"}


class Row(NamedTuple):
    """A row of the table of messages."""

    number: int
    session: str
    data: str | bytes
    created: Any


def convert(rows: Sequence[Row], draft: Draft) -> None:
    """Takes the items of one session. Items of the agent up to a result are one model step.

    Raises:
        TranscriptError: A row is no item; the text names its id.
    """
    waiting: list[Part] = []
    time: int | None = None

    def has(*kinds: str) -> bool:
        return any(part.block.WhichOneof("block") in kinds for part in waiting)

    def flush() -> None:
        if waiting:
            draft.assistant(list(waiting), time)
            waiting.clear()

    for row in rows:
        where = f"session {row.session!r}, row {row.number}"
        item, given = _item(row, where, draft)
        kind, role = item.text("type") or "message", item.text("role")
        if kind == "message" and role == "assistant":
            if has("text"):
                flush()
            waiting += _content(item, draft)
        elif kind == "message" and role in {"user", "system", "developer"}:
            flush()
            if role == "user":
                draft.user(_content(item, draft), given)
            else:
                draft.system(_content(item, draft))
        elif kind in _CALLS:
            asked = item.value(_CALLS[kind])
            asked = "" if asked is None else asked
            named = item.name("call_id"), item.text("name")
            waiting.append(call_part(*named, asked, draft.report))
        elif kind in _RESULTS:
            flush()
            draft.result(item.name("call_id"), _output(item, draft), given)
        elif kind == "reasoning":
            if has("text", "tool_use"):
                flush()
            waiting.append(_reasoning(item, draft))
        elif kind == "message":
            raise TranscriptError(f"{where}: has no role that is known, but {role!r}"[:200])
        else:
            # A call that the provider ran itself, say a search: the model knows its result.
            waiting.append(data_part(item.whole(), draft.report))
        item.leave("id")
        item.says("status", "completed")
        time = given
    flush()


def _item(row: Row, where: str, draft: Draft) -> tuple[Piece, int | None]:
    """Reads a row; returns its item, and its time."""
    value = read_json(row.data, where)
    if not isinstance(value, Mapping):
        raise TranscriptError(f"{where}: is no object")
    columns = draft.report.open({"created_at": row.created}, "row", where)
    return draft.report.open(value, "item", where), columns.time("created_at")


def _content(item: Piece, draft: Draft) -> list[Part]:
    return [content_part(part, draft.report) for part in item.content()]


def _output(item: Piece, draft: Draft) -> list[Part]:
    try:
        return [content_part(part, draft.report) for part in item.content("output")]
    except TranscriptError:
        return [data_part(item.value("output"), draft.report)]


def _reasoning(item: Piece, draft: Draft) -> Part:
    sealed = item.whole()
    summary = sealed.get("summary")
    texts = [
        str(one.get("text", ""))
        for one in (summary if isinstance(summary, list) else [])
        if isinstance(one, Mapping)
    ]
    return reasoning_part("\n\n".join(texts), draft.report, sealed=sealed)
