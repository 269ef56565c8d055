"""Servers as processes of their own."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support_server import Link, ServerProcess

# What these assert is said in full where it fails.
pytest.register_assert_rewrite(
    "support.machine", "support.machine_clients", "support.machine_executors"
)


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Makes servers that end with the test; none of them may have had an incident."""
    made: list[ServerProcess] = []

    def make(folder: Path = tmp_path, **settings: object) -> ServerProcess:
        folder.mkdir(exist_ok=True)
        made.append(ServerProcess(folder, **settings))
        return made[-1]

    yield make
    for server in made:
        server.kill()
    assert [line for server in made if server.log.exists() for line in server.incidents()] == []


@pytest.fixture(params=["sqlite", "postgres"])
def store(request) -> str:
    """A store of each kind, as in `--store`; empty: a file in the server's folder."""
    return request.getfixturevalue("postgres") if request.param == "postgres" else ""


@pytest.fixture
def server(make_server) -> ServerProcess:
    """A server on a file, for one test."""
    return make_server().start()


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Iterator[ServerProcess]:
    """A server on a file, for all tests of a module that take sessions of their own."""
    # No bookmarks: whatever waits for a tick hangs here.
    folder = tmp_path_factory.mktemp("shared")
    made = ServerProcess(folder, bookmark_seconds=45).start()
    yield made
    made.kill()
    assert made.incidents() == []


@pytest_asyncio.fixture
async def link(shared: ServerProcess):
    """A channel to the shared server."""
    async with Link(shared.address) as made:
        yield made
