"""A server that keeps a batch of tool calls, as far as an executor can tell."""

import json
from contextlib import asynccontextmanager
from typing import Any

import grpc
from client_executor_script import Script, lease, text_message
from client_fakes import refuse
from runlane import Agent, Executor, ModelRequest, ModelResponse, ToolUseBlock
from runlane.v1 import executor_service_pb2 as pb
from runlane.v1 import interaction_pb2, message_pb2, run_pb2

PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
OK = message_pb2.ToolResult.OUTCOME_OK
ERROR = message_pb2.ToolResult.OUTCOME_ERROR
REJECTED = message_pb2.ToolResult.OUTCOME_REJECTED
State = pb.ToolCall
Position = run_pb2.Run


def call(name: str, key: str = "", /, *, raw: str | None = None, **arguments: Any) -> ToolUseBlock:
    """Makes a call as a model does; its id is the tool's name unless it is given."""
    return ToolUseBlock(
        tool_call_id=key or name,
        name=name,
        arguments=None if raw is not None else arguments,
        arguments_text=raw,
    )


class Turns:
    """Answers in turn: calls of tools, or a text."""

    def __init__(self, *answers: list[ToolUseBlock] | str):
        self.answers = list(answers)
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return ModelResponse(text=answer)
        return ModelResponse(tool_calls=answer)


@asynccontextmanager
async def equipped(client, model, tools=(), **agent):
    """Runs an executor of one agent with tools."""
    async with Executor(client, Agent("demo", model=model, tools=tools, **agent)) as executor:
        yield executor


class ToolScript(Script):
    """Takes claims and results by the rules; a pause, a cancellation and a budget end it."""

    def __init__(self, server):
        super().__init__(server)
        self.calls: dict[str, pb.ToolCall] = {}
        self.earlier: dict[str, pb.ToolCall] = {}
        self.position = Position.POSITION_BEFORE_MODEL
        self.count = 1
        self.pause = self.cancel = self.over_budget = self.stop_policy = False
        self.suspended: list[interaction_pb2.Prompt] = []
        self.messages: list[message_pb2.Message] = [text_message(1, "hello")]
        server.handlers["StreamModelContext"] = self.stream

    def kinds(self) -> list[list[str]]:
        """What each commit held, its outcome last."""
        found = []
        for commit in self.commits:
            names = [one.WhichOneof("operation") for one in commit.operations]
            kinds = [
                {
                    "reserve_model_step": "reserve",
                    "commit_model_step": "step",
                    "claim_tool_calls": "claim",
                    "commit_tool_results": "results",
                }[name]
                for name in names
            ]
            outcome = commit.WhichOneof("outcome")
            found.append(kinds + ([outcome] if outcome else []))
        return found

    def results(self) -> dict[str, message_pb2.ToolResult]:
        every = self.earlier | self.calls
        return {key: one.result for key, one in every.items() if one.HasField("result")}

    def said(self, key: str) -> str:
        return "".join(block.text for block in self.results()[key].content)

    async def stream(self, request, context):
        messages = [one for one in self.messages if one.number > request.after_message_number]
        await context.write(
            pb.StreamModelContextResponse(messages=messages, end=pb.ContextEnd(message_count=1))
        )

    async def commit(self, request, context):
        self.commits.append(request)
        kept = {
            key: pb.ToolCall.FromString(one.SerializeToString()) for key, one in self.calls.items()
        }
        saved = (kept, self.position, self.steps, list(self.messages))
        answer = pb.CommitResponse()
        try:
            for operation in request.operations:
                if answer.run.phase:
                    raise _RefusedError("OPERATION_INVALID")
                answer.results.append(self._apply(operation, answer))
            self._end(request, answer)
        except _RefusedError as refusal:
            self.calls, self.position, self.steps, self.messages = saved
            await refuse(context, PRECONDITION, str(refusal))
        answer.position = self.position
        answer.control.pause_requested = self.pause
        answer.control.cancel_requested = self.cancel
        if answer.run.phase:
            answer.control.ended = True
            self.ended.set()
        return answer

    def _apply(self, operation, answer) -> pb.OperationResult:
        kind = operation.WhichOneof("operation")
        if kind == "reserve_model_step":
            if self.cancel:
                raise _RefusedError("RUN_CANCELLING")
            state = pb.ReserveModelStepResult
            if self.pause:
                answer.run.phase = Position.PHASE_PAUSED
                return pb.OperationResult(
                    reserve_model_step=pb.ReserveModelStepResult(state=state.STATE_PAUSED)
                )
            assert self.position == Position.POSITION_BEFORE_MODEL
            self.steps += 1
            return pb.OperationResult(
                reserve_model_step=pb.ReserveModelStepResult(
                    state=state.STATE_GRANTED,
                    step=self.steps,
                    model_stream_id=f"stream_{self.steps}",
                )
            )
        if kind == "commit_model_step":
            return self._step(operation.commit_model_step, answer)
        if kind == "claim_tool_calls":
            if self.cancel:
                raise _RefusedError("RUN_CANCELLING")
            for key in operation.claim_tool_calls.tool_call_ids:
                if self.calls[key].state != State.STATE_PREPARED:
                    raise _RefusedError("OPERATION_INVALID")
                self.calls[key].state = State.STATE_CLAIMED
                self.calls[key].idempotent = operation.claim_tool_calls.idempotent
            return pb.OperationResult(claim_tool_calls=pb.ClaimToolCallsResult())
        for result in operation.commit_tool_results.results:
            self.settle(result)
            if self.stop_policy and result.outcome != OK:
                answer.run.phase = Position.PHASE_TERMINAL
        return pb.OperationResult(
            commit_tool_results=pb.CommitToolResultsResult(batch_closed=self._close(answer))
        )

    def settle(self, result: message_pb2.ToolResult) -> None:
        found = self.calls[result.tool_call_id]
        claimed = found.state == State.STATE_CLAIMED
        if not claimed and not (found.state == State.STATE_PREPARED and result.outcome != OK):
            raise _RefusedError("OPERATION_INVALID")
        found.result.CopyFrom(result)
        found.state = State.STATE_COMMITTED

    def _step(self, step, answer) -> pb.OperationResult:
        self.earlier |= self.calls
        self.calls = {}
        self._append(message_pb2.Message.ROLE_ASSISTANT, list(step.content))
        number = self.messages[-1].number
        uses = [block.tool_use for block in step.content if block.HasField("tool_use")]
        if uses and self.over_budget:
            answer.run.phase = Position.PHASE_TERMINAL
        for ordinal, use in enumerate(uses, 1):
            assert use.tool_call_id not in self.calls
            made = pb.ToolCall(
                tool_call_id=use.tool_call_id,
                name=use.name,
                step=self.steps,
                ordinal=ordinal,
                arguments_json=use.arguments_json,
                state=State.STATE_PREPARED,
            )
            self.calls[use.tool_call_id] = made
            if not use.HasField("arguments_json"):
                made.state = State.STATE_COMMITTED
                made.result.tool_call_id = use.tool_call_id
                made.result.outcome = ERROR
                made.result.content.add().text = "malformed"
        result = pb.CommitModelStepResult(message_number=number)
        for made in self.calls.values():
            result.tool_calls.add().CopyFrom(made)
            # The answer of a commit tells no results.
            result.tool_calls[-1].ClearField("result")
        self.position = Position.POSITION_OUTCOME_READY
        if uses:
            self.position = Position.POSITION_TOOL_BATCH
            self._close(answer)
        return pb.OperationResult(commit_model_step=result)

    def _close(self, answer) -> bool:
        if self.position != Position.POSITION_TOOL_BATCH:
            return False
        if any(one.state != State.STATE_COMMITTED for one in self.calls.values()):
            return False
        for one in self.calls.values():
            block = message_pb2.Block(tool_result=one.result)
            self._append(message_pb2.Message.ROLE_TOOL, [block])
        self.position = Position.POSITION_BEFORE_MODEL
        if self.steers:
            self._append(
                message_pb2.Message.ROLE_USER, [message_pb2.Block(text=self.steers.pop(0))]
            )
            answer.delivered.add().CopyFrom(self.messages[-1])
        if self.pause and not answer.run.phase:
            answer.run.phase = Position.PHASE_PAUSED
        return True

    def _append(self, role, content) -> None:
        number = self.messages[-1].number + 1
        self.messages.append(
            message_pb2.Message(
                number=number, run_id="run_1", session_id="main", role=role, content=content
            )
        )

    def _end(self, request, answer) -> None:
        outcome = request.WhichOneof("outcome")
        if outcome is None or answer.run.phase:
            return
        claimed = any(one.state == State.STATE_CLAIMED for one in self.calls.values())
        if outcome == "suspend":
            if self.cancel:
                raise _RefusedError("RUN_CANCELLING")
            if claimed:
                raise _RefusedError("CALL_UNRESOLVED")
            self.suspended.append(request.suspend.prompt)
            answer.run.phase = Position.PHASE_WAITING
        elif outcome == "release" and claimed:
            raise _RefusedError("CALL_UNRESOLVED")
        else:
            answer.run.phase = Position.PHASE_TERMINAL
        answer.outcome_applied = True

    def again(self, kind: str = "KIND_CONTINUE", answered=(), **fields) -> None:
        """Leases the run once more, as it is."""
        self.ended.clear()
        leased = lease(
            kind=run_pb2.Activation.Kind.Value(kind),
            tool_calls=list(self.calls.values())
            if self.position == Position.POSITION_TOOL_BATCH
            else [],
            answered_interactions=answered,
            context=pb.ModelContext(messages=self.messages),
            **fields,
        )
        leased.run.position = self.position
        self.leases.put_nowait(leased)


class _RefusedError(Exception):
    pass


def verdicts(**said: bool) -> interaction_pb2.Interaction:
    """Makes the answer to a permission."""
    decision = interaction_pb2.Decision
    return interaction_pb2.Interaction(
        answer=interaction_pb2.InteractionAnswer(
            permission=interaction_pb2.PermissionAnswer(
                decisions=[
                    decision(
                        tool_call_id=key,
                        verdict=decision.VERDICT_APPROVE if yes else decision.VERDICT_REJECT,
                    )
                    for key, yes in said.items()
                ]
            )
        )
    )


def arguments_of(block: message_pb2.Block) -> Any:
    return json.loads(block.tool_use.arguments_json)
