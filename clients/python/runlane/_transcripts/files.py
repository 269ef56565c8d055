"""Files: which format one has, and the conversations in it."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from runlane._transcripts import agents_sdk, claude_code, langgraph, openai_chat
from runlane._transcripts.draft import Draft, Report, Transcript, TranscriptError

FILE_BYTES_MAX: Final = 1024 * 1024 * 1024
_SQLITE = b"SQLite format 3\0"
_LONG_AGO = 946_684_800_000_000  # 2000-01-01: of what has no time, the order is all that is known


def read_transcripts(
    path: Path | str,
    format: str = "auto",  # noqa: A002 - the word of the terminal
    *,
    agent: str = "imported",
) -> list[Transcript]:
    """Reads the conversations of a file of another program, or an archive of Runlane.

    Nothing in the file is run or imported. A user message begins a run; what cannot be kept is
    counted in `dropped`, what is kept in another form in `changed`.

    Args:
        path: The file.
        format: One of `runlane`, `openai-chat`, `langgraph`, `agents-sdk`, `claude-code`, or
            `auto` to tell by its content.
        agent: The agent that the runs name, and the default agent of the sessions; an archive of
            Runlane names its own.

    Raises:
        ValueError: The format is none of these.
        TranscriptError: The file is no transcript of its format; the text names the place.
        OSError: It cannot be read.
    """
    path = Path(path)
    if format != "auto" and format not in FORMATS:
        raise ValueError(f"{format!r} is no format: {', '.join(FORMATS)}, or auto")
    if path.stat().st_size > FILE_BYTES_MAX:
        raise TranscriptError("is larger than 1 GiB")
    try:
        kind = _format_of(path) if format == "auto" else format
        return FORMATS[kind](path, agent)
    except sqlite3.DatabaseError as error:
        raise TranscriptError(f"cannot be read as SQLite: {error}") from None
    except UnicodeDecodeError as error:
        raise TranscriptError(f"is no UTF-8, at byte {error.start + 1}") from None


def _format_of(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(len(_SQLITE))
    if head == _SQLITE:
        with closing(_open(path)) as conn:
            tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master")}
        for kind, table in (("langgraph", "checkpoints"), ("agents-sdk", "agent_messages")):
            if table in tables:
                return kind
        raise TranscriptError("is an SQLite file without checkpoints and without agent_messages")
    first = next((line for line in _lines(path) if line.strip()), "")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return "openai-chat"  # which may go on over many lines
    if isinstance(value, dict):
        if "header" in value:
            return "runlane"
        if "messages" not in value and isinstance(value.get("type"), str):
            return "claude-code"
    return "openai-chat"


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8-sig").split("\n")


def _open(path: Path) -> sqlite3.Connection:
    # Neither written to nor locked; a write-ahead log beside it is read, too.
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def _finished(drafts: Iterator[Draft]) -> list[Transcript]:
    return [draft.finish() for draft in drafts]


def _runlane(path: Path, _agent: str) -> list[Transcript]:
    lines = tuple(line for line in _lines(path) if line.strip())
    counts = {"run": 0, "message": 0, "event": 0}
    name = path.name
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            raise TranscriptError(f"line {number}: is no JSON") from None
        if not isinstance(record, dict):
            raise TranscriptError(f"line {number}: is no record")
        for kind in counts:
            counts[kind] += kind in record
        header = record.get("header")
        if number == 1 and isinstance(header, dict):
            name = str(header.get("sessionId") or name)
    if not lines:
        raise TranscriptError("is empty")
    dropped = {"event (the session gets its own)": counts["event"]} if counts["event"] else {}
    kept = {"run": counts["run"], "message": counts["message"]}
    return [Transcript(name, lines, counts["message"], counts["run"], kept, {}, dropped)]


def _openai_chat(path: Path, agent: str) -> list[Transcript]:
    text = "\n".join(_lines(path))
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        value = _json_lines(text, error)

    def drafts() -> Iterator[Draft]:
        for name, messages in openai_chat.conversations(value):
            draft = Draft("openai-chat", name, _LONG_AGO, agent)
            openai_chat.convert(messages, draft)
            yield draft

    return _finished(drafts())


def _json_lines(text: str, error: Exception) -> list[Any]:
    lines = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
    found = []
    for number, line in lines:
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError):
            if not found and isinstance(error, json.JSONDecodeError):
                raise TranscriptError(f"line {error.lineno}: is no JSON") from None
            raise TranscriptError(f"line {number}: is no JSON") from None
    return found


def _langgraph(path: Path, agent: str) -> list[Transcript]:
    with closing(_open(path)) as conn:
        rows = [
            langgraph.Checkpoint(thread, namespace, name, parent, kind or "", bytes(data or b""))
            for thread, namespace, name, parent, kind, data in conn.execute(
                "SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type,"
                " checkpoint FROM checkpoints ORDER BY thread_id, checkpoint_id"
            )
        ]
        writes = conn.execute(
            "SELECT thread_id, checkpoint_id, count(*) FROM writes WHERE channel = 'messages'"
            " GROUP BY thread_id, checkpoint_id"
        )
        pending = {(thread, checkpoint): count for thread, checkpoint, count in writes}

    made: list[Draft] = []
    main: dict[str, tuple[tuple[str, ...], Draft]] = {}
    for name, row in langgraph.leaves(rows):
        checkpoint = langgraph.read(row)
        ids = langgraph.ids(checkpoint)
        if row.thread in main:
            told, first = main[row.thread]
            if told[: len(ids)] == ids:
                first.report.changed["branch that another one holds whole"] += 1
                continue
        draft = Draft("langgraph", name, _LONG_AGO, agent)
        langgraph.convert(checkpoint, draft)
        waiting = pending.get((row.thread, row.checkpoint_id), 0)
        if waiting:
            draft.report.dropped["pending write of messages"] += waiting
        if row.thread not in main:
            inner = sum(one.thread == row.thread and bool(one.namespace) for one in rows)
            if inner:
                draft.report.dropped["checkpoint of a subgraph"] += inner
            main[row.thread] = ids, draft
        made.append(draft)
    return _finished(iter(made))


def _agents_sdk(path: Path, agent: str) -> list[Transcript]:
    with closing(_open(path)) as conn:
        rows = [
            agents_sdk.Row(*row)
            for row in conn.execute(
                "SELECT id, session_id, message_data, created_at FROM agent_messages"
                " ORDER BY session_id, id"
            )
        ]
    sessions: dict[str, list[agents_sdk.Row]] = {}
    for row in rows:
        sessions.setdefault(row.session, []).append(row)

    def drafts() -> Iterator[Draft]:
        for name, own in sessions.items():
            draft = Draft("agents-sdk", name, _LONG_AGO, agent)
            agents_sdk.convert(own, draft)
            yield draft

    return _finished(drafts())


def _claude_code(path: Path, agent: str) -> list[Transcript]:
    found = claude_code.entries(_lines(path))
    report = Report()
    title = claude_code.other_entries(found, report)

    def drafts() -> Iterator[Draft]:
        for number, (name, chain) in enumerate(claude_code.chains(found)):
            session = str(chain[-1][1].get("sessionId") or path.stem)
            whole = f"{session} ({name})" if name else session
            draft = Draft("claude-code", whole, _LONG_AGO, agent)
            draft.title = f"{title} ({name})" if title and name else title
            if not number:
                draft.report.changed.update(report.changed)
                draft.report.dropped.update(report.dropped)
            claude_code.convert(chain, draft)
            yield draft

    return _finished(drafts())


FORMATS: Final[dict[str, Callable[[Path, str], list[Transcript]]]] = {
    "runlane": _runlane,
    "openai-chat": _openai_chat,
    "langgraph": _langgraph,
    "agents-sdk": _agents_sdk,
    "claude-code": _claude_code,
}
"""How each format is read, by name."""
