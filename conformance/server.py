"""A server of the driver's own."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def own_server() -> Iterator[str]:
    """Starts a server on a file that is thrown away; gives its address.

    Raises:
        RuntimeError: It did not start.
    """
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        command = [sys.executable, "-m", "runlane_server", "serve", "--listen", "127.0.0.1:0"]
        with subprocess.Popen(  # noqa: S603 - our own program
            [*command, "--store", f"sqlite:{folder}/runlane.db"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                told = process.stdout.readline().strip() if process.stdout else ""
                if not told.startswith("listening on "):
                    raise RuntimeError(f"the server did not start: {told!r}")
                yield told.removeprefix("listening on ")
            finally:
                process.terminate()
