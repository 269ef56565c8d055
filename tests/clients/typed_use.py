"""Never run: a type checker reads it, and finds the types that a user of the client sees."""

from collections.abc import AsyncIterator, Generator, Iterator
from typing import assert_type

import runlane
from runlane import sync


class Blocking:
    """A model that does both."""

    def complete(self, request: runlane.ModelRequest) -> runlane.ModelResponse:
        return runlane.ModelResponse(text=request.messages[-1].text)

    def stream(
        self, request: runlane.ModelRequest
    ) -> Iterator[runlane.ModelDelta | runlane.ModelResponse]:
        yield runlane.ModelDelta(text="a")
        yield self.complete(request)


def blocking() -> None:
    with (
        sync.Client("127.0.0.1:7480", timeout=5) as client,
        sync.Executor(client, sync.Agent("one", model=Blocking())) as executor,
        sync.SessionManager(client, "main", agent="one") as manager,
        manager.events(include_deltas=True) as events,
    ):
        assert_type(client, sync.Client)
        assert_type(executor.drain(), None)
        assert_type(client.start("hello"), runlane.RunResult)
        assert_type(client.list_sessions(), runlane.Page[runlane.Session])
        assert_type(client.load_session_lane("main"), str | None)
        assert_type(client.events("main"), sync.EventStream)
        assert_type(manager.submit("hello", mode="steer"), runlane.Receipt)
        assert_type(manager.snapshot(), runlane.LiveState)
        assert_type(next(events), runlane.StreamItem)
        assert_type(next(client.feed()), runlane.FeedItem)
        history = sync.SessionHistory(client)
        assert_type(history.messages("main"), Generator[runlane.Message, None, None])
        assert_type(history.fork("run"), runlane.Fork)


async def awaiting() -> None:
    async with runlane.Client("127.0.0.1:7480", timeout=5) as client:
        assert_type(await client.start("hello"), runlane.RunResult)
        assert_type(await client.list_sessions(), runlane.Page[runlane.Session])
        assert_type(await anext(client.events("main")), runlane.StreamItem)
        history = runlane.SessionHistory(client)
        assert_type(history.messages("main"), AsyncIterator[runlane.Message])
        assert_type(await history.fork("run"), runlane.Fork)
