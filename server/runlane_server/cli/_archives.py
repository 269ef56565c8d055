"""The commands that take sessions out of a server, and into one."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import runlane
import typer

from runlane_server.cli._client import (
    DEFAULT_TARGET,
    AsJson,
    NotDone,
    Target,
    check_session,
    connected,
    emit,
    run,
    told,
)
from runlane_server.cli._show import line

_FORMATS = ("auto", "runlane", "openai-chat", "langgraph", "agents-sdk", "claude-code")


def export(
    session: Annotated[str, typer.Argument(help="The id of the session.", show_default=False)],
    target: Target = DEFAULT_TARGET,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file; it must not exist.", show_default="standard output"
        ),
    ] = None,
    events: Annotated[
        bool, typer.Option("--events", help="Also the events; an import leaves them out.")
    ] = False,
) -> None:
    """Write a session as an archive: a line of JSON for each run and message.

    The last line has a digest of the content. A run that is live is written as if it were
    cancelled at this moment; the session itself goes on. `runlane import` makes a session of the
    file, on any server.
    """
    run(target, _export(target, session, output, events=events))


async def _export(target: str, session: str, output: Path | None, *, events: bool) -> None:
    check_session(session)
    async with connected(target) as client:
        with _whole_file(output) as file:
            async for text in client.export_session(session, events=events):
                file.write(text + "\n")


@contextmanager
def _whole_file(path: Path | None) -> Iterator[TextIO]:
    """Gives a file that has its name once it is whole; None: standard output."""
    if path is None:
        yield sys.stdout
        return
    if path.exists():
        raise NotDone(f"{path} exists")
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            yield file
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def import_(
    file: Annotated[Path, typer.Argument(help="The file.", show_default=False)],
    target: Target = DEFAULT_TARGET,
    format_: Annotated[
        str, typer.Option("--format", help=f"{', '.join(_FORMATS)}; auto tells by the content.")
    ] = "auto",
    session: Annotated[
        str | None,
        typer.Option(
            help="Id of the new session; for a file with one conversation.",
            show_default="a new one",
        ),
    ] = None,
    agent: Annotated[
        str,
        typer.Option(help="The agent that sessions and runs name; an archive names its own."),
    ] = "imported",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be imported, and import nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make sessions of an archive, or of the transcripts of another program.

    Read are archives of `runlane export`, OpenAI chat JSON, LangGraph's SQLite checkpoints,
    SQLite sessions of the OpenAI Agents SDK, and Claude Code's JSONL. Each conversation becomes
    a session, with a run and a fork point for each turn of its user. What cannot be kept is
    listed, and nothing in the file is run. It needs the scope admin.
    """
    run(
        target,
        _import(target, file, format_, session, agent, dry_run=dry_run, as_json=as_json),
    )


async def _import(
    target: str,
    file: Path,
    format_: str,
    session: str | None,
    agent: str,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    if format_ not in _FORMATS:
        raise ValueError(f"--format: {format_!r} is none of {', '.join(_FORMATS)}")
    if dry_run:
        for one in _read(file, format_, session, agent):
            _tell(one, "", as_json=as_json)
        return
    async with connected(target) as client:
        for number, one in enumerate(_read(file, format_, session, agent)):
            try:
                made = await client.import_session(one.lines, session)
            except ValueError as error:
                raise NotDone(f"{file}: {error}") from None
            except runlane.ServiceError as error:
                raise NotDone(_refusal(file, one, number, error)) from None
            _tell(one, made.session.session_id, as_json=as_json)


def _read(file: Path, format_: str, session: str | None, agent: str) -> list[runlane.Transcript]:
    try:
        found = runlane.read_transcripts(file, format_, agent=agent)
    except runlane.TranscriptError as error:
        raise NotDone(f"{file}: {error}") from None
    if not found:
        raise NotDone(f"{file}: holds no conversation")
    if session is not None and len(found) > 1:
        raise ValueError(f"--session goes with one conversation, and {file} holds {len(found)}")
    return found


def _refusal(file: Path, one: runlane.Transcript, done: int, error: runlane.ServiceError) -> str:
    where = f"{file}: {one.name}: {told(error)}"
    return f"{where} ({done} conversations before it were imported)" if done else where


def _tell(one: runlane.Transcript, session_id: str, *, as_json: bool) -> None:
    if as_json:
        emit(
            {
                "name": one.name,
                "session_id": session_id or None,
                "messages": one.message_count,
                "runs": one.run_count,
                "kept": one.kept,
                "changed": one.changed,
                "dropped": one.dropped,
            }
        )
        return
    what = f"session {session_id}" if session_id else "would be imported"
    typer.echo(f"{line(one.name)}: {what}, {one.message_count} messages in {one.run_count} runs")
    for word, counts in (("changed", one.changed), ("dropped", one.dropped)):
        for kind, count in sorted(counts.items()):
            typer.echo(f"  {word}: {count} {line(kind)}")
