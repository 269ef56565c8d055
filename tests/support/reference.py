"""A small model of a session, written from the tables of states and nothing else.

It knows labels and texts, no ids, no rows and no events.
"""

import copy
from dataclasses import dataclass, field

from support.steps import GRACE, LEASE, SECOND, UNCONFIRMED

REPLACE, MOVED, FOLLOWS = 1, 2, 3


class ModelRefusal(Exception):  # noqa: N818 - a refusal is an answer, not a fault
    """The reason of a refusal; nothing of the command stays."""


@dataclass
class ModelCall:
    name: str
    state: str = "PREPARED"
    idempotent: bool = False
    appended: bool = False
    text: str = ""


@dataclass
class ModelRun:
    """A live run. `place`: Q, L, ST, W or P, whatever was asked of it."""

    label: str
    budget: int
    place: str = "Q"
    cancelling: bool = False
    pausing: bool = False
    manual: bool = False
    confirmed: bool = True
    reserved: int = 0
    committed: int = 0
    final: bool = False
    lease_end: int = 0
    grace_end: int = 0
    deadline: int = 0
    expires: int = 0
    asks: str = ""
    attempt: int = 1
    recoveries: int = 0
    not_before: int = 0
    calls: list[ModelCall] = field(default_factory=list)

    def has(self, state: str, *, for_good: bool = False) -> bool:
        return any(one.state == state and not (for_good and one.idempotent) for one in self.calls)


@dataclass(frozen=True)
class How:
    """What the run of an input is started with."""

    budget: int = 20
    manual: bool = False
    duration: int = 0


@dataclass
class ModelSession:
    """What a session must be. `prefix`: what a fork took over."""

    prefix: list[str] = field(default_factory=list)
    closed: bool = False
    run: ModelRun | None = None
    steers: list[tuple[str, bool]] = field(default_factory=list)
    waiting: list[tuple[int, str, How]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    cutoffs: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    now: int = 0
    started: int = 0

    @property
    def column(self) -> str:
        run = self.run
        if run is None:
            return "IDLE"
        if run.cancelling:
            return "Lc"
        return run.place + ("p" if run.pausing else "")

    @property
    def runs(self) -> list[str]:
        return self.ended + ([f"{self.run.label} LIVE"] if self.run is not None else [])

    # --- what happens by itself --------------------------------------------

    def due(self, now: int) -> None:
        self.now = now
        while self._due():
            pass

    def _due(self) -> bool:
        run, now = self.run, self.now
        if run is None:
            return False
        leased = run.place == "L"
        if leased and run.cancelling and run.grace_end <= now:
            self._end("CANCELLED")
        elif run.deadline and run.deadline <= now:
            done = "COMPLETED" if run.final else "DEADLINE_EXCEEDED"
            self._end("CANCELLED" if run.cancelling else done)
        elif run.place == "W" and run.expires and run.expires <= now:
            self._end("INTERACTION_EXPIRED")
        elif leased and run.lease_end <= now:
            self._lose(run)
        else:
            return False
        return True

    def _lose(self, run: ModelRun) -> None:
        if not run.cancelling and not run.confirmed:
            self._pause() if run.pausing else self._queue()
        elif not run.cancelling and run.manual:
            run.place = "ST"
        else:
            self._recover(counted=True)

    def _recover(self, *, counted: bool) -> str:
        run = self.run
        if run.cancelling or run.final or run.has("CLAIMED", for_good=True):
            self._end("CANCELLED" if run.cancelling else "COMPLETED" if run.final else "FAILED")
            return "SETTLED"
        if counted and not run.pausing and run.recoveries >= 3:
            self._end("FAILED")
            return "SETTLED"
        for call in run.calls:
            if call.state == "CLAIMED":
                call.state = "PREPARED"
        if run.pausing:
            self._pause()
            return "ATTACHED"
        run.recoveries += counted
        self._queue(self.now + SECOND * 2 ** (run.recoveries - 1) if counted else 0)
        return "RECOVERY_QUEUED"

    def restarted(self, now: int) -> None:
        if self.run is not None and self.run.place == "L":
            self.run.lease_end = max(self.run.lease_end, now + LEASE)

    # --- commands: what they answer, or the reason of a refusal -------------

    def submit(self, label: str, mode: str, how: How, now: int, *, moves: bool = False) -> str:
        self.now, column = now, self.column
        if self.closed:
            return "SESSION_CLOSED"
        if column == "IDLE":
            if mode in {"STEER", "FOLLOW_UP"}:
                return "SESSION_IDLE"
            self._start(label, how)
            return "RUN DELIVERED"
        if mode == "START":
            return "SESSION_BUSY"
        if mode == "STEER" and column == "Lc":
            return "RUN_CANCELLING"
        if mode == "STEER" or (mode == "AUTO" and column != "Lc"):
            self.steers.append((label, moves))
            self.inputs[label] = "PENDING"
            return "STEER PENDING"
        if mode == "REPLACE":
            return self._replace(label, how)
        self._wait(FOLLOWS, label, how)
        return "FOLLOW_UP PENDING"

    def _replace(self, label: str, how: How) -> str:
        if self.run.place != "L":
            ahead = any(rank == REPLACE for rank, _, _ in self.waiting)
            self._finish("CANCELLED")
            self._miss("TARGET_CANCELLING")
            if not ahead:
                self._start(label, how)
                return "RUN DELIVERED"
            self._wait(REPLACE, label, how)
            self._promote()
            return "FOLLOW_UP PENDING"
        if not self.run.cancelling:
            self._request()
        self._wait(REPLACE, label, how)
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
        if self.run is None:
            return "SESSION_IDLE"
        if self.run.place != "L":
            self._finish("CANCELLED")
            self._miss("TARGET_CANCELLING")
            self._promote()
            return "TERMINAL"
        if not self.run.cancelling:
            self._request()
        return "ACTIVE"

    def close(self, now: int, *, cancel: bool) -> str:
        self.closed = True
        for label in [one[0] for one in self.steers] + [one[1] for one in self.waiting]:
            self.inputs[label] = "FAILED SESSION_CLOSED"
        self.steers, self.waiting = [], []
        if cancel and self.run is not None:
            self.interrupt(now)
        return "CLOSED"

    def reopen(self) -> str:
        self.closed = False
        return "OPEN"

    def pause(self) -> str:
        run = self.run
        if run is None:
            return "SESSION_IDLE"
        if run.cancelling:
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
        if run.cancelling:
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

    def restore(self, *, force: bool) -> str:
        """With the right activation; only where a run is live."""
        run = self.run
        if run.place in {"W", "P"} or (run.place == "Q" and not run.not_before):
            return "ATTACHED"
        if run.place == "Q":
            run.not_before = 0
            return "RECOVERY_QUEUED"
        if run.place == "L" and not force:
            return "STILL_LEASED"
        return self._recover(counted=False)

    def settle(self, how: str) -> str:
        """Ends a live run by hand."""
        cancelled = self.run.cancelling or how == "CANCELLED"
        self._finish("CANCELLED" if cancelled else how)
        self._miss("TARGET_CANCELLING" if cancelled else "TARGET_TERMINAL")
        self._promote()
        return self.ended[-1].split()[1]

    def lease(self, now: int) -> None:
        run = self.run
        run.place, run.confirmed, run.not_before = "L", False, 0
        run.lease_end = now + UNCONFIRMED

    def heartbeat(self, now: int) -> None:
        self.run.confirmed = True
        self.run.lease_end = now + LEASE

    def commit(self, now: int, what: str, names: tuple[str, ...], outcome: str, expire: int = 0) -> str:  # fmt: skip
        """`what`: reserve, step, asks, claim, reclaim, result, error or nothing."""
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
        if run.place != "L" or self.run is not run:
            return said
        if outcome and self._outcome(run, outcome, expire, delivered=delivered):
            said = "applied"
        if self.run is run and run.place == "L":
            self.heartbeat(self.now)
        return said

    # --- what an executor commits ------------------------------------------

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
            call = self._call(run, name)
            if call.state != "PREPARED":
                raise ModelRefusal("OPERATION_INVALID")
            call.state, call.idempotent = "CLAIMED", idempotent

    def _results(self, run: ModelRun, names: tuple[str, ...], *, ok: bool) -> bool:
        for name in names:
            call = self._call(run, name)
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

    def _suspend(self, run: ModelRun, expire: int) -> None:
        """For the first call that is prepared, where there is one."""
        if run.cancelling:
            raise ModelRefusal("RUN_CANCELLING")
        if run.has("CLAIMED"):
            raise ModelRefusal("CALL_UNRESOLVED")
        if run.final:
            raise ModelRefusal("OPERATION_INVALID")
        run.asks = first_prepared(run)
        run.place, run.expires = "W", self.now + expire if expire else 0

    def _call(self, run: ModelRun, name: str) -> ModelCall:
        for call in run.calls:
            if call.name == name:
                return call
        raise ModelRefusal("TOOL_CALL_NOT_FOUND")

    def _settle(self, call: ModelCall, words: str) -> None:
        call.state, call.text = "COMMITTED", words
        for one in self.run.calls:
            if one.state != "COMMITTED":
                break
            if not one.appended:
                one.appended = True
                self.texts.append(one.text)

    def _close_batch(self) -> bool:
        run = self.run
        if not run.calls or not all(one.appended for one in run.calls):
            return False
        run.calls = []
        self._boundary()
        return True

    # --- steps -------------------------------------------------------------

    def _boundary(self) -> bool:
        run = self.run
        if run.cancelling or not self.steers or run.reserved == run.budget:
            return False
        label, _ = self.steers.pop(0)
        self.inputs[label] = "DELIVERED"
        self.texts.append(label)
        run.final = False
        return True

    def _pause(self) -> None:
        self.run.place, self.run.pausing = "P", False

    def _queue(self, not_before: int = 0) -> None:
        run = self.run
        run.place, run.not_before = "Q", not_before
        run.attempt += 1

    def _request(self) -> None:
        run = self.run
        run.cancelling, run.pausing = True, False
        run.grace_end = self.now + GRACE
        self._miss("TARGET_CANCELLING")

    def _finish(self, reason: str) -> None:
        run = self.run
        if run.has("CLAIMED", for_good=True):
            reason = "OUTCOME_UNKNOWN"
        self.texts += [one.text for one in run.calls if not one.appended]
        self.ended.append(f"{run.label} {reason}")
        self.cutoffs[run.label] = len(self.prefix) + len(self.texts)
        self.run = None

    def _end(self, reason: str) -> None:
        self._finish(reason)
        self._miss("TARGET_TERMINAL")
        self._promote()

    def _miss(self, why: str) -> None:
        for label, moves in self.steers:
            if moves:
                self._wait(MOVED, label, How())
            else:
                self.inputs[label] = f"FAILED {why}"
        self.steers = []

    def _wait(self, rank: int, label: str, how: How) -> None:
        self.inputs[label] = "PENDING"
        self.waiting.append((rank, label, how))
        self.waiting.sort(key=lambda one: one[0])  # stable: first come first served in a rank

    def _start(self, label: str, how: How) -> None:
        # Creation times of a session's runs strictly grow.
        self.started = max(self.now, self.started + 1)
        deadline = self.started + how.duration if how.duration else 0
        self.run = ModelRun(label, how.budget, manual=how.manual, deadline=deadline)
        self.inputs[label] = "DELIVERED"
        self.texts.append(label)

    def _promote(self) -> None:
        if self.waiting:
            _, label, how = self.waiting.pop(0)
            self._start(label, how)


def first_prepared(run: ModelRun) -> str:
    """The call that a question of the run is about; none where nothing is prepared."""
    return next((one.name for one in run.calls if one.state == "PREPARED"), "")


def run_phase(run: ModelRun) -> str:
    return {"W": "WAITING", "P": "PAUSED"}.get(run.place, "ACTIVE")
