"""Trees of runs: questions on their way up, ends on their way down, restarts at each step."""

import asyncio
import itertools
import random
import sqlite3

import pytest
from runlane_server.app.views import ForkRequest
from runlane_server.core.commands import DeleteSession, InterruptRun
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import RunLimits, SessionKey
from runlane_server.core.words import InteractionClose, InteractionState, Mode, NoticeKind
from runlane_server.store.base import StoredNotice
from runlane_server.store.errors import StoreUnavailable
from support.kin import (
    ask,
    check_family,
    finish,
    inbox,
    parent_of,
    proxies,
    reply,
    ring_one,
    run_of,
    shown,
    start,
    take,
    where,
    work,
)
from support.steps import (
    ALL_CHILDREN,
    COMPLETED,
    FAILED,
    SECOND,
    Step,
    answer,
    asks,
    commit,
    delete_force,
    interrupt,
    lease,
    passes,
    pause,
    put,
    question,
    reserve,
    unpause,
)
from support.world import World

pytestmark = pytest.mark.asyncio
P = "ses_p"
WAIT = commit(outcome=ALL_CHILDREN)
HOUR = 3600 * SECOND
LIMITS = {"limits": RunLimits(max_duration=HOUR)}


async def tree(world, **options):
    """A run, its child run, and two below that; all wait for those below them."""
    (child,) = await parent_of(world, P, "c1", **(options or LIMITS))
    below = await work(world, child, "g1", "g2")
    await world.do(child, WAIT)
    await world.do(P, WAIT)
    return [P, child, *below]


# --- questions ---------------------------------------------------------------


async def test_a_question_shows_on_parent_and_grandparent_and_is_answered_there(world):
    top, child, one, two = names = await tree(world)
    first = await ask(world, one)
    assert [await proxies(world, name) for name in (top, child)] == [[first]] * 2
    second = await ask(world, two)
    assert [await proxies(world, name) for name in (top, child)] == [[first, second]] * 2
    assert await inbox(world) == [first, second], "each is asked once"
    await check_family(world, *names)
    rows = await shown(world, top)
    assert [(row.proxy_session_id, row.kind.name, row.prompt) for row in rows] == [(one, "QUESTION", b"?"), (two, "QUESTION", b"?")]  # fmt: skip
    # Through the proxy of the grandparent it is decided on the child that asks.
    told = await reply(world, rows[0].interaction_id)
    assert (told.interaction.interaction_id, told.interaction.session_id) == (first, one)
    assert (await where(world, one), await proxies(world, top)) == ("Q", [first, second])
    await world.ring()
    assert [await proxies(world, name) for name in (top, child)] == [[second]] * 2
    settled = await shown(world, top, InteractionState.ANSWERED)
    assert [row.proxy_interaction_id for row in settled] == [first]
    # The same answer again, through what is shown no longer: the stored one.
    again = await reply(world, rows[0].interaction_id)
    assert again.interaction.state is InteractionState.ANSWERED
    with pytest.raises(Refused) as refusal:
        await reply(world, rows[0].interaction_id, "no")
    assert refusal.value.reason is Reason.INTERACTION_CONFLICT
    await check_family(world, *names)


@pytest.mark.parametrize("place", ["L", "Q", "W", "C", "P"])
async def test_questions_show_in_any_live_phase(world, place):
    children = await parent_of(world, P, "c1", "c2", "c3")
    lead = {
        "L": (),
        "Q": (commit(outcome=None), interrupt()),
        "W": (commit(outcome=question()),),
        "C": (WAIT,),
        "P": (pause,),
    }
    if place == "Q":
        from support.steps import RELEASE

        await world.do(P, commit(outcome=RELEASE))
    elif place == "P":
        from support.steps import RELEASE

        await world.do(P, pause, commit(outcome=RELEASE))
    else:
        await world.do(P, *lead[place])
    asked = [await ask(world, child) for child in children]
    assert (await where(world, P), await proxies(world, P)) == (place, asked)
    await reply(world, asked[1])
    await world.do(children[2], interrupt())
    await world.ring()
    assert await proxies(world, P) == asked[:1]
    (closed,) = await shown(world, P, InteractionState.CLOSED)
    assert (closed.proxy_interaction_id, closed.close_reason) == (asked[2], InteractionClose.RUN_ENDED)  # fmt: skip
    await check_family(world, P, *children)


async def test_proxies_close_when_their_run_is_ending_and_are_answered_no_longer(world):
    top, child, one, two = names = await tree(world)
    asked = await ask(world, one)
    await world.do(two, lease())
    (proxy,) = await shown(world, top)
    (own,) = await shown(world, child)
    await world.do(top, interrupt())
    assert await where(world, top) == "K"
    with pytest.raises(Refused) as refusal:
        await reply(world, proxy.interaction_id)
    assert refusal.value.reason is Reason.INTERACTION_CLOSED
    # The child has not heard of it: what it shows can be answered, and decides.
    assert (await reply(world, own.interaction_id)).interaction.interaction_id == asked
    await world.ring()
    assert [await where(world, name) for name in names] == ["K", "K", "IDLE", "Lc"]
    assert [await shown(world, name) for name in names] == [[]] * 4
    # A question that comes late is not shown by who is ending; it cannot be asked here.
    with pytest.raises(Refused) as refusal:
        await world.do(two, commit(outcome=question()))
    assert refusal.value.reason is Reason.RUN_CANCELLING
    await world.do(two, commit(outcome=COMPLETED))
    await world.ring()
    assert await world.runs(top) == ["first CANCELLED"]
    await check_family(world, *names)


async def test_a_question_that_was_never_shown_leaves_nothing(world):
    """It is asked and answered before the parent hears of either."""
    (child,) = await parent_of(world, P, "c1")
    asked = await ask(world, child, rings=False)
    await reply(world, asked)
    await world.ring()
    assert "INTERACTION_OPENED" not in await world.event_names(P)
    await world.do(child, lease(), commit(outcome=question()))
    second = (await world.state(child)).run.wait.interaction_id
    await world.ring()
    await reply(world, second)
    await world.do(child, lease(), commit(outcome=question()))
    third = (await world.state(child)).run.wait.interaction_id
    await world.ring()
    assert await proxies(world, P) == [third], "one was answered and one asked in one notice"
    await check_family(world, P, child)


# --- ends on their way down --------------------------------------------------

CASCADES = {
    "interrupt": ((interrupt(),), "CANCELLED"),
    "deadline": ((passes(HOUR),), "DEADLINE_EXCEEDED"),
    "settled": ((Step(lambda s: InterruptRun(s.run.run_id)),), "CANCELLED"),
}


@pytest.mark.parametrize("how", CASCADES)
@pytest.mark.parametrize("held", [False, True])
async def test_two_levels_end_with_the_top(world, how, held):
    steps, reason = CASCADES[how]
    names = await tree(world)
    if held:
        await world.do(names[2], lease(), reserve)
        await ask(world, names[3])
    await world.do(P, put("next", Mode.QUEUE), *steps)
    assert await where(world, P) == "K"
    await world.ring()
    if held and how != "deadline":
        assert [await where(world, name) for name in names] == ["K", "K", "Lc", "IDLE"]
        await world.do(names[2], commit(answer("late"), outcome=COMPLETED))
        await world.ring()
    assert await world.runs(P) == [f"first {reason}", "next LIVE"]
    assert [await where(world, name) for name in names] == ["Q", "IDLE", "IDLE", "IDLE"]
    await check_family(world, *names)


async def test_two_levels_end_when_the_question_of_the_top_expires(world):
    (child,) = await parent_of(world, P, "c1")
    below = await work(world, child, "g1", "g2")
    await world.do(child, WAIT)
    await world.do(P, commit(outcome=question(expire=60 * SECOND)))
    await ask(world, below[0])
    world.clock.advance(60 * SECOND)
    await world.ring()
    assert await world.runs(P) == ["first INTERACTION_EXPIRED"]
    for name in (child, *below):
        assert await world.runs(name) == [" CANCELLED"]
    assert await inbox(world) == []
    await check_family(world, P, child, *below)


async def test_deletion_takes_all_below_it_and_no_forks(world):
    names = await tree(world)
    await ask(world, names[2])
    await world.app.delete_session(world.caller("DeleteSession"), P, DeleteSession(force=True))
    await world.ring()
    for name in names:
        assert (await world.state(name)).deleted
        assert (await world.event_names(name))[-1] == "SESSION_DELETED"
    assert await inbox(world) == []
    with pytest.raises(Refused) as refusal:
        await world.do(names[2], put("more", Mode.STEER))
    assert refusal.value.reason is Reason.SESSION_NOT_FOUND
    await check_family(world, *names)


async def test_sessions_of_children_that_had_ended_go_with_their_parents(world):
    names = await tree(world)
    for name in (names[2], names[3]):
        await finish(world, name)
    await world.do(names[1], lease(), reserve, commit(answer(), outcome=COMPLETED))
    await world.ring()
    await world.do(P, lease(), reserve, commit(answer(), outcome=COMPLETED))
    run = (await world.store.list_runs(SessionKey("default", P), [], None, 10))[0]
    texts = await world.texts(P)
    await world.app.fork(world.caller("ForkSession"), run.run_id, "ses_f", ForkRequest())
    world.clock.advance(30 * 24 * HOUR)
    await world.do(P, delete_force)
    await world.ring()
    assert not (await world.state(names[1])).deleted, "until the sweep"
    world.clock.advance(61 * SECOND)
    await world.ring()
    world.clock.advance(61 * SECOND)
    await world.ring()
    world.clock.advance(61 * SECOND)
    await world.ring()
    for name in names:
        assert (await world.state(name)).deleted
        assert await world.store.session(SessionKey("default", name)) is None
    assert await world.texts("ses_f") == texts, "forks are unharmed"
    await check_family(world, "ses_f")
    await world.do("ses_f", put("more", Mode.START))


# --- restarts ----------------------------------------------------------------


class Life:
    """The life of a tree, in steps; `names` are its sessions, the top first."""

    def __init__(self, how):
        self.how = how
        self.names = []

    async def step(self, world, number):
        names = self.names
        if number == 0:
            names += [P, *await parent_of(world, P, "c1", **LIMITS)]
        elif number == 1:
            names += await work(world, names[1], "g1", "g2")
        elif number == 2:
            await ask(world, names[2], rings=False)
        elif number == 3:
            await world.do(names[3], lease(), reserve)
        elif number == 4:
            await world.do(names[1], WAIT)
        elif number == 5:
            asks_too = commit(outcome=question(expire=60 * SECOND))
            await world.do(P, asks_too if self.how == "expiry" else WAIT)
        elif number == 6:
            await reply(world, (await world.state(names[2])).run.wait.interaction_id)
        else:
            await world.do(P, ENDS[self.how])


ENDS = {
    "interrupt": interrupt(),
    "delete": delete_force,
    "expiry": passes(60 * SECOND),
    "deadline": passes(HOUR),
}
STEPS = 8


@pytest.mark.parametrize("how", ["interrupt", "deadline", "expiry", "delete"])
@pytest.mark.parametrize("rings", [False, True])
@pytest.mark.parametrize("cut", [*range(1, STEPS + 1), "all"])
async def test_a_restart_at_each_step_leaves_nobody_behind(path, how, rings, cut):
    """No child is left running and no parent waiting; nothing is told twice."""
    async with World(path) as world:
        life = Life(how)
        names = life.names
        for number in range(STEPS):
            await life.step(world, number)
            if cut in {"all", number + 1}:
                await world.restart()
            if rings:
                while await ring_one(world):
                    if cut in {"all", number + 1}:
                        await world.restart()
        for _ in range(200):
            # Who is leased is heard to be gone: its grace or its deadline ends it.
            while await ring_one(world):
                if cut in {"all", STEPS}:
                    await world.restart()
            if not [name for name in names if (await world.state(name)).run is not None]:
                break
            world.clock.advance(10 * SECOND)
        for name in names:
            state = await world.state(name)
            assert state.run is None
            assert state.deleted is (how == "delete")
        wanted = {"interrupt": "CANCELLED", "deadline": "DEADLINE_EXCEEDED", "expiry": "INTERACTION_EXPIRED"}  # fmt: skip
        if how != "delete":
            assert await world.runs(P) == [f"first {wanted[how]}"]
        assert await inbox(world) == []
        await check_family(world, *names)


# --- notices: twice, in another order, beside a write ------------------------


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
