"""States of runs with child runs, and of sessions with a summary."""

from collections.abc import Callable

from runlane_server.core.model import RunLimits, RunOptions
from runlane_server.core.words import Mode, Recovery, ToolErrorPolicy

from support.steps import (
    ALL_CHILDREN,
    COMPLETED,
    FAILED,
    LEASE,
    RELEASE,
    SECOND,
    Step,
    asks,
    child_asks,
    child_ends,
    claims,
    close,
    commit,
    compacts,
    create,
    interrupt,
    lease,
    on_child,
    passes,
    pause,
    put,
    question,
    reserve,
    results,
    starts,
    steer,
)

Steps = tuple[Step, ...]
_ALL = commit(outcome=ALL_CHILDREN)
_ASK, _RELEASE, _LOST = commit(outcome=question()), commit(outcome=RELEASE), passes(LEASE)
BOTH = commit(asks("c1", "c2"), starts("c1"))
"""A batch of two calls, the first answered by a child run."""
ONE = commit(asks("c1"), starts("c1"))
TURNS: dict[str, Steps] = {
    "Q": (_RELEASE,),
    "L": (),
    "Lp": (pause,),
    "Lc": (interrupt(),),
    "ST": (_LOST,),
    "STp": (_LOST, pause),
    "W": (_ASK,),
    "Wp": (_ASK, pause),
    "C": (_ALL,),
    "Cp": (_ALL, pause),
    "P": (pause, _RELEASE),
    "K": (_ALL, interrupt()),
}
"""What leads from a leased run with a child run to each column."""
DEPTH, COUNT = 8, 64


def _below(levels: int) -> Steps:
    """Child runs of child runs, so many of them."""
    return (ONE, on_child(0, lease(), reserve, *_below(levels - 1))) if levels else (BATCH,)


BATCH = commit(asks("c1", "c2"))
TO_SECOND = (BATCH, commit(claims("c1")), commit(results("c1")), commit(claims("c2")))
AFTER_BATCH = (commit(asks("c1")), commit(claims("c1")), commit(results("c1")))


def deepest(step: Step, levels: int = DEPTH) -> Step:
    """The step in the session of the deepest child run."""
    return on_child(0, deepest(step, levels - 1)) if levels else step


def child_states(run: Callable[..., Steps], queues: Steps) -> dict[str, Steps]:
    """All states; `run` makes a leased run with a step reserved and an hour to live."""
    states: dict[str, Steps] = {}
    for column, turn in TURNS.items():
        how = {"recovery": Recovery.MANUAL} if column.startswith("ST") else {}
        begun = run(**how)
        states |= {
            f"{column} child": (*begun, BOTH, *turn),
            f"{column} child queues": (*begun, BOTH, *queues, *turn),
            f"{column} only": (*begun, ONE, *turn),
            f"{column} only queues": (*begun, ONE, *queues, *turn),
            f"{column} asked": (*begun, BOTH, child_asks, *turn),
            f"{column} child stop": (
                *run(tool_error_policy=ToolErrorPolicy.STOP, **how),
                BOTH,
                *turn,
            ),
        }
    begun = run()
    two = (*begun, BOTH, commit(starts("c2")))
    spare = RunOptions(limits=RunLimits(max_cost_usd_micros=105, max_total_tokens=20))
    few = RunOptions(limits=RunLimits(max_total_tokens=20))
    states |= {
        "L two": two,
        "C two stop": (*run(tool_error_policy=ToolErrorPolicy.STOP), *two[len(begun) :], _ALL),
        "K two": (*two, _ALL, on_child(1, lease()), interrupt()),
        "L child claimed": (*begun, BOTH, commit(claims("c2"))),
        "L child idem": (*begun, BOTH, commit(claims("c2", idempotent=True))),
        "Lp child claimed": (*begun, BOTH, commit(claims("c2")), pause),
        "L second done": (*begun, BOTH, commit(claims("c2")), commit(results("c2"))),
        "C second done": (*begun, BOTH, commit(claims("c2")), commit(results("c2")), _ALL),
        "L child done": (*begun, BOTH, child_ends),
        "Lp child done": (*begun, BOTH, child_ends, pause),
        "Lc child done": (*begun, BOTH, child_ends, interrupt()),
        "L child stop claimed": (
            *run(tool_error_policy=ToolErrorPolicy.STOP),
            BOTH,
            commit(claims("c2")),
        ),
        "L only done": (*begun, ONE, child_ends),
        "Lp only done": (*begun, ONE, pause, child_ends),
        "W child expires": (*begun, BOTH, commit(outcome=question(expire=60 * SECOND))),
        "Wp child expires": (*begun, BOTH, commit(outcome=question(expire=60 * SECOND)), pause),
        "W child ask": (*begun, BOTH, commit(outcome=question("c2"))),
        "Q child backoff": (*begun, BOTH, _LOST),
        "L malformed": (*begun, commit(asks("c1", "c2", malformed="c2"))),
        "L deep": (*begun, *_below(DEPTH)),
        "L many": (
            *begun,
            commit(asks(*(f"c{number}" for number in range(1, COUNT + 2)))),
            *(commit(starts(f"c{number}")) for number in range(1, COUNT + 1)),
        ),
        "K failed": (*begun, BOTH, commit(outcome=FAILED)),
        "K unknown": (*begun, BOTH, commit(claims("c2")), commit(outcome=FAILED)),
        "K replaced": (*begun, BOTH, *queues, _ALL, put("r1", Mode.REPLACE)),
        "child L": (*begun, BOTH, on_child(0, lease(), reserve)),
        "child Lc": (*begun, BOTH, on_child(0, lease(), reserve, interrupt())),
        "child P": (*begun, BOTH, on_child(0, pause)),
        "child over": (*begun, BOTH, child_ends),
        "child steered": (*begun, BOTH, on_child(0, lease(), steer("s1"))),
        "closed Q child": (*begun, BOTH, _RELEASE, close),
        "closed L child": (*begun, BOTH, close),
        "L first": begun[:-1],
        "L compacted": (*begun, *AFTER_BATCH, commit(compacts(1))),
        "L after batch": (*begun, *AFTER_BATCH),
        "L after batch reserved": (*begun, *AFTER_BATCH, reserve),
        "L after batch queues": (*begun, *AFTER_BATCH, *queues),
        "Lp after batch": (*begun, *AFTER_BATCH, pause),
        "Lc after batch": (*begun, *AFTER_BATCH, interrupt()),
        "L to second": (*begun, *TO_SECOND),
        "L tight": (create, put("first", Mode.START, options=spare), lease(), reserve, *AFTER_BATCH),
        "L few tokens": (create, put("first", Mode.START, options=few), lease(), reserve, *AFTER_BATCH),
        "IDLE compacted": (*begun[:-1], commit(compacts(1)), commit(outcome=COMPLETED)),
    }  # fmt: skip
    return states
