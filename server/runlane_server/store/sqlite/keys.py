"""API keys."""

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple

from runlane_server.core.keys import ApiKey

_KEYS = (
    "SELECT key_id, name, namespace, scopes, hash, last_characters, create_time, expire_time,"
    " revoke_time, request_id FROM api_keys"
)
_LIVE = "revoke_time = 0 AND coalesce(nullif(expire_time, 0), 9223372036854775807) > ?"


def api_keys(
    conn: sqlite3.Connection,
    live_at: int,
    namespaces: Sequence[str] | None,
    after: tuple[int, str] | None,
    limit: int,
) -> list[ApiKey]:
    """Store.api_keys."""
    tests: list[str] = ["true"]
    values: list[object] = []
    if live_at:
        tests.append(_LIVE)
        values.append(live_at)
    if namespaces is not None:
        tests.append(f"namespace IN ({', '.join('?' * len(namespaces))})")
        values += namespaces
    if after is not None:
        tests.append("(create_time, key_id) > (?, ?)")
        values += after
    rows = conn.execute(
        f"{_KEYS} WHERE {' AND '.join(tests)} ORDER BY create_time, key_id LIMIT ?",
        (*values, limit or -1),
    )
    return [ApiKey(*row) for row in rows]


def api_key(conn: sqlite3.Connection, key_id: str) -> ApiKey | None:
    """Store.api_key."""
    found = conn.execute(f"{_KEYS} WHERE key_id = ?", (key_id,)).fetchone()
    return ApiKey(*found) if found is not None else None


def api_key_of_request(conn: sqlite3.Connection, request_id: str) -> ApiKey | None:
    """Store.api_key_of_request."""
    found = conn.execute(
        f"{_KEYS} WHERE request_id = ? AND request_id <> ''", (request_id,)
    ).fetchone()
    return ApiKey(*found) if found is not None else None


def save_api_key(conn: sqlite3.Connection, key: ApiKey) -> bool:
    """Store.save_api_key: each statement is its own transaction."""
    done = conn.execute(
        "INSERT INTO api_keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        astuple(key),
    )
    if done.rowcount:
        return True
    done = conn.execute(
        "UPDATE api_keys SET revoke_time = CASE WHEN revoke_time = 0 THEN ?2 ELSE revoke_time END"
        " WHERE key_id = ?1",
        (key.key_id, key.revoke_time),
    )
    return done.rowcount > 0
