"""What can be told of a database without changing it, and while servers have it open."""

from dataclasses import dataclass, field, replace

from runlane_server.store.errors import StoreError
from runlane_server.store.migrate import read_migrations
from runlane_server.store.postgres import schema
from runlane_server.store.postgres.connect import (
    DRIVER_ERRORS,
    Address,
    Conn,
    close_quietly,
    translated,
)
from runlane_server.store.postgres.listen import SERVING

_SERVERS = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND (classid::bigint << 32 | objid::bigint) = $1"
)


@dataclass(slots=True)
class ExaminedDatabase:
    """What was found.

    Attributes:
        place: HOST:PORT/NAME.
        refused: Why it is no store that this program can open now; empty: it is one, or can
            become one.
        exists: Whether it holds a store.
        version: Of PostgreSQL.
        servers: How many have it open.
        schema: Its schema version.
        known_schema: The version that this program brings it up to.
        epoch: Its store_epoch; 0: it has none yet.
        size: Of the database, in bytes.
    """

    place: str
    refused: str = ""
    exists: bool = False
    version: str = ""
    servers: int = 0
    schema: int = 0
    known_schema: int = field(default_factory=lambda: len(read_migrations(schema.PACKAGE)))
    epoch: int = 0
    size: int = 0


async def examine_database(address: Address) -> ExaminedDatabase:
    """Looks at a database, on a connection that cannot write."""
    found = ExaminedDatabase(address.place)
    try:
        anywhere = replace(address, standby=True)
        conn = await anywhere.connect("doctor", default_transaction_read_only="on")
        try:
            await _examine(conn, found)
        except DRIVER_ERRORS as error:
            raise translated(error) from error
        finally:
            await close_quietly(conn)
    except StoreError as error:
        found.refused = str(error)
    return found


async def _examine(conn: Conn, found: ExaminedDatabase) -> None:
    found.version = await conn.fetchval("SHOW server_version")
    found.size = await conn.fetchval("SELECT pg_database_size(current_database())")
    found.servers = await conn.fetchval(_SERVERS, SERVING)
    await schema.refuse_unfit(conn)
    found.exists = await schema.has_store(conn)
    found.schema = found.known_schema - len(await schema.missing(conn))
    if found.exists:
        found.epoch = await conn.fetchval("SELECT epoch FROM store") or 0
