"""What an agent is, and what its model is asked and answers."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from runlane._content import BlockInput, Message, ToolUseBlock
from runlane._enums import DeltaKind, RunFailureReason
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

    def __post_init__(self) -> None:
        """Refuses a policy that is none."""
        for policy in self.policies.values():
            check_policy(policy)
