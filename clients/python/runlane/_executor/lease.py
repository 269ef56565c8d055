"""A lease on a run: its signs of life, its control, and the commits under its fence."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import grpc
import grpc.aio

from runlane._calls import Caller
from runlane._retry import STREAM_DEADLINE, delay, reopenable
from runlane._time import to_duration
from runlane.errors import (
    ClientClosedError,
    MessageTooLarge,
    OperationInvalid,
    RunNotFound,
    ServiceError,
    SessionNotFound,
    StaleActivation,
    TransportError,
    from_rpc_error,
)
from runlane.v1 import executor_service_pb2 as pb
from runlane.v1 import run_pb2

FIRST_HEARTBEAT = 3.0
"""Seconds."""

_LOG = logging.getLogger("runlane.executor")
_T = TypeVar("_T")
Taken: TypeAlias = Callable[[Sequence[pb.Operation], pb.CommitResponse], None]

# A server that comes back lets leases live for a full term, so an outage ends none: only its
# answer does. This bounds how long the work is kept for a server that does not come back.
OUTAGE: Final = 900.0
# Seconds to give a run back, or to say goodbye to it, when the executor stops.
PARTING: Final = 5.0
# Seconds that cancelled work may take to stop before its run is settled without it.
_STOP: Final = 5.0
# Limits of the service. What is beyond them is refused here: the transport's own refusal has no
# reason, and what looks like a loss of the connection would have the model asked again.
_CONTENT_BYTES: Final = 3 * 1024 * 1024
_REQUEST_BYTES: Final = 8 * 1024 * 1024
_STOPPED: Final = frozenset(
    {run_pb2.Run.PHASE_TERMINAL, run_pb2.Run.PHASE_WAITING, run_pb2.Run.PHASE_PAUSED}
)


class LostError(Exception):
    """The fence is no longer right, or there is no server to tell: the work is dropped."""


class CancelRequestedError(Exception):
    """Cancellation of the run was requested."""


class Lease:
    """The right to advance a run, for as long as it lasts.

    Attributes:
        fence: What every write carries.
        over: Whether a commit has ended the activation.
        pausing: Whether a pause of the run was requested.
        release_on_cancel: Whether work that is cancelled gives its run back.
    """

    def __init__(self, caller: Caller, leased: pb.LeasedActivation, duration: float) -> None:
        self.caller = caller
        self.fence = leased.fence
        # What lines of the log carry beside their text.
        self.ids = {
            "session_id": self.fence.session_id,
            "run_id": self.fence.run_id,
            "activation_id": self.fence.activation_id,
        }
        self.over = False
        self.pausing = False
        self.release_on_cancel = True
        self._duration = duration
        self._cancel = asyncio.Event()
        self._lost = asyncio.Event()
        self._keepers: list[asyncio.Task[None]] = []
        self._heed(leased.control)

    def keep(self) -> None:
        """Begins to send signs of life and to listen to what the server asks."""
        self._keepers = [
            asyncio.create_task(self._guard(self._heartbeats)),
            asyncio.create_task(self._guard(self._watch)),
        ]

    async def let_go(self) -> None:
        """Ends what `keep` began."""
        for keeper in self._keepers:
            keeper.cancel()
        if self._keepers:
            await asyncio.wait(self._keepers)

    def check(self) -> None:
        """Raises where the work has to stop.

        Raises:
            CancelRequestedError: Cancellation was requested.
            LostError: The lease is lost.
        """
        if self._lost.is_set():
            raise LostError
        if self._cancel.is_set():
            raise CancelRequestedError

    @property
    def cancelling(self) -> bool:
        """Whether cancellation of the run was requested."""
        return self._cancel.is_set()

    async def commit(
        self,
        operations: Iterable[pb.Operation] = (),
        *,
        finish: pb.Finish | None = None,
        suspend: pb.Suspend | None = None,
        release: pb.Release | None = None,
        timeout: float = OUTAGE,
        taken: Taken | None = None,
    ) -> pb.CommitResponse:
        """Commits in one transaction, all or none.

        Args:
            operations: What is committed.
            finish: An outcome.
            suspend: Another.
            release: A third.
            timeout: Seconds.
            taken: Called with the operations and the answer, also where the caller was
                cancelled while the commit was on its way.

        Raises:
            LostError: The lease is lost.
            ServiceError: The commit was refused.
        """
        operations = list(operations)
        request = pb.CommitRequest(
            fence=self.fence,
            operations=operations,
            finish=finish,
            suspend=suspend,
            release=release,
            lease_duration=to_duration(self._duration),
        )
        _check_size(request)
        call = asyncio.ensure_future(self._send(request, timeout, operations, taken))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            # What is on its way is let through: to give back a run that it ends is in vain.
            if self.release_on_cancel:
                await asyncio.wait({call}, timeout=PARTING)
            await self.stop([call])
            raise

    async def commit_in_turn(
        self,
        operations: Sequence[pb.Operation],
        taken: Taken,
        *,
        suspend: pb.Suspend | None = None,
    ) -> None:
        """Commits together what also has its sense one by one.

        An operation may end the activation: by a pause that was asked for meanwhile, or by
        a budget. Then those after it are refused, and all with them; so they are committed
        one by one up to that end. `over` tells whether it came.

        Args:
            operations: What is committed.
            taken: Called with what was committed, once for each commit.
            suspend: An outcome.
        """
        try:
            await self.commit(operations, suspend=suspend, taken=taken)
        except OperationInvalid:
            if len(operations) < 2 and (suspend is None or not operations):
                raise
        else:
            return
        for operation in operations:
            await self.commit([operation], taken=taken)
            if self.over:
                return
        if suspend is not None:
            await self.commit(suspend=suspend, taken=taken)

    async def _send(
        self,
        request: pb.CommitRequest,
        timeout: float,
        operations: Sequence[pb.Operation],
        taken: Taken | None,
    ) -> pb.CommitResponse:
        try:
            answer: pb.CommitResponse = await self.caller.unary(
                self.caller.stubs.executors.Commit, request, timeout=timeout
            )
        except (StaleActivation, RunNotFound, SessionNotFound) as error:
            raise LostError from error
        if taken is not None:
            taken(operations, answer)
        if answer.outcome_applied or answer.run.phase in _STOPPED or answer.run.ending_cause:
            self.over = True
            return answer
        if answer.fence_lost:
            raise LostError
        self._heed(answer.control)
        return answer

    async def unless_told(self, work: Awaitable[_T]) -> _T:
        """Awaits some work; stops it where the run is cancelled or the lease is lost.

        Raises:
            CancelRequestedError: Cancellation was requested.
            LostError: The lease is lost.
        """
        task = asyncio.ensure_future(work)
        try:
            await self.wait({task})
            if task.done() and not task.cancelled():
                return task.result()
            self.check()
            raise RuntimeError("the work cancelled itself")
        finally:
            await self.stop([task])

    async def wait(
        self,
        tasks: "Iterable[asyncio.Future[Any]]",
        *,
        timeout: float | None = None,
        all_of_them: bool = False,
    ) -> None:
        """Waits for the first of some tasks, or all, or until the work has to stop."""
        told = [
            asyncio.ensure_future(self._cancel.wait()),
            asyncio.ensure_future(self._lost.wait()),
        ]
        open_ones = {task for task in tasks if not task.done()}
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        try:
            while open_ones:
                left = None if end is None else max(0.0, end - loop.time())
                done, _ = await asyncio.wait(
                    {*open_ones, *told}, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                open_ones -= done
                if not all_of_them or not done or any(one.done() for one in told):
                    return
        finally:
            for waiter in told:
                waiter.cancel()

    async def stop(self, tasks: "Sequence[asyncio.Future[Any]]") -> None:
        """Cancels tasks and waits a while for their end; what they raise is dropped."""
        running = {task for task in tasks if not task.done()}
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=_STOP)
        for task in tasks:
            if not task.done():
                _LOG.warning("a task of run %s does not stop", self.fence.run_id, extra=self.ids)
            elif not task.cancelled():
                # What it raised on its way out is of no use to anybody.
                task.exception()

    def _heed(self, control: pb.ActivationControl) -> None:
        self.pausing = control.pause_requested
        if control.ended:
            self._lost.set()
        if control.cancel_requested:
            self._cancel.set()

    async def _guard(self, keeper: Callable[[], Awaitable[None]]) -> None:
        """Runs a keeper of the lease; a fence that is gone is told to the work.

        An odd error is no reason to stop: the work goes on, and needs its lease and the word
        of a cancellation. So the keeper is run again.
        """
        longest = self._duration / 3
        pause = min(FIRST_HEARTBEAT, longest)
        while True:
            try:
                await keeper()
            except (StaleActivation, RunNotFound, SessionNotFound):
                self._lost.set()
            except ClientClosedError as error:
                _LOG.warning("activation %s: %s", self.fence.activation_id, error, extra=self.ids)
            except Exception as error:  # noqa: BLE001 - see above
                _LOG.warning("activation %s: %r", self.fence.activation_id, error, extra=self.ids)
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
                continue
            return

    async def _heartbeats(self) -> None:
        # The first one confirms the lease, which would end after 10 s otherwise.
        wait = min(FIRST_HEARTBEAT, self._duration / 3)
        while True:
            # Jitter, so that activations leased together do not beat together.
            await asyncio.sleep(wait * random.uniform(0.9, 1.0))  # noqa: S311
            wait = self._duration / 3
            try:
                answer = await self.caller.unary(
                    self.caller.stubs.executors.Heartbeat,
                    pb.HeartbeatRequest(
                        fence=self.fence, lease_duration=to_duration(self._duration)
                    ),
                    timeout=OUTAGE,
                )
            except (ServiceError, TransportError) as error:
                if isinstance(error, (StaleActivation, RunNotFound, SessionNotFound)):
                    raise
                # One odd error is no reason to stop: the work goes on, and needs its lease.
                _LOG.warning("heartbeat of %s: %s", self.fence.activation_id, error, extra=self.ids)
                wait = min(FIRST_HEARTBEAT, wait)
                continue
            self._heed(answer.control)

    async def _watch(self) -> None:
        failures = 0
        while True:
            call = self.caller.stubs.executors.WatchActivation(
                pb.WatchActivationRequest(fence=self.fence),
                timeout=STREAM_DEADLINE,
                metadata=self.caller.metadata,
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
            if isinstance(failure, TransportError) and (
                failure.code is grpc.StatusCode.UNIMPLEMENTED
            ):
                # Heartbeats bring the same, only later.
                return
            if not reopenable(failure, connected=True):
                raise failure
            failures += 1
            await asyncio.sleep(delay(failures, failure))


def _check_size(request: pb.CommitRequest) -> None:
    """Refuses what is too large, as the service does."""
    for operation in request.operations:
        blocks = operation.commit_model_step.content
        _check("content", sum(block.ByteSize() for block in blocks), _CONTENT_BYTES)
    _check("a request", request.ByteSize(), _REQUEST_BYTES)


def _check(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise MessageTooLarge(
            MessageTooLarge.REASON,
            f"{what} of {size} bytes is over the limit of {limit} bytes",
            code=grpc.StatusCode.RESOURCE_EXHAUSTED,
            metadata={"size_bytes": str(size), "limit_bytes": str(limit)},
        )
