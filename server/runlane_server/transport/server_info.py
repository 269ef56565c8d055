"""ServerService."""

from runlane.v1 import server_service_pb2 as pb

from runlane_server.transport import responses
from runlane_server.transport.access import NOBODY
from runlane_server.transport.binding import Call
from runlane_server.transport.port import AppPort


class ServerServicer:
    """Converts, calls one use case, converts back."""

    def __init__(self, app: AppPort) -> None:
        self._app = app

    async def get_server_info(
        self, _request: pb.GetServerInfoRequest, call: Call
    ) -> pb.GetServerInfoResponse:
        """Describes the server; to who shows no credential, no more than it must."""
        told = responses.server_info(self._app.server_info(call.namespace))
        if call.grant is NOBODY:
            return pb.GetServerInfoResponse(version=told.version, features=told.features)
        return told
