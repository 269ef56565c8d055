"""Connections: how they are made, what their errors mean, and who has them."""

import asyncio
import contextlib
import functools
import os
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs, urlsplit

import asyncpg

from runlane_server.store.errors import (
    StoreCorrupt,
    StoreError,
    StoreFault,
    StoreRefused,
    StoreUnavailable,
)

Result = TypeVar("Result")

SCHEMA = "runlane"
"""The schema that all tables are in, so that a database may hold others beside them."""

NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
"""The time of the database, in SQL: in microseconds."""

BROKEN = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    # The driver says this too where a connection ends while it begins to use it.
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    # It is a standby, or has become one: another connection may find the primary.
    asyncpg.ReadOnlySQLTransactionError,
)
"""Errors after which a connection is not used again."""

DRIVER_ERRORS = (asyncpg.PostgresError, *BROKEN)

# Classes of errors that pass: connections, roles and databases on their way, a standby that
# takes no writes, races, no room, locks, statements that were ended, files. Poolers say XX000.
_AWAY = frozenset({"08", "25", "28", "3D", "40", "53", "55", "57", "58", "XX"})
_IDLE_SECONDS = 5.0
_STILL_SECONDS = 10.0
"""How long all connections that read may be in use, and none become free."""

_CLOSE_SECONDS = 5.0
_STATEMENTS = 512
# All that is asked often is found through an index, in the order of that index. So no plan
# may depend on how full the tables were when it was made.
_PLANS = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_material": "off",
    # What is left of sorting is done a tie at a time.
    "enable_sort": "off",
}


class Conn(Protocol):
    """What is used of a connection."""

    async def execute(self, query: str, *args: object) -> str:
        """Runs a statement, or several without arguments; returns the last one's status."""

    async def fetch(self, query: str, *args: object) -> list[Any]:
        """Runs a statement and returns its rows."""

    async def fetchrow(self, query: str, *args: object) -> Any:
        """Runs a statement and returns its first row, or None."""

    async def fetchval(self, query: str, *args: object) -> Any:
        """Runs a statement and returns the first column of its first row, or None."""


class _Connection(asyncpg.Connection):  # type: ignore[misc]  # the driver has no types
    """A connection on which nothing is ever set, so that nothing has to be reset."""

    def get_reset_query(self) -> str:
        """Returns no statement."""
        return ""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the database is, and how long it may take.

    Attributes:
        dsn: postgresql://...; it may hold a password, and is shown nowhere.
        statement_timeout: Seconds that a statement may take.
        connect_timeout: Seconds that it may take to connect.
        standby: Whether a standby will do.
    """

    dsn: str = field(repr=False)
    statement_timeout: float = 30.0
    connect_timeout: float = 10.0
    standby: bool = False

    @property
    def place(self) -> str:
        """HOST:PORT/NAME, as errors show it: nothing that stands before or after it."""
        parts = urlsplit(self.dsn)
        query = parse_qs(parts.query)
        hosts = parts.netloc.rpartition("@")[2] or ",".join(query.get("host", []))
        port = query.get("port", [os.environ.get("PGPORT", "5432")])[-1]
        named = [
            host if host.rpartition("]")[2].count(":") else f"{host}:{port}"
            for host in hosts.split(",")
        ]
        return f"{','.join(named)}{parts.path}"

    @property
    def longest(self) -> float:
        """Seconds after which a statement is over, also where nobody says so."""
        return self.statement_timeout + 5

    def arguments(self, purpose: str, **settings: str) -> dict[str, Any]:
        """Returns what the driver is called with; `purpose` is what the database shows."""
        milliseconds = str(round(self.statement_timeout * 1000))
        # Between two statements of a transaction there is only work in memory. A process that
        # stands still there has rows that others wait for, with all that they write.
        idle = min(_IDLE_SECONDS, self.statement_timeout / 2)
        return {
            "dsn": self.dsn,
            "timeout": self.connect_timeout,
            # Beyond the server's own limit: it is for a network that says nothing any more.
            "command_timeout": self.longest,
            "statement_cache_size": _STATEMENTS,
            # A text over this size would not be kept prepared; ours are composed, and long.
            "max_cacheable_statement_size": 0,
            "connection_class": _Connection,
            # A standby takes no writes, and what it shows is old: "no" may not stand on it.
            "target_session_attrs": "any" if self.standby else "primary",
            "server_settings": {
                "application_name": f"runlane {purpose} {socket.gethostname()}:{os.getpid()}",
                "search_path": SCHEMA,
                "statement_timeout": milliseconds,
                "idle_in_transaction_session_timeout": str(round(idle * 1000)),
                **settings,
            },
        }

    async def connect(self, purpose: str, **settings: str) -> Any:
        """Opens a connection.

        Raises:
            StoreUnavailable: The database cannot be reached, or does not let us in.
        """
        try:
            return await asyncpg.connect(**self.arguments(purpose, **settings))
        except (asyncpg.exceptions.ClientConfigurationError, ValueError):
            # The driver's own words may show a part of the address.
            raise StoreRefused("the address of the database cannot be read") from None
        except DRIVER_ERRORS as error:
            refused = isinstance(error, asyncpg.PostgresError)
            what = "does not let us in" if refused else "cannot be reached"
            raise StoreUnavailable(f"the database {self.place} {what}: {said(error)}") from None


def said(error: BaseException) -> str:
    """Returns an error in one line, for operators."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def broke(error: BaseException) -> bool:
    """Tells whether a connection is not used again after an error.

    What the driver cannot encode it says in an error of its own, before it sends a byte.
    """
    return isinstance(error, BROKEN) and not isinstance(error, ValueError)


def translated(error: Exception) -> StoreError:
    """Says what an error of the driver means to who uses the store."""
    if isinstance(error, (asyncpg.DataCorruptedError, asyncpg.IndexCorruptedError)):
        return StoreCorrupt(said(error))
    of_kind = (error.sqlstate or "")[:2] if isinstance(error, asyncpg.PostgresError) else ""
    if broke(error) or of_kind in _AWAY:
        return StoreUnavailable(said(error))
    # Others than these may quote a value that a user wrote.
    return StoreFault(said(error) if of_kind == "42" else type(error).__name__)


class Writing:
    """The one connection that writes; made again where it was lost."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._conn: Any = None
        self._pid = 0

    async def get(self) -> Any:
        """Returns the connection, in no transaction."""
        conn = self._conn
        if conn is None or conn.is_closed():
            self._conn = None
            # A batch reads what was committed while it waited for its locks.
            conn = await self._address.connect(
                "write",
                default_transaction_read_only="off",
                default_transaction_isolation="read committed",
                **_PLANS,
            )
            # A role may have been told not to wait for the disk. An answer is durable.
            await conn.execute(
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
            # Asked for: a pooler tells the driver another number.
            self._pid = await conn.fetchval("SELECT pg_backend_pid()")
            self._conn = conn
        return conn

    @property
    def pid(self) -> int:
        """The process that serves the connection; 0: there is none."""
        return self._pid if self._conn is not None and not self._conn.is_closed() else 0

    async def undo(self, error: BaseException) -> None:
        """Leaves the transaction that an error ended; a broken connection is given up."""
        conn = self._conn
        if conn is None or conn.is_closed():
            return
        if broke(error):
            conn.terminate()
            return
        try:
            if conn.is_in_transaction():
                await conn.execute("ROLLBACK")
        except DRIVER_ERRORS:
            conn.terminate()

    def terminate(self) -> None:
        """Ends the connection under whatever is done on it."""
        if self._conn is not None:
            self._conn.terminate()

    async def close(self) -> None:
        """Ends the connection."""
        conn, self._conn = self._conn, None
        if conn is not None:
            await close_quietly(conn)


async def close_quietly(conn: Any) -> None:
    """Ends a connection that may be broken."""
    try:
        await conn.close(timeout=2)
    except DRIVER_ERRORS:
        conn.terminate()


class Reading:
    """A few connections that can only read.

    A read that has begun runs to its end whatever becomes of who waits for it: so no cancelled
    caller leaves a connection in the middle of something. One that waits for a connection ends
    with its caller.
    """

    def __init__(self, address: Address, count: int) -> None:
        self._address = address
        self._count = count
        self._pool: Any = None
        self._places = asyncio.Semaphore(count)
        self._taken = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._begun: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Makes the pool; connections are made when they are needed."""
        arguments = self._address.arguments(
            "read",
            default_transaction_read_only="on",
            default_transaction_isolation="repeatable read",
            **_PLANS,
        )
        self._pool = await asyncpg.create_pool(min_size=0, max_size=self._count, **arguments)

    def submit(
        self, function: Callable[..., Awaitable[Result]], *args: object, several: bool = False
    ) -> "asyncio.Future[Result]":
        """Starts a read; with `several` statements it sees one snapshot."""
        task = asyncio.get_running_loop().create_task(self._run(function, args, several))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        waited = asyncio.shield(task)
        waited.add_done_callback(functools.partial(self._left, task))
        return waited

    def _left(self, task: "asyncio.Task[Any]", waited: "asyncio.Future[Any]") -> None:
        if waited.cancelled() and task not in self._begun:
            task.cancel()

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        self._begun.discard(task)
        if not task.cancelled():
            task.exception()  # Whoever waits is told; perhaps nobody does.

    async def _run(
        self, function: Callable[..., Awaitable[Result]], args: tuple[object, ...], several: bool
    ) -> Result:
        await self._take_place()
        try:
            async with self._pool.acquire() as conn:
                try:
                    if not several:
                        return await function(conn, *args)
                    async with conn.transaction():
                        return await function(conn, *args)
                except BROKEN as error:
                    if broke(error):
                        conn.terminate()
                    raise
        except DRIVER_ERRORS as error:
            raise translated(error) from error
        finally:
            self._places.release()

    async def _take_place(self) -> None:
        """Waits for a connection, for as long as any becomes free at all.

        Raises:
            StoreUnavailable: All are in use, and none has become free for long.
        """
        if self._places.locked():
            place = asyncio.create_task(self._places.acquire())
            try:
                await self._wait_for(place)
            except BaseException:
                if not place.cancel():
                    self._places.release()
                raise
        else:
            await self._places.acquire()
        self._taken = time.monotonic()
        task = asyncio.current_task()
        if task is not None:
            self._begun.add(task)

    async def _wait_for(self, place: "asyncio.Task[Any]") -> None:
        while not place.done():
            patience = self._taken + _STILL_SECONDS - time.monotonic()
            if patience <= 0:
                raise StoreUnavailable("the database does not answer")
            await asyncio.wait({place}, timeout=patience)

    async def close(self) -> None:
        """Lets the reads come to their end, but waits for none for long; ends all connections."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_CLOSE_SECONDS)
        pool = self._pool
        if pool is not None:
            if not self._tasks:
                with contextlib.suppress(*DRIVER_ERRORS):
                    await asyncio.wait_for(pool.close(), _CLOSE_SECONDS)
            pool.terminate()
        if self._tasks:  # They are told that their connections have ended.
            await asyncio.wait(set(self._tasks), timeout=1)
        for task in self._tasks:
            task.cancel()
        self._pool = None
