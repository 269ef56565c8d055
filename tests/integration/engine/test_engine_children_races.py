"""What a parent and its child runs do to each other at unlucky moments."""

import asyncio
import sqlite3

import pytest
from runlane.v1 import message_pb2
from runlane_server.core.commands import SuspendForChildren
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import RunOptions, SessionKey, Usage
from runlane_server.core.words import (
    ChildrenMode,
    Mode,
    PromptKind,
    ToolCallState,
    ToolErrorPolicy,
)
from runlane_server.transport import responses
from support.kin import where
from support.steps import (
    ALL_CHILDREN,
    COMPLETED,
    LEASE,
    RELEASE,
    RESERVE,
    SECOND,
    answer,
    asks,
    child_asks,
    child_ends,
    child_fails,
    claims,
    commit,
    create,
    delete_force,
    first,
    interrupt,
    lease,
    put,
    question,
    reply,
    reply_to,
    reserve,
    results,
    starts,
)

pytestmark = pytest.mark.asyncio
P = "ses_p"
KEY = SessionKey("default", P)
LARGEST = 2**53 - 1
ROOM = 64
_STOP = put("first", Mode.START, options=RunOptions(tool_error_policy=ToolErrorPolicy.STOP))
_WAITS = (create, first, lease(), reserve, commit(asks("c1"), starts("c1"), outcome=ALL_CHILDREN))


class FailingWrite:
    """Holds the store's nth transaction from now on until `fail` is called; then it fails."""

    def __init__(self, world, nth):
        self.world, self.left, self.go = world, nth, asyncio.Event()
        self.commits = world.engine._committer._commit
        world.engine._committer._commit = self

    async def __call__(self, batch):
        self.left -= 1
        if self.left == 0:
            async with asyncio.timeout(30):
                await self.go.wait()
            self.world.faults("begin", sqlite3.OperationalError("disk I/O error"))
        return await self.commits(batch)

    async def fail(self, *tasks):
        self.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)


async def until(holds):
    """Lets others go on until something holds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + 30
    while loop.time() < end:
        if await holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never held")


async def later(world, rounds=3):
    for _ in range(rounds):
        world.clock.advance(5 * SECOND)
        await world.ring()


async def test_a_notice_outlives_a_deletion_that_failed(file_world):
    world = file_world
    await world.do(P, *_WAITS)
    (child,) = await world.children(P)
    await world.do(child, lease(), reserve, commit(answer("child"), outcome=COMPLETED))
    write = FailingWrite(world, 1)
    gone = asyncio.create_task(world.do(P, delete_force))

    async def is_decided():
        return (await world.engine.peek(KEY)).state.deleted

    await until(is_decided)
    ringing = asyncio.create_task(world.ring())  # looks at the state that is about to fall
    for _ in range(50):
        await asyncio.sleep(0)
    await write.fail(gone, ringing)
    await later(world)
    assert await where(world, P) == "Q"


async def test_a_notice_that_two_apply_outlives_the_failure_of_one(file_world):
    world = file_world
    stop = starts("c1", tool_error_policy=ToolErrorPolicy.STOP)
    await world.do(
        P, create, first, lease(), reserve, commit(asks("c1"), stop, outcome=ALL_CHILDREN)
    )
    (child,) = await world.children(P)
    permission = question("x", kind=PromptKind.PERMISSION)
    await world.do(child, lease(), reserve, commit(asks("x"), outcome=permission))
    await world.ring()
    del world.app._tell_parents  # the server's own way
    (proxy,) = (await world.state(P)).run.proxies
    row = await world.app.find_interaction("default", "", proxy.interaction_id)
    command = reply_to(await world.state(child), "no")
    write = FailingWrite(world, 2)  # the first is the answer, the second tells the parent
    caller = world.caller("AnswerInteraction")
    answering = asyncio.create_task(world.app.answer_interaction(caller, row, command))

    async def is_decided():
        return not (await world.engine.peek(KEY)).state.run.children

    await until(is_decided)
    ringing = asyncio.create_task(world.ring())
    for _ in range(50):
        await asyncio.sleep(0)
    await write.fail(answering, ringing)
    await later(world)
    assert await where(world, P) == "Q"


async def test_replace_of_a_run_with_children_keeps_to_the_room_of_the_queue(world):
    await world.do(P, *_WAITS)
    await world.do(P, *(put(f"f{n}", Mode.FOLLOW_UP) for n in range(ROOM)))
    with pytest.raises(Refused) as refusal:
        await world.do(P, put("r", Mode.REPLACE))
    assert refusal.value.reason is Reason.QUEUE_FULL
    assert await where(world, P) == "C"


async def test_row_and_state_of_a_run_that_a_no_ends_agree(world):
    permission = question("c2", kind=PromptKind.PERMISSION)
    both = commit(asks("c1", "c2"), starts("c1"), outcome=permission)
    await world.do(P, create, _STOP, lease(), reserve, both, reply("no"))
    assert await where(world, P) == "K"
    run = (await world.state(P)).run
    assert (await world.store.run("default", run.run_id)).phase is run.phase


async def test_under_stop_a_child_that_fails_waits_for_what_is_at_work(world):
    both = commit(asks("c1", "c2"), claims("c2"), starts("c1"))
    await world.do(P, create, _STOP, lease(), reserve, both, child_fails)
    assert await where(world, P) == "L", "a result is on its way"
    await world.do(P, commit(results("c2")))
    assert await world.runs(P) == ["first FAILED"]


async def test_what_is_leased_is_of_one_moment(world):
    alone = commit(asks("c1"), starts("c1", agent="child"), outcome=RELEASE)
    await world.do(P, create, first, lease(), reserve, alone, put("s", Mode.STEER))
    read, ended = world.store.list_tool_calls, []

    async def while_it_ends(*args):
        if not ended:
            ended.append(True)
            await world.do(P, child_ends)
        return await read(*args)

    world.store.list_tool_calls = while_it_ends
    polled = await world.app.poll(world.caller("PollActivation"), "x1", ["main"], 0, LEASE, 1 << 20)
    messages = [message_pb2.Message.FromString(row.data) for row in polled.leased.context]
    assert messages[-1].content[0].text == "s"
    assert polled.leased.calls == []


async def test_an_answer_through_a_proxy_is_replayed_when_that_is_closed(world):
    await world.do(P, *_WAITS, child_asks)
    (child,) = await world.children(P)
    (proxy,) = (await world.state(P)).run.proxies
    command = reply_to(await world.state(child))

    async def give():
        row = await world.app.find_interaction("default", "", proxy.interaction_id)
        caller = world.caller("AnswerInteraction", "once", "yes")
        return await world.app.answer_interaction(caller, row, command)

    assert not (await give()).replayed
    await world.do(P, interrupt())
    assert (await give()).replayed


async def test_a_wait_names_child_runs_of_the_open_batch(world):
    await world.do(P, create, first, lease(), reserve, commit(asks("c1"), starts("c1")))
    wait = SuspendForChildren(ChildrenMode.ANY, ("run_x",))
    with pytest.raises(Refused) as refusal:
        await world.do(P, commit(outcome=wait))
    assert refusal.value.reason is Reason.OPERATION_INVALID
    assert "run_x" in refusal.value.metadata["detail"]
    await world.do(P, child_ends)
    # Once all have ended and the batch is closed nobody knows them: it goes on at once.
    await world.do(P, commit(outcome=wait))
    assert await where(world, P) == "Q"


async def test_usage_that_is_too_much_stays_at_the_largest(world):
    much = Usage(LARGEST, compaction_input_tokens=LARGEST)
    ask, end = asks("c1"), answer()
    ask.usage = end.usage = much
    await world.do(P, create, first, lease(), reserve, commit(ask, claims("c1")))
    done = await world.do(P, commit(results("c1"), RESERVE), commit(end))
    assert responses.run(done.run).usage.input_tokens == LARGEST
    assert (await world.state(P)).run.usage.compaction_input_tokens == LARGEST
    assert (await world.state(P)).run.calls == []
    assert ToolCallState.COMMITTED in {
        row.state for row in await world.store.list_tool_calls("default", done.run.run_id, None, 9)
    }
