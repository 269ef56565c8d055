"""What a store does to itself: opening, sweeping, expiring, checking."""

from runlane_server.core.model import SessionKey
from runlane_server.core.words import TimerKind
from runlane_server.store.base import DRAINED_MAX
from runlane_server.store.postgres.connect import Conn

SWEEPING = 0x52756E6C03
"""Key of the advisory lock of who sweeps: `Runl` and a number."""

_ALIVE = 15_000_000
"""How long an executor counts as living after a server saw it, in microseconds."""

_SCAN = 5_000
"""Request records that are looked at in one read."""

RequestPlace = tuple[str, str, str, str]
FIRST_PLACE: RequestPlace = ("", "", "", "")

_FORGET_DRAINED = (
    "DELETE FROM drained_executors d USING (SELECT drain_time, namespace, executor_id"  # noqa: S608 - constants
    " FROM drained_executors WHERE drain_time >= 0 ORDER BY drain_time DESC, namespace DESC,"
    f" executor_id DESC LIMIT 1 OFFSET {DRAINED_MAX}) k WHERE (d.drain_time, d.namespace,"
    " d.executor_id) <= (k.drain_time, k.namespace, k.executor_id)"
)


def _hits(status: str) -> int:
    """Reads how many rows a statement has written from its status."""
    return int(status.rpartition(" ")[2])


async def settle_leases(conn: Conn, now: int, embedded_prefix: str) -> None:
    """Ends the leases of a process that is gone, and gives all others a full one.

    A server may live though its listener is away: with the database that was restarted, or in
    want of a place. So an embedded executor that a server saw, or heard on this lease, a moment
    ago counts as living; over the time that the database was away, none could write that it did.
    """
    await conn.execute(
        "UPDATE leases l SET expire_time = CASE"
        " WHEN $2::text <> '' AND starts_with(l.executor_id, $2::text)"
        " AND l.expire_time - l.duration <= $1::bigint - $3::bigint AND NOT EXISTS"
        " (SELECT 1 FROM executors x WHERE x.executor_id = l.executor_id"
        " AND (x.last_poll_time > $1::bigint - $3::bigint OR clock_timestamp()"
        " < pg_postmaster_start_time() + $3::bigint * interval '1 microsecond'))"
        " THEN least(l.expire_time, $1::bigint)"
        " ELSE greatest(l.expire_time, $1::bigint + l.duration) END",
        now,
        embedded_prefix,
        _ALIVE,
    )
    # No embedded executor comes back under its id, so nobody asks whether it was drained.
    await conn.execute(
        "DELETE FROM drained_executors WHERE $1::text <> '' AND starts_with(executor_id, $1::text)",
        embedded_prefix,
    )


async def forget_drained(conn: Conn) -> None:
    """Removes the drained executors beyond those that are kept."""
    await conn.execute(_FORGET_DRAINED)


# --- a deleted session -----------------------------------------------------


async def sweep(conn: Conn, key: SessionKey, max_rows: int) -> bool | None:
    """Store.sweep, inside a transaction that writes; None: another server sweeps now.

    What of shared messages goes is seen from what other sessions still have. Two that were
    swept at the same time would see each other, and both leave the messages.
    """
    if not await conn.fetchval(f"SELECT pg_try_advisory_xact_lock({SWEEPING})"):
        return None
    session_key = await conn.fetchval(
        "SELECT key FROM sessions WHERE namespace = $1 AND session_id = $2 AND deleted_time > 0"
        " FOR NO KEY UPDATE",
        key.namespace,
        key.session_id,
    )
    if session_key is None:
        return True
    return await _sweep_step(conn, session_key, max_rows) > 0


async def _sweep_step(conn: Conn, key: int, room: int) -> int:
    """Removes up to `room` rows; returns what of the room is left, 0 where there may be more."""
    # The group that tells of the deletion stays for those who follow the feed.
    room -= _hits(
        await conn.execute(
            "DELETE FROM events WHERE session_key = $1 AND last <= (SELECT max(e.last) FROM"
            " (SELECT last FROM events WHERE session_key = $1 ORDER BY last LIMIT $2) e)"
            " AND last < (SELECT max(last) FROM events WHERE session_key = $1)",
            key,
            room,
        )
    )
    if room <= 0:
        return 0
    # Calls are found through their runs, so they go first.
    room -= _hits(
        await conn.execute(
            "DELETE FROM tool_calls WHERE (run_id, step, ordinal) IN (SELECT t.run_id, t.step,"
            " t.ordinal FROM runs r JOIN tool_calls t ON t.run_id = r.run_id"
            " WHERE r.session_key = $1 LIMIT $2)",
            key,
            room,
        )
    )
    for table, column in (
        ("interactions", "interaction_id"),
        ("submissions", "submission_id"),
        ("summaries", "(session_key, through)"),
        ("runs", "run_id"),
    ):
        if room <= 0:
            return 0
        room -= _hits(
            await conn.execute(
                f"DELETE FROM {table} WHERE {column} IN"  # noqa: S608 - constants
                f" (SELECT {column.strip('()')} FROM {table} WHERE session_key = $1 LIMIT $2)",
                key,
                room,
            )
        )
    if room <= 0:
        return 0
    room = await _sweep_messages(conn, key, key, room)
    if room <= 0:
        return 0
    # What this session alone still showed of sessions that are swept goes with it.
    owners = await conn.fetch(
        "SELECT DISTINCT g.owner_key FROM segments g JOIN sessions s ON s.key = g.owner_key"
        " WHERE g.session_key = $1 AND s.deleted_time > 0 AND NOT EXISTS"
        " (SELECT 1 FROM timers t WHERE t.session_key = s.key AND t.kind = $2)",
        key,
        int(TimerKind.SWEEP),
    )
    for (owner,) in owners:
        room = await _sweep_messages(conn, owner, key, room)
        if room <= 0:
            return 0
    await conn.execute("DELETE FROM segments WHERE session_key = $1", key)
    await conn.execute("DELETE FROM timers WHERE session_key = $1", key)
    return room


async def _sweep_messages(conn: Conn, owner: int, ignoring: int, room: int) -> int:
    """Removes an owner's messages above all that a session other than `ignoring` shows."""
    return room - _hits(
        await conn.execute(
            "DELETE FROM messages WHERE session_key = $1 AND number IN (SELECT m.number"
            " FROM messages m WHERE m.session_key = $1 AND m.number > (SELECT"
            " coalesce(max(g.last), 0) FROM segments g WHERE g.owner_key = $1"
            " AND g.session_key <> $2) ORDER BY m.number LIMIT $3)",
            owner,
            ignoring,
            room,
        )
    )


# --- request records -------------------------------------------------------


async def find_expired(
    conn: Conn, place: RequestPlace, before: int, max_rows: int
) -> tuple[list[RequestPlace], RequestPlace | None]:
    """Looks for records made before a time that nothing keeps, in a stretch after `place`.

    A session keeps the one that made it; an input keeps its own while it waits, and from when
    it was settled until the same time after it. All states, and a time, are named for the index.

    Returns:
        Their keys, and where to go on; None: the end was reached.
    """
    rows = await conn.fetch(
        "SELECT request_id, scope, method, namespace, create_time < $5 AND NOT EXISTS"
        " (SELECT 1 FROM sessions s WHERE s.key = r.session_key"
        " AND (s.deleted_time = 0 OR s.deleted_time >= $5)) AND NOT EXISTS"
        " (SELECT 1 FROM submissions q WHERE r.method = 'Submit' AND q.session_key ="
        " (SELECT s.key FROM sessions s WHERE s.namespace = r.namespace AND s.session_id = r.scope)"
        " AND q.state IN (1, 2, 3, 4) AND q.create_time BETWEEN r.create_time - 60000000"
        " AND r.create_time AND q.request_id = r.request_id"
        " AND (q.settle_time = 0 OR q.settle_time >= $5))"
        " FROM requests r WHERE (request_id, scope, method, namespace) > ($1, $2, $3, $4)"
        " ORDER BY request_id, scope, method, namespace LIMIT $6",
        *place,
        before,
        _SCAN,
    )
    found: list[RequestPlace] = []
    for request_id, scope, method, namespace, expired in rows:
        place = (request_id, scope, method, namespace)
        if expired:
            found.append(place)
            if len(found) >= max_rows:
                return found, place
    return found, place if len(rows) == _SCAN else None


async def remove_requests(conn: Conn, places: list[RequestPlace]) -> int:
    """Removes request records, inside a transaction that writes."""
    return _hits(
        await conn.execute(
            "DELETE FROM requests r USING unnest($1::text[], $2::text[], $3::text[], $4::text[])"
            " AS u(request_id, scope, method, namespace) WHERE r.request_id = u.request_id"
            " AND r.scope = u.scope AND r.method = u.method AND r.namespace = u.namespace",
            *map(list, zip(*places, strict=True)),
        )
    )


# --- checking --------------------------------------------------------------

_CHECKS = {
    "a session without token or state": (
        "SELECT session_id FROM sessions WHERE length(token) = 0 OR length(state) = 0"
    ),
    "events are not dense: session, sequence": (
        "SELECT s.session_id, g.first FROM (SELECT session_key, first, last,"
        " lag(last, 1, 0::bigint) OVER (PARTITION BY session_key ORDER BY last) AS previous"
        " FROM events) g JOIN sessions s ON s.key = g.session_key"
        # The sweep of a deleted session takes its groups in steps.
        " WHERE s.deleted_time = 0 AND (g.first <> g.previous + 1 OR g.last < g.first)"
    ),
    "messages are not dense: session, number": (
        "SELECT s.session_id, m.number FROM (SELECT session_key, number,"
        " lag(number) OVER (PARTITION BY session_key ORDER BY number) AS previous"
        " FROM messages) m JOIN sessions s ON s.key = m.session_key"
        " WHERE s.deleted_time = 0 AND m.number <> coalesce(m.previous, s.base_count) + 1"
    ),
    "segments do not cover what a fork took over: session": (
        "SELECT s.session_id FROM sessions s LEFT JOIN segments g ON g.session_key = s.key"
        " WHERE s.deleted_time = 0 GROUP BY s.key HAVING s.base_count <>"
        " coalesce(sum(g.last - g.first + 1), 0) OR s.base_count <> coalesce(max(g.last), 0)"
        " OR (s.base_count > 0 AND min(g.first) <> 1)"
    ),
    "messages that a fork shows are missing: session, first number": (
        "SELECT s.session_id, g.first FROM segments g JOIN sessions s ON s.key = g.session_key"
        " WHERE (SELECT count(*) FROM messages m WHERE m.session_key = g.owner_key"
        " AND m.number BETWEEN g.first AND g.last) <> g.last - g.first + 1"
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
        " WHERE r.phase IS DISTINCT FROM 1"
    ),
    "more than one queued activation or lease: session": (
        "SELECT s.session_id FROM (SELECT session_key FROM queued"
        " UNION ALL SELECT session_key FROM leases) a JOIN sessions s ON s.key = a.session_key"
        " GROUP BY s.key HAVING count(*) > 1"
    ),
    "a stalled run is not active": "SELECT run_id FROM runs WHERE stalled AND phase <> 1",
    "an open interaction of no waiting run": (
        "SELECT i.interaction_id FROM interactions i JOIN sessions s ON s.key = i.session_key"
        " LEFT JOIN runs r ON r.run_id = i.run_id AND r.session_key = i.session_key"
        " WHERE i.state = 1 AND s.deleted_time = 0 AND r.phase IS DISTINCT FROM 2"
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
        " AND coalesce(r.phase, 4) = 4"
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
    "more than one live run: session": (
        "SELECT s.session_id FROM runs r JOIN sessions s ON s.key = r.session_key"
        " WHERE r.phase <> 4 AND s.deleted_time = 0 GROUP BY s.key HAVING count(*) > 1"
    ),
}


async def check(conn: Conn) -> list[str]:
    """Store.check, in a transaction. What the files are like is for the database's own tools."""
    # The plans of a server are for what is asked often; these read all there is.
    await conn.execute(
        "SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on;"
        " SET LOCAL enable_mergejoin = on; SET LOCAL enable_bitmapscan = on;"
        " SET LOCAL enable_sort = on; SET LOCAL enable_material = on"
    )
    return [
        f"{what}: {', '.join(map(str, row))}"
        for what, sql in _CHECKS.items()
        for row in await conn.fetch(sql)
    ]
