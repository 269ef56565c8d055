"""Tools: what a model may ask an executor to do."""

import asyncio
import contextvars
import inspect
import json
import threading
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, get_args, overload

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from runlane._content import Block, Input
from runlane._convert import Options
from runlane._interactions import ExternalPrompt, FormPrompt, QuestionPrompt
from runlane.errors import RunlaneError

Policy: TypeAlias = Literal["allow", "ask", "deny"]
POLICIES: Final = get_args(Policy)
_R = TypeVar("_R")
_NAME_BYTES: Final = 255
_SCHEMA_BYTES: Final = 64 * 1024


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
        external_token: The secret that completes the wait, for the system that is waited for;
            empty where the tool does not wait for one.
    """

    agent: str
    session_id: str
    run_id: str
    tool_call_id: str
    step: int
    attempt: int
    external_token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ChildRun:
    """A run of another agent that answers a call, in a session of its own.

    The parent waits for it, with nobody at work; its answer is the result of the call. It ends
    with its parent, and no later than its parent's deadline.

    Attributes:
        agent: The name that its executors poll for.
        input: Its input: a text, a block or a sequence of blocks.
        options: Its options; the agent is named above.
        display_name: Name of its session.
        labels: Labels of its session.
    """

    agent: str
    input: Input
    options: Options = None
    display_name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


Asked: TypeAlias = QuestionPrompt | FormPrompt | ExternalPrompt | ChildRun
"""What a call may wait for in place of being run."""


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
        ask: Returns what a call waits for, from its arguments; None: it is run. The answer is
            the result of the call, and `call` is not run; but with an `ExternalPrompt` it is
            run once the run waits, with the token in its context, and what it returns is
            dropped. With a `ChildRun` that run is started, and its answer is the result. It
            must not block, and may be called more than once for a call; what it raises is
            told to the model.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    call: Callable[[Any, ToolContext], Awaitable[object]]
    check: Callable[[dict[str, Any]], Any] | None = None
    idempotent: bool = False
    policy: Policy = "allow"
    timeout: float | None = field(default=None, kw_only=True)
    ask: Callable[[Any, ToolContext], Asked] | None = field(default=None, kw_only=True)

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


FormSchema: TypeAlias = Mapping[str, Any] | type[Any]
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
    form: FormSchema | None = None,
    external: str | None = None,
    agent: str | None = None,
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
    form: FormSchema | None = None,
    external: str | None = None,
    agent: str | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Makes a tool from a function, whose type hints make the schema of its arguments.

        @tool
        def add(a: int, b: int) -> int:
            "Adds two numbers."
            return a + b

        @tool(policy="ask", timeout=30)
        async def send(to: str, text: str) -> str: ...

        @tool(form=Address)
        def ask_address(of: str) -> str:
            "Asks the user for an address."
            return f"Where does {of} live?"

        @tool(external="the bank's word")
        async def pay(amount: int, context: ToolContext) -> None:
            "Pays, and waits until the bank has said how it went."
            await bank.begin(amount, callback_token=context.external_token)

        @tool(agent="researcher")
        def research(topic: str) -> str:
            "Finds out about a topic."
            return f"Find out all about {topic}."

    An async function is awaited, any other runs in a thread of its own. A parameter that is
    annotated `ToolContext` is filled in, and no argument.

    Args:
        function: The function.
        name: Its name for the model; None: the function's.
        description: What it does; None: the function's docstring.
        idempotent: As in `Tool`.
        policy: As in `Tool`.
        timeout: As in `Tool`.
        form: A JSON Schema of at most 64 KiB, or a type that has one, such as a pydantic
            model. The run then waits for JSON that fits it, which is the result of the call.
            The function makes the text of the question alone: it is not async and must not
            block.
        external: What is waited for, for people; at most 4 KiB. The run then waits for
            another system, whose word is the result of the call. The function is called once
            the run waits, with the token in its `ToolContext`, and hands it on. Where it
            raises, the model is told so.
        agent: The agent of a child run that answers the call. The function makes its input
            alone, a text or blocks, or a whole `ChildRun`: it is not async and must not
            block.

    Raises:
        ValueError: The function takes arguments that have no name, is not such as a form, an
            external wait or a child run needs, or the schema is too large or no JSON.
    """

    def make(target: Callable[..., Any]) -> Tool:
        own: str = getattr(target, "__name__", type(target).__name__)
        return _from_function(
            target,
            name or own,
            (inspect.getdoc(target) or "") if description is None else description,
            ask=_asking(name or own, target, form, external, agent),
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


_Ask: TypeAlias = Callable[[dict[str, Any]], Asked]


def _asking(
    name: str,
    function: Callable[..., Any],
    form: FormSchema | None,
    external: str | None,
    agent: str | None,
) -> _Ask | None:
    """Returns what asks in place of the function, by the arguments that it takes."""
    if sum(one is not None for one in (form, external, agent)) > 1:
        raise ValueError(
            f"the tool {name} waits for a form, for another system or for an agent, not for two"
        )
    if agent is not None:
        return _delegating(name, function, agent)
    if external is not None:
        if ToolContext not in _hints(function).values():
            raise ValueError(
                f"the tool {name} needs a parameter of type ToolContext: it has the token"
            )
        prompt = ExternalPrompt(reason=external)
        return lambda _keywords: prompt
    if form is None:
        return None
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"the function of the form {name} makes a text alone: it is not async")
    schema = _schema_text(name, form)
    return lambda keywords: FormPrompt(text=function(**keywords), json_schema=schema)


def _delegating(name: str, function: Callable[..., Any], agent: str) -> _Ask:
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"the function of {name} makes an input alone: it is not async")

    def asked(keywords: dict[str, Any]) -> ChildRun:
        made = function(**keywords)
        return made if isinstance(made, ChildRun) else ChildRun(agent, made)

    return asked


def _schema_text(name: str, form: FormSchema) -> str:
    schema = form if isinstance(form, Mapping) else TypeAdapter(form).json_schema()
    try:
        text = json.dumps(dict(schema), allow_nan=False)
    except TypeError as error:
        raise ValueError(f"the schema of the form {name} is no JSON: {error}") from error
    if len(text) > _SCHEMA_BYTES:
        raise ValueError(f"the schema of the form {name} has more than {_SCHEMA_BYTES} bytes")
    return text


def _from_function(
    function: Callable[..., Any],
    name: str,
    description: str,
    *,
    ask: _Ask | None,
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
        result = await in_thread(lambda: function(**keywords))
        return await result if inspect.isawaitable(result) else result

    def asked(arguments: dict[str, Any], context: ToolContext) -> Asked:
        assert ask is not None, "else it is not given"  # noqa: S101 - invariant
        return ask(arguments | dict.fromkeys(contexts, context))

    return Tool(
        name=name,
        description=description,
        schema=_untitled(model.model_json_schema()),
        call=call,
        check=check,
        idempotent=idempotent,
        policy=policy,
        timeout=timeout,
        ask=None if ask is None else asked,
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


async def in_thread(function: Callable[[], _R]) -> _R:
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
