"""Which rows of a batch go into one statement."""

import re
import sys

import pytest
from runlane_server.bootstrap import make_store
from runlane_server.settings import load
from runlane_server.store.errors import StoreRefused
from runlane_server.store.postgres.plan import BadRow, Kind, Plan, Raced, columns

PUT = Kind(columns("a, b text, n bigint"), "INSERT INTO t SELECT a, b, n FROM {u}")
MOVE = Kind(columns("a text"), "UPDATE t SET n = 1 FROM {u} WHERE t.a = u.a", "a row")
RACE = Kind(columns("a text"), "INSERT INTO r SELECT a FROM {u}", "a race", raced=True)


class Conn:
    """Takes statements; answers that each step has hit its row, less `missing` of them."""

    def __init__(self, missing=0):
        self.missing = missing
        self.seen = []

    async def fetchrow(self, sql, *values):
        self.seen.append((sql, values))
        first = [re.search(r"\$(\d+)", part) for part in re.split(r"\bw\d+ AS", sql)[1:]]
        return [len(values[int(one[1]) - 1]) - self.missing for one in first]


def levels(plan):
    return [{kind: len(steps) for kind, steps in level.items()} for level in plan._levels]


def test_columns_share_the_type_behind_them():
    assert columns("a, b text, n bigint") == (("a", "text"), ("b", "text"), ("n", "bigint"))


def test_steps_on_different_rows_are_one_level():
    plan = Plan()
    for name in "abc":
        plan.add(PUT, (name, "", 1), [name])
        plan.add(MOVE, (f"other {name}",), [f"other {name}"])
    assert levels(plan) == [{PUT: 3, MOVE: 3}]


def test_steps_on_one_row_follow_one_another():
    plan = Plan()
    plan.add(PUT, ("a", "", 1), ["a"])
    plan.add(MOVE, ("a",), ["a"])
    plan.add(MOVE, ("a",), ["a"])
    plan.add(MOVE, ("b",), ["b"])
    assert levels(plan) == [{PUT: 1, MOVE: 1}, {MOVE: 1}, {MOVE: 1}]


def test_what_reads_a_row_comes_behind_what_wrote_it_and_beside_what_changes_it_then():
    plan = Plan()
    plan.add(PUT, ("a", "", 1), ["a"])
    plan.add(MOVE, ("copy",), ["copy"], ["a"])
    plan.add(MOVE, ("copy 2",), ["copy 2"], ["a"])
    plan.add(MOVE, ("a",), ["a"])
    plan.add(PUT, ("late", "", 1), ["late"], ["a"])
    assert levels(plan) == [{PUT: 1}, {MOVE: 3}, {PUT: 1}]


def test_a_bar_is_behind_all_before_it_and_before_all_behind_it():
    plan = Plan()
    plan.mark("session")
    plan.bar()
    plan.add(MOVE, ("swept",))
    plan.bar()
    plan.add(PUT, ("a", "", 1), ["a"])
    plan.put(0, RACE, ("session",))
    assert levels(plan) == [{RACE: 1}, {MOVE: 1}, {PUT: 1}]


def test_what_is_marked_is_written_with_the_first_level():
    plan = Plan()
    plan.mark("session")
    plan.add(MOVE, ("session",), ["session"])
    assert levels(plan) == [{}, {MOVE: 1}]


@pytest.mark.asyncio
async def test_a_level_is_one_statement_over_arrays():
    plan, conn = Plan(), Conn()
    plan.add(MOVE, ("x",), ["x"])
    plan.add(PUT, ("a", "b", 1), ["a"])
    plan.add(PUT, ("c", "d", 2), ["c"])
    await plan.run(conn)
    sql = (
        "WITH w0 AS (INSERT INTO t SELECT a, b, n FROM"
        " unnest($1::text[], $2::text[], $3::bigint[]) AS u(a, b, n)),"
        " w1 AS (UPDATE t SET n = 1 FROM unnest($4::text[]) AS u(a) WHERE t.a = u.a RETURNING 1)"
        " SELECT 0, (SELECT count(*) FROM w1)"
    )
    assert conn.seen == [(sql, (["a", "c"], ["b", "d"], [1, 2], ["x"]))]


@pytest.mark.asyncio
async def test_steps_on_rows_that_no_lock_guards_are_in_one_order():
    kind = Kind(columns("a, b text, n bigint"), "DELETE FROM t USING {u}", ordered=2)
    plan, conn = Plan(), Conn()
    for step in (("b", "x", None), ("a", "y", 2), ("a", "x", 1)):
        plan.add(kind, step)
    await plan.run(conn)
    assert conn.seen[0][1] == (["a", "a", "b"], ["x", "y", "x"], [1, 2, None])


@pytest.mark.asyncio
@pytest.mark.parametrize(("kind", "error"), [(MOVE, BadRow), (RACE, Raced)])
async def test_a_step_that_misses_its_row(kind, error):
    plan = Plan()
    plan.add(kind, ("a",), ["a"])
    with pytest.raises(error, match=kind.wanted):
        await plan.run(Conn(missing=1))


def test_without_the_driver_the_store_says_what_it_needs(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("runlane_server.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    package = sys.modules["runlane_server.store"]
    monkeypatch.delattr(package, "postgres", raising=False)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(StoreRefused, match=r"runlane\[postgres\]"):
        make_store(load(flags={"store": "postgresql://me@host/name"}))
