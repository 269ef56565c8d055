"""Steers and inputs that race the end of a run: every one of them ends in exactly one way."""

import asyncio
import random

import pytest
from runlane_server.core.commands import (
    CommitRun,
    CreateSession,
    Finish,
    FinishKind,
    ReserveModelStep,
    Submit,
)
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import Rules, RunLimits, RunOptions, SessionRecord
from runlane_server.core.words import Mode, OnMiss, SubmissionState
from support.steps import COMPLETED, LEASE, answer, text
from support.world import World

ROUNDS = 1000


async def _ticks(chance: random.Random) -> None:
    for _ in range(chance.randrange(12)):
        await asyncio.sleep(0)


async def _leased(world: World, agent: str):
    view = await world.app.poll(world.caller("PollActivation"), "x1", [agent], 0, LEASE, 0)
    return view.leased.fence if view.leased is not None else None


async def _commit(world: World, fence, *operations, outcome=None):
    return await world.app.commit(
        world.caller("Commit"), CommitRun(fence, list(operations), outcome, LEASE)
    )


async def _work(world: World, agent: str) -> int:
    """Takes what waits for an agent to its end; returns the number of steps."""
    steps = 0
    while (fence := await _leased(world, agent)) is not None:
        applied = False
        while not applied:
            await _commit(world, fence, ReserveModelStep())
            view = await _commit(world, fence, answer(), outcome=COMPLETED)
            applied = view.answer.outcome_applied
            steps += 1
    return steps


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_a_steer_that_races_the_end_of_its_run():
    """1,000 rounds, 20 of them at a time, each on a session of its own."""
    async with World(None, linger=0.0001) as world:
        sums: dict[str, int] = {}
        for start in range(0, ROUNDS, 20):
            found = await asyncio.gather(*(_race(world, n) for n in range(start, start + 20)))
            for ends in found:
                for end in ends:
                    sums[end] = sums.get(end, 0) + 1
        print(sums)
        assert sum(sums.values()) == 3 * ROUNDS
        # Each way is met; a race that always goes one way is none.
        assert set(sums) == {
            "DELIVERED STEER", "DELIVERED FOLLOW_UP", "FAILED TARGET_TERMINAL", "FAILED TARGET_CANCELLING", "refused",
        }  # fmt: skip


async def _race(world: World, number: int) -> list[str]:
    """A run of one step or two, its end, sometimes an interrupt, and three steers beside it."""
    chance = random.Random(number)
    name, agent = f"ses_{number}", f"a{number}"
    record = SessionRecord(default_agent=agent)
    await world.app.create_session(world.caller("CreateSession"), name, CreateSession(record))
    steps = chance.choice([1, 1, 3])
    command = Submit(
        text("go"), Mode.START, options=RunOptions(limits=RunLimits(max_model_steps=steps))
    )
    await world.app.submit(world.caller("Submit", "go", "go"), name, command)
    fence = await _leased(world, agent)
    await _commit(world, fence, ReserveModelStep())
    told: dict[str, str] = {}

    async def end() -> None:
        await _ticks(chance)
        kind = chance.choice([FinishKind.COMPLETED, FinishKind.COMPLETED, FinishKind.FAILED])
        view = await _commit(world, fence, answer(), outcome=Finish(kind))
        while not view.answer.outcome_applied:
            try:
                await _commit(world, fence, ReserveModelStep())
                view = await _commit(world, fence, answer(), outcome=COMPLETED)
            except Refused as refusal:
                if refusal.reason is not Reason.RUN_CANCELLING:
                    raise
                view = await _commit(world, fence, outcome=Finish(FinishKind.CANCELLED))

    async def stop() -> None:
        await _ticks(chance)
        if number % 3 == 0:
            try:
                await world.app.interrupt(world.caller("InterruptRun"), name, fence.run_id, "", 0)
            except Refused as refusal:
                if refusal.reason is not Reason.SESSION_IDLE:
                    raise

    async def steer(label: str) -> None:
        await _ticks(chance)
        on_miss = chance.choice([OnMiss.FAIL, OnMiss.FOLLOW_UP])
        command = Submit(text(label), Mode.STEER, target_run_id=fence.run_id, on_miss=on_miss)
        try:
            caller = world.caller("Submit", label, label)
            told[label] = (
                await world.app.submit(caller, name, command)
            ).answer.submission.submission_id
        except Refused as refusal:
            if refusal.reason not in {Reason.RUN_NOT_CURRENT, Reason.RUN_CANCELLING}:
                raise

    racers = [end(), stop(), steer("s1"), steer("s2"), steer("s3")]
    chance.shuffle(racers)
    await asyncio.gather(*racers)
    await _work(world, agent)
    return await _ends(world, name, told)


async def _ends(world: World, name: str, told: dict[str, str]) -> list[str]:
    """Checks that each accepted steer has one end, one event of it, and one message or none."""
    events = await world.events(name)
    texts = await world.texts(name)
    inputs = await world.inputs(name)
    assert set(inputs) == {"go", *told}
    ends = ["refused"] * (3 - len(told))
    for label, submission_id in told.items():
        row = await world.store.submission("default", submission_id)
        assert row.state in {SubmissionState.DELIVERED, SubmissionState.FAILED}
        about = [
            one.WhichOneof("body")
            for one in events
            if getattr(getattr(one, one.WhichOneof("body")), "submission_id", "") == submission_id
        ]
        last = "submission_delivered" if row.state is SubmissionState.DELIVERED else "submission_failed"  # fmt: skip
        assert about.count("submission_pending") == 1
        assert about.count("submission_delivered") + about.count("submission_failed") == 1
        assert about.count(last) == 1
        assert texts.count(label) == (row.state is SubmissionState.DELIVERED)
        ends.append(f"DELIVERED {row.route.name}" if texts.count(label) else inputs[label])
    return ends


@pytest.mark.asyncio
async def test_auto_in_a_loop_across_run_ends_is_never_refused(path):
    async with World(path, Rules(max_steers=1000)) as world:
        await _auto_in_a_loop(world)


async def _auto_in_a_loop(world: World) -> None:
    record = SessionRecord(default_agent="main")
    await world.app.create_session(world.caller("CreateSession"), "ses_1", CreateSession(record))
    routes: dict[str, int] = {}
    over = False

    async def client(number: int) -> None:
        chance = random.Random(number)
        for count in range(60):
            await _ticks(chance)
            words = f"n{number}-{count}"
            caller = world.caller("Submit", words, words)
            done = await world.app.submit(caller, "ses_1", Submit(text(words), Mode.AUTO))
            route = done.answer.submission.route.name
            routes[route] = routes.get(route, 0) + 1

    async def executor() -> None:
        while not over:
            await _work(world, "main")
            await asyncio.sleep(0)

    working = asyncio.ensure_future(executor())
    await asyncio.gather(*(client(number) for number in range(4)))
    over = True
    await working
    await _work(world, "main")
    assert set(routes) == {"RUN", "STEER"}
    inputs = await world.inputs("ses_1")
    assert len(inputs) == sum(routes.values()) == 240
    texts = await world.texts("ses_1")
    for words, end in inputs.items():
        assert end in {"DELIVERED", "FAILED TARGET_TERMINAL"}
        assert texts.count(words) == (end == "DELIVERED")


@pytest.mark.asyncio
async def test_an_interrupt_that_races_a_finish_has_one_outcome(world: World):
    for number in range(100):
        chance = random.Random(number)
        name, agent = f"ses_{number}", f"a{number}"
        record = SessionRecord(default_agent=agent)
        command = Submit(text("go"), Mode.START, create_session=record)
        await world.app.submit(world.caller("Submit", "go", "go"), name, command)
        fence = await _leased(world, agent)

        async def finish(fence=fence, chance=chance):
            await _ticks(chance)
            return await _commit(world, fence, outcome=COMPLETED)

        async def stop(name=name, fence=fence, chance=chance):
            await _ticks(chance)
            caller = world.caller("InterruptRun")
            return (await world.app.interrupt(caller, name, fence.run_id, "", 0))[1]

        view, facts = await asyncio.gather(finish(), stop())
        told = view.answer.run.stop_reason.name
        assert await world.runs(name) == [f"go {told}"]
        terminal = [one for one in await world.events(name) if one.WhichOneof("body") == "run_terminal"]  # fmt: skip
        assert [one.run_terminal.stop_reason for one in terminal] == [view.answer.run.stop_reason]
        if facts.stop_reason is not None:
            assert facts.stop_reason.name == told
        else:
            assert told == "CANCELLED"
