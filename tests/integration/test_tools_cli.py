"""The terminal where runs ask, wait and are paused."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_cli import SECONDS, Server, Terminal, command, environment, one_line

pytest.importorskip("mcp")
PROGRAM = Path(__file__).with_name("tools_mcp_server.py")
CONFIG = f"""
store = "memory"
default_agent = "helper"

[[agent]]
name = "helper"
ask_question = true
[agent.model]
kind = "scripted"
script = [
    {{match = "hold", answer = "never", delay_seconds = 3600}},
    {{match = "add", answer = [
        {{tool = "add", arguments = {{a = 1, b = 2}}}},
        {{tool = "add", arguments = {{a = 3, b = 4}}}},
    ], then = "added: {{result}}"}},
    {{match = "ask", answer = {{tool = "ask_question", arguments = {{question = "Which one?", options = ["red", "blue"]}}}}, then = "so it is {{result}}"}},
    {{answer = "You said: {{input}}"}},
]
[[agent.mcp]]
command = ["{sys.executable}", "{PROGRAM}", "stdio"]
policy = "ask"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("helper")
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
    process.communicate(timeout=SECONDS)
    assert process.returncode == 0, (folder / "log").read_text()


def test_a_question_is_listed_and_answered(server):
    told = one_line(server.bad("submit", "quiz", "ask me", "--wait"))
    assert "waits for an answer" in told
    interaction = re.search(r"`runlane answer (int_\S+)`", told)[1]
    shown = server.good("inbox", "--session", "quiz")
    assert interaction in shown
    assert "Which one?" in shown
    assert "- blue" in shown
    (item,) = server.json("inbox", "--session", "quiz")["items"]
    assert (item["kind"], item["session_id"]) == ("question", "quiz")
    assert "a text" in server.bad("answer", interaction, code=2)
    assert "a text" in server.bad("answer", interaction, "red", "--approve", code=2)
    for option in ("--but", "--reason"):
        told = server.bad("answer", interaction, "red", option, "x", code=2)
        assert f"{option} goes with --approve" in told
    assert "this is a question" in one_line(server.bad("answer", "quiz", "--approve", code=2))
    assert "ask" in server.good("runs", "quiz")
    assert server.good("answer", interaction, "blue", "--wait") == "so it is blue\n"
    assert server.good("inbox", "--session", "quiz") == ""
    assert "nothing waits" in one_line(server.bad("answer", "quiz", "red"))
    assert "interaction.answered" in server.good("tail", "quiz", "--no-follow")


def test_calls_are_approved_and_rejected(server):
    run_id = server.json("submit", "sums", "add them")["run_id"]
    done = server.call("submit", "sums", "never", "--mode", "start")
    assert done.returncode == 1
    shown = ""
    while "add" not in shown:
        shown = server.good("inbox", "--session", "sums")
    assert 'add {"a": 3, "b": 4}' in shown
    assert one_line(server.bad("answer", "sums", "--approve", "--but", "no-such-call", code=2))
    calls = server.json("tools", run_id)["items"]
    assert [one["state"] for one in calls] == ["prepared", "prepared"]
    second = calls[1]["tool_call_id"]
    done = server.json(
        "answer", "sums", "--approve", "--but", second, "--reason", "too large", "--wait"
    )
    assert done["run"]["stop_reason"] == "completed"
    shown = server.good("tools", run_id)
    assert re.search(r"1\.1\s+add\s+ok .* 3\n", shown)
    assert "rejected" in shown
    assert "too large" in shown


def test_pause_unpause_and_restore(server):
    assert server.bad("pause", "no-such-session")
    run_id = server.json("submit", "stops", "ask me")["run_id"]
    while not server.json("inbox", "--session", "stops")["items"]:
        pass
    assert "requested" in server.good("pause", "stops")
    assert "attached" in server.good("restore", run_id)
    assert server.json("answer", "stops", "red")["receipt"]["run_id"] == run_id
    assert server.json("pause", "stops", "--run", run_id)["receipt"] == "paused"
    assert server.json("unpause", "stops")["receipt"] == "resumed"
    assert server.good("submit", "stops", "next", "--mode", "queue", "--wait") == "You said: next\n"
    assert "settled" in server.good("restore", run_id)


def test_lines_of_a_pipe_answer_what_is_asked(server):
    done = server.call_process("chat", "pipe", given="ask me\nred\nadd them\nmaybe\ny sure\nbye\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "so it is red\nadded: 3\n7\nYou said: bye\n"
    assert "? Which one?" in done.stderr
    assert "say y or n" in done.stderr
    done = server.call_process("chat", "short", given="ask me\n")
    assert done.returncode == 1
    assert "waits for an answer" in done.stderr


@pytest.fixture
def terminal(server) -> Iterator[Terminal]:
    opened = Terminal(server, "live")
    yield opened
    opened.close()


def test_questions_and_approvals_in_a_conversation(server, terminal):
    terminal.see("Ctrl-D leaves")
    terminal.type("ask me\n")
    terminal.see("-> ask_question")
    terminal.see("? Which one?")
    terminal.see("? - blue")
    terminal.type("blue\n")
    terminal.see("ok: blue")
    terminal.see("so it is blue")
    terminal.type("add them\n")
    terminal.see("? add")
    terminal.see("y lets them run")
    terminal.type("perhaps\n")
    terminal.see("say y or n")
    terminal.type("n not now\n")
    terminal.see("rejected: not now")
    terminal.see("added: not now")
    # What is open when the conversation begins can be answered too.
    terminal.type("ask again\n")
    terminal.see("? Which one?")
    again = Terminal(server, "live")
    again.see("? Which one?")
    again.type("red\n")
    again.see("so it is red")
    again.close()
    terminal.see("so it is red")
    terminal.type("\x04")
    assert terminal.process.wait(timeout=SECONDS) == 0
