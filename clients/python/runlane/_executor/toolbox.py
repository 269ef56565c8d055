"""The tools of an agent, and what is to be done with a call of one."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from runlane._content import content_to_pb
from runlane._convert import options_to_pb
from runlane._enums import ToolOutcome
from runlane._executor.content import clean, error_result, parse_arguments, raised_result
from runlane._executor.model import Agent
from runlane._executor.tools import (
    ArgumentsInvalidError,
    Asked,
    ChildRun,
    Policy,
    Tool,
    ToolContext,
    ToolError,
    ToolSource,
    ToolSpec,
    tool,
)
from runlane._interactions import ExternalPrompt, FormPrompt, QuestionPrompt
from runlane.v1 import executor_service_pb2 as executor_pb
from runlane.v1 import interaction_pb2, message_pb2, run_pb2

ASK_QUESTION: Final = "ask_question"
_QUESTION_BYTES: Final = 16 * 1024
_OPTION_BYTES: Final = 1024
_OPTIONS: Final = 64
_SCHEMA_BYTES: Final = 64 * 1024
_REASON_BYTES: Final = 4096

_LOG = logging.getLogger("runlane.executor")


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
    """A person or another system gives the result; the latter gets the token by the tool."""

    prompt: interaction_pb2.Prompt
    tool: Tool
    arguments: Any


@dataclass(frozen=True, slots=True)
class Delegate:
    """A child run answers the call; `start` is None where it was started before."""

    start: executor_pb.StartChildRun | None


Plan: TypeAlias = Run | Settle | Ask | Question | Delegate


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", title="")

    question: str = Field(min_length=1, description="What to ask the user.")
    options: list[str] = Field(
        default=[], max_length=64, description="Answers to choose from; any other will do too."
    )


async def _never(_arguments: Any, _context: ToolContext) -> object:
    raise NotImplementedError("a person answers this")


def _ask_question(arguments: _Arguments, _context: ToolContext) -> Asked:
    return QuestionPrompt(text=arguments.question, options=tuple(arguments.options))


_QUESTION_TOOL: Final = Tool(
    name=ASK_QUESTION,
    description="Asks the user a question and waits for the answer, however long it takes.",
    schema={
        key: value
        for key, value in _Arguments.model_json_schema().items()
        if key not in {"title", "description"}
    },
    call=_never,
    check=_Arguments.model_validate,
    ask=_ask_question,
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
        self,
        call: executor_pb.ToolCall,
        allowed: Collection[str],
        verdicts: Mapping[str, int],
        context: ToolContext,
    ) -> Plan:
        """Decides what is to be done with a call that has no result.

        Args:
            call: The call.
            allowed: The tools that the run may use; empty: all.
            verdicts: What people said of calls that asked.
            context: What the tool is told of the call.
        """
        key = call.tool_call_id
        if call.child_run_id:
            return Delegate(None)
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
        approved = verdicts.get(key) == interaction_pb2.Decision.VERDICT_APPROVE
        if wanted.policy == "ask" and not approved:
            return Ask()
        if wanted.ask is None:
            return Run(wanted, arguments)
        try:
            asked = wanted.ask(arguments, context)
            if isinstance(asked, ChildRun):
                return Delegate(_child_run(key, asked))
            prompt = _prompt(key, asked)
        except Exception as error:  # noqa: BLE001 - a tool may raise anything
            log_failure(wanted, context, error)
            return Settle(raised_result(key, error))
        return Question(prompt, wanted, arguments)


def log_failure(failed: Tool, context: ToolContext, error: BaseException) -> None:
    """Logs what a tool raised; its text may hold what users said, so it is for debugging."""
    _LOG.info(
        "tool %s of run %s failed: %s",
        failed.name,
        context.run_id,
        type(error).__name__,
        extra={"session_id": context.session_id, "run_id": context.run_id},
        exc_info=error if _LOG.isEnabledFor(logging.DEBUG) else None,
    )


def _child_run(key: str, asked: ChildRun) -> executor_pb.StartChildRun:
    options = options_to_pb(asked.options) or run_pb2.RunOptions()
    options.agent = asked.agent
    return executor_pb.StartChildRun(
        tool_call_id=key,
        content=content_to_pb(asked.input),
        run_options=options,
        display_name=asked.display_name,
        labels=asked.labels,
    )


def _prompt(
    key: str, asked: QuestionPrompt | FormPrompt | ExternalPrompt
) -> interaction_pb2.Prompt:
    """Writes what a call waits for.

    Raises:
        ToolError: The service would not take it.
    """
    if isinstance(asked, ExternalPrompt):
        external = interaction_pb2.ExternalPrompt(
            reason=clean(asked.reason, _REASON_BYTES), tool_call_id=key
        )
        return interaction_pb2.Prompt(external=external)
    text = asked.text.replace("\0", "")
    if _size(text) > _QUESTION_BYTES:
        raise ToolError("a question has at most 16 KiB")
    if isinstance(asked, FormPrompt):
        if not 0 < _size(asked.json_schema) <= _SCHEMA_BYTES:
            raise ToolError("the schema of a form has 1 byte to 64 KiB")
        form = interaction_pb2.FormPrompt(
            text=clean(text), json_schema=asked.json_schema, tool_call_id=key
        )
        return interaction_pb2.Prompt(form=form)
    if not text.strip():
        raise ToolError("a question has a text")
    options = list(dict.fromkeys(one.replace("\0", "").strip() for one in asked.options))
    if len(options) > _OPTIONS or any(not 0 < _size(one) <= _OPTION_BYTES for one in options):
        raise ToolError("a question has at most 64 options, of 1 byte to 1 KiB")
    question = interaction_pb2.QuestionPrompt(
        text=clean(text), options=[clean(one) for one in options], tool_call_id=key
    )
    return interaction_pb2.Prompt(question=question)


def _size(text: str) -> int:
    return len(text.encode(errors="replace"))
