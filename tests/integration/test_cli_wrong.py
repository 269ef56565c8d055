"""What the terminal says where it is used wrong, or where nobody is there to answer."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import runlane
import typer
from runlane_server.cli import _patience, _waits
from runlane_server.cli._app import app
from runlane_server.cli._client import NotDone
from support_server.process import ServerProcess
from test_cli import SECONDS, Done, Terminal, command, environment, one_line
from typer.testing import CliRunner

NOWHERE = "127.0.0.1:1"
SECRET = "u:not/to@be-seen"
CODED = "u:not%2Fto%40be-seen"


def call(*arguments: str, target: str = "", given: str = "") -> Done:
    result = CliRunner().invoke(app, arguments, input=given, env={"RUNLANE_TARGET": target or None})
    if result.exception is not None:
        assert isinstance(result.exception, SystemExit), result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("wrong")
    config = """
    [[agent]]
    name = "echo"
    model = { kind = "scripted" }
    """
    (folder / "runlane.toml").write_text(config)
    made = ServerProcess(folder, store="memory").start()
    yield made
    made.kill()
    assert made.incidents() == []


def commands() -> set[str]:
    """The names of all commands."""
    root = typer.main.get_command(app)
    found = set()
    for name, each in root.commands.items():
        below = getattr(each, "commands", None)
        found |= {f"{name} {inner}" for inner in below} if below else {name}
    return found


# Each is tried against a server that is there. What it ends with, the words, and what it says.
WRONG = [
    (2, "submit", "Missing argument"),
    (2, ["submit", "", "hi"], "the id of the session is empty"),
    (1, ["submit", "a b", "hi"], "session_id: is no id: a letter or digit"),
    (1, ["submit", "a", "hi"], "--agent names one"),
    (1, ["submit", "a", "hi", "--agent", "x y"], "run_options.agent: is no id"),
    (1, ["submit", "a", " ", "--agent", "echo"], "INPUT_EMPTY"),
    (2, ["submit", "a", "hi", "--mode", "stir"], "'stir' is no submit mode; there are start,"),
    (2, ["submit", "a", "hi", "--wait-seconds", "-1"], "--wait-seconds"),
    (2, ["chat", ""], "the id of the session is empty"),
    (1, ["chat", "x y"], "session_id: is no id"),
    (2, ["chat", "x", "--no-such-option"], "No such option"),
    (1, ["interrupt", "nobody"], "`runlane sessions` lists"),
    (2, ["interrupt", "x", "--wait-seconds", "301"], "--wait-seconds"),
    (1, ["withdraw", "nothing"], "SUBMISSION_NOT_FOUND"),
    (1, ["fork", "nothing"], "`runlane runs SESSION` lists"),
    (1, ["answer", "nothing", "yes"], "`runlane inbox` lists"),
    (2, ["answer", "nothing"], "give either a text"),
    (1, ["pause", "nobody"], "SESSION_NOT_FOUND"),
    (1, ["unpause", "nobody"], "SESSION_NOT_FOUND"),
    (1, ["restore", "nothing"], "RUN_NOT_FOUND"),
    (2, ["sessions", "--state", "odd"], "'odd' is no session state; there are open, closed"),
    (2, ["sessions", "--order", "odd"], "'odd' is no session order; there are created_desc,"),
    (2, ["sessions", "--label", "x"], "KEY=VALUE"),
    (1, ["sessions", "--label", "=x"], "labels: each key: is no key"),
    (1, ["runs", "nobody"], "SESSION_NOT_FOUND"),
    (1, ["runs", "x", "--after", "zz"], "`more: --after`"),
    (2, ["runs", "x", "--limit", "0"], "--limit"),
    (1, ["children", "nothing"], "RUN_NOT_FOUND"),
    (1, ["tail", "nobody"], "SESSION_NOT_FOUND"),
    (1, ["tail", "here", "--after", "99", "--no-follow"], "the last event, which is "),
    (2, ["tail", "x", "--after", "x"], "--after"),
    (
        1,
        ["feed", "--after", "zz"],
        "PAGE_TOKEN_INVALID: --after takes a cursor that `runlane feed`",
    ),
    (2, ["feed", "--type", "odd"], "'odd' is no kind of event"),
    (1, ["inbox", "--after", "zz"], "PAGE_TOKEN_INVALID"),
    (1, ["tools", "nothing"], "RUN_NOT_FOUND"),
    (2, "export", "Missing argument"),
    (2, ["export", ""], "the id of the session is empty"),
    (1, ["export", "nobody"], "SESSION_NOT_FOUND"),
    (1, ["export", "nobody", "-o", "out.jsonl"], "SESSION_NOT_FOUND"),
    (1, ["export", "nobody", "-o", "empty.db"], "empty.db exists"),
    (1, ["import", "none.json"], "none.json"),
    (1, ["import", "empty.db"], "empty.db: holds no conversation"),
    (1, ["import", "empty.db", "--format", "runlane"], "empty.db: is empty"),
    (1, ["import", "empty.db", "--format", "langgraph"], "empty.db: cannot be read as SQLite"),
    (2, ["import", "empty.db", "--format", "word"], "'word' is none of auto, runlane,"),
    (2, ["health", "extra"], "unexpected extra argument"),
    (2, ["overview", "--no-such-option"], "No such option"),
    (2, ["executors", "--limit", "1001"], "--limit"),
    (2, ["sessions", "--tls-cert", "mine.pem"], "--tls-cert and --tls-key go together"),
    (2, ["health", "--tls-key", "mine.key"], "--tls-cert and --tls-key go together"),
    (1, ["sessions", "--tls-cert", "a.pem", "--tls-key", "a.key"], "a.key"),
    (2, ["overview", "--tls-ca", "off", "--tls-cert", "a", "--tls-key", "b"], "says off"),
    (1, ["executors", "--after", "zz"], "PAGE_TOKEN_INVALID"),
    (1, ["agents", "--after", "zz"], "PAGE_TOKEN_INVALID"),
    (2, ["keys create", "bot"], "--scope"),
    (2, ["keys create", "bot", "--scope", "fly"], "'fly' is no scope"),
    (2, ["keys create", "bot", "--scope", "read", "--expires", "soon"], "is no span"),
    (1, ["keys list", "--store", "sqlite:none.db"], "there is no such file"),
    (1, ["keys revoke", "nothing"], "KEY_NOT_FOUND"),
    (2, ["serve", "--listen", "odd"], "--listen: 'odd' is neither HOST:PORT"),
    (2, ["serve", "--store", "odd"], "--store: 'odd' is neither"),
    (2, ["serve", "--config", "none.toml"], "none.toml: No such file"),
    (1, ["serve", "--listen", "unix:none/x.sock", "--store", "memory"], "none is no folder"),
    (2, ["serve", "--log-level", "loud"], "--log-level: should be"),
    (2, ["db check"], "Missing argument"),
    (1, ["db check", "none.db"], "none.db: there is no such file"),
    (1, ["db check", "."], ".: this is no file"),
    (1, ["db check", "empty.db"], "empty.db is empty"),
    (1, ["db backup", "none.db", "copy.db"], "none.db: there is no such file"),
    (1, ["db backup", "none.db", "."], ". exists"),
    (1, ["db restore", "none.db", "."], "none.db: there is no such file"),
    (1, ["keys list", "--store", "sqlite:."], ". is not a file"),
    (1, ["doctor", "--store", "sqlite:."], ". is not a file"),
    (1, ["db restore", "none.db", "new.db"], "none.db: there is no such file"),
    (2, ["db backup", f"postgresql://{SECRET}@h/x", "copy.db"], "is copied with pg_dump"),
    (2, ["db backup", "empty.db", f"postgres://{SECRET}@h/x"], "is copied with pg_dump"),
    (2, ["db restore", "empty.db", f"postgresql://{SECRET}@h/x"], "is copied with pg_dump"),
    (2, ["db restore", f"postgresql://{SECRET}@h/x", "new.db"], "is copied with pg_dump"),
    (2, ["db check", f"postgre://{SECRET}@h/x"], "postgre://...: this takes the path of a file"),
    (1, ["db check", f"postgresql://{SECRET}@127.0.0.1:1/x"], "in a password, write what"),
    (1, ["db check", f"postgresql://{CODED}@127.0.0.1:1/x"], "127.0.0.1:1/x cannot be reached"),
    (1, ["doctor", "--store", f"postgresql://{SECRET}@h/x"], "in a password, write what"),
    (1, ["doctor", "--store", f"postgresql://{CODED}@127.0.0.1:1/x"], "127.0.0.1:1/x cannot be"),
    (1, ["doctor", "--store", f"mysql://{SECRET}@h/x"], "mysql:..."),
    (1, ["doctor", "--target", f"postgresql://{SECRET}@h/x"], "is no address of a server"),
    (2, ["sessions", "--target", f"postgresql://{SECRET}@h/x"], "is no address of a server"),
    (1, ["import", f"postgresql://{SECRET}@h/x"], "@h/x"),
    (2, ["serve", "--config", f"postgresql://{SECRET}@h/x"], "@h/x"),
    (2, ["serve", "--store", f"postgresql://{SECRET}@h/x"], "in a password, write what"),
    (2, ["serve", f"postgresql://{SECRET}@h/x"], "unexpected extra argument"),
    (2, ["db check", "a.db", f"postgresql://{SECRET}@h/x"], "unexpected extra argument"),
    (2, ["serve", "--listen", f"postgresql://{SECRET}@h/x"], "--listen"),
    (1, ["keys list", "--store", f"postgresql://{CODED}@127.0.0.1:1/x"], "127.0.0.1:1/x cannot"),
    (2, ["keys list", "--store", f"mysql://{SECRET}@h/x"], "mysql:..."),
    (1, ["doctor", "--config", "none.toml"], "none.toml: No such file"),
    (1, ["doctor", "--target", NOWHERE, "--tls-ca", "none.pem"], "none.pem"),
    (2, ["health", "--target", "10.0.0.1:1", "--api-key", "k"], "say --tls-ca FILE, or --tls-ca"),
    (1, ["doctor", "--store", "sqlite:none.db"], "none.db does not exist"),
]


@pytest.mark.parametrize(("code", "words", "told"), WRONG, ids=lambda part: str(part)[:60])
def test_wrong_input_is_told_in_a_line(server, tmp_path, monkeypatch, code, words, told):
    monkeypatch.chdir(tmp_path)
    Path("empty.db").touch()
    if words[:2] == ["tail", "here"]:
        call("submit", "here", "hi", "--agent", "echo", target=server.address)
    words = words.split() if isinstance(words, str) else [*words[0].split(), *words[1:]]
    if words[0] == "keys" and "--store" not in words:
        words += ["--target", server.address]
    done = call(*words, target="" if "--store" in words else server.address)
    assert done.returncode == code, done
    assert "be-seen" not in done.stderr + done.stdout
    assert "u:not" not in done.stderr + done.stdout
    # Usage errors stand in a box, whose lines are wrapped.
    text = " ".join((done.stderr + done.stdout).replace("│", " ").split())
    assert " ".join(told.split()) in text
    if not text.startswith("Usage") and words[0] != "doctor":
        assert done.stdout == ""
        assert one_line(done.stderr).startswith("runlane: ")
    # What was wrong has left nothing behind.
    assert {path.name for path in tmp_path.iterdir()} <= {"empty.db", "empty.db.lock"}


def test_every_command_was_tried_with_wrong_input():
    tried = {words if isinstance(words, str) else words[0] for _, words, _ in WRONG}
    assert tried == commands() - {"demo"}


NEEDS = {
    "submit": ["a", "hi"], "chat": ["a"], "interrupt": ["a"], "withdraw": ["s"], "fork": ["r"],
    "answer": ["a", "yes"], "pause": ["a"], "unpause": ["a"], "restore": ["r"], "runs": ["a"],
    "children": ["r"], "tail": ["a"], "tools": ["r"], "keys create": ["b", "--scope", "read"],
    "keys revoke": ["k"], "export": ["a"], "import": ["f"],
}  # fmt: skip
CALLING = sorted(commands() - {"demo", "serve", "doctor", "db check", "db backup", "db restore"})


@pytest.mark.parametrize("name", CALLING)
def test_no_server_and_no_address_are_told_in_a_line(name, monkeypatch):
    monkeypatch.setattr("runlane_server.cli._client._REACH_SECONDS", 0.3)
    monkeypatch.setattr("runlane_server.cli._watch.HEALTH_SECONDS", 0.3)
    words = [*name.split(), *NEEDS.get(name, [])]
    done = call(*words, "--target", NOWHERE)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"runlane serve --listen {NOWHERE}" in one_line(done.stderr)
    done = call(*words, "--target", "http://127.0.0.1:7480")
    assert (done.returncode, done.stdout) == (2, "")
    assert "HOST:PORT, such as 127.0.0.1:7480" in one_line(done.stderr)


@pytest.mark.parametrize(
    "target",
    ["nonsense", ":7480", "host:", "host:0", "host:99999", "host:x", "https://h:1", "unix:"],
)
def test_what_is_no_address(target):
    done = call("sessions", "--target", target)
    assert done.returncode == 2
    assert "is no address" in one_line(done.stderr)


def test_help_tells_the_exit_codes_and_loses_nothing():
    told = " ".join(call("--help").stdout.split())
    for words in ("Ends with 0", "with 1 where", "with 2 where", "with 130 after Ctrl-C"):
        assert words in told.replace("│", "")
    assert "[jwt]" in call("serve", "--help").stdout


def test_nobody_who_polls_is_told_of_once(server, monkeypatch):
    monkeypatch.setattr(_patience, "FIRST_LOOK", 0.05)
    done = call(
        "submit", "alone", "hi", "--agent", "nobody", "--wait-seconds", "1.5", target=server.address
    )
    assert done.returncode == 1
    first, second = done.stderr.splitlines()
    assert (
        first == "runlane: no executor polls for agent nobody: the run waits; see `runlane agents`"
    )
    assert "has not stopped within" in second
    agents = json.loads(call("agents", "--json", target=server.address).stdout)["items"]
    counts = {one["name"]: (one["executor_count"], one["queued_count"]) for one in agents}
    assert counts == {"echo": (1, 0), "nobody": (0, 1)}
    assert "nobody" in call("agents", target=server.address).stdout
    # Of a run that is at work, and of an input that waits for its turn, nothing is said.
    monkeypatch.setattr(_patience, "_LONGEST", 0.05)
    done = call(
        "submit", "alone", "hi", "--mode", "queue", "--wait-seconds", "0.5", target=server.address
    )
    assert "has not stopped within" in one_line(done.stderr)


def test_a_session_keeps_the_agent_that_it_was_created_with(server):
    def agent_of(*words: str) -> str:
        done = call("submit", "kept", "hi", *words, "--json", "--wait", target=server.address)
        return json.loads(done.stdout)["run"]["agent"]

    assert agent_of("--agent", "echo") == "echo"
    assert agent_of() == "echo"
    call("submit", "kept", "hi", "--agent", "nobody", target=server.address)
    call("interrupt", "kept", "--wait-seconds", "30", target=server.address)
    assert agent_of() == "echo", "in a session that is there it was for one run"


def test_an_answer_to_a_session_is_for_the_one_question_that_is_open():
    prompt = runlane.QuestionPrompt(text="Which?", options=())
    external = runlane.ExternalPrompt(reason="the bank")

    def asked(name: str, what: object, kind: str) -> runlane.Interaction:
        return runlane.Interaction.model_construct(
            interaction_id=name, session_id="s", prompt=what, kind=runlane.PromptKind(kind)
        )

    one, two = asked("int_1", prompt, "question"), asked("int_2", prompt, "question")
    bank = asked("int_3", external, "external")
    assert _waits._only("s", [bank, one]) is one
    assert _waits._only("s", [bank]) is bank
    with pytest.raises(NotDone) as caught:
        _waits._only("s", [one, two, bank])
    assert str(caught.value) == (
        "2 questions are open in s; name one by its id: int_1 (Which?); int_2 (Which?)"
    )


def test_a_conversation_that_nobody_answers_is_told_so(server):
    terminal = Terminal(server, "chatty", "--agent", "nobody")
    try:
        terminal.type("hi\n")
        terminal.see("no executor polls for agent nobody")
        terminal.type("\x04")
        assert terminal.process.wait(timeout=SECONDS) == 0
    finally:
        terminal.close()


def test_lines_of_a_pipe_that_nobody_answers_are_told_so(server):
    chat = subprocess.Popen(
        command("chat", "piped", "--agent", "nobody"),
        env=environment(RUNLANE_TARGET=server.address),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    chat.stdin.write("hi\n")
    chat.stdin.flush()
    assert "no executor polls for agent nobody" in chat.stderr.readline()
    chat.send_signal(signal.SIGINT)
    _, errors = chat.communicate(timeout=SECONDS)
    assert chat.returncode == 130
    assert "Traceback" not in errors
