"""What a scenario writes for values: captured ones, and long texts."""

import re
from collections.abc import Mapping
from typing import Any, Final

_NAME: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_.]*)\}")


class ScenarioError(Exception):
    """A scenario says what it cannot mean."""


def filled(value: Any, scope: Mapping[str, Any]) -> Any:
    """Returns a value with its names replaced by what they stand for.

    Raises:
        ScenarioError: A name stands for nothing.
    """
    if isinstance(value, str):
        whole = _NAME.fullmatch(value)
        if whole:
            return _looked_up(whole[1], scope)
        return _NAME.sub(lambda found: str(_looked_up(found[1], scope)), value)
    if isinstance(value, list):
        return [filled(item, scope) for item in value]
    if isinstance(value, dict):
        if "$repeat" in value:
            return str(filled(value["$repeat"], scope)) * int(value["$times"])
        return {key: filled(item, scope) for key, item in value.items()}
    return value


def _looked_up(name: str, scope: Mapping[str, Any]) -> Any:
    found: Any = scope
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            raise ScenarioError(f"nothing is known by the name {name!r}")
        found = found[part]
    return found
