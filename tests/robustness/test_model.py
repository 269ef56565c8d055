"""The real engine on a real store beside a small model of it, with restarts and lost answers."""

import asyncio
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from runlane_server.app.views import ForkRequest
from runlane_server.core.admission import column
from runlane_server.core.commands import (
    CloseSession,
    CommitRun,
    CreateSession,
    Finish,
    FinishKind,
    ReopenSession,
    Submit,
)
from runlane_server.core.errors import Refused
from runlane_server.core.machine import Context
from runlane_server.core.model import (
    Failure,
    Mode,
    OnMiss,
    RunFailure,
    RunOptions,
    SessionKey,
    SessionRecord,
)
from support.allowed import check_allowed
from support.reference import ModelSession
from support.steps import LEASE, RELEASE, RESERVE, SECOND, answer, fence_of, text
from support.world import World

OUTCOMES: dict[str, Any] = {
    "": None,
    "release": RELEASE,
    "COMPLETED": Finish(FinishKind.COMPLETED),
    "FAILED": Finish(FinishKind.FAILED, failure=Failure(RunFailure.EXECUTOR_ERROR)),
    "CANCELLED": Finish(FinishKind.CANCELLED),
}
WHAT: dict[str, list[Any]] = {"": [], "reserve": [RESERVE], "step": [answer()]}
SESSIONS_MAX = 4
PLACES = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3])
"""Most happens in one session: what is deep is reached by many steps."""


class EngineMachine(RuleBasedStateMachine):
    """Each rule does the same to the engine and to the model, and compares."""

    in_memory = False

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(None if self.in_memory else self.folder / "test.db", slots_max=2)
        self.model: dict[str, ModelSession] = {}
        self.told: list[tuple[Any, Any]] = []
        self.count = 0

    def teardown(self) -> None:
        try:
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
        self.model[name] = ModelSession()

    # --- helpers -----------------------------------------------------------

    @property
    def now(self) -> int:
        return self.world.clock.now()

    def pick(self, number: int) -> str:
        name = f"ses_{number % len(self.model)}"
        self.model[name].due(self.now)
        return name

    def ask(self, method: str, call: Any, *, wait_answer: bool = True) -> Any:
        """Calls with a request_id of its own, and remembers the answer for a replay."""
        self.count += 1
        request_id = f"{method}-{self.count}"

        def again() -> Any:
            return self.run(call(self.world.caller(method, request_id, "same")))

        try:
            result = _result(again())
        except Refused as refusal:
            return refusal.reason.name
        assert not result.replayed
        if wait_answer:
            self.told.append((again, result.answer))
        return result.answer

    # --- clients -----------------------------------------------------------

    @rule(n=PLACES, mode=st.sampled_from(list(Mode)), budget=st.sampled_from([1, 2, 20]), moves=st.booleans())  # fmt: skip
    def submit(self, n: int, mode: Mode, budget: int, moves: bool) -> None:
        name = self.pick(n)
        # The label is the request_id that `ask` makes.
        label = f"Submit-{self.count + 1}"
        steers = mode in {Mode.STEER, Mode.AUTO}
        options = None if steers else RunOptions(max_model_steps=budget)
        on_miss = OnMiss.FOLLOW_UP if moves and steers else OnMiss.FAIL
        command = Submit(text(label), mode, on_miss=on_miss, options=options)
        got = self.ask("Submit", lambda caller: self.world.app.submit(caller, name, command))
        if not isinstance(got, str):
            got = f"{got.submission.route.name} {got.submission.state.name}"
        wanted = self.model[name].submit(
            label, mode.name, 20 if steers else budget, self.now, moves=moves and steers
        )
        assert got == wanted
        self.check(name)

    @precondition(lambda self: any(one.inputs for one in self.model.values()))
    @rule(data=st.data())
    def withdraw(self, data: Any) -> None:
        choices = [(name, label) for name, one in self.model.items() for label in one.inputs]
        name, label = data.draw(st.sampled_from(choices))
        self.model[name].due(self.now)
        rows = self.run(self.world.store.list_submissions(SessionKey("default", name), [], None, 10_000, 0))  # fmt: skip
        submission_id = next(row.submission_id for row in rows if row.request_id == label)
        got = self.ask(
            "WithdrawSubmission", lambda caller: self.world.app.withdraw(caller, "", submission_id)
        )
        if not isinstance(got, str):
            got = got.submission.state.name
        assert got == self.model[name].withdraw(label)
        self.check(name)

    @rule(n=PLACES)
    def interrupt(self, n: int) -> None:
        name = self.pick(n)
        got = self.ask(
            "InterruptRun", lambda caller: self.world.app.interrupt(caller, name, "", "", 0)
        )
        if not isinstance(got, str):
            got = got.run.phase.name
        assert got == self.model[name].interrupt(self.now)
        self.check(name)

    @rule(n=PLACES, cancel=st.booleans())
    def close(self, n: int, cancel: bool) -> None:
        name = self.pick(n)
        command = CloseSession(cancel)
        got = self.ask(
            "CloseSession", lambda caller: self.world.app.close_session(caller, name, command)
        )
        assert got.session.status.name == self.model[name].close(self.now, cancel=cancel)
        self.check(name)
        self.reopen(name)

    def reopen(self, name: str) -> None:
        if self.count % 3:
            got = self.ask(
                "ReopenSession",
                lambda caller: self.world.app.reopen_session(caller, name, ReopenSession()),
            )
            assert got.session.status.name == self.model[name].reopen()
            self.check(name)

    @precondition(lambda self: any(one.closed for one in self.model.values()))
    @rule()
    def reopen_all(self) -> None:
        for name, one in self.model.items():
            if one.closed:
                one.due(self.now)
                self.count += 1
                self.reopen(name)

    @precondition(lambda self: len(self.model) < SESSIONS_MAX and any(one.ended for one in self.model.values()))  # fmt: skip
    @rule(data=st.data(), with_input=st.booleans())
    def fork(self, data: Any, with_input: bool) -> None:
        choices = [(name, place) for name, one in self.model.items() for place in range(len(one.ended))]  # fmt: skip
        source, place = data.draw(st.sampled_from(choices))
        model = self.model[source]
        model.due(self.now)
        row = self.run(self.world.store.list_runs(SessionKey("default", source), [], None, 1000))[place]  # fmt: skip
        name = f"ses_{len(self.model)}"
        label = f"ForkSession-{self.count + 1}"
        asked = ForkRequest(default_agent=name, input=text(label) if with_input else None)
        got = self.ask(
            "ForkSession", lambda caller: self.world.app.fork(caller, row.run_id, name, asked)
        )
        count = model.cutoffs[row.request_id]
        prefix = (model.prefix + model.texts)[:count]
        assert (got.message_count, got.digest) == (count, row.digest)
        self.model[name] = made = ModelSession(prefix=prefix)
        if with_input:
            made.submit(label, "START", 20, self.now)
        self.check(source)
        self.check(name)

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def lost_answer(self, data: Any) -> None:
        again, told = data.draw(st.sampled_from(self.told))
        result = _result(again())
        assert result.replayed
        assert result.answer == told

    # --- executors ---------------------------------------------------------

    @rule(n=PLACES)
    def lease(self, n: int) -> None:
        name = self.pick(n)
        caller = self.world.caller("PollActivation")
        self.run(self.world.settle(name))
        view = self.run(self.world.app.poll(caller, "x1", [name], 0, LEASE, 10_000))
        model = self.model[name]
        assert (view.leased is not None) == (model.column == "Q")
        if view.leased is not None:
            model.lease(self.now)
            run = model.run
            assert view.leased.fence.epoch == run.attempt
            open_step = run.reserved if run.reserved > run.committed else 0
            assert view.leased.reserved_step == open_step
            assert len(view.leased.context) == len(model.prefix) + len(model.texts)
        self.check(name)

    @rule(n=PLACES, what=st.sampled_from(list(WHAT)), outcome=st.sampled_from(list(OUTCOMES)))  # fmt: skip
    def commit(self, n: int, what: str, outcome: str) -> None:
        name = self.pick(n)
        self.run(self.world.settle(name))
        if self.model[name].column not in {"L", "Lc"}:
            self.lease(n)
            what, outcome = "reserve", ""
        if self.model[name].column not in {"L", "Lc"}:
            return
        fence = fence_of(self.run(self.world.state(name)))
        command = CommitRun(fence, list(WHAT[what]), OUTCOMES[outcome], LEASE)
        got = self.ask("Commit", lambda caller: self.world.app.commit(caller, command))
        if not isinstance(got, str):
            if what == "reserve":
                (result,) = got.results
                got = "granted" if result.granted else "ended"
            else:
                got = "applied" if got.outcome_applied else "goes on"
        assert got == self.model[name].commit(self.now, what, outcome)
        self.check(name)

    @rule(n=PLACES, outcome=st.sampled_from(["", "COMPLETED", "COMPLETED", "FAILED", "release"]), steers=st.integers(0, 2), moves=st.booleans())  # fmt: skip
    def work(self, n: int, outcome: str, steers: int, moves: bool) -> None:
        """A step from its reservation to its end, with steers before it."""
        name = self.pick(n)
        if self.model[name].column == "IDLE":
            self.submit(n, Mode.AUTO, 20, False)
        if self.model[name].column == "Q":
            self.lease(n)
        if self.model[name].column == "L":
            for _ in range(steers):
                self.submit(n, Mode.STEER, 20, moves)
            self.commit(n, "reserve", "")
            self.commit(n, "step", outcome)

    @rule(n=PLACES, replaces=st.integers(1, 3), budget=st.sampled_from([1, 2]))
    def replace(self, n: int, replaces: int, budget: int) -> None:
        """One REPLACE behind the other, then the end of what they replace."""
        for _ in range(replaces):
            self.submit(n, Mode.REPLACE, budget, False)
        if self.model[self.pick(n)].column == "Lc":
            self.commit(n, "", "CANCELLED")

    @rule(n=PLACES)
    def heartbeat(self, n: int) -> None:
        name = self.pick(n)
        self.run(self.world.settle(name))
        model = self.model[name]
        if model.column in {"L", "Lc"}:
            fence = fence_of(self.run(self.world.state(name)))
            caller = self.world.caller("Heartbeat")
            control = self.run(self.world.app.heartbeat(caller, fence, LEASE))
            model.heartbeat(self.now)
            assert control.cancel_requested == model.run.cancelling
            assert control.lease_expire_time == model.run.lease_end

    # --- the world ---------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 10, 20, 30]))
    def time_passes(self, seconds: int) -> None:
        self.world.clock.advance(seconds * SECOND)

    @precondition(lambda self: not self.in_memory)
    @rule()
    def restart(self) -> None:
        self.run(self.world.restart())
        for model in self.model.values():
            model.restarted(self.now)
        for name in self.model:
            self.check(name)

    # --- what always holds -------------------------------------------------

    def check(self, name: str) -> None:
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
        terminal = Counter(one.run_id for one in events if one.WhichOneof("body") == "run_terminal")
        assert list(terminal.values()) == [1] * len(model.ended)
        if state.run is not None:
            run = state.run
            assert (run.steps_reserved, run.steps_committed) == (model.run.reserved, model.run.committed)  # fmt: skip
            assert run.steps_reserved <= run.max_model_steps == model.run.budget
        slot = await world.engine.peek(state.key)
        assert slot.state == state
        check_allowed(state, Context(state.key, self.now, slot.lease_expire_time, world.new_id, world.rules))  # fmt: skip


def _result(given: Any) -> Any:
    """The result of a use case; some give what is shown beside it."""
    return given[0] if isinstance(given, tuple) else given


class MemoryMachine(EngineMachine):
    in_memory = True


_HOW = {
    "stateful_step_count": 40,
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}
TestEngineOnAFile = EngineMachine.TestCase
# The short ones say what failed as they found it; the long one also makes it small.
_SHORT = {"derandomize": True, "phases": [Phase.generate], **_HOW}
TestEngineOnAFile.settings = settings(max_examples=40, **_SHORT)
TestEngineInMemory = MemoryMachine.TestCase
TestEngineInMemory.settings = settings(max_examples=20, **_SHORT)


class _Long(EngineMachine):
    pass


TestEngineForLong = pytest.mark.long(_Long.TestCase)
TestEngineForLong.settings = settings(max_examples=2000, **_HOW)
