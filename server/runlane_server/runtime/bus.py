"""The wake-up bus: who reads a session is told that it moved.

A hub a session keeps the newest committed groups and the pages made of them,
so that a hundred readers cost one read and one encoding. Nobody needs what it
holds: whoever is not at the start of it reads the store, and a wake-up that is
lost or doubled does no harm. Deltas live here alone and die here.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from runlane_server.core.model import Delta, SessionKey
from runlane_server.core.rows import EventType
from runlane_server.core.words import DeltaKind
from runlane_server.runtime.codec import decode_group
from runlane_server.store.base import EventGroup

GROUPS_BYTES = 256 * 1024
"""Newest groups that a hub keeps, in bytes."""

PAGES = 8
"""Pages that a hub keeps."""

DELTA_BYTES = 512 * 1024
"""Text on its way that a hub keeps; a longer block goes on without deltas."""

_ENDS_DELTAS = frozenset(
    {
        EventType.MESSAGE_APPENDED,
        EventType.ACTIVATION_ENDED,
        EventType.ACTIVATION_ABANDONED,
        EventType.RUN_TERMINAL,
        EventType.SESSION_DELETED,
    }
)


@dataclass(slots=True)
class PartialBlock:
    """The newest state of a block on its way."""

    last: Delta
    text: str
    generation: int


class Subscription:
    """One reader's place at a hub: it waits here."""

    __slots__ = ("_future", "bucket", "hub", "seen", "ticked")

    def __init__(self, hub: "Hub", bucket: int) -> None:
        self.hub = hub
        self.bucket = bucket
        self.seen = hub.version
        self.ticked = False
        self._future: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Wakes the reader where it waits."""
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)

    async def moved(self) -> None:
        """Waits until the hub has moved since the last wait, or a tick."""
        if self.seen == self.hub.version and not self.ticked:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
        self.seen = self.hub.version

    def take_tick(self) -> bool:
        """Returns whether a tick came, and forgets it."""
        ticked, self.ticked = self.ticked, False
        return ticked


class Hub:
    """What the readers of one session share."""

    __slots__ = (
        "_generation",
        "_group_bytes",
        "blocks",
        "groups",
        "key",
        "known",
        "pages",
        "since",
        "subscriptions",
        "version",
    )

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.subscriptions: set[Subscription] = set()
        self.groups: deque[EventGroup] = deque()
        self.pages: OrderedDict[Any, asyncio.Future[Any]] = OrderedDict()
        self.blocks: dict[tuple[str, int], PartialBlock] = {}
        self.version = 0
        # The newest event that there was when the newest piece came: no older one ends it.
        self.since = 0
        # The newest event that another server was heard to have committed.
        self.known = 0
        self._group_bytes = 0
        self._generation = 0

    @property
    def newest(self) -> int:
        """The sequence of the newest event that is known here; 0 where none is."""
        return self.groups[-1].last if self.groups else self.known

    def publish(self, group: EventGroup) -> None:
        """Takes a committed group and wakes all readers."""
        groups = self.groups
        if groups and groups[-1].last + 1 != group.first:
            self._forget_groups()
        if group.last > self.known:
            groups.append(group)
            self._group_bytes += len(group.data)
        while self._group_bytes > GROUPS_BYTES and len(groups) > 1:
            self._group_bytes -= len(groups.popleft().data)
        if self.blocks:
            self.end_deltas(one.type for one in decode_group(group.data))
        self.wake()

    def heard(self, sequence: int) -> None:
        """Takes note of an event that another server has committed: readers read the store."""
        if sequence > self.newest:
            self._forget_groups()
            self.known = sequence
            self.wake()

    def doubt(self) -> None:
        """Has all readers look at the store: others may have committed anything."""
        self._forget_groups()
        self.known = 0
        self.wake()

    def end_deltas(self, types: Iterable[int]) -> None:
        """Drops the blocks on their way where something came that ends them."""
        if any(one in _ENDS_DELTAS for one in types):
            self.blocks.clear()

    def _forget_groups(self) -> None:
        self.groups.clear()
        self._group_bytes = 0

    def wake(self) -> None:
        """Wakes all readers."""
        self.version += 1
        for subscription in self.subscriptions:
            subscription.wake()

    def after(self, sequence: int) -> list[EventGroup] | None:
        """Returns the groups after a sequence where all of them are held here."""
        groups = self.groups
        if not groups or groups[0].first > sequence + 1:
            return None
        return [group for group in groups if group.last > sequence]

    async def page(self, name: Any, make: Callable[[], Awaitable[Any]]) -> Any:
        """Returns the page of a name; the first reader that asks makes it for all."""
        future = self.pages.get(name)
        if future is None:
            future = asyncio.ensure_future(make())
            self.pages[name] = future
            if len(self.pages) > PAGES:
                self.pages.popitem(last=False)
        elif future.done() and not future.cancelled() and future.exception() is None:
            return future.result()
        try:
            return await asyncio.shield(future)
        except BaseException:
            if future.done():
                self.pages.pop(name, None)
            raise

    def take_deltas(self, deltas: list[Delta], sequence: int) -> int:
        """Merges pieces into the blocks.

        Args:
            deltas: The pieces.
            sequence: The session's newest event when they were found to be of its current step.

        Returns:
            How many fitted what is held.
        """
        taken = 0
        for delta in deltas:
            name = (delta.model_stream_id, delta.block_index)
            block = self.blocks.get(name)
            if delta.snapshot_text is not None:
                self._generation += 1
                block = PartialBlock(delta, delta.snapshot_text, self._generation)
            elif block is None and delta.append_text is not None and delta.base_revision == 0:
                self._generation += 1
                block = PartialBlock(delta, delta.append_text, self._generation)
            elif block is None or delta.base_revision != block.last.revision:
                continue
            else:
                text = block.text + (delta.append_text or "")
                block = PartialBlock(delta, text, block.generation)
            if len(block.text) > DELTA_BYTES:
                self.blocks.pop(name, None)
                continue
            self.blocks[name] = block
            taken += 1
        if taken:
            self.since = max(self.since, sequence)
            self.wake()
        return taken


class DeltaCursor:
    """What one reader has seen of the blocks on their way."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[str, int], tuple[int, int, int, bool]] = {}

    def pieces(self, hub: Hub) -> list[Delta]:
        """Returns what is new, one piece a block, coalesced."""
        pieces = []
        seen: dict[tuple[str, int], tuple[int, int, int, bool]] = {}
        for name, block in hub.blocks.items():
            last = block.last
            before = self._seen.get(name)
            seen[name] = (block.generation, last.revision, len(block.text), last.block_done)
            if before == seen[name]:
                continue
            known = before is not None and before[0] == block.generation
            base, length = (before[1], before[2]) if known and before is not None else (0, 0)
            text = block.text[length:]
            if text or not last.block_done:
                pieces.append(
                    Delta(
                        last.model_stream_id,
                        last.run_id,
                        last.activation_id,
                        last.step,
                        last.block_index,
                        DeltaKind(last.kind),
                        base,
                        last.revision,
                        append_text=text if known else None,
                        snapshot_text=None if known else text,
                    )
                )
                base = last.revision
            if last.block_done:
                pieces.append(
                    Delta(
                        last.model_stream_id,
                        last.run_id,
                        last.activation_id,
                        last.step,
                        last.block_index,
                        DeltaKind(last.kind),
                        base,
                        last.revision,
                        block_done=True,
                    )
                )
        self._seen = seen
        return pieces


def feed_of(namespace: str) -> SessionKey:
    """Names the hub of those who read all sessions of a namespace; no session has this id."""
    return SessionKey(namespace, "")


class Bus:
    """All hubs; and the one ticker that all idle readers share."""

    def __init__(self, tick_seconds: float = 15.0, buckets: int = 60) -> None:
        """Makes a bus.

        Args:
            tick_seconds: How often each reader gets a tick.
            buckets: Parts that the readers are spread over, so that ticks do not come at once.
        """
        self._hubs: dict[SessionKey, Hub] = {}
        self._interval = tick_seconds / buckets
        self._buckets: list[set[Subscription]] = [set() for _ in range(buckets)]
        self._next_bucket = 0
        self._ticker: asyncio.Task[None] | None = None
        self._feeds: set[Hub] = set()
        self.subscription_count = 0

    def subscribe(self, key: SessionKey) -> Subscription:
        """Gives a reader its place; to be given back by `unsubscribe`."""
        hub = self.hub(key)
        subscription = Subscription(hub, self._next_bucket)
        self._next_bucket = (self._next_bucket + 1) % len(self._buckets)
        self._buckets[subscription.bucket].add(subscription)
        hub.subscriptions.add(subscription)
        if not key.session_id:
            self._feeds.add(hub)
        self.subscription_count += 1
        if self._ticker is None:
            self._ticker = asyncio.get_running_loop().create_task(self._tick())
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Takes a place back; a hub without readers goes with the last one."""
        hub = subscription.hub
        hub.subscriptions.discard(subscription)
        self._buckets[subscription.bucket].discard(subscription)
        self.subscription_count -= 1
        self._forget(hub)

    def subscriptions_of(self, namespace: str) -> int:
        """Returns how many readers there are of a namespace's sessions."""
        return sum(
            len(hub.subscriptions) for hub in self._hubs.values() if hub.key.namespace == namespace
        )

    def find(self, key: SessionKey) -> Hub | None:
        """Returns the hub of a session where there is one."""
        return self._hubs.get(key)

    def sessions_with_blocks(self) -> list[SessionKey]:
        """Returns the sessions with blocks on their way here."""
        return [key for key, hub in self._hubs.items() if hub.blocks]

    def drop_blocks(self, key: SessionKey, blocks: Iterable[PartialBlock]) -> None:
        """Drops blocks of model steps that are over."""
        hub = self._hubs.get(key)
        if hub is not None:
            for block in blocks:
                hub.blocks.pop((block.last.model_stream_id, block.last.block_index), None)
            self._forget(hub)

    def take_deltas(self, key: SessionKey, deltas: list[Delta], sequence: int) -> int:
        """Merges pieces into the blocks of a session; see `Hub.take_deltas`."""
        hub = self.hub(key)
        taken = hub.take_deltas(deltas, sequence)
        self._forget(hub)
        return taken

    def hub(self, key: SessionKey) -> Hub:
        """Returns the hub of a session, made where there is none."""
        hub = self._hubs.get(key)
        if hub is None:
            hub = self._hubs[key] = Hub(key)
        return hub

    def publish(self, key: SessionKey, group: EventGroup) -> None:
        """Takes a committed group to those who read the session."""
        hub = self._hubs.get(key)
        if hub is not None:
            hub.publish(group)
            self._forget(hub)
        if self._feeds:
            self.wake(feed_of(key.namespace))

    @property
    def feed_count(self) -> int:
        """How many readers there are of feeds."""
        return sum(len(hub.subscriptions) for hub in self._feeds)

    def wake_feeds(self) -> None:
        """Wakes those who read feeds: others may have written."""
        for hub in self._feeds:
            hub.wake()

    def heard(self, key: SessionKey, sequence: int) -> None:
        """Tells those who read a session of an event that another server has committed."""
        hub = self._hubs.get(key)
        if hub is not None:
            hub.heard(sequence)
            self._forget(hub)
        if self._feeds:
            self.wake(feed_of(key.namespace))

    def doubt_all(self) -> None:
        """Has every reader look at the store."""
        for hub in list(self._hubs.values()):
            hub.doubt()
            self._forget(hub)

    def wake(self, key: SessionKey) -> None:
        """Wakes those who read the session: something beside its events changed."""
        hub = self._hubs.get(key)
        if hub is not None:
            hub.wake()

    def wake_all(self) -> None:
        """Wakes every reader."""
        for hub in self._hubs.values():
            hub.wake()

    def close(self) -> None:
        """Stops the ticker."""
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    def _forget(self, hub: Hub) -> None:
        if not hub.subscriptions and not hub.blocks and self._hubs.get(hub.key) is hub:
            del self._hubs[hub.key]
            self._feeds.discard(hub)

    async def _tick(self) -> None:
        while True:
            for bucket in self._buckets:
                await asyncio.sleep(self._interval)
                for subscription in bucket:
                    subscription.ticked = True
                    subscription.wake()
