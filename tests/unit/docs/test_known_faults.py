"""tests/known_faults.toml against the tests that it names."""

import ast
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FAULTS = tomllib.loads((ROOT / "tests" / "known_faults.toml").read_text(encoding="utf-8"))["fault"]
COUNTS = {"A": 12, "B": 11, "C": 10, "D": 12, "E": 4, "F": 8, "G": 2, "H": 6}

ON_BOTH = {"world", "file_world", "path", "store", "two_stores"}
"""Fixtures of suites in which they are parameters over the stores."""
OVER_STORES = {"tests/integration/engine", "tests/conformance"}
ON_POSTGRES = {"postgres", "postgres_server", "a", "b", "pair", "steady"}
ON_SERVERS = {"server", "make_server", "shared", "link"}


@cache
def named_in(path: str) -> dict[str, tuple[set[str], bool]]:
    """Returns the fixtures of each test of a file, and whether it is marked `every_store`."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    marks = [ast.unparse(one) for one in tree.body if isinstance(one, ast.Assign)]
    whole = any(one.startswith("pytestmark") and "every_store" in one for one in marks)
    return {
        one.name: (
            {argument.arg for argument in one.args.args},
            whole or any("every_store" in ast.unparse(mark) for mark in one.decorator_list),
        )
        for one in tree.body
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def stores_of(test: str) -> set[str]:
    path, name = test.split("::")
    fixtures, every = named_in(path)[name]
    over = path.rpartition("/")[0] in OVER_STORES
    found = set()
    if every or (over and fixtures & ON_BOTH):
        found |= {"sqlite", "postgresql"}
    if fixtures & ON_POSTGRES:
        found.add("postgresql")
    if fixtures & ON_SERVERS:
        found.add("sqlite")
    return found


def test_each_report_has_its_row():
    assert Counter(fault["letter"] for fault in FAULTS) == COUNTS
    reports = [report for fault in FAULTS for report in fault["reports"]]
    assert [one for one, count in Counter(reports).items() if count > 1] == []
    assert len({fault["fault"] for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["reports"][0])
def test_a_fault_is_shown_absent_by_tests_on_its_stores(fault):
    assert fault.keys() == {"letter", "reports", "fault", "tests", "stores"}
    assert fault["tests"]
    for test in fault["tests"]:
        path, name = test.split("::")
        assert name.startswith("test_")
        assert name in named_in(path), test
    if fault["stores"] != ["any"]:
        assert set(fault["stores"]) <= set().union(*map(stores_of, fault["tests"]))
        assert set(fault["stores"]) <= {"sqlite", "postgresql"}
