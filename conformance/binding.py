"""Binds scenarios to Python's client."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from runlane import Client, EventStream, RunlaneError, ServiceError, TransportError
from runlane._retry import POLICIES
from runlane.errors import from_rpc_error
from runlane.v1 import (
    admin_service_pb2,
    executor_service_pb2,
    history_service_pb2,
    server_service_pb2,
    session_service_pb2,
)

from conformance.agree import lacking, of_answer, of_event
from conformance.play import Binding, Refused
from conformance.verbs import VERBS, event_word

_SERVICES: Final = {
    "sessions": session_service_pb2,
    "history": history_service_pb2,
    "executors": executor_service_pb2,
    "admin": admin_service_pb2,
    "server": server_service_pb2,
}
METHODS: Final[Mapping[str, tuple[str, MethodDescriptor]]] = {
    method.name: (stub, method)
    for stub, module in _SERVICES.items()
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
"""The name of each method, with the stub that has it."""

STREAM_SECONDS: Final = 90.0


def to_json(message: Message) -> Any:
    """Writes a message as a scenario sees it: proto3 JSON with the names of the proto."""
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


def to_message(method: MethodDescriptor, request: Mapping[str, Any]) -> Message:
    """Reads the request of a method."""
    return json_format.ParseDict(dict(request), GetMessageClass(method.input_type)())


def refusal(error: RunlaneError) -> Refused:
    """Tells of an error as a scenario sees it."""
    if isinstance(error, ServiceError):
        if type(error) is ServiceError or error.reason != error.REASON:
            raise AssertionError(f"the client has no class for {error.reason}")
        told: dict[str, Any] = {
            "code": error.code.name,
            "reason": error.reason,
            "message": error.message,
            "metadata": dict(error.metadata),
            "fields": [one.field for one in error.violations],
        }
        if error.retry_after is not None:
            told["retry_after_ms"] = round(error.retry_after * 1000)
        return Refused({key: value for key, value in told.items() if value})
    if isinstance(error, TransportError):
        return Refused({"code": error.code.name, "message": error.message})
    raise error


@dataclass(slots=True)
class _Exchange:
    """What a scenario asks for, and the answer that the client was given."""

    asked: Message
    answer: Message | None = None

    def told(self, method: str, record: Any) -> Message:
        """Returns the answer, which the record of the client must agree with."""
        if self.answer is None:
            raise AssertionError(f"the client made no call of {method}")
        wrong = of_answer(record, self.answer)
        if wrong:
            raise AssertionError(f"the client tells another answer: {wrong}")
        return self.answer


_EXCHANGE: Final[ContextVar[_Exchange | None]] = ContextVar("exchange", default=None)


@contextlib.contextmanager
def exchange(asked: Message) -> Iterator[_Exchange]:
    """Looks at the call that is made in this block."""
    seen = _Exchange(asked)
    token = _EXCHANGE.set(seen)
    try:
        yield seen
    finally:
        _EXCHANGE.reset(token)


class ClientBinding:
    """One client of its own connection."""

    def __init__(self, target: str, client: Client | None = None) -> None:
        self._client = client or Client(target, client_name="conformance", reconnect_timeout=10)
        self._caller = self._client._caller  # noqa: SLF001 - its messages are what is compared
        self._send = self._caller.unary
        self._caller.unary = self._heard  # type: ignore[method-assign]

    async def call(self, method: str, request: Any, *, raw: bool) -> Any:
        """Makes a call, as the client makes its calls."""
        stub, described = METHODS[method]
        send = getattr(getattr(self._caller.stubs, stub), method)
        try:
            if described.client_streaming:
                messages = [to_message(described, one) for one in request]
                return to_json(await send(iter(messages), metadata=self._caller.metadata))
            message = to_message(described, request)
            if described.server_streaming:
                return await self._merged(send, described, message)
            if raw or type(message) not in POLICIES:
                answer = send(message, timeout=STREAM_SECONDS, metadata=self._caller.metadata)
                return to_json(await answer)
            return to_json(await self._spoken(method, send, message))
        except grpc.aio.AioRpcError as error:
            raise refusal(from_rpc_error(error)) from None
        except RunlaneError as error:
            raise refusal(error) from None

    async def _spoken(self, method: str, send: Any, message: Message) -> Message:
        """Makes a call by the client's verb, and compares what it sends and returns."""
        with exchange(message) as seen:
            call = VERBS[method](self._client, message) if method in VERBS else None
            if call is None:
                answer: Message = await self._caller.unary(send, message)
                return answer
            record = await call
        return seen.told(method, record)

    async def _heard(self, method: Any, request: Message, **options: Any) -> Any:
        """Stands in the place of the client's own call, to see what passes."""
        seen = _EXCHANGE.get()
        if seen is None or request.DESCRIPTOR is not seen.asked.DESCRIPTOR:
            return await self._send(method, request, **options)
        wrong = lacking(seen.asked, request)
        if wrong:
            raise AssertionError(f"the client sends another {wrong}")
        seen.answer = await self._send(method, request, **options)
        return seen.answer

    async def _merged(self, send: Any, described: MethodDescriptor, message: Message) -> Any:
        """Reads a stream that ends by itself; its frames are merged into one."""
        merged = GetMessageClass(described.output_type)()
        frames = send(message, timeout=STREAM_SECONDS, metadata=self._caller.metadata)
        async for frame in frames:
            merged.MergeFrom(frame)
        return to_json(merged)

    async def pages(self, method: str, request: Any) -> Any:
        """Reads a list to its end, page by page."""
        return await all_pages(self, method, request)

    def open(self, method: str, request: Any) -> AsyncIterator[Any]:
        """Opens a stream of items."""
        if method == "StreamEvents":
            return self._events(request)
        return self._frames(method, request)

    async def _events(self, request: Mapping[str, Any]) -> AsyncIterator[Any]:
        _, described = METHODS["StreamEvents"]
        message: Any = to_message(described, {"follow": True, **request})
        made = opened(self._client, message)
        wrong = lacking(message, made._request)  # noqa: SLF001 - what it would send
        if wrong:
            raise AssertionError(f"the client sends another {wrong}")
        stream = Recorded(self._caller, message, reconnect_timeout=10)
        try:
            async for item in stream:
                yield stream.told(item)
        except RunlaneError as error:
            raise refusal(error) from None
        finally:
            await stream.aclose()

    async def _frames(self, method: str, request: Mapping[str, Any]) -> AsyncIterator[Any]:
        stub, described = METHODS[method]
        send = getattr(getattr(self._caller.stubs, stub), method)
        call = send(
            to_message(described, request),
            timeout=STREAM_SECONDS,
            metadata=self._caller.metadata,
        )
        try:
            async for frame in call:
                for item in _items(to_json(frame)):
                    yield item
        except grpc.aio.AioRpcError as error:
            raise refusal(from_rpc_error(error)) from None
        finally:
            call.cancel()

    async def aclose(self) -> None:
        """Ends the connection."""
        await asyncio.shield(self._client.aclose())


async def all_pages(binding: Binding, method: str, request: Any) -> Any:
    """Reads a list to its end, page by page."""
    merged: dict[str, list[Any]] = {}
    token = ""
    while True:
        page = await binding.call(method, {**request, "page_token": token}, raw=False)
        token = page.pop("next_page_token", "")
        for field, items in page.items():
            if len(items) > request.get("page_size", 50):
                raise AssertionError(f"a page of {len(items)} {field}")
            merged.setdefault(field, []).extend(items)
        if not token:
            return merged


def opened(client: Any, message: Any) -> Any:
    """Opens an event stream by the client's verb, which stands for a request."""
    start = {"last_events": message.last_events} if message.HasField("last_events") else {}
    return client.events(
        message.session_id,
        after_sequence=message.after_sequence,
        follow=message.follow,
        run_ids=message.run_ids,
        types=[event_word(number) for number in message.types],
        include_messages=message.include_messages,
        include_deltas=message.include_deltas,
        include_control=message.include_control,
        **start,
    )


def _items(frame: Mapping[str, Any]) -> list[Any]:
    """Takes a frame apart: {"events": [a, b]} is {"event": a}, {"event": b}."""
    items: list[Any] = []
    for field, value in frame.items():
        if isinstance(value, list):
            items += [{field.removesuffix("s"): one} for one in value]
        else:
            items.append({field: value})
    return items


class Recorded(EventStream):
    """A stream of the client that keeps the messages behind what it yields."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._events: dict[int, Message] = {}
        self._deltas: deque[Message] = deque()
        self._controls: deque[Message] = deque()

    def _take(self, frame: Any) -> None:
        if frame is not grpc.aio.EOF:
            self._events.update({one.sequence: one for one in frame.batch.events})
            self._deltas.extend(frame.deltas.deltas)
            if frame.HasField("control"):
                self._controls.append(frame.control)
        super()._take(frame)

    def told(self, item: Any) -> Any:
        """Returns what was yielded, as a scenario sees it."""
        kind = type(item).__name__
        if kind == "Delta":
            return {"delta": to_json(self._deltas.popleft())}
        if kind == "Control":
            return {"control": to_json(self._controls.popleft())}
        event = self._events.pop(item.sequence)
        wrong = of_event(item, event)
        if wrong:
            raise AssertionError(f"the client tells another event: {wrong}")
        return {"event": to_json(event)}
