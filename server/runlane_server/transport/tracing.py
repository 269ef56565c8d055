"""Traces of calls: one wrapper more around each handler, where somebody traces.

A trace is passed on whether or not the server takes part in it: the `traceparent` of a call
stands with the run that comes of it, and its executor is told. Nothing here knows who
records spans.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeAlias

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from runlane_server.transport.counting import call_ids, code_of, ids_of

TRACEPARENT: Final = "traceparent"
_FORM: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
# Made again and again while nothing happens: they show in the trace of a run, or nowhere.
_NO_ROOT: Final = frozenset({"PollActivation", "Heartbeat", "WatchActivation"})
# Answers are read for the ids of what they made; a large one holds more than that.
_ANSWER_BYTES_MAX: Final = 64 * 1024
_MADE: Final = ("session", "submission", "run")

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Handle: TypeAlias = Callable[[Any, Any], Awaitable[Any]]


class Span(Protocol):
    """The record of one call."""

    @property
    def traceparent(self) -> str:
        """What names it to those who go on with its work."""

    @property
    def recording(self) -> bool:
        """Whether anybody will see it."""

    def about(self, ids: dict[str, str], /) -> None:
        """Notes what the call is about."""

    def refused(self, reason: str, /) -> None:
        """Notes the reason of the contract why the call failed."""

    def ended(self, code: str, /) -> None:
        """Notes the name of the status code that the call ends with."""


class Tracing(Protocol):
    """Who records spans."""

    def call(self, service: str, method: str, parent: str, /) -> AbstractContextManager[Span]:
        """Begins the span of a call; `parent`: a traceparent, or empty."""


_span: ContextVar[Span | None] = ContextVar("span", default=None)


def well_formed(traceparent: object) -> str:
    """Returns the traceparent of a call's metadata; empty where it is none."""
    if isinstance(traceparent, str) and _FORM.fullmatch(traceparent):
        return traceparent
    return ""


def trace_of(incoming: str) -> str:
    """Returns the trace of the call that is being served: the server's own span, if any."""
    span = _span.get()
    return span.traceparent if span is not None else incoming


def tell_refusal(reason: str) -> None:
    """Notes in the span of the call that is being served, if any, why it is refused."""
    span = _span.get()
    if span is not None:
        span.refused(reason)


def traced(
    tracing: Tracing | None, method: MethodDescriptor, handle: Handle, *, unary: bool = False
) -> Handle:
    """Returns a handler whose calls are recorded; the handler itself where nobody records.

    Args:
        tracing: Who records.
        method: What is called.
        handle: The handler.
        unary: Whether it answers with one message.
    """
    if tracing is None:
        return handle
    service, name = method.containing_service.full_name, method.name
    answer_type = GetMessageClass(method.output_type) if unary else None

    async def trace(request: Any, context: Context) -> Any:
        parent = ""
        for key, value in context.invocation_metadata() or ():
            if key == TRACEPARENT:
                parent = well_formed(value)
        if not parent and name in _NO_ROOT:
            return await handle(request, context)
        with tracing.call(service, name, parent) as span:
            _span.set(span)
            if span.recording:
                span.about(call_ids())
            try:
                answer = await handle(request, context)
            except asyncio.CancelledError:
                span.ended("CANCELLED")
                raise
            if answer_type is not None and answer and span.recording:
                span.about(_made(answer, answer_type))
            span.ended(code_of(context))
            return answer

    return trace


def _made(answer: bytes, kind: type[Message]) -> dict[str, str]:
    """Returns the ids of what an answer says that a call made."""
    if len(answer) > _ANSWER_BYTES_MAX:
        return {}
    shown = kind.FromString(answer)
    found: dict[str, str] = {}
    for name in _MADE:
        if name in shown.DESCRIPTOR.fields_by_name and shown.HasField(name):
            found |= ids_of(getattr(shown, name))
    return found
