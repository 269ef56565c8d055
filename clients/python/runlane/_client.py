"""The client."""

import asyncio
import time
from pathlib import Path
from typing import Final, Self

import grpc.aio

from runlane._access import Tls, call_metadata, channel_credentials
from runlane._access_calls import AccessCalls
from runlane._archive_calls import ArchiveCalls
from runlane._calls import Caller
from runlane._content import Input
from runlane._control_calls import ControlCalls
from runlane._convert import Options
from runlane._enums import RunEventKind, SubmissionEventKind
from runlane._history_calls import HistoryCalls, ended
from runlane._run_models import RunResult
from runlane._session_calls import SessionCalls
from runlane.v1 import run_pb2

# What a wait for a stop looks at a run again for.
_STOPS: Final = (
    RunEventKind.RUN_WAITING,
    RunEventKind.RUN_PAUSED,
    RunEventKind.RUN_TERMINAL,
    RunEventKind.INTERACTION_OPENED,
    SubmissionEventKind.SUBMISSION_MOVED,
    SubmissionEventKind.SUBMISSION_FAILED,
    SubmissionEventKind.SUBMISSION_WITHDRAWN,
)
# Seconds between looks at an id that is reserved in a session that the caller did not name.
_LOOK: Final = 1.0


class Client(SessionCalls, ControlCalls, HistoryCalls, ArchiveCalls, AccessCalls):
    """A connection to a Runlane server; safe to share by all tasks of one event loop.

    Each call has a deadline. A call that finds the server away is made again with the same
    request id until then, so that it happens once. The connection is opened at the first
    call.

        async with Client("127.0.0.1:7480") as client:
            result = await client.start("hello", "main")
            print(result.text)

    Args:
        target: Where the server is, such as `127.0.0.1:7480` or `unix:/run/runlane.sock`.
        api_key: The secret of an API key, or a token of the issuer that the server trusts;
            None: what `RUNLANE_API_KEY` holds; empty: none. It is sent in clear to this
            machine and over TLS alone, unless `tls` is False.
        namespace: For a key that opens more than one; empty: the one that it opens.
        tls: How the connection is secured. True: against the authorities of this machine. The
            path of a file: against those in it, PEM. A `Tls`: also with a certificate of the
            client's own. None or False: not at all.
        timeout: Seconds that a call may take, its repeats included and the wait that it
            asks for not.
        client_name: Names the caller in the `actor` of events; empty: no name.
        reconnect_timeout: Seconds that a stream tries for a lost connection.
        keepalive: Seconds of silence, while a call is open, after which the server is asked for
            a sign of life: 5 or more. A server, or a connection, that gives none within 5 s
            counts as lost. The default keeps a lease of 30 s over a connection that died
            without a word, and satisfies proxies that drop idle connections.
        channel: Use this channel, and leave it open, instead of opening one.

    Raises:
        ValueError: `keepalive` is too short, or the key would be sent where others could read it.
    """

    def __init__(
        self,
        target: str = "127.0.0.1:7480",
        *,
        api_key: str | None = None,
        namespace: str = "",
        tls: bool | str | Path | Tls | None = None,
        timeout: float = 30.0,
        client_name: str = "",
        reconnect_timeout: float = 60.0,
        keepalive: float = 10.0,
        channel: grpc.aio.Channel | None = None,
    ) -> None:
        self._caller = Caller(
            target,
            timeout=timeout,
            metadata=call_metadata(target, tls, api_key, namespace, client_name, channel),
            credentials=channel_credentials(tls),
            channel=channel,
            keepalive=keepalive,
        )
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

    async def wait_run(
        self,
        run_id: str,
        *,
        session_id: str = "",
        timeout: float | None = None,
        until: str = "terminal",
    ) -> RunResult:
        """Waits until a run has ended, or stopped; a reserved run id is waited for too.

        Args:
            run_id: The run.
            session_id: The session, to have it checked.
            timeout: Seconds to wait; None: without end. The run goes on either way.
            until: `terminal`, or `stopped` to return also where the run, or a child run of it,
                waits for an answer, or it was paused.

        Raises:
            TimeoutError: It has not come to that in time.
            ValueError: `until` is neither.
            RunNotFound: There is no such run.
            SubmissionSettled: The id was reserved, and its submission failed or was withdrawn.
        """
        if until == "terminal":
            return await self._wait_ended(run_id, session_id, timeout)
        if until != "stopped":
            raise ValueError(f"{until!r} is neither 'terminal' nor 'stopped'")
        try:
            async with asyncio.timeout(timeout):
                return await self._wait_stopped(run_id, session_id)
        except TimeoutError:
            raise TimeoutError(f"run {run_id} has not stopped within {timeout} s") from None

    async def _wait_stopped(self, run_id: str, session_id: str) -> RunResult:
        wait = 0.0
        while True:
            answer = await self._wait_call(run_id, session_id, wait)
            if answer.run.phase == run_pb2.Run.PHASE_TERMINAL:
                return ended(answer)
            session_id = session_id or answer.run.session_id
            if not session_id:
                wait = _LOOK
                continue
            # One read tells the run, what it waits for, and where to watch it from.
            state = await self.live_state(session_id, message_limit=0)
            run = state.run
            if run is None or run.run_id != run_id:
                if answer.HasField("run"):
                    # It ended between the two reads.
                    continue
            else:
                asked = [one for one in state.open_interactions if one.run_id == run_id]
                question = await self._whole(asked[0]) if asked else None
                if question is not None or (run.stopped and not asked):
                    return RunResult(run=run, output=None, interaction=question)
                if asked:
                    # It was answered between the two reads.
                    continue
            events = self.events(
                session_id, after_sequence=state.sequence, run_ids=[run_id], types=_STOPS
            )
            async with events:
                await anext(events, None)

    async def aclose(self) -> None:
        """Closes the connection; calls that go on end with `ClientClosedError`. Idempotent."""
        await self._caller.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()
