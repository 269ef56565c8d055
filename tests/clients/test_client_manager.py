"""One session's handle, and its history."""

import asyncio

import grpc
import pytest
from client_fakes import FakeServer, answering, refuse
from runlane import (
    ManagerClosedError,
    RunOptions,
    SessionHistory,
    SessionManager,
    SubmissionSettled,
    TransportError,
)
from runlane.v1 import event_pb2, message_pb2, run_pb2, session_pb2, submission_pb2
from runlane.v1 import history_service_pb2 as history_pb
from runlane.v1 import session_service_pb2 as pb

pytestmark = pytest.mark.asyncio
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
Sub = submission_pb2.Submission


@pytest.fixture
def server_with_session(server: FakeServer) -> FakeServer:
    count = 0

    async def submit(request, context):
        nonlocal count
        count += 1
        steers = request.mode == Sub.MODE_STEER
        started = request.mode in {Sub.MODE_UNSPECIFIED, Sub.MODE_START}
        submission = Sub(
            submission_id=f"sub_{count}",
            session_id=request.session_id,
            run_id="run_1" if started or steers else f"run_{count}",
            mode=request.mode or Sub.MODE_START,
            route=Sub.ROUTE_RUN if started else Sub.ROUTE_STEER if steers else Sub.ROUTE_FOLLOW_UP,
            state=Sub.STATE_DELIVERED if started else Sub.STATE_PENDING,
        )
        return pb.SubmitResponse(submission=submission, sequence=10 + count)

    server.handlers["CreateSession"] = answering(
        pb.CreateSessionResponse(session=session_pb2.Session(session_id="main"), sequence=1)
    )
    server.handlers["GetLiveState"] = answering(
        pb.GetLiveStateResponse(live_state=session_pb2.LiveState(sequence=7))
    )
    server.handlers["Submit"] = submit
    server.handlers["WithdrawSubmission"] = answering(pb.WithdrawSubmissionResponse())
    server.handlers["InterruptRun"] = answering(
        pb.InterruptRunResponse(run=run_pb2.Run(run_id="run_1"))
    )
    server.handlers["WaitRun"] = answering(
        history_pb.WaitRunResponse(run=run_pb2.Run(phase=run_pb2.Run.PHASE_TERMINAL))
    )
    return server


async def test_receipts_print_as_words(server_with_session, client):
    manager = SessionManager(client, "main", agent="demo")
    first = await manager.submit("one")
    steer = await manager.submit("two", mode="steer")
    follow_up = await manager.submit("three", mode="follow_up")
    assert f"{first.state} {steer.state} {follow_up.state}" == "delivered pending pending"
    assert f"{first.route} {steer.route} {follow_up.route}" == "run steer follow_up"
    assert steer.run_id == first.run_id
    assert follow_up.run_id != first.run_id


async def test_the_session_is_made_once_on_first_use(server_with_session, client):
    server = server_with_session
    manager = SessionManager(client, "main", agent="demo")
    assert not server.calls
    await asyncio.gather(manager.submit("a"), manager.submit("b", mode="queue"))
    await manager.snapshot()
    (request,) = server.calls["CreateSession"]
    assert request.session_id == "main"
    assert request.default_agent == "demo"
    assert request.if_exists == pb.CreateSessionRequest.IF_EXISTS_RETURN


async def test_a_failed_creation_is_made_again_at_the_next_use(server_with_session, client):
    server = server_with_session
    works = server.handlers["CreateSession"]

    async def fails(request, context):
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")

    server.handlers["CreateSession"] = fails
    manager = SessionManager(client, "main")
    with pytest.raises(TransportError):
        await manager.submit("a")
    server.handlers["CreateSession"] = works
    assert (await manager.submit("a")).submission_id


async def test_options_go_to_runs_and_never_to_steers(server_with_session, client):
    server = server_with_session
    manager = SessionManager(client, "main", agent="demo", options=RunOptions(model="m"))
    await manager.submit("a")
    await manager.submit("b", mode="steer")
    await manager.submit("c", mode="queue", options={"agent": "other"})
    await manager.submit("d", mode="steer", options={"model": "x"})
    first, steer, queued, odd = server.calls["Submit"]
    assert (first.run_options.agent, first.run_options.model) == ("demo", "m")
    assert not steer.HasField("run_options")
    assert (queued.run_options.agent, queued.run_options.model) == ("other", "")
    assert odd.run_options.model == "x"


async def test_events_begin_where_the_session_stood_at_the_call(server_with_session, client):
    server = server_with_session
    asked = asyncio.Event()
    go_on = asyncio.Event()

    async def live_state(request, context):
        asked.set()
        await go_on.wait()
        return pb.GetLiveStateResponse(live_state=session_pb2.LiveState(sequence=7))

    async def stream(request, context):
        event = event_pb2.Event(
            sequence=request.after_sequence + 1, type=event_pb2.Event.TYPE_RUN_CREATED
        )
        await context.write(pb.StreamEventsResponse(batch=pb.EventBatch(events=[event])))
        await asyncio.Event().wait()

    server.handlers["GetLiveState"] = live_state
    server.handlers["StreamEvents"] = stream
    manager = SessionManager(client, "main")
    # The first call makes the session, and its answer says where that stands.
    fresh = manager.events()
    assert (await anext(fresh)).sequence == 2
    later = manager.events()
    submit = asyncio.create_task(manager.submit("a"))
    await asyncio.wait_for(asked.wait(), 10)
    assert not server.calls["Submit"]
    go_on.set()
    await submit
    assert (await anext(later)).sequence == 8
    past = manager.events(after_sequence=0)
    assert (await anext(past)).sequence == 1
    await manager.close()
    for stream_ in (fresh, later, past):
        with pytest.raises(StopAsyncIteration):
            await anext(stream_)


async def test_closing_detaches_and_cancels_nothing(server_with_session, client):
    server = server_with_session
    manager = SessionManager(client, "main")
    await manager.submit("a")
    await manager.submit("b", mode="queue")
    await manager.close()
    await manager.close()
    assert not server.calls["WithdrawSubmission"]
    assert not server.calls["InterruptRun"]
    for use in (manager.submit("c"), manager.snapshot(), manager.interrupt(), manager.wait("r")):
        with pytest.raises(ManagerClosedError):
            await use
    with pytest.raises(ManagerClosedError):
        manager.events()


async def test_closing_with_cancel_takes_back_interrupts_and_waits(server_with_session, client):
    server = server_with_session

    async def withdraw(request, context):
        if request.submission_id == "sub_2":
            await refuse(context, PRECONDITION, "SUBMISSION_SETTLED")
        return pb.WithdrawSubmissionResponse()

    server.handlers["WithdrawSubmission"] = withdraw
    manager = SessionManager(client, "main")
    await manager.submit("a")
    await manager.submit("b", mode="steer")
    await manager.submit("c", mode="follow_up")
    await manager.close(cancel_run=True)
    withdrawn = [request.submission_id for request in server.calls["WithdrawSubmission"]]
    assert withdrawn == ["sub_2", "sub_3"]
    assert server.calls["InterruptRun"][0].session_id == "main"
    assert server.calls["WaitRun"][0].run_id == "run_1"


async def test_what_was_queued_is_forgotten_once_it_has_settled(
    server_with_session, client, monkeypatch
):
    monkeypatch.setattr("runlane._manager._QUEUED_ROOM", 4)
    server = server_with_session
    looks = 0

    async def live_state(request, context):
        """The newest two still wait; at first the server is asked in vain."""
        nonlocal looks
        looks += 1
        if looks == 1:
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "FEATURE_DISABLED")
        count = len(server.calls["Submit"])
        pending = [Sub(submission_id=f"sub_{number}") for number in (count - 1, count)]
        state = session_pb2.LiveState(sequence=7, pending_submissions=pending)
        return pb.GetLiveStateResponse(live_state=state)

    server.handlers["GetLiveState"] = live_state
    manager = SessionManager(client, "main")
    most = 0
    for number in range(40):
        await manager.submit(f"{number}", mode="queue")
        most = max(most, len(manager._queued))
    assert most <= 11
    assert looks <= 20
    await manager.close(cancel_run=True)
    withdrawn = [request.submission_id for request in server.calls["WithdrawSubmission"]]
    assert {"sub_39", "sub_40"} <= set(withdrawn)
    assert len(withdrawn) <= 5


async def test_closing_again_goes_on_where_it_failed(server_with_session, client):
    server = server_with_session
    works = server.handlers["InterruptRun"]

    async def fails(request, context):
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")

    manager = SessionManager(client, "main")
    await manager.submit("a", mode="queue")
    events = manager.events()
    server.handlers["InterruptRun"] = fails
    with pytest.raises(TransportError):
        await manager.close(cancel_run=True)
    assert events.closed
    server.handlers["InterruptRun"] = works
    await manager.close(cancel_run=True)
    await manager.close(cancel_run=True)
    assert len(server.calls["WithdrawSubmission"]) == 1
    assert len(server.calls["WaitRun"]) == 2


async def test_closing_with_cancel_waits_for_a_submit_on_its_way(server_with_session, client):
    server = server_with_session
    works = server.handlers["Submit"]
    go_on = asyncio.Event()

    async def slow(request, context):
        await go_on.wait()
        return await works(request, context)

    server.handlers["Submit"] = slow
    manager = SessionManager(client, "main")
    submit = asyncio.create_task(manager.submit("a", mode="queue"))
    await server.called("Submit")
    submit.cancel()
    close = asyncio.create_task(manager.close(cancel_run=True))
    go_on.set()
    await close
    assert [r.submission_id for r in server.calls["WithdrawSubmission"]] == ["sub_1"]
    with pytest.raises(asyncio.CancelledError):
        await submit


@pytest.mark.parametrize(
    ("code", "reason"),
    [(PRECONDITION, "SESSION_IDLE"), (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")],
)
async def test_closing_with_nothing_to_cancel(server_with_session, client, code, reason):
    server = server_with_session

    async def interrupt(request, context):
        await refuse(context, code, reason)

    server.handlers["InterruptRun"] = interrupt
    await SessionManager(client, "main").close(cancel_run=True)
    assert not server.calls["CreateSession"]
    assert not server.calls["WaitRun"]


async def test_a_withdrawn_next_run_is_not_waited_for(server_with_session, client):
    async def wait(request, context):
        await refuse(context, PRECONDITION, "SUBMISSION_SETTLED", submission_id="sub_1")

    server_with_session.handlers["WaitRun"] = wait
    async with SessionManager(client, "main") as manager:
        with pytest.raises(SubmissionSettled):
            await manager.run("a", mode="queue")


async def test_history(server: FakeServer, client):
    run = run_pb2.Run(run_id="run_1", phase=run_pb2.Run.PHASE_TERMINAL)
    header = history_pb.HistoryHeader(run=run, message_count=2, digest="d")
    texts = ["one", "two"]
    tries = 0

    async def history_at_run(request, context):
        nonlocal tries
        tries += 1
        await context.write(history_pb.GetHistoryAtRunResponse(header=header))
        for number, text in enumerate(texts, start=1):
            message = message_pb2.Message(number=number, content=[message_pb2.Block(text=text)])
            await context.write(history_pb.GetHistoryAtRunResponse(messages=[message]))
            if tries == 1:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "cut")

    server.handlers["ListForkPoints"] = answering(
        history_pb.ListForkPointsResponse(
            fork_points=[history_pb.ForkPoint(run_id="run_1")], next_page_token="n"
        )
    )
    server.handlers["GetHistoryAtRun"] = history_at_run
    source = session_pb2.ForkSource(session_id="main", run_id="run_1")
    server.handlers["ForkSession"] = answering(
        history_pb.ForkSessionResponse(
            session=session_pb2.Session(session_id="ses_2", forked_from=source),
            message_count=2,
            digest="d",
        )
    )
    history = SessionHistory(client)
    page = await history.list_fork_points("main", limit=1)
    assert (len(page.items), page.next_cursor) == (1, "n")
    seen = await history.get_at_run("run_1")
    assert [message.text for message in seen.messages] == texts
    assert seen.digest == "d"
    fork = await history.fork("run_1")
    assert (fork.session_id, fork.forked_from_run_id) == ("ses_2", "run_1")
    assert fork.submission is None
    assert server.calls["ForkSession"][0].request_id
    assert not server.calls["ForkSession"][0].HasField("default_agent")
    with pytest.raises(ValueError, match="input"):
        await history.fork("run_1", options={"model": "m"})
