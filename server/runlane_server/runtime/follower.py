"""What a server learns of the others on its store: one task that hears, reads and passes on.

Nothing stands on it. What it passes on are hints: that a state in memory is old, that readers
should look, that something waits for an executor, that something is due whose server may
be gone. A wake-up that is lost is made good for at the next look, an interval later.
"""

import asyncio
import uuid
from collections.abc import Callable, Sequence

import structlog

from runlane_server.runtime.bus import Bus
from runlane_server.runtime.dispatch import SEEN_SECONDS
from runlane_server.runtime.engine import Engine
from runlane_server.runtime.relay import EAGER, PUT, Relay
from runlane_server.runtime.roster import SharedDispatch
from runlane_server.runtime.timers import Timers
from runlane_server.store.base import Shared
from runlane_server.store.errors import StoreUnavailable, told

SECOND = 1_000_000

PATIENCE = SECOND // 5
"""Microseconds that a server has to do what it wrote, before another one does."""

STUCK = SECOND
"""Microseconds after which a notice that was put is not on its way any more."""

SLOW = 3 * SECOND
"""Microseconds of a look beyond which the store was away, and none could renew a lease."""

PAUSE_SECONDS, PAUSE_MAX_SECONDS, PAUSE_LOOKS = 0.01, 0.1, 8
"""How long it rests between two looks: as long as so many take, within these bounds. So under
load what is told shares fewer looks, and following takes a ninth of the time at most."""

MEET_SECONDS = 5.0
"""How often servers tell each other which executors they see."""

WRITE_SECONDS = 4
"""How long what a server told of its executors is not told again, unless there is a new one."""

ALIVE_SECONDS = 15
"""How long what a server told of its executors stands."""

FORGET_SECONDS = 3600
"""How long an executor is known after its last poll ended."""

LANE_MAX = 64
"""Activations that are read at once for one agent."""

LANES = 1_000
"""Agents that are looked for in one read."""

DUE_MAX = 1_000
"""Things of a kind that are read at once."""

log = structlog.get_logger(__name__)


class Follower:
    """Follows the other servers.

    Attributes:
        patience: As `PATIENCE`; 0 in tests whose other server is gone.
        on_time: Called with the store's time.
    """

    def __init__(
        self,
        shared: Shared,
        engine: Engine,
        bus: Bus,
        dispatch: SharedDispatch,
        timers: Timers,
        relay: Relay,
        interval: float,
    ) -> None:
        """Makes it.

        Args:
            shared: What the store adds.
            engine: Has states.
            bus: Has readers.
            dispatch: Has executors.
            timers: Has alarms.
            relay: Passes deltas on.
            interval: Seconds after which it looks though nothing was told.
        """
        self._shared = shared
        self._engine = engine
        self._bus = bus
        self._dispatch = dispatch
        self._timers = timers
        self._relay = relay
        self._interval = interval
        self._server = uuid.uuid4().hex
        self._cursor = ""
        self._away = self._blind = self._slow = False
        self._written = 0
        self._meeting: asyncio.Task[None] | None = None
        self.patience = PATIENCE
        self.on_time: Callable[[int], None] = lambda _: None
        dispatch.ask = shared.hear

    async def run(self) -> None:
        """Follows, for ever."""
        loop = asyncio.get_running_loop()
        looked = met = -60.0
        while True:
            heard = await self._shared.wait_told(self._interval)
            whole = loop.time() >= looked + self._interval
            roster = "executors" in heard or loop.time() >= met + MEET_SECONDS
            began = loop.time()
            if not await self.take_in(heard, whole=whole, roster=roster):
                await asyncio.sleep(self._interval)
                continue
            looked = loop.time() if whole else looked
            met = loop.time() if roster else met
            # What is told meanwhile shares the next look.
            pause = (loop.time() - began) * PAUSE_LOOKS
            await asyncio.sleep(min(max(pause, PAUSE_SECONDS), PAUSE_MAX_SECONDS))

    async def take_in(self, heard: set[str], *, whole: bool, roster: bool) -> bool:
        """Does what was heard and what the time is for; returns whether the store let it."""
        engine, began = self._engine, self._engine.clock.now()
        try:
            if whole or heard - {EAGER, PUT}:
                await self.look(whole=whole)
            if roster:
                await self.meet()
            await self._relay.heard(heard, whole=whole)
        except Exception as error:  # noqa: BLE001 - it goes on, whatever it was
            # What happened meanwhile is not known, so all of it counts as changed.
            self._cursor = ""
            if not self._away:
                log.warning("other servers cannot be followed", error=told(error))
            self._away = True
            if isinstance(error, StoreUnavailable) and not self._blind:
                # Who writes nothing has no other way to know. Once an outage: what fails for
                # ever must not put off the end of leases for ever.
                engine.lose_sight()
                self._blind = True
            return False
        if whole:
            slow = engine.clock.now() - began > SLOW
            if slow and not self._slow:  # So looks a network that said nothing for a while.
                engine.lose_sight()
            self._slow = slow
        engine.see_store()
        self._away = self._blind = False
        return True

    async def look(self, *, whole: bool = True) -> None:
        """Takes in what others did; with `whole` also what is due and they have not done."""
        await self._follow_moves()
        hungry = self._dispatch.hungry()
        if hungry:
            await self._feed(hungry)
        if whole:
            now = self._engine.clock.now()
            before = now + round(self._interval * SECOND)
            stuck = now - min(STUCK, self.patience * 5)
            self._timers.expect(await self._shared.due(before, stuck, DUE_MAX), self.patience)
            # What is committed may have had to wait for a transaction that told of nothing.
            self._bus.wake_feeds()
            await self._find_drained()

    async def feed(self, namespace: str, agents: Sequence[str]) -> None:
        """Looks for what waits for some agents."""
        await self._feed([(namespace, agent) for agent in agents])

    async def meet(self) -> None:
        """Tells others which executors poll here, and takes in theirs.

        What was done before the call is in it; calls that come at the same time share one.
        """
        if self._meeting is not None:  # It may have read already.
            await asyncio.wait({self._meeting})
        if self._meeting is None:
            self._meeting = asyncio.get_running_loop().create_task(self._meet())
            self._meeting.add_done_callback(self._met)
        await asyncio.shield(self._meeting)

    def _met(self, task: "asyncio.Task[None]") -> None:
        self._meeting = None
        if not task.cancelled():
            task.exception()  # Whoever waits is told; perhaps nobody does.

    async def _feed(self, lanes: Sequence[tuple[str, str]]) -> None:
        now = self._engine.clock.now()
        for first in range(0, len(lanes), LANES):
            some = lanes[first : first + LANES]
            self._dispatch.feed(await self._shared.queued_for(some, now, LANE_MAX))

    async def _follow_moves(self) -> None:
        moves = await self._shared.moved(self._cursor)
        self.on_time(moves.time)
        if moves.sessions is None:
            self._engine.doubt_all()
            self._bus.doubt_all()
            await self._relay.doubt(self._bus.sessions_with_blocks())
        else:
            for key, sequence in moves.sessions.items():
                if self._engine.heard(key, sequence):
                    self._timers.forget(key)
                    self._dispatch.forget(key)
                self._bus.heard(key, sequence)
            await self._relay.doubt(moves.sessions)
        self._cursor = moves.cursor

    async def _find_drained(self) -> None:
        dispatch = self._dispatch
        since = self._engine.clock.now() - SEEN_SECONDS * SECOND
        names = [
            name
            for name, one in dispatch.executors.items()
            if (one.polling or one.last_poll_time >= since) and name not in dispatch.drained
        ]
        drained = await self._shared.drained_among(names) if names else []
        if drained:
            dispatch.drained.update(drained)
            dispatch.wake_all()

    async def _meet(self) -> None:
        dispatch, now = self._dispatch, self._engine.clock.now()
        forget = now - FORGET_SECONDS * SECOND
        here = dispatch.here(now - ALIVE_SECONDS * SECOND, now)
        unmet = [one for one in dispatch.executors.values() if not one.met]
        await self._find_drained()
        if here and (unmet or now >= self._written + WRITE_SECONDS * SECOND):
            self._written = now
            await self._shared.met(self._server, here, forget)
        for one in unmet:
            one.met = True
        if unmet:
            self._shared.tell("executors")
        roster = await self._shared.roster(self._server, forget, now)
        dispatch.meet(roster, now - ALIVE_SECONDS * SECOND)
