"""SIGKILL of the server before and after each commit that a run is made of."""

import asyncio
import random
import uuid
from collections import Counter

import grpc
import pytest
from crash_points import HELD_MOST, POINTS, Gate, agent_of, effects, held_lease
from crash_process import approve_second_turns, approving, sessions_at, start
from crash_server import DyingServer
from runlane import Client, Executor
from runlane._executor import activation
from runlane.v1 import history_service_pb2, run_pb2, session_service_pb2
from support_server import (
    COMPLETED,
    EVENT,
    Link,
    dense,
    fence_of,
    reserve,
    seconds,
    step,
    unique,
    until,
    within,
)
from support_server.turns import (
    RUN,
    answer_to,
    asked,
    asks,
    claims,
    closed_once,
    permission,
    results,
    tool_calls,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]
CALLS = ("c1", "c2")
IT = "it"
STATE = run_pb2.Activation


@pytest.fixture
def dying(tmp_path, store_of):
    """A server that dies when it is told to."""
    server = DyingServer(tmp_path, store=store_of(tmp_path), batch_max=5000).start()
    yield server
    server.kill()
    assert server.incidents() == []


def commit(fence, *operations, **fields):
    return lambda link: link.commit(fence, *operations, request_id=IT, **fields)


def poll(session):
    return lambda link: link.poll(
        session, request_id=IT, executor_id=session, lease_duration=seconds(60)
    )


def of_run(method: str, request: type, **fields):
    return lambda link: getattr(link.sessions, method)(request(request_id=IT, **fields), timeout=60)


async def leased(link: Link, session: str) -> run_pb2.Fence:
    await link.submit(session)
    return (await link.lease(session, lease_duration=seconds(60))).fence


async def in_batch(link: Link, session: str) -> run_pb2.Fence:
    fence = await leased(link, session)
    await link.commit(fence, reserve())
    await link.commit(fence, asks(*CALLS))
    return fence


async def waiting(link: Link, session: str) -> None:
    await link.commit(await in_batch(link, session), suspend=permission(*CALLS))


class Scenes:
    """Brings a run to its point; gives the call whose commit the server dies at."""

    async def submit(self, link, session):
        return lambda to: to.submit(session, request_id=IT)

    async def lease(self, link, session):
        await link.submit(session)
        return poll(session)

    async def reserve(self, link, session):
        return commit(await leased(link, session), reserve())

    async def step(self, link, session):
        fence = await leased(link, session)
        await link.commit(fence, reserve())
        return commit(fence, asks(*CALLS))

    async def claim(self, link, session):
        return commit(await in_batch(link, session), claims(*CALLS))

    async def result(self, link, session):
        fence = await in_batch(link, session)
        await link.commit(fence, claims(*CALLS))
        return commit(fence, results("c2"))

    async def last_result(self, link, session):
        fence = await in_batch(link, session)
        await link.commit(fence, claims(*CALLS), results("c2"))
        return commit(fence, results("c1"), reserve())

    async def suspend(self, link, session):
        return commit(await in_batch(link, session), suspend=permission(*CALLS))

    async def answer(self, link, session):
        await waiting(link, session)
        question = await asked(link, session)
        return lambda to: answer_to(to, question, request_id=IT)

    async def carry_on(self, link, session):
        await waiting(link, session)
        await answer_to(link, await asked(link, session))
        return poll(session)

    async def finish(self, link, session):
        fence = await leased(link, session)
        await link.commit(fence, reserve())
        return commit(fence, step("done"), finish=COMPLETED)

    async def interrupt(self, link, session):
        await waiting(link, session)
        return of_run("InterruptRun", session_service_pb2.InterruptRunRequest, session_id=session)

    async def pause(self, link, session):
        await link.submit(session)
        return of_run("PauseRun", session_service_pb2.PauseRunRequest, session_id=session)

    async def restore(self, link, session):
        fence = await in_batch(link, session)
        await link.commit(fence, claims(*CALLS, idempotent=True))
        return of_run(
            "RestoreRun",
            session_service_pb2.RestoreRunRequest,
            run_id=fence.run_id,
            expected_activation_id=fence.activation_id,
            force=True,
        )


SCENES = tuple(name for name in vars(Scenes) if not name.startswith("_"))
BESIDE = {"interrupt", "pause", "restore"}
"""What people do beside a run's way: a few of each."""
SECOND_ATTEMPT = {"suspend", "answer", "carry_on", "restore", "pause"}


async def play_out(link: Link, session: str) -> None:
    """Goes on with a live run from what the server says of it, under the fence that it has."""
    run = (await link.live(session)).run
    if run.phase == RUN.PHASE_WAITING:
        await answer_to(link, await asked(link, session))
    elif run.phase == RUN.PHASE_PAUSED:
        request = session_service_pb2.UnpauseRunRequest(session_id=session)
        await link.sessions.UnpauseRun(request, timeout=30)
    run = (await link.live(session)).run
    if run.activation.state == STATE.STATE_QUEUED:
        await link.lease(session)
        run = (await link.live(session)).run
    fence = fence_of(run)
    if run.position == RUN.POSITION_TOOL_BATCH:
        calls = await tool_calls(link, run.run_id)
        prepared = [one.tool_call_id for one in calls if one.state == one.STATE_PREPARED]
        if prepared:
            await link.commit(fence, claims(*prepared))
        left = [one.tool_call_id for one in calls if one.state != one.STATE_COMMITTED]
        await link.commit(fence, results(*left))
    await link.answer(fence)


@pytest.mark.parametrize(
    "rounds", [20, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_that_the_server_dies_at_is_made_once_whole_or_not_at_all(
    dying, when, rounds
):
    """All points in one transaction: its callers ask again, and all runs go on to their ends."""
    names = [
        f"{scene}.{unique('at')}"
        for scene in SCENES
        for _ in range(rounds // 4 if scene in BESIDE else rounds)
    ]
    async with Link(dying.address) as link:
        scenes = Scenes()
        await asyncio.gather(*(link.create(name) for name in names))
        ready = [getattr(scenes, name.split(".")[0])(link, name) for name in names]
        calls = await asyncio.gather(*ready)
        before = {name: await link.events(name) for name in names}
        met = await dying.dies_at(link, when, calls)
        assert {error.code() for error in met} == {grpc.StatusCode.UNAVAILABLE}
    dying.start()
    async with Link(dying.address) as link:
        await asyncio.gather(
            *(
                check_once(link, name, call, before[name], when)
                for name, call in zip(names, calls, strict=True)
            )
        )
    assert dying.stop() == 0
    assert dying.check() == (0, "")


async def check_once(link: Link, name: str, call, before: list, when: str) -> None:
    """What was called happened as a whole or not at all, and once; the run goes on."""
    now = dense(await link.events(name))
    assert now[: len(before)] == before
    assert (len(now) > len(before)) == (when == "after"), name
    first = await call(link)
    assert first.replayed == (when == "after"), name
    again = await call(link)
    assert again.replayed
    assert again.sequence == first.sequence
    scene = name.split(".", maxsplit=1)[0]
    if scene not in {"finish", "interrupt"}:
        await play_out(link, name)
    request = history_service_pb2.ListRunsRequest(session_id=name)
    (run,) = await link.pages(link.history.ListRuns, request, "runs", 1000)
    cancelled = scene == "interrupt"
    wanted = RUN.STOP_REASON_CANCELLED if cancelled else RUN.STOP_REASON_COMPLETED
    assert (scene, run.outcome.stop_reason) == (scene, wanted)
    assert (scene, run.attempt) == (scene, 2 if scene in SECOND_ATTEMPT else 1)
    closed_once(await link.messages(name))
    types = Counter(one.type for one in dense(await link.events(name)))
    assert types[EVENT.TYPE_RUN_TERMINAL] == types[EVENT.TYPE_RUN_CREATED] == 1
    await link.run(name, "more")


async def check_whole(link: Link, runs: dict[str, str], marks) -> None:
    """Nothing was lost, and nothing happened twice."""
    for session, run_id in runs.items():
        run = await link.wait_run(run_id, 60)
        happened = effects(marks)
        assert run.outcome.stop_reason == RUN.STOP_REASON_COMPLETED, session
        assert (session, run.attempt, happened[session]) == (session, 2, 1)
        assert run.usage.model_steps_reserved == run.usage.model_steps_committed == 2
        closed_once(await link.messages(session))
        types = Counter(one.type for one in dense(await link.events(session)))
        assert types[EVENT.TYPE_INTERACTION_OPENED] == 1
        assert types[EVENT.TYPE_ACTIVATION_ABANDONED] == 0
        assert types[EVENT.TYPE_TOOL_CALL_CLAIMED] == 1


@pytest.mark.parametrize(
    "rounds", [20, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
async def test_an_executor_goes_on_from_each_point_when_the_server_was_killed(
    server, tmp_path, monkeypatch, rounds
):
    """Its runs stand at every point while the server is killed and comes back."""
    stand: set[str] = set()
    gate = Gate(stand.add)
    monkeypatch.setattr(activation, "Lease", held_lease(gate))
    marks, name = tmp_path / "marks", f"agent-{uuid.uuid4().hex}"
    sessions = sessions_at(POINTS, rounds)
    agent = agent_of(name, marks, gate)
    async with (
        Client(server.address) as client,
        Executor(client, agent, concurrency=HELD_MOST, lease_duration=60),
    ):
        async with Link(server.address) as link:
            runs = await start(link, name, sessions)
            await approve_second_turns(link, sessions)
            await until(lambda: stand >= set(sessions), 60)
        server.restart()
        gate.opened.set()
        async with Link(server.address) as link, approving(link):
            await check_whole(link, runs, marks)
    assert server.stop() == 0
    assert server.check() == (0, "")


async def read_on(address: str, session: str, rng: random.Random) -> list:
    """Reads until the run has ended, over cuts of its own and the end of the server."""
    read, over = [], False
    async with Link(address) as link:
        while not over:
            cursor, most = read[-1].sequence if read else 0, rng.randint(1, 12)
            call = link.follow(session, after_sequence=cursor)
            try:
                async for event in call:
                    read.append(event)
                    over = event.HasField("run_terminal")
                    most -= 1
                    if over or not most:
                        break
            except grpc.aio.AioRpcError as error:
                assert error.code() == grpc.StatusCode.UNAVAILABLE  # noqa: PT017 - in a loop
                await asyncio.sleep(0.05)
            finally:
                await call.aclose()
    return read


@pytest.mark.parametrize(
    "kills", [2, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
async def test_kills_of_the_server_at_any_moment_lose_no_run_of_a_healthy_executor(
    server, tmp_path, kills
):
    """Readers beside it miss nothing and see nothing twice."""
    rng = random.Random(kills)
    marks, name = tmp_path / "marks", f"agent-{uuid.uuid4().hex}"
    async with (
        Client(server.address) as client,
        Executor(client, agent_of(name, marks), concurrency=HELD_MOST, lease_duration=60),
    ):
        for _ in range(kills):
            async with Link(server.address) as link:
                sessions = sessions_at(["none"], 40)
                runs = await start(link, name, sessions)
                goal = rng.randrange(len(sessions))
                reading = [
                    asyncio.create_task(read_on(server.address, session, random.Random(goal)))
                    for session in sessions[::4]
                ]
                async with approving(link, to_the_end=False):
                    await until(lambda goal=goal: len(effects(marks)) >= goal)
                    await asyncio.sleep(rng.random() * 0.05)
                    server.kill()
            server.start()
            async with Link(server.address) as link, approving(link):
                await check_whole(link, runs, marks)
                for session, task in zip(sessions[::4], reading, strict=True):
                    assert await within(10, task) == await link.events(session), session
            marks.unlink()
