"""The hold of one server on a database: an advisory lock, and a name in the store's row.

The lock is a session's, on a connection of its own, so it ends with the process. It
alone would not do: a server that has lost it may be in the middle of a transaction, or
not know yet. So each transaction that writes also holds a second lock, shared, and
looks whether the store's row still names its server; who takes the store over waits for that
lock before it puts its own name there.
"""

import asyncio
import contextlib
import secrets
from typing import Any

import asyncpg
import structlog

from runlane_server.store.errors import StoreError, StoreRefused, StoreUnavailable
from runlane_server.store.postgres.connect import DRIVER_ERRORS, Address, close_quietly, said

HELD, MIGRATING, WRITING = 0x52756E6C01, 0x52756E6C02, 0x52756E6C03
"""Keys of advisory locks: `Runl` and a number."""

_TRIES, _TRY_SECONDS = 60, 0.05
"""How often, and at what distance, a lock is tried: that of a killed server goes a little later."""

_LOOK_SECONDS = 5.0
_AGAIN_SECONDS = 0.25
_TAKEN_OVER = "another server has had the database meanwhile; start this one anew"

log = structlog.get_logger(__name__)


class Hold:
    """The hold of this server.

    Attributes:
        conn: The connection that has it; for work at the opening.
        begin: What a transaction that writes begins with.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._holder = secrets.token_hex(16)
        self._why_not = "the store is not open"
        self._watch: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self.conn: Any = None
        self.begin = (
            f"BEGIN; SELECT pg_advisory_xact_lock_shared({WRITING});"  # noqa: S608 - hexadecimal
            f" SELECT FROM store WHERE holder = '{self._holder}'"
        )

    def refuse(self) -> None:
        """Raises StoreUnavailable where this server does not have the store."""
        if self._why_not:
            raise StoreUnavailable(self._why_not)

    # --- taking and giving back --------------------------------------------

    async def take(self) -> None:
        """Takes the lock.

        Raises:
            StoreRefused: Another server has it.
        """
        await self._connect()
        for _ in range(_TRIES):
            if await self._try():
                break
            await asyncio.sleep(_TRY_SECONDS)
        else:
            by = await self.conn.fetchval(
                "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid)"
                " WHERE locktype = 'advisory' AND granted AND objsubid = 1"
                " AND pg_locks.database = (SELECT oid FROM pg_database"
                " WHERE datname = current_database()) AND classid = $1::bigint::oid"
                " AND objid = $2::bigint::oid",
                HELD >> 32,
                HELD & 0xFFFFFFFF,
            )
            name = (by or "").removeprefix("runlane hold ")
            by = f" by {name}" if name else ""
            raise StoreRefused(f"the database is in use{by}; one server a database")

    async def keep(self) -> None:
        """Shuts out whoever had the store before, and watches over the lock from now on."""
        await self.conn.execute(f"SELECT pg_advisory_lock({WRITING})")
        await self.conn.execute("UPDATE store SET holder = $1", self._holder)
        await self.conn.execute(f"SELECT pg_advisory_unlock({WRITING})")
        self._why_not = ""
        self._listen()
        self._watch = asyncio.get_running_loop().create_task(self._watch_over())

    async def give_back(self) -> None:
        """Ends the hold; again does nothing."""
        self._why_not = self._why_not or "the store is closed"
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.wait([watch])
        conn, self.conn = self.conn, None
        if conn is not None and not conn.is_closed():
            with contextlib.suppress(*DRIVER_ERRORS):  # It ends with the connection, too.
                await conn.execute("SELECT pg_advisory_unlock_all()")
            await close_quietly(conn)

    async def _connect(self) -> None:
        self.conn = await self._address.connect(
            "hold",
            default_transaction_read_only="off",
            default_transaction_isolation="read committed",
        )

    async def _try(self) -> bool:
        return bool(await self.conn.fetchval(f"SELECT pg_try_advisory_lock({HELD})"))

    # --- while it is held --------------------------------------------------

    def _listen(self) -> None:
        self._lost.clear()
        self.conn.add_termination_listener(self._on_lost)
        if self.conn.is_closed():
            self._on_lost(self.conn)

    def _on_lost(self, conn: Any) -> None:
        if conn is self.conn and not self._why_not:
            self._why_not = "the connection that holds the store was lost"
            self._lost.set()

    async def _watch_over(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._lost.wait()
            except TimeoutError:
                try:  # A network that says nothing any more is only found by asking.
                    await self.conn.execute("SELECT 1", timeout=_LOOK_SECONDS)
                except DRIVER_ERRORS:
                    self._on_lost(self.conn)
                    self.conn.terminate()
                continue
            log.warning("store lost")
            if not await self._take_again():
                return

    async def _take_again(self) -> bool:
        while True:
            try:
                await self._connect()
                if not await self._try():
                    self._why_not = "another server has the database"
                elif await self._is_ours():
                    break
                else:
                    self._why_not = _TAKEN_OVER
                    log.error("store taken over")
                    await close_quietly(self.conn)
                    return False
            except (StoreError, *DRIVER_ERRORS) as error:
                self._why_not = f"the database is away: {said(error)}"
            if self.conn is not None:
                await close_quietly(self.conn)
            await asyncio.sleep(_AGAIN_SECONDS)
        self._why_not = ""
        self._listen()
        log.info("store taken again")
        return True

    async def _is_ours(self) -> bool:
        try:
            holder = await self.conn.fetchval("SELECT holder FROM store")
        except asyncpg.UndefinedTableError:
            return False
        return bool(holder == self._holder)
