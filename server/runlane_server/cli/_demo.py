"""`runlane demo`: the example, wherever it was installed to."""

import runpy
from pathlib import Path

import typer

from runlane_server.cli import _show

_PACKAGE = Path(__file__).resolve().parents[1]
# In a wheel it lies in the package, in a checkout where a reader looks for it.
_PLACES = (
    _PACKAGE / "_session_demo.py",
    _PACKAGE.parents[1] / "examples" / "session_demo.py",
)


def demo() -> None:
    """Show the main job: submit, steer, follow up, fork, and survive a kill.

    Starts a server of its own in a temporary directory and leaves nothing behind.
    """
    for place in _PLACES:
        if place.is_file():
            runpy.run_path(str(place), run_name="__main__")
            return
    _show.complain("the demo was not installed; it is examples/session_demo.py")
    raise typer.Exit(1)
