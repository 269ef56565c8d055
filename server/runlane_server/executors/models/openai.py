"""A model behind any endpoint that speaks OpenAI's chat completions."""

import importlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

from runlane import (
    ModelDelta,
    ModelError,
    ModelRequest,
    ModelResponse,
    ToolSpec,
    ToolUseBlock,
    Usage,
)

from runlane_server.executors.models.chat import chat_name, to_chat, to_tools
from runlane_server.settings import SettingsError

_CONNECT_SECONDS = 10.0
_MESSAGE_CHARACTERS = 500
# Told of a key that the endpoint itself may quote.
_UNAUTHORISED = frozenset({401, 403})
_PASSING = frozenset({408, 409, 425, 429})
# The executor decides these; a caller who set them would change what the answer means.
_OURS = frozenset({"model", "messages", "stream", "stream_options", "n", "tools", "functions"})


class OpenAIModel:
    """Asks a chat completions endpoint and streams its answers.

    Args:
        name: The model, as the endpoint calls it; a run may name another.
        base_url: Where the endpoint is, such as `https://api.openai.com/v1`.
        api_key: The key; None: the endpoint needs none.
        timeout_seconds: The longest silence of the endpoint.
        retries: How often a request that failed before its answer began is sent again.

    Raises:
        SettingsError: The SDK is not installed.
    """

    def __init__(
        self,
        name: str,
        *,
        base_url: str,
        api_key: str | None = None,
        timeout_seconds: float = 120.0,
        retries: int = 2,
    ) -> None:
        try:
            # An extra of its own: most servers run no model themselves.
            self._sdk: Any = importlib.import_module("openai")
        except ModuleNotFoundError as error:
            raise SettingsError(
                "a model of kind openai needs the OpenAI SDK: pip install 'runlane[openai]'"
            ) from error
        self._name = name
        self._key = api_key
        self._transport_errors = _transport_errors()
        self._client: Any = self._sdk.AsyncOpenAI(
            # Given even where there is none, so that nothing is taken from OPENAI_API_KEY.
            api_key=api_key or "none",
            organization="",
            project="",
            base_url=base_url,
            timeout=self._sdk.Timeout(
                timeout_seconds, connect=min(_CONNECT_SECONDS, timeout_seconds)
            ),
            max_retries=retries,
        )

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        """Yields the answer in pieces, then as a whole.

        Raises:
            ModelError: The endpoint is away, or refuses.
        """
        clash = sorted(_OURS & request.options.keys())
        if clash:
            raise ModelError("refused", f"the request option {clash[0]} is not the caller's to set")
        answer = _Answer(request.model or self._name, request.tools)
        tools = to_tools(request.tools)
        try:
            chunks = await self._client.chat.completions.create(
                model=answer.model,
                messages=to_chat(request.system, request.messages, request.summary),
                stream=True,
                stream_options={"include_usage": True},
                **({"tools": tools} if tools else {}),
                extra_body=dict(request.options) or None,
            )
            async with chunks:
                async for chunk in chunks:
                    for piece in answer.take(chunk):
                        yield piece
        except (self._sdk.APIError, *self._transport_errors) as error:
            raise self._model_error(error) from error
        yield answer.whole()

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._client.close()

    def _model_error(self, error: Exception) -> ModelError:
        if isinstance(error, self._sdk.APIStatusError):
            return self._status_error(error)
        if isinstance(error, self._sdk.APITimeoutError):
            return ModelError("unavailable", "the model's endpoint did not answer in time")
        if isinstance(error, (self._sdk.APIConnectionError, *self._transport_errors)):
            return ModelError("unavailable", "the model's endpoint cannot be reached")
        # An error within the stream: the answer had begun.
        return ModelError("unavailable", f"the answer broke off: {self._told(str(error))}")

    def _status_error(self, error: Any) -> ModelError:
        status: int = error.status_code
        text = f"the model's endpoint answered {status}"
        if status in _UNAUTHORISED:
            return ModelError("refused", f"{text}: the key is not accepted")
        body = error.body if isinstance(error.body, dict) else {}
        told = self._told(str(body.get("message") or ""))
        text = f"{text}: {told}" if told else text
        if status in _PASSING or status >= 500:
            # A quota that is used up does not come back by waiting.
            spent = body.get("code") == "insufficient_quota"
            return ModelError("unavailable", text, retryable=not spent)
        return ModelError("refused", text)

    def _told(self, text: str) -> str:
        """Returns what the endpoint said, short, and without the key should it quote it."""
        if self._key:
            text = text.replace(self._key, "***")
        return " ".join(text.split())[:_MESSAGE_CHARACTERS]


@dataclass(slots=True)
class _Call:
    """A tool call as its pieces come in."""

    index: int | None
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class _Answer:
    """An answer as its chunks come in."""

    def __init__(self, model: str, tools: Iterable[ToolSpec] = ()) -> None:
        self.model = model
        self._names = {chat_name(spec.name): spec.name for spec in tools}
        self._calls: list[_Call] = []
        self._text: list[str] = []
        self._refusal: list[str] = []
        self._usage = Usage()
        self._finish_reason: str | None = None

    def take(self, chunk: Any) -> list[ModelDelta]:
        """Takes a chunk and returns the pieces of the answer that it holds."""
        if chunk.model:
            self.model = chunk.model
        if chunk.usage is not None:
            self._usage = _usage(chunk.usage)
        pieces = []
        for choice in chunk.choices:
            delta = choice.delta
            if delta is not None and delta.content:
                self._text.append(delta.content)
                pieces.append(ModelDelta(delta.content))
            if delta is not None and delta.refusal:
                self._refusal.append(delta.refusal)
            if delta is not None:
                for piece in delta.tool_calls or ():
                    self._take_call(piece)
            if choice.finish_reason is not None:
                self._finish_reason = choice.finish_reason
        return pieces

    def _take_call(self, piece: Any) -> None:
        """Takes a piece of a tool call: the id and the name come once, arguments in parts."""
        place = getattr(piece, "index", None)
        given: str = piece.id or ""
        held = [one for one in self._calls if one.index == place]
        # Some endpoints number all calls alike: then a new id begins a new call.
        call = held[-1] if held else None
        if call is None or (given and call.id and given != call.id):
            call = _Call(place)
            self._calls.append(call)
        call.id = call.id or given
        if piece.function is not None:
            call.name = call.name or piece.function.name or ""
            call.arguments.append(piece.function.arguments or "")

    def _tool_calls(self) -> tuple[ToolUseBlock, ...]:
        return tuple(
            ToolUseBlock(
                tool_call_id=call.id,
                name=self._names.get(call.name, call.name),
                # A tool without parameters may be asked for without arguments.
                arguments_text="".join(call.arguments).strip() or "{}",
            )
            for call in self._calls
        )

    def whole(self) -> ModelResponse:
        """Returns the answer.

        Raises:
            ModelError: It is none: refused, withheld, cut, or a call of another kind.
        """
        if self._refusal:
            told = " ".join("".join(self._refusal).split())[:_MESSAGE_CHARACTERS]
            raise ModelError("refused", f"the model refused: {told}")
        match self._finish_reason:
            case None:
                raise ModelError("unavailable", "the answer broke off")
            case "content_filter":
                raise ModelError("refused", "the endpoint's content filter withheld the answer")
            case "function_call":
                raise ModelError("refused", "the model asked for a function, and not for a tool")
            case "tool_calls" if not self._calls:
                raise ModelError("unavailable", "the answer asks for tools and names none")
        return ModelResponse(
            text="".join(self._text),
            tool_calls=self._tool_calls(),
            usage=self._usage,
            model=self.model,
            finish_reason=self._finish_reason,
        )


def _usage(usage: Any) -> Usage:
    read = getattr(usage, "prompt_tokens_details", None)
    written = getattr(usage, "completion_tokens_details", None)
    return Usage(
        input_tokens=usage.prompt_tokens or 0,
        output_tokens=usage.completion_tokens or 0,
        cached_input_tokens=getattr(read, "cached_tokens", None) or 0,
        reasoning_tokens=getattr(written, "reasoning_tokens", None) or 0,
    )


def _transport_errors() -> tuple[type[Exception], ...]:
    """Returns what the SDK lets through of its HTTP client once an answer has begun."""
    found: list[type[Exception]] = []
    for name in ("httpx", "httpx2"):
        try:
            found.append(importlib.import_module(name).HTTPError)
        except ModuleNotFoundError:
            continue
    return tuple(found)
