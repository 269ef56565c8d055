"""Executors that fall silent, are cancelled, drained or replaced, and those that are not."""

import asyncio
import time

import grpc
import pytest
from runlane.v1 import executor_service_pb2 as pb
from runlane.v1 import run_pb2, session_service_pb2
from support_server import (
    CANCELLED,
    COMPLETED,
    EVENT,
    MODE,
    Link,
    dense,
    failed,
    refused,
    reserve,
    seconds,
    step,
    unique,
    within,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]

SHORTEST = 5
RUN = run_pb2.Run


async def test_silent_executors_lose_their_runs_at_their_time_and_others_take_them(link: Link):
    """Several at once: never heard, heard once, committed, and renewed for longer."""
    sessions = {kind: unique(kind) for kind in ("silent", "heartbeat", "committed", "kept")}
    fences, last_heard = {}, {}
    for kind, session in sessions.items():
        await link.submit(session)
        leased = await link.lease(session, lease_duration=seconds(SHORTEST))
        fences[kind] = leased.fence
        last_heard[kind] = time.monotonic()
        await link.submit(session, "next", mode=MODE.MODE_FOLLOW_UP)
    await asyncio.sleep(1)
    await link.heartbeat(fences["heartbeat"], SHORTEST)
    last_heard["heartbeat"] = time.monotonic()
    await link.commit(fences["committed"], reserve(), lease_duration=seconds(SHORTEST))
    last_heard["committed"] = time.monotonic()
    await link.heartbeat(fences["kept"], 60)

    async def check(kind: str) -> None:
        taken = await link.lease(sessions[kind], wait=15)
        # What nothing was ever heard of is queued at once; the others back off for 1 s.
        unheard = kind == "silent"
        late = time.monotonic() - last_heard[kind] - SHORTEST - (0 if unheard else 1)
        assert -0.5 < late < 1.5, (kind, late)
        assert (taken.fence.run_id, taken.fence.epoch) == (fences[kind].run_id, 2)
        kinds = run_pb2.Activation
        assert taken.kind == (kinds.KIND_START if unheard else kinds.KIND_RECOVER)
        assert taken.reserved_step == (1 if kind == "committed" else 0)
        await check_stale(link, fences[kind])
        await link.answer(taken.fence)
        run = await link.get_run(fences[kind].run_id)
        assert run.outcome.stop_reason == RUN.STOP_REASON_COMPLETED
        await link.answer((await link.lease(sessions[kind])).fence)
        events = dense(await link.events(sessions[kind]))
        types = [one.type for one in events if one.run_id == fences[kind].run_id]
        lost = types.index(EVENT.TYPE_ACTIVATION_ABANDONED)
        recovering = [] if unheard else [EVENT.TYPE_RUN_RECOVERING]
        assert types[lost + 1 :][: len(recovering) + 1] == [
            *recovering,
            EVENT.TYPE_ACTIVATION_QUEUED,
        ]

    await asyncio.gather(*(check(kind) for kind in ("silent", "heartbeat", "committed")))
    await link.answer(fences["kept"])
    run = await link.get_run(fences["kept"].run_id)
    assert run.outcome.stop_reason == RUN.STOP_REASON_COMPLETED


async def check_stale(link: Link, fence: run_pb2.Fence) -> None:
    """Nothing that carries this fence is taken."""
    before = (await link.live(fence.session_id)).sequence
    delta = pb.PublishDeltasRequest(fence=fence)

    async def deltas():
        yield delta

    watching = link.executors.WatchActivation(pb.WatchActivationRequest(fence=fence), timeout=10)
    context = link.executors.StreamModelContext(
        pb.StreamModelContextRequest(fence=fence), timeout=10
    )
    for call in (
        link.heartbeat(fence),
        link.commit(fence),
        link.commit(fence, reserve()),
        link.commit(fence, step()),
        link.commit(fence, finish=COMPLETED),
        link.commit(fence, finish=failed()),
        link.commit(fence, finish=CANCELLED),
        link.commit(fence, release=pb.Release()),
        link.executors.PublishDeltas(deltas(), timeout=10),
        watching.read(),
        context.read(),
    ):
        error = await refused(call)
        assert error.code == grpc.StatusCode.FAILED_PRECONDITION
        assert error.reason == "STALE_ACTIVATION"
    assert (await link.live(fence.session_id)).sequence == before


async def test_fences_that_are_wrong_in_any_part_are_refused_everywhere(link: Link):
    session, other = unique("wrong"), unique("wrong")
    for one in (session, other):
        await link.submit(one)
    fence, foreign = [(await link.lease(one)).fence for one in (session, other)]
    parts = [
        {"epoch": fence.epoch + 1},
        {"activation_id": foreign.activation_id},
        {"run_id": foreign.run_id},
        {"activation_id": "act_none"},
    ]
    for part in parts:
        wrong = run_pb2.Fence()
        wrong.CopyFrom(fence)
        for name, value in part.items():
            setattr(wrong, name, value)
        await check_stale(link, wrong)
    await link.answer(fence)
    await check_stale(link, fence)
    await link.answer(foreign)


async def test_a_short_absence_of_the_server_loses_no_run_of_a_healthy_executor(server):
    session, silent = unique("healthy"), unique("silent")
    async with Link(server.address) as link:
        fences = []
        for one in (session, silent):
            await link.submit(one)
            leased = await link.lease(one, lease_duration=seconds(SHORTEST))
            fences.append(leased.fence)
    await asyncio.sleep(SHORTEST - 2)
    server.kill()
    await asyncio.sleep(2.5)  # by now the leases are over
    server.start()
    started = time.monotonic()
    async with Link(server.address) as link:
        await asyncio.sleep(1)
        await link.heartbeat(fences[0], SHORTEST)
        await asyncio.sleep(2)
        await link.heartbeat(fences[0], SHORTEST)
        taken = await link.lease(silent, wait=15)
        assert SHORTEST - 1 < time.monotonic() - started < SHORTEST + 2.5
        assert (taken.fence.run_id, taken.fence.epoch) == (fences[1].run_id, 2)
        await link.answer(taken.fence)
        await link.answer(fences[0])
        run = await link.get_run(fences[0].run_id)
        assert run.outcome.stop_reason == RUN.STOP_REASON_COMPLETED


async def test_an_interrupt_of_a_silent_executor_ends_by_force_after_its_grace(link: Link):
    session = unique("force")
    grace = run_pb2.RunOptions(cancel_grace_duration=seconds(1))
    await link.submit(session, run_options=grace)
    fence = (await link.lease(session)).fence
    await link.submit(session, "next", mode=MODE.MODE_FOLLOW_UP)
    await link.submit(session, "too late", mode=MODE.MODE_STEER)
    begun = time.monotonic()
    answer = await link.interrupt(session, wait=10, reason="enough")
    assert 0.8 < time.monotonic() - begun < 2.5
    assert answer.settled
    assert answer.run.outcome.stop_reason == RUN.STOP_REASON_CANCELLED
    assert answer.run.cancellation.reason == "enough"
    await check_stale(link, fence)
    await link.answer((await link.lease(session)).fence)
    events = dense(await link.events(session))
    missed = [one for one in events if one.HasField("submission_failed")]
    assert [one.submission_failed.reason for one in missed] == [2]


async def test_an_interrupt_of_a_queued_run_settles_it_at_once(link: Link):
    session = unique("queued")
    await link.submit(session)
    answer = await link.interrupt(session)
    assert answer.settled
    assert (await link.poll(session, 0.1)).activation.fence.run_id == ""
    assert (await refused(link.interrupt(session))).reason == "SESSION_IDLE"


async def test_the_executor_is_told_of_a_cancellation_at_once(link: Link):
    session = unique("told")
    await link.submit(session)
    fence = (await link.lease(session)).fence
    watch = link.executors.WatchActivation(pb.WatchActivationRequest(fence=fence), timeout=30)
    assert not (await watch.read()).control.cancel_requested
    await link.interrupt(session)
    control = (await within(2, watch.read())).control
    assert control.cancel_requested
    assert control.cancel_grace_expire_time.seconds
    assert (await refused(link.commit(fence, reserve()))).reason == "RUN_CANCELLING"
    answer = await link.commit(fence, finish=COMPLETED)
    assert answer.run.outcome.stop_reason == RUN.STOP_REASON_CANCELLED
    assert (await within(2, watch.read())).control.ended
    assert await watch.read() is grpc.aio.EOF


@pytest.mark.parametrize("rounds", [pytest.param(100), pytest.param(500, marks=pytest.mark.long)])
async def test_an_interrupt_that_races_the_finish_has_one_outcome_that_all_agree_on(
    link: Link, rounds: int
):
    outcomes = set()
    for _ in range(rounds):
        session = unique("race")
        await link.submit(session)
        fence = (await link.lease(session)).fence
        await link.commit(fence, reserve())
        interrupt, finish = await asyncio.gather(
            link.interrupt(run_id=fence.run_id, wait=5),
            link.answer_reserved(fence),
        )
        run = await link.get_run(fence.run_id)
        reason = run.outcome.stop_reason
        outcomes.add(reason)
        assert interrupt.settled
        assert interrupt.run.outcome.stop_reason == reason
        assert finish.run.outcome.stop_reason == reason
        ends = [one for one in dense(await link.events(session)) if one.HasField("run_terminal")]
        assert [one.run_terminal.stop_reason for one in ends] == [reason]
        asked = [
            one for one in await link.events(session) if one.HasField("run_cancellation_requested")
        ]
        assert bool(asked) == (reason == RUN.STOP_REASON_CANCELLED)
    assert outcomes <= {RUN.STOP_REASON_COMPLETED, RUN.STOP_REASON_CANCELLED}


async def test_stopping_one_run_by_its_id_never_touches_the_next(link: Link):
    for _ in range(30):
        session = unique("by-id")
        await link.submit(session)
        fence = (await link.lease(session)).fence
        await link.submit(session, "next", mode=MODE.MODE_FOLLOW_UP)
        await link.commit(fence, reserve())
        await asyncio.gather(
            link.answer_reserved(fence), link.interrupt(run_id=fence.run_id, session_id=session)
        )
        following = (await link.lease(session)).fence
        again = await link.interrupt(run_id=fence.run_id)
        assert again.run.run_id == fence.run_id
        assert again.settled
        await link.answer(following)
        run = await link.get_run(following.run_id)
        assert run.outcome.stop_reason == RUN.STOP_REASON_COMPLETED


async def test_interrupting_one_of_20_sessions_leaves_19(link: Link):
    sessions = [unique("scope") for _ in range(20)]
    fences = []
    for session in sessions:
        await link.submit(session)
        fences.append((await link.lease(session)).fence)
    await link.interrupt(sessions[7])
    reasons = []
    for fence in fences:
        done = await link.commit(fence, finish=COMPLETED)
        reasons.append(done.run.outcome.stop_reason)
    assert reasons.count(RUN.STOP_REASON_COMPLETED) == 19
    assert reasons[7] == RUN.STOP_REASON_CANCELLED


async def test_a_released_run_is_taken_by_another_at_once_with_its_reservation(link: Link):
    session = unique("released")
    await link.submit(session)
    first = await link.lease(session, executor_id="a")
    granted = await link.commit(first.fence, reserve())
    poll = asyncio.create_task(link.lease(session, 20, executor_id="b"))
    begun = time.monotonic()
    await link.commit(first.fence, release=pb.Release(reason="going"))
    second = await within(5, poll)
    assert time.monotonic() - begun < 2
    assert second.fence.run_id == first.fence.run_id
    assert second.fence.epoch == first.fence.epoch + 1
    assert second.fence.activation_id != first.fence.activation_id
    assert second.reserved_step == 1
    await check_stale(link, first.fence)
    again = await link.commit(second.fence, reserve())
    assert again.results[0].reserve_model_step.step == 1
    assert granted.results[0].reserve_model_step.step == 1
    await link.answer_reserved(second.fence)
    used = (await link.get_run(first.fence.run_id)).usage
    assert (used.model_steps_reserved, used.model_steps_committed) == (1, 1)


async def test_a_drained_executor_gets_nothing_more_also_after_a_restart(server):
    session = unique("drained")
    async with Link(server.address) as link:
        waiting = asyncio.create_task(link.poll(session, 30, executor_id="going"))
        other = asyncio.create_task(link.lease(session, 30, executor_id="staying"))
        await link.poll(session, 0)
        request = pb.DrainExecutorRequest(executor_id="going", request_id="drain-1")
        assert (await link.executors.DrainExecutor(request, timeout=10)).leased_count == 0
        assert (await within(5, waiting)).draining
        await link.submit(session)
        leased = await within(5, other)
        await link.answer(leased.fence)
        again = await link.executors.DrainExecutor(request, timeout=10)
        assert again.replayed
    server.restart()
    async with Link(server.address) as link:
        await link.submit(session)
        answer = await link.poll(session, 0, executor_id="going")
        assert answer.draining
        assert not answer.HasField("activation")
        await link.lease(session, executor_id="another")


async def test_the_same_request_id_gives_the_same_lease_also_after_a_restart(server):
    session = unique("same-lease")
    async with Link(server.address) as link:
        await link.submit(session)
        await link.submit(unique("unrelated"))
        first = await link.poll(session, request_id="poll-1")
        again = await asyncio.gather(*(link.poll(session, request_id="poll-1") for _ in range(10)))
    server.restart()
    async with Link(server.address) as link:
        again.append(await link.poll(session, request_id="poll-1"))
        for one in again:
            assert one.replayed
            assert not one.fence_lost
            assert one.activation.fence == first.activation.fence
        await link.answer(first.activation.fence)
        lost = await link.poll(session, request_id="poll-1")
        assert lost.fence_lost
        # Two executors may use one id for different polls.
        other = await link.poll(session, 0, request_id="poll-1", executor_id="executor-2")
        assert not other.HasField("activation")


async def test_parallel_polls_with_one_request_id_take_one_activation(link: Link):
    session = unique("one-poll")
    for number in range(4):
        await link.create(f"{session}-{number}", default_agent=session)
        await link.submit(f"{session}-{number}")
    answers = await asyncio.gather(*(link.poll(session, 1, request_id="p") for _ in range(4)))
    assert len({one.activation.fence.activation_id for one in answers}) == 1
    rest = await asyncio.gather(*(link.poll(session, 1) for _ in range(3)))
    assert len({one.activation.fence.session_id for one in (*rest, answers[0])}) == 4


async def test_100_pollers_take_100_runs_one_each(link: Link):
    agent = unique("crowd")
    polls = [
        asyncio.create_task(link.lease(agent, 30, executor_id=f"{agent}-{number}"))
        for number in range(100)
    ]
    sessions = [f"{agent}.{number}" for number in range(100)]
    spec = session_service_pb2.SessionSpec(default_agent=agent)
    await asyncio.gather(*(link.submit(one, create_session=spec) for one in sessions))
    leased = await within(20, asyncio.gather(*polls))
    assert sorted(one.fence.session_id for one in leased) == sorted(sessions)


async def test_a_poll_that_its_client_cancelled_leases_nothing(make_server):
    """Cancelled while it waits, and while its lease is being written."""
    linger = 0.15
    server = make_server(linger_milliseconds=linger * 1000).start()
    agent = unique("gone")
    request = pb.PollActivationRequest(
        executor_id="gone", agents=[agent], wait_duration=seconds(20)
    )
    async with Link(server.address) as link:
        for number in range(2):
            # A large batch makes the writes after it wait for company.
            await asyncio.gather(*(link.create(unique("batch")) for _ in range(100)))
            session = f"{agent}.{number}"
            await link.create(session, default_agent=agent)
            waiting = link.executors.PollActivation(request, timeout=30)
            await asyncio.sleep(0.05)
            waiting.cancel()
            await link.submit(session)
            leasing = link.executors.PollActivation(request, timeout=30)
            await asyncio.sleep(linger / 3)
            assert not leasing.done()
            leasing.cancel()
            leased = await within(5, link.lease(agent, 10, executor_id="here"))
            assert leased.fence.session_id == session
            assert leased.fence.epoch == 2
            events = await link.events(session)
            assert [one.type for one in events if 49 < one.type < 60] == [
                EVENT.TYPE_ACTIVATION_QUEUED,
                EVENT.TYPE_ACTIVATION_LEASED,
                EVENT.TYPE_ACTIVATION_ENDED,
                EVENT.TYPE_ACTIVATION_QUEUED,
                EVENT.TYPE_ACTIVATION_LEASED,
            ]


async def test_a_poll_whose_deadline_passes_leases_nothing(link: Link):
    agent = unique("late")
    request = pb.PollActivationRequest(
        executor_id="late", agents=[agent], wait_duration=seconds(20)
    )
    for number in range(40):
        session = f"{agent}.{number}"
        await link.create(session, default_agent=agent)
        poll = link.executors.PollActivation(request, timeout=0.001 * (1 + number % 12))
        submit = asyncio.create_task(link.submit(session))
        (answer,) = await asyncio.gather(poll, return_exceptions=True)
        await submit
        if isinstance(answer, grpc.aio.AioRpcError):
            assert answer.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        if isinstance(answer, BaseException) or not answer.HasField("activation"):
            answer = await link.poll(agent, 3, executor_id="here")
            assert answer.HasField("activation"), f"round {number}: leased to nobody"
        fence = answer.activation.fence
        await link.answer(fence)


async def test_an_executor_with_an_answer_lost_gets_it_again_by_its_request_id(link: Link):
    session = unique("again")
    await link.submit(session)
    fence = (await link.lease(session)).fence
    await link.commit(fence, reserve(), request_id="c1")
    first = await link.answer_reserved(fence, request_id="c2")
    again = await link.answer_reserved(fence, request_id="c2")
    assert again.replayed
    assert again.fence_lost
    assert again.sequence == first.sequence
    assert again.results == first.results
    error = await refused(link.answer_reserved(fence, "another", request_id="c2"))
    assert error.reason == "REQUEST_ID_REUSED"
    assert len(await link.messages(session)) == 2
    # What was never recorded is stale.
    error = await refused(link.answer_reserved(fence, request_id="c3"))
    assert error.reason == "STALE_ACTIVATION"


async def test_a_commit_is_all_or_none(link: Link):
    session = unique("all")
    await link.submit(session)
    fence = (await link.lease(session)).fence
    before = (await link.live(session)).sequence
    error = await refused(link.commit(fence, step("never reserved")))
    assert error.reason == "OPERATION_INVALID"
    await link.commit(fence, reserve())
    after = (await link.live(session)).sequence
    error = await refused(link.commit(fence, step("one"), step("two")))
    assert (error.reason, error.metadata["operation_index"]) == ("OPERATION_INVALID", "1")
    assert (await link.live(session)).sequence == after > before
    assert len(await link.messages(session)) == 1
    await link.answer_reserved(fence)


async def test_a_run_ends_where_its_steps_are_used_up(link: Link):
    session = unique("budget")
    options = run_pb2.RunOptions(limits=run_pb2.RunLimits(max_model_steps=1))
    await link.submit(session, run_options=options)
    await link.submit(session, "next", mode=MODE.MODE_FOLLOW_UP)
    first = await link.lease(session)
    await link.commit(first.fence, reserve())
    await link.commit(first.fence, release=pb.Release())
    second = await link.lease(session)
    assert second.reserved_step == 1, "a reservation is kept, and buys no second one"
    answer = await link.commit(second.fence, reserve())
    assert answer.results[0].reserve_model_step.step == 1
    await link.submit(session, "a steer that no step is left for", mode=MODE.MODE_STEER)
    done = await link.answer_reserved(second.fence)
    assert done.outcome_applied
    following = await link.lease(session)
    assert following.fence.run_id != second.fence.run_id
    await link.answer(following.fence)
    error = await refused(link.commit(second.fence))
    assert error.reason == "STALE_ACTIVATION"
