"""Tools: what a model may ask an executor to do."""

import asyncio
import contextvars
import inspect
import threading
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, get_args, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from runlane._content import Block
from runlane.errors import RunlaneError

Policy: TypeAlias = Literal["allow", "ask", "deny"]
POLICIES: Final = get_args(Policy)
_R = TypeVar("_R")
_NAME_BYTES: Final = 255


class ToolError(RunlaneError):
    """Raised by a tool: the model is told this text, or these blocks, as an error."""

    def __init__(self, message: str = "", *, content: Sequence[Block] = ()) -> None:
        """Makes the error.

        Args:
            message: What the model is told.
            content: Blocks that it is told instead.
        """
        super().__init__(message)
        self.message = message
        self.content = tuple(content)


class ArgumentsInvalidError(Exception):
    """The arguments of a call do not fit its tool; the text is for the model."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The call that a tool is run for; a function gets it in a parameter of this type.

    Attributes:
        agent: The agent.
        session_id: The session.
        run_id: The run.
        tool_call_id: The call. With `run_id` it is the same however often the call is run,
            so the two make a key under which an effect happens once.
        step: The model step that asked for it.
        attempt: The attempt, from 1 in the run.
    """

    agent: str
    session_id: str
    run_id: str
    tool_call_id: str
    step: int
    attempt: int


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told of it.

    Attributes:
        name: Its name.
        description: What it does.
        schema: JSON Schema of its arguments.
    """

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tool:
    """Something that a model may ask for, and what is done then.

    Made from a function by `tool`, or by hand.

    Attributes:
        name: Its name.
        description: What it does, for the model.
        schema: JSON Schema of its arguments, an object.
        call: Runs it: gets the arguments and the context, and returns what `Agent` says a
            tool may return.
        check: Returns the arguments as `call` takes them, or raises ValueError with a text
            for the model; None: they are taken as they come.
        idempotent: Whether it may be run again where its result was lost. Where not, a
            lost result ends the run, since nobody knows whether it had its effect.
        policy: `allow`, `ask` a person first, or `deny`.
        timeout: Seconds that it may run; None: no limit.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    call: Callable[[Any, ToolContext], Awaitable[object]]
    check: Callable[[dict[str, Any]], Any] | None = None
    idempotent: bool = False
    policy: Policy = "allow"
    timeout: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Refuses what makes no tool.

        Raises:
            ValueError: The name is empty or too long, or the policy is none.
        """
        if not self.name or len(self.name.encode()) > _NAME_BYTES or "\0" in self.name:
            raise ValueError(f"a tool has a name of at most {_NAME_BYTES} bytes")
        check_policy(self.policy)

    @property
    def spec(self) -> ToolSpec:
        """What a model is told of it."""
        return ToolSpec(self.name, self.description, self.schema)

    def arguments(self, given: dict[str, Any]) -> Any:
        """Returns the arguments as `call` takes them.

        Raises:
            ArgumentsInvalidError: They do not fit.
        """
        if self.check is None:
            return given
        try:
            return self.check(given)
        except (ValueError, RecursionError) as error:
            raise ArgumentsInvalidError(_problems(error)) from error


class ToolSource(Protocol):
    """Something that brings tools of its own, such as `McpTools`."""

    async def open(self) -> Sequence[Tool]:
        """Connects, and returns the tools; called once before the first lease."""
        ...

    async def aclose(self) -> None:
        """Disconnects."""
        ...


ToolInput: TypeAlias = Tool | ToolSource | Callable[..., Any]


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    policy: Policy = "allow",
    timeout: float | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    policy: Policy = "allow",
    timeout: float | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Makes a tool from a function, whose type hints make the schema of its arguments.

        @tool
        def add(a: int, b: int) -> int:
            "Adds two numbers."
            return a + b

        @tool(policy="ask", timeout=30)
        async def send(to: str, text: str) -> str: ...

    An async function is awaited, any other runs in a thread of its own. A parameter that is
    annotated `ToolContext` is filled in, and no argument.

    Args:
        function: The function.
        name: Its name for the model; None: the function's.
        description: What it does; None: the function's docstring.
        idempotent: As in `Tool`.
        policy: As in `Tool`.
        timeout: As in `Tool`.

    Raises:
        ValueError: The function takes arguments that have no name.
    """

    def make(target: Callable[..., Any]) -> Tool:
        own: str = getattr(target, "__name__", type(target).__name__)
        return _from_function(
            target,
            name or own,
            (inspect.getdoc(target) or "") if description is None else description,
            idempotent=idempotent,
            policy=policy,
            timeout=timeout,
        )

    return make if function is None else make(function)


def check_policy(policy: str) -> None:
    """Refuses what is no policy.

    Raises:
        ValueError: It is none.
    """
    if policy not in POLICIES:
        raise ValueError(f"{policy!r} is no policy; there are {', '.join(POLICIES)}")


def _from_function(
    function: Callable[..., Any],
    name: str,
    description: str,
    *,
    idempotent: bool,
    policy: Policy,
    timeout: float | None,
) -> Tool:
    hints = _hints(function)
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    contexts: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in {parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD}:
            raise ValueError(f"the parameter {parameter.name} of tool {name} cannot be named")
        hint = hints.get(parameter.name, Any)
        if hint is ToolContext:
            contexts.append(parameter.name)
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        # By alias: any name of a parameter is right, also one that models use themselves.
        attribute = f"p{len(names)}"
        names[attribute] = parameter.name
        fields[attribute] = (hint, Field(default, alias=parameter.name))
    model: type[BaseModel] = create_model(
        "Arguments", __config__=ConfigDict(extra="forbid"), **fields
    )

    def check(given: dict[str, Any]) -> dict[str, Any]:
        made = model.model_validate(given)
        return {names[key]: getattr(made, key) for key in names}

    async def call(arguments: dict[str, Any], context: ToolContext) -> object:
        keywords = arguments | dict.fromkeys(contexts, context)
        if inspect.iscoroutinefunction(function):
            return await function(**keywords)
        result = await _in_thread(lambda: function(**keywords))
        return await result if inspect.isawaitable(result) else result

    return Tool(
        name=name,
        description=description,
        schema=_untitled(model.model_json_schema()),
        call=call,
        check=check,
        idempotent=idempotent,
        policy=policy,
        timeout=timeout,
    )


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    target = function if inspect.isroutine(function) else type(function).__call__
    return typing.get_type_hints(target, include_extras=True)


def _untitled(schema: Any) -> Any:
    """Takes out the titles, which say nothing that the names do not."""
    if isinstance(schema, list):
        return [_untitled(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _untitled(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }


async def _in_thread(function: Callable[[], _R]) -> _R:
    """Runs a function in a thread of its own, which keeps nobody from leaving."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_R] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: _R | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(typing.cast("_R", result))

    def work() -> None:
        result: _R | None = None
        error: BaseException | None = None
        try:
            result = context.run(function)
        except StopIteration as stop:
            # A future cannot hold one.
            error = RuntimeError(f"the tool raised {stop!r}")
        except BaseException as raised:  # noqa: BLE001 - handed on to who waits
            error = raised
        # Where the loop has ended nobody waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name="runlane-tool", daemon=True).start()
    return await future


def _problems(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error) or type(error).__name__
    return "; ".join(
        f"{'.'.join(str(part) for part in problem['loc']) or 'arguments'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_context=False)
    )
