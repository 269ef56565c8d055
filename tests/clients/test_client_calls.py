"""Calls: deadlines, repeats with one request id, and what is never repeated."""

import asyncio

import grpc
import grpc.aio
import pytest
from client_fakes import FakeServer, answering, forever, refuse
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from runlane import (
    Client,
    ClientClosedError,
    Draining,
    QueueFull,
    RunOptions,
    SessionBusy,
    StopReason,
    TextBlock,
    TransportError,
)
from runlane.v1 import history_service_pb2, message_pb2, run_pb2, session_pb2, submission_pb2
from runlane.v1 import session_service_pb2 as pb

pytestmark = pytest.mark.asyncio
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def submitted() -> pb.SubmitResponse:
    submission = submission_pb2.Submission(
        submission_id="sub_1",
        session_id="main",
        run_id="run_1",
        mode=submission_pb2.Submission.MODE_START,
        route=submission_pb2.Submission.ROUTE_RUN,
        state=submission_pb2.Submission.STATE_DELIVERED,
    )
    return pb.SubmitResponse(submission=submission, sequence=4)


def failing(times: int, fail, then):
    count = 0

    async def handler(request, context):
        nonlocal count
        count += 1
        if count <= times:
            await fail(context)
        return await then(request, context)

    return handler


@pytest.mark.parametrize("reason", [None, "CANCELLED", "DRAINING", "STORE_UNAVAILABLE"])
async def test_a_mutation_is_repeated_with_its_request_id(server: FakeServer, client, reason):
    async def fail(context):
        if reason is None:
            await context.abort(UNAVAILABLE, "gone")
        if reason == "CANCELLED":
            # What a server that goes away may say, though nobody cancelled the call.
            await context.abort(grpc.StatusCode.CANCELLED, "gone")
        await refuse(context, UNAVAILABLE, reason)

    server.handlers["Submit"] = failing(3, fail, answering(submitted()))
    receipt = await client.submit("hello", "main")
    assert receipt.submission_id == "sub_1"
    ids = [request.request_id for request in server.calls["Submit"]]
    assert len(ids) == 4
    assert len(set(ids)) == 1
    assert ids[0][14] == "7"
    await client.submit("hello", "main")
    assert server.calls["Submit"][-1].request_id != ids[0]


async def test_a_request_id_that_is_given_is_used(server: FakeServer, client):
    server.handlers["Submit"] = answering(submitted())
    await client.submit("hello", "main", request_id="mine")
    assert server.calls["Submit"][0].request_id == "mine"


async def test_every_call_has_a_deadline_and_names_the_client(server: FakeServer, client):
    left = []

    async def handler(request, context):
        left.append(context.time_remaining())
        return submitted()

    server.handlers["Submit"] = handler
    await client.submit("hello", "main")
    # gRPC rounds a deadline up on its way.
    assert 15 < left[0] <= 20.5
    assert server.metadata["Submit"][0]["runlane-client"] == "test"


async def test_refusals_are_not_repeated(server: FakeServer, client):
    async def handler(request, context):
        await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, "SESSION_BUSY", run_id="run_9")

    server.handlers["Submit"] = handler
    with pytest.raises(SessionBusy) as caught:
        await client.submit("hello", "main")
    assert caught.value.metadata["run_id"] == "run_9"
    assert len(server.calls["Submit"]) == 1

    async def full(request, context):
        await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")

    server.handlers["Submit"] = full
    with pytest.raises(QueueFull):
        await client.submit("hello", "main", mode="queue")
    assert len(server.calls["Submit"]) == 2


async def test_a_repeat_that_the_deadline_has_no_room_for_is_not_made(server: FakeServer, client):
    async def handler(request, context):
        retry = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=100))
        await refuse(context, UNAVAILABLE, "DRAINING", retry)

    server.handlers["Submit"] = handler
    with pytest.raises(Draining) as caught:
        await client.submit("hello", "main")
    assert caught.value.retry_after == 100
    assert len(server.calls["Submit"]) == 1


async def test_a_pushback_below_zero_forbids_repeats(server: FakeServer, client):
    async def handler(request, context):
        await context.abort(
            UNAVAILABLE, "no", trailing_metadata=(("grpc-retry-pushback-ms", "-1"),)
        )

    server.handlers["Submit"] = handler
    with pytest.raises(TransportError):
        await client.submit("hello", "main")
    assert len(server.calls["Submit"]) == 1


async def test_the_deadline_of_the_call_ends_it(server: FakeServer):
    server.handlers["GetSession"] = forever
    async with Client(server.target, timeout=0.2) as client:
        with pytest.raises(TransportError) as caught:
            await client.get_session("main")
    assert caught.value.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(server.calls["GetSession"]) == 1


async def test_a_restart_of_the_server_is_survived(server: FakeServer, client):
    server.handlers["Submit"] = forever
    call = asyncio.create_task(client.submit("hello", "main"))
    first = await server.called("Submit")
    server.handlers["Submit"] = answering(submitted())
    await server.restart()
    assert (await call).run_id == "run_1"
    assert server.calls["Submit"][-1].request_id == first.request_id


async def test_closing_ends_calls_and_refuses_more(server: FakeServer):
    server.handlers["GetSession"] = forever
    client = Client(server.target)
    call = asyncio.create_task(client.get_session("main"))
    await server.called("GetSession")
    await client.aclose()
    await client.aclose()
    with pytest.raises(ClientClosedError):
        await call
    with pytest.raises(ClientClosedError):
        await client.get_session("main")


async def test_cancelling_the_caller_cancels_the_call(server: FakeServer, client):
    gone = asyncio.Event()

    async def handler(request, context):
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    server.handlers["GetSession"] = handler
    call = asyncio.create_task(client.get_session("main"))
    await server.called("GetSession")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(gone.wait(), 10)


def ended(**outcome) -> run_pb2.Run:
    return run_pb2.Run(
        run_id="run_1",
        session_id="main",
        phase=run_pb2.Run.PHASE_TERMINAL,
        outcome=run_pb2.RunOutcome(stop_reason=run_pb2.Run.STOP_REASON_COMPLETED, **outcome),
    )


async def test_start_submits_and_waits_as_often_as_it_takes(server: FakeServer, client):
    answers = [
        history_service_pb2.WaitRunResponse(),
        history_service_pb2.WaitRunResponse(run=run_pb2.Run(phase=run_pb2.Run.PHASE_ACTIVE)),
        history_service_pb2.WaitRunResponse(
            run=ended(output_message_number=2),
            output=message_pb2.Message(
                number=2,
                content=[message_pb2.Block(text="a"), message_pb2.Block(text="b")],
            ),
        ),
    ]

    async def wait(request, context):
        assert context.time_remaining() > request.wait_duration.seconds * 1.1
        return answers.pop(0)

    server.handlers["Submit"] = answering(submitted())
    server.handlers["WaitRun"] = wait
    result = await client.start("hello", options={"agent": "writer", "max_model_steps": 3})
    request = server.calls["Submit"][0]
    assert request.HasField("create_session")
    assert request.mode == submission_pb2.Submission.MODE_UNSPECIFIED
    assert request.run_options.agent == "writer"
    assert request.run_options.limits.max_model_steps == 3
    assert result.text == "ab"
    assert result.stop_reason is StopReason.COMPLETED
    assert str(result.run.stop_reason) == "completed"
    assert len(server.calls["WaitRun"]) == 3


async def test_a_wait_that_runs_out_is_a_timeout_of_python(server: FakeServer, client):
    server.handlers["WaitRun"] = answering(history_service_pb2.WaitRunResponse())
    with pytest.raises(TimeoutError):
        await client.wait_run("run_1", timeout=0)
    assert server.calls["WaitRun"][0].wait_duration == Duration()


async def test_input_is_text_a_block_or_a_list_of_them(server: FakeServer, client):
    server.handlers["Submit"] = answering(submitted())
    await client.submit(["a", TextBlock(text="b"), message_pb2.Block(text="c")], "main")
    assert [block.text for block in server.calls["Submit"][0].content] == ["a", "b", "c"]
    await client.submit(TextBlock(text="d", metadata={"k": "v"}), "main")
    assert server.calls["Submit"][1].content[0].metadata == {"k": "v"}
    with pytest.raises(TypeError):
        await client.submit([object()], "main")


async def test_words_that_do_not_exist_are_refused_before_the_call(server: FakeServer, client):
    with pytest.raises(ValueError, match="steer"):
        await client.submit("hello", "main", mode="steal")
    with pytest.raises(ValueError, match="no kind of event"):
        client.events("main", types=["run.exploded"])
    with pytest.raises(ValueError, match="colour"):
        await client.submit("hello", "main", options={"colour": "red"})
    assert not server.calls


async def test_options_are_written_as_given(server: FakeServer, client):
    server.handlers["Submit"] = answering(submitted())
    options = RunOptions(model="m", cancel_grace=0, request_options={"temperature": 0})
    await client.submit("hello", "main", options=options)
    written = server.calls["Submit"][0].run_options
    assert written.model == "m"
    assert written.HasField("cancel_grace_duration")
    assert written.request_options_json == '{"temperature": 0}'


async def test_pages_and_their_cursor(server: FakeServer, client):
    page = history_service_pb2.ListSessionsResponse(
        sessions=[session_pb2.Session(session_id="a")], next_page_token="next"
    )
    server.handlers["ListSessions"] = answering(page)
    first = await client.list_sessions(limit=1, labels={"k": "v"}, state="open")
    assert [session.session_id for session in first.items] == ["a"]
    assert first.next_cursor == "next"
    await client.list_sessions(after=first.next_cursor)
    assert server.calls["ListSessions"][1].page_token == "next"
    server.handlers["ListSessions"] = answering(history_service_pb2.ListSessionsResponse())
    assert (await client.list_sessions()).next_cursor is None


async def test_the_lane_is_the_live_run(server: FakeServer, client):
    session = session_pb2.Session(session_id="main", current_run_id="run_1")
    server.handlers["GetSession"] = answering(pb.GetSessionResponse(session=session))
    assert await client.load_session_lane("main") == "run_1"
    session.current_run_id = ""
    server.handlers["GetSession"] = answering(pb.GetSessionResponse(session=session))
    assert await client.load_session_lane("main") is None


async def test_a_stream_of_messages_goes_on_after_the_last_one(server: FakeServer, client):
    async def stream(request, context):
        first = request.after_number + 1
        numbers = range(first, first + 2)
        await context.write(
            history_service_pb2.StreamMessagesResponse(
                messages=[message_pb2.Message(number=number) for number in numbers]
            )
        )
        if first < 5:
            await context.abort(UNAVAILABLE, "cut")

    server.handlers["StreamMessages"] = stream
    numbers = [message.number async for message in client.stream_messages("main")]
    assert numbers == [1, 2, 3, 4, 5, 6]
    # Who takes longer over a message than a loss may last has lost nothing by that.
    patience = 0.2
    async with Client(server.target, reconnect_timeout=patience) as impatient:
        slowly = []
        async for message in impatient.stream_messages("main"):
            slowly.append(message.number)
            await asyncio.sleep(patience)
    assert slowly == numbers
