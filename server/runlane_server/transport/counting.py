"""Counts calls, and knows which one is being served: one wrapper more around each handler."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from runlane_server.runtime.stats import Stats

# A context gives the code that it was given: as one of these, or as a number. None: OK.
_NAMES: dict[Any, str] = {
    None: "OK",
    **{code.value[0]: code.name for code in grpc.StatusCode},
    **{code: code.name for code in grpc.StatusCode},
}
_IDS = (
    "request_id",
    "session_id",
    "run_id",
    "activation_id",
    "submission_id",
    "interaction_id",
    "executor_id",
)
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")

Handle = Callable[[Any, Any], Awaitable[Any]]

_call: ContextVar[tuple[MethodDescriptor, Any] | None] = ContextVar("call", default=None)


def counted(
    stats: Stats, method: MethodDescriptor, handle: Handle, *, unary: bool = False
) -> Handle:
    """Returns a handler that counts how its calls ended, and how long unary ones took."""
    clock, name = time.perf_counter, method.name

    async def count(request: Any, context: Any) -> Any:
        start = clock()
        _call.set((method, request))
        code = "CANCELLED"
        try:
            answer = await handle(request, context)
            code = code_of(context)
            return answer
        except asyncio.CancelledError:
            raise
        except BaseException:
            code = "UNKNOWN"
            raise
        finally:
            stats.called(name, code, clock() - start if unary else None)

    return count


def code_of(context: Any) -> str:
    """Returns the name of the status code that a context was given."""
    return _NAMES.get(context.code(), "UNKNOWN")


def call_ids() -> dict[str, str]:
    """Returns what the call that is being served is about, for a line of the log.

    Ids alone, and only well-formed ones: the request may not have been looked at yet.
    """
    call = _call.get()
    if call is None or not isinstance(call[1], bytes):
        return {}
    try:
        request = GetMessageClass(call[0].input_type).FromString(call[1])
    except DecodeError:
        return {}
    found = ids_of(request)
    if "fence" in request.DESCRIPTOR.fields_by_name:
        found |= ids_of(getattr(request, "fence"))  # noqa: B009 - of any request
    return found


def ids_of(message: Message) -> dict[str, str]:
    """Returns the well-formed ids that a message has in fields of its own."""
    given = ((name, getattr(message, name, None)) for name in _IDS)
    return {name: value for name, value in given if isinstance(value, str) and _ID.fullmatch(value)}
