"""The driver of Python's client: `python -m conformance --target HOST:PORT FILES`."""

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from conformance.binding import ClientBinding
from conformance.blocking import BlockingBinding
from conformance.play import Binding, Failure, Player, Refused
from conformance.report import Result, table, write_junit
from conformance.scenario import Scenario, load
from conformance.server import own_server


async def played(
    scenarios: Sequence[Scenario], connect: Callable[[], Binding], *, jobs: int
) -> list[Result]:
    """Plays scenarios, some beside each other.

    Args:
        scenarios: What to play.
        connect: Makes a client with a connection of its own.
        jobs: How many at once.
    """
    room = asyncio.Semaphore(jobs)
    client = connect()
    try:
        info = await client.call("GetServerInfo", {}, raw=False)
    finally:
        await client.aclose()
    features = set(info.get("features", ()))

    async def one(scenario: Scenario) -> Result:
        lacking = scenario.needs - features
        if lacking:
            skipped = f"the server lacks {', '.join(sorted(lacking))}"
            return Result(scenario.name, scenario.file, 0.0, skipped=skipped)
        async with room:
            began = time.monotonic()
            try:
                await Player(scenario, connect).play()
            except Failure as failure:
                told = str(failure)
            else:
                told = ""
            return Result(scenario.name, scenario.file, time.monotonic() - began, told)

    return list(await asyncio.gather(*map(one, scenarios)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the driver; returns 0 where all that was played was as expected."""
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    parser.add_argument("--target", help="where the server is, HOST:PORT; none: one of its own")
    parser.add_argument("--only", action="append", help="play the scenario of this name alone")
    parser.add_argument("--jobs", type=int, default=8, help="scenarios at once (8)")
    parser.add_argument("--junit", type=Path, help="write JUnit's XML to this file")
    parser.add_argument("--blocking", action="store_true", help="drive runlane.sync instead")
    parser.add_argument("files", nargs="+", type=Path, help="scenario files, or folders of them")
    options = parser.parse_args(arguments)
    scenarios = [one for one in load(options.files) if not options.only or one.name in options.only]
    if not scenarios:
        parser.error("there is no such scenario")
    bind = BlockingBinding if options.blocking else ClientBinding
    suite = "conformance.python.blocking" if options.blocking else "conformance.python"
    with contextlib.ExitStack() as stack:
        target = options.target or stack.enter_context(own_server())
        try:
            results = asyncio.run(played(scenarios, lambda: bind(target), jobs=options.jobs))
        except Refused as refused:
            parser.exit(1, f"{target} does not say what it is: {refused}\n")
    print(table(results))
    if options.junit:
        write_junit(options.junit, results, suite)
    return int(any(one.failure for one in results))


if __name__ == "__main__":
    sys.exit(main())
