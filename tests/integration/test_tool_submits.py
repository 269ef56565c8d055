"""Input, answers and their repeats around runs with tools and waits: doubles, races, lost steers."""

import asyncio
import random
from collections import Counter

import pytest
from runlane.v1 import history_service_pb2, message_pb2, submission_pb2
from support_server import (
    COMPLETED,
    EVENT,
    MODE,
    Link,
    dense,
    fence_of,
    refused,
    reserve,
    step,
    unique,
)
from support_server.turns import (
    RUN,
    answer_to,
    asked,
    asks,
    claims,
    closed_once,
    permission,
    question,
    results,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]
CALLS = ("c1", "c2")
STATE = submission_pb2.Submission


def rounds(few: int, many: int) -> list:
    return [few, pytest.param(many, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]


async def in_batch(link: Link, session: str):
    await link.submit(session)
    fence = (await link.lease(session)).fence
    await link.commit(fence, reserve())
    await link.commit(fence, asks(*CALLS))
    return fence


async def texts(link: Link, session: str, run_id: str = "") -> list[str]:
    user = message_pb2.Message.ROLE_USER
    return [
        one.content[0].text
        for one in await link.messages(session)
        if one.role == user and run_id in {"", one.run_id}
    ]


async def submissions(link: Link, session: str) -> dict[str, submission_pb2.Submission]:
    request = history_service_pb2.ListSubmissionsRequest(session_id=session)
    found = await link.pages(link.history.ListSubmissions, request, "submissions", 1000)
    return {one.submission_id: one for one in found}


async def test_50_answers_of_one_request_id_are_one_delivery_also_after_a_kill(server):
    session = unique("answers")
    async with Link(server.address) as link:
        fence = await in_batch(link, session)
        await link.commit(fence, suspend=question("c1"))
        open_one = await asked(link, session)
        told = await asyncio.gather(
            *(answer_to(link, open_one, "secret words", request_id="a1") for _ in range(50))
        )
        assert Counter(one.replayed for one in told) == {True: 49, False: 1}
        assert len({one.sequence for one in told}) == 1
    server.restart()
    async with Link(server.address) as link:
        again = await answer_to(link, open_one, "secret words", request_id="a1")
        assert again.replayed
        error = await refused(answer_to(link, open_one, "other words", request_id="a1"))
        assert error.reason == "REQUEST_ID_REUSED"
        assert "secret" not in error.everything
        # Without an id it is no repeat, and says the same; other words are no second answer.
        same = await answer_to(link, open_one, "secret words")
        assert not same.replayed
        error = await refused(answer_to(link, open_one, "other words"))
        assert error.reason == "INTERACTION_CONFLICT"
        assert "secret" not in error.everything
        fence = (await link.lease(session)).fence
        await link.commit(fence, claims("c2"), results("c2"), reserve())
        await link.commit(fence, step("done"), finish=COMPLETED)
        messages = await link.messages(session)
        closed_once(messages)
        assert messages[2].content[0].tool_result.content[0].text == "secret words"
        events = dense(await link.events(session))
        assert sum(one.type == EVENT.TYPE_INTERACTION_ANSWERED for one in events) == 1


async def test_questions_outlive_a_kill_and_their_answers_go_on(server):
    """The server is killed right behind the commits by which 20 runs ask."""
    sessions = [unique("outlives") for _ in range(20)]
    async with Link(server.address) as link:
        for session in sessions:
            fence = await in_batch(link, session)
            await link.commit(fence, suspend=question("c1"))
    server.restart()
    async with Link(server.address) as link:
        for session in sessions:
            open_one = await asked(link, session)
            await answer_to(link, open_one, "after the kill")
            fence = (await link.lease(session)).fence
            assert fence.run_id == open_one.run_id
            await link.commit(fence, claims("c2"), results("c2"), reserve())
            await link.commit(fence, step("done"), finish=COMPLETED)
            messages = await link.messages(session)
            closed_once(messages)
            assert messages[2].content[0].tool_result.content[0].text == "after the kill"
            dense(await link.events(session))


@pytest.mark.parametrize("count", rounds(20, 100))
async def test_nothing_starts_beside_a_run_that_waits(link: Link, count: int):
    """A wait holds the lane as work does: chat input starts no second run and answers nothing."""

    async def one() -> None:
        session = unique("held")
        fence = await in_batch(link, session)
        await link.commit(fence, suspend=permission(*CALLS))
        before = await link.live(session)
        told = await asyncio.gather(
            *(refused(link.submit(session, f"start {n}")) for n in range(5))
        )
        assert {error.reason for error in told} == {"SESSION_BUSY"}
        assert await link.live(session) == before
        steer = await link.submit(session, "yes", mode=MODE.MODE_AUTO)
        assert steer.submission.state == STATE.STATE_PENDING
        assert (await asked(link, session)).state == before.open_interactions[0].STATE_OPEN
        assert (await link.live(session)).run.phase == RUN.PHASE_WAITING
        await link.interrupt(session)

    await asyncio.gather(*(one() for _ in range(count)))


@pytest.mark.parametrize("count", rounds(20, 200))
async def test_a_steer_goes_to_the_run_that_waits_and_a_follow_up_to_the_next(
    link: Link, count: int
):
    async def one() -> None:
        session = unique("mix")
        fence = await in_batch(link, session)
        await link.commit(fence, suspend=permission(*CALLS))
        queued = (await link.submit(session, "follow-up", mode=MODE.MODE_FOLLOW_UP)).submission
        await link.submit(session, "steer", mode=MODE.MODE_STEER)
        await answer_to(link, await asked(link, session))
        assert await texts(link, session) == ["hello"]
        fence = (await link.lease(session)).fence
        await link.commit(fence, claims(*CALLS), results("c1"))
        assert await texts(link, session) == ["hello"]
        closing = await link.commit(fence, results("c2"))
        assert [m.content[0].text for m in closing.delivered] == ["steer"]
        await link.answer(fence)
        following = (await link.lease(session)).fence
        assert following.run_id == queued.run_id
        await link.answer(following)
        assert await texts(link, session, fence.run_id) == ["hello", "steer"]
        assert await texts(link, session, following.run_id) == ["follow-up"]

    await asyncio.gather(*(one() for _ in range(count)))


ENDS = ("batch", "answer", "suspend", "finish", "interrupt")


@pytest.mark.parametrize("count", rounds(100, 1000))
async def test_steers_that_race_boundaries_and_waits_have_one_end_each(link: Link, count: int):
    """Five steers beside the end of a batch, an answer, a suspend, a finish and an interrupt."""
    ways: Counter[tuple[str, str]] = Counter()

    async def one(number: int) -> None:
        rng, way = random.Random(number), ENDS[number % len(ENDS)]
        session = unique("race")
        fence = await in_batch(link, session)
        if way in {"answer", "interrupt"}:
            await link.commit(fence, suspend=permission(*CALLS))
            open_one = await asked(link, session)
        elif way in {"batch", "finish"}:
            await link.commit(fence, claims(*CALLS))
        if way == "finish":
            await link.commit(fence, results(*CALLS))
            await link.commit(fence, reserve())
        acts = {
            "batch": lambda: link.commit(fence, results(*CALLS)),
            "answer": lambda: answer_to(link, open_one),
            "suspend": lambda: link.commit(fence, suspend=permission(*CALLS)),
            "finish": lambda: link.commit(fence, step("done"), finish=COMPLETED),
            "interrupt": lambda: link.interrupt(session),
        }

        async def steer(words: str) -> None:
            await asyncio.sleep(rng.random() * 0.004)
            on_miss = STATE.ON_MISS_FOLLOW_UP if rng.random() < 0.5 else 0
            call = link.submit(session, words, mode=MODE.MODE_AUTO, on_miss=on_miss)
            await call

        async def act() -> None:
            await asyncio.sleep(rng.random() * 0.004)
            await acts[way]()

        racers = [act(), *(steer(f"s{n}") for n in range(5))]
        rng.shuffle(racers)
        await asyncio.gather(*racers)
        await play_on(link, session)
        known = await submissions(link, session)
        assert len(known) == 6
        events = dense(await link.events(session))
        failures = [
            e.submission_failed.submission_id for e in events if e.HasField("submission_failed")
        ]
        said = await texts(link, session)
        assert len(said) == len(set(said))
        for one in known.values():
            ways[way, STATE.State.Name(one.state)] += 1
            words = one.content[0].text
            if one.state == STATE.STATE_DELIVERED:
                assert words in said
                assert one.submission_id not in failures
            else:
                assert one.state == STATE.STATE_FAILED
                assert words not in said
                assert failures.count(one.submission_id) == 1
        closed_once(await link.messages(session))

    for start in range(0, count, 25):
        await asyncio.gather(*(one(number) for number in range(start, min(count, start + 25))))
    assert {way for way, _ in ways} == set(ENDS)
    # Where a run goes on or ends by itself none misses; by an interrupt some do.
    assert {way for way, state in ways if state == "STATE_FAILED"} == {"interrupt"}


async def finish(link: Link, fence) -> None:
    """Answers until no steer makes the run go on."""
    while True:
        await link.commit(fence, reserve())
        if (await link.answer_reserved(fence)).outcome_applied:
            return


async def play_on(link: Link, session: str) -> None:
    """Works until the session is idle, whatever was going on."""
    while True:
        run = (await link.live(session)).run
        if not run.run_id:
            return
        if run.phase == RUN.PHASE_WAITING:
            await answer_to(link, await asked(link, session))
        if run.activation.state != run.activation.STATE_LEASED:
            fence = (await link.lease(session)).fence
        else:
            fence = fence_of(run)
        request = history_service_pb2.ListToolCallsRequest(run_id=fence.run_id)
        calls = await link.pages(link.history.ListToolCalls, request, "tool_calls", 100)
        prepared = [one.tool_call_id for one in calls if one.state == one.STATE_PREPARED]
        left = [one.tool_call_id for one in calls if one.state < one.STATE_COMMITTED]
        if prepared:
            await link.commit(fence, claims(*prepared))
        if left:
            await link.commit(fence, results(*left))
        await finish(link, fence)


@pytest.mark.parametrize("count", rounds(20, 200))
async def test_auto_is_never_refused_while_runs_wait_and_end(link: Link, count: int):
    """One writes in a loop, one works, one answers: no input is refused, none is lost."""

    async def one() -> None:
        session = unique("auto")
        await link.create(session)
        written = []
        over = asyncio.Event()

        async def write() -> None:
            for number in range(12):
                miss = STATE.ON_MISS_FOLLOW_UP
                told = await link.submit(session, f"w{number}", mode=MODE.MODE_AUTO, on_miss=miss)
                written.append(told.submission.submission_id)
                assert told.submission.route in {
                    STATE.ROUTE_RUN,
                    STATE.ROUTE_STEER,
                    STATE.ROUTE_FOLLOW_UP,
                }
            over.set()

        async def work() -> None:
            while True:
                polled = await link.poll(session, 0.2)
                if not polled.HasField("activation"):
                    if over.is_set() and not (await link.live(session)).run.run_id:
                        return
                    continue
                leased = polled.activation
                if leased.run.attempt == 1:
                    await link.commit(leased.fence, suspend=question())
                    await answer_to(link, await asked(link, session))
                    continue
                await finish(link, leased.fence)

        await asyncio.gather(write(), work())
        known = await submissions(link, session)
        assert set(known) == set(written)
        assert {one.state for one in known.values()} == {STATE.STATE_DELIVERED}
        said = await texts(link, session)
        assert sorted(said) == sorted(f"w{number}" for number in range(12))

    await asyncio.gather(*(one() for _ in range(count)))
