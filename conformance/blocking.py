"""Binds scenarios to Python's blocking client, each call in a thread."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar, cast

from runlane import RunlaneError, sync

from conformance.agree import lacking
from conformance.binding import (
    METHODS,
    ClientBinding,
    Recorded,
    all_pages,
    exchange,
    opened,
    refusal,
    to_json,
    to_message,
)
from conformance.verbs import VERBS

_R = TypeVar("_R")
_END: Final[Any] = object()
# More than all scenarios wait at once: a wait that finds no thread would hold up what it waits for.
_THREADS: Final = ThreadPoolExecutor(256, thread_name_prefix="conformance")


async def _in_thread(function: Callable[[], _R]) -> _R:
    return await asyncio.get_running_loop().run_in_executor(_THREADS, function)


class BlockingBinding:
    """One blocking client of its own connection."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._made: tuple[sync.Client, ClientBinding] | None = None

    def _both(self) -> tuple[sync.Client, ClientBinding]:
        """The client, made in a thread, and what drives the one behind it."""
        with self._lock:
            if self._made is None:
                client = sync.Client(self._target, client_name="conformance", reconnect_timeout=10)
                self._made = client, ClientBinding(self._target, client._twin)  # noqa: SLF001
            return self._made

    async def call(self, method: str, request: Any, *, raw: bool) -> Any:
        """Makes a call, as the client makes its calls."""
        return await _in_thread(lambda: self._call(method, request, raw=raw))

    def _call(self, method: str, request: Any, *, raw: bool) -> Any:
        client, inner = self._both()
        if not raw and method in VERBS:
            message = to_message(METHODS[method][1], request)
            try:
                with exchange(message) as seen:
                    record = VERBS[method](cast("Any", client), message)
            except RunlaneError as error:
                raise refusal(error) from None
            # Else the verb has no argument for what is set.
            if seen.answer is not None:
                return to_json(seen.told(method, record))
        return client._portal.call(inner.call, method, request, raw=raw)  # noqa: SLF001 - its way in

    async def pages(self, method: str, request: Any) -> Any:
        """Reads a list to its end, page by page."""
        return await all_pages(self, method, request)

    async def open(self, method: str, request: Any) -> AsyncIterator[Any]:
        """Opens a stream of items, which a thread iterates over."""
        items, close = await _in_thread(lambda: self._opened(method, request))
        try:
            while (item := await _in_thread(lambda: next(items, _END))) is not _END:
                yield item
        finally:
            await _in_thread(close)

    def _opened(self, method: str, request: Any) -> tuple[Iterator[Any], Callable[[], None]]:
        client, inner = self._both()
        portal = client._portal  # noqa: SLF001 - as above
        if method != "StreamEvents":
            frames = portal.iterate(inner.open, method, request)
            return frames, frames.close
        message = to_message(METHODS[method][1], {"follow": True, **request})
        with opened(client, message) as made:
            wrong = lacking(message, made._twin._request)  # noqa: SLF001 - what it would send
        if wrong:
            raise AssertionError(f"the client sends another {wrong}")
        recorded = portal.make(Recorded, client._twin._caller, message, reconnect_timeout=10)  # noqa: SLF001
        stream = sync.EventStream(portal, recorded)
        return _told(stream, recorded), stream.close

    async def aclose(self) -> None:
        """Ends the connection."""
        if self._made is not None:
            await asyncio.shield(_in_thread(self._made[0].close))


def _told(stream: sync.EventStream, recorded: Recorded) -> Iterator[Any]:
    try:
        for item in stream:
            yield recorded.told(item)
    except RunlaneError as error:
        raise refusal(error) from None
