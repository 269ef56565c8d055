"""How an executor takes places, drains and stops, against a scripted server."""

import asyncio

import grpc
import pytest
from client_executor_script import Echo, Gated, Script, lease, running
from client_fakes import FakeServer, answering
from runlane import (
    Agent,
    Executor,
    ModelError,
    ModelResponse,
    TransportError,
)
from runlane.v1 import executor_service_pb2 as pb
from support.gate import yielded

pytestmark = pytest.mark.asyncio
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def script(server: FakeServer) -> Script:
    return Script(server)


async def test_no_more_is_polled_than_there_are_places(script: Script, client):
    model = Gated()
    for number in (1, 2, 3):
        script.leases.put_nowait(lease(number))
    async with running(client, model, concurrency=2) as executor:
        await script.server.called("Commit", 2)
        assert executor.active_count == 2
        assert script.leases.qsize() == 1
        model.gate.set()
        await script.server.called("Commit", 6)


async def test_drain_finishes_what_runs_and_takes_no_more(script: Script, client):
    model = Gated()
    executor = Executor(client, Agent("demo", model=model))
    run = asyncio.create_task(executor.run())
    script.leases.put_nowait(lease())
    await asyncio.wait_for(model.asked.wait(), 10)
    drain = asyncio.create_task(executor.drain())
    await script.server.called("DrainExecutor")
    assert script.server.calls["DrainExecutor"][0].executor_id == executor.executor_id
    assert not drain.done()
    model.gate.set()
    await asyncio.wait_for(drain, 10)
    await asyncio.wait_for(run, 10)
    assert script.commits[-1].finish.WhichOneof("outcome") == "completed"


async def test_closing_gives_back_what_runs(script: Script, client):
    model = Gated()
    script.leases.put_nowait(lease())
    async with running(client, model) as executor:
        await asyncio.wait_for(model.asked.wait(), 10)
        await executor.aclose()
        await executor.aclose()
        assert model.stopped.is_set()
    assert script.commits[-1].WhichOneof("outcome") == "release"


async def test_closing_without_release_leaves_the_lease_to_run_out(script: Script, client):
    model = Gated()
    script.leases.put_nowait(lease())
    async with running(client, model) as executor:
        await asyncio.wait_for(model.asked.wait(), 10)
        await executor.aclose(release=False)
    assert len(script.commits) == 1


async def test_cancelling_run_gives_back_what_runs(script: Script, client):
    model = Gated()
    script.leases.put_nowait(lease())
    run = asyncio.create_task(Executor(client, Agent("demo", model=model)).run())
    await asyncio.wait_for(model.asked.wait(), 10)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert script.commits[-1].WhichOneof("outcome") == "release"


async def test_what_makes_no_executor_is_refused(client):
    with pytest.raises(ValueError, match="needs an agent"):
        Executor(client, [])
    with pytest.raises(ValueError, match="one name"):
        Executor(client, [Agent("a", model=Echo()), Agent("a", model=Echo())])
    with pytest.raises(ValueError, match="concurrency"):
        Executor(client, Agent("a", model=Echo()), concurrency=0)
    with pytest.raises(ValueError, match="neither"):
        ModelError("tired")
    with pytest.raises(ValueError, match="either"):
        ModelResponse(text="a", content=["b"])
    named = Executor(client, {"alias": Agent("a", model=Echo())})
    assert "alias" in named._agents


@pytest.mark.parametrize("code", ["PERMISSION_DENIED", "UNIMPLEMENTED"])
async def test_what_runs_is_finished_where_polls_are_refused(script: Script, client, code):
    leases = script.poll
    model = Gated()

    async def poll(request, context):
        if script.leases.empty():
            await context.abort(grpc.StatusCode[code], "no")
        return await leases(request, context)

    script.server.handlers["PollActivation"] = poll
    script.leases.put_nowait(lease())
    run = asyncio.create_task(
        Executor(client, Agent("demo", model=model), lease_duration=0.3).run()
    )
    await asyncio.wait_for(model.asked.wait(), 10)
    await script.server.called("PollActivation", 2)
    beats = len(script.server.calls["Heartbeat"])
    await script.server.called("Heartbeat", beats + 3)
    assert not run.done()
    model.gate.set()
    with pytest.raises(TransportError) as caught:
        await asyncio.wait_for(run, 10)
    assert caught.value.code is grpc.StatusCode[code]
    assert script.commits[-1].finish.WhichOneof("outcome") == "completed"


async def test_closing_stops_what_is_finished_after_a_refusal_and_tells_of_it(script, client):
    leases = script.poll
    model = Gated()

    async def poll(request, context):
        if script.leases.empty():
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")
        return await leases(request, context)

    script.server.handlers["PollActivation"] = poll
    script.leases.put_nowait(lease())
    with pytest.raises(TransportError):
        async with running(client, model) as executor:
            await asyncio.wait_for(model.asked.wait(), 10)
            await asyncio.wait_for(asyncio.wait({executor._poller}), 10)
    assert model.stopped.is_set()
    assert script.commits[-1].WhichOneof("outcome") == "release"


async def test_drain_finishes_what_runs_also_where_a_poll_hangs(script, client, monkeypatch):
    monkeypatch.setattr("runlane._executor.loop._LAST_POLL", 0.05)
    model = Gated()
    executor = Executor(client, Agent("demo", model=model))
    run = asyncio.create_task(executor.run())
    script.leases.put_nowait(lease())
    await asyncio.wait_for(model.asked.wait(), 10)
    script.server.handlers["DrainExecutor"] = answering(pb.DrainExecutorResponse())
    drain = asyncio.create_task(executor.drain())
    await asyncio.wait_for(asyncio.wait({executor._poller}), 10)
    await yielded()
    assert not drain.done()
    assert not model.stopped.is_set()
    model.gate.set()
    await asyncio.wait_for(drain, 10)
    await asyncio.wait_for(run, 10)
    assert script.commits[-1].finish.WhichOneof("outcome") == "completed"


async def test_a_drain_that_cannot_be_told_still_takes_no_more(script: Script, client, caplog):
    async def drain(request, context):
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")

    script.server.handlers["DrainExecutor"] = drain
    executor = Executor(client, Agent("demo", model=Echo()))
    run = asyncio.create_task(executor.run())
    await script.server.called("PollActivation")
    script.draining.set()
    with caplog.at_level("INFO", "runlane.executor"):
        await asyncio.wait_for(executor.drain(), 10)
    assert "was not told of the drain" in caplog.text
    await asyncio.wait_for(run, 10)


async def test_a_drain_where_no_server_answers_ends_all_the_same(
    script: Script, client, caplog, monkeypatch
):
    monkeypatch.setattr("runlane._executor.loop._LAST_POLL", 0.2)
    executor = Executor(client, Agent("demo", model=Echo()))
    run = asyncio.create_task(executor.run())
    await script.server.called("PollActivation")
    await script.server.stop()
    await asyncio.wait_for(executor.drain(), 10)
    await asyncio.wait_for(run, 10)
    assert "was not told of the drain" in caplog.text


async def test_a_server_that_is_away_is_told_of_once_and_when_it_is_back(
    script: Script, client, caplog
):
    caplog.set_level("INFO", "runlane.executor")
    target = script.server.target
    await script.server.stop()
    executor = Executor(client, Agent("demo", model=Echo()))
    missed = asyncio.Event()
    unreached = executor._unreached

    def many(error):
        unreached(error)
        if executor._missed == 4:
            missed.set()

    executor._unreached = many
    async with executor:
        await asyncio.wait_for(missed.wait(), 20)
        told = [record.getMessage() for record in caplog.records]
        assert len(told) == 1
        assert f"cannot reach the server at {target}" in told[0]
        await script.server.start(target)
        script.leases.put_nowait(lease())
        await script.end()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert f"{target} answers again" in caplog.text


async def test_a_connection_that_is_cut_once_is_no_outage(script: Script, client, caplog):
    caplog.set_level("INFO", "runlane.executor")
    works = script.poll
    cuts = 1

    async def poll(request, context):
        nonlocal cuts
        if cuts:
            cuts -= 1
            await context.abort(UNAVAILABLE, "going away")
        return await works(request, context)

    script.server.handlers["PollActivation"] = poll
    script.leases.put_nowait(lease())
    async with running(client, Echo()):
        await script.end()
    assert caplog.records == []
