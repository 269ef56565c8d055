"""The rules of a session: `decide(state, command, now, ...)` and nothing else moves it.

Pure: the same arguments give the same decision. The hot state that is given is
never changed. What is due at `now` is decided first, by `decide_due`; the
engine commits that before the command. Which command is admitted in which
state is the table of `admission`; the functions here say what then happens.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from runlane_server.core.admission import (
    SUBMIT_COMMANDS,
    TABLE,
    Cell,
    Column,
    allowed_commands,
    column,
)
from runlane_server.core.commands import (
    Answer,
    CloseSession,
    CommitRun,
    CreateSession,
    DeleteSession,
    ForkAnswer,
    ForkSession,
    InterruptRun,
    LeaseActivation,
    LeaseAnswer,
    ReopenSession,
    RunAnswer,
    SessionAnswer,
    SubmissionFacts,
    Submit,
    SubmitAnswer,
    UpdateSession,
    WithdrawSubmission,
)
from runlane_server.core.draft import (
    Draft,
    NewId,
    live_run_facts,
    session_facts,
)
from runlane_server.core.errors import NotLive, NotPending, Reason, Refused, invalid
from runlane_server.core.execution import commit_run
from runlane_server.core.model import (
    AbandonReason,
    ActivationState,
    Command,
    Content,
    Failure,
    Fence,
    Mode,
    OnMiss,
    Phase,
    Queued,
    Rank,
    Route,
    Rules,
    RunFailure,
    RunOptions,
    SessionKey,
    SessionRecord,
    SessionState,
    SessionStatus,
    StopReason,
    SubmissionFailure,
    SubmissionState,
    TimerKind,
)
from runlane_server.core.rows import (
    ActivationDequeued,
    Event,
    EventType,
    LeaseDropped,
    LeasePut,
    Row,
    SessionDeleted,
    SessionInserted,
    SessionUpdated,
    SubmissionSettled,
    TimerSet,
)


@dataclass(slots=True)
class Decision:
    """What a command does to one session.

    Attributes:
        state: The new hot state; None: nothing is written.
        answer: None for SettleDue.
    """

    state: SessionState | None
    answer: Answer | None
    events: list[Event] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    lease_expire_time: int | None = None


@dataclass(slots=True, frozen=True)
class Context:
    """What a decision may use besides state and command.

    Attributes:
        now: Microseconds; never goes back in a session.
        lease_expire_time: Of the live run's lease; 0: none.
        new_id: Makes ids.
    """

    key: SessionKey
    now: int
    lease_expire_time: int
    new_id: NewId
    rules: Rules
    request_id: str = ""


def decide_due(state: SessionState, ctx: Context) -> Decision | None:
    """Decides what is due at `now`: cancellation grace first, then lease expiry."""
    run = state.run
    if run is None or run.activation.state is not ActivationState.LEASED:
        return None
    cancellation = run.cancellation
    if cancellation is not None and cancellation.grace_expire_time <= ctx.now:
        draft = _draft(state, ctx)
        draft.abandon_activation(AbandonReason.GRACE_EXPIRED)
        draft.end_run(StopReason.CANCELLED)
    elif ctx.lease_expire_time <= ctx.now:
        draft = _draft(state, ctx)
        draft.abandon_activation(AbandonReason.LEASE_EXPIRED)
        if cancellation is not None:
            draft.end_run(StopReason.CANCELLED)
        else:
            draft.end_run(StopReason.FAILED, failure=Failure(RunFailure.LEASE_EXPIRED))
    else:
        return None
    draft.miss_steers(SubmissionFailure.TARGET_TERMINAL)
    decision = _decided(draft, None)
    decision.lease_expire_time = 0
    return decision


def decide(state: SessionState | None, command: Any, ctx: Context) -> Decision:
    """Decides a command on a session; `state` None: there is none.

    Raises:
        Refused: The command is refused; nothing is written.
    """
    return _DECIDERS[type(command)](state, command, ctx)


# --- the record ------------------------------------------------------------


def _create(state: SessionState | None, command: CreateSession, ctx: Context) -> Decision:
    if state is not None:
        if command.return_existing and not state.deleted:
            return Decision(None, SessionAnswer(state.sequence, session_facts(state)))
        raise _exists(state)
    draft = _created(ctx, command.record)
    return _decided(draft, lambda: _session_answer(draft, created=True))


def _update(state: SessionState | None, command: UpdateSession, ctx: Context) -> Decision:
    present = _present(state)
    if command.etag and command.etag != present.etag:
        raise Refused(Reason.ETAG_MISMATCH, etag=present.etag)
    draft = _draft(present, ctx)
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
    return _decided(draft, lambda: _session_answer(draft))


def _close(state: SessionState | None, command: CloseSession, ctx: Context) -> Decision:
    present = _present(state)
    cell = TABLE[Command.INTERRUPT][column(present)]
    interrupt = command.cancel_run and cell in {Cell.SETTLE, Cell.REQUEST}
    if present.status is SessionStatus.CLOSED and not interrupt:
        return Decision(None, SessionAnswer(present.sequence, session_facts(present)))
    draft = _draft(present, ctx)
    if present.status is SessionStatus.OPEN:
        draft.state.status = SessionStatus.CLOSED
        _record_changed(draft)
        draft.event(EventType.SESSION_CLOSED)
    if interrupt:
        _cancel(draft, cell, "session closed", replaced=False)
    draft.fail_pending()
    return _decided(draft, lambda: _session_answer(draft))


def _reopen(state: SessionState | None, command: ReopenSession, ctx: Context) -> Decision:
    del command
    present = _present(state)
    if present.status is SessionStatus.OPEN:
        return Decision(None, SessionAnswer(present.sequence, session_facts(present)))
    draft = _draft(present, ctx)
    draft.state.status = SessionStatus.OPEN
    _record_changed(draft)
    draft.event(EventType.SESSION_REOPENED)
    return _decided(draft, lambda: _session_answer(draft))


def _delete(state: SessionState | None, command: DeleteSession, ctx: Context) -> Decision:
    present = _present(state)
    run = present.run
    if TABLE[Command.DELETE][column(present)] is Cell.LIVE and not command.force:
        raise Refused(Reason.SESSION_LIVE, run_id=run.run_id if run is not None else "")
    draft = _draft(present, ctx)
    if run is not None:
        activation = run.activation
        draft.rows.append(
            ActivationDequeued(activation.activation_id)
            if activation.state is ActivationState.QUEUED
            else LeaseDropped(activation.activation_id)
        )
        if run.cancellation is not None:
            draft.rows.append(TimerSet(TimerKind.GRACE, None))
    gone = draft.state
    gone.deleted, gone.run, gone.steers, gone.next_runs, gone.pending_bytes = True, None, [], [], 0
    _record_changed(draft)
    draft.event(EventType.SESSION_DELETED)
    draft.rows.append(SessionDeleted(draft.now))
    draft.rows.append(TimerSet(TimerKind.SWEEP, draft.now + ctx.rules.sweep_delay))
    return _decided(draft, lambda: _session_answer(draft))


# --- input -----------------------------------------------------------------


def _submit(state: SessionState | None, command: Submit, ctx: Context) -> Decision:
    if state is None or state.deleted:
        if command.create_session is None or state is not None:
            raise Refused(Reason.SESSION_NOT_FOUND)
        draft = _created(ctx, command.create_session)
        _expect_revision(0, command)
    else:
        if state.status is SessionStatus.CLOSED:
            raise Refused(Reason.SESSION_CLOSED)
        _expect_revision(state.revision, command)
        draft = _draft(state, ctx)
    created = state is None
    current = draft.state
    cell = _admit(current, command)
    if command.mode is Mode.STEER and command.options is not None:
        raise Refused(Reason.OPTIONS_NOT_ALLOWED)
    options = _options_of_input(current, command, cell, ctx.rules)
    if cell is Cell.START:
        facts = draft.start_with_input(command.content, options, command.mode, ctx.request_id)
    else:
        facts = _enqueue(draft, command, cell, options, ctx)
    return _decided(draft, lambda: SubmitAnswer(current.sequence, facts, created))


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
        raise Refused(Reason.SESSION_IDLE, allowed_commands=_allowed(state))
    if run is not None and cell is Cell.BUSY:
        raise Refused(
            Reason.SESSION_BUSY,
            run_id=run.run_id,
            phase=Phase.ACTIVE.name,
            activation_id=run.activation.activation_id,
            allowed_commands=_allowed(state),
        )
    if run is not None and cell is Cell.CANCELLING:
        raise Refused(Reason.RUN_CANCELLING, run_id=run.run_id)
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
        if ahead:
            _check_room(state, command.content, Route.FOLLOW_UP, ctx.rules)
        _cancel(draft, cell, "replaced", replaced=True)
        if not ahead:
            return draft.start_with_input(command.content, options, command.mode, ctx.request_id)
    else:
        route = Route.STEER if cell is Cell.STEER else Route.FOLLOW_UP
        _check_room(state, command.content, route, ctx.rules)
        if cell is Cell.REQUEST:
            _cancel(draft, cell, "replaced", replaced=True)
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


def resolve_options(
    asked: RunOptions | None, session_agent: str, rules: Rules, fallback_agent: str = ""
) -> RunOptions:
    """Fills in defaults: the session's agent, then the server's, then `fallback_agent`.

    Raises:
        Refused: FIELD_INVALID where no agent is left, AGENT_NOT_FOUND where it is not allowed.
    """
    given = asked or RunOptions()
    agent = given.agent or session_agent or rules.default_agent or fallback_agent
    if not agent:
        raise invalid(
            "run_options.agent", "names no agent, and neither session nor server has a default"
        )
    if rules.agents and agent not in rules.agents:
        raise Refused(Reason.AGENT_NOT_FOUND, agent=agent)
    return RunOptions(
        agent,
        given.model,
        given.max_model_steps or rules.agent_model_steps.get(agent, rules.max_model_steps),
        given.cancel_grace if given.cancel_grace is not None else rules.cancel_grace,
        given.request_options_json,
    )


def _withdraw(state: SessionState | None, command: WithdrawSubmission, ctx: Context) -> Decision:
    if state is None or state.deleted:
        raise Refused(Reason.SUBMISSION_NOT_FOUND)
    draft = _draft(state, ctx)
    facts = _withdrawn(draft, command.submission_id)
    return _decided(draft, lambda: SubmitAnswer(draft.state.sequence, facts))


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


# --- control ---------------------------------------------------------------


def _interrupt(state: SessionState | None, command: InterruptRun, ctx: Context) -> Decision:
    if command.run_id and (state is None or state.deleted):
        raise Refused(Reason.RUN_NOT_FOUND)
    present = _present(state)
    run = present.run
    if command.run_id and (run is None or run.run_id != command.run_id):
        raise NotLive
    if run is None:
        raise Refused(Reason.SESSION_IDLE, allowed_commands=_allowed(present))
    cell = TABLE[Command.INTERRUPT][column(present)]
    if cell is Cell.SAME:
        return Decision(None, RunAnswer(present.sequence, live_run_facts(present)))
    draft = _draft(present, ctx)
    _cancel(draft, cell, command.reason, replaced=False)
    facts = draft.ended or live_run_facts(draft.state)
    return _decided(draft, lambda: RunAnswer(draft.state.sequence, facts))


def _cancel(draft: Draft, cell: Cell, reason: str, *, replaced: bool) -> None:
    """Requests cancellation, and ends the run where nobody has it. Steers miss."""
    draft.request_cancellation(reason, replaced=replaced)
    if cell is Cell.SETTLE:
        draft.abandon_activation(AbandonReason.CANCELLED)
        draft.end_run(StopReason.CANCELLED)
    else:
        run = draft.state.run
        assert run is not None and run.cancellation is not None  # noqa: S101, PT018 - invariant
        draft.rows.append(TimerSet(TimerKind.GRACE, run.cancellation.grace_expire_time))
    if draft.state.status is SessionStatus.OPEN:
        draft.miss_steers(SubmissionFailure.TARGET_CANCELLING)


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
        raise _exists(target)
    body: dict[str, Any] = {
        "source_session_id": command.source_session_id,
        "source_run_id": command.source_run_id,
        "session_id": target_ctx.key.session_id,
        "message_count": command.message_count,
    }
    old = _draft(source, source_ctx)
    old.event(EventType.SESSION_FORKED, **body)
    new = _created(
        target_ctx,
        command.record,
        SessionInserted(
            command.record,
            target_ctx.now,
            command.source_session_id,
            command.source_run_id,
            command.message_count,
        ),
    )
    new.state.message_count = command.message_count
    new.state.digest = command.digest
    new.event(EventType.SESSION_FORKED, **body)
    submission = None
    if command.input is not None:
        options = resolve_options(command.options, command.record.default_agent, target_ctx.rules)
        submission = new.start_with_input(command.input, options, Mode.START, target_ctx.request_id)
    return _decided(old, None), _decided(
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


# --- leases ----------------------------------------------------------------


def _lease(state: SessionState | None, command: LeaseActivation, ctx: Context) -> Decision:
    run = state.run if state is not None else None
    if (
        state is None
        or run is None
        or run.activation.activation_id != command.activation_id
        or column(state) is not Column.Q
    ):
        raise Refused(Reason.STALE_ACTIVATION)
    draft = _draft(state, ctx)
    live = draft.state.run
    assert live is not None, "copied from a live one"  # noqa: S101 - invariant
    activation = live.activation
    activation.state = ActivationState.LEASED
    activation.executor_id = command.executor_id
    expire_time = draft.now + command.lease_duration
    draft.rows.append(ActivationDequeued(activation.activation_id))
    draft.rows.append(
        LeasePut(
            activation.activation_id,
            live.run_id,
            activation.epoch,
            live.agent,
            command.executor_id,
            command.lease_duration,
            expire_time,
        )
    )
    draft.event(EventType.ACTIVATION_LEASED, live.run_id, executor_id=command.executor_id)
    fence = Fence(state.session_id, live.run_id, activation.activation_id, activation.epoch)
    decision = _decided(draft, lambda: LeaseAnswer(draft.state.sequence, fence, expire_time))
    decision.lease_expire_time = expire_time
    return decision


def _commit_run(state: SessionState | None, command: CommitRun, ctx: Context) -> Decision:
    if state is None or state.deleted:
        raise Refused(Reason.RUN_NOT_FOUND)
    draft = _draft(state, ctx)
    answer = commit_run(draft, command)
    decision = _decided(draft, lambda: replace(answer, sequence=draft.state.sequence))
    decision.lease_expire_time = answer.lease_expire_time
    return decision


# --- helpers ---------------------------------------------------------------


def _present(state: SessionState | None) -> SessionState:
    if state is None or state.deleted:
        raise Refused(Reason.SESSION_NOT_FOUND)
    return state


def _exists(state: SessionState) -> Refused:
    return Refused(
        Reason.SESSION_EXISTS,
        session_id=state.session_id,
        deleted="true" if state.deleted else "false",
    )


def _allowed(state: SessionState) -> str:
    return ",".join(word.name for word in allowed_commands(state))


def _draft(state: SessionState, ctx: Context) -> Draft:
    return Draft(state, ctx.now, ctx.new_id, ctx.rules)


def _created(ctx: Context, record: SessionRecord, inserted: SessionInserted | None = None) -> Draft:
    """Returns the draft of a session that is new."""
    state = SessionState(
        ctx.key.namespace, ctx.key.session_id, ctx.now, default_agent=record.default_agent
    )
    draft = Draft(state, ctx.now, ctx.new_id, ctx.rules)
    row = inserted or SessionInserted(record, ctx.now)
    draft.rows.append(row)
    draft.record_changed = True
    draft.event(EventType.SESSION_CREATED, message_count=row.message_count)
    return draft


def _record_changed(draft: Draft) -> None:
    draft.record_changed = True
    draft.state.record_revision += 1


def _session_answer(draft: Draft, *, created: bool = False) -> SessionAnswer:
    return SessionAnswer(draft.state.sequence, session_facts(draft.state), created)


def _decided(draft: Draft, answer: Callable[[], Answer] | None) -> Decision:
    """Ends a draft: the next run starts where the lane is free, then the answer is made."""
    draft.promote()
    draft.finish()
    return Decision(draft.state, answer() if answer is not None else None, draft.events, draft.rows)


_DECIDERS: dict[type, Callable[[SessionState | None, Any, Context], Decision]] = {
    CreateSession: _create,
    UpdateSession: _update,
    CloseSession: _close,
    ReopenSession: _reopen,
    DeleteSession: _delete,
    Submit: _submit,
    WithdrawSubmission: _withdraw,
    InterruptRun: _interrupt,
    LeaseActivation: _lease,
    CommitRun: _commit_run,
}
