"""What a store holds, asked behind a server's back."""

import re
import sqlite3
from contextlib import closing
from typing import Any

from support.postgres import in_thread


def ask(store: str, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Asks the database of a server for rows.

    Args:
        store: As in `ServerProcess.store`.
        sql: One SELECT; `?` stands for a value.
        values: What the marks stand for, in their order.
    """
    if not store.startswith("sqlite:"):
        return in_thread(_asked(store, sql, values))
    with closing(
        sqlite3.connect(f"file:{store.removeprefix('sqlite:')}?mode=ro", uri=True)
    ) as conn:
        return conn.execute(sql, values).fetchall()


async def _asked(url: str, sql: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
    import asyncpg

    numbers = iter(range(1, len(values) + 1))
    conn = await asyncpg.connect(url)
    try:
        rows = await conn.fetch(re.sub(r"\?", lambda _mark: f"${next(numbers)}", sql), *values)
        return [tuple(row) for row in rows]
    finally:
        await conn.close()
