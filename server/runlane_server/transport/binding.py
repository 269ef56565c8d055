"""One wrapper around each handler, bound when a service is registered.

It takes the place of a stack of interceptors: parse, refuse while draining,
name the caller, validate, call, and turn what was raised into a status.
"""

import asyncio
import contextlib
import random
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from runlane_server.app.keys import NO_GRANT, Grant
from runlane_server.app.views import Caller
from runlane_server.core.errors import Reason, Refused, invalid
from runlane_server.runtime.quotas import Quotas, Toll
from runlane_server.runtime.stats import Stats
from runlane_server.transport.access import (
    EXEMPT,
    NOBODY,
    SCOPES,
    Anybody,
    Identity,
    namespace_of,
    said,
    unknown,
    wrong_client,
)
from runlane_server.transport.counting import counted
from runlane_server.transport.errors import is_of_request, status_of
from runlane_server.transport.hashing import request_hash
from runlane_server.transport.tracing import Handle, Tracing, tell_refusal, trace_of, traced
from runlane_server.transport.validation import validate

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Answer = Message | bytes

# An executor may still commit what it has, and give back what it cannot finish.
_OPEN_WHILE_DRAINING = frozenset(
    {"GetServerInfo", "Commit", "Heartbeat", "DrainExecutor", "StreamModelContext"}
)
_READ_OUT_SECONDS = 1.0
_MARGIN_SECONDS = 0.5
_MARGIN_SHARE = 0.1
_WORD = re.compile(r"(?<!^)(?=[A-Z])")


class Call(NamedTuple):
    """What a handler knows of its call beside the request."""

    namespace: str
    client: str
    method: str
    context: Context
    grant: Grant = NO_GRANT
    toll: Toll | None = None
    trace: str = ""
    longest: float | None = None

    def caller(self, request_id: str = "", *parts: Any, actor: str = "") -> Caller:
        """Returns who calls; `parts` are all that was asked but request_id and waits."""
        digest = request_hash(self.method, *parts) if request_id else b""
        return Caller(
            self.namespace,
            actor or self.client,
            self.method,
            request_id,
            digest,
            self.toll,
            self.trace,
        )

    def wait_seconds(self, micros: int) -> float:
        """Returns how long to wait so that the answer is there before the deadline."""
        if not micros:
            return 0.0
        wait = micros / 1_000_000
        if self.longest is not None:
            wait = min(wait, self.longest)
        left = remaining(self.context)
        if left is None:
            return wait
        return max(0.0, min(wait, left - max(_MARGIN_SECONDS, _MARGIN_SHARE * left)))


def remaining(context: Context) -> float | None:
    """Returns the seconds up to the deadline of a call; None: it has none."""
    left: float | None = context.time_remaining()
    return None if left is None else max(0.0, left)


class _ClientGone(Exception):  # noqa: N818 - nothing went wrong
    """The client left while a frame waited for room."""


class Door:
    """What all calls go through: it asks who is there, counts them, and closes at a drain."""

    def __init__(
        self,
        identity: Identity | None = None,
        stats: Stats | None = None,
        quotas: Quotas | None = None,
        tracing: Tracing | None = None,
        longest: float | None = None,
    ) -> None:
        """Makes a door.

        Args:
            identity: Tells who calls; None: nobody is asked.
            stats: Counts calls.
            quotas: Of namespaces; None: there are none.
            tracing: Records a span of each; None: nobody does.
            longest: Seconds after which streams and waits end by themselves; None: never.
        """
        self.identity: Identity = identity or Anybody()
        self.stats = stats or Stats()
        self.quotas = quotas
        self.tracing = tracing
        self.longest = longest
        self.draining = False
        self._entered = 0
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def enter(self) -> None:
        """Counts a call in."""
        self._entered += 1
        self._inside += 1
        self._empty.clear()

    def leave(self) -> None:
        """Counts a call out."""
        self._inside -= 1
        if not self._inside:
            self._empty.set()

    async def empty(self, seconds: float = 0.0) -> None:
        """Waits until no call is inside, and none has come in for so long."""
        entered = -1
        while entered != self._entered or self._inside:
            await self._empty.wait()
            entered = self._entered
            await asyncio.sleep(seconds)


def is_endless(method: MethodDescriptor) -> bool:
    """Tells whether a stream goes on as long as its reader likes, who then resumes it."""
    follows = "follow" in method.input_type.fields_by_name
    return method.server_streaming and (follows or method.name == "WatchActivation")


def service_handler(
    service: ServiceDescriptor, servicer: object, door: Door
) -> grpc.GenericRpcHandler:
    """Binds each method of a service to the servicer's method of that name in snake case."""
    handlers: dict[str, Any] = {}
    for method in service.methods:
        handler = getattr(servicer, _WORD.sub("_", method.name).lower())
        entry = _Entry(method, door)
        handle: Handle
        unary = not method.client_streaming and not method.server_streaming
        if method.client_streaming:
            bind, handle = grpc.stream_unary_rpc_method_handler, _stream_unary(entry, handler)
        elif method.server_streaming:
            bind, handle = grpc.unary_stream_rpc_method_handler, _unary_stream(entry, handler)
        else:
            bind, handle = grpc.unary_unary_rpc_method_handler, _unary_unary(entry, handler)
        handle = traced(door.tracing, method, handle, unary=unary)
        handlers[method.name] = bind(counted(door.stats, method, handle, unary=unary))
    return grpc.method_handlers_generic_handler(service.full_name, handlers)


class _Entry:
    """What happens before a handler of one method is called, and after it failed."""

    __slots__ = (
        "_door",
        "_ends_itself",
        "_identity",
        "_lasts",
        "_longest",
        "_needed",
        "_open",
        "_parse",
        "_quotas",
        "_request",
        "_writes",
        "enter",
        "leave",
        "name",
    )

    def __init__(self, method: MethodDescriptor, door: Door) -> None:
        self._door = door
        self._open = method.name in _OPEN_WHILE_DRAINING
        self._request = method.input_type.name
        self._parse = GetMessageClass(method.input_type).FromString
        self.enter = door.enter
        self.leave = door.leave
        self.name = method.name
        self._identity = door.identity
        self._longest = door.longest
        self._ends_itself = is_endless(method)
        path = f"{method.containing_service.name}/{method.name}"
        self._needed = SCOPES[path]
        self._quotas = None if path in EXEMPT else door.quotas
        self._writes = "request_id" in method.input_type.fields_by_name
        self._lasts = (
            method.server_streaming
            or method.client_streaming
            or "wait_duration" in method.input_type.fields_by_name
        )

    async def prove(self, context: Context) -> Call:
        """Returns who calls, once what they show is proved, or refuses them."""
        await self._identity.prove(said(context)[0] or "")
        call = self.admit(context)
        if call is None:
            raise unknown()
        return call

    def admit(self, context: Context) -> Call | None:
        """Returns who calls, or refuses them; None: what they show is to be proved first."""
        bearer, asked, client, trace = said(context)
        found = self._identity.grant(context, bearer, client or "client", self._needed)
        if found is None:
            return None
        grant, actor = found
        if self._door.draining and not self._open:
            raise Refused(Reason.DRAINING, "the server is stopping")
        if client is None:
            raise wrong_client()
        namespace = namespace_of(asked, grant, self._needed)
        if self._lasts and grant is not NO_GRANT and grant is not NOBODY:
            task = asyncio.current_task()
            assert task is not None, "gRPC runs each call in a task"  # noqa: S101 - invariant
            grant.calls.add(task)
        return Call(
            namespace,
            actor,
            self.name,
            context,
            grant,
            trace=trace_of(trace),
            longest=self._longest,
        )

    def charge(self, call: Call) -> Call:
        """Takes what a call costs its namespace, or refuses it.

        One that writes is let in all the same: whether it is a repeated one, which costs
        nothing, shows further in.
        """
        quotas = self._quotas
        if quotas is None:
            return call
        if not self._writes:
            quotas.read(call.namespace)
            return call
        toll = quotas.write(call.namespace)
        return call if toll is None else call._replace(toll=toll)

    def release(self, call: Call | None) -> None:
        """Lets the end of a credential pass by a call that is over."""
        if self._lasts and call is not None:
            task = asyncio.current_task()
            call.grant.calls.discard(task)
            call.grant.cut.discard(task)

    def bounded(self, frames: AsyncIterator[Answer]) -> AsyncIterator[Answer]:
        """Returns the frames of a stream, ended by the server where it would be open for long."""
        if self._longest is None or not self._ends_itself:
            return frames
        # Jitter, so that streams opened together do not come again together.
        return _ended(frames, self._longest * random.uniform(0.85, 1.0))  # noqa: S311

    def request(self, raw: bytes) -> Any:
        """Returns the request once it is valid."""
        try:
            request = self._parse(raw)
        except DecodeError:
            raise invalid("request", f"must be an encoded {self._request}") from None
        validate(request, len(raw))
        return request

    def fail(self, context: Context, error: BaseException, call: Call | None) -> None:
        """Gives the call a status, or raises the error where the call itself was cancelled."""
        if isinstance(error, Refused):
            error = self._refusal(error, call)
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            cut = call is not None and task in call.grant.cut
            if task is not None and task.cancelling() > cut:
                # Whoever swallows this leaks the call.
                raise error
            if task is not None and cut:
                task.uncancel()
                error = Refused(Reason.CREDENTIAL_INVALID, "the credential has ended")
            # Else something that the handler awaited was cancelled by somebody else: raised here,
            # it would leave the client without a status.
            elif self._door.draining:
                error = Refused(Reason.DRAINING, "the server is stopping")
        elif not isinstance(error, Exception):
            raise error
        status = status_of(error, self.name)
        tell_refusal(status.reason)
        context.set_code(status.code)
        context.set_details(status.message)
        context.set_trailing_metadata(status.trailers)

    def _refusal(self, refused: Refused, call: Call | None) -> Refused:
        """Returns what a call is told: of several that are true, a quota comes first.

        What the request says of itself comes before it.
        """
        toll = call.toll if call is not None else None
        if toll is not None and toll.refusal is not None and not is_of_request(refused):
            refused = toll.refusal
        if "quota" in refused.metadata:
            self._door.stats.over_quota(refused.metadata["quota"])
        return refused


def _encoded(answer: Answer) -> bytes:
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def _unary_unary(
    entry: _Entry, handler: Callable[[Any, Call], Awaitable[Answer]]
) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def handle(raw: bytes, context: Context) -> bytes:
        entry.enter()
        call: Call | None = None
        try:
            call = entry.admit(context) or await entry.prove(context)
            request = entry.request(raw)
            call = entry.charge(call)
            return _encoded(await handler(request, call))
        except BaseException as error:  # noqa: BLE001 - fail() raises what must go on
            entry.fail(context, error, call)
            return b""
        finally:
            entry.release(call)
            entry.leave()

    return handle


def _unary_stream(
    entry: _Entry, handler: Callable[[Any, Call], AsyncIterator[Answer]]
) -> Callable[[bytes, Context], Awaitable[None]]:
    async def handle(raw: bytes, context: Context) -> None:
        entry.enter()
        frames: AsyncIterator[Answer] | None = None
        call: Call | None = None
        try:
            call = entry.admit(context) or await entry.prove(context)
            request = entry.request(raw)
            call = entry.charge(call)
            frames = entry.bounded(handler(request, call))
            async for frame in frames:
                try:
                    await context.write(_encoded(frame))
                except grpc.aio.InternalError:
                    raise _ClientGone from None
        except _ClientGone:
            # gRPC takes this as the end of the call, and tries to send no status.
            raise asyncio.CancelledError from None
        except BaseException as error:  # noqa: BLE001 - fail() raises what must go on
            entry.fail(context, error, call)
        finally:
            entry.release(call)
            try:
                if frames is not None:
                    await close(frames)
            finally:
                entry.leave()

    return handle


def _stream_unary(
    entry: _Entry, handler: Callable[[AsyncIterator[Any], Call], Awaitable[Answer]]
) -> Callable[[AsyncIterable[bytes], Context], Awaitable[bytes]]:
    async def requests(raw_requests: AsyncIterable[bytes]) -> AsyncIterator[Any]:
        async for raw in raw_requests:
            yield entry.request(raw)

    async def handle(raw_requests: AsyncIterable[bytes], context: Context) -> bytes:
        entry.enter()
        call: Call | None = None
        try:
            call = entry.charge(entry.admit(context) or await entry.prove(context))
            return _encoded(await handler(requests(raw_requests), call))
        except BaseException as error:  # noqa: BLE001 - fail() raises what must go on
            entry.fail(context, error, call)
            await _read_out(raw_requests)
            return b""
        finally:
            entry.release(call)
            entry.leave()

    return handle


async def _ended(frames: AsyncIterator[Answer], seconds: float) -> AsyncIterator[Answer]:
    """Gives frames for so long, then refuses more: the reader goes on from its cursor.

    Only a wait for a frame is broken off, never a write, and a frame costs no timer of its own.
    """
    task = asyncio.current_task()
    assert task is not None, "gRPC runs each call in a task"  # noqa: S101 - invariant
    cancelled = task.cancelling()
    over = waiting = False

    def end() -> None:
        nonlocal over
        over = True
        if waiting:
            task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, end)
    try:
        while not over:
            waiting = True
            try:
                frame = await anext(frames)
            except StopAsyncIteration:
                return
            except asyncio.CancelledError:
                # Another may have cancelled it too, and comes first.
                if not over or task.uncancel() > cancelled:
                    raise
                break
            finally:
                waiting = False
            yield frame
        raise Refused(Reason.STREAM_ENDED, "the stream has been open for long: open it again")
    finally:
        timer.cancel()
        await close(frames)


async def _read_out(raw_requests: AsyncIterable[bytes]) -> None:
    """Reads what a client still sends: cut off in the middle, it may miss its status."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_READ_OUT_SECONDS):
            async for _ in raw_requests:
                pass


async def close(frames: AsyncIterator[Any]) -> None:
    """Ends an iterator now rather than when it is collected."""
    aclose = getattr(frames, "aclose", None)
    if aclose is not None:
        await aclose()
