"""Quotas: what the calls of a namespace may cost, and what it may have.

A call of a client is given a `Toll` at the door, which goes with its command to the
engine. What the server does itself has none, nor has a call that is exempt: neither is
ever refused here.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence

from runlane_server.core.context import Decision
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import SessionKey
from runlane_server.core.quotas import Bucket, Quota, exceeded
from runlane_server.core.rows import MessageAppended, Row, SessionInserted, SubmissionInserted
from runlane_server.runtime.amounts import Amount, Amounts, Count
from runlane_server.store.base import CommitUnit, Usage

NAMESPACES_MAX = 10_000
"""Namespaces whose buckets are kept; the one that called longest ago has full ones again."""


class _Rates:
    """The buckets of one namespace; None: no limit."""

    __slots__ = ("events", "quota", "requests")

    def __init__(self, quota: Quota, now: int) -> None:
        def bucket(rate: int) -> Bucket | None:
            return Bucket(rate, quota.burst_seconds, now) if rate else None

        self.quota = quota
        self.requests = bucket(quota.requests_per_second)
        self.events = bucket(quota.events_per_second)

    def refusal(self, now: int, *, writes: bool) -> Refused | None:
        """Returns why a call must wait, with how long; None: it need not."""
        waits = self.requests.wait(now) if self.requests is not None else 0
        slow = self.events.wait(now) if writes and self.events is not None else 0
        if not waits and not slow:
            return None
        quota, name, message = self.quota, "requests_per_second", "too many calls a second"
        limit = quota.requests_per_second
        if slow > waits:
            name, message = "events_per_second", "too many events a second"
            limit = quota.events_per_second
        return exceeded(name, limit, f"the namespace makes {message}", max(waits, slow))


class Toll:
    """What one call that writes costs its namespace.

    Attributes:
        refusal: Why it may do nothing new; None: it may. Only the answer of an earlier call
            with its request_id is then given, which costs nothing.
    """

    __slots__ = ("_amount", "_held", "_paid", "_rates", "refusal")

    def __init__(self, rates: _Rates | None, amount: Amount | None) -> None:
        self.refusal: Refused | None = None
        self._rates = rates
        self._amount = amount
        self._held = (0, 0)
        self._paid = False

    def pay(self, now: int) -> None:
        """Takes a token, or notes that there is none."""
        rates = self._rates
        if rates is None:
            return
        self.refusal = rates.refusal(now, writes=True)
        if self.refusal is None and rates.requests is not None:
            rates.requests.draw(1)
            self._paid = True

    def replayed(self) -> None:
        """Gives back what was paid: the call got the answer of an earlier one."""
        if self._paid and self._rates is not None and self._rates.requests is not None:
            self._rates.requests.give_back(1)
            self._paid = False

    async def ready(self) -> None:
        """Sees to it that `admit` knows what is in the store.

        Raises:
            StoreError: The store does not tell.
        """
        if self._amount is not None:
            await self._amount.refresh()

    def admit(self, decisions: Sequence[Decision]) -> None:
        """Holds room for what was decided, until `settled`.

        What brings no content and makes no session is never refused: it may be what makes
        room.

        Raises:
            Refused: QUOTA_EXCEEDED.
        """
        if self._amount is None:
            return
        sessions = size = 0
        brings = False
        for decision in decisions:
            for row in decision.rows:
                if isinstance(row, SessionInserted):
                    sessions += 1
                    brings = True
                elif isinstance(row, SubmissionInserted | MessageAppended) and row.content:
                    size += len(row.content.data)
                    brings = True
        if brings:
            self._amount.admit(sessions, size)
            self._held = (sessions, size)

    def settled(self, committed: CommitUnit | None) -> None:
        """Pays for the events of what was committed; None: nothing was."""
        if self._amount is not None:
            self._amount.release(*self._held)
            self._held = (0, 0)
        rates = self._rates
        if committed is None or rates is None or rates.events is None:
            return
        groups = [one.events for one in committed.sessions if one.events is not None]
        rates.events.draw(sum(group.last - group.first + 1 for group in groups))


class Quotas:
    """The quotas of all namespaces."""

    def __init__(
        self,
        default: Quota,
        own: Mapping[str, Quota],
        count: Count,
        now: Callable[[], int],
        namespaces_max: int = NAMESPACES_MAX,
    ) -> None:
        """Makes quotas of which nothing is used.

        Args:
            default: Of a namespace that has none of its own.
            own: By namespace.
            count: Asks the store what a namespace has.
            now: Microseconds since 1970 UTC; never goes back.
            namespaces_max: Namespaces whose buckets are kept.
        """
        self._default = default
        self._own = own
        self._now = now
        self._max = namespaces_max
        self._rates: OrderedDict[str, _Rates] = OrderedDict()
        self._streams: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()
        every = [default, *own.values()]
        self._amounts: Amounts | None = None
        if any(quota.has_amounts for quota in every):
            self._amounts = Amounts(self.of, count, now)

    def of(self, namespace: str) -> Quota:
        """Returns the quota of a namespace."""
        return self._own.get(namespace, self._default)

    # --- calls ---------------------------------------------------------------

    def read(self, namespace: str) -> None:
        """Lets a call that only reads pass, and takes its token.

        Raises:
            Refused: QUOTA_EXCEEDED.
        """
        rates = self._rates_of(namespace)
        if rates is None or rates.requests is None:
            return
        refusal = rates.refusal(self._now(), writes=False)
        if refusal is not None:
            raise refusal
        rates.requests.draw(1)

    def write(self, namespace: str) -> Toll | None:
        """Returns the toll of a call that writes, and takes its token where there is one."""
        quota = self.of(namespace)
        if not quota.has_rates and not quota.has_amounts:
            return None
        amount = self._amounts.of(namespace) if self._amounts and quota.has_amounts else None
        toll = Toll(self._rates_of(namespace), amount)
        toll.pay(self._now())
        return toll

    def _rates_of(self, namespace: str) -> _Rates | None:
        found = self._rates.get(namespace)
        if found is not None:
            self._rates.move_to_end(namespace)
            return found
        quota = self.of(namespace)
        if not quota.has_rates:
            return None
        found = self._rates[namespace] = _Rates(quota, self._now())
        if len(self._rates) > self._max:
            self._rates.popitem(last=False)
        return found

    # --- what stays open -----------------------------------------------------

    def open_stream(self, namespace: str) -> None:
        """Counts an event stream in, until `close_stream`.

        Raises:
            Refused: STREAM_LIMIT: the namespace has as many as it may.
        """
        self._open(self._streams, namespace, "event streams")

    def close_stream(self, namespace: str) -> None:
        """Counts an event stream out."""
        _close(self._streams, namespace)

    def open_wait(self, namespace: str) -> None:
        """Counts a wait in, until `close_wait`: as many as event streams, and beside them.

        Raises:
            Refused: STREAM_LIMIT: the namespace has as many as it may.
        """
        self._open(self._waits, namespace, "waits")

    def close_wait(self, namespace: str) -> None:
        """Counts a wait out."""
        _close(self._waits, namespace)

    def _open(self, held: Counter[str], namespace: str, what: str) -> None:
        limit = self.of(namespace).open_streams_max
        if 0 < limit <= held[namespace]:
            raise Refused(
                Reason.STREAM_LIMIT,
                f"the namespace has as many {what} as it may",
                quota="open_streams_max",
                limit=str(limit),
            )
        held[namespace] += 1

    # --- amounts -------------------------------------------------------------

    def committed(self, key: SessionKey, rows: Sequence[Row], size: int) -> None:
        """Takes note of a commit."""
        if self._amounts is not None:
            self._amounts.committed(key, rows, size)

    async def used(self, namespace: str) -> list[tuple[str, int, int]]:
        """Returns name, what is used, and limit of the amounts that a namespace may have."""
        quota = self.of(namespace)
        usage = Usage(0, 0)
        if self._amounts is not None and quota.has_amounts:
            usage = await self._amounts.used(namespace)
        found = [
            ("sessions_max", usage.sessions, quota.sessions_max),
            ("open_streams_max", self._streams.get(namespace, 0), quota.open_streams_max),
            ("stored_bytes_max", usage.size, quota.stored_bytes_max),
        ]
        return [one for one in found if one[2]]


def _close(held: Counter[str], namespace: str) -> None:
    held[namespace] -= 1
    if not held[namespace]:
        del held[namespace]


def make_quotas(
    default: Quota, own: Mapping[str, Quota], count: Count, now: Callable[[], int]
) -> Quotas | None:
    """Returns the quotas; None where nothing is limited: nobody then pays for looking."""
    if not default.limits() and not any(quota.limits() for quota in own.values()):
        return None
    return Quotas(default, own, count, now)
