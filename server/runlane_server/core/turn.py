"""One Commit being applied: what its operations and its outcome share."""

from typing import Any

from runlane_server.core.answers import OperationResult
from runlane_server.core.commands import CommitRun, Finish
from runlane_server.core.context import cancelling
from runlane_server.core.draft import Draft
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import Run, ToolCall, ToolUse
from runlane_server.core.rows import EventType, ToolCallInserted
from runlane_server.core.words import (
    EndReason,
    Position,
    StopReason,
    SubmissionFailure,
    ToolCallState,
    ToolOutcome,
)


class Turn:
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

    def open_batch(self, uses: tuple[ToolUse, ...], result: OperationResult) -> None:
        """Opens the batch of calls that a step asks for."""
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
            self.end(EndReason.BUDGET_EXHAUSTED, StopReason.BUDGET_EXHAUSTED)
            return
        for use, call in zip(uses, run.calls, strict=True):
            if use.arguments_json is None:
                draft.settle_call(call, ToolOutcome.ERROR, None)
        result.calls = list(run.calls)
        result.batch_closed = self.close_batch()

    def close_batch(self) -> bool:
        """Takes the boundary at the end of a batch, where this is it."""
        if not self.draft.batch_closed():
            return False
        self.boundary()
        if self.run.pause_requested:
            self.pause()
        return True

    def boundary(self) -> bool:
        """Delivers one steer, where there is one that may be; the answer names it."""
        if not self.draft.boundary():
            return False
        self.delivered.append(self.draft.state.message_count)
        return True

    def pause(self) -> None:
        """Takes the request to pause."""
        self.draft.end_activation(EndReason.PAUSED)
        self.draft.pause()
        self.over = True

    def end(self, end: EndReason, stop: StopReason, outcome: Finish | None = None) -> None:
        """Ends the run, or lets it end with its last child run; steers miss."""
        draft = self.draft
        draft.end_run(
            stop,
            end,
            failure=outcome.failure if outcome is not None else None,
            output_json=outcome.output_json if outcome is not None else "",
        )
        draft.miss_steers(SubmissionFailure.TARGET_TERMINAL)
        self.over = True

    def granted(self) -> None:
        """Answers with the step that is reserved."""
        run = self.run
        self.results.append(
            OperationResult(
                granted=True, step=run.reserved_step, model_stream_id=run.model_stream_id
            )
        )

    def call(self, tool_call_id: str) -> ToolCall:
        """Returns a call of the open batch."""
        for call in self.run.calls:
            if call.tool_call_id == tool_call_id:
                return call
        raise Refused(Reason.TOOL_CALL_NOT_FOUND, tool_call_id=tool_call_id, **self.where())

    def prepared(self, tool_call_id: str) -> ToolCall:
        """Returns a call that nobody has begun to answer."""
        call = self.call(tool_call_id)
        self.refuse_child(call)
        if call.state is not ToolCallState.PREPARED:
            raise self.invalid("the call is not prepared", tool_call_id=tool_call_id)
        return call

    def refuse_child(self, call: ToolCall) -> None:
        """Refuses what a child run will do."""
        if call.child_run_id:
            raise Refused(
                Reason.CALL_HAS_CHILD,
                tool_call_id=call.tool_call_id,
                run_id=call.child_run_id,
                **self.where(),
            )

    def refuse_cancelling(self) -> None:
        """Refuses what leads on, once cancellation was requested."""
        if self.cancelling:
            raise cancelling(self.run)

    def refuse_claims(self) -> None:
        """Refuses to leave a call behind that is at work."""
        for call in self.run.calls:
            if call.state is ToolCallState.CLAIMED:
                raise Refused(Reason.CALL_UNRESOLVED, tool_call_id=call.tool_call_id)

    def where(self) -> dict[str, Any]:
        """Returns what names the operation in a refusal."""
        return {} if self.index is None else {"operation_index": str(self.index)}

    def invalid(self, detail: str, **metadata: Any) -> Refused:
        """Returns the refusal of an operation that does not fit the run."""
        return Refused(Reason.OPERATION_INVALID, detail, detail=detail, **metadata, **self.where())
