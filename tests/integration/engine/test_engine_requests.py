"""request_id: one act, one answer, whatever happens in between."""

import asyncio
from dataclasses import replace

import pytest
from runlane_server.app.views import ForkRequest
from runlane_server.core.commands import CommitRun, CreateSession, ReopenSession, Submit
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import SessionRecord
from runlane_server.core.words import Mode
from support.gate import Gate, yielded
from support.lane import KEY
from support.steps import (
    COMPLETED,
    GRACE,
    LEASE,
    RESERVE,
    answer,
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

RECORD = SessionRecord(default_agent="main")


async def _submit(world: World, words: str = "hello", request_id: str = "r1", mode: Mode = Mode.START):  # fmt: skip
    caller = world.caller("Submit", request_id, words)
    return await world.app.submit(caller, "ses_1", Submit(text(words), mode))


@pytest.mark.asyncio
async def test_fifty_calls_at_once_are_one_run_and_fifty_equal_answers(world: World):
    await world.do("ses_1", create)
    results = await asyncio.gather(*(_submit(world) for _ in range(50)))
    assert [one.replayed for one in results].count(False) == 1
    assert len({repr(one.answer) for one in results}) == 1
    assert await world.runs("ses_1") == ["r1 LIVE"]
    assert (await world.event_names("ses_1")).count("RUN_CREATED") == 1


@pytest.mark.asyncio
async def test_fifty_more_after_a_restart_get_the_same_answer(file_world: World):
    world = file_world
    await world.do("ses_1", create)
    first_answer = (await _submit(world)).answer
    await world.restart()
    results = await asyncio.gather(*(_submit(world) for _ in range(50)))
    assert all(one.replayed for one in results)
    assert {repr(one.answer) for one in results} == {repr(first_answer)}
    assert await world.runs("ses_1") == ["r1 LIVE"]


@pytest.mark.asyncio
async def test_fifty_that_make_their_session_make_one(world: World):
    async def make():
        caller = world.caller("Submit", "r1", "hello")
        command = Submit(text("hello"), create_session=RECORD)
        return await world.app.submit(caller, "", command)

    results = await asyncio.gather(*(make() for _ in range(50)))
    assert len({one.answer.submission.session_id for one in results}) == 1
    assert [one.replayed for one in results].count(False) == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("cold", [False, True])
async def test_another_payload_is_refused_without_a_word_of_the_first(file_world: World, cold):
    world = file_world
    await world.do("ses_1", create)
    await _submit(world, "the secret")
    if cold:
        await world.restart()
    for _ in range(2):
        with pytest.raises(Refused) as refusal:
            await _submit(world, "another", mode=Mode.QUEUE)
        assert refusal.value.reason is Reason.REQUEST_ID_REUSED
        assert refusal.value.metadata == {"request_id": "r1"}
        assert "secret" not in str(refusal.value)
    assert await world.texts("ses_1") == ["the secret"]


@pytest.mark.asyncio
async def test_another_payload_in_flight_waits_and_is_refused(world: World):
    await world.do("ses_1", create)
    gate = Gate(world)
    gate.shut()
    one = asyncio.create_task(_submit(world, "one"))
    await gate.entered()
    two = asyncio.create_task(_submit(world, "two"))
    await yielded()
    assert not two.done()
    gate.open()
    assert not (await one).replayed
    with pytest.raises(Refused, check=lambda error: error.reason is Reason.REQUEST_ID_REUSED):
        await two


@pytest.mark.asyncio
@pytest.mark.parametrize("cold", [False, True])
async def test_a_retry_precedes_the_table(file_world: World, cold):
    """A START that succeeded, again: the lane is busy, then closed, then the session gone."""
    world = file_world
    await world.do("ses_1", create)
    told = (await _submit(world)).answer
    for later in (None, lease(), interrupt(), delete_force):
        if later is not None:
            await world.do("ses_1", later)
        if cold:
            await world.restart()
        again = await _submit(world)
        assert (again.replayed, again.answer) == (True, told)
    with pytest.raises(Refused, check=lambda error: error.reason is Reason.SESSION_NOT_FOUND):
        await _submit(world, request_id="r2")


@pytest.mark.asyncio
async def test_the_replay_survives_a_slot_that_was_forgotten(path):
    async with World(path, slots_max=1, answers_max=1) as world:
        await world.do("ses_1", create)
        told = (await _submit(world)).answer
        await world.do("ses_2", create)
        await world.do("ses_3", create)
        again = await _submit(world)
        assert (again.replayed, again.answer) == (True, told)


@pytest.mark.asyncio
async def test_an_empty_request_id_is_no_key(world: World):
    await world.do("ses_1", create)
    for _ in range(2):
        done = await _submit(world, request_id="", mode=Mode.QUEUE)
        assert not done.replayed
    assert len(await world.store.list_submissions(KEY, [], None, 10, 0)) == 2


@pytest.mark.asyncio
async def test_the_same_id_is_another_key_in_another_scope_or_method(world: World):
    await world.do("ses_1", create)
    await world.do("ses_2", create)
    await _submit(world)
    caller = world.caller("Submit", "r1", "hello")
    other = await world.app.submit(caller, "ses_2", Submit(text("hello")))
    assert not other.replayed
    stopped, _ = await world.app.interrupt(world.caller("InterruptRun", "r1"), "ses_1", "", "", 0)
    assert not stopped.replayed


@pytest.mark.asyncio
@pytest.mark.parametrize("cold", [False, True])
async def test_only_successes_are_recorded(file_world: World, cold):
    world = file_world
    await world.do("ses_1", create, first)
    with pytest.raises(Refused, check=lambda error: error.reason is Reason.SESSION_BUSY):
        await _submit(world)
    await world.do("ses_1", interrupt())
    if cold:
        await world.restart()
    done = await _submit(world)
    assert (done.replayed, done.answer.submission.state.name) == (False, "DELIVERED")


@pytest.mark.asyncio
@pytest.mark.parametrize("cold", [False, True])
async def test_what_changed_nothing_is_recorded_too(file_world: World, cold):
    """The second call that changes nothing is told what the first was, and keeps its key."""
    world = file_world
    app = world.app
    await world.do("ses_1", create, first, lease(), put("f1", Mode.QUEUE))
    submission_id = (await world.state("ses_1")).next_runs[0].submission_id
    run_id = (await world.state("ses_1")).run.run_id
    await app.withdraw(world.caller("WithdrawSubmission"), "ses_1", submission_id)
    await world.do("ses_1", commit(outcome=COMPLETED))

    async def calls():
        app = world.app
        return [
            await app.withdraw(world.caller("WithdrawSubmission", "r1", "a"), "", submission_id),
            (await app.interrupt(world.caller("InterruptRun", "r1", "a"), "", run_id, "", 0))[0],
            (await app.reopen_session(world.caller("ReopenSession", "r1", "a"), "ses_1", ReopenSession()))[0],
        ]  # fmt: skip

    told = await calls()
    assert [one.replayed for one in told] == [False] * 3
    await world.do("ses_1", put("n", Mode.START))
    if cold:
        await world.restart()
    again = await calls()
    assert [one.replayed for one in again] == [True] * 3
    assert [one.answer for one in again] == [one.answer for one in told]
    with pytest.raises(Refused, check=lambda error: error.reason is Reason.REQUEST_ID_REUSED):
        await world.app.interrupt(world.caller("InterruptRun", "r1", "b"), "ses_1", "", "", 0)
    assert (await world.state("ses_1")).run.activation.state.name == "QUEUED"


@pytest.mark.asyncio
@pytest.mark.parametrize("cold", [False, True])
async def test_a_fork_is_made_once(file_world: World, cold):
    world = file_world
    await world.do("ses_1", create, first, lease(), reserve, commit(answer(), outcome=COMPLETED))
    (run,) = await world.store.list_runs(KEY, [], None, 10)

    async def fork():
        caller = world.caller("ForkSession", "r1", "a")
        return (await world.app.fork(caller, run.run_id, "", ForkRequest(input=text("on"))))[0]

    results = await asyncio.gather(*(fork() for _ in range(10)))
    assert [one.replayed for one in results].count(False) == 1
    if cold:
        await world.restart()
    await world.do("ses_1", delete_force)
    results.append(await fork())
    assert len({repr(one.answer) for one in results}) == 1
    made = results[0].answer.session.session_id
    assert await world.texts(made) == ["first", "answer", "on"]


@pytest.mark.asyncio
@pytest.mark.parametrize("cold", [False, True])
async def test_a_commit_again_gets_its_answer_and_is_told_that_its_fence_is_lost(
    file_world: World, cold
):
    world = file_world
    await world.do("ses_1", create, first, lease(), reserve, steer("s1"))
    fence = fence_of(await world.state("ses_1"))
    command = CommitRun(fence, [answer(), RESERVE], None, LEASE)

    async def call():
        return await world.app.commit(world.caller("Commit", "r1", "a"), command)

    told = await call()
    again = await call()
    assert (again.replayed, again.fence_lost, again.answer) == (True, False, told.answer)
    assert [row.number for row in again.delivered] == [3]
    world.clock.advance(LEASE + GRACE)
    if cold:
        await world.restart()
    again = await call()
    assert (again.replayed, again.answer) == (True, told.answer)
    await world.settle("ses_1")
    world.clock.advance(LEASE + GRACE)
    again = await call()
    assert (again.fence_lost, again.answer) == (True, told.answer)
    assert (await world.texts("ses_1")) == ["first", "answer", "s1"]


@pytest.mark.asyncio
async def test_a_cancelled_first_call_leaves_its_answer_to_the_second(world: World):
    await world.do("ses_1", create)
    gate = Gate(world)
    gate.shut()
    one = asyncio.create_task(_submit(world))
    await gate.entered()
    two = asyncio.create_task(_submit(world))
    await yielded()
    one.cancel()
    await yielded()
    assert one.cancelled()
    assert not two.done()
    gate.open()
    done = await two
    assert done.replayed
    assert await world.runs("ses_1") == ["r1 LIVE"]


@pytest.mark.asyncio
async def test_a_first_call_cancelled_before_it_was_queued_leaves_the_second_to_decide(world: World):  # fmt: skip
    await world.do("ses_1", create)
    one = asyncio.create_task(_submit(world))
    two = asyncio.create_task(_submit(world))
    await asyncio.sleep(0)
    one.cancel()
    done = await two
    assert done.answer.submission.state.name == "DELIVERED"
    assert await world.runs("ses_1") == ["r1 LIVE"]


@pytest.mark.asyncio
async def test_a_poll_again_gets_the_same_lease(file_world: World):
    world = file_world
    await world.do("ses_1", create, first)
    await world.do("ses_2", create, first)

    async def poll(request_id: str):
        caller = world.caller("PollActivation", request_id, "a")
        return await world.app.poll(caller, "x1", ["main"], 0, LEASE, 0)

    one, two = await asyncio.gather(poll("p1"), poll("p1"))
    assert one.leased.fence == two.leased.fence
    await world.restart()
    again = await poll("p1")
    assert (again.replayed, again.leased.fence) == (True, one.leased.fence)
    other = await poll("p2")
    assert other.leased.fence.session_id != one.leased.fence.session_id
    assert (await poll("p3")).leased is None


@pytest.mark.asyncio
async def test_a_poll_again_while_the_first_still_waits_gets_what_the_first_got(world: World):
    await world.do("ses_1", create)

    async def poll():
        caller = world.caller("PollActivation", "p1", "a")
        return await world.app.poll(caller, "x1", ["main"], 0.2, LEASE, 0)

    polls = [asyncio.create_task(poll()) for _ in range(2)]
    await yielded()
    await world.do("ses_1", first)
    one, two = await asyncio.gather(*polls)
    assert one.leased.fence == two.leased.fence


@pytest.mark.asyncio
async def test_create_again_returns_the_first(world: World):
    async def make(request_id: str, **how):
        command = CreateSession(RECORD, **how)
        caller = world.caller("CreateSession", request_id, how)
        return (await world.app.create_session(caller, "ses_9", command))[0]

    told = await make("r1")
    assert replace(told, replayed=True) == await make("r1")
    with pytest.raises(Refused, check=lambda error: error.reason is Reason.SESSION_EXISTS):
        await make("r2")
    known = await make("r3", return_existing=True)
    assert (known.answer.created, known.answer.session) == (False, told.answer.session)
