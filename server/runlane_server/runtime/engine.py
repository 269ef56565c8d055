"""The engine: takes states, decides, queues, and answers once it is on disk.

A session's hot state lives in a slot. Decisions are made on the newest decided
state, on disk or not; a failed write drops the slot and all that stands on it,
and who is still waiting decides again. No await stands between taking a state,
deciding and queueing: that alone gives order in a session.
"""

import asyncio
import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from runlane_server.core.answers import Answer
from runlane_server.core.context import Context, Decision
from runlane_server.core.drafting import NewId
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.machine import decide, decide_due
from runlane_server.core.model import Rules, SessionKey, SessionState
from runlane_server.core.rows import (
    LeasePut,
    MessageAppended,
    Row,
    RunInserted,
    SubmissionInserted,
    ToolCallMoved,
)
from runlane_server.runtime.codec import Codec, StoredEvent, encode_group
from runlane_server.runtime.committer import Committer
from runlane_server.runtime.hearing import Hearing
from runlane_server.runtime.quotas import Toll
from runlane_server.runtime.records import decode_answer, encode_answer, encode_state
from runlane_server.runtime.slots import Slot, Slots
from runlane_server.runtime.stats import Stats
from runlane_server.store.base import (
    Committed,
    CommitUnit,
    Duplicate,
    EventGroup,
    LeaseRenewal,
    Outcome,
    Rejected,
    RequestKey,
    RequestRecord,
    SessionCommit,
    Store,
    Unavailable,
    Write,
)
from runlane_server.store.errors import StoreCorrupt, StoreUnavailable

ATTEMPTS = 50
"""Decisions that one command may take; beyond it something is wrong."""

STANDS_STILL = 10.0
"""Seconds after which a transaction that has not ended counts as one that never will."""

log = structlog.get_logger(__name__)


class Time(Protocol):
    """Where the time comes from."""

    def now(self) -> int:
        """Returns microseconds since 1970 UTC; never goes back."""


class Observer(Protocol):
    """Who is told what has become durable, in order, before its caller is answered."""

    def committed(
        self, key: SessionKey, group: EventGroup | None, rows: Sequence[Row], size: int
    ) -> None:
        """Takes note of a commit and of the bytes that it added; must not raise."""

    def renewed(self, key: SessionKey, activation_id: str, expire_time: int) -> None:
        """Takes note of a heartbeat; must not raise."""


@dataclass(slots=True)
class Plan:
    """One command: the sessions that it is decided on, and how.

    Attributes:
        keys: One session, or two different ones.
        decide: Gives a decision for each session from its state and context.
        request: Names its request_id; None: it has none.
        hash: Of the request.
        toll: What the call costs its namespace; None: nothing.
        trace: The W3C traceparent of the call; empty: none.
    """

    keys: tuple[SessionKey, ...]
    decide: Callable[[list[SessionState | None], list[Context]], Sequence[Decision]]
    actor: str
    request: RequestKey | None = None
    hash: bytes = b""
    toll: Toll | None = None
    trace: str = ""


def plan(
    key: SessionKey,
    command: Any,
    actor: str,
    request: RequestKey | None = None,
    request_hash: bytes = b"",
    toll: Toll | None = None,
    trace: str = "",
) -> Plan:
    """Returns the plan of a command on one session."""
    return Plan(
        (key,),
        lambda states, contexts: (decide(states[0], command, contexts[0]),),
        actor,
        request,
        request_hash,
        toll,
        trace,
    )


class _Entry:
    """A write on its way: what it was decided on, and who waits for it."""

    __slots__ = ("answer", "flight", "on_done", "resolved", "slots", "toll", "waiters", "write")

    def __init__(
        self, write: Write, slots: list[Slot], on_done: Callable[["_Entry", Outcome], None]
    ) -> None:
        self.write = write
        self.slots = slots
        self.on_done = on_done
        self.flight: _Flight | None = None
        self.answer: Answer | None = None
        self.toll: Toll | None = None
        self.resolved: Outcome | None = None
        self.waiters: list[asyncio.Future[Outcome]] = []

    def alive(self) -> bool:
        """Whether what it was decided on still stands."""
        return all(slot.valid for slot in self.slots)

    def resolve(self, outcome: Outcome) -> None:
        """Tells the engine, then all that wait."""
        self.resolved = outcome
        self.on_done(self, outcome)
        for future in self.waiters:
            if not future.done():
                future.set_result(outcome)

    async def outcome(self) -> Outcome:
        """Waits for the outcome with a future of its own: a cancelled caller harms nobody."""
        if self.resolved is not None:  # what it stands on fell while it was queued
            return self.resolved
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.waiters.append(future)
        return await future


@dataclass(slots=True)
class _Flight:
    """A request_id whose first call has not been answered.

    Attributes:
        owned: Whether that call still waits.
        in_air: Whether a write of it has no outcome yet: then that lands it.
    """

    hash: bytes
    answer: Answer | None = None
    owned: bool = True
    in_air: bool = False
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def land(self) -> None:
        """Wakes the calls that wait for the first."""
        for future in self.waiters:
            if not future.done():
                future.set_result(None)


class Engine:
    """Decides commands and commits them in groups."""

    def __init__(
        self,
        store: Store,
        codec: Codec,
        clock: Time,
        new_id: NewId,
        rules: Rules,
        observer: Observer,
        *,
        slots_max: int = 10_000,
        slots_bytes_max: int = 256 * 1024 * 1024,
        answers_max: int = 10_000,
        linger: float = 0.005,
        batch_max: int = 512,
        deaf_gap: int | None = None,
        stats: Stats | None = None,
    ) -> None:
        self._store = store
        self._codec = codec
        self.clock = clock
        self.stats = stats or Stats()
        self.rules = rules
        self._new_id = new_id
        self._observer = observer
        self._answers_max = answers_max
        self._hearing = Hearing(deaf_gap)
        self._slots = Slots(store.load, slots_max, slots_bytes_max)
        self._flights: dict[RequestKey, _Flight] = {}
        self._answers: OrderedDict[RequestKey, tuple[bytes, Answer]] = OrderedDict()
        self._committer: Committer[_Entry] = Committer(
            store.commit, linger=linger, batch_max=batch_max, stats=self.stats
        )
        # No other process, and no other life of this one, can make the same token.
        self._boot = os.urandom(8)
        self._tokens = 0

    @property
    def writes_waiting(self) -> int:
        """How many writes wait for a transaction."""
        return len(self._committer)

    @property
    def hot_sessions(self) -> int:
        """How many sessions have their state kept in memory."""
        return len(self._slots)

    @property
    def store_away(self) -> bool:
        """Whether the store takes no writes: it refused the last one, or does not end it."""
        return self._hearing.store_away or self._committer.flight_seconds > STANDS_STILL

    async def look(self) -> None:
        """Takes note of the time, and tries the store where it is in doubt; once a second."""
        now = self.clock.now()
        self._hearing.look(now)
        if self._hearing.doubts(now):
            await self.write(CommitUnit())

    async def flush(self) -> None:
        """Waits until all that was decided is durable, or failed."""
        await self._committer.flush()

    # --- commands ----------------------------------------------------------

    async def execute(self, command: Plan) -> tuple[Answer, bool]:
        """Decides and commits; returns the answer and whether it is an earlier call's.

        Raises:
            Refused: A rule or a quota says no, or the request_id was used with another request.
            StoreUnavailable: It may be committed or not; the request_id settles which.
        """
        toll = command.toll
        answer, replayed = await self._execute(command, toll.refusal if toll is not None else None)
        if replayed and toll is not None:
            toll.replayed()
        return answer, replayed

    async def _execute(self, command: Plan, refusal: Refused | None) -> tuple[Answer, bool]:
        """Executes; with a refusal it only answers what an earlier call was answered."""
        request = command.request
        known = await self._known(request, command.hash) if request is not None else None
        if known is None and refusal is not None:
            known = await self._stored(request, command.hash)
            if known is None:
                raise refusal
        if known is not None:
            return known, True
        if request is None:
            return await self._attempt(command, None)
        flight = self._flights[request] = _Flight(command.hash)
        try:
            return await self._attempt(command, flight)
        finally:
            flight.owned = False
            if not flight.in_air:
                self._land(request, flight)

    async def renew(
        self, key: SessionKey, holds: Callable[[SessionState], bool], renewal: LeaseRenewal
    ) -> SessionState:
        """Renews a lease; `renewal.expire_time` is filled in from its duration.

        Raises:
            Refused: STALE_ACTIVATION where `holds` says no of the state, or the store does.
        """
        for _ in range(ATTEMPTS):
            slot = await self._slots.take(key)
            await self._committer.room()
            if not slot.valid:
                continue
            now = self.clock.now()
            self._settle_due(slot, now)
            state = slot.state
            if state is None or not holds(state):
                if not await self._on_disk([slot]):
                    continue
                raise Refused(Reason.STALE_ACTIVATION)
            renewal.expire_time = now + renewal.duration
            slot.lease_expire_time, slot.lease_confirmed = renewal.expire_time, True
            slot.lease_duration = renewal.duration
            outcome = await self._enqueue(renewal, [slot]).outcome()
            self._raise_failed(outcome)
            if not slot.valid:  # what `state` stands on fell, whatever became of the lease
                continue
            if isinstance(outcome, Committed):
                self._observer.renewed(key, renewal.activation_id, renewal.expire_time)
                return state
            raise Refused(Reason.STALE_ACTIVATION)
        raise StoreUnavailable("a lease could not be renewed: its session changed all the time")

    async def write(self, unit: CommitUnit) -> Outcome:
        """Commits a unit that belongs to no session, in turn with all others."""
        await self._committer.room()
        return await self._enqueue(unit, []).outcome()

    async def peek(self, key: SessionKey) -> Slot:
        """Returns the slot of a session, newest decided state and all, due ones settled."""
        slot = await self._slots.take(key)
        self._settle_due(slot, self.clock.now())
        return slot

    async def settled(
        self, key: SessionKey, attempts: int = ATTEMPTS
    ) -> tuple[SessionState | None, int]:
        """Returns the state of a session and the end of its lease, as they are on disk.

        What is due is settled before. Where a write fails it is tried again.
        """
        for _ in range(attempts):
            slot = await self.peek(key)
            state, lease_expire_time = slot.state, slot.lease_expire_time
            if await self._on_disk([slot]):
                return state, lease_expire_time
        raise StoreUnavailable("a session could not be settled: a write of it failed")

    async def answered(self, request: RequestKey, request_hash: bytes) -> Answer | None:
        """Returns the answer that a request_id has got, waiting for a call in flight.

        Raises:
            Refused: The request_id was used with another request.
        """
        known = await self._known(request, request_hash)
        return known if known is not None else await self._stored(request, request_hash)

    # --- deciding ----------------------------------------------------------

    async def _attempt(self, command: Plan, flight: _Flight | None) -> tuple[Answer, bool]:
        toll = command.toll
        for _ in range(ATTEMPTS):
            if toll is not None:
                await toll.ready()
            slots = [await self._slots.take(key) for key in command.keys]
            await self._committer.room()
            if not all(slot.valid for slot in slots):
                continue
            try:
                decisions = self._decide(command, slots)
                if toll is not None:
                    toll.admit(decisions)
            except Refused:
                if not await self._on_disk(slots):
                    continue
                stored = await self._stored(command.request, command.hash)
                if stored is not None:
                    return stored, True
                raise
            answer = next(one.answer for one in reversed(decisions) if one.answer is not None)
            written = any(one.state is not None for one in decisions)
            if not written and flight is None:
                if await self._on_disk(slots):
                    return answer, False
                continue
            unit = self._unit(command, slots, decisions, answer)
            outcome = await self._enqueue(unit, slots, flight, answer, toll).outcome()
            if isinstance(outcome, Committed):
                return answer, False
            if isinstance(outcome, Duplicate):
                return _replay_of(outcome.record, command.hash), True
            self._raise_failed(outcome)
        raise StoreUnavailable("a command could not be decided: its session changed all the time")

    def _decide(self, command: Plan, slots: list[Slot]) -> Sequence[Decision]:
        now = self.clock.now()
        contexts = []
        for slot in slots:
            self._settle_due(slot, now)
            contexts.append(self._context(slot, now, command))
        return command.decide([slot.state for slot in slots], contexts)

    def _context(self, slot: Slot, now: int, command: Plan | None) -> Context:
        request_id = command.request.request_id if command and command.request else ""
        return Context(
            slot.key,
            now,
            slot.lease_expire_time,
            self._new_id,
            self.rules,
            request_id,
            slot.lease_confirmed,
            command.trace if command else "",
        )

    def _settle_due(self, slot: Slot, now: int) -> None:
        """Decides and queues what is due, so that every command comes after it."""
        self._hearing.look(now)
        if slot.lease_expire_time:
            slot.lease_expire_time = self._hearing.end(
                slot.lease_expire_time, slot.lease_duration, now
            )
        while slot.state is not None:
            decision = decide_due(slot.state, self._context(slot, now, None))
            if decision is None:
                return
            unit = CommitUnit([self._session_commit(slot, decision, "server", "")])
            self._enqueue(unit, [slot])

    def _unit(
        self, command: Plan, slots: list[Slot], decisions: Sequence[Decision], answer: Answer
    ) -> CommitUnit:
        unit = CommitUnit()
        request_id = command.request.request_id if command.request else ""
        for slot, decision in zip(slots, decisions, strict=True):
            if decision.state is not None:
                commit = self._session_commit(slot, decision, command.actor, request_id)
                unit.sessions.append(commit)
            elif slot.token is not None:
                unit.unchanged.append((slot.key, slot.token))
        if len(unit.sessions) > 1:
            unit.sessions.sort(key=lambda one: (one.key.namespace, one.key.session_id))
        if command.request is not None:
            unit.request = RequestRecord(
                command.request, command.hash, encode_answer(answer), self.clock.now()
            )
        return unit

    def _session_commit(
        self, slot: Slot, decision: Decision, actor: str, request_id: str
    ) -> SessionCommit:
        """Encodes a decision, and makes it the slot's newest."""
        state = decision.state
        assert state is not None, "only written decisions are committed"  # noqa: S101 - invariant
        codec, session_id = self._codec, state.session_id
        self._tokens += 1
        token = self._boot + self._tokens.to_bytes(8)
        events = [
            StoredEvent(
                event.type,
                event.run_id,
                event.run_sequence,
                event.message_number,
                codec.event(event, session_id, actor, request_id),
            )
            for event in decision.events
        ]
        group = None
        if events:
            first = decision.events[0].sequence
            group = EventGroup(first, first + len(events) - 1, encode_group(events))
        encoded: dict[int, bytes] = {}
        size = len(group.data) if group is not None else 0
        for index, row in enumerate(decision.rows):
            if isinstance(row, MessageAppended):
                encoded[index] = data = codec.message(row, session_id, row.content)
                size += len(data)
            elif isinstance(row, ToolCallMoved):
                size += len(row.result.data) if row.result is not None else 0
            elif (isinstance(row, RunInserted) and row.options is not None) or isinstance(
                row, SubmissionInserted
            ):
                assert row.options is not None  # noqa: S101 - tested above
                encoded[index] = codec.options(row.options)
                if isinstance(row, SubmissionInserted):
                    size += len(row.content.data)
        commit = SessionCommit(
            slot.key,
            slot.token,
            token,
            encode_state(state),
            state.status,
            state.run.run_id if state.run is not None else "",
            state.update_time,
            group,
            decision.rows,
            encoded,
            size,
        )
        slot.state = state
        slot.token = token
        self._slots.resize(slot, len(commit.state))
        if decision.lease_expire_time is not None:
            slot.lease_expire_time = decision.lease_expire_time
            for row in decision.rows:
                if isinstance(row, LeasePut):
                    slot.lease_duration = row.duration
            slot.lease_confirmed = decision.lease_confirmed
        return commit

    # --- outcomes ----------------------------------------------------------

    def _enqueue(
        self,
        write: Write,
        slots: list[Slot],
        flight: _Flight | None = None,
        answer: Answer | None = None,
        toll: Toll | None = None,
    ) -> _Entry:
        entry = _Entry(write, slots, self._done)
        entry.toll = toll
        if flight is not None:
            entry.flight, entry.answer = flight, answer
            flight.in_air = True
        for slot in slots:
            slot.last_write = entry
        self._committer.enqueue(entry)
        return entry

    def _done(self, entry: _Entry, outcome: Outcome) -> None:
        committed = isinstance(outcome, Committed)
        if committed or isinstance(outcome, Unavailable):
            self._hearing.store(self.clock.now(), taken=committed)
        if not committed:
            self.stats.refused(outcome)
        for slot in entry.slots:
            if slot.last_write is entry:
                slot.last_write = None
            # A renewal that lost its lease tells nothing of the state.
            lost = not committed and not isinstance(entry.write, LeaseRenewal)
            if lost or isinstance(outcome, Unavailable):
                self._slots.drop(slot)
        write = entry.write
        if isinstance(write, CommitUnit):
            if committed:
                for one in write.sessions:
                    self._observer.committed(one.key, one.events, one.rows, one.size)
            elif isinstance(outcome, Rejected | Unavailable):
                log.error(
                    "write failed",
                    outcome=type(outcome).__name__,
                    detail=outcome.detail,
                    **_ids(write),
                )
            if entry.toll is not None:
                entry.toll.settled(write if committed else None)
            self._answered(entry, write, outcome)

    def _answered(self, entry: _Entry, unit: CommitUnit, outcome: Outcome) -> None:
        """Remembers the answer of a request_id, and wakes the calls that wait for it."""
        flight, record = entry.flight, unit.request
        if flight is None or record is None:
            return
        flight.in_air = False
        if isinstance(outcome, Duplicate):
            record = outcome.record
            flight.hash = record.hash
            with contextlib.suppress(StoreCorrupt):  # the call itself is told
                flight.answer = decode_answer(record.answer)
        elif isinstance(outcome, Committed):
            flight.answer = entry.answer
        if flight.answer is not None:
            self._remember(record.key, flight.hash, flight.answer)
        if flight.answer is not None or not flight.owned:
            self._land(record.key, flight)

    def _remember(self, key: RequestKey, request_hash: bytes, answer: Answer) -> None:
        self._answers[key] = (request_hash, answer)
        if len(self._answers) > self._answers_max:
            self._answers.popitem(last=False)

    def _land(self, key: RequestKey, flight: _Flight) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
        flight.land()

    async def _known(self, request: RequestKey, request_hash: bytes) -> Answer | None:
        """Looks a request_id up among calls in flight, which it waits for, and recent answers."""
        while (flight := self._flights.get(request)) is not None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            flight.waiters.append(future)
            await future
            if flight.answer is not None:
                return _replay(request, request_hash, flight.hash, flight.answer)
        recent = self._answers.get(request)
        return _replay(request, request_hash, *recent) if recent is not None else None

    async def _stored(self, request: RequestKey | None, request_hash: bytes) -> Answer | None:
        """Looks a request_id up in the store."""
        record = await self._store.find_request(request) if request is not None else None
        return _replay_of(record, request_hash) if record is not None else None

    async def _on_disk(self, slots: list[Slot]) -> bool:
        """Waits for what a decision that writes nothing stands on; False: it failed."""
        for slot in slots:
            if slot.last_write is not None:
                await slot.last_write.outcome()
        return all(slot.valid for slot in slots)

    def _raise_failed(self, outcome: Outcome) -> None:
        if isinstance(outcome, Unavailable):
            raise StoreUnavailable(outcome.detail)
        if isinstance(outcome, Rejected):
            raise StoreCorrupt(f"the store refused a row: {outcome.detail}")


def _ids(unit: CommitUnit) -> dict[str, str]:
    """Returns what a write is about, for a line of the log."""
    found: dict[str, str] = {}
    if unit.request is not None:
        found["request_id"] = unit.request.key.request_id
    if unit.sessions:
        first = unit.sessions[0]
        found |= {"session_id": first.key.session_id, "run_id": first.current_run_id}
    return {name: value for name, value in found.items() if value}


def _replay(request: RequestKey, request_hash: bytes, known_hash: bytes, answer: Answer) -> Answer:
    if request_hash != known_hash:
        raise Refused(Reason.REQUEST_ID_REUSED, request_id=request.request_id)
    return answer


def _replay_of(record: RequestRecord, request_hash: bytes) -> Answer:
    return _replay(record.key, request_hash, record.hash, decode_answer(record.answer))
