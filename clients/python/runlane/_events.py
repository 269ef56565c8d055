"""Event streams that go on over lost connections: of a session, and of a namespace."""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Generic, NamedTuple, Self, TypeVar

import grpc
import grpc.aio

from runlane._calls import Caller
from runlane._enums import SessionEventKind
from runlane._event_convert import control_from_pb, delta_from_pb, event_from_pb
from runlane._event_models import AnyEvent, Event, SessionEvent, StreamItem
from runlane._retry import STREAM_DEADLINE, STREAM_SILENCE, delay, reopenable
from runlane.errors import ServiceError, StreamGapError, TransportError, from_rpc_error
from runlane.v1 import admin_service_pb2 as admin_pb
from runlane.v1 import session_service_pb2 as pb

Item = TypeVar("Item")


class Resuming(ABC, Generic[Item]):
    """Reads a stream of the service, and opens it again where its connection is lost."""

    def __init__(self, caller: Caller, reconnect_timeout: float) -> None:
        self._caller = caller
        self._patience = reconnect_timeout
        self._buffer: deque[Item] = deque()
        self._call: Any = None
        self._connected = False
        self._lost_since: float | None = None
        self._failures = 0
        self._over = False
        self._closed = asyncio.Event()
        self._reading = False

    @abstractmethod
    def _start(self) -> Any:
        """Starts a call after what was read."""

    @abstractmethod
    def _take(self, frame: Any) -> None:
        """Takes what a frame holds into the buffer."""

    def _yielding(self, item: Item) -> None:
        """Takes note that an item is given to the reader."""

    @property
    def closed(self) -> bool:
        """Whether it has ended or was closed."""
        return self._over or self._closed.is_set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        if self._reading:
            raise RuntimeError("another task reads this stream; take a stream for each reader")
        self._reading = True
        try:
            while not self._buffer:
                if self._over or self._closed.is_set():
                    raise StopAsyncIteration
                await self._advance()
        finally:
            self._reading = False
        item = self._buffer.popleft()
        self._yielding(item)
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends the stream, also for a task that waits for its next event; idempotent."""
        self._closed.set()
        self._buffer.clear()
        self._drop()

    def _drop(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    async def _advance(self) -> None:
        """Takes one step towards the next item: a frame, or a pause."""
        try:
            if self._call is None:
                self._call = self._start()
            async with asyncio.timeout(STREAM_SILENCE):
                frame = await self._call.read()
        except grpc.aio.AioRpcError as error:
            self._drop()
            await self._pause(from_rpc_error(error))
        except TimeoutError:
            self._drop()
            await self._pause(TransportError(grpc.StatusCode.UNAVAILABLE, "the stream fell silent"))
        except (asyncio.CancelledError, grpc.aio.UsageError):
            self._drop()
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            if not self._closed.is_set():
                self._caller.raise_if_closed()
                raise
        else:
            if frame is grpc.aio.EOF:
                self._drop()
                self._over = True
                return
            self._connected = True
            self._lost_since = None
            self._take(frame)

    async def _pause(self, error: ServiceError | TransportError) -> None:
        if self._over:
            return
        if not reopenable(error, connected=self._connected):
            raise error
        now = time.monotonic()
        if self._lost_since is None:
            self._lost_since = now
        self._failures += 1
        pause = delay(self._failures, error)
        if now + pause - self._lost_since > self._patience:
            raise error
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), pause)


class EventStream(Resuming[StreamItem]):
    """Yields a session's events in order, each once, also over lost connections.

    Made by `Client.events` and `SessionManager.events`; an async iterator and an async
    context manager. A stream whose connection is lost, or that the server ends to drain, is
    opened again after the last event it was told; it ends by itself only where the service
    says that nothing can follow. Cancelling `anext()`, for instance by a timeout, loses
    nothing. One task at a time reads it.

    Iterating raises what the service answers, such as `SessionNotFound` or `SequenceAhead`,
    the last failure once there was no connection for `reconnect_timeout`, and
    `StreamGapError` where an event is missing.
    """

    def __init__(
        self,
        caller: Caller,
        request: pb.StreamEventsRequest,
        *,
        baseline: "asyncio.Task[int] | None" = None,
        reconnect_timeout: float = 60.0,
    ) -> None:
        super().__init__(caller, reconnect_timeout)
        self._request = request
        self._baseline = baseline
        self._whole = not request.run_ids and not request.types
        # None until the first event where the stream starts with the newest few.
        self._received: int | None = (
            None if request.HasField("last_events") else request.after_sequence
        )
        self._yielded = self._received or 0

    @property
    def sequence(self) -> int:
        """The sequence up to which everything was yielded or filtered out."""
        if self._buffer:
            return self._yielded
        return self._received or 0

    def _yielding(self, item: StreamItem) -> None:
        if isinstance(item, Event):
            self._yielded = item.sequence

    async def _advance(self) -> None:
        if self._baseline is not None:
            await self._take_baseline()
            return
        await super()._advance()

    async def _take_baseline(self) -> None:
        baseline = self._baseline
        if baseline is None:
            return
        closed = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({baseline, closed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closed.cancel()
        if self._closed.is_set():
            return
        self._received = self._yielded = await asyncio.shield(baseline)
        self._baseline = None

    def _start(self) -> Any:
        if self._received is not None:
            self._request.after_sequence = self._received
        return self._caller.stubs.sessions.StreamEvents(
            self._request, timeout=STREAM_DEADLINE, metadata=self._caller.metadata
        )

    def _take(self, frame: Any) -> None:
        kind = frame.WhichOneof("frame")
        if kind == "batch":
            for event in frame.batch.events:
                if self._move(event.sequence, by_event=True):
                    self._append(event_from_pb(event))
        elif kind == "bookmark":
            self._move(frame.bookmark.sequence, by_event=False)
        elif kind == "deltas":
            for delta in frame.deltas.deltas:
                self._append(delta_from_pb(delta))
        elif kind == "control":
            self._append(control_from_pb(frame.control))

    def _append(self, item: StreamItem) -> None:
        # What was read before this frame was yielded, or filtered out.
        if not self._buffer and not isinstance(item, Event):
            self._yielded = self._received or 0
        self._buffer.append(item)
        if isinstance(item, SessionEvent) and item.kind is SessionEventKind.SESSION_DELETED:
            # Nothing follows it; to ask again would find no session.
            self._over = True
            self._drop()

    def _move(self, sequence: int, *, by_event: bool) -> bool:
        """Moves the cursor; False where it is there already."""
        last = self._received
        if last is not None and sequence <= last:
            return False
        expected = sequence if last is None or not self._whole else last + by_event
        if sequence != expected:
            self._drop()
            raise StreamGapError(last + 1 if last is not None else sequence, sequence)
        self._received = sequence
        self._failures = 0
        return True


class FeedItem(NamedTuple):
    """An event of the feed.

    Attributes:
        cursor: Stands for this event and all before it: keep it with what you made of them.
    """

    cursor: str
    event: AnyEvent


class FeedStream(Resuming[FeedItem]):
    """Yields the events of all sessions of a namespace, each once, over lost connections too.

    Made by `Client.feed`; an async iterator and an async context manager. It is opened again
    as an `EventStream` is, and without `follow` ends where the feed ended when it was made.

    Iterating raises what the service answers, such as `PageTokenMismatch` for a cursor of
    another store, or the last failure once there was no connection for `reconnect_timeout`.
    """

    def __init__(
        self, caller: Caller, request: admin_pb.StreamFeedRequest, *, reconnect_timeout: float
    ) -> None:
        super().__init__(caller, reconnect_timeout)
        self._request = request
        self._received = self._yielded = request.after_cursor

    @property
    def cursor(self) -> str:
        """Stands for all that was yielded or filtered out; empty: nothing yet."""
        return self._yielded if self._buffer else self._received

    def _yielding(self, item: FeedItem) -> None:
        self._yielded = item.cursor

    def _start(self) -> Any:
        if self._received:
            self._request.after_cursor = self._received
        return self._caller.stubs.admin.StreamFeed(
            self._request, timeout=STREAM_DEADLINE, metadata=self._caller.metadata
        )

    def _take(self, frame: Any) -> None:
        self._failures = 0
        kind = frame.WhichOneof("frame")
        if kind == "batch":
            for entry in frame.batch.events:
                self._buffer.append(FeedItem(entry.cursor, event_from_pb(entry.event)))
                self._received = entry.cursor
        elif kind == "bookmark":
            self._received = frame.bookmark.cursor
