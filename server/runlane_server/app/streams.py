"""Readers of events and messages: one order, no gap, no repeat, bounded memory.

A reader is a cursor. It reads pages after its cursor, from the hub where the
hub holds them, else from the store, and waits where there is none. A writer
never waits for it.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from runlane_server.app.base import UseCase, run_view
from runlane_server.app.queries import matches, waiting_for_executor
from runlane_server.app.views import ControlView, EventQuery, HistoryView
from runlane_server.core.admission import allowed_commands
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import SessionKey
from runlane_server.core.rows import EventType
from runlane_server.core.words import Phase
from runlane_server.runtime.bus import DeltaCursor, Hub, Subscription
from runlane_server.runtime.codec import StoredEvent, decode_group
from runlane_server.runtime.records import decode_state
from runlane_server.store.base import EventGroup

BATCH_EVENTS = 256
BATCH_BYTES = 1024 * 1024
PAGE_EVENTS = 1024
PAGE_BYTES = 1024 * 1024
LIST_BYTES = 2 * 1024 * 1024

Pair = tuple[bytes, bytes | None]
Frame = Callable[[Sequence[Pair]], bytes]
Frames = TypeVar("Frames")
Frames_co = TypeVar("Frames_co", covariant=True)


class Reader(Protocol[Frames_co]):
    """What has a place at a hub while it gives frames."""

    def frames(self, subscription: Subscription) -> AsyncIterator[Frames_co]:
        """Gives frames until the stream ends."""


@dataclass(slots=True)
class EventPage:
    """Events that follow a cursor, whole groups of them.

    Attributes:
        through: The last sequence that the page covers.
    """

    events: list[tuple[int, StoredEvent]]
    through: int


class Streams(UseCase):
    """Streams and lists of events and messages."""

    async def stream_events(
        self, namespace: str, session_id: str, query: EventQuery
    ) -> AsyncIterator[bytes]:
        """Gives encoded frames of StreamEvents."""
        services = self.services
        key = SessionKey(namespace, session_id)
        reader = _Reader(self, key, query, services.codec.event_batch)
        relay = services.relay if query.include_deltas else None
        if relay is not None:
            relay.want(key)
        try:
            async for frame in self._limited(key, reader):
                yield frame
        finally:
            if relay is not None:
                relay.unwant(key)

    async def stream_run_events(
        self,
        namespace: str,
        run_id: str,
        session_id: str,
        after_run_sequence: int,
        follow: bool,
        include_messages: bool,
    ) -> AsyncIterator[bytes]:
        """Gives encoded frames of StreamRunEvents."""
        services = self.services
        row = await self._run_row(namespace, run_id, session_id)
        key = SessionKey(namespace, row.session_id)
        query = EventQuery(
            after=row.first_sequence - 1,
            follow=follow,
            run_ids=frozenset({run_id}),
            include_messages=include_messages,
        )
        reader = _Reader(self, key, query, services.codec.run_event_batch)
        reader.after_run_sequence = after_run_sequence
        reader.bare = True
        async for frame in self._limited(key, reader):
            yield frame

    async def list_events(
        self,
        namespace: str,
        session_id: str,
        run_id: str,
        after: int,
        types: frozenset[int],
        include_messages: bool,
        limit: int,
    ) -> tuple[list[Pair], int | None]:
        """Lists events after a sequence; returns also where the next page starts."""
        services = self.services
        run_ids: frozenset[str] = frozenset()
        through: int | None = None
        if run_id:
            row = await self._run_row(namespace, run_id)
            session_id, run_ids = row.session_id, frozenset({run_id})
            after, through = max(after, row.first_sequence - 1), row.last_sequence or None
        key = SessionKey(namespace, session_id)
        if await services.store.session(key) is None:
            raise Refused(Reason.SESSION_NOT_FOUND)
        newest = await services.store.last_sequence(key) or 0
        last = newest if through is None else min(newest, through)
        wanted: list[Pair] = []
        size, cursor = 0, after
        while cursor < last:
            page = await read_page(self, key, None, cursor)
            if not page.events:
                break
            events = [one for one in page.events if matches(one[1], run_ids, types)]
            cursor = page.through
            messages: dict[int, bytes] = {}
            if include_messages:
                messages, events, cursor = await self._messages(key, events, cursor)
            for sequence, event in events:
                pair = (event.data, messages.get(event.message_number))
                length = len(pair[0]) + len(pair[1] or b"")
                if wanted and (len(wanted) == limit or size + length > LIST_BYTES):
                    return wanted, sequence - 1
                wanted.append(pair)
                size += length
        return wanted, None

    async def stream_messages(
        self, namespace: str, session_id: str, after: int
    ) -> AsyncIterator[bytes]:
        """Gives encoded frames of StreamMessages, up to the newest message now."""
        key = SessionKey(namespace, session_id)
        row = await self.services.store.session(key)
        if row is None:
            raise Refused(Reason.SESSION_NOT_FOUND)
        last = decode_state(row.state).message_count
        async for frame in self._message_frames(key, after, last):
            yield frame

    async def history_at_run(
        self, namespace: str, run_id: str, session_id: str
    ) -> tuple[HistoryView, AsyncIterator[bytes]]:
        """Returns the history at the end of a terminal run, and its messages."""
        row = await self._run_row(namespace, run_id, session_id)
        if row.phase is not Phase.TERMINAL:
            raise Refused(Reason.RUN_NOT_TERMINAL, run_id=run_id, phase=row.phase.name)
        key = SessionKey(namespace, row.session_id)
        summary = None
        if row.summary_through:
            summary = await self.services.store.summary(key, row.summary_through)
        view = HistoryView(run_view(row), row.message_cutoff, row.digest, summary)
        return view, self._message_frames(key, 0, row.message_cutoff)

    async def _message_frames(self, key: SessionKey, after: int, last: int) -> AsyncIterator[bytes]:
        services, number = self.services, after
        while number < last:
            rows = await services.store.messages(key, number + 1, last, BATCH_EVENTS, BATCH_BYTES)
            if not rows:  # deleted meanwhile
                raise Refused(Reason.SESSION_NOT_FOUND)
            yield services.codec.message_batch([row.data for row in rows])
            number = rows[-1].number
            if services.draining:
                raise Refused(Reason.STREAM_ENDED)

    async def _limited(self, key: SessionKey, reader: "Reader[Frames]") -> AsyncIterator[Frames]:
        services = self.services
        if services.bus.subscription_count >= services.limits.streams_max:
            raise Refused(Reason.STREAM_LIMIT, limit=str(services.limits.streams_max))
        quotas = services.quotas
        if quotas is not None:
            quotas.open_stream(key.namespace)
        subscription = services.bus.subscribe(key)
        try:
            async for frame in reader.frames(subscription):
                yield frame
        finally:
            services.bus.unsubscribe(subscription)
            if quotas is not None:
                quotas.close_stream(key.namespace)

    async def _messages(
        self, key: SessionKey, events: list[tuple[int, StoredEvent]], through: int
    ) -> tuple[dict[int, bytes], list[tuple[int, StoredEvent]], int]:
        """Reads messages of events up to a size; also the events before the next, and their end."""
        numbers = [event.message_number for _, event in events if event.message_number]
        if not numbers:
            return {}, events, through
        rows = await self.services.store.messages(
            key, numbers[0], numbers[-1], BATCH_EVENTS, BATCH_BYTES
        )
        found = {row.number: row.data for row in rows}
        # Where there is none at all, the session is deleted: the events tell so.
        newest = rows[-1].number if rows else numbers[-1]
        for index, (sequence, event) in enumerate(events):
            if event.message_number > newest:
                return found, events[:index], sequence - 1
        return found, events, through


async def read_page(case: UseCase, key: SessionKey, hub: Hub | None, after: int) -> EventPage:
    """Reads what follows a sequence, from the hub or the store."""
    groups: list[EventGroup] | None = hub.after(after) if hub is not None else None
    if groups is None:
        groups = await case.services.store.events(key, after, 2**62, PAGE_EVENTS, PAGE_BYTES)
    events: list[tuple[int, StoredEvent]] = []
    through = after
    for group in groups:
        if group.first > through + 1:  # what lies between was swept: the session is deleted
            raise Refused(Reason.SESSION_NOT_FOUND)
        for sequence, event in enumerate(decode_group(group.data), group.first):
            if sequence > after:
                events.append((sequence, event))
        through = group.last
    if hub is not None and hub.blocks:  # What ended them may have come from another server.
        hub.end_deltas(event.type for sequence, event in events if sequence > hub.since)
    return EventPage(events, through)


class _Reader:
    """One stream of events on its way."""

    def __init__(self, streams: Streams, key: SessionKey, query: EventQuery, frame: Frame) -> None:
        self.streams = streams
        self.services = streams.services
        self.key = key
        self.query = query
        self.frame = frame
        self.after_run_sequence = 0
        self.bare = False
        """Whether the stream has frames of events alone."""
        self.open_runs = set(query.run_ids)
        self.over = False
        self.cursor = 0
        self.deltas = DeltaCursor()
        self.control: ControlView | None = None
        self.caught_up_told = False

    async def frames(self, subscription: Subscription) -> AsyncIterator[bytes]:
        """Gives encoded frames until the stream ends."""
        await self._start()
        hub = subscription.hub
        while True:
            frames, through, ended = await self._next(hub)
            for frame in frames:
                yield frame
            if through > self.cursor:
                self.cursor = through
            else:
                if hub.newest > self.cursor:
                    # The page was begun before the newest event came, perhaps by another reader.
                    await self._expect_more(hub)
                    continue
                async for frame in self._idle(subscription):
                    yield frame
                if ended or not self.query.follow:
                    return
                await subscription.moved()
            if self.services.draining:
                raise Refused(Reason.STREAM_ENDED)
            if ended:
                return

    async def _start(self) -> None:
        services, query = self.services, self.query
        if await services.store.session(self.key) is None:
            raise Refused(Reason.SESSION_NOT_FOUND)
        last = await services.store.last_sequence(self.key) or 0
        if query.after is not None:
            self.cursor = query.after
        elif query.last_events is not None:
            self.cursor = max(0, last - query.last_events)
        if self.cursor > last:
            raise Refused(Reason.SEQUENCE_AHEAD, sequence=str(last))
        for run_id in query.run_ids:
            await self._expect_run(run_id)

    async def _expect_run(self, run_id: str) -> None:
        """Leaves out a run whose end lies before the cursor: it will not come again."""
        store, namespace = self.services.store, self.key.namespace
        row = await store.run(namespace, run_id)
        if row is not None and row.session_id == self.key.session_id:
            if row.phase is Phase.TERMINAL and row.last_sequence <= self.cursor:
                self.open_runs.discard(run_id)
            return
        reserved = await store.submission_of_reserved_run(namespace, run_id)
        if reserved is None or reserved.session_id != self.key.session_id:
            raise Refused(Reason.RUN_NOT_FOUND)
        if reserved.settle_time:
            self.open_runs.discard(run_id)

    async def _expect_more(self, hub: Hub) -> None:
        page = await read_page(self.streams, self.key, hub, self.cursor)
        if not page.events:  # the session is deleted, and swept already
            raise Refused(Reason.SESSION_NOT_FOUND)

    async def _next(self, hub: Hub) -> tuple[list[bytes], int, bool]:
        """Returns the frames after the cursor, what they cover, and whether they are the end."""
        query = self.query
        if hub.newest == self.cursor > 0:  # nothing can be there
            return [], self.cursor, False
        plain = not (query.run_ids or query.types or self.bare)
        if not plain:
            page = await read_page(self.streams, self.key, hub, self.cursor)
            frames, through = await self._encode(page, wanted=self._wanted)
            return frames, through, self._note_ends(page, through)
        name = (self.cursor, query.include_messages)
        frames, through, ended = await hub.page(name, lambda: self._plain_page(hub))
        if through == self.cursor:
            hub.pages.pop(name, None)
        return frames, through, ended

    async def _plain_page(self, hub: Hub) -> tuple[list[bytes], int, bool]:
        page = await read_page(self.streams, self.key, hub, self.cursor)
        frames, through = await self._encode(page, wanted=None)
        ended = through == page.through and any(
            event.type == EventType.SESSION_DELETED for _, event in page.events
        )
        return frames, through, ended

    async def _encode(
        self, page: EventPage, wanted: Callable[[StoredEvent], bool] | None
    ) -> tuple[list[bytes], int]:
        """Returns frames and what they cover: not the whole page where messages are large."""
        events, through = page.events, page.through
        if wanted is not None:
            events = [one for one in events if wanted(one[1])]
        messages: dict[int, bytes] = {}
        if self.query.include_messages:
            messages, events, through = await self.streams._messages(  # noqa: SLF001 - same module
                self.key, events, through
            )
        frames: list[bytes] = []
        batch: list[Pair] = []
        size = 0
        for _, event in events:
            pair = (event.data, messages.get(event.message_number))
            length = len(event.data) + len(pair[1] or b"")
            if batch and (len(batch) == BATCH_EVENTS or size + length > BATCH_BYTES):
                frames.append(self.frame(batch))
                batch, size = [], 0
            batch.append(pair)
            size += length
        if batch:
            frames.append(self.frame(batch))
        return frames, through

    def _wanted(self, event: StoredEvent) -> bool:
        if not matches(event, self.query.run_ids, self.query.types):
            return False
        return not self.bare or event.run_sequence > self.after_run_sequence

    def _note_ends(self, page: EventPage, through: int) -> bool:
        """Notes the ends of the runs that the filter names; True: nothing more will come."""
        for sequence, event in page.events:
            if sequence > through:
                break
            if event.type == EventType.SESSION_DELETED:
                return True
            # A reserved run whose input has another end will never be.
            never = event.type in _NEVER and not event.run_sequence
            if event.type == EventType.RUN_TERMINAL or never:
                self.open_runs.discard(event.run_id)
        return bool(self.query.run_ids) and not self.open_runs

    async def _idle(self, subscription: Subscription) -> AsyncIterator[bytes]:
        """Gives what a reader that has caught up is told."""
        if self.bare:
            subscription.take_tick()
            return
        services, query = self.services, self.query
        hub = subscription.hub
        # What a reader knows already may end what is here: it was read on another server.
        if query.include_deltas and self.cursor <= max(hub.since, hub.newest):
            pieces = self.deltas.pieces(hub)
            if pieces:
                yield services.codec.deltas(pieces)
        if query.include_control:
            control = await self._control()
            if control is not None:
                yield services.codec.control(control)
        if subscription.take_tick() or not self.caught_up_told:
            self.caught_up_told = True
            yield services.codec.bookmark(self.cursor, services.clock.now(), caught_up=True)

    async def _control(self) -> ControlView | None:
        """Returns the control state where it has changed since the reader was told."""
        row = await self.services.store.session(self.key)
        if row is None:
            return None
        state = decode_state(row.state)
        run = state.run
        view = ControlView(
            run.run_id if run is not None else "",
            run.phase if run is not None else None,
            run.activation if run is not None else None,
            run is not None and run.cancellation is not None,
            run is not None and run.pause_requested,
            len(state.steers),
            len(state.next_runs),
            allowed_commands(state),
            waiting_for_executor(self.streams, state),
            state.sequence,
        )
        before, self.control = self.control, view
        if before is not None:
            before.as_of_sequence = view.as_of_sequence
        return None if before == view else view


_NEVER = frozenset({EventType.SUBMISSION_FAILED, EventType.SUBMISSION_WITHDRAWN})
