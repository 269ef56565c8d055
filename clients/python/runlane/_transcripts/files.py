"""Files: which format one has, and the conversations in it."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from runlane._transcripts import agents_sdk, claude_code, langgraph, openai_chat
from runlane._transcripts.draft import Draft, Transcript
from runlane._transcripts.report import Report, TranscriptError, holds, read_json

FILE_BYTES_MAX: Final = 1024 * 1024 * 1024
_SQLITE = b"SQLite format 3\0"
_LINEAGE = ("ancestors", "parents", "liveRunId", "live_run_id")
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
    size = path.stat().st_size
    if not path.is_file():
        raise TranscriptError("is no file: what comes through a pipe is to be put into one first")
    if size > FILE_BYTES_MAX:
        raise TranscriptError("is larger than 1 GiB")
    try:
        kind = _format_of(path) if format == "auto" else format
        return FORMATS[kind](path, agent)
    except sqlite3.DatabaseError as error:
        raise TranscriptError(f"cannot be read as SQLite: {error}") from None
    except UnicodeDecodeError as error:
        raise TranscriptError(f"is no UTF-8, at byte {error.start + 1}") from None
    except RecursionError:
        raise TranscriptError("is nested too deep") from None


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


def _finished(drafts: Iterator[Draft], left: Report | None = None) -> list[Transcript]:
    """Ends the drafts; what is in none of them is told with the first.

    Raises:
        TranscriptError: There is no draft to tell it with.
    """
    made = list(drafts)
    if left is not None:
        left.settle()
        if made:
            made[0].report.take(left)
        elif left.dropped:
            told = ", ".join(f"{count} {kind}" for kind, count in left.dropped.items())
            raise TranscriptError(f"holds no conversation, but {told}")
    return [draft.finish() for draft in made]


def _runlane(path: Path, _agent: str) -> list[Transcript]:
    lines = tuple(line for line in _lines(path) if line.strip())
    counts = {"run": 0, "summary": 0, "message": 0, "event": 0}
    name = path.name
    report = Report()
    for number, line in enumerate(lines, 1):
        record = read_json(line, f"line {number}")
        if not isinstance(record, dict):
            raise TranscriptError(f"line {number}: is no record")
        for kind in counts:
            counts[kind] += kind in record
        header = record.get("header")
        if number == 1 and isinstance(header, dict):
            name = str(header.get("sessionId") or header.get("session_id") or name)
            for field in _LINEAGE:
                report.drop(f"header field {field}", holds(header.get(field)))
    if not lines:
        raise TranscriptError("is empty")
    report.drop("event (the session gets its own)", counts.pop("event"))
    return [
        Transcript(name, lines, counts["message"], counts["run"], counts, {}, dict(report.dropped))
    ]


def _openai_chat(path: Path, agent: str) -> list[Transcript]:
    text = "\n".join(_lines(path))
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        value: Any = _json_lines(text, error)
    else:
        value = read_json(text, "the file")

    def drafts() -> Iterator[Draft]:
        for place, one in openai_chat.conversations(value):
            draft = Draft("openai-chat", place, _LONG_AGO, agent)
            openai_chat.convert(one, draft)
            yield draft

    return _finished(drafts())


def _json_lines(text: str, error: Exception) -> list[Any]:
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(read_json(line, f"line {number}"))
        except TranscriptError:
            if not found and isinstance(error, json.JSONDecodeError):
                raise TranscriptError(f"line {error.lineno}: is no JSON") from None
            raise
    return found


def _langgraph(path: Path, agent: str) -> list[Transcript]:
    with closing(_open(path)) as conn:
        rows = [
            _checkpoint(*row)
            for row in conn.execute(
                "SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, type,"
                " checkpoint FROM checkpoints ORDER BY thread_id, checkpoint_id, checkpoint_ns"
            )
        ]
        pending: dict[tuple[str, str], list[tuple[str, int]]] = {}
        for thread, checkpoint_id, channel, count in conn.execute(
            "SELECT thread_id, checkpoint_id, channel, count(*) FROM writes"
            " WHERE checkpoint_ns = '' GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        ):
            pending.setdefault((thread, checkpoint_id), []).append((channel, count))

    made: list[Draft] = []
    main: dict[str, tuple[list[Any], Draft]] = {}
    for name, row in langgraph.leaves(rows):
        checkpoint = langgraph.read(row)
        messages = langgraph.messages(checkpoint) or []
        if row.thread in main and main[row.thread][0][: len(messages)] == messages:
            draft = main[row.thread][1]
            draft.report.change("branch that another one holds whole")
            langgraph.count_channels(checkpoint, draft.report)
        else:
            draft = Draft("langgraph", name, _LONG_AGO, agent)
            langgraph.convert(checkpoint, draft)
            main.setdefault(row.thread, (messages, draft))
            made.append(draft)
        for channel, count in pending.get((row.thread, row.checkpoint_id), ()):
            draft.report.drop(f"pending write of {channel}", count)
    left = Report()
    for row in rows:
        if row.namespace:
            report = main[row.thread][1].report if row.thread in main else left
            report.drop("checkpoint of a subgraph")
    return _finished(iter(made), left)


def _checkpoint(
    thread: Any, namespace: Any, name: Any, parent: Any, kind: Any, data: Any
) -> langgraph.Checkpoint:
    """Checks a row: in SQLite any column holds any type.

    Raises:
        TranscriptError: It is of another type.
    """
    where = f"thread {thread!r}, checkpoint {name!r}"
    for column, value in (
        ("thread_id", thread),
        ("checkpoint_ns", namespace or ""),
        ("checkpoint_id", name),
        ("parent_checkpoint_id", parent or ""),
        ("type", kind or ""),
    ):
        if not isinstance(value, str):
            raise TranscriptError(f"{where}: {column} is no text")
    if isinstance(data, str):
        data = data.encode()
    if not isinstance(data, bytes | None):
        raise TranscriptError(f"{where}: checkpoint is neither bytes nor text")
    return langgraph.Checkpoint(thread, namespace or "", name, parent, kind or "", data or b"")


def _agents_sdk(path: Path, agent: str) -> list[Transcript]:
    sessions: dict[str, list[agents_sdk.Row]] = {}
    with closing(_open(path)) as conn:
        for number, session, data, created in conn.execute(
            "SELECT id, session_id, message_data, created_at FROM agent_messages"
            " ORDER BY session_id, id"
        ):
            if not isinstance(session, str):
                raise TranscriptError(f"row {number}: session_id is no text")
            if not isinstance(data, str | bytes):
                raise TranscriptError(f"row {number}: message_data is no text")
            sessions.setdefault(session, []).append(agents_sdk.Row(number, session, data, created))

    def drafts() -> Iterator[Draft]:
        for name, own in sessions.items():
            draft = Draft("agents-sdk", name, _LONG_AGO, agent)
            agents_sdk.convert(own, draft)
            yield draft

    return _finished(drafts())


def _claude_code(path: Path, agent: str) -> list[Transcript]:
    report = Report()
    found = claude_code.single(claude_code.entries(_lines(path)), report)
    told = claude_code.chains(found)
    title = claude_code.other_entries(found, [chain for _, chain in told], report)

    def drafts() -> Iterator[Draft]:
        for name, chain in told:
            session = str(chain[-1][1].get("sessionId") or path.stem)
            whole = f"{session} ({name})" if name else session
            draft = Draft("claude-code", whole, _LONG_AGO, agent)
            draft.title = f"{title} ({name})" if title and name else title
            claude_code.convert(chain, draft)
            yield draft

    return _finished(drafts(), report)


FORMATS: Final[dict[str, Callable[[Path, str], list[Transcript]]]] = {
    "runlane": _runlane,
    "openai-chat": _openai_chat,
    "langgraph": _langgraph,
    "agents-sdk": _agents_sdk,
    "claude-code": _claude_code,
}
"""How each format is read, by name."""
