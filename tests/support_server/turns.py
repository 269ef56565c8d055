"""What an executor commits in runs with tools and waits, and what people do about them."""

from collections import Counter
from typing import Any

from runlane.v1 import (
    executor_service_pb2,
    history_service_pb2,
    interaction_pb2,
    message_pb2,
    run_pb2,
    session_service_pb2,
)

from support_server.link import CALL_SECONDS, Link, seconds, step, text

RUN = run_pb2.Run
RESTORED = session_service_pb2.RestoreRunResponse


def asks(*calls: str, name: str = "tool") -> executor_service_pb2.Operation:
    """A model step that asks for calls."""
    uses = [message_pb2.ToolUse(tool_call_id=one, name=name, arguments_json="{}") for one in calls]
    return step([message_pb2.Block(tool_use=use) for use in uses])


def claims(*calls: str, idempotent: bool = False) -> executor_service_pb2.Operation:
    claim = executor_service_pb2.ClaimToolCalls(tool_call_ids=calls, idempotent=idempotent)
    return executor_service_pb2.Operation(claim_tool_calls=claim)


def results(*calls: str) -> executor_service_pb2.Operation:
    done = [
        message_pb2.ToolResult(
            tool_call_id=one,
            outcome=message_pb2.ToolResult.OUTCOME_OK,
            content=text(f"did {one}"),
        )
        for one in calls
    ]
    committed = executor_service_pb2.CommitToolResults(results=done)
    return executor_service_pb2.Operation(commit_tool_results=committed)


def question(call: str = "", *, expire: float = 0) -> executor_service_pb2.Suspend:
    prompt = interaction_pb2.QuestionPrompt(text="which?", tool_call_id=call)
    suspend = executor_service_pb2.Suspend(prompt=interaction_pb2.Prompt(question=prompt))
    if expire:
        suspend.expire_duration.CopyFrom(seconds(expire))
    return suspend


def permission(*calls: str) -> executor_service_pb2.Suspend:
    asked = [interaction_pb2.PermissionCall(tool_call_id=one) for one in calls]
    prompt = interaction_pb2.PermissionPrompt(calls=asked)
    return executor_service_pb2.Suspend(prompt=interaction_pb2.Prompt(permission=prompt))


async def asked(link: Link, session: str) -> interaction_pb2.Interaction:
    """Returns the one open interaction of a session."""
    (found,) = (await link.live(session)).open_interactions
    return found


def reply(interaction: interaction_pb2.Interaction, words: str = "yes") -> Any:
    """An answer that fits; a permission is given."""
    if interaction.prompt.WhichOneof("kind") == "question":
        return interaction_pb2.InteractionAnswer(
            question=interaction_pb2.QuestionAnswer(text=words)
        )
    decision = interaction_pb2.Decision
    return interaction_pb2.InteractionAnswer(
        permission=interaction_pb2.PermissionAnswer(
            decisions=[
                decision(tool_call_id=one.tool_call_id, verdict=decision.VERDICT_APPROVE)
                for one in interaction.prompt.permission.calls
            ]
        )
    )


async def answer_to(
    link: Link, interaction: interaction_pb2.Interaction, words: str = "yes", **fields: Any
) -> Any:
    request = session_service_pb2.AnswerInteractionRequest(
        run_id=interaction.run_id,
        interaction_id=interaction.interaction_id,
        version=interaction.version,
        answer=reply(interaction, words),
    )
    for name, value in fields.items():
        setattr(request, name, value)
    return await link.sessions.AnswerInteraction(request, timeout=CALL_SECONDS)


async def restore(link: Link, run_id: str, activation_id: str = "", **fields: Any) -> Any:
    request = session_service_pb2.RestoreRunRequest(
        run_id=run_id, expected_activation_id=activation_id, **fields
    )
    return await link.sessions.RestoreRun(request, timeout=CALL_SECONDS)


async def pause(link: Link, session: str) -> Any:
    request = session_service_pb2.PauseRunRequest(session_id=session)
    return await link.sessions.PauseRun(request, timeout=CALL_SECONDS)


async def unpause(link: Link, session: str) -> Any:
    request = session_service_pb2.UnpauseRunRequest(session_id=session)
    return await link.sessions.UnpauseRun(request, timeout=CALL_SECONDS)


async def tool_calls(link: Link, run_id: str) -> list[Any]:
    request = history_service_pb2.ListToolCallsRequest(run_id=run_id)
    return await link.pages(link.history.ListToolCalls, request, "tool_calls", 1000)


def closed_once(messages: list[message_pb2.Message]) -> None:
    """Asserts that every tool use has exactly one result, behind it."""
    uses: Counter[tuple[str, str]] = Counter()
    ends: Counter[tuple[str, str]] = Counter()
    for message in messages:
        for block in message.content:
            if block.HasField("tool_use"):
                uses[message.run_id, block.tool_use.tool_call_id] += 1
            if block.HasField("tool_result"):
                key = message.run_id, block.tool_result.tool_call_id
                assert key in uses, "a result before its call"
                ends[key] += 1
    assert uses == ends
    assert set(uses.values()) <= {1}
