"""Waiting for the end of a run: with a place at the session's hub, and no polling."""

import asyncio
from contextlib import ExitStack

from runlane_server.app.base import Services
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import SessionKey
from runlane_server.core.words import Phase, SubmissionState
from runlane_server.store.base import RunRow


async def wait_for_end(
    services: Services, key: SessionKey, run_id: str, seconds: float
) -> RunRow | None:
    """Waits until a run has ended, or the time is over; returns the run as it is then.

    A reserved run id is waited for too: None where it still is one.

    Raises:
        Refused: RUN_NOT_FOUND, or SUBMISSION_SETTLED where the run will never be; STREAM_LIMIT
            where it has not ended, and there is no place to wait.
    """
    subscription = services.bus.subscribe(key)
    over = seconds <= 0

    def end() -> None:
        # The clock is not asked again: a timer fires up to a millisecond before its time.
        nonlocal over
        over = True
        subscription.wake()

    timer = asyncio.get_running_loop().call_later(max(0.0, seconds), end)
    place = ExitStack()
    waits = False
    try:
        while True:
            row = await services.store.run(key.namespace, run_id)
            if row is not None and row.phase is Phase.TERMINAL:
                return row
            if row is None:
                await _expect_reserved(services, key.namespace, run_id)
            if services.draining or over:
                return row
            if not waits:
                place.enter_context(services.waits.one(key.namespace))
                waits = True
            await subscription.moved()
            subscription.take_tick()
    finally:
        place.close()
        timer.cancel()
        services.bus.unsubscribe(subscription)


async def _expect_reserved(services: Services, namespace: str, run_id: str) -> None:
    """Refuses where no pending input will become the run."""
    submission = await services.store.submission_of_reserved_run(namespace, run_id)
    if submission is None:
        raise Refused(Reason.RUN_NOT_FOUND)
    if submission.state in {SubmissionState.FAILED, SubmissionState.WITHDRAWN}:
        raise Refused(
            Reason.SUBMISSION_SETTLED,
            submission_id=submission.submission_id,
            state=submission.state.name,
        )
