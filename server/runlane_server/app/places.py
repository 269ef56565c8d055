"""Places of calls that stay open: so many on this server, and so many of a namespace."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runlane_server.core.errors import Reason, Refused


class Places:
    """The places of one kind of call.

    Attributes:
        taken: How many are open.
    """

    def __init__(self, limit: int) -> None:
        """Makes so many, all free."""
        self.taken = 0
        self._limit = limit
        self._enter: Callable[[str], None] = _uncounted
        self._leave: Callable[[str], None] = _uncounted

    def count(self, enter: Callable[[str], None], leave: Callable[[str], None]) -> None:
        """Has them counted by namespace: `enter` counts one in, or refuses it."""
        self._enter, self._leave = enter, leave

    @contextmanager
    def one(self, namespace: str) -> Iterator[None]:
        """Holds a place.

        Raises:
            Refused: STREAM_LIMIT: none is free.
        """
        if self.taken >= self._limit:
            raise Refused(Reason.STREAM_LIMIT, limit=str(self._limit))
        self._enter(namespace)
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
            self._leave(namespace)


def _uncounted(_namespace: str) -> None:
    """No namespace has a quota."""
