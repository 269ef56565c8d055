"""Calls that wait answer when they said they would, with what is true then."""

import asyncio
import random
import time

import grpc
import pytest
from runlane.v1 import admin_service_pb2, executor_service_pb2, history_service_pb2
from support_server import MODE, Link, refused, reserve, seconds, unique, until, within

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


async def open_now(link: Link, count: int) -> None:
    """Returns when so many streams, watches and waits are open."""

    async def there() -> bool:
        seen = await link.admin.GetOverview(admin_service_pb2.GetOverviewRequest(), timeout=10)
        return seen.stream_count == count

    await until(there)


async def test_waits_and_watches_take_no_place_of_a_stream_and_waits_have_their_own(make_server):
    server = make_server(streams_max=1, waits_max=2).start()
    async with Link(server.address) as link:
        runs = [(await link.submit(unique("lane"))).submission for _ in range(3)]
        fence = (await link.lease(runs[2].session_id)).fence
        watch = link.executors.WatchActivation(
            executor_service_pb2.WatchActivationRequest(fence=fence), timeout=60
        )
        await watch.read()
        waits = [asyncio.ensure_future(link.wait_run(one.run_id, 60)) for one in runs[:2]]
        await open_now(link, 3)
        stream = link.stream(runs[0].session_id)
        await stream.read()
        assert (await refused(link.stream(runs[0].session_id).read())).reason == "STREAM_LIMIT"
        # A third one must not wait, but may look; to interrupt is done, and answered at once.
        error = await refused(link.wait_run(runs[2].run_id, 60))
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "STREAM_LIMIT")
        assert error.metadata == {"limit": "2"}
        assert (await link.wait_run(runs[2].run_id, 0)).run_id == runs[2].run_id
        answer = await within(20, link.interrupt(runs[2].session_id, wait=60))
        assert (answer.settled, answer.run.HasField("cancellation")) == (False, True)
        await link.interrupt(runs[0].session_id)
        await within(10, waits[0])
        assert (await link.wait_run(runs[0].run_id, 60)).HasField("outcome")
        waits.append(asyncio.ensure_future(link.wait_run(runs[2].run_id, 60)))
        await open_now(link, 4)
        assert not any(one.done() for one in waits[1:])
        for call in (watch, stream, *waits):
            call.cancel()
