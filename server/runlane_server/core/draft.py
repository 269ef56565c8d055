"""A decision in the making: a copy of the hot state, and what it appends.

The steps here are those that several commands share: events, messages, the
end of a run and the start of the next. Each method changes the draft alone.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from runlane_server.core.commands import RunFacts, SessionFacts, SubmissionFacts
from runlane_server.core.model import (
    AbandonReason,
    Activation,
    ActivationKind,
    ActivationState,
    Author,
    Cancellation,
    Content,
    EndReason,
    Failure,
    InteractionClose,
    InteractionState,
    Mode,
    OnMiss,
    Phase,
    Position,
    Queued,
    Rank,
    Role,
    Route,
    Rules,
    Run,
    RunOptions,
    SessionState,
    StopReason,
    SubmissionFailure,
    SubmissionState,
    TimerKind,
    ToolCall,
    ToolCallState,
    ToolOutcome,
)
from runlane_server.core.rows import (
    ActivationDequeued,
    ActivationQueued,
    Closer,
    Event,
    EventType,
    InteractionSettled,
    LeaseDropped,
    MessageAppended,
    Row,
    RunEnded,
    RunInserted,
    RunMoved,
    SubmissionInserted,
    SubmissionMoved,
    SubmissionSettled,
    TimerSet,
    ToolCallMoved,
)

_CLOSERS = {
    ToolOutcome.ERROR: "The arguments are not valid JSON; the call was not run.",
    ToolOutcome.CANCELLED: "The run ended before this call was run.",
    ToolOutcome.UNKNOWN: "The run ended while this call was at work; its outcome is not known.",
}

NewId = Callable[[str], str]
"""Makes an id from its prefix (`run`, `sub`, `act`, `mst`); passed in, so that the core has
no randomness."""


def same_uuid(identifier: str, prefix: str) -> str:
    """Returns the id of another kind with the same UUID.

    An input that starts a run at once needs no row of its own: its submission is found by
    the run's id.
    """
    return f"{prefix}_{identifier.partition('_')[2]}"


class Draft:
    """A copy of one session's hot state and all that a decision appends to it."""

    __slots__ = ("ended", "events", "new_id", "now", "record_changed", "rows", "rules", "state")

    def __init__(self, state: SessionState, now: int, new_id: NewId, rules: Rules) -> None:
        self.state = state.copy()
        self.now = max(now, state.last_time)
        self.new_id = new_id
        self.rules = rules
        self.events: list[Event] = []
        self.rows: list[Row] = []
        self.record_changed = False
        self.ended: RunFacts | None = None
        self.state.last_time = self.now

    # --- events and messages -----------------------------------------------

    def event(self, kind: EventType, run_id: str = "", /, **body: Any) -> Event:
        """Appends an event; of the live run it names activation and attempt."""
        state = self.state
        state.sequence += 1
        event = Event(kind, state.sequence, self.now, run_id, body=body)
        run = state.run
        if run is not None and run.run_id == run_id:
            run.run_sequence += 1
            event.run_sequence = run.run_sequence
            event.attempt = run.attempt
            if run.activation is not None:
                event.activation_id = run.activation.activation_id
        self.events.append(event)
        return event

    def message(self, row: MessageAppended, content_hash: bytes) -> None:
        """Appends a message and its event; the digest is chained over all that it says."""
        state = self.state
        state.message_count = row.number
        head = f"{row.role:d}:{row.author:d}:{row.run_id}:{row.submission_id}:{row.step}:"
        state.digest = hashlib.sha256(state.digest + head.encode() + content_hash).digest()
        self.rows.append(row)
        body: dict[str, Any] = {"number": row.number, "role": row.role, "author": row.author}
        if row.step:
            body["step"] = row.step
        if row.submission_id:
            body["submission_id"] = row.submission_id
        if row.model_stream_id:
            body["model_stream_id"] = row.model_stream_id
        event = self.event(EventType.MESSAGE_APPENDED, row.run_id, **body)
        event.message_number = row.number

    def finish(self) -> None:
        """Settles what depends on the whole: revision and update time."""
        if self.record_changed or any(isinstance(row, MessageAppended) for row in self.rows):
            self.state.revision += 1
            self.state.update_time = self.now

    # --- runs --------------------------------------------------------------

    def start_run(
        self, run_id: str, submission_id: str, options: RunOptions, row: RunInserted
    ) -> Run:
        """Puts a new run into the lane; its input and activation follow."""
        state = self.state
        create_time = max(self.now, state.last_run_time + 1)
        state.last_run_time = create_time
        row.create_time = create_time
        rules, limits = self.rules, options.limits
        grace, recoveries = options.cancel_grace, options.max_recoveries
        run = Run(
            run_id,
            submission_id,
            options.agent,
            create_time,
            limits,
            rules.cancel_grace if grace is None else grace,
            options.tool_error_policy,
            options.recovery,
            rules.max_recoveries if recoveries is None else recoveries,
            1,
            Activation(self.new_id("act"), 1),
        )
        if limits.max_duration:
            run.deadline_time = create_time + limits.max_duration
            self.rows.append(TimerSet(TimerKind.DEADLINE, run.deadline_time))
        if limits.start_timeout:
            run.start_expire_time = create_time + limits.start_timeout
            self.rows.append(TimerSet(TimerKind.START_TIMEOUT, run.start_expire_time))
        state.run = run
        row.message_number = state.message_count + 1
        self.rows.append(row)
        return run

    def open_run(self, run: Run, content: Content | None, content_hash: bytes) -> None:
        """Appends what every new run begins with: created, its input, a queued activation."""
        self.event(
            EventType.RUN_CREATED,
            run.run_id,
            submission_id=run.submission_id,
            agent=run.agent,
        )
        self.message(
            MessageAppended(
                self.state.message_count + 1,
                run.run_id,
                Role.USER,
                Author.INPUT,
                self.now,
                submission_id=run.submission_id,
                content=content,
            ),
            content_hash,
        )
        self.queue_activation(run)

    def start_with_input(
        self, content: Content, options: RunOptions, mode: Mode, request_id: str
    ) -> SubmissionFacts:
        """Starts a run with an input that never waited."""
        run_id = self.new_id("run")
        submission_id = same_uuid(run_id, "sub")
        row = RunInserted(
            run_id,
            submission_id,
            options.agent,
            mode,
            0,
            self.state.sequence + 1,
            0,
            request_id=request_id,
            options=options,
            preview=content.preview,
        )
        run = self.start_run(run_id, submission_id, options, row)
        self.open_run(run, content, content.hash)
        return SubmissionFacts(
            submission_id,
            self.state.session_id,
            run_id,
            mode,
            Route.RUN,
            SubmissionState.DELIVERED,
            self.now,
            self.now,
            row.message_number,
        )

    def queue_activation(self, run: Run, not_before: int = 0) -> None:
        """Makes the run's current activation wait for an executor."""
        activation = run.activation
        assert activation is not None, "it was made for this"  # noqa: S101 - invariant
        run.not_before = not_before
        self.rows.append(
            ActivationQueued(activation.activation_id, run.run_id, run.agent, self.now, not_before)
        )
        self.event(EventType.ACTIVATION_QUEUED, run.run_id, kind=activation.kind, agent=run.agent)

    def next_activation(self, kind: ActivationKind, not_before: int = 0) -> None:
        """Queues another turn of the live run."""
        run = self._live()
        was = self.phase
        run.attempt += 1
        run.wait, run.paused = None, False
        run.activation = Activation(self.new_id("act"), run.attempt, kind)
        if was is not Phase.ACTIVE:
            self.rows.append(RunMoved(run.run_id, Phase.ACTIVE, stalled=False))
        self.queue_activation(run, not_before)

    @property
    def phase(self) -> Phase:
        """The phase of the live run."""
        return self._live().phase

    def end_activation(self, reason: EndReason) -> None:
        """Ends the leased activation by an act of its executor."""
        run = self._live()
        assert run.activation is not None, "its executor acts"  # noqa: S101 - invariant
        self.event(EventType.ACTIVATION_ENDED, run.run_id, reason=reason)
        self.rows.append(LeaseDropped(run.activation.activation_id))

    def abandon_activation(self, reason: AbandonReason) -> None:
        """Ends the activation, if there is one, without an act of its executor."""
        run = self._live()
        activation = run.activation
        if activation is None or activation.state is ActivationState.ABANDONED:
            return
        self.event(EventType.ACTIVATION_ABANDONED, run.run_id, reason=reason)
        if activation.state is ActivationState.QUEUED:
            self.rows.append(ActivationDequeued(activation.activation_id))
        else:
            # A fence that ends by expiry ends only if the store, too, has it expired: a
            # heartbeat that another process took must win.
            expired = (
                self.now
                if reason in {AbandonReason.LEASE_EXPIRED, AbandonReason.UNCONFIRMED}
                else None
            )
            self.rows.append(LeaseDropped(activation.activation_id, expired))

    def pause(self) -> None:
        """Puts the live run aside; its activation has ended. It keeps its place."""
        run = self._live()
        run.pause_requested, run.paused = False, True
        run.activation, run.wait = None, None
        self.rows.append(RunMoved(run.run_id, Phase.PAUSED, stalled=False))
        self.event(EventType.RUN_PAUSED, run.run_id)

    def request_cancellation(self, reason: str, *, replaced: bool) -> None:
        """Writes the first request to cancel the live run; it clears a request to pause."""
        run = self._live()
        run.pause_requested = False
        run.cancellation = Cancellation(reason, self.now, self.now + run.cancel_grace)
        self.event(EventType.RUN_CANCELLATION_REQUESTED, run.run_id, replaced=replaced)

    def end_run(
        self,
        reason: StopReason,
        end: EndReason | AbandonReason,
        *,
        failure: Failure | None = None,
        output_json: str = "",
    ) -> None:
        """Turns the live run TERMINAL, and ends its activation. Nothing follows it yet.

        Every tool use gets its one result message. A claimed call that must not be run
        again makes it OUTCOME_UNKNOWN, whatever the reason. Its facts are `ended` from
        then on.
        """
        state = self.state
        run = self._live()
        cause = None
        if run.claims:
            cause, reason = reason, StopReason.OUTCOME_UNKNOWN
        self._close_calls()
        if run.wait is not None:
            expired = (cause or reason) is StopReason.INTERACTION_EXPIRED
            self._close_interaction(
                run.wait.interaction_id,
                InteractionClose.EXPIRED if expired else InteractionClose.RUN_ENDED,
            )
        if isinstance(end, EndReason):
            self.end_activation(end)
        else:
            self.abandon_activation(end)
        completed = reason is StopReason.COMPLETED
        ready = run.position is Position.OUTCOME_READY
        output = run.output_message_number if completed and ready else 0
        body: dict[str, Any] = {"stop_reason": reason, "message_cutoff": state.message_count}
        if cause is not None:
            body["cause"] = cause
        if failure is not None:
            body["failure_reason"] = failure.reason
        if output:
            body["output_message_number"] = output
        self._clear_timers(run)
        self.event(EventType.RUN_TERMINAL, run.run_id, **body)
        self.rows.append(
            RunEnded(
                run.run_id,
                reason,
                cause,
                self.now,
                state.sequence,
                run.attempt,
                state.message_count,
                state.digest,
                output,
                output_json if completed else "",
                failure,
                run.cancellation,
                run.usage,
                run.steps_reserved,
                run.steps_committed,
                run.tool_calls,
            )
        )
        self.ended = replace(
            live_run_facts(state),
            phase=Phase.TERMINAL,
            activation=None,
            stop_reason=reason,
            cause=cause,
            failure_reason=failure.reason if failure is not None else None,
            failure_retryable=failure is not None and failure.retryable,
            output_message_number=output,
            message_cutoff=state.message_count,
            end_time=self.now,
            interaction_id="",
            pause_requested=False,
            stalled=False,
        )
        state.run = None

    def _clear_timers(self, run: Run) -> None:
        if run.cancellation is not None:
            self.rows.append(TimerSet(TimerKind.GRACE, None))
        if run.deadline_time:
            self.rows.append(TimerSet(TimerKind.DEADLINE, None))
        if run.start_expire_time:
            self.rows.append(TimerSet(TimerKind.START_TIMEOUT, None))

    # --- tool calls and interactions ---------------------------------------

    def move_call(
        self, call: ToolCall, state: ToolCallState, result: Content | None = None
    ) -> None:
        """Writes how far a call got; `result` is stored until its message can be appended."""
        run = self._live()
        call.state = state
        self.rows.append(
            ToolCallMoved(
                run.run_id,
                run.steps_committed,
                call.ordinal,
                state,
                call.idempotent,
                call.outcome,
                self.now,
                result,
            )
        )

    def settle_call(self, call: ToolCall, outcome: ToolOutcome, content: Content | None) -> None:
        """Gives a call its result; its message is appended once those before it are.

        Without content the server's own words for the outcome stand in.
        """
        run = self._live()
        call.outcome = outcome
        at_once = all(one.appended for one in run.calls[: call.ordinal - 1])
        if content is not None:
            call.result_hash = content.hash
        self.move_call(call, ToolCallState.COMMITTED, None if at_once else content)
        self.event(
            EventType.TOOL_CALL_COMMITTED,
            run.run_id,
            tool_call_id=call.tool_call_id,
            outcome=outcome,
        )
        if not at_once:
            return
        if content is not None:
            self._append_result(call, content=content)
        else:
            self._append_result(call, closer=closer_of(call))
        for later in run.calls[call.ordinal :]:
            if later.state is not ToolCallState.COMMITTED:
                break
            self._append_result(later)

    def batch_closed(self) -> bool:
        """Whether every call of the open batch has its result message; then it is no more."""
        run = self._live()
        if run.position is not Position.TOOL_BATCH or not all(one.appended for one in run.calls):
            return False
        run.calls = []
        run.position = Position.BEFORE_MODEL
        return True

    def boundary(self) -> bool:
        """Delivers one steer where there is one and a step is left for it to be read in."""
        run, state = self._live(), self.state
        if run.cancellation is not None or not state.steers or not run.steps_left:
            return False
        self.deliver_steer(run.steps_committed)
        return True

    def _append_result(
        self, call: ToolCall, *, content: Content | None = None, closer: Closer | None = None
    ) -> None:
        """Appends a result message; with neither argument, the one that is stored."""
        run, state = self._live(), self.state
        call.appended = True
        stored = content is None and closer is None
        if stored and not call.result_hash:
            # A closer that had to wait for the calls before it.
            stored, closer = False, closer_of(call)
        digest = call.result_hash
        if closer is not None:
            digest = f"{closer.tool_call_id}:{closer.outcome:d}:{closer.text}".encode()
        self.message(
            MessageAppended(
                state.message_count + 1,
                run.run_id,
                Role.TOOL,
                Author.TOOL if closer is None else Author.CLOSER,
                self.now,
                step=run.steps_committed,
                content=content,
                closer=closer,
                from_call=(run.steps_committed, call.ordinal) if stored else None,
            ),
            digest,
        )

    def _close_calls(self) -> None:
        """Closes the open batch at the end of its run: what is not known, what was not run."""
        run = self._live()
        lost = []
        for call in run.calls:
            if call.state is ToolCallState.CLAIMED:
                call.outcome = ToolOutcome.UNKNOWN
                self.move_call(call, ToolCallState.OUTCOME_UNKNOWN)
                lost.append((EventType.TOOL_CALL_OUTCOME_UNKNOWN, call))
            elif call.state is ToolCallState.PREPARED:
                call.outcome = ToolOutcome.CANCELLED
                self.move_call(call, ToolCallState.CANCELLED)
                lost.append((EventType.TOOL_CALL_CANCELLED, call))
        for kind, call in lost:
            self.event(kind, run.run_id, tool_call_id=call.tool_call_id)
        for call in run.calls:
            if call.appended:
                continue
            if call.state is ToolCallState.COMMITTED:
                self._append_result(call)
            else:
                self._append_result(call, closer=closer_of(call))
        run.calls = []

    def _close_interaction(self, interaction_id: str, reason: InteractionClose) -> None:
        run = self._live()
        self.rows.append(
            InteractionSettled(interaction_id, InteractionState.CLOSED, self.now, reason=reason)
        )
        if run.wait is not None and run.wait.expire_time:
            self.rows.append(TimerSet(TimerKind.INTERACTION, None))
        self.event(
            EventType.INTERACTION_CLOSED,
            run.run_id,
            interaction_id=interaction_id,
            reason=reason,
        )

    # --- queues ------------------------------------------------------------

    def enqueue(self, queued: Queued, content: Content, request_id: str) -> SubmissionFacts:
        """Queues an input."""
        state = self.state
        if queued.route is Route.STEER:
            state.steers.append(queued)
        else:
            self._insert_next(queued)
        state.pending_bytes += queued.size
        self.rows.append(
            SubmissionInserted(
                queued.submission_id,
                queued.run_id,
                queued.mode,
                queued.route,
                content,
                queued.options,
                request_id,
                self.now,
            )
        )
        self.event(
            EventType.SUBMISSION_PENDING,
            queued.run_id,
            submission_id=queued.submission_id,
            mode=queued.mode,
            route=queued.route,
        )
        return SubmissionFacts(
            queued.submission_id,
            state.session_id,
            queued.run_id,
            queued.mode,
            queued.route,
            SubmissionState.PENDING,
            self.now,
        )

    def deliver_steer(self, step: int) -> None:
        """Delivers the first steer at a boundary: the live run goes on with it."""
        state = self.state
        run = self._live()
        steer = state.steers.pop(0)
        state.pending_bytes -= steer.size
        number = state.message_count + 1
        self.message(
            MessageAppended(
                number,
                run.run_id,
                Role.USER,
                Author.STEER,
                self.now,
                step=step,
                submission_id=steer.submission_id,
            ),
            steer.content_hash,
        )
        self.rows.append(self._delivered(steer, number))
        run.position = Position.BEFORE_MODEL
        run.output_message_number = 0

    def miss_steers(self, failure: SubmissionFailure) -> None:
        """Fails the steers of a run that no boundary will take, or moves them."""
        state = self.state
        steers, state.steers = state.steers, []
        for steer in steers:
            if steer.on_miss is OnMiss.FOLLOW_UP:
                self._move(steer)
            else:
                self.fail(steer, failure)

    def fail_pending(self) -> None:
        """Fails all that is pending, whatever its on_miss: the session closes."""
        state = self.state
        pending = state.steers + state.next_runs
        state.steers, state.next_runs = [], []
        for queued in pending:
            self.fail(queued, SubmissionFailure.SESSION_CLOSED)

    def fail(self, queued: Queued, failure: SubmissionFailure) -> None:
        """Fails an input that has left its queue."""
        self.state.pending_bytes -= queued.size
        self.rows.append(
            SubmissionSettled(
                queued.submission_id, SubmissionState.FAILED, self.now, failure=failure
            )
        )
        self.event(
            EventType.SUBMISSION_FAILED,
            queued.run_id,
            submission_id=queued.submission_id,
            mode=queued.mode,
            route=queued.route,
            reason=failure,
        )

    def promote(self) -> None:
        """Starts the next run where the lane is free. One that cannot start fails."""
        state = self.state
        while state.run is None and state.next_runs:
            queued = state.next_runs.pop(0)
            allowed = self.rules.agents
            if allowed and queued.options.agent not in allowed:
                self.fail(queued, SubmissionFailure.START_FAILED)
                continue
            state.pending_bytes -= queued.size
            row = RunInserted(
                queued.run_id,
                queued.submission_id,
                queued.options.agent,
                queued.mode,
                0,
                state.sequence + 1,
                0,
                from_submission=True,
            )
            run = self.start_run(queued.run_id, queued.submission_id, queued.options, row)
            settled = self._delivered(queued, row.message_number)
            self.open_run(run, None, queued.content_hash)
            # The store copies from the pending row, so that is settled after it.
            self.rows.append(settled)

    def _delivered(self, queued: Queued, number: int) -> SubmissionSettled:
        self.event(
            EventType.SUBMISSION_DELIVERED,
            queued.run_id,
            submission_id=queued.submission_id,
            mode=queued.mode,
            route=queued.route,
            message_number=number,
        )
        return SubmissionSettled(
            queued.submission_id, SubmissionState.DELIVERED, self.now, message_number=number
        )

    def _move(self, steer: Queued) -> None:
        moved = Queued(
            steer.submission_id,
            self.new_id("run"),
            steer.mode,
            Route.FOLLOW_UP,
            Rank.MOVED_STEER,
            steer.on_miss,
            steer.size,
            steer.content_hash,
            steer.options,
            steer.create_time,
        )
        self._insert_next(moved)
        self.rows.append(SubmissionMoved(moved.submission_id, moved.run_id))
        self.event(
            EventType.SUBMISSION_MOVED,
            moved.run_id,
            submission_id=moved.submission_id,
            from_run_id=steer.run_id,
            mode=steer.mode,
        )

    def _insert_next(self, queued: Queued) -> None:
        queue = self.state.next_runs
        place = sum(1 for other in queue if other.rank <= queued.rank)
        queue.insert(place, queued)

    def _live(self) -> Run:
        run = self.state.run
        assert run is not None, "the caller has seen a live run"  # noqa: S101 - invariant
        return run


def closer_of(call: ToolCall) -> Closer:
    """Returns what stands in for the result of a call that has none."""
    outcome = call.outcome or ToolOutcome.CANCELLED
    return Closer(call.tool_call_id, outcome, _CLOSERS.get(outcome, ""))


def live_run_facts(state: SessionState) -> RunFacts:
    """Returns the facts of a session's live run."""
    run = state.run
    assert run is not None, "the caller has seen a live run"  # noqa: S101 - invariant
    activation = run.activation
    return RunFacts(
        run.run_id,
        state.session_id,
        run.submission_id,
        run.agent,
        run.phase,
        run.attempt,
        run.position,
        run.create_time,
        run.usage,
        run.steps_reserved,
        run.steps_committed,
        activation=activation,
        cancellation=run.cancellation,
        output_message_number=run.output_message_number,
        tool_calls=run.tool_calls,
        deadline_time=run.deadline_time,
        interaction_id=run.wait.interaction_id if run.wait is not None else "",
        pause_requested=run.pause_requested,
        stalled=activation is not None and activation.state is ActivationState.ABANDONED,
        recoveries=run.recoveries,
    )


def session_facts(state: SessionState) -> SessionFacts:
    """Returns the facts of a session."""
    return SessionFacts(
        state.session_id,
        state.status,
        state.revision,
        state.etag,
        state.message_count,
        state.run.run_id if state.run is not None else "",
        state.create_time,
        state.update_time,
    )
