"""Control of the live run: pause, answer, restore, settle by hand."""

from runlane_server.core.admission import TABLE, Cell, Column, column
from runlane_server.core.answers import (
    InteractionAnswered,
    InteractionFacts,
    PauseAnswer,
    PauseReceipt,
    RestoreAnswer,
    RestoreOutcome,
    RunAnswer,
)
from runlane_server.core.commands import (
    AnswerInteraction,
    InterruptRun,
    PauseRun,
    RestoreRun,
    SettleRun,
    UnpauseRun,
)
from runlane_server.core.context import (
    Context,
    Decision,
    cancelling,
    decided,
    named_run,
    new_draft,
)
from runlane_server.core.draft import Draft
from runlane_server.core.drafting import live_run_facts
from runlane_server.core.errors import NotLive, NotOpen, Reason, Refused
from runlane_server.core.model import Failure, Run, SessionState, Wait
from runlane_server.core.recovery import end_by_force, recover
from runlane_server.core.rows import (
    ActivationDequeued,
    EventType,
    InteractionSettled,
    RunMoved,
    TimerSet,
)
from runlane_server.core.words import (
    AbandonReason,
    ActivationKind,
    Command,
    InteractionState,
    Phase,
    PromptKind,
    RunFailure,
    SessionStatus,
    StopReason,
    SubmissionFailure,
    TimerKind,
    ToolErrorPolicy,
    ToolOutcome,
)

_ATTACHED = frozenset({Column.W, Column.WP, Column.C, Column.CP, Column.P, Column.K})
"""Where nobody has the run, and nobody is missing."""


def interrupt_run(state: SessionState | None, command: InterruptRun, ctx: Context) -> Decision:
    """Asks for the live run to be cancelled."""
    present, _ = named_run(state, command.run_id)
    cell = TABLE[Command.INTERRUPT][column(present)]
    if cell is Cell.SAME:
        return Decision(None, RunAnswer(present.sequence, live_run_facts(present)))
    draft = new_draft(present, ctx)
    cancel(draft, cell, command.reason, replaced=False)
    facts = draft.facts
    return decided(draft, lambda: RunAnswer(draft.state.sequence, facts))


def cancel(draft: Draft, cell: Cell, reason: str, *, replaced: bool) -> None:
    """Requests cancellation, and ends the run where nobody has it. Steers miss."""
    draft.request_cancellation(reason, replaced=replaced)
    if cell is Cell.SETTLE:
        draft.end_run(StopReason.CANCELLED, AbandonReason.CANCELLED)
    else:
        run = draft.state.run
        assert run is not None and run.cancellation is not None  # noqa: S101, PT018 - invariant
        draft.rows.append(TimerSet(TimerKind.GRACE, run.cancellation.grace_expire_time))
    if draft.state.status is SessionStatus.OPEN:
        draft.miss_steers(SubmissionFailure.TARGET_CANCELLING)


def pause_run(state: SessionState | None, command: PauseRun, ctx: Context) -> Decision:
    """Stops the live run at a boundary, or at once where nobody has it."""
    present, run = named_run(state, command.run_id)
    cell = _control_cell(present, Command.PAUSE)
    if cell is Cell.SAME:
        receipt = PauseReceipt.PAUSED if run.paused else PauseReceipt.REQUESTED
        return _paused_answer(present, receipt)
    draft = new_draft(present, ctx)
    live = draft.state.run
    assert live is not None, "copied from a live one"  # noqa: S101 - invariant
    if cell is Cell.DO:
        draft.abandon_activation(AbandonReason.PAUSED)
        draft.pause()
        receipt = PauseReceipt.PAUSED
    else:
        live.pause_requested = True
        draft.event(EventType.RUN_PAUSE_REQUESTED, live.run_id)
        receipt = PauseReceipt.REQUESTED
    facts = live_run_facts(draft.state)
    return decided(draft, lambda: PauseAnswer(draft.state.sequence, receipt, facts))


def unpause_run(state: SessionState | None, command: UnpauseRun, ctx: Context) -> Decision:
    """Takes a pause, or the request for one, back."""
    present, run = named_run(state, command.run_id)
    if _control_cell(present, Command.UNPAUSE) is Cell.SAME:
        return _paused_answer(present, PauseReceipt.UNCHANGED)
    draft = new_draft(present, ctx)
    live = draft.state.run
    assert live is not None, "copied from a live one"  # noqa: S101 - invariant
    live.pause_requested = False
    draft.event(EventType.RUN_UNPAUSED, live.run_id)
    if run.paused:
        draft.next_activation(ActivationKind.CONTINUE)
    facts = live_run_facts(draft.state)
    return decided(draft, lambda: PauseAnswer(draft.state.sequence, PauseReceipt.RESUMED, facts))


def _paused_answer(state: SessionState, receipt: PauseReceipt) -> Decision:
    return Decision(None, PauseAnswer(state.sequence, receipt, live_run_facts(state)))


def _control_cell(state: SessionState, command: Command) -> Cell:
    cell = TABLE[command][column(state)]
    if cell is Cell.CANCELLING:
        assert state.run is not None, "IDLE is no such cell"  # noqa: S101 - invariant
        raise cancelling(state.run)
    return cell


def answer_interaction(
    state: SessionState | None, command: AnswerInteraction, ctx: Context
) -> Decision:
    """Answers the interaction that the live run waits for."""
    present, run = named_run(state, command.run_id)
    wait = run.wait
    if wait is None or wait.interaction_id != command.interaction_id:
        raise NotOpen
    if wait.version != command.version:
        raise Refused(
            Reason.INTERACTION_CONFLICT,
            interaction_id=wait.interaction_id,
            version=str(wait.version),
        )
    _check_answer(wait, command)
    draft = new_draft(present, ctx)
    live = draft.state.run
    assert live is not None, "copied from a live one"  # noqa: S101 - invariant
    _settle_answer(draft, live, wait, command)
    facts = draft.facts
    interaction = InteractionFacts(
        wait.interaction_id,
        run.run_id,
        present.session_id,
        wait.version,
        InteractionState.ANSWERED,
        draft.now,
    )
    return decided(draft, lambda: InteractionAnswered(draft.state.sequence, interaction, facts))


def _check_answer(wait: Wait, command: AnswerInteraction) -> None:
    if command.kind is not wait.kind:
        raise Refused(Reason.ANSWER_INVALID, f"the question is a {wait.kind.name.lower()}")
    if wait.kind is PromptKind.PERMISSION:
        named = sorted(one.tool_call_id for one in command.verdicts)
        if named != sorted(wait.tool_call_ids):
            raise Refused(Reason.ANSWER_INVALID, "not one decision for each call")


def _settle_answer(draft: Draft, run: Run, wait: Wait, command: AnswerInteraction) -> None:
    """Stores an answer, gives its calls their results, and lets the run go on."""
    draft.rows.append(
        InteractionSettled(
            wait.interaction_id,
            InteractionState.ANSWERED,
            draft.now,
            command.data,
            command.hash,
        )
    )
    if wait.expire_time:
        draft.rows.append(TimerSet(TimerKind.INTERACTION, None))
    draft.event(
        EventType.INTERACTION_ANSWERED,
        run.run_id,
        interaction_id=wait.interaction_id,
        version=wait.version,
    )
    run.wait = None
    calls = {call.tool_call_id: call for call in run.calls}
    failed = False
    for verdict in command.verdicts:
        if not verdict.approve:
            failed = True
            draft.settle_call(calls[verdict.tool_call_id], ToolOutcome.REJECTED, verdict.result)
    if wait.kind is not PromptKind.PERMISSION and wait.tool_call_ids:
        failed = command.outcome is not ToolOutcome.OK
        draft.settle_call(calls[wait.tool_call_ids[0]], command.outcome, command.result)
    run.recoveries = 0
    if failed and run.tool_error_policy is ToolErrorPolicy.STOP:
        draft.rows.append(RunMoved(run.run_id, Phase.ACTIVE, stalled=False))
        end_by_force(
            draft,
            StopReason.FAILED,
            AbandonReason.SETTLED,
            failure=Failure(RunFailure.TOOL_FAILED),
        )
        return
    if draft.batch_closed():
        draft.boundary()
    # Written here, since the phase of a run without wait and activation would be ACTIVE.
    draft.rows.append(RunMoved(run.run_id, Phase.ACTIVE, stalled=False))
    if run.pause_requested:
        draft.pause()
    else:
        draft.next_activation(ActivationKind.CONTINUE)


def restore_run(state: SessionState | None, command: RestoreRun, ctx: Context) -> Decision:
    """Brings back a run whose executor was lost."""
    if state is None or state.deleted or state.run is None or state.run.run_id != command.run_id:
        raise NotLive
    run, where = state.run, column(state)
    if where in _ATTACHED:
        return _restored(state, RestoreOutcome.ATTACHED)
    activation = run.activation
    current = activation.activation_id if activation is not None else ""
    if command.expected_activation_id != current:
        raise Refused(Reason.ACTIVATION_MISMATCH, activation_id=current)
    if where is Column.Q and not run.not_before:
        return _restored(state, RestoreOutcome.ATTACHED)
    if where in {Column.L, Column.LP, Column.LC} and not command.force:
        return _restored(state, RestoreOutcome.STILL_LEASED)
    draft = new_draft(state, ctx)
    if where is Column.Q:
        draft.rows.append(ActivationDequeued(current))
        live = draft.state.run
        assert live is not None, "copied from a live one"  # noqa: S101 - invariant
        draft.queue_activation(live)
    else:
        recover(draft, AbandonReason.RESTORED, counted=False)
    if draft.ended is not None:
        outcome = RestoreOutcome.SETTLED
    elif column(draft.state) in _ATTACHED:
        outcome = RestoreOutcome.ATTACHED
    else:
        outcome = RestoreOutcome.RECOVERY_QUEUED
    facts = draft.facts
    decision = decided(draft, lambda: RestoreAnswer(draft.state.sequence, outcome, facts))
    decision.lease_expire_time = 0
    return decision


def _restored(state: SessionState, outcome: RestoreOutcome) -> Decision:
    return Decision(None, RestoreAnswer(state.sequence, outcome, live_run_facts(state)))


def settle_run(state: SessionState | None, command: SettleRun, ctx: Context) -> Decision:
    """Ends a live run by hand."""
    if state is None or state.deleted or state.run is None or state.run.run_id != command.run_id:
        raise NotLive
    if state.run.ending is not None:
        # It has its end, and only waits for its child runs: another one is not to be had.
        raise cancelling(state.run)
    draft = new_draft(state, ctx)
    requested = state.run.cancellation is not None
    if requested or command.stop_reason is StopReason.CANCELLED:
        # After a request to cancel it a run ends CANCELLED, whoever ends it.
        if not requested:
            draft.request_cancellation(command.reason, replaced=False)
        draft.end_run(StopReason.CANCELLED, AbandonReason.SETTLED)
        draft.miss_steers(SubmissionFailure.TARGET_CANCELLING)
    else:
        failure = Failure(RunFailure.EXECUTOR_ERROR, command.reason)
        end_by_force(draft, StopReason.FAILED, AbandonReason.SETTLED, failure=failure)
    facts = draft.facts
    decision = decided(draft, lambda: RunAnswer(draft.state.sequence, facts))
    decision.lease_expire_time = 0
    return decision
