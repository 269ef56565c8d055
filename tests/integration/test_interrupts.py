"""Interrupts in every state, answers that race, and what is left of work that was cut off."""

import asyncio
import time

import pytest
from runlane import Agent, Client, Executor
from runlane.v1 import event_pb2, run_pb2
from runlane.v1 import executor_service_pb2 as pb
from support_server import (
    CANCELLED,
    COMPLETED,
    EVENT,
    MODE,
    Link,
    dense,
    refused,
    reserve,
    seconds,
    unique,
)
from support_server.turns import (
    RUN,
    answer_to,
    asked,
    asks,
    claims,
    closed_once,
    pause,
    permission,
    question,
    restore,
    results,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]
SHORTEST = 5
GRACE = 1
CALLS = ("c1", "c2")


def rounds(few: int, many: int) -> list:
    return [few, pytest.param(many, marks=[pytest.mark.long, pytest.mark.timeout(900)])]


async def leased(link: Link, session: str, lease: float = 60, **options) -> run_pb2.Fence:
    options.setdefault("cancel_grace_duration", seconds(GRACE))
    await link.submit(session, run_options=run_pb2.RunOptions(**options))
    fence = (await link.lease(session, lease_duration=seconds(lease))).fence
    await link.commit(fence, reserve(), lease_duration=seconds(lease))
    return fence


class States:
    """Brings a session's run to a state; gives its fence, if it has one."""

    async def queued(self, link, session):
        await link.submit(session)

    async def silent(self, link, session):
        return await leased(link, session)

    async def claimed(self, link, session):
        fence = await leased(link, session)
        await link.commit(fence, asks(*CALLS), claims("c1"))
        return fence

    async def obeying(self, link, session):
        """Its executor is told, and settles."""
        fence = await leased(link, session)
        watch = link.executors.WatchActivation(pb.WatchActivationRequest(fence=fence), timeout=60)
        assert not (await watch.read()).control.cancel_requested

        async def obey():
            while not (await watch.read()).control.cancel_requested:
                pass
            await link.commit(fence, finish=CANCELLED)

        self.tasks.append(asyncio.create_task(obey()))
        return fence

    async def waiting(self, link, session):
        fence = await leased(link, session)
        await link.commit(fence, suspend=question())
        return fence

    async def asking(self, link, session):
        fence = await leased(link, session)
        await link.commit(fence, asks(*CALLS), suspend=permission(*CALLS))
        await pause(link, session)
        return fence

    async def answered(self, link, session):
        fence = await leased(link, session)
        await link.commit(fence, asks(*CALLS), suspend=permission(*CALLS))
        await answer_to(link, await asked(link, session))
        return fence

    async def paused(self, link, session):
        fence = await leased(link, session)
        await pause(link, session)
        await link.commit(fence, reserve())
        assert (await link.get_run(fence.run_id)).phase == RUN.PHASE_PAUSED
        return fence

    async def pausing(self, link, session):
        fence = await leased(link, session)
        await pause(link, session)
        return fence

    async def stalled(self, link, session):
        fence = await leased(link, session, SHORTEST, recovery=run_pb2.RECOVERY_MANUAL)
        await of_type(link, session, EVENT.TYPE_RUN_STALLED)
        return fence

    async def backing_off(self, link, session):
        fence = await leased(link, session, SHORTEST)
        recovering = await of_type(link, session, EVENT.TYPE_RUN_RECOVERING)
        assert recovering.run_recovering.not_before_time.seconds
        return fence

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []


STATES = tuple(name for name in vars(States) if not name.startswith("_"))
FORCED = {"silent", "claimed", "pausing"}


async def of_type(link: Link, session: str, kind: int) -> event_pb2.Event:
    async for event in link.follow(session, types=[kind]):
        return event
    raise AssertionError("the stream has ended")


@pytest.mark.parametrize("times", rounds(1, 10))
async def test_an_interrupt_ends_a_run_in_every_state_and_the_next_one_starts(
    link: Link, times: int
):
    """20 runs in each state."""
    states = States()

    async def one(state: str) -> None:
        session = unique(state)
        fence = await getattr(states, state)(link, session)
        await link.submit(session, "next", mode=MODE.MODE_FOLLOW_UP)
        await link.submit(session, "too late", mode=MODE.MODE_STEER)
        run_id = (await link.live(session)).run.run_id
        begun = time.monotonic()
        told = await link.interrupt(session, wait=10, reason="enough")
        took = time.monotonic() - begun
        assert told.settled, state
        # By force after its grace, or at once.
        assert (GRACE - 0.1 if state in FORCED else 0) <= took < GRACE + 3, (state, took)
        run = await link.get_run(run_id)
        wanted = RUN.STOP_REASON_CANCELLED
        if state == "claimed":
            assert run.outcome.cause == wanted
            wanted = RUN.STOP_REASON_OUTCOME_UNKNOWN
        assert (state, run.outcome.stop_reason) == (state, wanted)
        again = (await link.interrupt(run_id=run_id)).run
        assert (again.outcome, again.end_time) == (run.outcome, run.end_time)
        if fence is not None:
            error = await refused(link.commit(fence, finish=COMPLETED))
            assert error.reason == "STALE_ACTIVATION"
        live = await link.live(session)
        assert not live.open_interactions
        assert live.run.run_id != run_id
        closed_once(await link.messages(session))
        events = dense(await link.events(session))
        missed = [one.submission_failed for one in events if one.HasField("submission_failed")]
        assert len(missed) == 1
        ends = [one.run_terminal for one in events if one.HasField("run_terminal")]
        assert [one.stop_reason for one in ends] == [wanted]
        following = await link.lease(session)
        assert following.fence.run_id == live.run.run_id
        await link.answer(following.fence)
        await link.run(session, "more")

    for _ in range(times):
        await asyncio.gather(*(one(state) for state in STATES for _ in range(20)))
    await asyncio.gather(*states.tasks)


@pytest.mark.parametrize("count", rounds(20, 200))
async def test_an_interrupt_ends_runs_whose_executor_and_server_were_killed(server, count: int):
    """Within the grace, long before their leases end."""
    sessions = [unique("orphan") for _ in range(count)]
    async with Link(server.address) as link:
        for session in sessions:
            grace = seconds(GRACE)
            options = run_pb2.RunOptions(cancel_grace_duration=grace)
            await link.submit(session, run_options=options)
            fence = (await link.lease(session, lease_duration=seconds(600))).fence
            await link.commit(fence, reserve(), lease_duration=seconds(600))
            await link.commit(fence, asks(*CALLS), claims("c2", idempotent=True))
    server.restart()
    async with Link(server.address) as link:
        begun = time.monotonic()
        told = await asyncio.gather(*(link.interrupt(one, wait=10) for one in sessions))
        assert GRACE - 0.1 < time.monotonic() - begun < GRACE + 3
        for session, one in zip(sessions, told, strict=True):
            assert one.settled
            assert one.run.outcome.stop_reason == RUN.STOP_REASON_CANCELLED
            closed_once(await link.messages(session))
            await link.run(session, "more")


@pytest.mark.parametrize("count", rounds(20, 200))
async def test_a_cancel_keeps_what_was_committed_and_drops_what_was_streamed(
    link: Link, count: int
):
    async def one() -> None:
        session = unique("half")
        fence = await leased(link, session)
        await link.commit(fence, asks("c1"), claims("c1"))
        await link.submit(session, "steer", mode=MODE.MODE_STEER)
        granted = await link.commit(fence, results("c1"), reserve())
        stream_id = granted.results[1].reserve_model_step.model_stream_id
        delta = event_pb2.Delta(
            model_stream_id=stream_id,
            step=2,
            kind=event_pb2.Delta.KIND_TEXT,
            revision=1,
            append_text="half of it",
        )

        async def pieces():
            yield pb.PublishDeltasRequest(fence=fence, deltas=[delta])

        reader = link.stream(session, include_deltas=True)
        assert (await link.executors.PublishDeltas(pieces(), timeout=10)).delta_count == 1
        async for frame in reader:
            if frame.HasField("deltas"):
                break
        before = await link.messages(session)
        await link.interrupt(session)
        await link.commit(fence, finish=CANCELLED)
        frames = []
        async for frame in reader:
            frames.append(frame)
            if any(event.HasField("run_terminal") for event in frame.batch.events):
                break
        reader.cancel()
        after = await link.messages(session)
        assert after == before
        said = [block.text for message in after for block in message.content if block.text]
        assert said == ["hello", "steer"]
        assert not any(frame.HasField("deltas") for frame in frames)
        # What a reader has seen of the step is void: no message of its stream was appended.
        assert stream_id not in {message.model_stream_id for message in after}
        await link.run(session, "more")

    await asyncio.gather(*(one() for _ in range(count)))


@pytest.mark.parametrize("count", rounds(20, 200))
async def test_two_answers_at_once_and_one_to_an_old_question_are_one_delivery(
    link: Link, count: int
):
    async def one(number: int) -> None:
        session = unique("answers")
        fence = await leased(link, session)
        await link.commit(fence, asks(*CALLS), suspend=question("c1"))
        old = await asked(link, session)
        second = "yes" if number % 2 else "no"
        told = await asyncio.gather(
            answer_to(link, old, "yes"), answer_to(link, old, second), return_exceptions=True
        )
        if second == "yes":
            assert [one.interaction.state for one in told] == [old.STATE_ANSWERED] * 2
        else:
            assert sum(isinstance(one, BaseException) for one in told) == 1
        fence = (await link.lease(session)).fence
        await link.commit(fence, suspend=question("c2"))
        # A third answers what was answered, and means what is asked now.
        assert (await refused(answer_to(link, old, "late"))).reason == "INTERACTION_CONFLICT"
        new = await asked(link, session)
        await answer_to(link, new, "two")
        leased_again = await link.lease(session)
        assert leased_again.fence.epoch == 3
        await link.answer(leased_again.fence)
        events = dense(await link.events(session))
        answered = [one for one in events if one.type == EVENT.TYPE_INTERACTION_ANSWERED]
        assert len(answered) == 2
        messages = await link.messages(session)
        closed_once(messages)
        assert (await refused(answer_to(link, new, "three"))).reason == "INTERACTION_CONFLICT"

    await asyncio.gather(*(one(number) for number in range(count)))


async def test_two_executors_of_one_name_are_told_apart_by_their_fences(link: Link):
    """Each has its runs, and uses the same request ids; the one that falls silent loses its own."""
    agent, name = unique("twins"), unique("twin")
    sessions = [f"{agent}.{number}" for number in range(40)]
    for session in sessions:
        await link.create(session, default_agent=agent)
        await link.submit(session)
    fences = [
        (await link.lease(agent, executor_id=name, lease_duration=seconds(SHORTEST))).fence
        for _ in sessions
    ]
    granted = await asyncio.gather(
        *(
            link.commit(one, reserve(), request_id="1", lease_duration=seconds(SHORTEST))
            for one in fences
        )
    )
    assert not any(one.replayed for one in granted)
    streams = {one.results[0].reserve_model_step.model_stream_id for one in granted}
    assert len(streams) == len(sessions)
    alive, silent = fences[::2], fences[1::2]

    async def keep() -> None:
        while True:
            await asyncio.sleep(1)
            await asyncio.gather(*(link.heartbeat(one, SHORTEST) for one in alive))

    keeping = asyncio.create_task(keep())
    taken = [(await link.lease(agent, 15, executor_id="another")).fence for _ in silent]
    keeping.cancel()
    assert {one.run_id for one in taken} == {one.run_id for one in silent}
    assert {one.epoch for one in taken} == {2}
    told = await asyncio.gather(
        *(link.answer_reserved(one, f"{one.run_id}", request_id="2") for one in (*alive, *taken))
    )
    assert not any(one.replayed for one in told)
    for session in sessions:
        messages = await link.messages(session)
        assert [one.content[0].text for one in messages] == ["hello", messages[-1].run_id]
    for one in silent:
        assert (await refused(link.answer_reserved(one))).reason == "STALE_ACTIVATION"


async def test_an_executor_that_raises_fails_its_run_at_once_with_a_typed_error(shared):
    class Broken:
        async def complete(self, request):
            raise KeyError("secret")

    name = unique("broken")
    async with (
        Link(shared.address) as link,
        Client(shared.address) as client,
        Executor(client, Agent(name, model=Broken())),
    ):
        for number in range(20):
            session = f"{name}.{number}"
            await link.create(session, default_agent=name)
            run = await link.wait_run((await link.submit(session)).submission.run_id)
            assert run.outcome.stop_reason == RUN.STOP_REASON_FAILED
            failure = run.outcome.failure
            assert (failure.reason, failure.message) == (failure.REASON_EXECUTOR_ERROR, "KeyError")


@pytest.mark.parametrize("count", rounds(20, 100))
async def test_an_interrupt_that_races_a_recovery_by_hand_has_one_end(link: Link, count: int):
    async def one() -> None:
        session = unique("by-hand")
        fence = await leased(link, session)
        await asyncio.gather(
            link.interrupt(session),
            restore(link, fence.run_id, fence.activation_id, force=True),
            return_exceptions=True,
        )
        run = await link.wait_run(fence.run_id, 10)
        assert run.outcome.stop_reason == RUN.STOP_REASON_CANCELLED
        events = dense(await link.events(session))
        assert sum(one.HasField("run_terminal") for one in events) == 1
        await link.run(session, "more")

    await asyncio.gather(*(one() for _ in range(count)))
