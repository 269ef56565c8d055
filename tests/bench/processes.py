"""The processes that are measured, each held to a core."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

SERVER_CORE = 0
CLIENT_CORE = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0

_READY = "listening on "


class Child:
    """A child process that says where it listens."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        core: int = SERVER_CORE,
        log: Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.child", str(core), module, *arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **(env or {})},
            )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        said = self._process.stdout.readline().strip()
        if not said.startswith(_READY):
            self.stop()
            raise RuntimeError(f"{module} did not start: {log.read_text()[-2000:]}")
        self.address = said.removeprefix(_READY)

    def rss(self) -> int:
        """Returns the bytes of memory that the process has."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = next(row for row in status.splitlines() if row.startswith("VmRSS:"))
        return int(found.split()[1]) * 1024

    def cpu(self) -> float:
        """Returns the seconds that all its threads have had of its core."""
        nanoseconds = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            # A thread may end meanwhile.
            with suppress(OSError):
                nanoseconds += int((task / "schedstat").read_text().split()[0])
        return nanoseconds / 1e9

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()


def server(folder: Path, store: str, *, core: int = SERVER_CORE, **settings: object) -> Child:
    """Starts Runlane as users do, on a file or a database; settings go through the environment."""
    return Child(
        "runlane_server",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--store",
        store if "://" in store else f"sqlite:{folder / store}",
        "--log-level",
        "warning",
        core=core,
        log=folder / "server.log",
        env={f"RUNLANE_{key.upper()}": str(value) for key, value in settings.items()},
    )


def floor(folder: Path) -> Child:
    """Starts the server that does nothing but what gRPC takes."""
    return Child("tests.bench.floor", log=folder / "floor.log")


def inside(folder: Path, work: str, **arguments: object) -> Any:
    """Runs a piece of work of `inside` on the server's core; returns what it found."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.bench.child",
            str(SERVER_CORE),
            "tests.bench.inside",
            work,
            json.dumps({"folder": str(folder), **arguments}),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])
