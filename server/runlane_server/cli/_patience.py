"""What is said to somebody who waits for a run that nobody works on."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import runlane
from runlane.errors import RunlaneError

from runlane_server.cli import _show

FIRST_LOOK = 5.0
"""Seconds until a run is looked at: an executor that is there, or just starts, has taken it."""
_LONGEST: Final = 30.0
_AGENTS_PAGE: Final = 1000


@asynccontextmanager
async def watching(client: runlane.Client, run_id: str) -> AsyncIterator[None]:
    """Says once, on stderr, that no executor polls for the agent of a run that is waited for."""
    task = asyncio.create_task(_tell(client, run_id))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _tell(client: runlane.Client, run_id: str) -> None:
    async for _ in every_moment():
        problem = await alone(client, run_id)
        if problem is not None:
            _show.complain(problem)
            return


async def every_moment() -> AsyncIterator[None]:
    """Yields after 5 s, and then again and again, ever more seldom."""
    pause = FIRST_LOOK
    while True:
        await asyncio.sleep(pause)
        yield
        pause = min(_LONGEST, 2 * pause)


async def alone(client: runlane.Client, run_id: str) -> str | None:
    """Returns what to say of a run that waits for an executor where none polls for its agent."""
    # What goes wrong here goes wrong where the run is waited for, too, and is told there. The id
    # of an input that waits for its turn is no run yet.
    with contextlib.suppress(RunlaneError):
        found = await client.get_run(run_id)
        activation = found.activation
        if activation is None or activation.state is not runlane.ActivationState.QUEUED:
            return None
        if not await _polled(client, found.agent):
            return f"no executor polls for agent {found.agent}: the run waits; see `runlane agents`"
    return None


async def _polled(client: runlane.Client, agent: str) -> bool:
    after: str | None = None
    while True:
        page = await client.list_agents(after=after, limit=_AGENTS_PAGE)
        for item in page.items:
            if item.name == agent:
                return item.executor_count > 0
        after = page.next_cursor
        if after is None:
            return False
