"""Models that block, as the executor asks them."""

import asyncio
import contextlib
import threading

import pytest
from runlane import Model, ModelDelta, ModelError, ModelRequest, ModelResponse, StreamingModel, sync
from runlane._executor.tools import ToolContext
from runlane.sync._agents import _PIECES, twins

SOON = 10
# Made without its fields: no model here looks at it.
REQUEST = ModelRequest.__new__(ModelRequest)


class Pieces:
    """Tells where it runs, and whether it was closed."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count, self.error = count, error
        self.threads: set[str] = set()
        self.closed = threading.Event()
        self.asked = 0

    def stream(self, request):
        try:
            for number in range(self.count):
                self.threads.add(threading.current_thread().name)
                self.asked += 1
                yield ModelDelta(text=str(number))
            if self.error is not None:
                raise self.error
            yield ModelResponse(text="all")
        finally:
            self.closed.set()


def streaming(model):
    made = twins(sync.Agent("one", model=model)).model
    assert isinstance(made, StreamingModel)
    return made


@pytest.mark.asyncio
async def test_pieces_come_in_order_from_one_thread_of_their_own():
    model = Pieces(200)
    got = [piece async for piece in streaming(model).stream(REQUEST)]
    assert [piece.text for piece in got] == [*map(str, range(200)), "all"]
    assert model.threads == {"runlane-model"}
    assert model.closed.is_set()


@pytest.mark.asyncio
async def test_what_a_model_raises_is_raised():
    with pytest.raises(ModelError, match="away"):
        async for _ in streaming(Pieces(1, ModelError("unavailable", "away"))).stream(REQUEST):
            pass


@pytest.mark.asyncio
async def test_a_stream_that_is_left_is_closed_and_never_runs_far_ahead():
    model = Pieces(100_000)
    stream = streaming(model).stream(REQUEST)
    assert (await anext(stream)).text == "0"
    await stream.aclose()
    assert await asyncio.to_thread(model.closed.wait, SOON)
    assert model.asked <= _PIECES + 3


@pytest.mark.asyncio
async def test_a_whole_answer_does_not_hold_up_the_loop():
    gate = threading.Event()

    class Slow:
        def complete(self, request):
            assert gate.wait(SOON)
            return ModelResponse(text="late")

    model: Model = twins(sync.Agent("one", model=Slow())).model
    assert not isinstance(model, StreamingModel)
    answer = asyncio.ensure_future(model.complete(REQUEST))
    done, _ = await asyncio.wait({answer}, timeout=0)
    assert not done
    gate.set()
    assert (await answer).text == "late"


@pytest.mark.asyncio
async def test_a_compaction_blocks_a_thread_alone():
    main = threading.current_thread()
    seen = []

    def compact(request):
        seen.append(threading.current_thread())

    agent = twins(sync.Agent("one", model=Pieces(0), compact=compact))
    assert await agent.compact(REQUEST) is None
    assert seen != [main]
    assert twins(sync.Agent("one", model=Pieces(0))).compact is None


def test_agents_are_given_as_to_the_async_executor():
    one, two = sync.Agent("one", model=Pieces(0)), sync.Agent("two", model=Pieces(0), tools=[print])
    assert twins(one).name == "one"
    assert [agent.name for agent in twins([one, two])] == ["one", "two"]
    assert {name: agent.name for name, agent in twins({"x": two}).items()} == {"x": "two"}
    assert twins(two).tools == [print]
    with pytest.raises(ValueError, match="policy"):
        sync.Agent("one", model=Pieces(0), policies={"a": "maybe"})


def test_a_tool_may_not_call_a_client_that_would_wait_for_itself():
    """What makes a question runs in the loop: there the client refuses, and does not hang."""
    refused = []
    with sync.Client("127.0.0.1:1", timeout=0.1) as client:

        @sync.tool(agent="other")
        def delegate(topic: str) -> str:
            with contextlib.suppress(sync.TransportError):
                client.get_session(topic)
            return topic

        async def asked():
            try:
                delegate.ask({"topic": "x"}, ToolContext("a", "s", "r", "t", 1, 1))
            except RuntimeError as error:
                refused.append(str(error))

        client._portal.call(asked)
    assert "an event loop runs in this thread" in refused[0]
