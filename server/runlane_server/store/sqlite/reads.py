"""Reads of single things and of histories; each is a function of a connection.

They run inside one read transaction, so all statements of one see one snapshot.
"""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

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
    FEED_SCAN,
    READ_BYTES,
    EventGroup,
    FeedGroup,
    FeedPage,
    FeedPlace,
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
from runlane_server.store.sqlite import calls
from runlane_server.store.sqlite.commits import FIND_REQUEST, request_columns
from runlane_server.store.sqlite.rows import (
    SPAN,
    events_start,
    messages_start,
    read_labels,
    run_of_submission,
    submission_of_run,
)

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
# Content as it is shown: that of the message once there is one. ?1 limits its size;
# what is over it is not read at all.
_MESSAGE = (
    "(SELECT CASE WHEN length(m.data) <= ?1 THEN m.data ELSE x'' END FROM entries m"  # noqa: S608 - constants
    f" WHERE m.id = {{0}}.session_key * {2 * SPAN} + {{0}}.message_number)"
)
SUBMISSION_COLUMNS = (
    "q.submission_id, s.session_id, q.run_id, q.mode, q.route, q.state, q.request_id,"
    " q.create_time, q.settle_time, q.failure, q.message_number,"
    f" CASE WHEN q.state = 2 THEN {_MESSAGE.format('q')}"
    " WHEN length(q.content) <= ?1 THEN q.content ELSE x'' END, q.preview"
)
STARTED_COLUMNS = (
    "r.run_id, s.session_id, r.run_id, r.mode, 1, 2, r.request_id, r.create_time,"
    f" r.create_time, 0, r.message_number, {_MESSAGE.format('r')}, r.preview"
)
NO_LIMIT = 2**62

_VISIBLE = " s.namespace = ? AND s.session_id = ? AND s.deleted_time = 0"


def session_row(columns: Sequence[Any]) -> SessionRow:
    """Makes a record of SESSION_COLUMNS."""
    name, labels, metadata, agent, state, *links = columns
    return SessionRow(SessionRecord(name, read_labels(labels), metadata, agent), state, *links)


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
    row.failure_retryable = bool(row.failure_retryable)
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


def visible(conn: sqlite3.Connection, key: SessionKey) -> tuple[int, int, str] | None:
    """Reads (key, base_count, current_run_id) of a session that is not deleted."""
    found: tuple[int, int, str] | None = conn.execute(
        f"SELECT s.key, s.base_count, s.current_run_id FROM sessions s WHERE {_VISIBLE}",  # noqa: S608 - constants
        (key.namespace, key.session_id),
    ).fetchone()
    return found


def present(conn: sqlite3.Connection, key: SessionKey) -> tuple[int, int] | None:
    """Reads (key, deleted_time) of a session, deleted or not."""
    found: tuple[int, int] | None = conn.execute(
        "SELECT key, deleted_time FROM sessions WHERE namespace = ? AND session_id = ?",
        (key.namespace, key.session_id),
    ).fetchone()
    return found


# --- what commands need ----------------------------------------------------


def load(conn: sqlite3.Connection, key: SessionKey) -> LoadedSession | None:
    """Store.load."""
    found = conn.execute(
        # There is one lease or none.
        "SELECT s.token, s.state, l.expire_time, l.confirmed, l.duration FROM sessions s"
        " LEFT JOIN leases l ON l.session_key = s.key"
        " WHERE s.namespace = ? AND s.session_id = ?",
        (key.namespace, key.session_id),
    ).fetchone()
    if found is None:
        return None
    token, state, expire_time, confirmed, duration = found
    return LoadedSession(token, state, expire_time or 0, confirmed != 0, duration or 0)


def find_request(conn: sqlite3.Connection, key: RequestKey) -> RequestRecord | None:
    """Store.find_request."""
    found = conn.execute(FIND_REQUEST, request_columns(key)).fetchone()
    return RequestRecord(key, *found) if found is not None else None


def find_session_of_run(conn: sqlite3.Connection, namespace: str, run_id: str) -> str | None:
    """Store.find_session_of_run."""
    found = conn.execute(
        "SELECT s.session_id FROM runs r JOIN sessions s ON s.key = r.session_key"
        " WHERE r.run_id = ? AND s.namespace = ? AND s.deleted_time = 0",
        (run_id, namespace),
    ).fetchone()
    return found[0] if found is not None else None


def find_session_of_submission(
    conn: sqlite3.Connection, namespace: str, submission_id: str
) -> str | None:
    """Store.find_session_of_submission."""
    found = conn.execute(
        "SELECT s.session_id FROM submissions q JOIN sessions s ON s.key = q.session_key"
        " WHERE q.submission_id = ? AND s.namespace = ? AND s.deleted_time = 0"
        " UNION ALL"
        " SELECT s.session_id FROM runs r JOIN sessions s ON s.key = r.session_key"
        " WHERE r.run_id = ? AND r.submission_id IS NULL AND s.namespace = ?"
        " AND s.deleted_time = 0",
        (submission_id, namespace, _started_run(submission_id), namespace),
    ).fetchone()
    return found[0] if found is not None else None


def _started_run(submission_id: str) -> str:
    # Another kind of id is never taken for a submission's.
    return run_of_submission(submission_id) if submission_id.startswith("sub_") else ""


# --- single things ---------------------------------------------------------


def session(conn: sqlite3.Connection, key: SessionKey) -> SessionRow | None:
    """Store.session."""
    found = conn.execute(
        f"SELECT {SESSION_COLUMNS} FROM sessions s WHERE {_VISIBLE}",  # noqa: S608 - constants
        (key.namespace, key.session_id),
    ).fetchone()
    return session_row(found) if found is not None else None


def run(conn: sqlite3.Connection, namespace: str, run_id: str) -> RunRow | None:
    """Store.run."""
    found = conn.execute(
        f"SELECT {RUN_COLUMNS} FROM runs r JOIN sessions s ON s.key = r.session_key"  # noqa: S608 - constants
        " WHERE r.run_id = ? AND s.namespace = ? AND s.deleted_time = 0",
        (run_id, namespace),
    ).fetchone()
    return run_row(found) if found is not None else None


def submission(
    conn: sqlite3.Connection, namespace: str, submission_id: str
) -> SubmissionRow | None:
    """Store.submission."""
    found = conn.execute(
        f"SELECT {SUBMISSION_COLUMNS} FROM submissions q"  # noqa: S608 - constants
        " JOIN sessions s ON s.key = q.session_key"
        " WHERE q.submission_id = ?2 AND s.namespace = ?3 AND s.deleted_time = 0",
        (NO_LIMIT, submission_id, namespace),
    ).fetchone()
    if found is not None:
        return submission_row(found)
    found = conn.execute(
        f"SELECT {STARTED_COLUMNS} FROM runs r JOIN sessions s ON s.key = r.session_key"  # noqa: S608 - constants
        " WHERE r.run_id = ?2 AND r.submission_id IS NULL AND s.namespace = ?3"
        " AND s.deleted_time = 0",
        (NO_LIMIT, _started_run(submission_id), namespace),
    ).fetchone()
    return started_row(found) if found is not None else None


def submission_of_reserved_run(
    conn: sqlite3.Connection, namespace: str, run_id: str
) -> SubmissionRow | None:
    """Store.submission_of_reserved_run. The run id of a steer is its target's: none of these."""
    found = conn.execute(
        f"SELECT {SUBMISSION_COLUMNS} FROM submissions q"  # noqa: S608 - constants
        " JOIN sessions s ON s.key = q.session_key"
        " WHERE q.run_id = ?2 AND q.route <> 2 AND s.namespace = ?3 AND s.deleted_time = 0",
        (NO_LIMIT, run_id, namespace),
    ).fetchone()
    return submission_row(found) if found is not None else None


def summary(conn: sqlite3.Connection, key: SessionKey, through: int) -> SummaryRow | None:
    """Store.summary."""
    found = conn.execute(
        "SELECT m.through, m.text, m.model, m.create_time FROM sessions s"  # noqa: S608 - constants
        " JOIN summaries m ON m.session_key = s.key AND m.through = ?"
        f" WHERE {_VISIBLE}",
        (through, key.namespace, key.session_id),
    ).fetchone()
    return SummaryRow(*found) if found is not None else None


def child_sessions(conn: sqlite3.Connection, key: SessionKey, limit: int) -> list[str]:
    """Store.child_sessions."""
    rows = conn.execute(
        "SELECT session_id FROM sessions WHERE namespace = ? AND parent_session_id = ?"
        " AND parent_session_id <> '' AND deleted_time = 0 LIMIT ?",
        (key.namespace, key.session_id, limit),
    )
    return [row[0] for row in rows]


def notices(conn: sqlite3.Connection) -> list[StoredNotice]:
    """Store.notices."""
    rows: Iterable[Any] = conn.execute("SELECT namespace, session_id, kind, cause FROM notices")
    return [StoredNotice(SessionKey(row[0], row[1]), NoticeKind(row[2]), row[3]) for row in rows]


# --- events ----------------------------------------------------------------


def last_sequence(conn: sqlite3.Connection, key: SessionKey) -> int | None:
    """Store.last_sequence."""
    found = present(conn, key)
    if found is None:
        return None
    last: int | None = conn.execute(
        "SELECT max(id) FROM entries WHERE id BETWEEN ? AND ?",
        (events_start(found[0]), events_start(found[0]) + SPAN - 1),
    ).fetchone()[0]
    if last is None:
        return None if found[1] else 0
    return last % SPAN


def events(
    conn: sqlite3.Connection,
    key: SessionKey,
    after: int,
    through: int,
    max_events: int,
    max_bytes: int,
) -> list[EventGroup]:
    """Store.events."""
    groups: list[EventGroup] = []
    count = size = 0
    rows = conn.execute(
        "SELECT g.id, g.first, g.data FROM sessions s CROSS JOIN entries g"  # noqa: S608 - constants
        f" ON g.id > s.key * {2 * SPAN} + {SPAN} + ?1 AND g.id < (s.key + 1) * {2 * SPAN}"
        " WHERE s.namespace = ?2 AND s.session_id = ?3 ORDER BY g.id",
        (min(after, SPAN), key.namespace, key.session_id),
    )
    for group_id, first, data in rows:
        if first > through:
            break
        size += len(data)
        if groups and size > max_bytes:
            break
        last = group_id % SPAN
        groups.append(EventGroup(first, last, data))
        count += last - first + 1
        if count >= max_events or size >= max_bytes:
            break
    rows.close()
    return groups


_FEED_BOUNDS = (
    "SELECT (SELECT min(feed) FROM entries WHERE feed >= ?),"
    " coalesce((SELECT max(feed) FROM entries), 0)"
)
# Where the session is another's, and for messages, no row is read whole.
_FEED = (
    "SELECT e.feed, e.id, e.first, e.data, s.session_id FROM entries e"  # noqa: S608 - constants
    f" CROSS JOIN sessions s ON s.key = e.id / {2 * SPAN} AND s.namespace = ?"
    f" WHERE e.feed BETWEEN ? AND ? AND e.id % {2 * SPAN} > {SPAN} ORDER BY e.feed"
)


def feed(
    conn: sqlite3.Connection, namespace: str, after: FeedPlace, max_events: int, max_bytes: int
) -> FeedPage:
    """Store.feed. The feed key of a row is its rowid: one writer, so they grow as they commit."""
    first, newest = conn.execute(_FEED_BOUNDS, (after.feed,)).fetchone()
    if first is None:
        return FeedPage([], max(after, _feed_after(newest)), more=False)
    stop = min(first + FEED_SCAN - 1, newest)
    groups: list[FeedGroup] = []
    count = size = 0
    rows = conn.execute(_FEED, (namespace, first, stop))
    for number, group_id, first_sequence, data, session_id in rows:
        key, last = divmod(group_id - SPAN, 2 * SPAN)
        place = FeedPlace(number, key, last)
        if place <= after:
            continue
        size += len(data)
        if groups and size > max_bytes:
            stop = groups[-1].place.feed
            break
        groups.append(FeedGroup(place, session_id, EventGroup(first_sequence, last, data)))
        count += last - first_sequence + 1
        if count >= max_events or size >= max_bytes:
            stop = number
            break
    rows.close()
    return FeedPage(groups, max(after, _feed_after(stop)), more=stop < newest)


def feed_end(conn: sqlite3.Connection) -> FeedPlace:
    """Store.feed_end."""
    return _feed_after(conn.execute(_FEED_BOUNDS, (0,)).fetchone()[1])


def _feed_after(number: int) -> FeedPlace:
    """Returns the place after all of a row: no session has the key 0, and `feed` is of one row."""
    return FeedPlace(number + 1, 0, 0)


# --- messages --------------------------------------------------------------


def messages(
    conn: sqlite3.Connection,
    key: SessionKey,
    first: int,
    last: int,
    max_items: int,
    max_bytes: int,
    descending: bool,
) -> list[MessageRow]:
    """Store.messages."""
    found = visible(conn, key)
    if found is None:
        return []
    return message_range(
        conn, (found[0], found[1]), (first, last), (max_items, max_bytes), descending=descending
    )


def message_range(
    conn: sqlite3.Connection,
    owner: tuple[int, int],
    bounds: tuple[int, int],
    budget: tuple[int, int],
    *,
    descending: bool,
) -> list[MessageRow]:
    """Reads messages of `owner` (key, base_count): two statements, however deep a fork is."""
    key, base_count = owner
    first, last = bounds
    max_items, max_bytes = budget
    direction = "DESC" if descending else "ASC"
    parts: list[tuple[str, tuple[int, ...]]] = []
    if first <= base_count:
        taken_over = (
            "SELECT m.id, m.data FROM segments g CROSS JOIN entries m"  # noqa: S608 - constants
            f" ON m.id BETWEEN g.owner_key * {2 * SPAN} + max(g.first, ?2)"
            f" AND g.owner_key * {2 * SPAN} + min(g.last, ?3)"
            " WHERE g.session_key = ?1 AND g.first <= ?3"
            f" ORDER BY g.first {direction}, m.id {direction}"
        )
        parts.append((taken_over, (key, first, min(last, base_count))))
    if last > base_count:
        own = (
            "SELECT id, data FROM entries WHERE id BETWEEN ? AND ?"  # noqa: S608 - constants
            f" ORDER BY id {direction}"
        )
        start = messages_start(key)
        bounds = (start + max(first, base_count + 1), start + min(last, SPAN - 1))
        parts.append((own, bounds))
    if descending:
        parts.reverse()
    taken: list[MessageRow] = []
    size = 0
    for sql, values in parts:
        rows = conn.execute(sql, values)
        for message_id, data in rows:
            size += len(data)
            if len(taken) >= max_items or (taken and size > max_bytes):
                rows.close()
                return taken
            taken.append(MessageRow(message_id % SPAN, data))
    return taken


def messages_by_number(
    conn: sqlite3.Connection, key: SessionKey, numbers: Sequence[int]
) -> list[MessageRow]:
    """Store.messages_by_number."""
    found = visible(conn, key)
    if found is None:
        return []
    session_key, base_count, _ = found
    wanted = sorted(set(numbers))
    rows: list[tuple[int, bytes]] = []
    taken_over = [number for number in wanted if number <= base_count]
    if taken_over:
        rows += conn.execute(
            "SELECT m.id, m.data FROM json_each(?) j CROSS JOIN segments g"  # noqa: S608 - constants
            " ON g.session_key = ? AND g.first <= j.value AND g.last >= j.value"
            f" CROSS JOIN entries m ON m.id = g.owner_key * {2 * SPAN} + j.value",
            (json.dumps(taken_over), session_key),
        ).fetchall()
    own = wanted[len(taken_over) :]
    if own:
        rows += conn.execute(
            "SELECT m.id, m.data FROM json_each(?) j CROSS JOIN entries m ON m.id = ? + j.value",
            (json.dumps(own), messages_start(session_key)),
        ).fetchall()
    return [MessageRow(message_id % SPAN, data) for message_id, data in rows]


# --- the whole of a session ------------------------------------------------


def live(
    conn: sqlite3.Connection,
    key: SessionKey,
    message_limit: int,
    max_bytes: int,
    content_limit: int,
) -> LiveRows | None:
    """Store.live."""
    found = conn.execute(
        f"SELECT s.key, s.base_count, s.current_run_id, {SESSION_COLUMNS}"  # noqa: S608 - constants
        f" FROM sessions s WHERE {_VISIBLE}",
        (key.namespace, key.session_id),
    ).fetchone()
    if found is None:
        return None
    session_key, base_count, run_id = found[:3]
    pending = conn.execute(
        f"SELECT {SUBMISSION_COLUMNS} FROM submissions q JOIN sessions s ON s.key = q.session_key"  # noqa: S608 - constants
        " WHERE q.session_key = ?2 AND q.state = 1",
        (content_limit, session_key),
    )
    newest = message_range(
        conn,
        (session_key, base_count),
        (1, NO_LIMIT),
        (message_limit, max_bytes),
        descending=True,
    )
    return LiveRows(
        session_row(found[3:]),
        run(conn, key.namespace, run_id) if run_id else None,
        [submission_row(row) for row in pending],
        newest[::-1],
        calls.open_interactions(conn, session_key, READ_BYTES),
    )


def ancestors(conn: sqlite3.Connection, key: SessionKey, limit: int) -> list[tuple[str, str]]:
    """Store.ancestors. A deleted session still says where it came from."""
    return conn.execute(
        "WITH RECURSIVE up (depth, source, run) AS ("  # noqa: S608 - constants
        " SELECT 1, s.source_session_id, s.source_run_id FROM sessions s"
        f" WHERE {_VISIBLE} UNION ALL"
        " SELECT depth + 1, s.source_session_id, s.source_run_id FROM up"
        " CROSS JOIN sessions s ON s.namespace = ? AND s.session_id = up.source"
        " WHERE up.source <> '' AND up.depth < ?)"
        " SELECT source, run FROM up WHERE source <> '' ORDER BY depth LIMIT ?",
        (key.namespace, key.session_id, key.namespace, limit, limit),
    ).fetchall()


# --- what a server starts from ---------------------------------------------


def queued_activations(conn: sqlite3.Connection) -> list[QueuedActivation]:
    """Store.queued_activations."""
    rows: Iterable[Any] = conn.execute(
        "SELECT s.namespace, s.session_id, a.activation_id, a.agent, a.queue_time, a.not_before"
        " FROM queued a CROSS JOIN sessions s ON s.key = a.session_key"
        " ORDER BY a.queue_time, a.activation_id"
    )
    return [QueuedActivation(SessionKey(row[0], row[1]), *row[2:]) for row in rows]


def leases(conn: sqlite3.Connection) -> list[LiveLease]:
    """Store.leases."""
    rows: Iterable[Any] = conn.execute(
        "SELECT s.namespace, s.session_id, l.activation_id, l.agent, l.executor_id,"
        " l.expire_time FROM leases l CROSS JOIN sessions s ON s.key = l.session_key"
    )
    return [LiveLease(SessionKey(row[0], row[1]), *row[2:]) for row in rows]


def timers(conn: sqlite3.Connection) -> list[StoredTimer]:
    """Store.timers."""
    rows: Iterable[Any] = conn.execute(
        "SELECT s.namespace, s.session_id, t.kind, t.due_time FROM timers t"
        " CROSS JOIN sessions s ON s.key = t.session_key ORDER BY t.due_time, s.key"
    )
    return [StoredTimer(SessionKey(row[0], row[1]), TimerKind(row[2]), row[3]) for row in rows]


def drained_executors(conn: sqlite3.Connection) -> list[tuple[str, str]]:
    """Store.drained_executors."""
    return conn.execute(
        "SELECT namespace, executor_id FROM drained_executors"  # noqa: S608 - constants
        f" ORDER BY drain_time DESC, namespace DESC, executor_id DESC LIMIT {DRAINED_MAX}"
    ).fetchall()[::-1]
