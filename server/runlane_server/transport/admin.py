"""AdminService."""

from runlane.v1 import admin_service_pb2 as pb

from runlane_server.app.views import RunView
from runlane_server.transport import requests, responses
from runlane_server.transport.binding import Call
from runlane_server.transport.paging import Pager, after_page, fill, page_limit
from runlane_server.transport.port import AppPort


def _run(view: RunView) -> tuple[int, str]:
    return view.facts.create_time, view.facts.run_id


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
