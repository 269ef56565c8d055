"""Runs an example program against a server of its own, and compares what it prints.

    python tools/run_example.py COMMAND...

The server keeps nothing and has the agent of `clients/examples/agents.toml`; the program finds
it by RUNLANE_TARGET. What it prints must be `clients/examples/expected.txt`, in every language.
"""

import difflib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "clients" / "examples"
SECONDS = 120
LISTENING = "listening on "


def main() -> None:
    """Exits with 1 where the program fails or prints something else."""
    settings = ["--config", str(EXAMPLES / "agents.toml"), "--log-level", "error"]
    where = ["--store", "memory", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-m", "runlane_server", "serve", *where, *settings],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            said = server.stdout.readline().strip() if server.stdout else ""
            if not said.startswith(LISTENING):
                sys.exit("the server does not start")
            done = subprocess.run(
                sys.argv[1:],
                env={**os.environ, "RUNLANE_TARGET": said.removeprefix(LISTENING)},
                stdout=subprocess.PIPE,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        finally:
            server.terminate()
    expected = (EXAMPLES / "expected.txt").read_text(encoding="utf-8")
    if done.returncode or done.stdout != expected:
        print(*difflib.unified_diff(expected.splitlines(), done.stdout.splitlines()), sep="\n")
        sys.exit(f"{sys.argv[1]} ended with {done.returncode}, or did not print what it should")
    print(f"{sys.argv[1]}: prints what it should")


if __name__ == "__main__":
    main()
