import asyncio

import grpc
import pytest
from fakes import FENCE, FakeApp, details, event_bytes, serving
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from runlane.v1 import (
    event_pb2,
    executor_service_pb2,
    executor_service_pb2_grpc,
    history_service_pb2,
    history_service_pb2_grpc,
    message_pb2,
    run_pb2,
    server_service_pb2,
    server_service_pb2_grpc,
    session_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
    submission_pb2,
)
from runlane_server.core.commands import CommitModelStep, Finish, FinishKind, ReserveModelStep
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.words import Mode, OnMiss
from runlane_server.store.errors import StoreCorrupt, StoreUnavailable
from runlane_server.transport.server import GrpcServer, GrpcSettings

pytestmark = pytest.mark.asyncio
HELLO = [message_pb2.Block(text="hello")]
PB_FENCE = run_pb2.Fence(session_id="s", run_id="run_1", activation_id="act_1", epoch=1)


async def failing(call) -> tuple[grpc.aio.AioRpcError, dict]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value, details(caught.value)


async def test_the_calls_of_a_session():
    pb = session_service_pb2
    app = FakeApp()
    async with serving(app) as (_, channel):
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        answer = await stub.Submit(
            pb.SubmitRequest(session_id="s", content=HELLO, request_id="r"),
            metadata=(("runlane-client", "cli"), ("runlane-namespace", "default")),
        )
        assert answer.submission.submission_id == "sub_1"
        assert answer.submission.content_truncated
        assert not answer.submission.content
        assert answer.submission.request_id == "r"
        assert (answer.sequence, answer.session_created, answer.replayed) == (9, True, False)
        _, caller, session_id, command = app.asked[-1]
        assert (caller.namespace, caller.actor, caller.method) == (
            "default",
            "client:cli",
            "Submit",
        )
        assert (caller.request_id, len(caller.request_hash)) == ("r", 16)
        assert (session_id, command.mode, command.on_miss) == ("s", Mode.START, OnMiss.FAIL)
        assert command.options is None
        assert command.content.preview == "hello"

        created = await stub.CreateSession(pb.CreateSessionRequest(metadata_json="{}"))
        assert created.session.session_id == "s"
        assert created.session.labels == {"a": "b"}
        assert (created.created, created.sequence, created.replayed) == (True, 9, True)
        assert app.asked[-1][1].request_hash == b""
        assert (await stub.GetSession(pb.GetSessionRequest(session_id="s"))).session.etag == "r1"
        await stub.UpdateSession(pb.UpdateSessionRequest(session_id="s", display_name=""))
        command = app.asked[-1][3]
        assert (command.display_name, command.metadata_json) == ("", None)
        await stub.CloseSession(pb.CloseSessionRequest(session_id="s", cancel_run=True))
        assert app.asked[-1][3].cancel_run
        await stub.ReopenSession(pb.ReopenSessionRequest(session_id="s"))
        deleted = await stub.DeleteSession(pb.DeleteSessionRequest(session_id="s", force=True))
        assert (deleted.sequence, app.asked[-1][3].force) == (9, True)
        withdrawn = await stub.WithdrawSubmission(
            pb.WithdrawSubmissionRequest(submission_id="sub_1")
        )
        assert withdrawn.submission.state == submission_pb2.Submission.STATE_DELIVERED
        read = (await stub.GetSubmission(pb.GetSubmissionRequest(submission_id="sub_1"))).submission
        assert read.submission_id == "sub_1"
        assert read.mode == submission_pb2.Submission.MODE_START
        assert (read.content[0].text, read.metadata["k"], read.request_id) == ("hello", "v", "req")
        interrupted = await stub.InterruptRun(pb.InterruptRunRequest(run_id="run_1"))
        assert interrupted.settled
        assert interrupted.run.outcome.message_cutoff == 7
        live = (await stub.GetLiveState(pb.GetLiveStateRequest(session_id="s"))).live_state
        assert [message.number for message in live.messages] == [1, 2]
        assert live.first_message_number == 1
        assert live.run.options.limits.max_model_steps == 20
        assert live.pending_submissions[0].content_truncated
        assert list(live.allowed_commands) == [session_pb2.COMMAND_START]
        assert app.asked[-1][-2:] == (50, 0)
        agents = await stub.ListAgents(pb.ListAgentsRequest())
        assert agents.agents[0].leased_count == 3
        await stub.ListAgents(pb.ListAgentsRequest(page_token=agents.next_page_token))
        assert app.asked[-1] == ("list_agents", "default", "a", 50)


async def test_the_calls_of_history():
    pb = history_service_pb2
    app = FakeApp()
    async with serving(app) as (_, channel):
        stub = history_service_pb2_grpc.HistoryServiceStub(channel)
        page = await stub.ListSessions(pb.ListSessionsRequest())
        assert page.sessions[0].session_id == "s"
        await stub.ListSessions(
            pb.ListSessionsRequest(page_token=page.next_page_token, page_size=2000)
        )
        assert app.asked[-1][-2:] == ((5, "x"), 1000)
        assert (await stub.ListRuns(pb.ListRunsRequest(session_id="s"))).next_page_token == ""
        run = (await stub.GetRun(pb.GetRunRequest(run_id="run_1"))).run
        assert run.outcome.stop_reason == run_pb2.Run.STOP_REASON_COMPLETED
        assert not run.HasField("activation")
        assert run.usage.model_steps_reserved == 2
        waited = await stub.WaitRun(pb.WaitRunRequest(run_id="run_1", include_output=True))
        assert (waited.run.run_id, waited.output.number) == ("run_1", 1)
        listed = await stub.ListSubmissions(pb.ListSubmissionsRequest(session_id="s"))
        assert listed.submissions[0].content[0].text == "hi"
        events = await stub.ListEvents(pb.ListEventsRequest(session_id="s", after_sequence=1))
        assert [event.sequence for event in events.events] == [1, 2]
        assert events.events[1].message.number == 1
        await stub.ListEvents(
            pb.ListEventsRequest(
                session_id="s", after_sequence=1, page_token=events.next_page_token
            )
        )
        assert app.asked[-1][4] == 2
        messages = await stub.ListMessages(pb.ListMessagesRequest(session_id="s", before_number=0))
        assert [message.number for message in messages.messages] == [1, 2]
        assert app.asked[-1][3:5] == (None, 0)
        frames = [f async for f in stub.StreamMessages(pb.StreamMessagesRequest(session_id="s"))]
        assert frames[0].messages[1].content[0].text == "hello"
        points = await stub.ListForkPoints(pb.ListForkPointsRequest(session_id="s"))
        assert points.fork_points[0].message_count == 7
        frames = [f async for f in stub.GetHistoryAtRun(pb.GetHistoryAtRunRequest(run_id="run_1"))]
        assert (frames[0].header.message_count, frames[0].header.digest) == (2, "ab")
        assert frames[0].header.summary.text == "s"
        assert not frames[0].messages
        assert len(frames[1].messages) == 2
        forked = await stub.ForkSession(
            pb.ForkSessionRequest(run_id="run_1", input=pb.ForkInput(content=HELLO), request_id="r")
        )
        assert (forked.session.session_id, forked.digest, forked.message_count) == ("f", "0a0b", 7)
        assert forked.submission.request_id == "r"
        assert app.asked[-1][4].labels is None
        lineage = await stub.GetLineage(pb.GetLineageRequest(session_id="s"))
        assert (lineage.forks[0].session_id, lineage.ancestors[0].run_id) == ("f", "run_0")
        assert (lineage.parents[0].run_id, lineage.parents[0].depth) == ("run_up", 1)
        children = await stub.ListChildRuns(pb.ListChildRunsRequest(run_id="run_1"))
        assert (children.runs[0].run_id, bool(children.next_page_token)) == ("child", True)
        frames = [f async for f in stub.StreamRunEvents(pb.StreamRunEventsRequest(run_id="run_1"))]
        assert frames[0].events[0].sequence == 1
        assert app.asked[-1][-2:] == (True, False)


async def test_the_calls_of_an_executor():
    pb = executor_service_pb2
    app = FakeApp()
    async with serving(app) as (_, channel):
        stub = executor_service_pb2_grpc.ExecutorServiceStub(channel)
        polled = await stub.PollActivation(pb.PollActivationRequest(executor_id="e", agents=["a"]))
        assert polled.activation.fence == PB_FENCE
        assert [message.number for message in polled.activation.context.messages] == [1, 2]
        assert (polled.activation.reserved_step, polled.sequence) == (2, 4)
        assert app.asked[-1][1].actor == "executor:e"
        assert app.asked[-1][2:] == ("e", ["a"], 0.0, 30_000_000, 0)
        drained = await stub.DrainExecutor(pb.DrainExecutorRequest(executor_id="e"))
        assert drained.leased_count == 2
        beat = await stub.Heartbeat(pb.HeartbeatRequest(fence=PB_FENCE))
        assert beat.control.cancel_requested
        assert app.asked[-1][2] == FENCE
        committed = await stub.Commit(
            pb.CommitRequest(
                fence=PB_FENCE,
                operations=[
                    pb.Operation(
                        commit_model_step=pb.CommitModelStep(
                            content=HELLO, usage=run_pb2.Usage(input_tokens=3), model="m"
                        )
                    ),
                    pb.Operation(reserve_model_step=pb.ReserveModelStep()),
                ],
                finish=pb.Finish(completed=pb.Completed(output_json="[1]")),
            )
        )
        step, reserve = app.asked[-1][2].operations
        assert isinstance(step, CommitModelStep)
        assert (step.usage.input_tokens, step.model) == (3, "m")
        assert reserve == ReserveModelStep()
        assert app.asked[-1][2].outcome == Finish(FinishKind.COMPLETED, "[1]")
        assert committed.results[0].commit_model_step.message_number == 5
        assert (
            committed.results[1].reserve_model_step.state == pb.ReserveModelStepResult.STATE_GRANTED
        )
        assert [message.number for message in committed.delivered] == [1, 2]
        assert not committed.run.HasField("options")
        frames = [f async for f in stub.WatchActivation(pb.WatchActivationRequest(fence=PB_FENCE))]
        assert [frame.control.ended for frame in frames] == [False, True]
        frames = [
            f async for f in stub.StreamModelContext(pb.StreamModelContextRequest(fence=PB_FENCE))
        ]
        assert len(frames[0].messages) == 2
        assert frames[-1].end.message_count == 2
        delta = event_pb2.Delta(model_stream_id="m", step=1, kind=1, revision=1, append_text="x")
        published = await stub.PublishDeltas(
            iter(
                [
                    pb.PublishDeltasRequest(fence=PB_FENCE),
                    pb.PublishDeltasRequest(deltas=[delta] * 2),
                ]
            )
        )
        assert published.delta_count == 2
        assert app.asked[-1][3][0].activation_id == "act_1"
        _, found = await failing(stub.PublishDeltas(iter([])))
        assert found["BadRequest"].field_violations[0].field == "fence"


async def test_what_the_server_is():
    async with serving(FakeApp(), GrpcSettings(channelz=True)) as (_, channel):
        stub = server_service_pb2_grpc.ServerServiceStub(channel)
        info = await stub.GetServerInfo(server_service_pb2.GetServerInfoRequest())
        assert info.durability == server_service_pb2.GetServerInfoResponse.DURABILITY_PROCESS
        assert info.limits[0].unit == "items"
        for version in ("v1alpha", "v1"):
            call = channel.stream_stream(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
            )
            asked = [
                reflection_pb2.ServerReflectionRequest(list_services=""),
                reflection_pb2.ServerReflectionRequest(
                    file_containing_symbol="grpc.reflection.v1.ServerReflection"
                ),
            ]
            listed, described = [answer async for answer in call(iter(asked))]
            names = {service.name for service in listed.list_services_response.service}
            assert {
                "runlane.v1.SessionService",
                "grpc.reflection.v1.ServerReflection",
                "grpc.channelz.v1.Channelz",
                "grpc.health.v1.Health",
            } <= names
            assert described.file_descriptor_response.file_descriptor_proto


@pytest.mark.parametrize(
    ("raised", "reason", "code"),
    [
        (
            Refused(Reason.SESSION_BUSY, run_id="run_1"),
            "SESSION_BUSY",
            grpc.StatusCode.FAILED_PRECONDITION,
        ),
        (StoreUnavailable("disk at /secret"), "STORE_UNAVAILABLE", grpc.StatusCode.UNAVAILABLE),
        (StoreCorrupt("row 7 at /secret"), "STORE_CORRUPT", grpc.StatusCode.DATA_LOSS),
        (KeyError("secret"), "INTERNAL_ERROR", grpc.StatusCode.INTERNAL),
        (asyncio.CancelledError("secret"), "INTERNAL_ERROR", grpc.StatusCode.INTERNAL),
    ],
)
async def test_what_is_raised_becomes_a_status(raised, reason, code):
    app = FakeApp()
    app.raising = raised
    async with serving(app) as (_, channel):
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        error, found = await failing(
            stub.GetSession(session_service_pb2.GetSessionRequest(session_id="s"), timeout=5)
        )
        assert (error.code(), found["ErrorInfo"].reason) == (code, reason)
        assert found["ErrorInfo"].domain == "runlane.dev"
        assert b"secret" not in found["trailers"]["grpc-status-details-bin"]
        assert ("RetryInfo" in found) == (code is grpc.StatusCode.UNAVAILABLE)
        assert ("grpc-retry-pushback-ms" in found["trailers"]) == ("RetryInfo" in found)
        stream = stub.StreamEvents(
            session_service_pb2.StreamEventsRequest(session_id="s"), timeout=5
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stream:
                pass
        assert details(caught.value)["ErrorInfo"].reason == reason


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ((("runlane-namespace", "other"),), "runlane-namespace"),
        ((("runlane-client", "x" * 65),), "runlane-client"),
    ],
)
async def test_metadata_is_checked(metadata, field):
    async with serving(FakeApp()) as (_, channel):
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        request = session_service_pb2.GetSessionRequest(session_id="s")
        _, found = await failing(stub.GetSession(request, metadata=metadata))
        assert found["BadRequest"].field_violations[0].field == field


@pytest.mark.parametrize("raw", [b"\xff\xff", b"\x0a\x02\xc3\x28"])
async def test_what_is_no_request_is_refused_by_name(raw):
    async with serving(FakeApp()) as (_, channel):
        error, found = await failing(
            channel.unary_unary("/runlane.v1.SessionService/GetSession")(raw)
        )
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert found["ErrorInfo"].reason == "FIELD_INVALID"


async def test_a_reader_that_leaves_ends_the_stream_of_the_app():
    app = FakeApp()
    async with serving(app) as (_, channel):
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        stream = stub.StreamEvents(session_service_pb2.StreamEventsRequest(session_id="s"))
        assert (await anext(aiter(stream))).batch.events[0].sequence == 1
        stream.cancel()
        await asyncio.wait_for(app.closed.wait(), 5)


async def test_a_caller_that_leaves_cancels_the_call():
    app = FakeApp()
    app.hold = asyncio.Event()
    async with serving(app) as (server, channel):
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        call = stub.GetSession(session_service_pb2.GetSessionRequest(session_id="s"))
        entered = asyncio.ensure_future(app.entered.wait())
        await asyncio.wait(
            [entered, asyncio.ensure_future(call.code())],
            timeout=5,
            return_when=asyncio.FIRST_COMPLETED,
        )
        call.cancel()
        await asyncio.wait_for(server._door.empty(), 5)


async def test_waits_end_before_the_deadline():
    pb = history_service_pb2
    app = FakeApp()
    async with serving(app) as (_, channel):
        stub = history_service_pb2_grpc.HistoryServiceStub(channel)
        request = pb.WaitRunRequest(run_id="run_1")
        request.wait_duration.seconds = 60
        await stub.WaitRun(request, timeout=20)
        assert 15 < app.asked[-1][4] <= 18.5  # gRPC rounds a deadline up on its way
        await stub.WaitRun(request, timeout=2)
        assert 0.5 < app.asked[-1][4] <= 1.6
        await stub.WaitRun(request)
        assert app.asked[-1][4] == 60


async def test_drain_lets_calls_finish_and_ends_streams():
    app = FakeApp()
    async with serving(app) as (server, channel):
        session = session_service_pb2_grpc.SessionServiceStub(channel)
        history = history_service_pb2_grpc.HistoryServiceStub(channel)
        health = health_pb2_grpc.HealthStub(channel)
        watch = aiter(
            health.Watch(health_pb2.HealthCheckRequest(service="runlane.v1.SessionService"))
        )
        assert (await anext(watch)).status == health_pb2.HealthCheckResponse.SERVING
        streams = [
            aiter(session.StreamEvents(session_service_pb2.StreamEventsRequest(session_id="s")))
            for _ in range(20)
        ]
        for stream in streams:
            await anext(stream)
        app.hold = asyncio.Event()
        app.entered.clear()
        slow = [
            asyncio.ensure_future(history.GetRun(history_service_pb2.GetRunRequest(run_id="r")))
            for _ in range(5)
        ]
        async with asyncio.timeout(5):
            while sum(name == "get_run" for name, *_ in app.asked) < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        began = asyncio.get_running_loop().time()
        drain = asyncio.create_task(server.drain(10))
        assert (await anext(watch)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        for stream in streams:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(stream)
            assert details(caught.value)["ErrorInfo"].reason == "STREAM_ENDED"
            assert details(caught.value)["RetryInfo"]
        _, found = await failing(
            session.GetSession(session_service_pb2.GetSessionRequest(session_id="s"))
        )
        assert found["ErrorInfo"].reason == "DRAINING"
        assert not drain.done()
        app.hold.set()
        assert [(await call).run.run_id for call in slow] == ["run_1"] * 5
        await drain
        assert asyncio.get_running_loop().time() - began < 5


async def test_a_call_without_end_is_cut_at_the_end_of_the_grace():
    app = FakeApp()
    app.hold = asyncio.Event()
    async with serving(app) as (server, channel):
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        call = asyncio.ensure_future(
            stub.GetSession(session_service_pb2.GetSessionRequest(session_id="s"))
        )
        await asyncio.wait_for(app.entered.wait(), 5)
        await asyncio.wait_for(server.drain(0.1), 5)
        with pytest.raises(grpc.aio.AioRpcError):
            await asyncio.wait_for(call, 5)


async def test_pages_are_cut_by_bytes_and_go_on_after_the_last_one_sent():
    pb = history_service_pb2
    app = FakeApp()
    from fakes import message_row

    app.messages = [message_row(number, "x" * 900_000) for number in (1, 2, 3, 4)]
    app.events = ([(event_bytes(200 + n), app.messages[n].data) for n in range(4)], None)
    async with serving(app) as (_, channel):
        stub = history_service_pb2_grpc.HistoryServiceStub(channel)
        page = await stub.ListMessages(pb.ListMessagesRequest(session_id="s"))
        assert [message.number for message in page.messages] == [1, 2]
        await stub.ListMessages(
            pb.ListMessagesRequest(session_id="s", page_token=page.next_page_token)
        )
        assert app.asked[-1][3:5] == (2, None)
        events = await stub.ListEvents(pb.ListEventsRequest(session_id="s", include_messages=True))
        assert [event.sequence for event in events.events] == [200, 201]
        await stub.ListEvents(
            pb.ListEventsRequest(
                session_id="s", include_messages=True, page_token=events.next_page_token
            )
        )
        assert app.asked[-1][4] == 201


async def test_a_socket_file_and_a_port_that_is_taken(tmp_path):
    async with serving(FakeApp()) as (_, _channel):
        server = GrpcServer(FakeApp(), FakeApp())
        path = f"unix:{tmp_path}/s"
        ports = await server.start([path, "127.0.0.1:0"])
        assert ports[0] == 0
        assert ports[1] > 0
        async with grpc.aio.insecure_channel(path) as channel:
            stub = server_service_pb2_grpc.ServerServiceStub(channel)
            await stub.GetServerInfo(server_service_pb2.GetServerInfoRequest())
        second = GrpcServer(FakeApp(), FakeApp())
        with pytest.raises(RuntimeError):
            await second.start([f"127.0.0.1:{ports[1]}"])
        await server.drain(1)
