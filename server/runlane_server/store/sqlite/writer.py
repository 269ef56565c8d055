"""The one thread that writes, and the threads that read."""

import asyncio
import contextlib
import queue
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from runlane_server.store.errors import StoreCorrupt, StoreError, StoreUnavailable
from runlane_server.store.sqlite.files import connect_reader

Result = TypeVar("Result")


def translated(error: sqlite3.Error) -> StoreError:
    """Says what an error of the driver means to who uses the store."""
    text = str(error)
    if not isinstance(error, sqlite3.OperationalError) and (
        "malformed" in text or "not a database" in text
    ):
        return StoreCorrupt(text)
    return StoreUnavailable(f"{type(error).__name__}: {text}")


def read_snapshot(
    conn: sqlite3.Connection, function: Callable[..., Result], *args: object
) -> Result:
    """Runs a read inside one transaction, so that all its statements see one snapshot."""
    try:
        conn.execute("BEGIN")
        try:
            return function(conn, *args)
        finally:
            # Nothing was written: whatever happened, this only ends the snapshot.
            if conn.in_transaction:
                conn.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise translated(error) from error


def _settle(future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if future.done():  # The caller was cancelled; what was done is done all the same.
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


class WriterThread:
    """Runs jobs one after the other on a thread of its own; one hop a job.

    A job runs to its end whatever becomes of who waits for it.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[
            tuple[
                Callable[..., Any],
                tuple[Any, ...],
                asyncio.Future[Any],
                asyncio.AbstractEventLoop,
            ]
            | None
        ] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._stopped = False

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def submit(self, function: Callable[..., Result], *args: object) -> "asyncio.Future[Result]":
        """Queues a job; its result comes through the running loop."""
        if self._stopped:
            raise StoreUnavailable("the store is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._jobs.put((function, args, future, loop))
        return future

    def stop(self) -> None:
        """Lets the jobs that are queued run, then ends the thread. Blocks."""
        if not self._stopped:
            self._stopped = True
            self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, args, future, loop = job
            result: object = None
            failure: BaseException | None = None
            try:
                result = function(*args)
            except sqlite3.Error as error:
                failure = translated(error)
            except BaseException as error:  # noqa: BLE001 - it is handed to who waits
                failure = error
            # The loop may be closed by now: then nobody waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_settle, future, result, failure)
            del job, function, args, future, loop, result, failure


class ReaderThreads:
    """A few threads, each with its own connection that can only read; one hop a read.

    Cancelling who waits leaves no transaction open: a read runs to its end in its thread.
    """

    def __init__(self, path: Path, count: int) -> None:
        self._path = path
        self._local = threading.local()
        self._lock = threading.Lock()
        self._connections: list[sqlite3.Connection] = []
        self._pool = ThreadPoolExecutor(count, "runlane-sqlite-read")

    def submit(self, function: Callable[..., Result], *args: object) -> Awaitable[Result]:
        """Queues a read; its result comes through the running loop."""
        loop = asyncio.get_running_loop()
        try:
            return loop.run_in_executor(self._pool, self._run, function, args)
        except RuntimeError as error:
            raise StoreUnavailable("the store is closed") from error

    def stop(self) -> None:
        """Lets the reads that are queued run, then closes all connections. Blocks."""
        self._pool.shutdown(wait=True)
        with self._lock:
            for conn in self._connections:
                conn.close()
            self._connections.clear()

    def _run(self, function: Callable[..., Result], args: tuple[object, ...]) -> Result:
        conn: sqlite3.Connection | None = getattr(self._local, "conn", None)
        if conn is None:
            conn = connect_reader(self._path)
            self._local.conn = conn
            with self._lock:
                self._connections.append(conn)
        return read_snapshot(conn, function, *args)
