"""Calls that wait answer when they said they would, with what is true then."""

import asyncio
import random
import time

import pytest
from runlane.v1 import history_service_pb2
from support_server import MODE, Link, reserve, seconds, unique, within

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]

LATE = 2.0


async def test_waits_of_any_length_end_in_time(link: Link):
    """Timers fire up to a millisecond early; a wait that asked the clock then went on for ever."""
    session = unique("fractions")
    run_id = (await link.submit(session)).submission.run_id
    rng = random.Random(7)

    async def wait(length: float) -> float:
        begun = time.monotonic()
        run = await within(length + LATE, link.wait_run(run_id, length))
        assert run.phase == run.PHASE_ACTIVE
        return time.monotonic() - begun - length

    late = await asyncio.gather(*(wait(rng.uniform(0.2, 1.5)) for _ in range(100)))
    assert max(late) < LATE
    assert min(late) > -0.1


async def test_a_wait_ends_before_the_deadline_of_its_call(link: Link):
    session = unique("deadline")
    run_id = (await link.submit(session)).submission.run_id
    request = history_service_pb2.WaitRunRequest(run_id=run_id, wait_duration=seconds(300))
    for deadline in (1.0, 1.7, 2.3):
        begun = time.monotonic()
        answer = await link.history.WaitRun(request, timeout=deadline)
        assert time.monotonic() - begun < deadline
        assert answer.run.run_id == run_id


async def test_a_wait_is_answered_by_the_end_of_its_run_with_its_output(link: Link):
    session = unique("end")
    run_id = (await link.submit(session)).submission.run_id
    request = history_service_pb2.WaitRunRequest(
        run_id=run_id, wait_duration=seconds(60), include_output=True
    )
    waits = [link.history.WaitRun(request, timeout=100) for _ in range(20)]
    gathered = asyncio.gather(*waits)
    await link.answer((await link.lease(session)).fence, "the output")
    for answer in await within(10, gathered):
        assert answer.run.outcome.stop_reason == answer.run.STOP_REASON_COMPLETED
        assert answer.output.content[0].text == "the output"


async def test_a_reserved_run_is_waited_for(link: Link):
    session = unique("reserved")
    await link.submit(session)
    queued = (await link.submit(session, "next", mode=MODE.MODE_FOLLOW_UP)).submission
    short = await link.wait_run(queued.run_id, 0.1)
    assert short.run_id == ""
    waiting = asyncio.create_task(link.wait_run(queued.run_id, 60))
    await link.answer((await link.lease(session)).fence)
    await link.answer((await link.lease(session)).fence)
    run = await within(10, waiting)
    assert run.run_id == queued.run_id
    assert run.phase == run.PHASE_TERMINAL


async def test_an_interrupt_waits_for_its_executor(link: Link):
    session = unique("interrupt")
    await link.submit(session)
    fence = (await link.lease(session)).fence
    await link.commit(fence, reserve())
    begun = time.monotonic()
    answer = await within(0.77 + LATE, link.interrupt(session, wait=0.7704))
    assert time.monotonic() - begun > 0.7
    assert not answer.settled
    waiting = asyncio.create_task(link.interrupt(run_id=fence.run_id, wait=60))
    await link.answer_reserved(fence)
    answer = await within(10, waiting)
    assert answer.settled
    assert answer.run.outcome.stop_reason == answer.run.STOP_REASON_CANCELLED
