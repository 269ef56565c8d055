"""Every cell of the table of states as an outcome in the store."""

import itertools

import pytest
import pytest_asyncio
from runlane_server.core.admission import column
from runlane_server.core.errors import Refused
from support.cells_children import CHILD_CELLS
from support.cells_client import CLIENT_CELLS
from support.cells_executor import EXECUTOR_CELLS
from support.cells_turns import TURN_CELLS
from support.cells_waits import WAIT_CELLS
from support.table import STATES, Cell
from support.world import World

pytestmark = pytest.mark.asyncio(loop_scope="module")
_number = itertools.count(1)
BOTH = [*CLIENT_CELLS, *EXECUTOR_CELLS]
ON_A_FILE = [*WAIT_CELLS, *TURN_CELLS, *CHILD_CELLS]
"""Tried on a file alone: the store in memory runs the same statements."""
CELLS = [
    pytest.param(store, cell, id=f"{store}-{cell.name}")
    for store, cells in (("sqlite", [*BOTH, *ON_A_FILE]), ("memory", BOTH))
    for cell in cells
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory):
    path = tmp_path_factory.mktemp("cells") / "test.db"
    async with World(path) as on_a_file, World(None) as in_memory:
        yield {"sqlite": on_a_file, "memory": in_memory}


async def _shown(world: World, name: str, deleted: bool) -> tuple[dict[str, str], list[str]]:
    return ({}, []) if deleted else (await world.inputs(name), await world.runs(name))


@pytest.mark.parametrize(("store", "cell"), CELLS)
async def test_cell(shared: dict[str, World], store: str, cell: Cell):
    world, name = shared[store], f"ses_{next(_number)}"
    await world.do(name, *STATES[cell.state])
    if cell.child >= 0:
        name = (await world.children(name))[cell.child]
    before = await world.state(name)
    gone = before is None or before.deleted
    inputs, runs = await _shown(world, name, gone)
    last = before.sequence if before is not None else 0
    if cell.refused is not None:
        with pytest.raises(Refused) as refusal:
            await world.do(name, cell.step)
        assert refusal.value.reason is cell.refused
        assert refusal.value.metadata == cell.metadata(before)
        assert await world.state(name) == before
        assert await world.event_names(name, last) == []
        assert await _shown(world, name, gone) == (inputs, runs)
        return
    answer = await world.do(name, cell.step)
    after = await world.state(name)
    assert await world.event_names(name, last) == cell.events
    assert answer is None or answer.sequence == after.sequence
    assert after.sequence == last + len(cell.events)
    if cell.column:
        assert column(after).value == cell.column
        assert await world.inputs(name) == inputs | cell.inputs
        assert await world.runs(name) == (runs if cell.runs is None else cell.runs)
        assert len(await world.messages(name)) == after.message_count
    else:
        assert after.deleted
        assert await world.store.list_runs(after.key, [], None, 10) is None
    if cell.look is not None:
        cell.look(answer, before, after)
