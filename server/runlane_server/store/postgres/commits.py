"""How a batch is written: one transaction, few statements, one outcome for each write."""

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import asyncpg

from runlane_server.core.model import SessionKey
from runlane_server.core.rows import LeaseDropped, LeasePut, SessionInserted
from runlane_server.store.base import (
    CommitUnit,
    LeaseRenewal,
    LoadedSession,
    Outcome,
    Rejected,
    RequestKey,
    RequestRecord,
    Unavailable,
    Write,
)
from runlane_server.store.errors import StoreError, StoreUnavailable
from runlane_server.store.postgres import reads
from runlane_server.store.postgres.connect import Conn, Writing, said
from runlane_server.store.postgres.plan import BadRow, Raced
from runlane_server.store.postgres.units import Known, Lease, Units

Result = TypeVar("Result")

_BLOCK = 64
"""Keys that one number of the sequence stands for."""

_ATTEMPTS = 5
_LOST_RACES = (
    Raced,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    # Where the role, or the database, was given a lock_timeout.
    asyncpg.LockNotAvailableError,
)
"""After these a batch is written again: another server came between, and is done now."""

_OF_ONE_ROW = (
    BadRow,
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    # Of our own code, or of the driver where a value has no form in the database.
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)

# Rows are locked in one order everywhere, so that servers wait for each other in no circle.
# The order is by what no index has: else the rows of a batch would be found by a walk over
# the index that has it, through the whole table.
_LOCK = (
    "SELECT s.key, s.namespace, s.session_id, s.token, s.base_count"
    " FROM unnest($1::text[], $2::text[]) AS u(namespace, session_id)"
    " JOIN sessions s ON s.namespace = u.namespace AND s.session_id = u.session_id"
    " ORDER BY s.key + 0 FOR NO KEY UPDATE OF s"
)
_FIND_REQUESTS = (
    "SELECT r.request_id, r.scope, r.method, r.namespace, r.hash, r.answer, r.create_time"
    " FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])"
    " AS u(request_id, scope, method, namespace) JOIN requests r"
    " ON r.request_id = u.request_id AND r.scope = u.scope AND r.method = u.method"
    " AND r.namespace = u.namespace"
)
_LOCK_LEASES = (
    "SELECT l.activation_id, l.session_key, l.epoch, l.expire_time"
    " FROM unnest($1::text[]) AS u(activation_id)"
    " JOIN leases l ON l.activation_id = u.activation_id"
    " ORDER BY l.activation_id || '' FOR NO KEY UPDATE OF l"
)
_LOCK_LEASES_OF = (
    "SELECT l.activation_id FROM leases l WHERE l.session_key = ANY($1::bigint[])"
    " ORDER BY l.activation_id || '' FOR NO KEY UPDATE"
)
_ALL_THE_TIME = "other servers wrote the same all the time"
Decide = Callable[[list[LoadedSession | None]], Sequence[CommitUnit]]


def is_of_one_row(error: Exception) -> bool:
    """Tells an error that one write brought in from one of the store itself."""
    return isinstance(error, _OF_ONE_ROW)


class Committer:
    """Writes batches, one at a time.

    Attributes:
        faults: For tests: called with `begin`, `unit`, `commit` before each of them; what
            it raises counts as raised by the database. None in production.
    """

    def __init__(self, writing: Writing) -> None:
        self._writing = writing
        self._keys: list[int] = []
        self.faults: Callable[[str], None] | None = None

    async def commit(self, batch: Sequence[Write]) -> list[Outcome]:
        """Writes a batch; returns once it is durable."""
        try:
            return await self._commit(batch)
        except StoreError as error:
            outcome = Unavailable(str(error))
        except Exception as error:  # noqa: BLE001 - each write is told
            # Also where a COMMIT was sent and not answered: it may be there or not.
            outcome = Unavailable(said(error))
        return [outcome] * len(batch)

    async def commit_locked(self, keys: Sequence[SessionKey], decide: Decide) -> list[Outcome]:
        """Locks sessions, and writes what is decided on them; one outcome may stand for all."""
        for _ in range(_ATTEMPTS):
            try:
                return await self.transaction(
                    functools.partial(self._locked, keys=keys, decide=decide)
                )
            except _LOST_RACES:
                continue
            except StoreError as error:
                return [Unavailable(str(error))]
            except Exception as error:  # noqa: BLE001 - who asked is told
                outcome = Rejected if is_of_one_row(error) else Unavailable
                return [outcome(said(error))]
        return [Unavailable(_ALL_THE_TIME)]

    async def _commit(self, batch: Sequence[Write]) -> list[Outcome]:
        # Hardly ever is there a record of a request that gets here: looked for only then.
        looking = apart = False
        for _ in range(_ATTEMPTS + 1):
            work = (
                functools.partial(self._one_by_one, batch=batch)
                if apart
                else functools.partial(self._together, batch=batch, looking=looking)
            )
            try:
                return await self.transaction(work)
            except _LOST_RACES:
                looking = True
            except Exception as error:
                if apart or not is_of_one_row(error):
                    raise
                # One of them is bad: the same again, each on its own ground.
                apart = True
        raise StoreUnavailable(_ALL_THE_TIME)

    async def transaction(self, work: Callable[[Any], Awaitable[Result]]) -> Result:
        """Does a piece of work in one transaction, wholly or not at all."""
        faults = self.faults
        if faults is not None:
            faults("begin")
        conn = await self._writing.get()
        try:
            await conn.execute("BEGIN")
            done = await work(conn)
            if faults is not None:
                faults("commit")
            if await conn.execute("COMMIT") != "COMMIT":
                raise StoreUnavailable("the transaction was taken back")  # noqa: TRY301 - undone
        except BaseException as error:
            await self._writing.undo(error)
            raise
        return done

    # --- a batch -----------------------------------------------------------

    async def _together(
        self, conn: Conn, batch: Sequence[Write], *, looking: bool
    ) -> list[Outcome]:
        units = Units(
            await self._lock(conn, batch),
            await self._requests(conn, batch) if looking else None,
            await self._leases(conn, batch),
            await self._fresh_keys(conn, batch),
        )
        outcomes = []
        for one in batch:
            if self.faults is not None:
                self.faults("unit")
            outcomes.append(units.write(one))
        await units.finish().run(conn)
        return outcomes

    async def _one_by_one(self, conn: Conn, batch: Sequence[Write]) -> list[Outcome]:
        # All of them, in one order, as ever.
        await self._lock(conn, batch)
        await self._leases(conn, batch)
        outcomes = []
        for one in batch:
            await conn.execute("SAVEPOINT one")
            try:
                outcomes += await self._together(conn, [one], looking=True)
            except Exception as error:
                if not is_of_one_row(error):
                    raise
                await conn.execute("ROLLBACK TO one")
                outcomes.append(Rejected(said(error)))
            await conn.execute("RELEASE one")
        return outcomes

    async def _locked(
        self, conn: Conn, keys: Sequence[SessionKey], decide: Decide
    ) -> list[Outcome]:
        found = await self._lock_sessions(conn, set(keys))
        # A heartbeat on another server waits, too: what is decided on a lease's end stands.
        await conn.execute(_LOCK_LEASES_OF, [one.key for one in found.values()])
        writes = decide([await reads.load(conn, key) for key in keys])
        return await self._together(conn, writes, looking=True) if writes else []

    # --- what it starts from -----------------------------------------------

    async def _lock(self, conn: Conn, batch: Sequence[Write]) -> dict[SessionKey, Known]:
        return await self._lock_sessions(
            conn, {name for one in batch if isinstance(one, CommitUnit) for name in _sessions(one)}
        )

    async def _lock_sessions(self, conn: Conn, names: set[SessionKey]) -> dict[SessionKey, Known]:
        if not names:
            return {}
        rows = await conn.fetch(
            _LOCK, [name.namespace for name in names], [name.session_id for name in names]
        )
        return {
            SessionKey(namespace, session_id): Known(key, token, token, base_count)
            for key, namespace, session_id, token, base_count in rows
        }

    async def _requests(
        self, conn: Conn, batch: Sequence[Write]
    ) -> dict[RequestKey, RequestRecord]:
        keys = [
            one.request.key
            for one in batch
            if isinstance(one, CommitUnit) and one.request is not None
        ]
        if not keys:
            return {}
        rows = await conn.fetch(
            _FIND_REQUESTS,
            [key.request_id for key in keys],
            [key.scope for key in keys],
            [key.method for key in keys],
            [key.namespace for key in keys],
        )
        found = {}
        for request_id, scope, method, namespace, *record in rows:
            key = RequestKey(namespace, method, scope, request_id)
            found[key] = RequestRecord(key, *record)
        return found

    async def _leases(self, conn: Conn, batch: Sequence[Write]) -> dict[str, Lease]:
        names: set[str] = set()
        asked = False
        for one in batch:
            if isinstance(one, LeaseRenewal):
                names.add(one.activation_id)
                asked = True
                continue
            for commit in one.sessions:
                for row in commit.rows:
                    if isinstance(row, (LeaseDropped, LeasePut)):
                        # Written later: who has a heartbeat of it has no session's lock.
                        names.add(row.activation_id)
                        asked |= isinstance(row, LeaseDropped) and row.expired_at is not None
        if not asked:
            return {}
        rows = await conn.fetch(_LOCK_LEASES, list(names))
        return {name: Lease(*rest) for name, *rest in rows}

    async def _fresh_keys(self, conn: Conn, batch: Sequence[Write]) -> list[int]:
        """Takes keys for the sessions that a batch may make; those of a failed one are lost."""
        wanted = sum(
            commit.expected_token is None
            for one in batch
            if isinstance(one, CommitUnit)
            for commit in one.sessions
        )
        if len(self._keys) < wanted:
            blocks = (wanted + _BLOCK - 1) // _BLOCK
            rows = await conn.fetch(
                "SELECT nextval('session_keys') FROM generate_series(1, $1::integer)", blocks
            )
            for (first,) in rows:
                self._keys += range(first, first + _BLOCK)
        taken, self._keys = self._keys[:wanted], self._keys[wanted:]
        return taken


def _sessions(unit: CommitUnit) -> list[SessionKey]:
    """Returns the sessions that a unit is about, with the sources of forks."""
    names = [key for key, _ in unit.unchanged]
    for commit in unit.sessions:
        names.append(commit.key)
        names += [
            SessionKey(commit.key.namespace, row.source_session_id)
            for row in commit.rows
            if type(row) is SessionInserted and row.source_session_id
        ]
    return names
