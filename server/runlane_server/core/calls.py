"""Tool calls in a draft: how far they get, and the message that each gets."""

from collections.abc import Collection

from runlane_server.core.model import Content, ToolCall
from runlane_server.core.queues import Queues
from runlane_server.core.rows import (
    Closer,
    EventType,
    InteractionSettled,
    MessageAppended,
    TimerSet,
    ToolCallMoved,
)
from runlane_server.core.words import (
    Author,
    InteractionClose,
    InteractionState,
    Position,
    Role,
    TimerKind,
    ToolCallState,
    ToolOutcome,
)

_CLOSERS = {
    ToolOutcome.ERROR: "The arguments are not valid JSON; the call was not run.",
    ToolOutcome.CANCELLED: "The run ended before this call was run.",
    ToolOutcome.UNKNOWN: "The run ended while this call was at work; its outcome is not known.",
}


class Calls(Queues):
    """Steps on the open batch, and the boundary at its end."""

    __slots__ = ()

    def move_call(
        self, call: ToolCall, state: ToolCallState, result: Content | None = None
    ) -> None:
        """Writes how far a call got; `result` is stored until its message can be appended."""
        run = self.live()
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
        run = self.live()
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
        run = self.live()
        if run.position is not Position.TOOL_BATCH or not all(one.appended for one in run.calls):
            return False
        run.calls = []
        run.position = Position.BEFORE_MODEL
        return True

    def boundary(self) -> bool:
        """Delivers one steer where there is one and a step is left for it to be read in."""
        run, state = self.live(), self.state
        if run.cancellation is not None or not state.steers or not run.steps_left:
            return False
        self.deliver_steer(run.steps_committed)
        return True

    def _append_result(
        self, call: ToolCall, *, content: Content | None = None, closer: Closer | None = None
    ) -> None:
        """Appends a result message; with neither argument, the one that is stored."""
        run, state = self.live(), self.state
        call.appended = True
        stored = content is None and closer is None
        if stored and not call.result_hash:
            # A closer that had to wait for the calls before it.
            stored, closer = False, closer_of(call)
        place = (run.steps_committed, call.ordinal)
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
                from_call=place if stored else None,
                call=place,
            ),
            digest,
        )

    def give_up_calls(self, *, but: Collection[str] = ()) -> None:
        """Ends the open calls of a run that ends: what is not known, what was not run.

        Args:
            but: Calls that are still to have a result of their own.
        """
        run = self.live()
        lost = []
        for call in run.calls:
            if call.tool_call_id in but:
                continue
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

    def close_calls(self) -> None:
        """Gives every call of the open batch its one result message; the batch is no more."""
        run = self.live()
        self.give_up_calls()
        for call in run.calls:
            if call.appended:
                continue
            if call.state is ToolCallState.COMMITTED:
                self._append_result(call)
            else:
                self._append_result(call, closer=closer_of(call))
        run.calls = []

    def close_interaction(self, interaction_id: str, reason: InteractionClose) -> None:
        """Closes the interaction that the live run waits for."""
        run = self.live()
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


def closer_of(call: ToolCall) -> Closer:
    """Returns what stands in for the result of a call that has none."""
    outcome = call.outcome or ToolOutcome.CANCELLED
    return Closer(call.tool_call_id, outcome, _CLOSERS.get(outcome, ""))
