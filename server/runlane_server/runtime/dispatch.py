"""Which activations wait, who polls for them, and who has what.

An index in memory over committed rows: loaded at start, moved by every commit.
It decides nothing: an activation is leased by a commit on its session alone.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from runlane_server.core.model import SessionKey
from runlane_server.core.rows import (
    ActivationDequeued,
    ActivationQueued,
    LeaseDropped,
    LeasePut,
    Row,
)
from runlane_server.store.base import DRAINED_MAX, LiveLease, QueuedActivation

SEEN_SECONDS = 60
"""How long an executor counts after its last poll ended."""

EXECUTORS_MAX = 10_000
"""Executors that are remembered; the one that polled longest ago is forgotten first."""

LANES_MAX = 10_000
"""Agents that are remembered; beyond it those that are idle are forgotten, oldest first."""


@dataclass(slots=True)
class Waiting:
    """An activation that waits for an executor."""

    key: SessionKey
    activation_id: str
    agent: str
    queue_time: int
    not_before: int = 0


@dataclass(slots=True)
class ExecutorSeen:
    """An executor that polls, or did.

    Attributes:
        met: Other servers on the store know of it.
    """

    agents: frozenset[str] = frozenset()
    last_poll_time: int = 0
    polling: int = 0
    met: bool = False


class Drained:
    """(namespace, executor_id) of executors that take no more, up to `DRAINED_MAX`.

    One that was forgotten is given work again if it still polls. None should: an id is made
    for a process, and a process that drains polls no more once it was told so.
    """

    def __init__(self) -> None:
        self._names: OrderedDict[tuple[str, str], None] = OrderedDict()

    def __contains__(self, name: tuple[str, str]) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: tuple[str, str]) -> None:
        """Remembers one; drained again, it counts as drained now."""
        self._names[name] = None
        self._names.move_to_end(name)
        if len(self._names) > DRAINED_MAX:
            self._names.popitem(last=False)

    def update(self, names: Iterable[tuple[str, str]]) -> None:
        """Remembers many."""
        for name in names:
            self.add(name)


@dataclass(slots=True)
class _Lane:
    """What waits for one agent of one namespace, and who waits for it."""

    queued: OrderedDict[str, Waiting] = field(default_factory=OrderedDict)
    pollers: deque[asyncio.Future[None]] = field(default_factory=deque)
    leased: int = 0
    last_poll_time: int = 0
    executors: dict[str, None] = field(default_factory=dict)


class Dispatch:
    """The index of queued activations, leases and executors."""

    def __init__(self) -> None:
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._where: dict[str, tuple[str, str]] = {}
        self._leases: dict[str, LiveLease] = {}
        self._backing_off: dict[str, Waiting] = {}
        self.executors: OrderedDict[tuple[str, str], ExecutorSeen] = OrderedDict()
        self.drained = Drained()

    def load(self, queued: Sequence[QueuedActivation], leases: Sequence[LiveLease]) -> None:
        """Takes in what the store holds at start."""
        for one in queued:
            self._place(
                Waiting(one.key, one.activation_id, one.agent, one.queue_time, one.not_before)
            )
        for lease in leases:
            self._leases[lease.activation_id] = lease
            self._lane(lease.key.namespace, lease.agent).leased += 1

    def committed(self, key: SessionKey, rows: Sequence[Row]) -> None:
        """Takes in what a commit changed."""
        for row in rows:
            if isinstance(row, ActivationQueued):
                self._place(
                    Waiting(key, row.activation_id, row.agent, row.queue_time, row.not_before)
                )
            elif isinstance(row, ActivationDequeued):
                self._backing_off.pop(row.activation_id, None)
                name = self._where.pop(row.activation_id, None)
                if name is not None:
                    self._lanes[name].queued.pop(row.activation_id, None)
            elif isinstance(row, LeasePut):
                if row.activation_id not in self._leases:
                    self._lane(key.namespace, row.agent).leased += 1
                    self._leases[row.activation_id] = LiveLease(
                        key, row.activation_id, row.agent, row.executor_id, row.expire_time
                    )
            elif isinstance(row, LeaseDropped):
                lease = self._leases.pop(row.activation_id, None)
                if lease is not None:
                    self._lane(key.namespace, lease.agent).leased -= 1

    def take(self, namespace: str, agents: Sequence[str]) -> Waiting | None:
        """Takes the activation that has waited longest out of the index."""
        oldest: Waiting | None = None
        lanes = [self._lanes.get((namespace, agent)) for agent in agents]
        for lane in lanes:
            if lane is not None and lane.queued:
                first = next(iter(lane.queued.values()))
                if oldest is None or first.queue_time < oldest.queue_time:
                    oldest = first
        if oldest is not None:
            self._where.pop(oldest.activation_id, None)
            self._lanes[namespace, oldest.agent].queued.pop(oldest.activation_id)
            # The caller may have been woken for another one than the oldest.
            self._wake_others([lane for lane in lanes if lane is not None])
        return oldest

    def backed_off(self, activation_id: str) -> None:
        """Lets an activation be taken whose back-off is over."""
        waiting = self._backing_off.pop(activation_id, None)
        if waiting is not None:
            self._put(waiting)

    def put_back(self, waiting: Waiting) -> None:
        """Puts back what was taken and not leased, ahead of all others."""
        self._put(waiting)
        lane = self._lanes[waiting.key.namespace, waiting.agent]
        lane.queued.move_to_end(waiting.activation_id, last=False)

    async def wait(self, namespace: str, agents: Sequence[str], seconds: float) -> None:
        """Waits until something may be there for one of the agents, or the time is over."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        lanes = [self._lane(namespace, agent) for agent in agents]
        for lane in lanes:
            lane.pollers.append(future)
        timer = loop.call_later(seconds, _end, future)
        try:
            await future
        except asyncio.CancelledError:
            # It may have been woken for something that it will not take now.
            self._wake_others(lanes)
            raise
        finally:
            timer.cancel()
            for lane in lanes:
                if future in lane.pollers:
                    lane.pollers.remove(future)

    def wake_all(self) -> None:
        """Ends all waits."""
        for lane in self._lanes.values():
            while lane.pollers:
                _end(lane.pollers.popleft())

    def seen(
        self, namespace: str, executor_id: str, agents: Sequence[str], now: int
    ) -> ExecutorSeen:
        """Notes a poll; the caller counts `polling` up and down."""
        name = (namespace, executor_id)
        executor = self.executors.setdefault(name, ExecutorSeen())
        self.executors.move_to_end(name)
        executor.agents = frozenset(agents)
        executor.last_poll_time = now
        for agent in agents:
            lane = self._lane(namespace, agent)
            lane.last_poll_time = now
            lane.executors[executor_id] = None
        if len(self.executors) > EXECUTORS_MAX:
            self.executors.popitem(last=False)
        return executor

    def served(self, namespace: str, agent: str, now: int) -> int:
        """Returns how many executors poll for an agent, or did a short time ago."""
        return len(self._serving(namespace, agent, now - SEEN_SECONDS * 1_000_000))

    def _serving(self, namespace: str, agent: str, since: int) -> set[str]:
        lane = self._lanes.get((namespace, agent))
        if lane is None:
            return set()
        found = set()
        for executor_id in list(lane.executors):
            executor = self.executors.get((namespace, executor_id))
            if executor is None or agent not in executor.agents:
                del lane.executors[executor_id]
            elif (namespace, executor_id) not in self.drained and (
                executor.polling or executor.last_poll_time >= since
            ):
                found.add(executor_id)
        return found

    def queued(self, namespace: str | None = None) -> tuple[int, int]:
        """Returns how many activations wait for an executor, and since when the oldest does.

        None: in all namespaces. The time is 0 where none waits; those that back off do not.
        """
        lanes = [
            lane
            for (where, _), lane in self._lanes.items()
            if lane.queued and namespace in {None, where}
        ]
        times = [next(iter(lane.queued.values())).queue_time for lane in lanes]
        return sum(len(lane.queued) for lane in lanes), min(times, default=0)

    def leased(self, namespace: str | None = None) -> int:
        """Returns how many activations executors have."""
        if namespace is None:
            return len(self._leases)
        return sum(lane.leased for (where, _), lane in self._lanes.items() if where == namespace)

    def seen_since(self, namespace: str, time: int) -> dict[str, ExecutorSeen]:
        """Returns the executors that poll, or did since a time, by id."""
        return {
            executor_id: executor
            for (where, executor_id), executor in self.executors.items()
            if where == namespace and (executor.polling or executor.last_poll_time >= time)
        }

    def leases_by_executor(self, namespace: str) -> dict[str, int]:
        """Returns how many activations each executor has that has any."""
        found: dict[str, int] = {}
        for lease in self._leases.values():
            if lease.key.namespace == namespace:
                found[lease.executor_id] = found.get(lease.executor_id, 0) + 1
        return found

    def leased_by(self, namespace: str, executor_id: str) -> int:
        """Returns how many activations an executor has."""
        return sum(
            1
            for lease in self._leases.values()
            if lease.executor_id == executor_id and lease.key.namespace == namespace
        )

    def agents(self, namespace: str) -> list[tuple[str, int, int, int]]:
        """Returns (name, last_poll_time, queued, leased) of all known agents, by name."""
        return sorted(
            (agent, lane.last_poll_time, len(lane.queued), lane.leased)
            for (where, agent), lane in self._lanes.items()
            if where == namespace and (lane.last_poll_time or lane.queued or lane.leased)
        )

    def _lane(self, namespace: str, agent: str) -> _Lane:
        name = (namespace, agent)
        lane = self._lanes.get(name)
        if lane is None:
            if len(self._lanes) >= LANES_MAX:
                self._forget_idle_lanes()
            lane = self._lanes[name] = _Lane()
        return lane

    def _forget_idle_lanes(self) -> None:
        """Forgets the agents that nothing waits for, and nobody; those just used stay."""
        idle = [
            name
            for name, lane in self._lanes.items()
            if not (lane.queued or lane.pollers or lane.leased)
        ]
        for name in idle[: len(self._lanes) - LANES_MAX // 2]:
            del self._lanes[name]

    def _place(self, waiting: Waiting) -> None:
        if waiting.not_before:
            self._backing_off[waiting.activation_id] = waiting
        else:
            self._put(waiting)

    def _put(self, waiting: Waiting) -> None:
        name = (waiting.key.namespace, waiting.agent)
        lane = self._lane(*name)
        lane.queued[waiting.activation_id] = waiting
        self._where[waiting.activation_id] = name
        self._wake_others([lane])

    def _wake_others(self, lanes: list[_Lane]) -> None:
        """Wakes one poller of each lane that has something."""
        for lane in lanes:
            while lane.queued and lane.pollers:
                future = lane.pollers.popleft()
                if not future.done():
                    future.set_result(None)
                    break


def _end(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
