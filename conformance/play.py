"""Plays a scenario, with whatever client is bound to it."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from conformance.match import Captures, mismatch
from conformance.scenario import Scenario
from conformance.values import ScenarioError, filled

_WITHIN_MS: Final = 15_000
_SCENARIO_SECONDS: Final = 90
_LOOK_SECONDS: Final = 0.05


class Failure(AssertionError):  # noqa: N818 - what JUnit calls it
    """The service, or the client, did not do what the scenario expects."""


class Refused(Exception):  # noqa: N818 - what it is
    """A call was refused.

    Attributes:
        told: `code`, `reason`, `fields`, `metadata` and `message`, as a scenario sees them.
    """

    def __init__(self, told: Mapping[str, Any]) -> None:
        super().__init__(f"refused: {told}")
        self.told = told


class Binding(Protocol):
    """One connection of a client, driven with the JSON of the service's messages."""

    async def call(self, method: str, request: Any, *, raw: bool) -> Any:
        """Makes a call; raises Refused."""

    async def pages(self, method: str, request: Any) -> Any:
        """Reads a list to its end, page by page; raises Refused."""

    def open(self, method: str, request: Any) -> AsyncIterator[Any]:
        """Opens a stream of items; iterating raises Refused."""

    async def aclose(self) -> None:
        """Ends the connection."""


class _Stream:
    """An open stream, and what a driver looks after in each."""

    def __init__(self, items: AsyncIterator[Any], request: Mapping[str, Any]) -> None:
        self.items = items
        self._whole = not request.get("run_ids") and not request.get("types")
        self._last = None if "last_events" in request else int(request.get("after_sequence", 0))
        self._replaced: set[str] = set()

    async def next(self) -> Any:
        item = await anext(self.items)
        if "event" in item and "sequence" in item["event"]:
            self._follow(item["event"])
        delta = item.get("delta", {})
        if delta.get("model_stream_id") in self._replaced:
            raise Failure(f"a piece came after the message that replaces it: {delta}")
        return item

    def _follow(self, event: Mapping[str, Any]) -> None:
        sequence, last = int(event["sequence"]), self._last
        if last is not None and (sequence <= last or (self._whole and sequence != last + 1)):
            raise Failure(f"sequence {sequence} came after {last}")
        self._last = sequence
        stream_id = event.get("message_appended", {}).get("model_stream_id")
        if stream_id:
            self._replaced.add(stream_id)


class Player:
    """Plays one scenario once."""

    def __init__(self, scenario: Scenario, connect: Callable[[], Binding]) -> None:
        self._scenario = scenario
        self._connect = connect
        self._clients: dict[str, Binding] = {}
        self._streams: dict[str, _Stream] = {}
        self._started: dict[str, asyncio.Task[Any]] = {}
        self._scope: Captures = {name: f"{name}-{uuid.uuid4().hex[:16]}" for name in scenario.ids}
        self._where: list[str] = []

    async def play(self) -> None:
        """Plays it.

        Raises:
            Failure: Something was not as it says; the message tells the step.
        """
        try:
            async with asyncio.timeout(_SCENARIO_SECONDS):
                await self._steps(self._scenario.steps)
        except TimeoutError as error:
            raise Failure(f"{self._place()}: {error or 'it took too long'}") from None
        except (Failure, Refused, ScenarioError) as error:
            raise Failure(f"{self._place()}: {error}") from None
        except Exception as error:
            # The client's own, such as a gap that it found.
            raise Failure(f"{self._place()}: {type(error).__name__}: {error}") from error
        finally:
            await self._end()

    def _place(self) -> str:
        return " > ".join(self._where)

    async def _end(self) -> None:
        for task in self._started.values():
            task.cancel()
        await asyncio.gather(*self._started.values(), return_exceptions=True)
        for stream in self._streams.values():
            await _closed(stream.items)
        for client in self._clients.values():
            await client.aclose()

    async def _steps(self, steps: Iterable[Mapping[str, Any]]) -> None:
        for number, step in enumerate(steps, 1):
            verb = next(name for name in _VERBS if name in step)
            self._where.append(f"step {number} ({verb} {_named(step[verb])})")
            await _VERBS[verb](self, step)
            self._where.pop()

    def _client(self, step: Mapping[str, Any]) -> Binding:
        name = step.get("client", "a")
        if name not in self._clients:
            self._clients[name] = self._connect()
        return self._clients[name]

    def _check(self, pattern: Any, value: Any) -> None:
        captures: Captures = {}
        why = mismatch(filled(pattern, self._scope), value, captures)
        if why:
            raise Failure(why)
        self._scope.update(captures)

    # --- the verbs -----------------------------------------------------------

    async def _call(self, step: Mapping[str, Any]) -> None:
        if "start" in step:
            self._started[step["start"]] = asyncio.ensure_future(self._outcome(step))
            # It runs up to its request before anything else is done.
            await asyncio.sleep(0)
            return
        end = time.monotonic() + step.get("until_ms", 0) / 1000
        while True:
            outcome = await self._outcome(step)
            try:
                self._settle(step, outcome)
            except Failure:
                if time.monotonic() >= end:
                    raise
                await asyncio.sleep(_LOOK_SECONDS)
            else:
                return

    async def _outcome(self, step: Mapping[str, Any], scope: Captures | None = None) -> Any:
        client = self._client(step)
        request = filled(step.get("request", {}), scope or self._scope)
        async with asyncio.timeout(step.get("within_ms", _WITHIN_MS) / 1000):
            try:
                if step.get("all_pages"):
                    return await client.pages(step["call"], request)
                return await client.call(step["call"], request, raw=step.get("raw", False))
            except Refused as refused:
                return refused

    def _settle(self, step: Mapping[str, Any], outcome: Any) -> None:
        if isinstance(outcome, Refused):
            if "error" not in step:
                raise Failure(str(outcome))
            self._check(step["error"], outcome.told)
            return
        if "error" in step:
            raise Failure(f"it was not refused, expected {step['error']}")
        if "expect" in step:
            self._check(step["expect"], outcome)
        if "as" in step:
            self._scope[step["as"]] = outcome

    async def _join(self, step: Mapping[str, Any]) -> None:
        outcome = await self._started.pop(step["join"])
        self._settle(step, outcome)

    async def _open(self, step: Mapping[str, Any]) -> None:
        request = filled(step["request"], self._scope)
        items = self._client(step).open(step.get("stream", "StreamEvents"), request)
        self._streams[step["open"]] = _Stream(items, request)

    async def _read(self, step: Mapping[str, Any]) -> None:
        stream = self._streams[step["read"]]
        until = filled(step["until"], self._scope) if "until" in step else None
        read: list[Any] = []
        try:
            async with asyncio.timeout(step.get("within_ms", _WITHIN_MS) / 1000):
                while not (until and read and mismatch(until, read[-1], {}) is None):
                    read.append(await stream.next())
        except TimeoutError:
            raise Failure(f"what was to come did not; there came {read}") from None
        except StopAsyncIteration:
            if not step.get("end"):
                raise Failure(f"the stream ended; there came {read}") from None
        except Refused as refused:
            if "error" not in step:
                raise Failure(f"{refused}; there came {read}") from None
            self._check(step["error"], refused.told)
        else:
            if "error" in step or step.get("end"):
                raise Failure(f"the stream did not end; there came {read}")
        if until and read:
            self._check(step["until"], read[-1])
        if "items" in step:
            self._check(step["items"], read)

    async def _close(self, step: Mapping[str, Any]) -> None:
        await _closed(self._streams.pop(step["close"]).items)

    async def _together(self, step: Mapping[str, Any]) -> None:
        calls = [
            self._outcome(call, {**self._scope, "i": number})
            for call in step["together"]
            for number in range(1, call.get("copies", 1) + 1)
        ]
        counts = [0] * len(step["outcomes"])
        for outcome in await asyncio.gather(*calls):
            reasons = []
            for index, allowed in enumerate(step["outcomes"]):
                try:
                    self._settle(allowed, outcome)
                except Failure as failure:
                    reasons.append(str(failure))
                else:
                    counts[index] += 1
                    break
            else:
                raise Failure(f"no outcome fits: {'; '.join(reasons)}")
        expected = [allowed["count"] for allowed in step["outcomes"]]
        if counts != expected:
            raise Failure(f"the outcomes came {counts} times, expected {expected}")

    async def _repeat(self, step: Mapping[str, Any]) -> None:
        for number in range(1, step["repeat"] + 1):
            self._scope["i"] = number
            await self._steps(step["steps"])

    async def _use(self, step: Mapping[str, Any]) -> None:
        if step["use"] not in self._scenario.shared:
            raise ScenarioError(f"there are no shared steps {step['use']!r}")
        shared = self._scenario.shared[step["use"]]
        given = {**shared.get("defaults", {}), **step.get("with", {})}
        self._scope.update(filled(given, self._scope))
        await self._steps(shared["steps"])


_VERBS: Final[Mapping[str, Callable[[Player, Mapping[str, Any]], Any]]] = {
    "call": Player._call,  # noqa: SLF001 - the class's own table
    "join": Player._join,  # noqa: SLF001
    "open": Player._open,  # noqa: SLF001
    "read": Player._read,  # noqa: SLF001
    "close": Player._close,  # noqa: SLF001
    "together": Player._together,  # noqa: SLF001
    "repeat": Player._repeat,  # noqa: SLF001
    "use": Player._use,  # noqa: SLF001
}


def _named(value: Any) -> str:
    return str(value) if isinstance(value, str | int) else f"of {len(value)}"


async def _closed(items: AsyncIterator[Any]) -> None:
    close = getattr(items, "aclose", None)
    if close is not None:
        with contextlib.suppress(Exception):
            await close()
