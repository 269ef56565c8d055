"""Pages of sessions, runs and submissions, by keyset: no page costs more than the first."""

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

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
from runlane_server.store.sqlite.reads import (
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
from runlane_server.store.sqlite.rows import run_of_submission

# By order: the column, its direction, and how a time after another compares. Equal
# times are ascending by session_id in each.
_ORDERS = {
    SessionOrder.CREATED_DESC: ("create_time", "DESC", "<"),
    SessionOrder.CREATED_ASC: ("create_time", "ASC", ">"),
    SessionOrder.UPDATED_DESC: ("update_time", "DESC", "<"),
}
_BEFORE_ALL = (-1, "")


def list_sessions(
    conn: sqlite3.Connection,
    namespace: str,
    where: SessionFilter,
    order: int,
    after: tuple[int, str] | None,
    limit: int,
) -> list[SessionRow]:
    """Store.list_sessions."""
    column, direction, beyond = _ORDERS[order]
    tests = ["s.namespace = ?", "s.deleted_time = 0"]
    values: list[object] = [namespace]
    if after is not None:
        time, session_id = after
        tests.append(f"s.{column} {beyond}= ? AND (s.{column} {beyond} ? OR s.session_id > ?)")
        values += [time, time, session_id]
    if where.status is not None:
        tests.append("s.status = ?")
        values.append(where.status)
    if where.create_time_from:
        tests.append("s.create_time >= ?")
        values.append(where.create_time_from)
    if where.create_time_before:
        tests.append("s.create_time < ?")
        values.append(where.create_time_before)
    if where.roots_only:
        tests.append("s.source_session_id = '' AND s.parent_run_id = ''")
    if where.forks_of:
        tests.append("s.source_session_id <> '' AND s.source_session_id = ?")
        values.append(where.forks_of)
    for label, value in sorted(where.labels.items()):
        tests.append(
            "EXISTS (SELECT 1 FROM session_labels l WHERE l.session_key = s.key"
            " AND l.label = ? AND l.value = ?)"
        )
        values += [label, value]
    rows = conn.execute(
        f"SELECT {SESSION_COLUMNS} FROM sessions s WHERE {' AND '.join(tests)}"  # noqa: S608 - constants
        f" ORDER BY s.{column} {direction}, s.session_id LIMIT ?",
        (*values, limit),
    )
    return [session_row(row) for row in rows]


def list_runs(
    conn: sqlite3.Connection,
    key: SessionKey,
    phases: Sequence[Phase],
    after: tuple[int, str] | None,
    limit: int,
) -> list[RunRow] | None:
    """Store.list_runs."""
    found = visible(conn, key)
    if found is None:
        return None
    session_key, _, current_run_id = found
    time, run_id = after or _BEFORE_ALL
    wanted = set(phases) or set(Phase)
    # A session has at most one run that is not terminal; so a page with terminal ones
    # skips one row at most, and one without them is the current run or nothing.
    only = ""
    values: tuple[object, ...] = (session_key, time, run_id, limit)
    if wanted != set(Phase):
        only = f" AND r.phase IN ({', '.join(f'{phase:d}' for phase in sorted(wanted))})"
    if Phase.TERMINAL not in wanted:
        only += " AND r.run_id = ?5"
        values += (current_run_id,)
    rows = conn.execute(
        f"SELECT {RUN_COLUMNS} FROM runs r CROSS JOIN sessions s ON s.key = r.session_key"  # noqa: S608 - constants
        f" WHERE r.session_key = ?1 AND (r.create_time, r.run_id) > (?2, ?3){only}"
        " ORDER BY r.create_time, r.run_id LIMIT ?4",
        values,
    )
    return [run_row(row) for row in rows]


def list_stalled_runs(
    conn: sqlite3.Connection, namespace: str, after: tuple[int, str] | None, limit: int
) -> list[RunRow]:
    """Store.list_stalled_runs."""
    time, run_id = after or _BEFORE_ALL
    rows = conn.execute(
        f"SELECT {RUN_COLUMNS} FROM runs r CROSS JOIN sessions s ON s.key = r.session_key"  # noqa: S608 - constants
        " WHERE r.stalled = 1 AND (r.create_time, r.run_id) > (?, ?)"
        " AND s.namespace = ? AND s.deleted_time = 0"
        " ORDER BY r.create_time, r.run_id LIMIT ?",
        (time, run_id, namespace, limit),
    )
    return [run_row(row) for row in rows]


def list_child_runs(
    conn: sqlite3.Connection,
    namespace: str,
    run_id: str,
    after: tuple[int, str] | None,
    limit: int,
) -> list[RunRow]:
    """Store.list_child_runs."""
    time, child_id = after or _BEFORE_ALL
    rows = conn.execute(
        f"SELECT {RUN_COLUMNS} FROM runs r CROSS JOIN sessions s ON s.key = r.session_key"  # noqa: S608 - constants
        " WHERE r.parent_run_id = ? AND r.parent_run_id <> ''"
        " AND (r.create_time, r.run_id) > (?, ?)"
        " AND s.namespace = ? AND s.deleted_time = 0"
        " ORDER BY r.create_time, r.run_id LIMIT ?",
        (run_id, time, child_id, namespace, limit),
    )
    return [run_row(row) for row in rows]


def list_submissions(
    conn: sqlite3.Connection,
    key: SessionKey,
    states: Sequence[SubmissionState],
    after: tuple[int, str] | None,
    limit: int,
    content_limit: int,
) -> list[SubmissionRow] | None:
    """Store.list_submissions: a merge of one index range a state, and of runs started at once."""
    found = visible(conn, key)
    if found is None:
        return None
    session_key = found[0]
    time, submission_id = after or _BEFORE_ALL
    wanted = sorted(set(states) or set(SubmissionState))
    merged: list[SubmissionRow] = []
    for state in wanted:
        merged += map(
            submission_row,
            conn.execute(
                f"SELECT {SUBMISSION_COLUMNS} FROM submissions q"  # noqa: S608 - constants
                " CROSS JOIN sessions s ON s.key = q.session_key"
                " WHERE q.session_key = ?2 AND q.state = ?3"
                " AND (q.create_time, q.submission_id) > (?4, ?5)"
                " ORDER BY q.create_time, q.submission_id LIMIT ?6",
                (content_limit, session_key, state, time, submission_id, limit),
            ),
        )
    if SubmissionState.DELIVERED in wanted:
        started_after = run_of_submission(submission_id) if submission_id else ""
        merged += map(
            started_row,
            conn.execute(
                f"SELECT {STARTED_COLUMNS} FROM runs r"  # noqa: S608 - constants
                " CROSS JOIN sessions s ON s.key = r.session_key"
                " WHERE r.session_key = ?2 AND r.submission_id IS NULL"
                " AND (r.create_time, r.run_id) > (?3, ?4)"
                " ORDER BY r.create_time, r.run_id LIMIT ?5",
                (content_limit, session_key, time, started_after, limit),
            ),
        )
    merged.sort(key=lambda row: (row.create_time, row.submission_id))
    return merged[:limit]


def counts(conn: sqlite3.Connection, namespace: str, limit: int) -> Counts:
    """Store.counts."""
    statuses: dict[SessionStatus, int] = {}
    phases: dict[Phase, int] = {}
    for status, phase, count in conn.execute(
        "SELECT s.status, r.phase, count(*) FROM (SELECT status, current_run_id FROM sessions"
        " WHERE namespace = ? AND deleted_time = 0 ORDER BY update_time DESC LIMIT ?) s"
        " LEFT JOIN runs r ON r.run_id = s.current_run_id GROUP BY s.status, r.phase",
        (namespace, limit),
    ):
        known = SessionStatus(status)
        statuses[known] = statuses.get(known, 0) + count
        if phase not in {None, Phase.TERMINAL}:
            phases[Phase(phase)] = phases.get(Phase(phase), 0) + count
    more = conn.execute(
        "SELECT 1 FROM sessions WHERE namespace = ? AND deleted_time = 0"
        " ORDER BY update_time DESC LIMIT 1 OFFSET ?",
        (namespace, limit),
    ).fetchone()
    (stalled,) = conn.execute(
        "SELECT count(*) FROM (SELECT 1 FROM runs r CROSS JOIN sessions s ON s.key = r.session_key"
        " WHERE r.stalled = 1 AND s.namespace = ? AND s.deleted_time = 0 LIMIT ?)",
        (namespace, limit),
    ).fetchone()
    (waiting,) = conn.execute(
        "SELECT count(*) FROM (SELECT 1 FROM interactions i CROSS JOIN sessions s"
        " ON s.key = i.session_key WHERE i.namespace = ? AND i.state = ?"
        " AND i.proxy_interaction_id = '' AND s.deleted_time = 0 LIMIT ?)",
        (namespace, InteractionState.OPEN, limit),
    ).fetchone()
    return Counts(statuses, more is not None, phases, stalled, waiting, _size(conn))


def usage(conn: sqlite3.Connection, namespace: str) -> Usage:
    """Store.usage."""
    found = conn.execute(
        "SELECT count(*), coalesce(sum(stored_bytes), 0) FROM sessions"
        " WHERE namespace = ? AND deleted_time = 0",
        (namespace,),
    ).fetchone()
    return Usage(*found)


def _size(conn: sqlite3.Connection) -> int:
    """Returns the bytes of a database and of its log."""
    (pages,) = conn.execute("PRAGMA page_count").fetchone()
    (page_size,) = conn.execute("PRAGMA page_size").fetchone()
    path = conn.execute("PRAGMA database_list").fetchone()[2]
    size = int(pages * page_size)
    if path:
        with contextlib.suppress(OSError):
            size += Path(f"{path}-wal").stat().st_size
    return size
