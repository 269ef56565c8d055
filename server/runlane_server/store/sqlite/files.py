"""Opening a database file: the hold on it, what it is, its schema, its connections."""

import contextlib
import fcntl
import os
import secrets
import sqlite3
import uuid
from pathlib import Path

from runlane_server.store.errors import StoreHeld, StoreRefused, StoreUnavailable
from runlane_server.store.migrate import Migration, plan, read_migrations

APPLICATION_ID = 0x52756E6C
"""`Runl`: tells a database of ours from another one."""

_MAGIC = b"SQLite format 3\0"
_APPLICATION_ID_AT = 68
_HEADER_SIZE = 100
_STATEMENTS = 256
_SECRET_BYTES = 32
PACKAGE = "runlane_server.store.sqlite"


def beside(path: Path, end: str) -> Path:
    """Returns the file that belongs to another one: its name with an end, such as `-wal`."""
    return Path(f"{path}{end}")


class FileHold:
    """The exclusive hold of one process on a store: an OS lock on a file beside it.

    SQLite's own locking_mode would shut out our readers. The lock ends with the
    process, whatever ends that; the file stays, since removing it would race.
    """

    def __init__(self, path: Path) -> None:
        self._store = path
        self._path = beside(path, ".lock")
        self._file = -1

    def take(self) -> None:
        """Takes the lock or raises StoreRefused."""
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreRefused(f"cannot open {self._path}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(file, 32, 0).decode("ascii", "replace").strip()
            os.close(file)
            by = f" by process {holder}" if holder.isdigit() else ""
            raise StoreHeld(f"{self._store} is in use{by}; one server a file") from error
        # Who has it is told where there is room to; the lock holds all the same.
        with contextlib.suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        self._file = file

    def give_back(self) -> None:
        """Ends the hold; again does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def holder(path: Path) -> str | None:
    """Tells which process has a store; None: none has. Empty: one that is not known.

    The file of the hold is locked for as long as it takes to let go of it.
    """
    try:
        file = os.open(beside(path, ".lock"), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        pid = os.pread(file, 32, 0).decode("ascii", "replace").strip()
        return pid if pid.isdigit() else ""
    finally:
        os.close(file)
    return None


def refuse_missing(path: Path) -> None:
    """Raises StoreRefused where there is no file at a path."""
    if not path.is_file():
        what = "this is no file" if path.exists() else "there is no such file"
        raise StoreRefused(f"{path}: {what}")


def refuse_foreign(path: Path) -> None:
    """Raises StoreRefused where a path cannot be a store of ours. Reads, and changes nothing."""
    if not path.parent.is_dir():
        raise StoreRefused(f"the folder {path.parent} of the store does not exist")
    if not path.exists():
        return
    if not path.is_file():
        raise StoreRefused(f"{path} is not a file")
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_SIZE)
    except OSError as error:
        raise StoreRefused(f"cannot read {path}: {error.strerror}") from error
    if not header:
        return
    if len(header) < _HEADER_SIZE or not header.startswith(_MAGIC):
        raise StoreRefused(f"{path} is not a SQLite database")
    found = int.from_bytes(header[_APPLICATION_ID_AT : _APPLICATION_ID_AT + 4], "big")
    if found != APPLICATION_ID:
        raise StoreRefused(f"{path} is a SQLite database, but not one of Runlane")


def connect_reader(path: Path) -> sqlite3.Connection:
    """Opens a connection that can only read."""
    return _connect_reader(path, "ro")


def connect_visitor(path: Path) -> sqlite3.Connection:
    """Opens a connection that reads a file which perhaps no server has.

    SQLite makes a log beside the file to read it, and only a connection that may write takes
    it away again. Where there is a log already it stays as it is, and is not written into the
    file.
    """
    log = beside(path, "-wal")
    in_use = log.exists() and log.stat().st_size > 0
    return _connect_reader(path, "ro" if in_use else "rw")


def _connect_reader(path: Path, mode: str) -> sqlite3.Connection:
    try:
        conn = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS,
        )
        conn.execute("PRAGMA query_only=ON")
        conn.execute("PRAGMA cache_size=-8192")
    except sqlite3.OperationalError as error:
        raise StoreUnavailable(f"cannot open {path}: {error}") from error
    return conn


def connect_writer(path: Path | None) -> sqlite3.Connection:
    """Opens the one connection that writes; None: a private database in memory.

    It holds what users said, and secrets: a new file, and what SQLite makes beside it, is for
    its owner alone.
    """
    if path is not None:
        # Never one that is there: to close it would end the locks that SQLite has on it.
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    target = ":memory:" if path is None else f"{path.absolute().as_uri()}?mode=rwc"
    conn = sqlite3.connect(
        target,
        uri=path is not None,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_STATEMENTS,
    )
    conn.execute("PRAGMA synchronous=FULL")
    conn.execute("PRAGMA cache_size=-65536")
    conn.execute("PRAGMA temp_store=MEMORY")
    return conn


def _applied(conn: sqlite3.Connection, path: Path | None) -> dict[int, str]:
    """Reads which migrations a database has; {} for an empty one."""
    tables = conn.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if tables == 0:
        return {}
    if conn.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreRefused(f"{path} is a SQLite database, but not one of Runlane")
    applied = dict(conn.execute("SELECT version, checksum FROM migrations").fetchall())
    version = conn.execute("PRAGMA user_version").fetchone()[0]
    newest = max(applied, default=0)
    if version != newest:
        raise StoreRefused(
            f"{path} says schema version {version}, but has migrations up to {newest}"
        )
    return applied


def verify(path: Path) -> list[Migration]:
    """Tells which migrations a file lacks, or raises StoreRefused. Changes nothing."""
    migrations = read_migrations(PACKAGE)
    if not path.exists() or path.stat().st_size == 0:
        return migrations
    # A creation that was cut off has left a journal, which only a writer can roll back.
    cut_off = beside(path, "-journal").exists()
    try:
        conn = connect_writer(path) if cut_off else connect_visitor(path)
        try:
            return plan(migrations, _applied(conn, path), str(path))
        finally:
            conn.close()
    except (sqlite3.Error, StoreUnavailable) as error:
        raise StoreRefused(f"{path} cannot be read: {error}") from error


def prepare(conn: sqlite3.Connection, path: Path | None, now: int) -> None:
    """Gives the database its schema and sets it up for the writer.

    A new file is written with a rollback journal, so that its header says what it is
    before it has a write-ahead log.
    """
    missing = plan(read_migrations(PACKAGE), _applied(conn, path), str(path))
    if missing:
        conn.execute("BEGIN IMMEDIATE")
        try:
            conn.execute(
                "CREATE TABLE IF NOT EXISTS migrations (version INTEGER PRIMARY KEY, "
                "name TEXT NOT NULL, checksum TEXT NOT NULL, apply_time INTEGER NOT NULL)"
            )
            for migration in missing:
                for statement in migration.statements():
                    conn.execute(statement)
                conn.execute(
                    "INSERT INTO migrations VALUES (?, ?, ?, ?)",
                    (migration.version, migration.name, migration.checksum, now),
                )
            conn.execute(f"PRAGMA application_id={APPLICATION_ID}")
            conn.execute(f"PRAGMA user_version={missing[-1].version}")
            conn.execute(
                "INSERT OR IGNORE INTO store (id, store_id, epoch, secret) VALUES (1, ?, 1, ?)",
                (f"sto_{uuid.uuid4()}", secrets.token_bytes(_SECRET_BYTES)),
            )
            conn.execute("COMMIT")
        except BaseException:
            if conn.in_transaction:
                conn.execute("ROLLBACK")
            raise
    if path is not None:
        mode = conn.execute("PRAGMA journal_mode=WAL").fetchone()[0]
        if mode != "wal":
            raise StoreRefused(f"{path} lies where SQLite cannot have a write-ahead log")
        # The log is never cut: writing into a file that has its size is nearly twice as fast.
        conn.execute("PRAGMA journal_size_limit=-1")
        conn.execute("PRAGMA wal_autocheckpoint=1000")
