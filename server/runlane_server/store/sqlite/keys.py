"""API keys."""

import sqlite3
from dataclasses import astuple

from runlane_server.core.keys import ApiKey


def api_keys(conn: sqlite3.Connection) -> list[ApiKey]:
    """Store.api_keys."""
    rows = conn.execute(
        "SELECT key_id, name, namespace, scopes, hash, last_characters, create_time,"
        " expire_time, revoke_time, request_id FROM api_keys ORDER BY create_time, key_id"
    )
    return [ApiKey(*row) for row in rows]


def save_api_key(conn: sqlite3.Connection, key: ApiKey) -> None:
    """Store.save_api_key: one statement, which is its own transaction."""
    conn.execute(
        "INSERT INTO api_keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (key_id) DO UPDATE SET revoke_time = excluded.revoke_time"
        " WHERE revoke_time = 0",
        astuple(key),
    )
