"""What an executor commits under its fence: steps, boundaries, the end of its turn."""

from dataclasses import replace

from runlane_server.core.answers import CommitAnswer, OperationResult
from runlane_server.core.commands import (
    ClaimToolCalls,
    CommitModelStep,
    CommitRun,
    CommitToolResults,
    Finish,
    FinishKind,
    RecordCompaction,
    Release,
    ReserveModelStep,
    StartChildRun,
    Suspend,
    SuspendForChildren,
)
from runlane_server.core.context import Context, created_draft
from runlane_server.core.draft import Draft
from runlane_server.core.errors import NotRead, Reason, Refused
from runlane_server.core.model import (
    Child,
    ChildrenWait,
    Failure,
    Fence,
    ParentLink,
    Run,
    ToolCall,
    Wait,
)
from runlane_server.core.options import resolve_options
from runlane_server.core.rows import (
    EventType,
    InteractionInserted,
    LeasePut,
    MessageAppended,
    RunMoved,
    SessionInserted,
    SummaryInserted,
    TimerSet,
    ToolCallGiven,
)
from runlane_server.core.turn import Turn
from runlane_server.core.words import (
    ActivationKind,
    ActivationState,
    Author,
    EndReason,
    Mode,
    Phase,
    Position,
    Role,
    RunFailure,
    StopReason,
    TimerKind,
    ToolCallState,
    ToolErrorPolicy,
    ToolOutcome,
)


def commit_run(
    draft: Draft, command: CommitRun, child: Context | None
) -> tuple[CommitAnswer, Draft | None]:
    """Applies a Commit to a draft, all of it.

    Args:
        draft: Of the session of the run.
        command: The Commit.
        child: Of the session that a child run is started in; None: none is.

    Returns:
        The answer, and the draft of the child's session where one was started.

    Raises:
        Refused: STALE_ACTIVATION, OPERATION_INVALID, RUN_CANCELLING, CALL_HAS_CHILD.
    """
    run = _fenced(draft, command)
    turn = _Turn(draft, run, command, child)
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
        elif isinstance(operation, CommitToolResults):
            turn.commit_results(operation)
        elif isinstance(operation, StartChildRun):
            turn.start_child(operation)
        else:
            turn.record_compaction(operation)
    turn.index = None
    outcome = command.outcome
    # What ended the activation before the outcome stands; the answer says so.
    if outcome is not None and not turn.over:
        if isinstance(outcome, Finish):
            turn.finish(outcome)
        elif isinstance(outcome, Suspend):
            turn.suspend(outcome)
        elif isinstance(outcome, SuspendForChildren):
            turn.suspend_for_children(outcome)
        else:
            turn.release()
    return turn.answer(), turn.child


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


class _Turn(Turn):
    """Applies operations in order, then the outcome."""

    def __init__(self, draft: Draft, run: Run, command: CommitRun, child: Context | None) -> None:
        super().__init__(draft, run, command)
        self.child_ctx = child
        self.child: Draft | None = None

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
        self.refuse_cancelling()
        if run.position is not Position.BEFORE_MODEL:
            raise self.invalid(
                "tool calls are open"
                if run.position is Position.TOOL_BATCH
                else "the run has its final answer; finish it"
            )
        if run.pause_requested:
            self.pause()
            self.results.append(OperationResult(paused=True))
        elif run.reserved_step:
            self.granted()
        elif not run.steps_left:
            self.end(EndReason.BUDGET_EXHAUSTED, StopReason.BUDGET_EXHAUSTED)
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
            self.granted()

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
            self.open_batch(uses, result)
            return
        run.position = Position.OUTCOME_READY
        run.output_message_number = number
        outcome = self.command.outcome
        # A run that ends FAILED here has no further step for a steer to be read in.
        failing = isinstance(outcome, Finish) and outcome.kind is FinishKind.FAILED
        if not failing and self.boundary() and run.pause_requested:
            self.pause()

    def claim(self, operation: ClaimToolCalls) -> None:
        """Claims calls: their effect may happen from this commit on."""
        self.refuse_cancelling()
        for tool_call_id in operation.tool_call_ids:
            call = self.prepared(tool_call_id)
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
            call = self.call(one.tool_call_id)
            self.refuse_child(call)
            unrun = call.state is ToolCallState.PREPARED and one.outcome is not ToolOutcome.OK
            if call.state is not ToolCallState.CLAIMED and not unrun:
                raise self.invalid("the call is not claimed", tool_call_id=one.tool_call_id)
            draft.settle_call(call, one.outcome, one.content)
            failed = failed or one.outcome is not ToolOutcome.OK
        # A child run that failed while these calls were at work.
        failed = failed or any(
            call.child_run_id and call.state is ToolCallState.COMMITTED and not call.succeeded
            for call in run.calls
        )
        run.recoveries = 0
        if failed and run.tool_error_policy is ToolErrorPolicy.STOP and not self.cancelling:
            self.end(
                EndReason.TOOL_FAILED,
                StopReason.FAILED,
                Finish(FinishKind.FAILED, failure=Failure(RunFailure.TOOL_FAILED)),
            )
            return
        result.batch_closed = self.close_batch()

    def start_child(self, operation: StartChildRun) -> None:
        """Starts a run of another agent in a session of its own, to answer a call."""
        self.refuse_cancelling()
        call = self.call(operation.tool_call_id)
        result = OperationResult(existing=bool(call.child_run_id))
        self.results.append(result)
        if not result.existing:
            self.child = self._start_child(self.prepared(operation.tool_call_id), operation)
        result.child_run_id, result.child_session_id = call.child_run_id, call.child_session_id

    def _start_child(self, call: ToolCall, operation: StartChildRun) -> Draft:
        run, draft, ctx = self.run, self.draft, self.child_ctx
        if self.child is not None or ctx is None:
            raise self.invalid("a Commit starts one child run")
        depth = (draft.state.parent.depth if draft.state.parent is not None else 0) + 1
        if depth > draft.rules.max_child_depth:
            raise self.invalid(f"child runs go {draft.rules.max_child_depth} deep")
        if len(run.children) >= draft.rules.max_children:
            raise self.invalid(f"a run has {draft.rules.max_children} live child runs at most")
        link = ParentLink(
            draft.state.session_id, run.run_id, call.tool_call_id, depth, run.deadline_time
        )
        options = resolve_options(operation.options, run.agent, draft.rules)
        record = replace(operation.record, default_agent=options.agent)
        child = created_draft(ctx, record, SessionInserted(record, ctx.now, parent=link))
        trace = ctx.trace or run.trace
        started = child.start_with_input(operation.content, options, Mode.START, "", trace)
        call.child_run_id, call.child_session_id = started.run_id, started.session_id
        run.children += (Child(started.run_id, started.session_id, call.tool_call_id),)
        run.children_started += 1
        run.recoveries = 0
        draft.rows.append(
            ToolCallGiven(run.run_id, run.steps_committed, call.ordinal, started.run_id)
        )
        draft.event(
            EventType.CHILD_RUN_STARTED,
            run.run_id,
            tool_call_id=call.tool_call_id,
            child_run_id=started.run_id,
            child_session_id=started.session_id,
            agent=options.agent,
        )
        return child

    def record_compaction(self, operation: RecordCompaction) -> None:
        """Lets the model see a summary in place of the first messages."""
        run, draft = self.run, self.draft
        state, through = draft.state, operation.through
        if run.position is not Position.BEFORE_MODEL:
            raise self.invalid("the next thing is not a model step")
        if not state.compacted_through < through <= state.message_count:
            raise self.invalid(
                f"through_message_number is from {state.compacted_through + 1}"
                f" to {state.message_count}"
            )
        if self._role_after(operation) is Role.TOOL:
            raise self.invalid("the summary would part tool calls from their results")
        state.compacted_through = through
        run.usage = run.usage.plus(operation.usage)
        run.recoveries = 0
        draft.rows.append(SummaryInserted(through, operation.text, operation.model, draft.now))
        draft.event(
            EventType.SESSION_COMPACTED,
            run.run_id,
            through_message_number=through,
            usage=operation.usage,
            model=operation.model,
        )
        self.results.append(OperationResult())

    def _role_after(self, operation: RecordCompaction) -> Role | None:
        """Returns the role of the first message that a summary does not cover; None: there is none.

        Raises:
            NotRead: It was appended since its caller looked.
        """
        number = operation.through + 1
        if number > self.draft.state.message_count:
            return None
        for row in self.draft.rows:
            if isinstance(row, MessageAppended) and row.number == number:
                return row.role
        if operation.next_role is None:
            raise NotRead
        return operation.next_role

    # --- outcomes ----------------------------------------------------------

    def finish(self, outcome: Finish) -> None:
        """Ends the run, unless a steer makes it go on."""
        if self.cancelling:
            self.end(EndReason.FINISHED, StopReason.CANCELLED)
            self.outcome_applied = True
            return
        if outcome.kind is FinishKind.CANCELLED:
            raise self.invalid("cancellation of the run was not requested")
        if outcome.kind is FinishKind.COMPLETED:
            if self.run.position is Position.TOOL_BATCH:
                raise self.invalid("tool calls are open")
            # A final answer and this finish are one boundary: at most one steer.
            if self.delivered or self.boundary():
                if self.run.pause_requested:
                    self.pause()
                return
            self.end(EndReason.FINISHED, StopReason.COMPLETED, outcome)
        else:
            self.end(EndReason.FINISHED, StopReason.FAILED, outcome)
        self.outcome_applied = True

    def suspend(self, outcome: Suspend) -> None:
        """Opens an interaction and ends the turn; no process has to stay."""
        run, draft = self.run, self.draft
        self.refuse_cancelling()
        self.refuse_claims()
        if run.position is Position.OUTCOME_READY:
            raise self.invalid("the run has its final answer; finish it")
        for tool_call_id in outcome.tool_call_ids:
            self.prepared(tool_call_id)
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
        self._leave(RunMoved(run.run_id, Phase.WAITING, stalled=False))
        run.wait = wait
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

    def suspend_for_children(self, outcome: SuspendForChildren) -> None:
        """Waits for child runs and ends the turn; where enough have ended it goes on at once."""
        run, draft = self.run, self.draft
        self.refuse_cancelling()
        self.refuse_claims()
        if run.position is Position.OUTCOME_READY:
            raise self.invalid("the run has its final answer; finish it")
        if not run.children_started:
            raise self.invalid("the run has started no child run")
        started = {call.child_run_id for call in run.calls}
        for run_id in outcome.run_ids:
            # Where the batch is closed they have all ended, and nothing says who they were.
            if run.calls and run_id not in started:
                raise self.invalid(f"{run_id} is no child run of the open batch")
        run_ids = outcome.run_ids or tuple(child.run_id for child in run.children)
        self._leave(RunMoved(run.run_id, Phase.WAITING, stalled=False))
        run.children_wait = wait = ChildrenWait(outcome.mode, run_ids)
        draft.event(EventType.RUN_WAITING, run.run_id, children=wait)
        draft.go_on_after_children()

    def _leave(self, row: RunMoved) -> None:
        self.draft.end_activation(EndReason.SUSPENDED)
        self.run.activation = None
        self.draft.rows.append(row)
        self.outcome_applied = self.over = True

    def release(self) -> None:
        """Gives the run back; where only the settlement is missing it is made."""
        run, draft = self.run, self.draft
        self.outcome_applied = True
        if self.cancelling:
            self.end(EndReason.RELEASED, StopReason.CANCELLED)
            return
        self.refuse_claims()
        if run.position is Position.OUTCOME_READY:
            self.end(EndReason.RELEASED, StopReason.COMPLETED)
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
            draft.facts,
            self.results,
            self.outcome_applied,
            self.delivered,
            expire_time,
            self.interaction_id,
        )
