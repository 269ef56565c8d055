"""An executor whose runs stand still at a point that their session's name begins with.

Each run asks for one tool, whose call a person approves:

    reserve, model, suspend; answer; claim, effect, result, finish

As a program it is a process to be killed or stopped: it tells each run that has come to its
point, and a line on its input lets all of them go on.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import runlane
from runlane import Agent, Client, Executor, ModelRequest, ModelResponse, ToolContext, ToolUseBlock
from runlane._executor import activation
from runlane._executor.lease import Lease

POINTS = (
    "before-reserve",
    "after-reserve",
    "model",
    "before-suspend",
    "after-suspend",
    "before-claim",
    "after-claim",
    "effect",
    "after-effect",
    "before-result",
    "after-result",
    "before-finish",
    "after-finish",
)
CLAIMED = frozenset({"after-claim", "effect", "after-effect", "before-result"})
"""Where a call is claimed and its result is not committed."""
SECOND_TURN = frozenset(POINTS[POINTS.index("before-claim") :])
"""What is behind the answer."""
EFFECTS = frozenset(POINTS[POINTS.index("after-effect") :])
"""Where the effect has happened."""
HELD_MOST = 2000


class Gate:
    """Where runs stand still until they are let go."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.opened = asyncio.Event()

    async def pass_by(self, point: str, session: str) -> None:
        if session.startswith(f"{point}."):
            self.tell(session)
            await self.opened.wait()


def held_lease(gate: Gate) -> type[Lease]:
    """Makes leases whose commits stop at the gate before and after they are sent."""

    class HeldLease(Lease):
        async def commit(self, operations=(), *, finish=None, suspend=None, **rest):
            operations = list(operations)
            kinds = {one.WhichOneof("operation") for one in operations}
            kind = "reserve"
            if finish is not None:
                kind = "finish"
            elif suspend is not None:
                kind = "suspend"
            elif "claim_tool_calls" in kinds:
                kind = "claim"
            elif "commit_tool_results" in kinds:
                kind = "result"
            session = self.fence.session_id
            await gate.pass_by(f"before-{kind}", session)
            done = await super().commit(operations, finish=finish, suspend=suspend, **rest)
            await gate.pass_by(f"after-{kind}", session)
            return done

    return HeldLease


class Asking:
    """Asks for the tool that the session's name tells, and answers with its result."""

    def __init__(self, gate: Gate | None) -> None:
        self.gate = gate

    async def complete(self, request: ModelRequest) -> ModelResponse:
        newest = request.messages[-1]
        if newest.tool_result is not None:
            return ModelResponse(text=f"the tool said {newest.tool_result.text}")
        if newest.text == "more":
            return ModelResponse(text="more")
        if self.gate is not None:
            await self.gate.pass_by("model", request.session_id)
        name = request.session_id.split(".")[1]
        return ModelResponse(tool_calls=[ToolUseBlock(tool_call_id=name, name=name, arguments={})])


def agent_of(name: str, marks: Path, gate: Gate | None = None) -> Agent:
    """Makes the agent; with a gate its runs stand still there."""

    async def effect(context: ToolContext) -> str:
        if gate is not None:
            await gate.pass_by("effect", context.session_id)
        with marks.open("a", encoding="utf-8") as file:
            file.write(f"{context.session_id}\n")
        if gate is not None:
            await gate.pass_by("after-effect", context.session_id)
        return "done"

    tools = [
        runlane.tool(effect, name="once", policy="ask"),
        runlane.tool(effect, name="again", policy="ask", idempotent=True),
    ]
    return Agent(name, model=Asking(gate), tools=tools)


def effects(marks: Path) -> Counter[str]:
    """How often the effect happened in each session."""
    return Counter(marks.read_text(encoding="utf-8").split()) if marks.exists() else Counter()


async def main(
    target: str, name: str, marks: str, lease: str, concurrency: str, executor_id: str
) -> None:
    gate = Gate(lambda session: print(session, flush=True))
    activation.Lease = held_lease(gate)
    async with Client(target) as client:
        executor = Executor(
            client,
            agent_of(name, Path(marks), gate),
            executor_id=executor_id or None,
            concurrency=int(concurrency),
            lease_duration=float(lease),
        )
        running = asyncio.create_task(executor.run())
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        gate.opened.set()
        await running


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
