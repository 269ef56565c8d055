"""What an executor commits under its fence: steps, boundaries, the end of its turn."""

from typing import Any

from runlane_server.core.answers import CommitAnswer, OperationResult
from runlane_server.core.commands import (
    ClaimToolCalls,
    CommitModelStep,
    CommitRun,
    CommitToolResults,
    Finish,
    FinishKind,
    Release,
    ReserveModelStep,
    Suspend,
)
from runlane_server.core.draft import Draft
from runlane_server.core.drafting import live_run_facts
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import Failure, Fence, Run, ToolCall, ToolUse, Wait
from runlane_server.core.rows import (
    EventType,
    InteractionInserted,
    LeasePut,
    MessageAppended,
    RunMoved,
    TimerSet,
    ToolCallInserted,
)
from runlane_server.core.words import (
    ActivationKind,
    ActivationState,
    Author,
    EndReason,
    Phase,
    Position,
    Role,
    RunFailure,
    StopReason,
    SubmissionFailure,
    TimerKind,
    ToolCallState,
    ToolErrorPolicy,
    ToolOutcome,
)


def commit_run(draft: Draft, command: CommitRun) -> CommitAnswer:
    """Applies a Commit to a draft, all of it.

    Raises:
        Refused: STALE_ACTIVATION, OPERATION_INVALID, RUN_CANCELLING.
    """
    run = _fenced(draft, command)
    turn = _Turn(draft, run, command)
    for index, operation in enumerate(command.operations):
        turn.index = index
        # A step asked for behind what ended the activation is not granted, and no error.
        if turn.over and not isinstance(operation, ReserveModelStep):
            raise turn.invalid("the operation before it ended the activation")
        if isinstance(operation, ReserveModelStep):
            turn.reserve()
        elif isinstance(operation, CommitModelStep):
            turn.commit_step(operation)
        elif isinstance(operation, ClaimToolCalls):
            turn.claim(operation)
        else:
            turn.commit_results(operation)
    turn.index = None
    outcome = command.outcome
    # What ended the activation before the outcome stands; the answer says so.
    if outcome is not None and not turn.over:
        if isinstance(outcome, Finish):
            turn.finish(outcome)
        elif isinstance(outcome, Suspend):
            turn.suspend(outcome)
        else:
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
        and activation is not None
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
        self.interaction_id = ""
        self.over = False
        """Whether the activation has ended here."""

    @property
    def cancelling(self) -> bool:
        """Whether cancellation of the run was requested."""
        return self.run.cancellation is not None

    # --- operations --------------------------------------------------------

    def reserve(self) -> None:
        """Grants a model step, the open one again, or ends the turn: pause, or want of budget."""
        run, draft = self.run, self.draft
        last = self.index == len(self.command.operations) - 1
        if not last or self.command.outcome is not None:
            raise self.invalid("reserve_model_step is last in its list, without an outcome")
        if self.over:
            self.results.append(OperationResult(paused=run.paused, run_ended=not run.paused))
            return
        self._refuse_cancelling()
        if run.position is not Position.BEFORE_MODEL:
            raise self.invalid(
                "tool calls are open"
                if run.position is Position.TOOL_BATCH
                else "the run has its final answer; finish it"
            )
        if run.pause_requested:
            self._pause()
            self.results.append(OperationResult(paused=True))
        elif run.reserved_step:
            self._granted()
        elif not run.steps_left:
            self._end(EndReason.BUDGET_EXHAUSTED, StopReason.BUDGET_EXHAUSTED)
            self.results.append(OperationResult(run_ended=True))
        else:
            run.steps_reserved += 1
            run.model_stream_id = draft.new_id("mst")
            draft.event(
                EventType.MODEL_STEP_RESERVED,
                run.run_id,
                step=run.steps_reserved,
                model_stream_id=run.model_stream_id,
            )
            self._granted()

    def commit_step(self, operation: CommitModelStep) -> None:
        """Commits an answer: a final one is a boundary, one with tool uses opens a batch."""
        run, draft = self.run, self.draft
        step = run.reserved_step
        if not step:
            raise self.invalid("no model step is reserved")
        uses = operation.content.tool_uses
        if len({use.tool_call_id for use in uses}) < len(uses):
            raise self.invalid("two tool uses have one tool_call_id")
        run.steps_committed = step
        run.recoveries = 0
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
        result = OperationResult(message_number=number)
        self.results.append(result)
        if uses:
            self._open_batch(uses, result)
            return
        run.position = Position.OUTCOME_READY
        run.output_message_number = number
        outcome = self.command.outcome
        # A run that ends FAILED here has no further step for a steer to be read in.
        failing = isinstance(outcome, Finish) and outcome.kind is FinishKind.FAILED
        if not failing and self._boundary() and run.pause_requested:
            self._pause()

    def claim(self, operation: ClaimToolCalls) -> None:
        """Claims calls: their effect may happen from this commit on."""
        self._refuse_cancelling()
        for tool_call_id in operation.tool_call_ids:
            call = self._call(tool_call_id)
            if call.state is not ToolCallState.PREPARED:
                raise self.invalid("the call is not prepared", tool_call_id=tool_call_id)
            call.idempotent = operation.idempotent
            self.draft.move_call(call, ToolCallState.CLAIMED)
            self.draft.event(
                EventType.TOOL_CALL_CLAIMED,
                self.run.run_id,
                tool_call_id=tool_call_id,
                idempotent=operation.idempotent,
            )
        self.results.append(OperationResult())

    def commit_results(self, operation: CommitToolResults) -> None:
        """Stores results; the end of the batch is a boundary."""
        run, draft = self.run, self.draft
        result = OperationResult()
        self.results.append(result)
        failed = False
        for one in operation.results:
            call = self._call(one.tool_call_id)
            unrun = call.state is ToolCallState.PREPARED and one.outcome is not ToolOutcome.OK
            if call.state is not ToolCallState.CLAIMED and not unrun:
                raise self.invalid("the call is not claimed", tool_call_id=one.tool_call_id)
            draft.settle_call(call, one.outcome, one.content)
            failed = failed or one.outcome is not ToolOutcome.OK
        run.recoveries = 0
        if failed and run.tool_error_policy is ToolErrorPolicy.STOP and not self.cancelling:
            self._end(
                EndReason.TOOL_FAILED,
                StopReason.FAILED,
                Finish(FinishKind.FAILED, failure=Failure(RunFailure.TOOL_FAILED)),
            )
            return
        result.batch_closed = self._close_batch()

    # --- outcomes ----------------------------------------------------------

    def finish(self, outcome: Finish) -> None:
        """Ends the run, unless a steer makes it go on."""
        if self.cancelling:
            self._end(EndReason.FINISHED, StopReason.CANCELLED)
            self.outcome_applied = True
            return
        if outcome.kind is FinishKind.CANCELLED:
            raise self.invalid("cancellation of the run was not requested")
        if outcome.kind is FinishKind.COMPLETED:
            if self.run.position is Position.TOOL_BATCH:
                raise self.invalid("tool calls are open")
            # A final answer and this finish are one boundary: at most one steer.
            if self.delivered or self._boundary():
                if self.run.pause_requested:
                    self._pause()
                return
            self._end(EndReason.FINISHED, StopReason.COMPLETED, outcome)
        else:
            self._end(EndReason.FINISHED, StopReason.FAILED, outcome)
        self.outcome_applied = True

    def suspend(self, outcome: Suspend) -> None:
        """Opens an interaction and ends the turn; no process has to stay."""
        run, draft = self.run, self.draft
        self._refuse_cancelling()
        self._refuse_claims()
        if run.position is Position.OUTCOME_READY:
            raise self.invalid("the run has its final answer; finish it")
        for tool_call_id in outcome.tool_call_ids:
            if self._call(tool_call_id).state is not ToolCallState.PREPARED:
                raise self.invalid("the call is not prepared", tool_call_id=tool_call_id)
        expire = outcome.expire_duration or run.limits.interaction_timeout
        wait = Wait(
            draft.new_id("int"),
            1,
            outcome.kind,
            outcome.tool_call_ids,
            draft.now + expire if expire else 0,
        )
        draft.rows.append(
            InteractionInserted(
                wait.interaction_id,
                run.run_id,
                run.steps_committed,
                wait.version,
                wait.kind,
                outcome.prompt,
                wait.expire_time,
                draft.now,
            )
        )
        draft.end_activation(EndReason.SUSPENDED)
        run.activation, run.wait = None, wait
        draft.rows.append(RunMoved(run.run_id, Phase.WAITING, stalled=False))
        if wait.expire_time:
            draft.rows.append(TimerSet(TimerKind.INTERACTION, wait.expire_time))
        draft.event(EventType.RUN_WAITING, run.run_id, interaction_id=wait.interaction_id)
        draft.event(
            EventType.INTERACTION_OPENED,
            run.run_id,
            interaction_id=wait.interaction_id,
            version=wait.version,
            expire_time=wait.expire_time,
        )
        self.interaction_id = wait.interaction_id
        self.outcome_applied = self.over = True

    def release(self) -> None:
        """Gives the run back; where only the settlement is missing it is made."""
        run, draft = self.run, self.draft
        self.outcome_applied = True
        if self.cancelling:
            self._end(EndReason.RELEASED, StopReason.CANCELLED)
            return
        self._refuse_claims()
        if run.position is Position.OUTCOME_READY:
            self._end(EndReason.RELEASED, StopReason.COMPLETED)
        elif run.pause_requested:
            draft.end_activation(EndReason.RELEASED)
            draft.pause()
            self.over = True
        else:
            kind = run.activation.kind if run.activation is not None else ActivationKind.START
            draft.end_activation(EndReason.RELEASED)
            draft.next_activation(kind)
            self.over = True

    def answer(self) -> CommitAnswer:
        """Renews the lease where it goes on, and returns the answer without sequence."""
        draft, run = self.draft, self.run
        expire_time = 0
        activation = run.activation
        nothing = isinstance(self.command.outcome, Release) and not self.command.operations
        if run.start_expire_time and draft.ended is None and not nothing:
            # Something was done: an executor was there in time.
            run.start_expire_time = 0
            draft.rows.append(TimerSet(TimerKind.START_TIMEOUT, None))
        if not self.over and activation is not None:
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
                    confirmed=True,
                )
            )
        return CommitAnswer(
            0,
            draft.ended or live_run_facts(draft.state),
            self.results,
            self.outcome_applied,
            self.delivered,
            expire_time,
            self.interaction_id,
        )

    # --- steps that they share ---------------------------------------------

    def _open_batch(self, uses: tuple[ToolUse, ...], result: OperationResult) -> None:
        run, draft = self.run, self.draft
        limit = run.limits.max_tool_calls
        over = 0 < limit < run.tool_calls + len(uses)
        run.tool_calls += len(uses)
        run.position = Position.TOOL_BATCH
        run.calls = [
            ToolCall(use.tool_call_id, use.name, ordinal) for ordinal, use in enumerate(uses, 1)
        ]
        for use, call in zip(uses, run.calls, strict=True):
            draft.rows.append(
                ToolCallInserted(
                    run.run_id,
                    run.steps_committed,
                    call.ordinal,
                    use.tool_call_id,
                    use.name,
                    use.arguments_json,
                    draft.now,
                )
            )
            draft.event(
                EventType.TOOL_CALL_PREPARED,
                run.run_id,
                tool_call_id=use.tool_call_id,
                name=use.name,
                ordinal=call.ordinal,
            )
        if over:
            self._end(EndReason.BUDGET_EXHAUSTED, StopReason.BUDGET_EXHAUSTED)
            return
        for use, call in zip(uses, run.calls, strict=True):
            if use.arguments_json is None:
                draft.settle_call(call, ToolOutcome.ERROR, None)
        result.calls = list(run.calls)
        result.batch_closed = self._close_batch()

    def _close_batch(self) -> bool:
        """Takes the boundary at the end of a batch, where this is it."""
        if not self.draft.batch_closed():
            return False
        self._boundary()
        if self.run.pause_requested:
            self._pause()
        return True

    def _boundary(self) -> bool:
        if not self.draft.boundary():
            return False
        self.delivered.append(self.draft.state.message_count)
        return True

    def _pause(self) -> None:
        self.draft.end_activation(EndReason.PAUSED)
        self.draft.pause()
        self.over = True

    def _end(self, end: EndReason, stop: StopReason, outcome: Finish | None = None) -> None:
        draft = self.draft
        draft.end_run(
            stop,
            end,
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

    def _call(self, tool_call_id: str) -> ToolCall:
        for call in self.run.calls:
            if call.tool_call_id == tool_call_id:
                return call
        raise Refused(Reason.TOOL_CALL_NOT_FOUND, tool_call_id=tool_call_id, **self._where())

    def _refuse_cancelling(self) -> None:
        if self.cancelling:
            raise Refused(Reason.RUN_CANCELLING, run_id=self.run.run_id)

    def _refuse_claims(self) -> None:
        for call in self.run.calls:
            if call.state is ToolCallState.CLAIMED:
                raise Refused(Reason.CALL_UNRESOLVED, tool_call_id=call.tool_call_id)

    def _where(self) -> dict[str, Any]:
        return {} if self.index is None else {"operation_index": str(self.index)}

    def invalid(self, detail: str, **metadata: Any) -> Refused:
        """Returns the refusal of an operation that does not fit the run."""
        return Refused(Reason.OPERATION_INVALID, detail, detail=detail, **metadata, **self._where())
