"""The tools of an agent, and what is to be done with a call of one."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from runlane._enums import ToolOutcome
from runlane._executor.content import error_result, parse_arguments
from runlane._executor.model import Agent
from runlane._executor.tools import (
    ArgumentsInvalidError,
    Policy,
    Tool,
    ToolContext,
    ToolSource,
    ToolSpec,
    tool,
)
from runlane.v1 import executor_service_pb2 as executor_pb
from runlane.v1 import interaction_pb2, message_pb2

ASK_QUESTION: Final = "ask_question"
_QUESTION_BYTES: Final = 16 * 1024
_OPTION_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Run:
    """The call is to be claimed and run."""

    tool: Tool
    arguments: Any


@dataclass(frozen=True, slots=True)
class Settle:
    """The call has its result without being run."""

    result: message_pb2.ToolResult


@dataclass(frozen=True, slots=True)
class Ask:
    """A person decides whether the call may run."""


@dataclass(frozen=True, slots=True)
class Question:
    """A person gives the result."""

    prompt: interaction_pb2.QuestionPrompt


Plan: TypeAlias = Run | Settle | Ask | Question


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", title="")

    question: str = Field(min_length=1, description="What to ask the user.")
    options: list[str] = Field(
        default=[], max_length=64, description="Answers to choose from; any other will do too."
    )


async def _never(_arguments: Any, _context: ToolContext) -> object:
    raise NotImplementedError("a person answers this")


_QUESTION_TOOL: Final = Tool(
    name=ASK_QUESTION,
    description="Asks the user a question and waits for the answer, however long it takes.",
    schema={
        key: value
        for key, value in _Asked.model_json_schema().items()
        if key not in {"title", "description"}
    },
    call=_never,
    check=_Asked.model_validate,
    idempotent=True,
)


class Toolbox:
    """The tools of an agent: its own, and those of the sources that it names.

    Raises:
        ValueError: Two tools have one name.
    """

    def __init__(self, agent: Agent) -> None:
        self._policies = agent.policies
        self._tools: dict[str, Tool] = {}
        self._sources: list[ToolSource] = []
        self._opened: list[ToolSource] = []
        if agent.ask_question:
            self._add(_QUESTION_TOOL)
        for given in agent.tools:
            if isinstance(given, Tool):
                self._add(given)
            elif hasattr(given, "open") and hasattr(given, "aclose"):
                self._sources.append(given)
            else:
                self._add(tool(given))
        if not self._sources:
            self._check_policies()

    async def open(self) -> None:
        """Connects the sources and takes their tools.

        Raises:
            ValueError: Two tools have one name.
            ToolError: A source cannot be reached.
        """
        for source in self._sources:
            found = await source.open()
            self._opened.append(source)
            for each in found:
                self._add(each)
        self._check_policies()

    def _check_policies(self) -> None:
        # A name that was mistyped would leave a tool that was to ask free to run.
        for name in self._policies:
            if name not in self._tools:
                raise ValueError(f"a policy names {name!r}, and there is no such tool")

    async def aclose(self) -> None:
        """Disconnects the sources; idempotent."""
        while self._opened:
            await self._opened.pop().aclose()

    def _add(self, added: Tool) -> None:
        if added.name in self._tools:
            raise ValueError(f"two tools are named {added.name!r}")
        policy: Policy = self._policies.get(added.name, added.policy)
        self._tools[added.name] = replace(added, policy=policy)

    def specs(self, allowed: Collection[str]) -> tuple[ToolSpec, ...]:
        """Returns what a model is told of; without names, all that is not denied."""
        return tuple(
            each.spec
            for each in self._tools.values()
            if each.policy != "deny" and (not allowed or each.name in allowed)
        )

    def plan(
        self, call: executor_pb.ToolCall, allowed: Collection[str], verdicts: Mapping[str, int]
    ) -> Plan:
        """Decides what is to be done with a call that has no result.

        Args:
            call: The call.
            allowed: The tools that the run may use; empty: all.
            verdicts: What people said of calls that asked.
        """
        key = call.tool_call_id
        wanted = self._tools.get(call.name)
        if wanted is None or (allowed and call.name not in allowed):
            return Settle(error_result(key, f"there is no tool named {call.name!r}"))
        if wanted.policy == "deny":
            told = f"the tool {call.name!r} may not be used here"
            return Settle(error_result(key, told, ToolOutcome.REJECTED))
        given = parse_arguments(call.arguments_json)
        if given is None:
            return Settle(error_result(key, "the arguments are no JSON object"))
        try:
            arguments = wanted.arguments(given)
        except ArgumentsInvalidError as error:
            return Settle(error_result(key, f"the arguments do not fit the tool: {error}"))
        if wanted.name == ASK_QUESTION and isinstance(arguments, _Asked):
            return _question(key, arguments)
        approved = verdicts.get(key) == interaction_pb2.Decision.VERDICT_APPROVE
        if wanted.policy == "ask" and not approved:
            return Ask()
        return Run(wanted, arguments)


def _question(key: str, asked: _Asked) -> Plan:
    text = asked.question.replace("\0", "")
    options = list(dict.fromkeys(one.replace("\0", "").strip() for one in asked.options))
    if not text.strip() or len(text.encode(errors="replace")) > _QUESTION_BYTES:
        return Settle(error_result(key, "a question has 1 byte to 16 KiB"))
    if any(not one or len(one.encode(errors="replace")) > _OPTION_BYTES for one in options):
        return Settle(error_result(key, "an option has 1 byte to 1 KiB"))
    prompt = interaction_pb2.QuestionPrompt(text=text, options=options, tool_call_id=key)
    return Question(prompt)
