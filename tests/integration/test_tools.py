"""Tools, questions, approvals, pauses: an executor against a real server process."""

import asyncio

import pytest
import runlane
from runlane import (
    Agent,
    Client,
    Executor,
    ModelResponse,
    RunEventKind,
    RunPhase,
    SessionManager,
    StopReason,
    ToolCallState,
    ToolOutcome,
    ToolUseBlock,
    tool,
)
from tools_lane import SECONDS, Turns, call, session

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]


async def kinds(client, session_id, noun="") -> list[str]:
    page = await client.list_events(session_id, limit=1000)
    return [str(one.kind) for one in page.items if str(one.kind).startswith(noun)]


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def test_a_function_is_a_tool(shared):
    model = Turns([call("add", a=1, b=2), call("add", "second", a=3, b=4)], "7 and 3")
    async with session(shared, model, [add]) as (manager, client):
        result = await manager.run("add")
        assert result.text == "7 and 3"
        calls = (await client.list_tool_calls(result.run_id)).items
        told = [(one.tool_call_id, one.step, one.ordinal, one.state, one.text) for one in calls]
        assert told == [
            ("add", 1, 1, ToolCallState.COMMITTED, "3"),
            ("second", 1, 2, ToolCallState.COMMITTED, "7"),
        ]
        assert calls[0].arguments == {"a": 1, "b": 2}
        assert result.run.usage.tool_calls == 2
        messages = (await client.list_messages(manager.session_id)).items
        assert [m.number for m in model.requests[1].messages] == [1, 2, 3, 4]
        assert [(m.number, m.content) for m in messages[:4]] == [
            (m.number, m.content) for m in model.requests[1].messages
        ]
        assert (await kinds(client, manager.session_id, "model_step")).count(
            "model_step.reserved"
        ) == 2


async def test_malformed_and_unknown_calls_are_told_to_the_model(shared):
    bad = ToolUseBlock(tool_call_id="bad", name="add", arguments_text="{not json")
    model = Turns([bad, call("nothing"), call("add", "odd", a="x", b=1)], [bad], "gave up")
    async with session(shared, model, [add]) as (manager, _):
        result = await manager.run("go")
        assert result.stop_reason is StopReason.COMPLETED
    assert {key: one.outcome for key, one in model.results.items()} == {
        "bad": ToolOutcome.ERROR,
        "nothing": ToolOutcome.ERROR,
        "odd": ToolOutcome.ERROR,
        "bad-2": ToolOutcome.ERROR,
    }


async def test_ask_deny_and_allow(shared):
    paid = []

    @tool(policy="ask")
    def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    @tool(policy="deny")
    def wipe() -> None:
        paid.append("wiped")

    calls = [call("pay", "p1", amount=1), call("wipe"), call("add", a=1, b=1)]
    model = Turns([*calls, call("pay", "p2", amount=2)], "done")
    async with session(shared, model, [pay, wipe, add]) as (manager, client):
        receipt = await manager.submit("pay both")
        stopped = await manager.wait(receipt.run_id, until="stopped")
        assert stopped.phase is RunPhase.WAITING
        assert stopped.stop_reason is StopReason.UNKNOWN
        asked = stopped.interaction
        assert [(one.name, one.arguments) for one in asked.calls] == [
            ("pay", {"amount": 1}),
            ("pay", {"amount": 2}),
        ]
        inbox = (await client.list_interactions(manager.session_id)).items
        assert inbox == (asked,)
        assert paid == []
        with pytest.raises(ValueError, match="one verdict for each"):
            await manager.resume({"p1": True})
        with pytest.raises(runlane.AnswerInvalid):
            await manager.resume("yes")
        done = await manager.resume({"p1": True, "p2": (False, "too much")})
        assert (done.phase, done.text) == (RunPhase.TERMINAL, "done")
        # The same answer again is no harm, another one is a conflict.
        said = {"p1": True, "p2": (False, "too much")}
        again = await client.answer(done.run_id, asked.interaction_id, asked.version, said)
        assert again.interaction_id == asked.interaction_id
        with pytest.raises(runlane.InteractionConflict):
            await client.answer(done.run_id, asked.interaction_id, asked.version, True)
        with pytest.raises(runlane.InteractionNotFound):
            await manager.resume(True)
    assert paid == [1]
    outcomes = {key: one.outcome for key, one in model.results.items()}
    assert outcomes == {"p1": "ok", "wipe": "rejected", "add": "ok", "p2": "rejected"}
    assert "too much" in model.results["p2"].text


async def test_a_question_is_answered_long_after_its_executor_has_gone(shared):
    model = Turns([call("ask_question", question="Which?", options=["a", "b"])], "done")
    async with session(shared, model, ask_question=True) as (manager, client):
        result = await manager.run("go", until="stopped")
        prompt = result.interaction.prompt
        assert (prompt.text, prompt.options) == ("Which?", ("a", "b"))
        agent = result.run.agent
        state = await manager.snapshot()
        assert state.open_interactions == (result.interaction,)
        assert runlane.Command.ANSWER in state.allowed_commands
    other = Turns("you said b")
    async with (
        Client(shared.address) as client,
        Executor(client, Agent(agent, model=other, ask_question=True)),
        SessionManager(client, manager.session_id) as back,
        asyncio.timeout(SECONDS),
    ):
        receipt = await back.admit_resume("b", result.interaction.interaction_id)
        assert receipt.run_id == result.run_id
        assert (await back.wait(receipt.run_id)).text == "you said b"
        assert other.results["ask_question"].text == "b"


async def test_two_questions_of_a_batch_come_one_after_the_other(shared):
    asks = [call("ask_question", f"q{n}", question=f"{n}?") for n in (1, 2)]
    async with session(shared, Turns(asks, "done"), ask_question=True) as (manager, _):
        first = await manager.run("go", until="stopped")
        second = await manager.resume("one", first.interaction)
        assert (first.interaction.prompt.text, second.interaction.prompt.text) == ("1?", "2?")
        assert (await manager.resume("two")).text == "done"


async def test_a_pause_takes_the_end_of_the_batch(shared):
    started, gate = asyncio.Event(), asyncio.Event()

    async def waits() -> str:
        started.set()
        await gate.wait()
        return "ran once"

    model = Turns([call("waits")], "went on")
    async with session(shared, model, [waits]) as (manager, client):
        receipt = await manager.submit("go")
        await started.wait()
        asked = await manager.pause()
        assert asked.receipt is runlane.PauseReceipt.REQUESTED
        gate.set()
        stopped = await manager.wait(receipt.run_id, until="stopped")
        assert stopped.phase is RunPhase.PAUSED
        assert len(model.requests) == 1
        assert (await manager.pause()).receipt is runlane.PauseReceipt.PAUSED
        assert (await manager.unpause()).receipt is runlane.PauseReceipt.RESUMED
        assert (await manager.wait(receipt.run_id)).text == "went on"
        assert model.results["waits"].text == "ran once"
        assert (await kinds(client, manager.session_id, "tool_call")).count(
            "tool_call.claimed"
        ) == 1


@pytest.mark.parametrize(
    ("idempotent", "reason"),
    [(False, StopReason.OUTCOME_UNKNOWN), (True, StopReason.CANCELLED)],
)
async def test_a_cancel_stops_tools_and_tells_the_truth(shared, idempotent, reason):
    started, stopped = asyncio.Event(), asyncio.Event()

    @tool(idempotent=idempotent)
    async def waits() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with session(shared, Turns([call("waits"), call("add", a=1, b=1)]), [waits, add]) as (
        manager,
        client,
    ):
        receipt = await manager.submit("go")
        await started.wait()
        done = await manager.interrupt(wait=20)
        assert done.settled
        assert stopped.is_set()
        assert done.run.stop_reason is reason
        assert done.run.cause is (None if idempotent else StopReason.CANCELLED)
        calls = {
            one.tool_call_id: one for one in (await client.list_tool_calls(receipt.run_id)).items
        }
        assert calls["waits"].state is ToolCallState.OUTCOME_UNKNOWN
        assert calls["add"].text == "2"


async def test_budgets_and_the_stop_policy_end_the_run(shared):
    def fails() -> None:
        raise ValueError("no")

    model = Turns([call("add", a=1, b=1), call("add", "more", a=1, b=1)])
    async with session(shared, model, [add], options={"max_tool_calls": 1}) as (manager, client):
        result = await manager.run("go")
        assert result.stop_reason is StopReason.BUDGET_EXHAUSTED
        states = {one.state for one in (await client.list_tool_calls(result.run_id)).items}
        assert states == {ToolCallState.CANCELLED}
    stop = {"tool_error_policy": "stop"}
    async with session(
        shared, Turns([call("fails"), call("add", a=1, b=1)]), [fails, add], stop
    ) as (
        manager,
        client,
    ):
        result = await manager.run("go")
        assert result.failure.reason is runlane.RunFailureReason.TOOL_FAILED
        texts = {one.text for one in (await client.list_tool_calls(result.run_id)).items}
        assert texts == {"ValueError: no", "2"}
    asking = tool(name="asks", policy="ask")(lambda: None)
    async with session(shared, Turns([call("asks")]), [asking], stop) as (manager, _):
        await manager.run("go", until="stopped")
        result = await manager.resume((False, "no"))
        assert result.failure.reason is runlane.RunFailureReason.TOOL_FAILED


async def test_a_steer_comes_in_at_the_end_of_a_batch(shared):
    started, gate = asyncio.Event(), asyncio.Event()

    async def waits() -> str:
        started.set()
        await gate.wait()
        return "ran"

    model = Turns([call("waits")], "done")
    async with session(shared, model, [waits]) as (manager, client):
        receipt = await manager.submit("go")
        await started.wait()
        await manager.submit("hurry", mode="steer")
        gate.set()
        assert (await manager.wait(receipt.run_id)).text == "done"
        texts = [
            m.text or m.tool_result.text for m in model.requests[-1].messages if not m.tool_uses
        ]
        assert texts == ["go", "ran", "hurry"]
        messages = (await client.list_messages(manager.session_id)).items
        assert [m.number for m in model.requests[-1].messages] == [m.number for m in messages[:-1]]


async def test_events_tell_of_tools_and_interactions(shared):
    asking = tool(name="asks", policy="ask")(lambda: "ran")
    async with session(shared, Turns([call("asks")], "done"), [asking]) as (manager, client):
        waiting = await manager.run("go", until="stopped")
        await manager.resume(True)
        page = await client.list_events(manager.session_id, limit=1000)
        events = [one for one in page.items if isinstance(one, runlane.RunEvent)]
        told = [one for one in events if one.tool_call_id or one.interaction_id]
        assert [one.kind for one in told] == [
            RunEventKind.TOOL_CALL_PREPARED,
            RunEventKind.RUN_WAITING,
            RunEventKind.INTERACTION_OPENED,
            RunEventKind.INTERACTION_ANSWERED,
            RunEventKind.TOOL_CALL_CLAIMED,
            RunEventKind.TOOL_CALL_COMMITTED,
        ]
        assert (told[0].tool_name, told[0].tool_ordinal) == ("asks", 1)
        assert told[1].interaction_id == waiting.interaction.interaction_id
        assert told[4].idempotent is False
        assert told[5].tool_outcome is ToolOutcome.OK


async def test_an_interaction_expires_and_ends_its_run(shared):
    options = {"interaction_timeout": 0.2}
    model = Turns([call("ask_question", question="Well?")])
    async with session(shared, model, ask_question=True, options=options) as (manager, client):
        receipt = await manager.submit("go")
        result = await manager.wait(receipt.run_id)
        assert result.stop_reason is StopReason.INTERACTION_EXPIRED
        closed = (await client.list_interactions(manager.session_id, state="closed")).items
        assert [one.close_reason for one in closed] == ["expired"]


async def test_an_answer_after_the_end_finds_the_question_closed(shared):
    model = Turns([call("ask_question", question="Well?")])
    async with session(shared, model, ask_question=True) as (manager, client):
        waiting = await manager.run("go", until="stopped")
        await manager.interrupt(wait=10)
        asked = waiting.interaction
        with pytest.raises(runlane.InteractionClosed):
            await client.answer(asked.run_id, asked.interaction_id, asked.version, "late")


async def test_a_wait_for_a_stop_sees_a_reserved_run_too(shared):
    gate = asyncio.Event()

    class Gated:
        async def complete(self, request):
            await gate.wait()
            if request.messages[-1].text == "second":
                return ModelResponse(tool_calls=[call("ask_question", question="Well?")])
            return ModelResponse(text="first done")

    async with session(shared, Gated(), ask_question=True) as (manager, client):
        await manager.submit("first")
        second = await manager.submit("second", mode="follow_up")
        third = await manager.submit("third", mode="follow_up")
        waits = [
            asyncio.create_task(manager.wait(second.run_id, until="stopped")),
            asyncio.create_task(client.wait_run(second.run_id, until="stopped")),
        ]
        gone = asyncio.create_task(manager.wait(third.run_id, until="stopped"))
        with pytest.raises(TimeoutError):
            await manager.wait(second.run_id, until="stopped", timeout=0.05)
        await manager.withdraw(third.submission_id)
        with pytest.raises(runlane.SubmissionSettled):
            await gone
        gate.set()
        for one in await asyncio.gather(*waits):
            assert one.interaction.prompt.text == "Well?"
        with pytest.raises(ValueError, match="neither"):
            await manager.wait(second.run_id, until="later")
