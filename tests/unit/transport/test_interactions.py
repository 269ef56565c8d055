import pytest
from fakes import interaction_row
from google.protobuf.duration_pb2 import Duration
from runlane.v1 import executor_service_pb2, interaction_pb2, message_pb2
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.words import InteractionState, PromptKind, ToolOutcome
from runlane_server.transport import interactions

I = interaction_pb2  # noqa: E741 - the protos by their first letters
Answer, Prompt = I.InteractionAnswer, I.Prompt
PERMISSION = Prompt(
    permission=I.PermissionPrompt(
        calls=[I.PermissionCall(tool_call_id="c"), I.PermissionCall(tool_call_id="d")], reason="r"
    )
)
QUESTION = Prompt(question=I.QuestionPrompt(text="?", tool_call_id="c"))
FORM = Prompt(form=I.FormPrompt(json_schema='{"type":"object"}', tool_call_id="c"))
EXTERNAL = Prompt(external=I.ExternalPrompt(tool_call_id="c"))


def decide(*given):
    return Answer(
        permission=I.PermissionAnswer(
            decisions=[
                I.Decision(tool_call_id=name, verdict=verdict, reason=reason)
                for name, verdict, reason in given
            ]
        )
    )


BOTH = decide(("c", 1, "fine"), ("d", 2, "no"))
TEXT = Answer(question=I.QuestionAnswer(text="x"))
JSON = Answer(form=I.FormAnswer(json='{"a": 1}'))
RESULT = Answer(external=I.ExternalAnswer(result_json="[1]"))
ERROR = Answer(external=I.ExternalAnswer(error="broken"))


def suspend(**fields):
    given = executor_service_pb2.Suspend(**fields)
    return interactions.suspend(given, "suspend.")


def told(content):
    """Returns outcome and text of a result."""
    (block,) = message_pb2.Message.FromString(content.data).content
    result = block.tool_result
    return result.tool_call_id, ToolOutcome(result.outcome), result.content[0].text


@pytest.mark.parametrize(
    ("prompt", "kind", "calls"),
    [
        (PERMISSION, PromptKind.PERMISSION, ("c", "d")),
        (QUESTION, PromptKind.QUESTION, ("c",)),
        (FORM, PromptKind.FORM, ("c",)),
        (EXTERNAL, PromptKind.EXTERNAL, ("c",)),
        (Prompt(question=I.QuestionPrompt(text="?")), PromptKind.QUESTION, ()),
        (Prompt(external=I.ExternalPrompt()), PromptKind.EXTERNAL, ()),
    ],
)
def test_a_question_and_the_calls_that_it_is_about(prompt, kind, calls):
    asked = suspend(prompt=prompt)
    assert (asked.kind, asked.tool_call_ids, asked.expire_duration) == (kind, calls, 0)
    assert Prompt.FromString(asked.prompt) == prompt
    assert suspend(prompt=prompt, expire_duration=Duration(seconds=2)).expire_duration == 2_000_000


def test_what_a_call_is_only_the_server_says():
    forged = I.PermissionCall(tool_call_id="c", name="safe", arguments_json="{}")
    asked = suspend(prompt=Prompt(permission=I.PermissionPrompt(calls=[forged])))
    bare = I.PermissionPrompt(calls=[I.PermissionCall(tool_call_id="c")])
    assert Prompt.FromString(asked.prompt).permission == bare
    assert forged.name == "safe"
    call = interactions.Call("rm", '{"path":"/"}')
    filled = Prompt.FromString(interactions.fill_in(asked.prompt, {"c": call, "x": call}))
    assert list(filled.permission.calls) == [
        I.PermissionCall(tool_call_id="c", name="rm", arguments_json='{"path":"/"}')
    ]
    assert interactions.fill_in(asked.prompt, {}) == asked.prompt


def test_decisions():
    command = interactions.answer(interaction_row(PERMISSION), 1, BOTH)
    assert (command.run_id, command.interaction_id, command.version) == ("run_1", "int_1", 1)
    assert command.kind is PromptKind.PERMISSION
    assert Answer.FromString(command.data) == BOTH
    assert [(one.tool_call_id, one.approve) for one in command.verdicts] == [
        ("c", True),
        ("d", False),
    ]
    assert command.verdicts[0].result is None
    assert told(command.verdicts[1].result) == ("d", ToolOutcome.REJECTED, "no")
    assert command.result is None
    silent = interactions.answer(interaction_row(PERMISSION), 1, decide(("d", 2, "")))
    assert "not run" in told(silent.verdicts[0].result)[2]


@pytest.mark.parametrize(
    ("prompt", "answer", "result"),
    [
        (QUESTION, TEXT, (ToolOutcome.OK, "x")),
        (FORM, JSON, (ToolOutcome.OK, '{"a": 1}')),
        (EXTERNAL, RESULT, (ToolOutcome.OK, "[1]")),
        (EXTERNAL, ERROR, (ToolOutcome.ERROR, "broken")),
    ],
)
def test_an_answer_is_the_result_of_the_call_that_it_is_about(prompt, answer, result):
    command = interactions.answer(interaction_row(prompt), 1, answer)
    assert told(command.result) == ("c", *result)
    assert (command.outcome, command.verdicts) == (result[0], ())
    free = Prompt()
    free.CopyFrom(prompt)
    getattr(free, free.WhichOneof("kind")).ClearField("tool_call_id")
    alone = interactions.answer(interaction_row(free), 1, answer)
    assert alone.result is None
    assert (alone.outcome, alone.hash) == (command.outcome, command.hash)


def test_equal_answers_have_equal_hashes_and_no_others():
    row = interaction_row(PERMISSION)

    def digest(given):
        return interactions.answer(row, 1, given).hash

    swapped = decide(("d", 2, "no"), ("c", 1, "fine"))
    assert digest(BOTH) == digest(swapped)
    unknown = Answer.FromString(BOTH.SerializeToString() + b"\xa2\x06\x01x")
    assert digest(BOTH) == digest(unknown)
    others = [
        BOTH,
        decide(("c", 2, "fine"), ("d", 2, "no")),
        decide(("c", 1, ""), ("d", 2, "no")),
        decide(("c", 1, "fine")),
        TEXT,
        Answer(form=I.FormAnswer(json="x")),
        Answer(form=I.FormAnswer(json='{"a":1}')),
        JSON,
        RESULT,
        Answer(external=I.ExternalAnswer(result_json="broken")),
        ERROR,
    ]
    assert len({digest(one) for one in others}) == len(others)
    assert len(digest(BOTH)) == 32


@pytest.mark.parametrize(
    ("prompt", "answer", "field"),
    [
        (QUESTION, BOTH, "answer.permission"),
        (QUESTION, JSON, "answer.form"),
        (QUESTION, RESULT, "answer.external"),
        (FORM, TEXT, "answer.question"),
        (PERMISSION, TEXT, "answer.question"),
        (EXTERNAL, TEXT, "answer.question"),
        (EXTERNAL, RESULT, "answer.external"),
        (PERMISSION, decide(("c", 1, "")), "answer.permission.decisions"),
        (PERMISSION, decide(("c", 1, ""), ("e", 1, "")), "answer.permission.decisions"),
        (PERMISSION, decide(("c", 1, ""), ("c", 1, "")), "answer.permission.decisions"),
        (
            PERMISSION,
            decide(("c", 1, ""), ("d", 1, ""), ("d", 2, "")),
            "answer.permission.decisions",
        ),
        (FORM, Answer(form=I.FormAnswer(json="{hunter2")), "answer.form.json"),
    ],
)
def test_an_answer_that_does_not_fit(prompt, answer, field):
    row = interaction_row(prompt)
    with pytest.raises(Refused) as caught:
        interactions.check_answer(row, 1, answer, by_token=False)
    assert caught.value.reason is Reason.ANSWER_INVALID
    assert [name for name, _ in caught.value.violations] == [field]
    assert "hunter2" not in caught.value.message
    # Why it is not open, or which version is, is for the use case to say.
    for settled in (InteractionState.ANSWERED, InteractionState.CLOSED):
        row = interaction_row(prompt, state=settled)
        assert interactions.check_answer(row, 1, answer, by_token=False) == ""
        assert interactions.answer(row, 1, answer).hash
    if answer.WhichOneof("kind") != "external":
        row = interaction_row(prompt)
        assert interactions.check_answer(row, 2, answer, by_token=False) == ""
        assert interactions.answer(row, 2, answer).version == 2


@pytest.mark.parametrize(
    ("prompt", "answer", "schema"),
    [
        (QUESTION, TEXT, ""),
        (PERMISSION, BOTH, ""),
        (PERMISSION, decide(("d", 1, ""), ("c", 2, "")), ""),
        (FORM, JSON, '{"type":"object"}'),
    ],
)
def test_an_answer_that_fits(prompt, answer, schema):
    row = interaction_row(prompt)
    assert interactions.check_answer(row, 1, answer, by_token=False) == schema


def test_what_a_token_completes():
    row = interaction_row(EXTERNAL)
    assert interactions.check_answer(row, 1, RESULT, by_token=True) == ""
    assert interactions.check_answer(row, 1, ERROR, by_token=True) == ""
    broken = Answer(external=I.ExternalAnswer(result_json="{"))
    with pytest.raises(Refused) as caught:
        interactions.check_answer(row, 1, broken, by_token=True)
    assert caught.value.reason is Reason.ANSWER_INVALID
    assert caught.value.violations[0][0] == "answer.result_json"
