"""The floor: a grpc.aio server on uvloop that passes bytes on."""

import asyncio
import signal

import grpc
import msgspec
import uvloop
from runlane.v1 import history_service_pb2

NAME = "bench.Floor"


class Floor:
    """Echoes, and streams frames that it was given."""

    def __init__(self) -> None:
        self._frames: dict[str, list[bytes]] = {}
        self._waiting: list[asyncio.Future[str]] = []

    async def echo(self, request: bytes, _context: object) -> bytes:
        return request

    async def keep(self, request: bytes, _context: object) -> bytes:
        """Appends a frame to those of a name."""
        name, frame = msgspec.msgpack.decode(request, type=tuple[str, bytes])
        self._frames.setdefault(name, []).append(frame)
        return b""

    async def replay(self, request: bytes, context: "grpc.aio.ServicerContext") -> None:
        """Streams the frames of a name as they are."""
        for frame in self._frames[request.decode()]:
            await context.write(frame)

    async def recode(self, request: bytes, context: "grpc.aio.ServicerContext") -> None:
        """Streams the frames of a name, each message decoded and encoded again."""
        for frame in self._frames[request.decode()]:
            messages = history_service_pb2.StreamMessagesResponse.FromString(frame).messages
            again = history_service_pb2.StreamMessagesResponse(messages=messages)
            await context.write(again.SerializeToString())

    async def wait(self, _request: bytes, context: "grpc.aio.ServicerContext") -> None:
        """Streams the frames of a name each time that `go` names one."""
        await context.write(b"")
        while True:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            for frame in self._frames[await future]:
                await context.write(frame)

    async def go(self, request: bytes, _context: object) -> bytes:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(request.decode())
        return b""


async def main() -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    floor = Floor()
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                NAME,
                {
                    "Echo": unary(floor.echo),
                    "Keep": unary(floor.keep),
                    "Go": unary(floor.go),
                    "Replay": stream(floor.replay),
                    "Recode": stream(floor.recode),
                    "Wait": stream(floor.wait),
                },
            ),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await stop.wait()
    await server.stop(0)


if __name__ == "__main__":
    uvloop.run(main())
