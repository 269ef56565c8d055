"""Summaries: what the model sees, what the history says, and who comes between."""

import pytest
from runlane.v1 import executor_service_pb2
from runlane_server.core.commands import CommitRun
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import Fence, SessionKey
from runlane_server.core.words import Mode, NoticeKind
from runlane_server.store.base import StoredNotice
from support.kin import check_family, parent_of, run_of, take, where
from support.steps import (
    COMPLETED,
    LEASE,
    RELEASE,
    answer,
    asks,
    claims,
    commit,
    compacts,
    create,
    lease,
    put,
    reserve,
    results,
    steer,
)
from support.world import WHOLE

pytestmark = pytest.mark.asyncio
S = "ses_1"
BATCH = (reserve, commit(asks("c1")), commit(claims("c1")), commit(results("c1")))


async def seen(world, after=0):
    """What the model is to see: the summary, the messages by number, and the last number."""
    fence = world.fence(await world.state(S))
    told, numbers, last = None, [], 0
    async for part in world.app.model_context(world.caller("Context"), fence, after):
        if isinstance(part, bytes):
            frame = executor_service_pb2.StreamModelContextResponse.FromString(part)
            numbers += [one.number for one in frame.messages]
        elif isinstance(part, int):
            last = part
        else:
            told = part.text
    return told, numbers, last


async def polled(world):
    """The same as a poll brings it where it is small."""
    await world.do(S, commit(outcome=RELEASE))
    state = await world.state(S)
    view = await world.app.poll(world.caller("Poll"), "x1", [state.run.agent], 0, LEASE, WHOLE)
    return view.leased


async def test_the_model_sees_the_summary_the_input_the_latest_steer_and_the_rest(world):
    await world.do(S, create, put("first", Mode.START), lease(), reserve)
    await world.do(S, commit(answer(), outcome=COMPLETED))
    await world.do(S, put("second", Mode.START), lease(), steer("s1"), steer("s2"), *BATCH)
    assert await world.texts(S) == ["first", "answer", "second", "asks", "did c1", "s1"]
    assert await seen(world) == (None, [1, 2, 3, 4, 5, 6], 6)
    await world.do(S, commit(compacts(5)))
    assert await seen(world) == ("sum of 5", [3, 6], 6), "the input of this run is kept"
    await world.do(S, *BATCH)
    assert (await world.texts(S))[6:] == ["asks", "did c1", "s2"]
    await world.do(S, commit(compacts(9)))
    assert await seen(world) == ("sum of 9", [3, 9], 9), "and its latest steer"
    assert await seen(world, after=9) == (None, [], 9)
    assert await seen(world, after=6) == ("sum of 9", [3, 9], 9), "it begins anew"
    leased = await polled(world)
    assert (leased.summary.through, leased.summary.text) == (9, "sum of 9")
    assert [row.number for row in leased.context] == [3, 9]
    # The history says what it said.
    assert len(await world.texts(S)) == 9
    if world.path is not None:
        await world.restart()
        assert await seen(world) == ("sum of 9", [3, 9], 9)


async def test_the_next_run_sees_the_summary_and_its_own_input(world):
    await world.do(S, create, put("first", Mode.START), lease(), *BATCH, commit(compacts(3)))
    await world.do(S, reserve, commit(answer(), outcome=COMPLETED))
    await world.do(S, put("second", Mode.START), lease())
    assert await seen(world) == ("sum of 3", [4, 5], 5)
    rows = await world.store.list_runs(SessionKey("default", S), [], None, 10)
    assert [row.summary_through for row in rows] == [3, 0], "frozen where a run ended"


async def test_an_end_of_a_child_that_comes_between_is_read_again(world, monkeypatch):
    """It would be parted from its call by what was asked for before it was there."""
    (child,) = await parent_of(world, S, "c1")
    await world.do(child, lease(), reserve, commit(answer(), outcome=COMPLETED))
    (notice,) = await world.store.notices()
    read, reads = world.store.messages_by_number, []

    async def then_moves(key, numbers):
        rows = await read(key, numbers)
        if list(numbers) == [3]:
            reads.append(len(rows))
            if len(reads) == 1:
                await take(world, notice)
        return rows

    monkeypatch.setattr(world.store, "messages_by_number", then_moves)
    fence = world.fence(await world.state(S))
    command = CommitRun(fence, [compacts(2)], None, LEASE)
    with pytest.raises(Refused) as refusal:
        await world.app.commit(world.caller("Commit"), command)
    assert refusal.value.reason is Reason.OPERATION_INVALID
    assert refusal.value.metadata["detail"].startswith("the summary would part")
    assert reads == [0, 1], "read, decided, and read again"
    assert (await world.state(S)).compacted_through == 0
    command = CommitRun(fence, [compacts(3)], None, LEASE)
    await world.app.commit(world.caller("Commit"), command)
    assert (await world.state(S)).compacted_through == 3
    await check_family(world, S, child)


async def test_a_lost_answer_to_a_summary_is_given_again(world):
    await world.do(S, create, put("first", Mode.START), lease(), *BATCH)
    fence = world.fence(await world.state(S))
    command = CommitRun(fence, [compacts(3)], None, LEASE)
    caller = world.caller("Commit", "once", "same")
    views = [await world.app.commit(caller, command) for _ in range(2)]
    assert [view.replayed for view in views] == [False, True]
    events = await world.event_names(S)
    assert events.count("SESSION_COMPACTED") == 1


async def test_what_is_seen_is_for_who_has_the_run(world):
    await world.do(S, create, put("first", Mode.START), lease())
    fence = world.fence(await world.state(S))
    await world.do(S, commit(outcome=RELEASE))
    for dead in (fence, Fence(S, "run_x", "act_x", 1)):
        with pytest.raises(Refused) as refusal:
            async for _ in world.app.model_context(world.caller("Context"), dead, 0):
                pass
        assert refusal.value.reason is Reason.STALE_ACTIVATION


async def test_a_notice_for_a_run_that_went_on_finds_it(world):
    """The parent was released and leased again meanwhile: its fence is another, its child is not."""
    (child,) = await parent_of(world, S, "c1")
    notice = StoredNotice(SessionKey("default", S), NoticeKind.CHILD, await run_of(world, child))
    await world.do(S, commit(outcome=RELEASE), lease("x2"))
    await world.do(child, lease(), reserve, commit(answer(), outcome=COMPLETED))
    await take(world, notice)
    assert (await where(world, S), (await world.state(S)).run.children) == ("L", ())
    await check_family(world, S, child)
