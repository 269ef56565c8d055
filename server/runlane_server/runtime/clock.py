"""Time: wall time that never goes back, read without a system call for each command."""

import time

REFRESH = 5_000_000
"""Microseconds after which the wall clock is read again."""


class Clock:
    """Wall time plus monotonic time since it was last read.

    Steps of the wall clock take effect within `REFRESH`, forwards only.
    """

    def __init__(self) -> None:
        self._wall = time.time_ns() // 1000
        self._mark = time.monotonic_ns() // 1000

    def now(self) -> int:
        """Returns the time in microseconds since 1970 UTC."""
        since = time.monotonic_ns() // 1000 - self._mark
        if since > REFRESH:
            self._wall = max(time.time_ns() // 1000, self._wall + since)
            self._mark += since
            since = 0
        return self._wall + since


class StoreClock:
    """The time of a store that several servers share: theirs may differ, and do not matter.

    The last time that was seen plus monotonic time since. It never goes back: where the
    store's is earlier, it stands still until that has come so far.
    """

    def __init__(self, store_time: int) -> None:
        self._base = store_time
        self._mark = time.monotonic_ns() // 1000
        self._last = store_time

    def now(self) -> int:
        """Returns the time in microseconds since 1970 UTC."""
        self._last = max(self._last, self._base + time.monotonic_ns() // 1000 - self._mark)
        return self._last

    def heard(self, store_time: int) -> None:
        """Takes in the store's time, as it was a moment ago."""
        self._base, self._mark = store_time, time.monotonic_ns() // 1000
