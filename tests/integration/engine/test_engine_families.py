"""Trees of runs: questions on their way up, ends on their way down, restarts at each step."""

import pytest
from runlane_server.app.views import ForkRequest
from runlane_server.core.commands import DeleteSession, InterruptRun
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import Rules, RunLimits, SessionKey
from runlane_server.core.words import InteractionClose, InteractionState, Mode
from support.kin import (
    ask,
    check_family,
    finish,
    inbox,
    parent_of,
    proxies,
    reply,
    ring_one,
    shown,
    tree,
    where,
    work,
)
from support.steps import (
    ALL_CHILDREN,
    COMPLETED,
    SECOND,
    Step,
    answer,
    commit,
    delete_force,
    interrupt,
    lease,
    passes,
    pause,
    put,
    question,
    reserve,
)
from support.world import World

pytestmark = pytest.mark.asyncio
P = "ses_p"
WAIT = commit(outcome=ALL_CHILDREN)
HOUR = 3600 * SECOND
LIMITS = {"limits": RunLimits(max_duration=HOUR)}


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


async def test_who_asks_itself_passes_on_what_is_asked_below(world):
    (child,) = await parent_of(world, P, "c1")
    (below,) = await work(world, child, "g1")
    first = await ask(world, below)
    await world.do(child, commit(outcome=question()))
    await world.ring()
    own = (await world.state(child)).run.wait.interaction_id
    assert sorted(await proxies(world, P)) == sorted([first, own])
    assert await proxies(world, child) == [first]
    await reply(world, own)
    await world.ring()
    assert (await proxies(world, P), await proxies(world, child)) == ([first], [first])
    await world.do(child, lease(), commit(outcome=question()))
    await reply(world, first)
    await world.ring()
    assert await proxies(world, child) == []
    assert await proxies(world, P) == [(await world.state(child)).run.wait.interaction_id]
    await check_family(world, P, child, below)


@pytest.mark.parametrize("how", ["answered", "ended"])
async def test_what_had_no_room_is_shown_once_there_is(how):
    async with World(None, Rules(max_proxies=2)) as world:
        children = await parent_of(world, P, "c1", "c2", "c3", "c4")
        asked = [await ask(world, child) for child in children]
        assert await proxies(world, P) == asked[:2]
        assert await inbox(world) == asked, "there it is asked all the same"
        for number in range(2):
            if how == "answered":
                await reply(world, asked[number])
            else:
                await world.do(children[number], interrupt())
            await world.ring()
            shown_now = await proxies(world, P)
            assert len(shown_now) == 2
            assert set(shown_now) <= set(asked[number + 1 :])
        assert sorted(shown_now) == sorted(asked[2:])
        await check_family(world, P, *children)


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


async def test_more_sessions_of_children_than_one_sweep_takes(world):
    calls = [f"c{number}" for number in range(20)]
    children = await parent_of(world, P, *calls)
    for child in children[:-1]:
        await world.do(child, interrupt())
    await world.ring()
    await world.do(P, delete_force)
    for _ in range(2):
        world.clock.advance(61 * SECOND)
        await world.ring()
    for child in children:
        assert (await world.state(child)).deleted
    await check_family(world, P, *children)


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
