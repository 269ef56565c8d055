"""The draft of a decision: all steps that commands share.

`DraftBase` (events, messages) <- `Queues` (pending input) <- `Calls` (tool
calls) <- `Draft` (runs and their activations). Each method changes the draft
alone.
"""

from dataclasses import replace
from typing import Any

from runlane_server.core.answers import SubmissionFacts
from runlane_server.core.calls import Calls
from runlane_server.core.drafting import live_run_facts
from runlane_server.core.model import Activation, Cancellation, Content, Failure, Run, RunOptions
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


class Draft(Calls):
    """A copy of one session's hot state and all that a decision appends to it."""

    __slots__ = ()

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
        run = self.live()
        was = self.phase
        run.attempt += 1
        run.wait, run.paused = None, False
        run.activation = Activation(self.new_id("act"), run.attempt, kind)
        if run.start_expire_time:
            # The alarm may have rung while somebody had it of whom nothing was heard.
            self.rows.append(TimerSet(TimerKind.START_TIMEOUT, run.start_expire_time))
        if was is not Phase.ACTIVE:
            self.rows.append(RunMoved(run.run_id, Phase.ACTIVE, stalled=False))
        self.queue_activation(run, not_before)

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
        run.activation, run.wait = None, None
        self.rows.append(RunMoved(run.run_id, Phase.PAUSED, stalled=False))
        self.event(EventType.RUN_PAUSED, run.run_id)

    def request_cancellation(self, reason: str, *, replaced: bool) -> None:
        """Writes the first request to cancel the live run; it clears a request to pause."""
        run = self.live()
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
        run = self.live()
        cause = None
        if run.claims:
            cause, reason = reason, StopReason.OUTCOME_UNKNOWN
        self.close_calls()
        if run.wait is not None:
            expired = (cause or reason) is StopReason.INTERACTION_EXPIRED
            self.close_interaction(
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
            settled = self.delivered(queued, row.message_number)
            self.open_run(run, None, queued.content_hash)
            # The store copies from the pending row, so that is settled after it.
            self.rows.append(settled)
