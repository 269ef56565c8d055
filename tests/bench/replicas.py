"""Two servers on one PostgreSQL against one of them, and one on SQLite."""

import itertools
from contextlib import AsyncExitStack
from functools import partial

from tests.bench import processes
from tests.bench.client import Client, Load, connected, run
from tests.bench.figures import Line, line
from tests.bench.plan import Plan
from tests.support import postgres

WRITERS, COUNT = 64, 2400
BOUND = 1.5


async def replicas(plan: Plan) -> list[Line]:
    """64 writers to idle sessions: over two servers, one, and one on a file."""
    programs = postgres.programs()
    if programs is None:
        return [Line("two servers, 64 writers", "", None, note="skipped: no PostgreSQL")]
    database = postgres.PostgresServer(programs, fsync="on", full_page_writes="on")
    try:
        database.start()
        return await _measured(plan, database.clean("bench"))
    finally:
        database.stop()


async def _measured(plan: Plan, store: str) -> list[Line]:
    # The first is on the servers' core, the second beside the client.
    cores = (processes.SERVER_CORE, processes.CLIENT_CORE)
    against_one, against_file, cpu = [], [], []
    async with AsyncExitStack() as stack:
        file = stack.enter_context(processes.server(plan.folder, "one.db"))
        pair = [
            stack.enter_context(processes.server(plan.folder, store, core=core)) for core in cores
        ]
        alone = await stack.enter_async_context(connected(file.address))
        both = [await stack.enter_async_context(connected(one.address)) for one in pair]
        for _ in range(plan.rounds):
            on_file = await _writers([alone])
            before = pair[0].cpu()
            one = await _writers(both[:1])
            cpu.append((pair[0].cpu() - before) / COUNT * 1e6)
            two = await _writers(both)
            against_one.append((one.rate, two.rate))
            against_file.append((on_file.rate, two.rate))
    note = f"floor: one server, {sorted(cpu)[len(cpu) // 2]:.0f} us of CPU a call"
    return [
        line("two servers, 64 writers", "calls/s", against_one, bound=BOUND, note=note),
        line("  against one on SQLite", "calls/s", against_file),
    ]


async def _writers(clients: list[Client]) -> Load:
    """Submits that go to each in turn."""
    made = await clients[0].idle_sessions(COUNT)
    turns = zip(itertools.cycle(clients), made, strict=False)
    return await run((partial(client.submit, one) for client, one in turns), WRITERS)
