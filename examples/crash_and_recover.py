"""A process that dies in the middle of a tool, and what becomes of its run.

Start a server, `runlane serve --store memory`, then run this file. A tool that may run twice
is run again by the next executor; one that must not leaves its run OUTCOME_UNKNOWN.
"""

import argparse
import asyncio
import os
import sys
import uuid

import runlane
from runlane import ModelRequest, ModelResponse, ToolUseBlock


class Caller:
    """Stands in for a model: asks for the tool once, then says what it gave."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Answers with a tool call, or with its result."""
        result = request.messages[-1].tool_result
        if result is not None:
            return ModelResponse(text=f"the tool gave {result.text!r}")
        call = ToolUseBlock(tool_call_id="c", name="effect", arguments={})
        return ModelResponse(tool_calls=[call])


async def execute(target: str, name: str, *, again: bool, dies: bool) -> None:
    @runlane.tool(idempotent=again)
    def effect() -> str:
        """Does something that the world can see."""
        if dies:
            os._exit(9)
        return "a result"

    agent = runlane.Agent(name, model=Caller(), tools=[effect])
    async with runlane.Client(target) as client:
        await runlane.Executor(client, agent, lease_duration=5).run()


async def main(target: str) -> None:
    for again in (True, False):
        name = f"agent-{uuid.uuid4().hex[:8]}"
        async with runlane.Client(target) as client:
            receipt = await runlane.SessionManager(client, name, agent=name).submit("go")
            command = [sys.executable, __file__, target, "--die", name, str(again)]
            await (await asyncio.create_subprocess_exec(*command)).wait()
            print("died in a tool that", "may" if again else "must not", "run twice")
            other = asyncio.create_task(execute(target, name, again=again, dies=False))
            result = await client.wait_run(receipt.run_id)
            print("its run ended", result.stop_reason, result.text)
            other.cancel()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "server", nargs="?", default="127.0.0.1:7480", help="where it is (127.0.0.1:7480)"
    )
    # What it starts itself with, as the process that dies: a name, and whether it may run twice.
    parser.add_argument("--die", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    try:
        if given.die:
            name, again = given.die
            asyncio.run(execute(given.server, name, again=again == "True", dies=True))
        else:
            asyncio.run(main(given.server))
    except runlane.TransportError as error:
        sys.exit(f"no server answered: {error}")
