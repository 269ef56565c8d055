"""An executor process that is killed in the middle of a tool."""

import asyncio
import subprocess
import sys
import uuid
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import runlane
from runlane import Agent, Client, Executor, ModelResponse, SessionManager, StopReason, tool

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]
SECONDS = 60
PROGRAM = Path(__file__).with_name("tools_executor.py")


@asynccontextmanager
async def killed(shared, tmp_path, kind, options=None):
    """A run whose executor was killed after the effect of its tool and before its result."""
    name, marks = f"agent-{uuid.uuid4().hex}", tmp_path / "marks"
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), shared.address, name, str(marks), kind, stdout=subprocess.PIPE
    )
    try:
        async with (
            asyncio.timeout(SECONDS),
            Client(shared.address) as client,
            SessionManager(client, f"ses-{name}", agent=name, options=options) as manager,
        ):
            receipt = await manager.submit("go")
            if kind == "asking":
                await manager.wait(receipt.run_id, until="stopped")
                await manager.admit_resume(True)
            assert await process.stdout.readline() == b"begun\n"
            process.kill()
            await process.wait()
            assert marks.read_text() == "x"
            yield manager, receipt.run_id, name, marks
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Again:
    """Takes up where the other process was."""

    async def complete(self, request):
        return ModelResponse(text=f"the tool said {request.messages[-1].tool_result.text}")


def effect_on(marks: Path, *, idempotent: bool) -> runlane.Tool:
    @tool(idempotent=idempotent)
    def effect() -> str:
        with marks.open("a", encoding="utf-8") as file:
            file.write("x")
        return "again"

    return effect


async def test_a_tool_that_must_not_run_twice_runs_once(shared, tmp_path):
    async with killed(shared, tmp_path, "once") as (manager, run_id, name, marks):
        client = manager._client
        agent = Agent(name, model=Again(), tools=[effect_on(marks, idempotent=False)])
        async with Executor(client, agent):
            # By the lease alone: nobody says that the process is gone.
            result = await manager.wait(run_id)
        assert result.stop_reason is StopReason.OUTCOME_UNKNOWN
        (call,) = (await client.list_tool_calls(run_id)).items
        assert call.state is runlane.ToolCallState.OUTCOME_UNKNOWN
        messages = (await client.list_messages(manager.session_id)).items
        assert messages[-1].author is runlane.MessageAuthor.CLOSER
        assert messages[-1].tool_result.outcome is runlane.ToolOutcome.UNKNOWN
        assert marks.read_text() == "x"


async def test_a_tool_that_may_runs_again(shared, tmp_path):
    async with killed(shared, tmp_path, "idempotent") as (manager, run_id, name, marks):
        client = manager._client
        run = await client.get_run(run_id)
        activation = run.activation.activation_id
        with pytest.raises(runlane.ActivationMismatch):
            await manager.restore(run_id, "act_other")
        still = await manager.restore(run_id, activation)
        assert still.outcome is runlane.RestoreOutcome.STILL_LEASED
        done = await manager.restore(run_id, activation, force=True)
        assert done.outcome is runlane.RestoreOutcome.RECOVERY_QUEUED
        agent = Agent(name, model=Again(), tools=[effect_on(marks, idempotent=True)])
        async with Executor(client, agent):
            result = await manager.wait(run_id)
        assert result.text == "the tool said again"
        assert marks.read_text() == "xx"
        assert result.run.attempt == 2


async def test_under_manual_recovery_a_run_is_stalled_until_it_is_restored(shared, tmp_path):
    options = {"recovery": "manual"}
    async with killed(shared, tmp_path, "idempotent", options) as (manager, run_id, name, marks):
        client = manager._client
        events = manager.events(after_sequence=0, types=["run.stalled"])
        stalled = await anext(events)
        assert stalled.run_id == run_id
        assert run_id in {one.run_id for one in (await client.list_stalled_runs(limit=1000)).items}
        run = await client.get_run(run_id)
        assert run.stalled
        assert run.activation.state is runlane.ActivationState.ABANDONED
        await manager.restore(run_id, run.activation.activation_id)
        agent = Agent(name, model=Again(), tools=[effect_on(marks, idempotent=True)])
        async with Executor(client, agent):
            assert (await manager.wait(run_id)).text == "the tool said again"


async def test_a_run_is_settled_by_hand(shared, tmp_path):
    async with killed(shared, tmp_path, "once") as (manager, run_id, _name, _marks):
        settled = await manager._client.settle_run(run_id, reason="by hand")
        assert settled.stop_reason is StopReason.OUTCOME_UNKNOWN
        assert settled.cause is StopReason.FAILED


async def test_who_approved_is_not_asked_again(shared, tmp_path):
    async with killed(shared, tmp_path, "asking") as (manager, run_id, name, marks):
        client = manager._client
        run = await client.get_run(run_id)
        await manager.restore(run_id, run.activation.activation_id, force=True)
        tools = [effect_on(marks, idempotent=True)]
        agent = Agent(name, model=Again(), tools=tools, policies={"effect": "ask"})
        async with Executor(client, agent):
            result = await manager.wait(run_id, until="stopped")
        assert result.text == "the tool said again"
        assert marks.read_text() == "xx"
        answered = (await client.list_interactions(manager.session_id, state="answered")).items
        assert len(answered) == 1
