"""Durable timers: what falls due with nobody connected, and after a restart.

The store holds them; this is the alarm clock. A timer that fires late, early
or twice changes no outcome: what is due is decided from the state.
"""

import asyncio
import heapq
import itertools
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import structlog

from runlane_server.core.model import SessionKey
from runlane_server.core.rows import (
    ActivationDequeued,
    ActivationQueued,
    LeaseDropped,
    LeasePut,
    NoticePut,
    Row,
    TimerSet,
)
from runlane_server.core.words import TimerKind
from runlane_server.runtime.engine import Time
from runlane_server.runtime.forever import forever
from runlane_server.runtime.stats import Stats
from runlane_server.store.base import Due, LiveLease, QueuedActivation, StoredNotice, StoredTimer
from runlane_server.store.errors import told

RETRY = 1_000_000
"""Microseconds after which a timer that could not be handled fires again."""

LONGEST_SLEEP = 60.0
"""Seconds after which the clock is looked at anyway: the wall clock may have been set."""

AT_ONCE = 256
"""Alarms that are handled together."""

DEAD_MIN = 1024
"""Entries of cleared or moved alarms that may be about however few alarms are set."""

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

    @property
    def name(self) -> Hashable:
        """What it is an alarm of: at most one of a name is set."""
        if self.kind is not None:
            return self.key, self.kind
        if self.notice is not None:
            return self.key, self.notice.kind, self.notice.cause
        return self.activation_id, self.backoff

    def ids(self) -> dict[str, str]:
        """Returns what it is about, for a line of the log."""
        what = self.kind or (self.notice.kind if self.notice is not None else None)
        named = {
            "kind": what.name if what is not None else "BACKOFF" if self.backoff else "LEASE",
            "session_id": self.key.session_id,
            "activation_id": self.activation_id,
        }
        return {name: value for name, value in named.items() if value}


# When it is due, in the order of setting where that is the same.
_Entry: TypeAlias = tuple[int, int, Alarm]


class Timers:
    """Fires alarms when they are due."""

    def __init__(
        self,
        clock: Time,
        fire: Callable[[Alarm], Awaitable[int | None]],
        stats: Stats | None = None,
    ) -> None:
        """Makes the alarm clock.

        Args:
            clock: The time.
            fire: Handles an alarm; returns when it is due again, or None.
            stats: Counts how late alarms are.
        """
        self._clock = clock
        self._fire = fire
        self._stats = stats or Stats()
        self.notices = 0
        self._heap: list[_Entry] = []
        self._count = itertools.count()
        # The entry that counts of each alarm, by its name; what else the heap has of it is
        # dead. One that is being handled stays until that is done.
        self._set: dict[Hashable, _Entry] = {}
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
            self._put_notice(notice)
        for one in queued:
            if one.not_before:
                self._put(one.not_before, Alarm(one.key, None, one.activation_id, backoff=True))
        for timer in timers:
            self._put(timer.due_time, Alarm(timer.key, timer.kind))
        for lease in leases:
            self._put_sooner(lease.expire_time, Alarm(lease.key, None, lease.activation_id))

    def committed(self, key: SessionKey, rows: Sequence[Row]) -> None:
        """Takes in what a commit changed."""
        for row in rows:
            if isinstance(row, TimerSet):
                alarm = Alarm(key, row.kind)
                if row.due_time is None:
                    self._clear(alarm)
                else:
                    self._put(row.due_time, alarm)
            elif isinstance(row, LeasePut):
                self._put_sooner(row.expire_time, Alarm(key, None, row.activation_id))
            elif isinstance(row, LeaseDropped):
                self._clear(Alarm(key, None, row.activation_id))
            elif isinstance(row, ActivationQueued):
                if row.not_before:
                    self._put(row.not_before, Alarm(key, None, row.activation_id, backoff=True))
            elif isinstance(row, ActivationDequeued):
                self._clear(Alarm(key, None, row.activation_id, backoff=True))
            elif isinstance(row, NoticePut):
                told = SessionKey(key.namespace, row.session_id)
                self._put_notice(StoredNotice(told, row.kind, row.cause))

    def expect(self, due: Due, patience: int) -> None:
        """Takes in what is due soon, whoever wrote it.

        Args:
            due: As the store has it.
            patience: Microseconds that its own server has to do it.
        """
        found = [
            *((one.due_time, Alarm(one.key, one.kind)) for one in due.timers),
            *((one.expire_time, Alarm(one.key, None, one.activation_id)) for one in due.leases),
            *((self._clock.now(), Alarm(one.key, None, notice=one)) for one in due.notices),
        ]
        for due_time, alarm in found:
            if alarm.name not in self._set:
                self._put(due_time + patience, alarm)

    def forget(self, key: SessionKey) -> None:
        """Clears the timers of a session: another server has written it, and has set them."""
        for kind in TimerKind:
            self._clear(Alarm(key, kind))

    def renewed(self, key: SessionKey, activation_id: str, expire_time: int) -> None:
        """Takes in a heartbeat: only one that ends its lease sooner moves the alarm."""
        alarm = Alarm(key, None, activation_id)
        if alarm.name in self._set:
            self._put_sooner(expire_time, alarm)

    def start(self) -> None:
        """Begins to fire."""
        self._task = asyncio.get_running_loop().create_task(forever("timers", self._run))

    async def close(self) -> None:
        """Stops firing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def _put(self, due_time: int, alarm: Alarm) -> None:
        """Sets an alarm; another of its name is moved."""
        entry = (due_time, next(self._count), alarm)
        if alarm.notice is not None and alarm.name not in self._set:
            self.notices += 1
        self._set[alarm.name] = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._set) + DEAD_MIN:
            # More than half is dead: what this costs was paid for by as many pushes.
            self._heap = [one for one in self._heap if self._set.get(one[2].name) is one]
            heapq.heapify(self._heap)
        self._wake.set()

    def _put_notice(self, notice: StoredNotice) -> None:
        """Sets the alarm of a notice; one that is put again while it is applied rings again."""
        self._put(0, Alarm(notice.key, None, notice=notice))

    def _put_sooner(self, due_time: int, alarm: Alarm) -> None:
        """Sets an alarm, unless it rings sooner: then it finds out when it is due."""
        entry = self._set.get(alarm.name)
        if entry is None or due_time < entry[0]:
            self._put(due_time, alarm)

    def _clear(self, alarm: Alarm) -> None:
        if self._set.pop(alarm.name, None) is not None and alarm.notice is not None:
            self.notices -= 1

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            now = self._clock.now()
            due: list[_Entry] = []
            while self._heap and self._heap[0][0] <= now and len(due) < AT_ONCE:
                entry = heapq.heappop(self._heap)
                if self._set.get(entry[2].name) is entry:
                    due.append(entry)
                    if entry[0]:  # What is due at once is of no time.
                        self._stats.timer_lag_seconds.add((now - entry[0]) / 1_000_000)
            # Together, so that a thousand leases that end at once share their commits.
            await asyncio.gather(*(self._handle(one) for one in due))
            wait = LONGEST_SLEEP
            if self._heap:
                wait = min(wait, max(0.001, (self._heap[0][0] - self._clock.now()) / 1_000_000))
            timer = loop.call_later(wait, self._wake.set)
            await self._wake.wait()
            timer.cancel()

    async def _handle(self, entry: _Entry) -> None:
        alarm = entry[2]
        if self._set.get(alarm.name) is not entry:
            # The commit of another one that was due has cleared it.
            return
        try:
            again = await self._fire(alarm)
        except Exception as error:  # noqa: BLE001 - an alarm must not stop the clock
            log.warning("timer failed, it fires again", error=told(error), **alarm.ids())
            again = self._clock.now() + RETRY
        if self._set.get(alarm.name) is entry:
            self._clear(alarm)
        if again is not None:
            self._put_sooner(again, alarm)
