"""Tools of MCP servers: a child process on stdio, and streamable HTTP."""

import asyncio
import subprocess
import sys
import uuid
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from runlane import (
    Agent,
    Client,
    Executor,
    McpTools,
    MediaBlock,
    ModelResponse,
    SessionManager,
    ToolError,
    ToolOutcome,
    ToolUseBlock,
)

pytest.importorskip("mcp")
pytestmark = pytest.mark.asyncio
SECONDS = 60
PROGRAM = Path(__file__).with_name("tools_mcp_server.py")
STDIO = [sys.executable, str(PROGRAM), "stdio"]


def call(name: str, key: str = "", /, **arguments) -> ToolUseBlock:
    return ToolUseBlock(tool_call_id=key or name, name=name, arguments=arguments)


class Turns:
    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests = []

    async def complete(self, request):
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return ModelResponse(text=answer)
        return ModelResponse(tool_calls=answer)

    @property
    def results(self):
        found = [message.tool_result for message in self.requests[-1].messages]
        return {one.tool_call_id: one for one in found if one is not None}


@asynccontextmanager
async def http_server():
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), "http", stdout=subprocess.PIPE
    )
    try:
        port = int(await process.stdout.readline())
        yield process, f"http://127.0.0.1:{port}/mcp"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ask(shared, model, *sources, **agent):
    name = f"agent-{uuid.uuid4().hex}"
    async with (
        asyncio.timeout(SECONDS),
        Client(shared.address) as client,
        Executor(client, Agent(name, model=model, tools=sources, **agent)),
        SessionManager(client, f"ses-{name}", agent=name) as manager,
    ):
        return await manager.run("go", until="stopped")


BATCH = [
    call("small_add", a=1, b=2),
    call("small_fail", why="no reason"),
    call("small_picture"),
    call("small_add", "wrong", a="one"),
]


async def check_batch(shared, source):
    model = Turns(BATCH, "done")
    result = await ask(shared, model, source)
    assert result.text == "done", result.failure
    names = {spec.name for spec in model.requests[0].tools}
    assert names == {"small_add", "small_fail", "small_picture", "small_leave"}
    spec = next(one for one in model.requests[0].tools if one.name == "small_add")
    assert spec.description == "Adds two numbers."
    assert set(spec.schema["properties"]) == {"a", "b"}
    results = model.results
    assert (results["small_add"].outcome, results["small_add"].text) == (ToolOutcome.OK, "3")
    assert results["small_fail"].outcome is ToolOutcome.ERROR
    assert "no reason" in results["small_fail"].text
    (picture,) = results["small_picture"].content
    assert isinstance(picture, MediaBlock)
    assert (picture.media_type, picture.inline_data) == ("image/png", b"pixels")
    assert results["wrong"].outcome is ToolOutcome.ERROR
    assert "do not fit the tool" in results["wrong"].text


async def test_tools_over_stdio(shared):
    await check_batch(shared, McpTools(command=STDIO, prefix="small_"))


async def test_tools_over_streamable_http(shared):
    async with http_server() as (_, url):
        await check_batch(shared, McpTools(url=url, prefix="small_", headers={"x-key": "k"}))
        await check_batch(shared, McpTools(url=url, prefix="small_", idempotent=True))


async def test_a_server_that_goes_away_is_told_and_started_again(shared):
    model = Turns([call("leave")], [call("add", a=2, b=2)], "done")
    result = await ask(shared, model, McpTools(command=STDIO))
    assert result.text == "done", result.failure
    assert model.results["leave"].outcome is ToolOutcome.ERROR
    assert model.results["add"].text == "4"


async def test_policies_hold_for_tools_of_servers(shared):
    model = Turns([call("add", a=2, b=2)], "done")
    source = McpTools(command=STDIO, policy="ask")
    result = await ask(shared, model, source, policies={"fail": "deny"})
    assert [one.name for one in result.interaction.calls] == ["add"]
    assert {spec.name for spec in model.requests[0].tools} == {"add", "picture", "leave"}


@pytest.mark.parametrize(
    ("source", "match"),
    [
        (lambda: McpTools(command=["/no/such/program"]), "cannot be reached"),
        (lambda: McpTools(command=[sys.executable, "-c", "pass"]), "cannot be reached"),
        (lambda: McpTools(url="http://127.0.0.1:1/mcp"), "cannot be reached"),
        (
            lambda: McpTools(
                command=[sys.executable, "-c", "input(); input()"], connect_timeout=0.5
            ),
            "did not answer within 0.5 s",
        ),
    ],
)
async def test_a_server_that_is_not_there_is_an_error_at_the_start(shared, source, match):
    async with Client(shared.address) as client, asyncio.timeout(SECONDS):
        executor = Executor(client, Agent("a", model=Turns(), tools=[source()]))
        with pytest.raises(ToolError, match=match):
            await executor.run()


async def test_the_servers_own_executor_has_tools_of_its_settings(make_server, tmp_path):
    program, script = (str(part) for part in (sys.executable, PROGRAM))
    (tmp_path / "runlane.toml").write_text(
        f"""
[[agent]]
name = "adder"
ask_question = true
[agent.model]
kind = "scripted"
script = [
    {{match = "add", answer = {{tool = "add", arguments = {{a = 20, b = 22}}}}, then = "it is {{result}}"}},
    {{answer = [{{tool = "ask_question", arguments = {{question = "why {{input}}?"}}}}]}},
    {{answer = "because {{result}}"}},
]
[[agent.mcp]]
command = ["{program}", "{script}", "stdio"]
[agent.policies]
add = "ask"
""",
        encoding="utf-8",
    )
    server = make_server().start()
    async with (
        asyncio.timeout(SECONDS),
        Client(server.address) as client,
        SessionManager(client, "main", agent="adder") as manager,
    ):
        await manager.run("add", until="stopped")
        assert (await manager.resume(True)).text == "it is 42"
        asked = await manager.run("not", until="stopped")
        assert asked.interaction.prompt.text == "why not?"
        assert (await manager.resume("it rains")).text == "because it rains"
