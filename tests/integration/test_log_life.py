"""What the log of a server holds: ids, and never what people said, or a secret."""

import asyncio
import json
import resource
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
import runlane
from support_server import Link, told, unique, until

pytestmark = pytest.mark.asyncio
SECRET = "hush-hush"
TOOLS = Path(__file__).with_name("tools_mcp_server.py")
CONFIG = """
[[agent]]
name = "helper"
system = "hush-hush system"
ask_question = true
[agent.model]
kind = "scripted"
script = [
    {{ match = "fail", answer = {{ tool = "fail", arguments = {{ why = "hush-hush why" }} }}, then = "hush-hush then {{result}}" }},
    {{ match = "leave", answer = {{ tool = "leave", arguments = {{}} }}, then = "hush-hush left" }},
    {{ match = "ask", answer = {{ tool = "ask_question", arguments = {{ question = "hush-hush?" }} }}, then = "hush-hush asked" }},
    {{ match = "hold", answer = "hush-hush held", delay_seconds = 3600 }},
    {{ answer = "hush-hush {{input}}" }},
]
[[agent.mcp]]
url = "http://127.0.0.1:{port}/mcp"
token_env = "TOOL_TOKEN"
idempotent = false

[[agent]]
name = "remote"
[agent.model]
kind = "openai"
name = "some-model"
base_url = "{endpoint}"
api_key_env = "MODEL_KEY"
"""


async def echoing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """An endpoint that fails, and says all that it was told: first as JSON, then as none."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = await reader.readexactly(length)
    said = json.dumps({"error": {"message": (head + body).decode()}}).encode()
    if b"garbage" in body:
        status, kind, said = b"200 X", b"text/event-stream", b"data: {" + said + b"\n\n"
    else:
        status, kind = b"400 X", b"application/json"
    writer.write(b"HTTP/1.1 %s\r\ncontent-type: %s\r\n" % (status, kind))
    writer.write(b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(said) + said)
    await writer.drain()
    writer.close()


async def test_a_full_life_at_debug_level_tells_ids_and_no_word_of_anybody(
    make_server, tmp_path, monkeypatch
):
    monkeypatch.setenv("MODEL_KEY", f"{SECRET}-key")
    monkeypatch.setenv("TOOL_TOKEN", f"{SECRET}-token")
    # What a program of tools says on its own stderr is not ours.
    tools = await asyncio.create_subprocess_exec(
        sys.executable, str(TOOLS), "http", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        port = int(await tools.stdout.readline())
        async with await asyncio.start_server(echoing, "127.0.0.1", 0) as endpoint:
            server = await lived(make_server, tmp_path, endpoint, port)
    finally:
        if tools.returncode is None:
            tools.kill()
        await tools.wait()
    sent = await outage(server)
    await stolen(server)
    assert server.stop() == 0
    check(server, sent)


async def lived(make_server, tmp_path, endpoint, port):
    base = f"http://127.0.0.1:{endpoint.sockets[0].getsockname()[1]}/v1"
    config = tmp_path / "runlane.toml"
    config.write_text(CONFIG.format(port=port, endpoint=base))
    server = make_server(log_level="debug", log_format="json").start()
    async with runlane.Client(server.address, client_name="tester") as client:
        said = await client.start(f"{SECRET} hello", options={"agent": "helper"}, timeout=30)
        assert SECRET in said.text
        for agent, words in (
            ("helper", "fail"),
            ("helper", "leave"),
            ("remote", "plain"),
            ("remote", "garbage"),
        ):
            await client.start(f"{SECRET} {words}", options={"agent": agent}, timeout=60)
        asked = await client.submit(f"{SECRET} ask", options={"agent": "helper"}, create=True)
        stopped = await client.wait_run(asked.run_id, until="stopped", timeout=30)
        question = stopped.interaction
        assert question is not None, (stopped, server.told())
        await client.answer(
            asked.run_id, question.interaction_id, question.version, f"{SECRET} because"
        )
        await client.wait_run(asked.run_id, timeout=30)
        held = await client.submit(f"{SECRET} hold", options={"agent": "helper"}, create=True)
        await client.submit(f"{SECRET} steer", held.session_id, mode="steer")
        await client.interrupt(held.session_id, reason=f"{SECRET} reason", wait=10)
        with pytest.raises(runlane.FieldInvalid):
            await client.submit(f"{SECRET}", f"{SECRET} is no id")
    return server


def check(server, sent) -> None:
    text = server.told()
    assert SECRET not in text, [line for line in text.splitlines() if SECRET in line]
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)
    failed = [line for line in lines if line["event"].startswith("tool fail of run")]
    assert {"session_id", "run_id"} <= failed[0].keys()
    assert failed[0]["kind"] == "ToolError"
    for event in ("store unavailable", "write failed"):
        about = [line for line in lines if line["event"] == event]
        assert sent in {(line.get("session_id"), line.get("request_id")) for line in about}, event
    assert any(line["event"] == "write failed" and line.get("run_id") for line in lines)
    lost = [line for line in lines if line["event"].startswith("activation")]
    assert all({"session_id", "run_id", "activation_id"} <= line.keys() for line in lost)
    assert any(line["event"] == "draining" for line in lines)


async def outage(server) -> tuple[str, str]:
    """Has writes refused; returns session and request of one."""
    session = unique("outage")
    log = server.path.with_name(server.path.name + "-wal")
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    async with Link(server.address) as link:
        await link.create(session, default_agent="nobody")
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (log.stat().st_size, hard))
        refused = ""
        for number in range(1000):
            try:
                await link.submit(
                    session, f"{SECRET} {number} " + "x" * 20_000, mode=3, request_id=f"r{number}"
                )
            except grpc.aio.AioRpcError as error:
                if told(error).reason == "QUEUE_FULL":
                    await link.interrupt(session)
                    continue
                if told(error).reason == "STORE_UNAVAILABLE":
                    refused = f"r{number}"
                break
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))

        async def back() -> bool:
            try:
                await link.create(unique("back"))
            except grpc.aio.AioRpcError:
                return False
            return True

        await until(back)
    return session, refused


async def stolen(server) -> None:
    """Ends a run under its executor."""
    async with runlane.Client(server.address) as client:
        held = await client.submit(f"{SECRET} hold", options={"agent": "helper"}, create=True)

        async def leased() -> bool:
            activation = (await client.get_run(held.run_id)).activation
            return activation is not None and str(activation.state) == "leased"

        await until(leased)
        await client.settle_run(held.run_id, reason=f"{SECRET} by hand")
        await asyncio.sleep(1)
