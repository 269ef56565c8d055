"""Readers of the feed: all events of a namespace, for those who index, bill or audit.

A reader is a place in the order of the store. It reads on from there until nothing more
comes, past what is of other namespaces too, and then waits for a commit of its namespace.
"""

from collections.abc import AsyncIterator

from runlane_server.app.queries import matches
from runlane_server.app.streams import (
    BATCH_BYTES,
    BATCH_EVENTS,
    PAGE_BYTES,
    PAGE_EVENTS,
    Streams,
)
from runlane_server.app.views import FeedEvents, FeedMark, FeedQuery
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import SessionKey
from runlane_server.runtime.bus import Subscription, feed_of
from runlane_server.runtime.codec import StoredEvent, decode_group
from runlane_server.store.base import FEED_START, FeedGroup, FeedPlace

FeedFrame = FeedEvents | FeedMark


class Feeds(Streams):
    """Streams of all sessions of a namespace."""

    async def stream_feed(self, namespace: str, query: FeedQuery) -> AsyncIterator[FeedFrame]:
        """Gives events, a batch at a time, and where the reader is."""
        services = self.services
        if services.bus.feed_count >= services.limits.feeds_max:
            raise Refused(Reason.STREAM_LIMIT, limit=str(services.limits.feeds_max))
        reader = _FeedReader(self, namespace, query)
        async for frame in self._limited(feed_of(namespace), reader):
            yield frame

    async def events_of_group(
        self, namespace: str, group: FeedGroup, after: int, query: FeedQuery
    ) -> AsyncIterator[tuple[FeedPlace, bytes, bytes | None]]:
        """Gives the events of a group after a sequence that a reader wants."""
        place, key = group.place, SessionKey(namespace, group.session_id)
        events: list[tuple[int, StoredEvent]] = [
            (sequence, event)
            for sequence, event in enumerate(decode_group(group.events.data), group.events.first)
            if sequence > after and matches(event, frozenset(), query.types)
        ]
        while events:
            messages: dict[int, bytes] = {}
            taken = events
            if query.include_messages:
                # Where they are large, those of a part of the events.
                messages, taken, _ = await self._messages(key, events, place.sequence)
            for sequence, event in taken:
                message = messages.get(event.message_number)
                yield place._replace(sequence=sequence), event.data, message
            events = events[len(taken) :]


class _FeedReader:
    """One feed on its way."""

    def __init__(self, feeds: Feeds, namespace: str, query: FeedQuery) -> None:
        self.feeds = feeds
        self.services = feeds.services
        self.namespace = namespace
        self.query = query
        self.cursor = FEED_START

    async def frames(self, subscription: Subscription) -> AsyncIterator[FeedFrame]:
        """Gives frames until the stream ends."""
        store, query = self.services.store, self.query
        end = await self._start()
        told = query.after is None
        if told:
            yield self._mark(caught_up=True)
        while True:
            page = await store.feed(self.namespace, self.cursor, PAGE_EVENTS, PAGE_BYTES)
            sent = False
            async for batch in self._batches(page.groups):
                yield batch
                sent = True
            self.cursor = page.through
            if self.services.draining:
                raise Refused(Reason.STREAM_ENDED)
            if not query.follow and self.cursor >= end:
                yield self._mark(caught_up=not page.more)
                return
            if page.more:
                if not sent:
                    yield self._mark(caught_up=False)
                continue
            if subscription.take_tick() or not told:
                told = True
                yield self._mark(caught_up=True)
            await subscription.moved()

    async def _start(self) -> FeedPlace:
        """Takes its place; returns the end of the feed."""
        end = await self.services.store.feed_end()
        self.cursor = end if self.query.after is None else self.query.after
        if self.cursor > end:
            raise Refused(
                Reason.PAGE_TOKEN_MISMATCH, "the cursor is ahead of the store, which went back"
            )
        return end

    async def _batches(self, groups: list[FeedGroup]) -> AsyncIterator[FeedEvents]:
        batch: FeedEvents = []
        size = 0
        for group in groups:
            within = self.cursor[:2] == group.place[:2]
            after = self.cursor.sequence if within else 0
            async for one in self.feeds.events_of_group(self.namespace, group, after, self.query):
                length = len(one[1]) + len(one[2] or b"")
                if batch and (len(batch) == BATCH_EVENTS or size + length > BATCH_BYTES):
                    yield batch
                    batch, size = [], 0
                batch.append(one)
                size += length
        if batch:
            yield batch

    def _mark(self, *, caught_up: bool) -> FeedMark:
        return FeedMark(self.cursor, caught_up, self.services.clock.now())
