"""A write that fails: nobody is told what is not on disk, and nothing stands on it."""

import asyncio
import random
import sqlite3

import pytest
from runlane_server.app.upkeep import Upkeep
from runlane_server.app.views import ForkRequest
from runlane_server.core.commands import Submit
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import RunOptions, SessionKey
from runlane_server.core.words import Mode
from runlane_server.runtime import engine as engines
from runlane_server.runtime.hearing import LOOK_AGAIN, QUIET
from runlane_server.runtime.timers import Alarm
from runlane_server.store.errors import StoreCorrupt, StoreUnavailable
from structlog.testing import capture_logs
from support.gate import Gate, until, yielded
from support.lane import KEY
from support.steps import (
    COMPLETED,
    LEASE,
    answer,
    beat,
    commit,
    create,
    fence_of,
    first,
    interrupt,
    lease,
    put,
    reserve,
    steer,
    text,
)
from support.world import World

FULL = sqlite3.OperationalError("database or disk is full")
BAD = ValueError("a row that cannot be written")
_LOST = put("first", Mode.START, options=RunOptions(max_recoveries=0))


def _submit(world: World, session_id: str, words: str, mode: Mode = Mode.QUEUE, request_id: str = ""):  # fmt: skip
    caller = world.caller("Submit", request_id or words, words)
    return world.app.submit(caller, session_id, Submit(text(words), mode))


async def _in_one_batch(world: World, *calls) -> tuple[Gate, list[asyncio.Future]]:
    """Runs calls so that all are decided before any is on disk: one batch, before the gate."""
    gate = Gate(world)
    await world.do("ses_warm", create)
    gate.shut()
    warm = asyncio.ensure_future(world.do("ses_warm", first))
    await gate.entered()
    tasks = []
    for number, call in enumerate(calls, 1):
        tasks.append(asyncio.ensure_future(call))
        await until(lambda number=number: gate.waiting == number)
    gate.let()
    await warm
    await gate.entered()
    return gate, tasks


@pytest.mark.asyncio
@pytest.mark.parametrize("where", ["begin", "unit", "commit"])
async def test_a_failed_batch_answers_nobody_and_leaves_no_state(world: World, where):
    await world.do("ses_1", create)
    gate, tasks = await _in_one_batch(
        world, *(_submit(world, "ses_1", f"n{number}") for number in range(5))
    )
    world.faults(where, FULL)
    gate.open()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(one) for one in results] == [StoreUnavailable] * 5
    assert await world.runs("ses_1") == []
    assert (await world.engine.peek(KEY)).state == await world.state("ses_1")
    results = await asyncio.gather(*(_submit(world, "ses_1", f"n{number}") for number in range(5)))
    assert not any(one.replayed for one in results)
    assert await world.inputs("ses_1") == {"n0": "DELIVERED", **{f"n{n}": "PENDING" for n in range(1, 5)}}  # fmt: skip


@pytest.mark.asyncio
async def test_what_stands_on_a_failed_batch_is_decided_again(world: World):
    """In the queue behind it: a START that was busy because of a run that never came to be."""
    await world.do("ses_1", create)
    gate = Gate(world)
    gate.shut()
    lost = asyncio.ensure_future(_submit(world, "ses_1", "lost", Mode.START))
    await gate.entered()
    queued = asyncio.ensure_future(_submit(world, "ses_1", "n1"))
    refused = asyncio.ensure_future(_submit(world, "ses_1", "n2", Mode.START))
    await yielded()
    assert not refused.done(), "a refusal waits for what it was decided on"
    world.faults("commit", FULL)
    gate.open()
    with pytest.raises(StoreUnavailable):
        await lost
    done = (await queued).answer.submission
    assert (done.route.name, done.state.name) == ("RUN", "DELIVERED")
    with pytest.raises(Refused, check=lambda error: error.reason is Reason.SESSION_BUSY):
        await refused
    assert await world.runs("ses_1") == ["n1 LIVE"]


@pytest.mark.asyncio
async def test_an_error_decided_on_a_commit_that_fails_is_decided_again(world: World):
    await world.do("ses_1", create)
    gate = Gate(world)
    gate.shut()
    lost = asyncio.ensure_future(_submit(world, "ses_1", "lost", Mode.START))
    await gate.entered()
    retried = asyncio.ensure_future(_submit(world, "ses_1", "n", Mode.START))
    await yielded()
    world.faults("commit", FULL)
    gate.open()
    with pytest.raises(StoreUnavailable):
        await lost
    assert (await retried).answer.submission.state.name == "DELIVERED"


@pytest.mark.asyncio
async def test_what_changes_nothing_is_tied_to_the_disk_too(world: World):
    await world.do("ses_1", create, first, lease())
    gate = Gate(world)
    gate.shut()
    lost = asyncio.ensure_future(world.do("ses_1", interrupt("lost")))
    await gate.entered()
    run_id = (await world.state("ses_1")).run.run_id
    again = asyncio.ensure_future(
        world.app.interrupt(world.caller("InterruptRun"), "ses_1", run_id, "kept", 0)
    )
    await yielded()
    world.faults("commit", FULL)
    gate.open()
    with pytest.raises(StoreUnavailable):
        await lost
    _, facts = await again
    assert facts.cancellation.reason == "kept"
    assert (await world.state("ses_1")).run.cancellation.reason == "kept"


@pytest.mark.asyncio
async def test_a_bad_row_among_good_ones(world: World):
    sessions = [f"ses_{number}" for number in range(1, 6)]
    for name in sessions:
        await world.do(name, create)
    gate, tasks = await _in_one_batch(
        world, *(_submit(world, name, f"n-{name}") for name in sessions)
    )
    seen = 0

    def bad_third(place: str) -> None:
        nonlocal seen
        seen += place == "unit"
        # Whole, it stops at the third; unit by unit, the third is the bad one again.
        if place == "unit" and seen in {3, 6}:
            raise BAD

    world.store.committer.faults = bad_third
    gate.open()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    world.store.committer.faults = None
    assert [isinstance(one, StoreCorrupt) for one in results] == [False, False, True, False, False]
    for name in sessions:
        wanted = [] if name == "ses_3" else [f"n-{name} LIVE"]
        assert await world.runs(name) == wanted
    assert (await _submit(world, "ses_3", "n-ses_3")).answer.submission.state.name == "DELIVERED"


@pytest.mark.asyncio
async def test_what_stands_on_a_bad_row_is_decided_again(world: World):
    await world.do("ses_1", create)
    gate, tasks = await _in_one_batch(
        world, *(_submit(world, "ses_1", f"n{number}") for number in range(4))
    )
    seen = 0

    def bad_first(place: str) -> None:
        nonlocal seen
        seen += place == "unit"
        if place == "unit" and seen in {1, 2}:
            raise BAD

    world.store.committer.faults = bad_first
    gate.open()
    bad, *rest = await asyncio.gather(*tasks, return_exceptions=True)
    world.store.committer.faults = None
    assert isinstance(bad, StoreCorrupt)
    assert [one.answer.submission.state.name for one in rest] == ["DELIVERED", "PENDING", "PENDING"]
    assert await world.runs("ses_1") == ["n1 LIVE"]


@pytest.mark.asyncio
async def test_a_heartbeat_on_a_write_that_fails_is_not_told_that_its_fence_is_lost(world: World):
    await world.do("ses_1", create, first, lease(), beat)
    fence = fence_of(await world.state("ses_1"))
    gate = Gate(world)
    gate.shut()
    lost = asyncio.ensure_future(_submit(world, "ses_1", "lost", Mode.STEER))
    await gate.entered()
    world.clock.advance(LEASE // 2)
    renewal = asyncio.ensure_future(world.app.heartbeat(world.caller("Heartbeat"), fence, LEASE))
    await yielded()
    world.faults("commit", FULL)
    gate.open()
    with pytest.raises(StoreUnavailable):
        await lost
    control = await renewal
    assert control.lease_expire_time == world.clock.now() + LEASE
    world.clock.advance(LEASE - 1)
    await world.settle("ses_1")
    assert await world.runs("ses_1") == ["first LIVE"]


@pytest.mark.asyncio
async def test_a_heartbeat_tells_no_cancellation_that_was_never_requested(world: World):
    await world.do("ses_1", create, first, lease())
    fence = fence_of(await world.state("ses_1"))
    gate, (lost, beat) = await _in_one_batch(
        world,
        world.do("ses_1", interrupt()),
        world.app.heartbeat(world.caller("Heartbeat"), fence, LEASE),
    )
    seen = 0

    def bad_first(place: str) -> None:
        nonlocal seen
        seen += place == "unit"
        if place == "unit" and seen in {1, 2}:
            raise BAD

    world.store.committer.faults = bad_first
    gate.open()
    with pytest.raises(StoreCorrupt):
        await lost
    control = await beat
    assert not control.cancel_requested
    assert (await world.state("ses_1")).run.cancellation is None


@pytest.mark.asyncio
async def test_a_refused_executor_is_refused_by_what_is_on_disk(world: World):
    """Neither a deletion nor an end that fails takes a fence away."""
    await world.do("ses_1", create, first, lease(), reserve)
    fence = fence_of(await world.state("ses_1"))
    gate = Gate(world)
    gate.shut()
    lost = asyncio.ensure_future(world.do("ses_1", commit(outcome=COMPLETED)))
    await gate.entered()
    context = asyncio.ensure_future(_context(world, fence))
    beat = asyncio.ensure_future(world.app.heartbeat(world.caller("Heartbeat"), fence, LEASE))
    watch = world.app.watch_activation(world.caller("WatchActivation"), fence)
    control = asyncio.ensure_future(anext(watch))
    await yielded()
    world.faults("commit", FULL)
    gate.open()
    with pytest.raises(StoreUnavailable):
        await lost
    assert (await context)[-1] == 1
    assert not (await beat).ended
    assert not (await control).ended
    await watch.aclose()


async def _context(world: World, fence):
    frames = world.app.model_context(world.caller("StreamModelContext"), fence, 0)
    return [frame async for frame in frames]


@pytest.mark.asyncio
async def test_a_context_holds_no_message_that_is_not_on_disk(world: World):
    await world.do("ses_1", create, first, lease(), reserve, steer("s1"))
    fence = fence_of(await world.state("ses_1"))
    gate = Gate(world)
    gate.shut()
    step = asyncio.ensure_future(world.do("ses_1", commit(answer())))
    await gate.entered()
    context = asyncio.ensure_future(_context(world, fence))
    await yielded(200)
    gate.open()
    await step
    assert (await context)[-1] == 3


@pytest.mark.asyncio
async def test_an_alarm_whose_write_fails_fires_again(world: World):
    await world.do("ses_1", create, _LOST, lease(), beat)
    activation_id = (await world.state("ses_1")).run.activation.activation_id
    world.clock.advance(LEASE)
    upkeep, alarm = Upkeep(world.services), Alarm(KEY, None, activation_id)
    world.faults("commit", FULL, times=1000)
    with pytest.raises(StoreUnavailable):
        await upkeep.fire(alarm)
    world.faults("commit", None)
    # Nobody could be heard while the store was away: the lease gets its full time again.
    assert await upkeep.fire(alarm) == world.clock.now() + LOOK_AGAIN
    await world.services.engine.look()
    assert await upkeep.fire(alarm) == world.clock.now() + LEASE
    world.clock.advance(LEASE)
    assert await upkeep.fire(alarm) is None
    assert await world.runs("ses_1") == ["first FAILED"]


@pytest.mark.asyncio
async def test_a_store_that_takes_no_writes_is_told_until_it_takes_one(world: World):
    await world.do("ses_1", create)
    engine, app = world.engine, world.app
    assert app.ready()
    world.faults("commit", FULL, times=1000)
    with pytest.raises(StoreUnavailable):
        await world.do("ses_1", first)
    assert not app.ready()
    with capture_logs() as lines:
        for _ in range(3):
            await engine.look()
            assert not app.ready()
    assert not lines  # it was told with the write that failed
    world.faults("commit", None)
    await engine.look()
    assert app.ready()


@pytest.mark.asyncio
async def test_a_store_is_tried_where_nothing_was_written_for_long(world: World):
    await world.do("ses_1", create)
    world.faults("commit", FULL, times=1000)
    await world.engine.look()
    assert world.app.ready()
    world.clock.advance(QUIET + 1)
    await world.engine.look()
    assert not world.app.ready()


@pytest.mark.asyncio
async def test_a_write_that_does_not_end_is_no_readiness(world: World, monkeypatch):
    monkeypatch.setattr(engines, "STANDS_STILL", 0.05)
    gate = Gate(world)
    gate.shut()
    writing = asyncio.ensure_future(world.do("ses_1", create))
    await gate.entered()
    assert world.app.ready()
    await asyncio.sleep(0.1)
    assert not world.app.ready()
    gate.open()
    await writing
    assert world.app.ready()


@pytest.mark.asyncio
async def test_an_alarm_is_not_held_up_by_other_sessions(world: World):
    """It waits for its own write, not for a queue that is never empty."""
    await world.do("ses_1", create, _LOST, lease(), beat)
    await world.do("ses_2", create, first)
    activation_id = (await world.state("ses_1")).run.activation.activation_id
    world.clock.advance(LEASE)
    fired = asyncio.ensure_future(Upkeep(world.services).fire(Alarm(KEY, None, activation_id)))
    running = True

    async def busy() -> int:
        count = 0
        while running:
            count += 1
            await _submit(world, "ses_2", f"n{id(asyncio.current_task())}-{count}", Mode.REPLACE)
        return count

    others = [asyncio.ensure_future(busy()) for _ in range(4)]
    try:
        async with asyncio.timeout(10):
            assert await fired is None
    finally:
        running = False
        await asyncio.gather(*others, return_exceptions=True)
    assert await world.runs("ses_1") == ["first FAILED"]


@pytest.mark.asyncio
async def test_a_lease_that_fails_is_waiting_still(world: World):
    await world.do("ses_1", create, first)
    caller = world.caller("PollActivation")
    await world.app.poll(caller, "x1", ["other"], 0, LEASE, 0)  # it is known
    world.faults("commit", FULL)
    with pytest.raises(StoreUnavailable):
        await world.app.poll(caller, "x1", ["main"], 0, LEASE, 0)
    view = await world.app.poll(caller, "x1", ["main"], 0, LEASE, 0)
    assert view.leased.fence.session_id == "ses_1"


@pytest.mark.asyncio
async def test_a_unit_of_two_sessions_that_falls_takes_both_states_along(path):
    """A fork behind a failed write of its source, and what was decided on the fork.

    The queue is not sent at once, so that all of it is found dead while the last is queued.
    """
    async with World(path, linger=60.0) as world:
        engine, app = world.engine, world.app

        async def flushed(*calls):
            tasks = [asyncio.ensure_future(call) for call in calls]
            while not all(task.done() for task in tasks):
                await yielded(5)
                await engine.flush()
            return await asyncio.gather(*tasks, return_exceptions=True)

        for name in ("ses_1", "ses_2", "ses_3", "ses_4"):
            await flushed(world.do(name, create, first, lease(), commit(outcome=COMPLETED)))
        (run,) = await world.store.list_runs(KEY, [], None, 10)
        await engine.peek(SessionKey("default", "ses_9"))
        gate = Gate(world)
        gate.shut()
        warm = asyncio.ensure_future(_submit(world, "ses_4", "warm"))
        await gate.entered()
        three = [asyncio.ensure_future(_submit(world, f"ses_{n}", f"n{n}")) for n in (1, 2, 3)]
        await yielded()
        gate.let()
        await warm
        await gate.entered()
        caller = world.caller("ForkSession")
        fork = asyncio.ensure_future(app.fork(caller, run.run_id, "ses_9", ForkRequest(input=text("on"))))  # fmt: skip
        await until(lambda: gate.waiting == 1)
        world.faults("commit", FULL)
        gate.open()
        results = await asyncio.gather(*three, return_exceptions=True)
        assert [type(one) for one in results] == [StoreUnavailable] * 3
        rest = [asyncio.ensure_future(_submit(world, "ses_9", f"m{n}")) for n in range(3)]
        await yielded()
        async with asyncio.timeout(10):
            done = await flushed(fork, *rest)
        # The fork is decided again; the others too, before it or after it.
        assert isinstance(done[0], tuple), done
        missed = {Reason.SESSION_NOT_FOUND}
        assert {one.reason for one in done if isinstance(one, Refused)} <= missed
        assert (await world.texts("ses_9"))[:2] == ["first", "on"]
        assert (await world.event_names("ses_1")).count("SESSION_FORKED") == 1


@pytest.mark.asyncio
async def test_random_faults_lose_nothing_that_was_answered(world: World):
    chance = random.Random(7)
    sessions = [f"ses_{number}" for number in range(4)]
    for name in sessions:
        await world.do(name, create)

    def fault(place: str) -> None:
        if chance.random() < 0.04:
            raise chance.choice([FULL, BAD])

    world.store.committer.faults = fault
    told: dict[str, set[str]] = {name: set() for name in sessions}

    async def client(number: int) -> None:
        for count in range(12):
            name = chance.choice(sessions)
            words = f"n{number}-{count}"
            mode = chance.choice([Mode.QUEUE, Mode.REPLACE, Mode.AUTO])
            try:
                await _submit(world, name, words, mode)
            except (StoreUnavailable, StoreCorrupt):
                continue
            told[name].add(words)

    await asyncio.gather(*(client(number) for number in range(12)))
    await world.engine.flush()
    world.store.committer.faults = None
    for name in sessions:
        assert told[name] <= set(await world.inputs(name))
        await world.events(name)
        slot = await world.engine.peek(SessionKey("default", name))
        assert slot.state == await world.state(name)
    # What was not answered settles with its request_id.
    assert sum(map(len, told.values())) > 50
