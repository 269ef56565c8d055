"""Tasks that live as long as the server."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

PAUSE_SECONDS = 1.0
"""How long a task rests that failed."""

TELL_SECONDS = 60.0
"""How often the log says that one fails and fails."""

_log = structlog.get_logger(__name__)


async def forever(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Does work that has no end, and begins it again where it fails: nobody waits for it.

    Args:
        name: What the log calls it.
        work: Goes on for ever, or is one round, which is not left without a wait.
    """
    loop = asyncio.get_running_loop()
    quiet_until = float("-inf")
    while True:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - who would hear of it?
            if loop.time() >= quiet_until:
                quiet_until = loop.time() + TELL_SECONDS
                with suppress(Exception):  # A log that takes no lines any more ends nothing.
                    _log.error(
                        "a task of the server failed, and is begun again", task=name, exc_info=error
                    )
            await asyncio.sleep(PAUSE_SECONDS)
