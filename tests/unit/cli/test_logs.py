"""What a log line holds, and what it never does."""

import subprocess
import sys

import pytest

PROGRAM = """
import logging, sys, structlog
from runlane_server.cli import _logs
from runlane_server.settings import Settings
_logs.configure(Settings(log_format=sys.argv[1]))
def work():
    token = "a-secret-in-a-local"
    raise ValueError("plain")
try:
    work()
except ValueError:
    structlog.get_logger().exception("ours")
    logging.getLogger("theirs").exception("theirs")
"""


@pytest.mark.parametrize("kind", ["json", "console"])
def test_a_traceback_shows_no_locals(kind):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind], capture_output=True, text=True, check=True
    )
    assert "ours" in done.stderr
    assert "theirs" in done.stderr
    assert "ValueError" in done.stderr
    assert "a-secret-in-a-local" not in done.stderr.replace('token = "a-secret-in-a-local"', "")


LEVELS = """
import logging, sys, structlog
from runlane_server.cli import _logs
from runlane_server.settings import Settings
_logs.configure(Settings(log_level=sys.argv[1]))
for level in ("debug", "info", "warning", "error"):
    for name in ("runlane.executor", "theirs"):
        logging.getLogger(name).log(logging.getLevelName(level.upper()), f"{name}-{level}")
    getattr(structlog.get_logger(), level)(f"ours-{level}")
"""


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error"])
def test_what_is_ours_keeps_to_the_level_that_is_set(level):
    done = subprocess.run(
        [sys.executable, "-c", LEVELS, level], capture_output=True, text=True, check=True
    )
    names = ("debug", "info", "warning", "error")
    shown = set(names[names.index(level) :])
    for name in names:
        assert (f"ours-{name}" in done.stderr) == (name in shown)
        assert (f"runlane.executor-{name}" in done.stderr) == (name in shown)
        # Of others what is below a warning is noise.
        loud = name in shown - {"debug", "info"}
        assert (f"theirs-{name}" in done.stderr) == loud
