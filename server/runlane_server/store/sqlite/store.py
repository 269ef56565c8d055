"""The store on one SQLite file, or on a private database in memory."""

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from runlane_server.core.keys import ApiKey
from runlane_server.core.model import SessionKey
from runlane_server.core.words import InteractionState, Phase, SubmissionState
from runlane_server.store.base import (
    READ_BYTES,
    Counts,
    EventGroup,
    FeedPage,
    FeedPlace,
    InteractionRow,
    LiveLease,
    LiveRows,
    LoadedSession,
    MessageRow,
    Outcome,
    QueuedActivation,
    RequestKey,
    RequestRecord,
    RunRow,
    SessionFilter,
    SessionRow,
    StoredNotice,
    StoredTimer,
    StoreInfo,
    SubmissionRow,
    SummaryRow,
    ToolCallRow,
    Usage,
    Write,
)
from runlane_server.store.errors import StoreRefused, StoreUnavailable
from runlane_server.store.sqlite import calls, files, keys, lists, reads, upkeep
from runlane_server.store.sqlite.commits import Committer
from runlane_server.store.sqlite.writer import ReaderThreads, WriterThread, read_snapshot

Result = TypeVar("Result")

_STRETCHES = 20
"""Reads for expired request records in one call."""


def check_file(path: Path) -> list[str]:
    """Verifies a file that nobody has open, and changes nothing; returns what is wrong.

    Raises:
        StoreRefused: A server has it, or it is no store of this version.
    """
    files.refuse_missing(path)
    hold = files.FileHold(path)
    files.refuse_foreign(path)
    hold.take()
    try:
        if not path.stat().st_size:
            raise StoreRefused(f"{path} is empty: no store, until a server makes one of it")
        if files.verify(path):
            raise StoreRefused(f"{path} has an older schema; start a server on it to bring it up")
        conn = files.connect_visitor(path)
        try:
            return read_snapshot(conn, upkeep.check)
        finally:
            conn.close()
    finally:
        hold.give_back()


class SqliteStore:
    """Fulfils `Store` on SQLite.

    One thread writes, a few read. In memory there is one connection: reads run
    on the writing thread, between batches.
    """

    shared = None
    """One process has it alone."""

    def __init__(self, path: Path | None, *, reader_threads: int = 4) -> None:
        """Makes a store; `open` takes it.

        Args:
            path: Its file; None: a private database in memory.
            reader_threads: Threads that read a file, each with a connection of its own.
        """
        self._path = path
        self.info = self._info("", 0)
        self._hold = files.FileHold(path) if path is not None else None
        self._writer = WriterThread("runlane-sqlite-write")
        self._readers = ReaderThreads(path, reader_threads) if path is not None else None
        self._conn: sqlite3.Connection | None = None
        self._committer: Committer | None = None
        self._expiry_place = upkeep.FIRST_PLACE

    def _info(self, store_id: str, epoch: int, secret: bytes = b"") -> StoreInfo:
        kind = "sqlite" if self._path is not None else "memory"
        return StoreInfo(kind, self._path is not None, store_id, epoch, secret)

    # --- opening and closing -----------------------------------------------

    async def open(self, now: int | None, embedded_prefix: str) -> None:
        """Takes the store for this process, or fails with StoreRefused, nothing changed."""
        if now is None:
            now = time.time_ns() // 1000
        self._writer.start()
        opening = self._writer.submit(self._open, now, embedded_prefix)
        try:
            self.info = await asyncio.shield(opening)
        except BaseException:
            await asyncio.shield(asyncio.to_thread(self._close))
            raise

    def _open(self, now: int, embedded_prefix: str) -> StoreInfo:
        path = self._path
        try:
            if path is not None and self._hold is not None:
                files.refuse_foreign(path)
                self._hold.take()
                files.refuse_foreign(path)
                files.verify(path)
            conn = self._conn = files.connect_writer(path)
            files.prepare(conn, path, now)
            upkeep.settle_leases(conn, now, embedded_prefix)
            self._committer = Committer(conn)
            found = conn.execute("SELECT store_id, epoch, secret FROM store").fetchone()
            return self._info(*found)
        except sqlite3.Error as error:
            raise StoreRefused(f"{path or 'the memory store'} cannot be opened: {error}") from error

    async def close(self) -> None:
        """Gives the store back; writes in flight are finished first."""
        await asyncio.shield(asyncio.to_thread(self._close))

    def _close(self) -> None:
        self._writer.stop()
        if self._readers is not None:
            self._readers.stop()
        if self._conn is not None:
            self._conn.close()
            self._conn = None
        if self._hold is not None:
            self._hold.give_back()

    @property
    def is_open(self) -> bool:
        """Whether it takes calls."""
        return self._conn is not None

    def _connection(self) -> sqlite3.Connection:
        if self._conn is None:
            raise StoreUnavailable("the store is not open")
        return self._conn

    def _read(self, function: Callable[..., Result], *args: object) -> Awaitable[Result]:
        """Runs a read on one snapshot, in one hop."""
        conn = self._connection()
        if self._readers is not None:
            return self._readers.submit(function, *args)
        return self._writer.submit(read_snapshot, conn, function, *args)

    # --- writing -----------------------------------------------------------

    async def commit(self, batch: Sequence[Write]) -> list[Outcome]:
        """Writes a batch in one transaction; one outcome each, in order."""
        return await self._writer.submit(self.committer.commit, batch)

    @property
    def committer(self) -> Committer:
        """What writes; tests set its `faults`."""
        if self._committer is None:
            raise StoreUnavailable("the store is not open")
        return self._committer

    async def sweep(self, key: SessionKey, max_rows: int) -> bool:
        """Removes up to `max_rows` rows of a deleted session; True once none is left."""
        return await self._writer.submit(upkeep.sweep, self._connection(), key, max_rows)

    async def expire_requests(self, before: int, max_rows: int) -> int:
        """Removes request records that nothing keeps, made before a time.

        A call looks at a bounded stretch of the records, and the next goes on after it:
        no index by time burdens each write.
        """
        removed = 0
        for _ in range(_STRETCHES):
            found, place = await self._read(
                upkeep.find_expired, self._expiry_place, before, max_rows - removed
            )
            if found:
                removed += await self._writer.submit(
                    upkeep.remove_requests, self._connection(), found
                )
            self._expiry_place = place or upkeep.FIRST_PLACE
            if place is None or removed >= max_rows:
                break
        return removed

    # --- reading -----------------------------------------------------------

    async def load(self, key: SessionKey) -> LoadedSession | None:
        """Reads what a decision starts from."""
        return await self._read(reads.load, key)

    async def find_request(self, key: RequestKey) -> RequestRecord | None:
        """Reads the answer of a request_id."""
        return await self._read(reads.find_request, key)

    async def find_session_of_run(self, namespace: str, run_id: str) -> str | None:
        """Returns the session of a run that exists; also of a terminal one."""
        return await self._read(reads.find_session_of_run, namespace, run_id)

    async def find_session_of_submission(self, namespace: str, submission_id: str) -> str | None:
        """Returns the session of a submission."""
        return await self._read(reads.find_session_of_submission, namespace, submission_id)

    async def session(self, key: SessionKey) -> SessionRow | None:
        """Reads a session."""
        return await self._read(reads.session, key)

    async def list_sessions(
        self,
        namespace: str,
        where: SessionFilter,
        order: int,
        after: tuple[int, str] | None,
        limit: int,
    ) -> list[SessionRow]:
        """Lists sessions after (time, session_id) in an order of SessionOrder."""
        return await self._read(lists.list_sessions, namespace, where, order, after, limit)

    async def run(self, namespace: str, run_id: str) -> RunRow | None:
        """Reads a run."""
        return await self._read(reads.run, namespace, run_id)

    async def list_runs(
        self,
        key: SessionKey,
        phases: Sequence[Phase],
        after: tuple[int, str] | None,
        limit: int,
    ) -> list[RunRow] | None:
        """Lists runs ascending by (create_time, run_id); `phases` empty: all."""
        return await self._read(lists.list_runs, key, phases, after, limit)

    async def list_stalled_runs(
        self, namespace: str, after: tuple[int, str] | None, limit: int
    ) -> list[RunRow]:
        """Lists stalled runs of all sessions, ascending by (create_time, run_id)."""
        return await self._read(lists.list_stalled_runs, namespace, after, limit)

    async def list_child_runs(
        self, namespace: str, run_id: str, after: tuple[int, str] | None, limit: int
    ) -> list[RunRow]:
        """Lists the child runs of a run, ascending by (create_time, run_id)."""
        return await self._read(lists.list_child_runs, namespace, run_id, after, limit)

    async def child_sessions(self, key: SessionKey, limit: int) -> list[str]:
        """Reads ids of the sessions of child runs of a session's runs; not deleted ones."""
        return await self._read(reads.child_sessions, key, limit)

    async def summary(self, key: SessionKey, through: int) -> SummaryRow | None:
        """Reads the summary of a session that covers the messages up to a number."""
        return await self._read(reads.summary, key, through)

    async def notices(self) -> list[StoredNotice]:
        """Reads all notices."""
        return await self._read(reads.notices)

    async def list_tool_calls(
        self,
        namespace: str,
        run_id: str,
        after: tuple[int, int] | None,
        limit: int,
        max_bytes: int = READ_BYTES,
    ) -> list[ToolCallRow]:
        """Lists the calls of a run, ascending by (step, ordinal)."""
        return await self._read(calls.list_tool_calls, namespace, run_id, after, limit, max_bytes)

    async def interaction(self, namespace: str, interaction_id: str) -> InteractionRow | None:
        """Reads an interaction."""
        return await self._read(calls.interaction, namespace, interaction_id)

    async def list_interactions(
        self,
        namespace: str,
        session_id: str,
        state: InteractionState,
        after: tuple[int, str] | None,
        limit: int,
        max_bytes: int = READ_BYTES,
    ) -> list[InteractionRow]:
        """Lists interactions, ascending by (create_time, interaction_id); "": of all sessions."""
        return await self._read(
            calls.list_interactions, namespace, session_id, state, after, limit, max_bytes
        )

    async def answered_interactions(
        self, namespace: str, run_id: str, step: int, max_bytes: int = READ_BYTES
    ) -> list[InteractionRow]:
        """Reads the answered interactions that a run opened after a committed model step."""
        return await self._read(calls.answered_interactions, namespace, run_id, step, max_bytes)

    async def submission(self, namespace: str, submission_id: str) -> SubmissionRow | None:
        """Reads a submission."""
        return await self._read(reads.submission, namespace, submission_id)

    async def submission_of_reserved_run(self, namespace: str, run_id: str) -> SubmissionRow | None:
        """Reads the queued submission that the run id is, or was, reserved for."""
        return await self._read(reads.submission_of_reserved_run, namespace, run_id)

    async def list_submissions(
        self,
        key: SessionKey,
        states: Sequence[SubmissionState],
        after: tuple[int, str] | None,
        limit: int,
        content_limit: int,
    ) -> list[SubmissionRow] | None:
        """Lists submissions ascending by (create_time, submission_id)."""
        return await self._read(lists.list_submissions, key, states, after, limit, content_limit)

    async def last_sequence(self, key: SessionKey) -> int | None:
        """Reads the sequence of the newest event; also of a deleted session."""
        return await self._read(reads.last_sequence, key)

    async def events(
        self, key: SessionKey, after: int, through: int, max_events: int, max_bytes: int
    ) -> list[EventGroup]:
        """Reads groups that hold events after `after` up to `through`, ascending."""
        return await self._read(reads.events, key, after, through, max_events, max_bytes)

    async def feed(
        self, namespace: str, after: FeedPlace, max_events: int, max_bytes: int
    ) -> FeedPage:
        """Reads groups of all sessions of a namespace that hold events after a place."""
        return await self._read(reads.feed, namespace, after, max_events, max_bytes)

    async def feed_end(self) -> FeedPlace:
        """Returns a place that all that is committed from now on comes after."""
        return await self._read(reads.feed_end)

    async def messages(
        self,
        key: SessionKey,
        first: int,
        last: int,
        max_items: int,
        max_bytes: int,
        *,
        descending: bool = False,
    ) -> list[MessageRow]:
        """Reads messages numbered `first` to `last`, ascending or descending."""
        return await self._read(reads.messages, key, first, last, max_items, max_bytes, descending)

    async def messages_by_number(self, key: SessionKey, numbers: Sequence[int]) -> list[MessageRow]:
        """Reads these messages, at most 256, ascending."""
        return await self._read(reads.messages_by_number, key, numbers)

    async def live(
        self, key: SessionKey, message_limit: int, max_bytes: int, content_limit: int
    ) -> LiveRows | None:
        """Reads all that the live state shows in one snapshot."""
        return await self._read(reads.live, key, message_limit, max_bytes, content_limit)

    async def ancestors(self, key: SessionKey, limit: int) -> list[tuple[str, str]]:
        """Reads (session_id, run_id) of the direct source, its source, and so on."""
        return await self._read(reads.ancestors, key, limit)

    async def counts(self, namespace: str, limit: int) -> Counts:
        """Counts, looking at `limit` rows of a kind at most."""
        return await self._read(lists.counts, namespace, limit)

    async def usage(self, namespace: str) -> Usage:
        """Sums up what the sessions of a namespace take."""
        return await self._read(lists.usage, namespace)

    async def queued_activations(self) -> list[QueuedActivation]:
        """Reads all activations that wait, ascending by queue_time."""
        return await self._read(reads.queued_activations)

    async def leases(self) -> list[LiveLease]:
        """Reads all leases."""
        return await self._read(reads.leases)

    async def timers(self) -> list[StoredTimer]:
        """Reads all durable timers."""
        return await self._read(reads.timers)

    async def drained_executors(self) -> list[tuple[str, str]]:
        """Reads (namespace, executor_id) of all drained executors."""
        return await self._read(reads.drained_executors)

    async def api_keys(self) -> list[ApiKey]:
        """Reads all API keys, also revoked ones, ascending by (create_time, key_id)."""
        return await self._read(keys.api_keys)

    async def save_api_key(self, key: ApiKey) -> None:
        """Adds an API key, durable on return; of one that is there, sets revoke_time once."""
        await self._writer.submit(keys.save_api_key, self._connection(), key)

    async def check(self) -> list[str]:
        """Verifies the whole store; returns what is wrong, one line each."""
        return await self._read(upkeep.check)
