"""What can be told of a file without changing it, and while a server has it open."""

import os
import shutil
import sqlite3
import stat
from dataclasses import dataclass, field
from pathlib import Path

from runlane_server.store.errors import StoreRefused, StoreUnavailable
from runlane_server.store.migrate import read_migrations
from runlane_server.store.sqlite import files

_MOUNTS = Path("/proc/mounts")


@dataclass(slots=True)
class Examined:
    """What was found.

    Attributes:
        refused: Why it is no store that this program can open; empty: it is one, or is not
            there.
        holder: The process of the server that has it; None: nobody does. Empty: unknown.
        schema: Its schema version.
        known_schema: The version that this program brings it up to.
        faults: What SQLite finds wrong with it.
        checked: Whether it was read for that; not where it is too large.
        log_size: Of its log.
        free: Bytes that its disk has left for this user, and `disk` that it has in all.
        file_system: Its kind, such as ext4; empty: unknown.
        writable: Whether this user may write it, and beside it.
        open_to_all: Whether every user of this machine may read it.
    """

    path: Path
    exists: bool
    refused: str = ""
    holder: str | None = None
    schema: int = 0
    known_schema: int = 0
    faults: list[str] = field(default_factory=list)
    checked: bool = True
    size: int = 0
    log_size: int = 0
    free: int = 0
    disk: int = 0
    file_system: str = ""
    writable: bool = True
    open_to_all: bool = False


def examine_file(path: Path, read_max: int) -> Examined:
    """Looks at the file of a store, and reads one of up to so many bytes for damage."""
    found = Examined(path, exists=path.exists(), known_schema=len(read_migrations(files.PACKAGE)))
    folder = path.absolute().parent
    try:
        files.refuse_foreign(path)
    except StoreRefused as error:
        found.refused = str(error)
    if folder.is_dir():
        usage = shutil.disk_usage(folder)
        found.free, found.disk = usage.free, usage.total
        found.file_system = _file_system(folder.resolve())
        found.writable = os.access(folder, os.W_OK)
    if not found.exists or found.refused:
        return found
    found.writable &= os.access(path, os.W_OK)
    found.size = path.stat().st_size
    found.open_to_all = bool(path.stat().st_mode & stat.S_IROTH)
    log = files.beside(path, "-wal")
    found.log_size = log.stat().st_size if log.exists() else 0
    found.holder = files.holder(path)
    try:
        found.schema = found.known_schema - len(files.verify(path))
        found.checked = found.size <= read_max
        if found.checked:
            found.faults = _damage(path)
    except (StoreRefused, StoreUnavailable, sqlite3.Error) as error:
        found.refused = str(error)
    return found


def _damage(path: Path) -> list[str]:
    conn = files.connect_visitor(path)
    try:
        rows = conn.execute("PRAGMA quick_check(20)").fetchall()
    finally:
        conn.close()
    return [row[0] for row in rows if row[0] != "ok"]


def _file_system(folder: Path) -> str:
    """Returns the kind of file system that a folder is on; empty: it cannot be told."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        fields = line.split()
        if len(fields) < 3:
            continue
        # Blanks and the like are written as octal numbers there.
        place = Path(fields[1].encode().decode("unicode_escape", "replace"))
        # Of two mounts at one place the later covers the earlier.
        if folder.is_relative_to(place) and len(place.parts) >= best:
            best, kind = len(place.parts), fields[2]
    return kind
