"""Quotas of a namespace: what they are, and the buckets that hold a rate."""

from dataclasses import dataclass

from runlane_server.core.errors import Reason, Refused

MICROSECONDS = 1_000_000

QUOTAS = (
    "requests_per_second",
    "events_per_second",
    "sessions_max",
    "open_streams_max",
    "stored_bytes_max",
    "keys",
)
"""Names of all that a namespace may exceed, as refusals tell them."""


@dataclass(slots=True, frozen=True)
class Quota:
    """How much a namespace may have and do; 0: as much as it likes.

    Attributes:
        requests_per_second: Calls.
        events_per_second: Events that its calls append.
        burst_seconds: So many seconds' worth of a rate may come at once.
        sessions_max: Sessions in the store.
        open_streams_max: Event streams that are open on one server.
        stored_bytes_max: Bytes of its messages, its waiting input and its events.
    """

    requests_per_second: int = 0
    events_per_second: int = 0
    burst_seconds: int = 10
    sessions_max: int = 0
    open_streams_max: int = 0
    stored_bytes_max: int = 0

    @property
    def has_rates(self) -> bool:
        """Whether calls are counted."""
        return bool(self.requests_per_second or self.events_per_second)

    @property
    def has_amounts(self) -> bool:
        """Whether it matters what is in the store."""
        return bool(self.sessions_max or self.stored_bytes_max)

    def limits(self) -> list[tuple[str, int, str]]:
        """Returns name, value and unit of what is limited."""
        found = [
            ("quota_requests_per_second", self.requests_per_second, "items"),
            ("quota_events_per_second", self.events_per_second, "items"),
            ("quota_burst_seconds", self.burst_seconds if self.has_rates else 0, "seconds"),
            ("quota_sessions_max", self.sessions_max, "items"),
            ("quota_open_streams_max", self.open_streams_max, "items"),
            ("quota_stored_bytes_max", self.stored_bytes_max, "bytes"),
        ]
        return [limit for limit in found if limit[1]]


class Bucket:
    """Tokens that come back at a steady rate; full at first. Times are microseconds.

    It may be drawn below zero, where what a call costs shows only when it is done: then
    what comes back pays the debt first.
    """

    __slots__ = ("_level", "_rate", "_room", "_time")

    def __init__(self, rate: int, burst_seconds: int, now: int) -> None:
        """Makes a full bucket.

        Args:
            rate: Tokens a second, at least 1.
            burst_seconds: How long it takes to fill, at least 1.
            now: The time.
        """
        # In millionths, so that each microsecond brings a whole number of them.
        self._rate = rate
        self._room = self._level = rate * burst_seconds * MICROSECONDS
        self._time = now

    def wait(self, now: int) -> int:
        """Returns how long until a token is there; 0: there is one."""
        self._level = min(self._room, self._level + max(0, now - self._time) * self._rate)
        self._time = max(now, self._time)
        return max(0, -((self._level - MICROSECONDS) // self._rate))

    def draw(self, tokens: int) -> None:
        """Takes tokens, whether or not they are there."""
        self._level -= tokens * MICROSECONDS

    def give_back(self, tokens: int) -> None:
        """Gives tokens back."""
        self._level = min(self._room, self._level + tokens * MICROSECONDS)


def exceeded(quota: str, limit: int, message: str, wait: int = 0) -> Refused:
    """Returns the refusal of what goes beyond a quota.

    Args:
        quota: The name of the quota.
        limit: Its value.
        message: For people.
        wait: Microseconds after which there is room again; 0: time alone brings none.
    """
    return Refused(
        Reason.QUOTA_EXCEEDED,
        message,
        retry_milliseconds=-(-wait // 1000),
        quota=quota,
        limit=str(limit),
    )
