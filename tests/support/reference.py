"""A small model of a session, written from the tables of states and nothing else.

It knows labels and texts, no ids, no rows and no events.
"""

from dataclasses import dataclass, field

from support.steps import GRACE, LEASE

REPLACE, MOVED, FOLLOWS = 1, 2, 3


@dataclass
class ModelRun:
    label: str
    budget: int
    leased: bool = False
    cancelling: bool = False
    reserved: int = 0
    committed: int = 0
    final: bool = False
    lease_end: int = 0
    grace_end: int = 0
    attempt: int = 1


@dataclass
class ModelSession:
    """What a session must be. `prefix`: what a fork took over."""

    prefix: list[str] = field(default_factory=list)
    closed: bool = False
    run: ModelRun | None = None
    steers: list[tuple[str, bool]] = field(default_factory=list)
    waiting: list[tuple[int, str, int]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    cutoffs: dict[str, int] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    @property
    def column(self) -> str:
        if self.run is None:
            return "IDLE"
        if not self.run.leased:
            return "Q"
        return "Lc" if self.run.cancelling else "L"

    @property
    def runs(self) -> list[str]:
        return self.ended + ([f"{self.run.label} LIVE"] if self.run is not None else [])

    # --- what happens by itself --------------------------------------------

    def due(self, now: int) -> None:
        run = self.run
        if run is None or not run.leased:
            return
        if run.cancelling and run.grace_end <= now:
            self._end("CANCELLED")
        elif run.lease_end <= now:
            self._end("CANCELLED" if run.cancelling else "FAILED")

    def restarted(self, now: int) -> None:
        if self.run is not None and self.run.leased:
            self.run.lease_end = max(self.run.lease_end, now + LEASE)

    # --- commands: what they answer, or the reason of a refusal -------------

    def submit(self, label: str, mode: str, budget: int, now: int, *, moves: bool = False) -> str:
        column = self.column
        if self.closed:
            return "SESSION_CLOSED"
        if column == "IDLE":
            if mode in {"STEER", "FOLLOW_UP"}:
                return "SESSION_IDLE"
            self._start(label, budget)
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
            return self._replace(label, budget, now)
        self._wait(FOLLOWS, label, budget)
        return "FOLLOW_UP PENDING"

    def _replace(self, label: str, budget: int, now: int) -> str:
        if self.column == "Q":
            ahead = any(rank == REPLACE for rank, _, _ in self.waiting)
            self._finish("CANCELLED")
            self._miss("TARGET_CANCELLING")
            if not ahead:
                self._start(label, budget)
                return "RUN DELIVERED"
            self._wait(REPLACE, label, budget)
            self._promote()
            return "FOLLOW_UP PENDING"
        if self.column == "L":
            self._request(now)
        self._wait(REPLACE, label, budget)
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
        if self.column == "IDLE":
            return "SESSION_IDLE"
        if self.column == "Q":
            self._finish("CANCELLED")
            self._miss("TARGET_CANCELLING")
            self._promote()
            return "TERMINAL"
        if self.column == "L":
            self._request(now)
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

    def lease(self, now: int) -> None:
        self.run.leased = True
        self.run.lease_end = now + LEASE

    def heartbeat(self, now: int) -> None:
        self.run.lease_end = now + LEASE

    def commit(self, now: int, what: str, outcome: str) -> str:
        """`what`: reserve, step or nothing; `outcome`: COMPLETED, FAILED, CANCELLED, release."""
        run = self.run
        refusal = self._refuses(run, what, outcome)
        if refusal:
            return refusal
        run.lease_end = now + LEASE
        if what == "reserve":
            if run.reserved == run.committed:
                run.reserved += 1
            return "granted"
        steered = False
        if what == "step":
            run.committed = run.reserved
            run.final = True
            self.texts.append("answer")
            steered = outcome != "FAILED" and self._boundary()
        if not outcome:
            return "goes on"
        if run.cancelling:
            self._end("CANCELLED")
        elif outcome == "release" and not run.final:
            run.leased = False
            run.attempt += 1
        elif outcome == "COMPLETED" and (steered or self._boundary()):
            return "goes on"
        else:
            self._end("COMPLETED" if outcome == "release" else outcome)
        return "applied"

    def _refuses(self, run: ModelRun, what: str, outcome: str) -> str:
        if what == "reserve":
            if outcome:
                return "OPERATION_INVALID"
            if run.cancelling:
                return "RUN_CANCELLING"
            if run.final:
                return "OPERATION_INVALID"
        if what == "step" and run.reserved == run.committed:
            return "OPERATION_INVALID"
        if outcome == "CANCELLED" and not run.cancelling:
            return "OPERATION_INVALID"
        return ""

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

    def _request(self, now: int) -> None:
        self.run.cancelling = True
        self.run.grace_end = now + GRACE
        self._miss("TARGET_CANCELLING")

    def _finish(self, reason: str) -> None:
        self.ended.append(f"{self.run.label} {reason}")
        self.cutoffs[self.run.label] = len(self.prefix) + len(self.texts)
        self.run = None

    def _end(self, reason: str) -> None:
        self._finish(reason)
        self._miss("TARGET_TERMINAL")
        self._promote()

    def _miss(self, why: str) -> None:
        for label, moves in self.steers:
            if moves:
                self._wait(MOVED, label, 20)
            else:
                self.inputs[label] = f"FAILED {why}"
        self.steers = []

    def _wait(self, rank: int, label: str, budget: int) -> None:
        self.inputs[label] = "PENDING"
        self.waiting.append((rank, label, budget))
        self.waiting.sort(key=lambda one: one[0])  # stable: first come first served in a rank

    def _start(self, label: str, budget: int) -> None:
        self.run = ModelRun(label, budget)
        self.inputs[label] = "DELIVERED"
        self.texts.append(label)

    def _promote(self) -> None:
        if self.waiting:
            _, label, budget = self.waiting.pop(0)
            self._start(label, budget)
