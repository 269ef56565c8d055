"""Runs a module in this process, held to one core: `child CORE MODULE [ARGUMENT ...]`.

With BENCH_PROFILE set, what the main thread does is profiled into that file.
"""

import cProfile
import os
import runpy
import sys

if __name__ == "__main__":
    core, module, *arguments = sys.argv[1:]
    # Before anything starts a thread: they all inherit it.
    os.sched_setaffinity(0, {int(core)})
    sys.argv = [module, *arguments]
    profile = os.environ.get("BENCH_PROFILE")
    profiler = cProfile.Profile() if profile else None
    try:
        if profiler is not None:
            profiler.enable()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        if profiler is not None:
            profiler.disable()
            profiler.dump_stats(profile)
