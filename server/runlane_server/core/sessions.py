"""Decisions on the record of a session: create, update, close, reopen, delete, fork."""

from typing import Any

from runlane_server.core.admission import TABLE, Cell, column
from runlane_server.core.answers import ForkAnswer, SessionAnswer
from runlane_server.core.commands import (
    CloseSession,
    CreateSession,
    DeleteSession,
    ForkSession,
    ReopenSession,
    UpdateSession,
)
from runlane_server.core.context import (
    Context,
    Decision,
    child_session,
    created_draft,
    decided,
    exists,
    new_draft,
    present_session,
)
from runlane_server.core.control import cancel
from runlane_server.core.draft import Draft
from runlane_server.core.drafting import session_facts
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import SessionState
from runlane_server.core.options import resolve_options
from runlane_server.core.rows import (
    ActivationDequeued,
    EventType,
    LeaseDropped,
    NoticePut,
    SessionDeleted,
    SessionInserted,
    SessionUpdated,
    TimerSet,
)
from runlane_server.core.words import (
    ActivationState,
    Command,
    Mode,
    NoticeKind,
    SessionStatus,
    TimerKind,
)


def create_session(state: SessionState | None, command: CreateSession, ctx: Context) -> Decision:
    """Creates a session, or returns the one there is."""
    if state is not None:
        if command.return_existing and not state.deleted:
            return Decision(None, SessionAnswer(state.sequence, session_facts(state)))
        raise exists(state)
    draft = created_draft(ctx, command.record)
    return decided(draft, lambda: _session_answer(draft, created=True))


def update_session(state: SessionState | None, command: UpdateSession, ctx: Context) -> Decision:
    """Changes the record."""
    present = present_session(state)
    if command.etag and command.etag != present.etag:
        raise Refused(Reason.ETAG_MISMATCH, etag=present.etag)
    draft = new_draft(present, ctx)
    if command.default_agent is not None:
        draft.state.default_agent = command.default_agent
    draft.rows.append(
        SessionUpdated(
            command.display_name,
            command.metadata_json,
            command.default_agent,
            command.set_labels,
            command.remove_labels,
        )
    )
    _record_changed(draft)
    draft.event(EventType.SESSION_UPDATED, revision=present.revision + 1)
    return decided(draft, lambda: _session_answer(draft))


def close_session(state: SessionState | None, command: CloseSession, ctx: Context) -> Decision:
    """Refuses further input, and fails what is pending."""
    present = present_session(state)
    if present.parent is not None:
        raise child_session(present)
    cell = TABLE[Command.INTERRUPT][column(present)]
    interrupt = command.cancel_run and cell in {Cell.SETTLE, Cell.REQUEST}
    if present.status is SessionStatus.CLOSED and not interrupt:
        return Decision(None, SessionAnswer(present.sequence, session_facts(present)))
    draft = new_draft(present, ctx)
    if present.status is SessionStatus.OPEN:
        draft.state.status = SessionStatus.CLOSED
        _record_changed(draft)
        draft.event(EventType.SESSION_CLOSED)
    if interrupt:
        cancel(draft, cell, "session closed", replaced=False)
    draft.fail_pending()
    return decided(draft, lambda: _session_answer(draft))


def reopen_session(state: SessionState | None, command: ReopenSession, ctx: Context) -> Decision:
    """Takes input again."""
    del command
    present = present_session(state)
    if present.parent is not None:
        raise child_session(present)
    if present.status is SessionStatus.OPEN:
        return Decision(None, SessionAnswer(present.sequence, session_facts(present)))
    draft = new_draft(present, ctx)
    draft.state.status = SessionStatus.OPEN
    _record_changed(draft)
    draft.event(EventType.SESSION_REOPENED)
    return decided(draft, lambda: _session_answer(draft))


def delete_session(state: SessionState | None, command: DeleteSession, ctx: Context) -> Decision:
    """Makes the session a tombstone."""
    present = present_session(state)
    run = present.run
    if present.parent is not None:
        raise child_session(present)
    if TABLE[Command.DELETE][column(present)] is Cell.LIVE and not command.force:
        raise Refused(Reason.SESSION_LIVE, run_id=run.run_id if run is not None else "")
    draft = new_draft(present, ctx)
    delete(draft)
    return decided(draft, lambda: _session_answer(draft))


def delete(draft: Draft) -> None:
    """Makes the session a tombstone, and tells those of its child runs."""
    run = draft.state.run
    if run is not None:
        for child in run.children:
            draft.rows.append(
                NoticePut(child.session_id, NoticeKind.DELETE, draft.state.session_id)
            )
        activation = run.activation
        if activation is not None and activation.state is ActivationState.QUEUED:
            draft.rows.append(ActivationDequeued(activation.activation_id))
        elif activation is not None:
            draft.rows.append(LeaseDropped(activation.activation_id))
    gone = draft.state
    gone.deleted, gone.run, gone.steers, gone.next_runs, gone.pending_bytes = True, None, [], [], 0
    _record_changed(draft)
    draft.event(EventType.SESSION_DELETED)
    draft.rows.append(SessionDeleted(draft.now))
    draft.rows.append(TimerSet(TimerKind.SWEEP, draft.now + draft.rules.sweep_delay))


def decide_fork(
    source: SessionState | None,
    target: SessionState | None,
    command: ForkSession,
    source_ctx: Context,
    target_ctx: Context,
) -> tuple[Decision, Decision]:
    """Decides a fork; returns what it does to the source and to the new session.

    The run's row, which the caller has read, never changes: it is terminal.
    """
    if source is None or source.deleted:
        raise Refused(Reason.RUN_NOT_FOUND)
    if target is not None:
        raise exists(target)
    body: dict[str, Any] = {
        "source_session_id": command.source_session_id,
        "source_run_id": command.source_run_id,
        "session_id": target_ctx.key.session_id,
        "message_count": command.message_count,
    }
    old = new_draft(source, source_ctx)
    old.event(EventType.SESSION_FORKED, **body)
    new = created_draft(
        target_ctx,
        command.record,
        SessionInserted(
            command.record,
            target_ctx.now,
            command.source_session_id,
            command.source_run_id,
            command.message_count,
            command.summary_through,
        ),
    )
    new.state.compacted_through = command.summary_through
    new.state.message_count = command.message_count
    new.state.digest = command.digest
    new.event(EventType.SESSION_FORKED, **body)
    submission = None
    if command.input is not None:
        options = resolve_options(command.options, command.record.default_agent, target_ctx.rules)
        submission = new.start_with_input(
            command.input, options, Mode.START, target_ctx.request_id, target_ctx.trace
        )
    return decided(old, None), decided(
        new,
        lambda: ForkAnswer(
            new.state.sequence,
            session_facts(new.state),
            command.source_session_id,
            command.source_run_id,
            command.message_count,
            command.digest,
            submission,
        ),
    )


def _record_changed(draft: Draft) -> None:
    draft.record_changed = True
    draft.state.record_revision += 1


def _session_answer(draft: Draft, *, created: bool = False) -> SessionAnswer:
    return SessionAnswer(draft.state.sequence, session_facts(draft.state), created)
