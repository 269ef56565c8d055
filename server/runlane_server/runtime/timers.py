"""Durable timers: what falls due with nobody connected, and after a restart.

The store holds them; this is the alarm clock. A timer that fires late, early
or twice changes no outcome: what is due is decided from the state.
"""

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog

from runlane_server.core.model import SessionKey
from runlane_server.core.rows import (
    ActivationQueued,
    LeaseDropped,
    LeasePut,
    NoticePut,
    Row,
    TimerSet,
)
from runlane_server.core.words import TimerKind
from runlane_server.runtime.engine import Time
from runlane_server.store.base import LiveLease, QueuedActivation, StoredNotice, StoredTimer

RETRY = 1_000_000
"""Microseconds after which a timer that could not be handled fires again."""

LONGEST_SLEEP = 60.0
"""Seconds after which the clock is looked at anyway: the wall clock may have been set."""

AT_ONCE = 256
"""Alarms that are handled together."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Alarm:
    """What is due: a timer of `kind`, or the end of a lease, or of a back-off, or a notice.

    Attributes:
        activation_id: Of a lease or a back-off.
        notice: What the session is to be told; due at once.
    """

    key: SessionKey
    kind: TimerKind | None
    activation_id: str = ""
    backoff: bool = False
    notice: StoredNotice | None = None


class Timers:
    """Fires alarms when they are due."""

    def __init__(self, clock: Time, fire: Callable[[Alarm], Awaitable[int | None]]) -> None:
        """Makes the alarm clock.

        Args:
            clock: The time.
            fire: Handles an alarm; returns when it is due again, or None.
        """
        self._clock = clock
        self._fire = fire
        self._heap: list[tuple[int, int, Alarm]] = []
        self._count = itertools.count()
        # When the alarm of each lease rings; others of it that are still about are old.
        self._leases: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def load(
        self,
        timers: Sequence[StoredTimer],
        leases: Sequence[LiveLease],
        queued: Sequence[QueuedActivation],
        notices: Sequence[StoredNotice] = (),
    ) -> None:
        """Takes in what the store holds at start."""
        for notice in notices:
            self._push(0, Alarm(notice.key, None, notice=notice))
        for one in queued:
            if one.not_before:
                self._push(one.not_before, Alarm(one.key, None, one.activation_id, backoff=True))
        for timer in timers:
            self._push(timer.due_time, Alarm(timer.key, timer.kind))
        for lease in leases:
            self._set_lease(lease.key, lease.activation_id, lease.expire_time)

    def committed(self, key: SessionKey, rows: Sequence[Row]) -> None:
        """Takes in what a commit changed."""
        for row in rows:
            if isinstance(row, TimerSet):
                # A cleared timer fires once for nothing; that is cheaper than to look for it.
                if row.due_time is not None:
                    self._push(row.due_time, Alarm(key, row.kind))
            elif isinstance(row, LeasePut):
                self._set_lease(key, row.activation_id, row.expire_time)
            elif isinstance(row, ActivationQueued):
                if row.not_before:
                    alarm = Alarm(key, None, row.activation_id, backoff=True)
                    self._push(row.not_before, alarm)
            elif isinstance(row, NoticePut):
                told = SessionKey(key.namespace, row.session_id)
                notice = StoredNotice(told, row.kind, row.cause)
                self._push(0, Alarm(told, None, notice=notice))
            elif isinstance(row, LeaseDropped):
                self._leases.pop(row.activation_id, None)

    def renewed(self, key: SessionKey, activation_id: str, expire_time: int) -> None:
        """Takes in a heartbeat: only one that ends its lease sooner moves the alarm."""
        if activation_id in self._leases:
            self._set_lease(key, activation_id, expire_time)

    def start(self) -> None:
        """Begins to fire."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stops firing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _set_lease(self, key: SessionKey, activation_id: str, expire_time: int) -> None:
        """Sets the alarm of a lease, unless it rings sooner: then it finds the new end."""
        if expire_time < self._leases.get(activation_id, expire_time + 1):
            self._leases[activation_id] = expire_time
            self._push(expire_time, Alarm(key, None, activation_id))

    def _push(self, due_time: int, alarm: Alarm) -> None:
        heapq.heappush(self._heap, (due_time, next(self._count), alarm))
        self._wake.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            now = self._clock.now()
            due: list[tuple[int, Alarm]] = []
            while self._heap and self._heap[0][0] <= now and len(due) < AT_ONCE:
                due_time, _, alarm = heapq.heappop(self._heap)
                due.append((due_time, alarm))
            # Together, so that a thousand leases that end at once share their commits.
            await asyncio.gather(*(self._handle(*one) for one in due))
            wait = LONGEST_SLEEP
            if self._heap:
                wait = min(wait, max(0.001, (self._heap[0][0] - self._clock.now()) / 1_000_000))
            timer = loop.call_later(wait, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    async def _handle(self, due_time: int, alarm: Alarm) -> None:
        lease = alarm.kind is None and not alarm.backoff and alarm.notice is None
        if lease and self._leases.get(alarm.activation_id) != due_time:
            return
        try:
            again = await self._fire(alarm)
        except Exception as error:  # noqa: BLE001 - an alarm must not stop the clock
            log.warning("timer failed, it fires again", kind=alarm.kind, error=repr(error))
            again = self._clock.now() + RETRY
        if lease:
            self._leases.pop(alarm.activation_id, None)
            if again is not None:
                self._set_lease(alarm.key, alarm.activation_id, again)
        elif again is not None:
            self._push(again, alarm)
