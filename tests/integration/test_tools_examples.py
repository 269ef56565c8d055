"""The examples of runs that wait, as a newcomer runs them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def say(name: str, address: str) -> list[str]:
    done = run(EXAMPLES / name, address)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_approval_flow(shared):
    assert say("approval_flow.py", shared.address) == [
        "the run is waiting and no executor is there",
        'asks: pay({"to": "Ann", "amount": 900}) pay({"to": "Bob", "amount": 5})',
        "answer: ok: paid 900 to Ann; rejected: no bets",
    ]


def test_crash_and_recover(shared):
    assert [line.rstrip() for line in say("crash_and_recover.py", shared.address)] == [
        "died in a tool that may run twice",
        "its run ended completed the tool gave 'a result'",
        "died in a tool that must not run twice",
        "its run ended outcome_unknown",
    ]


def test_child_run(shared):
    assert say("child_run.py", shared.address) == [
        "answer: The soup is good. The cake is good.",
        "child run: taster completed: How is the soup?",
        "child run: taster completed: How is the cake?",
    ]


@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_help_says_what_it_is(program):
    done = run(program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    summary = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))).splitlines()[0]
    assert summary in done.stdout
