"""A part of a core for a process, where there are too few cores to give each one of its own."""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD = 10_000
"""Microseconds in which a process gets its part."""


@contextmanager
def held(pids: Iterable[int], share: float) -> Iterator[bool]:
    """Holds processes to a part of a core each; gives whether this machine lets it."""
    with ExitStack() as stack:
        try:
            for pid in pids:
                stack.enter_context(_slice(pid, share))
        except OSError:
            stack.close()
            yield False
        else:
            yield True


@contextmanager
def _slice(pid: int, share: float) -> Iterator[None]:
    old = (_ROOT / "cpu" / "cpu.cfs_quota_us").exists()
    parent = _ROOT / "cpu" if old else _ROOT
    group = parent / f"runlane-bench-{pid}"
    group.mkdir()
    quota = round(_PERIOD * share)
    try:
        if old:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {_PERIOD}")
        (group / "cgroup.procs").write_text(str(pid))
        os.sched_setaffinity(pid, os.sched_getaffinity(0) | {0})
        yield
    finally:
        with suppress(OSError):
            (parent / "cgroup.procs").write_text(str(pid))
        with suppress(OSError):
            group.rmdir()
