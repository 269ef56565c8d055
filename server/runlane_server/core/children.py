"""Decisions that a notice brings: what a child run tells its parent, and a parent its child."""

from runlane_server.core.admission import TABLE, Cell, column
from runlane_server.core.answers import NoticeAnswer
from runlane_server.core.commands import TakeChild, TakeNotice
from runlane_server.core.context import Context, Decision, decided, new_draft
from runlane_server.core.control import cancel
from runlane_server.core.draft import Draft
from runlane_server.core.errors import NotRead
from runlane_server.core.family import questions
from runlane_server.core.model import Child, Failure, SessionState
from runlane_server.core.recovery import end_by_force
from runlane_server.core.rows import EventType, NoticePut, NoticeTaken
from runlane_server.core.sessions import delete
from runlane_server.core.words import (
    AbandonReason,
    ActivationState,
    Command,
    NoticeKind,
    RunFailure,
    StopReason,
    ToolCallState,
    ToolErrorPolicy,
    ToolOutcome,
)


def take_notice(state: SessionState | None, command: TakeNotice, ctx: Context) -> Decision:
    """Does what a parent's session asks of that of a child run; a void notice is taken alone."""
    if state is None:
        return Decision(None, NoticeAnswer())
    children = state.run.children if state.run is not None else ()
    if command.kind is NoticeKind.CHILD and command.cause in {one.run_id for one in children}:
        # Its caller saw a state that has fallen since: the run knows the child after all.
        raise NotRead
    draft = new_draft(state, ctx)
    draft.rows.append(NoticeTaken(command.kind, command.cause))
    if state.deleted:
        return _decided(draft)
    if command.kind is NoticeKind.DELETE:
        delete(draft)
    elif command.kind is NoticeKind.CANCEL and state.run is not None:
        cell = TABLE[Command.INTERRUPT][column(state)]
        if cell is not Cell.SAME:
            cancel(draft, cell, "the parent run ends", replaced=False)
    return _decided(draft)


def _decided(draft: Draft) -> Decision:
    """Ends a draft that may have ended a lease."""
    decision = decided(draft, lambda: NoticeAnswer(draft.state.sequence))
    run = draft.state.run
    activation = run.activation if run is not None else None
    if activation is None or activation.state is not ActivationState.LEASED:
        decision.lease_expire_time = 0
    return decision


def take_child(
    parent: SessionState | None,
    child: SessionState | None,
    command: TakeChild,
    ctx: Context,
) -> tuple[Decision, Decision]:
    """Tells a run what has become of its child run; the child is read, and not written.

    Raises:
        NotRead: The child has ended, or settled a question, since its facts were read.
    """
    untouched = Decision(None, None)
    if parent is None:
        return Decision(None, NoticeAnswer()), untouched
    draft = new_draft(parent, ctx)
    draft.rows.append(NoticeTaken(NoticeKind.CHILD, command.run_id))
    run = draft.state.run
    known = run.children if run is not None else ()
    link = next((one for one in known if one.run_id == command.run_id), None)
    if link is not None:
        live = child if child is not None and not child.deleted and child.run is not None else None
        if live is None and command.outcome is None:
            raise NotRead
        _take_questions(draft, live, command)
        if live is None:
            _take_end(draft, link, command)
    return _decided(draft), untouched


def _take_questions(draft: Draft, child: SessionState | None, command: TakeChild) -> None:
    """Lets the parent show the questions that are open, and no others."""
    run = draft.live()
    if run.ending is not None:
        return
    open_now = questions(child) if child is not None else ()
    was_full = len(run.proxies) >= draft.rules.max_proxies
    for proxy in run.proxies:
        if proxy.child_run_id != command.run_id or proxy.question in open_now:
            continue
        settled = command.settled.get(proxy.question.interaction_id)
        if settled is None:
            raise NotRead
        draft.settle_proxy(proxy, *settled)
    shown = {proxy.question for proxy in run.proxies}
    for question in open_now:
        if question not in shown and len(run.proxies) < draft.rules.max_proxies:
            draft.open_proxy(command.run_id, question)
    if was_full and len(run.proxies) < draft.rules.max_proxies:
        # There is room again for what others of its child runs ask: they are looked at anew.
        for one in run.children:
            if one.run_id != command.run_id:
                draft.rows.append(NoticePut(draft.state.session_id, NoticeKind.CHILD, one.run_id))


def _take_end(draft: Draft, child: Child, command: TakeChild) -> None:
    """Takes in the end of a child run, once: its call has its result."""
    run = draft.live()
    run.children = tuple(one for one in run.children if one is not child)
    run.recoveries = 0
    draft.event(
        EventType.CHILD_RUN_FINISHED,
        run.run_id,
        tool_call_id=child.tool_call_id,
        child_run_id=child.run_id,
        stop_reason=command.stop_reason,
    )
    outcome = command.outcome or ToolOutcome.CANCELLED
    call = next(one for one in run.calls if one.tool_call_id == child.tool_call_id)
    draft.settle_call(call, outcome, command.result)
    if run.ending is not None:
        if not run.children:
            draft.end_ending()
        return
    stops = run.tool_error_policy is ToolErrorPolicy.STOP and run.cancellation is None
    # While a call is at work its result decides whether the run ends with an open effect: the
    # commit that brings it ends the run.
    at_work = any(one.state is ToolCallState.CLAIMED for one in run.calls)
    if stops and outcome is not ToolOutcome.OK and not at_work:
        failure = Failure(RunFailure.TOOL_FAILED)
        end_by_force(draft, StopReason.FAILED, AbandonReason.SETTLED, failure=failure)
        return
    if draft.batch_closed():
        draft.boundary()
    draft.go_on_after_children()
