"""The calls of a client that SessionService and ServerService answer."""

from collections.abc import Iterable, Mapping

from runlane import _convert as convert
from runlane._calls import Caller
from runlane._content import Input, content_to_pb
from runlane._enums import OnMiss, SubmitMode, event_type, number_of
from runlane._events import EventStream
from runlane._models import (
    AgentStatus,
    Interruption,
    LiveState,
    Page,
    Receipt,
    ServerInfo,
    Session,
    Submission,
)
from runlane._time import to_duration
from runlane.v1 import event_pb2, server_service_pb2, submission_pb2
from runlane.v1 import session_service_pb2 as pb


class SessionCalls:
    """Sessions, input, control, live state and events."""

    _caller: Caller
    _reconnect_timeout: float

    async def create_session(
        self,
        session_id: str | None = None,
        *,
        display_name: str = "",
        labels: Mapping[str, str] | None = None,
        metadata_json: str = "",
        default_agent: str = "",
        if_exists: str = "error",
        request_id: str | None = None,
    ) -> Session:
        """Creates a session.

        Args:
            session_id: Its id; None: the server makes one.
            display_name: A name for people.
            labels: Labels to list sessions by.
            metadata_json: A JSON object of the application.
            default_agent: Agent of runs that name none.
            if_exists: `error`, or `return` to get a session that exists as it is.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            SessionExists: The id is taken; also by a deleted session.
        """
        answer = await self._create_session(
            pb.CreateSessionRequest(
                session_id=session_id or "",
                display_name=display_name,
                labels=labels,
                metadata_json=metadata_json,
                default_agent=default_agent,
                if_exists=pb.CreateSessionRequest.IfExists.Value(f"IF_EXISTS_{if_exists.upper()}"),
                request_id=request_id or "",
            )
        )
        return convert.session(answer.session)

    async def _create_session(self, request: pb.CreateSessionRequest) -> pb.CreateSessionResponse:
        return await self._caller.unary(self._caller.stubs.sessions.CreateSession, request)

    async def get_session(self, session_id: str) -> Session:
        """Reads a session.

        Raises:
            SessionNotFound: There is none, or it was deleted.
        """
        answer = await self._caller.unary(
            self._caller.stubs.sessions.GetSession, pb.GetSessionRequest(session_id=session_id)
        )
        return convert.session(answer.session)

    async def load_session_lane(self, session_id: str) -> str | None:
        """Returns the id of the live run; None while the session is idle.

        Raises:
            SessionNotFound: There is no such session.
        """
        return (await self.get_session(session_id)).current_run_id

    async def update_session(
        self,
        session_id: str,
        *,
        display_name: str | None = None,
        metadata_json: str | None = None,
        default_agent: str | None = None,
        set_labels: Mapping[str, str] | None = None,
        remove_labels: Iterable[str] = (),
        etag: str = "",
        request_id: str | None = None,
    ) -> Session:
        """Changes the record of a session; what is not given stays.

        Args:
            session_id: The session.
            display_name: New name.
            metadata_json: New JSON object.
            default_agent: New default agent.
            set_labels: Labels to set.
            remove_labels: Labels to remove.
            etag: Only if this is the session's etag.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            SessionNotFound: There is no such session.
            EtagMismatch: The record was changed since.
        """
        answer = await self._caller.unary(
            self._caller.stubs.sessions.UpdateSession,
            pb.UpdateSessionRequest(
                session_id=session_id,
                display_name=display_name,
                metadata_json=metadata_json,
                default_agent=default_agent,
                set_labels=set_labels,
                remove_labels=list(remove_labels),
                etag=etag,
                request_id=request_id or "",
            ),
        )
        return convert.session(answer.session)

    async def close_session(
        self, session_id: str, *, cancel_run: bool = False, request_id: str | None = None
    ) -> Session:
        """Closes a session: it takes no more input, from anybody, and fails what is pending.

        Args:
            session_id: The session.
            cancel_run: Also interrupt the live run.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            SessionNotFound: There is no such session.
        """
        answer = await self._caller.unary(
            self._caller.stubs.sessions.CloseSession,
            pb.CloseSessionRequest(
                session_id=session_id, cancel_run=cancel_run, request_id=request_id or ""
            ),
        )
        return convert.session(answer.session)

    async def reopen_session(self, session_id: str, *, request_id: str | None = None) -> Session:
        """Lets a closed session take input again.

        Raises:
            SessionNotFound: There is no such session.
        """
        answer = await self._caller.unary(
            self._caller.stubs.sessions.ReopenSession,
            pb.ReopenSessionRequest(session_id=session_id, request_id=request_id or ""),
        )
        return convert.session(answer.session)

    async def delete_session(
        self, session_id: str, *, force: bool = False, request_id: str | None = None
    ) -> None:
        """Deletes a session; its id is never free again, forks are unharmed.

        Args:
            session_id: The session.
            force: Also while a run is live, which ends with it.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            SessionNotFound: There is no such session.
            SessionLive: A run is live.
        """
        await self._caller.unary(
            self._caller.stubs.sessions.DeleteSession,
            pb.DeleteSessionRequest(
                session_id=session_id, force=force, request_id=request_id or ""
            ),
        )

    async def submit(
        self,
        input: Input,  # noqa: A002 - the word of the contract
        session_id: str | None = None,
        *,
        mode: str | None = None,
        options: convert.Options = None,
        on_miss: str | None = None,
        target_run_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
        expected_revision: int | None = None,
        create: bool = False,
        default_agent: str = "",
        request_id: str | None = None,
    ) -> Receipt:
        """Gives a session an input.

        Args:
            input: A text, a block, or a sequence of them; not empty.
            session_id: The session; None with `create`: the server makes an id.
            mode: What is to happen while a run is live, a `SubmitMode` or its word; None:
                `start`.
            options: Options of the run that is started.
            on_miss: What happens to a steer that misses its run, an `OnMiss` or its word;
                None: `fail`.
            target_run_id: Only if this run is the live one.
            metadata: Entries of the application, kept with the message.
            expected_revision: Only if this is the session's revision.
            create: Create the session where it does not exist.
            default_agent: Default agent of a session that is created.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            SessionNotFound: There is no such session.
            SessionBusy: A run is live, and the mode is `start`.
            SessionIdle: No run is live, and the mode is `steer` or `follow_up`.
            SessionClosed: The session takes no input.
            QueueFull: A limit of pending input is reached.
        """
        request = pb.SubmitRequest(
            session_id=session_id or "",
            mode=submission_pb2.Submission.Mode.ValueType(
                number_of(SubmitMode, mode) if mode else 0
            ),
            target_run_id=target_run_id or "",
            on_miss=submission_pb2.Submission.OnMiss.ValueType(
                number_of(OnMiss, on_miss) if on_miss else 0
            ),
            run_options=convert.options_to_pb(options),
            create_session=pb.SessionSpec(default_agent=default_agent) if create else None,
            content=content_to_pb(input),
            expected_revision=expected_revision,
            metadata=metadata,
            request_id=request_id or "",
        )
        answer = await self._caller.unary(self._caller.stubs.sessions.Submit, request)
        return convert.receipt(
            answer.submission,
            sequence=answer.sequence,
            created=answer.session_created,
            replayed=answer.replayed,
        )

    async def withdraw(
        self, submission_id: str, *, session_id: str = "", request_id: str | None = None
    ) -> Submission:
        """Takes back a pending input; again: unchanged.

        Raises:
            SubmissionNotFound: There is no such submission.
            SubmissionSettled: It was delivered, or failed.
        """
        answer = await self._caller.unary(
            self._caller.stubs.sessions.WithdrawSubmission,
            pb.WithdrawSubmissionRequest(
                submission_id=submission_id, session_id=session_id, request_id=request_id or ""
            ),
        )
        return convert.submission(answer.submission)

    async def get_submission(self, submission_id: str, *, session_id: str = "") -> Submission:
        """Reads a submission.

        Raises:
            SubmissionNotFound: There is no such submission.
        """
        answer = await self._caller.unary(
            self._caller.stubs.sessions.GetSubmission,
            pb.GetSubmissionRequest(submission_id=submission_id, session_id=session_id),
        )
        return convert.submission(answer.submission)

    async def interrupt(
        self,
        session_id: str | None = None,
        *,
        run_id: str | None = None,
        reason: str = "",
        wait: float = 0.0,
        request_id: str | None = None,
    ) -> Interruption:
        """Asks for a run to be cancelled; the first request stands.

        Args:
            session_id: The session; may be None where `run_id` is given.
            run_id: Only this run; None: whichever is live.
            reason: For people.
            wait: Seconds to wait for the run to end: 0 to 300.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            SessionNotFound: There is no such session.
            RunNotFound: There is no such run.
            SessionIdle: No run is live, and no run_id was given.
        """
        answer = await self._caller.unary(
            self._caller.stubs.sessions.InterruptRun,
            pb.InterruptRunRequest(
                session_id=session_id or "",
                run_id=run_id or "",
                reason=reason,
                wait_duration=to_duration(wait),
                request_id=request_id or "",
            ),
        )
        return Interruption(
            run=convert.run(answer.run),
            settled=answer.settled,
            sequence=answer.sequence,
            replayed=answer.replayed,
        )

    async def live_state(
        self, session_id: str, *, message_limit: int | None = None, min_sequence: int = 0
    ) -> LiveState:
        """Reads all that is needed to draw a session, at one sequence.

        Args:
            session_id: The session.
            message_limit: How many of the newest messages: at most 200; None: 50.
            min_sequence: Not before this sequence is reached.

        Raises:
            SessionNotFound: There is no such session.
            SequenceAhead: `min_sequence` is not reached.
        """
        answer = await self._caller.unary(
            self._caller.stubs.sessions.GetLiveState,
            pb.GetLiveStateRequest(
                session_id=session_id, message_limit=message_limit, min_sequence=min_sequence
            ),
        )
        return convert.live_state(answer.live_state)

    def events(
        self,
        session_id: str,
        *,
        after_sequence: int = 0,
        last_events: int | None = None,
        follow: bool = True,
        run_ids: Iterable[str] = (),
        types: Iterable[str] = (),
        include_messages: bool = False,
        include_deltas: bool = False,
        include_control: bool = False,
        reconnect_timeout: float | None = None,
    ) -> EventStream:
        """Streams a session's events in order, each once, over lost connections too.

        Args:
            session_id: The session.
            after_sequence: After this sequence; 0 is the first event.
            last_events: Start with the newest this many events instead.
            follow: Go on with what comes; else the stream ends at the last event.
            run_ids: Only events of these runs; ends after the last of them has ended.
            types: Only events of these kinds, members or dotted words.
            include_messages: Put the messages into their message.appended events.
            include_deltas: Also yield `Delta`, pieces of model answers on their way.
            include_control: Also yield `Control`, first and after each change.
            reconnect_timeout: Seconds without a connection after which to give up; None:
                the client's.

        Raises:
            ValueError: There is no such kind of event.
        """
        request = event_request(
            session_id,
            run_ids=run_ids,
            types=types,
            follow=follow,
            include_messages=include_messages,
            include_deltas=include_deltas,
            include_control=include_control,
        )
        if last_events is None:
            request.after_sequence = after_sequence
        else:
            request.last_events = last_events
        patience = self._reconnect_timeout if reconnect_timeout is None else reconnect_timeout
        return EventStream(self._caller, request, reconnect_timeout=patience)

    async def list_agents(self, *, after: str | None = None, limit: int = 50) -> Page[AgentStatus]:
        """Lists the agents that executors polled for, or that runs wait for, by name."""
        answer = await self._caller.unary(
            self._caller.stubs.sessions.ListAgents,
            pb.ListAgentsRequest(page_size=limit, page_token=after or ""),
        )
        return convert.page(map(convert.agent, answer.agents), answer.next_page_token)

    async def server_info(self) -> ServerInfo:
        """Describes the server and its limits."""
        answer = await self._caller.unary(
            self._caller.stubs.server.GetServerInfo, server_service_pb2.GetServerInfoRequest()
        )
        return convert.server_info(answer)


def event_request(
    session_id: str,
    *,
    run_ids: Iterable[str],
    types: Iterable[str],
    follow: bool,
    include_messages: bool,
    include_deltas: bool,
    include_control: bool,
) -> pb.StreamEventsRequest:
    """Makes the request of a stream, without its start."""
    return pb.StreamEventsRequest(
        session_id=session_id,
        follow=follow,
        run_ids=list(run_ids),
        types=[event_pb2.Event.Type.ValueType(event_type(kind)) for kind in types],
        include_messages=include_messages,
        include_deltas=include_deltas,
        include_control=include_control,
    )
