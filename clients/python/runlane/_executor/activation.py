"""One leased activation: its lease, its control, and the loop of model steps."""

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import grpc
import grpc.aio

from runlane._calls import Caller
from runlane._content import Message, content_to_pb, message_from_pb
from runlane._convert import usage_to_pb
from runlane._enums import RunFailureReason, number_of
from runlane._executor.deltas import DeltaPublisher
from runlane._executor.model import (
    Agent,
    ModelDelta,
    ModelError,
    ModelRequest,
    ModelResponse,
    StreamingModel,
)
from runlane._retry import STREAM_DEADLINE, delay, reopenable
from runlane._time import to_duration
from runlane.errors import (
    RunCancelling,
    RunlaneError,
    RunNotFound,
    ServiceError,
    SessionNotFound,
    StaleActivation,
    TransportError,
    from_rpc_error,
)
from runlane.v1 import executor_service_pb2 as pb
from runlane.v1 import message_pb2, run_pb2

_LOG = logging.getLogger("runlane.executor")
_T = TypeVar("_T")

# A server that comes back lets leases live for a full term, so an outage ends none: only its
# answer does. This bounds how long the work is kept for a server that does not come back.
_OUTAGE: Final = 900.0
# Seconds to give a run back, or to say goodbye to it, when the executor stops.
_PARTING: Final = 5.0
# Seconds that a cancelled model may take to stop before its run is settled without it.
_STOP: Final = 5.0
_MESSAGE_BYTES: Final = 4096
_MODEL_NAME_BYTES: Final = 255
_FINISH_REASON_BYTES: Final = 64


class _LostError(Exception):
    """The fence is no longer right, or there is no server to tell: the work is dropped."""


class _CancelledError(Exception):
    """Cancellation of the run was requested."""


class ActivationTask:
    """Advances the run of one activation until it ends, is lost, or is given back."""

    def __init__(
        self,
        caller: Caller,
        leased: pb.LeasedActivation,
        agent: Agent,
        *,
        lease_duration: float,
    ) -> None:
        self._caller = caller
        self._leased = leased
        self._fence = leased.fence
        self._agent = agent
        self._lease = lease_duration
        self._cancel = asyncio.Event()
        self._lost = asyncio.Event()
        self._messages: list[Message] = []
        self._settled = False
        # Whether a task that is cancelled gives its run back, for others to take at once.
        self.release_on_cancel = True

    async def run(self) -> None:
        """Does the work; errors end the run or the lease and are logged, never raised."""
        self._heed(self._leased.control)
        keepers = [
            asyncio.create_task(self._guard(self._heartbeats)),
            asyncio.create_task(self._guard(self._watch)),
        ]
        try:
            await self._settle()
        except _LostError:
            _LOG.info("activation %s was lost", self._fence.activation_id)
        except asyncio.CancelledError:
            if self.release_on_cancel and not self._settled:
                await self._release()
            raise
        except RunlaneError as error:
            _LOG.warning("activation %s was dropped: %s", self._fence.activation_id, error)
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.wait(keepers)

    async def _settle(self) -> None:
        """Works, and commits the end that an error means."""
        try:
            await self._work()
        except (_CancelledError, RunCancelling):
            await self._finish(pb.Finish(cancelled=pb.Cancelled()))
        except ModelError as error:
            await self._fail(error.reason, error.message, retryable=error.retryable)
        except (_LostError, TransportError):
            raise
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            _LOG.exception("the executor failed at run %s", self._fence.run_id)
            # The class alone: what it says may hold what callers must not see.
            reason = RunFailureReason.EXECUTOR_ERROR
            await self._fail(reason, type(error).__name__, retryable=False)

    async def _work(self) -> None:
        if self._leased.run.position == run_pb2.Run.POSITION_OUTCOME_READY:
            await self._finish(pb.Finish(completed=pb.Completed()))
            return
        await self._load()
        while True:
            self._check()
            answer = await self._commit(
                pb.CommitRequest(
                    operations=[pb.Operation(reserve_model_step=pb.ReserveModelStep())]
                )
            )
            if not answer.results:
                raise _LostError
            grant = answer.results[0].reserve_model_step
            if grant.state != pb.ReserveModelStepResult.STATE_GRANTED:
                return
            response = await self._ask(grant)
            if await self._answer(grant, response):
                return

    async def _load(self) -> None:
        if self._leased.HasField("context"):
            self._messages = [message_from_pb(m) for m in self._leased.context.messages]
            return
        failures = 0
        while True:
            after = self._messages[-1].number if self._messages else 0
            try:
                if await self._stream_context(after):
                    return
                failure: RunlaneError = TransportError(
                    grpc.StatusCode.UNAVAILABLE, "the context came incomplete"
                )
            except grpc.aio.AioRpcError as error:
                failure = from_rpc_error(error)
            if isinstance(failure, StaleActivation | RunNotFound | SessionNotFound):
                raise _LostError from failure
            if not reopenable(failure, connected=True):
                raise failure
            failures += 1
            await self._unless_told(asyncio.sleep(delay(failures, failure)))

    async def _stream_context(self, after: int) -> bool:
        call = self._caller.stubs.executors.StreamModelContext(
            pb.StreamModelContextRequest(fence=self._fence, after_message_number=after),
            timeout=STREAM_DEADLINE,
            metadata=self._caller.metadata,
        )
        complete = False
        try:
            async for frame in call:
                self._messages.extend(message_from_pb(message) for message in frame.messages)
                complete = complete or frame.HasField("end")
        finally:
            call.cancel()
        return complete

    async def _ask(self, grant: pb.ReserveModelStepResult) -> ModelResponse:
        run = self._leased.run
        options = run.options.request_options_json
        request = ModelRequest(
            agent=self._agent.name,
            system=self._agent.system,
            messages=tuple(self._messages),
            model=run.options.model or self._agent.model_name,
            options=json.loads(options) if options else {},
            run_id=self._fence.run_id,
            session_id=self._fence.session_id,
            step=grant.step,
            attempt=self._fence.epoch,
            model_stream_id=grant.model_stream_id,
        )
        model = self._agent.model
        if isinstance(model, StreamingModel):
            return await self._unless_told(self._stream_model(model, request))
        return await self._unless_told(model.complete(request))

    async def _stream_model(self, model: StreamingModel, request: ModelRequest) -> ModelResponse:
        publisher = DeltaPublisher(self._caller, self._fence, request.model_stream_id, request.step)
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

    async def _answer(self, grant: pb.ReserveModelStepResult, response: ModelResponse) -> bool:
        """Commits a step and the end of the run; False where the run goes on instead."""
        content = content_to_pb(response.text or list(response.content))
        step = pb.CommitModelStep(
            content=content if response.text or response.content else [],
            usage=usage_to_pb(response.usage),
            model=_cut(response.model, _MODEL_NAME_BYTES),
            finish_reason=_cut(response.finish_reason, _FINISH_REASON_BYTES),
        )
        finish = pb.Finish(completed=pb.Completed(output_json=response.output_json))
        answer = await self._commit(
            pb.CommitRequest(operations=[pb.Operation(commit_model_step=step)], finish=finish)
        )
        if self._settled:
            return True
        if answer.position == run_pb2.Run.POSITION_OUTCOME_READY:
            await self._finish(finish)
            return True
        self._messages.append(
            message_from_pb(
                message_pb2.Message(
                    number=answer.results[0].commit_model_step.message_number,
                    session_id=self._fence.session_id,
                    run_id=self._fence.run_id,
                    role=message_pb2.Message.ROLE_ASSISTANT,
                    author=message_pb2.Message.AUTHOR_MODEL,
                    step=grant.step,
                    content=step.content,
                    model_stream_id=grant.model_stream_id,
                    model=step.model,
                )
            )
        )
        self._messages.extend(message_from_pb(message) for message in answer.delivered)
        return False

    async def _finish(self, finish: pb.Finish) -> None:
        await self._commit(pb.CommitRequest(finish=finish))

    async def _fail(self, reason: RunFailureReason, message: str, *, retryable: bool) -> None:
        number = number_of(RunFailureReason, reason)
        failure = run_pb2.RunFailure(
            reason=run_pb2.RunFailure.Reason.ValueType(number),
            message=_cut(message, _MESSAGE_BYTES),
            retryable=retryable,
        )
        await self._finish(pb.Finish(failed=failure))

    async def _release(self) -> None:
        request = pb.CommitRequest(release=pb.Release(reason="the executor stops"))
        with contextlib.suppress(_LostError, RunlaneError):
            await self._commit(request, timeout=_PARTING)

    async def _commit(
        self, request: pb.CommitRequest, *, timeout: float = _OUTAGE
    ) -> pb.CommitResponse:
        call = asyncio.ensure_future(self._send(request, timeout))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            # What is on its way is let through: to give back a run that it ends is in vain.
            if self.release_on_cancel:
                await asyncio.wait({call}, timeout=_PARTING)
            await self._stop(call)
            raise

    async def _send(self, request: pb.CommitRequest, timeout: float) -> pb.CommitResponse:
        request.fence.CopyFrom(self._fence)
        request.lease_duration.CopyFrom(to_duration(self._lease))
        try:
            answer: pb.CommitResponse = await self._caller.unary(
                self._caller.stubs.executors.Commit, request, timeout=timeout
            )
        except (StaleActivation, RunNotFound, SessionNotFound) as error:
            raise _LostError from error
        if answer.outcome_applied or answer.run.phase == run_pb2.Run.PHASE_TERMINAL:
            self._settled = True
        elif answer.fence_lost:
            raise _LostError
        self._heed(answer.control)
        return answer

    async def _unless_told(self, work: Awaitable[_T]) -> _T:
        """Awaits some work; stops it where the run is cancelled or the lease is lost.

        Raises:
            _CancelledError: Cancellation was requested.
            _LostError: The lease is lost.
        """
        task = asyncio.ensure_future(work)
        told = [
            asyncio.ensure_future(self._cancel.wait()),
            asyncio.ensure_future(self._lost.wait()),
        ]
        try:
            await asyncio.wait({task, *told}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled():
                return task.result()
            self._check()
            raise RuntimeError("the model cancelled itself")
        finally:
            for waiter in told:
                waiter.cancel()
            await self._stop(task)

    async def _stop(self, task: "asyncio.Future[Any]") -> None:
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_STOP)
        if not task.done():
            _LOG.warning("a task of run %s does not stop", self._fence.run_id)
        elif not task.cancelled():
            # What it raised on its way out is of no use to anybody.
            task.exception()

    def _check(self) -> None:
        if self._lost.is_set():
            raise _LostError
        if self._cancel.is_set():
            raise _CancelledError

    def _heed(self, control: pb.ActivationControl) -> None:
        if control.ended:
            self._lost.set()
        if control.cancel_requested:
            self._cancel.set()

    async def _guard(self, keeper: Callable[[], Awaitable[None]]) -> None:
        """Runs a keeper of the lease; a fence that is gone is told to the work."""
        try:
            await keeper()
        except (StaleActivation, RunNotFound, SessionNotFound):
            self._lost.set()
        except RunlaneError as error:
            _LOG.warning("activation %s: %s", self._fence.activation_id, error)

    async def _heartbeats(self) -> None:
        while True:
            # Jitter, so that activations leased together do not beat together.
            await asyncio.sleep(self._lease / 3 * random.uniform(0.9, 1.0))  # noqa: S311
            answer = await self._caller.unary(
                self._caller.stubs.executors.Heartbeat,
                pb.HeartbeatRequest(fence=self._fence, lease_duration=to_duration(self._lease)),
                timeout=_OUTAGE,
            )
            self._heed(answer.control)

    async def _watch(self) -> None:
        failures = 0
        while True:
            call = self._caller.stubs.executors.WatchActivation(
                pb.WatchActivationRequest(fence=self._fence),
                timeout=STREAM_DEADLINE,
                metadata=self._caller.metadata,
            )
            try:
                async for frame in call:
                    failures = 0
                    self._heed(frame.control)
            except grpc.aio.AioRpcError as error:
                failure = from_rpc_error(error)
            else:
                # The activation has ended.
                self._lost.set()
                return
            finally:
                call.cancel()
            if isinstance(failure, ServiceError) and not reopenable(failure, connected=True):
                raise failure
            if isinstance(failure, TransportError) and (
                failure.code is grpc.StatusCode.UNIMPLEMENTED
            ):
                # Heartbeats bring the same, only later.
                return
            failures += 1
            await asyncio.sleep(delay(failures, failure))


def _cut(text: str, limit: int) -> str:
    """Cuts a text to a number of UTF-8 bytes, between characters."""
    return text.encode()[:limit].decode(errors="ignore").replace("\0", "")
