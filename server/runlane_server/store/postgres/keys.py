"""API keys."""

from dataclasses import astuple

from runlane_server.core.keys import ApiKey
from runlane_server.store.postgres.connect import Conn


async def api_keys(conn: Conn) -> list[ApiKey]:
    """Store.api_keys."""
    rows = await conn.fetch(
        "SELECT key_id, name, namespace, scopes, hash, last_characters, create_time,"
        " expire_time, revoke_time, request_id FROM api_keys ORDER BY create_time, key_id"
    )
    return [ApiKey(*row) for row in rows]


async def save_api_key(conn: Conn, key: ApiKey) -> None:
    """Store.save_api_key."""
    await conn.execute(
        "INSERT INTO api_keys VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
        " ON CONFLICT (key_id) DO UPDATE SET revoke_time = excluded.revoke_time"
        " WHERE api_keys.revoke_time = 0",
        *astuple(key),
    )
