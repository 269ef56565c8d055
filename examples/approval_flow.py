"""A run that asks before it acts, and waits for the answer with nobody around.

Start a server beside it, `runlane serve --store memory`, then run this file. The executor
stops while the run waits: the question is the server's, and any process may answer it.
"""

import argparse
import asyncio
import sys
import uuid

import runlane
from runlane import ModelRequest, ModelResponse, ToolUseBlock


@runlane.tool(policy="ask")
def pay(to: str, amount: int) -> str:
    """Pays somebody."""
    return f"paid {amount} to {to}"


class Payer:
    """Stands in for a model: asks for two payments, then says what came of them."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Answers with tool calls, or with their results."""
        results = [m.tool_result for m in request.messages if m.tool_result]
        if results:
            return ModelResponse(text="; ".join(f"{r.outcome}: {r.text}" for r in results))
        payments = {"rent": {"to": "Ann", "amount": 900}, "bet": {"to": "Bob", "amount": 5}}
        return ModelResponse(
            tool_calls=[
                ToolUseBlock(tool_call_id=k, name="pay", arguments=p) for k, p in payments.items()
            ]
        )


async def main(target: str) -> None:
    agent = runlane.Agent("payer", model=Payer(), tools=[pay])
    session = f"approval-{uuid.uuid4().hex[:8]}"
    async with (
        runlane.Client(target) as client,
        runlane.SessionManager(client, session, agent="payer") as manager,
    ):
        async with runlane.Executor(client, agent):
            waiting = await manager.run("pay the rent and the bet", until="stopped")
        print("the run is", waiting.phase, "and no executor is there")
        for item in (await client.list_interactions(session)).items:
            print("asks:", *(f"{c.name}({c.arguments_json})" for c in item.calls))
        await manager.admit_resume({"rent": True, "bet": (False, "no bets")})
        async with runlane.Executor(client, agent):
            print("answer:", (await manager.wait(waiting.run_id)).text)


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
