"""What all blocking streams have in common."""

from collections import deque
from typing import Self

from runlane._event_models import StreamItem
from runlane._events import EventStream
from runlane.sync._portal import END, Portal


class Items:
    """Iterates over an event stream of the async client, and ends it where it is dropped."""

    _twin: EventStream

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        # An item that came while the wait for it was interrupted, and how far the stream was.
        self._kept: deque[tuple[StreamItem, int]] = deque()

    @property
    def sequence(self) -> int:
        """The sequence up to which everything was yielded or filtered out."""
        return self._kept[0][1] if self._kept else self._twin.sequence

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> StreamItem:
        if not self._kept:
            self._portal.call(self._fetch)
        if not self._kept:
            raise StopIteration
        return self._kept.popleft()[0]

    async def _fetch(self) -> None:
        before = self._twin.sequence
        item = await anext(self._twin, END)
        if item is not END:
            self._kept.append((item, before))

    def __del__(self) -> None:
        # Its connection is the event loop's to close.
        twin = getattr(self, "_twin", None)
        if twin is not None:
            self._portal.soon(twin.aclose)
