# ruff: noqa: PLC0415 - see below
"""The command that says what is wrong, and what to do about it.

What it needs of the server is loaded when it runs: the client's commands share this program
and start without it.
"""

import asyncio
import os
import platform
import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import runlane
import typer
from rich.text import Text
from runlane.errors import RunlaneError, TransportError

from runlane_server.cli import _show
from runlane_server.cli._client import DEFAULT_TARGET, AsJson, connected, emit, unanswered

if TYPE_CHECKING:
    from runlane_server.store.postgres import ExaminedDatabase
    from runlane_server.store.sqlite import Examined

_LIBRARIES = ("grpcio", "protobuf", "protovalidate", "pydantic", "msgspec", "uvloop")
_OLDEST_PYTHON = (3, 11)
_OLDEST_SQLITE = (3, 35)
_MEBIBYTE = 1024 * 1024
_READ_MAX = 1024 * _MEBIBYTE
_ANSWER_SECONDS = 5.0
_AGENTS_MAX = 20
_APART = timedelta(seconds=2)
_FAR_APART = timedelta(seconds=30)
_REMOTE = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "gluster", "lustre", "fuse.sshfs", "davfs")


class Grade(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    FAULT = "fault"


class Finding(NamedTuple):
    """What was looked at, and what was found."""

    grade: Grade
    about: str
    text: str


def doctor(
    store: Annotated[
        str | None,
        typer.Option(
            help="Look at this store: sqlite:PATH or postgresql://USER@HOST/NAME.",
            show_default="that of the settings",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Look at the store that this TOML file names.",
            show_default="runlane.toml, if there",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Look at the server there: HOST:PORT or unix:PATH.",
            show_default=f"RUNLANE_TARGET, or {DEFAULT_TARGET}",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with this program, a store and a server, and what to do about it.

    With --store, --config or --target it looks at that alone, and at the program. A fault is
    what needs somebody: then the end is 1. A note is good to know. It changes nothing.
    """
    findings = asyncio.run(_all(store, config, target, as_json=as_json))
    faults = sum(one.grade is Grade.FAULT for one in findings)
    if not as_json:
        typer.echo("no fault found" if not faults else f"faults found: {faults}")
    if faults:
        raise typer.Exit(1)


async def _all(
    store: str | None, config: Path | None, target: str | None, *, as_json: bool
) -> list[Finding]:
    findings: list[Finding] = []

    def tell(finding: Finding) -> None:
        finding = finding._replace(text=_show.masked(finding.text))
        findings.append(finding)
        if as_json:
            emit(finding._asdict())
            return
        style = {Grade.FAULT: "bold red", Grade.NOTE: "yellow"}.get(finding.grade, "green")
        text = Text(f"{finding.grade:<7}", style=style)
        text.append(f"{finding.about:<10}", style="dim")
        _show.console.print(text.append(_show.clean(finding.text), style="default"))

    for finding in _program():
        tell(finding)
    named = store is not None or config is not None
    if named or target is None:
        for finding in await _store(store, config):
            tell(finding)
    if target is not None or not named:
        there = target or os.environ.get("RUNLANE_TARGET", "")
        async for finding in _server(there or DEFAULT_TARGET, expected=bool(there)):
            tell(finding)
    return findings


# --- the program ------------------------------------------------------------


def _program() -> Iterator[Finding]:
    version = platform.python_version()
    old = sys.version_info < _OLDEST_PYTHON
    yield Finding(
        Grade.FAULT if old else Grade.OK,
        "python",
        f"{version}, and 3.11 or later is needed" if old else version,
    )
    old = sqlite3.sqlite_version_info < _OLDEST_SQLITE
    yield Finding(
        Grade.FAULT if old else Grade.OK,
        "sqlite",
        f"{sqlite3.sqlite_version}" + (", and 3.35 or later is needed" if old else ""),
    )
    found, missing = [f"runlane {metadata.version('runlane')}"], []
    for name in _LIBRARIES:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            if name != "uvloop" or sys.platform == "linux":
                missing.append(name)
    yield Finding(Grade.OK, "libraries", ", ".join(found))
    if missing:
        yield Finding(
            Grade.FAULT,
            "libraries",
            f"missing: {', '.join(missing)}; pip install 'runlane[server]' brings them",
        )


# --- the store --------------------------------------------------------------


async def _store(spec: str | None, config: Path | None) -> list[Finding]:
    from runlane_server import bootstrap
    from runlane_server.settings import SettingsError, load
    from runlane_server.store.errors import StoreRefused

    try:
        settings = load(config, {"store": spec})
    except SettingsError as error:
        return [Finding(Grade.FAULT, "settings", str(error))]
    expected = spec is not None
    if settings.on_postgres:
        try:
            database = await bootstrap.examine_database(settings.store)
        except StoreRefused as error:
            return [Finding(Grade.FAULT, "store", str(error))]
        return list(_database(database, expected=expected))
    if settings.store_path is None:
        memory = "memory: all is gone with the process of the server"
        return [Finding(Grade.NOTE, "store", memory)]
    found = await asyncio.to_thread(bootstrap.examine_store, settings.store_path, _READ_MAX)
    return [*_file(found, expected=expected), *_place(found)]


def _database(found: "ExaminedDatabase", *, expected: bool) -> Iterator[Finding]:
    if found.version:
        yield Finding(Grade.OK, "database", f"PostgreSQL {found.version}, {_show.size(found.size)}")
    if found.refused:
        yield Finding(Grade.FAULT, "store", found.refused)
        return
    if not found.exists:
        yield Finding(
            Grade.FAULT if expected else Grade.NOTE,
            "store",
            f"{found.place} holds no store; `runlane serve` makes it",
        )
        return
    held = f"servers that have it open: {found.servers}"
    yield Finding(Grade.OK, "store", f"{found.place}, store_epoch {found.epoch}; {held}")
    yield _schema(found, "pg_dump")
    yield Finding(Grade.NOTE, "damage", "not looked for; `runlane db check` does")


def _schema(found: "Examined | ExaminedDatabase", copier: str) -> Finding:
    if found.schema >= found.known_schema:
        return Finding(Grade.OK, "schema", f"version {found.schema}")
    return Finding(
        Grade.NOTE,
        "schema",
        f"version {found.schema}; the next start brings it up to {found.known_schema}, and "
        f"then there is no way back: make a copy before (`{copier}`)",
    )


def _file(found: "Examined", *, expected: bool) -> Iterator[Finding]:
    path = found.path
    if found.refused:
        yield Finding(Grade.FAULT, "store", found.refused)
        return
    if not found.exists:
        yield Finding(
            Grade.FAULT if expected else Grade.NOTE,
            "store",
            f"{path} does not exist; `runlane serve` makes it",
        )
        return
    held = "no server has it open"
    if found.holder is not None:
        held = f"a server has it open, process {found.holder or 'unknown'}"
    yield Finding(Grade.OK, "store", f"{path}, {_show.size(found.size)}; {held}")
    yield _schema(found, "runlane db backup")
    faults = "\n".join(found.faults).splitlines()
    if faults:
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        cure = "restore a copy (`runlane db restore`)"
        yield Finding(Grade.FAULT, "damage", f"{faults[0]}{more}; {cure}")
    if not found.checked:
        yield Finding(
            Grade.NOTE,
            "damage",
            "not looked for in a file of this size; `runlane db backup` makes a copy and reads it",
        )
    elif not found.faults:
        yield Finding(Grade.OK, "damage", "none; `runlane db check` looks closer")
    if found.log_size > 256 * _MEBIBYTE:
        yield Finding(
            Grade.NOTE,
            "log",
            f"{_show.size(found.log_size)}: something read for long while much was written, "
            "such as a backup; it shrinks when the server stops",
        )
    else:
        yield Finding(Grade.OK, "log", _show.size(found.log_size))


def _place(found: "Examined") -> Iterator[Finding]:
    """Looks at where the file lies."""
    if not found.disk:
        return
    if not found.writable:
        # Whoever looks is often not the user of the server.
        yield Finding(Grade.NOTE, "rights", "this user may not write there; the server's must")
    if found.open_to_all:
        text = f"every user of this machine may read {found.path}: `chmod 600` ends that"
        yield Finding(Grade.NOTE, "rights", text)
    kind = found.file_system
    if kind.startswith(_REMOTE):
        yield Finding(
            Grade.FAULT,
            "disk",
            f"it lies on {kind}, a network file system, on which SQLite's log does not work: "
            "move it to a local disk",
        )
    elif kind in {"tmpfs", "ramfs"}:
        yield Finding(Grade.NOTE, "disk", f"it lies on {kind}: gone when the machine stops")
    elif kind:
        yield Finding(Grade.OK, "disk", f"local, {kind}")
    share = found.free / found.disk
    text = f"{_show.size(found.free)} free, {share:.0%} of the disk"
    if found.free < 100 * _MEBIBYTE:
        yield Finding(Grade.FAULT, "space", f"{text}; a full disk takes no writes")
    elif share < 0.05 or found.free < 1024 * _MEBIBYTE:
        yield Finding(Grade.NOTE, "space", text)
    else:
        yield Finding(Grade.OK, "space", text)


# --- the server -------------------------------------------------------------


async def _server(target: str, *, expected: bool) -> AsyncIterator[Finding]:
    try:
        async with connected(target) as client:
            info = await client.server_info()
            yield Finding(
                Grade.OK,
                "server",
                # Who shows no credential is told no more than the version.
                f"{target}, {info.store_kind}, store_epoch {info.store_epoch}"
                if info.store_kind
                else target,
            )
            yield _versions(info.version)
            healthy = await client.healthy()
            async with asyncio.timeout(_ANSWER_SECONDS):
                start = datetime.now(UTC)
                seen = await client.overview()
                end = datetime.now(UTC)
                agents = await client.list_agents(limit=1000)
    except TransportError as error:
        yield Finding(
            Grade.FAULT if expected else Grade.NOTE,
            "server",
            await asyncio.to_thread(unanswered, target, error),
        )
        return
    except runlane.Draining:
        yield Finding(Grade.FAULT, "health", "it is stopping, and takes no calls")
        return
    except TimeoutError:
        why = "no answer in time; it is stopping, or its store takes no writes (its log says why)"
        yield Finding(Grade.FAULT, "health", why)
        return
    except (RunlaneError, ValueError, OSError) as error:
        yield Finding(Grade.FAULT, "server", str(error))
        return
    yield _health(seen, healthy=healthy)
    if seen.server_time is not None:
        yield _clock(seen.server_time, start, end)
    for finding in _work(seen, agents.items):
        yield finding


def _versions(theirs: str) -> Finding:
    ours = metadata.version("runlane")
    if theirs == ours:
        return Finding(Grade.OK, "version", ours)
    return Finding(Grade.NOTE, "version", f"the server is {theirs}, and this program {ours}")


def _health(seen: runlane.Overview, *, healthy: bool) -> Finding:
    if not seen.store_available:
        return Finding(
            Grade.FAULT,
            "health",
            "its store takes no writes; its log says why (`write failed`): a full disk?",
        )
    if not healthy:
        return Finding(Grade.FAULT, "health", "NOT_SERVING: it is stopping, or just back")
    return Finding(Grade.OK, "health", "SERVING")


def _clock(theirs: datetime, start: datetime, end: datetime) -> Finding:
    apart = max(start - theirs, theirs - end, timedelta())
    text = f"{apart.total_seconds():.1f} s apart from this machine's"
    if apart < _APART:
        return Finding(Grade.OK, "clock", text)
    grade = Grade.FAULT if apart > _FAR_APART else Grade.NOTE
    return Finding(grade, "clock", f"{text}; one of them is wrong")


def _work(seen: runlane.Overview, agents: tuple[runlane.AgentStatus, ...]) -> Iterator[Finding]:
    alone = [one for one in agents if one.queued_count and not one.executor_count]
    for agent in alone[:_AGENTS_MAX]:
        yield Finding(
            Grade.FAULT,
            "agents",
            f"{agent.name}: {agent.queued_count} queued, and no executor polls for it; start one",
        )
    if len(alone) > _AGENTS_MAX:
        yield Finding(Grade.FAULT, "agents", f"and {len(alone) - _AGENTS_MAX} more like these")
    if not alone:
        waiting = f"{seen.queued_activation_count} queued, {seen.executor_count} executors"
        yield Finding(Grade.OK, "agents", waiting)
    if seen.stalled_run_count:
        yield Finding(
            Grade.FAULT,
            "runs",
            f"{seen.stalled_run_count} stalled: their executors were lost; `runlane restore RUN` "
            "brings one back (AdminService/ListStalledRuns names them)",
        )
    else:
        yield Finding(Grade.OK, "runs", f"{seen.active_run_count} active, none stalled")
