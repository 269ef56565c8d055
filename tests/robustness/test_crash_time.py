"""Deadlines and leases over times in which the executor, the server or its store stood still."""

import asyncio
import time
import uuid

import pytest
from crash_points import HELD_MOST, Gate, agent_of, effects, held_lease
from crash_process import approve_second_turns, approving, sessions_at, start
from crash_server import DyingServer
from runlane import Client, Executor
from runlane._executor import activation
from runlane.v1 import run_pb2
from support_server import COMPLETED, EVENT, Link, dense, reserve, seconds, step, unique, until
from support_server.turns import RUN, asks, claims, closed_once, pause, permission, question

pytestmark = [pytest.mark.asyncio, pytest.mark.alone]
DEADLINE = 2.0
LATE = 0.5
SHORTEST = 5


def rounds(few: int, many: int) -> list:
    return [few, pytest.param(many, marks=[pytest.mark.long, pytest.mark.timeout(900)])]


def in_time(moment) -> float:
    return moment.seconds + moment.nanos / 1e9


async def silent(link: Link, session: str, number: int) -> str:
    """A run with a deadline whose executor says no more, at one of several points."""
    limits = run_pb2.RunLimits(max_duration=seconds(DEADLINE))
    receipt = await link.submit(session, run_options=run_pb2.RunOptions(limits=limits))
    kind = number % 6
    if kind:
        fence = (await link.lease(session)).fence
        await link.commit(fence, reserve())
        if kind == 2:
            await link.commit(fence, asks("c1", "c2"))
        if kind == 3:
            await link.commit(fence, asks("c1", "c2"), claims("c1"))
        if kind == 4:
            await link.commit(fence, asks("c1", "c2"), suspend=permission("c1", "c2"))
        if kind == 5:
            await link.commit(fence, suspend=question())
            await pause(link, session)
    return receipt.submission.run_id


async def check_passed(link: Link, session: str, run_id: str, number: int, late: float) -> None:
    run = await link.get_run(run_id)
    wanted = RUN.STOP_REASON_DEADLINE_EXCEEDED
    if number % 6 == 3:
        assert run.outcome.cause == wanted
        wanted = RUN.STOP_REASON_OUTCOME_UNKNOWN
    assert run.outcome.stop_reason == wanted
    took = in_time(run.end_time) - in_time(run.create_time)
    assert DEADLINE - 0.01 <= took < DEADLINE + late, took
    closed_once(await link.messages(session))
    types = [one.type for one in dense(await link.events(session))]
    assert types.count(EVENT.TYPE_RUN_TERMINAL) == 1
    await link.run(session, "more")


@pytest.mark.every_store
@pytest.mark.parametrize("count", rounds(24, 120))
async def test_a_deadline_fires_in_time_whatever_its_silent_executor_had(link: Link, count):
    """Queued, reserved, with calls open and claimed, and waiting: four runs of each."""
    sessions = [unique("deadline") for _ in range(count)]
    ready = (silent(link, one, number) for number, one in enumerate(sessions))
    runs = await asyncio.gather(*ready)
    begun = time.monotonic()
    ended = await asyncio.gather(*(link.wait_run(one, 20) for one in runs))
    # By the clock of who waits, too, from the last one's start.
    assert time.monotonic() - begun < DEADLINE + LATE
    assert {run.phase for run in ended} == {RUN.PHASE_TERMINAL}
    for number, (session, run_id) in enumerate(zip(sessions, runs, strict=True)):
        await check_passed(link, session, run_id, number, LATE)


@pytest.mark.every_store
@pytest.mark.parametrize("count", rounds(24, 120))
async def test_a_deadline_that_passed_while_the_server_was_down_holds_at_its_start(server, count):
    sessions = [unique("down") for _ in range(count)]
    first = time.monotonic()
    async with Link(server.address) as link:
        ready = (silent(link, one, number) for number, one in enumerate(sessions))
        runs = await asyncio.gather(*ready)
    server.kill()
    await asyncio.sleep(DEADLINE + 0.2)
    server.start()
    async with Link(server.address) as link:
        begun = time.monotonic()
        ended = await asyncio.gather(*(link.wait_run(one, 20) for one in runs))
        assert time.monotonic() - begun < LATE
        assert {run.phase for run in ended} == {RUN.PHASE_TERMINAL}
        for number, (session, run_id) in enumerate(zip(sessions, runs, strict=True)):
            await check_passed(link, session, run_id, number, begun - first + LATE - DEADLINE)


@pytest.mark.parametrize("count", rounds(20, 100))
async def test_a_finish_that_came_in_time_stands_though_the_store_was_slow(tmp_path, count):
    """The store stands still from before the deadline until after it."""
    server = DyingServer(tmp_path).start()
    try:
        limits = run_pb2.RunLimits(max_duration=seconds(DEADLINE))
        sessions = [unique("slow") for _ in range(count)]
        async with Link(server.address) as link:
            fences = []
            for session in sessions:
                await link.submit(session, run_options=run_pb2.RunOptions(limits=limits))
                fences.append((await link.lease(session)).fence)
                await link.commit(fences[-1], reserve())
            first = await link.get_run(fences[0].run_id)
            server.arm("hold")
            decoy = await server.holds(link)
            finishes = asyncio.gather(
                *(link.commit(one, step("done"), finish=COMPLETED) for one in fences)
            )
            await until(lambda: time.time() > in_time(first.deadline_time) + LATE)
            assert not finishes.done()
            server.disarm()
            await asyncio.gather(decoy, finishes)
            for fence in fences:
                run = await link.get_run(fence.run_id)
                assert run.outcome.stop_reason == RUN.STOP_REASON_COMPLETED
                assert in_time(run.end_time) < in_time(run.create_time) + DEADLINE
                await link.run(fence.session_id, "more")
    finally:
        server.kill()
    assert server.incidents() == []


@pytest.mark.every_store
@pytest.mark.parametrize("count", rounds(3, 20))
async def test_two_lease_times_without_a_server_lose_no_run_of_a_healthy_executor(
    server, tmp_path, monkeypatch, count
):
    """Seven points, three runs at each; the runs of an executor that is gone are lost."""
    stand: set[str] = set()
    gate = Gate(stand.add)
    monkeypatch.setattr(activation, "Lease", held_lease(gate))
    marks, name = tmp_path / "marks", f"agent-{uuid.uuid4().hex}"
    points = ("after-reserve", "model", "before-suspend", "after-claim", "effect", "after-result", "before-finish")  # fmt: skip
    sessions = sessions_at(points, count)
    lost = unique("lost")
    async with (
        Client(server.address) as client,
        Executor(
            client, agent_of(name, marks, gate), concurrency=HELD_MOST, lease_duration=SHORTEST
        ),
    ):
        async with Link(server.address) as link:
            runs = await start(link, name, sessions)
            await approve_second_turns(link, sessions)
            await until(lambda: stand >= set(sessions), 60)
            await link.submit(lost)
            fence = (await link.lease(lost, lease_duration=seconds(SHORTEST))).fence
            await link.commit(fence, reserve(), lease_duration=seconds(SHORTEST))
        server.kill()
        await asyncio.sleep(2 * SHORTEST)
        server.start()
        async with Link(server.address) as link, approving(link):
            # By then a lease that nobody renews is over.
            taken = await link.lease(lost, 30)
            assert (taken.fence.run_id, taken.fence.epoch) == (fence.run_id, 2)
            gate.opened.set()
            for session, run_id in runs.items():
                run = await link.wait_run(run_id, 60)
                assert run.outcome.stop_reason == RUN.STOP_REASON_COMPLETED
                assert (session, run.attempt, effects(marks)[session]) == (session, 2, 1)
                types = [one.type for one in dense(await link.events(session))]
                assert EVENT.TYPE_ACTIVATION_ABANDONED not in types
                closed_once(await link.messages(session))
                more = (await link.submit(session, "more")).submission.run_id
                run = await link.wait_run(more, 60)
                assert run.outcome.stop_reason == RUN.STOP_REASON_COMPLETED
