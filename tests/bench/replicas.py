"""Two servers on one PostgreSQL against one of them, and one on SQLite.

The claim is about what a second server adds where the database is not the limit, so the
servers must be it: each has a core that nobody else needs, or, on a machine with too few, a
part of one that leaves the rest to the client and the database.
"""

import itertools
import os
import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from tests.bench import processes, slices
from tests.bench.client import Client, connected, run
from tests.bench.figures import Line, line
from tests.bench.plan import Plan
from tests.support import postgres

FEW, MANY, COUNT = 64, 256, 2400
"""Writers. Few fill a server's batches by half where there are two, so each call costs more."""

BOUND = 1.5
CORES = 4
"""With fewer the servers get `SHARE` of a core each."""

SHARE = 0.35


async def replicas(plan: Plan) -> list[Line]:
    """Writers to idle sessions: over two servers, one, and one on a file."""
    programs = postgres.programs()
    if programs is None:
        return [Line("two servers", "", None, note="skipped: no PostgreSQL")]
    database = postgres.PostgresServer(programs, fsync="on", full_page_writes="on")
    try:
        database.start()
        return await _measured(plan, database.clean("bench"))
    finally:
        database.stop()


@dataclass(slots=True)
class _Side:
    """Servers that a load goes to, in turn, and what they took."""

    servers: list[processes.Child]
    clients: list[Client]
    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    async def write(self, writers: int) -> None:
        """Submits to each in turn."""
        made = await self.clients[0].idle_sessions(COUNT)
        before = [one.cpu() for one in self.servers]
        turns = zip(itertools.cycle(self.clients), made, strict=False)
        load = await run((partial(client.submit, one) for client, one in turns), writers)
        took = sum(one.cpu() - first for one, first in zip(self.servers, before, strict=True))
        self.rates.append(load.rate)
        self.cpu.append(took / COUNT * 1e6)

    @property
    def told(self) -> str:
        return f"{statistics.median(self.cpu):.0f} us"


async def _measured(plan: Plan, store: str) -> list[Line]:
    async with AsyncExitStack() as stack:
        cores = (processes.SERVER_CORE, processes.SERVER_CORE + 1)
        servers = [stack.enter_context(processes.server(plan.folder, "one.db"))]
        servers += [
            stack.enter_context(processes.server(plan.folder, store, core=core)) for core in cores
        ]
        limit = "each server has a core"
        if len(os.sched_getaffinity(0)) < CORES:
            held = stack.enter_context(slices.held([one.pid for one in servers], SHARE))
            limit = f"each server has {SHARE:g} of a core" if held else "too few cores to tell"
        clients = [await stack.enter_async_context(connected(one.address)) for one in servers]
        lines = []
        for writers in (MANY, FEW):
            file = _Side(servers[:1], clients[:1])
            one, two = _Side(servers[1:2], clients[1:2]), _Side(servers[1:], clients[1:])
            for _ in range(plan.rounds):
                for side in (file, one, two):
                    await side.write(writers)
            lines += _lines(writers, file, one, two, limit)
        return lines


def _lines(writers: int, file: _Side, one: _Side, two: _Side, limit: str) -> list[Line]:
    return [
        line(
            f"two servers, {writers} writers",
            "calls/s",
            list(zip(one.rates, two.rates, strict=True)),
            bound=BOUND if writers == MANY else None,
            note=f"floor: one server; CPU of servers a call {one.told}, of two {two.told}; {limit}",
        ),
        line(
            "  against one on SQLite",
            "calls/s",
            list(zip(file.rates, two.rates, strict=True)),
            note=f"SQLite: {file.told}",
        ),
    ]
