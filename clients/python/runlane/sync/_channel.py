"""A blocking channel in the place of one of grpc.aio.

So a caller can hand in a channel of its own, with its interceptors, or one that a test
scripts. It has what the client uses of a channel, and nothing more.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Generator
from typing import Any, Final, NoReturn, Self, cast

import grpc
import grpc.aio

from runlane._executor.tools import in_thread

_DONE: Final[Any] = object()


def twin(channel: grpc.Channel | None) -> grpc.aio.Channel | None:
    """Returns the channel as the async client takes it."""
    return None if channel is None else cast("grpc.aio.Channel", _Channel(channel))


class _Channel:
    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def unary_unary(self, method: str, *serializers: Any, **named: Any) -> Callable[..., Any]:
        multi = self._channel.unary_unary(method, *serializers, **_known(named))

        async def call(request: Any, **options: Any) -> Any:
            return await _outcome(_invoke(multi.future, request, **options))

        return call

    def unary_stream(self, method: str, *serializers: Any, **named: Any) -> Callable[..., Any]:
        multi = self._channel.unary_stream(method, *serializers, **_known(named))
        return lambda request, **options: _Reader(_invoke(multi, request, **options))

    def stream_unary(self, method: str, *serializers: Any, **named: Any) -> Callable[..., Any]:
        multi = self._channel.stream_unary(method, *serializers, **_known(named))
        return lambda **options: _Writer(multi, options)


class _Reader:
    """A stream of answers."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def read(self) -> Any:
        try:
            return await in_thread(lambda: next(self._call, grpc.aio.EOF))
        except grpc.RpcError as error:
            _raise(error)
        except asyncio.CancelledError:
            self._call.cancel()
            raise

    def cancel(self) -> None:
        self._call.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        frame = await self.read()
        if frame is grpc.aio.EOF:
            raise StopAsyncIteration
        return frame


class _Writer:
    """A stream of requests with one answer."""

    def __init__(self, multi: Any, options: dict[str, Any]) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call = _invoke(multi.future, iter(self._requests.get, _DONE), **options)

    async def write(self, request: Any) -> None:
        if self._call.done():
            raise asyncio.InvalidStateError("the call has ended")
        self._requests.put(request)

    async def done_writing(self) -> None:
        self._requests.put(_DONE)

    def cancel(self) -> None:
        self._requests.put(_DONE)
        self._call.cancel()

    def __await__(self) -> Generator[Any, None, Any]:
        return _outcome(self._call).__await__()


def _known(named: dict[str, Any]) -> dict[str, Any]:
    # What generated stubs say to grpc's own channels alone.
    return {key: value for key, value in named.items() if not key.startswith("_")}


def _invoke(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    try:
        return method(*arguments, **options)
    except ValueError as error:
        # What a closed channel raises.
        raise grpc.aio.UsageError(str(error)) from error


async def _outcome(call: Any) -> Any:
    # Not add_done_callback: the channel of grpcio-testing has none.
    try:
        return await in_thread(call.result)
    except asyncio.CancelledError:
        # There it also waits for its lock, which must not hold up the loop.
        threading.Thread(target=call.cancel, name="runlane-cancel", daemon=True).start()
        raise
    except grpc.FutureCancelledError as error:
        raise grpc.aio.UsageError("the channel was closed") from error
    except grpc.RpcError as error:
        _raise(error)


def _raise(error: Any) -> NoReturn:
    """Raises what grpc.aio does."""
    raise grpc.aio.AioRpcError(
        error.code(),
        initial_metadata=grpc.aio.Metadata(),
        trailing_metadata=grpc.aio.Metadata(*(error.trailing_metadata() or ())),
        details=error.details(),
    ) from error
