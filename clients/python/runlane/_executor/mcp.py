"""Tools of servers that speak the Model Context Protocol."""

import asyncio
import base64
import binascii
import contextlib
import importlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic_core import to_json

from runlane._content import Block, MediaBlock, TextBlock
from runlane._enums import MediaKind
from runlane._executor.tools import Policy, Tool, ToolContext, ToolError, check_policy

_LOG = logging.getLogger("runlane.executor")
_PAGES: Final = 100
_INLINE_BYTES: Final = 256 * 1024
_PROBLEMS: Final = 5
# Answers of a server that is there; after any other failure the next call connects anew.
_ANSWERS: Final = frozenset({-32601, -32602, -32603})


class McpTools:
    """The tools of one MCP server, for `Agent(tools=[...])`.

    It is connected when its executor starts, and again at the next call where the
    connection was lost. It belongs to one executor.

    Args:
        command: A program and its arguments: the server is a child process, spoken to
            through its stdin and stdout.
        url: Or where a server is that speaks streamable HTTP.
        env: Variables for the child process, beside a few that every program needs.
        cwd: Its working directory.
        headers: Headers of every HTTP request.
        policy: Policy of its tools.
        idempotent: Whether its tools may be run again where a result was lost: all of them,
            or those that are named.
        prefix: Begins the names of its tools, to tell them from those of other servers.
        timeout: Seconds that a call may take; None: no limit.
        connect_timeout: Seconds to connect and to list the tools.

    Raises:
        ValueError: Neither or both of command and url are given, or the policy is none.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] = (),
        url: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        headers: Mapping[str, str] | None = None,
        policy: Policy = "allow",
        idempotent: bool | Collection[str] = False,
        prefix: str = "",
        timeout: float | None = None,
        connect_timeout: float = 30.0,
    ) -> None:
        if bool(command) == bool(url):
            raise ValueError("an MCP server has either a command or a url")
        check_policy(policy)
        self._command = list(command)
        self._url = url
        self._env = dict(env) if env is not None else None
        self._cwd = cwd
        self._headers = dict(headers or {})
        self._policy: Policy = policy
        self._idempotent = idempotent
        self._prefix = prefix
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        self._connecting = asyncio.Lock()
        self._current: _Connection | None = None
        self._closed = False

    @property
    def name(self) -> str:
        """What the server is called in texts for people."""
        if not self._url:
            return self._command[0]
        # Without user, password and query: it is told to the model, and logged.
        parts = urlsplit(self._url)
        return f"{parts.scheme}://{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"

    async def open(self) -> Sequence[Tool]:
        """Connects and lists the tools.

        Raises:
            ToolError: The server cannot be reached, or the SDK is not installed.
        """
        self._closed = False
        connection = await self._connection()
        try:
            async with asyncio.timeout(self._connect_timeout):
                found = await _list_tools(connection.client)
        except Exception as error:
            await self.aclose()
            raise ToolError(f"the MCP server {self.name} lists no tools: {error}") from error
        return [self._tool(each) for each in found]

    async def aclose(self) -> None:
        """Disconnects; a child process ends. Idempotent."""
        self._closed = True
        connection, self._current = self._current, None
        if connection is not None:
            await connection.close()

    def _tool(self, found: Any) -> Tool:
        idempotent = self._idempotent
        return Tool(
            name=self._prefix + found.name,
            description=found.description or "",
            schema=found.input_schema,
            call=partial(self._call, found.name),
            check=_checker(found.input_schema),
            idempotent=idempotent
            if isinstance(idempotent, bool)
            else self._prefix + found.name in idempotent or found.name in idempotent,
            policy=self._policy,
            timeout=self._timeout,
        )

    async def _call(self, name: str, arguments: dict[str, Any], _context: ToolContext) -> object:
        connection = await self._connection()
        connection.users += 1
        try:
            result = await connection.client.call_tool(name, arguments)
        except Exception as error:
            if getattr(error, "code", None) not in _ANSWERS and self._current is connection:
                self._current = None
            raise ToolError(
                f"the MCP server {self.name}: {error or type(error).__name__}"
            ) from error
        finally:
            connection.users -= 1
            if connection is not self._current and not connection.users:
                connection.leave()
        content = _blocks(result)
        if result.is_error:
            raise ToolError("the tool failed", content=content)
        return content

    async def _connection(self) -> "_Connection":
        async with self._connecting:
            if self._closed:
                raise ToolError(f"the MCP server {self.name} was disconnected")
            if self._current is None or self._current.lost:
                self._current = None
                made = _Connection(self._transport)
                await made.open(self.name, self._connect_timeout)
                self._current = made
            return self._current

    async def _transport(self, stack: contextlib.AsyncExitStack) -> Any:
        sdk = _sdk("mcp.client.streamable_http" if self._url else "mcp.client.stdio")
        if not self._url:
            program, *arguments = self._command
            return sdk.StdioServerParameters(
                command=program, args=arguments, env=self._env, cwd=self._cwd
            )
        if not self._headers:
            return self._url
        # The SDK closes only the HTTP clients that it makes itself.
        client = await stack.enter_async_context(
            _sdk("mcp.shared._httpx_utils").create_mcp_http_client(headers=self._headers)
        )
        return sdk.streamable_http_client(self._url, http_client=client)


class _Connection:
    """A connection, held by a task of its own: what it opens is closed by the same task."""

    def __init__(self, transport: Callable[[contextlib.AsyncExitStack], Awaitable[Any]]) -> None:
        self._transport = transport
        self._leaving = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.client: Any = None
        self.users = 0

    @property
    def lost(self) -> bool:
        """Whether it has ended."""
        return self._task is None or self._task.done()

    async def open(self, name: str, timeout: float) -> None:
        """Connects.

        Raises:
            ToolError: The server cannot be reached, or the SDK is not installed.
        """
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        task = self._task = asyncio.create_task(self._hold(ready))
        task.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            await self.close()
            raise ToolError(f"the MCP server {name} did not answer within {timeout:g} s") from None
        except asyncio.CancelledError:
            await self.close()
            raise
        if not ready.done():
            error = task.exception() if not task.cancelled() else None
            if isinstance(error, ToolError):
                raise error
            raise ToolError(f"the MCP server {name} cannot be reached: {_told(error)}") from error
        self.client = ready.result()

    async def close(self) -> None:
        """Disconnects."""
        self._leaving.set()
        task = self._task
        if task is None:
            return
        if self.client is None:
            task.cancel()
        await asyncio.wait({task})

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        # Where it never was, whoever opens it is told. Its text may hold what tools were.
        if error is not None and self.client is not None:
            _LOG.info("an MCP connection ended with an error: %s", type(_first(error)).__name__)

    def leave(self) -> None:
        """Lets it end by itself."""
        self._leaving.set()

    async def _hold(self, ready: "asyncio.Future[Any]") -> None:
        async with contextlib.AsyncExitStack() as stack:
            made = _sdk("mcp").Client(await self._transport(stack))
            ready.set_result(await stack.enter_async_context(made))
            await self._leaving.wait()


def _sdk(module: str) -> Any:
    try:
        # An extra of its own: most executors have no such tools.
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ToolError(
            "tools of MCP servers need the MCP SDK: pip install 'runlane[mcp]'"
        ) from error


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _told(error: BaseException | None) -> str:
    if error is None:
        return "it went away"
    return str(_first(error)) or type(_first(error)).__name__


async def _list_tools(client: Any) -> list[Any]:
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor:
            break
    return found


def _checker(schema: Mapping[str, Any]) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """Returns a check of arguments by a schema; what the schema does not tell is let through."""
    validators: Any = _sdk("jsonschema.validators")
    referencing: Any = _sdk("referencing")
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except Exception as error:  # noqa: BLE001 - the server checks its arguments itself
        _LOG.warning("a tool has no right schema: %s", _told(error))
        return None
    # With a registry of its own: nothing that a schema refers to is fetched.
    validator = kind(schema, registry=referencing.Registry())

    def check(given: dict[str, Any]) -> dict[str, Any]:
        try:
            problems = [
                f"{problem.json_path}: {problem.message}"
                for problem, _ in zip(validator.iter_errors(given), range(_PROBLEMS), strict=False)
            ]
        except referencing.exceptions.Unresolvable:
            return given
        if problems:
            raise ValueError("; ".join(problems))
        return given

    return check


def _blocks(result: Any) -> list[Block]:
    blocks = [_block(one) for one in result.content]
    if not blocks and result.structured_content is not None:
        return [TextBlock(text=to_json(result.structured_content).decode())]
    return blocks


def _block(one: Any) -> Block:
    if one.type == "text":
        return TextBlock(text=one.text)
    if one.type in {"image", "audio"}:
        return _media(MediaKind(one.type), one.mime_type, one.data)
    if one.type == "resource_link":
        return MediaBlock(
            kind=MediaKind.FILE, media_type=one.mime_type or "", filename=one.name, uri=str(one.uri)
        )
    if one.type == "resource":
        held = one.resource
        if hasattr(held, "text"):
            return TextBlock(text=held.text)
        return _media(MediaKind.FILE, held.mime_type or "", held.blob)
    return TextBlock(text=f"[content of type {one.type}]")


def _media(kind: MediaKind, media_type: str, data: str) -> Block:
    try:
        raw = base64.b64decode(data, validate=True)
    except (ValueError, binascii.Error):
        return TextBlock(text=f"[{kind} of type {media_type} that is no base64]")
    if not 0 < len(raw) <= _INLINE_BYTES:
        return TextBlock(text=f"[{kind} of type {media_type} with {len(raw)} bytes, left out]")
    return MediaBlock(kind=kind, media_type=media_type, size_bytes=len(raw), inline_data=raw)
