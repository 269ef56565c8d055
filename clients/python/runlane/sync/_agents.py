"""Agents whose models block; what else they have is that of the async client."""

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from runlane import _executor as twin
from runlane._executor.tools import Policy, ToolInput, check_policy, in_thread
from runlane.sync._portal import END

# Pieces of an answer that may wait for the executor.
_PIECES: Final = 64

Compactor: TypeAlias = Callable[[twin.ModelRequest], twin.Compaction | None]
"""Looks at what a model is about to see, and may return a summary of its beginning."""


class Model(Protocol):
    """Anything that answers a request as a whole."""

    def complete(self, request: twin.ModelRequest) -> twin.ModelResponse:
        """Returns the answer.

        It is called in a thread of its own, which goes on where the run is interrupted; its
        answer is then dropped.

        Raises:
            ModelError: The model is away, or refuses.
        """
        ...


@runtime_checkable
class StreamingModel(Protocol):
    """Anything that answers a request in pieces; preferred where a model can do both."""

    def stream(self, request: twin.ModelRequest) -> Iterator[twin.ModelDelta | twin.ModelResponse]:
        """Yields pieces, and last the whole answer.

        It is called in a thread of its own. Where the run is interrupted it is closed at its
        next piece.

        Raises:
            ModelError: The model is away, or refuses.
        """
        ...


@dataclass(frozen=True, slots=True)
class Agent:
    """A name that an executor polls for, and what answers for it.

    Attributes:
        name: The name.
        model: What is asked: a `Model`, a `StreamingModel`, or both.
        system: Instructions, handed to the model with each request.
        model_name: Handed to the model as `request.model` where the run names none.
        tools: What the model may ask for: tools, plain functions, and sources of tools such
            as `McpTools`, which the executor opens and closes. A tool returns nothing, a
            text, a block, a sequence of blocks, or anything that JSON can hold; what it
            raises is told to the model as an error.
        ask_question: Also lets the model ask the user, by the tool `ask_question`: the run
            waits for the answer, which is the result of the call.
        policies: Policies by tool, in place of the tools' own.
        compact: Called before each model step; what it returns is stored, and the model sees
            it in place of the messages that it covers. The history keeps them.

    Raises:
        ValueError: A policy is none.
    """

    name: str
    model: Model | StreamingModel
    system: str = ""
    model_name: str = ""
    tools: Sequence[ToolInput] = ()
    ask_question: bool = False
    policies: Mapping[str, Policy] = field(default_factory=dict)
    compact: Compactor | None = None

    def __post_init__(self) -> None:
        """Refuses a policy that is none."""
        for policy in self.policies.values():
            check_policy(policy)


def twins(agents: Agent | Iterable[Agent] | Mapping[str, Agent]) -> Any:
    """Returns the same agents as the async executor takes them."""
    if isinstance(agents, Agent):
        return _twin(agents)
    if isinstance(agents, Mapping):
        return {name: _twin(agent) for name, agent in agents.items()}
    return [_twin(agent) for agent in agents]


def _twin(agent: Agent) -> twin.Agent:
    model = agent.model
    compact = agent.compact

    async def compacted(request: twin.ModelRequest) -> twin.Compaction | None:
        assert compact is not None, "else it is not given"  # noqa: S101 - invariant
        return await in_thread(lambda: compact(request))

    return twin.Agent(
        name=agent.name,
        model=_Streaming(model) if isinstance(model, StreamingModel) else _Whole(model),
        system=agent.system,
        model_name=agent.model_name,
        tools=agent.tools,
        ask_question=agent.ask_question,
        policies=agent.policies,
        compact=None if compact is None else compacted,
    )


class _Whole:
    def __init__(self, model: Model) -> None:
        self._model = model

    async def complete(self, request: twin.ModelRequest) -> twin.ModelResponse:
        return await in_thread(lambda: self._model.complete(request))


class _Streaming:
    def __init__(self, model: StreamingModel) -> None:
        self._model = model

    async def stream(
        self, request: twin.ModelRequest
    ) -> AsyncIterator[twin.ModelDelta | twin.ModelResponse]:
        pieces: asyncio.Queue[Any] = asyncio.Queue(_PIECES)
        pump = _Pump(asyncio.get_running_loop(), pieces, lambda: self._model.stream(request))
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(pump.run,), name="runlane-model", daemon=True
        ).start()
        try:
            while (piece := await pieces.get()) is not END:
                if isinstance(piece, _Failure):
                    raise piece.error
                yield piece
        finally:
            pump.stop()


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


class _Pump:
    """Carries the pieces of an iterator from its thread to a queue of the loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pieces: "asyncio.Queue[Any]",
        start: Callable[[], Iterator[Any]],
    ) -> None:
        self._loop = loop
        self._pieces = pieces
        self._start = start
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Has the iterator closed at its next piece; in the thread of the loop."""
        self._stopped.set()
        # Whoever waits for room finds it, and sees that there is nobody left.
        while not self._pieces.empty():
            self._pieces.get_nowait()

    def run(self) -> None:
        """Iterates to the end; in a thread of its own."""
        try:
            source = self._start()
            try:
                for piece in source:
                    if not self._put(piece):
                        return
            finally:
                close = getattr(source, "close", None)
                if close is not None:
                    close()
        except BaseException as error:  # noqa: BLE001 - handed on to who waits
            self._put(_Failure(error))
        else:
            self._put(END)

    def _put(self, piece: object) -> bool:
        coroutine = self._offer(piece)
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except (RuntimeError, CancelledError):
            # The loop has ended.
            coroutine.close()
            return False

    async def _offer(self, piece: object) -> bool:
        if not self._stopped.is_set():
            await self._pieces.put(piece)
        return not self._stopped.is_set()
