"""How an executor advances a run, against a scripted server."""

import asyncio

import grpc
import pytest
from client_executor_script import Echo, Gated, Raising, Script, lease, running, text_message
from client_fakes import FakeServer, forever, refuse
from runlane import (
    Agent,
    Executor,
    ModelDelta,
    ModelError,
    ModelResponse,
    ServiceError,
)
from runlane.v1 import executor_service_pb2 as pb
from runlane.v1 import run_pb2

pytestmark = pytest.mark.asyncio
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def script(server: FakeServer) -> Script:
    return Script(server)


async def test_a_step_is_two_commits(script: Script, client):
    model = Echo()
    script.leases.put_nowait(lease())
    async with running(client, model):
        last = await script.end()
    reserve, step = script.commits
    assert [o.WhichOneof("operation") for o in reserve.operations] == ["reserve_model_step"]
    assert not reserve.WhichOneof("outcome")
    commit = step.operations[0].commit_model_step
    assert [block.text for block in commit.content] == ["answer 1"]
    assert (commit.usage.input_tokens, commit.model) == (3, "echo-1")
    assert last.finish.WhichOneof("outcome") == "completed"
    assert reserve.request_id != step.request_id
    assert all(c.fence == lease().fence and c.request_id for c in script.commits)
    (request,) = model.requests
    assert [message.text for message in request.messages] == ["hello"]
    assert (request.agent, request.system, request.model) == ("demo", "be brief", "m")
    assert request.options == {"temperature": 0}
    assert (request.step, request.attempt, request.model_stream_id) == (1, 1, "stream_1")
    poll = script.server.calls["PollActivation"][0]
    assert list(poll.agents) == ["demo"]
    assert poll.request_id
    assert poll.context_bytes_max > 0


async def test_a_delivered_steer_makes_the_run_go_on(script: Script, client):
    model = Echo()
    script.steers = ["and shorter", "and in French"]
    script.leases.put_nowait(lease())
    async with running(client, model):
        await script.end()
    seen = [message.text for message in model.requests[-1].messages]
    assert seen == ["hello", "answer 1", "and shorter", "answer 2", "and in French"]
    assert [message.number for message in model.requests[-1].messages] == [1, 2, 3, 4, 5]
    assert len(script.commits) == 6


async def test_a_large_context_is_streamed_and_goes_on_where_it_was_cut(script: Script, client):
    model = Echo()

    async def stream(request, context):
        first = request.after_message_number + 1
        message = text_message(first, str(first))
        if first < 3:
            await context.write(pb.StreamModelContextResponse(messages=[message]))
            await context.abort(UNAVAILABLE, "cut")
        end = pb.ContextEnd(message_count=3)
        await context.write(pb.StreamModelContextResponse(messages=[message], end=end))

    script.server.handlers["StreamModelContext"] = stream
    script.leases.put_nowait(lease(context=None))
    async with running(client, model):
        await script.end()
    assert [message.text for message in model.requests[0].messages] == ["1", "2", "3"]


async def test_no_step_left_ends_the_work(script: Script, client):
    model = Echo()

    async def commit(request, context):
        script.commits.append(request)
        script.ended.set()
        refused = pb.ReserveModelStepResult(state=pb.ReserveModelStepResult.STATE_RUN_ENDED)
        results = [pb.OperationResult(reserve_model_step=refused)]
        return pb.CommitResponse(results=results, run=run_pb2.Run(phase=run_pb2.Run.PHASE_TERMINAL))

    script.server.handlers["Commit"] = commit
    script.leases.put_nowait(lease())
    async with running(client, model):
        await script.end()
    assert not model.requests
    assert len(script.commits) == 1


async def test_a_cancel_stops_the_model_at_once(script: Script, client):
    model = Gated()
    script.leases.put_nowait(lease())
    async with running(client, model):
        await asyncio.wait_for(model.asked.wait(), 10)
        script.control.put_nowait(pb.ActivationControl(cancel_requested=True))
        last = await script.end()
        assert model.stopped.is_set()
    assert last.finish.WhichOneof("outcome") == "cancelled"


async def test_a_cancel_comes_by_heartbeat_where_nothing_can_be_watched(script: Script, client):
    async def heartbeat(request, context):
        return pb.HeartbeatResponse(control=pb.ActivationControl(cancel_requested=True))

    del script.server.handlers["WatchActivation"]
    script.server.handlers["Heartbeat"] = heartbeat
    model = Gated()
    script.leases.put_nowait(lease())
    agent = Agent("demo", model=model)
    async with Executor(client, agent, lease_duration=0.3):
        last = await script.end()
    assert last.finish.WhichOneof("outcome") == "cancelled"


@pytest.mark.parametrize("fails", ["service", "transport", "client"])
async def test_a_watch_that_meets_an_odd_error_still_brings_a_cancel(
    script: Script, client, monkeypatch, fails
):
    """Heartbeats stay silent here: only the stream can bring it."""
    monkeypatch.setattr("runlane._executor.lease.FIRST_HEARTBEAT", 0.01)
    watches = script.watch

    async def watch(request, context):
        if len(script.server.calls["WatchActivation"]) <= 2:
            if fails == "service":
                await refuse(context, PRECONDITION, "FEATURE_ODD")
            if fails == "transport":
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, "a proxy says no")
        await watches(request, context)

    if fails == "client":
        stub, failures = client._caller.stubs.executors, 2
        real = stub.WatchActivation

        def broken(*args, **settings):
            nonlocal failures
            failures -= 1
            if failures >= 0:
                raise RuntimeError("odd")
            return real(*args, **settings)

        monkeypatch.setattr(stub, "WatchActivation", broken)
    script.server.handlers["WatchActivation"] = watch
    model = Gated()
    script.leases.put_nowait(lease())
    async with running(client, model):
        await asyncio.wait_for(model.asked.wait(), 10)
        await script.server.called("WatchActivation", 1 if fails == "client" else 3)
        assert not model.stopped.is_set()
        script.control.put_nowait(pb.ActivationControl(cancel_requested=True))
        last = await script.end()
    assert last.finish.WhichOneof("outcome") == "cancelled"


async def test_a_run_that_is_cancelled_before_its_step_is_settled(script: Script, client):
    grants = script.commit

    async def commit(request, context):
        if request.operations:
            await refuse(context, PRECONDITION, "RUN_CANCELLING", run_id="run_1")
        return await grants(request, context)

    script.server.handlers["Commit"] = commit
    script.leases.put_nowait(lease())
    async with running(client, Echo()):
        last = await script.end()
    assert last.finish.WhichOneof("outcome") == "cancelled"


@pytest.mark.parametrize("reason", ["STALE_ACTIVATION", "RUN_NOT_FOUND"])
async def test_a_lost_fence_drops_the_work_and_no_more(script: Script, client, reason):
    works = script.commit

    async def commit(request, context):
        if request.fence.run_id == "run_1":
            script.commits.append(request)
            await refuse(context, PRECONDITION, reason)
        return await works(request, context)

    script.server.handlers["Commit"] = commit
    script.leases.put_nowait(lease(1))
    script.leases.put_nowait(lease(2))
    async with running(client, Echo(), concurrency=1):
        last = await script.end()
    assert last.fence.run_id == "run_2"
    assert [c.fence.run_id for c in script.commits] == ["run_1", "run_2", "run_2"]


async def test_an_activation_that_was_ended_stops_its_model(script: Script, client):
    model = Gated()
    script.leases.put_nowait(lease())
    async with running(client, model):
        await asyncio.wait_for(model.asked.wait(), 10)
        script.control.put_nowait(pb.ActivationControl(ended=True))
        await asyncio.wait_for(model.stopped.wait(), 10)
    assert len(script.commits) == 1


REASON = run_pb2.RunFailure


@pytest.mark.parametrize(
    ("error", "reason", "message", "retryable"),
    [
        (ModelError("unavailable", "busy"), REASON.REASON_MODEL_UNAVAILABLE, "busy", True),
        (ModelError("refused", "not this"), REASON.REASON_MODEL_REFUSED, "not this", False),
        (ModelError("refused", retryable=True), REASON.REASON_MODEL_REFUSED, None, True),
        (KeyError("secret"), REASON.REASON_EXECUTOR_ERROR, "KeyError", False),
        (asyncio.CancelledError(), REASON.REASON_EXECUTOR_ERROR, "RuntimeError", False),
    ],
)
async def test_an_error_of_the_model_fails_its_run(
    script: Script, client, error, reason, message, retryable
):
    script.leases.put_nowait(lease())
    async with running(client, Raising(error)):
        last = await script.end()
    failed = last.finish.failed
    assert failed.reason == reason
    assert message is None or failed.message == message
    assert failed.retryable is retryable


async def test_an_answer_that_the_service_refuses_fails_the_run(script: Script, client):
    works = script.commit

    async def commit(request, context):
        if request.operations and request.HasField("finish"):
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE")
        return await works(request, context)

    script.server.handlers["Commit"] = commit
    script.leases.put_nowait(lease())
    async with running(client, Echo()):
        last = await script.end()
    assert last.finish.failed.reason == REASON.REASON_EXECUTOR_ERROR
    assert last.finish.failed.message.startswith("MESSAGE_TOO_LARGE")


@pytest.mark.parametrize("large", ["text", "output_json"])
async def test_an_answer_that_is_too_large_is_not_sent_and_fails_the_run(
    script: Script, client, large
):
    size = 20 * 2**20
    asked = 0

    class Large:
        async def complete(self, request):
            nonlocal asked
            asked += 1
            return ModelResponse(**{large: "x" * size})

    script.leases.put_nowait(lease())
    async with running(client, Large()):
        last = await script.end()
    # The tag and the length of the text of its one block are 5 bytes.
    told = f"content of {size + 5} bytes is over the limit of {3 * 2**20} bytes"
    if large == "output_json":
        told = f"bytes is over the limit of {8 * 2**20} bytes"
    assert last.finish.failed.reason == REASON.REASON_EXECUTOR_ERROR
    assert last.finish.failed.message.startswith("MESSAGE_TOO_LARGE: ")
    assert last.finish.failed.message.endswith(told)
    assert not last.finish.failed.retryable
    assert asked == 1
    assert len(script.commits) == 2


async def test_a_commit_is_repeated_with_its_request_id(script: Script, client):
    works = script.commit
    failures = 3

    async def commit(request, context):
        nonlocal failures
        if failures:
            failures -= 1
            await context.abort(UNAVAILABLE, "gone")
        return await works(request, context)

    script.server.handlers["Commit"] = commit
    script.leases.put_nowait(lease())
    async with running(client, Echo()):
        await script.end()
    ids = [request.request_id for request in script.server.calls["Commit"]]
    assert len(ids) == 5
    assert len(set(ids[:4])) == 1


async def test_a_restart_of_the_server_is_survived(script: Script, client):
    model = Gated()
    script.leases.put_nowait(lease())
    async with running(client, model):
        await asyncio.wait_for(model.asked.wait(), 10)
        await script.server.stop()
        model.gate.set()
        await script.server.start(script.server.target)
        last = await script.end()
        assert last.finish.WhichOneof("outcome") == "completed"
        script.ended.clear()
        script.leases.put_nowait(lease(2))
        assert (await script.end()).fence.run_id == "run_2"


async def test_a_poll_that_was_lost_asks_with_the_same_id(script: Script, client):
    works = script.poll
    failures = 2

    async def poll(request, context):
        nonlocal failures
        if failures:
            failures -= 1
            await refuse(context, grpc.StatusCode.INTERNAL, "INTERNAL_ERROR")
        return await works(request, context)

    script.server.handlers["PollActivation"] = poll
    script.leases.put_nowait(lease())
    async with running(client, Echo()):
        await script.end()
    ids = [request.request_id for request in script.server.calls["PollActivation"][:4]]
    assert ids[0] == ids[1] == ids[2] != ids[3]


async def test_polls_that_are_refused_end_the_executor(script: Script, client):
    async def poll(request, context):
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")

    script.server.handlers["PollActivation"] = poll
    with pytest.raises(ServiceError, match="FIELD_INVALID"):
        await Executor(client, Agent("demo", model=Echo())).run()
    with pytest.raises(ServiceError, match="FIELD_INVALID"):
        async with running(client, Echo()) as executor:
            await asyncio.wait({executor._background}, timeout=10)


class Streaming:
    def __init__(self, *pieces, gate: asyncio.Event | None = None):
        self.pieces = pieces
        self.gate = gate

    async def stream(self, request):
        for piece in self.pieces:
            yield piece
        if self.gate is not None:
            await self.gate.wait()
        yield ModelResponse(text="".join(piece.text for piece in self.pieces))


async def test_pieces_are_published_merged_and_in_order(script: Script, client):
    frames = []
    first = asyncio.Event()

    async def publish(requests, context):
        async for request in requests:
            frames.append(request)
            first.set()
        return pb.PublishDeltasResponse()

    script.server.handlers["PublishDeltas"] = publish
    gate = asyncio.Event()
    script.leases.put_nowait(lease())
    pieces = [ModelDelta("a"), ModelDelta("b"), ModelDelta("hm", kind="reasoning", block_index=1)]
    async with running(client, Streaming(*pieces, gate=gate)):
        await asyncio.wait_for(first.wait(), 10)
        gate.set()
        await script.end()
    assert frames[0].fence == lease().fence
    deltas = [delta for frame in frames for delta in frame.deltas]
    assert "".join(d.append_text for d in deltas if d.block_index == 0) == "ab"
    for index in (0, 1):
        revisions = [(d.base_revision, d.revision) for d in deltas if d.block_index == index]
        assert revisions == [(n, n + 1) for n in range(len(revisions))]
    assert {(d.step, d.model_stream_id, d.activation_id) for d in deltas} == {
        (1, "stream_1", "act_1")
    }


@pytest.mark.parametrize("fails", [True, False])
async def test_deltas_never_hold_up_the_answer(script: Script, client, fails):
    async def publish(requests, context):
        if fails:
            await context.abort(UNAVAILABLE, "no")
        await forever(requests, context)

    script.server.handlers["PublishDeltas"] = publish
    script.leases.put_nowait(lease())
    async with running(client, Streaming(*[ModelDelta("x" * 1000)] * 500)):
        last = await script.end()
    assert len(last.operations[0].commit_model_step.content[0].text) == 500_000
