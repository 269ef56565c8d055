"""One run at a time in a session, and one effect of a request_id."""

import asyncio

import grpc
import pytest
from runlane.v1 import session_service_pb2, submission_pb2
from support_server import (
    CANCELLED,
    EVENT,
    MODE,
    Link,
    dense,
    fence_of,
    refused,
    reserve,
    told,
    unique,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]

SUBMISSION = submission_pb2.Submission


async def test_one_of_100_parallel_starts_is_accepted_while_its_run_is_held(link: Link):
    session = unique("starts")
    await link.create(session)
    poll = asyncio.create_task(link.lease(session))
    calls = [link.submit(session, f"input {number}", mode=MODE.MODE_START) for number in range(100)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    accepted = [one for one in answers if not isinstance(one, BaseException)]
    busy = [told(one) for one in answers if isinstance(one, grpc.aio.AioRpcError)]
    assert (len(accepted), len(busy)) == (1, 99)
    run_id = accepted[0].submission.run_id
    leased = await poll
    assert leased.fence.run_id == run_id
    for one in busy:
        assert (one.code, one.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "SESSION_BUSY")
        assert one.metadata["run_id"] == run_id
        assert one.metadata["phase"] == "ACTIVE"
        assert one.metadata["activation_id"] == leased.fence.activation_id
        assert "AUTO" in one.metadata["allowed_commands"]
        assert "input" not in one.everything
    live = await link.live(session)
    assert live.run.run_id == run_id
    assert [one.run_id for one in live.messages] == [run_id]
    await link.answer(leased.fence)
    events = dense(await link.events(session))
    assert sum(one.type == EVENT.TYPE_RUN_CREATED for one in events) == 1


@pytest.mark.parametrize("gently", [False, True], ids=["SIGKILL", "SIGTERM"])
async def test_50_parallel_submits_of_one_request_id_make_one_run_also_after_a_restart(
    server, gently
):
    session = unique("same")
    answers = []
    for round_number in range(2):
        async with Link(server.address) as link:
            calls = [link.submit(session, request_id="the-one") for _ in range(50)]
            answers += await asyncio.gather(*calls)
            sequence = (await link.live(session)).sequence
            created = [
                one for one in await link.events(session) if one.type == EVENT.TYPE_RUN_CREATED
            ]
            assert len(created) == 1
            assert (await link.session(session)).message_count == 1
        assert [one.replayed for one in answers].count(False) == 1
        if round_number == 0:
            before = sequence
            server.restart(gently=gently)
    assert sequence == before
    for one in answers:
        one.replayed = False
    assert all(one == answers[0] for one in answers)


async def test_a_request_id_with_another_text_is_refused_without_a_word_of_the_first(link: Link):
    session = unique("reused")
    await link.submit(session, "a secret of the first caller", request_id="reused")
    before = (await link.live(session)).sequence
    error = await refused(link.submit(session, "something else", request_id="reused"))
    assert (error.code, error.reason) == (grpc.StatusCode.ALREADY_EXISTS, "REQUEST_ID_REUSED")
    for word in ("secret", "first caller", "something else"):
        assert word not in error.everything
    assert (await link.live(session)).sequence == before
    # The same words with another mode are another request too.
    error = await refused(
        link.submit(
            session,
            "a secret of the first caller",
            request_id="reused",
            mode=MODE.MODE_AUTO,
        )
    )
    assert error.reason == "REQUEST_ID_REUSED"


async def test_a_request_id_reused_while_the_first_call_is_in_flight_is_refused(link: Link):
    for _ in range(20):
        session = unique("in-flight")
        calls = [link.submit(session, words, request_id="both") for words in ("one", "other")]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        errors = [told(one) for one in answers if isinstance(one, grpc.aio.AioRpcError)]
        assert [one.reason for one in errors] == ["REQUEST_ID_REUSED"]


async def test_an_empty_request_id_deduplicates_nothing(link: Link):
    session = unique("empty")
    answers = [
        await link.submit(session, "the same", request_id="", mode=MODE.MODE_QUEUE)
        for _ in range(3)
    ]
    assert len({one.submission.run_id for one in answers}) == 3
    assert len({one.submission.submission_id for one in answers}) == 3
    assert not any(one.replayed for one in answers)


async def test_a_replay_is_answered_while_the_lane_is_busy_with_another_run(link: Link):
    session = unique("busy-replay")
    first = await link.submit(session, "one", request_id="first", mode=MODE.MODE_START)
    leased = await link.lease(session)
    await link.answer(leased.fence)
    await link.submit(session, "two", mode=MODE.MODE_START)
    again = await link.submit(session, "one", request_id="first", mode=MODE.MODE_START)
    assert again.replayed
    assert again.submission == first.submission
    assert again.sequence == first.sequence


async def test_a_refused_request_id_is_decided_anew(link: Link):
    session = unique("refused")
    await link.submit(session, "one")
    error = await refused(link.submit(session, "two", request_id="later", mode=MODE.MODE_START))
    assert error.reason == "SESSION_BUSY"
    await link.answer((await link.lease(session)).fence)
    answer = await link.submit(session, "two", request_id="later", mode=MODE.MODE_START)
    assert not answer.replayed


async def test_accepted_steers_that_race_the_end_of_their_run_have_one_end_each(link: Link):
    for number in range(20):
        session = unique("steers")
        await link.submit(session, "work")
        leased = await link.lease(session)
        await link.commit(leased.fence, reserve())
        on_miss = SUBMISSION.ON_MISS_FOLLOW_UP if number % 2 else SUBMISSION.ON_MISS_FAIL
        steers = [
            link.submit(session, f"steer {index}", mode=MODE.MODE_STEER, on_miss=on_miss)
            for index in range(4)
        ]
        finish = link.answer_reserved(leased.fence)
        *answers, _ = await asyncio.gather(*steers, finish, return_exceptions=True)
        accepted = [one.submission for one in answers if not isinstance(one, BaseException)]
        for one in answers:
            if isinstance(one, grpc.aio.AioRpcError):
                assert told(one).reason == "SESSION_IDLE"
        await end_all(link, session)
        events = dense(await link.events(session))
        ends: dict[str, list[str]] = {}
        for event in events:
            body = event.WhichOneof("body")
            if body in {"submission_delivered", "submission_failed", "submission_withdrawn"}:
                ends.setdefault(getattr(event, body).submission_id, []).append(body)
        for one in accepted:
            assert len(ends[one.submission_id]) == 1, (number, ends)


async def end_all(link: Link, session: str) -> None:
    """Ends what is live in a session, and what follows."""
    while (live := await link.live(session)).HasField("run"):
        run = live.run
        if run.activation.state == run.activation.STATE_QUEUED:
            await link.answer((await link.lease(session)).fence)
            continue
        await link.answer(fence_of(run))


async def test_auto_is_never_refused_across_ends_of_runs(link: Link):
    session = unique("auto")
    over = asyncio.Event()

    async def work():
        while not over.is_set():
            answer = await link.poll(session, 0.2)
            if not answer.HasField("activation"):
                continue
            fence = answer.activation.fence
            while True:
                await link.commit(fence, reserve())
                done = await link.answer_reserved(fence)
                if done.outcome_applied:
                    break

    worker = asyncio.create_task(work())
    routes = set()
    for number in range(150):
        answer = await link.submit(
            session,
            f"input {number}",
            mode=MODE.MODE_AUTO,
            on_miss=SUBMISSION.ON_MISS_FOLLOW_UP,
        )
        routes.add(answer.submission.route)
        if number % 50 == 49:  # a queue has a bound, and the worker may be slow
            while run_id := (await link.session(session)).current_run_id:
                await link.wait_run(run_id)
    over.set()
    await worker
    assert SUBMISSION.ROUTE_RUN in routes
    inputs = [one for one in await link.messages(session) if one.role == one.ROLE_USER]
    assert sorted(one.content[0].text for one in inputs) == sorted(
        f"input {number}" for number in range(150)
    )


async def test_a_steer_goes_to_the_run_at_work_and_a_follow_up_to_the_next(link: Link):
    session = unique("mix")
    await link.submit(session, "work")
    leased = await link.lease(session)
    await link.submit(session, "after it", mode=MODE.MODE_FOLLOW_UP)
    await link.submit(session, "meanwhile", mode=MODE.MODE_STEER)
    await link.commit(leased.fence, reserve())
    first = await link.answer_reserved(leased.fence)
    assert not first.outcome_applied
    assert [one.content[0].text for one in first.delivered] == ["meanwhile"]
    await link.commit(leased.fence, reserve())
    assert (await link.answer_reserved(leased.fence)).outcome_applied
    following = await link.lease(session, context_bytes_max=100_000)
    assert following.context.messages[-1].content[0].text == "after it"


async def test_replace_makes_the_next_run_ahead_of_follow_ups(link: Link):
    session = unique("replace")
    await link.submit(session, "work")
    leased = await link.lease(session)
    await link.submit(session, "follow up", mode=MODE.MODE_FOLLOW_UP)
    receipt = await link.submit(session, "instead", mode=MODE.MODE_REPLACE)
    assert receipt.submission.state == SUBMISSION.STATE_PENDING
    control = (await link.heartbeat(leased.fence)).control
    assert control.cancel_requested
    await link.commit(leased.fence, finish=CANCELLED)
    order = []
    for _ in range(2):
        run = await link.lease(session, context_bytes_max=100_000)
        order.append(run.context.messages[-1].content[0].text)
        await link.answer(run.fence)
    assert order == ["instead", "follow up"]


async def test_a_withdrawn_input_never_runs_and_a_withdrawal_races_delivery_to_one_end(link: Link):
    for _ in range(20):
        session = unique("withdraw")
        await link.submit(session, "work")
        leased = await link.lease(session)
        queued = (await link.submit(session, "next", mode=MODE.MODE_FOLLOW_UP)).submission
        await link.commit(leased.fence, reserve())
        request = session_service_pb2.WithdrawSubmissionRequest(submission_id=queued.submission_id)
        withdrawn, _ = await asyncio.gather(
            link.sessions.WithdrawSubmission(request, timeout=10),
            link.answer_reserved(leased.fence),
            return_exceptions=True,
        )
        live = await link.live(session)
        if isinstance(withdrawn, grpc.aio.AioRpcError):
            assert told(withdrawn).reason == "SUBMISSION_SETTLED"
            assert live.run.run_id == queued.run_id
        else:
            assert withdrawn.submission.state == SUBMISSION.STATE_WITHDRAWN
            assert not live.HasField("run")
            assert len(live.messages) == 2
