"""The store on a PostgreSQL database."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from runlane_server.core.keys import ApiKey
from runlane_server.core.model import SessionKey
from runlane_server.core.words import InteractionState, Phase, SubmissionState
from runlane_server.store.base import (
    READ_BYTES,
    Committed,
    CommitUnit,
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
from runlane_server.store.errors import StoreError, StoreRefused, StoreUnavailable
from runlane_server.store.postgres import calls, feed, keys, lists, reads, schema, upkeep
from runlane_server.store.postgres.commits import Committer, Decide
from runlane_server.store.postgres.connect import (
    DRIVER_ERRORS,
    NOW,
    Address,
    Reading,
    Writing,
    close_quietly,
    said,
    translated,
)
from runlane_server.store.postgres.listen import Listener
from runlane_server.store.postgres.shared import Base, PostgresShared

Result = TypeVar("Result")

_CHECK_SECONDS = 24 * 3600.0
_SWEEP_PAUSE = 0.05
_STRETCHES = 20
"""Reads for expired request records in one call."""


async def check_database(address: Address) -> list[str]:
    """Verifies a database, also beside its server, and changes nothing; returns what is wrong.

    Raises:
        StoreRefused: It holds no store of this version.
    """
    patient = replace(address, statement_timeout=_CHECK_SECONDS, standby=True)
    conn = await patient.connect("check", default_transaction_read_only="on")
    try:
        await schema.refuse_unfit(conn)
        if not await schema.has_store(conn):
            raise StoreRefused("the database holds no store")
        await schema.missing(conn, verify=True)
        async with conn.transaction(isolation="repeatable_read"):
            return await upkeep.check(conn)
    except DRIVER_ERRORS as error:
        raise translated(error) from error
    finally:
        await close_quietly(conn)


class PostgresStore:
    """Fulfils `Store` on PostgreSQL; any number of servers may have one open at the same time.

    One connection writes, a few read, and one tells other servers and hears them.
    """

    def __init__(self, address: Address, *, readers: int = 8) -> None:
        """Makes a store; `open` opens it.

        Args:
            address: Where the database is.
            readers: Connections that read.
        """
        self._address = address
        self.info = StoreInfo("postgresql", True, "", 0)
        self._listener = Listener(address)
        self._writing = Writing(address)
        self._reading = Reading(address, readers)
        self._committer: Committer | None = None
        self._turn = asyncio.Lock()
        self._writes: set[asyncio.Task[Any]] = set()
        self._cut = False
        self._expiry_place = upkeep.FIRST_PLACE
        self.shared = PostgresShared(
            Base(
                self._read,
                self._snapshot,
                self.aside,
                self.commit_locked,
                lambda: self._writing.pid,
            ),
            self._listener,
        )

    # --- opening and closing -----------------------------------------------

    async def open(self, now: int | None, embedded_prefix: str) -> None:
        """Opens the store, or fails with StoreRefused, nothing changed."""
        try:
            await self._open(now, embedded_prefix)
        except BaseException as error:
            await asyncio.shield(self.close())
            if isinstance(error, StoreRefused) or not isinstance(
                error, (StoreError, *DRIVER_ERRORS)
            ):
                raise
            text = str(error) if isinstance(error, StoreError) else said(error)
            raise StoreRefused(f"the store cannot be opened: {text}") from None

    async def _open(self, now: int | None, embedded_prefix: str) -> None:
        conn = await self._listener.connect()
        if now is None:
            now = await conn.fetchval(f"SELECT {NOW}")
        await schema.refuse_unfit(conn)
        await schema.prepare(conn, now)
        if await self._listener.alone():
            async with conn.transaction():
                await upkeep.settle_leases(conn, now, embedded_prefix)
        found = await conn.fetchrow("SELECT store_id, epoch, secret FROM store")
        await self._listener.join()
        await self._reading.open()
        await self._writing.get()
        self._committer = Committer(self._writing)
        self.info = StoreInfo("postgresql", True, *found)

    async def close(self) -> None:
        """Closes the store; writes in flight are finished first."""
        self._committer = None
        if self._writes:
            # A statement that has begun ends within this, whatever the network does.
            await asyncio.wait(set(self._writes), timeout=self._address.longest)
        if self._writes:
            self._cut = True
            self._writing.terminate()
            await asyncio.wait(set(self._writes), timeout=1)
            for task in self._writes:
                task.cancel()
        await self._reading.close()
        await self._writing.close()
        await self._listener.close()

    @property
    def is_open(self) -> bool:
        """Whether it takes calls."""
        return self._committer is not None

    # --- writing -----------------------------------------------------------

    async def commit(self, batch: Sequence[Write]) -> list[Outcome]:
        """Writes a batch in one transaction; one outcome each, in order."""
        outcomes = await self._in_turn(self.committer.commit(batch))
        for one, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Committed) and isinstance(one, CommitUnit):
                if one.sessions:
                    self._listener.tell("moved")
                if one.drained_executor is not None:
                    self._listener.tell("executors")
        return outcomes

    async def commit_locked(self, keys: Sequence[SessionKey], decide: Decide) -> list[Outcome]:
        """Locks sessions and writes what is decided on them, in one transaction."""
        outcomes = await self._in_turn(self.committer.commit_locked(keys, decide))
        self._listener.tell("moved")
        return outcomes

    @property
    def committer(self) -> Committer:
        """What writes; tests set its `faults`."""
        if self._committer is None:
            raise StoreUnavailable("the store is not open")
        return self._committer

    def _in_turn(self, work: Coroutine[Any, Any, Result]) -> Awaitable[Result]:
        """Does work that writes behind all that was asked for before.

        It is done to its end whatever becomes of who waits for it.
        """

        async def do() -> Result:
            async with self._turn:
                if self._cut:
                    work.close()
                    raise StoreUnavailable("the store is closed")
                return await work

        task = asyncio.get_running_loop().create_task(do())
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)
        return asyncio.shield(task)

    async def _write(self, function: Callable[..., Awaitable[Result]], *args: object) -> Result:
        """Runs something that writes in one transaction, in turn."""
        committer = self.committer
        try:
            done: Result = await self._in_turn(
                committer.transaction(lambda conn: function(conn, *args))
            )
        except DRIVER_ERRORS as error:
            raise translated(error) from error
        return done

    async def sweep(self, key: SessionKey, max_rows: int) -> bool:
        """Removes up to `max_rows` rows of a deleted session; True once none is left."""
        done = await self._write(upkeep.sweep, key, max_rows)
        if done is None:
            await asyncio.sleep(_SWEEP_PAUSE)
        return bool(done)

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
                removed += await self._write(upkeep.remove_requests, found)
            self._expiry_place = place or upkeep.FIRST_PLACE
            if place is None:
                await self._write(upkeep.forget_drained)
            if place is None or removed >= max_rows:
                break
        return removed

    async def check(self) -> list[str]:
        """Verifies the whole store; returns what is wrong, one line each."""
        return await self._snapshot(upkeep.check)

    # --- how reads run -----------------------------------------------------

    def _read(self, function: Callable[..., Awaitable[Result]], *args: object) -> Awaitable[Result]:
        """Runs a read of one statement."""
        return self._submit(function, args, several=False)

    def _snapshot(
        self, function: Callable[..., Awaitable[Result]], *args: object
    ) -> Awaitable[Result]:
        """Runs a read of several statements on one snapshot."""
        return self._submit(function, args, several=True)

    def aside(self, function: Callable[..., Awaitable[Result]], *args: object) -> Awaitable[Result]:
        """Runs something that writes beside commits, in one transaction that may be lost."""

        async def write(conn: Any) -> Result:
            # A connection that reads, for once: the one that writes is for commits.
            await conn.execute(
                "BEGIN READ WRITE ISOLATION LEVEL READ COMMITTED;"
                " SET LOCAL synchronous_commit = off"
            )
            try:
                done = await function(conn, *args)
                await conn.execute("COMMIT")
            except BaseException:
                if not conn.is_closed():
                    await conn.execute("ROLLBACK")
                raise
            return done

        return self._submit(write, (), several=False)

    def _submit(
        self, function: Callable[..., Awaitable[Result]], args: tuple[object, ...], *, several: bool
    ) -> Awaitable[Result]:
        if self._committer is None:
            raise StoreUnavailable("the store is not open")
        return self._reading.submit(function, *args, several=several)

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
        return await self._snapshot(lists.list_runs, key, phases, after, limit)

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
        """Reads the newest answered interactions that a run opened after a committed step."""
        return await self._read(calls.answered_interactions, namespace, run_id, step, max_bytes)

    async def submission(self, namespace: str, submission_id: str) -> SubmissionRow | None:
        """Reads a submission."""
        return await self._snapshot(reads.submission, namespace, submission_id)

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
        return await self._snapshot(
            lists.list_submissions, key, states, after, limit, content_limit
        )

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
        return await self._read(feed.feed, namespace, after, max_events, max_bytes)

    async def feed_end(self) -> FeedPlace:
        """Returns a place that all that is committed from now on comes after."""
        return await self._read(feed.feed_end)

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
        return await self._snapshot(reads.live, key, message_limit, max_bytes, content_limit)

    async def ancestors(self, key: SessionKey, limit: int) -> list[tuple[str, str]]:
        """Reads (session_id, run_id) of the direct source, its source, and so on."""
        return await self._read(reads.ancestors, key, limit)

    async def counts(self, namespace: str, limit: int) -> Counts:
        """Counts, looking at `limit` rows of a kind at most."""
        return await self._snapshot(lists.counts, namespace, limit)

    async def api_keys(
        self,
        live_at: int = 0,
        namespaces: Sequence[str] | None = None,
        after: tuple[int, str] | None = None,
        limit: int = 0,
    ) -> list[ApiKey]:
        """Reads API keys, ascending by (create_time, key_id)."""
        return await self._read(keys.api_keys, live_at, namespaces, after, limit)

    async def api_key(self, key_id: str) -> ApiKey | None:
        """Reads an API key."""
        return await self._read(keys.api_key, key_id)

    async def api_key_of_request(self, request_id: str) -> ApiKey | None:
        """Reads the API key that a request made."""
        return await self._read(keys.api_key_of_request, request_id)

    async def save_api_key(self, key: ApiKey) -> bool:
        """Adds an API key, durable on return; of one that is there, sets revoke_time once."""
        return await self._write(keys.save_api_key, key)

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
