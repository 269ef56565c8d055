"""The terminal where runs give work to child runs."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_cli import SECONDS, Server, Terminal, command, environment, one_line

AGENTS = Path(__file__).with_name("children_agents.py")


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("family")
    (folder / "runlane.toml").write_text('store = "memory"\ndefault_agent = "host"\n')
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
        agents = subprocess.Popen(
            [sys.executable, str(AGENTS), match[1]],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert agents.stdout.readline() == "ready\n"
    yield Server(process, match[1], folder)
    for one in (agents, process):
        one.send_signal(signal.SIGTERM)
        one.communicate(timeout=SECONDS)
        assert one.returncode == 0, (folder / "log").read_text()


def test_what_a_child_run_asks_is_answered_at_its_parent(server):
    told = one_line(server.bad("submit", "quiz", "ask red", "--wait"))
    assert "waits for an answer" in told
    shown = re.search(r"`runlane answer (int_\S+)`", told)[1]
    run_id = server.json("runs", "quiz")["items"][0]["run_id"]
    assert re.search(r"host +waits for 1 child run  ", server.good("runs", "quiz"))

    (child,) = server.json("children", run_id)["items"]
    table = server.good("children", run_id)
    assert all(child[key] in table for key in ("run_id", "session_id", "agent", "phase"))
    assert child["parent"]["tool_call_id"] in table
    calls = server.good("tools", run_id)
    assert re.search(rf"ask_helper +prepared +{child['run_id']} ", calls)
    assert "child run" not in server.good("tools", child["run_id"])

    # The inbox lists it once, with the child; it shows in both sessions.
    (asked,) = server.json("inbox")["items"]
    assert asked["session_id"] == child["session_id"]
    (proxy,) = server.json("inbox", "--session", "quiz")["items"]
    assert proxy["interaction_id"] == shown
    assert f"asked by the child run {child['run_id']}" in server.good("inbox", "--session", "quiz")
    assert "asked by" not in server.good("inbox")
    assert "asked by" in server.good("tail", "quiz", "--no-follow")

    assert server.good("answer", shown, "a colour", "--wait") == "red is a colour\n"
    assert re.search(rf"ok +{child['run_id']} .* red is a colour\n", server.good("tools", run_id))
    assert "child_run.finished" in server.good("tail", "quiz", "--no-follow")
    assert server.json("children", child["run_id"])["items"] == []
    assert "RUN_NOT_FOUND" in one_line(server.bad("children", "run_0"))
    assert "nothing waits" in one_line(server.bad("answer", shown, "again"))
    assert "CHILD_SESSION" in one_line(server.bad("submit", child["session_id"], "more"))


def test_the_session_of_the_parent_or_the_question_itself_will_do(server):
    for what in ("session", "question"):
        server.bad("submit", what, "ask blue", "--wait")
        (asked,) = server.json("inbox")["items"]
        named = what if what == "session" else asked["interaction_id"]
        done = server.call("answer", named, "a colour", "--wait")
        assert (done.returncode, done.stdout) == (0, "blue is a colour\n")
        # Where the session was named, it says which of its questions was answered.
        assert ("(What is blue?)" in done.stderr) == (what == "session")
        assert server.json("runs", what, "--limit", "1")["items"][0]["phase"]


def test_roots_only(server):
    server.bad("submit", "root", "ask blue", "--wait")
    (child,) = server.json("children", server.json("runs", "root")["items"][0]["run_id"])["items"]
    every = {one["session_id"] for one in server.json("sessions", "--limit", "1000")["items"]}
    roots = {one["session_id"] for one in server.json("sessions", "--roots-only")["items"]}
    assert {"root", child["session_id"]} <= every
    assert "root" in roots
    assert child["session_id"] not in roots
    assert server.call("answer", "root", "a colour", "--wait").returncode == 0


def test_a_run_ends_with_its_child_runs(server):
    server.good("submit", "held", "ask hold hold")
    while "waits for 2 child runs" not in server.good("runs", "held"):
        pass
    run_id = server.json("runs", "held")["items"][0]["run_id"]
    while "leased" not in str(server.json("children", run_id)["items"][0]["activation"]):
        pass
    told = server.good("interrupt", "held")
    assert re.search(r"ending \(cancelled\): waits for [12] child runs?\n", told)
    assert server.json("interrupt", "held", "--run", run_id, "--wait-seconds", "30")["settled"]
    table = server.good("children", run_id)
    assert table.count("cancelled") == 2
    assert "run.ending" in server.good("tail", "held", "--no-follow")


def test_lines_of_a_pipe_answer_what_child_runs_ask(server):
    done = server.call_process("chat", "pipe", given="ask red\na colour\nask two six\n2\n6\n")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "red is a colour"
    assert sorted(second.split(" and ")) in (["six is 2", "two is 6"], ["six is 6", "two is 2"])
    assert "? What is red?" in done.stderr


@pytest.fixture
def terminal(server) -> Iterator[Terminal]:
    opened = Terminal(server, "live")
    yield opened
    opened.close()


def test_what_child_runs_ask_in_a_conversation(server, terminal):
    terminal.see("Ctrl-D leaves")
    terminal.type("ask red\n")
    terminal.see("-> ask_helper")
    terminal.see("goes to a run of helper")
    terminal.see("asked by the child run")
    terminal.see("? What is red?")
    terminal.type("a colour\n")
    terminal.see("ok: red is a colour")
    terminal.see("red is a colour")

    # Two ask: one is shown after the other.
    terminal.type("ask same same\n")
    terminal.see("? What is same?")
    while len(server.json("inbox", "--session", "live")["items"]) < 2:
        pass
    terminal.type("one\n")
    terminal.see("? What is same?")
    # Another one answers it elsewhere; the conversation goes on.
    server.good("answer", "live", "two")
    terminal.see(" and same is ")

    # What is open when the conversation begins is asked again.
    terminal.type("ask blue\n")
    terminal.see("? What is blue?")
    again = Terminal(server, "live")
    again.see("? What is blue?")
    again.type("a colour\n")
    again.see("blue is a colour")
    again.close()
    terminal.see("blue is a colour")

    terminal.type("ask hold\n")
    terminal.see("goes to a run of helper")
    terminal.type("\x03")
    terminal.see("interrupting")
    terminal.see("ended cancelled")
    terminal.type("\x04")
    assert terminal.process.wait(timeout=SECONDS) == 0
