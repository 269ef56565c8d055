"""What a batch writes, in as few statements as its rows allow.

Each row is a step of a kind. Steps of all kinds that do not stand on one another are one
level, and a level is one statement: a common table expression for each of its kinds,
over arrays. All parts of one statement see the same snapshot, so a step that reads what
another one writes comes a level later, and one that writes what another one reads may
share its level.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter, itemgetter
from typing import Any

import asyncpg

from runlane_server.store.postgres.connect import Conn


class BadRow(Exception):  # noqa: N818 - named for what it is about
    """A row does not fit what is stored."""


class Raced(Exception):  # noqa: N818 - named for what happened
    """Somebody else has written, since it was looked up, what was to be written."""


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Steps that one expression does.

    Attributes:
        columns: Names and types of a step's values.
        sql: Writes them; `{u}` stands for the steps, as a table `u` of the columns.
        wanted: What must have hit one row a step, in words; empty: nothing.
        raced: A step that hits nothing has lost a race, and is no bad row.
        ordered: Leading columns that the steps are in the order of. So two servers that write
            the same rows, which no session's lock guards, do not wait for each other.
        number: Its place in a statement.
    """

    columns: tuple[tuple[str, str], ...]
    sql: str
    wanted: str = ""
    raced: bool = False
    ordered: int = 0
    number: int = field(default_factory=count().__next__)

    def expression(self, first: int) -> str:
        """Returns the SQL with its parameters numbered from `first` on."""
        names = ", ".join(name for name, _ in self.columns)
        arrays = ", ".join(
            f"${number}::{kind}[]" for number, (_, kind) in enumerate(self.columns, first)
        )
        sql = self.sql.replace("{u}", f"unnest({arrays}) AS u({names})")
        return f"{sql} RETURNING 1" if self.wanted else sql


def columns(text: str) -> tuple[tuple[str, str], ...]:
    """Reads columns: names, each with its type; a name without one has that before it."""
    found: list[tuple[str, str]] = []
    waiting: list[str] = []
    for part in text.split(","):
        name, _, kind = part.strip().partition(" ")
        waiting.append(name)
        if kind:
            found += [(one, kind) for one in waiting]
            waiting.clear()
    assert not waiting, "the last one has its type"  # noqa: S101 - constants
    return tuple(found)


Key = Hashable
_number = attrgetter("number")
_statements: dict[tuple[Kind, ...], str] = {}


def _statement(kinds: tuple[Kind, ...]) -> str:
    known = _statements.get(kinds)
    if known is not None:
        return known
    parts, counts, first = [], [], 1
    for number, kind in enumerate(kinds):
        parts.append(f"w{number} AS ({kind.expression(first)})")
        counts.append(f"(SELECT count(*) FROM w{number})" if kind.wanted else "0")  # noqa: S608 - constants
        first += len(kind.columns)
    made = f"WITH {', '.join(parts)} SELECT {', '.join(counts)}"
    _statements[kinds] = made
    return made


class Plan:
    """The steps of one batch, by level."""

    __slots__ = ("_floor", "_levels", "_read", "_written")

    def __init__(self) -> None:
        self._levels: list[dict[Kind, list[tuple[Any, ...]]]] = []
        self._floor = 0
        self._written: dict[Key, int] = {}
        self._read: dict[Key, int] = {}

    def add(
        self,
        kind: Kind,
        values: tuple[Any, ...],
        writes: Sequence[Key] = (),
        reads: Sequence[Key] = (),
    ) -> None:
        """Adds a step behind all that it stands on.

        Args:
            kind: What it does.
            values: Of the columns of its kind.
            writes: Names what it writes; steps that write the same follow one another.
            reads: Names what it reads.
        """
        level, written, read = self._floor, self._written, self._read
        for one in reads:
            level = max(level, written.get(one, -1) + 1)
        for one in writes:
            level = max(level, written.get(one, -1) + 1, read.get(one, 0))
        for one in writes:
            written[one] = level
        for one in reads:
            read[one] = max(level, read.get(one, 0))
        self.put(level, kind, values)

    def put(self, level: int, kind: Kind, values: tuple[Any, ...]) -> None:
        """Adds a step to a level."""
        levels = self._levels
        while len(levels) <= level:
            levels.append({})
        levels[level].setdefault(kind, []).append(values)

    def mark(self, what: Key) -> None:
        """Says that the first level writes something."""
        self._written.setdefault(what, 0)

    def bar(self) -> None:
        """Lets all that is added from now on stand on all that was added before.

        Also on the first level, where there is nothing yet: what is marked comes there.
        """
        self._floor = max(1, len(self._levels))

    async def run(self, conn: Conn) -> None:
        """Writes all of it.

        Raises:
            BadRow: A step has not hit its row.
            Raced: So has one that only loses against another server.
        """
        for level in filter(None, self._levels):
            # In one order, so that the same mixture is the same prepared statement.
            kinds = tuple(sorted(level, key=_number))
            values: list[list[Any]] = []
            for kind in kinds:
                steps = level[kind]
                if kind.ordered:
                    steps.sort(key=itemgetter(*range(kind.ordered)))
                values += map(list, zip(*steps, strict=True))
            try:
                counts = await conn.fetchrow(_statement(kinds), *values)
            except asyncpg.CardinalityViolationError as error:
                raise BadRow(str(error)) from error
            for kind, hits in zip(kinds, counts, strict=True):
                if kind.wanted and hits != len(level[kind]):
                    if kind.raced:
                        raise Raced(kind.wanted)
                    raise BadRow(f"{kind.wanted}: {hits} of {len(level[kind])} rows were written")
