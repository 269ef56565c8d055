"""Queues in a draft: pending input, its delivery, and its other ends."""

from runlane_server.core.answers import SubmissionFacts
from runlane_server.core.drafting import DraftBase
from runlane_server.core.model import Content, Queued
from runlane_server.core.rows import (
    EventType,
    MessageAppended,
    SubmissionInserted,
    SubmissionMoved,
    SubmissionSettled,
)
from runlane_server.core.words import (
    Author,
    OnMiss,
    Position,
    Rank,
    Role,
    Route,
    SubmissionFailure,
    SubmissionState,
)


class Queues(DraftBase):
    """Steps on pending input."""

    __slots__ = ()

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
        run = self.live()
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
        self.rows.append(self.delivered(steer, number))
        run.position = Position.BEFORE_MODEL
        run.output_message_number = 0
        run.steer_number = number

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

    def delivered(self, queued: Queued, number: int) -> SubmissionSettled:
        """Appends the event of a delivery; its row is written after what copies from it."""
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
            steer.trace,
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
