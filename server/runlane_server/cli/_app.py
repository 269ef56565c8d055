"""The commands by name."""

from importlib.metadata import version
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from runlane_server.cli import (
    _archives,
    _chat,
    _commands,
    _db,
    _demo,
    _doctor,
    _keys,
    _serve,
    _waits,
    _watch,
)
from runlane_server.cli._client import reaching
from runlane_server.cli._show import masked


def _flowing(text: str) -> str:
    """Joins the lines of each paragraph: help is as wide as the terminal, and not as the code."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text).split("\n\n"))


class _Commands(TyperGroup):
    """Commands whose wrong words are told without a password."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; what is wrong with its arguments may hold the address of a store."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if isinstance(getattr(error, "message", None), str):
                error.message = masked(error.message)  # type: ignore[attr-defined]
            raise


app = typer.Typer(
    cls=_Commands,
    name="runlane",
    help=_flowing("""Durable sessions for AI agents.

A session is a conversation with an agent, kept by a server. An input starts a run: the
agent works on it until it has answered. Input that comes meanwhile steers that run, waits
for a run of its own, or replaces it.

Begin with `runlane demo`. Then put an agent into runlane.toml, as the README shows, and
start `runlane serve` and `runlane chat first`."""),
    epilog="Ends with 0 where all went well; with 1 where what was asked for did not come about: "
    "no server answers, it refuses, the run did not complete, something is wrong with a store; "
    "with 2 where the command line or the settings are wrong, and nothing was done; with 130 "
    "after Ctrl-C. Each error is a line on stderr.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_files = typer.Typer(
    help="Look after the file in which a server keeps its data.", no_args_is_help=True
)

_key_commands = typer.Typer(
    help="Make, list and revoke API keys: in a store that no server has open, or "
    "through the server that has it.",
    no_args_is_help=True,
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"runlane {version('runlane')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


app.command(rich_help_panel="Server")(_serve.serve)
app.command(rich_help_panel="Server")(_demo.demo)
app.command(rich_help_panel="Server")(reaching(_doctor.doctor))
app.add_typer(_files, name="db", rich_help_panel="Server")
_files.command()(_db.check)
_files.command()(_db.backup)
_files.command()(_db.restore)
app.add_typer(_key_commands, name="keys", rich_help_panel="Server")
_key_commands.command()(reaching(_keys.create))
_key_commands.command("list")(reaching(_keys.list_))
_key_commands.command()(reaching(_keys.revoke))
app.command(rich_help_panel="Talk")(reaching(_chat.chat))
app.command(rich_help_panel="Talk")(reaching(_commands.submit))
app.command(rich_help_panel="Talk")(reaching(_commands.interrupt))
app.command(rich_help_panel="Talk")(reaching(_commands.withdraw))
app.command(rich_help_panel="Talk")(reaching(_commands.fork))
app.command(rich_help_panel="Talk")(reaching(_waits.answer))
app.command(rich_help_panel="Talk")(reaching(_waits.pause))
app.command(rich_help_panel="Talk")(reaching(_waits.unpause))
app.command(rich_help_panel="Talk")(reaching(_waits.restore))
app.command(rich_help_panel="Move")(reaching(_archives.export))
app.command("import", rich_help_panel="Move")(reaching(_archives.import_))
app.command(rich_help_panel="Look")(reaching(_commands.sessions))
app.command(rich_help_panel="Look")(reaching(_commands.runs))
app.command(rich_help_panel="Look")(reaching(_commands.children))
app.command(rich_help_panel="Look")(reaching(_commands.tail))
app.command(rich_help_panel="Look")(reaching(_waits.inbox))
app.command(rich_help_panel="Look")(reaching(_waits.tools))
app.command(rich_help_panel="Look")(reaching(_watch.health))
app.command(rich_help_panel="Look")(reaching(_watch.overview))
app.command(rich_help_panel="Look")(reaching(_watch.executors))
app.command(rich_help_panel="Look")(reaching(_watch.feed))
app.command(rich_help_panel="Look")(reaching(_watch.agents))


for _each in (app, _files, _key_commands):
    for _command in _each.registered_commands:
        assert _command.callback is not None, "each was given above"  # noqa: S101 - invariant
        _command.help = _flowing(_command.callback.__doc__ or "")
