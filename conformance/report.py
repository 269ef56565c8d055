"""Tells what came of scenarios: a table, and JUnit's XML."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one scenario.

    Attributes:
        name: Its name.
        file: Where it stands.
        seconds: How long it took.
        failure: What was wrong; empty: nothing.
        skipped: Why it was not played; empty: it was.
    """

    name: str
    file: str
    seconds: float
    failure: str = ""
    skipped: str = ""

    @property
    def word(self) -> str:
        """What came of it, in a word."""
        return "FAILED" if self.failure else "skipped" if self.skipped else "ok"


def table(results: Sequence[Result]) -> str:
    """Returns the results as lines, failures told below."""
    width = max((len(one.name) for one in results), default=0)
    lines = [f"{one.word:<8}{one.name:<{width}}  {one.seconds:6.2f} s" for one in results]
    for one in results:
        if one.failure:
            lines += ["", f"{one.name} ({one.file})", f"  {one.failure}"]
    words = [one.word for one in results]
    counted = f"{words.count('ok')} ok, {words.count('FAILED')} failed"
    return "\n".join([*lines, "", f"{counted}, {words.count('skipped')} skipped"])


def write_junit(path: Path, results: Sequence[Result], suite: str) -> None:
    """Writes the results as JUnit's XML."""
    root = ET.Element(
        "testsuite",
        name=suite,
        tests=str(len(results)),
        failures=str(sum(one.word == "FAILED" for one in results)),
        skipped=str(sum(one.word == "skipped" for one in results)),
    )
    for one in results:
        case = ET.SubElement(
            root, "testcase", classname=one.file, name=one.name, time=f"{one.seconds:.3f}"
        )
        if one.failure:
            ET.SubElement(case, "failure", message=one.failure[:200]).text = one.failure
        if one.skipped:
            ET.SubElement(case, "skipped", message=one.skipped)
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)
