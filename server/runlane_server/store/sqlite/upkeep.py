"""What a store does to itself: opening, sweeping, expiring, checking."""

import sqlite3
from collections.abc import Callable

from runlane_server.core.model import SessionKey
from runlane_server.core.words import TimerKind
from runlane_server.store.sqlite.rows import SPAN, events_start, messages_start

_SCAN = 5_000
"""Request records that are looked at in one read."""

RequestPlace = tuple[str, str, str, str]
FIRST_PLACE: RequestPlace = ("", "", "", "")


def in_transaction(conn: sqlite3.Connection, work: Callable[[], int]) -> int:
    """Runs a piece of work in one transaction of the writer's."""
    conn.execute("BEGIN IMMEDIATE")
    try:
        done = work()
        conn.execute("COMMIT")
    finally:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
    return done


def settle_leases(conn: sqlite3.Connection, now: int, embedded_prefix: str) -> None:
    """Ends the leases of a process that is gone, and gives all others a full one."""

    def work() -> int:
        conn.execute(
            "UPDATE leases SET expire_time = CASE"
            " WHEN ?2 <> '' AND substr(executor_id, 1, length(?2)) = ?2"
            " THEN min(expire_time, ?1) ELSE max(expire_time, ?1 + duration) END",
            (now, embedded_prefix),
        )
        # No embedded executor comes back under its id, so nobody asks whether it was drained.
        conn.execute(
            "DELETE FROM drained_executors"
            " WHERE ?1 <> '' AND substr(executor_id, 1, length(?1)) = ?1",
            (embedded_prefix,),
        )
        return 0

    in_transaction(conn, work)


# --- a deleted session -----------------------------------------------------


def sweep(conn: sqlite3.Connection, key: SessionKey, max_rows: int) -> bool:
    """Store.sweep."""
    found = conn.execute(
        "SELECT key FROM sessions WHERE namespace = ? AND session_id = ? AND deleted_time > 0",
        (key.namespace, key.session_id),
    ).fetchone()
    if found is None:
        return True
    session_key = found[0]

    def work() -> int:
        return _sweep_step(conn, session_key, max_rows)

    return in_transaction(conn, work) > 0


def _sweep_step(conn: sqlite3.Connection, key: int, room: int) -> int:
    """Removes up to `room` rows; returns what of the room is left, 0 where there may be more."""
    # One entry of no session stays on top, so that no feed key is given again.
    conn.execute(
        "INSERT INTO entries (feed, id, first, data) SELECT max(feed) + 1, -1, 0, x''"
        " FROM entries WHERE true ON CONFLICT (id) DO UPDATE SET feed = excluded.feed"
    )
    start = events_start(key)
    # The group that tells of the deletion stays for those who follow the feed.
    told = conn.execute(
        "SELECT max(id) FROM entries WHERE id BETWEEN ? AND ?", (start, start + SPAN - 1)
    ).fetchone()[0]
    room -= _remove(conn, start, (told or start) - 1, room)
    if room <= 0:
        return 0
    # Calls are found through their runs, so they go first.
    room -= _remove_calls(conn, key, room)
    for table, column in (
        ("interactions", "key"),
        ("submissions", "key"),
        ("summaries", "key"),
        ("runs", "run_id"),
    ):
        if room <= 0:
            return 0
        room -= conn.execute(
            f"DELETE FROM {table} WHERE {column} IN"  # noqa: S608 - constants
            f" (SELECT {column} FROM {table} WHERE session_key = ? LIMIT ?)",
            (key, room),
        ).rowcount
    if room <= 0:
        return 0
    room = _sweep_messages(conn, key, key, room)
    if room <= 0:
        return 0
    # What this session alone still showed of sessions that are swept goes with it.
    owners = conn.execute(
        "SELECT DISTINCT g.owner_key FROM segments g JOIN sessions s ON s.key = g.owner_key"
        " WHERE g.session_key = ? AND s.deleted_time > 0 AND NOT EXISTS"
        " (SELECT 1 FROM timers t WHERE t.session_key = s.key AND t.kind = ?)",
        (key, TimerKind.SWEEP),
    ).fetchall()
    for (owner,) in owners:
        room = _sweep_messages(conn, owner, key, room)
        if room <= 0:
            return 0
    conn.execute("DELETE FROM segments WHERE session_key = ?", (key,))
    conn.execute("DELETE FROM timers WHERE session_key = ?", (key,))
    return room


def _remove_calls(conn: sqlite3.Connection, key: int, room: int) -> int:
    calls = conn.execute(
        "SELECT t.run_id, t.step, t.ordinal, t.arguments_key FROM runs r CROSS JOIN tool_calls t"
        " ON t.run_id = r.run_id WHERE r.session_key = ? LIMIT ?",
        (key, room),
    ).fetchall()
    conn.executemany("DELETE FROM long_arguments WHERE key = ?", [call[3:] for call in calls])
    conn.executemany(
        "DELETE FROM tool_calls WHERE run_id = ? AND step = ? AND ordinal = ?",
        [call[:3] for call in calls],
    )
    return len(calls)


def _sweep_messages(conn: sqlite3.Connection, owner: int, ignoring: int, room: int) -> int:
    """Removes an owner's messages above all that a session other than `ignoring` shows."""
    shown = conn.execute(
        "SELECT coalesce(max(last), 0) FROM segments WHERE owner_key = ? AND session_key <> ?",
        (owner, ignoring),
    ).fetchone()[0]
    return room - _remove(
        conn, messages_start(owner) + shown + 1, messages_start(owner) + SPAN - 1, room
    )


def _remove(conn: sqlite3.Connection, first: int, last: int, room: int) -> int:
    return conn.execute(
        "DELETE FROM entries WHERE feed IN"
        " (SELECT feed FROM entries WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?)",
        (first, last, room),
    ).rowcount


# --- request records -------------------------------------------------------


def find_expired(
    conn: sqlite3.Connection, place: RequestPlace, before: int, max_rows: int
) -> tuple[list[RequestPlace], RequestPlace | None]:
    """Looks for records made before a time that nothing keeps, in a stretch after `place`.

    A session keeps the one that made it; an input keeps its own while it waits, and from when
    it was settled until the same time after it. All states, and a time, are named for the index.

    Returns:
        Their keys, and where to go on; None: the end was reached.
    """
    rows = conn.execute(
        "SELECT request_id, scope, method, namespace, create_time < ?5 AND NOT EXISTS"
        " (SELECT 1 FROM sessions s WHERE s.key = r.session_key"
        " AND (s.deleted_time = 0 OR s.deleted_time >= ?5)) AND NOT EXISTS"
        " (SELECT 1 FROM submissions q WHERE r.method = 'Submit' AND q.session_key ="
        " (SELECT s.key FROM sessions s WHERE s.namespace = r.namespace AND s.session_id = r.scope)"
        " AND q.state IN (1, 2, 3, 4) AND q.create_time BETWEEN r.create_time - 60000000"
        " AND r.create_time AND q.request_id = r.request_id"
        " AND (q.settle_time = 0 OR q.settle_time >= ?5))"
        " FROM requests r WHERE (request_id, scope, method, namespace) > (?1, ?2, ?3, ?4)"
        " ORDER BY request_id, scope, method, namespace LIMIT ?6",
        (*place, before, _SCAN),
    )
    found: list[RequestPlace] = []
    looked_at = 0
    for *columns, expired in rows:
        looked_at += 1
        request_id, scope, method, namespace = columns
        place = (request_id, scope, method, namespace)
        if expired:
            found.append(place)
            if len(found) >= max_rows:
                rows.close()
                return found, place
    return found, place if looked_at == _SCAN else None


def remove_requests(conn: sqlite3.Connection, places: list[RequestPlace]) -> int:
    """Removes request records."""

    def work() -> int:
        return conn.executemany(
            "DELETE FROM requests WHERE request_id = ? AND scope = ? AND method = ?"
            " AND namespace = ?",
            places,
        ).rowcount

    return in_transaction(conn, work)


# --- checking --------------------------------------------------------------

_CHECKS = {
    "a session without token or state": (
        "SELECT session_id FROM sessions WHERE length(token) = 0 OR length(state) = 0"
    ),
    "events are not dense: session, sequence": (
        "SELECT s.session_id, g.first FROM (SELECT id >> 32 AS session_key, first,"  # noqa: S608 - constants
        f" id % {SPAN} AS last, lag(id % {SPAN}, 1, 0) OVER (PARTITION BY id >> 32 ORDER BY id)"
        f" AS previous FROM entries WHERE id & {SPAN} AND id > 0) g"
        " JOIN sessions s ON s.key = g.session_key"
        # The sweep of a deleted session takes its groups in steps.
        " WHERE s.deleted_time = 0 AND (g.first <> g.previous + 1 OR g.last < g.first)"
    ),
    "messages are not dense: session, number": (
        "SELECT s.session_id, m.number FROM (SELECT id >> 32 AS session_key,"  # noqa: S608 - constants
        f" id % {SPAN} AS number, lag(id % {SPAN}) OVER (PARTITION BY id >> 32 ORDER BY id)"
        f" AS previous FROM entries WHERE NOT id & {SPAN} AND id > 0) m"
        " JOIN sessions s ON s.key = m.session_key"
        " WHERE s.deleted_time = 0 AND m.number <> coalesce(m.previous, s.base_count) + 1"
    ),
    "segments do not cover what a fork took over: session": (
        "SELECT s.session_id FROM sessions s LEFT JOIN segments g ON g.session_key = s.key"
        " WHERE s.deleted_time = 0 GROUP BY s.key HAVING s.base_count <>"
        " coalesce(sum(g.last - g.first + 1), 0) OR s.base_count <> coalesce(max(g.last), 0)"
        " OR (s.base_count > 0 AND min(g.first) <> 1)"
    ),
    "messages that a fork shows are missing: session, first number": (
        "SELECT s.session_id, g.first FROM segments g JOIN sessions s ON s.key = g.session_key"  # noqa: S608 - constants
        " WHERE (SELECT count(*) FROM entries m WHERE m.id BETWEEN"
        f" g.owner_key * {2 * SPAN} + g.first AND g.owner_key * {2 * SPAN} + g.last)"
        " <> g.last - g.first + 1"
    ),
    "a queued activation of no live session": (
        "SELECT a.activation_id FROM queued a LEFT JOIN sessions s"
        " ON s.key = a.session_key AND s.deleted_time = 0 WHERE s.key IS NULL"
    ),
    "a lease of no live session": (
        "SELECT a.activation_id FROM leases a LEFT JOIN sessions s"
        " ON s.key = a.session_key AND s.deleted_time = 0 WHERE s.key IS NULL"
    ),
    "a run that is not active has a queued activation or a lease": (
        "SELECT a.activation_id FROM (SELECT activation_id, session_key, run_id FROM queued"
        " UNION ALL SELECT activation_id, session_key, run_id FROM leases) a"
        " LEFT JOIN runs r ON r.run_id = a.run_id AND r.session_key = a.session_key"
        " WHERE r.phase IS NOT 1"
    ),
    "more than one queued activation or lease: session": (
        "SELECT s.session_id FROM (SELECT session_key FROM queued"
        " UNION ALL SELECT session_key FROM leases) a JOIN sessions s ON s.key = a.session_key"
        " GROUP BY s.key HAVING count(*) > 1"
    ),
    "a stalled run is not active": "SELECT run_id FROM runs WHERE stalled = 1 AND phase <> 1",
    "an open interaction of no waiting run": (
        "SELECT i.interaction_id FROM interactions i JOIN sessions s ON s.key = i.session_key"
        " LEFT JOIN runs r ON r.run_id = i.run_id AND r.session_key = i.session_key"
        " WHERE i.state = 1 AND s.deleted_time = 0 AND r.phase IS NOT 2"
        " AND i.proxy_run_id = ''"
    ),
    "more than one open interaction: session": (
        "SELECT s.session_id FROM interactions i JOIN sessions s ON s.key = i.session_key"
        " WHERE i.state = 1 AND s.deleted_time = 0 AND i.proxy_run_id = ''"
        " GROUP BY s.key HAVING count(*) > 1"
    ),
    "a proxy is open and its run has ended": (
        "SELECT i.interaction_id FROM interactions i JOIN sessions s ON s.key = i.session_key"
        " LEFT JOIN runs r ON r.run_id = i.run_id AND r.session_key = i.session_key"
        " WHERE i.state = 1 AND s.deleted_time = 0 AND i.proxy_run_id <> ''"
        " AND r.phase IS NOT 1 AND r.phase IS NOT 2 AND r.phase IS NOT 3"
    ),
    "a proxy is open, its question is not, and nobody is to be told: interaction": (
        "SELECT i.interaction_id FROM interactions i JOIN sessions s ON s.key = i.session_key"
        " JOIN interactions q ON q.interaction_id = i.proxy_interaction_id AND q.state <> 1"
        " WHERE i.state = 1 AND s.deleted_time = 0"
        " AND NOT EXISTS (SELECT 1 FROM notices n WHERE n.kind = 1)"
    ),
    "a child run lives and its parent does not: run": (
        "SELECT r.run_id FROM runs r JOIN sessions s ON s.key = r.session_key"
        " LEFT JOIN runs p ON p.run_id = r.parent_run_id"
        " LEFT JOIN sessions ps ON ps.key = p.session_key"
        " WHERE r.parent_run_id <> '' AND r.phase <> 4 AND s.deleted_time = 0"
        " AND ps.deleted_time = 0 AND p.phase = 4"
    ),
    "a summary that a run ended with is missing: run": (
        "SELECT r.run_id FROM runs r JOIN sessions s ON s.key = r.session_key"
        " WHERE r.summary_through > 0 AND s.deleted_time = 0 AND NOT EXISTS"
        " (SELECT 1 FROM summaries m WHERE m.session_key = r.session_key"
        " AND m.through = r.summary_through)"
    ),
    "a tool call of an ended run has no end, or no result: run, step, ordinal": (
        "SELECT t.run_id, t.step, t.ordinal FROM tool_calls t"
        " JOIN sessions s ON s.key = t.session_key JOIN runs r ON r.run_id = t.run_id"
        " WHERE r.phase = 4 AND s.deleted_time = 0 AND (t.state < 3 OR t.message_number = 0)"
    ),
    "long arguments of no call, or missing ones: key": (
        "SELECT a.key FROM long_arguments a WHERE a.key NOT IN"
        " (SELECT arguments_key FROM tool_calls WHERE arguments_key IS NOT NULL)"
        " UNION ALL SELECT arguments_key FROM tool_calls WHERE arguments_key IS NOT NULL"
        " AND arguments_key NOT IN (SELECT key FROM long_arguments)"
    ),
    "more than one live run: session": (
        "SELECT s.session_id FROM runs r JOIN sessions s ON s.key = r.session_key"
        " WHERE r.phase <> 4 AND s.deleted_time = 0 GROUP BY s.key HAVING count(*) > 1"
    ),
}


def damage(conn: sqlite3.Connection) -> list[str]:
    """Returns what SQLite finds wrong with its own structures."""
    found = [row[0] for row in conn.execute("PRAGMA integrity_check") if row[0] != "ok"]
    return [f"the file is damaged: {line}" for line in found]


def check(conn: sqlite3.Connection) -> list[str]:
    """Store.check."""
    # What cannot be read cannot be checked further.
    return damage(conn) or [
        f"{what}: {', '.join(map(str, row))}"
        for what, sql in _CHECKS.items()
        for row in conn.execute(sql)
    ]
