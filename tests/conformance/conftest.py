"""Every store runs the same suite; what takes a file is asked of the one that has one."""

from pathlib import Path

import pytest
import pytest_asyncio
from runlane_server.store.postgres import Address, PostgresStore
from runlane_server.store.sqlite import SqliteStore

STORES = ("sqlite", "memory", "postgres")


@pytest_asyncio.fixture(params=STORES)
async def store(request, tmp_path: Path):
    if request.param == "postgres":
        made = PostgresStore(Address(request.getfixturevalue("postgres")), readers=2)
    else:
        made = SqliteStore(tmp_path / "test.db" if request.param == "sqlite" else None)
    await made.open(0, "embedded-")
    yield made
    try:
        if made.is_open:
            assert await made.check() == []
    finally:
        await made.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.db"


@pytest_asyncio.fixture
async def file_store(path: Path):
    made = SqliteStore(path)
    await made.open(0, "embedded-")
    yield made
    await made.close()


@pytest_asyncio.fixture
async def one(postgres: str):
    """A store on PostgreSQL."""
    made = PostgresStore(Address(postgres), readers=2)
    await made.open(0, "embedded-")
    yield made
    await made.close()


@pytest_asyncio.fixture
async def other(postgres: str, one: PostgresStore):
    """A second server's store on the same database."""
    made = PostgresStore(Address(postgres), readers=2)
    await made.open(0, "embedded-")
    yield made
    await made.close()


@pytest_asyncio.fixture
async def database(postgres_server):
    """The address of a database that no store was ever in."""
    await postgres_server.execute("DROP DATABASE IF EXISTS fresh WITH (FORCE)")
    await postgres_server.execute("CREATE DATABASE fresh")
    return postgres_server.url("fresh")
