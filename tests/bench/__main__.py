"""`python -m tests.bench`: prints figures as ratios to floors of the same run.

Server and client are held to one core each. Absolute figures drift with the
machine; the ratios are what says something. Nothing fails here.
"""

import argparse
import gc
import os
import sys
import tempfile
import traceback
from pathlib import Path

import uvloop

from tests.bench import calls, engine, figures, processes, replicas, streams
from tests.bench.plan import Plan

WORK = {
    "submit": calls.submit,
    "submit-new": calls.submit_new,
    "turn": calls.turn,
    "run": calls.whole_run,
    "readers": calls.readers,
    "engine": engine.engine,
    "commit": calls.commit,
    "fan-out": streams.fan_out,
    "latency": streams.latency,
    "history": streams.read,
    "fork": calls.fork,
    "idle": streams.idle,
    "pages": engine.pages,
    "lists": engine.lists,
    "replicas": replicas.replicas,
}


async def measure(names: list[str], rounds: int) -> list[figures.Line]:
    lines: list[figures.Line] = []
    for name in names:
        print(f"{name} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="runlane-bench-") as folder:
            try:
                lines += await WORK[name](Plan(Path(folder), rounds))
            except Exception as error:  # noqa: BLE001 - the other lines are printed all the same
                traceback.print_exc()
                lines.append(figures.Line(name, "", None, note=f"failed: {error!r}"[:80]))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 rounds instead of 5")
    parser.add_argument(
        "--only", action="append", choices=sorted(WORK), help="only this; give it again for more"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    asked = parser.parse_args()
    os.sched_setaffinity(0, {processes.CLIENT_CORE})
    # The client's own collections are no part of what is measured.
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    lines = uvloop.run(measure(asked.only or list(WORK), 2 if asked.quick else 5))
    if asked.json:
        print(figures.as_json(lines))
        return
    print(figures.table(lines))
    print("\nMedians of the rounds; each ratio is the median of the rounds' ratios to their floor.")
    print("p50 and p99 are of the figure. SQLite with synchronous=FULL, on the disk of $TMPDIR.")


if __name__ == "__main__":
    main()
