"""The rules of the model check that are an executor's, and ways to every column."""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from runlane_server.core.commands import CommitRun, Finish, FinishKind
from runlane_server.core.errors import Refused
from runlane_server.core.model import Failure, Fence, SessionKey
from runlane_server.core.words import Mode, RunFailure, ToolCallState, ToolOutcome

from support.coverage import COLUMNS, rows_of_commit
from support.machine import REACHED, names_of
from support.machine_clients import HOWS, PLACES, Clients, options_of
from support.postgres import PostgresServer
from support.reference import How
from support.reference_commands import first_prepared
from support.steps import (
    ALL_CHILDREN,
    ANY_CHILD,
    LEASE,
    RELEASE,
    RESERVE,
    SECOND,
    answer,
    asks,
    claims,
    compacts,
    fence_of,
    question,
    results,
    starts,
)

OUTCOMES: dict[str, Any] = {
    "": None,
    "release": RELEASE,
    "COMPLETED": Finish(FinishKind.COMPLETED),
    "FAILED": Finish(FinishKind.FAILED, failure=Failure(RunFailure.EXECUTOR_ERROR)),
    "CANCELLED": Finish(FinishKind.CANCELLED),
}
WAITS = {"all": ALL_CHILDREN, "any": ANY_CHILD}
WHAT: dict[str, Any] = {
    "": lambda _: [],
    "reserve": lambda _: [RESERVE],
    "step": lambda _: [answer()],
    "asks": lambda names: [asks(*names)],
    "claim": lambda names: [claims(*names)],
    "reclaim": lambda names: [claims(*names, idempotent=True)],
    "result": lambda names: [results(*names)],
    "error": lambda names: [results(*names, outcome=ToolOutcome.ERROR)],
    "compact": lambda names: [compacts(int(names[0]))],
}
OPEN = ("claim", "reclaim", "result", "error", "start")
CHILD_ENDS = ("COMPLETED", "COMPLETED", "FAILED", "asks", "asks", "interrupt")
ASKED = (
    *Mode.__members__, "withdraw", "interrupt", "pause", "unpause", "answer", "answer another", "restore", "restore another",
    "close", "close and cancel", "reopen", "delete", "fork", "late", "late", "late", "late heartbeat", "heartbeat", "restart", "told",
)  # fmt: skip
LATE: dict[str, tuple[list[Any], Any]] = {
    "reserve": ([RESERVE], None),
    "claim": ([claims("c1")], None),
    "start child": ([starts("c1")], None),
    "model step": ([answer()], None),
    "result": ([results("c1")], None),
    "compaction": ([compacts(1)], None),
    "suspend": ([], question()),
    "suspend for children": ([], ALL_CHILDREN),
    **{f"finish {how}": ([], OUTCOMES[how]) for how in ("COMPLETED", "FAILED", "CANCELLED")},
    "release": ([], RELEASE),
}


class EngineMachine(Clients):
    """The rules of executors."""

    kids_max = 8

    @rule(n=PLACES)
    def lease(self, n: int) -> None:
        name = self.pick(n)
        caller = self.world.caller("PollActivation")
        self.run(self.world.settle(name))
        model = self.model[name]
        ready = model.column == "Q" and model.run.not_before <= self.now
        if model.column == "Q":
            self.reach(name, "poll")
        view = self.run(self.world.app.poll(caller, "x1", [self.agents[name]], 0, LEASE, 10_000))
        assert (view.leased is not None) == ready
        if view.leased is not None:
            model.lease(self.now)
            run = model.run
            assert view.leased.fence.epoch == run.attempt
            open_step = run.reserved if run.reserved > run.committed else 0
            assert view.leased.reserved_step == open_step
            assert [ToolCallState(one.state).name for one in view.leased.calls] == [one.state for one in run.calls]  # fmt: skip
            seen = {one for one in (run.input_number, run.steer_number) if 0 < one <= model.compacted}  # fmt: skip
            assert len(view.leased.context) == model.count - model.compacted + len(seen)
            summary = view.leased.summary
            assert (summary.through if summary is not None else 0) == model.compacted
        self.check(name)

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
            chosen = data.draw(
                st.lists(st.sampled_from(names_of(run.calls)), min_size=1, max_size=2, unique=True)
            )
            self.commits(n, what, tuple(chosen), outcome)

    @rule(n=PLACES, order=st.permutations([0, 1, 2]), what=st.sampled_from(["claim", "reclaim"]), done=st.integers(1, 3))  # fmt: skip
    def batch(self, n: int, order: list[int], what: str, done: int) -> None:
        """A batch from its step on, with so many results of three."""
        if not self._has_batch(n):
            return
        run = self.held(n)
        if run is not None and run.calls and not run.cancelling:
            names = [run.calls[place].name for place in order[: len(run.calls)]]
            open_ones = [one.name for one in run.calls if one.state == "PREPARED" and not one.child]
            if open_ones:
                self.commits(n, what, tuple(open_ones), "")
            for name in names[:done]:
                self.commits(n, "result", (name,), "")

    def _has_batch(self, n: int) -> bool:
        """A leased run, with a batch where there can be one."""
        if self.model[self.pick(n)].column == "IDLE":
            self.submit(n, Mode.AUTO, How(), False)
        if self.held(n) is None:
            return False
        self.commit(n, "reserve", "")
        self.commit(n, "asks", "")
        return True

    @rule(n=PLACES, count=st.integers(1, 3), rest=st.sampled_from(["", "claim", "done"]), how=HOWS, then=st.lists(st.sampled_from(CHILD_ENDS), max_size=3), tells=st.booleans(), ends=st.sampled_from(["all", "all", "any", "suspend", "release", "FAILED", "pause", "lose", "stall", ""]))  # fmt: skip
    def family(self, n: int, count: int, rest: str, how: How, then: list[str], tells: bool, ends: str) -> None:  # fmt: skip
        """Child runs for calls of a batch, where their parent goes then, and what they do."""
        name = self.pick(n)
        self._clears(n)
        if ends == "stall" and self.model[name].column == "IDLE":
            self.submit(n, Mode.START, How(manual=True), False)
        if not self._has_batch(n) or self.pick(n) != name:
            return
        run = self.held(n)
        if run is None or not run.calls:
            return
        free = [one.name for one in run.calls if one.state == "PREPARED" and not one.child]
        for call in free[:count]:
            self.commits(n, "start", (call,), "", how=how)
        if rest and free[count:] and not run.cancelling:
            self.commits(n, "claim", tuple(free[count:]), "")
            if rest == "done":
                self.commits(n, "result", tuple(free[count:]), "")
        if self.pick(n) != name or self.held(n) is None:
            return
        if ends in {"lose", "stall"}:
            self.time_passes(30)
        elif ends == "pause":
            self.pause(n, False)
            self.commits(n, "", (), "release")
        elif ends:
            self.commits(n, "", (), ends)
        for place, what in enumerate(then, 4):
            self.child(place, what, tells)

    @rule(n=PLACES, to=st.sampled_from(COLUMNS[1:-1]), child=st.booleans(), what=st.sampled_from(ASKED), late=st.sampled_from(list(LATE)))  # fmt: skip
    def aim(self, n: int, to: str, child: bool, what: str, late: str) -> None:
        """Leads a run to a column, and asks something of it there."""
        name = self.pick(n)
        self.leads(n, to, child=child)
        if self.pick(n) == name:
            self.asks_for(n, name, what, late)

    def leads(self, n: int, to: str, *, child: bool) -> None:
        """Leads a run to a column, where that can be."""
        name = self.pick(n)
        self._clears(n)
        if to.startswith("ST") and not self.model[name].parent:
            if self.model[name].run is not None:
                self.settle(n, "FAILED")
            self.submit(n, Mode.START, How(manual=True), False)
        elif self.model[name].column == "IDLE":
            self.submit(n, Mode.AUTO, How(), False)
        if self.held(n) is None or self.pick(n) != name:
            return
        if self.model[name].run.pausing:
            self.unpause(n)
        if child or to in {"C", "Cp", "K"}:
            self._has_batch(n)
            run = self.model[name].run
            free = [one.name for one in run.calls if one.state == "PREPARED" and not one.child]
            self.commits(n, "start", tuple(free[:1]), "") if free else None
        else:
            self.commit(n, "reserve", "")
        ways: dict[str, tuple[str, ...]] = {
            "Q": ("release",), "L": (), "Lp": ("pause",), "Lc": ("interrupt",), "ST": ("lose",), "STp": ("lose", "pause"),
            "W": ("suspend",), "Wp": ("suspend", "pause"), "C": ("all",), "Cp": ("all", "pause"), "P": ("pause", "release"),
            "K": ("interrupt", "CANCELLED"),
        }  # fmt: skip
        for way in ways[to]:
            if self.pick(n) != name:
                return
            if way == "pause":
                self.pause(n, False)
            elif way == "interrupt":
                self.interrupt(n)
            elif way == "lose":
                self.time_passes(30)
            else:
                self.commits(n, "", (), way)

    def asks_for(self, n: int, name: str, what: str, late: str) -> None:
        model = self.model[name]
        if what in Mode.__members__:
            self.submit(n, Mode[what], How(), False)
        elif what == "withdraw":
            self.submit(n, Mode.QUEUE, How(), False)
            if model.inputs:
                self.withdraws(name, list(model.inputs)[-1])
        elif what in {"restore", "restore another"}:
            self.restore(n, bool(self.count % 2), what == "restore")
        elif what == "fork":
            self.fork_live(n)
            if model.ended:
                self.forks(name, 0, with_input=False)
        elif what == "answer another" and name in self.answered and model.run is not None:
            self.reach(name, "answer another")
            assert self._answers(self.answered[name], "no") == "INTERACTION_CONFLICT"
        elif what == "late":
            self.too_late(n, late)
        elif what == "restart" and self.world.path is not None:
            self.restart(bool(self.count % 2))
        elif what in {"close", "close and cancel"}:
            self.close(n, what != "close")
        elif what == "reopen":
            self.reopen(name)
        elif what == "told":
            self.told_all()
        elif what == "late heartbeat":
            self.too_late(n, "heartbeat")
        elif what in {"interrupt", "unpause", "delete", "heartbeat"}:
            getattr(self, what)(n)
        elif what == "pause":
            self.pause(n, True)
        elif what == "answer":
            if model.run is not None and model.run.children and not model.run.shown:
                self.child(4, "asks", True)
            self.answer(n, "yes")

    def _clears(self, n: int) -> None:
        """Makes way for a new run, where what there is leads no further."""
        name = self.pick(n)
        if self.model[name].closed:
            self.reopen(name)
        run = self.held(n)
        if run is not None and not (run.final or run.cancelling or run.reserved == run.budget):
            return
        if self.model[name].run is not None and not self.model[name].parent:
            self.settle(n, "FAILED")
        if self.model[name].column == "K":
            self.rings()

    @rule(place=st.integers(4, 7), ends=st.sampled_from(CHILD_ENDS), tells=st.booleans())  # fmt: skip
    def child(self, place: int, ends: str, tells: bool) -> None:
        """A child run is worked on, to its end or to its question."""
        if not self.kids:
            return
        name = self.pick(place)
        if ends == "interrupt":
            self.interrupt(place)
        elif self.held(place) is not None:
            self.commit(place, "reserve", "")
            if self.pick(place) == name and self.held(place) is not None:
                if ends == "asks":
                    self.commits(place, "", (), "suspend")
                else:
                    self.commit(place, "step", ends)
        if tells:
            self.rings()
            self.check(name, self.model[name].parent or name)

    def commits(self, n: int, what: str, names: tuple[str, ...], outcome: str, expire: int = 0, how: How | None = None) -> None:  # fmt: skip
        name = self.pick(n)
        model = self.model[name]
        if model.run is None or model.run.place != "L":
            return
        fence = fence_of(self.state(name))
        ends = {**OUTCOMES, **WAITS}.get(outcome)
        if outcome == "suspend":
            asked = first_prepared(model.run)
            ends = question(*([asked] if asked else []), expire=expire)
        agent, how = f"kid-{self.count}", how or How()
        if what == "start":
            if len(self.model) - len(self.tops) >= self.kids_max:
                return
            options = options_of(how, agent)
            operations: list[Any] = [starts(names[0], agent=agent, limits=options.limits, recovery=options.recovery)]  # fmt: skip
        else:
            operations = WHAT[what](names)
        command = CommitRun(fence, operations, ends, LEASE)
        self.reach(name, *rows_of_commit(command))
        got = self.ask("Commit", lambda caller: self.world.app.commit(caller, command))
        made = ""
        if not isinstance(got, str):
            first = got.results[0] if got.results else None
            if what == "reserve":
                got = "granted" if first.granted else "paused" if first.paused else "ended"
            elif what == "start":
                made = "" if first.existing else first.child_session_id
                again = f"again {first.child_session_id}" if first.existing else "goes on"
                got = "applied" if got.outcome_applied else again
            else:
                got = "applied" if got.outcome_applied else "goes on"
        given = (names[0], made) if what == "start" else names
        assert got == model.commit(self.now, what, given, outcome, expire)
        if made:
            self.adds(model.child(made, f"do {names[0]}", how), agent)
            self.check(made)
        self.check(name)

    @rule(n=PLACES, outcome=st.sampled_from(["suspend", "suspend", "all", "any"]), expire=st.sampled_from([0, 0, 40 * SECOND]))  # fmt: skip
    def suspend(self, n: int, outcome: str, expire: int) -> None:
        if self.held(n) is not None:
            self.commits(n, "", (), outcome, expire)

    @rule(n=PLACES, data=st.data(), outcome=st.sampled_from(["", "", "release", "COMPLETED"]))
    def compact(self, n: int, data: Any, outcome: str) -> None:
        """A summary, now and then of what it cannot cover."""
        if self.held(n) is not None:
            count = self.model[self.pick(n)].count
            through = data.draw(st.sampled_from([count, count, count - 1, count // 2, count + 1]))
            self.commits(n, "compact", (str(through),), outcome)

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
            self.restore(n, False, True)
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
            self.reach(name, "heartbeat")
            fence = fence_of(self.state(name))
            caller = self.world.caller("Heartbeat")
            control = self.run(self.world.app.heartbeat(caller, fence, LEASE))
            model.heartbeat(self.now)
            assert control.cancel_requested == model.run.cancelling
            assert control.lease_expire_time == model.run.lease_end

    @rule(n=PLACES, what=st.sampled_from(["heartbeat", *LATE]))
    def too_late(self, n: int, what: str) -> None:
        """A fence that is dead does nothing, whatever it asks for."""
        name = self.pick(n)
        model = self.model[name]
        if model.run is not None:
            self.reach(name, what)
            self._late(what, self.lost(name))
            self.check(name)

    @precondition(lambda self: any(one.ended for one in self.model.values()))
    @rule(n=PLACES, what=st.sampled_from(["heartbeat", *LATE]))
    def too_late_for_what_ended(self, n: int, what: str) -> None:
        name = self.pick(n)
        if not self.model[name].ended:
            return
        REACHED.reached(what, "T")
        rows = self.run(self.world.store.list_runs(SessionKey("default", name), [], None, 1))
        self._late(what, Fence(name, rows[0].run_id, "act_x", 1))
        self.check(name)

    def _late(self, what: str, fence: Fence) -> None:
        app = self.world.app
        if what == "heartbeat":
            with pytest.raises(Refused) as refusal:
                self.run(app.heartbeat(self.world.caller("Heartbeat"), fence, LEASE))
            assert refusal.value.reason.name == "STALE_ACTIVATION"
            return
        operations, outcome = LATE[what]
        command = CommitRun(fence, list(operations), outcome, LEASE)
        got = self.ask("Commit", lambda caller: app.commit(caller, command))
        assert got == "STALE_ACTIVATION"


class MemoryMachine(EngineMachine):
    def place(self) -> None:
        return None


class PostgresMachine(EngineMachine):
    server: PostgresServer

    def place(self) -> str:
        return self.server.clean("model")
