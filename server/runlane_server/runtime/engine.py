"""The engine: takes states, decides, queues, and answers once it is on disk.

A session's hot state lives in a slot. Decisions are made on the newest decided
state, on disk or not; a failed write drops the slot and all that stands on it,
and who is still waiting decides again. No await stands between taking a state,
deciding and queueing: that alone gives order in a session.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from runlane_server.core.commands import Answer
from runlane_server.core.context import Context, Decision
from runlane_server.core.drafting import NewId
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.machine import decide, decide_due
from runlane_server.core.model import Rules, SessionKey, SessionState
from runlane_server.core.rows import MessageAppended, Row, RunInserted, SubmissionInserted
from runlane_server.runtime.codec import Codec, StoredEvent, encode_group
from runlane_server.runtime.committer import Committer
from runlane_server.runtime.records import (
    decode_answer,
    decode_state,
    encode_answer,
    encode_state,
)
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

SLOT_BYTES = 1024
"""What a slot takes beside its state, roughly."""

ATTEMPTS = 50
"""Decisions that one command may take; beyond it something is wrong."""

log = structlog.get_logger(__name__)


class Time(Protocol):
    """Where the time comes from."""

    def now(self) -> int:
        """Returns microseconds since 1970 UTC; never goes back."""


class Observer(Protocol):
    """Who is told what has become durable, in order, before its caller is answered."""

    def committed(self, key: SessionKey, group: EventGroup | None, rows: Sequence[Row]) -> None:
        """Takes note of a commit; must not raise."""


@dataclass(slots=True)
class Plan:
    """One command: the sessions that it is decided on, and how.

    Attributes:
        keys: One session, or two different ones.
        decide: Gives a decision for each session from its state and context.
        request: Names its request_id; None: it has none.
        hash: Of the request.
    """

    keys: tuple[SessionKey, ...]
    decide: Callable[[list[SessionState | None], list[Context]], Sequence[Decision]]
    actor: str
    request: RequestKey | None = None
    hash: bytes = b""


def plan(
    key: SessionKey,
    command: Any,
    actor: str,
    request: RequestKey | None = None,
    request_hash: bytes = b"",
) -> Plan:
    """Returns the plan of a command on one session."""
    return Plan(
        (key,),
        lambda states, contexts: (decide(states[0], command, contexts[0]),),
        actor,
        request,
        request_hash,
    )


class Slot:
    """The hot state of a session: the newest decided, and whether it still stands."""

    __slots__ = (
        "key",
        "last_write",
        "lease_confirmed",
        "lease_expire_time",
        "pending",
        "size",
        "state",
        "token",
        "valid",
    )

    def __init__(
        self, key: SessionKey, state: SessionState | None, token: bytes | None, lease: int
    ) -> None:
        self.key = key
        self.state = state
        self.token = token
        self.lease_expire_time = lease
        self.lease_confirmed = True
        self.pending = 0
        self.size = SLOT_BYTES
        self.valid = True
        self.last_write: _Entry | None = None


class _Entry:
    """A write on its way: what it was decided on, and who waits for it."""

    __slots__ = ("answer", "flight", "on_done", "slots", "waiters", "write")

    def __init__(
        self, write: Write, slots: list[Slot], on_done: Callable[["_Entry", Outcome], None]
    ) -> None:
        self.write = write
        self.slots = slots
        self.on_done = on_done
        self.flight: _Flight | None = None
        self.answer: Answer | None = None
        self.waiters: list[asyncio.Future[Outcome]] = []

    def alive(self) -> bool:
        """Whether what it was decided on still stands."""
        return all(slot.valid for slot in self.slots)

    def resolve(self, outcome: Outcome) -> None:
        """Tells the engine, then all that wait."""
        self.on_done(self, outcome)
        for future in self.waiters:
            if not future.done():
                future.set_result(outcome)

    async def outcome(self) -> Outcome:
        """Waits for the outcome with a future of its own: a cancelled caller harms nobody."""
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
    ) -> None:
        self._store = store
        self._codec = codec
        self.clock = clock
        self.rules = rules
        self._new_id = new_id
        self._observer = observer
        self._slots_max = slots_max
        self._bytes_max = slots_bytes_max
        self._bytes = 0
        self._answers_max = answers_max
        self._slots: OrderedDict[SessionKey, Slot] = OrderedDict()
        self._loads: dict[SessionKey, asyncio.Task[Slot]] = {}
        self._flights: dict[RequestKey, _Flight] = {}
        self._answers: OrderedDict[RequestKey, tuple[bytes, Answer]] = OrderedDict()
        self._committer: Committer[_Entry] = Committer(
            store.commit, linger=linger, batch_max=batch_max
        )
        # No other process, and no other life of this one, can make the same token.
        self._boot = os.urandom(8)
        self._tokens = 0

    async def flush(self) -> None:
        """Waits until all that was decided is durable, or failed."""
        await self._committer.flush()

    # --- commands ----------------------------------------------------------

    async def execute(self, command: Plan) -> tuple[Answer, bool]:
        """Decides and commits; returns the answer and whether it is an earlier call's.

        Raises:
            Refused: A rule says no, or the request_id was used with another request.
            StoreUnavailable: It may be committed or not; the request_id settles which.
        """
        request = command.request
        if request is None:
            return await self._attempt(command, None)
        while (flight := self._flights.get(request)) is not None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            flight.waiters.append(future)
            await future
            if flight.answer is not None:
                return self._replay(command, flight.hash, flight.answer)
        recent = self._answers.get(request)
        if recent is not None:
            return self._replay(command, *recent)
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
            slot = await self._slot(key)
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
            outcome = await self._enqueue(renewal, [slot]).outcome()
            self._raise_failed(outcome)
            if isinstance(outcome, Committed):
                return state
            raise Refused(Reason.STALE_ACTIVATION)
        raise StoreUnavailable("a lease could not be renewed: its session changed all the time")

    async def write(self, unit: CommitUnit) -> Outcome:
        """Commits a unit that belongs to no session, in turn with all others."""
        await self._committer.room()
        return await self._enqueue(unit, []).outcome()

    async def peek(self, key: SessionKey) -> Slot:
        """Returns the slot of a session, newest decided state and all, due ones settled."""
        slot = await self._slot(key)
        self._settle_due(slot, self.clock.now())
        return slot

    # --- deciding ----------------------------------------------------------

    async def _attempt(self, command: Plan, flight: _Flight | None) -> tuple[Answer, bool]:
        for _ in range(ATTEMPTS):
            slots = [await self._slot(key) for key in command.keys]
            await self._committer.room()
            if not all(slot.valid for slot in slots):
                continue
            try:
                decisions = self._decide(command, slots)
            except Refused:
                if not await self._on_disk(slots):
                    continue
                stored = await self._stored(command)
                if stored is not None:
                    return stored
                raise
            answer = next(one.answer for one in reversed(decisions) if one.answer is not None)
            written = any(one.state is not None for one in decisions)
            if not written and flight is None:
                if await self._on_disk(slots):
                    return answer, False
                continue
            unit = self._unit(command, slots, decisions, answer)
            entry = self._enqueue(unit, slots)
            if flight is not None:
                entry.flight, entry.answer = flight, answer
                flight.in_air = True
            outcome = await entry.outcome()
            if isinstance(outcome, Committed):
                return answer, False
            if isinstance(outcome, Duplicate):
                return self._replay(
                    command, outcome.record.hash, decode_answer(outcome.record.answer)
                )
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
        )

    def _settle_due(self, slot: Slot, now: int) -> None:
        """Decides and queues what is due, so that every command comes after it."""
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
        for index, row in enumerate(decision.rows):
            if isinstance(row, MessageAppended):
                encoded[index] = codec.message(row, session_id, row.content)
            elif (isinstance(row, RunInserted) and row.options is not None) or isinstance(
                row, SubmissionInserted
            ):
                assert row.options is not None  # noqa: S101 - tested above
                encoded[index] = codec.options(row.options)
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
        )
        slot.state = state
        slot.token = token
        if slot.valid:
            size = SLOT_BYTES + len(commit.state)
            self._bytes += size - slot.size
            slot.size = size
        if decision.lease_expire_time is not None:
            slot.lease_expire_time = decision.lease_expire_time
            slot.lease_confirmed = decision.lease_confirmed
        return commit

    # --- outcomes ----------------------------------------------------------

    def _enqueue(self, write: Write, slots: list[Slot]) -> _Entry:
        entry = _Entry(write, slots, self._done)
        for slot in slots:
            slot.pending += 1
            slot.last_write = entry
        self._committer.enqueue(entry)
        return entry

    def _done(self, entry: _Entry, outcome: Outcome) -> None:
        committed = isinstance(outcome, Committed)
        for slot in entry.slots:
            slot.pending -= 1
            if slot.last_write is entry:
                slot.last_write = None
            # A renewal that lost its lease tells nothing of the state.
            lost = not committed and not isinstance(entry.write, LeaseRenewal)
            if lost or isinstance(outcome, Unavailable):
                self._drop(slot)
        write = entry.write
        if isinstance(write, CommitUnit):
            if committed:
                for commit in write.sessions:
                    self._observer.committed(commit.key, commit.events, commit.rows)
            elif isinstance(outcome, Rejected | Unavailable):
                log.error("write failed", outcome=type(outcome).__name__, detail=outcome.detail)
            self._answered(entry, write, outcome)

    def _answered(self, entry: _Entry, unit: CommitUnit, outcome: Outcome) -> None:
        """Remembers the answer of a request_id, and wakes the calls that wait for it."""
        flight, record = entry.flight, unit.request
        if flight is None or record is None:
            return
        flight.in_air = False
        if isinstance(outcome, Duplicate):
            record = outcome.record
            flight.answer, flight.hash = decode_answer(record.answer), record.hash
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

    def _replay(self, command: Plan, known_hash: bytes, answer: Answer) -> tuple[Answer, bool]:
        if known_hash != command.hash:
            request_id = command.request.request_id if command.request else ""
            raise Refused(Reason.REQUEST_ID_REUSED, request_id=request_id)
        return answer, True

    async def _stored(self, command: Plan) -> tuple[Answer, bool] | None:
        """Looks a request_id up before an error is given."""
        if command.request is None:
            return None
        record = await self._store.find_request(command.request)
        if record is None:
            return None
        return self._replay(command, record.hash, decode_answer(record.answer))

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

    # --- slots -------------------------------------------------------------

    async def _slot(self, key: SessionKey) -> Slot:
        slot = self._slots.get(key)
        if slot is not None:
            self._slots.move_to_end(key)
            return slot
        load = self._loads.get(key)
        if load is None:
            load = asyncio.get_running_loop().create_task(self._load(key))
            self._loads[key] = load
            load.add_done_callback(lambda _: self._loads.pop(key, None))
        # The load is everybody's: one caller's cancellation does not end it.
        return await asyncio.shield(load)

    async def _load(self, key: SessionKey) -> Slot:
        loaded = await self._store.load(key)
        if loaded is None:
            slot = Slot(key, None, None, 0)
        else:
            state = decode_state(loaded.state)
            slot = Slot(key, state, loaded.token, loaded.lease_expire_time)
            slot.lease_confirmed = loaded.lease_confirmed
            slot.size += len(loaded.state)
        self._slots[key] = slot
        self._bytes += slot.size
        self._evict()
        return slot

    def _drop(self, slot: Slot) -> None:
        slot.valid = False
        if self._slots.get(slot.key) is slot:
            del self._slots[slot.key]
            self._bytes -= slot.size

    def _evict(self) -> None:
        """Forgets the slots that were used longest ago; never one with a write on its way."""
        for _ in range(len(self._slots)):
            if len(self._slots) <= self._slots_max and self._bytes <= self._bytes_max:
                return
            key, slot = next(iter(self._slots.items()))
            if slot.pending:
                self._slots.move_to_end(key)
            else:
                self._drop(slot)
