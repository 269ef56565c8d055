"""All use cases together, and the life of the process that serves them."""

import asyncio
from collections.abc import Callable, Sequence

from runlane_server.app.archives import Archives
from runlane_server.app.base import Services
from runlane_server.app.control import Control
from runlane_server.app.execution import Execution
from runlane_server.app.feed import Feeds
from runlane_server.app.inputs import Inputs
from runlane_server.app.overview import Overviews
from runlane_server.app.queries import Queries
from runlane_server.app.sessions import Sessions
from runlane_server.app.upkeep import Upkeep
from runlane_server.app.views import Gauges, ServerInfoView
from runlane_server.core.model import SessionKey
from runlane_server.core.rows import Row
from runlane_server.runtime.bus import Bus
from runlane_server.runtime.clock import StoreClock
from runlane_server.runtime.dispatch import Dispatch
from runlane_server.runtime.follower import Follower
from runlane_server.runtime.forever import forever
from runlane_server.runtime.quotas import Quotas
from runlane_server.runtime.relay import Relay
from runlane_server.runtime.roster import SharedDispatch
from runlane_server.runtime.stats import Stats
from runlane_server.runtime.timers import Timers
from runlane_server.store.base import EventGroup


class Committed:
    """Tells all who keep an index of committed rows, in order, before a caller is answered.

    Attributes:
        watcher: Is told of rows too, for the eyes of people; must not raise.
    """

    def __init__(
        self,
        bus: Bus,
        dispatch: Dispatch,
        stats: Stats | None = None,
        quotas: Quotas | None = None,
        watcher: Callable[[SessionKey, Sequence[Row]], None] | None = None,
    ) -> None:
        self.watcher = watcher
        self.bus = bus
        self.dispatch = dispatch
        self.stats = stats or Stats()
        self.quotas = quotas
        self.timers: Timers | None = None

    def committed(
        self, key: SessionKey, group: EventGroup | None, rows: Sequence[Row], size: int
    ) -> None:
        """Takes note of a commit."""
        self.stats.committed(group, rows)
        if self.watcher is not None:
            self.watcher(key, rows)
        self.dispatch.committed(key, rows)
        if self.timers is not None:
            self.timers.committed(key, rows)
        if self.quotas is not None:
            self.quotas.committed(key, rows, size)
        if group is not None:
            self.bus.publish(key, group)

    def renewed(self, key: SessionKey, activation_id: str, expire_time: int) -> None:
        """Takes note of a heartbeat."""
        if self.timers is not None:
            self.timers.renewed(key, activation_id, expire_time)


class App(Sessions, Inputs, Control, Execution, Archives, Queries, Feeds, Overviews):
    """The use cases of one server process."""

    def __init__(
        self,
        services: Services,
        observer: Committed,
        version: str,
        limits: Sequence[tuple[str, int, str]],
        poll_interval: float = 1.0,
    ) -> None:
        """Makes the use cases.

        Args:
            services: The parts.
            observer: What the engine tells of its commits.
            version: Of the server.
            limits: Name, value and unit of what a client can meet.
            poll_interval: Seconds after which it is looked what other servers did though
                nothing was told.
        """
        super().__init__(services)
        self._version = version
        self._limits = limits
        self._upkeep = Upkeep(services)
        self._timers = Timers(services.clock, self._upkeep.fire, services.engine.stats)
        observer.timers = self._timers
        shared, dispatch = services.store.shared, services.dispatch
        if shared is not None and isinstance(dispatch, SharedDispatch):
            services.relay = Relay(shared, services.engine, services.bus)
            services.follower = Follower(
                shared,
                services.engine,
                services.bus,
                dispatch,
                self._timers,
                services.relay,
                poll_interval,
            )
            if isinstance(services.clock, StoreClock):
                services.follower.on_time = services.clock.heard
        self._upkeeping: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Takes in what the store holds, and begins to act on time."""
        follower = self.services.follower
        if follower is None:
            await self.load()
        else:
            await follower.look()
        self._timers.start()
        works = {"requests": self._upkeep.forget_requests, "look": self._upkeep.listen}
        if follower is not None:
            works["follower"] = follower.run
        if self.services.relay is not None:
            works["relay"] = self.services.relay.run
        self._upkeeping = [
            asyncio.get_running_loop().create_task(forever(name, work))
            for name, work in works.items()
        ]

    async def load(self) -> None:
        """Takes in what the store holds, where nobody else writes it."""
        store, dispatch = self.services.store, self.services.dispatch
        leases = await store.leases()
        queued = await store.queued_activations()
        dispatch.load(queued, leases)
        dispatch.drained.update(await store.drained_executors())
        self._timers.load(await store.timers(), leases, queued, await store.notices())

    def drain(self) -> None:
        """Takes no new work: polls and waits answer, streams end, all with what is true."""
        self.services.draining = True
        self.services.bus.wake_all()
        self.services.dispatch.wake_all()

    async def close(self) -> None:
        """Stops acting; what was decided is on disk after it."""
        await self._timers.close()
        for task in self._upkeeping:
            task.cancel()
        await asyncio.gather(*self._upkeeping, return_exceptions=True)
        self.services.bus.close()
        while self.services.background:
            await asyncio.wait(self.services.background)
        await self.services.engine.flush()

    def ready(self) -> bool:
        """Whether the store takes writes."""
        return not self.services.engine.store_away

    @property
    def stats(self) -> Stats:
        """What this process has counted."""
        return self.services.engine.stats

    def gauges(self) -> Gauges:
        """Returns what there is at this moment, in all namespaces."""
        services = self.services
        queued, oldest = services.dispatch.queued()
        return Gauges(
            writes_waiting=services.engine.writes_waiting,
            store_away=services.engine.store_away,
            hot_sessions=services.engine.hot_sessions,
            streams=services.streams.taken,
            waits=services.waits.taken,
            leases=services.dispatch.leased(),
            queued=queued,
            queued_oldest_seconds=(services.clock.now() - oldest) / 1_000_000 if oldest else 0.0,
            notices=self._timers.notices,
        )

    @property
    def quotas(self) -> Quotas | None:
        """The quotas of namespaces; None: there are none."""
        return self.services.quotas

    def server_info(self, namespace: str = "") -> ServerInfoView:
        """Returns what the server is, with the limits of a namespace where one is named."""
        info, limits = self.services.store.info, self._limits
        if self.quotas is not None and namespace:
            limits = [*limits, *self.quotas.of(namespace).limits()]
        return ServerInfoView(
            self._version, info.kind, info.durable, info.store_id, info.epoch, [], limits
        )
