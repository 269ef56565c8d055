"""A world on each kind of store."""

import pytest
import pytest_asyncio
from support.world import World


@pytest.fixture
def path(tmp_path):
    return tmp_path / "test.db"


@pytest_asyncio.fixture(params=["sqlite", "memory"])
async def world(request, path):
    async with World(path if request.param == "sqlite" else None) as made:
        yield made


@pytest_asyncio.fixture
async def file_world(path):
    async with World(path) as made:
        yield made
