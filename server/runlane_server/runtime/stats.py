"""What the process counts of its own work: plain numbers, read when somebody asks.

Counting costs the hot path an addition, or a search among a dozen bounds. Nothing here
knows who reads it, or in which form.
"""

from bisect import bisect_left
from collections.abc import Sequence

from runlane_server.core.quotas import QUOTAS
from runlane_server.core.rows import ActivationQueued, EventType, Row, RunEnded, RunInserted
from runlane_server.core.words import StopReason
from runlane_server.runtime.codec import decode_group
from runlane_server.store.base import EventGroup, Outcome, Rejected, Unavailable

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_COMMIT_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_CALL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LAG_SECONDS = (0.01, 0.05, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Histogram:
    """How many values were at most as large as each of its bounds.

    Attributes:
        counts: Of values up to each bound and above the one before; the last: of all others.
        total: The sum of the values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def copy(self) -> "Histogram":
        """Returns the counts as they are now."""
        copied = Histogram(self.bounds)
        copied.counts, copied.total = self.counts.copy(), self.total
        return copied

    def add(self, value: float) -> None:
        """Counts a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Stats:
    """The counts of one server process since its start.

    Attributes:
        batch_size: Writes of a batch.
        commit_seconds: From when a batch was handed to the store until it was on disk.
        timer_lag_seconds: From when something was due until it was begun.
        events: Committed.
        recoveries: Activations that were queued since the one before was lost.
        runs_ended: By stop reason.
        failed_writes: By the kind of their outcome.
        calls: Ended, by method and status code.
        call_seconds: Of unary calls, by method.
        exceeded: Calls that a quota refused, by its name.
    """

    __slots__ = (
        "batch_size",
        "call_seconds",
        "calls",
        "commit_seconds",
        "events",
        "exceeded",
        "failed_writes",
        "recoveries",
        "runs_ended",
        "timer_lag_seconds",
    )

    def __init__(self) -> None:
        self.batch_size = Histogram(_SIZES)
        self.commit_seconds = Histogram(_COMMIT_SECONDS)
        self.timer_lag_seconds = Histogram(_LAG_SECONDS)
        self.events = 0
        self.recoveries = 0
        self.runs_ended = dict.fromkeys(StopReason, 0)
        self.failed_writes = {"unavailable": 0, "rejected": 0}
        self.calls: dict[tuple[str, str], int] = {}
        self.call_seconds: dict[str, Histogram] = {}
        self.exceeded = dict.fromkeys(QUOTAS, 0)

    def copy(self) -> "Stats":
        """Returns the counts as they are now."""
        copied = Stats()
        copied.batch_size = self.batch_size.copy()
        copied.commit_seconds = self.commit_seconds.copy()
        copied.timer_lag_seconds = self.timer_lag_seconds.copy()
        copied.events, copied.recoveries = self.events, self.recoveries
        copied.runs_ended = self.runs_ended.copy()
        copied.failed_writes = self.failed_writes.copy()
        copied.calls = self.calls.copy()
        copied.exceeded = self.exceeded.copy()
        copied.call_seconds = {name: one.copy() for name, one in self.call_seconds.items()}
        return copied

    def committed(self, group: EventGroup | None, rows: Sequence[Row]) -> None:
        """Counts what a commit holds."""
        if group is not None:
            self.events += group.last - group.first + 1
        queued = False
        for row in rows:
            if isinstance(row, RunEnded):
                self.runs_ended[row.stop_reason] += 1
            elif isinstance(row, RunInserted):
                return  # Nothing was lost of a run that begins, nor of one that ended before it.
            elif isinstance(row, ActivationQueued):
                queued = True
        if queued and group is not None:
            types = (one.type for one in decode_group(group.data))
            self.recoveries += sum(one == EventType.RUN_RECOVERING for one in types)

    def refused(self, outcome: Outcome) -> None:
        """Counts a write that the store did not take."""
        if isinstance(outcome, Unavailable):
            self.failed_writes["unavailable"] += 1
        elif isinstance(outcome, Rejected):
            self.failed_writes["rejected"] += 1

    def over_quota(self, quota: str) -> None:
        """Counts a call that a quota refused."""
        self.exceeded[quota] += 1

    def called(self, method: str, code: str, seconds: float | None) -> None:
        """Counts a call that has ended; `seconds` are those of a unary one."""
        name = (method, code)
        self.calls[name] = self.calls.get(name, 0) + 1
        if seconds is not None:
            histogram = self.call_seconds.get(method)
            if histogram is None:
                histogram = self.call_seconds[method] = Histogram(_CALL_SECONDS)
            histogram.add(seconds)
