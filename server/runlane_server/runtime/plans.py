"""What the engine is given and what it has on its way: plans, writes, first calls of requests."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from runlane_server.core.answers import Answer
from runlane_server.core.context import Context, Decision
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.machine import decide
from runlane_server.core.model import SessionKey, SessionState
from runlane_server.core.rows import Row
from runlane_server.runtime.quotas import Toll
from runlane_server.runtime.records import decode_answer
from runlane_server.runtime.slots import Slot
from runlane_server.store.base import (
    CommitUnit,
    EventGroup,
    Outcome,
    RequestKey,
    RequestRecord,
    Write,
)


class Time(Protocol):
    """Where the time comes from."""

    def now(self) -> int:
        """Returns microseconds since 1970 UTC; never goes back."""


class Observer(Protocol):
    """Who is told what has become durable, in order, before its caller is answered."""

    def committed(
        self, key: SessionKey, group: EventGroup | None, rows: Sequence[Row], size: int
    ) -> None:
        """Takes note of a commit and of the bytes that it added; must not raise."""

    def renewed(self, key: SessionKey, activation_id: str, expire_time: int) -> None:
        """Takes note of a heartbeat; must not raise."""


@dataclass(slots=True)
class Plan:
    """One command: the sessions that it is decided on, and how.

    Attributes:
        keys: One session, or two different ones.
        decide: Gives a decision for each session from its state and context.
        request: Names its request_id; None: it has none.
        hash: Of the request.
        toll: What the call costs its namespace; None: nothing.
        trace: The W3C traceparent of the call; empty: none.
    """

    keys: tuple[SessionKey, ...]
    decide: Callable[[list[SessionState | None], list[Context]], Sequence[Decision]]
    actor: str
    request: RequestKey | None = None
    hash: bytes = b""
    toll: Toll | None = None
    trace: str = ""


def plan(
    key: SessionKey,
    command: Any,
    actor: str,
    request: RequestKey | None = None,
    request_hash: bytes = b"",
    toll: Toll | None = None,
    trace: str = "",
) -> Plan:
    """Returns the plan of a command on one session."""
    return Plan(
        (key,),
        lambda states, contexts: (decide(states[0], command, contexts[0]),),
        actor,
        request,
        request_hash,
        toll,
        trace,
    )


class Entry:
    """A write on its way: what it was decided on, and who waits for it."""

    __slots__ = ("answer", "flight", "on_done", "resolved", "slots", "toll", "waiters", "write")

    def __init__(
        self, write: Write, slots: list[Slot], on_done: Callable[["Entry", Outcome], None]
    ) -> None:
        self.write = write
        self.slots = slots
        self.on_done = on_done
        self.flight: Flight | None = None
        self.answer: Answer | None = None
        self.toll: Toll | None = None
        self.resolved: Outcome | None = None
        self.waiters: list[asyncio.Future[Outcome]] = []

    def alive(self) -> bool:
        """Whether what it was decided on still stands."""
        return all(slot.valid for slot in self.slots)

    def resolve(self, outcome: Outcome) -> None:
        """Tells the engine, then all that wait."""
        self.resolved = outcome
        self.on_done(self, outcome)
        for future in self.waiters:
            if not future.done():
                future.set_result(outcome)

    async def outcome(self) -> Outcome:
        """Waits for the outcome with a future of its own: a cancelled caller harms nobody."""
        if self.resolved is not None:  # what it stands on fell while it was queued
            return self.resolved
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.waiters.append(future)
        return await future


@dataclass(slots=True)
class Flight:
    """A request_id whose first call has not been answered.

    Attributes:
        owned: Whether that call still waits.
        in_air: Whether a write of it has no outcome yet: then that lands it.
    """

    hash: bytes
    answer: Answer | None = None
    owned: bool = True
    in_air: bool = False
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def land(self) -> None:
        """Wakes the calls that wait for the first."""
        for future in self.waiters:
            if not future.done():
                future.set_result(None)


def answer_of(decisions: Sequence[Decision]) -> Answer:
    """Returns the answer that decisions on one or two sessions give."""
    return next(one.answer for one in reversed(decisions) if one.answer is not None)


def ids_of(unit: CommitUnit) -> dict[str, str]:
    """Returns what a write is about, for a line of the log."""
    found: dict[str, str] = {}
    if unit.request is not None:
        found["request_id"] = unit.request.key.request_id
    if unit.sessions:
        first = unit.sessions[0]
        found |= {"session_id": first.key.session_id, "run_id": first.current_run_id}
    return {name: value for name, value in found.items() if value}


def replay(request: RequestKey, request_hash: bytes, known_hash: bytes, answer: Answer) -> Answer:
    """Returns a stored answer, or refuses another request with its id."""
    if request_hash != known_hash:
        raise Refused(Reason.REQUEST_ID_REUSED, request_id=request.request_id)
    return answer


def replay_of(record: RequestRecord, request_hash: bytes) -> Answer:
    """Returns the answer of a record, or refuses another request with its id."""
    return replay(record.key, request_hash, record.hash, decode_answer(record.answer))
