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
)
from runlane_server.core.rows import (
    ActivationDequeued,
    ActivationQueued,
    Event,
    EventType,
    LeaseDropped,
    MessageAppended,
    Row,
    RunEnded,
    RunInserted,
    SubmissionInserted,
    SubmissionMoved,
    SubmissionSettled,
    TimerSet,
)

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
            event.activation_id = run.activation.activation_id
            event.attempt = run.activation.epoch
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
        run = Run(
            run_id,
            submission_id,
            options.agent,
            create_time,
            options.max_model_steps,
            options.cancel_grace if options.cancel_grace is not None else self.rules.cancel_grace,
            Activation(self.new_id("act"), 1),
        )
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

    def queue_activation(self, run: Run) -> None:
        """Makes the run's current activation wait for an executor."""
        activation = run.activation
        self.rows.append(
            ActivationQueued(activation.activation_id, run.run_id, run.agent, self.now)
        )
        self.event(
            EventType.ACTIVATION_QUEUED, run.run_id, kind=ActivationKind.START, agent=run.agent
        )

    def end_activation(self, reason: EndReason) -> None:
        """Ends the leased activation by an act of its executor."""
        run = self._live()
        self.event(EventType.ACTIVATION_ENDED, run.run_id, reason=reason)
        self.rows.append(LeaseDropped(run.activation.activation_id))

    def abandon_activation(self, reason: AbandonReason) -> None:
        """Ends the activation without an act of its executor."""
        run = self._live()
        activation = run.activation
        self.event(EventType.ACTIVATION_ABANDONED, run.run_id, reason=reason)
        if activation.state is ActivationState.QUEUED:
            self.rows.append(ActivationDequeued(activation.activation_id))
        else:
            # A fence that ends by expiry ends only if the store, too, has it expired: a
            # heartbeat that another process took must win.
            expired = self.now if reason is AbandonReason.LEASE_EXPIRED else None
            self.rows.append(LeaseDropped(activation.activation_id, expired))

    def request_cancellation(self, reason: str, *, replaced: bool) -> None:
        """Writes the first request to cancel the live run."""
        run = self._live()
        run.cancellation = Cancellation(reason, self.now, self.now + run.cancel_grace)
        self.event(EventType.RUN_CANCELLATION_REQUESTED, run.run_id, replaced=replaced)

    def end_run(
        self, reason: StopReason, *, failure: Failure | None = None, output_json: str = ""
    ) -> None:
        """Turns the live run TERMINAL; its activation has ended. Nothing follows it yet.

        Its facts are `ended` from then on.
        """
        state = self.state
        run = self._live()
        completed = reason is StopReason.COMPLETED
        ready = run.position is Position.OUTCOME_READY
        output = run.output_message_number if completed and ready else 0
        body: dict[str, Any] = {"stop_reason": reason, "message_cutoff": state.message_count}
        if failure is not None:
            body["failure_reason"] = failure.reason
        if output:
            body["output_message_number"] = output
        if run.cancellation is not None:
            self.rows.append(TimerSet(TimerKind.GRACE, None))
        self.event(EventType.RUN_TERMINAL, run.run_id, **body)
        self.rows.append(
            RunEnded(
                run.run_id,
                reason,
                self.now,
                state.sequence,
                run.activation.epoch,
                state.message_count,
                state.digest,
                output,
                output_json if completed else "",
                failure,
                run.cancellation,
                run.usage,
                run.steps_reserved,
                run.steps_committed,
            )
        )
        self.ended = replace(
            live_run_facts(state),
            phase=Phase.TERMINAL,
            activation=None,
            stop_reason=reason,
            failure_reason=failure.reason if failure is not None else None,
            failure_retryable=failure is not None and failure.retryable,
            output_message_number=output,
            message_cutoff=state.message_count,
            end_time=self.now,
        )
        state.run = None

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
            steer.request_id,
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


def live_run_facts(state: SessionState) -> RunFacts:
    """Returns the facts of a session's live run."""
    run = state.run
    assert run is not None, "the caller has seen a live run"  # noqa: S101 - invariant
    return RunFacts(
        run.run_id,
        state.session_id,
        run.submission_id,
        run.agent,
        Phase.ACTIVE,
        run.activation.epoch,
        run.position,
        run.create_time,
        run.usage,
        run.steps_reserved,
        run.steps_committed,
        activation=run.activation,
        cancellation=run.cancellation,
        output_message_number=run.output_message_number,
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
