"""The main job of Runlane, told by a program.

A person sends an input, steers the run while it works, queues a follow-up, looks back,
branches off, and loses nothing when the server is killed. All of it goes through a real
server process with its data in one file; the model is ten lines and needs no key.
"""

import asyncio
import contextlib
import logging
import os
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

from runlane import (
    Agent,
    Client,
    EventStream,
    Executor,
    ModelRequest,
    ModelResponse,
    RunEvent,
    RunEventKind,
    SessionHistory,
    SessionManager,
    SubmissionEvent,
    SubmissionState,
)

START_SECONDS = 30
STORY_SECONDS = 60


class GatedModel:
    """Answers the same thing every time, once its gate is open."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Waits at the gate and answers."""
        self.asked.set()
        await self.gate.wait()
        return ModelResponse(text="这一步已完成。", model=request.model)


class Server:
    """A server process that can be killed and started again on the same file and port."""

    def __init__(self, folder: str) -> None:
        self.address = "127.0.0.1:0"
        self._command = ["-m", "runlane_server", "serve", "--store", f"sqlite:{folder}/demo.db"]
        # What a killed server leaves in its place for temporary files goes with the rest.
        self._environ = {**os.environ, "TMPDIR": folder}
        self._log = Path(folder, "server.log")
        self._process: Process | None = None

    async def start(self) -> None:
        """Starts it and waits until it listens."""
        command = [*self._command, "--listen", self.address]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *command, env=self._environ, stdout=PIPE, stderr=log
            )
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe, as asked above
        async with deadline(START_SECONDS, "the server did not start"):
            said = (await self._process.stdout.readline()).decode().strip()
        if not said.startswith("listening on "):
            sys.exit(f"the server did not start:\n{self._log.read_text(encoding='utf-8')}")
        self.address = said.removeprefix("listening on ")

    async def kill(self) -> None:
        """Kills it as a crash would: SIGKILL, without any warning."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@contextlib.asynccontextmanager
async def deadline(seconds: float, otherwise: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        sys.exit(f"{otherwise} within {seconds:.0f} s")


async def converse(client: Client, model: GatedModel) -> None:
    """Steers a run, queues another behind it, looks back and branches off."""
    manager = SessionManager(client, "main", agent="demo")
    events = manager.events()

    print("-- three inputs: one starts a run, one steers it, one waits for its turn")
    first = await manager.submit("先分析报告")
    steer = await manager.submit("重点看成本", mode="steer")
    follow_up = await manager.submit("再写一份摘要", mode="follow_up")
    print(first.state, steer.state, follow_up.state)

    print("-- the model may answer now; this is what the event stream tells")
    model.gate.set()
    async for event in events:
        if isinstance(event, SubmissionEvent):
            print(event.mode, event.state)
        if ended(event, follow_up.run_id):
            break

    print("-- the steer went into the first run, the follow-up made a second one")
    history = SessionHistory(client)
    points = await history.list_fork_points("main")
    print("fork points:", len(points.items))
    told = await history.get_at_run(first.run_id)
    print("first run:", [message.text for message in told.messages])

    print("-- a branch goes on from the end of the first run; the session stays as it is")
    branch = await history.fork(first.run_id)
    result = await client.start("换一个角度分析", branch.session_id)
    print("branch:", result.stop_reason)
    print("branch source:", branch.forked_from_run_id)
    await manager.close()


async def survive(client: Client, model: GatedModel, server: Server) -> None:
    """Kills the server between an input that was accepted and its delivery."""
    model.gate.clear()
    model.asked.clear()
    manager = SessionManager(client, "main", agent="demo")
    events = manager.events()
    await manager.submit("比较两个方案")
    queued = await manager.submit("再列出风险", mode="follow_up")
    await model.asked.wait()

    print("-- a run is at work and a follow-up waits behind it; the server is killed")
    await server.kill()
    await server.start()
    print("-- it is back with the same file; the model may answer, the same stream goes on")
    model.gate.set()
    await delivered(events, queued.submission_id)
    await manager.wait(queued.run_id)
    await manager.close()


async def delivered(events: EventStream, submission_id: str) -> None:
    async for event in events:
        if not isinstance(event, SubmissionEvent) or event.submission_id != submission_id:
            continue
        if event.state is SubmissionState.DELIVERED:
            print("after a kill:", event.mode, event.state)
            return


def ended(event: object, run_id: str) -> bool:
    return (
        isinstance(event, RunEvent)
        and event.kind is RunEventKind.RUN_TERMINAL
        and event.run_id == run_id
    )


async def main() -> None:
    with tempfile.TemporaryDirectory(prefix="runlane-demo-") as folder:
        server, model = Server(folder), GatedModel()
        try:
            await server.start()
            async with (
                deadline(STORY_SECONDS, "the story did not end"),
                Client(server.address) as client,
                Executor(client, Agent("demo", model=model, model_name="gated")),
            ):
                await converse(client, model)
                await survive(client, model, server)
        finally:
            await server.kill()


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
    else:
        # That the server is away for a while is a part of the story, and no news.
        logging.getLogger("runlane.executor").setLevel(logging.ERROR)
        asyncio.run(main())
