"""A server whose every answer is scripted."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from runlane.v1 import (
    admin_service_pb2_grpc,
    executor_service_pb2_grpc,
    history_service_pb2_grpc,
    server_service_pb2_grpc,
    session_service_pb2_grpc,
)

Handler = Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]]


def details_of(
    code: grpc.StatusCode, reason: str, message: str = "no", *extra: Message, **metadata: str
) -> bytes:
    status = status_pb2.Status(code=code.value[0], message=message)
    info = error_details_pb2.ErrorInfo(reason=reason, domain="runlane.dev", metadata=metadata)
    for detail in (info, *extra):
        status.details.add().Pack(detail)
    return status.SerializeToString()


async def refuse(
    context: grpc.aio.ServicerContext,
    code: grpc.StatusCode,
    reason: str,
    *extra: Message,
    **metadata: str,
) -> None:
    details = details_of(code, reason, "no", *extra, **metadata)
    await context.abort(code, "no", trailing_metadata=(("grpc-status-details-bin", details),))


class _Servicer:
    def __init__(self, server: "FakeServer") -> None:
        self._server = server

    def __getattr__(self, name: str) -> Handler:
        async def handle(request: Any, context: grpc.aio.ServicerContext) -> Any:
            return await self._server.handle(name, request, context)

        return handle


class FakeServer:
    """Answers each method by the handler of its name; keeps what it was asked."""

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}
        self.calls: dict[str, list[Any]] = defaultdict(list)
        self.metadata: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._changed = asyncio.Condition()
        self._server: grpc.aio.Server | None = None
        self.target = ""

    async def start(self, target: str = "127.0.0.1:0") -> None:
        server = grpc.aio.server()
        servicer = _Servicer(self)
        session_service_pb2_grpc.add_SessionServiceServicer_to_server(servicer, server)
        history_service_pb2_grpc.add_HistoryServiceServicer_to_server(servicer, server)
        executor_service_pb2_grpc.add_ExecutorServiceServicer_to_server(servicer, server)
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(servicer, server)
        server_service_pb2_grpc.add_ServerServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port(target)
        await server.start()
        self._server = server
        self.target = f"127.0.0.1:{port}"

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    async def restart(self) -> None:
        await self.stop()
        await self.start(self.target)

    async def handle(self, name: str, request: Any, context: grpc.aio.ServicerContext) -> Any:
        self.calls[name].append(request)
        self.metadata[name].append(dict(context.invocation_metadata()))
        async with self._changed:
            self._changed.notify_all()
        handler = self.handlers.get(name)
        if handler is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{name} is not scripted")
            return None
        return await handler(request, context)

    async def called(self, name: str, count: int = 1) -> Any:
        """Waits for the call of that number and returns its request."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: len(self.calls[name]) >= count)
        return self.calls[name][count - 1]


def answering(response: Message) -> Handler:
    async def handler(_request: Any, _context: grpc.aio.ServicerContext) -> Any:
        return response

    return handler


async def forever(_request: Any, _context: grpc.aio.ServicerContext) -> None:
    await asyncio.Event().wait()
