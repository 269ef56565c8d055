"""The open batch of tool calls of a run: claimed before the effect, committed after it."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from runlane._content import Message, message_from_pb
from runlane._enums import ToolOutcome
from runlane._executor.content import error_result, raised_result, result_blocks, tool_result
from runlane._executor.external import give_up, hand_over
from runlane._executor.lease import (
    PARTING,
    CancelRequestedError,
    Lease,
    LostError,
)
from runlane._executor.toolbox import (
    Ask,
    Delegate,
    Plan,
    Question,
    Run,
    Settle,
    Toolbox,
    log_failure,
)
from runlane._executor.tools import ToolContext
from runlane._time import to_seconds
from runlane._trace import span
from runlane.errors import (
    AgentNotFound,
    FieldInvalid,
    InputEmpty,
    MessageTooLarge,
    OperationInvalid,
    RunCancelling,
    RunlaneError,
    ServiceError,
)
from runlane.v1 import executor_service_pb2 as pb
from runlane.v1 import interaction_pb2, message_pb2, run_pb2

_LOG = logging.getLogger("runlane.executor")

# Calls of one claim, and of one prompt.
_IDS: Final = 64
# Results that come within this many seconds of each other are committed as one.
_LINGER: Final = 0.05
_FACTS: Final = frozenset({"commit_model_step", "commit_tool_results"})
_ALL_CHILDREN: Final = run_pb2.ChildrenWait(mode=run_pb2.ChildrenWait.MODE_ALL)
_REFUSED_STARTS: Final = (
    AgentNotFound,
    FieldInvalid,
    InputEmpty,
    MessageTooLarge,
    OperationInvalid,
)
_COMMIT_BYTES: Final = 2 * 1024 * 1024


@dataclass(slots=True)
class _Call:
    """A call of the batch; `result` is known once it was committed here or came so."""

    record: pb.ToolCall
    settled: bool = False
    result: message_pb2.ToolResult | None = None


class Batch:
    """Brings the calls of one model step to their results.

    Args:
        lease: The lease.
        leased: What was leased: the run and its options.
        toolbox: The agent's tools.
        answered: Interactions that were answered, with the verdicts on calls.
    """

    def __init__(
        self,
        lease: Lease,
        leased: pb.LeasedActivation,
        toolbox: Toolbox,
        answered: Iterable[interaction_pb2.Interaction] = (),
    ) -> None:
        self._lease = lease
        self._run = leased.run
        self._options = leased.run.options
        self._toolbox = toolbox
        self._stops = (
            self._options.tool_error_policy == run_pb2.ToolErrorPolicy.TOOL_ERROR_POLICY_STOP
        )
        self._calls: dict[str, _Call] = {}
        self._verdicts: dict[str, int] = {
            decision.tool_call_id: decision.verdict
            for interaction in answered
            for decision in interaction.answer.permission.decisions
        }
        self._plans: dict[str, Plan] = {}
        # Results of calls that were run, until they are committed.
        self._unsent: list[message_pb2.ToolResult] = []
        # Calls that were claimed and are to be run.
        self._claimed: list[str] = []
        self._external_token = ""
        self.message_number = 0
        self.delivered: list[message_pb2.Message] = []
        self.grant: pb.ReserveModelStepResult | None = None

    def take(self, calls: Iterable[pb.ToolCall], message_number: int) -> None:
        """Takes the calls as the server has them, and the number of their message."""
        self.message_number = message_number
        for record in calls:
            result = record.result if record.HasField("result") else None
            settled = record.state != pb.ToolCall.STATE_PREPARED
            self._calls[record.tool_call_id] = _Call(record, settled, result)

    async def open(self, step: pb.CommitModelStep, number: int) -> None:
        """Commits the step that asks for the calls, and with it all that can be at once.

        Args:
            step: The step.
            number: Its number.
        """
        drafts = [
            pb.ToolCall(
                tool_call_id=use.tool_call_id,
                name=use.name,
                step=number,
                arguments_json=use.arguments_json,
                state=pb.ToolCall.STATE_PREPARED
                if use.HasField("arguments_json")
                else pb.ToolCall.STATE_COMMITTED,
            )
            for use in (block.tool_use for block in step.content if block.HasField("tool_use"))
        ]
        self.take(drafts, 0)
        await self._advance(pb.Operation(commit_model_step=step))

    async def go_on(self) -> None:
        """Brings what is still open to its results."""
        await self._advance(None)

    async def _advance(self, step: pb.Operation | None) -> None:
        """Settles what needs no run, claims and runs what may, and asks for the rest."""
        self._plan()
        settled = [plan.result for plan in self._plans.values() if isinstance(plan, Settle)]
        failing = self._stops and bool(settled)
        running = {} if failing else self._of(Run)
        head = [step] if step is not None else []
        claims = self._claims(running)
        first, *others = list(_portions(settled)) or [[]]
        results = [_results(first)] if first else []
        starts = [] if failing else self._starts()
        if not running and not others and not starts:
            await self._commit_last([*head, *claims, *results], failed=bool(settled))
            return
        try:
            await self._commit([*head, *([] if starts else claims), *results])
            for portion in others:
                if not self._lease.over:
                    await self._commit([_results(portion)])
            for start in starts:
                if not self._lease.over:
                    await self._start_child(start)
            if starts and claims and not self._lease.over:
                await self._commit(claims)
        except asyncio.CancelledError:
            self._leave_unrun(ToolOutcome.ERROR, "the executor stopped before this was run")
            if self._lease.release_on_cancel:
                await self._part({})
            raise
        if self._lease.over:
            return
        if running:
            await self._run_all(running)
        else:
            await self._commit_last([], failed=False)

    def _plan(self) -> None:
        allowed = frozenset(self._options.tools)
        self._plans = {
            key: self._toolbox.plan(call.record, allowed, self._verdicts, self._context(key))
            for key, call in self._calls.items()
            if not call.settled
        }

    def _starts(self) -> list[pb.StartChildRun]:
        """Returns the child runs that are still to be started."""
        plans = [plan for plan in self._plans.values() if isinstance(plan, Delegate)]
        return [plan.start for plan in plans if plan.start is not None]

    async def _start_child(self, start: pb.StartChildRun) -> None:
        """Starts a child run; where that is refused, the model is told so."""
        try:
            await self._commit([pb.Operation(start_child_run=start)])
        except _REFUSED_STARTS as error:
            _LOG.warning(
                "a child run of run %s was refused: %s",
                self._run.run_id,
                error.reason,
                extra=self._lease.ids,
            )
            told = f"the child run could not be started: {error.reason}"
            await self._commit([_results([error_result(start.tool_call_id, told)])])

    @property
    def _delegated(self) -> bool:
        """Whether child runs are still to answer calls."""
        return any(
            isinstance(plan, Delegate) and not self._calls[key].settled
            for key, plan in self._plans.items()
        )

    def _of(self, kind: type[Run]) -> dict[str, Run]:
        return {key: plan for key, plan in self._plans.items() if isinstance(plan, kind)}

    @staticmethod
    def _claims(running: dict[str, Run]) -> list[pb.Operation]:
        operations = []
        for idempotent in (True, False):
            ids = [key for key, plan in running.items() if plan.tool.idempotent is idempotent]
            for start in range(0, len(ids), _IDS):
                claim = pb.ClaimToolCalls(
                    tool_call_ids=ids[start : start + _IDS], idempotent=idempotent
                )
                operations.append(pb.Operation(claim_tool_calls=claim))
        return operations

    def _next_prompt(self) -> interaction_pb2.Prompt | Question | None:
        """Returns what is to be asked next: permissions first, then questions one by one."""
        asking = [key for key, plan in self._plans.items() if isinstance(plan, Ask)][:_IDS]
        if asking:
            calls = [interaction_pb2.PermissionCall(tool_call_id=key) for key in asking]
            return interaction_pb2.Prompt(permission=interaction_pb2.PermissionPrompt(calls=calls))
        return next((plan for plan in self._plans.values() if isinstance(plan, Question)), None)

    # --- running -----------------------------------------------------------

    async def _run_all(self, running: dict[str, Run]) -> None:
        """Runs claimed calls beside each other and commits their results as they come."""
        if self._lease.cancelling:
            self._leave_unrun(ToolOutcome.CANCELLED, "the run was cancelled before this was run")
            await self._give_up({})
            return
        tasks = {
            asyncio.create_task(self._run_one(key, plan)): key for key, plan in running.items()
        }
        try:
            while tasks:
                # Under STOP the first failure ends the run: then all results go together.
                await self._lease.wait(tasks, all_of_them=self._stops)
                await self._lease.wait(tasks, timeout=_LINGER, all_of_them=True)
                self._lease.check()
                self._unsent += _take_results(tasks)
                if not tasks:
                    await self._finish_running()
                    return
                for portion in list(_portions(self._unsent)):
                    await self._commit([_results(portion)])
                    if self._lease.over:
                        return
        except CancelRequestedError:
            await self._give_up(tasks)
        except ServiceError:
            # What was to follow the results was refused, and they with it.
            await self._part(tasks)
            raise
        except asyncio.CancelledError:
            if self._lease.release_on_cancel:
                await self._part(tasks)
            raise
        finally:
            await self._lease.stop(list(tasks))

    async def _finish_running(self) -> None:
        if self._stops:
            # The first failure that is committed ends the run: by then the others are.
            self._unsent.sort(key=_failed)
        failed = any(map(_failed, self._unsent))
        *early, last = list(_portions(self._unsent)) or [[]]
        for portion in early:
            await self._commit([_results(portion)])
            if self._lease.over:
                return
        await self._commit_last([_results(last)] if last else [], failed=failed)

    def _context(self, key: str, external_token: str = "") -> ToolContext:
        return ToolContext(
            agent=self._run.agent,
            session_id=self._lease.fence.session_id,
            run_id=self._lease.fence.run_id,
            tool_call_id=key,
            step=self._calls[key].record.step,
            attempt=self._lease.fence.epoch,
            external_token=external_token,
        )

    async def _run_one(
        self, key: str, plan: Run | Question, external_token: str = ""
    ) -> message_pb2.ToolResult:
        name = plan.tool.name
        attributes = {
            "runlane.run_id": self._run.run_id,
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": name,
            "gen_ai.tool.call.id": key,
        }
        with span(f"execute_tool {name}", attributes) as recorded:
            result = await self._call_tool(key, plan, external_token)
            if _failed(result):
                recorded.failed(message_pb2.ToolResult.Outcome.Name(result.outcome))
            return result

    async def _call_tool(
        self, key: str, plan: Run | Question, external_token: str
    ) -> message_pb2.ToolResult:
        context = self._context(key, external_token)
        limit = to_seconds(self._options.tool_timeout_duration) or plan.tool.timeout
        try:
            async with asyncio.timeout(limit) as timer:
                value = await plan.tool.call(plan.arguments, context)
            # What is returned where another system gives the result may be anything.
            blocks = [] if external_token else result_blocks(value)
            return tool_result(key, ToolOutcome.OK, blocks)
        except TimeoutError as error:
            if not timer.expired():
                return raised_result(key, error)
            return error_result(
                key, f"the tool did not end within {limit:g} s; whether it had its effect is open"
            )
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool may raise anything
            log_failure(plan.tool, context, error)
            return raised_result(key, error)

    def _leave_unrun(self, outcome: ToolOutcome, text: str) -> None:
        """Gives results to calls that were claimed and not begun: nothing of them is open."""
        self._unsent += [error_result(key, text, outcome) for key in self._claimed]
        self._claimed.clear()

    async def _halt(self, tasks: "dict[asyncio.Task[message_pb2.ToolResult], str]") -> None:
        """Stops what runs, and keeps the results that there are all the same."""
        await self._lease.stop(list(tasks))
        self._unsent += [task.result() for task in tasks if task.done() and not task.cancelled()]
        tasks.clear()

    async def _give_up(self, tasks: "dict[asyncio.Task[message_pb2.ToolResult], str]") -> None:
        """The run is cancelled: what has a result is kept, and the run is settled."""
        await self._halt(tasks)
        *early, last = list(_portions(self._unsent)) or [[]]
        for portion in early:
            await self._lease.commit([_results(portion)], taken=self._taken)
        cancelled = pb.Finish(cancelled=pb.Cancelled())
        operations = [_results(last)] if last else []
        await self._lease.commit(operations, finish=cancelled, taken=self._taken)

    async def _part(self, tasks: "dict[asyncio.Task[message_pb2.ToolResult], str]") -> None:
        """The work ends here: what has a result is kept."""
        await self._halt(tasks)
        try:
            for portion in list(_portions(self._unsent)):
                if not self._lease.over:
                    await self._lease.commit(
                        [_results(portion)], timeout=PARTING, taken=self._taken
                    )
        except (LostError, RunlaneError) as error:
            _LOG.warning(
                "results of run %s are lost: %r", self._run.run_id, error, extra=self._lease.ids
            )

    # --- committing --------------------------------------------------------

    async def _commit_last(self, operations: list[pb.Operation], *, failed: bool) -> None:
        """Commits what is left, and with it the question, or the next step's reservation."""
        prompt = None if failed and self._stops else self._next_prompt()
        if isinstance(prompt, Question):
            await self._wait_for(operations, prompt)
            return
        if prompt is not None:
            await self._commit(operations, suspend=pb.Suspend(prompt=prompt))
            return
        if self._delegated and not (failed and self._stops):
            await self._commit(operations, suspend=pb.Suspend(children=_ALL_CHILDREN))
            return
        # A boundary takes a pause, and the STOP policy the run: then nothing is to follow.
        ends = self._lease.pausing or (failed and self._stops)
        if not ends and operations:
            reserve = pb.Operation(reserve_model_step=pb.ReserveModelStep())
            operations = [*operations, reserve]
        if operations:
            await self._commit(operations)

    async def _wait_for(self, operations: list[pb.Operation], question: Question) -> None:
        """Suspends with a question; where another system answers it, the tool gets the token."""
        suspend = pb.Suspend(prompt=question.prompt)
        try:
            await self._commit(operations, suspend=suspend)
        except asyncio.CancelledError:
            if self._external_token and self._lease.release_on_cancel:
                await give_up(self._lease, self._external_token)
            raise
        if self._external_token:
            key = question.prompt.external.tool_call_id
            start = self._run_one(key, question, self._external_token)
            await hand_over(self._lease, self._external_token, start)

    async def _commit(
        self, operations: Sequence[pb.Operation], *, suspend: pb.Suspend | None = None
    ) -> None:
        left = list(operations)

        def taken(done: Sequence[pb.Operation], answer: pb.CommitResponse) -> None:
            left[:] = [one for one in left if not any(one is other for other in done)]
            self._taken(done, answer)

        try:
            await self._lease.commit_in_turn(operations, taken, suspend=suspend)
        except RunCancelling:
            # Facts are still taken, once; what was to follow them is not.
            facts = [one for one in left if one.WhichOneof("operation") in _FACTS]
            cancelled = pb.Finish(cancelled=pb.Cancelled())
            await self._lease.commit(facts, finish=cancelled, taken=taken)

    def _taken(self, operations: Sequence[pb.Operation], answer: pb.CommitResponse) -> None:
        """Notes what was committed."""
        self.delivered += answer.delivered
        self._external_token = answer.external_token
        for operation in operations:
            self._claimed += operation.claim_tool_calls.tool_call_ids
            for result in operation.commit_tool_results.results:
                call = self._calls[result.tool_call_id]
                call.settled, call.result = True, result
        self._unsent = [one for one in self._unsent if self._calls[one.tool_call_id].result is None]
        for made in answer.results:
            kind = made.WhichOneof("result")
            if kind == "commit_model_step":
                self._open(made.commit_model_step)
            elif kind == "reserve_model_step":
                self.grant = made.reserve_model_step

    def _open(self, opened: pb.CommitModelStepResult) -> None:
        self.message_number = opened.message_number
        for record in opened.tool_calls:
            call = self._calls[record.tool_call_id]
            call.record = record
            if record.state not in {pb.ToolCall.STATE_PREPARED, pb.ToolCall.STATE_CLAIMED}:
                call.settled = True
            if record.HasField("result") and call.result is None:
                call.result = record.result

    # --- messages ----------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether every call has its result."""
        return all(call.settled for call in self._calls.values())

    def messages(self, after: int) -> list[Message] | None:
        """Returns the result messages after a number; None where they must be read."""
        found = []
        for ordinal, call in enumerate(self._calls.values(), 1):
            number = self.message_number + ordinal
            if number <= after:
                continue
            if call.result is None:
                return None
            message = message_pb2.Message(
                number=number,
                session_id=self._lease.fence.session_id,
                run_id=self._lease.fence.run_id,
                role=message_pb2.Message.ROLE_TOOL,
                author=message_pb2.Message.AUTHOR_TOOL,
                step=call.record.step,
                content=[message_pb2.Block(tool_result=call.result)],
            )
            found.append(message_from_pb(message))
        return found


def _results(results: Sequence[message_pb2.ToolResult]) -> pb.Operation:
    return pb.Operation(commit_tool_results=pb.CommitToolResults(results=results))


def _failed(result: message_pb2.ToolResult) -> bool:
    return result.outcome != message_pb2.ToolResult.OUTCOME_OK


def _portions(
    results: Sequence[message_pb2.ToolResult],
) -> Iterable[list[message_pb2.ToolResult]]:
    """Cuts results into what one commit takes."""
    portion: list[message_pb2.ToolResult] = []
    size = 0
    for result in results:
        more = result.ByteSize()
        if portion and (len(portion) == _IDS or size + more > _COMMIT_BYTES):
            yield portion
            portion, size = [], 0
        portion.append(result)
        size += more
    if portion:
        yield portion


def _take_results(
    tasks: "dict[asyncio.Task[message_pb2.ToolResult], str]",
) -> list[message_pb2.ToolResult]:
    """Takes the results of what is done."""
    done = [task for task in tasks if task.done()]
    results = []
    for task in done:
        key = tasks.pop(task)
        if task.cancelled():
            results.append(error_result(key, "the tool cancelled itself"))
        else:
            results.append(task.result())
    return results
