"""A world on each kind of store."""

import pytest
import pytest_asyncio
from support.world import World


def _place(request, tmp_path):
    """Where a store is that outlives its server: a file, or a database."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres")
    return tmp_path / "test.db" if request.param == "sqlite" else None


@pytest.fixture(params=["sqlite", "postgres"])
def path(request, tmp_path):
    return _place(request, tmp_path)


@pytest_asyncio.fixture(params=["sqlite", "memory", "postgres"])
async def world(request, tmp_path):
    async with World(_place(request, tmp_path)) as made:
        yield made


@pytest_asyncio.fixture
async def file_world(path):
    async with World(path) as made:
        yield made
