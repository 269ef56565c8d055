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
ON_POSTGRES = 4
"""Every fourth: the rules are the same, and each kind of row is among these."""
CELLS = [
    pytest.param(store, cell, id=f"{store}-{cell.name}")
    for store, cells in (
        ("sqlite", [*BOTH, *ON_A_FILE]),
        ("memory", BOTH),
        ("postgres", [*BOTH, *ON_A_FILE][::ON_POSTGRES]),
    )
    for cell in cells
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_sqlite(tmp_path_factory):
    async with World(tmp_path_factory.mktemp("cells") / "test.db") as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_memory():
    async with World(None) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on_postgres(postgres_server):
    async with World(postgres_server.clean("cells")) as made:
        yield made


@pytest.fixture
def shared(request, store: str) -> World:
    return request.getfixturevalue(f"on_{store}")


async def _shown(world: World, name: str, deleted: bool) -> tuple[dict[str, str], list[str]]:
    return ({}, []) if deleted else (await world.inputs(name), await world.runs(name))


@pytest.mark.parametrize(("store", "cell"), CELLS)
async def test_cell(shared: World, store: str, cell: Cell):
    world, name = shared, f"ses_{next(_number)}"
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
