"""Waits for other systems: the token is handed to the tool once the run waits."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

from runlane._executor.content import clean
from runlane._executor.lease import OUTAGE, PARTING, Lease
from runlane.errors import RunlaneError
from runlane.v1 import interaction_pb2, message_pb2
from runlane.v1 import session_service_pb2 as session_pb

_LOG = logging.getLogger("runlane.executor")
_ERROR_BYTES: Final = 4096
_OPEN: Final = "the executor stopped; whether the other system was reached is open"


async def hand_over(
    lease: Lease, token: str, start: Coroutine[Any, Any, message_pb2.ToolResult]
) -> None:
    """Runs what takes the token to the other system.

    Where that fails, nobody else can complete the wait: so it is completed here, with the
    error, and the run goes on. The lease is over by now; a stop of the executor ends this.

    Args:
        lease: The lease, of which the call and the fence are used.
        token: The token.
        start: Runs the tool; its result counts only where it is an error.
    """
    task = asyncio.create_task(start)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        await lease.stop([task])
        if lease.release_on_cancel:
            await _settle(lease, token, _problem(task), PARTING)
        raise
    await _settle(lease, token, _problem(task), OUTAGE)


async def give_up(lease: Lease, token: str) -> None:
    """Completes a wait whose token reached nobody, since the executor stops."""
    await _settle(lease, token, _OPEN, PARTING)


def _problem(task: "asyncio.Task[message_pb2.ToolResult]") -> str:
    """Returns what went wrong; empty where nothing did."""
    if not task.done() or task.cancelled():
        return _OPEN
    result = task.result()
    if result.outcome == message_pb2.ToolResult.OUTCOME_OK:
        return ""
    told = "\n".join(block.text for block in result.content if block.text)
    return clean(told, _ERROR_BYTES) or "the tool failed"


async def _settle(lease: Lease, token: str, problem: str, timeout: float) -> None:
    if not problem:
        return
    request = session_pb.CompleteExternalRequest(
        token=token, answer=interaction_pb2.ExternalAnswer(error=problem)
    )
    try:
        await lease.caller.unary(
            lease.caller.stubs.sessions.CompleteExternal, request, timeout=timeout
        )
    except RunlaneError as error:
        # The other system may have been quicker, or the run has ended.
        _LOG.warning(
            "an external wait of run %s stays as it is: %s",
            lease.fence.run_id,
            error,
            extra=lease.ids,
        )
