"""The gRPC server: what it listens on, what it serves, and how it stops."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from runlane.v1 import (
    admin_service_pb2,
    executor_service_pb2,
    history_service_pb2,
    server_service_pb2,
    session_service_pb2,
)

from runlane_server.runtime.forever import forever
from runlane_server.runtime.stats import Stats
from runlane_server.transport.access import Identity
from runlane_server.transport.admin import AdminServicer, KeysPort
from runlane_server.transport.binding import Door, service_handler
from runlane_server.transport.executor import ExecutorServicer
from runlane_server.transport.history import HistoryServicer
from runlane_server.transport.limits import (
    CLIENT_PING_SECONDS_MIN,
    RECEIVE_BYTES_MAX,
    SEND_BYTES_MAX,
)
from runlane_server.transport.port import AppPort
from runlane_server.transport.reflection import REFLECTION_SERVICES, add_reflection
from runlane_server.transport.server_info import ServerServicer
from runlane_server.transport.session import SessionServicer
from runlane_server.transport.tls import TlsFiles, TlsReloader
from runlane_server.transport.tracing import Tracing

PENDING_CALLS_MAX = 20_000

_LOOK_SECONDS = 0.5
_QUIET_SECONDS = 0.05
_STOP_SECONDS = 0.5
_CALL_SHARE = 0.95

_log = structlog.get_logger(__name__)

SERVICES = tuple(
    module.DESCRIPTOR.services_by_name[name]
    for module, name in (
        (session_service_pb2, "SessionService"),
        (history_service_pb2, "HistoryService"),
        (executor_service_pb2, "ExecutorService"),
        (admin_service_pb2, "AdminService"),
        (server_service_pb2, "ServerService"),
    )
)


@dataclass(slots=True, frozen=True)
class GrpcSettings:
    """Settings of the transport.

    Attributes:
        reflection: Serve reflection.
        channelz: Serve channelz, which shows all connections to whoever asks.
        max_stream_seconds: How long a stream without an end of its own is open.
        max_connection_age: Seconds after which a connection is asked to go; None: never.
        max_connection_age_grace: Seconds that its calls may then take.
        keepalive: Seconds of silence after which a client is pinged.
        keepalive_timeout: Seconds that it may take to answer.
    """

    reflection: bool = True
    channelz: bool = False
    max_stream_seconds: float = 3600.0
    max_connection_age: float | None = None
    max_connection_age_grace: float = 300.0
    keepalive: float = 30.0
    keepalive_timeout: float = 10.0

    @property
    def longest_call(self) -> float:
        """Seconds after which a stream or a wait ends by itself, before gRPC cuts it off."""
        if self.max_connection_age is None:
            return self.max_stream_seconds
        return min(self.max_stream_seconds, _CALL_SHARE * self.max_connection_age_grace)


def _options(settings: GrpcSettings) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
        ("grpc.max_send_message_length", SEND_BYTES_MAX),
        # The default would send GOAWAY to a client that pings more than once in 5 minutes.
        # Half of what is promised: a ping that comes a millisecond early is a strike, too.
        ("grpc.http2.min_ping_interval_without_data_ms", CLIENT_PING_SECONDS_MIN * 500),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client that is gone without a word would keep its streams and polls for hours.
        ("grpc.keepalive_time_ms", int(settings.keepalive * 1000)),
        ("grpc.keepalive_timeout_ms", int(settings.keepalive_timeout * 1000)),
        # gRPC's own pings, which measure bandwidth, hold back those while they wait: a minute.
        ("grpc.http2.ping_timeout_ms", int(settings.keepalive_timeout * 1000)),
        # By default no more than two pings go out while no data does.
        ("grpc.http2.max_pings_without_data", 0),
        # By default calls of a burst are cancelled at random once a thousand wait to be taken,
        # and a client that is told CANCELLED does not try again.
        ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", 2 * PENDING_CALLS_MAX),
        # A second server on the port must fail, not take half of the calls.
        ("grpc.so_reuseport", 0),
    ]
    if settings.max_connection_age is not None:
        options += [
            ("grpc.max_connection_age_ms", int(settings.max_connection_age * 1000)),
            ("grpc.max_connection_age_grace_ms", int(settings.max_connection_age_grace * 1000)),
        ]
    return options


class GrpcServer:
    """Serves an app. Made, started and drained on one event loop."""

    def __init__(
        self,
        app: AppPort,
        keys: KeysPort,
        settings: GrpcSettings | None = None,
        identity: Identity | None = None,
        stats: Stats | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Makes a server.

        Args:
            app: What it serves.
            keys: What AdminService makes and ends API keys with.
            settings: Of the transport.
            identity: Tells who calls; None: nobody is asked.
            stats: Counts calls.
            tracing: Records a span of each; None: nobody does.
        """
        settings = settings or GrpcSettings()
        self._app = app
        self._door = Door(identity, stats, app.quotas, tracing, settings.longest_call)
        self._health = health.aio.HealthServicer()
        self._told = True
        self._watching: asyncio.Task[None] | None = None
        self._server = grpc.aio.server(options=_options(settings))
        servicers = (
            SessionServicer(app),
            HistoryServicer(app),
            ExecutorServicer(app),
            AdminServicer(app, keys),
            ServerServicer(app),
        )
        handlers = [
            service_handler(service, servicer, self._door)
            for service, servicer in zip(SERVICES, servicers, strict=True)
        ]
        self._server.add_generic_rpc_handlers(tuple(handlers))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [service.full_name for service in SERVICES]
        names.append(health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
        if settings.channelz:
            # Imported where it is wanted: it is a package of its own.
            from grpc_channelz.v1 import channelz, channelz_pb2  # noqa: PLC0415

            channelz.add_channelz_servicer(self._server)
            names.append(channelz_pb2.DESCRIPTOR.services_by_name["Channelz"].full_name)
        if settings.reflection:
            add_reflection(self._server, (*names, *REFLECTION_SERVICES))

    async def start(self, addresses: Sequence[str], tls: TlsFiles | None = None) -> list[int]:
        """Listens on HOST:PORT and unix:PATH addresses.

        Args:
            addresses: Where.
            tls: Speak TLS on all but socket files, which nobody on the way can read.

        Returns:
            The port of each address; 0 for a socket file.

        Raises:
            OSError: The files of `tls` are not fit.
            RuntimeError: An address is taken, or is none.
        """
        secure = TlsReloader(tls).credentials() if tls is not None else None
        ports = []
        for address in addresses:
            if address.startswith("unix:"):
                self._server.add_insecure_port(address)
                ports.append(0)
            elif secure is not None:
                ports.append(self._server.add_secure_port(address, secure))
            else:
                ports.append(self._server.add_insecure_port(address))
        await self._server.start()
        await self._tell(ready=True)
        self._watching = asyncio.get_running_loop().create_task(forever("health", self._watch))
        return ports

    async def _tell(self, *, ready: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for name in ("", *(service.full_name for service in SERVICES)):
            await self._health.set(name, status.SERVING if ready else status.NOT_SERVING)

    async def _watch(self) -> None:
        """Keeps the health to what the app says."""
        await asyncio.sleep(_LOOK_SECONDS)
        ready = self._app.ready()
        if ready == self._told:
            return
        await self._tell(ready=ready)
        self._told = ready
        if ready:
            _log.info("serving again")
        else:
            _log.warning("not serving: the store takes no writes")

    async def drain(
        self, grace: float, finish: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Stops: no new calls, streams end, calls in flight finish within `grace` seconds.

        Args:
            grace: Seconds.
            finish: Awaited once nobody new comes in; executors may still commit meanwhile.
        """
        if self._watching is not None:
            self._watching.cancel()
        # Whoever picks a server by its health is to know before anything fails.
        await self._health.enter_graceful_shutdown()
        self._door.draining = True
        if finish is not None:
            await finish()
        self._app.drain()
        with suppress(TimeoutError):
            # The last statuses are still on their way, and so are calls: those that gRPC has
            # not handed over when it stops would be told CANCELLED.
            await asyncio.wait_for(self._door.empty(_QUIET_SECONDS), grace)
        # Only streams of health and reflection, which know no end, can be left.
        await self._server.stop(_STOP_SECONDS)

    async def wait(self) -> None:
        """Returns when the server has stopped."""
        await self._server.wait_for_termination()
