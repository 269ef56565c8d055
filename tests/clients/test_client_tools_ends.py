"""How the work of an executor with tools ends, against a scripted server."""

import asyncio
import time

import grpc
import pytest
from client_executor_script import lease
from client_fakes import FakeServer, refuse
from client_tool_script import (
    ERROR,
    OK,
    State,
    ToolScript,
    Turns,
    call,
    equipped,
)
from runlane import tool
from runlane.v1 import executor_service_pb2 as pb
from runlane.v1 import message_pb2, run_pb2
from support.gate import until, yielded

pytestmark = pytest.mark.asyncio
CANCELLED = message_pb2.ToolResult.OUTCOME_CANCELLED


@pytest.fixture
def script(server: FakeServer) -> ToolScript:
    return ToolScript(server)


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def test_a_pause_that_is_known_takes_the_boundary(script: ToolScript, client):
    gate, started = asyncio.Event(), asyncio.Event()

    async def waits() -> str:
        started.set()
        await gate.wait()
        return "ran"

    script.leases.put_nowait(lease())
    async with equipped(client, Turns([call("waits")], "done"), [waits]) as executor:
        await asyncio.wait_for(started.wait(), 10)
        script.pause = True
        gate.set()
        await script.end()
        while executor.active_count:
            await asyncio.wait(executor._work)
        # Nobody knew of it: the results alone are taken, and then it is paused.
        assert script.kinds()[2:] == [["results", "reserve"], ["results"]]
        script.pause = False
        script.again()
        await script.end()
    assert script.kinds()[-2:] == [["reserve"], ["step", "finish"]]
    assert script.said("waits") == "ran"


async def test_a_pause_at_a_reservation_ends_the_work_quietly(script: ToolScript, client, caplog):
    script.pause = True
    script.leases.put_nowait(lease())
    model = Turns()
    async with equipped(client, model, [add]):
        await script.end()
    assert script.kinds() == [["reserve"]]
    assert not model.requests
    assert not [one for one in caplog.records if one.levelname in {"WARNING", "ERROR"}]


async def test_too_many_calls_end_the_run(script: ToolScript, client):
    script.over_budget = True
    script.leases.put_nowait(lease())
    async with equipped(client, Turns([call("add", a=1, b=2)]), [add]):
        await script.end()
    assert script.kinds() == [["reserve"], ["step", "claim"], ["step"]]


async def test_a_cancel_keeps_the_results_that_exist(script: ToolScript, client):
    started, stopped = asyncio.Event(), asyncio.Event()

    async def waits() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async def yields_up() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "stopped in time"

    script.leases.put_nowait(lease())
    async with equipped(client, Turns([call("waits"), call("yields_up")]), [waits, yields_up]):
        await asyncio.wait_for(started.wait(), 10)
        script.cancel = True
        script.control.put_nowait(pb.ActivationControl(cancel_requested=True))
        await script.end()
        assert stopped.is_set()
    assert script.kinds()[2:] == [["results", "finish"]]
    assert script.commits[-1].finish.WhichOneof("outcome") == "cancelled"
    assert script.said("yields_up") == "stopped in time"
    assert script.calls["waits"].state == State.STATE_CLAIMED


async def test_a_cancel_before_the_claim_keeps_the_step(script: ToolScript, client):
    class Cancelling(Turns):
        async def complete(self, request):
            script.cancel = True
            return await super().complete(request)

    ran = []

    def effect() -> None:
        ran.append(1)

    script.leases.put_nowait(lease())
    async with equipped(client, Cancelling([call("effect")]), [effect]):
        await script.end()
    assert script.kinds() == [["reserve"], ["step", "claim"], ["step", "finish"]]
    assert script.commits[-1].finish.WhichOneof("outcome") == "cancelled"
    assert ran == []


async def test_a_cancel_that_comes_with_the_results_keeps_them(script: ToolScript, client):
    def effect() -> str:
        script.cancel = True
        return "done"

    script.leases.put_nowait(lease())
    async with equipped(client, Turns([call("effect")]), [effect]):
        await script.end()
    assert script.kinds()[2:] == [["results", "reserve"], ["results", "finish"]]
    assert script.said("effect") == "done"


async def test_under_stop_all_results_go_together(script: ToolScript, client):
    gate = asyncio.Event()

    def fails() -> None:
        loop.call_soon_threadsafe(gate.set)
        raise ValueError("no")

    async def slow() -> str:
        await gate.wait()
        return "kept"

    loop = asyncio.get_running_loop()
    script.stop_policy = True
    leased = lease()
    leased.run.options.tool_error_policy = run_pb2.TOOL_ERROR_POLICY_STOP
    script.leases.put_nowait(leased)
    async with equipped(client, Turns([call("fails"), call("slow")]), [fails, slow]):
        await script.end()
    assert script.kinds()[2:] == [["results"]]
    assert {key: one.outcome for key, one in script.results().items()} == {
        "fails": ERROR,
        "slow": OK,
    }


async def test_under_stop_a_failure_at_once_runs_nothing(script: ToolScript, client):
    script.stop_policy = True
    leased = lease()
    leased.run.options.tool_error_policy = run_pb2.TOOL_ERROR_POLICY_STOP
    script.leases.put_nowait(leased)
    async with equipped(client, Turns([call("nothing"), call("add", a=1, b=2)]), [add]):
        await script.end()
    assert script.kinds() == [["reserve"], ["step", "results"]]


async def test_closing_keeps_results_and_cannot_give_back_what_is_claimed(script, client):
    started = asyncio.Event()

    async def waits() -> None:
        started.set()
        await asyncio.Event().wait()

    async def yields_up() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "in time"

    script.leases.put_nowait(lease())
    async with equipped(client, Turns([call("yields_up"), call("waits")]), [waits, yields_up]):
        await asyncio.wait_for(started.wait(), 10)
        before = time.monotonic()
    assert time.monotonic() - before < 10
    assert script.kinds()[2:] == [["results"], ["release"]]
    assert script.said("yields_up") == "in time"


async def test_closing_keeps_more_results_than_one_commit_takes(script, client):
    started = asyncio.Semaphore(0)

    async def yields_up(number: int) -> str:
        started.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "x" * (1_000_000 if number < 10 else 1)

    takes = script.commit

    async def commit(request, context):
        if request.ByteSize() > 4_000_000:
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE")
        return await takes(request, context)

    script.server.handlers["Commit"] = commit
    script.leases.put_nowait(lease())
    calls = [call("yields_up", f"c{number}", number=number) for number in range(80)]
    async with equipped(client, Turns(calls), [yields_up]):
        async with asyncio.timeout(10):
            for _ in calls:
                await started.acquire()
    assert len(script.results()) == 80
    assert script.kinds()[-1] == ["release"]


async def test_closing_amid_portions_sends_what_is_left_and_nothing_twice(script, client):
    on_its_way, go_on = asyncio.Event(), asyncio.Event()
    takes = script.commit

    async def commit(request, context):
        if request.operations[:1] and request.operations[0].HasField("commit_tool_results"):
            on_its_way.set()
            await go_on.wait()
        return await takes(request, context)

    script.server.handlers["Commit"] = commit
    script.leases.put_nowait(lease())
    calls = [call("add", f"c{number}", a=number, b=1) for number in range(70)]
    async with equipped(client, Turns(calls), [add]) as executor:
        await asyncio.wait_for(on_its_way.wait(), 10)
        closing = asyncio.create_task(executor.aclose())
        await yielded()
        go_on.set()
        await asyncio.wait_for(closing, 10)
    sent = [
        len(operation.commit_tool_results.results)
        for commit in script.server.calls["Commit"]
        for operation in commit.operations
        if operation.HasField("commit_tool_results")
    ]
    assert sum(sent) == len(script.results()) == 70
    assert script.kinds()[-1] == ["release"]


async def test_a_cancel_amid_a_commit_one_by_one_sends_no_fact_twice(script: ToolScript, client):
    takes = script.commit

    async def commit(request, context):
        kinds = [one.WhichOneof("operation") for one in request.operations]
        if kinds == ["commit_tool_results", "reserve_model_step"]:
            script.commits.append(request)
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "OPERATION_INVALID")
        answer = await takes(request, context)
        script.cancel = script.cancel or kinds == ["commit_tool_results"]
        return answer

    script.server.handlers["Commit"] = commit
    script.leases.put_nowait(lease())
    async with equipped(client, Turns([call("add", a=1, b=2)]), [add]):
        await script.end()
    assert script.kinds()[2:] == [["results", "reserve"], ["results"], ["reserve"], ["finish"]]
    assert script.commits[-1].finish.WhichOneof("outcome") == "cancelled"
    assert script.said("add") == "3"


async def test_under_stop_a_failure_comes_after_all_other_results(script: ToolScript, client):
    def fails() -> None:
        raise ValueError("no")

    script.stop_policy = True
    leased = lease()
    leased.run.options.tool_error_policy = run_pb2.TOOL_ERROR_POLICY_STOP
    script.leases.put_nowait(leased)
    calls = [call("fails"), *(call("add", f"c{number}", a=1, b=2) for number in range(65))]
    async with equipped(client, Turns(calls), [add, fails]):
        await script.end()
    assert len(script.results()) == 66


@pytest.mark.parametrize("ends", ["closed", "cancelled"])
async def test_calls_that_were_claimed_and_not_begun_are_no_open_question(script, client, ends):
    """The end comes while the claim is on its way."""
    on_its_way, go_on, ran = asyncio.Event(), asyncio.Event(), []
    takes = script.commit

    async def commit(request, context):
        answer = await takes(request, context)
        if any(one.HasField("claim_tool_calls") for one in request.operations):
            on_its_way.set()
            await go_on.wait()
        return answer

    def effect() -> None:
        ran.append(1)

    script.server.handlers["Commit"] = commit
    script.leases.put_nowait(lease())
    async with equipped(client, Turns([call("effect")]), [effect]) as executor:
        await asyncio.wait_for(on_its_way.wait(), 10)
        if ends == "closed":
            closing = asyncio.create_task(executor.aclose())
            await yielded()
            go_on.set()
            await asyncio.wait_for(closing, 10)
        else:
            (activation,) = executor._work.values()
            script.control.put_nowait(pb.ActivationControl(cancel_requested=True))
            await until(activation._lease._cancel.is_set)
            script.cancel = True
            go_on.set()
            await script.end()
    assert ran == []
    if ends == "closed":
        assert script.kinds()[-2:] == [["results"], ["release"]]
        assert script.said("effect") == "the executor stopped before this was run"
    else:
        assert script.kinds()[-1] == ["results", "finish"]
        assert script.results()["effect"].outcome == CANCELLED
