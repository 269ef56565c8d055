"""This folder is on the path: `support` is what several suites share."""

from collections.abc import Iterator

import pytest
from support.postgres import PostgresServer, programs, required


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
