"""Many at once: stacking, eviction, cancelled callers, units of two sessions, restarts."""

import asyncio
import random

import pytest
from runlane_server.app.upkeep import Upkeep
from runlane_server.app.views import ForkRequest
from runlane_server.core.commands import ReopenSession, Submit
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import Rules, RunLimits, RunOptions, SessionKey
from runlane_server.core.words import Mode, TimerKind
from runlane_server.runtime.timers import Alarm
from support.gate import yielded
from support.lane import KEY
from support.steps import (
    COMPLETED,
    GRACE,
    LEASE,
    answer,
    beat,
    commit,
    create,
    delete_force,
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

_LOST = put("first", Mode.START, options=RunOptions(max_recoveries=0))


def _submit(world: World, session_id: str, words: str, mode: Mode = Mode.QUEUE, **how):
    caller = world.caller("Submit", words, words)
    return world.app.submit(caller, session_id, Submit(text(words), mode, **how))


async def _check(world: World, session_id: str) -> dict[str, str]:
    """Checks what holds of every session; returns what became of its inputs."""
    await world.engine.flush()
    state = await world.state(session_id)
    events = await world.events(session_id)
    assert events[-1].sequence == state.sequence
    assert len(await world.messages(session_id)) == state.message_count
    runs = await world.runs(session_id)
    assert sum(run.endswith("LIVE") for run in runs) == (state.run is not None)
    inputs = await world.inputs(session_id)
    waiting = state.steers + state.next_runs
    assert list(inputs.values()).count("PENDING") == len(waiting)
    names = [one.WhichOneof("body") for one in events]
    ends = {word: names.count(f"submission_{word.lower()}") for word in ("FAILED", "WITHDRAWN")}
    for word, count in ends.items():
        assert sum(end.startswith(word) for end in inputs.values()) == count
    slot = await world.engine.peek(SessionKey("default", session_id))
    assert slot.state == state
    return inputs


@pytest.mark.asyncio
async def test_two_hundred_on_one_session_in_one_go(world: World):
    await world.do("ses_1", create)
    results = await asyncio.gather(
        *(_submit(world, "ses_1", f"n{n}", Mode.REPLACE) for n in range(200))
    )
    sequences = [one.answer.sequence for one in results]
    assert sequences == sorted(set(sequences))
    assert [one.answer.submission.state.name for one in results] == ["DELIVERED"] * 200
    runs = await world.runs("ses_1")
    assert runs == [*(f"n{n} CANCELLED" for n in range(199)), "n199 LIVE"]
    rows = await world.store.list_runs(KEY, [], None, 300)
    times = [row.create_time for row in rows]
    assert times == sorted(set(times)), "the clock stands, and yet they grow"
    assert await world.texts("ses_1") == [f"n{n}" for n in range(200)]
    await _check(world, "ses_1")


@pytest.mark.asyncio
async def test_a_hundred_starts_on_an_idle_session_are_one_run(world: World):
    await world.do("ses_1", create)
    results = await asyncio.gather(
        *(_submit(world, "ses_1", f"n{n}", Mode.START) for n in range(100)), return_exceptions=True
    )
    refused = [one for one in results if isinstance(one, Refused)]
    assert [one.reason for one in refused] == [Reason.SESSION_BUSY] * 99
    assert len(await world.runs("ses_1")) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("slots_max", [1, 2])
async def test_forgotten_slots_lose_nothing(path, slots_max):
    async with World(path, slots_max=slots_max, answers_max=2) as world:
        sessions = [f"ses_{n}" for n in range(10)]
        for name in sessions:
            await world.do(name, create)
        calls = [_submit(world, name, f"{name}-{n}") for n in range(12) for name in sessions]
        random.Random(3).shuffle(calls)
        await asyncio.gather(*calls)
        for name in sessions:
            inputs = await _check(world, name)
            assert set(inputs) == {f"{name}-{n}" for n in range(12)}
        # Units of two sessions need both at once.
        for name in sessions:
            await world.do(name, interrupt())
        ended = [(await world.store.list_runs(SessionKey("default", name), [], None, 1))[0] for name in sessions]  # fmt: skip
        forks = await asyncio.gather(
            *(world.app.fork(world.caller("ForkSession"), run.run_id, "", ForkRequest()) for run in ended * 3)
        )  # fmt: skip
        assert len({result.answer.session.session_id for result, _ in forks}) == 30


@pytest.mark.asyncio
async def test_forks_and_writes_of_their_source_do_not_disturb_each_other(world: World):
    await world.do("ses_1", create, first, lease(), reserve, commit(answer(), outcome=COMPLETED))
    (run,) = await world.store.list_runs(KEY, [], None, 10)

    async def fork(number: int):
        caller = world.caller("ForkSession", f"f{number}", number)
        return await world.app.fork(caller, run.run_id, f"fork_{number}", ForkRequest())

    calls = [fork(number) for number in range(30)]
    calls += [_submit(world, "ses_1", f"n{number}") for number in range(30)]
    random.Random(5).shuffle(calls)
    await asyncio.gather(*calls)
    names = await world.event_names("ses_1")
    assert names.count("SESSION_FORKED") == 30
    await _check(world, "ses_1")
    source = (await world.messages("ses_1"))[:2]
    for number in range(30):
        assert await world.event_names(f"fork_{number}") == ["SESSION_CREATED", "SESSION_FORKED"]
        assert await world.messages(f"fork_{number}") == source


@pytest.mark.asyncio
async def test_two_forks_onto_one_id_are_one_session(world: World):
    await world.do("ses_1", create, first, interrupt())
    await world.do("ses_2", create, first, interrupt())
    runs = [(await world.store.list_runs(SessionKey("default", name), [], None, 1))[0] for name in ("ses_1", "ses_2")]  # fmt: skip
    results = await asyncio.gather(
        *(
            world.app.fork(world.caller("ForkSession"), run.run_id, "ses_9", ForkRequest())
            for run in runs * 5
        ),
        return_exceptions=True,
    )
    refused = [one for one in results if isinstance(one, Refused)]
    assert [one.reason for one in refused] == [Reason.SESSION_EXISTS] * 9
    forked = sum([(await world.event_names(name)).count("SESSION_FORKED") for name in ("ses_1", "ses_2")])  # fmt: skip
    assert forked == 1


@pytest.mark.asyncio
async def test_a_fork_of_what_is_no_fork_point(world: World):
    await world.do("ses_1", create, first, put("f1", Mode.QUEUE))
    state = await world.state("ses_1")
    caller = world.caller("ForkSession")
    for run_id, reason in (
        (state.run.run_id, Reason.RUN_NOT_TERMINAL),
        (state.next_runs[0].run_id, Reason.RUN_NOT_FOUND),
        ("run_x", Reason.RUN_NOT_FOUND),
    ):
        with pytest.raises(Refused) as refusal:
            await world.app.fork(caller, run_id, "ses_9", ForkRequest())
        assert refusal.value.reason is reason
    ended = state.run.run_id
    await world.do("ses_1", interrupt())
    with pytest.raises(Refused, check=lambda error: error.reason is Reason.SESSION_EXISTS):
        await world.app.fork(caller, ended, "ses_1", ForkRequest())
    result, _ = await world.app.fork(caller, ended, "ses_9", ForkRequest(input=text("on")))
    assert result.answer.submission.state.name == "DELIVERED"
    assert await world.event_names("ses_9") == [
        "SESSION_CREATED", "SESSION_FORKED", "RUN_CREATED", "MESSAGE_APPENDED", "ACTIVATION_QUEUED",
    ]  # fmt: skip
    assert result.answer.sequence == 5
    await world.do("ses_1", delete_force)
    with pytest.raises(Refused, check=lambda error: error.reason is Reason.RUN_NOT_FOUND):
        await world.app.fork(caller, ended, "", ForkRequest())
    assert await world.texts("ses_9") == ["first", "on"]


@pytest.mark.asyncio
async def test_an_interrupt_of_a_run_whose_turn_comes_meanwhile_is_no_empty_answer(world: World):
    await world.do("ses_1", create, first, put("f1", Mode.QUEUE))
    reserved = (await world.state("ses_1")).next_runs[0].run_id
    read = world.store.run

    async def late(namespace: str, run_id: str):
        world.store.run = read
        await world.do("ses_1", interrupt())
        return await read(namespace, run_id)

    world.store.run = late
    _, facts = await world.app.interrupt(world.caller("InterruptRun"), "ses_1", reserved, "", 0)
    assert (facts.run_id, facts.stop_reason.name) == (reserved, "CANCELLED")
    assert await world.runs("ses_1") == ["first CANCELLED", "f1 CANCELLED"]


@pytest.mark.asyncio
async def test_what_is_gone_is_not_found(world: World):
    await world.do("ses_1", create, first, lease(), put("f1", Mode.QUEUE))
    state = await world.state("ses_1")
    fence, run_id = fence_of(state), state.run.run_id
    submission_id = state.next_runs[0].submission_id
    await world.do("ses_1", delete_force)
    app, caller = world.app, world.caller
    for call, reason in (
        (lambda: app.interrupt(caller("InterruptRun"), "ses_1", run_id, "", 0), Reason.RUN_NOT_FOUND),
        (lambda: app.interrupt(caller("InterruptRun"), "", run_id, "", 0), Reason.RUN_NOT_FOUND),
        (lambda: app.interrupt(caller("InterruptRun"), "ses_1", "", "", 0), Reason.SESSION_NOT_FOUND),
        (lambda: app.withdraw(caller("WithdrawSubmission"), "ses_1", submission_id), Reason.SUBMISSION_NOT_FOUND),
        (lambda: app.withdraw(caller("WithdrawSubmission"), "", submission_id), Reason.SUBMISSION_NOT_FOUND),
        (lambda: app.heartbeat(caller("Heartbeat"), fence, LEASE), Reason.RUN_NOT_FOUND),
        (lambda: app.reopen_session(caller("ReopenSession"), "ses_1", ReopenSession()), Reason.SESSION_NOT_FOUND),
    ):  # fmt: skip
        with pytest.raises(Refused) as refusal:
            await call()
        assert refusal.value.reason is reason


@pytest.mark.asyncio
async def test_five_hundred_callers_cancelled_at_random(world: World):
    chance = random.Random(11)
    sessions = [f"ses_{n}" for n in range(5)]
    for name in sessions:
        await world.do(name, create)
    done: set[str] = set()

    async def call(number: int) -> None:
        name = sessions[number % 5]
        mode = chance.choice([Mode.QUEUE, Mode.REPLACE, Mode.AUTO])
        await _submit(world, name, f"{name}-{number}", mode)
        done.add(f"{name}-{number}")

    cancelled = 0
    for start in range(0, 500, 50):
        tasks = [asyncio.ensure_future(call(number)) for number in range(start, start + 50)]
        while tasks:
            await yielded(chance.randrange(1, 4))
            task = tasks.pop(chance.randrange(len(tasks)))
            cancelled += task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert cancelled > 50
    async with asyncio.timeout(1):
        await _submit(world, "ses_0", "next")
    for name in sessions:
        inputs = await _check(world, name)
        assert {one for one in done if one.startswith(name)} <= set(inputs)
        # Every one that is there is wholly there: asked again, its answer is the first one's.
        for words in list(inputs)[:10]:
            again = await _submit(world, name, words, Mode.QUEUE)
            assert again.replayed
        assert set(await world.inputs(name)) == set(inputs)


@pytest.mark.asyncio
async def test_leases_after_a_restart(path):
    async with World(path) as world:
        for name, executor in (("ses_1", "x1"), ("ses_2", "embedded-1"), ("ses_3", "x1")):
            await world.do(name, create, _LOST, lease(executor), beat)
        await world.do("ses_4", create, first)
        fence = fence_of(await world.state("ses_1"))
        world.clock.advance(2 * LEASE)  # nobody was there to take a heartbeat
        await world.restart()
        for name in ("ses_1", "ses_2", "ses_3", "ses_4"):
            await world.settle(name)
        assert await world.runs("ses_1") == ["first LIVE"]
        assert await world.runs("ses_2") == ["first FAILED"]
        assert await world.runs("ses_4") == ["first LIVE"]
        world.clock.advance(LEASE - 1)
        control = await world.app.heartbeat(world.caller("Heartbeat"), fence, LEASE)
        assert control.lease_expire_time == world.clock.now() + LEASE
        world.clock.advance(1)
        for name in ("ses_1", "ses_3"):
            await world.settle(name)
        assert await world.runs("ses_1") == ["first LIVE"]
        assert await world.runs("ses_3") == ["first FAILED"]
        view = await world.app.poll(world.caller("PollActivation"), "x2", ["main"], 0, LEASE, 0)
        assert view.leased.fence.session_id == "ses_4"


@pytest.mark.asyncio
async def test_a_grace_holds_over_a_restart_and_with_nobody_there(path):
    async with World(path) as world:
        await world.do("ses_1", create, first, lease(), put("f1", Mode.QUEUE), interrupt())
        await world.restart()
        (timer,) = await world.store.timers()
        assert (timer.kind, timer.due_time) == (TimerKind.GRACE, world.clock.now() + GRACE)
        upkeep, alarm = Upkeep(world.services), Alarm(KEY, TimerKind.GRACE)
        assert await upkeep.fire(alarm) == timer.due_time, "too early: it fires again"
        world.clock.advance(GRACE)
        assert await upkeep.fire(alarm) is None
        assert await world.runs("ses_1") == ["first CANCELLED", "f1 LIVE"]
        assert await world.store.timers() == []


@pytest.mark.asyncio
async def test_a_heartbeat_moves_the_alarm_and_never_the_outcome(world: World):
    await world.do("ses_1", create, _LOST, lease(), beat)
    state = await world.state("ses_1")
    fence = fence_of(state)
    upkeep, alarm = Upkeep(world.services), Alarm(KEY, None, fence.activation_id)
    world.clock.advance(LEASE - 1)
    await world.app.heartbeat(world.caller("Heartbeat"), fence, LEASE)
    world.clock.advance(1)
    assert await upkeep.fire(alarm) == world.clock.now() + LEASE - 1
    assert await world.state("ses_1") == state, "a heartbeat writes no state"
    await world.app.heartbeat(world.caller("Heartbeat"), fence, LEASE // 6)
    world.clock.advance(LEASE // 6)
    with pytest.raises(Refused, check=lambda error: error.reason is Reason.STALE_ACTIVATION):
        await world.app.heartbeat(world.caller("Heartbeat"), fence, LEASE)
    assert await world.runs("ses_1") == ["first FAILED"]


@pytest.mark.asyncio
async def test_a_drained_executor_gets_nothing_more_also_after_a_restart(path):
    async with World(path) as world:
        await world.do("ses_1", create, first)
        poll = lambda who: world.app.poll(world.caller("PollActivation"), who, ["main"], 0, LEASE, 0)  # noqa: E731 # fmt: skip
        await world.app.drain_executor(world.caller("DrainExecutor"), "x1")
        assert (await poll("x1")).draining
        await world.restart()
        assert (await poll("x1")).draining
        assert (await poll("x2")).leased is not None


@pytest.mark.asyncio
async def test_options_and_texts_of_what_waited_reach_the_run_whole(file_world: World):
    from runlane.v1 import run_pb2

    world = file_world
    wanted = RunOptions(
        "other", "m-2", RunLimits(3), cancel_grace=7, request_options_json='{"a":1}'
    )
    await world.do("ses_1", create, first, lease(), steer("s1"), put("f1", Mode.QUEUE, options=wanted))  # fmt: skip
    await world.restart()
    await world.do("ses_1", reserve, commit(answer(), outcome=COMPLETED), interrupt(), commit(outcome=COMPLETED))  # fmt: skip
    assert await world.texts("ses_1") == ["first", "answer", "s1", "f1"]
    run = (await world.store.list_runs(KEY, [], None, 10))[1]
    options = run_pb2.RunOptions.FromString(run.options)
    assert (options.agent, options.model, options.limits.max_model_steps) == ("other", "m-2", 3)
    assert options.request_options_json == '{"a":1}'
    assert (run.preview, run.request_id) == ("f1", "f1")
    assert [one.author for one in await world.messages("ses_1")] == [1, 3, 2, 1]


@pytest.mark.asyncio
async def test_an_agent_that_is_no_longer_allowed_fails_its_input_and_the_next_starts(path):
    async with World(path) as world:
        other = RunOptions(agent="other")
        await world.do("ses_1", create, first, put("f1", Mode.QUEUE, options=other))
        await world.do("ses_1", put("f2", Mode.QUEUE))
        world.rules = Rules(agents=frozenset({"main"}))
        await world.restart()
        await world.do("ses_1", interrupt())
        assert await world.inputs("ses_1") == {
            "first": "DELIVERED", "f1": "FAILED START_FAILED", "f2": "DELIVERED",
        }  # fmt: skip
        assert await world.runs("ses_1") == ["first CANCELLED", "f2 LIVE"]
        await _check(world, "ses_1")
