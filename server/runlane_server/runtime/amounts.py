"""What namespaces have in the store, for those with a quota of it.

The store is asked at times, and what this server commits meanwhile is added. So a call
costs no read, and no row is shared by all sessions of a namespace. What other servers
commit is known at the next count.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from runlane_server.core.model import SessionKey
from runlane_server.core.quotas import MICROSECONDS, Quota, exceeded
from runlane_server.core.rows import Row, SessionDeleted, SessionInserted
from runlane_server.store.base import Usage
from runlane_server.store.errors import StoreError

COUNT_AGE = 5 * MICROSECONDS
"""How old a count may be."""

DOUBTED_AGE = MICROSECONDS
"""How old it may be where it says that a quota is used up, or a deletion made room."""

COUNT_SHARE = 20
"""A count is good for so many times as long as it took."""

NAMESPACES_MAX = 10_000
"""Namespaces whose amounts are kept in memory."""

Count = Callable[[str], Awaitable[Usage]]
Now = Callable[[], int]


class Amount:
    """What one namespace has: as last counted, with what this server did since.

    Attributes:
        sessions: In the store.
        size: Bytes in the store.
        held_sessions: Of calls that were decided and are not yet on disk.
        held_size: Bytes of their content.
    """

    __slots__ = (
        "_count",
        "_counted",
        "_counting",
        "_freed",
        "_good_for",
        "_moved",
        "_now",
        "_quota",
        "held_sessions",
        "held_size",
        "sessions",
        "size",
    )

    def __init__(self, quota: Quota, count: Callable[[], Awaitable[Usage]], now: Now) -> None:
        self._quota = quota
        self._count = count
        self._now = now
        self._counted: int | None = None
        self._counting: asyncio.Task[None] | None = None
        self._freed = False
        self._good_for = 0
        self._moved = (0, 0)
        self.sessions = self.size = 0
        self.held_sessions = self.held_size = 0

    @property
    def full(self) -> bool:
        """Whether a quota is used up."""
        return self._over_sessions(1) or self._over_size(1)

    def _over_sessions(self, more: int) -> bool:
        limit = self._quota.sessions_max
        return 0 < limit < self.sessions + self.held_sessions + more

    def _over_size(self, more: int) -> bool:
        limit = self._quota.stored_bytes_max
        return 0 < limit < self.size + self.held_size + more

    async def refresh(self) -> None:
        """Counts anew where it must be; waits for it where the last count does not serve.

        Raises:
            StoreError: The store does not tell.
        """
        doubted = self.full or self._freed
        wait = self._counted is None
        if self._counted is not None:
            age = self._now() - self._counted
            if age < max(DOUBTED_AGE if doubted else COUNT_AGE, self._good_for):
                return
            wait = doubted or age >= 2 * max(COUNT_AGE, self._good_for)
        counting = self._counting
        if counting is None:
            counting = asyncio.get_running_loop().create_task(self._take_count())
            self._counting = counting
            counting.add_done_callback(self._end_count)
        if wait:
            # It is everybody's: one caller's cancellation does not end it.
            await asyncio.shield(counting)

    def admit(self, sessions: int, size: int) -> None:
        """Holds room for what a call would write, or refuses it.

        Raises:
            Refused: QUOTA_EXCEEDED.
        """
        quota = self._quota
        if sessions and self._over_sessions(sessions):
            limit = quota.sessions_max
            raise exceeded("sessions_max", limit, "the namespace has as many sessions as it may")
        if self._over_size(max(size, 1)):
            limit = quota.stored_bytes_max
            raise exceeded("stored_bytes_max", limit, "the namespace has stored what it may")
        self.held_sessions += sessions
        self.held_size += size

    def release(self, sessions: int, size: int) -> None:
        """Gives back what was held: it is on disk, and was `committed`, or never will be."""
        self.held_sessions -= sessions
        self.held_size -= size

    def committed(self, sessions: int, size: int, *, freed: bool) -> None:
        """Takes note of a commit; `freed`: it deleted a session, whose bytes are not known."""
        self.sessions += sessions
        self.size += size
        self._moved = (self._moved[0] + sessions, self._moved[1] + size)
        self._freed = self._freed or freed

    async def _take_count(self) -> None:
        began = self._now()
        self._moved, self._freed = (0, 0), False
        usage = await self._count()
        self._counted = self._now()
        self._good_for = COUNT_SHARE * (self._counted - began)
        # What was committed meanwhile may have been counted or not: rather too much for a
        # moment than too little.
        self.sessions = usage.sessions + max(0, self._moved[0])
        self.size = usage.size + self._moved[1]

    def _end_count(self, counting: "asyncio.Task[None]") -> None:
        self._counting = None
        if not counting.cancelled():
            counting.exception()  # told to those who wait for it


class Amounts:
    """The amounts of all namespaces that have a quota of them."""

    def __init__(
        self,
        quota_of: Callable[[str], Quota],
        count: Count,
        now: Now,
        namespaces_max: int = NAMESPACES_MAX,
    ) -> None:
        """Makes an empty set.

        Args:
            quota_of: Returns the quota of a namespace.
            count: Asks the store what a namespace has.
            now: Microseconds that never go back.
            namespaces_max: Namespaces that are kept.
        """
        self._quota_of = quota_of
        self._count = count
        self._now = now
        self._max = namespaces_max
        self._kept: OrderedDict[str, Amount] = OrderedDict()

    def of(self, namespace: str) -> Amount:
        """Returns the amounts of a namespace, which may not have been counted yet."""
        found = self._kept.get(namespace)
        if found is None:
            found = Amount(self._quota_of(namespace), lambda: self._count(namespace), self._now)
            self._kept[namespace] = found
            if len(self._kept) > self._max:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(namespace)
        return found

    def committed(self, key: SessionKey, rows: Sequence[Row], size: int) -> None:
        """Takes note of a commit, also of what no quota refuses."""
        amount = self._kept.get(key.namespace)
        if amount is None:
            return
        sessions, freed = 0, False
        for row in rows:
            if isinstance(row, SessionInserted):
                sessions += 1
            elif isinstance(row, SessionDeleted):
                sessions -= 1
                freed = True
        amount.committed(sessions, size, freed=freed)

    async def used(self, namespace: str) -> Usage:
        """Returns what a namespace has; of a store that is away, what was known last."""
        amount = self.of(namespace)
        with suppress(StoreError):
            await amount.refresh()
        return Usage(amount.sessions, amount.size)
