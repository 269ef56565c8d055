"""The rules of a session: `decide(state, command, now, ...)` and nothing else moves it.

Pure: the same arguments give the same decision. The hot state that is given is
never changed. What is due at `now` is decided first, by `decide_due`; the
engine commits that before the command. Which command is admitted in which
state is the table of `admission`; the functions here say what then happens.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from runlane_server.core.admission import (
    Column,
    column,
)
from runlane_server.core.answers import LeaseAnswer
from runlane_server.core.children import take_notice
from runlane_server.core.commands import (
    AnswerInteraction,
    CloseSession,
    CommitRun,
    CreateSession,
    DeleteSession,
    ImportSession,
    InterruptRun,
    LeaseActivation,
    PauseRun,
    ReopenSession,
    RestoreRun,
    SettleRun,
    Submit,
    TakeNotice,
    UnpauseRun,
    UpdateSession,
    WithdrawSubmission,
)
from runlane_server.core.context import (
    Context,
    Decision,
    decided,
    new_draft,
)
from runlane_server.core.control import (
    answer_interaction,
    interrupt_run,
    pause_run,
    restore_run,
    settle_run,
    unpause_run,
)
from runlane_server.core.draft import Draft
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.execution import commit_run
from runlane_server.core.imports import import_session
from runlane_server.core.inputs import submit, withdraw
from runlane_server.core.model import Failure, Fence, Run, SessionState
from runlane_server.core.recovery import end_by_force, lose_lease
from runlane_server.core.rows import (
    ActivationDequeued,
    EventType,
    LeasePut,
    TimerSet,
)
from runlane_server.core.sessions import (
    close_session,
    create_session,
    delete_session,
    reopen_session,
    update_session,
)
from runlane_server.core.words import (
    AbandonReason,
    ActivationState,
    Position,
    RunFailure,
    StopReason,
    TimerKind,
)


def decide_due(state: SessionState, ctx: Context) -> Decision | None:
    """Decides the first thing that is due at `now`.

    The order is that of the design: grace, deadline, interaction expiry, lease expiry; and
    the wait for a first executor.
    """
    run = state.run
    if run is None or run.ending is not None:
        return None
    now, activation = ctx.now, run.activation
    leased = activation is not None and activation.state is ActivationState.LEASED
    cancellation = run.cancellation
    wait = run.wait
    # Asked before every command: the copy that a draft is comes after the tests.
    if leased and cancellation is not None and cancellation.grace_expire_time <= now:
        draft = new_draft(state, ctx)
        end_by_force(draft, StopReason.CANCELLED, AbandonReason.GRACE_EXPIRED)
    elif run.deadline_time and run.deadline_time <= now:
        draft = new_draft(state, ctx)
        _deadline(draft, run)
    elif wait is not None and wait.expire_time and wait.expire_time <= now:
        draft = new_draft(state, ctx)
        end_by_force(draft, StopReason.INTERACTION_EXPIRED, AbandonReason.LEASE_EXPIRED)
    elif leased and ctx.lease_expire_time <= now:
        draft = new_draft(state, ctx)
        lose_lease(draft, confirmed=ctx.lease_confirmed)
    elif run.start_expire_time and run.start_expire_time <= now and not leased:
        draft = new_draft(state, ctx)
        end_by_force(
            draft,
            StopReason.FAILED,
            AbandonReason.NO_EXECUTOR,
            failure=Failure(RunFailure.NO_EXECUTOR),
        )
    else:
        return None
    decision = decided(draft, None)
    decision.lease_expire_time = 0
    return decision


def _deadline(draft: Draft, run: Run) -> None:
    """Ends a run at its deadline; one whose answer is committed is COMPLETED all the same."""
    if run.cancellation is not None:
        reason = StopReason.CANCELLED
    elif run.position is Position.OUTCOME_READY:
        reason = StopReason.COMPLETED
    else:
        reason = StopReason.DEADLINE_EXCEEDED
    end_by_force(draft, reason, AbandonReason.DEADLINE_EXCEEDED)


def decide(state: SessionState | None, command: Any, ctx: Context) -> Decision:
    """Decides a command on a session; `state` None: there is none.

    Raises:
        Refused: The command is refused; nothing is written.
    """
    return _DECIDERS[type(command)](state, command, ctx)


# --- leases ----------------------------------------------------------------


def _lease(state: SessionState | None, command: LeaseActivation, ctx: Context) -> Decision:
    run = state.run if state is not None else None
    activation = run.activation if run is not None else None
    if (
        state is None
        or run is None
        or activation is None
        or activation.activation_id != command.activation_id
        or column(state) is not Column.Q
        or run.not_before > ctx.now
    ):
        raise Refused(Reason.STALE_ACTIVATION)
    draft = new_draft(state, ctx)
    live = draft.state.run
    assert live is not None, "copied from a live one"  # noqa: S101 - invariant
    leased = replace(activation, state=ActivationState.LEASED, executor_id=command.executor_id)
    live.activation = leased
    live.not_before = 0
    # Until something is heard on it, the lease is short: its answer may have been lost.
    expire_time = draft.now + min(command.lease_duration, ctx.rules.unconfirmed_lease)
    draft.rows.append(ActivationDequeued(leased.activation_id))
    draft.rows.append(
        LeasePut(
            leased.activation_id,
            live.run_id,
            leased.epoch,
            live.agent,
            command.executor_id,
            command.lease_duration,
            expire_time,
            confirmed=False,
        )
    )
    if live.start_expire_time:
        # It is not due while somebody has the run, and is set again with the next activation.
        draft.rows.append(TimerSet(TimerKind.START_TIMEOUT, None))
    draft.event(EventType.ACTIVATION_LEASED, live.run_id, executor_id=command.executor_id)
    fence = Fence(state.session_id, live.run_id, leased.activation_id, leased.epoch)
    decision = decided(draft, lambda: LeaseAnswer(draft.state.sequence, fence, expire_time))
    decision.lease_expire_time = expire_time
    decision.lease_confirmed = False
    return decision


def _commit_run(state: SessionState | None, command: CommitRun, ctx: Context) -> Decision:
    if state is None or state.deleted:
        raise Refused(Reason.RUN_NOT_FOUND)
    return _committed(new_draft(state, ctx), command, None)[0]


def decide_with_child(
    state: SessionState | None,
    child: SessionState | None,
    command: CommitRun,
    ctx: Context,
    child_ctx: Context,
) -> tuple[Decision, Decision]:
    """Decides a Commit that may start a child run; returns what it does to both sessions.

    Args:
        state: Of the session of the run.
        child: Of the session of the child run: None, since its id is new.
        command: The Commit.
        ctx: Of the first session.
        child_ctx: Of the second.

    Raises:
        Refused: As of a Commit.
    """
    if state is None or state.deleted:
        raise Refused(Reason.RUN_NOT_FOUND)
    assert child is None, "its id was made for it"  # noqa: S101 - invariant
    return _committed(new_draft(state, ctx), command, child_ctx)


def _committed(
    draft: Draft, command: CommitRun, child_ctx: Context | None
) -> tuple[Decision, Decision]:
    answer, child = commit_run(draft, command, child_ctx)
    decision = decided(draft, lambda: replace(answer, sequence=draft.state.sequence))
    decision.lease_expire_time = answer.lease_expire_time
    return decision, decided(child, None) if child is not None else Decision(None, None)


_DECIDERS: dict[type, Callable[[SessionState | None, Any, Context], Decision]] = {
    CreateSession: create_session,
    UpdateSession: update_session,
    CloseSession: close_session,
    ReopenSession: reopen_session,
    DeleteSession: delete_session,
    ImportSession: import_session,
    Submit: submit,
    WithdrawSubmission: withdraw,
    InterruptRun: interrupt_run,
    PauseRun: pause_run,
    UnpauseRun: unpause_run,
    AnswerInteraction: answer_interaction,
    RestoreRun: restore_run,
    SettleRun: settle_run,
    TakeNotice: take_notice,
    LeaseActivation: _lease,
    CommitRun: _commit_run,
}
