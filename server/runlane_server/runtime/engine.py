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
from typing import Any

import structlog

from runlane_server.core.answers import Answer
from runlane_server.core.context import Context, Decision
from runlane_server.core.drafting import NewId
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.machine import decide_due
from runlane_server.core.model import Rules, SessionKey, SessionState
from runlane_server.core.rows import (
    LeasePut,
    MessageAppended,
    RunInserted,
    SubmissionInserted,
    ToolCallMoved,
)
from runlane_server.runtime.codec import Codec, StoredEvent, encode_group
from runlane_server.runtime.committer import Committer
from runlane_server.runtime.fresh import Fresh
from runlane_server.runtime.hearing import Hearing
from runlane_server.runtime.plans import (
    Entry,
    Flight,
    Observer,
    Plan,
    Time,
    answer_of,
    ids_of,
    plan,
    replay,
    replay_of,
)
from runlane_server.runtime.quotas import Toll
from runlane_server.runtime.records import decode_answer, encode_answer, encode_state
from runlane_server.runtime.slots import Slot, Slots, slot_of
from runlane_server.runtime.stats import Stats
from runlane_server.store.base import (
    Committed,
    CommitUnit,
    Duplicate,
    EventGroup,
    LeaseRenewal,
    LoadedSession,
    Outcome,
    Rejected,
    RequestKey,
    RequestRecord,
    SessionCommit,
    Shared,
    Store,
    Unavailable,
    Write,
)
from runlane_server.store.errors import StoreCorrupt, StoreUnavailable

__all__ = ["Engine", "Observer", "Plan", "Time", "plan"]

ATTEMPTS = 50
"""Decisions that one command may take; beyond it something is wrong."""

LOCKED_FROM = 2
"""Attempts after which a command is decided under lock where other servers write too."""

STANDS_STILL = 10.0
"""Seconds after which a transaction that has not ended counts as one that never will."""

log = structlog.get_logger(__name__)


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
        self._flights: dict[RequestKey, Flight] = {}
        self._answers: OrderedDict[RequestKey, tuple[bytes, Answer]] = OrderedDict()
        self._committer: Committer[Entry] = Committer(
            store.commit, linger=linger, batch_max=batch_max, stats=self.stats
        )
        # No other process, and no other life of this one, can make the same token.
        self._boot, self._boot_apart = os.urandom(8), os.urandom(8)
        self._tokens = 0
        self._shared = store.shared
        self._fresh = Fresh(self._shared.tokens) if self._shared is not None else None
        self._locked: set[asyncio.Task[Any]] = set()

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
        while self._locked:
            await asyncio.wait(set(self._locked))
        await self._committer.flush()

    # --- what other servers did ----------------------------------------------

    def heard(self, key: SessionKey, sequence: int) -> bool:
        """Takes note that a session has an event of that sequence; returns whether it is news."""
        return self._slots.heard(key, sequence)

    def lose_sight(self) -> None:
        """Takes note that a read did not reach the store: executors may find no server."""
        self._hearing.lose_sight()

    def see_store(self) -> None:
        """Takes note that reads reach the store again."""
        self._hearing.see(self.clock.now())

    def doubt(self, key: SessionKey) -> None:
        """Has a session read anew before it is decided on."""
        self._slots.doubt(key)

    def doubt_all(self) -> None:
        """Has all sessions read anew."""
        self._slots.doubt_all()

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
        flight = self._flights[request] = Flight(command.hash)
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
        since = asyncio.get_running_loop().time()
        for _ in range(ATTEMPTS):
            slot = await self._slots.take(key)
            await self._committer.room()
            if not slot.valid:
                continue
            now = self.clock.now()
            self._settle_due(slot, now)
            state = slot.state
            if state is None or not holds(state):
                if not await self._on_disk([slot], since):
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
        since = asyncio.get_running_loop().time()
        for _ in range(attempts):
            slot = await self.peek(key)
            state, lease_expire_time = slot.state, slot.lease_expire_time
            if await self._on_disk([slot], since):
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

    async def _attempt(self, command: Plan, flight: Flight | None) -> tuple[Answer, bool]:
        toll = command.toll
        since = asyncio.get_running_loop().time()
        for attempt in range(ATTEMPTS):
            if toll is not None:
                await toll.ready()
            if attempt >= LOCKED_FROM and self._shared is not None:
                return await self._under_lock(self._shared, command, flight)
            slots = [await self._slots.take(key) for key in command.keys]
            await self._committer.room()
            if not all(slot.valid for slot in slots):
                continue
            try:
                decisions = self._decide(command, slots, self._committer.enqueue)
                if toll is not None:
                    toll.admit(decisions)
            except Refused:
                if not await self._on_disk(slots, since):
                    continue
                stored = await self._stored(command.request, command.hash)
                if stored is not None:
                    return stored, True
                raise
            answer = answer_of(decisions)
            written = any(one.state is not None for one in decisions)
            if not written and flight is None:
                if await self._on_disk(slots, since):
                    return answer, False
                continue
            unit = self._unit(command, slots, decisions, answer)
            entry = self._entry(unit, slots, flight, answer, toll)
            self._committer.enqueue(entry)
            outcome = await entry.outcome()
            if isinstance(outcome, Committed):
                return answer, False
            if isinstance(outcome, Duplicate):
                return replay_of(outcome.record, command.hash), True
            self._raise_failed(outcome)
        raise StoreUnavailable("a command could not be decided: its session changed all the time")

    async def _under_lock(
        self, shared: Shared, command: Plan, flight: Flight | None
    ) -> tuple[Answer, bool]:
        """Decides and commits in one transaction that has the rows: nobody comes between.

        What is begun is ended, whatever becomes of the caller.
        """
        task = asyncio.get_running_loop().create_task(self._locked_attempt(shared, command, flight))
        self._locked.add(task)
        task.add_done_callback(self._locked.discard)
        return await asyncio.shield(task)

    async def _locked_attempt(
        self, shared: Shared, command: Plan, flight: Flight | None
    ) -> tuple[Answer, bool]:
        entries: list[Entry] = []
        toll = command.toll
        answer: Answer | None = None
        failure: Exception | None = None

        def decide_all(loaded: list[LoadedSession | None]) -> list[CommitUnit]:
            nonlocal answer, failure
            entries.clear()
            answer, failure = None, None
            if flight is not None:
                flight.in_air = False
            if toll is not None:
                toll.settled(None)
            slots = [slot_of(key, one) for key, one in zip(command.keys, loaded, strict=True)]
            for slot in slots:
                slot.apart = True
            try:
                decisions = self._decide(command, slots, entries.append)
                if toll is not None:
                    toll.admit(decisions)
                answer = answer_of(decisions)
                if flight is not None or any(one.state is not None for one in decisions):
                    unit = self._unit(command, slots, decisions, answer)
                    entries.append(self._entry(unit, slots, flight, answer, toll))
            except Exception as error:  # noqa: BLE001 - raised once what was due is written
                failure = error
            return [one.write for one in entries if isinstance(one.write, CommitUnit)]

        outcomes = await shared.commit_locked(command.keys, decide_all)
        for key in command.keys:
            self._slots.doubt(key)
        last = outcomes[-1] if outcomes else Committed()
        for number, entry in enumerate(entries):
            entry.resolve(outcomes[number] if number < len(outcomes) else last)
        self._raise_failed(last)
        if failure is None and isinstance(last, Duplicate):
            return replay_of(last.record, command.hash), True
        if failure is not None or answer is None or not isinstance(last, Committed):
            stored = await self._stored(command.request, command.hash)
            if stored is not None:
                return stored, True
            raise failure or StoreUnavailable("a command could not be decided under lock")
        return answer, False

    def _decide(
        self, command: Plan, slots: list[Slot], send: Callable[[Entry], None]
    ) -> Sequence[Decision]:
        now = self.clock.now()
        contexts = []
        for slot in slots:
            self._settle_due(slot, now, send)
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

    def _settle_due(
        self, slot: Slot, now: int, send: Callable[[Entry], None] | None = None
    ) -> None:
        """Decides and sends what is due, so that every command comes after it."""
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
            (send or self._committer.enqueue)(self._entry(unit, [slot]))

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
        slot.first_token = slot.first_token or self._tokens
        token = (self._boot_apart if slot.apart else self._boot) + self._tokens.to_bytes(8)
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

    def _entry(
        self,
        write: Write,
        slots: list[Slot],
        flight: Flight | None = None,
        answer: Answer | None = None,
        toll: Toll | None = None,
    ) -> Entry:
        """Makes a write that is on its way from now on; who calls sends it."""
        entry = Entry(write, slots, self._done)
        entry.toll = toll
        if flight is not None:
            entry.flight, entry.answer = flight, answer
            flight.in_air = True
        for slot in slots:
            slot.last_write = entry
        return entry

    def _enqueue(self, write: Write, slots: list[Slot]) -> Entry:
        entry = self._entry(write, slots)
        self._committer.enqueue(entry)
        return entry

    def _done(self, entry: Entry, outcome: Outcome) -> None:
        committed = isinstance(outcome, Committed)
        was_away = self._hearing.store_away
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
                ids = ids_of(write)
                if ids or not was_away:  # Else it was a try whether the store is back.
                    name = type(outcome).__name__
                    log.error("write failed", outcome=name, detail=outcome.detail, **ids)
            if entry.toll is not None:
                entry.toll.settled(write if committed else None)
            self._answered(entry, write, outcome)

    def _answered(self, entry: Entry, unit: CommitUnit, outcome: Outcome) -> None:
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

    def _land(self, key: RequestKey, flight: Flight) -> None:
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
                return replay(request, request_hash, flight.hash, flight.answer)
        recent = self._answers.get(request)
        return replay(request, request_hash, *recent) if recent is not None else None

    async def _stored(self, request: RequestKey | None, request_hash: bytes) -> Answer | None:
        """Looks a request_id up in the store."""
        record = await self._store.find_request(request) if request is not None else None
        return replay_of(record, request_hash) if record is not None else None

    async def _on_disk(self, slots: list[Slot], since: float) -> bool:
        """Waits for what a decision that writes nothing stands on; False: it failed.

        It has failed, too, where another server has written since: what is on disk is looked
        at after the call arrived, `since`.
        """
        tokens = [slot.token for slot in slots]
        for slot in slots:
            if slot.last_write is not None:
                await slot.last_write.outcome()
        if self._fresh is not None:
            for slot, token in zip(slots, tokens, strict=True):
                if slot.valid and slot.as_of < since:
                    await self._look(self._fresh, slot, token, since)
        return all(slot.valid for slot in slots)

    async def _look(self, fresh: Fresh, slot: Slot, token: bytes | None, since: float) -> None:
        """Drops a slot where the store has not what it had, or what was written on that here."""
        stored = await fresh.token(slot.key)
        if stored == token or (stored is not None and self._made_for(slot, stored)):
            slot.as_of = max(slot.as_of, since)
        else:
            self._slots.drop(slot)

    def _made_for(self, slot: Slot, token: bytes) -> bool:
        """Whether a token was made for this slot, and not for one that fell before it."""
        number = int.from_bytes(token[len(self._boot) :])
        return token.startswith(self._boot) and 0 < slot.first_token <= number

    def _raise_failed(self, outcome: Outcome) -> None:
        if isinstance(outcome, Unavailable):
            raise StoreUnavailable(outcome.detail)
        if isinstance(outcome, Rejected):
            raise StoreCorrupt(f"the store refused a row: {outcome.detail}")
