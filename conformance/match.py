"""Compares what came with what a scenario expects."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

MISSING: Final = object()
"""What stands where nothing does."""

Captures = dict[str, Any]


def mismatch(pattern: Any, value: Any, captures: Captures, path: str = "") -> str | None:
    """Returns why a value does not fit its pattern; None where it does.

    Args:
        pattern: What is expected, names filled in.
        value: What came, or MISSING.
        captures: Gets what `$as` asks for; to be thrown away where it does not fit.
        path: Where in the whole the value stands.
    """
    if isinstance(pattern, Mapping) and any(key.startswith("$") for key in pattern):
        return _matched(pattern, value, captures, path)
    if value is MISSING:
        return f"{path or 'it'} is absent, expected {_short(pattern)}"
    if isinstance(pattern, Mapping):
        return _object(pattern, value, captures, path)
    if isinstance(pattern, list):
        return _list(pattern, value, captures, path)
    if type(pattern) is not type(value) or pattern != value:
        return f"{path or 'it'} is {_short(value)}, expected {_short(pattern)}"
    return None


def _object(pattern: Mapping[str, Any], value: Any, captures: Captures, path: str) -> str | None:
    if not isinstance(value, Mapping):
        return f"{path or 'it'} is {_short(value)}, expected an object"
    for key, inner in pattern.items():
        where = f"{path}.{key}" if path else key
        why = mismatch(inner, value.get(key, MISSING), captures, where)
        if why:
            return why
    return None


def _list(pattern: list[Any], value: Any, captures: Captures, path: str) -> str | None:
    if not isinstance(value, list):
        return f"{path or 'it'} is {_short(value)}, expected a list"
    for index, inner in enumerate(pattern):
        item = value[index] if index < len(value) else MISSING
        why = mismatch(inner, item, captures, f"{path}[{index}]")
        if why:
            return why
    if len(value) > len(pattern):
        return f"{path}[{len(pattern)}] is too many: {_short(value[len(pattern)])}"
    return None


def _matched(pattern: Mapping[str, Any], value: Any, captures: Captures, path: str) -> str | None:
    if pattern.get("$absent"):
        return None if value is MISSING else f"{path or 'it'} is {_short(value)}, expected none"
    if "$not" in pattern:
        why = mismatch(pattern["$not"], value, {}, path)
        return None if why else f"{path or 'it'} is {_short(value)}, expected another"
    if value is MISSING:
        return f"{path or 'it'} is absent"
    for key, told in pattern.items():
        if key in {"$as", "$any"}:
            continue
        why = _RULES[key](told, value, captures, path)
        if why:
            return why
    if "$as" in pattern:
        captures[pattern["$as"]] = value
    return None


def _regex(told: str, value: Any, _: Captures, path: str) -> str | None:
    if isinstance(value, str) and re.search(told, value):
        return None
    return f"{path or 'it'} is {_short(value)}, expected /{told}/"


def _length(told: int, value: Any, _: Captures, path: str) -> str | None:
    if isinstance(value, list) and len(value) == told:
        return None
    size = len(value) if isinstance(value, list) else "no list"
    return f"{path or 'it'} has {size} items, expected {told}"


def _bound(least: bool) -> Callable[[Any, Any, Captures, str], str | None]:
    def rule(told: Any, value: Any, _: Captures, path: str) -> str | None:
        fits = int(value) >= int(told) if least else int(value) <= int(told)
        word = "least" if least else "most"
        return None if fits else f"{path or 'it'} is {value}, expected at {word} {told}"

    return rule


def _contains(told: list[Any], value: Any, captures: Captures, path: str) -> str | None:
    if not isinstance(value, list):
        return f"{path or 'it'} is {_short(value)}, expected a list"
    rest = list(value)
    for inner in told:
        while rest:
            trial: Captures = {}
            if mismatch(inner, rest.pop(0), trial) is None:
                captures.update(trial)
                break
        else:
            return f"{path or 'it'} has, in this order, no {_short(inner)}: {_short(value)}"
    return None


def _unordered(told: list[Any], value: Any, captures: Captures, path: str) -> str | None:
    if not isinstance(value, list) or len(value) != len(told):
        return f"{path or 'it'} is {_short(value)}, expected {len(told)} items"
    rest = list(value)
    for inner in told:
        for index, item in enumerate(rest):
            trial: Captures = {}
            if mismatch(inner, item, trial) is None:
                captures.update(trial)
                del rest[index]
                break
        else:
            return f"{path or 'it'} has no {_short(inner)}: {_short(value)}"
    return None


_RULES: Final[Mapping[str, Callable[[Any, Any, Captures, str], str | None]]] = {
    "$is": mismatch,
    "$regex": _regex,
    "$length": _length,
    "$min": _bound(least=True),
    "$max": _bound(least=False),
    "$contains": _contains,
    "$unordered": _unordered,
}


def _short(value: Any, limit: int = 600) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
