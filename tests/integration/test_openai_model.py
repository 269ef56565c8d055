"""The model behind a chat completions endpoint, over real HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from runlane import (
    DataBlock,
    MediaBlock,
    MediaKind,
    Message,
    MessageAuthor,
    MessageRole,
    ModelDelta,
    ModelError,
    ModelRequest,
    ModelResponse,
    ReasoningBlock,
    RunFailureReason,
    TextBlock,
    Usage,
)
from runlane_server.executors.models import OpenAIModel

KEY = "sk-a-secret-key"


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

    replies: list[Reply]
    """One for each request; the last one again and again."""
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
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
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
async def endpoint(*replies: Reply) -> AsyncIterator[Endpoint]:
    served = Endpoint(list(replies))
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


def message(role: MessageRole, *content) -> Message:
    return Message(
        number=1,
        session_id="s",
        run_id="r",
        role=role,
        author=MessageAuthor.INPUT,
        step=0,
        content=tuple(TextBlock(text=c) if isinstance(c, str) else c for c in content),
        submission_id="",
        model_stream_id="",
        model="",
        create_time=None,
        metadata={},
    )


HELLO = (message(MessageRole.USER, "hello"),)


def request(*messages: Message, system: str = "", model: str = "", options=None) -> ModelRequest:
    return ModelRequest(
        agent="a",
        system=system,
        messages=messages or HELLO,
        model=model,
        options=options or {},
        run_id="r",
        session_id="s",
        step=1,
        attempt=1,
        model_stream_id="m",
    )


async def ask(
    served: Endpoint | str, asked: ModelRequest | None = None, **kwargs
) -> tuple[list[str], ModelResponse]:
    base_url = served if isinstance(served, str) else served.base_url
    model = OpenAIModel("some-model", base_url=base_url, **{"api_key": KEY, "retries": 0, **kwargs})
    try:
        items = [item async for item in model.stream(asked or request())]
    finally:
        await model.aclose()
    *pieces, response = items
    assert isinstance(response, ModelResponse)
    assert all(isinstance(piece, ModelDelta) for piece in pieces)
    return [piece.text for piece in pieces], response


async def fail(served: Endpoint | str, asked: ModelRequest | None = None, **kwargs) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(served, asked, **kwargs)
    assert KEY not in caught.value.message
    return caught.value


ANSWER = stream(
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "Hel"}),
    chunk({"content": "lo."}),
    chunk({}, "stop"),
    chunk(usage=USAGE),
)


@pytest.mark.asyncio
async def test_an_answer_is_streamed_with_its_usage():
    async with endpoint(ANSWER) as served:
        pieces, response = await ask(served)
    assert pieces == ["Hel", "lo."]
    assert response == ModelResponse(
        text="Hello.",
        model="some-model-0613",
        finish_reason="stop",
        usage=Usage(input_tokens=11, output_tokens=7, cached_input_tokens=4, reasoning_tokens=2),
    )
    assert served.paths == ["/v1/chat/completions"]
    assert served.headers[0]["authorization"] == f"Bearer {KEY}"
    assert served.requests == [
        {
            "model": "some-model",
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


@pytest.mark.asyncio
async def test_messages_are_mapped():
    image = MediaBlock(kind=MediaKind.IMAGE, uri="https://example.org/a.png")
    inline = MediaBlock(kind=MediaKind.IMAGE, media_type="image/jpeg", inline_data=b"\xff\xd8")
    data = DataBlock(content_type="application/json", json_text='{"a":1}')
    messages = (
        message(MessageRole.USER, "see ", "this"),
        message(MessageRole.ASSISTANT, ReasoningBlock(reasoning="hm"), "I see"),
        message(MessageRole.USER, "and", image, inline, data),
    )
    async with endpoint(ANSWER) as served:
        await ask(served, request(*messages, system="Be brief.", model="other-model"))
    assert served.requests[0]["model"] == "other-model"
    assert served.requests[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "see this"},
        {"role": "assistant", "content": "I see"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "and"},
                {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
                {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,/9g="}},
                {"type": "text", "text": '{"a":1}'},
            ],
        },
    ]


@pytest.mark.asyncio
async def test_what_cannot_be_sent_is_refused_before_anything_is_sent():
    sound = MediaBlock(kind=MediaKind.AUDIO, uri="https://example.org/a.ogg")
    async with endpoint(ANSWER) as served:
        error = await fail(served, request(message(MessageRole.USER, sound)))
        assert error.reason is RunFailureReason.MODEL_REFUSED
        assert "audio" in error.message
        error = await fail(served, request(options={"stream": False}))
        assert error.reason is RunFailureReason.MODEL_REFUSED
        assert "stream" in error.message
    assert served.requests == []


@pytest.mark.asyncio
async def test_request_options_are_handed_on():
    async with endpoint(ANSWER) as served:
        await ask(served, request(options={"temperature": 0.5, "their_own": {"x": 1}}))
    assert served.requests[0]["temperature"] == 0.5
    assert served.requests[0]["their_own"] == {"x": 1}


@pytest.mark.asyncio
async def test_an_endpoint_without_a_key_gets_nothing_of_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-the-environment")
    async with endpoint(ANSWER) as served:
        await ask(served, api_key=None)
    assert not any("of-the-environment" in value for value in served.headers[0].values())


@pytest.mark.asyncio
async def test_an_answer_without_usage_or_done_is_one():
    async with endpoint(
        stream(chunk({"content": "ok"}), chunk({}, "length"), done=False)
    ) as served:
        _, response = await ask(served)
    assert (response.text, response.finish_reason, response.usage) == ("ok", "length", Usage())


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
async def test_a_passing_failure_is_unavailable(status):
    async with endpoint(failure(status, "come again")) as served:
        error = await fail(served)
    assert error.reason is RunFailureReason.MODEL_UNAVAILABLE
    assert error.retryable
    assert str(status) in error.message
    assert "come again" in error.message
    assert len(served.requests) == 1


@pytest.mark.asyncio
async def test_a_spent_quota_is_not_worth_another_try():
    async with endpoint(failure(429, "pay first", "insufficient_quota")) as served:
        error = await fail(served)
    assert error.reason is RunFailureReason.MODEL_UNAVAILABLE
    assert not error.retryable


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
async def test_a_lasting_failure_is_refused(status):
    async with endpoint(failure(status, f"what is {KEY}?")) as served:
        error = await fail(served)
    assert error.reason is RunFailureReason.MODEL_REFUSED
    assert not error.retryable
    assert str(status) in error.message


@pytest.mark.asyncio
async def test_a_body_that_is_no_json():
    async with endpoint(Reply(502, b"<html>bad gateway</html>", "text/html")) as served:
        error = await fail(served)
    assert error.reason is RunFailureReason.MODEL_UNAVAILABLE
    assert "html" not in error.message


@pytest.mark.asyncio
async def test_a_request_is_sent_again_before_its_answer_began():
    again = failure(503, headers={"retry-after-ms": "1"})
    async with endpoint(again, again, ANSWER) as served:
        pieces, _ = await ask(served, retries=2)
    assert pieces == ["Hel", "lo."]
    assert len(served.requests) == 3


@pytest.mark.asyncio
async def test_a_content_filter_is_a_refusal():
    async with endpoint(stream(chunk({"content": "We"}), chunk({}, "content_filter"))) as served:
        error = await fail(served)
    assert error.reason is RunFailureReason.MODEL_REFUSED
    assert "content filter" in error.message


@pytest.mark.asyncio
async def test_a_filtered_request_is_a_refusal():
    async with endpoint(failure(400, "was filtered", "content_filter")) as served:
        error = await fail(served)
    assert error.reason is RunFailureReason.MODEL_REFUSED
    assert "was filtered" in error.message


@pytest.mark.asyncio
async def test_a_refusal_of_the_model():
    reply = stream(chunk({"refusal": "I will "}), chunk({"refusal": "not."}), chunk({}, "stop"))
    async with endpoint(reply) as served:
        error = await fail(served)
    assert error.reason is RunFailureReason.MODEL_REFUSED
    assert "I will not." in error.message


@pytest.mark.asyncio
async def test_a_call_of_a_function_of_old_is_refused():
    async with endpoint(stream(chunk({}, "function_call"))) as served:
        error = await fail(served)
    assert error.reason is RunFailureReason.MODEL_REFUSED
    assert "function" in error.message


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "reply",
    [
        stream(chunk({"content": "Hel"}), done=False, cut=True),
        stream(chunk({"content": "Hel"}), done=False),
        stream(chunk({"content": "Hel"}), {"error": {"message": "overloaded", "code": 500}}),
    ],
    ids=["connection cut", "ended early", "error in the stream"],
)
async def test_an_answer_that_breaks_off_is_unavailable(reply):
    async with endpoint(reply) as served:
        error = await fail(served)
    assert error.reason is RunFailureReason.MODEL_UNAVAILABLE
    assert error.retryable


@pytest.mark.asyncio
async def test_a_silent_endpoint_is_unavailable():
    async with endpoint(
        stream(chunk({"content": "Hel"}), done=False, hold=asyncio.Event())
    ) as served:
        error = await fail(served, timeout_seconds=0.2)
    assert error.reason is RunFailureReason.MODEL_UNAVAILABLE


@pytest.mark.asyncio
async def test_no_endpoint_is_unavailable():
    server = await asyncio.start_server(lambda _r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    error = await fail(f"http://127.0.0.1:{port}/v1")
    assert error.reason is RunFailureReason.MODEL_UNAVAILABLE
    assert "cannot be reached" in error.message


@pytest.mark.asyncio
async def test_a_cancelled_request_leaves_the_endpoint():
    reply = stream(chunk({"content": "Hel"}), done=False, hold=asyncio.Event())
    async with endpoint(reply) as served:
        model = OpenAIModel("some-model", base_url=served.base_url, retries=0)
        begun = asyncio.Event()

        async def consume() -> None:
            async for _ in model.stream(request()):
                begun.set()

        task = asyncio.create_task(consume())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(served.gone.wait(), 10)
        await model.aclose()
