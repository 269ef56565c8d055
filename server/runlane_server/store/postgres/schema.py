"""The schema of a database: whether it is one of ours, and what it lacks."""

import asyncio
import secrets
import uuid
from typing import Any

import asyncpg

from runlane_server.store.errors import StoreRefused
from runlane_server.store.migrate import Migration, plan, read_migrations
from runlane_server.store.postgres.connect import SCHEMA, Conn
from runlane_server.store.postgres.listen import SERVING

MIGRATING = 0x52756E6C02
"""Key of the advisory lock of who migrates: `Runl` and a number."""

_TRIES, _TRY_SECONDS = 60, 0.05
"""How often, and at what distance, it is tried: servers may be started at the same time."""

_OLDEST = 140_000
PACKAGE = "runlane_server.store.postgres"
_WHERE = "the database"
_SECRET_BYTES = 32
_MIGRATION_SECONDS = 24 * 3600


async def refuse_unfit(conn: Conn) -> None:
    """Raises StoreRefused where a database cannot hold a store. Changes nothing."""
    version = int(await conn.fetchval("SHOW server_version_num"))
    if version < _OLDEST:
        raise StoreRefused(f"PostgreSQL {version // 10_000} is too old; 14 is the oldest that does")
    encoding = await conn.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise StoreRefused(f"the database has the encoding {encoding}; UTF8 is wanted")


async def has_store(conn: Conn) -> bool:
    """Tells whether there is a store of ours."""
    return await conn.fetchval("SELECT to_regclass($1)", f"{SCHEMA}.migrations") is not None


async def missing(conn: Conn, *, verify: bool = False) -> list[Migration]:
    """Tells which migrations a database lacks, or raises StoreRefused. Changes nothing."""
    tables = await conn.fetchval(
        "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = $1",
        SCHEMA,
    )
    applied: dict[int, str] = {}
    if tables:
        if not await has_store(conn):
            raise StoreRefused(f"{_WHERE} has a schema {SCHEMA!r} that is not one of Runlane")
        rows: list[Any] = await conn.fetch("SELECT version, checksum FROM migrations")
        applied = {row[0]: row[1] for row in rows}
        if not applied:
            raise StoreRefused(f"{_WHERE} has tables, but no migration that made them")
    return plan(read_migrations(PACKAGE), applied, _WHERE, verify=verify)


async def prepare(conn: Any, now: int) -> None:
    """Gives the database its schema, in one transaction, and the store its row.

    Raises:
        StoreRefused: It is not one of ours, is newer, was changed, is being migrated, or is to
            be while servers have it that do not know what it would become.
    """
    for _ in range(_TRIES):
        if await conn.fetchval(f"SELECT pg_try_advisory_lock({MIGRATING})"):
            break
        await asyncio.sleep(_TRY_SECONDS)
    else:
        raise StoreRefused(f"{_WHERE} is being migrated by another server")
    try:
        wanted = await missing(conn)
        if wanted and await has_store(conn):
            await _refuse_served(conn)
        async with conn.transaction():
            if wanted:
                await _migrate(conn, wanted, now)
            await conn.execute(
                "INSERT INTO store (id, store_id, epoch, secret) VALUES (1, $1, 1, $2)"
                " ON CONFLICT DO NOTHING",
                f"sto_{uuid.uuid4()}",
                secrets.token_bytes(_SECRET_BYTES),
            )
            await _settle_origin(conn)
    finally:
        await conn.execute(f"SELECT pg_advisory_unlock({MIGRATING})")


async def _refuse_served(conn: Any) -> None:
    # Every server holds it, shared; none begins to while this one migrates.
    if not await conn.fetchval(f"SELECT pg_try_advisory_lock({SERVING})"):
        raise StoreRefused(
            f"servers of an older version have {_WHERE}: stop them, and start this one then"
        )
    await conn.execute(f"SELECT pg_advisory_unlock({SERVING})")


async def _settle_origin(conn: Any) -> None:
    """Gives a store that was restored from a dump a new epoch, and its feed an order again."""
    try:
        async with conn.transaction():
            cluster = await conn.fetchval("SELECT system_identifier FROM pg_control_system()")
    except asyncpg.InsufficientPrivilegeError:
        cluster = ""
    # A dump makes the tables anew, wherever it is restored.
    tables = await conn.fetchval("SELECT 'events'::regclass::oid")
    origin = f"{cluster}/{tables}"
    known = await conn.fetchval("SELECT origin FROM store")
    if known == origin:
        return
    await conn.execute(
        "UPDATE store SET origin = $1, epoch = epoch + $2", origin, 1 if known else 0
    )
    # Groups that bear ids which this cluster has not come to yet would be seen late, or before
    # those that come first. All that is committed from now on comes after this transaction.
    await conn.execute("SET LOCAL statement_timeout = 0")
    await conn.execute(
        "UPDATE events SET feed = pg_current_xact_id() WHERE feed > pg_current_xact_id()",
        timeout=_MIGRATION_SECONDS,
    )


async def _migrate(conn: Any, wanted: list[Migration], now: int) -> None:
    # Asked for first: who may not make a schema may use one that was made for it.
    if not await conn.fetchval("SELECT to_regnamespace($1)::oid", SCHEMA):
        await conn.execute(f"CREATE SCHEMA {SCHEMA}")
    await conn.execute(
        "CREATE TABLE IF NOT EXISTS migrations (version integer PRIMARY KEY,"
        " name text NOT NULL, checksum text NOT NULL, apply_time bigint NOT NULL)"
    )
    # A migration may take as long as it takes.
    await conn.execute("SET LOCAL statement_timeout = 0")
    for migration in wanted:
        await conn.execute(migration.sql, timeout=_MIGRATION_SECONDS)
        await conn.execute(
            "INSERT INTO migrations VALUES ($1, $2, $3, $4)",
            migration.version,
            migration.name,
            migration.checksum,
            now,
        )
