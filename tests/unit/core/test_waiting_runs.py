"""The pure machine where runs wait, stop, break and come back."""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import pytest
from runlane_server.core.admission import Column, allowed_commands, column
from runlane_server.core.answers import PauseReceipt, RestoreOutcome
from runlane_server.core.commands import (
    AnswerInteraction,
    ClaimToolCalls,
    CommitModelStep,
    CommitRun,
    CommitToolResults,
    Finish,
    FinishKind,
    InterruptRun,
    LeaseActivation,
    PauseRun,
    Release,
    ReserveModelStep,
    RestoreRun,
    SettleRun,
    Submit,
    Suspend,
    ToolResult,
    UnpauseRun,
    Verdict,
)
from runlane_server.core.context import Context
from runlane_server.core.errors import NotOpen, Reason, Refused
from runlane_server.core.machine import decide, decide_due
from runlane_server.core.model import (
    Content,
    Fence,
    Rules,
    RunLimits,
    RunOptions,
    SessionKey,
    SessionRecord,
    ToolUse,
    Usage,
)
from runlane_server.core.rows import (
    EventType,
    InteractionSettled,
    MessageAppended,
    RunEnded,
    SubmissionSettled,
)
from runlane_server.core.words import (
    ActivationKind,
    ActivationState,
    Author,
    Command,
    Mode,
    OnMiss,
    Phase,
    Position,
    PromptKind,
    Recovery,
    Role,
    RunFailure,
    StopReason,
    SubmissionState,
    ToolCallState,
    ToolErrorPolicy,
    ToolOutcome,
)

SECOND = 1_000_000
LEASE = 30 * SECOND


def content(text: str, *uses: str, malformed: bool = False) -> Content:
    data = text.encode()
    calls = tuple(ToolUse(use, f"tool-{use}", None if malformed else "{}") for use in uses)
    return Content(data, len(data), hashlib.sha256(data).digest(), text, calls)


def result(call: str, outcome: ToolOutcome = ToolOutcome.OK) -> ToolResult:
    return ToolResult(call, outcome, content(f"result of {call}"))


def step(*uses: str, tokens: int = 0, malformed: bool = False) -> CommitModelStep:
    made = content("answer" + "".join(uses), *uses, malformed=malformed)
    return CommitModelStep(made, Usage(input_tokens=tokens))


@dataclass
class Machine:
    """One session driven by hand, with time that stands still until it is moved."""

    options: RunOptions = field(default_factory=lambda: RunOptions(agent="a"))
    now: int = 1_000 * SECOND
    count: int = 0
    state: Any = None
    lease: int = 0
    confirmed: bool = True
    events: list = field(default_factory=list)
    rows: list = field(default_factory=list)

    def new_id(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}_{self.count}"

    def context(self) -> Context:
        rules = Rules(default_agent="a")
        key = SessionKey("default", "s")
        return Context(
            key, self.now, self.lease, self.new_id, rules, "", lease_confirmed=self.confirmed
        )

    def _take(self, decision: Any) -> Any:
        self.events, self.rows = decision.events, decision.rows
        if decision.state is not None:
            self.state = decision.state
        if decision.lease_expire_time is not None:
            self.lease, self.confirmed = decision.lease_expire_time, decision.lease_confirmed
        return decision.answer

    def do(self, command: Any) -> Any:
        return self._take(decide(self.state, command, self.context()))

    def due(self, seconds: float = 0) -> bool:
        self.now += int(seconds * SECOND)
        decision = decide_due(self.state, self.context())
        if decision is not None:
            self._take(decision)
        return decision is not None

    def refused(self, command: Any) -> Refused:
        with pytest.raises(Refused) as raised:
            self.do(command)
        return raised.value

    def submit(self, mode: Mode = Mode.START, **how: Any) -> Any:
        made = Submit(content("input"), mode, create_session=SessionRecord(), **how)
        return self.do(made).submission

    def start(self) -> "Machine":
        self.submit(options=self.options)
        return self.take()

    def take(self) -> "Machine":
        self.do(LeaseActivation(self.run.activation.activation_id, "x", LEASE))
        return self

    @property
    def run(self) -> Any:
        return self.state.run

    @property
    def fence(self) -> Fence:
        activation = self.run.activation
        return Fence("s", self.run.run_id, activation.activation_id, activation.epoch)

    def commit(self, *operations: Any, outcome: Any = None) -> Any:
        return self.do(CommitRun(self.fence, list(operations), outcome))

    def batch(self, *uses: str) -> "Machine":
        self.commit(ReserveModelStep())
        self.commit(step(*uses))
        return self

    def kinds(self) -> list[str]:
        return [event.type.name for event in self.events]

    def ended(self) -> RunEnded:
        return next(row for row in self.rows if isinstance(row, RunEnded))

    def messages(self) -> list[MessageAppended]:
        return [row for row in self.rows if isinstance(row, MessageAppended)]

    def where(self) -> Column:
        return column(self.state)


def machine(**options: Any) -> Machine:
    return Machine(RunOptions(agent="a", **options)).start()


def question(m: Machine, *calls: str, kind: PromptKind = PromptKind.QUESTION, expire: int = 0):
    return m.commit(outcome=Suspend(kind, b"prompt", calls, expire * SECOND))


def reply(m: Machine, words: str = "yes", **other: Any) -> AnswerInteraction:
    wait = m.run.wait
    given = {
        "run_id": m.run.run_id,
        "interaction_id": wait.interaction_id,
        "version": 1,
        "kind": wait.kind,
        "data": words.encode(),
        "hash": hashlib.sha256(words.encode()).digest(),
        "result": content(words) if wait.tool_call_ids else None,
    }
    return AnswerInteraction(**(given | other))


# --- tool calls ------------------------------------------------------------


def test_a_batch_closes_when_the_last_result_is_appended_whatever_the_order():
    m = machine().batch("c1", "c2", "c3")
    assert m.run.position is Position.TOOL_BATCH
    m.commit(ClaimToolCalls(("c3", "c1", "c2")))
    answer = m.commit(CommitToolResults((result("c3"),)))
    assert not answer.results[0].batch_closed
    assert m.messages() == []  # c1 and c2 come first
    m.commit(CommitToolResults((result("c1"),)))
    assert [row.content.preview for row in m.messages()] == ["result of c1"]
    answer = m.commit(CommitToolResults((result("c2"),)))
    assert answer.results[0].batch_closed
    assert [row.from_call for row in m.messages()][1] == (1, 3)
    assert m.run.position is Position.BEFORE_MODEL
    assert m.run.calls == []


def test_the_end_of_a_batch_delivers_one_steer():
    m = machine().batch("c1")
    m.submit(Mode.STEER)
    m.submit(Mode.STEER)
    m.commit(ClaimToolCalls(("c1",)))
    answer = m.commit(CommitToolResults((result("c1"),)))
    assert len(answer.delivered) == 1
    assert [row.author for row in m.messages()] == [Author.TOOL, Author.STEER]
    assert len(m.state.steers) == 1


def test_malformed_arguments_are_closed_at_once_and_cannot_be_claimed():
    m = machine()
    m.commit(ReserveModelStep())
    answer = m.commit(step("c1", malformed=True))
    assert answer.results[0].batch_closed
    assert m.run.position is Position.BEFORE_MODEL
    closer = m.messages()[1]
    assert (closer.role, closer.author) == (Role.TOOL, Author.CLOSER)
    assert closer.closer.outcome is ToolOutcome.ERROR
    assert m.refused(CommitRun(m.fence, [ClaimToolCalls(("c1",))])).reason is (
        Reason.TOOL_CALL_NOT_FOUND
    )


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        (ClaimToolCalls(("none",)), Reason.TOOL_CALL_NOT_FOUND),
        (CommitToolResults((result("c1"),)), Reason.OPERATION_INVALID),  # OK without a claim
        (ReserveModelStep(), Reason.OPERATION_INVALID),  # calls are open
    ],
)
def test_operations_that_do_not_fit_an_open_batch(operation, reason):
    m = machine().batch("c1")
    assert m.refused(CommitRun(m.fence, [operation])).reason is reason


def test_a_claimed_call_is_not_claimed_again_and_holds_back_what_needs_it_settled():
    m = machine().batch("c1", "c2")
    m.commit(ClaimToolCalls(("c1",)))
    again = m.refused(CommitRun(m.fence, [ClaimToolCalls(("c1",))]))
    assert (again.reason, again.metadata["operation_index"]) == (Reason.OPERATION_INVALID, "0")
    suspend = Suspend(PromptKind.QUESTION, b"", ())
    for outcome in (suspend, Release()):
        refusal = m.refused(CommitRun(m.fence, [], outcome))
        assert refusal.reason is Reason.CALL_UNRESOLVED
        assert refusal.metadata["tool_call_id"] == "c1"
    finish = CommitRun(m.fence, [], Finish(FinishKind.COMPLETED))
    assert m.refused(finish).reason is Reason.OPERATION_INVALID


def test_an_error_without_a_claim_is_a_result_of_a_call_that_never_ran():
    m = machine().batch("c1")
    answer = m.commit(CommitToolResults((result("c1", ToolOutcome.ERROR),)))
    assert answer.results[0].batch_closed


def test_tool_error_policy_stop_ends_the_run_and_closes_what_is_open():
    m = machine(tool_error_policy=ToolErrorPolicy.STOP).batch("c1", "c2", "c3")
    m.commit(ClaimToolCalls(("c1",)))
    m.commit(CommitToolResults((result("c1", ToolOutcome.ERROR),)))
    assert m.state.run is None
    ended = m.ended()
    assert ended.stop_reason is StopReason.FAILED
    assert ended.failure.reason is RunFailure.TOOL_FAILED
    closers = [row.closer.outcome for row in m.messages() if row.closer is not None]
    assert closers == [ToolOutcome.CANCELLED, ToolOutcome.CANCELLED]
    assert m.kinds()[-5:] == [
        "TOOL_CALL_CANCELLED",
        "MESSAGE_APPENDED",
        "MESSAGE_APPENDED",
        "ACTIVATION_ENDED",
        "RUN_TERMINAL",
    ]


def test_finish_with_a_claimed_call_is_outcome_unknown_and_keeps_the_cause():
    m = machine().batch("c1", "c2")
    m.commit(ClaimToolCalls(("c1",)))
    m.commit(outcome=Finish(FinishKind.FAILED))
    ended = m.ended()
    assert (ended.stop_reason, ended.cause) == (StopReason.OUTCOME_UNKNOWN, StopReason.FAILED)
    outcomes = [row.closer.outcome for row in m.messages()]
    assert outcomes == [ToolOutcome.UNKNOWN, ToolOutcome.CANCELLED]


def test_a_stored_result_is_appended_when_its_run_ends_before_those_ahead_of_it():
    m = machine().batch("c1", "c2")
    m.commit(ClaimToolCalls(("c1", "c2"), idempotent=True))
    m.commit(CommitToolResults((result("c2"),)))
    m.commit(outcome=Finish(FinishKind.FAILED))
    assert m.ended().stop_reason is StopReason.FAILED  # idempotent claims are no secret
    first, second = m.messages()
    assert first.closer.outcome is ToolOutcome.UNKNOWN
    assert second.from_call == (1, 2)


# --- budgets ---------------------------------------------------------------


def test_more_calls_than_are_left_end_the_run_with_its_step_committed():
    m = machine(limits=RunLimits(max_tool_calls=1)).batch("c1", "c2")
    assert m.ended().stop_reason is StopReason.BUDGET_EXHAUSTED
    assert [row.author for row in m.messages()] == [Author.MODEL, Author.CLOSER, Author.CLOSER]


def test_tokens_are_a_budget_of_the_next_step():
    m = machine(limits=RunLimits(max_total_tokens=100))
    m.commit(ReserveModelStep())
    m.submit(Mode.STEER)
    answer = m.commit(step(tokens=100), outcome=Finish(FinishKind.COMPLETED))
    assert answer.outcome_applied  # no step is left for the steer to be read in
    settled = [row for row in m.rows if isinstance(row, SubmissionSettled)]
    assert [row.state for row in settled] == [SubmissionState.FAILED]


# --- waiting ---------------------------------------------------------------


def test_a_question_is_answered_and_its_call_has_the_answer_as_result():
    m = machine().batch("ask")
    answer = question(m, "ask")
    assert answer.interaction_id
    assert m.where() is Column.W
    assert m.run.phase is Phase.WAITING
    assert m.kinds() == ["ACTIVATION_ENDED", "RUN_WAITING", "INTERACTION_OPENED"]
    assert Command.ANSWER in allowed_commands(m.state)
    m.submit(Mode.STEER)
    m.do(reply(m))
    assert m.kinds() == [
        "INTERACTION_ANSWERED",
        "TOOL_CALL_COMMITTED",
        "MESSAGE_APPENDED",
        "MESSAGE_APPENDED",  # the steer: the batch is closed
        "SUBMISSION_DELIVERED",
        "ACTIVATION_QUEUED",
    ]
    assert m.where() is Column.Q
    assert m.run.activation.kind is ActivationKind.CONTINUE
    assert m.run.activation.epoch == 2


def test_answers_that_do_not_fit():
    m = machine().batch("c1", "c2")
    question(m, "c1", "c2", kind=PromptKind.PERMISSION)
    assert m.refused(reply(m, version=2)).reason is Reason.INTERACTION_CONFLICT
    assert m.refused(reply(m, kind=PromptKind.FORM)).reason is Reason.ANSWER_INVALID
    one = (Verdict("c1", approve=True),)
    assert m.refused(reply(m, verdicts=one)).reason is Reason.ANSWER_INVALID
    with pytest.raises(NotOpen):
        m.do(reply(m, interaction_id="int_other"))


def test_a_rejection_is_a_tool_error_and_an_approval_leaves_the_call_to_be_claimed():
    m = machine().batch("c1", "c2")
    question(m, "c1", "c2", kind=PromptKind.PERMISSION)
    verdicts = (
        Verdict("c1", approve=False, result=content("no")),
        Verdict("c2", approve=True),
    )
    m.do(reply(m, verdicts=verdicts))
    assert [call.state for call in m.run.calls] == [
        ToolCallState.COMMITTED,
        ToolCallState.PREPARED,
    ]
    m.take().commit(ClaimToolCalls(("c2",)))


def test_a_rejection_under_stop_ends_the_run():
    m = machine(tool_error_policy=ToolErrorPolicy.STOP).batch("c1")
    question(m, "c1", kind=PromptKind.PERMISSION)
    m.do(reply(m, verdicts=(Verdict("c1", approve=False, result=content("no")),)))
    assert m.ended().failure.reason is RunFailure.TOOL_FAILED


def test_an_interaction_expires_with_nobody_there():
    m = machine()
    question(m, expire=60)
    assert not m.due(59)
    assert m.due(1)
    assert m.ended().stop_reason is StopReason.INTERACTION_EXPIRED
    assert "INTERACTION_CLOSED" in m.kinds()
    assert not any("ACTIVATION" in kind for kind in m.kinds())


def test_interrupt_of_a_waiting_run_closes_its_interaction():
    m = machine()
    question(m)
    m.do(InterruptRun())
    assert m.ended().stop_reason is StopReason.CANCELLED
    assert [row for row in m.rows if isinstance(row, InteractionSettled)]


# --- pause -----------------------------------------------------------------


def test_a_queued_run_is_paused_at_once_and_goes_on_with_a_new_activation():
    m = Machine()
    m.submit(options=m.options)
    answer = m.do(PauseRun())
    assert answer.receipt is PauseReceipt.PAUSED
    assert m.kinds() == ["ACTIVATION_ABANDONED", "RUN_PAUSED"]
    assert m.where() is Column.P
    assert m.do(PauseRun()).receipt is PauseReceipt.PAUSED
    m.submit(Mode.STEER)
    assert m.do(UnpauseRun()).receipt is PauseReceipt.RESUMED
    assert m.kinds() == ["RUN_UNPAUSED", "ACTIVATION_QUEUED"]
    assert m.run.activation.kind is ActivationKind.CONTINUE
    assert m.do(UnpauseRun()).receipt is PauseReceipt.UNCHANGED


def test_a_leased_run_is_paused_at_the_next_reservation():
    m = machine()
    assert m.do(PauseRun()).receipt is PauseReceipt.REQUESTED
    assert m.where() is Column.LP
    answer = m.commit(ReserveModelStep())
    assert answer.results[0].paused
    assert m.where() is Column.P
    assert m.run.steps_reserved == 0


def test_the_end_of_a_batch_takes_a_pause():
    m = machine().batch("c1")
    m.commit(ClaimToolCalls(("c1",)))
    m.do(PauseRun())
    m.commit(CommitToolResults((result("c1"),)))
    assert m.where() is Column.P


def test_a_final_answer_without_a_steer_stays_and_with_finish_ends():
    m = machine()
    m.commit(ReserveModelStep())
    m.do(PauseRun())
    m.commit(step())
    assert m.where() is Column.LP
    m.commit(outcome=Finish(FinishKind.COMPLETED))
    assert m.ended().stop_reason is StopReason.COMPLETED


def test_a_steer_at_finish_makes_a_run_go_on_into_its_pause():
    m = machine()
    m.commit(ReserveModelStep())
    m.do(PauseRun())
    m.submit(Mode.STEER)
    answer = m.commit(step(), outcome=Finish(FinishKind.COMPLETED))
    assert (answer.outcome_applied, m.where()) == (False, Column.P)


def test_a_pause_is_remembered_over_a_wait():
    m = machine()
    question(m)
    assert m.do(PauseRun()).receipt is PauseReceipt.REQUESTED
    assert m.where() is Column.WP
    m.do(reply(m))
    assert m.where() is Column.P
    assert m.kinds()[-1] == "RUN_PAUSED"


def test_cancellation_clears_a_request_to_pause():
    m = machine()
    m.do(PauseRun())
    m.do(InterruptRun())
    assert m.where() is Column.LC
    assert m.refused(PauseRun()).reason is Reason.RUN_CANCELLING


# --- leases and recovery ---------------------------------------------------


def test_a_lease_that_nothing_was_heard_on_is_queued_again_at_ten_seconds():
    m = machine()
    assert not m.due(9.9)
    assert m.due(0.2)
    assert m.where() is Column.Q
    assert (m.run.activation.epoch, m.run.activation.kind) == (2, ActivationKind.START)
    assert (m.run.recoveries, m.run.not_before) == (0, 0)


def test_recovery_backs_off_reuses_the_reservation_and_is_exhausted():
    m = machine(max_recoveries=2)
    m.commit(ReserveModelStep())
    backoffs = []
    for _ in range(2):
        assert m.due(31)
        assert m.kinds() == ["ACTIVATION_ABANDONED", "RUN_RECOVERING", "ACTIVATION_QUEUED"]
        backoffs.append(m.run.not_before - m.now)
        taken = LeaseActivation(m.run.activation.activation_id, "y", LEASE)
        assert m.refused(taken).reason is Reason.STALE_ACTIVATION
        m.now = m.run.not_before
        m.take()
        answer = m.commit(ReserveModelStep())
        assert answer.results[0].step == 1
        assert m.events == []
    assert backoffs == [SECOND, 2 * SECOND]
    assert m.due(31)
    assert m.ended().failure.reason is RunFailure.RECOVERY_EXHAUSTED


def test_progress_resets_the_count_of_recoveries():
    m = machine(max_recoveries=1)
    for number in range(3):
        m.commit(ReserveModelStep())
        assert m.due(31)
        m.now = m.run.not_before
        m.take()
        m.commit(step(f"c{number}"))
        m.commit(ClaimToolCalls((f"c{number}",)))
        m.commit(CommitToolResults((result(f"c{number}"),)))
        assert m.run.recoveries == 0


def lost_before_model(m: Machine) -> None:
    m.commit(ReserveModelStep())


def lost_prepared(m: Machine) -> None:
    m.batch("c1")


def lost_idempotent(m: Machine) -> None:
    m.batch("c1").commit(ClaimToolCalls(("c1",), idempotent=True))


def lost_claimed(m: Machine) -> None:
    m.batch("c1", "c2").commit(ClaimToolCalls(("c1",)))


def lost_ready(m: Machine) -> None:
    m.commit(ReserveModelStep())
    m.commit(step())


CANCEL, PAUSE, PLAIN = "cancel", "pause", "plain"
UNKNOWN = StopReason.OUTCOME_UNKNOWN
TABLE = [
    (lost_before_model, CANCEL, StopReason.CANCELLED, None),
    (lost_before_model, PAUSE, Column.P, None),
    (lost_before_model, PLAIN, Column.Q, None),
    (lost_prepared, CANCEL, StopReason.CANCELLED, None),
    (lost_prepared, PAUSE, Column.P, None),
    (lost_prepared, PLAIN, Column.Q, None),
    (lost_idempotent, CANCEL, StopReason.CANCELLED, None),
    (lost_idempotent, PAUSE, Column.P, None),
    (lost_idempotent, PLAIN, Column.Q, None),
    (lost_claimed, CANCEL, UNKNOWN, StopReason.CANCELLED),
    (lost_claimed, PAUSE, UNKNOWN, StopReason.FAILED),
    (lost_claimed, PLAIN, UNKNOWN, StopReason.FAILED),
    (lost_ready, CANCEL, StopReason.CANCELLED, None),
    (lost_ready, PAUSE, StopReason.COMPLETED, None),
    (lost_ready, PLAIN, StopReason.COMPLETED, None),
]


@pytest.mark.parametrize(("lose", "asked", "outcome", "cause"), TABLE)
def test_the_table_of_recovery(lose, asked, outcome, cause):
    m = machine()
    lose(m)
    if asked == CANCEL:
        m.do(InterruptRun())
    elif asked == PAUSE:
        m.do(PauseRun())
    assert m.due(30)
    if isinstance(outcome, Column):
        assert m.where() is outcome
        assert all(call.state is not ToolCallState.CLAIMED for call in m.run.calls)
    else:
        assert (m.ended().stop_reason, m.ended().cause) == (outcome, cause)


def test_a_manual_run_stalls_until_it_is_restored():
    m = machine(recovery=Recovery.MANUAL)
    m.commit(ReserveModelStep())
    assert m.due(31)
    assert m.kinds() == ["ACTIVATION_ABANDONED", "RUN_STALLED"]
    assert m.where() is Column.ST
    assert m.run.activation.state is ActivationState.ABANDONED
    stale = CommitRun(m.fence, [ReserveModelStep()])
    assert m.refused(stale).reason is Reason.STALE_ACTIVATION
    wrong = RestoreRun(m.run.run_id, "act_other")
    assert m.refused(wrong).reason is Reason.ACTIVATION_MISMATCH
    m.do(PauseRun())
    assert m.where() is Column.STP
    m.do(UnpauseRun())
    answer = m.do(RestoreRun(m.run.run_id, m.run.activation.activation_id))
    assert answer.outcome is RestoreOutcome.RECOVERY_QUEUED
    assert (m.run.activation.kind, m.run.not_before) == (ActivationKind.RECOVER, 0)
    assert m.run.recoveries == 0


def test_restore_of_a_live_lease_does_nothing_without_force():
    m = machine()
    m.commit(ReserveModelStep())
    old = m.fence
    command = RestoreRun(m.run.run_id, old.activation_id)
    assert m.do(command).outcome is RestoreOutcome.STILL_LEASED
    command.force = True
    assert m.do(command).outcome is RestoreOutcome.RECOVERY_QUEUED
    assert m.refused(CommitRun(old, [])).reason is Reason.STALE_ACTIVATION


def test_restore_in_back_off_lets_it_go_on_at_once():
    m = machine()
    m.commit(ReserveModelStep())
    m.due(31)
    assert Command.RESTORE in allowed_commands(m.state)
    answer = m.do(RestoreRun(m.run.run_id, m.run.activation.activation_id))
    assert answer.outcome is RestoreOutcome.RECOVERY_QUEUED
    m.take()


def test_a_release_of_an_open_batch_keeps_what_was_done():
    m = machine().batch("c1", "c2")
    m.commit(ClaimToolCalls(("c1",)), CommitToolResults((result("c1"),)), outcome=Release())
    m.take()
    assert [call.state for call in m.run.calls] == [
        ToolCallState.COMMITTED,
        ToolCallState.PREPARED,
    ]


# --- time ------------------------------------------------------------------


@pytest.mark.parametrize("where", ["queued", "leased", "waiting", "paused", "stalled"])
def test_a_deadline_ends_a_run_wherever_it_is(where):
    options = RunOptions(
        agent="a", limits=RunLimits(max_duration=100 * SECOND), recovery=Recovery.MANUAL
    )
    m = Machine(options)
    m.submit(options=options)
    if where != "queued":
        m.take().commit(ReserveModelStep())
    if where == "waiting":
        question(m)
    elif where == "paused":
        m.do(PauseRun())
        m.commit(ReserveModelStep())
    elif where == "stalled":
        m.due(31)
    elif where == "leased":
        m.lease = m.now + 1000 * SECOND
    m.now = m.run.deadline_time - 1
    assert not m.due()
    m.now += 1
    assert m.due()
    assert m.ended().stop_reason is StopReason.DEADLINE_EXCEEDED


def test_a_deadline_after_the_final_answer_completes():
    m = machine(limits=RunLimits(max_duration=100 * SECOND))
    lost_ready(m)
    m.lease = m.now + 1000 * SECOND
    assert m.due(100)
    assert m.ended().stop_reason is StopReason.COMPLETED


def test_nobody_takes_a_run_in_time():
    options = RunOptions(agent="a", limits=RunLimits(start_timeout=5 * SECOND))
    m = Machine(options)
    m.submit(options=options)
    assert m.due(5)
    assert m.ended().failure.reason is RunFailure.NO_EXECUTOR
    m = Machine(options).start()
    m.commit(ReserveModelStep())
    assert not m.due(10)


def test_a_poll_that_was_never_heard_of_does_not_disarm_the_start_timeout():
    options = RunOptions(agent="a", limits=RunLimits(start_timeout=12 * SECOND))
    m = Machine(options).start()
    assert m.due(10)  # the lease that nothing was heard on
    assert m.where() is Column.Q
    assert m.due(2)
    assert m.ended().failure.reason is RunFailure.NO_EXECUTOR


def test_a_paused_run_waits_for_no_executor():
    options = RunOptions(agent="a", limits=RunLimits(start_timeout=5 * SECOND))
    m = Machine(options)
    m.submit(options=options)
    m.do(PauseRun())
    assert not m.due(10)
    m.do(UnpauseRun())
    assert not m.due(10)


def test_what_is_due_first_wins():
    m = machine(limits=RunLimits(max_duration=30 * SECOND))
    m.commit(ReserveModelStep())
    m.do(InterruptRun())
    assert m.due(40)  # grace, deadline and lease are all due
    assert m.ended().stop_reason is StopReason.CANCELLED
    assert EventType.ACTIVATION_ABANDONED in {event.type for event in m.events}


# --- by hand ---------------------------------------------------------------


@pytest.mark.parametrize("how", [StopReason.FAILED, StopReason.CANCELLED])
def test_a_run_is_settled_by_hand(how):
    m = machine(recovery=Recovery.MANUAL)
    m.commit(ReserveModelStep())
    m.due(31)
    m.submit(Mode.QUEUE)
    answer = m.do(SettleRun(m.run.run_id, how, "lost"))
    assert answer.run.stop_reason is how
    assert m.where() is Column.Q  # the next run has started


def test_a_steer_that_moves_becomes_a_run_when_its_own_is_lost():
    m = machine(max_recoveries=0)
    m.commit(ReserveModelStep())
    m.submit(Mode.STEER, on_miss=OnMiss.FOLLOW_UP)
    assert m.due(31)
    assert m.ended().failure.reason is RunFailure.RECOVERY_EXHAUSTED
    assert m.run is not None
