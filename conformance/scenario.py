"""Reads scenario files."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario.

    Attributes:
        name: Its name, unique over all files.
        file: Where it stands.
        ids: Names that stand for fresh ids.
        needs: Features of the server without which it is skipped.
        steps: What is done.
        shared: Steps that its own may use, by name.
    """

    name: str
    file: str
    ids: tuple[str, ...]
    needs: frozenset[str]
    steps: tuple[Mapping[str, Any], ...]
    shared: Mapping[str, Any]


def load(files: Iterable[Path]) -> list[Scenario]:
    """Reads the scenarios of files, in order; a folder stands for the .json files in it."""
    found: list[Scenario] = []
    for file in files:
        if file.is_dir():
            found += load(sorted(file.glob("*.json")))
        else:
            found += _read(file)
    return found


def _read(file: Path) -> list[Scenario]:
    content = json.loads(file.read_text(encoding="utf-8"))
    shared = {}
    if "shared" in content:
        shared = json.loads((file.parent / content["shared"]).read_text(encoding="utf-8"))
    return [
        Scenario(
            name=one["name"],
            file=file.name,
            ids=("session", "agent", "executor", *one.get("ids", ())),
            needs=frozenset(one.get("needs", ())),
            steps=tuple(one["steps"]),
            shared=shared,
        )
        for one in content["scenarios"]
    ]
