"""allowed_commands says exactly what is admitted, in every state that can be reached."""

import contextlib
import itertools
import random

import pytest
from runlane_server.core.admission import allowed_commands, column
from runlane_server.core.commands import WithdrawSubmission
from runlane_server.core.errors import Refused
from runlane_server.core.model import Command, Mode
from support.allowed import TRIES, check_allowed, pending
from support.lane import Lane
from support.steps import (
    CANCELLED,
    COMPLETED,
    FAILED,
    RELEASE,
    SECOND,
    Step,
    answer,
    close,
    close_cancel,
    commit,
    create,
    delete_force,
    first,
    interrupt,
    lease,
    put,
    reopen,
    reserve,
    steer,
)
from support.table import STATES

ROWS = {
    "no live run": "START AUTO QUEUE REPLACE CLOSE DELETE",
    "queued or leased": "AUTO QUEUE STEER FOLLOW_UP REPLACE INTERRUPT CLOSE",
    "cancelling": "AUTO QUEUE FOLLOW_UP REPLACE CLOSE",
    "closed, idle": "REOPEN DELETE",
    "closed, queued or leased": "INTERRUPT REOPEN",
    "closed, cancelling": "REOPEN",
}
MATRIX = {
    "IDLE": "no live run",
    "IDLE after a run": "no live run",
    "Q": "queued or leased",
    "L": "queued or leased",
    "L final": "queued or leased",
    "Lc": "cancelling",
    "Lc final": "cancelling",
    "closed": "closed, idle",
    "closed Q": "closed, queued or leased",
    "closed L": "closed, queued or leased",
    "closed Lc": "closed, cancelling",
}


@pytest.mark.parametrize("state", MATRIX)
def test_matrix(state):
    lane = Lane()
    lane.do(*STATES[state])
    wanted = {Command[word] for word in ROWS[MATRIX[state]].split()}
    assert allowed_commands(lane.state) == sorted(wanted)


@pytest.mark.parametrize("state", [name for name in STATES if name != "none"])
def test_allowed_is_what_is_admitted(state):
    lane = Lane()
    lane.do(*STATES[state])
    check_allowed(lane.state, lane.context())
    if not lane.state.deleted:
        waiting = bool(lane.state.steers or lane.state.next_runs)
        assert (Command.WITHDRAW in allowed_commands(lane.state)) is waiting


def test_every_command_has_a_try():
    assert set(TRIES) == set(Command)


_REOPEN = Step(reopen.make, "reopen")  # labelled: it needs no run


def _steps(chance: random.Random, number: int) -> list[Step]:
    mode = chance.choice(list(Mode))
    return [
        put(f"i{number}", mode),
        put(f"i{number}", mode),
        steer(f"i{number}", moves=True),
        interrupt(),
        lease(),
        lease(),
        reserve,
        commit(answer()),
        commit(answer(), outcome=COMPLETED),
        commit(outcome=chance.choice([COMPLETED, FAILED, CANCELLED, RELEASE])),
        Step(lambda s: WithdrawSubmission(pending(s))),
        chance.choice([close, close_cancel, reopen]),
        _REOPEN,
        _REOPEN,
    ]


def _walk(seed: int, seen: set[tuple[str, str]]) -> None:
    chance = random.Random(seed)
    lane = Lane()
    lane.do(create, first)
    for number in range(40):
        step = chance.choice(_steps(chance, number))
        if chance.random() < 0.1:
            lane.now += chance.choice([1, 31]) * SECOND
        lane.due()
        if lane.state.run is None and step.label == "":
            step = put(f"i{number}", Mode.AUTO)
        with contextlib.suppress(Refused):
            lane.do(step)
        check_allowed(lane.state, lane.context())
        seen.add((column(lane.state).value, lane.state.status.name))
    lane.do(delete_force)
    check_allowed(lane.state, lane.context())
    assert allowed_commands(lane.state) == []


def test_on_every_state_that_a_walk_reaches():
    seen: set[tuple[str, str]] = set()
    for seed in range(150):
        _walk(seed, seen)
    assert seen == set(itertools.product(("IDLE", "Q", "L", "Lc"), ("OPEN", "CLOSED")))
