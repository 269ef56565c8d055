"""What is measured without gRPC: the engine, the pages it writes, the lists."""

from tests.bench import processes
from tests.bench.client import fresh
from tests.bench.figures import Line, line
from tests.bench.plan import Plan


async def engine(plan: Plan) -> list[Line]:
    """Submits without gRPC: grouped against one transaction each."""
    lines = []
    for callers, bound in ((64, 5.5), (256, 6.5)):
        found = processes.inside(
            plan.folder, "engine", callers=callers, count=callers * 24, rounds=plan.rounds
        )
        rates = [(one["floor"], one["figure"]) for one in found]
        tails = [(one["floor_p99"] * 1000, one["figure_p99"] * 1000) for one in found]
        work = f"engine without gRPC, {callers} writers"
        lines += [
            line(work, "commands/s", rates, bound=bound, note="floor: a transaction each"),
            line("  p99", "ms", tails, bound=0.35, at_most=True),
        ]
    return lines


async def pages(plan: Plan) -> list[Line]:
    """SQLite pages that a Submit writes."""
    found = processes.inside(plan.folder, "pages")
    work = "pages for a Submit, batch of"
    return [
        Line(f"{work} 1", "pages", found["1"], bound=12, at_most=True, note="frames in the log"),
        Line(f"{work} 64", "pages", found["64"], bound=5, at_most=True),
    ]


async def lists(plan: Plan) -> list[Line]:
    """First and last page of 50 among 20,000."""
    session_id = fresh()
    processes.inside(
        plan.folder, "fill", store="lists.db", runs={session_id: 20_000}, sessions=20_000
    )
    found = processes.inside(plan.folder, "lists", store="lists.db", session_id=session_id)
    lines = []
    for name, (first, last) in found.items():
        flat = line(f"last page of 20,000 {name}", "ms", [(first, last)], note="floor: first page")
        slow = Line("  server time of the slower", "ms", max(first, last), bound=2, at_most=True)
        lines += [flat, slow]
    return lines
