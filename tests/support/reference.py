"""A small model of a session: what it holds, and the steps that all commands share.

Written from the tables of states and nothing else. It knows labels and texts, no ids, no
rows and no events.
"""

from dataclasses import dataclass, field

from support.steps import GRACE, LEASE, SECOND

REPLACE, MOVED, FOLLOWS = 1, 2, 3
Question = tuple[str, int]


class ModelRefusal(Exception):  # noqa: N818 - a refusal is an answer, not a fault
    """The reason of a refusal; nothing of the command stays."""


@dataclass
class ModelCall:
    name: str
    state: str = "PREPARED"
    idempotent: bool = False
    appended: bool = False
    text: str = ""
    child: str = ""


@dataclass
class ModelRun:
    """A live run. `place`: Q, L, ST, W, C, P or K, whatever was asked of it.

    Child runs have the names of their sessions. A question is named by the session of who
    asks and the attempt in which that was; `shown` names the child run that brought each.
    """

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
    children: list[str] = field(default_factory=list)
    started: int = 0
    awaited: list[str] | None = None
    any_of: bool = False
    shown: dict[Question, str] = field(default_factory=dict)
    cause: str = ""
    phase: str = ""
    input_number: int = 0
    steer_number: int = 0

    def has(self, state: str, *, for_good: bool = False) -> bool:
        return any(one.state == state and not (for_good and one.idempotent) for one in self.calls)


@dataclass(frozen=True)
class How:
    """What the run of an input is started with."""

    budget: int = 20
    manual: bool = False
    duration: int = 0


@dataclass
class ModelSteps:
    """What a session must be. `prefix`: what a fork took over; `tools`: numbers of results."""

    name: str = ""
    parent: str = ""
    parent_run: str = ""
    latest: int = 0
    depth: int = 0
    prefix: list[str] = field(default_factory=list)
    closed: bool = False
    run: ModelRun | None = None
    steers: list[tuple[str, bool]] = field(default_factory=list)
    waiting: list[tuple[int, str, How]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    cutoffs: dict[str, tuple[int, int]] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    tools: set[int] = field(default_factory=set)
    compacted: int = 0
    asked_of: list[str] = field(default_factory=list)
    answered: set[Question] = field(default_factory=set)
    now: int = 0
    started: int = 0

    @property
    def column(self) -> str:
        run = self.run
        if run is None:
            return "IDLE"
        if run.place == "K":
            return "K"
        if run.cancelling:
            return "Lc"
        return run.place + ("p" if run.pausing else "")

    @property
    def runs(self) -> list[str]:
        return self.ended + ([f"{self.run.label} LIVE"] if self.run is not None else [])

    @property
    def count(self) -> int:
        return len(self.prefix) + len(self.texts)

    @property
    def questions(self) -> list[Question]:
        """What is asked here and below."""
        run = self.run
        if run is None:
            return []
        own = [(self.name, run.attempt)] if run.place == "W" else []
        return own + list(run.shown)

    # --- what happens by itself --------------------------------------------

    def due(self, now: int) -> None:
        self.now = now
        while self._due():
            pass

    def _due(self) -> bool:
        run, now = self.run, self.now
        if run is None or run.place == "K":
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
            return "ATTACHED" if self.run is run else "SETTLED"
        if counted and not run.pausing and run.recoveries >= 3:
            self._end("FAILED")
            return "ATTACHED" if self.run is run else "SETTLED"
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

    # --- child runs ----------------------------------------------------------

    def is_asked_to_end(self, now: int) -> None:
        """The parent run ends."""
        self.due(now)
        if self.run is not None:
            self._interrupt()

    def hears(self, child: "ModelSteps") -> bool:
        """Takes in what has become of a child run; False: it must be told again later."""
        run = self.run
        if run is None or child.name not in run.children:
            return True
        if run.place != "K":
            open_now = child.questions
            for question in [one for one, by in run.shown.items() if by == child.name]:
                if question not in open_now:
                    del run.shown[question]
            for question in open_now:
                run.shown.setdefault(question, child.name)
        if child.run is None:
            self._child_ended(child)
        return True

    def _child_ended(self, child: "ModelSteps") -> None:
        run = self.run
        run.children.remove(child.name)
        run.recoveries = 0
        (call,) = [one for one in run.calls if one.child == child.name]
        self._settle(call, "")
        if run.place == "K":
            if not run.children:
                self._finish(run.cause)
                self._promote()
            return
        self._close_batch()
        self._wait_met()

    def _wait_met(self) -> None:
        run = self.run
        if run.awaited is None:
            return
        left = [one for one in run.awaited if one in run.children]
        if left and not (run.any_of and len(left) < len(run.awaited)):
            return
        run.awaited = None
        self._pause() if run.pausing else self._queue()

    # --- steps -------------------------------------------------------------

    def _settle(self, call: ModelCall, words: str) -> None:
        call.state, call.text = "COMMITTED", words
        for one in self.run.calls:
            if one.state != "COMMITTED":
                break
            if not one.appended:
                self._append(one)

    def _append(self, call: ModelCall) -> None:
        call.appended = True
        self.texts.append(call.text)
        self.tools.add(self.count)

    def _close_batch(self) -> bool:
        run = self.run
        if not run.calls or not all(one.appended for one in run.calls):
            return False
        run.calls = []
        self._boundary()
        return True

    def _boundary(self) -> bool:
        run = self.run
        if run.cancelling or not self.steers or run.reserved == run.budget:
            return False
        label, _ = self.steers.pop(0)
        self.inputs[label] = "DELIVERED"
        self.texts.append(label)
        run.steer_number = self.count
        run.final = False
        return True

    def _pause(self) -> None:
        self.run.place, self.run.pausing = "P", False

    def _queue(self, not_before: int = 0) -> None:
        run = self.run
        run.place, run.not_before = "Q", not_before
        run.attempt += 1

    def _interrupt(self) -> None:
        """Where it is not asked for already."""
        run = self.run
        if run.place == "K" or (run.place == "L" and run.cancelling):
            return
        if run.place == "L":
            self._request()
            return
        self._request()
        self._finish("CANCELLED")
        self._promote()

    def _request(self) -> None:
        """Asks for cancellation; child runs are asked at once."""
        run = self.run
        run.cancelling, run.pausing = True, False
        run.grace_end = self.now + GRACE
        self.asked_of += run.children
        self._miss("TARGET_CANCELLING")

    def _finish(self, reason: str) -> None:
        """Ends the run; with a child run that lives it is ending, and keeps its place."""
        run = self.run
        if run.has("CLAIMED", for_good=True):
            reason = "OUTCOME_UNKNOWN"
        for call in run.calls:
            if call.state in {"CLAIMED", "PREPARED"} and call.child not in run.children:
                call.state = "OUTCOME_UNKNOWN" if call.state == "CLAIMED" else "CANCELLED"
        if run.children:
            if not run.cancelling:
                self.asked_of += run.children
            run.phase, run.place, run.cause = run_phase(run), "K", reason
            run.pausing, run.awaited, run.not_before, run.asks = False, None, 0, ""
            run.shown = {}
            return
        for call in run.calls:
            if not call.appended:
                self._append(call)
        self.ended.append(f"{run.label} {reason}")
        self.cutoffs[run.label] = (self.count, self.compacted)
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
        ends = [self.latest] if self.latest else []
        ends += [self.started + how.duration] if how.duration else []
        self.run = ModelRun(label, how.budget, manual=how.manual, deadline=min(ends, default=0))
        self.inputs[label] = "DELIVERED"
        self.texts.append(label)
        self.run.input_number = self.count

    def _promote(self) -> None:
        if self.waiting and self.run is None:
            _, label, how = self.waiting.pop(0)
            self._start(label, how)


def run_phase(run: ModelRun) -> str:
    return run.phase or {"W": "WAITING", "C": "WAITING", "P": "PAUSED"}.get(run.place, "ACTIVE")
