"""A client whose tools are missing is named, and where all are required that is a failure."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOOLS = {"go": "go", "typescript": "npm", "java": "mvn", "rust": "cargo"}


def _make(*arguments: str, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs make where no program is found but by its path; the environment stays as it is."""
    make = shutil.which("make")
    assert make is not None
    left = {"CI", "CLIENTS_REQUIRED", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    kept = {key: value for key, value in os.environ.items() if key not in left}
    return subprocess.run(
        (make, "--no-print-directory", "-o", ".venv/.run", "-o", ".venv/.dev", *arguments),
        cwd=ROOT,
        env=kept | {"PATH": str(path)} | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("language", TOOLS)
def test_a_client_without_its_tools_is_named(language: str, tmp_path: Path) -> None:
    done = _make(f"test-{language}", path=tmp_path)
    assert done.stdout.startswith(f"skipped: no {TOOLS[language]}"), done
    assert done.returncode == 0, done


@pytest.mark.parametrize("variable", ["CI", "CLIENTS_REQUIRED"])
@pytest.mark.parametrize("language", TOOLS)
def test_a_client_without_its_tools_fails_where_all_are_required(
    language: str, variable: str, tmp_path: Path
) -> None:
    done = _make(f"test-{language}", path=tmp_path, **{variable: "true"})
    assert done.stdout.startswith(f"skipped: no {TOOLS[language]}"), done
    assert done.returncode != 0, done


def test_all_tests_end_with_those_of_the_clients(tmp_path: Path) -> None:
    done = _make("-n", "test", path=tmp_path)
    # A line that calls make itself is run all the same, and says what it skips.
    for told in ("skipped: no go", "skipped: no npm", "command -v mvn", "command -v cargo"):
        assert told in done.stdout, done
    assert done.returncode == 0, done
