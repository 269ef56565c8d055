"""Forms and waits for other systems, which tools open: against a real server process."""

import asyncio
import json

import pytest
import runlane
from pydantic import BaseModel, Field
from runlane import (
    Agent,
    Client,
    Executor,
    ExternalPrompt,
    FormPrompt,
    PromptKind,
    Tool,
    ToolContext,
    ToolError,
    ToolOutcome,
    tool,
)
from support.gate import yielded
from tools_lane import SECONDS, Turns, call, session

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]


class Address(BaseModel):
    street: str
    number: int = Field(ge=1)


@tool(form=Address)
def ask_address(of: str, context: ToolContext) -> str:
    """Asks the user for an address."""
    if of == "nobody":
        raise ToolError("nobody lives nowhere")
    return f"Where does {of} live? ({context.tool_call_id}, step {context.step})"


class Bank:
    """Another system, that was told where to report."""

    def __init__(self) -> None:
        self.tokens: asyncio.Queue[str] = asyncio.Queue()
        self.told: list[ToolContext] = []

    def tool(self, **settings) -> Tool:
        @tool(external="the bank's word", **settings)
        async def pay(amount: int, context: ToolContext) -> object:
            """Pays."""
            self.told.append(context)
            if amount < 0:
                raise ToolError("the bank takes no debts")
            self.tokens.put_nowait(context.external_token)
            return object()  # what it returns is no result, and need be no JSON

        return pay

    async def token(self) -> str:
        return await asyncio.wait_for(self.tokens.get(), SECONDS)


async def test_a_tool_with_a_form_waits_for_json_that_fits(shared):
    model = Turns([call("ask_address", of="Ann")], "done")
    async with session(shared, model, [ask_address]) as (manager, client):
        stopped = await manager.run("go", until="stopped")
        asked = stopped.interaction
        assert asked.kind is PromptKind.FORM
        assert asked.prompt.text == "Where does Ann live? (ask_address, step 1)"
        assert json.loads(asked.prompt.json_schema)["properties"]["number"]["minimum"] == 1
        with pytest.raises(runlane.AnswerInvalid):
            await manager.resume({"street": "Main", "number": 0})
        ended = await manager.resume({"street": "Main", "number": 3})
        assert ended.text == "done"
        (made,) = (await client.list_tool_calls(ended.run_id)).items
        assert made.outcome is ToolOutcome.OK
        assert json.loads(made.text) == {"street": "Main", "number": 3}
    assert model.results["ask_address"].text == made.text
    (spec,) = model.requests[0].tools
    assert list(spec.schema["properties"]) == ["of"]


async def test_what_asks_may_refuse_and_a_schema_may_be_plain(shared):
    """A tool made by hand asks with a schema of the moment."""

    def ask(arguments, context):
        schema = {"type": "object", "required": arguments["fields"]}
        return FormPrompt(text="", json_schema=json.dumps(schema))

    async def never(arguments, context):
        raise AssertionError("a form is not run")

    made = Tool("ask", "Asks.", {"type": "object"}, never, ask=ask)
    huge = Tool("huge", "", {"type": "object"}, never, ask=lambda *_: FormPrompt(text="x" * 20_000, json_schema="{}"))  # fmt: skip
    calls = [call("ask_address", of="nobody"), call("ask", fields=["a"]), call("huge")]
    model = Turns([*calls], "done")
    async with session(shared, model, [ask_address, made, huge]) as (manager, _):
        stopped = await manager.run("go", until="stopped")
        assert json.loads(stopped.interaction.prompt.json_schema)["required"] == ["a"]
        assert (await manager.resume({"a": 1})).text == "done"
    results = model.results
    assert results["ask_address"].text == "nobody lives nowhere"
    assert results["ask_address"].outcome is ToolOutcome.ERROR
    assert "16 KiB" in results["huge"].text
    assert results["ask"].text == '{"a": 1}'


@pytest.mark.parametrize("says", ["result", "error"])
async def test_another_system_gives_the_result_by_its_token(shared, says):
    bank = Bank()
    model = Turns([call("pay", amount=5)], "done")
    async with session(shared, model, [bank.tool()]) as (manager, client):
        receipt = await manager.submit("pay")
        token = await bank.token()
        waiting = await manager.wait(receipt.run_id, until="stopped")
        assert waiting.interaction.prompt == ExternalPrompt(
            reason="the bank's word", tool_call_id="pay"
        )
        assert token not in repr(bank.told)
        said = {"result": {"paid": 5}} if says == "result" else {"error": "no funds"}
        await client.complete_external(token, **said)
        assert (await manager.wait(receipt.run_id)).text == "done"
    result = model.results["pay"]
    expected = (ToolOutcome.OK, '{"paid": 5}') if says == "result" else (ToolOutcome.ERROR, "no funds")  # fmt: skip
    assert (result.outcome, result.text) == expected
    assert (len(bank.told), bank.told[0].step) == (1, 1)


async def test_a_token_that_cannot_be_handed_on_is_told_to_the_model(shared):
    model = Turns([call("pay", amount=-1)], "done")
    async with session(shared, model, [Bank().tool()]) as (manager, _):
        assert (await manager.run("pay")).text == "done"
    assert model.results["pay"].outcome is ToolOutcome.ERROR
    assert model.results["pay"].text == "the bank takes no debts"


async def test_a_tool_that_waits_can_ask_first(shared):
    bank = Bank()
    model = Turns([call("pay", amount=5), call("pay", "other", amount=6)], "done")
    async with session(shared, model, [bank.tool(policy="ask")]) as (manager, client):
        stopped = await manager.run("pay", until="stopped")
        assert stopped.interaction.kind is PromptKind.PERMISSION
        assert bank.told == []
        answered = await manager.admit_resume({"pay": True, "other": False})
        await client.complete_external(await bank.token(), result="ok")
        assert (await manager.wait(answered.run_id)).text == "done"
    assert model.results["other"].outcome is ToolOutcome.REJECTED
    assert model.results["pay"].text == '"ok"'


async def test_waits_of_one_step_come_one_after_the_other(shared):
    bank = Bank()
    calls = [
        call("pay", "p1", amount=1),
        call("ask_address", of="Ann"),
        call("ask_question", question="Sure?"),
        call("pay", "p2", amount=2),
    ]
    model = Turns(calls, "done")
    async with session(shared, model, [bank.tool(), ask_address], ask_question=True) as made:
        manager, client = made
        receipt = await manager.submit("go")
        await client.complete_external(await bank.token(), result=1)
        seen = []
        for answer in ({"street": "Main", "number": 3}, "yes"):
            stopped = await manager.wait(receipt.run_id, until="stopped")
            while stopped.interaction.kind is PromptKind.EXTERNAL or stopped.interaction in seen:
                stopped = await manager.wait(receipt.run_id, until="stopped")
            seen.append(stopped.interaction)
            await manager.admit_resume(answer, stopped.interaction)
        await client.complete_external(await bank.token(), result=2)
        assert (await manager.wait(receipt.run_id)).text == "done"
    assert [model.results[key].text for key in ("p1", "ask_question", "p2")] == ["1", "yes", "2"]
    assert len(bank.told) == 2, "each is told once"


async def test_an_executor_that_stops_amid_the_handing_over_tells_the_model(shared):
    reached = asyncio.Event()

    @tool(external="the bank's word")
    async def pay(context: ToolContext) -> None:
        """Pays."""
        reached.set()
        await asyncio.Event().wait()

    model = Turns([call("pay")], "done")
    async with (
        Client(shared.address) as client,
        runlane.SessionManager(client, "ses-stops", agent="stops") as manager,
        asyncio.timeout(SECONDS),
    ):
        agent = Agent("stops", model=model, tools=[pay])
        async with Executor(client, agent):
            receipt = await manager.submit("pay")
            await reached.wait()
            await yielded()
        async with Executor(client, agent):
            assert (await manager.wait(receipt.run_id)).text == "done"
    assert model.results["pay"].outcome is ToolOutcome.ERROR
    assert "whether the other system was reached is open" in model.results["pay"].text


async def test_a_schema_that_is_none_ends_the_run_and_keeps_the_results(shared):
    """What ran beside it is no open question: the run fails, and is not outcome_unknown."""

    @tool(form={"type": "nonsense"})
    def broken() -> str:
        """Asks in vain."""
        return "?"

    @tool
    def effect() -> str:
        """Does something."""
        return "done"

    model = Turns([call("effect"), call("broken")])
    async with session(shared, model, [effect, broken]) as (manager, client):
        ended = await manager.run("go")
        assert ended.stop_reason is runlane.StopReason.FAILED
        assert ended.failure.reason is runlane.RunFailureReason.EXECUTOR_ERROR
        calls = {one.name: one for one in (await client.list_tool_calls(ended.run_id)).items}
    assert (calls["effect"].state, calls["effect"].text) == ("committed", "done")
