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
