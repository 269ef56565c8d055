"""The alarm clock: due, early, late and failing alarms, and waits that end."""

import asyncio
from dataclasses import replace

import pytest
from runlane_server.app.waiting import wait_for_end
from runlane_server.core.model import SessionKey
from runlane_server.core.rows import (
    ActivationDequeued,
    ActivationQueued,
    LeaseDropped,
    LeasePut,
    TimerSet,
)
from runlane_server.core.words import TimerKind
from runlane_server.runtime.timers import Timers
from runlane_server.store.base import LiveLease, QueuedActivation, StoredTimer
from support.gate import until, yielded
from support.lane import KEY
from support.steps import LEASE, SECOND, create, first
from support.world import HandClock, World


class Fires:
    def __init__(self) -> None:
        self.clock = HandClock()
        self.fired: list[tuple[object, str]] = []
        self.again: list[object] = []
        self.timers = Timers(self.clock, self.fire)

    async def fire(self, alarm):
        self.fired.append((alarm.kind, alarm.activation_id))
        given = self.again.pop(0) if self.again else None
        if isinstance(given, Exception):
            raise given
        return given

    async def look(self) -> list[tuple[object, str]]:
        """What fired since the last look; the clock was moved by hand, so it is woken."""
        self.timers._wake.set()
        await yielded()
        fired, self.fired = self.fired, []
        return fired


def _lease(expire_time: int) -> LeasePut:
    return LeasePut("act_1", "run_1", 1, "main", "x1", LEASE, expire_time, confirmed=True)


@pytest.mark.asyncio
async def test_alarms_fire_when_they_are_due_and_not_before():
    it = Fires()
    now = it.clock.now()
    it.timers.load(
        [StoredTimer(KEY, TimerKind.GRACE, now - 1)],
        [LiveLease(KEY, "act_0", "main", "x1", now + SECOND)],
        [],
    )
    it.timers.start()
    assert await it.look() == [(TimerKind.GRACE, "")]
    it.timers.committed(KEY, [TimerSet(TimerKind.SWEEP, now + 2 * SECOND), _lease(now + SECOND)])
    assert await it.look() == []
    it.clock.advance(SECOND)
    assert await it.look() == [(None, "act_0"), (None, "act_1")]
    it.clock.advance(SECOND)
    assert await it.look() == [(TimerKind.SWEEP, "")]
    await it.timers.close()


@pytest.mark.asyncio
async def test_a_lease_that_was_renewed_fires_again_at_its_new_end():
    it = Fires()
    now = it.clock.now()
    it.timers.start()
    it.timers.committed(KEY, [_lease(now + SECOND)])
    it.timers.committed(KEY, [_lease(now + 5 * SECOND)])
    it.again = [now + 5 * SECOND]
    it.clock.advance(SECOND)
    assert await it.look() == [(None, "act_1")]
    it.clock.advance(3 * SECOND)
    assert await it.look() == []
    it.clock.advance(SECOND)
    assert await it.look() == [(None, "act_1")]
    await it.timers.close()


@pytest.mark.asyncio
async def test_a_heartbeat_that_ends_its_lease_sooner_moves_the_alarm():
    it = Fires()
    now = it.clock.now()
    it.timers.committed(KEY, [_lease(now + 60 * SECOND)])
    it.timers.start()
    it.timers.renewed(KEY, "act_1", now + 5 * SECOND)
    it.timers.renewed(KEY, "act_unknown", now + SECOND)
    it.clock.advance(5 * SECOND)
    assert await it.look() == [(None, "act_1")]
    it.clock.advance(60 * SECOND)
    assert await it.look() == []  # the later alarm is an old one
    await it.timers.close()


@pytest.mark.asyncio
async def test_a_back_off_rings_once_at_its_end_also_one_from_the_store():
    it = Fires()
    now = it.clock.now()
    it.timers.load([], [], [QueuedActivation(KEY, "act_0", "main", now, now + SECOND), QueuedActivation(KEY, "act_2", "main", now)])  # fmt: skip
    it.timers.start()
    it.timers.committed(KEY, [ActivationQueued("act_1", "run_1", "main", now, now + 2 * SECOND)])
    assert await it.look() == []
    it.clock.advance(SECOND)
    assert await it.look() == [(None, "act_0")]
    it.clock.advance(SECOND)
    assert await it.look() == [(None, "act_1")]
    it.clock.advance(60 * SECOND)
    assert await it.look() == []
    await it.timers.close()


@pytest.mark.asyncio
async def test_a_lease_that_is_gone_does_not_fire():
    it = Fires()
    it.timers.start()
    it.timers.committed(KEY, [_lease(it.clock.now() + SECOND), LeaseDropped("act_1")])
    it.clock.advance(SECOND)
    assert await it.look() == []
    await it.timers.close()


@pytest.mark.asyncio
async def test_an_alarm_that_fails_fires_again_and_stops_no_other():
    it = Fires()
    now = it.clock.now()
    it.timers.start()
    it.again = [RuntimeError("disk")]
    it.timers.committed(KEY, [_lease(now), TimerSet(TimerKind.GRACE, now)])
    assert await it.look() == [(None, "act_1"), (TimerKind.GRACE, "")]
    it.clock.advance(SECOND)
    assert await it.look() == [(None, "act_1")]
    await it.timers.close()


@pytest.mark.asyncio
async def test_a_timer_that_was_cleared_or_moved_does_not_fire():
    it = Fires()
    now = it.clock.now()
    it.timers.start()
    it.timers.committed(KEY, [TimerSet(TimerKind.DEADLINE, now + SECOND), TimerSet(TimerKind.GRACE, now + SECOND)])  # fmt: skip
    it.timers.committed(KEY, [TimerSet(TimerKind.DEADLINE, None), TimerSet(TimerKind.GRACE, now + 2 * SECOND)])  # fmt: skip
    it.timers.committed(KEY, [ActivationQueued("act_1", "run_1", "main", now, now + SECOND), ActivationDequeued("act_1")])  # fmt: skip
    it.clock.advance(SECOND)
    assert await it.look() == []
    it.clock.advance(SECOND)
    assert await it.look() == [(TimerKind.GRACE, "")]
    await it.timers.close()


@pytest.mark.asyncio
async def test_what_is_set_while_an_alarm_is_handled_is_kept():
    it = Fires()
    now = it.clock.now()
    rings = [now + SECOND, now + 3 * SECOND, None]

    async def fire(alarm):
        it.fired.append((alarm.kind, alarm.activation_id))
        if len(rings) == 3:
            it.timers.committed(KEY, [TimerSet(TimerKind.GRACE, now + 2 * SECOND)])
        return rings.pop(0)

    it.timers._fire = fire
    it.timers.committed(KEY, [TimerSet(TimerKind.GRACE, now)])
    it.timers.start()
    assert await it.look() == [(TimerKind.GRACE, "")]
    it.clock.advance(SECOND)
    assert await it.look() == [(TimerKind.GRACE, "")]
    it.clock.advance(SECOND)
    assert await it.look() == [], "that alarm was moved to be sooner"
    it.clock.advance(SECOND)
    assert await it.look() == [(TimerKind.GRACE, "")]
    await it.timers.close()


@pytest.mark.parametrize("kind", ["timer", "moved timer", "lease", "back-off"])
def test_what_was_cleared_takes_no_room(kind, monkeypatch):
    """A session with a deadline in a month that ends at once leaves nothing behind."""
    monkeypatch.setattr("runlane_server.runtime.timers.DEAD_MIN", 16)
    it = Fires()
    far = it.clock.now() + 30 * 86_400 * SECOND
    it.timers.committed(KEY, [TimerSet(TimerKind.SWEEP, far)])
    for number in range(1000):
        key, act = SessionKey("default", f"ses_{number}"), f"act_{number}"
        rows = {
            "timer": [TimerSet(TimerKind.DEADLINE, far), TimerSet(TimerKind.DEADLINE, None)],
            "moved timer": [TimerSet(TimerKind.DEADLINE, far - number)],
            "lease": [replace(_lease(far), activation_id=act), LeaseDropped(act)],
            "back-off": [ActivationQueued(act, "run_1", "main", 1, far), ActivationDequeued(act)],
        }[kind]
        it.timers.committed(KEY if kind == "moved timer" else key, rows)
    assert len(it.timers._heap) <= 32
    assert len(it.timers._set) <= 2


@pytest.mark.asyncio
async def test_a_wait_reads_once_a_tick_and_no_more():
    """Idle readers get a tick now and then; who waits for a run takes it and waits on."""
    async with World(None) as world:
        await world.do("ses_1", create, first)
        run_id = (await world.state("ses_1")).run.run_id
        read, count = world.store.run, 0

        async def counted(namespace, run):
            nonlocal count
            count += 1
            return await read(namespace, run)

        world.store.run = counted
        waiting = asyncio.ensure_future(wait_for_end(world.services, KEY, run_id, 60.0))
        hub = world.services.bus.hub(KEY)
        await until(lambda: any(one._future is not None for one in hub.subscriptions))
        (subscription,) = hub.subscriptions
        for ticks in (1, 2):
            subscription.ticked = True
            subscription.wake()
            await until(lambda ticks=ticks: count > ticks and subscription._future is not None)
            assert count == 1 + ticks
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
