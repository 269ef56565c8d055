"""SessionService."""

from collections.abc import AsyncIterator

from runlane.v1 import session_service_pb2 as pb

from runlane_server.core.commands import ReopenSession
from runlane_server.core.words import Phase
from runlane_server.transport import requests, responses
from runlane_server.transport.binding import Call
from runlane_server.transport.control import ControlCalls
from runlane_server.transport.paging import Pager, fill, page_limit

_MESSAGE_LIMIT_DEFAULT = 50


class SessionServicer(ControlCalls):
    """Converts, calls one use case, converts back."""

    async def create_session(
        self, request: pb.CreateSessionRequest, call: Call
    ) -> pb.CreateSessionResponse:
        """Creates a session."""
        command = requests.create_session(request)
        caller = call.caller(request.request_id, request.session_id, command)
        done, view = await self._app.create_session(caller, request.session_id, command)
        return pb.CreateSessionResponse(
            session=responses.session(view),
            created=done.answer.created,
            sequence=done.answer.sequence,
            replayed=done.replayed,
        )

    async def get_session(self, request: pb.GetSessionRequest, call: Call) -> pb.GetSessionResponse:
        """Reads a session."""
        view = await self._app.get_session(call.namespace, request.session_id)
        return pb.GetSessionResponse(session=responses.session(view))

    async def update_session(
        self, request: pb.UpdateSessionRequest, call: Call
    ) -> pb.UpdateSessionResponse:
        """Changes the record of a session."""
        command = requests.update_session(request)
        caller = call.caller(request.request_id, request.session_id, command)
        done, view = await self._app.update_session(caller, request.session_id, command)
        return pb.UpdateSessionResponse(
            session=responses.session(view),
            sequence=done.answer.sequence,
            replayed=done.replayed,
        )

    async def delete_session(
        self, request: pb.DeleteSessionRequest, call: Call
    ) -> pb.DeleteSessionResponse:
        """Deletes a session."""
        command = requests.delete_session(request)
        caller = call.caller(request.request_id, request.session_id, command)
        done = await self._app.delete_session(caller, request.session_id, command)
        return pb.DeleteSessionResponse(sequence=done.answer.sequence, replayed=done.replayed)

    async def close_session(
        self, request: pb.CloseSessionRequest, call: Call
    ) -> pb.CloseSessionResponse:
        """Closes a session."""
        command = requests.close_session(request)
        caller = call.caller(request.request_id, request.session_id, command)
        done, view = await self._app.close_session(caller, request.session_id, command)
        return pb.CloseSessionResponse(
            session=responses.session(view),
            sequence=done.answer.sequence,
            replayed=done.replayed,
        )

    async def reopen_session(
        self, request: pb.ReopenSessionRequest, call: Call
    ) -> pb.ReopenSessionResponse:
        """Opens a session again."""
        command = ReopenSession()
        caller = call.caller(request.request_id, request.session_id, command)
        done, view = await self._app.reopen_session(caller, request.session_id, command)
        return pb.ReopenSessionResponse(
            session=responses.session(view),
            sequence=done.answer.sequence,
            replayed=done.replayed,
        )

    async def submit(self, request: pb.SubmitRequest, call: Call) -> pb.SubmitResponse:
        """Gives a session an input."""
        command = requests.submit(request)
        session_id = request.session_id
        caller = call.caller(request.request_id, session_id, command)
        done = await self._app.submit(caller, session_id, command)
        answer = done.answer
        return pb.SubmitResponse(
            submission=responses.settled_submission(answer.submission, caller.request_id),
            session_created=answer.session_created,
            sequence=answer.sequence,
            replayed=done.replayed,
        )

    async def withdraw_submission(
        self, request: pb.WithdrawSubmissionRequest, call: Call
    ) -> pb.WithdrawSubmissionResponse:
        """Takes back a pending input."""
        caller = call.caller(request.request_id, request.session_id, request.submission_id)
        done = await self._app.withdraw(caller, request.session_id, request.submission_id)
        return pb.WithdrawSubmissionResponse(
            submission=responses.settled_submission(done.answer.submission, ""),
            sequence=done.answer.sequence,
            replayed=done.replayed,
        )

    async def get_submission(
        self, request: pb.GetSubmissionRequest, call: Call
    ) -> pb.GetSubmissionResponse:
        """Reads a submission."""
        view = await self._app.get_submission(
            call.namespace, request.submission_id, request.session_id
        )
        return pb.GetSubmissionResponse(submission=responses.submission(view))

    async def interrupt_run(
        self, request: pb.InterruptRunRequest, call: Call
    ) -> pb.InterruptRunResponse:
        """Asks for a run to be cancelled."""
        requests.run_target(request)
        wait = call.wait_seconds(requests.wait_micros(request.wait_duration))
        asked = (request.session_id, request.run_id, request.reason)
        caller = call.caller(request.request_id, *asked)
        done, now = await self._app.interrupt(caller, *asked, wait)
        return pb.InterruptRunResponse(
            run=responses.run(now),
            settled=now.phase is Phase.TERMINAL,
            sequence=done.answer.sequence,
            replayed=done.replayed,
        )

    async def get_live_state(self, request: pb.GetLiveStateRequest, call: Call) -> bytes:
        """Reads all that a client needs to draw a session."""
        limit = _MESSAGE_LIMIT_DEFAULT
        if request.HasField("message_limit"):
            limit = request.message_limit
        view = await self._app.live_state(
            call.namespace, request.session_id, limit, request.min_sequence
        )
        return responses.live_state(view)

    def stream_events(self, request: pb.StreamEventsRequest, call: Call) -> AsyncIterator[bytes]:
        """Streams a session's events."""
        return self._app.stream_events(
            call.namespace, request.session_id, requests.event_query(request)
        )

    async def list_agents(self, request: pb.ListAgentsRequest, call: Call) -> pb.ListAgentsResponse:
        """Lists the agents."""
        pager = Pager(call.method, call.namespace)
        agents, go_on = await self._app.list_agents(
            call.namespace, pager.name(request.page_token), page_limit(request.page_size)
        )
        shown = fill(agents, responses.agent)
        if len(shown) < len(agents):
            go_on = shown[-1].name
        return pb.ListAgentsResponse(agents=shown, next_page_token=pager.token(go_on))
