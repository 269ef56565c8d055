"""What an executor commits under its fence: steps, boundaries, the end of its turn."""

from typing import Any

from runlane_server.core.commands import (
    CommitAnswer,
    CommitModelStep,
    CommitRun,
    Finish,
    FinishKind,
    OperationResult,
    Release,
    ReserveModelStep,
)
from runlane_server.core.draft import Draft, live_run_facts
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import (
    Activation,
    ActivationState,
    Author,
    EndReason,
    Fence,
    Position,
    Role,
    Run,
    StopReason,
    SubmissionFailure,
)
from runlane_server.core.rows import EventType, LeasePut, MessageAppended


def commit_run(draft: Draft, command: CommitRun) -> CommitAnswer:
    """Applies a Commit to a draft, all of it.

    Raises:
        Refused: STALE_ACTIVATION, OPERATION_INVALID, RUN_CANCELLING.
    """
    run = _fenced(draft, command)
    turn = _Turn(draft, run, command)
    for index, operation in enumerate(command.operations):
        turn.index = index
        if isinstance(operation, ReserveModelStep):
            turn.reserve()
        else:
            turn.commit_step(operation)
    turn.index = None
    outcome = command.outcome
    if isinstance(outcome, Finish):
        turn.finish(outcome)
    elif isinstance(outcome, Release):
        turn.release()
    return turn.answer()


def _fenced(draft: Draft, command: CommitRun) -> Run:
    """Returns the live run where the fence is the right one."""
    run = draft.state.run
    if run is None or not holds(run, command.fence):
        raise Refused(Reason.STALE_ACTIVATION, run_id=command.fence.run_id)
    return run


def holds(run: Run, fence: Fence) -> bool:
    """Whether a fence is the one of the run's leased activation."""
    activation = run.activation
    return (
        run.run_id == fence.run_id
        and activation.activation_id == fence.activation_id
        and activation.epoch == fence.epoch
        and activation.state is ActivationState.LEASED
    )


class _Turn:
    """One Commit being applied."""

    def __init__(self, draft: Draft, run: Run, command: CommitRun) -> None:
        self.draft = draft
        self.run = run
        self.command = command
        self.index: int | None = None
        self.results: list[OperationResult] = []
        self.delivered: list[int] = []
        self.outcome_applied = False
        self.over = False
        """Whether the activation has ended here."""

    @property
    def cancelling(self) -> bool:
        """Whether cancellation of the run was requested."""
        return self.run.cancellation is not None

    def reserve(self) -> None:
        """Grants a model step, the open one again, or ends the run for want of budget."""
        run = self.run
        last = self.index == len(self.command.operations) - 1
        if not last or self.command.outcome is not None:
            raise self._invalid("reserve_model_step is last in its list, without an outcome")
        if self.cancelling:
            raise Refused(Reason.RUN_CANCELLING, run_id=run.run_id)
        if run.position is not Position.BEFORE_MODEL:
            raise self._invalid("the run has its final answer; finish it")
        if run.reserved_step:
            self._granted()
        elif run.steps_reserved >= run.max_model_steps:
            self._end(EndReason.BUDGET_EXHAUSTED, StopReason.BUDGET_EXHAUSTED)
            self.results.append(OperationResult(run_ended=True))
        else:
            run.steps_reserved += 1
            run.model_stream_id = self.draft.new_id("mst")
            self.draft.event(
                EventType.MODEL_STEP_RESERVED,
                run.run_id,
                step=run.steps_reserved,
                model_stream_id=run.model_stream_id,
            )
            self._granted()

    def commit_step(self, operation: CommitModelStep) -> None:
        """Commits a final answer; at this boundary one steer is delivered."""
        run, draft = self.run, self.draft
        step = run.reserved_step
        if not step:
            raise self._invalid("no model step is reserved")
        if operation.content.has_tool_use:
            raise self._invalid("this version runs no tools")
        run.steps_committed = step
        run.usage = run.usage.plus(operation.usage)
        draft.event(
            EventType.MODEL_STEP_COMMITTED,
            run.run_id,
            step=step,
            model_stream_id=run.model_stream_id,
            usage=operation.usage,
            model=operation.model,
            finish_reason=operation.finish_reason,
        )
        number = draft.state.message_count + 1
        draft.message(
            MessageAppended(
                number,
                run.run_id,
                Role.ASSISTANT,
                Author.MODEL,
                draft.now,
                step=step,
                model_stream_id=run.model_stream_id,
                model=operation.model,
                content=operation.content,
            ),
            operation.content.hash,
        )
        run.model_stream_id = ""
        run.position = Position.OUTCOME_READY
        run.output_message_number = number
        self.results.append(OperationResult(message_number=number))
        outcome = self.command.outcome
        # A run that ends FAILED here has no further step for a steer to be read in.
        if not (isinstance(outcome, Finish) and outcome.kind is FinishKind.FAILED):
            self._boundary()

    def finish(self, outcome: Finish) -> None:
        """Ends the run, unless a steer makes it go on."""
        if self.cancelling:
            self._end(EndReason.FINISHED, StopReason.CANCELLED)
            self.outcome_applied = True
            return
        if outcome.kind is FinishKind.CANCELLED:
            raise self._invalid("cancellation of the run was not requested")
        if outcome.kind is FinishKind.COMPLETED:
            # A final answer and this finish are one boundary: at most one steer.
            if self.delivered or self._boundary():
                return
            self._end(EndReason.FINISHED, StopReason.COMPLETED, outcome)
        else:
            self._end(EndReason.FINISHED, StopReason.FAILED, outcome)
        self.outcome_applied = True

    def release(self) -> None:
        """Gives the run back; where only the settlement is missing it is made."""
        run, draft = self.run, self.draft
        self.outcome_applied = True
        if self.cancelling:
            self._end(EndReason.RELEASED, StopReason.CANCELLED)
        elif run.position is Position.OUTCOME_READY:
            self._end(EndReason.RELEASED, StopReason.COMPLETED)
        else:
            draft.end_activation(EndReason.RELEASED)
            run.activation = Activation(draft.new_id("act"), run.activation.epoch + 1)
            draft.queue_activation(run)
            self.over = True

    def answer(self) -> CommitAnswer:
        """Renews the lease where it goes on, and returns the answer without sequence."""
        draft, run = self.draft, self.run
        expire_time = 0
        if not self.over:
            activation = run.activation
            expire_time = draft.now + self.command.lease_duration
            draft.rows.append(
                LeasePut(
                    activation.activation_id,
                    run.run_id,
                    activation.epoch,
                    run.agent,
                    activation.executor_id,
                    self.command.lease_duration,
                    expire_time,
                )
            )
        facts = draft.ended or live_run_facts(draft.state)
        return CommitAnswer(
            0, facts, self.results, self.outcome_applied, self.delivered, expire_time
        )

    def _boundary(self) -> bool:
        """Delivers one steer where there is one and a step is left for it to be read in."""
        run, draft = self.run, self.draft
        if self.cancelling or not draft.state.steers or run.steps_reserved >= run.max_model_steps:
            return False
        draft.deliver_steer(run.steps_committed)
        self.delivered.append(draft.state.message_count)
        return True

    def _end(self, end: EndReason, stop: StopReason, outcome: Finish | None = None) -> None:
        draft = self.draft
        draft.end_activation(end)
        draft.end_run(
            stop,
            failure=outcome.failure if outcome is not None else None,
            output_json=outcome.output_json if outcome is not None else "",
        )
        draft.miss_steers(SubmissionFailure.TARGET_TERMINAL)
        self.over = True

    def _granted(self) -> None:
        run = self.run
        self.results.append(
            OperationResult(
                granted=True, step=run.reserved_step, model_stream_id=run.model_stream_id
            )
        )

    def _invalid(self, detail: str) -> Refused:
        where: dict[str, Any] = {} if self.index is None else {"operation_index": str(self.index)}
        return Refused(Reason.OPERATION_INVALID, detail, detail=detail, **where)
