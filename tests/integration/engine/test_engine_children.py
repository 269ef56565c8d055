"""Child runs through use cases and engine: what parent and child tell each other."""

import pytest
from runlane_server.core.admission import column
from runlane_server.core.commands import (
    CommitRun,
    StartChildRun,
    SuspendForChildren,
)
from runlane_server.core.model import RunOptions, SessionRecord
from runlane_server.core.words import (
    ChildrenMode,
    Mode,
)
from support.steps import (
    COMPLETED,
    LEASE,
    answer,
    asks,
    commit,
    create,
    interrupt,
    lease,
    put,
    reserve,
    text,
)

pytestmark = pytest.mark.asyncio
ALL = SuspendForChildren(ChildrenMode.ALL)
ANY = SuspendForChildren(ChildrenMode.ANY)


async def parent_of(world, name, *calls, agent="child", **options):
    """A leased run with a batch, each of whose calls a child run answers; returns those."""
    await world.do(
        name,
        create,
        put("first", Mode.START, options=RunOptions(**options)),
        lease(),
        reserve,
        commit(asks(*calls)),
    )
    return [await start(world, name, call, agent=agent) for call in calls]


async def start(world, name, call, **options):
    """Starts a child run; returns the id of its session."""
    state = await world.state(name)
    fence = world.fence(state)
    operation = StartChildRun(call, text(f"do {call}"), SessionRecord(), RunOptions(**options))
    command = CommitRun(fence, [operation], None, LEASE)
    view = await world.app.commit(world.caller("Commit"), command)
    return view.answer.results[0].child_session_id


async def finish(world, name, words="answer", outcome=COMPLETED):
    """Lets a child run end, and its parent hear of it."""
    await world.do(name, lease(), reserve, commit(answer(words), outcome=outcome))
    await world.ring()


async def where(world, name):
    return column(await world.state(name)).value


async def test_a_child_answers_a_call_and_its_parent_goes_on(world):
    (child,) = await parent_of(world, "ses_p", "c1")
    assert await start(world, "ses_p", "c1") == child, "again: the same child"
    await world.do("ses_p", commit(outcome=ALL))
    assert await where(world, "ses_p") == "C"
    await finish(world, child, "forty-two")
    assert await where(world, "ses_p") == "Q"
    messages = await world.messages("ses_p")
    result = messages[-1].content[0].tool_result
    assert (result.tool_call_id, result.content[0].text) == ("c1", "forty-two")
    names = await world.event_names("ses_p")
    assert names[-4:] == [
        "CHILD_RUN_FINISHED",
        "TOOL_CALL_COMMITTED",
        "MESSAGE_APPENDED",
        "ACTIVATION_QUEUED",
    ]
    assert await world.store.notices() == []
    await world.do("ses_p", lease(), reserve, commit(answer(), outcome=COMPLETED))
    assert await world.runs("ses_p") == ["first COMPLETED"]


async def test_two_levels_end_when_the_top_is_interrupted(world):
    (child,) = await parent_of(world, "ses_p", "c1")
    await world.do(child, lease(), reserve, commit(asks("g1", "g2")))
    grandchildren = [await start(world, child, call) for call in ("g1", "g2")]
    await world.do(child, commit(outcome=ALL))
    await world.do("ses_p", commit(outcome=ALL))
    await world.do("ses_p", interrupt())
    assert await where(world, "ses_p") == "K"
    await world.ring()
    for name in ("ses_p", child, *grandchildren):
        assert await where(world, name) == "IDLE"
        state = await world.state(name)
        assert state.run is None
    assert await world.runs("ses_p") == ["first CANCELLED"]
    assert await world.store.notices() == []
