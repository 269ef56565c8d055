"""Child runs through use cases and engine: their start, their end, and what is read of them."""

import pytest
from runlane_server.app.views import ForkRequest
from runlane_server.core.commands import CommitRun, Finish, FinishKind
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import Failure, Rules, RunLimits, RunOptions, SessionKey
from runlane_server.core.words import (
    Mode,
    NoticeKind,
    Recovery,
    RunFailure,
    ToolErrorPolicy,
    ToolOutcome,
)
from runlane_server.store.base import StoredNotice
from support.kin import ask as asked
from support.kin import (
    check_family,
    finish,
    parent_of,
    proxies,
    reply,
    ring_one,
    run_of,
    start,
    started,
    take,
    where,
    work,
)
from support.steps import (
    ALL_CHILDREN,
    ANY_CHILD,
    CANCELLED,
    COMPLETED,
    FAILED,
    GRACE,
    LEASE,
    SECOND,
    answer,
    asks,
    claims,
    commit,
    compacts,
    create,
    delete_force,
    interrupt,
    lease,
    passes,
    put,
    question,
    reserve,
    results,
    settle,
    starts,
)
from support.steps import StopReason as Stop
from support.world import World

pytestmark = pytest.mark.asyncio
P = "ses_p"
WAIT = commit(outcome=ALL_CHILDREN)
DONE = (lease(), reserve, commit(answer(), outcome=COMPLETED))


async def result_of(world, name, call):
    """The result that a call of a session has got: its outcome and its text."""
    for message in await world.messages(name):
        for block in message.content:
            if block.tool_result.tool_call_id == call:
                (shown,) = block.tool_result.content
                return ToolOutcome(block.tool_result.outcome).name, shown.text or shown.data.json
    return None


async def test_a_child_answers_a_call_and_its_parent_goes_on(world):
    (child,) = await parent_of(world, P, "c1")
    assert await start(world, P, "c1") == child, "again: the same child"
    await world.do(P, WAIT)
    assert await where(world, P) == "C"
    await finish(world, child, "forty-two")
    assert await where(world, P) == "Q"
    assert await result_of(world, P, "c1") == ("OK", "forty-two")
    names = await world.event_names(P)
    assert names[-4:] == [
        "CHILD_RUN_FINISHED",
        "TOOL_CALL_COMMITTED",
        "MESSAGE_APPENDED",
        "ACTIVATION_QUEUED",
    ]
    await check_family(world, P, child)
    await world.do(P, lease(), reserve, commit(answer(), outcome=COMPLETED))
    assert await world.runs(P) == ["first COMPLETED"]


async def test_results_come_in_the_order_of_the_calls_whoever_ends_first(world):
    first, second = await parent_of(world, P, "c1", "c2")
    await world.do(P, WAIT)
    await finish(world, second, "two")
    assert (await where(world, P), await result_of(world, P, "c2")) == ("C", None)
    await finish(world, first, "one")
    assert await where(world, P) == "Q"
    assert [await result_of(world, P, call) for call in ("c1", "c2")] == [("OK", "one"), ("OK", "two")]  # fmt: skip
    numbers = [m.content[0].tool_result.tool_call_id for m in await world.messages(P)][-2:]
    assert numbers == ["c1", "c2"]
    await check_family(world, P, first, second)


async def test_any_goes_on_with_the_first_and_waits_again_for_the_rest(world):
    first, second = await parent_of(world, P, "c1", "c2")
    await world.do(P, commit(outcome=ANY_CHILD))
    await finish(world, second)
    assert await where(world, P) == "Q"
    await world.do(P, lease(), commit(outcome=ANY_CHILD))
    assert await where(world, P) == "C", "of those that live"
    await finish(world, first)
    assert await where(world, P) == "Q"
    await check_family(world, P, first, second)


# --- the result of a child, for each way to end ------------------------------

_LATE = RunOptions(limits=RunLimits(max_duration=600 * SECOND))
BROKEN = Finish(FinishKind.FAILED, failure=Failure(RunFailure.EXECUTOR_ERROR, "no more ink"))
WITH_JSON = Finish(FinishKind.COMPLETED, output_json='{"n": 42}')
ENDS = {
    "completed": (
        (lease(), reserve, commit(answer("done"), outcome=COMPLETED)),
        "COMPLETED",
        ("OK", "done"),
    ),
    "completed with json alone": (
        (lease(), commit(outcome=WITH_JSON)),
        "COMPLETED",
        ("OK", '{"n": 42}'),
    ),
    "failed": (
        (lease(), commit(outcome=BROKEN)),
        "FAILED",
        ("ERROR", "The child run ended FAILED. no more ink"),
    ),
    "cancelled": ((interrupt(),), "CANCELLED", ("CANCELLED", "The child run ended CANCELLED.")),
    "cancelled by its executor": (
        (lease(), interrupt(), commit(outcome=CANCELLED)),
        "CANCELLED",
        ("CANCELLED", "The child run ended CANCELLED."),
    ),
    "settled": (
        (lease(), settle(Stop.FAILED)),
        "FAILED",
        ("ERROR", "The child run ended FAILED. lost"),
    ),
    "late": (
        (passes(600 * SECOND),),
        "DEADLINE_EXCEEDED",
        ("ERROR", "The child run ended DEADLINE_EXCEEDED."),
    ),
    "a question that expired": (
        (lease(), commit(outcome=question(expire=SECOND)), passes(SECOND)),
        "INTERACTION_EXPIRED",
        ("ERROR", "The child run ended INTERACTION_EXPIRED."),
    ),
    "no budget": (
        (lease(), reserve, commit(asks("g")), commit(claims("g")), commit(results("g")), reserve),
        "BUDGET_EXHAUSTED",
        ("ERROR", "The child run ended BUDGET_EXHAUSTED."),
    ),
    "unknown": (
        (lease(), reserve, commit(asks("g")), commit(claims("g")), commit(outcome=FAILED)),
        "OUTCOME_UNKNOWN",
        ("UNKNOWN", "The child run ended OUTCOME_UNKNOWN. broken"),
    ),
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("waits", [True, False])
async def test_the_result_of_a_child(world, how, waits):
    steps, reason, result = ENDS[how]
    await parent_of(world, P)
    limits = RunLimits(max_model_steps=1, max_duration=600 * SECOND)
    await world.do(P, commit(asks("c1")))
    child = await start(world, P, "c1", limits=limits)
    if waits:
        await world.do(P, WAIT)
    await world.do(child, *steps)
    await world.ring()
    assert (await world.runs(child))[0].split()[-1] == reason
    assert await result_of(world, P, "c1") == result
    events = [one for one in await world.events(P) if one.WhichOneof("body") == "child_run_finished"]  # fmt: skip
    assert len(events) == 1
    if waits:
        assert await where(world, P) == "Q"
    await check_family(world, P, child)


@pytest.mark.parametrize("at_work", [True, False])
async def test_a_child_that_was_stopped_stays_so(file_world, at_work):
    """Neither its executor nor its parent brings it back, also after a restart."""
    world = file_world
    (child,) = await parent_of(world, P, "c1")
    if at_work:
        await world.do(child, lease(), interrupt(), commit(outcome=CANCELLED))
    else:
        await world.do(child, interrupt())
    await world.ring()
    for restarts in (True, False):
        (run,) = await world.store.list_runs(SessionKey("default", child), [], None, 10)
        assert run.stop_reason is Stop.CANCELLED
        assert (await result_of(world, P, "c1"))[0] == "CANCELLED"
        with pytest.raises(Refused):
            await start(world, P, "c1")
        assert await world.store.queued_activations() == []
        if restarts:
            await world.restart()
    await check_family(world, P, child)


async def test_a_failed_child_ends_its_parent_under_stop_and_its_brothers_are_cancelled(world):
    first, second = await parent_of(world, P, "c1", "c2", tool_error_policy=ToolErrorPolicy.STOP)
    await world.do(second, lease())
    await world.do(P, put("next", Mode.QUEUE), WAIT)
    await world.do(first, lease(), commit(outcome=FAILED))
    await world.ring()
    assert (await where(world, P), await where(world, second)) == ("K", "Lc")
    await world.do(second, commit(outcome=COMPLETED))
    await world.ring()
    assert await world.runs(P) == ["first FAILED", "next LIVE"]
    await check_family(world, P, first, second)


async def test_the_end_of_a_child_that_nobody_knows_any_longer_is_dropped(world):
    (child,) = await parent_of(world, P, "c1")
    notice = StoredNotice(SessionKey("default", P), NoticeKind.CHILD, await run_of(world, child))
    await world.do(P, commit(outcome=FAILED))
    await world.ring()
    before = await world.events(P)
    assert await take(world, notice) is None
    assert await world.events(P) == before
    assert await world.runs(P) == ["first FAILED"]
    await check_family(world, P, child)


# --- what a child is started with, and what is read of it --------------------


async def test_a_deadline_is_at_most_the_parents(world):
    limits = RunLimits(max_duration=100 * SECOND)
    await parent_of(world, P, limits=limits)
    parent = (await world.state(P)).run
    await world.do(P, commit(asks("c1", "c2", "c3")))
    world.clock.advance(10 * SECOND)
    deadlines = []
    for call, seconds in (("c1", 0), ("c2", 20), ("c3", 500)):
        child = await start(world, P, call, limits=RunLimits(max_duration=seconds * SECOND))
        run = (await world.state(child)).run
        deadlines.append(run.deadline_time - parent.deadline_time)
        last = run
    assert deadlines == [0, -70 * SECOND, 0]
    # Below it the same holds.
    await world.do(child, lease(), reserve, commit(asks("g1")))
    below = await start(world, child, "g1")
    assert (await world.state(below)).run.deadline_time == last.deadline_time


async def test_a_child_without_a_parent_in_a_hurry_has_its_own_deadline_or_none(world):
    await parent_of(world, P)
    await world.do(P, commit(asks("c1", "c2")))
    none = await start(world, P, "c1")
    own = await start(world, P, "c2", limits=RunLimits(max_duration=7 * SECOND))
    assert (await world.state(none)).run.deadline_time == 0
    run = (await world.state(own)).run
    assert run.deadline_time == run.create_time + 7 * SECOND


async def test_pages_of_child_runs(world):
    calls = [f"c{number}" for number in range(7)]
    children = await parent_of(world, P, *calls)
    run_id = await run_of(world, P)
    await finish(world, children[2])
    (below,) = await work(world, children[0], "g1")
    found, after = [], None
    while True:
        page = await world.app.list_child_runs("default", run_id, after, 3)
        found += page.items
        after = page.after
        if after is None:
            break
    assert [view.facts.session_id for view in found] == children, "direct ones, as they were made"
    assert [view.facts.phase.name for view in found] == ["ACTIVE"] * 2 + ["TERMINAL"] + ["ACTIVE"] * 4  # fmt: skip
    for view, call in zip(found, calls, strict=True):
        parent = view.facts.parent
        assert (parent.session_id, parent.run_id, parent.tool_call_id, parent.depth) == (P, run_id, call, 1)  # fmt: skip
    page = await world.app.list_child_runs("default", found[0].facts.run_id, None, 3)
    assert [view.facts.session_id for view in page.items] == [below]
    with pytest.raises(Refused) as refusal:
        await world.app.list_child_runs("default", "run_x", None, 3)
    assert refusal.value.reason is Reason.RUN_NOT_FOUND
    if world.path is not None:
        await world.restart()
        page = await world.app.list_child_runs("default", run_id, None, 10)
        assert [view.facts.session_id for view in page.items] == children


async def test_lineage_names_the_parents_nearest_first(world):
    (child,) = await parent_of(world, P, "c1")
    (below,) = await work(world, child, "g1")
    runs = {name: await run_of(world, name) for name in (P, child)}
    _, lineage = await world.app.lineage("default", below, None, 10)
    assert [(one.session_id, one.run_id, one.tool_call_id) for one in lineage.parents] == [
        (child, runs[child], "g1"),
        (P, runs[P], "c1"),
    ]
    assert (await world.app.lineage("default", P, None, 10))[1].parents == []
    calls, _ = await world.app.list_tool_calls("default", runs[P], None, 10)
    assert [(one.tool_call_id, one.child_run_id) for one in calls] == [("c1", runs[child])]


async def test_a_child_is_no_fork_point_and_a_parent_is_one_once_it_has_ended(world):
    (child,) = await parent_of(world, P, "c1")
    parent, below = await run_of(world, P), await run_of(world, child)

    async def fork(run_id):
        caller = world.caller("ForkSession")
        try:
            await world.app.fork(caller, run_id, f"fork_of_{run_id}", ForkRequest())
        except Refused as refusal:
            return refusal.reason.name
        return "OK"

    assert [await fork(parent), await fork(below)] == ["RUN_NOT_TERMINAL"] * 2
    await world.do(P, interrupt(), commit(outcome=CANCELLED))
    assert await where(world, P) == "K"
    assert await fork(parent) == "RUN_NOT_TERMINAL"
    await world.ring()
    assert [await fork(parent), await fork(below)] == ["OK", "RUN_NOT_TOP_LEVEL"]
    assert await world.texts(f"fork_of_{parent}") == await world.texts(P)
    await check_family(world, P, child)


async def test_an_agent_that_is_not_allowed_starts_nothing():
    async with World(None, Rules(agents=("main", "child"))) as world:
        await world.do(P, create, put("first", Mode.START), lease(), reserve, commit(asks("c1")))
        before = await world.state(P)
        with pytest.raises(Refused) as refusal:
            await start(world, P, "c1", agent="stranger")
        assert refusal.value.reason is Reason.AGENT_NOT_FOUND
        assert await world.state(P) == before
        child = await start(world, P, "c1")
        await check_family(world, P, child)


async def test_a_lost_answer_to_a_start_is_given_again(world):
    await parent_of(world, P)
    await world.do(P, commit(asks("c1", "c2")))

    fence = world.fence(await world.state(P))
    command = CommitRun(fence, [starts("c1")], None, LEASE)
    views = [
        await world.app.commit(world.caller("Commit", "once", "same"), command) for _ in range(2)
    ]
    assert [view.replayed for view in views] == [False, True]
    assert views[0].answer == views[1].answer
    assert len((await world.state(P)).run.children) == 1
    assert (await started(world, P, "c2")).existing is False


async def test_a_manual_parent_is_stalled_while_its_child_goes_on(world):
    (child,) = await parent_of(world, P, "c1", recovery=Recovery.MANUAL)
    world.clock.advance(LEASE)
    await world.ring()
    assert await where(world, P) == "ST"
    await finish(world, child, "on")
    assert (await where(world, P), await result_of(world, P, "c1")) == ("ST", ("OK", "on"))
    await world.do(P, interrupt())
    await check_family(world, P, child)


async def test_a_stalled_parent_that_is_ending_waits_for_no_hand(world):
    (child,) = await parent_of(world, P, "c1", recovery=Recovery.MANUAL)
    await world.do(child, lease())
    world.clock.advance(LEASE)
    await world.ring()
    page = await world.app.list_stalled_runs("default", None, 10)
    assert [view.facts.session_id for view in page.items] == [P]
    await world.do(child, lease())
    await world.do(P, interrupt())
    await world.ring()
    assert (await where(world, P), await where(world, child)) == ("K", "Lc")
    page = await world.app.list_stalled_runs("default", None, 10)
    assert list(page.items) == []
    await world.do(child, commit(outcome=CANCELLED))
    await world.ring()
    await check_family(world, P, child)


async def test_a_leased_child_that_does_not_hear_is_ended_by_its_grace(world):
    (child,) = await parent_of(world, P, "c1")
    await world.do(child, lease())
    await world.do(P, WAIT, interrupt())
    await world.ring()
    assert (await where(world, P), await where(world, child)) == ("K", "Lc")
    world.clock.advance(GRACE)
    await world.ring()
    assert await world.runs(P) == ["first CANCELLED"]
    await check_family(world, P, child)


async def test_a_fork_takes_the_summary_of_its_point_and_keeps_it(world):
    await world.do("ses_c", create, put("first", Mode.START), lease(), reserve)
    await world.do("ses_c", commit(asks("c1")), commit(claims("c1")), commit(results("c1")))
    with pytest.raises(Refused) as refusal:
        await world.do("ses_c", commit(compacts(2)))
    assert refusal.value.reason is Reason.OPERATION_INVALID
    await world.do("ses_c", commit(compacts(3)), reserve, commit(answer(), outcome=COMPLETED))
    rows = await world.store.list_runs(SessionKey("default", "ses_c"), [], None, 10)
    await world.app.fork(world.caller("ForkSession"), rows[0].run_id, "ses_d", ForkRequest())
    assert (await world.state("ses_d")).compacted_through == 3
    # The fork's summary is its own: it is there when the source is gone.
    await world.do("ses_c", delete_force)
    world.clock.advance(61 * SECOND)
    await world.ring()
    summary = await world.store.summary(SessionKey("default", "ses_d"), 3)
    assert summary.text == "sum of 3"
    assert await world.texts("ses_d") == ["first", "asks", "did c1", "answer"]


async def test_a_question_of_a_child_is_answered_while_its_parent_works(world):
    (child,) = await parent_of(world, P, "c1")
    asked_id = await asked(world, child)
    assert await proxies(world, P) == [asked_id]
    assert await where(world, P) == "L"
    await reply(world, asked_id)
    while await ring_one(world):
        pass
    assert (await proxies(world, P), await where(world, child)) == ([], "Q")
    await check_family(world, P, child)
