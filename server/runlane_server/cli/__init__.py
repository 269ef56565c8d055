"""The terminal: `runlane`, also `python -m runlane_server`."""

import os
import sys


def main() -> None:
    """Runs the command that the arguments name."""
    # Unless asked, gRPC has lines of its own for each peer that speaks no TLS. Read at its import.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        from runlane_server.cli._app import app  # noqa: PLC0415 - what it needs may be missing
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in {"runlane", "runlane_server"}:
            raise
        sys.exit(f"runlane: {error.name} is missing; pip install 'runlane[server]' brings it")
    app()
