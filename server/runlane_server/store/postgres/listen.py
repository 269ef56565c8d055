"""The connection on which servers of one database tell each other that something has moved.

What is told may be lost: nobody relies on it. The connection also has an advisory lock, shared
with all other servers, so that one that starts knows whether it is alone.
"""

import asyncio
import contextlib
from typing import Any

import structlog

from runlane_server.store.errors import StoreError
from runlane_server.store.postgres.connect import DRIVER_ERRORS, Address, close_quietly, said

SERVING = 0x52756E6C01
"""Key of an advisory lock: `Runl` and a number."""

_CHANNEL = "runlane"
_TELL_SECONDS, _TELL_MAX_SECONDS, _TELLS = 0.01, 0.1, 8
"""How long what is to be told waits for more after something was told: as long as so many
times of telling take, within these bounds."""

_LOOK_SECONDS = 5.0
_AGAIN_SECONDS = 0.25

log = structlog.get_logger(__name__)


class Listener:
    """Tells, hears, and comes back by itself.

    Attributes:
        conn: The connection; for work at the opening.
        losses: How often it was lost: what was told meanwhile was not heard.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._alone = False
        self._pid = 0
        self._news: set[str] = set()
        self._heard: set[str] = set()
        self._wake = asyncio.Event()
        self._told = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.conn: Any = None
        self.losses = 0

    # --- opening and closing -----------------------------------------------

    async def connect(self) -> Any:
        """Makes the connection, and returns it."""
        self.conn = await self._address.connect(
            "listen",
            default_transaction_read_only="off",
            default_transaction_isolation="read committed",
            # What is told is no data; a wait for the disk would be for nothing.
            synchronous_commit="off",
        )
        return self.conn

    async def alone(self) -> bool:
        """Tells whether no other server has the database; none comes before `join` then."""
        self._alone = await self.conn.fetchval(f"SELECT pg_try_advisory_lock({SERVING})")
        return self._alone

    async def join(self) -> None:
        """Becomes one of the servers, and begins to tell and hear."""
        await self._enter()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Ends the connection; again does nothing."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        conn, self.conn = self.conn, None
        if conn is not None and not conn.is_closed():
            with contextlib.suppress(*DRIVER_ERRORS):  # They end with the connection, too.
                await conn.execute("SELECT pg_advisory_unlock_all()", timeout=2)
            await close_quietly(conn)

    # --- telling and hearing -----------------------------------------------

    def tell(self, what: str) -> None:
        """Tells all others a word, soon."""
        self._news.add(what)
        self._wake.set()

    def hear(self, what: str) -> None:
        """Takes in a word."""
        self._heard.add(what)
        self._told.set()

    async def wait(self, seconds: float) -> set[str]:
        """Waits for words, or until the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._told.wait()
        self._told.clear()
        heard, self._heard = self._heard, set()
        return heard

    def _on_word(self, _conn: Any, pid: int, _channel: str, words: str) -> None:
        if pid != self._pid:
            for word in words.split():
                self.hear(word)

    async def _enter(self) -> None:
        conn = self.conn
        conn.add_termination_listener(lambda _: self._wake.set())
        # Asked for: a pooler tells the driver another number.
        self._pid = await conn.fetchval("SELECT pg_backend_pid()")
        await conn.execute(f"SELECT pg_advisory_lock_shared({SERVING})")
        if self._alone:
            self._alone = False
            await conn.execute(f"SELECT pg_advisory_unlock({SERVING})")
        await conn.add_listener(_CHANNEL, self._on_word)

    async def _run(self) -> None:
        lost, loop = False, asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            began = loop.time()
            try:
                await self._tell()
            except (StoreError, *DRIVER_ERRORS) as error:
                if not lost:
                    log.warning("listener lost", error=said(error))
                lost = True
                if self.conn is not None:
                    self.conn.terminate()
                self._wake.set()
                await asyncio.sleep(_AGAIN_SECONDS)
            else:
                lost = False
                pause = (loop.time() - began) * _TELLS
                await asyncio.sleep(min(max(pause, _TELL_SECONDS), _TELL_MAX_SECONDS))

    async def _tell(self) -> None:
        if self.conn.is_closed():
            self.losses += 1
            await self.connect()
            await self._enter()
            self.hear("moved")
            log.info("listening again")
        news, self._news = self._news, set()
        # A network that says nothing any more is only found by asking.
        await self.conn.execute("SELECT pg_notify($1, $2)", _CHANNEL, " ".join(sorted(news)))
