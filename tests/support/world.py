"""Use cases and engine on a real store, with a clock that is set by hand.

No timer runs here: what is due is decided by the next command, by `settle`, or by `ring`.
"""

import hashlib
import heapq
from pathlib import Path
from typing import Any, Self

from runlane.v1 import event_pb2, message_pb2
from runlane_server.app.base import Limits, Services
from runlane_server.app.service import App, Committed
from runlane_server.app.views import Caller
from runlane_server.core.commands import CommitRun, RecordCompaction, StartChildRun
from runlane_server.core.model import Fence, Rules, SessionKey, SessionState
from runlane_server.core.quotas import Quota
from runlane_server.core.rows import EventType
from runlane_server.core.words import SubmissionFailure
from runlane_server.runtime.bus import Bus
from runlane_server.runtime.codec import decode_group
from runlane_server.runtime.dispatch import Dispatch
from runlane_server.runtime.engine import Engine, plan
from runlane_server.runtime.quotas import make_quotas
from runlane_server.runtime.records import decode_state
from runlane_server.runtime.roster import SharedDispatch
from runlane_server.store.base import RequestKey
from runlane_server.store.postgres import Address, PostgresStore
from runlane_server.store.sqlite import SqliteStore
from runlane_server.transport.codec import ProtoCodec

from support.lane import START, Ids
from support.steps import Step, fence_of

EMBEDDED = "embedded-"
WHOLE = 2**40


class HandClock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.time = START

    def now(self) -> int:
        return self.time

    def advance(self, microseconds: int) -> None:
        self.time += microseconds


async def _told_later(_key: SessionKey, _run_id: str) -> None:
    """Leaves notices to the alarms: a test says when they are applied, and in what order."""


class World:
    """One server without its door.

    `path` is a file, or the address of a PostgreSQL database; None: the store is in memory, and
    cannot restart.
    """

    def __init__(
        self,
        path: Path | str | None,
        rules: Rules | None = None,
        *,
        quotas: dict[str, Quota] | None = None,
        **engine: Any,
    ) -> None:
        self.path = path
        self.rules = rules or Rules()
        self.own_quotas = quotas or {}
        self.how = {"linger": 0.0005, **engine}
        self.clock = HandClock()
        self.new_id = Ids()
        self.store: PostgresStore | SqliteStore
        self.engine: Engine
        self.app: App
        self.services: Services

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        if isinstance(self.path, str):
            store = PostgresStore(Address(self.path), readers=2)
        else:
            store = SqliteStore(self.path)
        self.store = store
        await store.open(self.clock.now(), EMBEDDED)
        bus, codec = Bus(), ProtoCodec()
        dispatch = Dispatch() if store.shared is None else SharedDispatch()
        now = self.clock.now
        self.quotas = make_quotas(Quota(), self.own_quotas, self.store.usage, now)
        observer = Committed(bus, dispatch, quotas=self.quotas)
        self.engine = Engine(
            store, codec, self.clock, self.new_id, self.rules, observer, **self.how
        )
        self.services = Services(
            store, self.engine, bus, dispatch, codec, self.clock, self.new_id, self.rules, Limits()
        )
        self.services.quotas = self.quotas
        self.app = App(self.services, observer, "0", [])
        self.app._tell_parents = _told_later
        if self.services.follower is None:
            await self.app.load()
        else:
            self.services.follower.patience = 0
            await self.hear()

    async def stop(self) -> None:
        await self.engine.flush()
        self.services.bus.close()
        assert await self.store.check() == []
        await self.store.close()

    async def restart(self) -> None:
        assert self.path is not None, "what is in memory is gone with its server"
        await self.stop()
        await self.start()

    async def hear(self) -> None:
        """Takes in what other servers on the same database did, and what they left undone."""
        if self.services.follower is not None:
            await self.services.follower.look()

    # --- asking ------------------------------------------------------------

    def caller(self, method: str, request_id: str = "", payload: Any = "") -> Caller:
        """Who calls; the payload stands for what the request says."""
        digest = hashlib.sha256(repr(payload).encode()).digest() if request_id else b""
        toll = self.quotas.write("default") if self.quotas is not None else None
        return Caller("default", "client", method, request_id, digest, toll)

    async def do(self, session_id: str, *steps: Step) -> Any:
        """Does steps through the engine; returns the answer of the last."""
        answer = None
        for step in steps:
            if step.on_child is not None:
                number, steps = step.on_child
                await self.do((await self.children(session_id))[number], *steps)
                await self.ring()
                answer = None
            elif step.passes:
                self.clock.advance(step.passes)
                await self.settle(session_id)
            else:
                answer, _ = await self.call(session_id, step)
        return answer

    async def call(self, session_id: str, step: Step) -> tuple[Any, bool]:
        key = SessionKey("default", session_id)
        command = step.make(await self.state(session_id))
        if isinstance(command, CommitRun) and any(
            isinstance(one, (StartChildRun, RecordCompaction)) for one in command.operations
        ):
            return await self.app._committed(self.caller("Commit"), key, command, "client")
        request = None
        if step.label:
            request = RequestKey("default", type(command).__name__, session_id, step.label)
        return await self.engine.execute(plan(key, command, "client", request, b"#"))

    async def children(self, session_id: str) -> list[str]:
        """The sessions of the child runs of a session, as they were started."""
        return [
            one.child_run_started.child_session_id
            for one in await self.events(session_id)
            if one.type == EventType.CHILD_RUN_STARTED
        ]

    async def settle(self, session_id: str) -> None:
        """Decides what is due, as a timer would."""
        await self.engine.peek(SessionKey("default", session_id))
        await self.engine.flush()

    def fence(self, state: SessionState) -> Fence:
        """The right fence of the leased run of a session."""
        return fence_of(state)

    async def ring(self, *, notices: bool = True) -> None:
        """Fires the alarms that are due, as the alarm clock of a server does.

        Without `notices` what sessions have to tell each other stays on its way.
        """
        await self.hear()
        timers, kept = self.app._timers, []
        while timers._heap and timers._heap[0][0] <= self.clock.now():
            entry = heapq.heappop(timers._heap)
            if notices or entry[2].notice is None:
                await timers._handle(entry)
            else:
                kept.append(entry)
        for entry in kept:
            heapq.heappush(timers._heap, entry)
        await self.engine.flush()

    def faults(self, where: str, error: Exception | None, times: int = 1) -> None:
        """Makes the store fail at `begin`, `unit` or `commit`, so many times."""
        left = times

        def fault(place: str) -> None:
            nonlocal left
            if error is not None and place == where and left:
                left -= 1
                raise error

        self.store.committer.faults = fault

    # --- what is on disk ---------------------------------------------------

    async def state(self, session_id: str) -> SessionState | None:
        loaded = await self.store.load(SessionKey("default", session_id))
        return decode_state(loaded.state) if loaded is not None else None

    async def events(self, session_id: str, after: int = 0) -> list[event_pb2.Event]:
        key = SessionKey("default", session_id)
        groups = await self.store.events(key, 0, 2**62, WHOLE, WHOLE)
        events = []
        for group in groups:
            for sequence, stored in enumerate(decode_group(group.data), group.first):
                event = event_pb2.Event.FromString(stored.data)
                assert (event.sequence, event.type) == (sequence, stored.type)
                assert event.session_id == session_id
                events.append(event)
        assert [one.sequence for one in events] == list(range(1, len(events) + 1))
        return [one for one in events if one.sequence > after]

    async def event_names(self, session_id: str, after: int = 0) -> list[str]:
        return [EventType(one.type).name for one in await self.events(session_id, after)]

    async def messages(self, session_id: str) -> list[message_pb2.Message]:
        key = SessionKey("default", session_id)
        rows = await self.store.messages(key, 1, 2**31 - 1, WHOLE, WHOLE)
        found = [message_pb2.Message.FromString(row.data) for row in rows]
        assert [one.number for one in found] == list(range(1, len(found) + 1))
        return found

    async def texts(self, session_id: str) -> list[str]:
        return [one.content[0].text for one in await self.messages(session_id)]

    async def runs(self, session_id: str) -> list[str]:
        """All runs in order of the lane: the label of the input, and the end."""
        rows = await self.store.list_runs(SessionKey("default", session_id), [], None, 10_000)
        assert rows is not None
        return [
            f"{row.request_id} {row.stop_reason.name if row.stop_reason else 'LIVE'}"
            for row in rows
        ]

    async def inputs(self, session_id: str) -> dict[str, str]:
        """What became of each input, by its label."""
        key = SessionKey("default", session_id)
        rows = await self.store.list_submissions(key, [], None, 10_000, 0)
        assert rows is not None
        return {
            row.request_id: row.state.name
            + (f" {SubmissionFailure(row.failure).name}" if row.failure else "")
            for row in rows
        }
