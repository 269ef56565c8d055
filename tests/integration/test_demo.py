"""The demo, as a newcomer runs it: a process, its lines, and nothing left behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "session_demo.py"
SECONDS = 90

LINES = [
    r"delivered pending pending",
    r"steer pending",
    r"follow_up pending",
    r"steer delivered",
    r"follow_up delivered",
    r"fork points: 2",
    r"first run: (?P<messages>\[.*\])",
    r"branch: completed",
    r"branch source: run_[0-9a-f-]{36}",
    r"after a kill: follow_up delivered",
]


def start(folder: Path, command: list[str], **variables: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1", **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )


def left_behind(folder: Path) -> list[str]:
    """Names files in the demo's place for temporary ones, and processes that know of it."""
    left = [path.name for path in folder.iterdir()]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes()
        except OSError:
            continue  # it has ended
        if str(folder).encode() in command:
            left.append(command.decode().replace("\0", " "))
    return left


def matched(output: str) -> list[re.Match]:
    """Returns the expected lines as they were found, in order."""
    found = []
    rest = iter(output.splitlines())
    for expected in LINES:
        for line in rest:
            if match := re.fullmatch(expected, line):
                found.append(match)
                break
        else:
            raise AssertionError(f"no line {expected!r} after {len(found)} others in:\n{output}")
    return found


@pytest.mark.parametrize(
    "command", [[str(DEMO)], ["-m", "runlane_server", "demo"]], ids=["example", "runlane demo"]
)
def test_the_demo_tells_its_story_and_leaves_nothing(tmp_path, command):
    process = start(tmp_path, command)
    output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    assert errors == ""
    messages = next(match for match in matched(output) if "messages" in match.re.groupindex)
    answer = "这一步已完成。"
    assert messages["messages"] == repr(["先分析报告", answer, "重点看成本", answer])
    assert left_behind(tmp_path) == []


def test_an_interrupted_demo_leaves_nothing(tmp_path):
    process = start(tmp_path, [str(DEMO)])
    first = process.stdout.readline()
    assert first
    assert len(left_behind(tmp_path)) > 1
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert left_behind(tmp_path) == []


def test_a_server_that_does_not_start_is_shown(tmp_path):
    package = tmp_path / "broken" / "runlane_server"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("raise SystemExit('the reason is this')")
    folder = tmp_path / "tmp"
    folder.mkdir()
    process = start(folder, [str(DEMO)], PYTHONPATH=str(package.parent))
    output, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert output == ""
    assert "the server did not start" in errors
    assert "the reason is this" in errors
    assert "Traceback" not in errors
    assert left_behind(folder) == []
