"""What all blocking streams have in common."""

from abc import ABC, abstractmethod
from collections import deque
from typing import Generic, Self, TypeVar

from runlane._events import Item, Resuming
from runlane.sync._portal import END, Portal

Position = TypeVar("Position")


class Items(ABC, Generic[Item, Position]):
    """Iterates over a stream of the async client, and ends it where it is dropped."""

    _twin: Resuming[Item]

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        # An item that came while the wait for it was interrupted, and where the stream was.
        self._kept: deque[tuple[Item, Position]] = deque()

    @abstractmethod
    def _position(self) -> Position:
        """Where the twin is."""

    def _told(self) -> Position:
        """Where its reader is."""
        return self._kept[0][1] if self._kept else self._position()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        if not self._kept:
            self._portal.call(self._fetch)
        if not self._kept:
            raise StopIteration
        return self._kept.popleft()[0]

    async def _fetch(self) -> None:
        before = self._position()
        item = await anext(self._twin, END)
        if item is not END:
            self._kept.append((item, before))

    def __del__(self) -> None:
        # Its connection is the event loop's to close.
        twin = getattr(self, "_twin", None)
        if twin is not None:
            self._portal.soon(twin.aclose)
