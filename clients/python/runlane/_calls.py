"""The channel of a client, and how it is called."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from runlane._ids import new_request_id
from runlane._retry import POLICIES, delay, retryable
from runlane._trace import TRACEPARENT, traceparent
from runlane.errors import (
    ClientClosedError,
    RunlaneError,
    ServiceError,
    TransportError,
    from_rpc_error,
)
from runlane.v1 import (
    admin_service_pb2_grpc,
    executor_service_pb2_grpc,
    history_service_pb2_grpc,
    server_service_pb2_grpc,
    session_service_pb2_grpc,
)

if TYPE_CHECKING:
    from runlane.v1.admin_service_pb2_grpc import AdminServiceAsyncStub
    from runlane.v1.executor_service_pb2_grpc import ExecutorServiceAsyncStub
    from runlane.v1.history_service_pb2_grpc import HistoryServiceAsyncStub
    from runlane.v1.server_service_pb2_grpc import ServerServiceAsyncStub
    from runlane.v1.session_service_pb2_grpc import SessionServiceAsyncStub

_SERVING: Final = b"\x08\x01"
"""grpc.health.v1.HealthCheckResponse with the status SERVING."""

_R = TypeVar("_R")

KEEPALIVE_MIN: Final = 5.0
"""Seconds. A server sends a client away that asks for signs of life more often."""

_KEEPALIVE_TIMEOUT_MS: Final = 5_000
_OPTIONS: Final = (
    # Repeats are made here alone, where the reasons of the service are known.
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    # gRPC's own pings, which measure bandwidth, hold back those while they wait: a minute.
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    # By default no more than two pings go out while no data does.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # In spite of its name, the time that one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    # Each client has a connection of its own, which it can close without harm to others.
    ("grpc.use_local_subchannel_pool", 1),
)


class Stubs:
    """The stubs of all services on one channel."""

    sessions: "SessionServiceAsyncStub"
    history: "HistoryServiceAsyncStub"
    executors: "ExecutorServiceAsyncStub"
    admin: "AdminServiceAsyncStub"
    server: "ServerServiceAsyncStub"

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.sessions = session_service_pb2_grpc.SessionServiceStub(channel)
        self.history = history_service_pb2_grpc.HistoryServiceStub(channel)
        self.executors = executor_service_pb2_grpc.ExecutorServiceStub(channel)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        self.server = server_service_pb2_grpc.ServerServiceStub(channel)
        self.health: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/grpc.health.v1.Health/Check"
        )


class Caller:
    """Owns the channel, which is opened at the first call, and makes the calls."""

    def __init__(
        self,
        target: str,
        *,
        timeout: float,
        metadata: tuple[tuple[str, str], ...],
        credentials: grpc.ChannelCredentials | None,
        channel: grpc.aio.Channel | None,
        keepalive: float = 10.0,
    ) -> None:
        if keepalive < KEEPALIVE_MIN:
            raise ValueError(f"keepalive is at least {KEEPALIVE_MIN:g} s")
        self._keepalive = keepalive
        self.target = target
        self._timeout = timeout
        self._channel = channel
        self._owned = channel is None
        self._stubs: Stubs | None = None
        self.closed = False
        self._metadata = metadata
        self._credentials = credentials

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each call carries; the trace that it is made in is a part of it."""
        trace = traceparent()
        return (*self._metadata, (TRACEPARENT, trace)) if trace else self._metadata

    @property
    def stubs(self) -> Stubs:
        """The stubs.

        Raises:
            ClientClosedError: The client was closed.
        """
        if self.closed:
            raise ClientClosedError("the client is closed")
        if self._stubs is None:
            if self._channel is None:
                self._channel = self._open()
            self._stubs = Stubs(self._channel)
        return self._stubs

    def _open(self) -> grpc.aio.Channel:
        options = (*_OPTIONS, ("grpc.keepalive_time_ms", int(self._keepalive * 1000)))
        if self._credentials is None:
            return grpc.aio.insecure_channel(self.target, options=options)
        return grpc.aio.secure_channel(self.target, self._credentials, options=options)

    async def unary(
        self,
        method: Callable[..., Awaitable[_R]],
        request: Message,
        *,
        timeout: float | None = None,
        on_repeat: Callable[[RunlaneError], None] | None = None,
    ) -> _R:
        """Makes one logical call, in as many attempts as its deadline has room for.

        Args:
            method: The method of a stub.
            request: Its request; a request id is put in where it has none.
            timeout: Seconds for all of it, without the wait that the request asks for.
            on_repeat: Told of each failure that is followed by another attempt.

        Raises:
            ServiceError: The service refused or failed.
            TransportError: It could not be reached before the deadline.
            ClientClosedError: The client was closed meanwhile.
        """
        policy = POLICIES[type(request)]
        if "request_id" in request.DESCRIPTOR.fields_by_name:
            self._name(request)
        allowed = self._timeout if timeout is None else timeout
        end = time.monotonic() + policy.deadline(request, allowed)
        attempt = 0
        while True:
            left = end - time.monotonic()
            each = left if policy.attempt_timeout is None else min(left, policy.attempt_timeout)
            try:
                return await method(request, timeout=max(each, 0.0), metadata=self.metadata)
            except grpc.aio.AioRpcError as error:
                failure: ServiceError | TransportError = from_rpc_error(error)
            except asyncio.CancelledError:
                self.raise_if_closed()
                raise
            except grpc.aio.UsageError:
                # What a closed channel raises where a call is made on it.
                self.raise_if_closed()
                raise
            attempt += 1
            pause = delay(attempt, failure)
            if not retryable(failure, policy) or time.monotonic() + pause >= end:
                raise failure
            if on_repeat is not None:
                on_repeat(failure)
            await asyncio.sleep(pause)
            self.raise_if_closed()

    async def healthy(self) -> bool:
        """Asks once for the health of the whole server.

        Raises:
            TransportError: It could not be reached.
            ClientClosedError: The client was closed.
        """
        try:
            answer = await self.stubs.health(b"", timeout=self._timeout, metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        return answer == _SERVING

    @staticmethod
    def _name(request: Message) -> None:
        # All attempts carry the same id: whether an earlier one was taken is settled by it.
        if not getattr(request, "request_id"):  # noqa: B009 - the type is any request
            setattr(request, "request_id", new_request_id())  # noqa: B010

    def raise_if_closed(self) -> None:
        """Raises ClientClosedError where the close, and not the task's cancellation, did it."""
        task = asyncio.current_task()
        if self.closed and not (task and task.cancelling()):
            raise ClientClosedError("the client was closed")

    async def aclose(self) -> None:
        """Closes the channel, unless it was given; calls that go on end."""
        self.closed = True
        channel, self._channel, self._stubs = self._channel, None, None
        if channel is not None and self._owned:
            await channel.close()
