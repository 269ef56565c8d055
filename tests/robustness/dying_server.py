"""A server that holds a transaction, or dies right before or after one, when it is told to.

Told by a file `armed` beside its store: `before N` and `after N` hold the next transaction
until N more writes are decided and wait, and kill the server before or after the commit of
those; `hold` holds transactions while the file is there.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from runlane_server.cli import main
from runlane_server.runtime import committer as waiting
from runlane_server.store.base import CommitUnit
from runlane_server.store.postgres import commits as on_postgres
from runlane_server.store.sqlite import commits as on_sqlite

ARMED = Path("armed")
HELD = Path("held")
LONGEST = 30.0

_queues: list[waiting.Committer] = []
_enqueue = waiting.Committer.enqueue
_commit_on_sqlite = on_sqlite.Committer.commit
_commit_on_postgres = on_postgres.Committer.commit


def enqueue(self, entry):
    if self not in _queues:
        _queues.append(self)
    _enqueue(self, entry)


def units(writes) -> int:
    return sum(isinstance(one, CommitUnit) for one in writes)


def waits(true):
    """Gives how long to sleep, until it is true."""
    end = time.monotonic() + LONGEST
    while not true():
        if time.monotonic() > end:
            sys.exit("nothing came")
        yield 0.001


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def holds(batch):
    """Gives how long to sleep before a batch; returns when to die at it, if at all."""
    told = ARMED.read_text(encoding="ascii").split() if ARMED.exists() else []
    if told == ["hold"]:
        HELD.touch()
        yield from waits(lambda: not ARMED.exists())
    elif told:
        when, count = told[0], int(told[1])
        if units(batch) >= count:
            return when
        HELD.touch()
        yield from waits(lambda: units([one.write for one in list(_queues[0]._queue)]) >= count)
    return ""


def die_before_commit(place: str) -> None:
    if place == "commit":
        die()


class Dies:
    """What to do at a batch: `for pause in dies: sleep`, then what `when` says."""

    def __init__(self, batch) -> None:
        self.batch = batch
        self.when = ""

    def __iter__(self):
        self.when = yield from holds(self.batch)


def commit_on_sqlite(self, batch):
    dies = Dies(batch)
    for pause in dies:
        time.sleep(pause)
    if dies.when == "before":
        self.faults = die_before_commit
    done = _commit_on_sqlite(self, batch)
    if dies.when:
        die()
    return done


async def commit_on_postgres(self, batch):
    dies = Dies(batch)
    for pause in dies:
        await asyncio.sleep(pause)
    if dies.when == "before":
        self.faults = die_before_commit
    done = await _commit_on_postgres(self, batch)
    if dies.when:
        die()
    return done


if __name__ == "__main__":
    waiting.Committer.enqueue = enqueue
    on_sqlite.Committer.commit = commit_on_sqlite
    on_postgres.Committer.commit = commit_on_postgres
    main()
