"""What is printed: a line for each piece of work, with its floor, figure, ratio and target."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

HEAD = ("work", "floor", "figure", "unit", "ratio", "target", "p50 ms", "p99 ms", "note")


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@dataclass(slots=True)
class Line:
    """One line of the table; None: does not apply.

    Attributes:
        bound: The target of the ratio, or of the figure where there is no floor.
        at_most: Whether the target is an upper bound.
        p50: Of the figure's calls, in milliseconds; as is p99.
    """

    work: str
    unit: str
    figure: float | None
    floor: float | None = None
    ratio: float | None = None
    bound: float | None = None
    at_most: bool = False
    p50: float | None = None
    p99: float | None = None
    note: str = ""

    @property
    def missed(self) -> bool:
        value = self.figure if self.ratio is None else self.ratio
        if value is None or self.bound is None:
            return False
        return value > self.bound if self.at_most else value < self.bound


def line(
    work: str,
    unit: str,
    rounds: Sequence[tuple[float, float]],
    *,
    bound: float | None = None,
    at_most: bool = False,
    seconds: Sequence[float] = (),
    note: str = "",
) -> Line:
    """Makes a line of (floor, figure) of each round: medians, also of the ratio.

    `seconds` are how long the figure's calls took.
    """
    return Line(
        work,
        unit,
        statistics.median(figure for _, figure in rounds),
        statistics.median(floor for floor, _ in rounds),
        statistics.median(figure / floor for floor, figure in rounds),
        bound,
        at_most,
        percentile(seconds, 0.5) * 1000 if seconds else None,
        percentile(seconds, 0.99) * 1000 if seconds else None,
        note,
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _target(one: Line) -> str:
    if one.bound is None:
        return "-"
    sign = "<=" if one.at_most else ">="
    return f"{sign} {one.bound:g}{'  missed' if one.missed else ''}"


def table(lines: Sequence[Line]) -> str:
    rows = [HEAD]
    rows += [
        (
            one.work,
            _number(one.floor),
            _number(one.figure),
            one.unit,
            _number(one.ratio),
            _target(one),
            _number(one.p50),
            _number(one.p99),
            one.note,
        )
        for one in lines
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    numbers = {1, 2, 4, 6, 7}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def as_json(lines: Sequence[Line]) -> str:
    return json.dumps([{**asdict(one), "missed": one.missed} for one in lines], indent=2)
