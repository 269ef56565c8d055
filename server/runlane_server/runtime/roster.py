"""Dispatch where several servers share a store: a hint of what waits, and who works elsewhere.

What waits here is what was committed here, or was read for executors that poll here. That
an activation is not here says nothing, and one that is may be leased already: its lease is a
commit like any other. Counts are those of all servers, as they were read last.
"""

from collections.abc import Callable, Iterable, Sequence

from runlane_server.core.model import SessionKey
from runlane_server.core.rows import ActivationDequeued, ActivationQueued, Row
from runlane_server.runtime.dispatch import Dispatch, ExecutorSeen, Waiting
from runlane_server.store.base import PollingExecutor, QueuedActivation, Roster

WAITING_MAX = 10_000
"""Activations that are kept here; more are found in the store when their turn comes."""

Name = tuple[str, str]


class SharedDispatch(Dispatch):
    """The index of one of several servers.

    Attributes:
        ask: Called with `hungry` where an executor begins to wait with nothing here for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ask: Callable[[str], None] = lambda _: None
        self._of_session: dict[SessionKey, Waiting] = {}
        self._others: dict[Name, ExecutorSeen] = {}
        self._serve: dict[Name, set[str]] = {}
        self._told = Roster([], {}, {})

    # --- what waits --------------------------------------------------------

    def committed(self, key: SessionKey, rows: Sequence[Row]) -> None:
        """Takes in what a commit changed; leases are counted in the store."""
        queues = [row for row in rows if isinstance(row, (ActivationQueued, ActivationDequeued))]
        super().committed(key, queues)
        if any(isinstance(row, ActivationDequeued) for row in queues):
            waiting = self._of_session.get(key)
            if waiting is not None and waiting.activation_id not in self._where:
                self._of_session.pop(key)

    def take(self, namespace: str, agents: Sequence[str]) -> Waiting | None:
        """Takes the activation that has waited longest out of the index."""
        waiting = super().take(namespace, agents)
        if waiting is not None:
            self._of_session.pop(waiting.key, None)
        return waiting

    def forget(self, key: SessionKey) -> None:
        """Takes out what waits for a session that another server has written."""
        waiting = self._of_session.pop(key, None)
        if waiting is not None:
            super().committed(key, [ActivationDequeued(waiting.activation_id)])

    def hungry(self) -> list[Name]:
        """Returns the (namespace, agent) that executors wait for here in vain."""
        return [name for name, lane in self._lanes.items() if lane.pollers and not lane.queued]

    def feed(self, found: Iterable[QueuedActivation]) -> None:
        """Takes in what the store has for those who wait."""
        for one in found:
            if one.activation_id not in self._where:
                # One that backed off does so no longer, or it would not have been found.
                self._put(Waiting(one.key, one.activation_id, one.agent, one.queue_time))

    async def wait(self, namespace: str, agents: Sequence[str], seconds: float) -> None:
        """Waits until something may be there for one of the agents, or the time is over."""
        self.ask("hungry")
        await super().wait(namespace, agents, seconds)

    def _place(self, waiting: Waiting) -> None:
        if len(self._where) < WAITING_MAX:
            super()._place(waiting)

    def _put(self, waiting: Waiting) -> None:
        self._of_session[waiting.key] = waiting
        super()._put(waiting)

    # --- who works ---------------------------------------------------------

    def here(self, since: int, now: int) -> list[PollingExecutor]:
        """Returns the executors that poll here, or did since a time."""
        return [
            PollingExecutor(
                namespace,
                executor_id,
                sorted(one.agents),
                now if one.polling else one.last_poll_time,
                one.polling > 0,
            )
            for (namespace, executor_id), one in self.executors.items()
            if one.polling or one.last_poll_time >= since
        ]

    def meet(self, roster: Roster, alive_since: int) -> None:
        """Takes in who works elsewhere; one whose server wrote nothing since does not poll."""
        self._told = roster
        self._others, self._serve = {}, {}
        for one in roster.executors:
            name = (one.namespace, one.executor_id)
            polling = one.polling and one.last_poll_time >= alive_since
            _merge(
                self._others.setdefault(name, ExecutorSeen()),
                ExecutorSeen(frozenset(one.agents), one.last_poll_time, int(polling)),
            )
        for (namespace, executor_id), seen in self._others.items():
            for agent in seen.agents:
                self._serve.setdefault((namespace, agent), set()).add(executor_id)

    def _serving(self, namespace: str, agent: str, since: int) -> set[str]:
        found = super()._serving(namespace, agent, since)
        for executor_id in self._serve.get((namespace, agent), ()):
            name = (namespace, executor_id)
            seen = self._others[name]
            if name not in self.drained and (seen.polling or seen.last_poll_time >= since):
                found.add(executor_id)
        return found

    def seen_since(self, namespace: str, time: int) -> dict[str, ExecutorSeen]:
        """Returns the executors that poll, or did since a time, by id."""
        found: dict[str, ExecutorSeen] = {}
        for known in (self.executors, self._others):
            for (where, executor_id), one in known.items():
                if where == namespace and (one.polling or one.last_poll_time >= time):
                    _merge(found.setdefault(executor_id, ExecutorSeen()), one)
        return found

    # --- counts ------------------------------------------------------------

    def queued(self, namespace: str | None = None) -> tuple[int, int]:
        """Returns how many activations wait for an executor, and since when the oldest does."""
        found = [one for (where, _), one in self._told.queued.items() if namespace in {None, where}]
        return sum(count for count, _ in found), min((time for _, time in found), default=0)

    def leased(self, namespace: str | None = None) -> int:
        """Returns how many activations executors have."""
        leased = self._told.leased.items()
        return sum(count for (where, *_), count in leased if namespace in {None, where})

    def leases_by_executor(self, namespace: str) -> dict[str, int]:
        """Returns how many activations each executor has that has any."""
        found: dict[str, int] = {}
        for (where, _, executor_id), count in self._told.leased.items():
            if where == namespace:
                found[executor_id] = found.get(executor_id, 0) + count
        return found

    def leased_by(self, namespace: str, executor_id: str) -> int:
        """Returns how many activations an executor has."""
        return self.leases_by_executor(namespace).get(executor_id, 0)

    def agents(self, namespace: str) -> list[tuple[str, int, int, int]]:
        """Returns (name, last_poll_time, queued, leased) of all known agents, by name."""
        polled: dict[str, int] = {}
        for (where, agent), lane in self._lanes.items():
            if where == namespace and lane.last_poll_time:
                polled[agent] = lane.last_poll_time
        for (where, _), one in self._others.items():
            for agent in one.agents if where == namespace else ():
                polled[agent] = max(polled.get(agent, 0), one.last_poll_time)
        leased: dict[str, int] = {}
        for (where, agent, _), count in self._told.leased.items():
            if where == namespace:
                leased[agent] = leased.get(agent, 0) + count
        queued = {
            agent: count
            for (where, agent), (count, _) in self._told.queued.items()
            if where == namespace
        }
        return [
            (agent, polled.get(agent, 0), queued.get(agent, 0), leased.get(agent, 0))
            for agent in sorted(polled.keys() | queued.keys() | leased.keys())
        ]


def _merge(seen: ExecutorSeen, other: ExecutorSeen) -> None:
    """Adds what another server has seen of an executor."""
    if other.last_poll_time >= seen.last_poll_time:
        seen.agents = other.agents
    seen.last_poll_time = max(seen.last_poll_time, other.last_poll_time)
    seen.polling += other.polling
