"""The ground of the model check: the engine beside the model, and what always holds."""

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine, initialize
from runlane.v1.message_pb2 import Message
from runlane_server.core.admission import column
from runlane_server.core.commands import CreateSession
from runlane_server.core.context import Context
from runlane_server.core.errors import Refused
from runlane_server.core.model import SessionKey, SessionRecord, SessionState
from runlane_server.core.words import ToolCallState

from support.allowed import check_allowed
from support.coverage import Coverage
from support.reference import ModelRun, run_phase
from support.reference_commands import ModelSession, ring
from support.world import World

REACHED = Coverage()
"""What all machines of this process have reached."""


class Ground(RuleBasedStateMachine):
    """Sessions in the engine and in the model, by the same names."""

    def place(self) -> Path | str | None:
        """Where the store of a world is."""
        return self.folder / "test.db"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(self.place(), slots_max=2)
        self.model: dict[str, ModelSession] = {}
        self.agents: dict[str, str] = {}
        self.told: list[tuple[Any, Any]] = []
        self.answered: dict[str, Any] = {}
        self.ended: dict[str, str] = {}
        self.looked_at: set[str] = set()
        self.count = 0

    def teardown(self) -> None:
        try:
            self.rings()
            for name in self.model:
                self.check(name)
        finally:
            self.run(self.world.stop())
            self.loop.close()
            shutil.rmtree(self.folder)

    def run(self, call: Any) -> Any:
        return self.loop.run_until_complete(call)

    @initialize()
    def start(self) -> None:
        self.run(self.world.start())
        self._create("ses_0")

    def _create(self, name: str) -> None:
        # The session's agent has its name, so that a poll can choose.
        command = CreateSession(SessionRecord(default_agent=name))
        self.run(self.world.app.create_session(self.world.caller("CreateSession"), name, command))
        self.adds(ModelSession(name), name)

    def adds(self, session: ModelSession, agent: str) -> None:
        self.model[session.name] = session
        self.agents[session.name] = agent

    # --- helpers -----------------------------------------------------------

    @property
    def now(self) -> int:
        return self.world.clock.now()

    @property
    def tops(self) -> list[str]:
        return [name for name, one in self.model.items() if not one.parent]

    @property
    def kids(self) -> list[str]:
        """Sessions of child runs; only those that live, where one does."""
        kids = [name for name, one in self.model.items() if one.parent]
        return [name for name in kids if self.model[name].run is not None] or kids

    def pick(self, number: int) -> str:
        """A session: from 4 on one of a child run, where there is one."""
        names = self.kids if number > 3 and self.kids else self.tops
        name = names[number % len(names)]
        self.model[name].due(self.now)
        return name

    def reach(self, name: str, *rows: str) -> None:
        """Takes note that something is asked of a session, as it is now."""
        for row in rows:
            REACHED.reached(row, self.model[name].column)

    def state(self, name: str) -> SessionState:
        return self.run(self.world.state(name))

    def ask(self, method: str, call: Any, *, wait_answer: bool = True) -> Any:
        """Calls with a request_id of its own, and remembers the answer for a replay."""
        self.count += 1
        request_id = f"{method}-{self.count}"

        def again() -> Any:
            return self.run(call(self.world.caller(method, request_id, "same")))

        try:
            result = result_of(again())
        except Refused as refusal:
            return refusal.reason.name
        assert not result.replayed
        if wait_answer:
            self.told.append((again, result.answer))
        return result.answer

    def held(self, n: int) -> ModelRun | None:
        """The run of a session, leased where it can be."""
        name = self.pick(n)
        if self.model[name].column == "Q":
            self.lease(n)
        run = self.model[name].run
        return run if run is not None and run.place == "L" else None

    def lease(self, n: int) -> None:
        raise NotImplementedError

    def rings(self) -> None:
        """What is due happens now, here and there: a back-off counts from then on.

        And all sessions have told each other what they have to tell.
        """
        for name, model in self.model.items():
            before = model.column
            deadline = model.run.deadline if model.run is not None else 0
            self.run(self.world.settle(name))
            self._reach_time(model, before, deadline)
            model.due(self.now)
        self._reach_ends()
        self.run(self.world.ring())
        ring(self.model, self.now)
        assert self.run(self.world.store.notices()) == []

    def _reach_time(self, model: ModelSession, before: str, deadline: int) -> None:
        run, now = model.run, self.now
        if run is None:
            return
        if deadline and deadline <= now:
            REACHED.reached("deadline", before)
        if before in {"L", "Lp", "Lc"} and run.lease_end <= now:
            REACHED.reached("lease expiry", before)
        if before in {"W", "Wp"} and 0 < run.expires <= now:
            REACHED.reached("interaction expiry", before)
        if before == "Lc" and run.grace_end <= now:
            REACHED.reached("grace expiry", before)

    def _reach_ends(self) -> None:
        for one in self.model.values():
            for child in one.run.children if one.run is not None else []:
                if self.model[child].run is None:
                    REACHED.reached("child ended", one.column)

    # --- what always holds -------------------------------------------------

    def check(self, *names: str) -> None:
        for name in names:
            model = self.model[name]
            model.due(self.now)
            self.run(self._check(name, model))

    async def _check(self, name: str, model: ModelSession) -> None:
        world = self.world
        await world.settle(name)
        state = await world.state(name)
        assert column(state).value == model.column
        assert await world.runs(name) == model.runs
        assert await world.inputs(name) == model.inputs
        assert await world.texts(name) == model.prefix + model.texts
        events = await world.events(name)
        assert events[-1].sequence == state.sequence
        ends = Counter(
            getattr(one, one.WhichOneof("body")).submission_id
            for one in events
            if one.WhichOneof("body") in {"submission_delivered", "submission_failed", "submission_withdrawn"}
        )  # fmt: skip
        assert set(ends.values()) <= {1}
        self._check_claims(events)
        terminal = Counter(one.run_id for one in events if one.WhichOneof("body") == "run_terminal")
        assert list(terminal.values()) == [1] * len(model.ended)
        if state.run is not None:
            run = state.run
            assert (run.steps_reserved, run.steps_committed) == (model.run.reserved, model.run.committed)  # fmt: skip
            assert run.steps_reserved <= run.limits.max_model_steps == model.run.budget
            wanted = model.run
            assert (run.attempt, run.recoveries) == (wanted.attempt, wanted.recoveries)
            assert (run.not_before, run.deadline_time) == (wanted.not_before, wanted.deadline)
            assert run.phase.name == run_phase(wanted)
            self._check_family(state, wanted)
            assert [(one.tool_call_id, one.state.name, one.appended) for one in run.calls] == [(one.name, one.state, one.appended) for one in wanted.calls]  # fmt: skip
        assert state.compacted_through == model.compacted
        slot = await world.engine.peek(state.key)
        assert slot.state == state
        check_allowed(state, Context(state.key, self.now, slot.lease_expire_time, world.new_id, world.rules))  # fmt: skip
        await self._check_calls(name)

    def _check_family(self, state: SessionState, wanted: ModelRun) -> None:
        run = state.run
        links = {one.run_id: one for one in run.children}
        sessions = {one.run_id: one.session_id for one in run.children}
        assert list(sessions.values()) == wanted.children
        given = [(one.child_run_id, one.tool_call_id) for one in run.calls if one.child_run_id in links]  # fmt: skip
        assert sorted(given) == sorted((one.run_id, one.tool_call_id) for one in run.children)
        asked = [(sessions[one.child_run_id], one.question.session_id) for one in run.proxies]
        assert sorted(asked) == sorted((by, asks) for (asks, _), by in wanted.shown.items())
        cause = run.ending.stop_reason.name if run.ending is not None else ""
        assert cause == wanted.cause
        waits = run.children_wait
        assert (waits is None) == (wanted.awaited is None)
        if waits is not None:
            live = {run_id for run_id in waits.run_ids if run_id in links}
            assert len(live) == sum(1 for one in wanted.awaited if one in wanted.children)
            assert waits.mode.name == ("ANY" if wanted.any_of else "ALL")

    def _check_claims(self, events: list[Any]) -> None:
        """No call is claimed twice that may not be run again."""
        once: set[tuple[str, str]] = set()
        for event in events:
            if event.WhichOneof("body") == "tool_call_claimed":
                it = event.tool_call_claimed
                place = (event.run_id, it.tool_call_id)
                assert place not in once
                if not it.idempotent:
                    once.add(place)

    async def _check_calls(self, name: str) -> None:
        """Every tool use of a run that has ended has one result message; an unknown one is told."""
        store = self.world.store
        for row in await store.list_runs(SessionKey("default", name), [], None, 10_000):
            if not row.stop_reason or row.run_id in self.looked_at:
                continue
            self.looked_at.add(row.run_id)
            calls = await store.list_tool_calls("default", row.run_id, None, 10_000)
            numbers = [Message.FromString(one.result).number for one in calls]
            assert 0 not in numbers
            assert numbers == sorted(set(numbers))
            states = {ToolCallState(one.state).name for one in calls}
            assert states <= {"COMMITTED", "OUTCOME_UNKNOWN", "CANCELLED"}
            unknown = any(
                one.state == ToolCallState.OUTCOME_UNKNOWN and not one.idempotent for one in calls
            )
            assert unknown == (row.stop_reason.name == "OUTCOME_UNKNOWN")


def result_of(given: Any) -> Any:
    """The result of a use case; some give what is shown beside it."""
    return given[0] if isinstance(given, tuple) else given


def names_of(calls: Iterable[Any]) -> list[str]:
    return [one.name for one in calls]
