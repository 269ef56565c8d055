"""One leased activation: the loop of model steps and the tools between them."""

import asyncio
import contextlib
import json
import logging
from dataclasses import replace
from typing import Final

import grpc
import grpc.aio

from runlane._calls import Caller
from runlane._content import Message, content_to_pb, message_from_pb
from runlane._convert import usage_to_pb
from runlane._enums import RunFailureReason, number_of
from runlane._executor.batch import Batch
from runlane._executor.content import clean, settle_uses
from runlane._executor.deltas import DeltaPublisher
from runlane._executor.lease import (
    PARTING,
    CancelRequestedError,
    Lease,
    LostError,
)
from runlane._executor.model import (
    Agent,
    ModelDelta,
    ModelError,
    ModelRequest,
    ModelResponse,
    StreamingModel,
)
from runlane._executor.toolbox import Toolbox
from runlane._retry import STREAM_DEADLINE, delay, reopenable
from runlane._trace import Attributes, Recorded, span
from runlane.errors import (
    FieldInvalid,
    MessageTooLarge,
    OperationInvalid,
    RunCancelling,
    RunlaneError,
    RunNotFound,
    SessionNotFound,
    StaleActivation,
    TransportError,
    from_rpc_error,
)
from runlane.v1 import executor_service_pb2 as pb
from runlane.v1 import message_pb2, run_pb2

_LOG = logging.getLogger("runlane.executor")

_MESSAGE_BYTES: Final = 4096
_MODEL_NAME_BYTES: Final = 255
_FINISH_REASON_BYTES: Final = 64
_SUMMARY_BYTES: Final = 256 * 1024
_RESERVE: Final = pb.Operation(reserve_model_step=pb.ReserveModelStep())


class ActivationTask:
    """Advances the run of one activation until it ends, stops, is lost, or is given back."""

    def __init__(
        self,
        caller: Caller,
        leased: pb.LeasedActivation,
        agent: Agent,
        toolbox: Toolbox,
        *,
        lease_duration: float,
    ) -> None:
        self._leased = leased
        self._agent = agent
        self._toolbox = toolbox
        self._lease = Lease(caller, leased, lease_duration)
        self._messages: list[Message] = []
        self._summary = message_pb2.Summary()
        self._summary_refused = False

    def stop_gently(self, *, release: bool) -> None:
        """Says whether the task, when it is cancelled, gives its run back."""
        self._lease.release_on_cancel = release

    async def run(self) -> None:
        """Does the work; errors end the run or the lease and are logged, never raised."""
        lease = self._lease
        # Signs of life are no part of the trace: they are many, and tell nothing.
        lease.keep()
        try:
            await self._traced()
        except LostError:
            _LOG.info("activation %s was lost", lease.fence.activation_id, extra=lease.ids)
        except asyncio.CancelledError:
            if lease.release_on_cancel and not lease.over:
                await self._release()
            raise
        except RunlaneError as error:
            _LOG.warning(
                "activation %s was dropped: %s",
                lease.fence.activation_id,
                error,
                extra=lease.ids,
            )
        finally:
            await lease.let_go()

    async def _traced(self) -> None:
        """Works in the trace of the run."""
        fence, agent = self._lease.fence, self._agent.name
        attributes: Attributes = {
            **{f"runlane.{name}": value for name, value in self._lease.ids.items()},
            "runlane.attempt": fence.epoch,
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": fence.session_id,
        }
        parent = self._leased.traceparent
        with span(f"invoke_agent {agent}", attributes, parent=parent) as recorded:
            await self._settle(recorded)

    async def _settle(self, recorded: Recorded) -> None:
        """Works, and commits the end that an error means."""
        try:
            await self._work()
        except (CancelRequestedError, RunCancelling):
            await self._lease.commit(finish=pb.Finish(cancelled=pb.Cancelled()))
        except ModelError as error:
            recorded.failed(error.reason)
            await self._fail(error.reason, error.message, retryable=error.retryable)
        except (LostError, TransportError):
            raise
        except MessageTooLarge as error:
            # What is too large is so again the next time: it is told, by its size alone.
            _LOG.warning(
                "run %s: %s", self._lease.fence.run_id, error.message, extra=self._lease.ids
            )
            recorded.failed(error.reason)
            await self._fail(RunFailureReason.EXECUTOR_ERROR, str(error), retryable=False)
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            _LOG.exception(
                "the executor failed at run %s", self._lease.fence.run_id, extra=self._lease.ids
            )
            recorded.failed(type(error).__name__)
            # The class alone: what it says may hold what callers must not see.
            reason = RunFailureReason.EXECUTOR_ERROR
            await self._fail(reason, type(error).__name__, retryable=False)

    async def _work(self) -> None:
        position = self._leased.run.position
        if position == run_pb2.Run.POSITION_OUTCOME_READY:
            await self._lease.commit(finish=pb.Finish(completed=pb.Completed()))
            return
        await self._load()
        grant: pb.ReserveModelStepResult | None = None
        if position == run_pb2.Run.POSITION_TOOL_BATCH:
            self._lease.check()
            grant = await self._take_up()
        while not self._lease.over:
            self._lease.check()
            grant = grant or await self._reserve()
            if grant.state != pb.ReserveModelStepResult.STATE_GRANTED:
                return
            request = await self._compacted(self._request(grant))
            if request is not None:
                grant = await self._answer(grant, await self._ask(request))

    async def _reserve(self) -> pb.ReserveModelStepResult:
        answer = await self._lease.commit([_RESERVE])
        if not answer.results:
            raise LostError
        return answer.results[0].reserve_model_step

    # --- context -----------------------------------------------------------

    async def _load(self) -> None:
        if self._leased.HasField("context"):
            context = self._leased.context
            self._summary = context.summary
            self._messages = [message_from_pb(m) for m in context.messages]
        else:
            await self._read_on()

    async def _read_on(self) -> None:
        """Reads the messages after the last one that is known."""
        failures = 0
        while True:
            try:
                if await self._stream_context(self._last_number):
                    return
                failure: RunlaneError = TransportError(
                    grpc.StatusCode.UNAVAILABLE, "the context came incomplete"
                )
            except grpc.aio.AioRpcError as error:
                failure = from_rpc_error(error)
            if isinstance(failure, StaleActivation | RunNotFound | SessionNotFound):
                raise LostError from failure
            if not reopenable(failure, connected=True):
                raise failure
            failures += 1
            await self._lease.unless_told(asyncio.sleep(delay(failures, failure)))

    @property
    def _last_number(self) -> int:
        return self._messages[-1].number if self._messages else 0

    async def _stream_context(self, after: int) -> bool:
        caller = self._lease.caller
        call = caller.stubs.executors.StreamModelContext(
            pb.StreamModelContextRequest(fence=self._lease.fence, after_message_number=after),
            timeout=STREAM_DEADLINE,
            metadata=caller.metadata,
        )
        complete = False
        try:
            async for frame in call:
                if frame.HasField("summary"):
                    # It covers more than what was known: what follows is the whole context.
                    self._summary, self._messages = frame.summary, []
                self._messages.extend(message_from_pb(message) for message in frame.messages)
                complete = complete or frame.HasField("end")
        finally:
            call.cancel()
        return complete

    # --- the model ---------------------------------------------------------

    def _request(self, grant: pb.ReserveModelStepResult) -> ModelRequest:
        run = self._leased.run
        fence = self._lease.fence
        options = run.options.request_options_json
        return ModelRequest(
            agent=self._agent.name,
            system=self._agent.system,
            messages=tuple(self._messages),
            model=run.options.model or self._agent.model_name,
            options=json.loads(options) if options else {},
            run_id=fence.run_id,
            session_id=fence.session_id,
            step=grant.step,
            attempt=fence.epoch,
            model_stream_id=grant.model_stream_id,
            tools=self._toolbox.specs(frozenset(run.options.tools)),
            summary=self._summary.text,
            summary_through=self._summary.through_message_number,
        )

    async def _compacted(self, request: ModelRequest) -> ModelRequest | None:
        """Returns the request, with a summary where the agent makes one; None: the run is over."""
        if self._agent.compact is None:
            return request
        made = await self._lease.unless_told(self._agent.compact(request))
        # One that covers nothing new, such as `covered` says 0 of, is none.
        if made is None or made.through_message_number <= request.summary_through:
            return request
        operation = pb.RecordCompaction(
            through_message_number=made.through_message_number,
            summary=clean(made.summary, _SUMMARY_BYTES),
            usage=usage_to_pb(made.usage),
            model=clean(made.model, _MODEL_NAME_BYTES),
        )
        try:
            await self._lease.commit([pb.Operation(record_compaction=operation)])
        except (FieldInvalid, OperationInvalid) as error:
            # An agent that asks for too much once does so at each step of a run.
            _LOG.log(
                logging.DEBUG if self._summary_refused else logging.WARNING,
                "a summary for run %s was refused: %s",
                request.run_id,
                error,
                extra=self._lease.ids,
            )
            self._summary_refused = True
            return request
        if self._lease.over:
            return None
        self._messages = []
        await self._read_on()
        return replace(
            request,
            messages=tuple(self._messages),
            summary=self._summary.text,
            summary_through=self._summary.through_message_number,
        )

    async def _ask(self, request: ModelRequest) -> ModelResponse:
        model = self._agent.model
        attributes: Attributes = {
            "runlane.run_id": request.run_id,
            "runlane.step": request.step,
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": request.model,
        }
        with span(f"chat {request.model}".rstrip(), attributes) as recorded:
            if isinstance(model, StreamingModel):
                work = self._stream_model(model, request)
            else:
                work = model.complete(request)
            response = await self._lease.unless_told(work)
            recorded.note(
                {
                    "gen_ai.response.model": response.model,
                    "gen_ai.usage.input_tokens": response.usage.input_tokens,
                    "gen_ai.usage.output_tokens": response.usage.output_tokens,
                }
            )
            return response

    async def _stream_model(self, model: StreamingModel, request: ModelRequest) -> ModelResponse:
        publisher = DeltaPublisher(
            self._lease.caller, self._lease.fence, request.model_stream_id, request.step
        )
        response: ModelResponse | None = None
        pieces = model.stream(request)
        try:
            async for piece in pieces:
                if isinstance(piece, ModelDelta):
                    publisher.push(piece)
                else:
                    response = piece
            await publisher.finish()
        finally:
            await publisher.abandon()
            if close := getattr(pieces, "aclose", None):
                await close()
        if response is None:
            raise TypeError("a stream of a model ends with its ModelResponse")
        return response

    # --- the step ----------------------------------------------------------

    async def _answer(
        self, grant: pb.ReserveModelStepResult, response: ModelResponse
    ) -> pb.ReserveModelStepResult | None:
        """Commits a step, and runs its tools or ends the run; returns the next step's grant."""
        content = content_to_pb(response.blocks)
        settle_uses(content, self._used_ids(), grant.step, always=self._hides_steps)
        step = pb.CommitModelStep(
            content=content,
            usage=usage_to_pb(response.usage),
            model=clean(response.model, _MODEL_NAME_BYTES),
            finish_reason=clean(response.finish_reason, _FINISH_REASON_BYTES),
        )
        if any(block.HasField("tool_use") for block in content):
            batch = Batch(self._lease, self._leased, self._toolbox)
            await batch.open(step, grant.step)
            if self._lease.over:
                return None
            self._append_step(grant, step, batch.message_number)
            return await self._close(batch)
        finish = pb.Finish(completed=pb.Completed(output_json=response.output_json))
        answer = await self._lease.commit([pb.Operation(commit_model_step=step)], finish=finish)
        if self._lease.over:
            return None
        if answer.position == run_pb2.Run.POSITION_OUTCOME_READY:
            await self._lease.commit(finish=finish)
            return None
        self._append_step(grant, step, answer.results[0].commit_model_step.message_number)
        self._messages.extend(message_from_pb(message) for message in answer.delivered)
        return None

    async def _take_up(self) -> pb.ReserveModelStepResult | None:
        """Goes on with the batch that an earlier activation left open."""
        leased = self._leased
        asking = [m.number for m in self._messages if m.tool_uses and m.run_id == leased.run.run_id]
        batch = Batch(self._lease, leased, self._toolbox, leased.answered_interactions)
        batch.take(leased.tool_calls, asking[-1] if asking else self._last_number)
        await batch.go_on()
        return None if self._lease.over else await self._close(batch)

    async def _close(self, batch: Batch) -> pb.ReserveModelStepResult | None:
        """Takes the results of a batch into what the model sees."""
        if not batch.closed:
            raise RuntimeError("a batch of tool calls was left open")
        results = batch.messages(self._last_number)
        if results is None:
            # Some results were given by others: by an answer, or before this activation.
            await self._read_on()
        else:
            self._messages.extend(results)
        for message in batch.delivered:
            if message.number > self._last_number:
                self._messages.append(message_from_pb(message))
        return batch.grant

    @property
    def _hides_steps(self) -> bool:
        """Whether a summary covers messages of this run: ids that it has used are not seen."""
        through = self._summary.through_message_number
        run_id = self._lease.fence.run_id
        return any(one.run_id == run_id and one.number <= through for one in self._messages)

    def _used_ids(self) -> frozenset[str]:
        run_id = self._lease.fence.run_id
        return frozenset(
            use.tool_call_id
            for message in self._messages
            if message.run_id == run_id
            for use in message.tool_uses
        )

    def _append_step(
        self, grant: pb.ReserveModelStepResult, step: pb.CommitModelStep, number: int
    ) -> None:
        message = message_pb2.Message(
            number=number,
            session_id=self._lease.fence.session_id,
            run_id=self._lease.fence.run_id,
            role=message_pb2.Message.ROLE_ASSISTANT,
            author=message_pb2.Message.AUTHOR_MODEL,
            step=grant.step,
            content=step.content,
            model_stream_id=grant.model_stream_id,
            model=step.model,
        )
        self._messages.append(message_from_pb(message))

    # --- ends --------------------------------------------------------------

    async def _fail(self, reason: RunFailureReason, message: str, *, retryable: bool) -> None:
        number = number_of(RunFailureReason, reason)
        failure = run_pb2.RunFailure(
            reason=run_pb2.RunFailure.Reason.ValueType(number),
            message=clean(message, _MESSAGE_BYTES),
            retryable=retryable,
        )
        await self._lease.commit(finish=pb.Finish(failed=failure))

    async def _release(self) -> None:
        release = pb.Release(reason="the executor stops")
        with contextlib.suppress(LostError, RunlaneError):
            await self._lease.commit(release=release, timeout=PARTING)
