"""Looks at what a store has on disk, past its Protocol."""

_SQLITE = {
    "messages": "SELECT count(*) FROM entries WHERE id > 0 AND NOT id & 2147483648",
    "results": "SELECT count(result) FROM tool_calls",
    "feed": "SELECT max(feed) FROM entries WHERE id > 0",
}
_POSTGRES = {
    # They lie in the row of their call.
    "long_arguments": "SELECT count(*) FROM tool_calls WHERE length(arguments_json) > 800",
    "results": "SELECT count(result) FROM tool_calls",
    "feed": "SELECT feed::text::bigint FROM events ORDER BY feed DESC LIMIT 1",
}


async def inside(store, what):
    """Counts the rows of a table, or looks for what is named above."""
    if store.info.kind == "postgresql":
        sql = _POSTGRES.get(what, f"SELECT count(*) FROM {what}")  # noqa: S608

        async def read(conn):
            return await conn.fetchval(sql)

        return await store._read(read)
    sql = _SQLITE.get(what, f"SELECT count(*) FROM {what}")  # noqa: S608
    return await store._read(lambda conn: conn.execute(sql).fetchone()[0])
