"""allowed_commands says exactly what is admitted, in every state that can be reached."""

import contextlib
import itertools
import random

import pytest
from runlane_server.core.admission import Column, allowed_commands, column
from runlane_server.core.commands import TakeNotice, WithdrawSubmission
from runlane_server.core.errors import Refused
from runlane_server.core.model import RunLimits, RunOptions, SessionState
from runlane_server.core.words import Command, Mode, NoticeKind, PromptKind, Recovery, StopReason
from support.allowed import TRIES, check_allowed, pending
from support.lane import Lane
from support.steps import (
    ALL_CHILDREN,
    CANCELLED,
    COMPLETED,
    FAILED,
    LEASE,
    RELEASE,
    SECOND,
    Step,
    answer,
    asks,
    beat,
    claims,
    close,
    close_cancel,
    commit,
    create,
    delete_force,
    interrupt,
    lease,
    passes,
    pause,
    put,
    question,
    reopen,
    reply,
    reserve,
    restore,
    results,
    settle,
    starts,
    steer,
    unpause,
)
from support.table import STATES

_BUSY = "AUTO QUEUE STEER FOLLOW_UP REPLACE INTERRUPT CLOSE"
ROWS = {
    "no live run": "START AUTO QUEUE REPLACE CLOSE DELETE",
    "queued": f"{_BUSY} PAUSE",
    "leased, stalled or in back-off": f"{_BUSY} PAUSE RESTORE",
    "the same, pause requested": f"{_BUSY} UNPAUSE RESTORE",
    "cancelling": "AUTO QUEUE FOLLOW_UP REPLACE CLOSE RESTORE",
    "waiting": f"{_BUSY} PAUSE ANSWER",
    "waiting, pause remembered": f"{_BUSY} UNPAUSE ANSWER",
    "paused": f"{_BUSY} UNPAUSE",
    "waiting for children": f"{_BUSY} PAUSE",
    "the same, pause remembered": f"{_BUSY} UNPAUSE",
    "ending": "AUTO QUEUE FOLLOW_UP REPLACE CLOSE",
    "closed, idle": "REOPEN DELETE",
    "closed, queued": "INTERRUPT REOPEN PAUSE",
    "closed, leased or stalled": "INTERRUPT REOPEN PAUSE RESTORE",
    "closed, pause requested": "INTERRUPT REOPEN UNPAUSE RESTORE",
    "closed, cancelling": "REOPEN RESTORE",
    "closed, waiting": "INTERRUPT REOPEN PAUSE ANSWER",
    "closed, paused": "INTERRUPT REOPEN UNPAUSE",
    "closed, waiting for children": "INTERRUPT REOPEN PAUSE",
    "closed, ending": "REOPEN",
}
MATRIX = {
    "IDLE": "no live run",
    "IDLE after a run": "no live run",
    "Q": "queued",
    "Q batch": "queued",
    "Q backoff": "leased, stalled or in back-off",
    **dict.fromkeys(
        ("L", "L final", "L batch", "L claimed", "ST", "ST claimed"),
        "leased, stalled or in back-off",
    ),
    **dict.fromkeys(("Lp", "Lp final", "Lp claimed", "STp"), "the same, pause requested"),
    **dict.fromkeys(("Lc", "Lc final", "Lc claimed"), "cancelling"),
    **dict.fromkeys(("W", "W ask", "W permission"), "waiting"),
    "Wp": "waiting, pause remembered",
    **dict.fromkeys(("P", "P batch"), "paused"),
    **dict.fromkeys(("C", "C any"), "waiting for children"),
    "C asked": "waiting",
    "Cp": "the same, pause remembered",
    **dict.fromkeys(("K", "K late"), "ending"),
    "L child": "leased, stalled or in back-off",
    "Q child": "queued",
    "closed C": "closed, waiting for children",
    "closed K": "closed, ending",
    "closed": "closed, idle",
    "closed Q": "closed, queued",
    "closed L": "closed, leased or stalled",
    "closed ST": "closed, leased or stalled",
    "closed Lp": "closed, pause requested",
    "closed Lc": "closed, cancelling",
    "closed W": "closed, waiting",
    "closed P": "closed, paused",
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


_HEARS = 0.2
_REOPEN = Step(reopen.make, "reopen")  # labelled: it needs no run


def _steps(chance: random.Random, number: int, options: RunOptions) -> list[Step]:
    mode = chance.choice(list(Mode))
    return [
        put(f"i{number}", mode),
        put(f"i{number}", Mode.QUEUE, options=options),
        steer(f"i{number}", moves=True),
        chance.choice([interrupt(), settle(StopReason.FAILED), restore(), unpause, unpause]),
        chance.choice([pause, pause, unpause]),
        reply(chance.choice(["yes", "no"])),
        passes(chance.choice([1, 11, 31, 61]) * SECOND),
        lease(),
        lease(),
        beat,
        reserve,
        reserve,
        commit(answer()),
        commit(asks("c1", "c2")),
        commit(asks("c1", "c2")),
        commit(claims(chance.choice(["c1", "c2"]), idempotent=chance.random() < 0.5)),
        commit(results(chance.choice(["c1", "c2"]))),
        commit(starts(chance.choice(["c1", "c2"]))),
        commit(starts(chance.choice(["c1", "c2"])), outcome=ALL_CHILDREN),
        commit(outcome=question(expire=chance.choice([0, 60 * SECOND]))),
        commit(outcome=question("c1", kind=PromptKind.PERMISSION)),
        commit(answer(), outcome=COMPLETED),
        commit(outcome=chance.choice([COMPLETED, FAILED, CANCELLED, RELEASE])),
        Step(lambda s: WithdrawSubmission(pending(s))),
        chance.choice([close, close_cancel, reopen]),
        _REOPEN,
        _REOPEN,
    ]


def _is_commit(step: Step) -> bool:
    """Whether it is made from an activation, which a run that waits or is paused has not."""
    try:
        step.make(SessionState("default", "ses_1", 0))
    except AttributeError:
        return True
    return False


def _hear(chance: random.Random, lane: Lane) -> None:
    """Something becomes of a child run, or of what its parent asked of it."""
    child = chance.choice(lane.children)
    child.now = lane.now
    child.due()
    live = child.state.run is not None
    asked = any(one.kind is NoticeKind.CANCEL for one in lane.notices)
    if live and asked:
        child.decided(TakeNotice(NoticeKind.CANCEL, "parent"))
    elif live and chance.random() < _HEARS and child.state.run.wait is None:
        child.do(lease(), reserve, commit(outcome=question()))
    elif live and child.state.run.wait is not None:
        child.do(reply())
    check_allowed(child.state, child.context())
    lane.told_of(child)


def _walk(seed: int, seen: set[tuple[str, str]]) -> None:
    chance = random.Random(seed)
    lane = Lane()
    recovery = Recovery.MANUAL if seed % 3 else Recovery.AUTO
    options = RunOptions(
        recovery=recovery, limits=RunLimits(max_duration=chance.choice([0, 300]) * SECOND)
    )
    lane.do(create, put("first", Mode.START, options=options))
    if seed % 3 == 1:
        # Few walks would lead to a stalled run: these begin there.
        lane.do(lease(), beat, passes(LEASE))
    elif seed % 6 == 5:
        lane.do(lease(), reserve, commit(asks("c1", "c2"), starts("c1")))
        lane.do(commit(outcome=ALL_CHILDREN), pause)
    for number in range(60):
        step = chance.choice(_steps(chance, number, options))
        lane.due()
        run = lane.state.run
        if run is None and step.label == "" and not step.passes:
            step = put(f"i{number}", Mode.AUTO, options=options)
        elif run is not None and run.activation is None and _is_commit(step):
            step = chance.choice([unpause, reply()])
        with contextlib.suppress(Refused):
            lane.do(step)
        if lane.children and chance.random() < _HEARS:
            _hear(chance, lane)
        check_allowed(lane.state, lane.context())
        seen.add((column(lane.state).value, lane.state.status.name))
    lane.do(delete_force)
    check_allowed(lane.state, lane.context())
    assert allowed_commands(lane.state) == []


def test_on_every_state_that_a_walk_reaches():
    seen: set[tuple[str, str]] = set()
    for seed in range(120):
        _walk(seed, seen)
    assert seen == set(itertools.product((one.value for one in Column), ("OPEN", "CLOSED")))
