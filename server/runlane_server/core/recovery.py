"""What becomes of a run whose executor is lost, decided from committed facts alone."""

from runlane_server.core.draft import Draft
from runlane_server.core.model import Activation, Failure
from runlane_server.core.rows import EventType, RunMoved, TimerSet
from runlane_server.core.words import (
    AbandonReason,
    ActivationKind,
    ActivationState,
    Phase,
    Position,
    Recovery,
    RunFailure,
    StopReason,
    SubmissionFailure,
    TimerKind,
    ToolCallState,
)


def end_by_force(
    draft: Draft, reason: StopReason, abandon: AbandonReason, *, failure: Failure | None = None
) -> None:
    """Ends the live run without its executor; steers miss."""
    draft.end_run(reason, abandon, failure=failure)
    draft.miss_steers(SubmissionFailure.TARGET_TERMINAL)


def lose_lease(draft: Draft, *, confirmed: bool) -> None:
    """The lease of the live run ran out.

    A lease that nothing was ever heard on, and on which nothing was done, is queued again
    at once and not counted.
    """
    run = draft.state.run
    assert run is not None and run.activation is not None  # noqa: S101, PT018 - invariant
    if confirmed and run.start_expire_time:
        run.start_expire_time = 0
        draft.rows.append(TimerSet(TimerKind.START_TIMEOUT, None))
    if run.cancellation is None and not confirmed:
        kind = run.activation.kind
        draft.abandon_activation(AbandonReason.UNCONFIRMED)
        if run.pause_requested:
            draft.pause()
        else:
            draft.next_activation(kind)
    elif run.cancellation is None and run.recovery is Recovery.MANUAL:
        draft.abandon_activation(AbandonReason.LEASE_EXPIRED)
        run.activation = _abandoned(run.activation)
        draft.rows.append(RunMoved(run.run_id, Phase.ACTIVE, stalled=True))
        draft.event(EventType.RUN_STALLED, run.run_id)
    else:
        recover(draft, AbandonReason.LEASE_EXPIRED, counted=True)


def recover(draft: Draft, abandon: AbandonReason, *, counted: bool) -> None:
    """Fences the live run and does what its facts allow, by the table of recovery."""
    run = draft.state.run
    assert run is not None  # noqa: S101 - invariant
    if run.cancellation is not None:
        end_by_force(draft, StopReason.CANCELLED, abandon)
    elif run.position is Position.OUTCOME_READY:
        end_by_force(draft, StopReason.COMPLETED, abandon)
    elif run.claims:
        # end_run makes it OUTCOME_UNKNOWN, and keeps this as its cause.
        failure = Failure(RunFailure.LEASE_EXPIRED)
        end_by_force(draft, StopReason.FAILED, abandon, failure=failure)
    elif counted and not run.pause_requested and run.recoveries >= run.max_recoveries:
        failure = Failure(RunFailure.RECOVERY_EXHAUSTED, retryable=True)
        end_by_force(draft, StopReason.FAILED, abandon, failure=failure)
    else:
        draft.abandon_activation(abandon)
        _go_on(draft, counted=counted)


def _go_on(draft: Draft, *, counted: bool) -> None:
    run, rules = draft.state.run, draft.rules
    assert run is not None  # noqa: S101 - invariant
    for call in run.calls:
        if call.state is ToolCallState.CLAIMED:
            draft.move_call(call, ToolCallState.PREPARED)
            draft.event(
                EventType.TOOL_CALL_PREPARED,
                run.run_id,
                tool_call_id=call.tool_call_id,
                name=call.name,
                ordinal=call.ordinal,
            )
    if run.pause_requested:
        draft.pause()
        return
    not_before = 0
    if counted:
        run.recoveries += 1
        backoff = rules.backoff_first * 2 ** (run.recoveries - 1)
        not_before = draft.now + min(backoff, rules.backoff_max)
    draft.event(
        EventType.RUN_RECOVERING,
        run.run_id,
        recoveries=run.recoveries if counted else 0,
        not_before_time=not_before,
    )
    if run.activation is not None and run.activation.state is ActivationState.ABANDONED:
        draft.rows.append(RunMoved(run.run_id, Phase.ACTIVE, stalled=False))
    draft.next_activation(ActivationKind.RECOVER, not_before)


def _abandoned(activation: Activation) -> Activation:
    return Activation(
        activation.activation_id,
        activation.epoch,
        activation.kind,
        ActivationState.ABANDONED,
        activation.executor_id,
    )
