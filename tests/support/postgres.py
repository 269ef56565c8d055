"""A PostgreSQL server of the tests' own, from Debian's package, on a free port."""

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

START_SECONDS = 60
PASSWORD = "not-in-any-log"

# What a test writes need not outlive the machine; it outlives every process of ours.
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "max_wal_size": "256MB",
    "autovacuum_naptime": "10s",
    "log_min_messages": "warning",
}
# The role `locked` needs its password; all others may come from this machine.
_ACCESS = """\
host all locked 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
local all all trust
host replication all 127.0.0.1/32 trust
"""


def programs() -> Path | None:
    """Returns the folder of initdb and postgres; None: PostgreSQL is not installed."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda one: int(one.parts[4])
    )
    if found:
        return found[-1].parent
    other = shutil.which("initdb")
    return Path(other).resolve().parent if other is not None else None


def _has_icu(bin_folder: Path) -> bool:
    told = subprocess.run(
        [str(bin_folder / "initdb"), "--help"], capture_output=True, check=True
    ).stdout
    return b"--icu-locale" in told


def required() -> bool:
    """Whether a missing PostgreSQL is a failure."""
    return any(os.environ.get(name) for name in ("CI", "POSTGRES_REQUIRED"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def in_thread(work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine to its end, also where a loop runs already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


class PostgresServer:
    """A cluster in a folder of its own; gone with it."""

    def __init__(self, bin_folder: Path, **settings: str) -> None:
        self._bin = bin_folder
        self._settings = {**_SETTINGS, **settings}
        # pytest's own folders are closed to the user that the server runs as.
        self._folder = Path(tempfile.mkdtemp(prefix="runlane-postgres-"))
        self._data = self._folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._databases: set[str] = set()
        self._user: str | None = None
        if os.geteuid() == 0:  # initdb refuses root
            self._user = next(one.pw_name for one in pwd.getpwall() if one.pw_name in _USERS)
            shutil.chown(self._folder, self._user)
        self.port = free_port()
        # Words are sorted as people do where nothing else is said: ids must say it.
        words = ["--locale-provider=icu", "--icu-locale=en-US"] if _has_icu(bin_folder) else []
        self._run("initdb", "-D", self._data, "-U", "runlane", "-E", "UTF8", "--locale=C", *words, "--no-sync", "--auth=trust")  # fmt: skip
        (self._data / "pg_hba.conf").write_text(_ACCESS, encoding="ascii")

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._bin / program), *map(str, arguments)]
        done = subprocess.run(
            command, user=self._user, cwd="/", capture_output=True, check=False, timeout=120
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        command = [str(self._bin / "postgres"), "-D", str(self._data), "-p", str(self.port), "-k", str(self._folder)]  # fmt: skip
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        # It ends with the thread that started it, whatever ends that: so with the tests.
        if shutil.which("setpriv"):
            as_user = [f"--reuid={self._user}", "--clear-groups"] if self._user else []
            command = ["setpriv", *as_user, "--pdeathsig=QUIT", *command]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd="/",
                stdout=log,
                stderr=log,
                user=None if shutil.which("setpriv") else self._user,
            )
        in_thread(self._ready())

    def make_roles(self) -> None:
        self.query(f"CREATE ROLE locked LOGIN PASSWORD '{PASSWORD}'")

    async def _ready(self) -> None:
        async with asyncio.timeout(START_SECONDS):
            while True:
                assert self._process is not None
                assert self._process.poll() is None, (self._folder / "log").read_text()
                try:
                    await self.execute("SELECT 1")
                except (OSError, Exception):  # noqa: BLE001 - it says no in many ways
                    await asyncio.sleep(0.05)
                else:
                    return

    def restart(self) -> None:
        """Ends it as a crash would, and starts it again. To be called by the main thread."""
        self._end()
        self.start()

    def _end(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)
            self._process = None

    def stop(self) -> None:
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextlib.contextmanager
    def standby(self) -> Iterator[int]:
        """Starts a server that follows this one; gives its port."""
        folder = self._folder / "standby"
        self._run("pg_basebackup", "-h", "127.0.0.1", "-p", self.port, "-U", "runlane", "-D", folder, "-R", "-X", "stream", "-c", "fast")  # fmt: skip
        other = object.__new__(PostgresServer)
        other.__dict__ |= self.__dict__ | {"_data": folder, "port": free_port(), "_process": None}
        other.start()
        try:
            yield other.port
        finally:
            other._end()

    # --- databases ---------------------------------------------------------

    def url(self, database: str, role: str = "runlane") -> str:
        return f"postgresql://{role}@127.0.0.1:{self.port}/{database}"

    async def execute(self, sql: str, database: str = "postgres") -> list[Any]:
        """Runs a statement on a connection of its own."""
        import asyncpg

        conn = await asyncpg.connect(self.url(database))
        try:
            return await conn.fetch(sql)
        finally:
            await conn.close()

    def query(self, sql: str, database: str = "postgres") -> list[Any]:
        return in_thread(self.execute(sql, database))

    def clean(self, database: str = "test") -> str:
        """Returns the address of a database without a row of ours."""
        if database not in self._databases:
            self.query(f'CREATE DATABASE "{database}"')
            self._databases.add(database)
        else:
            in_thread(self._empty(database))
        return self.url(database)

    async def _empty(self, database: str) -> None:
        import asyncpg

        conn = await asyncpg.connect(self.url(database))
        try:
            await conn.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            tables = await conn.fetch(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'runlane'"
                " AND tablename <> 'migrations'"
            )
            if tables:
                names = ", ".join(f"runlane.{one[0]}" for one in tables)
                await conn.execute(f"TRUNCATE {names}")
        finally:
            await conn.close()

    def terminate(self, database: str = "test") -> int:
        """Cuts all connections to a database; returns how many there were."""
        return len(
            self.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"  # noqa: S608
                f" WHERE datname = '{database}' AND pid <> pg_backend_pid()"
            )
        )


_USERS = ("postgres", "nobody")
