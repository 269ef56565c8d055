"""Runs that wait, stop, break and come back, on a store that is closed and opened meanwhile."""

import asyncio
import random
from collections import Counter

import pytest
from runlane_server.core.commands import CommitRun, CreateSession, RestoreRun, Submit
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import RunLimits, RunOptions, SessionRecord
from runlane_server.core.words import InteractionState, Mode, RunFailure, StopReason, ToolCallState
from support.lane import KEY
from support.steps import (
    COMPLETED,
    LEASE,
    RELEASE,
    RESERVE,
    SECOND,
    UNCONFIRMED,
    answer,
    asks,
    beat,
    claims,
    commit,
    create,
    delete_force,
    fence_of,
    first,
    interrupt,
    lease,
    pause,
    put,
    question,
    reply,
    reply_to,
    reserve,
    restore,
    results,
    settle,
    steer,
    text,
    unpause,
)
from support.world import World

NAME = "ses_1"
ROUNDS = 500


async def _poll(world: World, agent: str = "main", executor_id: str = "x1"):
    caller = world.caller("PollActivation")
    return (await world.app.poll(caller, executor_id, [agent], 0, LEASE, 100_000)).leased


async def _commit(world: World, fence, *operations, outcome=None):
    command = CommitRun(fence, list(operations), outcome, LEASE)
    return (await world.app.commit(world.caller("Commit"), command)).answer


async def _answer(world: World, command):
    row = await world.app.find_interaction("default", command.run_id, command.interaction_id)
    caller = world.caller("AnswerInteraction")
    return (await world.app.answer_interaction(caller, row, command)).answer


async def _calls(world: World) -> dict[str, str]:
    (run, *_) = await world.store.list_runs(KEY, [], None, 10)
    rows, _ = await world.app.list_tool_calls("default", run.run_id, None, 100)
    return {row.tool_call_id: ToolCallState(row.state).name for row in rows}


def _limited(**limits: int) -> RunOptions:
    return RunOptions(limits=RunLimits(**limits))


# --- a batch ---------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_batch_from_its_step_to_its_end_over_a_reopen(file_world: World):
    world = file_world
    await world.do(NAME, create, first)
    fence = (await _poll(world)).fence
    await _commit(world, fence, RESERVE)
    done = await _commit(world, fence, asks("c1", "c2", "c3", "c4", malformed="c3"))
    assert [one.state.name for one in done.results[0].calls] == ["PREPARED", "PREPARED", "COMMITTED", "PREPARED"]  # fmt: skip
    await _commit(world, fence, claims("c2", "c4", idempotent=True))
    await _commit(world, fence, results("c4"))
    assert await world.texts(NAME) == ["first", "asks"]
    await world.restart()
    assert await _calls(world) == {"c1": "PREPARED", "c2": "CLAIMED", "c3": "COMMITTED", "c4": "COMMITTED"}  # fmt: skip
    # Its executor is lost: what it had claimed may be run again.
    world.clock.advance(LEASE)
    await world.ring()
    assert (await _calls(world))["c2"] == "PREPARED"
    world.clock.advance(SECOND)
    await world.ring()
    leased = await _poll(world, executor_id="x2")
    assert (leased.fence.epoch, leased.reserved_step) == (2, 0)
    assert [(one.tool_call_id, ToolCallState(one.state).name) for one in leased.calls] == [
        ("c1", "PREPARED"), ("c2", "PREPARED"), ("c3", "COMMITTED"), ("c4", "COMMITTED"),
    ]  # fmt: skip
    await world.do(NAME, steer("s1"))
    fence = leased.fence
    await _commit(world, fence, claims("c1", "c2"), results("c2"))
    done = await _commit(world, fence, results("c1"), RESERVE)
    assert (done.results[0].batch_closed, done.results[1].granted) == (True, True)
    texts = ["first", "asks", "did c1", "did c2", "", "did c4", "s1"]
    assert await world.texts(NAME) == texts
    closer = (await world.messages(NAME))[4].content[0].tool_result
    assert closer.tool_call_id == "c3"
    await _commit(world, fence, answer(), outcome=COMPLETED)
    assert await world.runs(NAME) == ["first COMPLETED"]
    assert set((await _calls(world)).values()) == {"COMMITTED"}


@pytest.mark.asyncio
async def test_a_lost_claim_is_never_run_again_and_every_call_has_its_message(file_world: World):
    world = file_world
    await world.do(NAME, create, first, lease(), reserve, commit(asks("c1", "c2", "c3")))
    await world.do(NAME, commit(claims("c2", "c3")), commit(results("c3")))
    await world.restart()
    world.clock.advance(LEASE)
    await world.ring()
    assert await world.runs(NAME) == ["first OUTCOME_UNKNOWN"]
    assert await _calls(world) == {"c1": "CANCELLED", "c2": "OUTCOME_UNKNOWN", "c3": "COMMITTED"}
    assert await world.texts(NAME) == ["first", "asks", "", "", "did c3"]
    closers = [one.content[0].tool_result for one in (await world.messages(NAME))[2:4]]
    assert [one.tool_call_id for one in closers] == ["c1", "c2"]
    assert await _poll(world) is None


# --- waits over a reopen ---------------------------------------------------


@pytest.mark.asyncio
async def test_a_question_is_answered_after_a_reopen_and_again_after_the_next(file_world: World):
    world = file_world
    await world.do(NAME, create, first, lease(), reserve, commit(asks("c1")))
    await world.do(NAME, commit(outcome=question("c1")), steer("s1"), pause)
    await world.restart()
    assert await _poll(world) is None
    page = await world.app.list_interactions("default", "", InteractionState.OPEN, None, 10)
    assert [row.session_id for row in page.items] == [NAME]
    command = reply_to(await world.state(NAME))
    told = await _answer(world, command)
    assert (told.interaction.state.name, told.run.phase.name) == ("ANSWERED", "PAUSED")
    await world.restart()
    again = await _answer(world, command)
    assert again.interaction == told.interaction
    await world.do(NAME, unpause)
    leased = await _poll(world)
    assert leased.fence.epoch == 2
    assert [row.interaction_id for row in leased.answered] == [command.interaction_id]
    assert await world.texts(NAME) == ["first", "asks", "yes", "s1"]


@pytest.mark.asyncio
async def test_what_fell_due_while_nobody_was_there(file_world: World):
    """Deadlines and expiries hold over a time in which the store was closed."""
    world = file_world
    deadline = put("first", Mode.START, options=_limited(max_duration=60 * SECOND))
    asked = commit(outcome=question(expire=60 * SECOND))
    await world.do("ses_q", create, deadline, put("f1", Mode.QUEUE))
    await world.do("ses_l", create, deadline, lease(), reserve)
    await world.do("ses_p", create, deadline, pause)
    await world.do("ses_w", create, first, lease(), asked)
    await world.do("ses_d", create, deadline, lease(), asked)
    timeout = put("first", Mode.START, options=_limited(start_timeout=60 * SECOND))
    await world.do("ses_s", create, timeout)
    await world.do(
        "ses_i", create, put("first", Mode.START, options=_limited(interaction_timeout=60 * SECOND))
    )
    await world.do("ses_i", lease(), commit(outcome=question()))
    world.clock.advance(60 * SECOND - 1)
    await world.restart()
    await world.ring()
    names = ("ses_q", "ses_p", "ses_w", "ses_d", "ses_s", "ses_i", "ses_l")
    for name in names:
        assert (await world.runs(name))[0] == "first LIVE"
    await world.stop()
    world.clock.advance(1)
    await world.start()
    await world.ring()
    ends = {name: (await world.runs(name))[0].split()[1] for name in names}
    assert ends == {
        "ses_q": "DEADLINE_EXCEEDED", "ses_l": "DEADLINE_EXCEEDED", "ses_p": "DEADLINE_EXCEEDED",
        "ses_w": "INTERACTION_EXPIRED", "ses_d": "DEADLINE_EXCEEDED", "ses_s": "FAILED", "ses_i": "INTERACTION_EXPIRED",
    }  # fmt: skip
    assert await world.runs("ses_q") == ["first DEADLINE_EXCEEDED", "f1 LIVE"]
    page = await world.app.list_interactions("default", "", InteractionState.OPEN, None, 10)
    assert page.items == []
    assert await world.store.timers() == []


@pytest.mark.asyncio
async def test_a_late_answer_meets_what_was_due(file_world: World):
    world = file_world
    await world.do(NAME, create, first, lease(), commit(outcome=question(expire=SECOND)))
    command = reply_to(await world.state(NAME))
    world.clock.advance(SECOND)
    with pytest.raises(Refused, check=lambda error: error.reason is Reason.INTERACTION_CLOSED):
        await _answer(world, command)
    assert await world.runs(NAME) == ["first INTERACTION_EXPIRED"]


# --- leases ----------------------------------------------------------------


@pytest.mark.asyncio
async def test_leases_over_a_reopen_by_who_has_them_and_whether_they_were_heard_of(path):
    async with World(path) as world:
        unheard, heard = (lease("x1"),), (lease("x1"), beat)
        own, own_heard = (lease("embedded-1"),), (lease("embedded-1"), reserve)
        cases = {"ses_1": unheard, "ses_2": heard, "ses_3": own, "ses_4": own_heard, "ses_5": heard}
        for name, steps in cases.items():
            await world.do(name, create, first, *steps)
        fence = fence_of(await world.state("ses_5"))
        world.clock.advance(10 * LEASE)
        await world.restart()
        await world.ring()

        async def kinds() -> dict[str, str]:
            runs = {name: (await world.state(name)).run for name in cases}
            return {
                name: f"{run.activation.state.name} {run.activation.kind.name} {run.activation.epoch} {run.recoveries}"
                for name, run in runs.items()
            }  # fmt: skip

        assert await kinds() == {
            "ses_1": "LEASED START 1 0", "ses_2": "LEASED START 1 0", "ses_5": "LEASED START 1 0",
            "ses_3": "QUEUED START 2 0", "ses_4": "QUEUED RECOVER 2 1",
        }  # fmt: skip
        world.clock.advance(LEASE - 1)
        await world.app.heartbeat(world.caller("Heartbeat"), fence, LEASE)
        await world.ring()
        assert (await kinds())["ses_1"] == "LEASED START 1 0"
        world.clock.advance(1)
        await world.ring()
        after = await kinds()
        assert after == {
            "ses_1": "QUEUED START 2 0", "ses_2": "QUEUED RECOVER 2 1", "ses_5": "LEASED START 1 0",
            "ses_3": "QUEUED START 2 0", "ses_4": "QUEUED RECOVER 2 1",
        }  # fmt: skip


@pytest.mark.asyncio
async def test_a_heartbeat_confirms_a_lease_also_over_a_reopen(file_world: World):
    world = file_world
    await world.do(NAME, create, first, lease())
    fence = fence_of(await world.state(NAME))
    world.clock.advance(UNCONFIRMED - 1)
    await world.app.heartbeat(world.caller("Heartbeat"), fence, LEASE)
    await world.restart()
    world.clock.advance(LEASE)
    await world.ring()
    run = (await world.state(NAME)).run
    assert (run.activation.kind.name, run.recoveries) == ("RECOVER", 1)


@pytest.mark.asyncio
@pytest.mark.parametrize("cold", [False, True])
async def test_a_run_in_back_off_is_given_to_nobody_before_its_time(file_world: World, cold):
    world = file_world
    await world.do(NAME, create, first, lease(), reserve)
    for number, wait in enumerate((SECOND, 2 * SECOND, 4 * SECOND), 1):
        world.clock.advance(LEASE)
        await world.ring()
        run = (await world.state(NAME)).run
        assert (run.recoveries, run.not_before) == (number, world.clock.now() + wait)
        if cold:
            await world.restart()
        world.clock.advance(wait - 1)
        await world.ring()
        assert await _poll(world) is None
        world.clock.advance(1)
        if cold:
            await world.restart()
        if world.store.shared is None:  # else it is looked for in the store
            assert await _poll(world) is None, "its alarm has not rung"
        await world.ring()
        leased = await _poll(world)
        assert (leased.fence.epoch, leased.reserved_step) == (number + 1, 1)
        await _commit(world, leased.fence)
    world.clock.advance(LEASE)
    await world.ring()
    assert await world.runs(NAME) == ["first FAILED"]
    (row,) = await world.store.list_runs(KEY, [], None, 10)
    assert row.failure_reason == RunFailure.RECOVERY_EXHAUSTED


@pytest.mark.asyncio
async def test_what_ends_a_back_off_by_hand(world: World):
    await world.do(NAME, create, first, lease(), reserve)
    world.clock.advance(LEASE)
    await world.ring()
    assert await _poll(world) is None
    await world.do(NAME, restore(force=False))
    assert (await _poll(world)).fence.epoch == 2
    world.clock.advance(2 * SECOND)
    await world.ring()  # the alarm of the back-off that is no more
    assert await _poll(world) is None
    await world.do(NAME, beat)
    world.clock.advance(LEASE)
    await world.ring()
    await world.do(NAME, pause, unpause)
    assert (await _poll(world)).fence.epoch == 4


@pytest.mark.asyncio
async def test_stalled_runs_are_listed_until_somebody_does_something(file_world: World):
    world = file_world
    from runlane_server.core.words import Recovery

    manual = put("first", Mode.START, options=RunOptions(recovery=Recovery.MANUAL))
    ways = {
        "ses_1": restore(),
        "ses_2": settle(StopReason.FAILED),
        "ses_3": interrupt(),
        "ses_4": pause,
    }
    for name in ways:
        await world.do(name, create, manual, lease(), reserve)
    world.clock.advance(LEASE)
    await world.ring()
    await world.restart()

    async def stalled() -> list[str]:
        page = await world.app.list_stalled_runs("default", None, 10)
        return [view.facts.session_id for view in page.items]

    assert await stalled() == [*ways]
    for name, step in ways.items():
        await world.do(name, step)
    assert await stalled() == ["ses_4"]
    await world.do("ses_4", restore())
    assert await stalled() == []
    assert (await world.state("ses_4")).run.paused


# --- fences ----------------------------------------------------------------

_LOSSES = {
    "release": (commit(outcome=RELEASE),),
    "suspend": (commit(outcome=question()),),
    "answered": (commit(outcome=question()), reply()),
    "leased again": (commit(outcome=RELEASE), lease("x2")),
    "paused": (pause, reserve),
    "unpaused": (pause, reserve, unpause, lease("x2")),
    "restored": (restore(),),
    "settled": (settle(StopReason.FAILED),),
    "finished": (commit(outcome=COMPLETED),),
    "next run": (put("f1", Mode.QUEUE), commit(outcome=COMPLETED), lease("x2")),
}


async def _refusals(world: World, fence) -> set[str]:
    found = set()

    async def first_of(stream):
        async for one in stream:
            return one
        return None

    app = world.app
    for operations, outcome in (
        ([], None), ([RESERVE], None), ([answer()], None), ([claims("c1")], None), ([results("c1")], None),
        ([], question()), ([], COMPLETED), ([], RELEASE),
    ):  # fmt: skip
        try:
            await _commit(world, fence, *operations, outcome=outcome)
            found.add("taken")
        except Refused as refusal:
            found.add(refusal.reason.name)
    for call in (
        app.heartbeat(world.caller("Heartbeat"), fence, LEASE),
        first_of(app.watch_activation(world.caller("WatchActivation"), fence)),
        first_of(app.model_context(world.caller("GetModelContext"), fence, 0)),
        app.publish_deltas(world.caller("PublishDeltas"), fence, []),
    ):
        try:
            await call
            found.add("taken")
        except Refused as refusal:
            found.add(refusal.reason.name)
    return found


@pytest.mark.asyncio
@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("loss", _LOSSES)
async def test_a_fence_that_is_lost_is_refused_everywhere(file_world: World, loss, cold):
    world = file_world
    await world.do(NAME, create, first, lease(), reserve)
    fence = fence_of(await world.state(NAME))
    await world.do(NAME, *_LOSSES[loss])
    if cold:
        await world.restart()
    before = await world.state(NAME)
    assert await _refusals(world, fence) == {"STALE_ACTIVATION"}
    assert await world.state(NAME) == before


@pytest.mark.asyncio
async def test_a_fence_that_time_or_a_deletion_took_is_refused_everywhere(world: World):
    await world.do(NAME, create, first, lease(), reserve)
    fence = fence_of(await world.state(NAME))
    world.clock.advance(LEASE)
    assert await _refusals(world, fence) == {"STALE_ACTIVATION"}
    await world.do(NAME, delete_force)
    assert await _refusals(world, fence) == {"RUN_NOT_FOUND"}


# --- races -----------------------------------------------------------------


async def _told(call) -> str:
    try:
        return (await call).run.phase.name
    except Refused as refusal:
        return refusal.reason.name


@pytest.mark.asyncio
async def test_of_two_answers_at_once_one_counts(world: World):
    for number in range(50):
        name = f"ses_{number}"
        await world.do(name, create, first, lease(), commit(outcome=question()))
        state = await world.state(name)
        one, two = reply_to(state, "yes"), reply_to(state, "no")
        calls = [_told(_answer(world, command)) for command in (one, two, one, two)]
        told = await asyncio.gather(*calls)
        same, other = (told[::2], told[1::2]) if told[0] == "ACTIVE" else (told[1::2], told[::2])
        assert same == ["ACTIVE"] * 2
        assert other == ["INTERACTION_CONFLICT"] * 2
        names = await world.event_names(name)
        assert names.count("INTERACTION_ANSWERED") == 1
        await world.do(name, interrupt())
        assert await _told(_answer(world, one)) in {"TERMINAL", "INTERACTION_CONFLICT"}


async def _ticks(chance: random.Random) -> None:
    for _ in range(chance.randrange(8)):
        await asyncio.sleep(0)


_KINDS = ("answer", "finish", "expiry")


async def _ready(world: World, number: int) -> tuple:
    """A run that waits for an answer, or whose step is about to be committed."""
    name, agent, app = f"ses_{number}", f"a{number}", world.app
    await app.create_session(world.caller("CreateSession"), name, CreateSession(SessionRecord(default_agent=agent)))  # fmt: skip
    await app.submit(world.caller("Submit", "go", "go"), name, Submit(text("go"), Mode.START))
    fence = (await _poll(world, agent)).fence
    kind = _KINDS[number % 3]
    if kind == "finish":
        await _commit(world, fence, RESERVE)
        return kind, name, fence, None
    await _commit(world, fence, outcome=question(expire=0 if kind == "answer" else SECOND))
    return kind, name, fence, reply_to(await world.state(name))


async def _race(world: World, number: int, kind: str, name: str, fence, command) -> tuple[str, ...]:
    """An interrupt beside an answer, a finish, or an expiry that is due; returns what won."""
    chance, app = random.Random(number), world.app
    # Read before the race: a hop to the store in one of the ways would decide it.
    row = None
    if command is not None:
        row = await app.find_interaction("default", command.run_id, command.interaction_id)

    async def answered_now():
        return (
            await app.answer_interaction(world.caller("AnswerInteraction"), row, command)
        ).answer

    async def other() -> str:
        await _ticks(chance)
        if kind == "finish":
            answered = _commit(world, fence, answer(), outcome=COMPLETED)
            return await _told(answered)
        if kind == "expiry":
            world.clock.advance(SECOND)
        return await _told(answered_now())

    async def stop() -> str:
        await _ticks(chance)
        result, facts = await app.interrupt(world.caller("InterruptRun"), name, fence.run_id, "", 0)
        assert facts.run_id == result.answer.run.run_id == fence.run_id
        return result.answer.run.phase.name

    async def by_hand() -> str:
        await _ticks(chance)
        act = chance.choice([
            lambda: app.pause_run(world.caller("PauseRun"), name, fence.run_id),
            lambda: app.restore_run(world.caller("RestoreRun"), RestoreRun(fence.run_id, fence.activation_id)),
        ])  # fmt: skip
        try:
            return (await act()).answer.run.phase.name
        except Refused as refusal:
            return refusal.reason.name

    racers = [other(), stop(), by_hand()]
    chance.shuffle(racers)
    await asyncio.gather(*racers)
    await world.settle(name)
    if (state := await world.state(name)).run is not None:
        assert state.run.cancellation is not None
        await _commit(world, fence, outcome=COMPLETED)
    (end,) = await world.runs(name)
    names = await world.event_names(name)
    assert names.count("RUN_TERMINAL") == 1
    asked = names.count("INTERACTION_OPENED")
    assert names.count("INTERACTION_ANSWERED") + names.count("INTERACTION_CLOSED") == asked
    return kind, end.split()[1], "answered" if "INTERACTION_ANSWERED" in names else ""


@pytest.mark.asyncio
async def test_an_interrupt_races_an_answer_a_finish_and_an_expiry():
    """500 rounds: each run ends once, its question has one end, and each way is met."""
    async with World(None, linger=0.0001) as world:
        sums: Counter[tuple[str, ...]] = Counter()
        for start in range(0, ROUNDS, 25):
            # An expiry moves the clock for all, so each kind is a group of its own.
            for rest in range(3):
                numbers = [n for n in range(start, start + 25) if n % 3 == rest]
                ready = await asyncio.gather(*(_ready(world, n) for n in numbers))
                races = [_race(world, n, *one) for n, one in zip(numbers, ready, strict=True)]
                sums.update(await asyncio.gather(*races))
        print(sums)
        assert sum(sums.values()) == ROUNDS
        assert set(sums) == {
            ("answer", "CANCELLED", ""), ("answer", "CANCELLED", "answered"), ("finish", "COMPLETED", ""),
            ("finish", "CANCELLED", ""), ("expiry", "CANCELLED", ""), ("expiry", "INTERACTION_EXPIRED", ""),
        }  # fmt: skip
