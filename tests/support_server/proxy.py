"""A proxy of TCP between a client and a server that does what networks do."""

import asyncio
import contextlib
from typing import Self

_CHUNK = 64 * 1024


class Proxy:
    """Forwards connections until it is told to do otherwise.

    Attributes:
        address: Where clients connect.
        connections: How many there have been.
    """

    def __init__(self, target: str, *, idle_seconds: float | None = None) -> None:
        """Makes a proxy.

        Args:
            target: HOST:PORT of the server.
            idle_seconds: Cuts a connection on which nothing passed for so long; None: never.
        """
        self.turn_to(target)
        self._idle = idle_seconds
        self._tasks: set[asyncio.Task[None]] = set()
        self._holes: list[asyncio.Event] = []
        self._server: asyncio.Server | None = None
        self.address = ""
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def swallow(self) -> None:
        """Lets all that is on its way on open connections vanish; they stay open, half dead.

        Connections that come later are whole.
        """
        for hole in self._holes:
            hole.set()

    def turn_to(self, target: str) -> None:
        """Has connections that come from now on end at another server."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))

    def cut(self) -> None:
        """Ends all open connections."""
        for task in self._tasks:
            task.cancel()

    def _accept(self, near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.create_task(self._serve(near_in, near_out))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, near_in: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        hole = asyncio.Event()
        self._holes.append(hole)
        far_out = None
        try:
            far_in, far_out = await asyncio.open_connection(*self._target)
            heard = [asyncio.get_running_loop().time()]
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass_on(near_in, far_out, hole, heard))
                group.create_task(self._pass_on(far_in, near_out, hole, heard))
                if self._idle is not None:
                    group.create_task(self._watch(heard))
        except* (OSError, EOFError, TimeoutError):
            pass
        finally:
            for writer in (near_out, far_out):
                if writer is not None:
                    writer.transport.abort()

    async def _pass_on(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        hole: asyncio.Event,
        heard: list[float],
    ) -> None:
        while True:
            data = await source.read(_CHUNK)
            if hole.is_set():
                # Neither side is told that the other has gone.
                await asyncio.Event().wait()
            if not data:
                raise EOFError
            heard[0] = asyncio.get_running_loop().time()
            sink.write(data)
            with contextlib.suppress(ConnectionError):
                await sink.drain()

    async def _watch(self, heard: list[float]) -> None:
        now = asyncio.get_running_loop().time
        left = self._idle
        while left > 0:
            await asyncio.sleep(left)
            left = heard[0] + self._idle - now()
        raise TimeoutError
