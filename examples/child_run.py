"""A run that gives work to runs of another agent, waits for them, and takes in their answers.

Start a server beside it, `runlane serve --store memory`, then run this file. While the child
runs work nobody has the parent; a question of theirs would show on it, and to interrupt it
would end them too.
"""

import argparse
import asyncio
import sys
import uuid

import runlane
from runlane import ModelRequest, ModelResponse, ToolUseBlock


@runlane.tool(agent="taster")
def taste(dish: str) -> str:
    """Asks a taster for a word on a dish."""
    return f"How is the {dish}?"


class Host:
    """Stands in for a model: asks for two dishes to be tasted, then says what came of it."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Answers with tool calls, or with their results."""
        results = [m.tool_result for m in request.messages if m.tool_result]
        if results:
            return ModelResponse(text=" ".join(result.text for result in results))
        dishes = {"1": {"dish": "soup"}, "2": {"dish": "cake"}}
        calls = [ToolUseBlock(tool_call_id=k, name="taste", arguments=d) for k, d in dishes.items()]
        return ModelResponse(tool_calls=calls)


class Taster:
    """Stands in for a model that tastes."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Answers at once."""
        dish = request.messages[-1].text.removeprefix("How is the ").rstrip("?")
        return ModelResponse(text=f"The {dish} is good.")


async def main(target: str) -> None:
    host = runlane.Agent("host", model=Host(), tools=[taste])
    session = f"dinner-{uuid.uuid4().hex[:8]}"
    async with (
        runlane.Client(target) as client,
        runlane.Executor(client, [host, runlane.Agent("taster", model=Taster())]),
        runlane.SessionManager(client, session, agent="host") as manager,
    ):
        result = await manager.run("taste everything")
        print("answer:", result.text)
        for child in (await client.list_child_runs(result.run_id)).items:
            print(f"child run: {child.agent} {child.stop_reason}: {child.input_preview}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "server", nargs="?", default="127.0.0.1:7480", help="where it is (127.0.0.1:7480)"
    )
    try:
        asyncio.run(main(parser.parse_args().server))
    except runlane.TransportError as error:
        sys.exit(f"no server answered: {error}")
