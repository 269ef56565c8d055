"""What an agent is, and what its model is asked and answers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from runlane._content import BlockInput, Message, ToolUseBlock
from runlane._enums import DeltaKind, MessageRole, RunFailureReason
from runlane._executor.tools import Policy, ToolInput, ToolSpec, check_policy
from runlane._run_models import Usage
from runlane.errors import RunlaneError


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request to a model.

    Attributes:
        agent: The agent whose turn it is.
        system: Its instructions.
        messages: What the model is to see, in order.
        model: The model to use: that of the run, else that of the agent; may be empty.
        options: The request options of the run.
        run_id: The run.
        session_id: Its session.
        step: The model step, from 1 in its run.
        attempt: The attempt, from 1 in its run.
        model_stream_id: Names what is streamed for this step. It stays the same where the step
            is asked again before it was committed, as after a loss of the executor; the
            deltas and the message of the step carry it.
        tools: What the model may ask for.
        summary: Stands for the messages before those; empty: there are none before. The run's
            first input and its latest steer are among the messages all the same.
        summary_through: Number of the last message that it covers; 0: there is none.
    """

    agent: str
    system: str
    messages: tuple[Message, ...]
    model: str
    options: Mapping[str, Any]
    run_id: str
    session_id: str
    step: int
    attempt: int
    model_stream_id: str
    tools: tuple[ToolSpec, ...] = ()
    summary: str = ""
    summary_through: int = 0

    def covered(self, keep: int) -> int:
        """Returns how far a summary may reach that leaves at least so many messages.

        Args:
            keep: Messages that are to stay, from 0.

        Returns:
            A number for `Compaction.through_message_number`: never between a call of a tool
            and its result. 0: there is nothing to summarise; a `Compaction` through 0 is none.
        """
        for place in range(len(self.messages) - 1 - keep, 0, -1):
            number = self.messages[place].number
            if number <= self.summary_through:
                break
            after = self.messages[place + 1 :]
            if not after or after[0].role is not MessageRole.TOOL:
                return number
        return 0


@dataclass(frozen=True, slots=True)
class Compaction:
    """A summary of the first messages of a request.

    Attributes:
        summary: The text; at most 256 KiB.
        through_message_number: Number of the last message that it covers: see
            `ModelRequest.covered`.
        usage: What it took; its tokens count against no budget.
        model: The model that wrote it.
    """

    summary: str
    through_message_number: int
    usage: Usage = field(default_factory=Usage)
    model: str = ""


Compactor: TypeAlias = Callable[[ModelRequest], Awaitable[Compaction | None]]
"""Looks at what a model is about to see, and may return a summary of its beginning."""


@dataclass(frozen=True, slots=True)
class ModelDelta:
    """A piece of an answer on its way.

    Attributes:
        text: What to append to the block.
        kind: `text` or `reasoning`.
        block_index: The block of the answer, from 0.
    """

    text: str
    kind: DeltaKind = DeltaKind.TEXT
    block_index: int = 0


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """The whole answer of a model.

    Attributes:
        text: The answer, where it is a text alone.
        content: Its blocks, where it is more; then `text` is not given.
        tool_calls: Tools that it asks for, beside the text or after the blocks. An answer
            without one is final.
        usage: What it used.
        model: The model that answered.
        finish_reason: Why it stopped, in its provider's word.
        output_json: JSON as the result of the run; empty means none.
    """

    text: str = ""
    content: Sequence[BlockInput] = ()
    tool_calls: Sequence[ToolUseBlock] = ()
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    finish_reason: str = "stop"
    output_json: str = ""

    def __post_init__(self) -> None:
        """Refuses an answer that is both.

        Raises:
            ValueError: Both text and content are given.
        """
        if self.text and self.content:
            raise ValueError("give either text or content")

    @property
    def blocks(self) -> list[BlockInput]:
        """All of it, as blocks."""
        return [*([self.text] if self.text else self.content), *self.tool_calls]


class Model(Protocol):
    """Anything that answers a request as a whole."""

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Returns the answer.

        Raises:
            ModelError: The model is away, or refuses.
        """
        ...


@runtime_checkable
class StreamingModel(Protocol):
    """Anything that answers a request in pieces; preferred where a model can do both."""

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta | ModelResponse]:
        """Yields pieces, and last the whole answer.

        Raises:
            ModelError: The model is away, or refuses.
        """
        ...


class ModelError(RunlaneError):
    """Raised by a model: the run ends as failed, and its failure says so.

    Attributes:
        reason: `model_unavailable` or `model_refused`.
        message: Text for people, kept with the run.
        retryable: Whether the same input may well succeed later.
    """

    def __init__(
        self, reason: str = "unavailable", message: str = "", *, retryable: bool | None = None
    ) -> None:
        """Makes the error.

        Args:
            reason: `unavailable` or `refused`.
            message: Text for people.
            retryable: Whether the same input may well succeed later; None: where the model
                was unavailable.

        Raises:
            ValueError: The reason is neither.
        """
        if reason not in {"unavailable", "refused"}:
            raise ValueError(f"{reason!r} is neither 'unavailable' nor 'refused'")
        super().__init__(message or reason)
        self.reason = RunFailureReason(f"model_{reason}")
        self.message = message or f"the model is {reason}"
        self.retryable = reason == "unavailable" if retryable is None else retryable


@dataclass(frozen=True, slots=True)
class Agent:
    """A name that an executor polls for, and what answers for it.

    Attributes:
        name: The name.
        model: What is asked: a `Model`, a `StreamingModel`, or both.
        system: Instructions, handed to the model with each request.
        model_name: Handed to the model as `request.model` where the run names none.
        tools: What the model may ask for: tools, plain functions, and sources of tools such
            as `McpTools`. A tool returns nothing, a text, a block, a sequence of blocks, or
            anything that JSON can hold; what it raises is told to the model as an error.
        ask_question: Also lets the model ask the user, by the tool `ask_question`: the run
            waits for the answer, which is the result of the call.
        policies: Policies by tool, in place of the tools' own.
        compact: Called before each model step; what it returns is stored, and the model sees
            it in place of the messages that it covers. The history keeps them.

    Raises:
        ValueError: A policy is none.
    """

    name: str
    model: Model | StreamingModel
    system: str = ""
    model_name: str = ""
    tools: Sequence[ToolInput] = ()
    ask_question: bool = False
    policies: Mapping[str, Policy] = field(default_factory=dict)
    compact: Compactor | None = None

    def __post_init__(self) -> None:
        """Refuses a policy that is none."""
        for policy in self.policies.values():
            check_policy(policy)
