"""A model that answers from a script: for demos, tests and trying things out."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from typing import Any

from runlane import (
    MessageRole,
    ModelDelta,
    ModelRequest,
    ModelResponse,
    ToolUseBlock,
    Usage,
)

from runlane_server.settings import ScriptedCall, ScriptEntry

_RUNS_MAX = 1_000
"""Runs whose next words are remembered."""


class ScriptedModel:
    """Answers with what its script says.

    An entry with `match` answers a newest user message that holds its text; the first such
    entry is taken. Where none matches, the entries without `match` are given in turn, again
    and again. `{input}` in an answer stands for the text of that message.

    An answer may ask for tools. What is said to their results is `then` of the same entry,
    where it has one or was matched, else the next entry in turn; `{result}` stands for them.

    Args:
        script: The entries, or plain answers.
        name: What it calls itself.
        piece_characters: How much of an answer is streamed at a time.

    Raises:
        ValueError: The script is empty.
    """

    def __init__(
        self,
        script: Iterable[ScriptEntry | str],
        *,
        name: str = "scripted",
        piece_characters: int = 16,
    ) -> None:
        entries = [ScriptEntry(answer=e) if isinstance(e, str) else e for e in script]
        if not entries:
            raise ValueError("a script has at least one entry")
        self._name = name
        self._matching = [entry for entry in entries if entry.match is not None]
        self._in_turn = [entry for entry in entries if entry.match is None]
        self._given = 0
        # What is said next in a run, where its last answer asked for tools.
        self._next: OrderedDict[str, str] = OrderedDict()
        self._piece = piece_characters

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        """Yields the answer in pieces, then as a whole."""
        said, result = _newest_input(request), _newest_results(request)
        entry = self._choose(said, request.run_id if result is not None else None)
        if entry.delay_seconds:
            await asyncio.sleep(entry.delay_seconds)
        words = {"{input}": said, "{result}": result or ""}
        calls = _calls(entry)
        if calls and entry.then is not None:
            self._next[request.run_id] = entry.then
            if len(self._next) > _RUNS_MAX:  # a run may end without coming back
                self._next.popitem(last=False)
        answer = _fill(entry.answer, words) if isinstance(entry.answer, str) else ""
        for start in range(0, len(answer), self._piece):
            yield ModelDelta(answer[start : start + self._piece])
        # It has no tokens; words give figures that add up in demos.
        usage = Usage(
            input_tokens=sum(len(message.text.split()) for message in request.messages),
            output_tokens=len(answer.split()) + len(calls),
        )
        yield ModelResponse(
            text=answer,
            tool_calls=tuple(
                ToolUseBlock(
                    tool_call_id=f"call_{request.step}_{ordinal}",
                    name=call.tool,
                    arguments=_fill(dict(call.arguments), words),
                )
                for ordinal, call in enumerate(calls, 1)
            ),
            usage=usage,
            model=self._name,
            finish_reason="tool_calls" if calls else "stop",
        )

    async def aclose(self) -> None:
        """Holds nothing."""

    def _choose(self, said: str, answered_run: str | None) -> ScriptEntry:
        if answered_run is not None and (then := self._next.pop(answered_run, None)) is not None:
            return ScriptEntry(answer=then)
        for entry in self._matching:
            if entry.match is not None and entry.match in said:
                if answered_run is not None and _calls(entry):
                    # Also where another process asked for the tools.
                    return ScriptEntry(answer=entry.then or "{result}")
                return entry
        if not self._in_turn:
            return ScriptEntry(answer="")
        entry = self._in_turn[self._given % len(self._in_turn)]
        self._given += 1
        return entry


def _calls(entry: ScriptEntry) -> tuple[ScriptedCall, ...]:
    if isinstance(entry.answer, str):
        return ()
    return (entry.answer,) if isinstance(entry.answer, ScriptedCall) else entry.answer


def _fill(value: Any, words: dict[str, str]) -> Any:
    """Puts words in the place of what stands for them, however deep."""
    if isinstance(value, str):
        for mark, word in words.items():
            value = value.replace(mark, word)
        return value
    if isinstance(value, dict):
        return {key: _fill(item, words) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_fill(item, words) for item in value]
    return value


def _newest_input(request: ModelRequest) -> str:
    for message in reversed(request.messages):
        if message.role is MessageRole.USER:
            return message.text
    return ""


def _newest_results(request: ModelRequest) -> str | None:
    """Returns the results that the newest messages are; None where they are none."""
    results = []
    for message in reversed(request.messages):
        if message.tool_result is None:
            break
        results.append(message.tool_result.text)
    return "\n".join(reversed(results)) if results else None
