"""HistoryService."""

from collections.abc import AsyncIterator

from runlane.v1 import history_service_pb2 as pb
from runlane.v1 import session_pb2

from runlane_server.app.views import RunView, SessionView, SubmissionView
from runlane_server.core.words import InteractionState, Phase, Role, SubmissionState
from runlane_server.store.base import InteractionRow, SessionOrder
from runlane_server.transport import requests, responses
from runlane_server.transport.archives import export_frames
from runlane_server.transport.binding import Call, close
from runlane_server.transport.codec import ProtoCodec, repeated
from runlane_server.transport.paging import Pager, after_page, fill, fitting, page_limit
from runlane_server.transport.port import AppPort
from runlane_server.transport.values import length_delimited, sequence_of

_OUTPUT = b"\x12"  # WaitRunResponse field 2


def _created(view: SessionView) -> tuple[int, str]:
    return view.facts.create_time, view.facts.session_id


def _updated(view: SessionView) -> tuple[int, str]:
    return view.facts.update_time, view.facts.session_id


def _submission(view: SubmissionView) -> tuple[int, str]:
    return view.facts.create_time, view.facts.submission_id


def _run(view: RunView) -> tuple[int, str]:
    return view.facts.create_time, view.facts.run_id


def _interaction(row: InteractionRow) -> tuple[int, str]:
    return row.create_time, row.interaction_id


class HistoryServicer:
    """Converts, calls one use case, converts back."""

    def __init__(self, app: AppPort) -> None:
        self._app = app
        self._codec = ProtoCodec()

    async def list_sessions(
        self, request: pb.ListSessionsRequest, call: Call
    ) -> pb.ListSessionsResponse:
        """Lists sessions."""
        where, order = requests.session_filter(request), requests.session_order(request)
        pager = Pager(call.method, call.namespace, where, order)
        page = await self._app.list_sessions(
            call.namespace,
            where,
            order,
            pager.place(request.page_token),
            page_limit(request.page_size),
        )
        shown = fill(page.items, responses.session)
        place = _updated if order == SessionOrder.UPDATED_DESC else _created
        after = after_page(page, shown, place)
        return pb.ListSessionsResponse(sessions=shown, next_page_token=pager.token(after))

    async def list_runs(self, request: pb.ListRunsRequest, call: Call) -> pb.ListRunsResponse:
        """Lists the runs of a session."""
        phases = sorted({Phase(phase) for phase in request.phases})
        pager = Pager(call.method, call.namespace, request.session_id, phases)
        page = await self._app.list_runs(
            call.namespace,
            request.session_id,
            phases,
            pager.place(request.page_token),
            page_limit(request.page_size),
        )
        shown = fill(page.items, responses.run_of)
        after = after_page(page, shown, _run)
        return pb.ListRunsResponse(runs=shown, next_page_token=pager.token(after))

    async def list_child_runs(
        self, request: pb.ListChildRunsRequest, call: Call
    ) -> pb.ListChildRunsResponse:
        """Lists the direct child runs of a run."""
        pager = Pager(call.method, call.namespace, request.run_id)
        page = await self._app.list_child_runs(
            call.namespace,
            request.run_id,
            pager.place(request.page_token),
            page_limit(request.page_size),
        )
        shown = fill(page.items, responses.run_of)
        after = after_page(page, shown, _run)
        return pb.ListChildRunsResponse(runs=shown, next_page_token=pager.token(after))

    async def get_run(self, request: pb.GetRunRequest, call: Call) -> pb.GetRunResponse:
        """Reads a run."""
        view = await self._app.get_run(call.namespace, request.run_id, request.session_id)
        return pb.GetRunResponse(run=responses.run_of(view))

    async def wait_run(self, request: pb.WaitRunRequest, call: Call) -> bytes:
        """Waits for a run to end."""
        wait = call.wait_seconds(requests.wait_micros(request.wait_duration))
        view, output = await self._app.wait_run(
            call.namespace, request.run_id, request.session_id, wait, request.include_output
        )
        run = None if view is None else responses.run_of(view)
        answer = pb.WaitRunResponse(run=run).SerializeToString()
        return answer if output is None else answer + length_delimited(_OUTPUT, output.data)

    async def list_submissions(
        self, request: pb.ListSubmissionsRequest, call: Call
    ) -> pb.ListSubmissionsResponse:
        """Lists the submissions of a session."""
        states = sorted({SubmissionState(state) for state in request.states})
        pager = Pager(call.method, call.namespace, request.session_id, states)
        page = await self._app.list_submissions(
            call.namespace,
            request.session_id,
            states,
            pager.place(request.page_token),
            page_limit(request.page_size),
        )
        shown = fill(page.items, responses.submission)
        after = after_page(page, shown, _submission)
        return pb.ListSubmissionsResponse(submissions=shown, next_page_token=pager.token(after))

    async def list_events(self, request: pb.ListEventsRequest, call: Call) -> bytes:
        """Lists events of a session or a run."""
        types = sorted(set(request.types))
        pager = Pager(
            call.method,
            call.namespace,
            request.session_id,
            request.run_id,
            request.after_sequence,
            types,
            request.include_messages,
        )
        cursor = pager.number(request.page_token)
        events, go_on = await self._app.list_events(
            call.namespace,
            request.session_id,
            request.run_id,
            request.after_sequence if cursor is None else cursor,
            frozenset(types),
            request.include_messages,
            page_limit(request.page_size),
        )
        count = fitting(len(data) + len(message or b"") for data, message in events)
        if count < len(events):
            events = events[:count]
            go_on = sequence_of(events[-1][0])
        token = pb.ListEventsResponse(next_page_token=pager.token(go_on))
        return self._codec.run_event_batch(events) + token.SerializeToString()

    async def list_messages(self, request: pb.ListMessagesRequest, call: Call) -> bytes:
        """Lists messages of a session."""
        roles = sorted({Role(role) for role in request.roles})
        descending = request.WhichOneof("start") == "before_number"
        start = request.before_number if descending else request.after_number
        pager = Pager(call.method, call.namespace, request.session_id, descending, start, roles)
        cursor = pager.number(request.page_token)
        if cursor is not None:
            start = cursor
        rows, go_on = await self._app.list_messages(
            call.namespace,
            request.session_id,
            None if descending else start,
            start if descending else None,
            frozenset(roles),
            page_limit(request.page_size),
        )
        count = fitting(len(row.data) for row in rows)
        if count < len(rows):
            rows = rows[:count]
            go_on = rows[-1].number
        token = pb.ListMessagesResponse(next_page_token=pager.token(go_on))
        return repeated([row.data for row in rows]) + token.SerializeToString()

    def stream_messages(
        self, request: pb.StreamMessagesRequest, call: Call
    ) -> AsyncIterator[bytes]:
        """Streams messages of a session."""
        return self._app.stream_messages(call.namespace, request.session_id, request.after_number)

    async def list_fork_points(
        self, request: pb.ListForkPointsRequest, call: Call
    ) -> pb.ListForkPointsResponse:
        """Lists the places to fork a session at."""
        pager = Pager(call.method, call.namespace, request.session_id)
        page = await self._app.fork_points(
            call.namespace,
            request.session_id,
            pager.place(request.page_token),
            page_limit(request.page_size),
        )
        shown = fill(page.items, responses.fork_point)
        after = after_page(page, shown, _run)
        return pb.ListForkPointsResponse(fork_points=shown, next_page_token=pager.token(after))

    async def list_tool_calls(
        self, request: pb.ListToolCallsRequest, call: Call
    ) -> pb.ListToolCallsResponse:
        """Lists the tool calls of a run."""
        pager = Pager(call.method, call.namespace, request.run_id)
        rows, after = await self._app.list_tool_calls(
            call.namespace,
            request.run_id,
            pager.pair(request.page_token),
            page_limit(request.page_size),
        )
        shown = fill(rows, responses.tool_call)
        if len(shown) < len(rows):
            after = shown[-1].step, shown[-1].ordinal
        return pb.ListToolCallsResponse(tool_calls=shown, next_page_token=pager.token(after))

    async def list_interactions(
        self, request: pb.ListInteractionsRequest, call: Call
    ) -> pb.ListInteractionsResponse:
        """Lists interactions over all sessions, or those of one."""
        state = InteractionState(request.state or InteractionState.OPEN)
        pager = Pager(call.method, call.namespace, request.session_id, state)
        page = await self._app.list_interactions(
            call.namespace,
            request.session_id,
            state,
            pager.place(request.page_token),
            page_limit(request.page_size),
        )
        shown = fill(page.items, responses.interaction)
        after = after_page(page, shown, _interaction)
        return pb.ListInteractionsResponse(interactions=shown, next_page_token=pager.token(after))

    async def get_history_at_run(
        self, request: pb.GetHistoryAtRunRequest, call: Call
    ) -> AsyncIterator[pb.GetHistoryAtRunResponse | bytes]:
        """Streams the history at the end of a run: a header, then its messages."""
        view, frames = await self._app.history_at_run(
            call.namespace, request.run_id, request.session_id
        )
        try:
            header = pb.HistoryHeader(
                run=responses.run_of(view.run),
                message_count=view.message_count,
                digest=view.digest.hex(),
                summary=None if view.summary is None else responses.summary(view.summary),
            )
            yield pb.GetHistoryAtRunResponse(header=header)
            async for frame in frames:
                yield frame
        finally:
            await close(frames)

    async def fork_session(
        self, request: pb.ForkSessionRequest, call: Call
    ) -> pb.ForkSessionResponse:
        """Makes a new session with the history at the end of a run."""
        asked = requests.fork(request)
        caller = call.caller(request.request_id, request.run_id, request.session_id, asked)
        done, view = await self._app.fork(caller, request.run_id, request.session_id, asked)
        answer = done.answer
        submission = None
        if answer.submission is not None:
            submission = responses.settled_submission(answer.submission, caller.request_id)
        return pb.ForkSessionResponse(
            session=responses.session(view),
            message_count=answer.message_count,
            digest=answer.digest.hex(),
            submission=submission,
            sequence=answer.sequence,
            replayed=done.replayed,
        )

    async def get_lineage(self, request: pb.GetLineageRequest, call: Call) -> pb.GetLineageResponse:
        """Reads where a session comes from and what was forked from it."""
        pager = Pager(call.method, call.namespace, request.session_id)
        page, lineage = await self._app.lineage(
            call.namespace,
            request.session_id,
            pager.place(request.page_token),
            page_limit(request.page_size),
        )
        shown = fill(page.items, responses.session)
        after = after_page(page, shown, _created)
        return pb.GetLineageResponse(
            forks=shown,
            next_page_token=pager.token(after),
            ancestors=[
                session_pb2.ForkSource(session_id=session_id, run_id=run_id)
                for session_id, run_id in lineage.ancestors
            ],
            parents=[responses.parent(link) for link in lineage.parents],
        )

    def stream_run_events(
        self, request: pb.StreamRunEventsRequest, call: Call
    ) -> AsyncIterator[bytes]:
        """Streams the events of one run."""
        return self._app.stream_run_events(
            call.namespace,
            request.run_id,
            request.session_id,
            request.after_run_sequence,
            request.follow if request.HasField("follow") else True,
            request.include_messages,
        )

    async def export_session(
        self, request: pb.ExportSessionRequest, call: Call
    ) -> AsyncIterator[bytes]:
        """Streams the records of an archive of a session."""
        pieces = self._app.export_session(
            call.namespace, request.session_id, request.include_events
        )
        try:
            source = f"runlane {self._app.server_info().version}"
            async for frame in export_frames(pieces, source):
                yield frame
        finally:
            await close(pieces)
