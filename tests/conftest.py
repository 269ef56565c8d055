"""What several suites share; this folder is on the path: `support` and `support_server`."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

sys.path.insert(0, str(Path(__file__).resolve().parent))

from support.postgres import PostgresServer, programs, required
from support_server import Link, ServerProcess

# A shell starts what is to run in the background deaf to it, and so would be what tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs the tests of modules that say `every_store` on each."""
    if metafunc.definition.get_closest_marker("every_store") is not None:
        assert "store_kind" in metafunc.fixturenames, "it starts no server that we know of"
        metafunc.parametrize("store_kind", ["sqlite", "postgres"], indirect=True, scope="module")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL for the whole run."""
    found = programs()
    if found is None:
        assert not required(), "PostgreSQL is not installed: apt-get install postgresql"
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    server = PostgresServer(found)
    try:
        server.start()
        server.make_roles()
        yield server
    finally:
        server.stop()


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> str:
    """The address of an empty database."""
    return postgres_server.clean()


# --- servers as processes of their own ---------------------------------------


@pytest.fixture(scope="module")
def store_kind(request: pytest.FixtureRequest) -> str:
    """What servers keep their data in: `sqlite` or `postgres`."""
    return getattr(request, "param", "sqlite")


@pytest.fixture
def store_of(request: pytest.FixtureRequest, store_kind: str) -> Callable[[Path], str]:
    """Gives each folder a store, as in `--store`; empty: a file in it."""
    known: dict[Path, str] = {}

    def store(folder: Path) -> str:
        if folder not in known:
            server = request.getfixturevalue("postgres_server")
            known[folder] = server.clean(f"server{len(known)}")
        return known[folder]

    return store if store_kind == "postgres" else lambda _folder: ""


@pytest.fixture
def make_server(
    tmp_path: Path, store_of: Callable[[Path], str]
) -> Iterator[Callable[..., ServerProcess]]:
    """Makes servers that end with the test; none of them may have had an incident."""
    made: list[ServerProcess] = []

    def make(folder: Path = tmp_path, store: str = "", **settings: object) -> ServerProcess:
        folder.mkdir(exist_ok=True)
        made.append(ServerProcess(folder, store=store or store_of(folder), **settings))
        return made[-1]

    yield make
    for server in made:
        server.kill()
    assert [line for server in made if server.log.exists() for line in server.incidents()] == []


@pytest.fixture
def server(make_server) -> ServerProcess:
    """A server for one test."""
    return make_server().start()


@pytest.fixture(scope="module")
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, store_kind: str
) -> Iterator[ServerProcess]:
    """A server for all tests of a module that take sessions of their own."""
    store = ""
    if store_kind == "postgres":
        store = request.getfixturevalue("postgres_server").clean("shared")
    # No bookmarks: whatever waits for a tick hangs here.
    folder = tmp_path_factory.mktemp("shared")
    made = ServerProcess(folder, store=store, bookmark_seconds=45).start()
    yield made
    made.kill()
    assert made.incidents() == []


@pytest_asyncio.fixture
async def link(shared: ServerProcess):
    """A channel to the shared server."""
    async with Link(shared.address) as made:
        yield made
