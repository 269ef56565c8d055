"""Reads of single things and of histories; each is a function of a connection.

Most are one statement, and so one snapshot; the others run inside one transaction.

A plan may be made while the tables are empty, when every index looks as good as any other,
and be kept. So what is no index's to answer is written so that none can: `deleted_time < 1`
for the lists' `deleted_time = 0`, and `namespace || ''` where a row is found by its key.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from runlane_server.core.model import SessionKey, SessionRecord
from runlane_server.core.words import (
    Mode,
    NoticeKind,
    Phase,
    Route,
    StopReason,
    SubmissionState,
    TimerKind,
)
from runlane_server.store.base import (
    DRAINED_MAX,
    READ_BYTES,
    EventGroup,
    LiveLease,
    LiveRows,
    LoadedSession,
    MessageRow,
    QueuedActivation,
    RequestKey,
    RequestRecord,
    RunRow,
    SessionRow,
    StoredNotice,
    StoredTimer,
    SubmissionRow,
    SummaryRow,
)
from runlane_server.store.postgres import calls
from runlane_server.store.postgres.connect import Conn
from runlane_server.store.postgres.rows import run_of_submission, submission_of_run

SESSION_COLUMNS = (
    "s.display_name, s.labels, s.metadata_json, s.default_agent, s.state, s.source_session_id,"
    " s.source_run_id, s.parent_run_id"
)
RUN_COLUMNS = (
    "r.run_id, s.session_id, r.submission_id, r.agent, r.mode, r.request_id, r.create_time,"
    " r.first_sequence, r.message_number, r.options, r.preview, r.phase,"
    " CASE WHEN r.phase <> 4 THEN s.state END, r.stop_reason, r.cause, r.failure_reason,"
    " r.failure_message, r.failure_retryable, r.output_message_number, r.output_json,"
    " r.message_cutoff, r.digest, r.end_time, r.last_sequence, r.attempt, r.usage,"
    " r.cancellation, s.parent_session_id, s.parent_run_id, s.parent_call_id, s.parent_depth,"
    " r.summary_through"
)
# Content as it is shown: that of the message once there is one. $1 limits its size;
# what is over it is not read at all.
_MESSAGE = (
    "(SELECT CASE WHEN length(m.data) <= $1::bigint THEN m.data ELSE '' END FROM messages m"
    " WHERE m.session_key = {0}.session_key AND m.number = {0}.message_number)"
)
SUBMISSION_COLUMNS = (
    "q.submission_id, s.session_id, q.run_id, q.mode, q.route, q.state, q.request_id,"
    " q.create_time, q.settle_time, q.failure, q.message_number,"
    f" CASE WHEN q.state = 2 THEN {_MESSAGE.format('q')}"
    " WHEN length(q.content) <= $1::bigint THEN q.content ELSE '' END, q.preview"
)
STARTED_COLUMNS = (
    "r.run_id, s.session_id, r.run_id, r.mode, 1, 2, r.request_id, r.create_time,"
    f" r.create_time, 0, r.message_number, {_MESSAGE.format('r')}, r.preview"
)
NO_LIMIT = 2**62

_VISIBLE = "s.namespace = $1 AND s.session_id = $2 AND s.deleted_time < 1"
_read_labels = msgspec.json.Decoder(dict[str, str]).decode


def session_row(columns: Sequence[Any]) -> SessionRow:
    """Makes a record of SESSION_COLUMNS."""
    name, labels, metadata, agent, state, *links = columns
    return SessionRow(SessionRecord(name, _read_labels(labels), metadata, agent), state, *links)


def run_row(columns: Sequence[Any]) -> RunRow:
    """Makes a record of RUN_COLUMNS."""
    row = RunRow(*columns)
    row.submission_id = row.submission_id or submission_of_run(row.run_id)
    row.mode = Mode(row.mode)
    row.phase = Phase(row.phase)
    if row.stop_reason is not None:
        row.stop_reason = StopReason(row.stop_reason)
    if row.cause is not None:
        row.cause = StopReason(row.cause)
    return row


def submission_row(columns: Sequence[Any]) -> SubmissionRow:
    """Makes a record of SUBMISSION_COLUMNS."""
    row = SubmissionRow(*columns)
    row.mode = Mode(row.mode)
    row.route = Route(row.route)
    row.state = SubmissionState(row.state)
    row.content = row.content or b""
    return row


def started_row(columns: Sequence[Any]) -> SubmissionRow:
    """Makes a record of STARTED_COLUMNS: an input that started a run at once."""
    row = submission_row(columns)
    row.submission_id = submission_of_run(row.run_id)
    return row


async def visible(conn: Conn, key: SessionKey) -> tuple[int, str] | None:
    """Reads (key, current_run_id) of a session that is not deleted."""
    found = await conn.fetchrow(
        f"SELECT s.key, s.current_run_id FROM sessions s WHERE {_VISIBLE}",  # noqa: S608 - constants
        key.namespace,
        key.session_id,
    )
    return tuple(found) if found is not None else None


# --- what commands need ----------------------------------------------------


async def load(conn: Conn, key: SessionKey) -> LoadedSession | None:
    """Store.load."""
    found = await conn.fetchrow(
        # There is one lease or none.
        "SELECT s.token, s.state, l.expire_time, l.confirmed, l.duration FROM sessions s"
        " LEFT JOIN leases l ON l.session_key = s.key"
        " WHERE s.namespace = $1 AND s.session_id = $2",
        key.namespace,
        key.session_id,
    )
    if found is None:
        return None
    token, state, expire_time, confirmed, duration = found
    return LoadedSession(token, state, expire_time or 0, confirmed is not False, duration or 0)


async def find_request(conn: Conn, key: RequestKey) -> RequestRecord | None:
    """Store.find_request."""
    found = await conn.fetchrow(
        "SELECT hash, answer, create_time FROM requests WHERE request_id = $1 AND scope = $2"
        " AND method = $3 AND namespace = $4",
        key.request_id,
        key.scope,
        key.method,
        key.namespace,
    )
    return RequestRecord(key, *found) if found is not None else None


async def find_session_of_run(conn: Conn, namespace: str, run_id: str) -> str | None:
    """Store.find_session_of_run."""
    found: str | None = await conn.fetchval(
        "SELECT s.session_id FROM runs r JOIN sessions s ON s.key = r.session_key"
        " WHERE r.run_id = $1 AND s.namespace || '' = $2 AND s.deleted_time < 1",
        run_id,
        namespace,
    )
    return found


async def find_session_of_submission(conn: Conn, namespace: str, submission_id: str) -> str | None:
    """Store.find_session_of_submission."""
    found: str | None = await conn.fetchval(
        "SELECT s.session_id FROM submissions q JOIN sessions s ON s.key = q.session_key"
        " WHERE q.submission_id = $1 AND s.namespace || '' = $2 AND s.deleted_time < 1"
        " UNION ALL"
        " SELECT s.session_id FROM runs r JOIN sessions s ON s.key = r.session_key"
        " WHERE r.run_id = $3 AND r.submission_id IS NULL AND s.namespace || '' = $2"
        " AND s.deleted_time < 1",
        submission_id,
        namespace,
        _started_run(submission_id),
    )
    return found


def _started_run(submission_id: str) -> str:
    # Another kind of id is never taken for a submission's.
    return run_of_submission(submission_id) if submission_id.startswith("sub_") else ""


# --- single things ---------------------------------------------------------


async def session(conn: Conn, key: SessionKey) -> SessionRow | None:
    """Store.session."""
    found = await conn.fetchrow(
        f"SELECT {SESSION_COLUMNS} FROM sessions s WHERE {_VISIBLE}",  # noqa: S608 - constants
        key.namespace,
        key.session_id,
    )
    return session_row(found) if found is not None else None


async def run(conn: Conn, namespace: str, run_id: str) -> RunRow | None:
    """Store.run."""
    found = await conn.fetchrow(
        f"SELECT {RUN_COLUMNS} FROM runs r JOIN sessions s ON s.key = r.session_key"  # noqa: S608 - constants
        " WHERE r.run_id = $1 AND s.namespace || '' = $2 AND s.deleted_time < 1",
        run_id,
        namespace,
    )
    return run_row(found) if found is not None else None


async def submission(conn: Conn, namespace: str, submission_id: str) -> SubmissionRow | None:
    """Store.submission."""
    found = await conn.fetchrow(
        f"SELECT {SUBMISSION_COLUMNS} FROM submissions q"  # noqa: S608 - constants
        " JOIN sessions s ON s.key = q.session_key"
        " WHERE q.submission_id = $2 AND s.namespace || '' = $3 AND s.deleted_time < 1",
        NO_LIMIT,
        submission_id,
        namespace,
    )
    if found is not None:
        return submission_row(found)
    found = await conn.fetchrow(
        f"SELECT {STARTED_COLUMNS} FROM runs r JOIN sessions s ON s.key = r.session_key"  # noqa: S608 - constants
        " WHERE r.run_id = $2 AND r.submission_id IS NULL AND s.namespace || '' = $3"
        " AND s.deleted_time < 1",
        NO_LIMIT,
        _started_run(submission_id),
        namespace,
    )
    return started_row(found) if found is not None else None


async def submission_of_reserved_run(
    conn: Conn, namespace: str, run_id: str
) -> SubmissionRow | None:
    """Store.submission_of_reserved_run. The run id of a steer is its target's: none of these."""
    found = await conn.fetchrow(
        f"SELECT {SUBMISSION_COLUMNS} FROM submissions q"  # noqa: S608 - constants
        " JOIN sessions s ON s.key = q.session_key"
        " WHERE q.run_id = $2 AND q.route <> 2 AND s.namespace || '' = $3 AND s.deleted_time < 1",
        NO_LIMIT,
        run_id,
        namespace,
    )
    return submission_row(found) if found is not None else None


async def summary(conn: Conn, key: SessionKey, through: int) -> SummaryRow | None:
    """Store.summary."""
    found = await conn.fetchrow(
        "SELECT m.through, m.text, m.model, m.create_time FROM sessions s"  # noqa: S608 - constants
        f" JOIN summaries m ON m.session_key = s.key AND m.through = $3 WHERE {_VISIBLE}",
        key.namespace,
        key.session_id,
        through,
    )
    return SummaryRow(*found) if found is not None else None


async def child_sessions(conn: Conn, key: SessionKey, limit: int) -> list[str]:
    """Store.child_sessions."""
    rows = await conn.fetch(
        "SELECT session_id FROM sessions WHERE namespace = $1 AND parent_session_id = $2"
        " AND parent_session_id <> '' AND deleted_time = 0 LIMIT $3",
        key.namespace,
        key.session_id,
        limit,
    )
    return [row[0] for row in rows]


async def notices(conn: Conn) -> list[StoredNotice]:
    """Store.notices."""
    rows = await conn.fetch("SELECT namespace, session_id, kind, cause FROM notices")
    return [StoredNotice(SessionKey(row[0], row[1]), NoticeKind(row[2]), row[3]) for row in rows]


# --- events ----------------------------------------------------------------


async def last_sequence(conn: Conn, key: SessionKey) -> int | None:
    """Store.last_sequence."""
    found = await conn.fetchrow(
        "SELECT s.deleted_time, (SELECT max(e.last) FROM events e WHERE e.session_key = s.key)"
        " FROM sessions s WHERE s.namespace = $1 AND s.session_id = $2",
        key.namespace,
        key.session_id,
    )
    if found is None:
        return None
    deleted_time, last = found
    if last is None:
        return None if deleted_time else 0
    return int(last)


# A group holds at least one event, so no more than `max_events` groups are looked at; what
# is over the bytes is never sent.
_EVENTS = (
    "SELECT e.first, e.last, e.data FROM (SELECT g.*, row_number() OVER page AS place,"
    " sum(length(g.data)) OVER page AS size, sum((g.last - g.first + 1)::integer) OVER page"
    " AS count FROM (SELECT e.first, e.last, e.data FROM events e"
    " WHERE e.session_key = (SELECT key FROM sessions WHERE namespace = $1 AND session_id = $2)"
    " AND e.last > $3 AND e.first <= $4 ORDER BY e.last LIMIT $5) g"
    " WINDOW page AS (ORDER BY g.last)) e WHERE e.place = 1 OR (e.size <= $6"
    " AND e.size - length(e.data) < $6 AND e.count - (e.last - e.first + 1) < $5)"
    " ORDER BY e.last"
)


async def events(
    conn: Conn, key: SessionKey, after: int, through: int, max_events: int, max_bytes: int
) -> list[EventGroup]:
    """Store.events."""
    rows = await conn.fetch(
        _EVENTS, key.namespace, key.session_id, after, through, max_events, max_bytes
    )
    return [EventGroup(*row) for row in rows]


# --- messages --------------------------------------------------------------


def _message_range(direction: str) -> str:
    """Returns one statement for a range of messages, however deep a fork is.

    Each segment gives no more than a page, in order, through the index; what is over the
    bytes of the page is never sent.
    """
    one = (
        "SELECT m.number, m.data FROM messages m WHERE m.session_key = {0}"  # noqa: S608 - constants
        f" AND m.number BETWEEN {{1}} ORDER BY m.number {direction} LIMIT $5"
    )
    own = one.format("s.key", "greatest($3, s.base_count + 1) AND $4")
    taken = one.format("g.owner_key", "greatest(g.first, $3) AND least(g.last, $4)")
    return (
        "WITH s AS MATERIALIZED (SELECT s.key, s.base_count FROM sessions s"  # noqa: S608 - constants
        f" WHERE {_VISIBLE}) SELECT p.number, p.data FROM (SELECT a.*,"
        " row_number() OVER page AS place, sum(length(a.data)) OVER page AS size FROM ("
        f"SELECT b.number, b.data FROM ((SELECT m.* FROM s CROSS JOIN LATERAL ({own}) m)"
        f" UNION ALL (SELECT m.* FROM segments g CROSS JOIN LATERAL ({taken}) m"
        " WHERE g.session_key = (SELECT s.key FROM s) AND g.first <= $4 AND g.last >= $3"
        f" ORDER BY g.first {direction}, m.number {direction} LIMIT $5)) b"
        f" ORDER BY b.number {direction} LIMIT $5) a WINDOW page AS (ORDER BY a.number"
        f" {direction})) p WHERE p.place = 1 OR p.size <= $6 ORDER BY p.number {direction}"
    )


_ASCENDING = _message_range("ASC")
_DESCENDING = _message_range("DESC")


async def messages(
    conn: Conn,
    key: SessionKey,
    first: int,
    last: int,
    max_items: int,
    max_bytes: int,
    descending: bool,
) -> list[MessageRow]:
    """Store.messages."""
    rows = await conn.fetch(
        _DESCENDING if descending else _ASCENDING,
        key.namespace,
        key.session_id,
        first,
        last,
        max_items,
        max_bytes,
    )
    return [MessageRow(*row) for row in rows]


async def messages_by_number(
    conn: Conn, key: SessionKey, numbers: Sequence[int]
) -> list[MessageRow]:
    """Store.messages_by_number."""
    rows = await conn.fetch(
        "SELECT m.number, m.data FROM sessions s CROSS JOIN unnest($3::bigint[]) u(number)"  # noqa: S608 - constants
        " LEFT JOIN LATERAL (SELECT g.owner_key FROM segments g WHERE g.session_key = s.key"
        " AND g.first <= u.number AND g.last >= u.number) g ON u.number <= s.base_count"
        " JOIN messages m ON m.session_key = coalesce(g.owner_key, s.key) AND m.number = u.number"
        f" WHERE {_VISIBLE} ORDER BY m.number",
        key.namespace,
        key.session_id,
        list(set(numbers)),
    )
    return [MessageRow(*row) for row in rows]


# --- the whole of a session ------------------------------------------------


async def live(
    conn: Conn, key: SessionKey, message_limit: int, max_bytes: int, content_limit: int
) -> LiveRows | None:
    """Store.live."""
    found = await conn.fetchrow(
        f"SELECT s.key, s.current_run_id, {SESSION_COLUMNS} FROM sessions s WHERE {_VISIBLE}",  # noqa: S608 - constants
        key.namespace,
        key.session_id,
    )
    if found is None:
        return None
    session_key, run_id, *columns = found
    pending = await conn.fetch(
        f"SELECT {SUBMISSION_COLUMNS} FROM submissions q JOIN sessions s ON s.key = q.session_key"  # noqa: S608 - constants
        " WHERE q.session_key = $2 AND q.state = 1",
        content_limit,
        session_key,
    )
    newest = await messages(conn, key, 1, NO_LIMIT, message_limit, max_bytes, descending=True)
    return LiveRows(
        session_row(columns),
        await run(conn, key.namespace, run_id) if run_id else None,
        [submission_row(row) for row in pending],
        newest[::-1],
        await calls.open_interactions(conn, session_key, READ_BYTES),
    )


async def ancestors(conn: Conn, key: SessionKey, limit: int) -> list[tuple[str, str]]:
    """Store.ancestors. A deleted session still says where it came from."""
    rows = await conn.fetch(
        "WITH RECURSIVE up (depth, source, run) AS ("  # noqa: S608 - constants
        " SELECT 1, s.source_session_id, s.source_run_id FROM sessions s"
        f" WHERE {_VISIBLE} UNION ALL"
        " SELECT depth + 1, s.source_session_id, s.source_run_id FROM up"
        " CROSS JOIN LATERAL (SELECT f.source_session_id, f.source_run_id FROM sessions f"
        " WHERE f.namespace = $1 AND f.session_id = up.source LIMIT 1) s"
        " WHERE up.source <> '' AND up.depth < $3)"
        " SELECT source, run FROM up WHERE source <> '' ORDER BY depth LIMIT $3",
        key.namespace,
        key.session_id,
        limit,
    )
    return [(row[0], row[1]) for row in rows]


# --- what a server starts from ---------------------------------------------


async def queued_activations(conn: Conn) -> list[QueuedActivation]:
    """Store.queued_activations."""
    rows = await conn.fetch(
        "SELECT s.namespace, s.session_id, a.activation_id, a.agent, a.queue_time, a.not_before"
        " FROM queued a JOIN sessions s ON s.key = a.session_key"
        " ORDER BY a.queue_time, a.activation_id"
    )
    return [QueuedActivation(SessionKey(row[0], row[1]), *row[2:]) for row in rows]


async def leases(conn: Conn) -> list[LiveLease]:
    """Store.leases."""
    rows = await conn.fetch(
        "SELECT s.namespace, s.session_id, l.activation_id, l.agent, l.executor_id,"
        " l.expire_time FROM leases l JOIN sessions s ON s.key = l.session_key"
    )
    return [LiveLease(SessionKey(row[0], row[1]), *row[2:]) for row in rows]


async def timers(conn: Conn) -> list[StoredTimer]:
    """Store.timers."""
    rows = await conn.fetch(
        "SELECT s.namespace, s.session_id, t.kind, t.due_time FROM timers t"
        " JOIN sessions s ON s.key = t.session_key ORDER BY t.due_time, s.key"
    )
    return [StoredTimer(SessionKey(row[0], row[1]), TimerKind(row[2]), row[3]) for row in rows]


async def drained_executors(conn: Conn) -> list[tuple[str, str]]:
    """Store.drained_executors."""
    rows = await conn.fetch(
        "SELECT namespace, executor_id FROM drained_executors"  # noqa: S608 - constants
        f" ORDER BY drain_time DESC, namespace DESC, executor_id DESC LIMIT {DRAINED_MAX}"
    )
    return [(row[0], row[1]) for row in reversed(rows)]
