"""The handle of one session."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

from runlane._client import Client
from runlane._content import Input
from runlane._convert import Options, as_options
from runlane._enums import SubmissionState, SubmitMode
from runlane._events import EventStream
from runlane._manager_control import ManagerControl
from runlane._models import Interruption, LiveState, Receipt, Submission
from runlane._run_models import RunOptions, RunResult
from runlane._session_calls import event_request
from runlane.errors import (
    ManagerClosedError,
    RunlaneError,
    RunNotFound,
    SessionIdle,
    SessionNotFound,
    SubmissionNotFound,
    SubmissionSettled,
)
from runlane.v1 import session_service_pb2 as pb

# Inputs that are remembered as queued before it is looked which of them still are.
_QUEUED_ROOM: Final = 128


class SessionManager(ManagerControl):
    """Works on one session, which it makes on first use.

    Several managers, in one or many processes, may work on the same session at once: all
    state is the server's.

    Args:
        client: The client to call with.
        session_id: The session.
        agent: Agent of the runs that this manager starts, and default agent of the session
            where it is made here; None: as the session and the server say.
        options: Options of the runs that this manager starts, where a submit gives none.
    """

    def __init__(
        self,
        client: Client,
        session_id: str,
        agent: str | None = None,
        options: Options = None,
    ) -> None:
        self._client = client
        self._session_id = session_id
        self._agent = agent
        self._options = as_options(options)
        self._made: asyncio.Task[int] | None = None
        self._baselines: set[asyncio.Task[int]] = set()
        self._streams: set[EventStream] = set()
        self._submitting: set[asyncio.Task[Receipt]] = set()
        # Inputs that were pending when they were taken, for close(cancel_run=True).
        self._queued: dict[str, None] = {}
        self._queued_room = _QUEUED_ROOM
        self._closed = False

    @property
    def session_id(self) -> str:
        """The session."""
        return self._session_id

    async def submit(
        self,
        input: Input,  # noqa: A002 - the word of the contract
        mode: str | None = None,
        *,
        options: Options = None,
        on_miss: str | None = None,
        target_run_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        request_id: str | None = None,
    ) -> Receipt:
        """Gives the session an input.

        Args:
            input: A text, a block, or a sequence of them; not empty.
            mode: What is to happen while a run is live, a `SubmitMode` or its word; None:
                `start`, which needs an idle session.
            options: Options of the run that is started; None: the manager's.
            on_miss: What happens to a steer that misses its run, an `OnMiss` or its word.
            target_run_id: Only if this run is the live one.
            metadata: Entries of the application, kept with the message.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            SessionBusy: A run is live, and the mode is `start`.
            SessionIdle: No run is live, and the mode is `steer` or `follow_up`.
            SessionClosed: The session takes no input.
            QueueFull: A limit of pending input is reached.
            ManagerClosedError: This manager was closed.
        """
        self._check_open()
        call = asyncio.ensure_future(
            self._submit(
                input,
                mode,
                options=options,
                on_miss=on_miss,
                target_run_id=target_run_id,
                metadata=metadata,
                request_id=request_id,
            )
        )
        # It goes on where its caller is cancelled, and close(cancel_run=True) waits for it:
        # so it is always known what there is to take back.
        self._submitting.add(call)
        call.add_done_callback(self._submitting.discard)
        call.add_done_callback(_observe)
        return await asyncio.shield(call)

    async def _submit(
        self,
        input: Input,  # noqa: A002 - as above
        mode: str | None,
        *,
        options: Options,
        on_miss: str | None,
        target_run_id: str | None,
        metadata: Mapping[str, str] | None,
        request_id: str | None,
    ) -> Receipt:
        await self._ready()
        receipt = await self._client.submit(
            input,
            self._session_id,
            mode=mode,
            options=self._run_options(options, mode),
            on_miss=on_miss,
            target_run_id=target_run_id,
            metadata=metadata,
            request_id=request_id,
        )
        if receipt.state is SubmissionState.PENDING:
            self._queued[receipt.submission_id] = None
            if len(self._queued) > self._queued_room:
                await self._forget_settled()
        return receipt

    async def _forget_settled(self) -> None:
        """Forgets the inputs that are pending no more: nothing tells when they settle."""
        known = list(self._queued)
        # The input that led here was taken: a failure is none of it, and tried again later.
        with contextlib.suppress(RunlaneError):
            state = await self._client.live_state(self._session_id, message_limit=0)
            pending = {one.submission_id for one in state.pending}
            for submission_id in known:
                if submission_id not in pending:
                    self._queued.pop(submission_id, None)
        # Twice what is left: so a look costs little for each input, however many wait.
        self._queued_room = max(_QUEUED_ROOM, 2 * len(self._queued))

    def _run_options(self, options: Options, mode: str | None) -> RunOptions | None:
        given = as_options(options)
        if mode == SubmitMode.STEER:
            # A steer has no options of its own; the service refuses what the caller gave.
            return given
        chosen = given or self._options
        if self._agent is None or (chosen is not None and chosen.agent is not None):
            return chosen
        return (chosen or RunOptions()).model_copy(update={"agent": self._agent})

    async def run(
        self,
        input: Input,  # noqa: A002 - the word of the contract
        mode: str | None = None,
        *,
        options: Options = None,
        metadata: Mapping[str, str] | None = None,
        request_id: str | None = None,
        timeout: float | None = None,
        until: str = "terminal",
    ) -> RunResult:
        """Gives the session an input and waits until the run it steers or becomes has ended.

        Args:
            input: A text, a block, or a sequence of them; not empty.
            mode: As in `submit`.
            options: As in `submit`.
            metadata: As in `submit`.
            request_id: As in `submit`.
            timeout: Seconds to wait for the end; None: without end.
            until: As in `wait`.

        Raises:
            TimeoutError: The run has not ended in time; it goes on.
            SubmissionSettled: It waited for a run of its own, and failed or was withdrawn.
        """
        receipt = await self.submit(
            input, mode, options=options, metadata=metadata, request_id=request_id
        )
        return await self.wait(receipt.run_id, timeout=timeout, until=until)

    async def wait(
        self, run_id: str, *, timeout: float | None = None, until: str = "terminal"
    ) -> RunResult:
        """Waits until a run of the session has ended, or stopped.

        Args:
            run_id: The run; a reserved run id is waited for too.
            timeout: Seconds to wait; None: without end.
            until: `terminal`, or `stopped` to return also where the run waits for an answer
                or was paused.

        Raises:
            TimeoutError: It has not come to that in time.
            RunNotFound: There is no such run.
            SubmissionSettled: The id was reserved, and its submission failed or was withdrawn.
        """
        self._check_open()
        return await self._client.wait_run(
            run_id, session_id=self._session_id, timeout=timeout, until=until
        )

    async def snapshot(self, *, message_limit: int | None = None) -> LiveState:
        """Reads the session's live state: run, pending input, newest messages, commands.

        Args:
            message_limit: How many of the newest messages: at most 200; None: 50.
        """
        self._check_open()
        await self._ready()
        return await self._client.live_state(self._session_id, message_limit=message_limit)

    async def interrupt(
        self,
        run_id: str | None = None,
        reason: str = "",
        *,
        wait: float = 0.0,
        request_id: str | None = None,
    ) -> Interruption:
        """Asks for a run to be cancelled; next runs stay queued.

        Args:
            run_id: Only this run; None: whichever is live.
            reason: For people.
            wait: Seconds to wait for the run to end: 0 to 300.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            SessionIdle: No run is live, and no run_id was given.
            RunNotFound: There is no such run.
        """
        self._check_open()
        await self._ready()
        return await self._client.interrupt(
            self._session_id, run_id=run_id, reason=reason, wait=wait, request_id=request_id
        )

    async def withdraw(self, submission_id: str) -> Submission:
        """Takes back a pending input.

        Raises:
            SubmissionNotFound: There is no such submission.
            SubmissionSettled: It was delivered, or failed.
        """
        self._check_open()
        await self._ready()
        return await self._client.withdraw(submission_id, session_id=self._session_id)

    def events(
        self,
        after_sequence: int | None = None,
        *,
        run_ids: Iterable[str] = (),
        types: Iterable[str] = (),
        include_messages: bool = False,
        include_deltas: bool = False,
        include_control: bool = False,
        reconnect_timeout: float | None = None,
    ) -> EventStream:
        """Streams the session's events, from where it stands when this is called.

        Everything that this manager does after the call is seen: its other calls first let
        the server say where the session stands. Each call makes a reader of its own.

        Args:
            after_sequence: Start after this sequence instead; 0 is the first event.
            run_ids: Only events of these runs; ends after the last of them has ended.
            types: Only events of these kinds, members or dotted words.
            include_messages: Put the messages into their message.appended events.
            include_deltas: Also yield `Delta`, pieces of model answers on their way.
            include_control: Also yield `Control`, first and after each change.
            reconnect_timeout: Seconds without a connection after which to give up; None:
                the client's.

        Raises:
            ValueError: There is no such kind of event.
            ManagerClosedError: This manager was closed.
            RuntimeError: No event loop runs.
        """
        self._check_open()
        request = event_request(
            self._session_id,
            run_ids=run_ids,
            types=types,
            follow=True,
            include_messages=include_messages,
            include_deltas=include_deltas,
            include_control=include_control,
        )
        patience = reconnect_timeout
        if patience is None:
            patience = self._client._reconnect_timeout  # noqa: SLF001 - one package
        stream = EventStream(
            self._client._caller,  # noqa: SLF001 - as above
            request,
            baseline=self._baseline(after_sequence),
            reconnect_timeout=patience,
        )
        self._streams = {other for other in self._streams if not other.closed}
        self._streams.add(stream)
        return stream

    async def close(self, *, cancel_run: bool = False) -> None:
        """Detaches this manager: its streams end and it takes no more calls.

        The session, its run and what is queued stay as they are, for others to work on.

        Args:
            cancel_run: Also withdraw what this manager queued, interrupt the session's live
                run, whoever started it, and return when it has ended.

        Idempotent; after an error it can be called again and goes on where it failed. The
        streams end in either case.
        """
        self._closed = True
        try:
            if cancel_run:
                await self._cancel_all()
        finally:
            for stream in list(self._streams):
                await stream.aclose()
            self._streams.clear()
            for baseline in list(self._baselines):
                baseline.cancel()

    async def _cancel_all(self) -> None:
        if self._submitting:
            await asyncio.wait(self._submitting)
        for submission_id in list(self._queued):
            # Delivered, failed, or gone with its session: then there is nothing to take back.
            with contextlib.suppress(SubmissionSettled, SubmissionNotFound):
                await self._client.withdraw(submission_id, session_id=self._session_id)
            self._queued.pop(submission_id, None)
        try:
            asked = await self._client.interrupt(
                self._session_id, reason="the session manager was closed"
            )
            if not asked.settled:
                await self._client.wait_run(asked.run.run_id)
        except (SessionIdle, SessionNotFound, RunNotFound):
            # Nothing runs, or it was never begun, or it was deleted meanwhile.
            return

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ManagerClosedError(f"the manager of session {self._session_id} is closed")

    async def _ready(self) -> None:
        """Makes the session on first use, and lets streams that begin find their place."""
        await asyncio.shield(self._make())
        if self._baselines:
            await asyncio.wait(list(self._baselines))
        self._check_open()

    def _make(self) -> asyncio.Task[int]:
        made = self._made
        failed = made is not None and made.done() and (made.cancelled() or made.exception())
        if made is None or failed:
            made = self._made = asyncio.ensure_future(self._create())
            made.add_done_callback(_observe)
        return made

    async def _create(self) -> int:
        answer = await self._client._create_session(  # noqa: SLF001 - one package
            pb.CreateSessionRequest(
                session_id=self._session_id,
                default_agent=self._agent or "",
                if_exists=pb.CreateSessionRequest.IF_EXISTS_RETURN,
            )
        )
        return answer.sequence

    def _baseline(self, after_sequence: int | None) -> asyncio.Task[int]:
        fresh = self._made is None
        task = asyncio.ensure_future(self._find_baseline(after_sequence, fresh=fresh))
        if after_sequence is None:
            self._baselines.add(task)
            task.add_done_callback(self._baselines.discard)
        task.add_done_callback(_observe)
        return task

    async def _find_baseline(self, after_sequence: int | None, *, fresh: bool) -> int:
        made = await asyncio.shield(self._make())
        if after_sequence is not None:
            return after_sequence
        if fresh:
            return made
        return (await self._client.live_state(self._session_id, message_limit=0)).sequence


def _observe(task: asyncio.Task[Any]) -> None:
    """Marks the failure of a task as seen: whoever needs its result meets it there."""
    if not task.cancelled():
        task.exception()
