"""Blocks on their way, from the server that is given them to those who read them elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Any

from runlane_server.core.model import SessionKey
from runlane_server.store.base import SharedBlock
from runlane_server.store.postgres.connect import NOW, Conn

# Of a session that does not exist there is nothing to be shown.
_PUT = (
    "INSERT INTO deltas (session_key, model_stream_id, block_index, put_time, server, data)"  # noqa: S608 - constants
    f" SELECT s.key, u.model_stream_id, u.block_index, {NOW}, $1, u.data"
    " FROM unnest($2::text[], $3::text[], $4::text[], $5::integer[], $6::bytea[])"
    " AS u(namespace, session_id, model_stream_id, block_index, data)"
    " JOIN sessions s ON s.namespace = u.namespace AND s.session_id = u.session_id"
    " ON CONFLICT (session_key, model_stream_id, block_index) DO UPDATE"
    " SET put_time = excluded.put_time, server = excluded.server, data = excluded.data"
)
_DROP = (
    "DELETE FROM deltas d USING unnest($1::text[], $2::text[], $3::text[], $4::integer[])"
    " AS u(namespace, session_id, model_stream_id, block_index), sessions s"
    " WHERE s.namespace = u.namespace AND s.session_id = u.session_id AND d.session_key = s.key"
    " AND d.model_stream_id = u.model_stream_id AND d.block_index = u.block_index"
)
_READ = (
    "SELECT b.namespace, b.session_id, b.model_stream_id, b.block_index, b.data, b.put_time,"
    " b.state FROM (SELECT u.namespace, u.session_id, d.model_stream_id, d.block_index, d.data,"
    " d.put_time, s.state, sum(length(d.data)) OVER (ORDER BY d.put_time, d.session_key,"
    " d.model_stream_id, d.block_index) AS size"
    " FROM unnest($2::text[], $3::text[], $4::bigint[]) AS u(namespace, session_id, put_time)"
    " JOIN sessions s ON s.namespace = u.namespace AND s.session_id = u.session_id"
    " JOIN deltas d ON d.session_key = s.key AND d.put_time > u.put_time AND d.server <> $1) b"
    " WHERE b.size - length(b.data) < $5"
)


async def put_blocks(
    conn: Conn,
    server: str,
    blocks: Sequence[SharedBlock],
    gone: Sequence[SharedBlock],
    forget_before: int,
) -> None:
    """Shared.put_blocks, inside a transaction that writes."""
    if gone:
        await conn.execute(_DROP, *_names(gone))
    if forget_before:
        await conn.execute("DELETE FROM deltas WHERE put_time < $1", forget_before)
    if blocks:
        await conn.execute(_PUT, server, *_names(blocks), [one.data for one in blocks])


def _names(blocks: Sequence[SharedBlock]) -> tuple[list[Any], ...]:
    return (
        [one.key.namespace for one in blocks],
        [one.key.session_id for one in blocks],
        [one.model_stream_id for one in blocks],
        [one.block_index for one in blocks],
    )


async def blocks(
    conn: Conn, server: str, after: Mapping[SessionKey, int], max_bytes: int
) -> list[SharedBlock]:
    """Shared.blocks."""
    rows = await conn.fetch(
        _READ,
        server,
        [key.namespace for key in after],
        [key.session_id for key in after],
        list(after.values()),
        max_bytes,
    )
    return [SharedBlock(SessionKey(row[0], row[1]), *row[2:]) for row in rows]
