"""A server process that can be killed, stopped, and started again on the same file and port."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

START_SECONDS = 30
STOP_SECONDS = 30


class ServerProcess:
    """`runlane serve` with a store and a log in one folder."""

    def __init__(
        self,
        folder: Path,
        *,
        store: str = "",
        address: str = "127.0.0.1:0",
        arguments: Sequence[str] = (),
        **settings: object,
    ) -> None:
        """Makes a server; `start` starts it.

        Args:
            folder: Where its file and its log are.
            store: As in `--store`; empty: a file in the folder.
            address: Where to listen; a port of 0 is replaced by the one it was given first.
            arguments: More for the command line.
            settings: Keys of the settings, for its environment.
        """
        self.path = folder / "runlane.db"
        self.store = store or f"sqlite:{self.path}"
        self.address = address
        self.arguments = list(arguments)
        self.settings = settings
        self.log = folder / "server.log"
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        where = ["--listen", self.address, "--store", self.store]
        return [sys.executable, "-m", "runlane_server", "serve", *where, *self.arguments]

    def environment(self) -> dict[str, str]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("RUNLANE_")}
        given = {f"RUNLANE_{key.upper()}": str(value) for key, value in self.settings.items()}
        return {**clean, "PYTHONUNBUFFERED": "1", **given}

    def start(self) -> "ServerProcess":
        """Starts it and waits until it listens."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                cwd=self.log.parent,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            said = self._first_line()
            assert said.startswith("listening on "), f"{said!r}\n{self.told()}"
        except AssertionError:
            self.kill()
            raise
        self.address = said.removeprefix("listening on ")
        return self

    def refuses_to_start(self) -> tuple[int, str]:
        """Starts it where it must fail; returns its exit code and what it said."""
        ended = subprocess.run(
            self.command(),
            cwd=self.log.parent,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_SECONDS,
            check=False,
        )
        assert b"listening" not in ended.stdout
        return ended.returncode, ended.stderr.decode()

    def _first_line(self) -> str:
        stdout = self.process.stdout
        end = time.monotonic() + START_SECONDS
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([stdout], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the server did not start in {START_SECONDS} s\n{self.told()}"
            piece = os.read(stdout.fileno(), 4096)
            if not piece:
                break
            line += piece
        return line.decode().strip()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        """Waits for its end; returns its exit code."""
        code = self.process.wait(seconds)
        self.process.stdout.close()
        return code

    def kill(self) -> None:
        """Ends it as a crash would."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            self.wait()

    def stop(self) -> int:
        """Asks it to stop; returns its exit code."""
        self.send(signal.SIGTERM)
        return self.wait()

    def restart(self, *, gently: bool = False) -> "ServerProcess":
        """Ends it, by SIGTERM or SIGKILL, and starts it again on its file and port."""
        if gently:
            assert self.stop() == 0
        else:
            self.kill()
        return self.start()

    def told(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def incidents(self) -> list[str]:
        """Lines of the log that tell of a fault of the server."""
        marks = ("incident", "Traceback", "frames=", "never retrieved", "was never awaited")
        # gRPC's own word for a client that left while its answer was being sent.
        left = "ExecuteBatchError raised in core"
        return [
            line
            for line in self.told().splitlines()
            if any(mark in line for mark in marks) and left not in line
        ]

    def check(self) -> tuple[int, str]:
        """Verifies its store, a file must not be open; returns exit code and findings."""
        store = self.store.removeprefix("sqlite:")
        command = [sys.executable, "-m", "runlane_server", "db", "check", store]
        ended = subprocess.run(command, capture_output=True, timeout=60, check=False)
        return ended.returncode, ended.stdout.decode()

    # --- what it uses -------------------------------------------------------

    def memory(self) -> int:
        """Returns its resident bytes."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def threads(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.pid}/task").iterdir())

    def handles(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())
