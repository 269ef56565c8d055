"""An executor process with a tool that leaves a mark in a file, and then waits for ever."""

import asyncio
import sys
from pathlib import Path

from runlane import Agent, Client, Executor, ModelRequest, ModelResponse, ToolUseBlock, tool


def leave_mark(marks: str) -> None:
    with Path(marks).open("a", encoding="utf-8") as file:
        file.write("x")


class Caller:
    """Asks for the tool once, and answers with its result."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        result = request.messages[-1].tool_result
        if result is not None:
            return ModelResponse(text=f"the tool said {result.text}")
        call = ToolUseBlock(tool_call_id="effect", name="effect", arguments={})
        return ModelResponse(tool_calls=[call])


async def main(target: str, agent: str, marks: str, kind: str) -> None:
    @tool(idempotent=kind != "once", policy="ask" if kind == "asking" else "allow")
    async def effect() -> str:
        leave_mark(marks)
        print("begun", flush=True)
        await asyncio.Event().wait()
        return "never"

    async with Client(target) as client:
        executor = Executor(client, Agent(agent, model=Caller(), tools=[effect]), lease_duration=5)
        await executor.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
