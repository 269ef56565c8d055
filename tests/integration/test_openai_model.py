"""The model behind a chat completions endpoint, over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Reply:
    """What the endpoint answers to one request."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    cut: bool = False
    """The connection is dropped after the body, which was announced longer."""
    hold: asyncio.Event | None = None
    """The end of the body waits for it."""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Endpoint:
    """A small server that speaks HTTP/1.1 and remembers what it was asked."""

    reply: Reply
    base_url: str = ""
    requests: list[dict] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a client left a held answer."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {
                name.lower(): value
                for name, _, value in (line.partition(": ") for line in head[1:] if line)
            }
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.paths.append(head[0].split(" ")[1])
            self.headers.append(headers)
            self.requests.append(json.loads(body))
            await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reply = self.reply
        lines = [f"HTTP/1.1 {reply.status} X", f"content-type: {reply.content_type}"]
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        lines += ["connection: close", "transfer-encoding: chunked", "", ""]
        writer.write("\r\n".join(lines).encode())
        if reply.body:
            writer.write(f"{len(reply.body):x}\r\n".encode() + reply.body + b"\r\n")
        await writer.drain()
        if reply.hold is not None:
            left = asyncio.ensure_future(reader.read())
            opened = asyncio.ensure_future(reply.hold.wait())
            await asyncio.wait({left, opened}, return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                self.gone.set()
            left.cancel()
            opened.cancel()
        if not reply.cut:
            writer.write(b"0\r\n\r\n")


@asynccontextmanager
async def endpoint(reply: Reply) -> AsyncIterator[Endpoint]:
    served = Endpoint(reply)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield served
    finally:
        server.close()
        await server.wait_closed()


def chunk(delta: dict | None = None, finish: str | None = None, usage: dict | None = None) -> dict:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "some-model-0613",
        "choices": choices,
        "usage": usage,
    }


USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def stream(*chunks: dict, done: bool = True, **kwargs) -> Reply:
    body = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks)
    if done:
        body += b"data: [DONE]\n\n"
    return Reply(body=body, content_type="text/event-stream", **kwargs)


def failure(status: int, message: str = "no", code: str | None = None, **kwargs) -> Reply:
    error = {"message": message, "type": "some_error", "code": code}
    return Reply(status=status, body=json.dumps({"error": error}).encode(), **kwargs)
