"""Work that needs no gRPC: stores are filled, and the engine and the queries are timed.

Runs as a process of its own on the server's core, and prints what it found as JSON.
"""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from google.protobuf.message import Message
from runlane.v1 import history_service_pb2 as history
from runlane_server import bootstrap
from runlane_server.app.service import App
from runlane_server.app.views import Caller
from runlane_server.core.commands import CreateSession
from runlane_server.core.model import SessionKey, SessionRecord
from runlane_server.runtime.clock import Clock
from runlane_server.settings import Settings
from runlane_server.transport import requests
from runlane_server.transport.binding import Call
from runlane_server.transport.history import HistoryServicer

from tests.bench.client import AGENT, TEXT, fresh, run, submit_request
from tests.bench.figures import percentile

NAMESPACE = "default"
CALLER = Caller(NAMESPACE, "client:bench", "Submit")
_INTERRUPTING = Caller(NAMESPACE, "client:bench", "InterruptRun")
_COMMAND = CreateSession(SessionRecord(default_agent=AGENT))
_PARALLEL = 512
_WAL_HEADER, _WAL_FRAME = 32, 4096 + 24


@asynccontextmanager
async def opened(path: Path, **settings: Any) -> AsyncIterator[App]:
    """Gives the use cases over a store, as `serve` has them."""
    made = Settings(store=f"sqlite:{path}", **settings)
    clock = Clock()
    store = bootstrap.make_store(made)
    await store.open(clock.now(), "embedded-")
    app = bootstrap.make_app(made, store, clock)
    await app.start()
    bootstrap._collect_rarely()
    try:
        yield app
    finally:
        await app.close()
        await store.close()


async def create(app: App, session_id: str) -> None:
    await app.create_session(CALLER, session_id, _COMMAND)


async def submit(app: App, session_id: str) -> None:
    """Submits as the transport does once it has parsed and validated a request."""
    request = submit_request(session_id)
    command = requests.submit(request)
    call = Call(NAMESPACE, "client:bench", "Submit", None)
    await app.submit(call.caller(request.request_id, session_id, command), session_id, command)


async def create_many(app: App, count: int) -> list[str]:
    made = [fresh() for _ in range(count)]
    await run((lambda one=one: create(app, one) for one in made), _PARALLEL)
    return made


async def interrupt(app: App, session_id: str) -> None:
    await app.interrupt(_INTERRUPTING, session_id, "", "", 0)


async def append_runs(app: App, session_id: str, count: int, text: str = TEXT) -> None:
    """Appends ended runs to a session, a message each.

    All that is decided meanwhile shares a transaction, also in one session.
    """
    command = requests.submit(submit_request(session_id, text=text))
    loop = asyncio.get_running_loop()
    for start in range(0, count, _PARALLEL):
        tasks: list[asyncio.Task[Any]] = []
        for _ in range(min(_PARALLEL, count - start)):
            tasks.append(loop.create_task(app.submit(CALLER, session_id, replace(command))))
            tasks.append(loop.create_task(interrupt(app, session_id)))
        await asyncio.gather(*tasks)


async def fill(
    folder: Path, store: str, runs: dict[str, int], sessions: int = 0, text: str = TEXT
) -> dict[str, str]:
    """Fills a store with sessions that have so many runs; returns the last run of each."""
    async with opened(folder / store) as app:
        await create_many(app, sessions)
        for session_id, count in runs.items():
            await create(app, session_id)
            await append_runs(app, session_id, count, text)
        last = {}
        for session_id, count in runs.items():
            key = SessionKey(NAMESPACE, session_id)
            found = await app.services.store.list_runs(key, [], None, count + 1)
            assert found is not None
            assert len(found) == count
            last[session_id] = found[-1].run_id
    return last


async def engine(folder: Path, callers: int, count: int, rounds: int) -> list[dict[str, float]]:
    """Submits to idle sessions: grouped, and one transaction each."""
    found = []
    async with (
        opened(folder / f"grouped-{callers}.db") as grouped,
        opened(folder / f"single-{callers}.db", batch_max=1, linger_milliseconds=0) as single,
    ):
        for _ in range(rounds):
            one: dict[str, float] = {}
            for name, app in (("floor", single), ("figure", grouped)):
                made = await create_many(app, count)
                load = await run(
                    (lambda app=app, made=made: submit(app, made) for made in made), callers
                )
                one[name] = load.rate
                one[f"{name}_p50"] = percentile(load.seconds, 0.5)
                one[f"{name}_p99"] = percentile(load.seconds, 0.99)
            found.append(one)
    return found


async def pages(folder: Path) -> dict[str, float]:
    """Counts the pages that a Submit to an idle session writes, alone and 64 in a batch."""
    path = folder / "pages.db"
    async with opened(path) as app:
        for session_id in await create_many(app, 20):
            await append_runs(app, session_id, 200)
        await run((lambda one=one: submit(app, one) for one in await create_many(app, 3000)), 64)
        found = {}
        store: Any = app.services.store
        for batch, times in ((1, 200), (64, 20)):
            made = await create_many(app, batch * times)
            # They have had a run: the first one makes their rows grow, once.
            await asyncio.gather(*(submit(app, one) for one in made))
            await asyncio.gather(*(interrupt(app, one) for one in made))
            wal = path.with_name(path.name + "-wal")
            await store._writer.submit(store._conn.execute, "PRAGMA wal_autocheckpoint=0")
            await store._writer.submit(_truncate, store._conn)
            for start in range(0, len(made), batch):
                app.services.engine._committer._expected = float(batch)
                await asyncio.gather(*(submit(app, one) for one in made[start : start + batch]))
            frames = (wal.stat().st_size - _WAL_HEADER) / _WAL_FRAME
            found[str(batch)] = frames / len(made)
    return found


def _truncate(conn: Any) -> None:
    busy, _, _ = conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    assert not busy


async def lists(folder: Path, store: str, session_id: str) -> dict[str, list[float]]:
    """Times the first and the last page of 50 of each list, gRPC left out, in milliseconds."""
    async with opened(folder / store) as app:
        servicer = HistoryServicer(app)
        asked: dict[str, tuple[Any, Message]] = {
            "fork points": (
                servicer.list_fork_points,
                history.ListForkPointsRequest(session_id=session_id, page_size=50),
            ),
            "runs": (
                servicer.list_runs,
                history.ListRunsRequest(session_id=session_id, page_size=50),
            ),
            "sessions": (servicer.list_sessions, history.ListSessionsRequest(page_size=50)),
        }
        return {name: await _first_and_last(*how) for name, how in asked.items()}


async def _first_and_last(handler: Any, request: Any) -> list[float]:
    call = Call(NAMESPACE, "client:bench", type(request).__name__, None)
    first = type(request).FromString(request.SerializeToString())
    while token := (await handler(request, call)).next_page_token:
        request.page_token = token
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(100):
        for one, seconds in zip((first, request), times, strict=True):
            start = time.perf_counter()
            (await handler(one, call)).SerializeToString()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) * 1000 for seconds in times]


_WORK = {"fill": fill, "engine": engine, "pages": pages, "lists": lists}

if __name__ == "__main__":
    arguments = json.loads(sys.argv[2])
    arguments["folder"] = Path(arguments["folder"])
    print(json.dumps(uvloop.run(_WORK[sys.argv[1]](**arguments))))
