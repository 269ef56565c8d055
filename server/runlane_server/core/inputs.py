"""Decisions on input: submit, in all its modes, and withdraw."""

from dataclasses import replace
from typing import Any

from runlane_server.core.admission import SUBMIT_COMMANDS, TABLE, Cell, column, takes_as_child
from runlane_server.core.answers import SubmissionFacts, SubmitAnswer
from runlane_server.core.commands import Submit, WithdrawSubmission
from runlane_server.core.context import (
    Context,
    Decision,
    allowed_words,
    cancelling,
    child_session,
    created_draft,
    decided,
    new_draft,
)
from runlane_server.core.control import cancel
from runlane_server.core.draft import Draft
from runlane_server.core.errors import NotPending, Reason, Refused
from runlane_server.core.model import Content, Queued, Rules, RunOptions, SessionState
from runlane_server.core.options import resolve_options
from runlane_server.core.rows import EventType, SubmissionSettled
from runlane_server.core.words import Mode, OnMiss, Rank, Route, SessionStatus, SubmissionState


def submit(state: SessionState | None, command: Submit, ctx: Context) -> Decision:
    """Gives the session an input: a run, a steer, or a place in the queue."""
    if state is None or state.deleted:
        if command.create_session is None or state is not None:
            raise Refused(Reason.SESSION_NOT_FOUND)
        draft = created_draft(ctx, command.create_session)
        _expect_revision(0, command)
    else:
        if state.parent is not None:
            _expect_steer(state, command)
        if state.status is SessionStatus.CLOSED:
            raise Refused(Reason.SESSION_CLOSED)
        _expect_revision(state.revision, command)
        draft = new_draft(state, ctx)
    created = state is None
    current = draft.state
    cell = _admit(current, command)
    if command.mode is Mode.STEER and command.options is not None:
        raise Refused(Reason.OPTIONS_NOT_ALLOWED)
    options = _options_of_input(current, command, cell, ctx.rules)
    if cell is Cell.START:
        facts = draft.start_with_input(
            command.content, options, command.mode, ctx.request_id, ctx.trace
        )
    else:
        facts = _enqueue(draft, command, cell, options, ctx)
    return decided(draft, lambda: SubmitAnswer(current.sequence, facts, created))


def _expect_steer(state: SessionState, command: Submit) -> None:
    """Refuses what is no steer of the one run that the session of a child run has."""
    word = SUBMIT_COMMANDS[command.mode]
    taken = takes_as_child(word, TABLE[word][column(state)])
    if not taken or command.on_miss is OnMiss.FOLLOW_UP:
        raise child_session(state)


def _expect_revision(revision: int, command: Submit) -> None:
    if command.expected_revision is not None and command.expected_revision != revision:
        raise Refused(Reason.REVISION_MISMATCH, revision=str(revision))


def _admit(state: SessionState, command: Submit) -> Cell:
    """Returns the cell of an input that is not refused."""
    run = state.run
    target = command.target_run_id
    if target and (run is None or run.run_id != target):
        live: dict[str, Any] = {"run_id": run.run_id} if run is not None else {}
        raise Refused(Reason.RUN_NOT_CURRENT, **live)
    cell = TABLE[SUBMIT_COMMANDS[command.mode]][column(state)]
    if cell is Cell.IDLE:
        raise Refused(Reason.SESSION_IDLE, allowed_commands=allowed_words(state))
    if run is not None and cell is Cell.BUSY:
        raise Refused(
            Reason.SESSION_BUSY,
            run_id=run.run_id,
            phase=run.phase.name,
            activation_id=run.activation.activation_id if run.activation is not None else "",
            allowed_commands=allowed_words(state),
        )
    if run is not None and cell is Cell.CANCELLING:
        raise cancelling(run)
    return cell


def _options_of_input(state: SessionState, command: Submit, cell: Cell, rules: Rules) -> RunOptions:
    """Resolves the options of the run that the input starts, or may start."""
    if cell is not Cell.STEER or state.run is None:
        return resolve_options(command.options, state.default_agent, rules)
    if command.on_miss is OnMiss.FAIL:
        return RunOptions(state.run.agent)
    # The run's own agent stands in where nobody names one: its work goes on.
    return resolve_options(command.options, state.default_agent, rules, state.run.agent)


def _enqueue(
    draft: Draft, command: Submit, cell: Cell, options: RunOptions, ctx: Context
) -> SubmissionFacts:
    """Queues an input, or for REPLACE ends or cancels what is in its way."""
    state = draft.state
    replaces = command.mode is Mode.REPLACE
    run = state.run
    if cell is Cell.SETTLE:
        ahead = any(queued.rank is Rank.REPLACE for queued in state.next_runs)
        if ahead or (run is not None and run.children):
            _check_room(state, command.content, Route.FOLLOW_UP, ctx.rules)
        cancel(draft, cell, "replaced", replaced=True)
        if not ahead and draft.state.run is None:
            return draft.start_with_input(
                command.content, options, command.mode, ctx.request_id, ctx.trace
            )
    else:
        route = Route.STEER if cell is Cell.STEER else Route.FOLLOW_UP
        _check_room(state, command.content, route, ctx.rules)
        if cell is Cell.REQUEST:
            cancel(draft, cell, "replaced", replaced=True)
    steers = cell is Cell.STEER and run is not None
    queued = Queued(
        draft.new_id("sub"),
        run.run_id if steers and run is not None else draft.new_id("run"),
        command.mode,
        Route.STEER if steers else Route.FOLLOW_UP,
        Rank.REPLACE if replaces else Rank.FOLLOW_UP,
        command.on_miss if steers else OnMiss.FAIL,
        command.content.size,
        command.content.hash,
        options,
        draft.now,
        ctx.request_id,
        ctx.trace,
    )
    facts = draft.enqueue(queued, command.content, ctx.request_id)
    # The hot state stays small: the store keeps what only the run will need.
    queued.options = replace(options, request_options_json="")
    return facts


def _check_room(state: SessionState, content: Content, route: Route, rules: Rules) -> None:
    """Refuses an input that would wait where the limits of pending input are reached."""
    steer = route is Route.STEER
    length = len(state.steers) if steer else len(state.next_runs)
    limit = rules.max_steers if steer else rules.max_next_runs
    queue = "steers" if steer else "next_runs"
    if length >= limit:
        raise Refused(Reason.QUEUE_FULL, limit=str(limit), queue=queue)
    if state.pending_bytes + content.size > rules.max_pending_bytes:
        raise Refused(Reason.QUEUE_FULL, limit=str(rules.max_pending_bytes), queue="bytes")


def withdraw(state: SessionState | None, command: WithdrawSubmission, ctx: Context) -> Decision:
    """Takes back a pending input."""
    if state is None or state.deleted:
        raise Refused(Reason.SUBMISSION_NOT_FOUND)
    draft = new_draft(state, ctx)
    facts = _withdrawn(draft, command.submission_id)
    return decided(draft, lambda: SubmitAnswer(draft.state.sequence, facts))


def _withdrawn(draft: Draft, submission_id: str) -> SubmissionFacts:
    state = draft.state
    pending = state.steers + state.next_runs
    queued = next((one for one in pending if one.submission_id == submission_id), None)
    if queued is None:
        raise NotPending
    (state.steers if queued.route is Route.STEER else state.next_runs).remove(queued)
    draft.state.pending_bytes -= queued.size
    draft.rows.append(SubmissionSettled(queued.submission_id, SubmissionState.WITHDRAWN, draft.now))
    draft.event(
        EventType.SUBMISSION_WITHDRAWN,
        queued.run_id,
        submission_id=queued.submission_id,
        mode=queued.mode,
        route=queued.route,
    )
    return SubmissionFacts(
        queued.submission_id,
        draft.state.session_id,
        queued.run_id,
        queued.mode,
        queued.route,
        SubmissionState.WITHDRAWN,
        queued.create_time,
        draft.now,
        request_id=queued.request_id,
    )
