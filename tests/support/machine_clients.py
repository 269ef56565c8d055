"""The rules of the model check that are a client's, or time's."""

import dataclasses
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from runlane_server.app.views import ForkRequest
from runlane_server.core.commands import (
    CloseSession,
    DeleteSession,
    ReopenSession,
    RestoreRun,
    SettleRun,
    Submit,
)
from runlane_server.core.model import Fence, RunLimits, RunOptions, SessionKey
from runlane_server.core.words import Mode, NoticeKind, OnMiss, Recovery, StopReason

from support.machine import REACHED, Ground, result_of
from support.reference import How, run_phase
from support.reference_commands import ModelSession
from support.steps import LEASE, SECOND, fence_of, reply_to, text

HOWS = st.sampled_from([
    How(), How(), How(1), How(2), How(manual=True), How(duration=90 * SECOND), How(2, manual=True, duration=50 * SECOND),
])  # fmt: skip
SESSIONS_MAX = 4
PLACES = st.sampled_from([0, 0, 0, 0, 1, 2, 4, 4, 5, 6])
"""Most happens in one session and in its child runs: what is deep is reached by many steps."""
ENDED_TRIES = ("interrupt", "pause", "unpause", "restore", "heartbeat", "fork")


def options_of(how: How, agent: str = "") -> RunOptions:
    return RunOptions(
        agent,
        limits=RunLimits(max_model_steps=how.budget, max_duration=how.duration),
        recovery=Recovery.MANUAL if how.manual else Recovery.AUTO,
    )


def receipt(got: Any) -> str:
    return got if isinstance(got, str) else got.receipt.name


class Clients(Ground):
    """Each rule does the same to the engine and to the model, and compares."""

    @rule(n=PLACES, mode=st.sampled_from(list(Mode)), how=HOWS, moves=st.booleans())
    def submit(self, n: int, mode: Mode, how: How, moves: bool) -> None:
        name = self.pick(n)
        self.reach(name, f"submit {mode.name}")
        # The label is the request_id that `ask` makes.
        label = f"Submit-{self.count + 1}"
        steers = mode in {Mode.STEER, Mode.AUTO}
        how = How() if steers else how
        options = None if steers else options_of(how)
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
        self.withdraws(*data.draw(st.sampled_from(choices)))

    def withdraws(self, name: str, label: str) -> None:
        self.model[name].due(self.now)
        self.reach(name, "withdraw")
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
        self.reach(name, "interrupt")
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
        self.reach(name, "close and cancel" if cancel else "close")
        command = CloseSession(cancel)
        got = self.ask(
            "CloseSession", lambda caller: self.world.app.close_session(caller, name, command)
        )
        if not isinstance(got, str):
            got = got.session.status.name
        assert got == self.model[name].close(self.now, cancel=cancel)
        self.check(name)
        if self.count % 3:
            self.reopen(name)

    def reopen(self, name: str) -> None:
        self.reach(name, "reopen")
        got = self.ask(
            "ReopenSession",
            lambda caller: self.world.app.reopen_session(caller, name, ReopenSession()),
        )
        if not isinstance(got, str):
            got = got.session.status.name
        assert got == self.model[name].reopen()
        self.check(name)

    @precondition(lambda self: any(one.closed for one in self.model.values()))
    @rule()
    def reopen_all(self) -> None:
        for name, one in self.model.items():
            if one.closed:
                one.due(self.now)
                self.reopen(name)

    @rule(n=PLACES)
    def delete(self, n: int) -> None:
        """Only where it is refused: what deletion does is in the cells."""
        name = self.pick(n)
        model = self.model[name]
        if model.run is None and not model.parent:
            return
        self.reach(name, "delete")
        command = DeleteSession()
        got = self.ask(
            "DeleteSession", lambda caller: self.world.app.delete_session(caller, name, command)
        )
        assert got == model.delete()

    # --- forks, and what is said of runs that ended ---------------------------

    def _fork(self, run_id: str, name: str, label: str) -> Any:
        asked = ForkRequest(default_agent=name, input=text(label) if label else None)
        return self.ask(
            "ForkSession", lambda caller: self.world.app.fork(caller, run_id, name, asked)
        )

    @precondition(lambda self: any(one.ended for one in self.model.values()))
    @rule(data=st.data(), with_input=st.booleans())
    def fork(self, data: Any, with_input: bool) -> None:
        choices = [(name, place) for name, one in self.model.items() for place in range(len(one.ended))]  # fmt: skip
        self.forks(*data.draw(st.sampled_from(choices)), with_input=with_input)

    def forks(self, source: str, place: int, *, with_input: bool) -> None:
        model = self.model[source]
        model.due(self.now)
        self.reach(source, "fork a run that ended")
        row = self.run(self.world.store.list_runs(SessionKey("default", source), [], None, 1000))[place]  # fmt: skip
        name = f"ses_{len(self.model)}"
        label = f"ForkSession-{self.count + 1}" if with_input else ""
        if not model.parent and len(self.tops) == SESSIONS_MAX:
            # There are enough: an id that is taken is refused after all else.
            assert self._fork(row.run_id, source, "") == "SESSION_EXISTS"
            return
        got = self._fork(row.run_id, name, label)
        if model.parent:
            assert got == "RUN_NOT_TOP_LEVEL"
            return
        count, compacted = model.cutoffs[row.request_id]
        assert (got.message_count, got.digest) == (count, row.digest)
        made = ModelSession(name, prefix=(model.prefix + model.texts)[:count])
        made.tools = {number for number in model.tools if number <= count}
        made.compacted = compacted
        self.adds(made, name)
        if with_input:
            made.submit(label, "START", How(), self.now)
        self.check(source, name)

    @rule(n=PLACES)
    def fork_live(self, n: int) -> None:
        name = self.pick(n)
        if self.model[name].run is not None:
            self.reach(name, "fork a live run")
            assert self._fork(self.state(name).run.run_id, "ses_x", "") == "RUN_NOT_TERMINAL"
            self.check(name)

    @precondition(lambda self: any(one.ended for one in self.model.values()))
    @rule(data=st.data(), what=st.sampled_from(ENDED_TRIES))
    def name_ended(self, data: Any, what: str) -> None:
        """What names a run that has ended changes nothing."""
        choices = [(name, place) for name, one in self.model.items() for place in range(len(one.ended))]  # fmt: skip
        name, place = data.draw(st.sampled_from(choices))
        self.names_ended(name, place, what, right=bool(self.count % 2))

    def names_ended(self, name: str, place: int, what: str, *, right: bool) -> None:
        model, app = self.model[name], self.world.app
        model.due(self.now)
        row = self.run(self.world.store.list_runs(SessionKey("default", name), [], None, 1000))[place]  # fmt: skip
        run_id, fence = row.run_id, Fence(name, row.run_id, "act_x", 1)
        if what == "fork":
            REACHED.reached("fork a run that ended", "T")
            wanted = "RUN_NOT_TOP_LEVEL" if model.parent else "SESSION_EXISTS"
            assert self._fork(run_id, name, "") == wanted
            return
        restoring = RestoreRun(run_id, "" if right else "act_x", True)
        calls = {
            "interrupt": lambda caller: app.interrupt(caller, "", run_id, "", 0),
            "pause": lambda caller: app.pause_run(caller, "", run_id),
            "unpause": lambda caller: app.unpause_run(caller, "", run_id),
            "restore": lambda caller: app.restore_run(caller, restoring),
            "heartbeat": lambda caller: app.heartbeat(caller, fence, LEASE),
        }
        got = self.ask(what, calls[what], wait_answer=False)
        if what == "interrupt":
            assert (got.run.phase.name, got.run.run_id) == ("TERMINAL", run_id)
        elif what == "restore":
            assert got.outcome.name == "SETTLED"
        else:
            assert got == ("STALE_ACTIVATION" if what == "heartbeat" else "RUN_TERMINAL")
        shown = "restore with another id" if what == "restore" and not right else what
        REACHED.reached(shown, "T")
        self.check(name)

    @precondition(lambda self: self.told)
    @rule(data=st.data())
    def lost_answer(self, data: Any) -> None:
        again, told = data.draw(st.sampled_from(self.told))
        result = result_of(again())
        assert result.replayed
        assert result.answer == told

    # --- runs that wait, stop and come back ----------------------------------

    @rule(n=PLACES, again=st.booleans())
    def pause(self, n: int, again: bool) -> None:
        name = self.pick(n)
        self.reach(name, "pause")
        got = self.ask("PauseRun", lambda caller: self.world.app.pause_run(caller, name, ""))
        assert receipt(got) == self.model[name].pause()
        self.check(name)
        if again:
            self.unpause(n)

    @rule(n=PLACES)
    def unpause(self, n: int) -> None:
        name = self.pick(n)
        self.reach(name, "unpause")
        got = self.ask("UnpauseRun", lambda caller: self.world.app.unpause_run(caller, name, ""))
        assert receipt(got) == self.model[name].unpause()
        self.check(name)

    @rule(n=PLACES, words=st.sampled_from(["yes", "no"]))
    def answer(self, n: int, words: str) -> None:
        """Answers what is asked, here or through a proxy, or what was."""
        name = self.pick(n)
        model = self.model[name]
        if model.run is not None and model.run.shown and words == "yes":
            self._answers_shown(name)
        elif model.run is not None and model.run.place == "W":
            self.reach(name, "answer what is open")
            self._answers_own(name)
        elif name in self.answered:
            if model.run is not None:
                self.reach(name, "answer another")
            got = self._answers(self.answered[name], words)
            assert got == ("ANSWERED" if words == "yes" else "INTERACTION_CONFLICT")

    def _answers_own(self, name: str) -> None:
        model = self.model[name]
        command = reply_to(self.state(name))
        got = self._answers(command, "yes")
        phase = model.answer()
        assert (got, run_phase(model.run)) == ("ANSWERED", phase)
        self.answered[name] = command
        self.check(name)

    def _answers_shown(self, name: str) -> None:
        """The child's interaction alone decides, whatever the parent has heard of it."""
        model = self.model[name]
        self.reach(name, "answer what is open")
        state = self.state(name)
        proxy = state.run.proxies[self.count % len(state.run.proxies)]
        asks = proxy.question.session_id
        self.model[asks].due(self.now)
        (place,) = [key for key in model.run.shown if key[0] == asks]
        if place in self.model[asks].questions:
            row = self.run(self.world.app.find_interaction("default", "", proxy.interaction_id))
            assert (row.session_id, row.interaction_id) == (asks, proxy.question.interaction_id)
            self._answers_own(asks)
        else:
            settled = "ANSWERED" if place in self.model[asks].answered else "CLOSED"
            row = self.run(self.world.app.find_interaction("default", "", proxy.interaction_id))
            assert row.state.name == settled
        self.check(name)

    def _answers(self, command: Any, words: str) -> str:
        given = command if words == "yes" else dataclasses.replace(command, hash=b"other")
        app = self.world.app
        row = self.run(app.find_interaction("default", command.run_id, command.interaction_id))
        got = self.ask(
            "AnswerInteraction",
            lambda caller: app.answer_interaction(caller, row, given),
            wait_answer=False,
        )
        return got if isinstance(got, str) else got.interaction.state.name

    @rule(n=PLACES, force=st.booleans(), right=st.sampled_from([True, True, False]))
    def restore(self, n: int, force: bool, right: bool) -> None:
        name = self.pick(n)
        model = self.model[name]
        if model.run is None:
            return
        self.reach(name, "restore" if right else "restore with another id")
        run = self.state(name).run
        current = run.activation.activation_id if run.activation is not None else ""
        command = RestoreRun(run.run_id, current if right else "act_x", force)
        got = self.ask("RestoreRun", lambda caller: self.world.app.restore_run(caller, command))
        if not isinstance(got, str):
            got = got.outcome.name
        assert got == model.restore(force=force, right=right)
        self.check(name)

    @rule(n=PLACES, how=st.sampled_from(["FAILED", "CANCELLED"]))
    def settle(self, n: int, how: str) -> None:
        name = self.pick(n)
        model = self.model[name]
        if model.run is None:
            return
        command = SettleRun(self.state(name).run.run_id, StopReason[how], "lost")
        got = self.ask("SettleRun", lambda caller: self.world.app.settle_run(caller, command))
        if not isinstance(got, str):
            got = (got.run.stop_reason or got.run.ending_cause).name
        assert got == model.settle(how)
        self.check(name)

    # --- the world -----------------------------------------------------------

    @rule(seconds=st.sampled_from([1, 10, 20, 30]))
    def time_passes(self, seconds: int) -> None:
        self.world.clock.advance(seconds * SECOND)
        self.rings()

    @rule()
    def told_all(self) -> None:
        """Sessions tell each other what they have to tell."""
        self.rings()
        self.check(*self.model)

    @rule(data=st.data(), twice=st.booleans())
    def told_one(self, data: Any, twice: bool) -> None:
        """One notice comes to where it belongs, once or twice; the others wait."""
        notices = self.run(self.world.store.notices())
        if not notices:
            return
        self.takes(data.draw(st.sampled_from(sorted(notices, key=repr))), twice=twice)

    def tells(self, *, twice: bool) -> None:
        """All notices come to where they belong, one after the other."""
        while notices := self.run(self.world.store.notices()):
            self.takes(min(notices, key=repr), twice=twice)

    def takes(self, notice: Any, *, twice: bool) -> None:
        name = notice.key.session_id
        model = self.model[name]
        model.due(self.now)
        if notice.kind is NoticeKind.CANCEL:
            parent = self.model[model.parent]
            parent.asked_of = [one for one in parent.asked_of if one != name]
            self._takes(notice)
            model.is_asked_to_end(self.now)
        else:
            (child,) = [one for one in self.model.values() if self.ended_run(one) == notice.cause]
            child.due(self.now)
            was, live = model.column, model.run is not None and child.name in model.run.children
            taken = self._takes(notice)
            if taken:
                model.hears(child)
            if taken and child.run is None:
                # Who knows it no longer has ended itself.
                REACHED.reached("child ended", was if live else "T")
            if taken and twice and model.run is None:
                REACHED.reached("child ended", "T")
        if twice:
            self._takes(notice)
        self.check(name)

    def ended_run(self, session: ModelSession) -> str:
        """The one run of the session of a child run."""
        if session.name not in self.ended and session.parent:
            rows = self.run(self.world.store.list_runs(SessionKey("default", session.name), [], None, 1))  # fmt: skip
            self.ended[session.name] = rows[0].run_id
        return self.ended.get(session.name, "")

    def _takes(self, notice: Any) -> bool:
        return self.run(self.world.app._upkeep._notices.take(notice)) is None

    @precondition(lambda self: self.world.path is not None)
    @rule(rings=st.booleans())
    def restart(self, rings: bool) -> None:
        for one in self.model.values():
            one.due(self.now)
            REACHED.reached("restart", one.column)
        self.run(self.world.restart())
        for model in self.model.values():
            model.restarted(self.now)
        if rings:
            self.rings()
        else:
            self.run(self.world.ring(notices=False))
        self.check(*self.model)

    def lost(self, name: str) -> Fence:
        """A fence of the live run that is dead."""
        state = self.state(name)
        if self.model[name].run.place == "L":
            return dataclasses.replace(fence_of(state), epoch=state.run.attempt + 1)
        return Fence(name, state.run.run_id, "act_x", state.run.attempt)
