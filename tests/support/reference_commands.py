"""A small model of a session: what each command does, from the tables of states."""

import copy

from support.reference import (
    FOLLOWS,
    REPLACE,
    How,
    ModelCall,
    ModelRefusal,
    ModelRun,
    ModelSteps,
    run_phase,
)
from support.steps import LEASE, UNCONFIRMED

DEPTH_MAX = 8


class ModelSession(ModelSteps):
    """Commands: what they answer, or the reason of a refusal."""

    def submit(self, label: str, mode: str, how: How, now: int, *, moves: bool = False) -> str:
        self.now, column = now, self.column
        ending = column in {"Lc", "K"}
        if self.parent and self._no_steer(mode, column, moves=moves):
            return "CHILD_SESSION"
        if self.closed:
            return "SESSION_CLOSED"
        if column == "IDLE":
            if mode in {"STEER", "FOLLOW_UP"}:
                return "SESSION_IDLE"
            self._start(label, how)
            return "RUN DELIVERED"
        if mode == "START":
            return "SESSION_BUSY"
        if mode == "STEER" and ending:
            return "RUN_CANCELLING"
        if mode == "STEER" or (mode == "AUTO" and not ending):
            self.steers.append((label, moves))
            self.inputs[label] = "PENDING"
            return "STEER PENDING"
        if mode == "REPLACE":
            return self._replace(label, how)
        self._wait(FOLLOWS, label, how)
        return "FOLLOW_UP PENDING"

    def _no_steer(self, mode: str, column: str, *, moves: bool) -> bool:
        if mode not in {"STEER", "AUTO"} or moves:
            return True
        return mode == "AUTO" and column in {"IDLE", "Lc", "K"}

    def _replace(self, label: str, how: How) -> str:
        run = self.run
        if run.place not in {"L", "K"}:
            ahead = any(rank == REPLACE for rank, _, _ in self.waiting)
            self._request()
            self._finish("CANCELLED")
            if not ahead and self.run is None:
                self._start(label, how)
                return "RUN DELIVERED"
        elif run.place == "L" and not run.cancelling:
            self._request()
        self._wait(REPLACE, label, how)
        self._promote()
        return "FOLLOW_UP PENDING"

    def withdraw(self, label: str) -> str:
        if self.inputs[label] == "WITHDRAWN":
            return "WITHDRAWN"
        if self.inputs[label] != "PENDING":
            return "SUBMISSION_SETTLED"
        self.steers = [one for one in self.steers if one[0] != label]
        self.waiting = [one for one in self.waiting if one[1] != label]
        self.inputs[label] = "WITHDRAWN"
        return "WITHDRAWN"

    def interrupt(self, now: int) -> str:
        self.now = now
        run = self.run
        if run is None:
            return "SESSION_IDLE"
        self._interrupt()
        return run_phase(run) if self.run is run else "TERMINAL"

    def close(self, now: int, *, cancel: bool) -> str:
        if self.parent:
            return "CHILD_SESSION"
        self.closed = True
        for label in [one[0] for one in self.steers] + [one[1] for one in self.waiting]:
            self.inputs[label] = "FAILED SESSION_CLOSED"
        self.steers, self.waiting = [], []
        if cancel and self.run is not None:
            self.interrupt(now)
        return "CLOSED"

    def reopen(self) -> str:
        if self.parent:
            return "CHILD_SESSION"
        self.closed = False
        return "OPEN"

    def delete(self) -> str:
        """Without force, and only where it is refused."""
        return "CHILD_SESSION" if self.parent else "SESSION_LIVE"

    def pause(self) -> str:
        run = self.run
        if run is None:
            return "SESSION_IDLE"
        if run.cancelling or run.place == "K":
            return "RUN_CANCELLING"
        if run.place == "Q":
            self._pause()
        elif run.place != "P":
            run.pausing = True
        return "PAUSED" if run.place == "P" else "REQUESTED"

    def unpause(self) -> str:
        run = self.run
        if run is None:
            return "SESSION_IDLE"
        if run.cancelling or run.place == "K":
            return "RUN_CANCELLING"
        if run.place == "P":
            self._queue()
            return "RESUMED"
        if run.pausing:
            run.pausing = False
            return "RESUMED"
        return "UNCHANGED"

    def answer(self) -> str:
        """An answer that fits the question; only where there is one."""
        run = self.run
        self.answered.add((self.name, run.attempt))
        run.recoveries = 0
        for call in run.calls:
            if call.name == run.asks:
                self._settle(call, "yes")
        run.asks = ""
        self._close_batch()
        if run.pausing:
            self._pause()
        else:
            self._queue()
        return run_phase(run)

    def restore(self, *, force: bool, right: bool = True) -> str:
        """Only where a run is live."""
        run = self.run
        if run.place in {"W", "C", "P", "K"}:
            return "ATTACHED"
        if not right:
            return "ACTIVATION_MISMATCH"
        if run.place == "Q" and not run.not_before:
            return "ATTACHED"
        if run.place == "Q":
            run.not_before = 0
            return "RECOVERY_QUEUED"
        if run.place == "L" and not force:
            return "STILL_LEASED"
        return self._recover(counted=False)

    def settle(self, how: str) -> str:
        """Ends a live run by hand; the stop reason, why it is ending, or a refusal."""
        run = self.run
        if run.place == "K":
            return "RUN_CANCELLING"
        if how == "CANCELLED" and not run.cancelling:
            self._request()
        cancelled = run.cancelling
        self._finish("CANCELLED" if cancelled else how)
        self._miss("TARGET_CANCELLING" if cancelled else "TARGET_TERMINAL")
        if self.run is run:
            return run.cause
        ended = self.ended[-1].split()[-1]
        self._promote()
        return ended

    def lease(self, now: int) -> None:
        run = self.run
        run.place, run.confirmed, run.not_before = "L", False, 0
        run.lease_end = now + UNCONFIRMED

    def heartbeat(self, now: int) -> None:
        self.run.confirmed = True
        self.run.lease_end = now + LEASE

    # --- what an executor commits ------------------------------------------

    def commit(self, now: int, what: str, names: tuple[str, ...], outcome: str, expire: int = 0) -> str:  # fmt: skip
        """`what`: reserve, step, asks, claim, reclaim, result, error, start, compact or nothing."""
        self.now = now
        before = copy.deepcopy(self.__dict__)
        try:
            return self._commit(what, names, outcome, expire)
        except ModelRefusal as refusal:
            self.__dict__ = before
            return str(refusal)

    def _commit(self, what: str, names: tuple[str, ...], outcome: str, expire: int) -> str:
        run = self.run
        delivered, said = False, "goes on"
        if what == "reserve":
            said = self._reserve(run, outcome)
        elif what in {"step", "asks"}:
            delivered = self._step(run, names if what == "asks" else (), outcome)
        elif what in {"claim", "reclaim"}:
            self._claim(run, names, idempotent=what == "reclaim")
        elif what in {"result", "error"}:
            delivered = self._results(run, names, ok=what == "result")
        elif what == "start":
            said = self._starts(run, names)
        elif what == "compact":
            self._compact(run, names)
        if run.place != "L" or self.run is not run:
            return said
        if outcome and self._outcome(run, outcome, expire, delivered=delivered):
            said = "applied"
        if self.run is run and run.place == "L":
            self.heartbeat(self.now)
        return said

    def _reserve(self, run: ModelRun, outcome: str) -> str:
        if outcome:
            raise ModelRefusal("OPERATION_INVALID")
        if run.cancelling:
            raise ModelRefusal("RUN_CANCELLING")
        if run.final or run.calls:
            raise ModelRefusal("OPERATION_INVALID")
        if run.pausing:
            self._pause()
            return "paused"
        if run.reserved == run.committed:
            if run.reserved == run.budget:
                self._end("BUDGET_EXHAUSTED")
                return "ended"
            run.reserved += 1
        return "granted"

    def _step(self, run: ModelRun, names: tuple[str, ...], outcome: str) -> bool:
        if run.reserved == run.committed:
            raise ModelRefusal("OPERATION_INVALID")
        run.committed, run.recoveries = run.reserved, 0
        if names:
            self.texts.append("asks")
            run.calls = [ModelCall(name) for name in names]
            return False
        self.texts.append("answer")
        run.final = True
        steered = outcome != "FAILED" and self._boundary()
        if steered and run.pausing:
            self._pause()
        return steered

    def _claim(self, run: ModelRun, names: tuple[str, ...], *, idempotent: bool) -> None:
        if run.cancelling:
            raise ModelRefusal("RUN_CANCELLING")
        for name in names:
            call = self._prepared(run, name)
            call.state, call.idempotent = "CLAIMED", idempotent

    def _results(self, run: ModelRun, names: tuple[str, ...], *, ok: bool) -> bool:
        for name in names:
            call = self._call(run, name)
            self._no_child(call)
            if call.state != "CLAIMED" and (ok or call.state != "PREPARED"):
                raise ModelRefusal("OPERATION_INVALID")
            self._settle(call, f"did {name}")
        run.recoveries = 0
        waited = len(self.steers)
        if self._close_batch() and run.pausing:
            self._pause()
        return len(self.steers) < waited

    def _outcome(self, run: ModelRun, outcome: str, expire: int, *, delivered: bool) -> bool:
        """Returns whether it was applied."""
        if outcome == "suspend":
            self._suspend(run, expire)
        elif outcome in {"all", "any"}:
            self._await(run, any_of=outcome == "any")
        elif run.cancelling:
            self._end("CANCELLED")
        elif outcome == "CANCELLED":
            raise ModelRefusal("OPERATION_INVALID")
        elif outcome == "release":
            if run.has("CLAIMED"):
                raise ModelRefusal("CALL_UNRESOLVED")
            if run.final:
                self._end("COMPLETED")
            elif run.pausing:
                self._pause()
            else:
                self._queue()
        elif outcome == "COMPLETED":
            if run.calls:
                raise ModelRefusal("OPERATION_INVALID")
            if delivered or self._boundary():
                if run.pausing:
                    self._pause()
                return False
            self._end("COMPLETED")
        else:
            self._end(outcome)
        return True

    def _starts(self, run: ModelRun, names: tuple[str, ...]) -> str:
        """One call, and the session that a child run for it would get."""
        if run.cancelling:
            raise ModelRefusal("RUN_CANCELLING")
        call = self._call(run, names[0])
        if call.child:
            return f"again {call.child}"
        self._prepared(run, names[0])
        if self.depth == DEPTH_MAX:
            raise ModelRefusal("OPERATION_INVALID")
        call.child = names[1]
        run.children.append(names[1])
        run.started += 1
        run.recoveries = 0
        return "goes on"

    def child(self, name: str, label: str, how: How) -> "ModelSession":
        """The session of a child run that was started here."""
        made = ModelSession(name, self.name, self.run.label, self.run.deadline, self.depth + 1)
        made.now = self.now
        made._start(label, how)
        # It has no request_id of its own.
        made.run.label, made.inputs = "", {"": "DELIVERED"}
        return made

    def _compact(self, run: ModelRun, names: tuple[str, ...]) -> None:
        through = int(names[0])
        if run.final or run.calls or not self.compacted < through <= self.count:
            raise ModelRefusal("OPERATION_INVALID")
        if through + 1 in self.tools:
            raise ModelRefusal("OPERATION_INVALID")
        self.compacted, run.recoveries = through, 0

    def _await(self, run: ModelRun, *, any_of: bool) -> None:
        self._may_suspend(run)
        if not run.started:
            raise ModelRefusal("OPERATION_INVALID")
        run.place, run.awaited, run.any_of = "C", list(run.children), any_of
        self._wait_met()

    def _may_suspend(self, run: ModelRun) -> None:
        if run.cancelling:
            raise ModelRefusal("RUN_CANCELLING")
        if run.has("CLAIMED"):
            raise ModelRefusal("CALL_UNRESOLVED")
        if run.final:
            raise ModelRefusal("OPERATION_INVALID")

    def _suspend(self, run: ModelRun, expire: int) -> None:
        """For the first call that is prepared, where there is one."""
        self._may_suspend(run)
        run.asks = first_prepared(run)
        run.place, run.expires = "W", self.now + expire if expire else 0

    def _call(self, run: ModelRun, name: str) -> ModelCall:
        for call in run.calls:
            if call.name == name:
                return call
        raise ModelRefusal("TOOL_CALL_NOT_FOUND")

    def _prepared(self, run: ModelRun, name: str) -> ModelCall:
        call = self._call(run, name)
        self._no_child(call)
        if call.state != "PREPARED":
            raise ModelRefusal("OPERATION_INVALID")
        return call

    def _no_child(self, call: ModelCall) -> None:
        if call.child:
            raise ModelRefusal("CALL_HAS_CHILD")


def first_prepared(run: ModelRun) -> str:
    """The call that a question of the run is about; none where nothing is prepared."""
    free = (one.name for one in run.calls if one.state == "PREPARED" and not one.child)
    return next(free, "")


def ring(sessions: dict[str, ModelSession], now: int) -> None:
    """All that sessions have to tell each other has come to where it belongs."""
    moved = True
    while moved:
        before = {name: (one.column, one.questions, one.count) for name, one in sessions.items()}
        for one in list(sessions.values()):
            asked, one.asked_of = one.asked_of, []
            for child in asked:
                sessions[child].is_asked_to_end(now)
            for child in list(one.run.children) if one.run is not None else []:
                one.due(now)
                one.hears(sessions[child])
        moved = before != {
            name: (one.column, one.questions, one.count) for name, one in sessions.items()
        }
