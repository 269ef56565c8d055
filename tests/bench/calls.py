"""Unary calls: Submit, Commit, fork, and writers beside readers."""

import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from runlane.v1 import history_service_pb2 as history
from runlane.v1 import run_pb2
from uuid_utils import uuid7

from tests.bench import processes
from tests.bench.client import (
    TIMEOUT,
    Client,
    FloorClient,
    Load,
    connected,
    connected_floor,
    fresh,
    run,
)
from tests.bench.figures import Line, line, percentile
from tests.bench.plan import Plan

ECHO = "calls/s"
_COUNTS = {1: 400, 16: 1600, 64: 3200}

Prepared = Callable[[], Awaitable[Load]]


@dataclass(slots=True)
class _Measured:
    """What the rounds gave: (floor, figure) of calls a second and of microseconds of CPU."""

    rates: list[tuple[float, float]] = field(default_factory=list)
    cpu: list[tuple[float, float]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def told(self) -> str:
        floor, figure = (statistics.median(column) for column in zip(*self.cpu, strict=True))
        return f"server CPU {floor:.0f} -> {figure:.0f} us a call"


async def submit(plan: Plan) -> list[Line]:
    """Durable Submit, START to a session that is idle: made, and otherwise untouched."""
    bounds = {1: 0.32, 16: 0.46, 64: 0.50}

    async def idle(client: Client, callers: int, count: int) -> Prepared:
        made = await client.idle_sessions(count)
        return lambda: run((lambda one=one: client.submit(one) for one in made), callers)

    return await _against_echo(
        plan, "durable Submit", "START, idle sessions, hot", idle, _COUNTS, bounds
    )


async def submit_new(plan: Plan) -> list[Line]:
    """Durable Submit that makes its session: what a client's first message is."""

    async def new(client: Client, callers: int, count: int) -> Prepared:
        return lambda: run((client.submit_new for _ in range(count)), callers)

    return await _against_echo(
        plan, "Submit, create_session", "session made by it", new, {1: 400, 64: 3200}, {}
    )


async def turn(plan: Plan) -> list[Line]:
    """Commit (step, finish) of a leased run and Submit to its session in turn."""
    bounds = {1: 0.33, 16: 0.50, 64: 0.53}

    async def both(client: Client, callers: int, count: int) -> Prepared:
        fences = await client.ready_to_finish(count // 2)

        async def one(fence: run_pb2.Fence) -> None:
            await client.finish(fence)
            await client.submit(fence.session_id)

        async def prepared() -> Load:
            load = await run((lambda fence=fence: one(fence) for fence in fences), callers)
            return Load(load.rate * 2, [second / 2 for second in load.seconds])

        return prepared

    counts = {1: 300, 16: 1200, 64: 2000}
    return await _against_echo(
        plan, "Submit and Commit in turn", "Commit = step + finish", both, counts, bounds
    )


async def whole_run(plan: Plan) -> list[Line]:
    """Whole runs: Submit, PollActivation, Commit (reserve), Commit (step, finish)."""

    async def whole(client: Client, callers: int, count: int) -> Prepared:
        agent = fresh("agent")
        made = await client.idle_sessions(count // 4, agent)

        async def prepared() -> Load:
            seconds: list[float] = []
            jobs = (lambda one=one: client.whole_run(one, agent, seconds) for one in made)
            load = await run(jobs, callers)
            return Load(load.rate * 4, seconds)

        return prepared

    return await _against_echo(
        plan, "a run in its 4 calls", "polls count as calls", whole, {1: 400, 64: 3200}, {}
    )


async def commit(plan: Plan) -> list[Line]:
    """The nearest to a Commit of many events: the last one of a run."""
    rates, seconds = [], []
    with processes.server(plan.folder, "commit.db") as server:
        async with connected(server.address) as client:
            for _ in range(plan.rounds):
                fences = await client.ready_to_finish(600)
                load = await run((lambda one=one: client.finish(one) for one in fences), 4)
                rates.append(load.rate)
                seconds += load.seconds
    return [
        Line("Commit of 64 events, 4 callers", "", None, note="n/a: no operation makes so many"),
        Line(
            "Commit (step, finish), 4 callers",
            "calls/s",
            statistics.median(rates),
            p50=percentile(seconds, 0.5) * 1000,
            p99=percentile(seconds, 0.99) * 1000,
            note="4 events each",
        ),
    ]


async def readers(plan: Plan) -> list[Line]:
    """8 writers alone, and beside 48 readers that never pause."""
    sessions = {fresh(): 200 for _ in range(16)}
    processes.inside(plan.folder, "fill", store="readers.db", runs=sessions)
    rates, tails, seconds = [], [], []
    with processes.server(plan.folder, "readers.db") as server:
        async with connected(server.address) as client:
            for _ in range(plan.rounds):
                alone = await _writers(client)
                reading = processes.Child(
                    "tests.bench.readers",
                    server.address,
                    *sessions,
                    core=processes.CLIENT_CORE,
                    log=plan.folder / "readers.log",
                )
                with reading:
                    beside = await _writers(client)
                rates.append((alone.rate, beside.rate))
                tails.append(
                    (
                        percentile(alone.seconds, 0.99) * 1000,
                        percentile(beside.seconds, 0.99) * 1000,
                    )
                )
                seconds += beside.seconds
    note = "GetLiveState and ListMessages, 50 messages"
    return [
        line("8 writers beside 48 readers", ECHO, rates, bound=0.2, seconds=seconds, note=note),
        line("  p99 of those writers", "ms", tails, bound=6, at_most=True, note="floor: alone"),
    ]


async def _writers(client: Client) -> Load:
    made = await client.idle_sessions(400)
    return await run((lambda one=one: client.submit(one) for one in made), 8)


async def fork(plan: Plan) -> list[Line]:
    """Forks of a long history and of a short one."""
    long, short = fresh(), fresh()
    sizes = {long: 10_000, short: 10}
    last = processes.inside(plan.folder, "fill", store="fork.db", runs=sizes)
    echo, many, few = [], [], []
    all_many: list[float] = []
    with processes.floor(plan.folder) as base, processes.server(plan.folder, "fork.db") as server:
        async with connected_floor(base.address) as floor, connected(server.address) as client:
            for _ in range(plan.rounds + 1):
                one = await _forks(client, last[long])
                other = await _forks(client, last[short])
                echoed = await floor.echo_load(1, 200)
                echo.append(percentile(echoed.seconds, 0.5) * 1000)
                many.append(percentile(one.seconds, 0.5) * 1000)
                few.append(percentile(other.seconds, 0.5) * 1000)
                all_many += one.seconds
    against_echo = list(zip(echo, many, strict=True))[1:]
    against_few = list(zip(few, many, strict=True))[1:]
    work = "fork of 10,000 messages, p50"
    return [
        line(work, "ms", against_echo, bound=2.5, at_most=True, seconds=all_many, note="echo p50"),
        line("  against 10 messages", "ms", against_few, bound=1.2, at_most=True),
    ]


async def _forks(client: Client, run_id: str) -> Load:
    async def one() -> None:
        await client.history.ForkSession(
            history.ForkSessionRequest(run_id=run_id, request_id=str(uuid7())), timeout=TIMEOUT
        )

    return await run((one for _ in range(60)), 1)


async def _against_echo(
    plan: Plan,
    work: str,
    note: str,
    prepare: Callable[[Client, int, int], Awaitable[Prepared]],
    counts: dict[int, int],
    bounds: dict[int, float],
) -> list[Line]:
    """Measures a load at each number of callers, between two echoes each time."""
    measured = {callers: _Measured() for callers in counts}
    name = f"{work.replace(' ', '-').replace(',', '')}.db"
    with processes.floor(plan.folder) as base, processes.server(plan.folder, name) as server:
        async with connected_floor(base.address) as floor, connected(server.address) as client:
            await _warm(floor, client)
            for _ in range(plan.rounds):
                for callers, count in counts.items():
                    one = measured[callers]
                    prepared = await prepare(client, callers, count)
                    before, used = base.cpu(), server.cpu()
                    first = await floor.echo_load(callers, count // 2)
                    done = await prepared()
                    second = await floor.echo_load(callers, count // 2)
                    one.rates.append(((first.rate + second.rate) / 2, done.rate))
                    one.seconds += done.seconds
                    one.cpu.append(
                        ((base.cpu() - before) / count * 1e6, (server.cpu() - used) / count * 1e6)
                    )
    return [
        line(
            f"{work}, {callers} caller{'s' * (callers > 1)}",
            ECHO,
            one.rates,
            bound=bounds.get(callers),
            seconds=one.seconds,
            note=one.told() + f"; {note}" * (callers == min(counts)),
        )
        for callers, one in measured.items()
    ]


async def _warm(floor: FloorClient, client: Client) -> None:
    await floor.echo_load(16, 400)
    made = await client.idle_sessions(200)
    await run((lambda one=one: client.submit(one) for one in made), 16)
