"""One session of the pure machine. It looks at every decision as it takes it in."""

from dataclasses import replace
from typing import Any

from runlane_server.core.answers import Answer
from runlane_server.core.children import take_child
from runlane_server.core.commands import (
    CommitRun,
    RecordCompaction,
    StartChildRun,
    TakeChild,
    TakeNotice,
)
from runlane_server.core.context import Context, Decision
from runlane_server.core.errors import Refused
from runlane_server.core.machine import decide, decide_due, decide_with_child
from runlane_server.core.model import Rules, SessionKey, SessionState
from runlane_server.core.rows import (
    Event,
    MessageAppended,
    NoticePut,
    RunEnded,
    RunInserted,
    SubmissionInserted,
    SubmissionMoved,
    SubmissionSettled,
    ToolCallInserted,
    ToolCallMoved,
)
from runlane_server.core.words import (
    InteractionClose,
    InteractionState,
    NoticeKind,
    StopReason,
    ToolCallState,
    ToolOutcome,
)
from runlane_server.runtime.records import encode_state

from support.steps import SECOND, Step, text

_ENDS = {"COMMITTED", "CANCELLED", "OUTCOME_UNKNOWN"}
_TOLD = {
    "COMPLETED": ToolOutcome.OK,
    "CANCELLED": ToolOutcome.CANCELLED,
    "OUTCOME_UNKNOWN": ToolOutcome.UNKNOWN,
}
KEY = SessionKey("default", "ses_1")
START = 1_700_000_000 * SECOND


class Ids:
    """Ids that grow, each of its kind."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}_{self.count:032x}"


class Lane:
    """A session: its state, its events, and what its rows say of runs and inputs."""

    def __init__(self, rules: Rules | None = None, key: SessionKey = KEY) -> None:
        self.key = key
        self.rules = rules or Rules()
        self.state: SessionState | None = None
        self.now = START
        self.lease_end = 0
        self.lease_confirmed = True
        self.new_id = Ids()
        self.events: list[Event] = []
        self.messages: list[MessageAppended] = []
        self.runs: dict[str, list[str]] = {}
        self.inputs: dict[str, str] = {}
        self._labels: dict[str, str] = {}
        self._calls: dict[tuple[str, int, int], list[str]] = {}
        self.children: list[Lane] = []
        self.notices: list[NoticePut] = []
        self._down: list[NoticePut] = []
        self._up: list[NoticePut] = []

    def context(self, label: str = "") -> Context:
        return Context(
            self.key,
            self.now,
            self.lease_end,
            self.new_id,
            self.rules,
            label,
            self.lease_confirmed,
        )

    def do(self, *steps: Step) -> Answer | None:
        """Does steps, what is due before each; returns the answer of the last."""
        given = None
        for step in steps:
            self.now += step.passes
            self.due()
            if step.on_child is not None:
                number, steps = step.on_child
                child = self.children[number]
                child.now = self.now
                child.do(*steps)
                self.ring()
                given = None
            elif not step.passes:
                given = self.decided(step.make(self.state), step.label).answer
                assert given is not None
        return given

    def refused(self, step: Step) -> Refused:
        try:
            self.do(step)
        except Refused as refusal:
            return refusal
        raise AssertionError("it was not refused")

    def due(self) -> list[Event]:
        """Decides what is due; returns its events."""
        if self.state is None:
            return []
        before = encode_state(self.state)
        decision = decide_due(self.state, self.context())
        assert encode_state(self.state) == before, "a decision changed what it was given"
        if decision is None:
            return []
        self._take(decision)
        assert decide_due(self.state, self.context()) is None
        return decision.events

    def decided(self, command: Any, label: str = "") -> Decision:
        before = encode_state(self.state) if self.state is not None else b""
        try:
            decision = self._decided(command, self.context(label))
        finally:
            after = encode_state(self.state) if self.state is not None else b""
            assert after == before, "a decision changed what it was given"
        self._take(decision)
        return decision

    def _decided(self, command: Any, context: Context) -> Decision:
        if isinstance(command, CommitRun):
            self._look_behind(command)
        starts = isinstance(command, CommitRun) and any(
            isinstance(one, StartChildRun) for one in command.operations
        )
        if not starts:
            return decide(self.state, command, context)
        number = len(self.children)
        child = Lane(self.rules, SessionKey(KEY.namespace, f"{self.key.session_id}_{number}"))
        child.now, child.new_id = self.now, self.new_id
        decision, made = decide_with_child(
            self.state, None, command, context, replace(context, key=child.key, request_id="")
        )
        if made.state is not None:
            child._take(made)
            self.children.append(child)
        return decision

    def _look_behind(self, command: CommitRun) -> None:
        """Reads what a summary does not cover, as its use case does."""
        for one in command.operations:
            if isinstance(one, RecordCompaction) and one.through < len(self.messages):
                one.next_role = self.messages[one.through].role

    def told_of(self, child: "Lane") -> None:
        """Takes in what has become of a child run, as a notice would bring it."""
        ((run_id, (_, end)),) = child.runs.items()
        command = TakeChild(run_id)
        if end != "LIVE":
            command.stop_reason = StopReason[end]
            command.outcome = _TOLD.get(end, ToolOutcome.ERROR)
            command.result = text(f"child {end}")
        run = self.state.run if self.state is not None else None
        for proxy in run.proxies if run is not None else ():
            answered = end == "LIVE"
            command.settled[proxy.question.interaction_id] = (
                InteractionState.ANSWERED if answered else InteractionState.CLOSED,
                None if answered else InteractionClose.RUN_ENDED,
            )
        decision, untouched = take_child(self.state, child.state, command, self.context())
        assert untouched.state is None
        self._take(decision)

    def ring(self) -> None:
        """Brings all notices to where they belong, until there are none."""
        told = True
        while told:
            told = bool(self._down)
            down, self._down = self._down, []
            for notice in down:
                child = next(c for c in self.children if c.key.session_id == notice.session_id)
                child.now = max(child.now, self.now)
                child.due()
                child.decided(TakeNotice(notice.kind, notice.cause))
            for child in self.children:
                child.ring()
                if child._up:
                    child._up = []
                    self.told_of(child)
                    told = True

    def _take(self, decision: Decision) -> None:
        if decision.state is None:
            assert not decision.events
            assert not decision.rows
            return
        last = self.state.sequence if self.state is not None else 0
        numbers = [event.sequence for event in decision.events]
        assert numbers == list(range(last + 1, last + 1 + len(numbers)))
        assert decision.state.sequence == last + len(numbers)
        self.state = decision.state
        self.events += decision.events
        if decision.lease_expire_time is not None:
            self.lease_end = decision.lease_expire_time
            self.lease_confirmed = decision.lease_confirmed
        for row in decision.rows:
            self._note(row)
        self._check()

    def _note(self, row: Any) -> None:
        if isinstance(row, RunInserted):
            label = self._labels.get(row.submission_id, row.request_id)
            self.runs[row.run_id] = [label, "LIVE"]
            if not row.from_submission:
                self.inputs[label] = "DELIVERED"
        elif isinstance(row, RunEnded):
            assert self.runs[row.run_id][1] == "LIVE"
            self.runs[row.run_id][1] = row.stop_reason.name
            self._check_calls(row)
        elif isinstance(row, SubmissionInserted):
            self._labels[row.submission_id] = row.request_id
            self.inputs[row.request_id] = "PENDING"
        elif isinstance(row, SubmissionMoved):
            assert self.inputs[self._labels[row.submission_id]] == "PENDING"
        elif isinstance(row, SubmissionSettled):
            label = self._labels[row.submission_id]
            assert self.inputs[label] == "PENDING", "one end each"
            why = f" {row.failure.name}" if row.failure is not None else ""
            self.inputs[label] = row.state.name + why
        elif isinstance(row, NoticePut):
            self.notices.append(row)
            (self._up if row.kind is NoticeKind.CHILD else self._down).append(row)
        elif isinstance(row, MessageAppended):
            self.messages.append(row)
            if row.call is not None:
                self._calls[row.run_id, *row.call].append("MESSAGE")
        elif isinstance(row, ToolCallInserted):
            self._calls[row.run_id, row.step, row.ordinal] = ["PREPARED"]
        elif isinstance(row, ToolCallMoved):
            call = self._calls[row.run_id, row.step, row.ordinal]
            if row.state is ToolCallState.CLAIMED:
                assert "CLAIMED" not in call, "claimed twice, and not idempotent"
            call.append(row.state.name + (" idempotent" if row.idempotent else ""))

    def _check_calls(self, row: RunEnded) -> None:
        """Every call of a run that has ended has one end and one message, in order."""
        calls = {place: told for place, told in self._calls.items() if place[0] == row.run_id}
        for told in calls.values():
            assert told.count("MESSAGE") == 1
            (end,) = [one.split()[0] for one in told if one.split()[0] in _ENDS]
            assert end in _ENDS
        unknown = any("OUTCOME_UNKNOWN" in told for told in calls.values())
        assert unknown is (row.stop_reason is StopReason.OUTCOME_UNKNOWN)
        assert (row.cause is None) is not unknown
        shown = [one.call for one in self.messages if one.run_id == row.run_id and one.call]
        assert shown == sorted(shown)
        assert len(calls) == row.tool_calls

    def _check(self) -> None:
        """What holds of every state."""
        state = self.state
        assert state is not None
        waiting = state.steers + state.next_runs
        assert state.pending_bytes == sum(one.size for one in waiting)
        assert [one.rank for one in state.next_runs] == sorted(one.rank for one in state.next_runs)
        live = [run_id for run_id, (_, end) in self.runs.items() if end == "LIVE"]
        if not state.deleted:
            assert live == ([state.run.run_id] if state.run is not None else [])
            pending = [label for label, end in self.inputs.items() if end == "PENDING"]
            assert sorted(pending) == sorted(self._labels[one.submission_id] for one in waiting)
        if state.run is None:
            assert not waiting, "an idle session has nothing that waits"
        else:
            assert all(one.run_id == state.run.run_id for one in state.steers)
            assert state.run.steps_reserved <= state.run.limits.max_model_steps
            assert state.run.cancellation is None or not state.steers
        assert [one.number for one in self.messages] == list(range(1, len(self.messages) + 1))

    @property
    def run_ends(self) -> list[str]:
        return [" ".join(run) for run in self.runs.values()]

    def event_names(self, after: int = 0) -> list[str]:
        return [event.type.name for event in self.events if event.sequence > after]

    def with_rules(self, **changes: Any) -> None:
        self.rules = replace(self.rules, **changes)
