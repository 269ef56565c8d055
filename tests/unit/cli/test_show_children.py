"""How the terminal tells of child runs."""

import pytest
import runlane
from runlane_server.cli import _show
from runlane_server.cli._chat import _Conversation

LIVE = {"phase": runlane.RunPhase.ACTIVE, "stop_reason": None, "ending_cause": None}
LIVE |= {"waiting_children": None, "live_child_count": 0, "stalled": False}


def waits(mode, *run_ids):
    return runlane.ChildrenWait(mode=runlane.ChildrenMode(mode), run_ids=run_ids)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({}, "active"),
        ({"stalled": True}, "stalled"),
        ({"stop_reason": runlane.StopReason.FAILED}, "failed"),
        ({"waiting_children": waits("all", "a", "b"), "live_child_count": 2}, "2 child runs"),
        ({"waiting_children": waits("all", "a", "b"), "live_child_count": 1}, "1 child run"),
        (
            {"waiting_children": waits("any", "a", "b"), "live_child_count": 3},
            "one of 2 child runs",
        ),
        ({"waiting_children": waits("any", "a"), "live_child_count": 1}, "1 child run"),
    ],
)
def test_how_far_a_run_is(facts, told):
    run = runlane.Run.model_construct(**LIVE | facts)
    if "waiting_children" in facts:
        told = f"waits for {told}"
    assert _show.state(run) == told


def test_a_run_that_is_ending():
    cause = runlane.StopReason.CANCELLED
    run = runlane.Run.model_construct(**LIVE | {"ending_cause": cause, "live_child_count": 2})
    assert _show.state(run) == "ending (cancelled): waits for 2 child runs"


def call(key, child_run_id):
    return runlane.ToolCall.model_construct(
        tool_call_id=key,
        step=1,
        ordinal=1,
        name="ask",
        outcome=None,
        state=runlane.ToolCallState.PREPARED,
        child_run_id=child_run_id,
        arguments_json="{}",
        content=(),
    )


def test_the_child_run_of_a_call_is_shown_where_there_is_one(capsys):
    _show.tool_calls([call("c-1", None)])
    assert "child run" not in capsys.readouterr().out
    _show.tool_calls([call("c-1", None), call("c-2", "run_7")])
    head, first, second = capsys.readouterr().out.splitlines()
    assert "child run" in head
    assert head.index("child run") == second.index("run_7")
    assert first.index("{}") == second.index("{}")
    _show.tool_calls([])
    assert "child run" not in capsys.readouterr().out


def question(key, child="run_child"):
    source = runlane.ProxySource(run_id=child or "", interaction_id=f"q-{key}", session_id="s")
    return runlane.Interaction.model_construct(
        interaction_id=key,
        run_id="run_parent",
        version=1,
        kind=runlane.PromptKind.QUESTION,
        prompt=runlane.QuestionPrompt(text=f"{key}?"),
        proxy_for=source if child else None,
    )


def external(key):
    return question(key).model_copy(
        update={
            "kind": runlane.PromptKind.EXTERNAL,
            "prompt": runlane.ExternalPrompt(reason=f"{key}!"),
        }
    )


@pytest.fixture
def conversation():
    return _Conversation(None, "s", None, None)


def test_questions_are_shown_one_after_the_other(conversation, capsys):
    def shown():
        return [row[2:] for row in capsys.readouterr().out.splitlines() if row.startswith("? ")]

    conversation._ask([external("bank"), question("a"), question("b")])
    assert shown() == ["bank!", "a?"]
    # One that comes does not take the place of the one that stands there.
    conversation._ask([question("c"), external("bank"), question("a"), question("b")])
    assert shown() == []
    assert conversation._asked.interaction_id == "a"
    conversation._settled("b")
    assert shown() == []
    conversation._settled("a")
    assert shown() == ["c?"]
    conversation._settled("c")
    assert conversation._asked is None
    # A list that was read before the answer brings no question back.
    conversation._answered.add("a")
    conversation._ask([question("a")])
    assert (shown(), conversation._asked) == ([], None)


def test_who_asks_is_told(conversation, capsys):
    conversation._ask([question("a")])
    assert "asked by the child run run_child" in capsys.readouterr().out
    conversation._settled("a")
    conversation._ask([question("b", child=None)])
    assert "asked by" not in capsys.readouterr().out
