"""The life of `serve`: what fails on the way leaves nothing behind that was begun."""

import asyncio
import socket

import pytest
from runlane_server import bootstrap
from runlane_server.app.keys import KeyRing
from runlane_server.app.service import App
from runlane_server.executors import EmbeddedExecutor
from runlane_server.settings import AgentConfig, ScriptedModelConfig, Settings
from runlane_server.store.sqlite import SqliteStore

pytestmark = pytest.mark.asyncio
AGENT = AgentConfig(name="a", model=ScriptedModelConfig(kind="scripted"))


class FaultError(Exception):
    """What fails."""


@pytest.fixture
def order(monkeypatch) -> list[str]:
    """Notes what is ended."""
    found: list[str] = []

    def note(kind: type, method: str) -> None:
        real = getattr(kind, method)

        async def noted(self, *args, **kwargs):
            found.append(f"{kind.__name__}.{method}")
            return await real(self, *args, **kwargs)

        monkeypatch.setattr(kind, method, noted)

    for kind in (KeyRing, App, SqliteStore):
        note(kind, "close")
    note(bootstrap.GrpcServer, "drain")
    note(EmbeddedExecutor, "drain")
    monkeypatch.setattr(bootstrap, "_collect_rarely", lambda: None)
    return found


async def failing(tmp_path, ready=lambda _: None) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    settings = Settings(store=f"sqlite:{tmp_path / 'a.db'}", listen=(address,), agent=(AGENT,))
    before = asyncio.all_tasks()
    with pytest.raises(FaultError):
        await bootstrap.serve(settings, ready)
    left = [one for one in asyncio.all_tasks() - before if "_serve_authenticated" not in str(one)]
    assert left == []
    # Nobody listens any more, and nobody has the file.
    with pytest.raises(OSError):
        await asyncio.open_connection(*address.split(":"))
    again = SqliteStore(tmp_path / "a.db")
    await again.open(1, "")
    await again.close()


def fails(*_args, **_kwargs):
    raise FaultError


STORE = ["SqliteStore.close"]
APP = ["KeyRing.close", "App.close", *STORE]
SERVER = ["GrpcServer.drain", *APP]
EMBEDDED = ["EmbeddedExecutor.drain", *SERVER]


@pytest.mark.parametrize(
    ("kind", "method", "ended"),
    [
        (bootstrap, "make_app", STORE),
        (App, "start", APP),
        (KeyRing, "start", APP),
        (bootstrap, "_identity", APP),
        (bootstrap, "_serve_metrics", APP),
        (bootstrap, "_listen", SERVER),
        (EmbeddedExecutor, "start", EMBEDDED),
    ],
)
async def test_a_start_that_fails_ends_what_it_began(
    tmp_path, monkeypatch, order, kind, method, ended
):
    monkeypatch.setattr(kind, method, fails)
    await failing(tmp_path)
    assert [one for one in order if one in EMBEDDED][: len(ended)] == ended


async def test_a_server_that_cannot_say_that_it_is_ready_stops(tmp_path, order):
    await failing(tmp_path, ready=fails)
    assert order[: len(EMBEDDED)] == EMBEDDED
