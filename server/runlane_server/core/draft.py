"""The draft of a decision: all steps that commands share.

`DraftBase` (events, messages) <- `Queues` (pending input) <- `Calls` (tool
calls) <- `Family` (child runs) <- `Draft` (runs and their activations). Each method
changes the draft alone.
"""

from dataclasses import replace
from typing import Any

from runlane_server.core.answers import RunFacts, SubmissionFacts
from runlane_server.core.drafting import live_run_facts
from runlane_server.core.family import Family
from runlane_server.core.model import (
    Activation,
    Cancellation,
    Content,
    Ending,
    Failure,
    Run,
    RunOptions,
)
from runlane_server.core.rows import (
    ActivationDequeued,
    ActivationQueued,
    EventType,
    LeaseDropped,
    MessageAppended,
    RunEnded,
    RunInserted,
    RunMoved,
    TimerSet,
)
from runlane_server.core.words import (
    AbandonReason,
    ActivationKind,
    ActivationState,
    Author,
    EndReason,
    InteractionClose,
    Mode,
    Phase,
    Position,
    Role,
    Route,
    StopReason,
    SubmissionFailure,
    SubmissionState,
    TimerKind,
)


def same_uuid(identifier: str, prefix: str) -> str:
    """Returns the id of another kind with the same UUID.

    An input that starts a run at once needs no row of its own: its submission is found by
    the run's id.
    """
    return f"{prefix}_{identifier.partition('_')[2]}"


class Draft(Family):
    """A copy of one session's hot state and all that a decision appends to it."""

    __slots__ = ()

    def start_run(
        self, run_id: str, submission_id: str, options: RunOptions, row: RunInserted, trace: str
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
            trace=trace,
        )
        ends = [state.parent.deadline_time] if state.parent is not None else []
        if limits.max_duration:
            ends.append(create_time + limits.max_duration)
        run.deadline_time = min(filter(None, ends), default=0)
        if run.deadline_time:
            self.rows.append(TimerSet(TimerKind.DEADLINE, run.deadline_time))
        if limits.start_timeout:
            run.start_expire_time = create_time + limits.start_timeout
            self.rows.append(TimerSet(TimerKind.START_TIMEOUT, run.start_expire_time))
        state.run = run
        row.message_number = run.input_number = state.message_count + 1
        row.parent = state.parent
        self.rows.append(row)
        return run

    def open_run(self, run: Run, content: Content | None, content_hash: bytes) -> None:
        """Appends what every new run begins with: created, its input, a queued activation."""
        body: dict[str, Any] = {"submission_id": run.submission_id, "agent": run.agent}
        if self.state.parent is not None:
            body["parent"] = self.state.parent
        self.event(EventType.RUN_CREATED, run.run_id, **body)
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
        self, content: Content, options: RunOptions, mode: Mode, request_id: str, trace: str
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
        run = self.start_run(run_id, submission_id, options, row, trace)
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
        run = self.live()
        was = self.phase
        run.attempt += 1
        run.wait, run.children_wait, run.paused = None, None, False
        run.activation = Activation(self.new_id("act"), run.attempt, kind)
        if run.start_expire_time:
            # The alarm may have rung while somebody had it of whom nothing was heard.
            self.rows.append(TimerSet(TimerKind.START_TIMEOUT, run.start_expire_time))
        if was is not Phase.ACTIVE:
            self.rows.append(RunMoved(run.run_id, Phase.ACTIVE, stalled=False))
        self.queue_activation(run, not_before)

    def go_on_after_children(self) -> None:
        """Lets the live run go on where its wait for child runs is over."""
        run = self.live()
        if not self.children_met():
            return
        if run.pause_requested:
            self.pause()
        else:
            self.next_activation(ActivationKind.CONTINUE)

    @property
    def phase(self) -> Phase:
        """The phase of the live run."""
        return self.live().phase

    def end_activation(self, reason: EndReason) -> None:
        """Ends the leased activation by an act of its executor."""
        run = self.live()
        assert run.activation is not None, "its executor acts"  # noqa: S101 - invariant
        self.event(EventType.ACTIVATION_ENDED, run.run_id, reason=reason)
        self.rows.append(LeaseDropped(run.activation.activation_id))

    def abandon_activation(self, reason: AbandonReason) -> None:
        """Ends the activation, if there is one, without an act of its executor."""
        run = self.live()
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
        run = self.live()
        run.pause_requested, run.paused = False, True
        if run.start_expire_time:
            # It was taken out of the queue on purpose: nobody is late.
            run.start_expire_time = 0
            self.rows.append(TimerSet(TimerKind.START_TIMEOUT, None))
        run.activation, run.wait, run.children_wait = None, None, None
        self.rows.append(RunMoved(run.run_id, Phase.PAUSED, stalled=False))
        self.event(EventType.RUN_PAUSED, run.run_id)

    def request_cancellation(self, reason: str, *, replaced: bool) -> None:
        """Writes the first request to cancel the live run; it clears a request to pause."""
        run = self.live()
        run.pause_requested = False
        run.cancellation = Cancellation(reason, self.now, self.now + run.cancel_grace)
        self.event(EventType.RUN_CANCELLATION_REQUESTED, run.run_id, replaced=replaced)
        self.cancel_children()

    def end_run(
        self,
        reason: StopReason,
        end: EndReason | AbandonReason,
        *,
        failure: Failure | None = None,
        output_json: str = "",
    ) -> None:
        """Ends the live run, and its activation. Nothing follows it yet.

        Every tool use gets its one result message. A claimed call that must not be run
        again makes it OUTCOME_UNKNOWN, whatever the reason. While a child run lives it is
        ending; else TERMINAL, and its facts are `ended` from then on.
        """
        run = self.live()
        cause = None
        if run.claims:
            cause, reason = reason, StopReason.OUTCOME_UNKNOWN
        ending = Ending(run.phase, reason, cause, failure)
        if run.children:
            self._await_children(ending, end)
            return
        self.close_calls()
        self._end_turn(ending, end)
        self._settle(ending, output_json)

    def end_ending(self) -> None:
        """Turns a run TERMINAL that was ending: its last child run has ended."""
        ending = self.live().ending
        assert ending is not None, "the caller has seen it"  # noqa: S101 - invariant
        self.close_calls()
        self._settle(ending, "")

    def _end_turn(self, ending: Ending, end: EndReason | AbandonReason) -> None:
        """Ends what a run has that ends: its wait, the questions that it shows, its activation."""
        run = self.live()
        if run.wait is not None:
            expired = (ending.cause or ending.stop_reason) is StopReason.INTERACTION_EXPIRED
            self.close_interaction(
                run.wait.interaction_id,
                InteractionClose.EXPIRED if expired else InteractionClose.RUN_ENDED,
            )
        self.close_proxies()
        if isinstance(end, EndReason):
            self.end_activation(end)
        else:
            self.abandon_activation(end)
        self._clear_timers(run)

    def _await_children(self, ending: Ending, end: EndReason | AbandonReason) -> None:
        """Puts off the end of the live run to the last end of its children."""
        run = self.live()
        self.give_up_calls(but={child.tool_call_id for child in run.children})
        self._end_turn(ending, end)
        stalled = run.activation is not None and run.activation.state is ActivationState.ABANDONED
        body: dict[str, Any] = {"stop_reason": ending.stop_reason}
        if ending.cause is not None:
            body["cause"] = ending.cause
        self.event(EventType.RUN_ENDING, run.run_id, **body)
        run.ending = ending
        run.activation, run.wait, run.children_wait = None, None, None
        run.pause_requested, run.paused, run.not_before = False, False, 0
        if stalled:
            self.rows.append(RunMoved(run.run_id, ending.phase, stalled=False))
        if run.cancellation is None:  # else they were asked then
            self.cancel_children()

    def _settle(self, ending: Ending, output_json: str) -> None:
        state = self.state
        run = self.live()
        reason, cause, failure = ending.stop_reason, ending.cause, ending.failure
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
                state.compacted_through,
                run.agent,
                run.create_time,
                run.trace,
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
            ending_cause=None,
            children_wait=None,
        )
        state.run = None

    @property
    def facts(self) -> RunFacts:
        """The facts of the run that was live: it may have ended here."""
        return self.ended or live_run_facts(self.state)

    def _clear_timers(self, run: Run) -> None:
        if run.cancellation is not None:
            self.rows.append(TimerSet(TimerKind.GRACE, None))
        if run.deadline_time:
            self.rows.append(TimerSet(TimerKind.DEADLINE, None))
        if run.start_expire_time:
            run.start_expire_time = 0
            self.rows.append(TimerSet(TimerKind.START_TIMEOUT, None))

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
            run = self.start_run(
                queued.run_id, queued.submission_id, queued.options, row, queued.trace
            )
            settled = self.delivered(queued, row.message_number)
            self.open_run(run, None, queued.content_hash)
            # The store copies from the pending row, so that is settled after it.
            self.rows.append(settled)
