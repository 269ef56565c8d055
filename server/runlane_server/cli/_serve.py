# ruff: noqa: PLC0415 - see below
"""The command that is the server.

What it needs of the server is loaded when it runs: the client's commands share this
program and start without it.
"""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from runlane_server.cli._show import complain

if TYPE_CHECKING:
    from runlane_server.settings import Settings

_SERVER = "Server"
_ACCESS = "Access"
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
        help="Listen beyond this machine even where nobody is asked for a credential, or "
        "without TLS.",
        rich_help_panel=_SERVER,
    ),
]
Auth = Annotated[
    str | None,
    typer.Option(
        help="Who may call: whoever reaches the server (none), whoever has an API key (keys; "
        "see `runlane keys`), or also whoever has a token of the issuer in \\[jwt] (jwt).",
        show_default="none",
        rich_help_panel=_ACCESS,
    ),
]
TlsCert = Annotated[
    str | None,
    typer.Option(help="The server's certificate, a PEM file.", rich_help_panel=_ACCESS),
]
TlsKey = Annotated[
    str | None, typer.Option(help="Its private key, a PEM file.", rich_help_panel=_ACCESS)
]
TlsClientCa = Annotated[
    str | None,
    typer.Option(
        help="Authorities, a PEM file; each client must then show a certificate of one.",
        rich_help_panel=_ACCESS,
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
MetricsListen = Annotated[
    str | None,
    typer.Option(
        help="Serve metrics for Prometheus at HOST:PORT.",
        show_default="nowhere",
        rich_help_panel=_SERVER,
    ),
]
Otel = Annotated[
    bool | None,
    typer.Option(
        "--otel",
        help="Export traces by OpenTelemetry, as the standard OTEL_ variables say.",
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
    auth: Auth = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_client_ca: TlsClientCa = None,
    drain_grace_seconds: DrainGrace = None,
    metrics_listen: MetricsListen = None,
    otel: Otel = None,
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
        "auth": auth,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_client_ca": tls_client_ca,
        "drain_grace_seconds": drain_grace_seconds,
        "metrics_listen": metrics_listen,
        "otel": otel,
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
        complain(str(error))
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
        complain(str(error))
        raise typer.Exit(1) from None


def _say_ready(addresses: list[str]) -> None:
    for address in addresses:
        print(f"listening on {address}", flush=True)  # noqa: T201 - programs wait for this line
