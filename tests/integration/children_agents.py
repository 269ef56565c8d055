"""A process that runs two agents: `host` gives each of its words to `helper`, which asks.

Arguments: the address of the server.
"""

import asyncio
import signal
import sys

import runlane
from runlane import ModelRequest, ModelResponse, ToolUseBlock


@runlane.tool(agent="helper")
def ask_helper(about: str) -> str:
    """Gives a word to a helper."""
    return about


class Host:
    async def complete(self, request: ModelRequest) -> ModelResponse:
        results = [m.tool_result for m in request.messages if m.tool_result]
        words = request.messages[-1].text.split()
        if request.messages[-1].role == "user" and words[0] == "ask":
            number = len(results)
            uses = [
                ToolUseBlock(
                    tool_call_id=f"call-{number + place}",
                    name="ask_helper",
                    arguments={"about": word},
                )
                for place, word in enumerate(words[1:], 1)
            ]
            return ModelResponse(tool_calls=uses)
        return ModelResponse(text=" and ".join(result.text for result in results[-2:]))


class Helper:
    async def complete(self, request: ModelRequest) -> ModelResponse:
        results = [m.tool_result for m in request.messages if m.tool_result]
        word = request.messages[0].text
        if word == "hold":
            await asyncio.Event().wait()
        if results:
            return ModelResponse(text=f"{word} is {results[-1].text}")
        use = ToolUseBlock(
            tool_call_id="1", name="ask_question", arguments={"question": f"What is {word}?"}
        )
        return ModelResponse(tool_calls=[use])


async def main() -> None:
    async with runlane.Client(sys.argv[1]) as client:
        executor = runlane.Executor(
            client,
            [
                runlane.Agent("host", model=Host(), tools=[ask_helper]),
                runlane.Agent("helper", model=Helper(), ask_question=True),
            ],
        )
        working = asyncio.create_task(executor.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, working.cancel)
        print("ready", flush=True)
        await asyncio.gather(working, return_exceptions=True)


asyncio.run(main())
