"""Both faces of the client have the same names, and the same types but for what awaits."""

import inspect
import subprocess
import sys
import typing
from collections.abc import AsyncIterator, Generator
from dataclasses import fields
from pathlib import Path

import grpc
import grpc.aio
import pytest
import runlane
from runlane import sync

TWINS = {name for name in runlane.__all__ if getattr(runlane, name) is not getattr(sync, name)}
RENAMED = {
    "aclose": "close",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
}
HANDED_OVER = {"Agent", "Model", "StreamingModel"}
"""What the caller makes, and the client calls."""
TYPED_USE = Path(__file__).with_name("typed_use.py")


def own(kind: type) -> dict[str, object]:
    """The public members of a class, its protocols among them."""
    found = {}
    for name in dir(kind):
        if name in {*RENAMED, *RENAMED.values()} or not name.startswith("_"):
            found[name] = inspect.getattr_static(kind, name)
    return found


def twin_of(hint: object) -> object:
    """The type that stands in the place of another one on the blocking side."""
    if hint is grpc.aio.Channel:
        return grpc.Channel
    if isinstance(hint, type) and getattr(runlane, hint.__name__, None) is hint:
        return getattr(sync, hint.__name__)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if not arguments:
        return hint
    if origin is AsyncIterator:
        return Generator[twin_of(arguments[0]), None, None]
    if origin in {typing.Union, type(int | None)}:
        return typing.Union[tuple(twin_of(each) for each in arguments)]  # noqa: UP007 - made here
    if origin is typing.Literal or not isinstance(origin, type):
        return hint
    return origin[tuple(twin_of(each) for each in arguments)]


def test_the_same_names_are_public():
    assert sync.__all__ == runlane.__all__
    assert {
        *("Client", "SessionManager", "SessionHistory", "Executor", "EventStream", "FeedStream"),
        *HANDED_OVER,
    } == TWINS


@pytest.mark.parametrize("name", sorted(TWINS))
def test_a_twin_has_the_same_members(name):
    expected = {RENAMED.get(member, member) for member in own(getattr(runlane, name))}
    assert set(own(getattr(sync, name))) == expected


@pytest.mark.parametrize("name", sorted(TWINS - HANDED_OVER))
def test_a_method_has_the_same_parameters_types_and_docstring(name):
    checked = 0
    for member, value in own(getattr(runlane, name)).items():
        original = value
        twin = inspect.getattr_static(getattr(sync, name), RENAMED.get(member, member))
        if isinstance(value, property):
            original, twin = value.fget, twin.fget
        assert not inspect.iscoroutinefunction(twin)
        assert not inspect.isasyncgenfunction(twin)
        told = [(p.name, p.kind, p.default) for p in parameters(original)]
        assert [(p.name, p.kind, p.default) for p in parameters(twin)] == told, member
        expected = {key: twin_of(hint) for key, hint in typing.get_type_hints(original).items()}
        assert typing.get_type_hints(twin) == expected, member
        first = (original.__doc__ or "").partition("\n")[0].replace("task", "thread")
        assert (twin.__doc__ or "").partition("\n")[0] == first, member
        checked += 1
    assert checked == len(own(getattr(runlane, name)))


def parameters(function: object) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


@pytest.mark.parametrize("name", ["Client", "SessionManager", "SessionHistory", "Executor"])
def test_a_twin_is_made_of_the_same_things(name):
    original, twin = getattr(runlane, name).__init__, getattr(sync, name).__init__
    told = [(p.name, p.kind, p.default) for p in parameters(original)]
    assert [(p.name, p.kind, p.default) for p in parameters(twin)] == told
    hints = typing.get_type_hints(original)
    assert typing.get_type_hints(twin) == {key: twin_of(hint) for key, hint in hints.items()}


def test_an_agent_has_the_same_fields():
    original = [(f.name, f.default) for f in fields(runlane.Agent)]
    assert [(f.name, f.default) for f in fields(sync.Agent)] == original


def test_what_the_caller_writes_does_not_await():
    for kind, member in ((sync.Model, "complete"), (sync.StreamingModel, "stream")):
        assert not inspect.iscoroutinefunction(getattr(kind, member))


@pytest.mark.timeout(300)
def test_a_type_checker_sees_the_same_types_on_both_sides(tmp_path):
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path)]
    done = subprocess.run(
        [*command, str(TYPED_USE)],
        cwd=TYPED_USE.parents[2],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
