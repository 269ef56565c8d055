# ruff: noqa: PLC0415 - what is needed of the server is loaded when it is
"""The commands for API keys.

A server holds its store, so there are two ways: the file, where no server has it, which
needs no key and so makes the first one; else AdminService of the server.
"""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import runlane
import typer
from runlane.errors import CredentialMissing, TransportError

from runlane_server.cli import _show
from runlane_server.cli._client import (
    DEFAULT_TARGET,
    AsJson,
    NotDone,
    connected,
    emit,
    run,
    unanswered,
)

if TYPE_CHECKING:
    from runlane_server.settings import Settings

_PAGE = 1000
_SCOPES = tuple(scope.value for scope in runlane.Scope if scope is not runlane.Scope.UNKNOWN)
_SPAN = re.compile(r"([1-9]\d{0,6})([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}

_Target = Annotated[
    str | None,
    typer.Option(
        help="Ask the server at HOST:PORT or unix:PATH, and do not look at a file.",
        envvar="RUNLANE_TARGET",
        show_default=f"the file, or {DEFAULT_TARGET} where a server has it",
        rich_help_panel="Connection",
    ),
]
_Store = Annotated[
    str | None,
    typer.Option(
        help="The store: sqlite:PATH or postgresql://USER@HOST/NAME.",
        show_default="that of runlane.toml, or sqlite:runlane.db",
        rich_help_panel="Connection",
    ),
]
_Config = Annotated[
    Path | None,
    typer.Option(
        help="The TOML file of the server.",
        show_default="runlane.toml, if there",
        rich_help_panel="Connection",
    ),
]


def create(
    name: Annotated[str, typer.Argument(help="Whom it stands for.", show_default=False)],
    scope: Annotated[
        list[str],
        typer.Option(
            help="What it may do: read, submit, answer, execute or admin; give it again for "
            "more. None holds another one.",
            show_default=False,
        ),
    ],
    for_namespace: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="The namespace that it opens, or `*` for every one.",
            show_default="that of the call, or default",
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(help="How long it lives, such as 12h or 90d.", show_default="until revoked"),
    ] = None,
    target: _Target = None,
    store: _Store = None,
    config: _Config = None,
    as_json: AsJson = False,
) -> None:
    """Make an API key, and print its secret, which is shown this once."""
    where = _Place(target, store, config)
    run(where.target, _create(where, name, scope, for_namespace, expires, as_json=as_json))


async def _create(
    where: "_Place",
    name: str,
    scopes: list[str],
    namespace: str | None,
    expires: str | None,
    *,
    as_json: bool,
) -> None:
    lifetime = _span(expires)
    words = [word.strip() for scope in scopes for word in scope.split(",")]
    for word in words:
        if word not in _SCOPES:
            raise ValueError(f"{word!r} is no scope; there are {', '.join(_SCOPES)}")
    async with where.client(new=True) as client:
        try:
            made = await client.create_key(
                name, dict.fromkeys(words), namespace=namespace or "", lifetime=lifetime
            )
        except CredentialMissing:
            raise NotDone(
                "the server that has the store asks for a key with the scope admin, in "
                "RUNLANE_API_KEY; to make the first key, stop the server, repeat this command "
                "with its --store, and start it again"
            ) from None
    if as_json:
        emit(made)
        return
    typer.echo(f"made {made.key.key_id}; its secret is shown this once:", err=True)
    sys.stdout.write(made.secret + "\n")


def list_(
    ended: Annotated[
        bool, typer.Option("--ended", help="Also those that have expired or were revoked.")
    ] = False,
    target: _Target = None,
    store: _Store = None,
    config: _Config = None,
    as_json: AsJson = False,
) -> None:
    """List API keys, without their secrets."""
    where = _Place(target, store, config)
    run(where.target, _list(where, ended=ended, as_json=as_json))


async def _list(where: "_Place", *, ended: bool, as_json: bool) -> None:
    keys: list[runlane.ApiKey] = []
    async with where.client(new=False) as client:
        after: str | None = None
        while True:
            page = await client.list_keys(include_ended=ended, after=after, limit=_PAGE)
            keys += page.items
            after = page.next_cursor
            if after is None:
                break
    if as_json:
        for key in keys:
            emit(key)
        return
    _show.keys(keys, ended=ended)


def revoke(
    key_id: Annotated[str, typer.Argument(help="The id of the key.", show_default=False)],
    target: _Target = None,
    store: _Store = None,
    config: _Config = None,
    as_json: AsJson = False,
) -> None:
    """End an API key for good, and the streams that are open under it."""
    where = _Place(target, store, config)
    run(where.target, _revoke(where, key_id, as_json=as_json))


async def _revoke(where: "_Place", key_id: str, *, as_json: bool) -> None:
    async with where.client(new=False) as client:
        key = await client.revoke_key(key_id)
    if as_json:
        emit(key)
    else:
        typer.echo(f"revoked {key.key_id}", err=True)


class _Place:
    """Where the keys are."""

    def __init__(self, target: str | None, store: str | None, config: Path | None) -> None:
        self._target = target
        self._store = store
        self._config = config

    @property
    def target(self) -> str:
        """The server, where there is one."""
        return self._target or DEFAULT_TARGET

    @asynccontextmanager
    async def client(self, *, new: bool) -> AsyncIterator[runlane.Client]:
        """Gives a client of the file's own, where no server has it, else of the server.

        Args:
            new: Make the file where there is none.
        """
        async with AsyncExitStack() as stack:
            if self._target is None:
                address = await self._opened(stack, new=new)
                if address is not None:
                    yield await stack.enter_async_context(runlane.Client(address, api_key=""))
                    return
            client = connected(self.target)
            if self._target is not None:
                yield await stack.enter_async_context(client)
                return
            try:
                there = await stack.enter_async_context(client)
            except TransportError as error:
                told = await asyncio.to_thread(unanswered, self.target, error)
                if told.startswith("no server answers"):
                    told = f"no server answers at {self.target}: --target names the one that has it"
                raise NotDone(told) from None
            yield there

    async def _opened(self, stack: AsyncExitStack, *, new: bool) -> str | None:
        """Opens the store for this process; None where a server has it."""
        from runlane_server import bootstrap
        from runlane_server.store.errors import StoreError, StoreHeld

        settings = self._settings()
        if settings.store == "memory":
            raise NotDone("the store is memory, which only its server has: name it with --target")
        path = settings.store_path
        if path is not None and not new and not path.exists():
            raise NotDone(f"{path}: there is no such file")
        try:
            address = await stack.enter_async_context(bootstrap.private_server(settings))
        except StoreHeld as held:
            _show.complain(f"{held}: asking {self.target}")
            return None
        except StoreError as error:
            raise NotDone(str(error)) from None
        if path is not None:
            _show.complain(f"no server has {path}: this is done in the file")
        return address

    def _settings(self) -> "Settings":
        from runlane_server.settings import SettingsError, load

        try:
            return load(self._config, {"store": self._store})
        except SettingsError as error:
            raise ValueError(str(error)) from None


def _span(text: str | None) -> timedelta | None:
    if text is None:
        return None
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no span, such as 30m, 12h or 90d")
    span = timedelta(**{_UNITS[match[2]]: int(match[1])})
    if span > timedelta(days=3650):
        raise ValueError(f"{text!r} is more than 3650d")
    return span
