"""The real engine on a real store beside a small model of it, with restarts and lost answers."""

import asyncio
import dataclasses
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from runlane.v1.message_pb2 import Message
from runlane_server.app.views import ForkRequest
from runlane_server.core.admission import column
from runlane_server.core.commands import (
    CloseSession,
    CommitRun,
    CreateSession,
    Finish,
    FinishKind,
    ReopenSession,
    RestoreRun,
    SettleRun,
    Submit,
)
from runlane_server.core.context import Context
from runlane_server.core.errors import Refused
from runlane_server.core.model import Failure, RunLimits, RunOptions, SessionKey, SessionRecord
from runlane_server.core.words import (
    Mode,
    OnMiss,
    Recovery,
    RunFailure,
    StopReason,
    ToolCallState,
    ToolOutcome,
)
from support.allowed import check_allowed
from support.postgres import PostgresServer
from support.reference import How, ModelRun, ModelSession, first_prepared, run_phase
from support.steps import (
    LEASE,
    RELEASE,
    RESERVE,
    SECOND,
    answer,
    asks,
    claims,
    fence_of,
    question,
    reply_to,
    results,
    text,
)
from support.world import World

OUTCOMES: dict[str, Any] = {
    "": None,
    "release": RELEASE,
    "COMPLETED": Finish(FinishKind.COMPLETED),
    "FAILED": Finish(FinishKind.FAILED, failure=Failure(RunFailure.EXECUTOR_ERROR)),
    "CANCELLED": Finish(FinishKind.CANCELLED),
}
WHAT: dict[str, Any] = {
    "": lambda _: [],
    "reserve": lambda _: [RESERVE],
    "step": lambda _: [answer()],
    "asks": lambda names: [asks(*names)],
    "claim": lambda names: [claims(*names)],
    "reclaim": lambda names: [claims(*names, idempotent=True)],
    "result": lambda names: [results(*names)],
    "error": lambda names: [results(*names, outcome=ToolOutcome.ERROR)],
}
OPEN = ("claim", "reclaim", "result", "error")
HOWS = st.sampled_from([
    How(), How(), How(1), How(2), How(manual=True), How(duration=90 * SECOND), How(2, manual=True, duration=50 * SECOND),
])  # fmt: skip
SESSIONS_MAX = 4
PLACES = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3])
"""Most happens in one session: what is deep is reached by many steps."""


class EngineMachine(RuleBasedStateMachine):
    """Each rule does the same to the engine and to the model, and compares."""

    def place(self) -> Path | str | None:
        """Where the store of a world is."""
        return self.folder / "test.db"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(self.place(), slots_max=2)
        self.model: dict[str, ModelSession] = {}
        self.told: list[tuple[Any, Any]] = []
        self.answered: dict[str, Any] = {}
        self.looked_at: set[str] = set()
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

    @rule(n=PLACES, mode=st.sampled_from(list(Mode)), how=HOWS, moves=st.booleans())
    def submit(self, n: int, mode: Mode, how: How, moves: bool) -> None:
        name = self.pick(n)
        # The label is the request_id that `ask` makes.
        label = f"Submit-{self.count + 1}"
        steers = mode in {Mode.STEER, Mode.AUTO}
        how = How() if steers else how
        options = None if steers else _options(how)
        on_miss = OnMiss.FOLLOW_UP if moves and steers else OnMiss.FAIL
        command = Submit(text(label), mode, on_miss=on_miss, options=options)
        got = self.ask("Submit", lambda caller: self.world.app.submit(caller, name, command))
        if not isinstance(got, str):
            got = f"{got.submission.route.name} {got.submission.state.name}"
        wanted = self.model[name].submit(label, mode.name, how, self.now, moves=moves and steers)
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
            made.submit(label, "START", How(), self.now)
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
        ready = model.column == "Q" and model.run.not_before <= self.now
        assert (view.leased is not None) == ready
        if view.leased is not None:
            model.lease(self.now)
            run = model.run
            assert view.leased.fence.epoch == run.attempt
            open_step = run.reserved if run.reserved > run.committed else 0
            assert view.leased.reserved_step == open_step
            assert [ToolCallState(one.state).name for one in view.leased.calls] == [one.state for one in run.calls]  # fmt: skip
            assert len(view.leased.context) == len(model.prefix) + len(model.texts)
        self.check(name)

    def held(self, n: int) -> ModelRun | None:
        """The run of a session, leased where it can be."""
        name = self.pick(n)
        if self.model[name].column == "Q":
            self.lease(n)
        run = self.model[name].run
        return run if run is not None and run.place == "L" else None

    @rule(n=PLACES, what=st.sampled_from(["", "reserve", "step", "asks"]), outcome=st.sampled_from(list(OUTCOMES)))  # fmt: skip
    def commit(self, n: int, what: str, outcome: str) -> None:
        if self.held(n) is not None:
            names = (
                tuple(f"c{self.count}-{place}" for place in range(1, 4)) if what == "asks" else ()
            )
            self.commits(n, what, names, outcome)

    @rule(n=PLACES, what=st.sampled_from(OPEN), data=st.data(), outcome=st.sampled_from(["", "", "", *OUTCOMES]))  # fmt: skip
    def call(self, n: int, what: str, data: Any, outcome: str) -> None:
        """Something about the open batch; now and then what does not fit."""
        run = self.held(n)
        if run is not None and run.calls:
            names = [one.name for one in run.calls]
            chosen = data.draw(
                st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)
            )
            self.commits(n, what, tuple(chosen), outcome)

    @rule(n=PLACES, order=st.permutations([0, 1, 2]), what=st.sampled_from(["claim", "reclaim"]), done=st.integers(1, 3))  # fmt: skip
    def batch(self, n: int, order: list[int], what: str, done: int) -> None:
        """A batch from its step on, with so many results of three."""
        if self.model[self.pick(n)].column == "IDLE":
            self.submit(n, Mode.AUTO, How(), False)
        if self.held(n) is None:
            return
        self.commit(n, "reserve", "")
        self.commit(n, "asks", "")
        run = self.held(n)
        if run is not None and run.calls and not run.cancelling:
            names = [run.calls[place].name for place in order]
            open_ones = [one.name for one in run.calls if one.state == "PREPARED"]
            self.commits(n, what, tuple(open_ones), "")
            for name in names[:done]:
                self.commits(n, "result", (name,), "")

    def commits(self, n: int, what: str, names: tuple[str, ...], outcome: str, expire: int = 0) -> None:  # fmt: skip
        name = self.pick(n)
        model = self.model[name]
        fence = fence_of(self.run(self.world.state(name)))
        ends = OUTCOMES.get(outcome)
        if outcome == "suspend":
            asked = first_prepared(model.run)
            ends = question(*([asked] if asked else []), expire=expire)
        command = CommitRun(fence, WHAT[what](names), ends, LEASE)
        got = self.ask("Commit", lambda caller: self.world.app.commit(caller, command))
        if not isinstance(got, str):
            if what == "reserve":
                (result,) = got.results
                got = "granted" if result.granted else "paused" if result.paused else "ended"
            else:
                got = "applied" if got.outcome_applied else "goes on"
        assert got == model.commit(self.now, what, names, outcome, expire)
        self.check(name)

    @rule(n=PLACES, expire=st.sampled_from([0, 0, 40 * SECOND]))
    def suspend(self, n: int, expire: int) -> None:
        if self.held(n) is not None:
            self.commits(n, "", (), "suspend", expire)

    @rule(n=PLACES, outcome=st.sampled_from(["", "COMPLETED", "COMPLETED", "FAILED", "release"]), steers=st.integers(0, 2), moves=st.booleans())  # fmt: skip
    def work(self, n: int, outcome: str, steers: int, moves: bool) -> None:
        """A step from its reservation to its end, with steers before it."""
        if self.model[self.pick(n)].column == "IDLE":
            self.submit(n, Mode.AUTO, How(), False)
        run = self.held(n)
        if run is not None and not run.cancelling:
            for _ in range(steers):
                self.submit(n, Mode.STEER, How(), moves)
            self.commit(n, "reserve", "")
            self.commit(n, "step", outcome)

    @rule(n=PLACES, replaces=st.integers(1, 3), how=HOWS)
    def replace(self, n: int, replaces: int, how: How) -> None:
        """One REPLACE behind the other, then the end of what they replace."""
        for _ in range(replaces):
            self.submit(n, Mode.REPLACE, how, False)
        if self.model[self.pick(n)].column == "Lc":
            self.commit(n, "", "CANCELLED")

    # --- runs that wait, stop and come back ----------------------------------

    @rule(n=PLACES, again=st.booleans())
    def pause(self, n: int, again: bool) -> None:
        name = self.pick(n)
        got = self.ask("PauseRun", lambda caller: self.world.app.pause_run(caller, name, ""))
        assert _receipt(got) == self.model[name].pause()
        self.check(name)
        if again:
            self.unpause(n)

    @rule(n=PLACES)
    def unpause(self, n: int) -> None:
        name = self.pick(n)
        got = self.ask("UnpauseRun", lambda caller: self.world.app.unpause_run(caller, name, ""))
        assert _receipt(got) == self.model[name].unpause()
        self.check(name)

    @rule(n=PLACES, words=st.sampled_from(["yes", "no"]))
    def answer(self, n: int, words: str) -> None:
        """Answers what is asked, or what was."""
        name = self.pick(n)
        model = self.model[name]
        if model.run is None or model.run.place != "W":
            if name in self.answered:
                got = self._answers(self.answered[name], words)
                assert got == ("ANSWERED" if words == "yes" else "INTERACTION_CONFLICT")
            return
        command = reply_to(self.run(self.world.state(name)))
        got = self._answers(command, "yes")
        phase = model.answer()
        assert (got, run_phase(model.run)) == ("ANSWERED", phase)
        self.answered[name] = command
        self.check(name)

    def _answers(self, command: Any, words: str) -> str:
        given = command if words == "yes" else dataclasses.replace(command, hash=b"other")
        app, caller = self.world.app, self.world.caller("AnswerInteraction")
        row = self.run(app.find_interaction("default", command.run_id, command.interaction_id))
        try:
            result = self.run(app.answer_interaction(caller, row, given))
        except Refused as refusal:
            return refusal.reason.name
        return result.answer.interaction.state.name

    @rule(n=PLACES, force=st.booleans())
    def restore(self, n: int, force: bool) -> None:
        name = self.pick(n)
        model = self.model[name]
        if model.run is None:
            return
        run = self.run(self.world.state(name)).run
        current = run.activation.activation_id if run.activation is not None else ""
        command = RestoreRun(run.run_id, current, force)
        got = self.ask("RestoreRun", lambda caller: self.world.app.restore_run(caller, command))
        assert got.outcome.name == model.restore(force=force)
        self.check(name)

    @rule(n=PLACES, how=st.sampled_from(["FAILED", "CANCELLED"]))
    def settle(self, n: int, how: str) -> None:
        name = self.pick(n)
        model = self.model[name]
        if model.run is None:
            return
        run_id = self.run(self.world.state(name)).run.run_id
        command = SettleRun(run_id, StopReason[how], "lost")
        got = self.ask("SettleRun", lambda caller: self.world.app.settle_run(caller, command))
        assert got.run.stop_reason.name == model.settle(how)
        self.check(name)

    @rule(n=PLACES, seconds=st.sampled_from([10, 30, 35, 60]), heard=st.booleans())
    def lose(self, n: int, seconds: int, heard: bool) -> None:
        """Its executor is silent for so long, or never was heard of."""
        if self.held(n) is not None:
            if heard:
                self.heartbeat(n)
            self.time_passes(seconds)

    @rule(n=PLACES, what=st.sampled_from(["", "reserve", "step", "claim"]), pauses=st.booleans(), ends=st.sampled_from(["restore", "pause", "settle", ""]))  # fmt: skip
    def stall(self, n: int, what: str, pauses: bool, ends: str) -> None:
        """A run that waits for a hand once its executor is lost, and what is done then."""
        if self.model[self.pick(n)].column == "IDLE":
            self.submit(n, Mode.AUTO, How(), False)
            self.interrupt(n)
            self.submit(n, Mode.START, How(manual=True), False)
        run = self.held(n)
        if run is None:
            return
        self.commit(n, "reserve" if what else "", "")
        if what in {"step", "claim"}:
            self.commit(n, "step" if what == "step" else "asks", "")
        run = self.held(n)
        if what == "claim" and run is not None and run.calls:
            self.commits(n, "claim", (run.calls[0].name,), "")
        if pauses:
            self.pause(n, False)
        self.time_passes(30)
        if ends == "restore":
            self.restore(n, False)
        elif ends == "pause":
            self.pause(n, True)
        elif ends == "settle":
            self.settle(n, "FAILED")

    @rule(n=PLACES)
    def heartbeat(self, n: int) -> None:
        name = self.pick(n)
        self.run(self.world.settle(name))
        model = self.model[name]
        if model.run is not None and model.run.place == "L":
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
        self.rings()

    def rings(self) -> None:
        """What is due happens now, here and there: a back-off counts from then on."""
        for name, model in self.model.items():
            self.run(self.world.settle(name))
            model.due(self.now)
        self.run(self.world.ring())

    @precondition(lambda self: self.world.path is not None)
    @rule()
    def restart(self) -> None:
        self.run(self.world.restart())
        for model in self.model.values():
            model.restarted(self.now)
        self.rings()
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
            assert [(one.tool_call_id, one.state.name, one.appended) for one in run.calls] == [(one.name, one.state, one.appended) for one in wanted.calls]  # fmt: skip
        slot = await world.engine.peek(state.key)
        assert slot.state == state
        check_allowed(state, Context(state.key, self.now, slot.lease_expire_time, world.new_id, world.rules))  # fmt: skip
        await self._check_calls(name)

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


def _options(how: How) -> RunOptions:
    return RunOptions(
        limits=RunLimits(max_model_steps=how.budget, max_duration=how.duration),
        recovery=Recovery.MANUAL if how.manual else Recovery.AUTO,
    )


def _receipt(got: Any) -> str:
    return got if isinstance(got, str) else got.receipt.name


def _result(given: Any) -> Any:
    """The result of a use case; some give what is shown beside it."""
    return given[0] if isinstance(given, tuple) else given


class MemoryMachine(EngineMachine):
    def place(self) -> None:
        return None


class PostgresMachine(EngineMachine):
    server: PostgresServer

    def place(self) -> str:
        return self.server.clean("model")


@pytest.fixture
def on_postgres(postgres_server):
    PostgresMachine.server = postgres_server


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
TestEngineOnPostgres = pytest.mark.usefixtures("on_postgres")(PostgresMachine.TestCase)
TestEngineOnPostgres.settings = settings(max_examples=6, **_SHORT)


class _Long(EngineMachine):
    pass


TestEngineForLong = pytest.mark.long(_Long.TestCase)
TestEngineForLong.settings = settings(max_examples=2000, **_HOW)
