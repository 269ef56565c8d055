"""The real engine on a real store beside a small model of it, with restarts and lost answers."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from runlane_server.core.admission import column
from support.cells_children import CHILD_CELLS
from support.cells_client import CLIENT_CELLS
from support.cells_executor import EXECUTOR_CELLS
from support.cells_turns import TURN_CELLS
from support.cells_waits import WAIT_CELLS
from support.coverage import COLUMNS, Coverage, rows_of
from support.lane import Lane
from support.machine import REACHED
from support.machine_clients import ENDED_TRIES
from support.machine_executors import (
    ASKED,
    LATE,
    EngineMachine,
    MemoryMachine,
    PostgresMachine,
)
from support.table import STATES

# One process runs them all: the last one counts what the others have reached.
pytestmark = pytest.mark.alone

_HOW = {
    "stateful_step_count": 60,
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}
TestEngineOnAFile = EngineMachine.TestCase
# The short ones say what failed as they found it; the long one also makes it small.
_SHORT = {"derandomize": True, "phases": [Phase.generate], **_HOW}
TestEngineOnAFile.settings = settings(max_examples=40, **_SHORT)
TestEngineInMemory = MemoryMachine.TestCase
TestEngineInMemory.settings = settings(max_examples=150, **_SHORT)


@pytest.fixture
def on_postgres(postgres_server):
    PostgresMachine.server = postgres_server


TestEngineOnPostgres = pytest.mark.usefixtures("on_postgres")(PostgresMachine.TestCase)
TestEngineOnPostgres.settings = settings(max_examples=10, **_SHORT)


class _Long(EngineMachine):
    pass


TestEngineForLong = pytest.mark.long(_Long.TestCase)
TestEngineForLong.settings = settings(max_examples=10_000, **_HOW)


def _tour(machine: EngineMachine, to: str, asked: list[tuple[str, str]]) -> None:
    """Asks one thing after the other of runs in one column."""
    machine.kids_max = 1000
    machine.start()
    try:
        machine.leads(0, "W", child=False)
        machine.answer(0, "yes")
        machine.settle(0, "FAILED")
        for what, late in asked:
            machine.leads(0, to, child=to in {"C", "Cp", "K"})
            assert machine.model["ses_0"].column == to
            machine.asks_for(0, "ses_0", what, late)
    finally:
        machine.teardown()


@pytest.mark.parametrize("to", COLUMNS[1:-1])
def test_a_tour_of_a_column(to):
    """Nothing that can be asked is left to chance."""
    asked = [(what, "") for what in ASKED if what not in {"late", "restart"}]
    asked += [("late", late) for late in LATE]
    for start in range(0, len(asked), 12):
        _tour(MemoryMachine(), to, asked[start : start + 12])
    _tour(EngineMachine(), to, [("restart", ""), ("told", "")])


def test_a_tour_of_what_has_ended():
    machine = MemoryMachine()
    machine.start()
    try:
        machine.work(0, "COMPLETED", 0, False)
        for what in ENDED_TRIES:
            for right in (True, False):
                machine.names_ended("ses_0", 0, what, right=right)
        for what in ("heartbeat", *LATE):
            machine.too_late_for_what_ended(0, what)
        # The end of a child run that is told twice is dropped the second time.
        machine.leads(0, "K", child=True)
        machine.child(4, "COMPLETED", False)
        machine.tells(twice=True)
        assert machine.model["ses_0"].column == "IDLE"
    finally:
        machine.teardown()


def test_every_cell_of_the_table_is_reached():
    """By the cells and the model together; run with `-s` to see how often by which."""
    if not REACHED.counts:
        pytest.skip("the model has not run in this process")
    by_cells, both = Coverage(), Coverage()
    for cell in (*CLIENT_CELLS, *EXECUTOR_CELLS, *WAIT_CELLS, *TURN_CELLS, *CHILD_CELLS):
        lane = Lane()
        lane.do(*STATES[cell.state])
        if cell.child < 0 and lane.state is not None and not lane.state.deleted:
            for row in rows_of(cell, lane.state):
                by_cells.reached(row, column(lane.state).value)
    both.counts = {**by_cells.counts, **REACHED.counts}
    for name, coverage in (("cells", by_cells), ("model", REACHED)):
        print(f"\nreached by the {name}; missing: {len(coverage.missing())}")
        print(coverage.table())
    missing = both.missing()
    assert missing == [], "\n".join(missing)
