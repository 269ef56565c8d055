"""A session of its own and an executor for its agent, for tests of tools."""

import asyncio
import uuid
from contextlib import asynccontextmanager

import runlane
from runlane import (
    Agent,
    Client,
    Executor,
    ModelRequest,
    ModelResponse,
    SessionManager,
    ToolUseBlock,
)

SECONDS = 30


def call(name: str, key: str = "", /, **arguments) -> ToolUseBlock:
    return ToolUseBlock(tool_call_id=key or name, name=name, arguments=arguments)


class Turns:
    """Answers in turn: calls of tools, or a text."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, str):
            return ModelResponse(text=answer)
        return ModelResponse(tool_calls=answer)

    @property
    def results(self) -> dict[str, runlane.ToolResultBlock]:
        found = [message.tool_result for message in self.requests[-1].messages]
        return {one.tool_call_id: one for one in found if one is not None}


@asynccontextmanager
async def session(shared, model, tools=(), options=None, **agent):
    """Gives a session of its own, and an executor for its agent alone."""
    name = f"agent-{uuid.uuid4().hex}"
    async with (
        Client(shared.address) as client,
        Executor(client, Agent(name, model=model, tools=tools, **agent)),
        SessionManager(client, f"ses-{name}", agent=name, options=options) as manager,
        asyncio.timeout(SECONDS),
    ):
        yield manager, client
