"""Copies of a store: made beside a running server, checked, and put back."""

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from runlane_server.store.errors import StoreRefused
from runlane_server.store.sqlite import files, upkeep
from runlane_server.store.sqlite.writer import read_snapshot

_BESIDE = ("-wal", "-shm", "-journal")
"""Files of SQLite that belong to the one beside them, and to no other."""


def backup_file(source: Path, target: Path) -> list[str]:
    """Copies a store, which a server may have open, into one new file.

    The copy is what was committed at one moment. It appears under its name once it is
    whole, checked and on disk.

    Returns:
        What is wrong with the copy, one line each; then there is none.

    Raises:
        StoreRefused: The target exists, the source is no store that this program knows, or
            the copy cannot be written.
    """
    _refuse_existing(target)
    if not target.parent.is_dir():
        raise StoreRefused(f"the folder {target.parent} does not exist")
    with _copied(source, target) as (copy, findings):
        if findings:
            return findings
        _place(copy, target)
    return []


def restore_file(source: Path, target: Path, *, replace: bool = False) -> tuple[list[str], int]:
    """Makes a store of a copy. It gets a new epoch, later than all before.

    Returns:
        What is wrong with the copy, one line each; then nothing was changed. And the epoch.

    Raises:
        StoreRefused: A server has the target, it exists and is not to be replaced, or the
            source is no store that this program knows.
    """
    # Before the hold, which makes a file.
    files.refuse_missing(source)
    files.refuse_foreign(source)
    files.refuse_foreign(target)
    hold = files.FileHold(target)
    hold.take()
    try:
        if source.exists() and target.exists() and source.samefile(target):
            raise StoreRefused(f"{source} is the file that it is to be restored to")
        if target.exists() and not replace:
            raise StoreRefused(f"{target} exists; say --replace to lose what it holds")
        with _copied(source, target) as (copy, findings):
            if findings:
                return findings, 0
            epoch = _new_epoch(copy, target)
            _settle_log(target)
            copy.replace(target)
            _sync(target.parent)
        return [], epoch
    finally:
        hold.give_back()


def _refuse_existing(target: Path) -> None:
    for path in (target, *(files.beside(target, end) for end in _BESIDE)):
        if path.exists():
            raise StoreRefused(f"{path} exists")


def _place(copy: Path, target: Path) -> None:
    """Gives a copy its name, which nobody has."""
    try:
        # Not a rename, which would take the place of what came meanwhile.
        os.link(copy, target)
    except FileExistsError:
        _refuse_existing(target)
        raise
    except OSError:  # a file system without links
        _refuse_existing(target)
        copy.rename(target)
    _sync(target.parent)


@contextlib.contextmanager
def _copied(source: Path, target: Path) -> Iterator[tuple[Path, list[str]]]:
    """Gives a copy in the target's folder, on disk, and what is wrong with it; removes it."""
    files.refuse_missing(source)
    files.refuse_foreign(source)
    missing = files.verify(source)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise StoreRefused(f"cannot write to {target.parent}: {error.strerror}") from error
    copy = Path(name)
    try:
        try:
            _vacuum(source, copy)
            os.fsync(handle)
            yield copy, _check(copy, whole=not missing)
        except OSError as error:
            raise StoreRefused(f"cannot write {target}: {error.strerror}") from error
        except sqlite3.Error as error:
            raise StoreRefused(f"{source} cannot be copied: {error}") from error
    finally:
        os.close(handle)
        copy.unlink(missing_ok=True)


def _vacuum(source: Path, copy: Path) -> None:
    with (
        # It is the last one to close, and takes what was made beside the file away.
        contextlib.closing(files.connect_visitor(source)) as visitor,
        contextlib.closing(files.connect_reader(source)) as conn,
    ):
        visitor.execute("SELECT count(*) FROM sqlite_master").fetchone()
        # It would take VACUUM INTO for a write of what it reads. The connection cannot write.
        conn.execute("PRAGMA query_only=OFF")
        conn.execute("VACUUM INTO ?", (str(copy),))


def _check(copy: Path, *, whole: bool) -> list[str]:
    """Checks a copy; one of an older schema for damage alone."""
    conn = files.connect_reader(copy)
    try:
        return read_snapshot(conn, upkeep.check if whole else upkeep.damage)
    finally:
        conn.close()


def _new_epoch(copy: Path, target: Path) -> int:
    """Gives a copy its epoch: two restores of one copy never have the same."""
    epochs = [int(time.time())]
    if target.exists():
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(files.connect_reader(target)) as conn,
        ):
            epochs += [row[0] + 1 for row in conn.execute("SELECT epoch FROM store")]
    with contextlib.closing(files.connect_writer(copy)) as conn:
        epochs += [row[0] + 1 for row in conn.execute("SELECT epoch FROM store")]
        conn.execute("UPDATE store SET epoch = ?", (max(epochs),))
    return max(epochs)


def _settle_log(target: Path) -> None:
    """Leaves nothing beside a file that another one takes the place of.

    A log that stayed would be taken for the new file's. It is written into the old one
    first, so that the old one is whole until the new one is in its place.
    """
    if target.exists() and target.stat().st_size:
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(files.connect_writer(target)) as conn,
        ):
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for end in _BESIDE:
        files.beside(target, end).unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Waits until the names in a folder are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
