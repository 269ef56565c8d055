"""Tool calls and interactions: what their rows write, and how they are read."""

import sqlite3
from collections.abc import Sequence
from typing import Any

from runlane_server.core.rows import (
    InteractionInserted,
    InteractionSettled,
    ProxyInserted,
    ProxySettled,
    ToolCallGiven,
    ToolCallInserted,
    ToolCallMoved,
)
from runlane_server.core.words import InteractionState, PromptKind, ToolCallState
from runlane_server.store.base import (
    ANSWERED_MAX,
    InteractionRow,
    ToolCallRow,
    fitting,
    without_long_prompts,
)
from runlane_server.store.sqlite.rows import SPAN, Execute, Writer, must_hit

_LONG_ARGUMENTS = 800
"""Characters; a row with more would not lie on one page."""

_UNSETTLED = frozenset({ToolCallState.PREPARED, ToolCallState.CLAIMED})

# --- what rows write -------------------------------------------------------


def _tool_call_inserted(
    execute: Execute, key: int, row: ToolCallInserted, _encoded: bytes | None, _namespace: str
) -> None:
    inline, long_key = row.arguments_json, None
    if inline is not None and len(inline) > _LONG_ARGUMENTS:
        long_key = execute(
            "INSERT INTO long_arguments (arguments_json) VALUES (?)", (inline,)
        ).lastrowid
        inline = None
    execute(
        "INSERT INTO tool_calls (run_id, step, ordinal, session_key, state, create_time,"
        " tool_call_id, name, arguments_key, arguments_json)"
        " VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?)",
        (
            row.run_id,
            row.step,
            row.ordinal,
            key,
            row.create_time,
            row.tool_call_id,
            row.name,
            long_key,
            inline,
        ),
    )


def _tool_call_moved(
    execute: Execute, key: int, row: ToolCallMoved, _encoded: bytes | None, _namespace: str
) -> None:
    must_hit(
        execute(
            "UPDATE tool_calls SET state = ?, idempotent = ?, outcome = ?, settle_time = ?,"
            " result = ? WHERE run_id = ? AND step = ? AND ordinal = ? AND session_key = ?"
            " AND state < 3",
            (
                row.state,
                # Whoever claims it next says anew whether it may be run again.
                row.idempotent and row.state is not ToolCallState.PREPARED,
                row.outcome or 0,
                0 if row.state in _UNSETTLED else row.time,
                row.result.data if row.result is not None else None,
                row.run_id,
                row.step,
                row.ordinal,
                key,
            ),
        ),
        "move of a tool call",
    )


def _interaction_inserted(
    execute: Execute, key: int, row: InteractionInserted, _encoded: bytes | None, namespace: str
) -> None:
    execute(
        "INSERT INTO interactions (interaction_id, session_key, namespace, run_id, step,"
        " version, state, kind, expire_time, create_time, prompt)"
        " VALUES (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?)",
        (
            row.interaction_id,
            key,
            namespace,
            row.run_id,
            row.step,
            row.version,
            row.kind,
            row.expire_time,
            row.create_time,
            row.prompt,
        ),
    )


def _interaction_settled(
    execute: Execute, key: int, row: InteractionSettled, _encoded: bytes | None, _namespace: str
) -> None:
    must_hit(
        execute(
            "UPDATE interactions SET state = ?, settle_time = ?, answer = ?, answer_hash = ?,"
            " close_reason = ? WHERE interaction_id = ? AND session_key = ? AND state = 1",
            (
                row.state,
                row.settle_time,
                row.answer,
                row.answer_hash,
                row.reason or 0,
                row.interaction_id,
                key,
            ),
        ),
        "end of an interaction",
    )


def _tool_call_given(
    execute: Execute, key: int, row: ToolCallGiven, _encoded: bytes | None, _namespace: str
) -> None:
    must_hit(
        execute(
            "UPDATE tool_calls SET child_run_id = ?"
            " WHERE run_id = ? AND step = ? AND ordinal = ? AND session_key = ? AND state = 1",
            (row.child_run_id, row.run_id, row.step, row.ordinal, key),
        ),
        "child run of a tool call",
    )


def _proxy_inserted(
    execute: Execute, key: int, row: ProxyInserted, _encoded: bytes | None, namespace: str
) -> None:
    question = row.question
    must_hit(
        execute(
            "INSERT INTO interactions (interaction_id, session_key, namespace, run_id, step,"
            " version, state, kind, expire_time, create_time, proxy_session_id, proxy_run_id,"
            " proxy_interaction_id, prompt)"
            " SELECT ?, ?, namespace, ?, ?, ?, 1, kind, expire_time, ?, ?, ?, interaction_id,"
            " prompt FROM interactions WHERE interaction_id = ? AND namespace = ?",
            (
                row.interaction_id,
                key,
                row.run_id,
                row.step,
                question.version,
                row.create_time,
                question.session_id,
                question.run_id,
                question.interaction_id,
                namespace,
            ),
        ),
        "proxy of a question",
    )


def _proxy_settled(
    execute: Execute, key: int, row: ProxySettled, _encoded: bytes | None, namespace: str
) -> None:
    must_hit(
        execute(
            "UPDATE interactions SET (state, answer, answer_hash, close_reason) = (SELECT"
            " q.state, q.answer, q.answer_hash, q.close_reason FROM interactions q"
            " WHERE q.interaction_id = ? AND q.namespace = ?), settle_time = ?"
            " WHERE interaction_id = ? AND session_key = ? AND state = 1",
            (
                row.question.interaction_id,
                namespace,
                row.settle_time,
                row.interaction_id,
                key,
            ),
        ),
        "end of a proxy",
    )


WRITERS: dict[type[Any], Writer] = {
    ToolCallInserted: _tool_call_inserted,
    ToolCallMoved: _tool_call_moved,
    ToolCallGiven: _tool_call_given,
    ProxyInserted: _proxy_inserted,
    ProxySettled: _proxy_settled,
    InteractionInserted: _interaction_inserted,
    InteractionSettled: _interaction_settled,
}

# --- reads -----------------------------------------------------------------

_INTERACTIONS = (
    "SELECT i.interaction_id, i.run_id, s.session_id, i.version, i.state, i.kind, i.prompt,"
    " i.answer, i.answer_hash, i.close_reason, i.expire_time, i.create_time, i.settle_time,"
    " i.proxy_session_id, i.proxy_run_id, i.proxy_interaction_id"
    " FROM interactions i CROSS JOIN sessions s ON s.key = i.session_key"
)


def _tool_call_row(columns: Sequence[Any]) -> ToolCallRow:
    row = ToolCallRow(*columns)
    row.state = ToolCallState(row.state)
    row.idempotent = bool(row.idempotent)
    row.result = row.result or b""
    return row


def _interaction_row(columns: Sequence[Any]) -> InteractionRow:
    row = InteractionRow(*columns)
    row.state = InteractionState(row.state)
    row.kind = PromptKind(row.kind)
    return row


def list_tool_calls(
    conn: sqlite3.Connection,
    namespace: str,
    run_id: str,
    after: tuple[int, int] | None,
    limit: int,
    max_bytes: int,
) -> list[ToolCallRow]:
    """Store.list_tool_calls."""
    rows = conn.execute(
        "SELECT t.tool_call_id, t.run_id, t.step, t.ordinal, t.name, coalesce(t.arguments_json,"  # noqa: S608 - constants
        " (SELECT a.arguments_json FROM long_arguments a WHERE a.key = t.arguments_key)), t.state,"
        " t.idempotent, t.outcome, t.create_time, t.settle_time,"
        " CASE WHEN t.message_number THEN (SELECT m.data FROM entries m"
        f" WHERE m.id = t.session_key * {2 * SPAN} + t.message_number) ELSE t.result END,"
        " t.child_run_id"
        " FROM tool_calls t CROSS JOIN sessions s ON s.key = t.session_key"
        " WHERE t.run_id = ? AND (t.step, t.ordinal) > (?, ?)"
        " AND s.namespace = ? AND s.deleted_time = 0"
        " ORDER BY t.step, t.ordinal LIMIT ?",
        (run_id, *(after or (0, 0)), namespace, limit),
    )
    return fitting(map(_tool_call_row, rows), max_bytes)


def interaction(
    conn: sqlite3.Connection, namespace: str, interaction_id: str
) -> InteractionRow | None:
    """Store.interaction."""
    found = conn.execute(
        f"{_INTERACTIONS} WHERE i.interaction_id = ? AND i.namespace = ? AND s.deleted_time = 0",
        (interaction_id, namespace),
    ).fetchone()
    return _interaction_row(found) if found is not None else None


def list_interactions(
    conn: sqlite3.Connection,
    namespace: str,
    session_id: str,
    state: InteractionState,
    after: tuple[int, str] | None,
    limit: int,
    max_bytes: int,
) -> list[InteractionRow]:
    """Store.list_interactions: one range of an index by namespace, or by session."""
    place = after or (-1, "")
    values: tuple[object, ...]
    if session_id:
        where = "i.session_key = (SELECT key FROM sessions WHERE namespace = ? AND session_id = ?)"
        values = (namespace, session_id)
    else:
        # A question is in the inbox once.
        where = "i.namespace = ? AND i.proxy_interaction_id = ''"
        values = (namespace,)
    rows = conn.execute(
        f"{_INTERACTIONS} WHERE {where} AND i.state = ?"
        " AND (i.create_time, i.interaction_id) > (?, ?) AND s.deleted_time = 0"
        " ORDER BY i.create_time, i.interaction_id LIMIT ?",
        (*values, state, *place, limit),
    )
    return fitting(map(_interaction_row, rows), max_bytes)


def answered_interactions(
    conn: sqlite3.Connection, namespace: str, run_id: str, step: int, max_bytes: int
) -> list[InteractionRow]:
    """Store.answered_interactions."""
    rows = conn.execute(
        f"{_INTERACTIONS} WHERE i.run_id = ? AND i.step >= ? AND i.state = 2"
        " AND i.proxy_interaction_id = ''"
        " AND i.namespace = ? AND s.deleted_time = 0"
        " ORDER BY i.step DESC, i.create_time DESC, i.interaction_id DESC LIMIT ?",
        (run_id, step, namespace, ANSWERED_MAX),
    )
    return fitting(map(_interaction_row, rows), max_bytes)[::-1]


def open_interactions(
    conn: sqlite3.Connection, session_key: int, max_bytes: int
) -> list[InteractionRow]:
    """Reads the open interactions of a session, oldest first.

    Prompts beyond `max_bytes` in all are left out: empty.
    """
    rows = conn.execute(
        f"{_INTERACTIONS} WHERE i.session_key = ? AND i.state = 1"
        " ORDER BY i.create_time, i.interaction_id",
        (session_key,),
    )
    return without_long_prompts(map(_interaction_row, rows), max_bytes)
