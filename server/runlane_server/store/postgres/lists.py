"""Pages of sessions, runs and submissions, by keyset: no page costs more than the first."""

from collections.abc import Sequence

from runlane_server.core.model import SessionKey
from runlane_server.core.words import InteractionState, Phase, SessionStatus, SubmissionState
from runlane_server.store.base import (
    Counts,
    RunRow,
    SessionFilter,
    SessionOrder,
    SessionRow,
    SubmissionRow,
    Usage,
)
from runlane_server.store.postgres.connect import Conn
from runlane_server.store.postgres.reads import (
    RUN_COLUMNS,
    SESSION_COLUMNS,
    STARTED_COLUMNS,
    SUBMISSION_COLUMNS,
    run_row,
    session_row,
    started_row,
    submission_row,
    visible,
)
from runlane_server.store.postgres.rows import json_text, run_of_submission

# By order: the column, its direction, and how a time after another compares. Equal
# times are ascending by session_id in each.
_ORDERS = {
    SessionOrder.CREATED_DESC: ("create_time", "DESC", "<"),
    SessionOrder.CREATED_ASC: ("create_time", "ASC", ">"),
    SessionOrder.UPDATED_DESC: ("update_time", "DESC", "<"),
}
_BEFORE_ALL = (-1, "")


async def list_sessions(
    conn: Conn,
    namespace: str,
    where: SessionFilter,
    order: int,
    after: tuple[int, str] | None,
    limit: int,
) -> list[SessionRow]:
    """Store.list_sessions."""
    column, direction, beyond = _ORDERS[order]
    tests: list[str] = ["s.deleted_time = 0"]
    values: list[object] = []

    def test(sql: str, *given: object) -> None:
        places = [f"${len(values) + number}" for number in range(1, len(given) + 1)]
        tests.append(sql.format(*places))
        values.extend(given)

    test("s.namespace = {0}", namespace)
    if after is not None:
        time_test = f"s.{column} {beyond}= {{0}} AND (s.{column} {beyond} {{0}}"
        test(f"{time_test} OR s.session_id > {{1}})", *after)
    if where.status is not None:
        test("s.status = {0}", int(where.status))
    if where.create_time_from:
        test("s.create_time >= {0}", where.create_time_from)
    if where.create_time_before:
        test("s.create_time < {0}", where.create_time_before)
    if where.roots_only:
        test("s.source_session_id = '' AND s.parent_run_id = ''")
    if where.forks_of:
        test("s.source_session_id <> '' AND s.source_session_id = {0}", where.forks_of)
    if where.labels:
        test("s.labels @> {0}::jsonb", json_text(where.labels))
    values.append(limit)
    rows = await conn.fetch(
        f"SELECT {SESSION_COLUMNS} FROM sessions s WHERE {' AND '.join(tests)}"  # noqa: S608 - constants
        f" ORDER BY s.{column} {direction}, s.session_id LIMIT ${len(values)}",
        *values,
    )
    return [session_row(row) for row in rows]


async def list_runs(
    conn: Conn,
    key: SessionKey,
    phases: Sequence[Phase],
    after: tuple[int, str] | None,
    limit: int,
) -> list[RunRow] | None:
    """Store.list_runs."""
    found = await visible(conn, key)
    if found is None:
        return None
    session_key, current_run_id = found
    wanted = set(phases) or set(Phase)
    # A session has at most one run that is not terminal; so a page with terminal ones
    # skips one row at most, and one without them is the current run or nothing.
    only = ""
    values: tuple[object, ...] = (session_key, *(after or _BEFORE_ALL), limit)
    if wanted != set(Phase):
        only = f" AND r.phase IN ({', '.join(f'{phase:d}' for phase in sorted(wanted))})"
    if Phase.TERMINAL not in wanted:
        only += " AND r.run_id = $5"
        values += (current_run_id,)
    rows = await conn.fetch(
        f"SELECT {RUN_COLUMNS} FROM runs r JOIN sessions s ON s.key = r.session_key"  # noqa: S608 - constants
        f" WHERE r.session_key = $1 AND (r.create_time, r.run_id) > ($2, $3){only}"
        " ORDER BY r.create_time, r.run_id LIMIT $4",
        *values,
    )
    return [run_row(row) for row in rows]


async def list_stalled_runs(
    conn: Conn, namespace: str, after: tuple[int, str] | None, limit: int
) -> list[RunRow]:
    """Store.list_stalled_runs."""
    rows = await conn.fetch(
        f"SELECT {RUN_COLUMNS} FROM runs r JOIN sessions s ON s.key = r.session_key"  # noqa: S608 - constants
        " WHERE r.stalled AND (r.create_time, r.run_id) > ($1, $2)"
        " AND s.namespace || '' = $3 AND s.deleted_time < 1"
        " ORDER BY r.create_time, r.run_id LIMIT $4",
        *(after or _BEFORE_ALL),
        namespace,
        limit,
    )
    return [run_row(row) for row in rows]


async def list_child_runs(
    conn: Conn, namespace: str, run_id: str, after: tuple[int, str] | None, limit: int
) -> list[RunRow]:
    """Store.list_child_runs."""
    rows = await conn.fetch(
        f"SELECT {RUN_COLUMNS} FROM runs r JOIN sessions s ON s.key = r.session_key"  # noqa: S608 - constants
        " WHERE r.parent_run_id = $1 AND r.parent_run_id <> ''"
        " AND (r.create_time, r.run_id) > ($2, $3)"
        " AND s.namespace || '' = $4 AND s.deleted_time < 1"
        " ORDER BY r.create_time, r.run_id LIMIT $5",
        run_id,
        *(after or _BEFORE_ALL),
        namespace,
        limit,
    )
    return [run_row(row) for row in rows]


async def list_submissions(
    conn: Conn,
    key: SessionKey,
    states: Sequence[SubmissionState],
    after: tuple[int, str] | None,
    limit: int,
    content_limit: int,
) -> list[SubmissionRow] | None:
    """Store.list_submissions: a merge of one index range a state, and of runs started at once."""
    found = await visible(conn, key)
    if found is None:
        return None
    session_key = found[0]
    time, submission_id = after or _BEFORE_ALL
    wanted = sorted(set(states) or set(SubmissionState))
    merged: list[SubmissionRow] = []
    for state in wanted:
        rows = await conn.fetch(
            f"SELECT {SUBMISSION_COLUMNS} FROM submissions q"  # noqa: S608 - constants
            " JOIN sessions s ON s.key = q.session_key"
            " WHERE q.session_key = $2 AND q.state = $3"
            " AND (q.create_time, q.submission_id) > ($4, $5)"
            " ORDER BY q.create_time, q.submission_id LIMIT $6",
            content_limit,
            session_key,
            int(state),
            time,
            submission_id,
            limit,
        )
        merged += map(submission_row, rows)
    if SubmissionState.DELIVERED in wanted:
        rows = await conn.fetch(
            f"SELECT {STARTED_COLUMNS} FROM runs r"  # noqa: S608 - constants
            " JOIN sessions s ON s.key = r.session_key"
            " WHERE r.session_key = $2 AND r.submission_id IS NULL"
            " AND (r.create_time, r.run_id) > ($3, $4)"
            " ORDER BY r.create_time, r.run_id LIMIT $5",
            content_limit,
            session_key,
            time,
            run_of_submission(submission_id) if submission_id else "",
            limit,
        )
        merged += map(started_row, rows)
    merged.sort(key=lambda row: (row.create_time, row.submission_id))
    return merged[:limit]


async def counts(conn: Conn, namespace: str, limit: int) -> Counts:
    """Store.counts."""
    statuses: dict[SessionStatus, int] = {}
    phases: dict[Phase, int] = {}
    for status, phase, count in await conn.fetch(
        "SELECT s.status, r.phase, count(*) FROM (SELECT status, current_run_id FROM sessions"
        " WHERE namespace = $1 AND deleted_time = 0 ORDER BY update_time DESC LIMIT $2) s"
        " LEFT JOIN runs r ON r.run_id = s.current_run_id GROUP BY s.status, r.phase",
        namespace,
        limit,
    ):
        known = SessionStatus(status)
        statuses[known] = statuses.get(known, 0) + count
        if phase not in {None, Phase.TERMINAL}:
            phases[Phase(phase)] = phases.get(Phase(phase), 0) + count
    more = await conn.fetchrow(
        "SELECT 1 FROM sessions WHERE namespace = $1 AND deleted_time = 0"
        " ORDER BY update_time DESC LIMIT 1 OFFSET $2",
        namespace,
        limit,
    )
    stalled = await conn.fetchval(
        "SELECT count(*) FROM (SELECT 1 FROM runs r JOIN sessions s ON s.key = r.session_key"
        " WHERE r.stalled AND s.namespace || '' = $1 AND s.deleted_time < 1 LIMIT $2) x",
        namespace,
        limit,
    )
    waiting = await conn.fetchval(
        "SELECT count(*) FROM (SELECT 1 FROM interactions i JOIN sessions s"
        " ON s.key = i.session_key WHERE i.namespace = $1 AND i.state = $2"
        " AND i.proxy_interaction_id = '' AND s.deleted_time < 1 LIMIT $3) x",
        namespace,
        int(InteractionState.OPEN),
        limit,
    )
    size = await conn.fetchval("SELECT pg_database_size(current_database())")
    return Counts(statuses, more is not None, phases, stalled, waiting, size)


async def usage(conn: Conn, namespace: str) -> Usage:
    """Store.usage."""
    found = await conn.fetchrow(
        "SELECT count(*), coalesce(sum(stored_bytes), 0)::bigint FROM sessions"
        " WHERE namespace = $1 AND deleted_time = 0",
        namespace,
    )
    return Usage(*found)
