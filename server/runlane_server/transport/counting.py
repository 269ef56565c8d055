"""Counts calls: one wrapper more around each handler."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from runlane_server.runtime.stats import Stats

# A context gives the code that it was given: as one of these, or as a number. None: OK.
_NAMES: dict[Any, str] = {
    None: "OK",
    **{code.value[0]: code.name for code in grpc.StatusCode},
    **{code: code.name for code in grpc.StatusCode},
}

Handle = Callable[[Any, Any], Awaitable[Any]]


def counted(stats: Stats, method: str, handle: Handle, *, unary: bool = False) -> Handle:
    """Returns a handler that counts how its calls ended, and how long unary ones took."""
    clock = time.perf_counter

    async def count(request: Any, context: Any) -> Any:
        start = clock()
        code = "CANCELLED"
        try:
            answer = await handle(request, context)
            code = _NAMES.get(context.code(), "UNKNOWN")
            return answer
        except asyncio.CancelledError:
            raise
        except BaseException:
            code = "UNKNOWN"
            raise
        finally:
            stats.called(method, code, clock() - start if unary else None)

    return count
