"""Runs and their child runs in a world: how they are made, and what holds of them."""

import heapq
from collections import Counter
from typing import Any

from runlane_server.core.admission import column
from runlane_server.core.commands import AnswerInteraction, CommitRun, StartChildRun
from runlane_server.core.model import RunLimits, RunOptions, SessionRecord
from runlane_server.core.words import InteractionState, Mode, PromptKind
from runlane_server.store.base import InteractionRow, StoredNotice

from support.steps import (
    ALL_CHILDREN,
    COMPLETED,
    LEASE,
    SECOND,
    answer,
    asks,
    commit,
    create,
    lease,
    put,
    question,
    reserve,
    text,
)
from support.world import World

TOP = "ses_p"
HOUR = 3600 * SECOND


async def parent_of(world: World, name: str, *calls: str, **options: Any) -> list[str]:
    """A leased run with a batch, each of whose calls a child run answers; returns those."""
    asked = RunOptions(**options)
    await world.do(name, create, put("first", Mode.START, options=asked))
    return await work(world, name, *calls)


async def work(world: World, name: str, *calls: str) -> list[str]:
    """Leases a run that asks for calls, each answered by a child run; without: it has a step."""
    await world.do(name, lease(), reserve)
    if calls:
        await world.do(name, commit(asks(*calls)))
    return [await start(world, name, call) for call in calls]


async def start(world: World, name: str, call: str, **options: Any) -> str:
    """Starts a child run; returns the id of its session."""
    return (await started(world, name, call, **options)).child_session_id


async def started(world: World, name: str, call: str, **options: Any) -> Any:
    fence = world.fence(await world.state(name))
    options = {"agent": "child", **options}
    operation = StartChildRun(call, text(f"do {call}"), SessionRecord(), RunOptions(**options))
    command = CommitRun(fence, [operation], None, LEASE)
    view = await world.app.commit(world.caller("Commit"), command)
    return view.answer.results[0]


async def finish(world: World, name: str, words: str = "answer", outcome: Any = COMPLETED) -> None:
    """Lets a child run end, and its parent hear of it."""
    await world.do(name, lease(), reserve, commit(answer(words), outcome=outcome))
    await world.ring()


async def ask(world: World, name: str, *, rings: bool = True) -> str:
    """Lets a run ask; returns its interaction."""
    await world.do(name, lease(), reserve, commit(outcome=question()))
    if rings:
        await world.ring()
    return (await world.state(name)).run.wait.interaction_id


async def tree(world: World, **options: Any) -> list[str]:
    """A run, its child run, and two below that; all wait for those below them."""
    limits = {"limits": RunLimits(max_duration=HOUR)}
    (child,) = await parent_of(world, TOP, "c1", **(options or limits))
    below = await work(world, child, "g1", "g2")
    await world.do(child, commit(outcome=ALL_CHILDREN))
    await world.do(TOP, commit(outcome=ALL_CHILDREN))
    return [TOP, child, *below]


async def where(world: World, name: str) -> str:
    return column(await world.state(name)).value


async def run_of(world: World, name: str) -> str:
    return (await world.state(name)).run.run_id


async def proxies(world: World, name: str) -> list[str]:
    """What a run shows of its child runs: the interactions of theirs, oldest first."""
    rows = await shown(world, name)
    return [row.proxy_interaction_id for row in rows if row.proxy_interaction_id]


async def shown(world: World, name: str, state: Any = InteractionState.OPEN) -> list[InteractionRow]:  # fmt: skip
    page = await world.app.list_interactions("default", name, state, None, 1000)
    return page.items


async def inbox(world: World) -> list[str]:
    page = await world.app.list_interactions("default", "", InteractionState.OPEN, None, 1000)
    return [row.interaction_id for row in page.items]


async def reply(world: World, interaction_id: str, words: str = "yes") -> Any:
    """Answers an interaction, or what a proxy shows, as a client that names it alone."""
    row = await world.app.find_interaction("default", "", interaction_id)
    content = text(words)
    command = AnswerInteraction(
        row.run_id,
        row.interaction_id,
        row.version,
        PromptKind.QUESTION,
        content.data,
        content.hash,
    )
    caller = world.caller("AnswerInteraction")
    return (await world.app.answer_interaction(caller, row, command)).answer


async def ring_one(world: World) -> bool:
    """Fires one alarm that is due; False: there is none."""
    timers = world.app._timers
    if not timers._heap or timers._heap[0][0] > world.clock.now():
        await world.hear()
    if not timers._heap or timers._heap[0][0] > world.clock.now():
        return False
    await timers._handle(heapq.heappop(timers._heap))
    await world.engine.flush()
    return True


async def take(world: World, notice: StoredNotice) -> int | None:
    """Applies a notice, whatever the alarms say."""
    return await world.app._upkeep._notices.take(notice)


async def check_family(world: World, *names: str) -> None:
    """What holds of a tree once nothing is on its way; the first one is the top."""
    assert await world.store.notices() == []
    assert await world.store.check() == []
    for name in names:
        state = await world.state(name)
        if state.deleted:
            continue
        events = await world.events(name)
        told: dict[str, Counter[str]] = {
            body: Counter() for body in ("child_run_started", "child_run_finished")
        }
        opened: Counter[str] = Counter()
        over: Counter[str] = Counter()
        for event in events:
            body = event.WhichOneof("body")
            if body in told:
                told[body][getattr(event, body).child_run_id] += 1
            elif body == "interaction_opened":
                opened[event.interaction_opened.interaction_id] += 1
            elif body in {"interaction_answered", "interaction_closed"}:
                over[getattr(event, body).interaction_id] += 1
        started, finished = told["child_run_started"], told["child_run_finished"]
        assert set(started.values()) | set(finished.values()) <= {1}, "once each"
        assert set(opened.values()) | set(over.values()) <= {1}, "once each"
        live = {one.run_id for one in state.run.children} if state.run is not None else set()
        assert set(started) - set(finished) == live, "none is lost"
        still = await shown(world, name)
        assert set(opened) - set(over) == {row.interaction_id for row in still}
        if state.run is not None and state.run.ending is None:
            assert {one.interaction_id for one in state.run.proxies} == {
                row.interaction_id for row in still if row.proxy_interaction_id
            }
            for child in state.run.children:
                below = await world.state(child.session_id)
                assert below.run.run_id == child.run_id, "it lives"
                wait = [below.run.wait.interaction_id] if below.run.wait is not None else []
                questions = [*wait, *(one.question.interaction_id for one in below.run.proxies)]
                mine = [one for one in state.run.proxies if one.child_run_id == child.run_id]
                assert sorted(one.question.interaction_id for one in mine) == sorted(questions)
