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
