"""Agents of the server: whatever ends one, it is tried again until the drain."""

import asyncio

import pytest
from runlane import ToolError
from runlane_server.executors import EMBEDDED_PREFIX, EmbeddedExecutor
from runlane_server.executors import embedded as module
from runlane_server.settings import AgentConfig, ScriptedModelConfig
from structlog.testing import capture_logs

pytestmark = pytest.mark.asyncio


async def test_the_pause_grows_to_half_a_minute_and_stays_there():
    pauses = [module._pause(attempt) for attempt in range(2000)]
    assert pauses[:6] == [1, 2, 4, 8, 16, 30]
    assert set(pauses[5:]) == {30}


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ToolError("no MCP server"), "embedded_executor_waits"),
        (ValueError("two tools of one name"), "embedded_executor_failed"),
        (RuntimeError("a fault"), "embedded_executor_failed"),
    ],
)
async def test_an_agent_whose_executor_ends_is_tried_again(monkeypatch, error, line):
    monkeypatch.setattr(module, "_pause", lambda _: 0)
    agent = AgentConfig(name="a", model=ScriptedModelConfig(kind="scripted"))
    it = EmbeddedExecutor("unix:/nowhere", [agent], f"{EMBEDDED_PREFIX}1")
    made = []
    up, over = asyncio.Event(), asyncio.Event()

    class Ends:
        """An executor that is up at the third attempt."""

        executor_id = "e"

        def __init__(self) -> None:
            made.append(self)

        async def run(self) -> None:
            if len(made) == 3:
                up.set()
                await over.wait()
                return
            raise error

        async def drain(self) -> None:
            over.set()

        async def aclose(self, *, release: bool) -> None:
            pass

    monkeypatch.setattr(it, "_make", lambda *_: Ends())
    with capture_logs() as lines:
        await it.start()
        async with asyncio.timeout(10):
            await up.wait()
            await it.drain(1)
    assert [one["event"] for one in lines] == [line] * 2


async def test_an_agent_that_an_operator_drained_stays_so(monkeypatch):
    agent = AgentConfig(name="a", model=ScriptedModelConfig(kind="scripted"))
    it = EmbeddedExecutor("unix:/nowhere", [agent], f"{EMBEDDED_PREFIX}1")
    made = []

    class Drained:
        executor_id = "e"

        async def run(self) -> None:
            made.append(self)

        async def drain(self) -> None:
            pass

        async def aclose(self, *, release: bool) -> None:
            pass

    monkeypatch.setattr(it, "_make", lambda *_: Drained())
    await it.start()
    async with asyncio.timeout(10):
        await asyncio.wait(it._tasks)
    await it.drain(1)
    assert len(made) == 1
