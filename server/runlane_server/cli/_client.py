"""What the commands that call a server share. Built on the client alone."""

import asyncio
import functools
import inspect
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import runlane
import typer
from pydantic import BaseModel
from pydantic_core import to_json
from runlane.errors import RunlaneError, ServiceError, TransportError

from runlane_server.cli._reach import is_here, unreached
from runlane_server.cli._show import asked, complain, line

_REACH_SECONDS = 3.0
_CALL_SECONDS = 30.0
_ERROR_CHARACTERS = 2000
_PORTS = range(1, 65536)

Target = Annotated[
    str,
    typer.Option(
        help="Where the server is: HOST:PORT or unix:PATH.",
        envvar="RUNLANE_TARGET",
        rich_help_panel="Connection",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print JSON for programs: one line, or one for each event."),
]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")]
After = Annotated[
    str | None,
    typer.Option(
        help="Go on where the page before said `more: --after`.", show_default="the first page"
    ),
]
DEFAULT_TARGET = "127.0.0.1:7480"

_ApiKey = Annotated[
    str,
    typer.Option(
        help="The secret of an API key. A command line can be read by others on this machine: "
        "rather use the variable.",
        envvar="RUNLANE_API_KEY",
        show_default=False,
        show_envvar=True,
        rich_help_panel="Connection",
    ),
]
_Namespace = Annotated[
    str,
    typer.Option(
        help="The namespace, for a key that opens more than one.",
        envvar="RUNLANE_NAMESPACE",
        show_default=False,
        rich_help_panel="Connection",
    ),
]
_TlsCa = Annotated[
    str,
    typer.Option(
        help="Use TLS: a file with the authorities of the server's certificate, or `system` for "
        "those of this machine. `off` sends a key in clear.",
        envvar="RUNLANE_TLS_CA",
        show_default=False,
        rich_help_panel="Connection",
    ),
]
_TlsCert = Annotated[
    str,
    typer.Option(
        help="A file with a certificate to show to the server, PEM, where it asks for one.",
        envvar="RUNLANE_TLS_CLIENT_CERT",
        show_default=False,
        rich_help_panel="Connection",
    ),
]
_TlsKey = Annotated[
    str,
    typer.Option(
        help="A file with the private key of that certificate, PEM.",
        envvar="RUNLANE_TLS_CLIENT_KEY",
        show_default=False,
        rich_help_panel="Connection",
    ),
]


@dataclass
class _Access:
    """How a server is reached beside its address."""

    api_key: str = ""
    namespace: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    @property
    def tls(self) -> runlane.Tls | bool | None:
        """As the client takes it.

        Raises:
            ValueError: The options contradict each other.
        """
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("--tls-cert and --tls-key go together")
        if self.tls_ca == "off" and self.tls_cert:
            raise ValueError("--tls-cert is for TLS, and --tls-ca says off")
        if self.tls_ca in {"", "off"} and not self.tls_cert:
            return False if self.tls_ca else None
        ca = self.tls_ca if self.tls_ca != "system" else ""
        return runlane.Tls(ca=ca or None, cert=self.tls_cert or None, key=self.tls_key or None)

    @property
    def secured(self) -> runlane.Tls | None:
        """With what the connection is secured; None: it is not."""
        tls = self.tls
        return tls if isinstance(tls, runlane.Tls) else None


_access = _Access()


def reaching(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command that calls a server the options of how it is reached."""

    @functools.wraps(command)
    def with_access(*args: Any, **given: Any) -> None:
        for name in _OPTIONS:
            setattr(_access, name, given.pop(name))
        command(*args, **given)

    signature = inspect.signature(command)
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default="", annotation=kind)
        for name, kind in _OPTIONS.items()
    ]
    with_access.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *more]
    )
    with_access.__annotations__ = {**command.__annotations__, **_OPTIONS}
    return with_access


_OPTIONS: dict[str, Any] = {
    "api_key": _ApiKey,
    "namespace": _Namespace,
    "tls_ca": _TlsCa,
    "tls_cert": _TlsCert,
    "tls_key": _TlsKey,
}


class NotDone(Exception):  # noqa: N818 - the command was carried out, what it asked for was not
    """What the command asked for did not come about; the text says why."""


def run(target: str, command: Coroutine[Any, Any, None]) -> None:
    """Runs a command and turns what goes wrong into one line and an exit code."""
    try:
        asyncio.run(command)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:
        # Whoever read the output has left, which is theirs to decide. Python would complain
        # about the same pipe once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except TransportError as error:
        _fail(unanswered(target, error))
    except ServiceError as error:
        _fail(told(error))
    except (RunlaneError, NotDone, TimeoutError, OSError) as error:
        _fail(str(error))
    except ValueError as error:
        _fail(str(error), 2)


def _fail(text: str, code: int = 1) -> None:
    complain(line(text, _ERROR_CHARACTERS))
    raise typer.Exit(code)


_ADVICE = {
    "ANSWER_INVALID": "`runlane inbox` shows what is asked for",
    "CREDENTIAL_INVALID": "the variable RUNLANE_API_KEY, or --api-key, is to hold the secret",
    "CREDENTIAL_MISSING": "put the secret of an API key into the variable RUNLANE_API_KEY",
    "INTERACTION_CLOSED": "`runlane inbox` lists what is open",
    "PAGE_TOKEN_INVALID": "--after takes what the page before said at `more: --after`",
    "PAGE_TOKEN_MISMATCH": "--after goes with the same options as the page before",
    "RUN_NOT_FOUND": "`runlane runs SESSION` lists those of a session",
    "SESSION_BUSY": "a run is live; `runlane interrupt` cancels it, and `runlane submit --mode` "
    "auto, queue and replace work beside it",
    "SESSION_CLOSED": "it takes no more input",
    "SESSION_IDLE": "no run is live in it; an input of --mode start or queue starts one",
    "SESSION_NOT_FOUND": "`runlane sessions` lists those that there are",
    "SUBMISSION_NOT_FOUND": "`runlane submit` prints the id of an input",
    "SUBMISSION_SETTLED": "it was delivered, withdrawn or failed before",
}
"""What somebody at a terminal can do about a refusal."""


def told(error: RunlaneError) -> str:
    """Returns an error of a call, and what to do about it where that is known."""
    if not isinstance(error, ServiceError):
        return str(error)
    advice = _ADVICE.get(error.reason)
    if error.reason == "SEQUENCE_AHEAD":
        last = error.metadata.get("sequence", "another one")
        return f"SEQUENCE_AHEAD: --after is beyond the last event, which is {last}"
    if error.reason == "FIELD_INVALID" and error.violations:
        field = error.violations[0].field
        if field == "run_options.agent" and "names no agent" in str(error):
            advice = "--agent names one, and `runlane agents` lists those that are served"
    return f"{error}; {advice}" if advice else str(error)


def check_target(target: str) -> None:
    """Refuses what is no address of a server.

    Raises:
        ValueError: It is none; the text says what one looks like.
    """
    if re.match(r"(unix|dns|ipv4|ipv6|unix-abstract|vsock|xds):.", target):
        return
    host, colon, port = target.rpartition(":")
    if not host or not colon or "/" in host or not port.isdecimal() or int(port) not in _PORTS:
        raise ValueError(
            f"--target: {target!r} is no address of a server: HOST:PORT, such as "
            f"{DEFAULT_TARGET}, or unix:PATH"
        )


def check_session(session: str) -> None:
    """Refuses an id that the server would take for the wish for a new session.

    Raises:
        ValueError: It is empty.
    """
    if not session:
        raise ValueError("the id of the session is empty; any new id makes a new session")


def unanswered(target: str, error: TransportError) -> str:
    """Says why a call got no answer of a server, and what to do about it."""
    if error.code.name not in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}:
        return str(error)
    return unreached(target, _access.secured, error.code.name)


@asynccontextmanager
async def connected(target: str) -> AsyncIterator[runlane.Client]:
    """Opens a client of a server that is there."""
    # A client waits out a restart of its server. Whoever types a command wants to know at
    # once that nobody is there.
    async with client_of(target, _REACH_SECONDS) as probe:
        await probe.server_info()
    async with client_of(target, _CALL_SECONDS) as client:
        yield client


def client_of(target: str, timeout: float) -> runlane.Client:
    """Makes a client, with the options of how a server is reached; `timeout` in seconds."""
    check_target(target)
    if _access.api_key and _access.tls is None and not is_here(target):
        raise ValueError(
            f"{target} may be another machine, and the API key could be read on the way: say "
            "--tls-ca FILE, or --tls-ca system, or --tls-ca off where something else keeps it safe"
        )
    return runlane.Client(
        target,
        api_key=_access.api_key,
        namespace=_access.namespace,
        tls=_access.tls,
        timeout=timeout,
        client_name="cli",
    )


def dump(value: object) -> str:
    """Returns one line of JSON: fields in the order of the record, bytes as base64."""
    return to_json(_plain(value), bytes_mode="base64").decode()


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        # An event has the fields of its kind, and not those of all others.
        return value.model_dump(exclude_unset=True)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def emit(value: object) -> None:
    """Prints one line of JSON."""
    sys.stdout.write(dump(value) + "\n")
    sys.stdout.flush()


def ending(result: runlane.RunResult) -> str | None:
    """Returns what to say of a run that did not complete; None where it did."""
    if result.interaction is not None:
        return (
            f"the run {result.run_id} waits for an answer ({asked(result.interaction)}); "
            f"`runlane answer {result.interaction.interaction_id}` gives it"
        )
    if not result.run.terminal:
        return f"the run {result.run_id} is {result.phase}"
    if result.stop_reason == runlane.StopReason.COMPLETED:
        return None
    text = f"the run {result.run_id} ended {result.stop_reason}"
    if result.failure is not None:
        told = f": {result.failure.message}" if result.failure.message else ""
        text += f": {result.failure.reason}{told}"
    return text
