"""What the database adds for servers that share it: what others did, and what is left to do."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runlane_server.core.model import SessionKey
from runlane_server.core.words import NoticeKind, TimerKind
from runlane_server.store.base import (
    Due,
    LiveLease,
    Moves,
    Outcome,
    PollingExecutor,
    QueuedActivation,
    Roster,
    SharedBlock,
    StoredNotice,
    StoredTimer,
)
from runlane_server.store.postgres import deltas
from runlane_server.store.postgres.commits import Decide
from runlane_server.store.postgres.connect import NOW, Conn
from runlane_server.store.postgres.listen import Listener

MOVES_MAX = 2_000
"""Groups of others that are looked at in one read; beyond it all sessions count as moved."""

COUNTED_MAX = 100_000
"""Rows of a kind that are counted."""

# What an earlier snapshot did not see is what had not begun then, and what was under way.
_MOVED = (
    f"SELECT h.snapshot, h.time, n.namespace, n.session_id, n.last FROM"  # noqa: S608 - constants
    f" (SELECT pg_current_snapshot()::text AS snapshot, {NOW} AS time) h LEFT JOIN"
    " (SELECT s.namespace, s.session_id, m.last FROM"
    " ((SELECT e.session_key, e.last FROM events e WHERE e.feed >="
    " pg_snapshot_xmax($1::text::pg_snapshot) AND e.origin <> $2 LIMIT $3)"
    " UNION ALL (SELECT b.session_key, b.last FROM pg_snapshot_xip($1::text::pg_snapshot) x(id)"
    " CROSS JOIN LATERAL (SELECT e.session_key, e.last FROM events e WHERE e.feed = x.id"
    " AND e.origin <> $2) b LIMIT $3)) m JOIN sessions s ON s.key = m.session_key) n ON true"
)
_QUEUED = (
    "SELECT s.namespace, s.session_id, a.activation_id, a.agent, a.queue_time, a.not_before"
    " FROM unnest($1::text[], $2::text[]) AS u(namespace, agent) CROSS JOIN LATERAL"
    " (SELECT q.* FROM queued q WHERE q.namespace = u.namespace AND q.agent = u.agent"
    " AND q.not_before <= $3 ORDER BY q.queue_time, q.activation_id LIMIT $4) a"
    " JOIN sessions s ON s.key = a.session_key"
)


async def tokens(conn: Conn, keys: Sequence[SessionKey]) -> dict[SessionKey, bytes]:
    """Shared.tokens."""
    rows = await conn.fetch(
        "SELECT s.namespace, s.session_id, s.token FROM unnest($1::text[], $2::text[])"
        " AS u(namespace, session_id) JOIN sessions s ON s.namespace = u.namespace"
        " AND s.session_id = u.session_id",
        [key.namespace for key in keys],
        [key.session_id for key in keys],
    )
    return {SessionKey(row[0], row[1]): row[2] for row in rows}


async def moved(conn: Conn, cursor: str, own: int) -> Moves:
    """Shared.moved; `own` is the connection whose writes are left out."""
    if not cursor:
        snapshot, time = await conn.fetchrow(f"SELECT pg_current_snapshot()::text, {NOW}")
        return Moves(snapshot, None, time)
    rows = await conn.fetch(_MOVED, cursor, own, MOVES_MAX + 1)
    snapshot, time, *_ = rows[0]
    if len(rows) > MOVES_MAX:
        return Moves(snapshot, None, time)
    sessions: dict[SessionKey, int] = {}
    for _, _, namespace, session_id, last in rows:
        if last is not None:
            key = SessionKey(namespace, session_id)
            sessions[key] = max(last, sessions.get(key, 0))
    return Moves(snapshot, sessions, time)


async def queued_for(
    conn: Conn, lanes: Sequence[tuple[str, str]], now: int, limit: int
) -> list[QueuedActivation]:
    """Shared.queued_for."""
    rows = await conn.fetch(
        _QUEUED, [lane[0] for lane in lanes], [lane[1] for lane in lanes], now, limit
    )
    return [QueuedActivation(SessionKey(row[0], row[1]), *row[2:]) for row in rows]


async def due(conn: Conn, before: int, put_before: int, limit: int) -> Due:
    """Shared.due. All leases are looked at: an index by their end would burden each heartbeat."""
    timers = await conn.fetch(
        "SELECT s.namespace, s.session_id, t.kind, t.due_time FROM timers t"
        " JOIN sessions s ON s.key = t.session_key WHERE t.due_time <= $1"
        " ORDER BY t.due_time LIMIT $2",
        before,
        limit,
    )
    leases = await conn.fetch(
        "SELECT s.namespace, s.session_id, l.activation_id, l.agent, l.executor_id,"
        " l.expire_time FROM leases l JOIN sessions s ON s.key = l.session_key"
        " WHERE l.expire_time <= $1 LIMIT $2",
        before,
        limit,
    )
    notices = await conn.fetch(
        "SELECT namespace, session_id, kind, cause FROM notices WHERE put_time <= $1"
        " ORDER BY put_time LIMIT $2",
        put_before,
        limit,
    )
    return Due(
        [StoredTimer(SessionKey(row[0], row[1]), TimerKind(row[2]), row[3]) for row in timers],
        [LiveLease(SessionKey(row[0], row[1]), *row[2:]) for row in leases],
        [StoredNotice(SessionKey(row[0], row[1]), NoticeKind(row[2]), row[3]) for row in notices],
    )


async def met(
    conn: Conn, server: str, executors: Sequence[PollingExecutor], forget_before: int
) -> None:
    """Shared.met, inside a transaction that writes."""
    await conn.execute("DELETE FROM executors WHERE last_poll_time < $1", forget_before)
    # Arrays of arrays must be even: each row's agents travel as one text.
    await conn.execute(
        "INSERT INTO executors (server, namespace, executor_id, agents, last_poll_time, polling)"
        " SELECT $1, u.namespace, u.executor_id, string_to_array(u.agents, ' '),"
        " u.last_poll_time, u.polling FROM unnest($2::text[], $3::text[], $4::text[],"
        " $5::bigint[], $6::boolean[]) AS u(namespace, executor_id, agents, last_poll_time,"
        " polling) ON CONFLICT (server, namespace, executor_id) DO UPDATE"
        " SET agents = excluded.agents, last_poll_time = excluded.last_poll_time,"
        " polling = excluded.polling",
        server,
        [one.namespace for one in executors],
        [one.executor_id for one in executors],
        [" ".join(one.agents) for one in executors],
        [one.last_poll_time for one in executors],
        [one.polling for one in executors],
    )


async def roster(conn: Conn, server: str, since: int, now: int) -> Roster:
    """Shared.roster."""
    executors = await conn.fetch(
        "SELECT namespace, executor_id, agents, last_poll_time, polling FROM executors"
        " WHERE server <> $1 AND last_poll_time >= $2 LIMIT $3",
        server,
        since,
        COUNTED_MAX,
    )
    queued = await conn.fetch(
        "SELECT q.namespace, q.agent, count(*), min(q.queue_time) FROM (SELECT namespace, agent,"
        " queue_time FROM queued WHERE namespace >= '' AND not_before <= $1 LIMIT $2) q"
        " GROUP BY q.namespace, q.agent",
        now,
        COUNTED_MAX,
    )
    leased = await conn.fetch(
        "SELECT l.namespace, l.agent, l.executor_id, count(*) FROM (SELECT s.namespace, l.agent,"
        " l.executor_id FROM leases l JOIN sessions s ON s.key = l.session_key LIMIT $1) l"
        " GROUP BY l.namespace, l.agent, l.executor_id",
        COUNTED_MAX,
    )
    return Roster(
        [PollingExecutor(*row) for row in executors],
        {(row[0], row[1]): (row[2], row[3]) for row in queued},
        {(row[0], row[1], row[2]): row[3] for row in leased},
    )


async def drained_among(conn: Conn, names: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Shared.drained_among."""
    rows = await conn.fetch(
        "SELECT d.namespace, d.executor_id FROM unnest($1::text[], $2::text[])"
        " AS u(namespace, executor_id) JOIN drained_executors d"
        " ON d.namespace = u.namespace AND d.executor_id = u.executor_id",
        [name[0] for name in names],
        [name[1] for name in names],
    )
    return [(row[0], row[1]) for row in rows]


@dataclass(frozen=True, slots=True)
class Base:
    """What is used of the store itself.

    Attributes:
        read: Runs a read of one statement.
        snapshot: Runs a read of several statements on one snapshot.
        aside: Runs something that writes beside commits, in one transaction that may be lost.
        commit_locked: Shared.commit_locked.
        writer: Returns the process that serves the connection that writes; 0: there is none.
    """

    read: Callable[..., Awaitable[Any]]
    snapshot: Callable[..., Awaitable[Any]]
    aside: Callable[..., Awaitable[Any]]
    commit_locked: Callable[[Sequence[SessionKey], Decide], Awaitable[list[Outcome]]]
    writer: Callable[[], int]


class PostgresShared:
    """Fulfils `Shared`."""

    def __init__(self, base: Base, listener: Listener) -> None:
        self._base = base
        self._listener = listener
        self._losses = 0
        self._own = 0
        self.tell = listener.tell
        self.hear = listener.hear
        self.wait_told = listener.wait

    async def commit_locked(self, keys: Sequence[SessionKey], decide: Decide) -> list[Outcome]:
        """Locks sessions and writes what is decided on them, in one transaction."""
        return await self._base.commit_locked(keys, decide)

    async def tokens(self, keys: Sequence[SessionKey]) -> dict[SessionKey, bytes]:
        """Reads the tokens of the sessions that are there."""
        found: dict[SessionKey, bytes] = await self._base.read(tokens, keys)
        return found

    async def moved(self, cursor: str) -> Moves:
        """Reads what others have committed since a cursor; "": from now on."""
        losses, writer = self._listener.losses, self._base.writer()
        if losses != self._losses or (self._own and writer != self._own):
            # What was told was not heard; or a COMMIT whose answer was lost with its connection
            # may have been left out as our own: then nobody here knows of it.
            cursor = ""
        # A connection's number may have been another server's before: what that wrote was
        # seen by the first read that knew the new one.
        own = writer if writer == self._own else 0
        found: Moves = await self._base.read(moved, cursor, own or -1)
        self._losses, self._own = losses, writer
        return found

    async def queued_for(
        self, lanes: Sequence[tuple[str, str]], now: int, limit: int
    ) -> list[QueuedActivation]:
        """Reads up to `limit` activations of each (namespace, agent), oldest first."""
        found: list[QueuedActivation] = await self._base.read(queued_for, lanes, now, limit)
        return found

    async def due(self, before: int, put_before: int, limit: int) -> Due:
        """Reads timers and leases that end, and notices that were put, before a time."""
        found: Due = await self._base.snapshot(due, before, put_before, limit)
        return found

    async def met(
        self, server: str, executors: Sequence[PollingExecutor], forget_before: int
    ) -> None:
        """Writes which executors a server sees; forgets those that polled last before a time.

        Beside commits: a poll waits for it.
        """
        await self._base.aside(met, server, executors, forget_before)

    async def roster(self, server: str, since: int, now: int) -> Roster:
        """Reads who works."""
        found: Roster = await self._base.snapshot(roster, server, since, now)
        return found

    async def drained_among(self, names: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Reads which of these (namespace, executor_id) are drained."""
        found: list[tuple[str, str]] = await self._base.read(drained_among, names)
        return found

    async def put_blocks(
        self,
        server: str,
        blocks: Sequence[SharedBlock],
        gone: Sequence[SharedBlock],
        forget_before: int,
    ) -> None:
        """Writes newest states of blocks, beside commits and without waiting for the disk."""
        await self._base.aside(deltas.put_blocks, server, blocks, gone, forget_before)

    async def blocks(
        self, server: str, after: Mapping[SessionKey, int], max_bytes: int
    ) -> list[SharedBlock]:
        """Reads what other servers wrote of sessions, each after its `put_time`."""
        found: list[SharedBlock] = await self._base.read(deltas.blocks, server, after, max_bytes)
        return found
