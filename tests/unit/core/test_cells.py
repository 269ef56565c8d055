"""Every cell of the table of states on the pure machine."""

import pytest
from runlane_server.core.admission import column
from support.cells_children import CHILD_CELLS
from support.cells_client import CLIENT_CELLS
from support.cells_executor import EXECUTOR_CELLS
from support.cells_turns import TURN_CELLS
from support.cells_waits import WAIT_CELLS
from support.lane import Lane
from support.table import STATES, Cell

CELLS = [*CLIENT_CELLS, *EXECUTOR_CELLS, *WAIT_CELLS, *TURN_CELLS, *CHILD_CELLS]


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_cell(cell: Cell):
    lane = Lane()
    if STATES[cell.state]:
        lane.do(*STATES[cell.state])
    if cell.child >= 0:
        now = lane.now
        lane = lane.children[cell.child]
        lane.now = now
    before, inputs, runs = lane.state, dict(lane.inputs), lane.run_ends
    last = before.sequence if before is not None else 0
    if cell.refused is not None:
        refusal = lane.refused(cell.step)
        assert refusal.reason is cell.refused
        assert refusal.metadata == cell.metadata(before)
        assert lane.state is before
        return
    answer = lane.do(cell.step)
    assert lane.event_names(after=last) == cell.events
    assert answer is None or answer.sequence == lane.state.sequence
    if not cell.events:
        # Nothing changes, but for the lease that every Commit renews.
        assert lane.state.revision == before.revision
    if cell.column:
        assert column(lane.state).value == cell.column
        assert lane.inputs == inputs | cell.inputs
        assert lane.run_ends == (runs if cell.runs is None else cell.runs)
    else:
        assert lane.state.deleted
        assert not lane.state.steers + lane.state.next_runs
    if cell.look is not None:
        cell.look(answer, before, lane.state)


def test_names_are_unique():
    names = [cell.name for cell in CELLS]
    assert len(names) == len(set(names))
