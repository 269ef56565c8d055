# ruff: noqa: PLC0415 - see below
"""The commands for the file of a store: check, backup, restore.

What they need of the server is loaded when they run: the client's commands share this
program and start without it.
"""

import asyncio
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from runlane_server.cli._show import complain

T = TypeVar("T")

_ADDRESS = re.compile(r"(?i)[a-z][a-z0-9+.-]+:/+")
"""Begins an address, of which a path has lost a slash."""

File = Annotated[Path, typer.Argument(help="The file, such as runlane.db.", show_default=False)]


def check(
    store: Annotated[
        str,
        typer.Argument(
            help="The file, such as runlane.db, or postgresql://USER@HOST/NAME.",
            show_default=False,
        ),
    ],
) -> None:
    """Check the file of a store that no server has open, or a database.

    Prints what it finds, a line each, and ends with 1 where there is anything.
    """
    from runlane_server import bootstrap
    from runlane_server.settings import is_database

    if not is_database(store):
        _refuse_addresses(store)
        store = f"sqlite:{store}"
    _report(_done(bootstrap.check_store(store)))
    typer.echo("no fault found", err=True)


def backup(
    path: File,
    target: Annotated[
        Path,
        typer.Argument(metavar="DEST", help="The copy; it must not exist yet.", show_default=False),
    ],
) -> None:
    """Copy the file of a store, also while a server has it open.

    The copy is one file, true at one moment. It is checked before it gets its name: what is
    wrong with it is printed, a line each, and then there is no copy and the end is 1.
    """
    from runlane_server import bootstrap

    _refuse_addresses(path, target)
    _report(_done(bootstrap.backup_store(path, target)))
    typer.echo(f"{target}: {target.stat().st_size} bytes, no fault found")


def restore(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="The copy.", show_default=False)],
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Where the server is to find it.", show_default=False),
    ],
    replace: Annotated[
        bool, typer.Option("--replace", help="Also where FILE exists, which is lost then.")
    ] = False,
) -> None:
    """Make the file of a store from a copy; no server may have it open.

    The copy stays as it is, and is checked first: what is wrong with it is printed, a line
    each, and then nothing is changed and the end is 1. The new file has a later store_epoch
    than before, by which clients can tell that history was set back.
    """
    from runlane_server import bootstrap

    _refuse_addresses(source, path)
    findings, epoch = _done(bootstrap.restore_store(source, path, replace=replace))
    _report(findings)
    typer.echo(f"{path}: store_epoch {epoch}")


def _done(work: Coroutine[Any, Any, T]) -> T:
    from runlane_server.store.errors import StoreError

    try:
        return asyncio.run(work)
    except (OSError, StoreError) as error:
        _fail(str(error))


def _refuse_addresses(*paths: str | Path) -> None:
    """Refuses what is no file. It is not shown: it may hold a password."""
    for path in paths:
        kind = _ADDRESS.match(str(path))
        if kind is not None and kind[0].lower().startswith("postgres"):
            _fail(
                "this takes a file; a PostgreSQL database is copied with pg_dump and put back "
                "with pg_restore or psql (docs/operations.md, On PostgreSQL)",
                2,
            )
        if kind is not None:
            _fail(f"{kind[0]}...: this takes the path of a file, such as runlane.db", 2)


def _report(findings: list[str]) -> None:
    for finding in findings:
        typer.echo(finding)
    if findings:
        raise typer.Exit(1)


def _fail(text: str, code: int = 1) -> NoReturn:
    complain(text)
    raise typer.Exit(code) from None
