"""AdminService."""

from runlane.v1 import admin_service_pb2 as pb

from runlane_server.app.views import ExecutorView, RunView
from runlane_server.core.words import Phase, SessionStatus
from runlane_server.transport import requests, responses
from runlane_server.transport.binding import Call
from runlane_server.transport.paging import Pager, after_page, fill, page_limit
from runlane_server.transport.port import AppPort
from runlane_server.transport.values import duration, timestamp


def _run(view: RunView) -> tuple[int, str]:
    return view.facts.create_time, view.facts.run_id


def _executor(view: ExecutorView) -> pb.ExecutorStatus:
    return pb.ExecutorStatus(
        executor_id=view.executor_id,
        agents=view.agents,
        last_poll_time=timestamp(view.last_poll_time),
        polling=view.polling,
        leased_count=view.leased,
        draining=view.draining,
    )


class AdminServicer:
    """Converts, calls one use case, converts back."""

    def __init__(self, app: AppPort) -> None:
        self._app = app

    async def list_stalled_runs(
        self, request: pb.ListStalledRunsRequest, call: Call
    ) -> pb.ListStalledRunsResponse:
        """Lists the stalled runs."""
        pager = Pager(call.method, call.namespace)
        page = await self._app.list_stalled_runs(
            call.namespace, pager.place(request.page_token), page_limit(request.page_size)
        )
        shown = fill(page.items, responses.run_of)
        after = after_page(page, shown, _run)
        return pb.ListStalledRunsResponse(runs=shown, next_page_token=pager.token(after))

    async def settle_run(self, request: pb.SettleRunRequest, call: Call) -> pb.SettleRunResponse:
        """Ends a live run by hand."""
        command = requests.settle_run(request)
        caller = call.caller(request.request_id, command)
        done = await self._app.settle_run(caller, command)
        return pb.SettleRunResponse(
            run=responses.run(done.answer.run),
            sequence=done.answer.sequence,
            replayed=done.replayed,
        )

    async def get_overview(
        self, _request: pb.GetOverviewRequest, call: Call
    ) -> pb.GetOverviewResponse:
        """Tells how the namespace and the server are doing."""
        view = await self._app.overview(call.namespace)
        counts = view.counts
        return pb.GetOverviewResponse(
            open_session_count=counts.sessions.get(SessionStatus.OPEN, 0),
            closed_session_count=counts.sessions.get(SessionStatus.CLOSED, 0),
            more_sessions=counts.more_sessions,
            active_run_count=counts.live_runs.get(Phase.ACTIVE, 0),
            waiting_run_count=counts.live_runs.get(Phase.WAITING, 0),
            paused_run_count=counts.live_runs.get(Phase.PAUSED, 0),
            stalled_run_count=counts.stalled_runs,
            open_interaction_count=counts.open_interactions,
            queued_activation_count=view.queued,
            oldest_queued_duration=duration(view.now - view.oldest_queue_time)
            if view.queued
            else None,
            leased_activation_count=view.leased,
            executor_count=view.executors,
            stream_count=view.streams,
            store_size_bytes=counts.size,
            store_available=view.store_available,
            server_time=timestamp(view.now),
        )

    async def list_executors(
        self, request: pb.ListExecutorsRequest, call: Call
    ) -> pb.ListExecutorsResponse:
        """Lists the executors."""
        pager = Pager(call.method, call.namespace)
        executors, go_on = self._app.list_executors(
            call.namespace, pager.name(request.page_token), page_limit(request.page_size)
        )
        shown = fill(executors, _executor)
        if len(shown) < len(executors):
            go_on = shown[-1].executor_id
        return pb.ListExecutorsResponse(executors=shown, next_page_token=pager.token(go_on))
