"""How an executor runs tools, against a scripted server."""

import asyncio

import pytest
import runlane
from client_executor_script import lease
from client_fakes import FakeServer
from client_tool_script import (
    ERROR,
    OK,
    REJECTED,
    State,
    ToolScript,
    Turns,
    arguments_of,
    call,
    equipped,
    verdicts,
)
from runlane import Agent, Executor, MessageRole, ToolContext, ToolError, tool
from runlane.v1 import executor_service_pb2 as pb
from runlane.v1 import session_service_pb2 as session_pb
from support.gate import until, yielded

pytestmark = pytest.mark.asyncio


@pytest.fixture
def script(server: FakeServer) -> ToolScript:
    return ToolScript(server)


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool(idempotent=True)
async def read(name: str) -> str:
    return f"text of {name}"


async def test_a_step_with_tools_is_two_commits(script: ToolScript, client):
    model = Turns([call("add", a=1, b=2), call("read", name="x")], "done")
    script.leases.put_nowait(lease())
    async with equipped(client, model, [add, read]):
        await script.end()
    assert script.kinds() == [
        ["reserve"],
        ["step", "claim", "claim"],
        ["results", "reserve"],
        ["step", "finish"],
    ]
    claims = [op.claim_tool_calls for op in script.commits[1].operations[1:]]
    told = {tuple(c.tool_call_ids): c.idempotent for c in claims}
    assert told == {("read",): True, ("add",): False}
    first, second = model.requests
    assert [spec.name for spec in first.tools] == ["add", "read"]
    assert first.tools[0].description == "Adds two numbers."
    assert first.tools[0].schema["required"] == ["a", "b"]
    roles = [message.role for message in second.messages]
    assert roles == [MessageRole.USER, MessageRole.ASSISTANT, MessageRole.TOOL, MessageRole.TOOL]
    assert [message.number for message in second.messages] == [1, 2, 3, 4]
    assert [use.arguments for use in second.messages[1].tool_uses] == [
        {"a": 1, "b": 2},
        {"name": "x"},
    ]
    assert [m.tool_result.text for m in second.messages[2:]] == ["3", "text of x"]
    assert [m.tool_result.outcome for m in second.messages[2:]] == ["ok", "ok"]


async def test_results_come_as_they_are_ready_and_messages_in_order(script: ToolScript, client):
    gate = asyncio.Event()

    async def slow() -> str:
        await gate.wait()
        return "slow"

    async def fast() -> str:
        return "fast"

    model = Turns([call("slow"), call("fast")], "done")
    script.steers = ["hurry"]
    script.leases.put_nowait(lease())
    async with equipped(client, model, [slow, fast]):
        await script.server.called("Commit", 3)
        assert script.kinds()[-1] == ["results"]
        gate.set()
        await script.end()
    seen = model.requests[-1].messages
    assert [m.tool_result.text for m in seen[2:4]] == ["slow", "fast"]
    assert seen[4].text == "hurry"
    assert [m.number for m in seen] == [1, 2, 3, 4, 5]


async def test_what_cannot_be_run_is_settled_without_a_claim(script: ToolScript, client):
    calls = [
        call("nothing"),
        call("add", "bad", a="one", b=2),
        call("add", "more", a=1, b=2, c=3),
        call("add", "odd", raw="[1, 2]"),
        call("read", "denied", name="x"),
    ]
    model = Turns(calls, "done")
    script.leases.put_nowait(lease())
    async with equipped(client, model, [add, read], policies={"read": "deny"}):
        await script.end()
    assert script.kinds() == [["reserve"], ["step", "results", "reserve"], ["step", "finish"]]
    seen = [m.tool_result for m in model.requests[-1].messages[2:]]
    outcomes = {one.tool_call_id: one.outcome for one in seen}
    assert outcomes == {
        "nothing": "error",
        "bad": "error",
        "more": "error",
        "odd": "error",
        "denied": "rejected",
    }
    said = {one.tool_call_id: one.text for one in seen}
    assert "no tool named 'nothing'" in said["nothing"]
    assert said["bad"].endswith(
        "a: Input should be a valid integer, unable to parse string as an integer"
    )
    assert "c: Extra inputs" in said["more"]
    assert said["odd"] == "malformed"
    assert [spec.name for spec in model.requests[0].tools] == ["add"]


async def test_a_run_sees_and_uses_only_the_tools_of_its_options(script: ToolScript, client):
    model = Turns([call("read", name="x"), call("add", a=1, b=1)], "done")
    leased = lease()
    leased.run.options.tools.append("add")
    script.leases.put_nowait(leased)
    async with equipped(client, model, [add, read]):
        await script.end()
    assert [spec.name for spec in model.requests[0].tools] == ["add"]
    assert {key: one.outcome for key, one in script.results().items()} == {"read": ERROR, "add": OK}


async def test_what_a_tool_raises_is_told_to_the_model(script: ToolScript, client):
    def breaks() -> None:
        raise ValueError("x" * 5000)

    async def tells() -> None:
        raise ToolError("not today")

    def leaves() -> None:
        raise SystemExit(3)

    async def cancels() -> None:
        raise asyncio.CancelledError

    def returns() -> object:
        return object()

    tools = [breaks, tells, leaves, cancels, returns]
    model = Turns([call(one.__name__) for one in tools], "done")
    script.leases.put_nowait(lease())
    async with equipped(client, model, tools):
        await script.end()
    assert {one.outcome for one in script.results().values()} == {ERROR}
    assert script.said("breaks").startswith("ValueError: xxx")
    assert len(script.said("breaks")) == 2048
    assert script.said("tells") == "not today"
    assert script.said("leaves") == "SystemExit: 3"
    assert script.said("cancels") == "the tool cancelled itself"
    assert "no JSON" in script.said("returns")
    assert script.commits[-1].finish.WhichOneof("outcome") == "completed"


@pytest.mark.parametrize("by", ["tool", "run"])
async def test_a_tool_that_takes_too_long_is_an_error(script: ToolScript, client, by):
    async def waits() -> None:
        await asyncio.Event().wait()

    made = tool(timeout=0.05 if by == "tool" else None)(waits)
    leased = lease()
    if by == "run":
        leased.run.options.tool_timeout_duration.FromMilliseconds(50)
    script.leases.put_nowait(leased)
    async with equipped(client, Turns([call("waits")], "done"), [made]):
        await script.end()
    assert script.results()["waits"].outcome == ERROR
    assert "did not end within 0.05 s" in script.said("waits")


async def test_a_function_that_blocks_blocks_nobody(script: ToolScript, client):
    started, go = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def blocks() -> str:
        loop.call_soon_threadsafe(started.set)
        asyncio.run_coroutine_threadsafe(go.wait(), loop).result(10)
        return "ran"

    script.leases.put_nowait(lease())
    async with equipped(client, Turns([call("blocks")], "done"), [blocks]):
        await asyncio.wait_for(started.wait(), 10)
        go.set()
        await script.end()
    assert script.said("blocks") == "ran"


async def test_a_tool_is_told_what_it_is_run_for(script: ToolScript, client):
    seen = []

    def look(context: ToolContext, word: str = "none") -> str:
        seen.append(context)
        return word

    script.leases.put_nowait(lease())
    model = Turns([call("look")], "done")
    async with equipped(client, model, [look]):
        await script.end()
    assert seen == [
        ToolContext(
            agent="demo", session_id="main", run_id="run_1", tool_call_id="look", step=1, attempt=1
        )
    ]
    assert list(model.requests[0].tools[0].schema["properties"]) == ["word"]
    assert script.said("look") == "none"


async def test_repeated_and_odd_ids_are_made_unique(script: ToolScript, client):
    twice = [call("read", "same", name="x"), call("read", "same", name="y")]
    odd = [
        call("read", "same", name="z"),
        call("read", "//odd id", name="a"),
        call("read", "!", name="b"),
    ]
    model = Turns(twice, odd, "done")
    script.leases.put_nowait(lease())
    async with equipped(client, model, [read]):
        await script.end()
    ids = [
        block.tool_use.tool_call_id
        for message in script.messages
        for block in message.content
        if block.HasField("tool_use")
    ]
    assert ids == ["same", "same-2", "same-3", "odd-id", "call_2_3"]


async def test_asking_calls_wait_until_the_others_have_results(script: ToolScript, client):
    ran = []

    @tool(policy="ask")
    def pay(amount: int) -> str:
        ran.append(amount)
        return f"paid {amount}"

    model = Turns(
        [call("pay", "p1", amount=1), call("add", a=1, b=1), call("pay", "p2", amount=2)], "done"
    )
    script.leases.put_nowait(lease())
    async with equipped(client, model, [pay, add]):
        await script.end()
        assert script.kinds() == [["reserve"], ["step", "claim"], ["results", "suspend"]]
        (prompt,) = script.suspended
        assert [one.tool_call_id for one in prompt.permission.calls] == ["p1", "p2"]
        assert ran == []
        # The server gives the rejected call its result.
        script.calls["p2"].state = State.STATE_COMMITTED
        script.calls["p2"].result.tool_call_id = "p2"
        script.calls["p2"].result.outcome = REJECTED
        script.again(answered=[verdicts(p1=True, p2=False)])
        await script.end()
    assert ran == [1]
    assert script.kinds()[3:] == [["claim"], ["results", "reserve"], ["step", "finish"]]
    seen = [m.tool_result for m in model.requests[-1].messages[2:]]
    assert [one.tool_call_id for one in seen] == ["p1", "add", "p2"]
    assert [one.outcome for one in seen] == ["ok", "ok", "rejected"]


async def test_only_asking_calls_suspend_with_their_step(script: ToolScript, client):
    script.leases.put_nowait(lease())
    made = tool(policy="ask")(lambda: "ran")
    async with equipped(client, Turns([call("<lambda>")]), [made]):
        await script.end()
    assert script.kinds() == [["reserve"], ["step", "suspend"]]


async def test_a_question_is_bound_to_its_call(script: ToolScript, client):
    asked = call("ask_question", question="Which one?", options=["a", "b"])
    again = call("ask_question", "q2", question="Sure?")
    model = Turns([asked, call("ask_question", "q0", question=""), again], "done")
    script.leases.put_nowait(lease())
    async with equipped(client, model, ask_question=True):
        await script.end()
        assert script.kinds()[-1] == ["step", "results", "suspend"]
        prompt = script.suspended[0].question
        assert (prompt.text, list(prompt.options)) == ("Which one?", ["a", "b"])
        assert prompt.tool_call_id == "ask_question"
        for key, words in (("ask_question", "a"), ("q2", "yes")):
            answered = script.calls[key]
            answered.state = State.STATE_CLAIMED
            result = pb.CommitToolResults().results.add(tool_call_id=key, outcome=OK)
            result.content.add().text = words
            script.settle(result)
            if key == "q2":
                script._close(pb.CommitResponse())
            script.again()
            await script.end()
            if key == "ask_question":
                assert script.suspended[1].question.text == "Sure?"
    assert "ask_question" in [spec.name for spec in model.requests[0].tools]
    assert script.results()["q0"].outcome == ERROR
    assert [m.tool_result.text for m in model.requests[-1].messages if m.tool_result][-1] == "yes"


async def test_recovery_runs_what_is_prepared_and_nothing_else(script: ToolScript, client):
    runs = []

    @tool(idempotent=True)
    async def note(word: str) -> str:
        runs.append(word)
        return word

    model = Turns([call("note", "n1", word="1"), call("note", "n2", word="2")], "done")
    script.leases.put_nowait(lease())
    gate = asyncio.Event()

    @tool(idempotent=True)
    async def stuck() -> str:
        await gate.wait()
        return "free"

    model.answers[0].append(call("stuck"))
    async with equipped(client, model, [note, stuck]) as executor:
        await script.server.called("Commit", 3)
        assert script.kinds()[-1] == ["results"]
        await executor.aclose(release=False)
    assert sorted(runs) == ["1", "2"]
    # The server has seen that its poll is gone, which would take the next lease with it.
    await until(lambda: not script.leases._getters)
    # The lease is lost: what was claimed and may be run again is prepared again.
    script.calls["stuck"].state = State.STATE_PREPARED
    script.again("KIND_RECOVER")
    gate.set()
    async with equipped(client, model, [note, stuck]):
        await script.end()
    assert sorted(runs) == ["1", "2"]
    assert script.kinds()[3:] == [["claim"], ["results", "reserve"], ["step", "finish"]]
    seen = [m.tool_result.text for m in model.requests[-1].messages[2:]]
    assert seen == ["1", "2", "free"]


async def test_many_calls_and_large_results_are_cut_into_portions(script: ToolScript, client):
    def large(number: int) -> str:
        return "x" * 2_000_000

    calls = [call("large", f"c{n}", number=n) for n in range(5)]
    calls += [call("nothing", f"n{n}") for n in range(70)]
    script.leases.put_nowait(lease())
    async with equipped(client, Turns(calls, "done"), [large]):
        await script.end()
    sizes = [
        sum(one.ByteSize() for one in operation.commit_tool_results.results)
        for commit in script.commits
        for operation in commit.operations
        if operation.HasField("commit_tool_results")
    ]
    assert max(sizes) <= 3 * 1024 * 1024
    assert len(script.results()) == 75
    assert script.said("c0").endswith("[cut: the whole has 2000000 bytes]")
    assert script.commits[-1].WhichOneof("outcome") == "finish"


async def test_arguments_reach_the_history_as_json(script: ToolScript, client):
    model = Turns(
        [call("add", "t", raw='{"a": 1, "b": 2}'), call("add", "u", a=float("nan"), b=1)], ""
    )
    script.leases.put_nowait(lease())
    async with equipped(client, model, [add]):
        await script.end()
    first, second = script.messages[1].content
    assert arguments_of(first) == {"a": 1, "b": 2}
    assert second.tool_use.WhichOneof("arguments") == "arguments_text"
    assert script.said("t") == "3"


async def test_what_makes_no_tool_is_refused(client):
    def positional(*values: int) -> None: ...

    with pytest.raises(ValueError, match="cannot be named"):
        tool(positional)
    with pytest.raises(ValueError, match="no policy"):
        tool(policy="maybe")(lambda: None)
    with pytest.raises(ValueError, match="no policy"):
        Agent("a", model=Turns(), policies={"add": "maybe"})
    with pytest.raises(ValueError, match="two tools are named 'add'"):
        Executor(client, Agent("a", model=Turns(), tools=[add, add]))
    with pytest.raises(ValueError, match="there is no such tool"):
        Executor(client, Agent("a", model=Turns(), tools=[add], policies={"ad": "ask"}))
    with pytest.raises(ValueError, match="either a command or a url"):
        runlane.McpTools()


async def test_what_makes_no_form_and_no_external_wait_is_refused():
    def text(of: str) -> str:
        return of

    async def later(of: str) -> str:
        return of

    for settings, function, match in (
        ({"form": {"type": "object"}, "external": "it"}, text, "not for two"),
        ({"external": "it"}, text, "ToolContext"),
        ({"form": {"type": "object"}}, later, "not async"),
        ({"form": {"type": {1}}}, text, "no JSON"),
        ({"form": {"type": "object", "title": "x" * 70_000}}, text, "65536 bytes"),
    ):
        with pytest.raises(ValueError, match=match):
            tool(**settings)(function)


async def test_a_token_that_came_too_late_to_be_handed_on_completes_its_wait(script, client):
    """The executor is closed while the commit that opens the wait is on its way."""
    on_its_way, go_on, completed = asyncio.Event(), asyncio.Event(), []
    takes = script.commit

    @tool(external="it")
    def start(context: ToolContext) -> None:
        completed.append("started")

    async def commit(request, context):
        answer = await takes(request, context)
        if request.HasField("suspend"):
            answer.external_token = "secret"
            on_its_way.set()
            await go_on.wait()
        return answer

    async def complete(request, context):
        completed.append((request.token, request.answer.error))
        return session_pb.CompleteExternalResponse()

    script.server.handlers |= {"Commit": commit, "CompleteExternal": complete}
    script.leases.put_nowait(lease())
    async with equipped(client, Turns([call("start")]), [start]) as executor:
        await asyncio.wait_for(on_its_way.wait(), 10)
        closing = asyncio.create_task(executor.aclose())
        await yielded()
        go_on.set()
        await asyncio.wait_for(closing, 10)
    ((token, error),) = completed
    assert token == "secret"
    assert "stopped" in error


@pytest.mark.parametrize("level", ["INFO", "DEBUG"])
async def test_the_log_tells_of_a_tool_that_failed_and_its_words_to_debuggers_alone(
    script: ToolScript, client, caplog, level
):
    def fails() -> None:
        raise ValueError("what a user said")

    caplog.set_level(level, "runlane.executor")
    script.leases.put_nowait(lease())
    async with equipped(client, Turns([call("fails")], "done"), [fails]):
        await script.end()
    assert "tool fails of run run_1 failed: ValueError" in caplog.text
    assert ("what a user said" in caplog.text) == (level == "DEBUG")
