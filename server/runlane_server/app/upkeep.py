"""What happens with nobody connected: due decisions, sweeps, old request records."""

import asyncio

import structlog

from runlane_server.app.base import Services, UseCase
from runlane_server.app.notices import Notices
from runlane_server.core.model import Run
from runlane_server.core.words import ActivationState, TimerKind
from runlane_server.runtime.timers import Alarm
from runlane_server.store.errors import StoreError, told

SWEEP_ROWS = 500
SWEEP_SESSIONS = 16
REQUEST_ROWS = 500
REQUEST_INTERVAL = 60.0
LISTEN_INTERVAL = 1.0

log = structlog.get_logger(__name__)


class Upkeep(UseCase):
    """Handles alarms, and keeps the store tidy."""

    def __init__(self, services: Services) -> None:
        super().__init__(services)
        self._notices = Notices(services)

    async def fire(self, alarm: Alarm) -> int | None:
        """Handles an alarm; returns when it is due again, or None."""
        services = self.services
        if alarm.notice is not None:
            return await self._notices.take(alarm.notice)
        if alarm.kind is TimerKind.SWEEP:
            if not await self._notices.delete_children(alarm.key, SWEEP_SESSIONS):
                return services.clock.now()
            done = await services.store.sweep(alarm.key, SWEEP_ROWS)
            return None if done else services.clock.now()
        if alarm.backoff:
            services.dispatch.backed_off(alarm.activation_id)
            return None
        if services.follower is not None:
            # Another server may have renewed it.
            services.engine.doubt(alarm.key)
        # Where the write fails the alarm fires again: one attempt is enough.
        state, lease_expire_time = await services.engine.settled(alarm.key, attempts=1)
        run = state.run if state is not None else None
        if run is None or run.ending is not None:
            # One that is ending waits for its children alone, and they have alarms of their own.
            return None
        if alarm.kind is not None:
            return _due_again(run, alarm.kind)
        activation = run.activation
        if activation is None or activation.activation_id != alarm.activation_id:
            return None
        if activation.state is not ActivationState.LEASED:
            return None
        # Renewed since: heartbeats set no alarm of their own.
        return lease_expire_time

    async def listen(self) -> None:
        """Looks at the time and the store each second: see `runtime.hearing`."""
        await asyncio.sleep(LISTEN_INTERVAL)
        await self.services.engine.look()

    async def forget_requests(self) -> None:
        """Removes request records that are kept no longer, now and then."""
        services = self.services
        await asyncio.sleep(REQUEST_INTERVAL)
        before = services.clock.now() - services.limits.request_keep
        try:
            while await services.store.expire_requests(before, REQUEST_ROWS):
                pass
        except StoreError as error:  # tried again in a minute
            log.warning("request records could not be removed", error=told(error))


def _due_again(run: Run, kind: TimerKind) -> int | None:
    """Returns when a timer of a live run is due, if it still is to come: it was moved."""
    if kind is TimerKind.GRACE:
        return run.cancellation.grace_expire_time if run.cancellation is not None else None
    if kind is TimerKind.DEADLINE:
        return run.deadline_time or None
    if kind is TimerKind.INTERACTION:
        return (run.wait.expire_time or None) if run.wait is not None else None
    leased = run.activation is not None and run.activation.state is ActivationState.LEASED
    return None if leased else run.start_expire_time or None
