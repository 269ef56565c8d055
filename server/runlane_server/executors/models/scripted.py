"""A model that answers from a script: for demos, tests and trying things out."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from runlane import MessageRole, ModelDelta, ModelRequest, ModelResponse, Usage

from runlane_server.settings import ScriptEntry


class Gates:
    """Gates by name, at which answers wait. Each is held until it is opened."""

    def __init__(self) -> None:
        self._open: dict[str, asyncio.Event] = {}
        self._waiting: dict[str, int] = {}
        self._arrived = asyncio.Condition()

    def open(self, name: str) -> None:
        """Lets through who waits at a gate, and who comes after."""
        self._event(name).set()

    def hold(self, name: str) -> None:
        """Closes a gate again for those who come after."""
        self._event(name).clear()

    def waiting(self, name: str) -> int:
        """Returns how many answers wait at a gate."""
        return self._waiting.get(name, 0)

    async def arrived(self, name: str, count: int = 1) -> None:
        """Waits until as many answers wait at a gate."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self.waiting(name) >= count)

    async def wait(self, name: str) -> None:
        """Waits at a gate."""
        self._waiting[name] = self.waiting(name) + 1
        try:
            async with self._arrived:
                self._arrived.notify_all()
            await self._event(name).wait()
        finally:
            self._waiting[name] -= 1

    def _event(self, name: str) -> asyncio.Event:
        return self._open.setdefault(name, asyncio.Event())


class ScriptedModel:
    """Answers with what its script says.

    An entry with `match` answers a newest user message that holds its text; the first such
    entry is taken. Where none matches, the entries without `match` are given in turn, again
    and again. `{input}` in an answer stands for the text of that message.

    Args:
        script: The entries, or plain answers.
        name: What it calls itself.
        gates: The gates that entries name; None: gates of its own.
        piece_characters: How much of an answer is streamed at a time.

    Raises:
        ValueError: The script is empty.
    """

    def __init__(
        self,
        script: Iterable[ScriptEntry | str],
        *,
        name: str = "scripted",
        gates: Gates | None = None,
        piece_characters: int = 16,
    ) -> None:
        entries = [ScriptEntry(answer=e) if isinstance(e, str) else e for e in script]
        if not entries:
            raise ValueError("a script has at least one entry")
        self.gates = Gates() if gates is None else gates
        self.requests: list[ModelRequest] = []
        self._name = name
        self._matching = [entry for entry in entries if entry.match is not None]
        self._in_turn = [entry for entry in entries if entry.match is None]
        self._given = 0
        self._piece = piece_characters

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        """Yields the answer in pieces, then as a whole."""
        self.requests.append(request)
        said = _newest_input(request)
        entry = self._choose(said)
        if entry.gate is not None:
            await self.gates.wait(entry.gate)
        answer = entry.answer.replace("{input}", said)
        for start in range(0, len(answer), self._piece):
            yield ModelDelta(answer[start : start + self._piece])
        # It has no tokens; words give figures that add up in demos.
        usage = Usage(
            input_tokens=sum(len(message.text.split()) for message in request.messages),
            output_tokens=len(answer.split()),
        )
        yield ModelResponse(text=answer, usage=usage, model=self._name, finish_reason="stop")

    async def aclose(self) -> None:
        """Holds nothing."""

    def _choose(self, said: str) -> ScriptEntry:
        for entry in self._matching:
            if entry.match is not None and entry.match in said:
                return entry
        if not self._in_turn:
            return ScriptEntry(answer="")
        entry = self._in_turn[self._given % len(self._in_turn)]
        self._given += 1
        return entry


def _newest_input(request: ModelRequest) -> str:
    for message in reversed(request.messages):
        if message.role is MessageRole.USER:
            return message.text
    return ""
