# ruff: noqa: PLC0415 - see below
"""The commands that are the server: serve, db check.

What they need of the server is loaded when they run: the client's commands share this
program and start without it.
"""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from runlane_server.settings import Settings

_SERVER = "Server"
_AGENTS = "Agents"
_LOG = "Log"


Listen = Annotated[
    list[str] | None,
    typer.Option(
        help="Where to listen: HOST:PORT (port 0: any free one) or unix:PATH; give it again for "
        "more.",
        show_default="127.0.0.1:7480",
        rich_help_panel=_SERVER,
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        help="Where data is kept: sqlite:PATH, postgresql://USER@HOST/NAME, or memory, which is "
        "gone with the process. A password belongs in RUNLANE_STORE or PGPASSWORD: the command "
        "line can be seen.",
        show_default="sqlite:runlane.db",
        rich_help_panel=_SERVER,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        help="A TOML file with settings and with agents for the server to run.",
        show_default="runlane.toml, if there",
        rich_help_panel=_SERVER,
    ),
]
InsecureListen = Annotated[
    bool | None,
    typer.Option(
        "--insecure-listen",
        help="Allow to listen beyond this machine. Nobody is asked for a credential: whoever "
        "reaches the port can do all.",
        rich_help_panel=_SERVER,
    ),
]
DrainGrace = Annotated[
    float | None,
    typer.Option(
        help="How long calls in flight may take after SIGTERM.",
        show_default="10",
        rich_help_panel=_SERVER,
    ),
]
Channelz = Annotated[
    bool | None,
    typer.Option(
        "--channelz",
        help="Serve gRPC's channelz, which shows all connections.",
        rich_help_panel=_SERVER,
    ),
]
DefaultAgent = Annotated[
    str | None, typer.Option(help="The agent of runs that name none.", rich_help_panel=_AGENTS)
]
Agents = Annotated[
    str | None,
    typer.Option(
        help="The agents that runs may name, separated by commas.",
        show_default="every name",
        rich_help_panel=_AGENTS,
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        help="The least that is logged: debug, info, warning or error.",
        show_default="info",
        rich_help_panel=_LOG,
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        help="For people (console) or for programs (json).",
        show_default="console",
        rich_help_panel=_LOG,
    ),
]


def serve(
    listen: Listen = None,
    store: Store = None,
    config: Config = None,
    insecure_listen: InsecureListen = None,
    drain_grace_seconds: DrainGrace = None,
    channelz: Channelz = None,
    default_agent: DefaultAgent = None,
    agents: Agents = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
) -> None:
    """Run a server until SIGTERM or Ctrl-C.

    Prints `listening on ADDRESS` for each address once it takes calls; logs go to stderr.
    Every setting can also stand in the environment (RUNLANE_STORE, ...) and in the file;
    docs/operations.md lists them all.
    """
    flags = {
        "listen": listen,
        "store": store,
        "insecure_listen": insecure_listen,
        "drain_grace_seconds": drain_grace_seconds,
        "channelz": channelz,
        "default_agent": default_agent,
        "agents": agents,
        "log_level": log_level,
        "log_format": log_format,
    }
    from runlane_server.cli import _logs
    from runlane_server.settings import SettingsError, load

    try:
        settings = load(config, flags)
        settings.check()
    except SettingsError as error:
        typer.echo(f"runlane: {error}", err=True)
        raise typer.Exit(2) from None
    _logs.configure(settings)
    _run(settings)


def _run(settings: "Settings") -> None:
    from runlane_server import bootstrap
    from runlane_server.settings import SettingsError
    from runlane_server.store.errors import StoreError

    serving = bootstrap.serve(settings, _say_ready)
    try:
        if sys.platform == "linux":
            import uvloop

            uvloop.run(serving)
        else:
            asyncio.run(serving)
    except (OSError, StoreError, SettingsError) as error:
        typer.echo(f"runlane: {error}", err=True)
        raise typer.Exit(1) from None


def _say_ready(addresses: list[str]) -> None:
    for address in addresses:
        print(f"listening on {address}", flush=True)  # noqa: T201 - programs wait for this line


def check(
    store: Annotated[
        str,
        typer.Argument(
            help="The file, such as runlane.db, or postgresql://USER@HOST/NAME.",
            show_default=False,
        ),
    ],
) -> None:
    """Check the file of a store that no server has open, or a database.

    Prints what it finds, a line each, and ends with 1 where there is anything.
    """
    from runlane_server import bootstrap
    from runlane_server.settings import is_database
    from runlane_server.store.errors import StoreError

    if not is_database(store):
        if not Path(store).is_file():
            typer.echo(f"runlane: {store}: there is no such file", err=True)
            raise typer.Exit(1)
        store = f"sqlite:{store}"
    try:
        findings = asyncio.run(bootstrap.check_store(store))
    except (OSError, StoreError) as error:
        typer.echo(f"runlane: {error}", err=True)
        raise typer.Exit(1) from None
    for finding in findings:
        typer.echo(finding)
    if findings:
        raise typer.Exit(1)
    typer.echo("no fault found", err=True)
