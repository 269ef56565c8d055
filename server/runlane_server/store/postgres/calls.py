"""Tool calls and interactions: what their rows write, and how they are read."""

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
    SessionCommit,
    ToolCallRow,
)
from runlane_server.store.postgres.connect import Conn
from runlane_server.store.postgres.plan import Kind, Plan, columns
from runlane_server.store.postgres.rows import Writer

_UNSETTLED = frozenset({ToolCallState.PREPARED, ToolCallState.CLAIMED})

# --- what rows write -------------------------------------------------------

_INSERT_CALL = Kind(
    columns(
        "run_id text, step, ordinal integer, session_key, create_time bigint, tool_call_id,"
        " name, arguments_json text"
    ),
    "INSERT INTO tool_calls (run_id, step, ordinal, session_key, state, create_time,"
    " tool_call_id, name, arguments_json) SELECT run_id, step, ordinal, session_key, 1,"
    " create_time, tool_call_id, name, arguments_json FROM {u}",
)
_MOVE_CALL = Kind(
    columns(
        "run_id text, step, ordinal integer, session_key bigint, state integer,"
        " idempotent boolean, outcome integer, settle_time bigint, result bytea"
    ),
    "UPDATE tool_calls c SET state = u.state, idempotent = u.idempotent, outcome = u.outcome,"
    " settle_time = u.settle_time, result = u.result FROM {u} WHERE c.run_id = u.run_id"
    " AND c.step = u.step AND c.ordinal = u.ordinal AND c.session_key = u.session_key"
    " AND c.state < 3",
    "move of a tool call",
)
_GIVE_CALL = Kind(
    columns("run_id text, step, ordinal integer, session_key bigint, child_run_id text"),
    "UPDATE tool_calls c SET child_run_id = u.child_run_id FROM {u} WHERE c.run_id = u.run_id"
    " AND c.step = u.step AND c.ordinal = u.ordinal AND c.session_key = u.session_key"
    " AND c.state = 1",
    "child run of a tool call",
)
_INSERT_INTERACTION = Kind(
    columns(
        "interaction_id text, session_key bigint, namespace, run_id text, step, version,"
        " kind integer, expire_time, create_time bigint, prompt bytea"
    ),
    "INSERT INTO interactions (interaction_id, session_key, namespace, run_id, step, version,"
    " state, kind, expire_time, create_time, prompt) SELECT interaction_id, session_key,"
    " namespace, run_id, step, version, 1, kind, expire_time, create_time, prompt FROM {u}",
)
_SETTLE_INTERACTION = Kind(
    columns(
        "interaction_id text, session_key bigint, state integer, settle_time bigint,"
        " answer, answer_hash bytea, close_reason integer"
    ),
    "UPDATE interactions i SET state = u.state, settle_time = u.settle_time, answer = u.answer,"
    " answer_hash = u.answer_hash, close_reason = u.close_reason FROM {u}"
    " WHERE i.interaction_id = u.interaction_id AND i.session_key = u.session_key"
    " AND i.state = 1",
    "end of an interaction",
)
_INSERT_PROXY = Kind(
    columns(
        "interaction_id text, session_key bigint, namespace, run_id text, step,"
        " version integer, create_time bigint, of_session, of_run, of_interaction text"
    ),
    "INSERT INTO interactions (interaction_id, session_key, namespace, run_id, step, version,"
    " state, kind, expire_time, create_time, proxy_session_id, proxy_run_id,"
    " proxy_interaction_id, prompt) SELECT u.interaction_id, u.session_key, q.namespace,"
    " u.run_id, u.step, u.version, 1, q.kind, q.expire_time, u.create_time, u.of_session,"
    " u.of_run, q.interaction_id, q.prompt FROM {u} JOIN interactions q"
    " ON q.interaction_id = u.of_interaction AND q.namespace = u.namespace",
    "proxy of a question",
)
_SETTLE_PROXY = Kind(
    columns(
        "interaction_id text, session_key bigint, namespace, of_interaction text,"
        " settle_time bigint"
    ),
    "UPDATE interactions i SET state = q.state, answer = q.answer, answer_hash = q.answer_hash,"
    " close_reason = q.close_reason, settle_time = u.settle_time FROM {u}"
    " JOIN interactions q ON q.interaction_id = u.of_interaction AND q.namespace = u.namespace"
    " WHERE i.interaction_id = u.interaction_id AND i.session_key = u.session_key"
    " AND i.state = 1",
    "end of a proxy",
)


def _tool_call_inserted(
    plan: Plan, key: int, row: ToolCallInserted, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    values = (
        row.run_id,
        row.step,
        row.ordinal,
        key,
        row.create_time,
        row.tool_call_id,
        row.name,
        row.arguments_json,
    )
    plan.add(_INSERT_CALL, values, [("call", row.run_id, row.step, row.ordinal)])


def _tool_call_moved(
    plan: Plan, key: int, row: ToolCallMoved, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    values = (
        row.run_id,
        row.step,
        row.ordinal,
        key,
        int(row.state),
        # Whoever claims it next says anew whether it may be run again.
        bool(row.idempotent) and row.state is not ToolCallState.PREPARED,
        int(row.outcome or 0),
        0 if row.state in _UNSETTLED else row.time,
        row.result.data if row.result is not None else None,
    )
    plan.add(_MOVE_CALL, values, [("call", row.run_id, row.step, row.ordinal)])


def _tool_call_given(
    plan: Plan, key: int, row: ToolCallGiven, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    values = (row.run_id, row.step, row.ordinal, key, row.child_run_id)
    plan.add(_GIVE_CALL, values, [("call", row.run_id, row.step, row.ordinal)])


def _interaction_inserted(
    plan: Plan, key: int, row: InteractionInserted, _encoded: bytes | None, commit: SessionCommit
) -> None:
    values = (
        row.interaction_id,
        key,
        commit.key.namespace,
        row.run_id,
        row.step,
        row.version,
        int(row.kind),
        row.expire_time,
        row.create_time,
        row.prompt,
    )
    plan.add(_INSERT_INTERACTION, values, [("interaction", row.interaction_id)])


def _interaction_settled(
    plan: Plan, key: int, row: InteractionSettled, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    values = (
        row.interaction_id,
        key,
        int(row.state),
        row.settle_time,
        row.answer,
        row.answer_hash,
        int(row.reason or 0),
    )
    plan.add(_SETTLE_INTERACTION, values, [("interaction", row.interaction_id)])


def _proxy_inserted(
    plan: Plan, key: int, row: ProxyInserted, _encoded: bytes | None, commit: SessionCommit
) -> None:
    question = row.question
    values = (
        row.interaction_id,
        key,
        commit.key.namespace,
        row.run_id,
        row.step,
        question.version,
        row.create_time,
        question.session_id,
        question.run_id,
        question.interaction_id,
    )
    reads = [("interaction", question.interaction_id)]
    plan.add(_INSERT_PROXY, values, [("interaction", row.interaction_id)], reads)


def _proxy_settled(
    plan: Plan, key: int, row: ProxySettled, _encoded: bytes | None, commit: SessionCommit
) -> None:
    asked = row.question.interaction_id
    values = (row.interaction_id, key, commit.key.namespace, asked, row.settle_time)
    reads = [("interaction", asked)]
    plan.add(_SETTLE_PROXY, values, [("interaction", row.interaction_id)], reads)


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

_INTERACTION_COLUMNS = (
    "i.interaction_id, i.run_id, {session_id}, i.version, i.state, i.kind, {prompt},"
    " i.answer, i.answer_hash, i.close_reason, i.expire_time, i.create_time, i.settle_time,"
    " i.proxy_session_id, i.proxy_run_id, i.proxy_interaction_id"
)
_INTERACTIONS = (
    f"SELECT {_INTERACTION_COLUMNS.format(session_id='s.session_id', prompt='i.prompt')}"  # noqa: S608 - constants
    " FROM interactions i JOIN sessions s ON s.key = i.session_key"
)
_INTERACTION_SIZE = "octet_length(i.prompt) + octet_length(i.answer)"
# As many bytes as `ToolCallRow.size` says; the one that brings the sum to the limit is taken.
_TOOL_CALL_RESULT = (
    "CASE WHEN t.message_number <> 0 THEN (SELECT {0} FROM messages m"
    " WHERE m.session_key = t.session_key AND m.number = t.message_number) ELSE {1} END"
)
_TOOL_CALL_SIZE = (
    f"coalesce({_TOOL_CALL_RESULT.format('octet_length(m.data)', 'octet_length(t.result)')}, 0)"
    " + coalesce(length(t.arguments_json), 0)"
)
_TOOL_CALLS = (
    "SELECT t.tool_call_id, t.run_id, t.step, t.ordinal, t.name, t.arguments_json, t.state,"  # noqa: S608 - constants
    " t.idempotent, t.outcome, t.create_time, t.settle_time,"
    f" {_TOOL_CALL_RESULT.format('m.data', 't.result')}, t.child_run_id"
    " FROM (SELECT t.*, sum(t.size) OVER (ORDER BY t.step, t.ordinal) AS so_far"
    f" FROM (SELECT t.*, {_TOOL_CALL_SIZE} AS size"
    " FROM tool_calls t JOIN sessions s ON s.key = t.session_key"
    " WHERE t.run_id = $1 AND (t.step, t.ordinal) > ($2::bigint, $3::bigint)"
    " AND s.namespace || '' = $4 AND s.deleted_time < 1"
    " ORDER BY t.step, t.ordinal LIMIT $5) t) t"
    " WHERE t.so_far - t.size < $6 ORDER BY t.step, t.ordinal"
)


def _interactions_within(where: str, order: str, limit: str, max_bytes: str) -> str:
    """Returns a statement for interactions up to the one that makes them so many bytes."""
    shown = _INTERACTION_COLUMNS.format(session_id="i.session_id", prompt="i.prompt")
    return (
        f"SELECT {shown} FROM (SELECT i.*, sum(i.size) OVER (ORDER BY {order}) AS so_far"  # noqa: S608 - constants
        f" FROM (SELECT i.*, s.session_id, {_INTERACTION_SIZE} AS size"
        " FROM interactions i JOIN sessions s ON s.key = i.session_key"
        f" WHERE {where} AND s.deleted_time < 1 ORDER BY {order} LIMIT {limit}) i) i"
        f" WHERE i.so_far - i.size < {max_bytes} ORDER BY {order}"
    )


def _tool_call_row(columns: Sequence[Any]) -> ToolCallRow:
    row = ToolCallRow(*columns)
    row.state = ToolCallState(row.state)
    row.result = row.result or b""
    return row


def _interaction_row(columns: Sequence[Any]) -> InteractionRow:
    row = InteractionRow(*columns)
    row.state = InteractionState(row.state)
    row.kind = PromptKind(row.kind)
    return row


async def list_tool_calls(
    conn: Conn,
    namespace: str,
    run_id: str,
    after: tuple[int, int] | None,
    limit: int,
    max_bytes: int,
) -> list[ToolCallRow]:
    """Store.list_tool_calls."""
    rows = await conn.fetch(_TOOL_CALLS, run_id, *(after or (0, 0)), namespace, limit, max_bytes)
    return [_tool_call_row(row) for row in rows]


async def interaction(conn: Conn, namespace: str, interaction_id: str) -> InteractionRow | None:
    """Store.interaction."""
    found = await conn.fetchrow(
        f"{_INTERACTIONS} WHERE i.interaction_id = $1 AND i.namespace = $2 AND s.deleted_time < 1",
        interaction_id,
        namespace,
    )
    return _interaction_row(found) if found is not None else None


async def list_interactions(
    conn: Conn,
    namespace: str,
    session_id: str,
    state: InteractionState,
    after: tuple[int, str] | None,
    limit: int,
    max_bytes: int,
) -> list[InteractionRow]:
    """Store.list_interactions: one range of an index by namespace, or by session."""
    if session_id:
        where = (
            "i.session_key = (SELECT key FROM sessions WHERE namespace = $1 AND session_id = $7)"
        )
        values: tuple[object, ...] = (session_id,)
    else:
        # A question is in the inbox once.
        where = "i.namespace = $1 AND i.proxy_interaction_id = ''"
        values = ()
    where += " AND i.state = $2 AND (i.create_time, i.interaction_id) > ($3, $4)"
    rows = await conn.fetch(
        _interactions_within(where, "i.create_time, i.interaction_id", "$5", "$6"),
        namespace,
        int(state),
        *(after or (-1, "")),
        limit,
        max_bytes,
        *values,
    )
    return [_interaction_row(row) for row in rows]


async def answered_interactions(
    conn: Conn, namespace: str, run_id: str, step: int, max_bytes: int
) -> list[InteractionRow]:
    """Store.answered_interactions."""
    where = (
        "i.run_id = $1 AND i.step >= $2 AND i.state = 2"
        " AND i.proxy_interaction_id = '' AND i.namespace = $3"
    )
    order = "i.step DESC, i.create_time DESC, i.interaction_id DESC"
    rows = await conn.fetch(
        _interactions_within(where, order, "$4", "$5"),
        run_id,
        step,
        namespace,
        ANSWERED_MAX,
        max_bytes,
    )
    return [_interaction_row(row) for row in rows][::-1]


_SHORT_PROMPT = "CASE WHEN i.so_far <= $2 THEN i.prompt ELSE ''::bytea END"
_OPEN = (
    f"SELECT {_INTERACTION_COLUMNS.format(session_id='i.session_id', prompt=_SHORT_PROMPT)}"  # noqa: S608 - constants
    " FROM (SELECT i.*, s.session_id, sum(octet_length(i.prompt))"
    " OVER (ORDER BY i.create_time, i.interaction_id) AS so_far"
    " FROM interactions i JOIN sessions s ON s.key = i.session_key"
    " WHERE i.session_key = $1 AND i.state = 1) i ORDER BY i.create_time, i.interaction_id"
)


async def open_interactions(conn: Conn, session_key: int, max_bytes: int) -> list[InteractionRow]:
    """Reads the open interactions of a session, oldest first.

    Prompts beyond `max_bytes` in all are left out: empty.
    """
    return [_interaction_row(row) for row in await conn.fetch(_OPEN, session_key, max_bytes)]
