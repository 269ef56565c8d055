"""The terminal, as processes against a real server process."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
from runlane import TransportError
from runlane_server.cli import _reach
from runlane_server.cli._app import app
from runlane_server.cli._client import unanswered
from typer.testing import CliRunner

SECONDS = 60
CONFIG = """
store = "sqlite:data.db"
default_agent = "echo"

[[agent]]
name = "echo"
[agent.model]
kind = "scripted"
script = [{match = "hold", answer = "never", delay_seconds = 3600}, {answer = "You said: {input}"}]

[[agent]]
name = "broken"
[agent.model]
kind = "openai"
name = "some-model"
base_url = "http://127.0.0.1:1/v1"
"""


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RUNLANE_")}
    return {**kept, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "TERM": "dumb", **variables}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "runlane_server", *arguments]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@dataclass
class Server:
    process: subprocess.Popen
    address: str
    folder: Path

    def call(self, *arguments: str, given: str | None = None) -> Done:
        """Runs a client command in this process: starting one takes longer than the command."""
        result = CliRunner().invoke(
            app, arguments, input=given, env={"RUNLANE_TARGET": self.address}
        )
        return Done(result.exit_code, result.stdout, result.stderr)

    def call_process(self, *arguments: str, given: str) -> Done:
        return run(self.folder, *arguments, given=given, RUNLANE_TARGET=self.address)

    def good(self, *arguments: str, given: str | None = None) -> str:
        done = self.call(*arguments, given=given)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    def json(self, *arguments: str) -> dict:
        return json.loads(self.good(*arguments, "--json"))

    def bad(self, *arguments: str, code: int = 1) -> str:
        done = self.call(*arguments)
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr
        return done.stderr


def run(folder: Path, *arguments: str, given: str = "", **variables: str) -> Done:
    done = subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment(**variables),
        input=given,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "runlane.toml").write_text(CONFIG)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command("serve", "--listen", "127.0.0.1:0"),
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    said = process.stdout.readline()
    match = re.fullmatch(r"listening on (127\.0\.0\.1:[1-9][0-9]*)\n", said)
    assert match, (folder / "log").read_text()
    yield Server(process, match[1], folder)
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, (folder / "log").read_text()
    assert rest == ""


def one_line(text: str) -> str:
    assert text.endswith("\n")
    assert text.count("\n") == 1, text
    return text.rstrip("\n")


def test_version_and_help(tmp_path):
    assert run(tmp_path, "--version").stdout == f"runlane {version('runlane')}\n"
    told = CliRunner().invoke(app, ["--help"]).stdout
    for name in ("serve", "demo", "sessions", "runs", "tail", "submit", "interrupt", "withdraw"):
        assert name in told
    for name in ("fork", "chat", "db"):
        assert name in told
    told = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "120"}).stdout
    assert "--insecure-listen" in told
    assert "sqlite:runlane.db" in told


def test_usage_errors_are_2(server):
    assert server.call("no-such-command").returncode == 2
    assert server.call("runs").returncode == 2
    assert server.call("runs", "s", "--limit", "0").returncode == 2


def test_no_server(tmp_path):
    done = run(tmp_path, "sessions", "--target", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stdout == ""
    text = one_line(done.stderr)
    assert "127.0.0.1:1" in text
    assert "runlane serve" in text


@pytest.mark.parametrize(
    ("target", "here"),
    [
        ("127.0.0.1:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/tmp/none", True),
        ("10.0.0.1:7480", False),
        ("agents.example:7480", False),
        ("[2001:db8::1]:7480", False),
    ],
)
def test_only_where_a_server_can_be_started_the_hint_says_how(target, here, monkeypatch):
    monkeypatch.setattr(_reach, "_listens", lambda _address: False)
    error = TransportError(grpc.StatusCode.UNAVAILABLE, "refused")
    told = unanswered(target, error)
    assert f"no server answers at {target}" in told
    assert (f"--listen {target}" in told) == here
    assert "--target" in told


def test_settings_that_are_wrong(tmp_path):
    done = run(tmp_path, "serve", "--listen", "0.0.0.0:0", "--store", "memory")
    assert done.returncode == 2
    assert "--insecure-listen" in one_line(done.stderr)
    (tmp_path / "x.toml").write_text("stroe = 1")
    done = run(tmp_path, "serve", "--config", "x.toml")
    assert done.returncode == 2
    assert "x.toml: stroe" in one_line(done.stderr)


def test_an_address_that_is_taken(server):
    done = run(server.folder, "serve", "--listen", server.address, "--store", "memory")
    assert done.returncode == 1
    assert server.address in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_store_that_is_taken(server):
    done = run(server.folder, "serve", "--listen", "127.0.0.1:0")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "in use" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_submit_and_look(server):
    assert server.good("submit", "talk", "hello", "--wait") == "You said: hello\n"
    assert server.good("submit", "talk", "-", "--wait", given="from a pipe") == (
        "You said: from a pipe\n"
    )
    receipt = server.json("submit", "talk", "third", "--mode", "queue")
    assert (receipt["session_id"], receipt["mode"]) == ("talk", "queue")
    told = server.json("submit", "talk", "fourth", "--mode", "queue", "--wait")
    assert told["run"]["stop_reason"] == "completed"
    assert told["output"]["content"][0]["text"] == "You said: fourth"

    runs = server.json("runs", "talk")
    assert [item["input_preview"] for item in runs["items"]] == [
        "hello",
        "from a pipe",
        "third",
        "fourth",
    ]
    page = server.json("runs", "talk", "--limit", "3")
    rest = server.json("runs", "talk", "--limit", "3", "--after", page["next_cursor"])
    assert len(page["items"]) == 3
    assert len(rest["items"]) == 1
    assert rest["next_cursor"] is None
    table = server.good("runs", "talk")
    assert all(item["run_id"] in table for item in runs["items"])
    assert "more: --after" in server.good("runs", "talk", "--limit", "3")

    sessions = server.json("sessions")
    assert "talk" in [item["session_id"] for item in sessions["items"]]
    assert "talk" in server.good("sessions")
    assert server.json("sessions", "--label", "no=such")["items"] == []


def test_a_request_id_submits_once(server):
    first = server.json("submit", "once", "hello", "--request-id", "r-1")
    again = server.json("submit", "once", "hello", "--request-id", "r-1")
    assert again["run_id"] == first["run_id"]
    assert again["replayed"]


def test_a_run_that_fails(server):
    done = server.call("submit", "sad", "hello", "--agent", "broken", "--wait")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "model_unavailable" in one_line(done.stderr)


def test_refusals_are_one_line(server):
    assert "SESSION_NOT_FOUND" in one_line(server.bad("runs", "nobody"))
    assert "SESSION_NOT_FOUND" in one_line(server.bad("tail", "nobody"))
    assert "SUBMISSION_NOT_FOUND" in one_line(server.bad("withdraw", "nothing"))
    assert "RUN_NOT_FOUND" in one_line(server.bad("fork", "nothing"))
    assert "INPUT_EMPTY" in one_line(server.bad("submit", "empty", " "))
    assert "steer" in one_line(server.bad("submit", "x", "hi", "--mode", "stir", code=2))
    assert "KEY=VALUE" in one_line(server.bad("sessions", "--label", "x", code=2))


def test_interrupt_and_withdraw(server):
    started = server.json("submit", "held", "hold this")
    queued = server.json("submit", "held", "later", "--mode", "follow_up")
    assert server.json("withdraw", queued["submission_id"])["state"] == "withdrawn"
    answer = server.json("interrupt", "held", "--wait-seconds", "30", "--reason", "enough")
    assert answer["settled"]
    assert answer["run"]["run_id"] == started["run_id"]
    assert answer["run"]["stop_reason"] == "cancelled"
    assert "SESSION_IDLE" in one_line(server.bad("interrupt", "held"))


def test_wait_has_an_end(server):
    told = server.bad("submit", "slow", "hold this", "--wait-seconds", "0.2")
    assert "has not stopped" in one_line(told)
    server.good("interrupt", "slow", "--wait-seconds", "30")


def test_fork(server):
    told = server.json("submit", "root", "hello", "--wait")
    source = told["run"]["run_id"]
    branch = server.json("fork", source, "--session-id", "branch", "--input", "go on")
    assert branch["session"]["session_id"] == "branch"
    assert branch["forked_from_run_id"] == source
    assert branch["message_count"] == 2
    assert branch["submission"]["state"] == "delivered"
    assert source in server.good("fork", source)


def test_tail(server):
    server.good("submit", "watched", "hello", "--wait")
    lines = server.good("tail", "watched", "--no-follow", "--json").splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["kind"] == "session.created"
    assert events[-1]["kind"] == "run.terminal"
    after = server.good("tail", "watched", "--no-follow", "--json", "--after", "3").splitlines()
    assert after == lines[3:]
    plain = server.good("tail", "watched", "--no-follow")
    assert len(plain.splitlines()) == len(events)
    # Below each other, and with room between: number, day, time, kind, and what there is to it.
    rows = [re.split(r"  +", row.strip()) for row in plain.splitlines()]
    assert [row[2] for row in rows] == [event["kind"] for event in events]
    assert all(row == row.rstrip() for row in plain.splitlines())
    assert "You said: hello" in plain


def test_tail_follows_until_it_is_interrupted(server):
    server.good("submit", "followed", "one", "--wait")
    tail = subprocess.Popen(
        command("tail", "followed", "--json"),
        env=environment(RUNLANE_TARGET=server.address),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ends = 0
    for line in tail.stdout:
        if json.loads(line)["kind"] == "run.terminal":
            ends += 1
            if ends == 2:
                break
            server.good("submit", "followed", "two", "--wait")
    tail.send_signal(signal.SIGINT)
    _, errors = tail.communicate(timeout=SECONDS)
    assert tail.returncode == 130
    assert errors == ""


def test_chat_in_a_pipe(server):
    done = server.call_process("chat", "piped", given="one\n\ntwo\nthree")
    assert done == (0, "You said: one\nYou said: two\nYou said: three\n", "")
    done = server.call_process("chat", "piped", "--json", given="four\n")
    assert json.loads(done.stdout)["output"]["content"][0]["text"] == "You said: four"
    done = server.call_process("chat", "piped", "--agent", "broken", given="five\n")
    assert done.returncode == 1
    assert "model_unavailable" in done.stderr


class Terminal:
    """A terminal with `runlane chat` at it."""

    def __init__(self, server: Server, *arguments: str) -> None:
        self._descriptor, other = pty.openpty()
        self.process = subprocess.Popen(
            command("chat", *arguments),
            env=environment(RUNLANE_TARGET=server.address),
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            # So that Ctrl-C at it is heard by what was started here.
            preexec_fn=_take_terminal,  # noqa: PLW1509 - no threads run here
        )
        os.close(other)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def see(self, text: str) -> None:
        """Waits until a text has been shown since it was last waited for one."""
        end = time.monotonic() + SECONDS
        while text not in self.shown:
            left = end - time.monotonic()
            ready, _, _ = select.select([self._descriptor], [], [], max(left, 0))
            assert ready, f"{text!r} is not in {self.shown!r}"
            self.shown += os.read(self._descriptor, 65536).decode()
        self.shown = self.shown.partition(text)[2]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._descriptor)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(server) -> Iterator[Terminal]:
    server.good("submit", "live", "earlier", "--mode", "queue", "--wait")
    opened = Terminal(server, "live")
    yield opened
    opened.close()


def test_chat_at_a_terminal(server, terminal):
    terminal.see("> earlier")
    terminal.see("You said: earlier")
    terminal.see("Ctrl-D leaves")
    terminal.type("hello\n")
    terminal.see("You said: hello")

    # What others say in the session is shown too.
    server.good("submit", "live", "from elsewhere", "--mode", "queue", "--wait")
    terminal.see("> from elsewhere")
    terminal.see("You said: from elsewhere")

    terminal.type("\x03")
    terminal.see("nothing runs")
    terminal.type("hold this\n")
    terminal.type("steered\n")
    terminal.see("steers the run")
    terminal.type("\x03")
    terminal.see("interrupting")
    terminal.see("cancelled")
    # The steer missed its run and became the next one.
    terminal.see("You said: steered")
    terminal.type("\x04")
    assert terminal.process.wait(timeout=SECONDS) == 0


def test_db_check(server, tmp_path):
    text = one_line(server.bad("db", "check", str(server.folder / "data.db")))
    assert "in use" in text
    assert "no such file" in one_line(run(tmp_path, "db", "check", "none.db").stderr)
    (tmp_path / "other.db").write_bytes(b"no database at all" * 100)
    done = run(tmp_path, "db", "check", "other.db")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_db_check_of_a_store_that_is_free(tmp_path):
    process = subprocess.Popen(
        command("serve", "--listen", f"unix:{tmp_path}/s", "--store", f"sqlite:{tmp_path}/x.db"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == f"listening on unix:{tmp_path}/s\n"
    free = run(tmp_path, "sessions", "--json", RUNLANE_TARGET=f"unix:{tmp_path}/s")
    assert json.loads(free.stdout) == {"items": [], "next_cursor": None}
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    before = {path.name for path in tmp_path.iterdir()}
    done = run(tmp_path, "db", "check", "x.db")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert {path.name for path in tmp_path.iterdir()} == before, "SQLite's files beside it are gone"
    done = run(tmp_path, "doctor", "--store", "sqlite:x.db")
    assert done.returncode == 0, done.stdout
    run(tmp_path, "db", "backup", "x.db", "copy.db")
    assert {path.name for path in tmp_path.iterdir()} == {*before, "copy.db"}


def test_logs_as_json_on_stderr(tmp_path):
    process = subprocess.Popen(
        command("serve", "--listen", f"unix:{tmp_path}/s", "--store", "memory"),
        env=environment(RUNLANE_LOG_FORMAT="json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    rest, logged = process.communicate(timeout=SECONDS)
    assert rest == ""
    lines = [json.loads(line) for line in logged.splitlines()]
    assert any(line["event"] == "draining" for line in lines)
    started = lines[0]
    assert (started["event"], started["version"]) == ("started", version("runlane"))
    assert (started["store"], started["store_epoch"]) == ("memory", 1)
    assert (started["auth"], started["tls"]) == ("none", "off")
    assert lines[-1]["event"] == "stopped"


def test_a_run_that_is_held_is_given_back_when_the_server_stops(tmp_path):
    (tmp_path / "runlane.toml").write_text(CONFIG)
    address = f"unix:{tmp_path}/s"
    arguments = command("serve", "--listen", address)
    options = {"cwd": tmp_path, "env": environment(), "text": True, "stderr": subprocess.PIPE}
    first = subprocess.Popen(arguments, stdout=subprocess.PIPE, **options)
    assert first.stdout.readline()
    server = Server(first, address, tmp_path)
    server.good("submit", "s", "hold this")
    tail = subprocess.Popen(
        command("tail", "s", "--json", "--target", address), stdout=subprocess.PIPE, **options
    )
    kinds = (json.loads(line)["kind"] for line in tail.stdout)
    assert "model_step.reserved" in kinds
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=SECONDS)
    assert first.returncode == 0

    second = subprocess.Popen(arguments, stdout=subprocess.PIPE, **options)
    assert second.stdout.readline()
    # It is leased again at once: no lease had to run out.
    assert "activation.ended" in kinds
    assert "activation.leased" in kinds
    tail.kill()
    tail.communicate(timeout=SECONDS)
    interrupted = server.json("interrupt", "s", "--wait-seconds", "30")
    assert interrupted["run"]["attempt"] == 2
    assert interrupted["run"]["stop_reason"] == "cancelled"
    second.send_signal(signal.SIGTERM)
    second.communicate(timeout=SECONDS)
    assert second.returncode == 0
