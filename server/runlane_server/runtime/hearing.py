"""Since when heartbeats could be taken: a server that was deaf must not end healthy leases."""

LOOK_AGAIN = 1_000_000
"""Microseconds after which the end of a lease is looked at again while the store is away."""

QUIET = 30_000_000
"""Microseconds without a write after which it is not known whether the store takes any."""


class Hearing:
    """Puts off the end of leases until their executors have been heard, or could have been.

    The server is deaf while its process stands still (stopped, swapped out, or its clock was
    set), and while its store takes no writes.
    """

    def __init__(self, gap: int | None) -> None:
        """Makes it.

        Args:
            gap: Microseconds between two looks at the time that count as having stood still;
                None: none does.
        """
        self._gap = gap
        self._last = 0
        self._since = 0
        self._written = 0
        self._unseen = False
        self.store_away = False

    def look(self, now: int) -> None:
        """Takes note of the time; to be called at least once a second."""
        if self._gap is not None and 0 < self._last < now - self._gap:
            self._since = now
        self._last = max(self._last, now)
        self._written = self._written or now

    def store(self, now: int, *, taken: bool) -> None:
        """Takes note of what became of a write."""
        self._written = now
        if not taken:
            self.store_away = True
        else:
            if self.store_away or self._unseen:
                self._since = now
            self.store_away = self._unseen = False

    def lose_sight(self) -> None:
        """Takes note that a read did not reach the store: until a write or `see` says else."""
        self._unseen = True

    def see(self, now: int) -> None:
        """Takes note that a read reached the store again."""
        if self._unseen:
            self._unseen = False
            self._since = now

    def doubts(self, now: int) -> bool:
        """Whether the store is to be tried: it is away, or nothing was written for long."""
        return self.store_away or now - self._written > QUIET

    def end(self, expire_time: int, duration: int, now: int) -> int:
        """Returns when a lease may be held to have run out."""
        if self.store_away or self._unseen:
            return max(expire_time, now + LOOK_AGAIN)
        return max(expire_time, self._since + duration) if self._since else expire_time
