"""API keys."""

from collections.abc import Sequence
from dataclasses import astuple

from runlane_server.core.keys import ApiKey
from runlane_server.store.postgres.connect import Conn

_KEYS = (
    "SELECT key_id, name, namespace, scopes, hash, last_characters, create_time, expire_time,"
    " revoke_time, request_id FROM api_keys"
)
_LIVE = "revoke_time = 0 AND coalesce(nullif(expire_time, 0), 9223372036854775807) > ${}"


async def api_keys(
    conn: Conn,
    live_at: int,
    namespaces: Sequence[str] | None,
    after: tuple[int, str] | None,
    limit: int,
) -> list[ApiKey]:
    """Store.api_keys."""
    tests: list[str] = ["true"]
    values: list[object] = []
    if live_at:
        values.append(live_at)
        tests.append(_LIVE.format(len(values)))
    if namespaces is not None:
        values.append(list(namespaces))
        tests.append(f"namespace = ANY(${len(values)}::text[])")
    if after is not None or limit:
        values += after or (-1, "")
        tests.append(f"(create_time, key_id) > (${len(values) - 1}, ${len(values)})")
    sql = f"{_KEYS} WHERE {' AND '.join(tests)}"
    if limit:
        # Without one all of them are wanted, and an index in this order would find them last.
        values.append(limit)
        sql += f" ORDER BY create_time, key_id LIMIT ${len(values)}"
    keys = [ApiKey(*row) for row in await conn.fetch(sql, *values)]
    return sorted(keys, key=lambda key: (key.create_time, key.key_id))


async def api_key(conn: Conn, key_id: str) -> ApiKey | None:
    """Store.api_key."""
    found = await conn.fetchrow(f"{_KEYS} WHERE key_id = $1", key_id)
    return ApiKey(*found) if found is not None else None


async def api_key_of_request(conn: Conn, request_id: str) -> ApiKey | None:
    """Store.api_key_of_request."""
    found = await conn.fetchrow(f"{_KEYS} WHERE request_id = $1 AND request_id <> ''", request_id)
    return ApiKey(*found) if found is not None else None


async def save_api_key(conn: Conn, key: ApiKey) -> bool:
    """Store.save_api_key."""
    done = await conn.execute(
        "INSERT INTO api_keys VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
        " ON CONFLICT DO NOTHING",
        *astuple(key),
    )
    if done == "INSERT 0 1":
        return True
    found = await conn.fetchval(
        "UPDATE api_keys SET revoke_time = CASE WHEN revoke_time = 0 THEN $2 ELSE revoke_time END"
        " WHERE key_id = $1 RETURNING true",
        key.key_id,
        key.revoke_time,
    )
    return found is not None
