"""SIGKILL of an executor whose runs stand at every point of their way, by the recovery table."""

import asyncio
import uuid
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
from crash_points import CLAIMED, EFFECTS, HELD_MOST, POINTS, SECOND_TURN, agent_of, effects
from crash_process import (
    approve_second_turns,
    approving,
    held_process,
    sessions_at,
    start,
)
from runlane import Client, Executor
from runlane.v1 import executor_service_pb2, run_pb2
from support_server import EVENT, Link, dense, until
from support_server.turns import RESTORED, RUN, closed_once, pause, restore, tool_calls, unpause

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]
CALL = executor_service_pb2.ToolCall
SHORT = 8
"""Seconds: short to wait for, and long enough for a busy machine to keep."""


TIMES = [1, pytest.param(10, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]


def point_of(session: str) -> str:
    return session.split(".", maxsplit=1)[0]


class Lost(NamedTuple):
    """What is to become of a run that its executor was lost in."""

    stop_reason: int
    cause: int
    attempt: int
    effects: int
    questions: int
    call: int | None


def fate(session: str, way: str) -> Lost:
    """The recovery table, for a run at its point."""
    point, tool, _ = session.split(".")
    turn = 2 if point in SECOND_TURN else 1
    happened = int(point in EFFECTS)
    asked = int(point in SECOND_TURN or point == "after-suspend")
    if point == "after-finish":
        return Lost(RUN.STOP_REASON_COMPLETED, 0, turn, 1, 1, CALL.STATE_COMMITTED)
    if point in CLAIMED and tool == "once":
        cause = RUN.STOP_REASON_CANCELLED if way == "cancel" else RUN.STOP_REASON_FAILED
        unknown = RUN.STOP_REASON_OUTCOME_UNKNOWN
        return Lost(unknown, cause, turn, happened, 1, CALL.STATE_OUTCOME_UNKNOWN)
    if way == "cancel":
        call = None
        if point in CLAIMED:
            call = CALL.STATE_OUTCOME_UNKNOWN
        elif point in EFFECTS:
            call = CALL.STATE_COMMITTED
        elif asked:
            call = CALL.STATE_CANCELLED
        return Lost(RUN.STOP_REASON_CANCELLED, 0, turn, happened, asked, call)
    attempts = 2 if point == "after-suspend" else 3
    twice = 2 if point in CLAIMED and happened else 1
    return Lost(RUN.STOP_REASON_COMPLETED, 0, attempts, twice, 1, CALL.STATE_COMMITTED)


async def check(link: Link, runs: dict[str, str], marks, way: str) -> None:
    """Every run has ended as the table tells, every call has one result, sessions go on."""
    happened = effects(marks)

    async def one(session: str, run_id: str) -> None:
        run = await link.get_run(run_id)
        calls = await tool_calls(link, run_id)
        events = [one for one in dense(await link.events(session)) if one.run_id == run_id]
        types = [one.type for one in events]
        found = Lost(
            run.outcome.stop_reason,
            run.outcome.cause,
            run.attempt,
            happened[session],
            types.count(EVENT.TYPE_INTERACTION_OPENED),
            calls[0].state if calls else None,
        )
        assert found == fate(session, way), (session, found, fate(session, way))
        assert types.count(EVENT.TYPE_RUN_TERMINAL) == 1
        if run.outcome.stop_reason == RUN.STOP_REASON_COMPLETED:
            # The reservation of the one that was lost was used.
            assert run.usage.model_steps_reserved == run.usage.model_steps_committed == 2, session
        closed_once(await link.messages(session))

    await asyncio.gather(*(one(*item) for item in runs.items()))
    # Some of each point: the tools take turns, so both are among them.
    more = await asyncio.gather(*(link.submit(session, "more") for session in [*runs][::5]))
    for one in more:
        run = await link.wait_run(one.submission.run_id, 30)
        assert run.outcome.stop_reason == RUN.STOP_REASON_COMPLETED


async def lose(link: Link, runs: dict[str, str], way: str) -> None:
    """Does to the live runs of a dead executor what the way says."""

    async def one(session: str, run_id: str) -> None:
        run = await link.get_run(run_id)
        if run.phase == RUN.PHASE_TERMINAL:
            return
        waits = run.phase == RUN.PHASE_WAITING
        if way == "pause":
            await pause(link, session)
        elif way == "cancel":
            settled = (await link.interrupt(session, run_id=run_id)).settled
            assert settled == waits, session
        activation = run.activation.activation_id
        held = await restore(link, run_id, activation)
        if waits:
            ends = {RESTORED.OUTCOME_SETTLED if way == "cancel" else RESTORED.OUTCOME_ATTACHED}
            assert held.outcome in ends, session
            return
        over = way == "cancel" or fate(session, way).stop_reason != RUN.STOP_REASON_COMPLETED
        if way == "manual" and not run.stalled:
            # Nothing was ever heard of its executor: it waits for one as before.
            assert point_of(session) in {"before-reserve", "before-claim"}
            return
        if way == "manual":
            done = held
        else:
            assert held.outcome == RESTORED.OUTCOME_STILL_LEASED, session
            done = await restore(link, run_id, activation, force=True)
        if over:
            assert done.outcome == RESTORED.OUTCOME_SETTLED
        elif way == "pause":
            assert done.run.phase == RUN.PHASE_PAUSED
        else:
            assert done.outcome == RESTORED.OUTCOME_RECOVERY_QUEUED

    await asyncio.gather(*(one(*item) for item in runs.items()))


async def nobody_has(link: Link, runs: dict[str, str]) -> bool:
    """Tells whether all are stalled, waiting, over, or beyond the attempt that was lost."""
    for session, run_id in runs.items():
        run = await link.get_run(run_id)
        lost = 2 if point_of(session) in SECOND_TURN else 1
        leased = run.activation.state == run_pb2.Activation.STATE_LEASED
        if leased and run.attempt == lost and run.phase != RUN.PHASE_TERMINAL:
            return False
    return True


@asynccontextmanager
async def killed(shared, marks, *groups: list[str], lease: float):
    """Runs that stood at their points when their executor was killed; the second are MANUAL."""
    name = f"agent-{uuid.uuid4().hex}"
    recoveries = (run_pb2.RECOVERY_AUTO, run_pb2.RECOVERY_MANUAL)
    async with Link(shared.address) as link:
        async with held_process(shared.address, name, marks, lease=lease) as held:
            runs = []
            for sessions, recovery in zip(groups, recoveries, strict=False):
                runs.append(await start(link, name, sessions, recovery=recovery))
            everything = [session for group in groups for session in group]
            await approve_second_turns(link, everything)
            await held.stands(everything)
            await held.kill()
        yield link, name, runs


@asynccontextmanager
async def successor(link: Link, address: str, name: str, marks):
    """Another executor goes on; people approve what is asked."""
    agent = agent_of(name, marks)
    async with (
        Client(address) as client,
        approving(link),
        Executor(client, agent, concurrency=HELD_MOST),
    ):
        yield


async def check_ends(link: Link, marks, runs: dict[str, str], way: str) -> None:
    for run_id in runs.values():
        run = await link.wait_run(run_id, 40)
        assert run.phase == RUN.PHASE_TERMINAL
    await check(link, runs, marks, way)


async def unpause_all(link: Link, runs: dict[str, str]) -> None:
    """Lets those go on that were paused, now or once their question is answered."""

    async def stopped(run_id: str) -> bool:
        phase = (await link.get_run(run_id)).phase
        return phase in {RUN.PHASE_PAUSED, RUN.PHASE_TERMINAL}

    for session, run_id in runs.items():
        await until(lambda one=run_id: stopped(one))
        if fate(session, "pause").stop_reason == RUN.STOP_REASON_COMPLETED:
            if session.startswith("after-finish."):
                continue
            assert (await link.get_run(run_id)).phase == RUN.PHASE_PAUSED
            await unpause(link, session)


@pytest.mark.parametrize("times", TIMES)
async def test_an_executor_that_is_killed_loses_what_the_table_says(shared, tmp_path, times):
    """One process holds 20 runs at each point, and only their leases tell of its end.

    Five more of each are under recovery MANUAL: stalled until a person restores them.
    """
    marks = tmp_path / "marks"
    for _ in range(times):
        groups = sessions_at(POINTS, 20), sessions_at(POINTS, 5)
        async with (
            killed(shared, marks, *groups, lease=SHORT) as (link, name, (runs, stalled)),
            successor(link, shared.address, name, marks),
        ):
            # Stalled, or queued anew where nothing was ever heard of it.
            await until(lambda link=link, runs=stalled: nobody_has(link, runs), 40)
            await lose(link, stalled, "manual")
            await check_ends(link, marks, stalled, "manual")
            await check_ends(link, marks, runs, "expiry")


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("way", ["restore", "pause", "cancel"])
async def test_a_person_restores_what_a_killed_executor_had(shared, tmp_path, way, times):
    """The columns of the table: three times seven runs at each point."""
    marks = tmp_path / "marks"
    for _ in range(times):
        sessions = sessions_at(POINTS, 7)
        async with killed(shared, marks, sessions, lease=60) as (link, name, (runs,)):
            await lose(link, runs, way)
            async with successor(link, shared.address, name, marks):
                if way == "pause":
                    await unpause_all(link, runs)
                await check_ends(link, marks, runs, way)
