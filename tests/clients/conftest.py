"""A scripted server and a client of it."""

from collections.abc import AsyncIterator

import pytest_asyncio
from client_fakes import FakeServer
from runlane import Client


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    await fake.start()
    yield fake
    await fake.stop()


@pytest_asyncio.fixture
async def client(server: FakeServer) -> AsyncIterator[Client]:
    async with Client(server.target, client_name="test", timeout=20) as made:
        yield made
