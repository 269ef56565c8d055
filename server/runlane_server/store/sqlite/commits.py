"""How a batch is written: one transaction, one outcome for each write."""

import contextlib
import sqlite3
import time
from collections.abc import Callable, Sequence

from runlane_server.core.model import SessionKey
from runlane_server.core.rows import LeaseDropped, SessionInserted
from runlane_server.store.base import (
    KEPT_METHODS,
    Committed,
    CommitUnit,
    Conflict,
    Duplicate,
    LeaseRenewal,
    Outcome,
    Rejected,
    RequestKey,
    RequestRecord,
    SessionCommit,
    Unavailable,
    Write,
)
from runlane_server.store.sqlite import calls, rows
from runlane_server.store.sqlite.rows import BadRow, events_start, insert_session

_CACHED_KEYS = 50_000
_WRITERS = {**rows.WRITERS, **calls.WRITERS}
_COMMITTED = Committed()
_CONFLICT = Conflict()

FIND_REQUEST = (
    "SELECT hash, answer, create_time FROM requests"
    " WHERE request_id = ? AND scope = ? AND method = ? AND namespace = ?"
)


def request_columns(key: RequestKey) -> tuple[str, str, str, str]:
    """Returns a request's key in the order of the table's."""
    return (key.request_id, key.scope, key.method, key.namespace)


def is_of_one_row(error: Exception) -> bool:
    """Tells an error that one write brought in from one of the store itself."""
    if isinstance(error, sqlite3.DatabaseError):
        return isinstance(
            error, (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.ProgrammingError)
        )
    return not isinstance(error, MemoryError)


class Committer:
    """Writes batches on the writer's connection, on its thread.

    Attributes:
        faults: For tests: called with `begin`, `unit`, `commit` before each of them; what
            it raises counts as raised by the database. None in production.
    """

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn
        self._execute = conn.execute
        # The key of a session, and the update_time that its row has.
        self._keys: dict[SessionKey, tuple[int, int]] = {}
        self.faults: Callable[[str], None] | None = None

    def commit(self, batch: Sequence[Write]) -> list[Outcome]:
        """Writes a batch; returns once it is durable."""
        try:
            try:
                return self._transaction(batch, self._write)
            except Exception as error:
                self._undo()
                if not is_of_one_row(error):
                    raise
            # One of them is bad: the same again, each on its own ground.
            return self._transaction(batch, self._write_guarded)
        except Exception as error:  # noqa: BLE001 - each write is told
            with contextlib.suppress(sqlite3.Error):  # The next batch tries it again.
                self._undo()
            outcome = Unavailable(f"{type(error).__name__}: {error}")
            return [outcome] * len(batch)

    def _transaction(
        self, batch: Sequence[Write], write: Callable[[Write], Outcome]
    ) -> list[Outcome]:
        faults = self.faults
        if faults is not None:
            faults("begin")
        self._execute("BEGIN IMMEDIATE")
        outcomes = [write(one) for one in batch]
        if faults is not None:
            faults("commit")
        self._execute("COMMIT")
        return outcomes

    def _undo(self) -> None:
        self._keys.clear()
        if self._conn.in_transaction:
            self._execute("ROLLBACK")

    def _write_guarded(self, one: Write) -> Outcome:
        self._execute("SAVEPOINT one")
        try:
            outcome = self._write(one)
        except Exception as error:
            if not is_of_one_row(error) or not self._conn.in_transaction:
                raise
            self._keys.clear()
            self._execute("ROLLBACK TO one")
            outcome = Rejected(f"{type(error).__name__}: {error}")
        self._execute("RELEASE one")
        return outcome

    def _write(self, one: Write) -> Outcome:
        if self.faults is not None:
            self.faults("unit")
        if isinstance(one, LeaseRenewal):
            renewed = self._execute(
                "UPDATE leases SET duration = ?, expire_time = ?, confirmed = 1"
                " WHERE activation_id = ? AND epoch = ?",
                (one.duration, one.expire_time, one.activation_id, one.epoch),
            ).rowcount
            return _COMMITTED if renewed else _CONFLICT
        return self._write_unit(one)

    def _write_unit(self, unit: CommitUnit) -> Outcome:
        for key, token in unit.unchanged:
            if self._token(key) != token:
                return _CONFLICT
        request = unit.request
        if request is not None and not self._insert_request(request):
            return self._duplicate(request)
        # All that can stand against the unit is tested before a session is written; so
        # nothing but the request has to be taken back.
        sessions = unit.sessions
        holds = self._fences_hold(sessions)
        if holds and len(sessions) > 1:
            holds = all(self._token(one.key) == one.expected_token for one in sessions)
        for number, commit in enumerate(sessions):
            if not holds:
                break
            holds = self._write_session(commit, request)
            if not holds and number:
                raise BadRow("a unit names one session twice")
        if not holds:
            if request is not None:
                self._execute(
                    "DELETE FROM requests WHERE request_id = ? AND scope = ? AND method = ?"
                    " AND namespace = ?",
                    request_columns(request.key),
                )
            return _CONFLICT
        if unit.drained_executor is not None:
            self._execute(
                "INSERT INTO drained_executors (namespace, executor_id, drain_time)"
                " VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (*unit.drained_executor, time.time_ns() // 1000),
            )
        elif not sessions and request is None and not unit.unchanged:
            self._try()
        return _COMMITTED

    def _try(self) -> None:
        """Has a page written, and no row: a transaction that changes none never fails."""
        self._execute("INSERT INTO drained_executors (namespace, executor_id) VALUES ('', '')")
        self._execute("DELETE FROM drained_executors WHERE namespace = ''")

    # --- what a unit stands on ---------------------------------------------

    def _token(self, key: SessionKey) -> bytes | None:
        found = self._execute(
            "SELECT token FROM sessions WHERE namespace = ? AND session_id = ?",
            (key.namespace, key.session_id),
        ).fetchone()
        return found[0] if found is not None else None

    def _fences_hold(self, sessions: Sequence[SessionCommit]) -> bool:
        for commit in sessions:
            for row in commit.rows:
                if type(row) is LeaseDropped and row.expired_at is not None:
                    found = self._execute(
                        "SELECT 1 FROM leases WHERE activation_id = ? AND expire_time <= ?",
                        (row.activation_id, row.expired_at),
                    ).fetchone()
                    if found is None:
                        return False
        return True

    def _insert_request(self, request: RequestRecord) -> bool:
        return (
            self._execute(
                "INSERT INTO requests (request_id, scope, method, namespace, create_time, hash,"
                " answer) VALUES (?, ?, ?, ?, ?, ?, ?)"
                " ON CONFLICT (request_id, scope, method, namespace) DO NOTHING",
                (
                    *request_columns(request.key),
                    request.create_time,
                    request.hash,
                    request.answer,
                ),
            ).rowcount
            == 1
        )

    def _duplicate(self, request: RequestRecord) -> Duplicate:
        stored = self._execute(FIND_REQUEST, request_columns(request.key)).fetchone()
        return Duplicate(RequestRecord(request.key, *stored))

    # --- one session -------------------------------------------------------

    def _write_session(self, commit: SessionCommit, request: RequestRecord | None) -> bool:
        """Writes one session's part; False, and nothing, where its state is another."""
        if commit.expected_token is None:
            key = self._insert(commit)
            if key == 0:
                return False
            if request is not None and request.key.method in KEPT_METHODS:
                self._execute(
                    "UPDATE requests SET session_key = ? WHERE request_id = ? AND scope = ?"
                    " AND method = ? AND namespace = ?",
                    (key, *request_columns(request.key)),
                )
        else:
            key = self._update(commit)
            if key == 0:
                return False
        execute = self._execute
        events = commit.events
        if events is not None:
            execute(
                "INSERT INTO entries (id, first, data) VALUES (?, ?, ?)",
                (events_start(key) + events.last, events.first, events.data),
            )
        namespace = commit.key.namespace
        encoded = commit.encoded.get
        for index, row in enumerate(commit.rows):
            _WRITERS[type(row)](execute, key, row, encoded(index), namespace)
        return True

    def _insert(self, commit: SessionCommit) -> int:
        row = next((row for row in commit.rows if type(row) is SessionInserted), None)
        if row is None:
            raise BadRow("a new session has no record")
        key = insert_session(
            self._execute,
            commit.key.namespace,
            commit.key.session_id,
            row,
            (
                commit.token,
                commit.state,
                int(commit.status),
                commit.current_run_id,
                commit.update_time,
                commit.size,
            ),
        )
        if key:
            self._remember(commit, key)
        return key

    def _update(self, commit: SessionCommit) -> int:
        known = self._keys.pop(commit.key, None)
        if known is None:
            known = self._execute(
                "SELECT key, update_time FROM sessions WHERE namespace = ? AND session_id = ?",
                (commit.key.namespace, commit.key.session_id),
            ).fetchone()
            if known is None:
                return 0
        key, update_time = known
        # Enums are bound as plain ints: the driver asks all else for an adapter first.
        # SQLite writes the entry of an index anew even where its column gets the value
        # that it has.
        if commit.update_time == update_time:
            cursor = self._execute(
                "UPDATE sessions SET token = ?, state = ?, status = ?, current_run_id = ?,"
                " stored_bytes = stored_bytes + ? WHERE key = ? AND token = ?",
                (
                    commit.token,
                    commit.state,
                    int(commit.status),
                    commit.current_run_id,
                    commit.size,
                    key,
                    commit.expected_token,
                ),
            )
        else:
            cursor = self._execute(
                "UPDATE sessions SET token = ?, state = ?, status = ?, current_run_id = ?,"
                " stored_bytes = stored_bytes + ?, update_time = ? WHERE key = ? AND token = ?",
                (
                    commit.token,
                    commit.state,
                    int(commit.status),
                    commit.current_run_id,
                    commit.size,
                    commit.update_time,
                    key,
                    commit.expected_token,
                ),
            )
        if cursor.rowcount == 0:
            return 0
        self._remember(commit, key)
        return int(key)

    def _remember(self, commit: SessionCommit, key: int) -> None:
        keys = self._keys
        if len(keys) >= _CACHED_KEYS:
            del keys[next(iter(keys))]
        keys[commit.key] = (key, commit.update_time)
