"""The client."""

import time
from typing import Self

import grpc.aio

from runlane._calls import Caller
from runlane._content import Input
from runlane._convert import Options
from runlane._history_calls import HistoryCalls
from runlane._models import RunResult
from runlane._session_calls import SessionCalls


class Client(SessionCalls, HistoryCalls):
    """A connection to a Runlane server; safe to share by all tasks of one event loop.

    Each call has a deadline. A call that finds the server away is made again with the same
    request id until then, so that it happens once. The connection is opened at the first
    call.

        async with Client("127.0.0.1:7480") as client:
            result = await client.start("hello", "main")
            print(result.text)

    Args:
        target: Where the server is, such as `127.0.0.1:7480` or `unix:/run/runlane.sock`.
        timeout: Seconds that a call may take, its repeats included and the wait that it
            asks for not.
        client_name: Names the caller in the `actor` of events; empty: no name.
        reconnect_timeout: Seconds that a stream tries for a lost connection.
        channel: Use this channel, and leave it open, instead of opening one.
    """

    def __init__(
        self,
        target: str = "127.0.0.1:7480",
        *,
        timeout: float = 30.0,
        client_name: str = "",
        reconnect_timeout: float = 60.0,
        channel: grpc.aio.Channel | None = None,
    ) -> None:
        self._caller = Caller(target, timeout=timeout, client_name=client_name, channel=channel)
        self._reconnect_timeout = reconnect_timeout

    async def start(
        self,
        input: Input,  # noqa: A002 - the word of the contract
        session_id: str | None = None,
        *,
        options: Options = None,
        timeout: float | None = None,
    ) -> RunResult:
        """Starts a run in an idle session and waits until it has ended.

        Args:
            input: A text, a block, or a sequence of them; not empty.
            session_id: The session, which is created where it does not exist; None: a new
                one.
            options: Options of the run, among them its agent.
            timeout: Seconds to wait for its end; None: without end.

        Raises:
            SessionBusy: A run is live in the session.
            SessionClosed: The session takes no input.
            TimeoutError: The run has not ended in time; it goes on.
        """
        end = None if timeout is None else time.monotonic() + timeout
        receipt = await self.submit(input, session_id, options=options, create=True)
        left = None if end is None else max(0.0, end - time.monotonic())
        return await self.wait_run(receipt.run_id, timeout=left)

    async def aclose(self) -> None:
        """Closes the connection; calls that go on end with `ClientClosedError`. Idempotent."""
        await self._caller.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()
