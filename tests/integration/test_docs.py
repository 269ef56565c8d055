"""The commands of the documents, run against a server as a reader would run them.

A block that is marked `sh run` holds commands; the block after it is what each of them
prints. Commands run in order. Ids, times and tags differ from run to run: the first answer
binds those of the document to those of the server, and from then on they must agree, in
answers and in commands. All else, sequences included, is compared as it stands.
"""

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "127.0.0.1:7480"
SECONDS = 60
WALK_SECONDS = 600  # about a hundred programs are started, one after the other
TOOLS = ("grpcurl", "buf")

FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?=grpcurl |buf curl )", re.MULTILINE)
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
ID = re.compile(r"(?P<kind>[a-z]{3})_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
OPAQUE = {"digest", "externalToken", "nextPageToken", "version"}


@dataclass(frozen=True)
class Step:
    """Commands, each of which prints the answer."""

    commands: tuple[tuple[str, ...], ...]
    answer: str
    is_json: bool

    def tools(self) -> set[str]:
        return {command[0] for command in self.commands}


class Transcript:
    """What a document says, played to a server."""

    def __init__(self, address: str, folder: Path) -> None:
        self._address = address
        self._folder = folder
        self._told: dict[str, str] = {}
        self._real: dict[str, str] = {}

    def play(self, steps: list[Step], tools: set[str]) -> int:
        """Runs the commands of some tools and compares what they print; returns how many."""
        count = 0
        for step in steps:
            replayed = False
            for command in step.commands:
                if command[0] in tools:
                    self._run(step, command, replayed=replayed)
                    replayed = True
                    count += 1
        return count

    def _run(self, step: Step, command: tuple[str, ...], *, replayed: bool) -> None:
        told = [self._insert(part) for part in command]
        done = call(told, self._folder)
        output = done.stdout.strip() or done.stderr.strip()
        shown = f"{shlex.join(told)}\nprints, with exit code {done.returncode}:\n{output}"
        if not step.is_json:
            assert done.returncode == 0, shown
            assert output == step.answer.strip(), shown
            return
        expected = documents(step.answer)
        found = documents(output)
        refused = "code" in expected[0]
        assert (done.returncode != 0) == refused, shown
        if replayed and not refused and '"request_id"' in shlex.join(command):
            # The same request a second time, with the other tool.
            assert found[0].pop("replayed", None) is True, shown
            if found[0].pop("fenceLost", False):
                assert command[-1].endswith("ExecutorService/Commit"), shown
        problem = self.differs(expected, found, "")
        assert problem is None, f"{problem}\n{shown}"

    def _insert(self, part: str) -> str:
        part = part.replace(ADDRESS, self._address)
        # Longest first: a token may hold an id.
        for told in sorted(self._told, key=len, reverse=True):
            part = part.replace(told, self._told[told])
        return part

    def differs(self, told: Any, real: Any, path: str) -> str | None:
        """Returns where an answer is not as told; binds what differs from run to run."""
        if isinstance(told, dict) and isinstance(real, dict):
            if told.keys() != real.keys():
                return f"{path}: has {sorted(real)}, told were {sorted(told)}"
            pairs = [(told[key], real[key], f"{path}.{key}") for key in told]
        elif isinstance(told, list) and isinstance(real, list):
            if len(told) != len(real):
                return f"{path}: has {len(real)} items, told were {len(told)}"
            indexed = enumerate(zip(told, real, strict=True))
            pairs = [(*pair, f"{path}[{index}]") for index, pair in indexed]
        else:
            return self._differs(told, real, path)
        problems = (self.differs(*pair) for pair in pairs)
        return next((problem for problem in problems if problem is not None), None)

    def _differs(self, told: Any, real: Any, path: str) -> str | None:
        if isinstance(told, str) and isinstance(real, str):
            if TIME.fullmatch(told) and TIME.fullmatch(real):
                return None
            was, now = ID.fullmatch(told), ID.fullmatch(real)
            same_kind = was and now and was["kind"] == now["kind"]
            if same_kind or path.rpartition(".")[2] in OPAQUE:
                bound = self._told.setdefault(told, real), self._real.setdefault(real, told)
                if bound == (real, told):
                    return None
                return f"{path}: {real} stands for more than one of those told, or they for it"
        return None if told == real else f"{path}: is {real!r}, told was {told!r}"


def call(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    binary = program(command[0])
    assert binary is not None, f"{command[0]} is not installed"
    return subprocess.run(
        [binary, *command[1:]],
        cwd=folder,
        env={**os.environ, "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def documents(text: str) -> list[Any]:
    """Returns the JSON documents of a text."""
    found = []
    decoder = json.JSONDecoder()
    rest = text.strip()
    while rest:
        document, end = decoder.raw_decode(rest)
        found.append(document)
        rest = rest[end:].strip()
    return found


def blocks(path: Path, info: str | None = None) -> list[tuple[str, str]]:
    """Returns the fenced blocks of a document: what they are marked with, and their text."""
    found = FENCE.finditer(path.read_text(encoding="utf-8"))
    return [(b["info"].strip(), b["body"]) for b in found if info in {None, b["info"].strip()}]


def steps_of(path: Path) -> list[Step]:
    """Returns the commands that a document marks to be run, with their answers."""
    steps = []
    told = blocks(path)
    for index, (info, body) in enumerate(told):
        if info != "sh run":
            continue
        commands = tuple(
            tuple(shlex.split(text.replace("\\\n", " ")))
            for text in COMMAND.split(body)
            if text.strip()
        )
        answer_info, answer = told[index + 1]
        assert answer_info in {"json", "text"}, f"{path.name}: no answer after\n{body}"
        steps.append(Step(commands, answer, answer_info == "json"))
    return steps


@pytest.fixture
def address(tmp_path) -> Iterator[str]:
    with serving(tmp_path) as found:
        yield found


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """A server that keeps nothing, with the settings that the folder has."""
    command = ["serve", "--listen", "127.0.0.1:0", "--store", "memory", "--log-level", "error"]
    with subprocess.Popen(
        [sys.executable, "-m", "runlane_server", *command],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline().strip()
            assert said.startswith("listening on "), said
            yield said.removeprefix("listening on ")
        finally:
            server.terminate()
            server.wait(SECONDS)


def skip_where_missing(tool: str) -> None:
    may_lack = tool == "grpcurl" and platform.machine() not in {"x86_64", "AMD64"}
    if may_lack and program(tool) is None:
        pytest.skip("grpcurl is missing: its package has a binary for x86-64 alone")


WALKS = {
    "walk.md": {
        *("CreateSession", "Submit", "GetLiveState", "StreamEvents", "WithdrawSubmission"),
        *("InterruptRun", "PollActivation", "Commit", "Heartbeat", "WaitRun"),
        *("ListForkPoints", "GetHistoryAtRun", "ForkSession", "ListSessions"),
    },
    "waiting.md": {
        *("Submit", "PollActivation", "Commit", "ListToolCalls", "ListInteractions"),
        *("AnswerInteraction", "CompleteExternal"),
    },
    "children.md": {
        *("Submit", "PollActivation", "Commit", "AnswerInteraction", "InterruptRun"),
        *("ListChildRuns", "StreamModelContext", "GetHistoryAtRun"),
    },
    "recovery.md": {
        *("Submit", "PollActivation", "Commit", "PauseRun", "UnpauseRun"),
        *("RestoreRun", "ListStalledRuns", "SettleRun", "WaitRun"),
    },
}
"""The pages that are walks, and the calls that each must show."""


def steps_of_walk(page: str) -> list[Step]:
    return steps_of(ROOT / "docs" / page)


@pytest.mark.timeout(WALK_SECONDS)
@pytest.mark.parametrize("page", WALKS)
def test_a_page_can_be_walked_with_buf_that_knows_only_the_address(page, address, tmp_path):
    assert Transcript(address, tmp_path).play(steps_of_walk(page), {"buf"}) > 15


@pytest.mark.timeout(WALK_SECONDS)
@pytest.mark.parametrize("page", WALKS)
def test_a_page_can_be_walked_with_grpcurl_and_repeated_with_buf(page, address, tmp_path):
    skip_where_missing("grpcurl")
    assert Transcript(address, tmp_path).play(steps_of_walk(page), set(TOOLS)) > 30


@pytest.mark.parametrize("page", WALKS)
def test_a_walk_says_what_to_put_in_and_how_soon(page):
    told = " ".join((ROOT / "docs" / page).read_text(encoding="utf-8").split())
    told, *_ = told.partition("PollActivation")
    assert "your own" in told
    assert "within 10 s" in told


@pytest.mark.parametrize("page", WALKS)
def test_a_walk_is_not_too_long_to_be_read(page):
    assert len((ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()) < 2000


@pytest.mark.parametrize("page", WALKS)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_walk_shows_what_a_client_needs(tool, page):
    called = {
        part.rpartition("/")[2]
        for step in steps_of_walk(page)
        for command in step.commands
        if command[0] == tool
        for part in command
        if re.search(r"runlane\.v1\.\w+Service/\w+$", part)
    }
    assert called >= WALKS[page]


TEN = [
    *("Health/Check", "list", "SessionService/Submit", "HistoryService/WaitRun"),
    *("SessionService/GetLiveState", "SessionService/Submit", "SessionService/StreamEvents"),
    *("SessionService/InterruptRun", "HistoryService/ListSessions", "HistoryService/ForkSession"),
]
"""What one does first, in this order, each under a heading with its number."""


@pytest.mark.parametrize("tools", [("buf",), TOOLS], ids=["buf", "both"])
def test_the_ten_things_that_one_does_first_go_as_written(tools, tmp_path):
    for tool in tools:
        skip_where_missing(tool)
    page = ROOT / "docs" / "command-line.md"
    [(_, settings)] = blocks(page, "toml")
    (tmp_path / "runlane.toml").write_text(settings, encoding="utf-8")
    with serving(tmp_path) as address:
        assert Transcript(address, tmp_path).play(steps_of(page), set(tools)) > 10 * len(tools)
    parts = re.split(r"^## (?=\d+\. )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert [part.partition(".")[0] for part in parts] == [str(n) for n in range(1, 11)]
    for part, call in zip(parts, TEN, strict=True):
        for tool in TOOLS:
            assert any(line.startswith(tool) for line in part.splitlines()), (
                f"{part.splitlines()[0]}: not with {tool}"
            )
        assert call in part


def test_the_readme_commands_print_what_it_says(address, tmp_path):
    skip_where_missing("grpcurl")
    steps = steps_of(ROOT / "README.md")
    assert Transcript(address, tmp_path).play(steps, set(TOOLS)) == 3


def test_the_readme_programs_run_as_written_and_again(address, tmp_path):
    programs = [body for _, body in blocks(ROOT / "README.md", "python")]
    assert len(programs) == 2
    said = ["hello", "HELLO"]
    for times in (1, 2):
        run_program(programs[0], address, tmp_path, "completed HELLO\n")
        run_program(programs[1], address, tmp_path, f"first {said * times}\n")


@pytest.mark.parametrize("name", ["python.md", "feed.md", "migrating.md"])
def test_the_programs_of_a_page_run_as_written(name, address, tmp_path):
    page = ROOT / "docs" / name
    programs = blocks(page, "python run")
    printed = [body for info, body in blocks(page) if info == "text"]
    assert len(programs) == len(printed) > 0
    for body, expected in zip(programs, printed, strict=True):
        run_program(body[1], address, tmp_path, expected)


def test_the_programs_of_the_executors_page_run_as_written(address, tmp_path):
    """The first one serves an agent until it is told to stop; the others print and end."""
    page = ROOT / "docs" / "executors.md"
    program_text, *others = [body for _, body in blocks(page, "python run")]
    assert len(others) == 2
    told = blocks(page)
    for body in others:
        info, printed = told[told.index(("python run", body)) + 1]
        assert info == "text"
        run_program(body, address, tmp_path, printed)
    with subprocess.Popen(
        [sys.executable, "-c", program_text.replace(ADDRESS, address)],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as executor:
        try:
            asked = (
                "import asyncio, runlane\n"
                "async def main():\n"
                f"    async with runlane.Client({address!r}) as client:\n"
                "        options = runlane.RunOptions(agent='countdown')\n"
                "        for text in ['3', 'none']:\n"
                "            result = await client.start(text, options=options)\n"
                "            reason = result.failure and result.failure.reason\n"
                "            print(result.stop_reason, result.text, reason)\n"
                "asyncio.run(main())\n"
            )
            expected = "completed 3 2 1 None\nfailed  model_refused\n"
            run_program(asked, address, tmp_path, expected)
        finally:
            executor.terminate()
        _, errors = executor.communicate(timeout=SECONDS)
    assert executor.returncode == 0, errors
    assert errors == ""


def run_program(text: str, address: str, folder: Path, expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", text.replace(ADDRESS, address)],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == expected


def test_the_comparison_finds_what_is_wrong():
    transcript = Transcript("", Path())
    first = "run_00000000-0000-0000-0000-000000000001"
    other = "run_00000000-0000-0000-0000-000000000002"
    act = "act_00000000-0000-0000-0000-000000000003"
    assert transcript.differs({"a": first}, {"a": other}, "") is None
    assert transcript.differs([first], [first], "") is not None
    assert transcript.differs([act], [other], "") is not None
    assert transcript.differs(other, other, "") is not None
    assert transcript.differs({"sequence": "4"}, {"sequence": "5"}, "") is not None
    assert transcript.differs({"a": 1}, {"a": 1, "b": 2}, "") is not None
    assert transcript.differs([1], [1, 1], "") is not None
    assert transcript.differs("2026-01-01T00:00:00Z", "soon", "") is not None
    assert transcript.differs("2026-01-01T00:00:00Z", "2027-01-01T00:00:00.5Z", "") is None
