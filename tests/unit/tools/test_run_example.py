"""What runs the examples of other languages notices one that is wrong."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
EXPECTED = ROOT / "clients" / "examples" / "expected.txt"
ASKS = """
import os
from runlane import sync
with sync.Client(os.environ["RUNLANE_TARGET"]) as client:
    assert client.healthy()
print(open({path!r}).read(), end="")
"""


@pytest.mark.parametrize(
    ("program", "good"),
    [
        (ASKS.format(path=str(EXPECTED)), True),
        ("print('submit: STATE_DELIVERED')", False),
        (ASKS.format(path=str(EXPECTED)) + "raise SystemExit(3)", False),
    ],
    ids=["right", "prints less", "fails"],
)
def test_a_program_must_print_what_is_expected_and_end_well(program, good):
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "run_example.py"), sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode == 0) == good, done.stdout + done.stderr
    assert ("prints what it should" in done.stdout) == good


def test_both_examples_are_told_on_the_page():
    page = (ROOT / "docs" / "other-languages.md").read_text(encoding="utf-8")
    assert EXPECTED.read_text(encoding="utf-8") in page
    for folder in ("java-example", "rust-example"):
        assert (ROOT / "clients" / folder).is_dir()
        assert f"(../clients/{folder}/)" in page
