"""Runs that are ending: they wait for their child runs, and for nothing else."""

import pytest
from runlane_server.core.admission import column
from runlane_server.core.model import RunOptions
from runlane_server.core.words import Mode
from support.kin import reply
from support.steps import (
    SECOND,
    asks,
    commit,
    create,
    interrupt,
    lease,
    on_child,
    put,
    question,
    reserve,
    starts,
)

pytestmark = pytest.mark.asyncio
ALARMS_MAX = 10


async def test_the_alarm_that_makes_a_run_end_rings_once(world):
    await world.do(
        "ses_p",
        create,
        put("first", Mode.START, options=RunOptions(cancel_grace=5 * SECOND)),
        lease(),
        reserve,
        # Nobody settles the child, and it has more time for it than its parent.
        commit(asks("c1"), starts("c1", cancel_grace=60 * SECOND)),
        on_child(0, lease(duration=600 * SECOND), reserve),
        interrupt(),
    )
    fire, rung = world.app._timers._fire, []

    async def counted(alarm):
        rung.append(alarm)
        if len(rung) > ALARMS_MAX:
            world.app._timers._heap.clear()  # else this would go on for ever
            return None
        return await fire(alarm)

    world.app._timers._fire = counted
    world.clock.advance(5 * SECOND)
    await world.ring()
    assert len(rung) < ALARMS_MAX, "an alarm rings for ever"
    (child,) = await world.children("ses_p")
    assert column(await world.state("ses_p")).value == "K"
    assert column(await world.state(child)).value == "Lc"
    world.clock.advance(60 * SECOND)
    await world.ring()
    assert (await world.runs(child), await world.runs("ses_p")) == (
        [" CANCELLED"],
        ["first CANCELLED"],
    )


async def test_who_answers_a_child_run_sees_the_question_nowhere_any_longer(world):
    await world.do(
        "ses_p",
        create,
        put("first", Mode.START),
        lease(),
        reserve,
        commit(asks("c1"), starts("c1")),
        on_child(0, lease(), reserve, commit(asks("g1"), starts("g1"))),
    )
    (child,) = await world.children("ses_p")
    await world.do(child, on_child(0, lease(), reserve, commit(outcome=question())))
    await world.ring()
    (proxy,) = (await world.state("ses_p")).run.proxies
    del world.app._tell_parents  # the server's own way: the notices are applied at once
    await reply(world, proxy.interaction_id)
    for name in ("ses_p", child):
        assert (await world.state(name)).run.proxies == ()
    assert await world.store.notices() == []
