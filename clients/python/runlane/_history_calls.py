"""The calls of a client that HistoryService answers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

import grpc.aio

from runlane import _convert as convert
from runlane._calls import Caller
from runlane._content import Message, message_from_pb
from runlane._enums import (
    MessageRole,
    RunPhase,
    SessionOrder,
    SessionState,
    SubmissionState,
    event_type,
    number_of,
)
from runlane._event_convert import event_from_pb
from runlane._event_models import AnyEvent
from runlane._models import Page, Session, Submission
from runlane._retry import STREAM_DEADLINE, delay, reopenable
from runlane._run_models import Run, RunResult
from runlane._time import to_duration, to_timestamp
from runlane.errors import from_rpc_error
from runlane.v1 import event_pb2, message_pb2, run_pb2, session_pb2, submission_pb2
from runlane.v1 import history_service_pb2 as pb

# One WaitRun waits this long; a wait that lasts longer is made of several.
_WAIT = 60.0


class HistoryCalls:
    """Lists, runs and messages."""

    _caller: Caller
    _reconnect_timeout: float

    async def list_sessions(
        self,
        *,
        after: str | None = None,
        limit: int = 50,
        labels: Mapping[str, str] | None = None,
        state: str | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        roots_only: bool = False,
        order: str = "created_desc",
    ) -> Page[Session]:
        """Lists sessions.

        Args:
            after: The `next_cursor` of the page before; None: the first page.
            limit: How many; above 1,000 cut to it.
            labels: Only sessions with all these labels.
            state: Only sessions in this state, a `SessionState` or its word.
            created_from: Only sessions created at this time or later.
            created_before: Only sessions created before this time.
            roots_only: Only sessions that are neither forks nor of child runs.
            order: A `SessionOrder` or its word.

        Raises:
            PageTokenMismatch: The cursor belongs to other arguments.
        """
        request = pb.ListSessionsRequest(
            page_size=limit,
            page_token=after or "",
            labels=labels,
            state=session_pb2.Session.State.ValueType(
                number_of(SessionState, state) if state else 0
            ),
            create_time_from=to_timestamp(created_from) if created_from else None,
            create_time_before=to_timestamp(created_before) if created_before else None,
            roots_only=roots_only,
            order=pb.ListSessionsRequest.Order.ValueType(number_of(SessionOrder, order)),
        )
        answer = await self._caller.unary(self._caller.stubs.history.ListSessions, request)
        return convert.page(map(convert.session, answer.sessions), answer.next_page_token)

    async def list_runs(
        self,
        session_id: str,
        *,
        after: str | None = None,
        limit: int = 50,
        phases: Iterable[str] = (),
    ) -> Page[Run]:
        """Lists the runs of a session, ascending by creation.

        Args:
            session_id: The session.
            after: The `next_cursor` of the page before; None: the first page.
            limit: How many; above 1,000 cut to it.
            phases: Only runs in these phases, `RunPhase` or its words.

        Raises:
            SessionNotFound: There is no such session.
        """
        request = pb.ListRunsRequest(
            session_id=session_id,
            page_size=limit,
            page_token=after or "",
            phases=[run_pb2.Run.Phase.ValueType(number_of(RunPhase, phase)) for phase in phases],
        )
        answer = await self._caller.unary(self._caller.stubs.history.ListRuns, request)
        return convert.page(map(convert.run, answer.runs), answer.next_page_token)

    async def list_child_runs(
        self, run_id: str, *, after: str | None = None, limit: int = 50
    ) -> Page[Run]:
        """Lists the direct child runs of a run, ascending by creation.

        Args:
            run_id: The parent.
            after: The `next_cursor` of the page before; None: the first page.
            limit: How many; above 1,000 cut to it.

        Raises:
            RunNotFound: There is no such run.
        """
        request = pb.ListChildRunsRequest(run_id=run_id, page_size=limit, page_token=after or "")
        answer = await self._caller.unary(self._caller.stubs.history.ListChildRuns, request)
        return convert.page(map(convert.run, answer.runs), answer.next_page_token)

    async def get_run(self, run_id: str, *, session_id: str = "") -> Run:
        """Reads a run.

        Raises:
            RunNotFound: There is no such run; also of a reserved run id.
        """
        answer = await self._caller.unary(
            self._caller.stubs.history.GetRun,
            pb.GetRunRequest(run_id=run_id, session_id=session_id),
        )
        return convert.run(answer.run)

    async def _wait_ended(self, run_id: str, session_id: str, timeout: float | None) -> RunResult:
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _WAIT if end is None else min(_WAIT, max(0.0, end - time.monotonic()))
            answer = await self._wait_call(run_id, session_id, left)
            if answer.run.phase == run_pb2.Run.PHASE_TERMINAL:
                return ended(answer)
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"run {run_id} has not ended within {timeout} s")

    async def _wait_call(self, run_id: str, session_id: str, wait: float) -> pb.WaitRunResponse:
        return await self._caller.unary(
            self._caller.stubs.history.WaitRun,
            pb.WaitRunRequest(
                run_id=run_id,
                session_id=session_id,
                wait_duration=to_duration(wait),
                include_output=True,
            ),
        )

    async def list_submissions(
        self,
        session_id: str,
        *,
        after: str | None = None,
        limit: int = 50,
        states: Iterable[str] = (),
    ) -> Page[Submission]:
        """Lists the submissions of a session, ascending by acceptance.

        Args:
            session_id: The session.
            after: The `next_cursor` of the page before; None: the first page.
            limit: How many; above 1,000 cut to it.
            states: Only submissions in these states, `SubmissionState` or its words.

        Raises:
            SessionNotFound: There is no such session.
        """
        request = pb.ListSubmissionsRequest(
            session_id=session_id,
            page_size=limit,
            page_token=after or "",
            states=[
                submission_pb2.Submission.State.ValueType(number_of(SubmissionState, state))
                for state in states
            ],
        )
        answer = await self._caller.unary(self._caller.stubs.history.ListSubmissions, request)
        return convert.page(map(convert.submission, answer.submissions), answer.next_page_token)

    async def list_events(
        self,
        session_id: str | None = None,
        *,
        run_id: str | None = None,
        after_sequence: int = 0,
        types: Iterable[str] = (),
        include_messages: bool = False,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[AnyEvent]:
        """Lists events, ascending, of a session or of one run.

        Args:
            session_id: The session; exactly one of it and `run_id` is given.
            run_id: The run.
            after_sequence: After this sequence of the session; 0 is the first event.
            types: Only events of these kinds, members or dotted words.
            include_messages: Put the messages into their message.appended events.
            after: The `next_cursor` of the page before; None: the first page.
            limit: How many; above 1,000 cut to it.

        Raises:
            ValueError: Both or neither of session_id and run_id were given.
            SessionNotFound: There is no such session.
            RunNotFound: There is no such run.
        """
        if bool(session_id) == bool(run_id):
            raise ValueError("give either session_id or run_id")
        request = pb.ListEventsRequest(
            page_size=limit,
            page_token=after or "",
            after_sequence=after_sequence,
            types=[event_pb2.Event.Type.ValueType(event_type(kind)) for kind in types],
            include_messages=include_messages,
        )
        if run_id:
            request.run_id = run_id
        else:
            request.session_id = session_id or ""
        answer = await self._caller.unary(self._caller.stubs.history.ListEvents, request)
        return convert.page(map(event_from_pb, answer.events), answer.next_page_token)

    async def list_messages(
        self,
        session_id: str,
        *,
        after_number: int | None = None,
        before_number: int | None = None,
        roles: Iterable[str] = (),
        after: str | None = None,
        limit: int = 50,
    ) -> Page[Message]:
        """Lists messages of a session.

        Args:
            session_id: The session.
            after_number: Ascending, after this number; the default, from the first.
            before_number: Descending, before this number; 0 is the newest message.
            roles: Only messages of these roles, `MessageRole` or its words.
            after: The `next_cursor` of the page before; None: the first page.
            limit: How many; above 1,000 cut to it.

        Raises:
            ValueError: Both after_number and before_number were given.
            SessionNotFound: There is no such session.
        """
        if after_number is not None and before_number is not None:
            raise ValueError("give either after_number or before_number")
        request = pb.ListMessagesRequest(
            page_size=limit,
            page_token=after or "",
            session_id=session_id,
            roles=[
                message_pb2.Message.Role.ValueType(number_of(MessageRole, role)) for role in roles
            ],
        )
        if before_number is not None:
            request.before_number = before_number
        elif after_number is not None:
            request.after_number = after_number
        answer = await self._caller.unary(self._caller.stubs.history.ListMessages, request)
        return convert.page(map(message_from_pb, answer.messages), answer.next_page_token)

    async def stream_messages(
        self, session_id: str, *, after_number: int = 0
    ) -> AsyncIterator[Message]:
        """Streams messages of a session up to the last one, ascending.

        Goes on after the last message where a connection is lost.

        Args:
            session_id: The session.
            after_number: After this number; 0 is the first message.

        Yields:
            The messages.

        Raises:
            SessionNotFound: There is no such session.
        """
        last = after_number

        def request() -> pb.StreamMessagesRequest:
            return pb.StreamMessagesRequest(session_id=session_id, after_number=last)

        stubs = self._caller.stubs
        async for frame in self._frames(stubs.history.StreamMessages, request):
            for message in frame.messages:
                last = message.number
                yield message_from_pb(message)

    async def _frames(
        self, method: Callable[..., Any], request: Callable[[], Any]
    ) -> AsyncIterator[Any]:
        """Yields the frames of a stream, which is opened again with a new request."""
        connected, failures = False, 0
        # A stream may be silent for long: patience is counted from its loss.
        lost_since: float | None = None
        while True:
            call = method(request(), timeout=STREAM_DEADLINE, metadata=self._caller.metadata)
            try:
                async for frame in call:
                    connected, failures, lost_since = True, 0, None
                    yield frame
                return
            except grpc.aio.AioRpcError as error:
                failure = from_rpc_error(error)
            except asyncio.CancelledError:
                self._caller.raise_if_closed()
                raise
            finally:
                call.cancel()
            failures += 1
            pause = delay(failures, failure)
            now = time.monotonic()
            lost_since = now if lost_since is None else lost_since
            late = now + pause - lost_since > self._reconnect_timeout
            if late or not reopenable(failure, connected=connected):
                raise failure
            await asyncio.sleep(pause)


def ended(answer: pb.WaitRunResponse) -> RunResult:
    """Reads a run that has ended."""
    output = message_from_pb(answer.output) if answer.HasField("output") else None
    return RunResult(run=convert.run(answer.run), output=output)
