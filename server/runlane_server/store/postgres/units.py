"""What becomes of the writes of a batch, and the steps that this takes.

The sessions of the batch are locked and read before. From there on each write is
decided in order against what those before it leave behind: so most of a batch is known
before a row is written, and each session's row is written once, however many of its
commits the batch holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from runlane_server.core.model import SessionKey
from runlane_server.core.rows import LeaseDropped, LeasePut, SessionDeleted, SessionInserted
from runlane_server.store.base import (
    KEPT_METHODS,
    Committed,
    CommitUnit,
    Conflict,
    Duplicate,
    LeaseRenewal,
    Outcome,
    RequestKey,
    RequestRecord,
    SessionCommit,
    Write,
)
from runlane_server.store.postgres import calls, rows, turns
from runlane_server.store.postgres.connect import NOW
from runlane_server.store.postgres.plan import BadRow, Kind, Plan, Raced, columns
from runlane_server.store.postgres.rows import json_text

_WRITERS = {**rows.WRITERS, **turns.WRITERS, **calls.WRITERS}
_COMMITTED = Committed()
_CONFLICT = Conflict()
_NO_PARENT = ("", "", "", 0)

_INSERT_SESSION = Kind(
    columns(
        "key bigint, namespace, session_id text, token, state bytea, status integer,"
        " current_run_id text, update_time, stored_bytes, create_time, base_count bigint,"
        " source_session_id, source_run_id, parent_session_id, parent_run_id, parent_call_id text,"
        " parent_depth integer, display_name text, labels jsonb, metadata_json, default_agent text"
    ),
    "INSERT INTO sessions (key, namespace, session_id, token, state, status, current_run_id,"
    " update_time, stored_bytes, create_time, base_count, source_session_id, source_run_id,"
    " parent_session_id, parent_run_id, parent_call_id, parent_depth, display_name, labels,"
    " metadata_json, default_agent)"
    " SELECT key, namespace, session_id, token, state, status, current_run_id,"
    " update_time, stored_bytes, create_time, base_count, source_session_id, source_run_id,"
    " parent_session_id, parent_run_id, parent_call_id, parent_depth, display_name, labels,"
    " metadata_json, default_agent FROM {u} ON CONFLICT (namespace, session_id) DO NOTHING",
    "a new session",
    raced=True,
)
_WRITE_SESSION = Kind(
    columns(
        "key bigint, expected, token, state bytea, status integer, current_run_id text,"
        " update_time, added bigint"
    ),
    "UPDATE sessions s SET token = u.token, state = u.state, status = u.status,"
    " current_run_id = u.current_run_id, update_time = u.update_time,"
    " stored_bytes = s.stored_bytes + u.added FROM {u}"
    " WHERE s.key = u.key AND s.token = u.expected",
    "a session",
    raced=True,
)
_INSERT_EVENTS = Kind(
    columns("session_key, last, first bigint, data bytea"),
    "INSERT INTO events (session_key, last, first, data)"
    " SELECT session_key, last, first, data FROM {u}",
)
_INSERT_REQUEST = Kind(
    columns(
        "request_id, scope, method, namespace text, session_key, create_time bigint, hash,"
        " answer bytea"
    ),
    "INSERT INTO requests (request_id, scope, method, namespace, session_key, create_time, hash,"
    " answer) SELECT request_id, scope, method, namespace, session_key, create_time, hash, answer"
    " FROM {u} ON CONFLICT (request_id, scope, method, namespace) DO NOTHING",
    "a request",
    raced=True,
    ordered=4,
)
_DRAIN = Kind(
    columns("namespace, executor_id text"),
    "INSERT INTO drained_executors (namespace, executor_id, drain_time)"  # noqa: S608 - constants
    f" SELECT namespace, executor_id, {NOW} FROM {{u}} ON CONFLICT DO NOTHING",
    ordered=2,
)
# Has a page written, and leaves no row.
_PROBE = ("", "")
_END_PROBE = Kind(
    columns("namespace, executor_id text"),
    "DELETE FROM drained_executors d USING {u}"
    " WHERE d.namespace = u.namespace AND d.executor_id = u.executor_id",
)
# What the source took over, and its own part; a message is never copied.
_TAKE_SEGMENTS = Kind(
    columns("session_key, source_key, count bigint"),
    "INSERT INTO segments (session_key, first, last, owner_key) SELECT u.session_key, g.first,"
    " least(g.last, u.count), g.owner_key FROM {u} JOIN segments g"
    " ON g.session_key = u.source_key AND g.first <= u.count",
)
_INSERT_SEGMENT = Kind(
    columns("session_key, first, last, owner_key bigint"),
    "INSERT INTO segments (session_key, first, last, owner_key)"
    " SELECT session_key, first, last, owner_key FROM {u}",
)
_TAKE_SUMMARY = Kind(
    columns("session_key, source_key, through bigint"),
    "INSERT INTO summaries (session_key, through, create_time, model, text)"
    " SELECT u.session_key, m.through, m.create_time, m.model, m.text FROM {u}"
    " JOIN summaries m ON m.session_key = u.source_key AND m.through = u.through",
    "summary of a fork",
)


@dataclass(slots=True)
class Known:
    """A session as it is after the writes decided so far.

    Attributes:
        stored: The token that is in the database; None: the session is not there.
        base_count: Messages that it took over.
        inserted: Its record, where this batch makes it.
        last: The newest commit of this batch.
        added: Bytes that the commits of this batch add.
    """

    key: int
    token: bytes | None
    stored: bytes | None = None
    base_count: int = 0
    inserted: SessionInserted | None = None
    last: SessionCommit | None = None
    added: int = 0


@dataclass(slots=True)
class Lease:
    """A lease as it is after the writes decided so far."""

    session_key: int
    epoch: int
    expire_time: int


class Units:
    """Decides the writes of a batch, one after the other."""

    def __init__(
        self,
        sessions: dict[SessionKey, Known],
        requests: dict[RequestKey, RequestRecord] | None,
        leases: dict[str, Lease],
        keys: Sequence[int],
    ) -> None:
        """Starts from what is stored.

        Args:
            sessions: All that the batch names and that are there.
            requests: The records of its requests that are there; None: nobody has looked.
            leases: Those that it renews, or lets run out; where there are such, all others too.
            keys: For the sessions that it makes.
        """
        self._sessions = sessions
        self._looked = requests is not None
        self._requests = requests or {}
        self._leases = leases
        self._keys = iter(keys)
        self.plan = Plan()

    def write(self, one: Write) -> Outcome:
        """Decides a write, and plans what it does.

        Raises:
            Raced: Nobody has looked whether its request has an answer, and that matters.
            Exception: One of its rows cannot be written; nothing of the plan is good then.
        """
        if isinstance(one, LeaseRenewal):
            return self._renew(one)
        for key, token in one.unchanged:
            if self._token(key) != token:
                return _CONFLICT
        request = one.request
        if request is not None:
            stored = self._requests.get(request.key)
            if stored is not None:
                return Duplicate(stored)
        if not self._holds(one):
            if request is not None and not self._looked:
                raise Raced("a request")  # An answer that it has comes before a conflict.
            return _CONFLICT
        made = 0
        for commit in one.sessions:
            made = self._write_session(commit) or made
        if request is not None:
            self._requests[request.key] = request
            kept = made if request.key.method in KEPT_METHODS else 0
            self.plan.add(_INSERT_REQUEST, _request_values(request, kept or None))
        if one.drained_executor is not None:
            self.plan.add(_DRAIN, one.drained_executor)
        elif not one.sessions and request is None and not one.unchanged:
            self.plan.add(_DRAIN, _PROBE, ["probe"])
            self.plan.add(_END_PROBE, _PROBE, ["probe"])
        return _COMMITTED

    def finish(self) -> Plan:
        """Returns the whole plan: the rows of the sessions come with the first level."""
        for session_key, known in self._sessions.items():
            commit = known.last
            if commit is None:
                continue
            newest = (
                commit.token,
                commit.state,
                int(commit.status),
                commit.current_run_id,
                commit.update_time,
                known.added,
            )
            if known.inserted is not None:
                values = _session_values(session_key, known.inserted, (known.key, *newest))
                self.plan.put(0, _INSERT_SESSION, values)
            else:
                self.plan.put(0, _WRITE_SESSION, (known.key, known.stored, *newest))
        return self.plan

    # --- what a unit stands on ---------------------------------------------

    def _token(self, key: SessionKey) -> bytes | None:
        known = self._sessions.get(key)
        return known.token if known is not None else None

    def _holds(self, unit: CommitUnit) -> bool:
        """Tells whether all that can stand against a unit does not."""
        sessions = unit.sessions
        for commit in sessions:
            for row in commit.rows:
                if type(row) is LeaseDropped and row.expired_at is not None:
                    lease = self._leases.get(row.activation_id)
                    if lease is None or lease.expire_time > row.expired_at:
                        return False
        if len(sessions) > 1 and len({one.key for one in sessions}) < len(sessions):
            raise BadRow("a unit names one session twice")
        return all(self._token(one.key) == one.expected_token for one in sessions)

    def _renew(self, one: LeaseRenewal) -> Outcome:
        lease = self._leases.get(one.activation_id)
        if lease is None or lease.epoch != one.epoch:
            return _CONFLICT
        lease.expire_time = one.expire_time
        values = (one.activation_id, one.epoch, one.duration, one.expire_time)
        self.plan.add(turns.RENEW_LEASE, values, [("lease", one.activation_id)])
        return _COMMITTED

    # --- one session -------------------------------------------------------

    def _write_session(self, commit: SessionCommit) -> int:
        """Plans one session's part; returns its key where it is new, else 0."""
        known = self._sessions.get(commit.key)
        new = known is None
        if known is None:
            known = self._insert(commit)
        plan, key = self.plan, known.key
        if known.last is None:
            # Its row is written with the first level.
            plan.mark(("session", key))
        known.token, known.last = commit.token, commit
        known.added += commit.size
        events = commit.events
        if events is not None:
            plan.add(_INSERT_EVENTS, (key, events.last, events.first, events.data))
        encoded = commit.encoded.get
        for index, row in enumerate(commit.rows):
            kind = type(row)
            if isinstance(row, SessionInserted):
                self._fork(key, row, commit)
                continue
            _WRITERS[kind](plan, key, row, encoded(index), commit)
            self._note_lease(key, row)
        return key if new else 0

    def _note_lease(self, key: int, row: object) -> None:
        if isinstance(row, LeasePut):
            lease = self._leases.get(row.activation_id)
            owner = lease.session_key if lease is not None else key
            self._leases[row.activation_id] = Lease(owner, row.epoch, row.expire_time)
        elif isinstance(row, LeaseDropped):
            lease = self._leases.get(row.activation_id)
            if lease is not None and lease.session_key == key:
                del self._leases[row.activation_id]
        elif isinstance(row, SessionDeleted):
            for name in [name for name, one in self._leases.items() if one.session_key == key]:
                del self._leases[name]

    def _insert(self, commit: SessionCommit) -> Known:
        row = next((row for row in commit.rows if type(row) is SessionInserted), None)
        if row is None:
            raise BadRow("a new session has no record")
        known = Known(next(self._keys), None, base_count=row.message_count, inserted=row)
        self._sessions[commit.key] = known
        return known

    def _fork(self, key: int, row: SessionInserted, commit: SessionCommit) -> None:
        if not row.message_count:
            return
        plan = self.plan
        source = self._sessions.get(SessionKey(commit.key.namespace, row.source_session_id))
        if source is None:
            raise BadRow(f"the source {row.source_session_id} of a fork does not exist")
        writes, reads = [("segments", key)], [("segments", source.key)]
        plan.add(_TAKE_SEGMENTS, (key, source.key, row.message_count), writes, reads)
        if row.message_count > source.base_count:
            values = (key, source.base_count + 1, row.message_count, source.key)
            plan.add(_INSERT_SEGMENT, values, writes)
        if row.summary_through:
            plan.add(
                _TAKE_SUMMARY,
                (key, source.key, row.summary_through),
                [("summary", key, row.summary_through)],
                [("summary", source.key, row.summary_through)],
            )


def _request_values(request: RequestRecord, session_key: int | None) -> tuple[object, ...]:
    key = request.key
    return (
        key.request_id,
        key.scope,
        key.method,
        key.namespace,
        session_key,
        request.create_time,
        request.hash,
        request.answer,
    )


def _session_values(
    key: SessionKey, row: SessionInserted, values: tuple[object, ...]
) -> tuple[object, ...]:
    record, parent = row.record, row.parent
    number, *newest = values
    return (
        number,
        key.namespace,
        key.session_id,
        *newest,
        row.create_time,
        row.message_count,
        row.source_session_id,
        row.source_run_id,
        *(
            _NO_PARENT
            if parent is None
            else (parent.session_id, parent.run_id, parent.tool_call_id, parent.depth)
        ),
        record.display_name,
        json_text(record.labels),
        record.metadata_json,
        record.default_agent,
    )
