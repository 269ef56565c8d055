"""Notices: twice, in another order, beside a write, and what a failed write leaves of them."""

import asyncio
import itertools
import random
import sqlite3

import pytest
from runlane_server.app.service import Committed
from runlane_server.core.commands import InterruptRun, PauseRun
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import SessionKey
from runlane_server.core.words import NoticeKind
from runlane_server.runtime.bus import Bus
from runlane_server.runtime.dispatch import Dispatch
from runlane_server.runtime.engine import Engine, plan
from runlane_server.store.base import StoredNotice
from runlane_server.store.errors import StoreUnavailable
from support.kin import (
    ask,
    check_family,
    finish,
    parent_of,
    proxies,
    reply,
    run_of,
    start,
    take,
    tree,
    where,
)
from support.steps import (
    ALL_CHILDREN,
    COMPLETED,
    FAILED,
    answer,
    asks,
    commit,
    interrupt,
    lease,
    pause,
    reserve,
    unpause,
)

pytestmark = pytest.mark.asyncio
P = "ses_p"
WAIT = commit(outcome=ALL_CHILDREN)


async def test_a_notice_applied_again_changes_nothing(world):
    top, child, one, _ = names = await tree(world)
    await ask(world, one, rings=False)
    notice = StoredNotice(SessionKey("default", child), NoticeKind.CHILD, await run_of(world, one))
    assert await world.store.notices() == [notice]
    await asyncio.gather(*(take(world, notice) for _ in range(3)))
    await take(world, notice)
    assert len(await proxies(world, child)) == 1
    run_id = await run_of(world, one)
    await world.do(one, interrupt())
    before = await world.event_names(child)
    notice = StoredNotice(SessionKey("default", child), NoticeKind.CHILD, run_id)
    await asyncio.gather(*(take(world, notice) for _ in range(3)))
    await take(world, notice)
    new = (await world.event_names(child))[len(before) :]
    assert new == ["INTERACTION_CLOSED", "CHILD_RUN_FINISHED", "TOOL_CALL_COMMITTED", "MESSAGE_APPENDED"]  # fmt: skip
    cancel = StoredNotice(SessionKey("default", one), NoticeKind.CANCEL, await run_of(world, child))
    for _ in range(2):
        await take(world, cancel)
    assert await world.runs(one) == [" CANCELLED"]
    await world.ring()
    assert await where(world, top) == "C"
    await check_family(world, *names)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_notices_in_any_order_come_to_the_same(world, order):
    children = await parent_of(world, P, "c1", "c2", "c3")
    await world.do(P, WAIT)
    for number, child in enumerate(children):
        await world.do(child, lease(), reserve, commit(answer(f"a{number}"), outcome=COMPLETED))
    notices = await world.store.notices()
    assert len(notices) == 3
    for place in order:
        await take(world, notices[place])
    assert await where(world, P) == "Q"
    texts = [m.content[0].tool_result.content[0].text for m in (await world.messages(P))[-3:]]
    assert texts == ["a0", "a1", "a2"]
    await check_family(world, P, *children)


@pytest.mark.parametrize("seed", range(12))
async def test_a_cascade_in_any_order(world, seed):
    """Notices are drawn from a hat, some of them twice, while executors commit."""
    chance = random.Random(seed)
    names = await tree(world)
    await world.do(names[2], lease(), reserve)
    await ask(world, names[3], rings=False)
    await world.do(P, interrupt())
    for _ in range(200):
        notices = await world.store.notices()
        if not notices:
            break
        notice = chance.choice(notices)
        for _ in range(chance.choice([1, 1, 2])):
            await take(world, notice)
        state = await world.state(names[2])
        if state.run is not None and chance.random() < 0.3:
            await world.do(names[2], commit(answer(), outcome=COMPLETED))
    assert await where(world, P) == ("IDLE" if (await world.state(names[2])).run is None else "K")
    if (await world.state(names[2])).run is not None:
        await world.do(names[2], commit(outcome=COMPLETED))
        await world.ring()
    assert await world.runs(P) == ["first CANCELLED"]
    await world.ring()
    await check_family(world, *names)


@pytest.mark.parametrize("what", ["ends", "is answered"])
async def test_a_child_that_moves_while_its_facts_are_read_is_read_again(world, monkeypatch, what):
    (child,) = await parent_of(world, P, "c1")
    asked = await ask(world, child)
    steps = {"ends": (interrupt(),), "is answered": ()}[what]
    notice = StoredNotice(SessionKey("default", P), NoticeKind.CHILD, await run_of(world, child))
    read, done = world.store.interaction, []

    async def then_moves(namespace, interaction_id):
        row = await read(namespace, interaction_id)
        if not done:
            done.append(row)
            if what == "ends":
                await world.do(child, *steps)
            else:
                monkeypatch.setattr(world.store, "interaction", read)
                await reply(world, asked)
        return row

    monkeypatch.setattr(world.store, "interaction", then_moves)
    before = await world.event_names(P)
    again = await take(world, notice)
    assert again == world.clock.now(), "it is asked for again at once"
    assert await world.event_names(P) == before, "nothing of it stays"
    assert len(await world.store.notices()) == 1, "it is on its way still"
    monkeypatch.undo()
    await world.ring()
    assert await proxies(world, P) == []
    await check_family(world, P, child)


def beside(world):
    """An engine as another process has one: on the same store, with what it knows itself."""
    observer = Committed(Bus(), Dispatch())
    return Engine(
        world.store,
        world.services.codec,
        world.clock,
        world.new_id,
        world.rules,
        observer,
        linger=0.0005,
    )


@pytest.mark.parametrize("who", ["child", "parent", "both"])
async def test_what_another_process_wrote_is_read_before_it_is_decided_on(world, who):
    """Both are known here as they were; the store says that it is not so, and it is asked."""
    (child,) = await parent_of(world, P, "c1")
    asked = await ask(world, child)
    run_id = await run_of(world, child)
    keys = {name: SessionKey("default", name) for name in (P, child)}
    for key in keys.values():
        assert (await world.engine.peek(key)).state.run is not None
    other = beside(world)
    if who != "child":
        await other.execute(plan(keys[P], PauseRun(), "other"))
    if who != "parent":
        await other.execute(plan(keys[child], InterruptRun(run_id), "other"))
    else:
        await reply(world, asked)
    assert (await world.engine.peek(keys[P])).state.run.pause_requested is False, "not heard of"
    await take(world, StoredNotice(keys[P], NoticeKind.CHILD, run_id))
    state = await world.state(P)
    assert state.run.pause_requested is (who != "child"), "what the other wrote stands"
    assert state.run.proxies == ()
    assert len(state.run.children) == (who == "parent")
    await check_family(world, P, child)
    await other.flush()


async def test_a_parent_and_its_children_that_end_at_once(world):
    """Ends of children, the parent's own work and notices beside each other, in one loop."""
    for number in range(20):
        chance, name = random.Random(number), f"ses_{number}"
        children = await parent_of(world, name, "c1", "c2", "c3")
        if number % 2:
            await world.do(name, WAIT)
        for child in children:
            await world.do(child, lease(), reserve)
        notices = [StoredNotice(SessionKey("default", name), NoticeKind.CHILD, await run_of(world, child)) for child in children]  # fmt: skip

        async def later(call, ticks):
            for _ in range(ticks):
                await asyncio.sleep(0)
            return await call

        finish_all = [world.do(child, commit(answer(), outcome=chance.choice([COMPLETED, FAILED]))) for child in children]  # fmt: skip
        tell_all = [take(world, notice) for notice in notices]
        mine = [world.do(name, interrupt())] if number % 3 == 0 else []
        calls = [*finish_all, *tell_all, *mine]
        await asyncio.gather(*(later(call, chance.randrange(8)) for call in calls))
        await world.ring()
        for child in children:
            assert await where(world, child) == "IDLE"
        expected = {"Q"} if number % 2 else {"L"}
        assert await where(world, name) in expected | {"IDLE", "Lc"}
        await check_family(world, name, *children)


async def test_a_write_that_fails_leaves_the_notice_on_its_way(file_world):

    world = file_world
    (child,) = await parent_of(world, P, "c1")
    await world.do(P, WAIT)
    await world.do(child, lease(), reserve, commit(answer(), outcome=COMPLETED))
    world.faults("commit", sqlite3.OperationalError("database or disk is full"))
    (notice,) = await world.store.notices()
    with pytest.raises(StoreUnavailable):
        await take(world, notice)
    assert (await where(world, P), await world.store.notices()) == ("C", [notice])
    await world.restart()
    await world.ring()
    assert await where(world, P) == "Q"
    await check_family(world, P, child)


async def test_a_paused_parent_goes_on_once_it_is_let(world):
    (child,) = await parent_of(world, P, "c1")
    await world.do(P, WAIT, pause)
    await finish(world, child)
    assert await where(world, P) == "P"
    await world.do(P, unpause)
    assert await where(world, P) == "Q"
    await check_family(world, P, child)


async def test_nothing_is_started_below_a_run_that_ends(world):
    (child,) = await parent_of(world, P, "c1")
    await world.do(child, lease(), reserve, commit(asks("g1", "g2")))
    await start(world, child, "g1")
    await world.do(P, interrupt())
    await world.ring()
    with pytest.raises(Refused) as refusal:
        await start(world, child, "g2")
    assert refusal.value.reason is Reason.RUN_CANCELLING
    await check_family(world, P, child)
