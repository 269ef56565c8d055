"""A server that holds a transaction, or dies right before or after one, when it is told to.

Told by a file `armed` beside its store: `before N` and `after N` hold the next transaction
until N more writes are decided and wait, and kill the server before or after the commit of
those; `hold` holds transactions while the file is there.
"""

import os
import signal
import sys
import time
from pathlib import Path

from runlane_server.cli import main
from runlane_server.runtime import committer as waiting
from runlane_server.store.base import CommitUnit
from runlane_server.store.sqlite import commits

ARMED = Path("armed")
HELD = Path("held")
LONGEST = 30.0

_queues: list[waiting.Committer] = []
_enqueue = waiting.Committer.enqueue
_commit = commits.Committer.commit


def enqueue(self, entry):
    if self not in _queues:
        _queues.append(self)
    _enqueue(self, entry)


def units(writes) -> int:
    return sum(isinstance(one, CommitUnit) for one in writes)


def wait(true) -> None:
    end = time.monotonic() + LONGEST
    while not true():
        if time.monotonic() > end:
            sys.exit("nothing came")
        time.sleep(0.001)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def commit(self, batch):
    told = ARMED.read_text(encoding="ascii").split() if ARMED.exists() else []
    if told == ["hold"]:
        HELD.touch()
        wait(lambda: not ARMED.exists())
    elif told:
        when, count = told[0], int(told[1])
        if units(batch) < count:
            HELD.touch()
            wait(lambda: units([one.write for one in list(_queues[0]._queue)]) >= count)
        else:
            if when == "before":
                self.faults = lambda place: die() if place == "commit" else None
            _commit(self, batch)
            die()
    return _commit(self, batch)


if __name__ == "__main__":
    waiting.Committer.enqueue = enqueue
    commits.Committer.commit = commit
    main()
