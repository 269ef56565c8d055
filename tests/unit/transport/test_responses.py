from dataclasses import replace

from fakes import NOW, interaction_row, run_view, tool_call_row
from runlane.v1 import (
    executor_service_pb2,
    interaction_pb2,
    message_pb2,
    session_service_pb2,
)
from runlane_server.app.views import LiveView, SessionView
from runlane_server.core.answers import OperationResult, SessionFacts
from runlane_server.core.commands import CommitModelStep, ReserveModelStep
from runlane_server.core.model import SessionRecord, ToolCall, ToolUse
from runlane_server.core.words import (
    ActivationKind,
    InteractionClose,
    InteractionState,
    Phase,
    SessionStatus,
    StopReason,
    ToolCallState,
    ToolOutcome,
)
from runlane_server.transport import responses
from runlane_server.transport.content import text_result
from runlane_server.transport.values import SEND_BYTES_MAX

I = interaction_pb2  # noqa: E741 - the protos by their first letters
E = executor_service_pb2
MEBIBYTE = 1024 * 1024


def test_what_became_of_operations():
    facts = run_view().facts
    paused = responses.operation_result(ReserveModelStep(), OperationResult(paused=True), facts)
    assert paused.reserve_model_step.state == E.ReserveModelStepResult.STATE_PAUSED
    content = text_result("c", ToolOutcome.OK, "x")
    content.tool_uses = (ToolUse("c", "n", None),)
    call = ToolCall("c", "n", 1, ToolCallState.COMMITTED, outcome=ToolOutcome.ERROR)
    step = CommitModelStep(content, facts.usage)
    shown = responses.operation_result(step, OperationResult(calls=[call]), facts)
    (one,) = shown.commit_model_step.tool_calls
    assert (one.arguments_json, one.result.outcome) == ("", message_pb2.ToolResult.OUTCOME_ERROR)
    over = responses.operation_result(step, OperationResult(message_number=4), facts)
    assert over.commit_model_step.message_number == 4
    assert not over.commit_model_step.tool_calls


def test_a_run_is_shown_with_all_that_it_is():
    view = run_view()
    facts = replace(
        view.facts,
        phase=Phase.WAITING,
        activation=None,
        interaction_id="int_1",
        pause_requested=True,
        stalled=True,
        recoveries=2,
        deadline_time=NOW,
    )
    shown = responses.run(facts)
    assert (shown.phase, shown.interaction_id, shown.recoveries) == (2, "int_1", 2)
    assert shown.pause_requested
    assert shown.stalled
    assert shown.deadline_time.ToMicroseconds() == NOW
    assert shown.usage.tool_calls == 6
    assert not shown.HasField("activation")
    ended = replace(
        run_view(phase=Phase.TERMINAL).facts,
        stop_reason=StopReason.OUTCOME_UNKNOWN,
        cause=StopReason.CANCELLED,
    )
    outcome = responses.run(ended).outcome
    assert (outcome.stop_reason, outcome.cause) == (StopReason.OUTCOME_UNKNOWN, StopReason.CANCELLED)  # fmt: skip
    for kind in ActivationKind:
        activation = replace(view.facts.activation, kind=kind)
        assert responses.activation(activation).kind == kind


def test_an_interaction_is_shown_with_all_that_it_is():
    answer = I.InteractionAnswer(question=I.QuestionAnswer(text="x"))
    row = interaction_row(
        state=InteractionState.ANSWERED,
        answer=answer.SerializeToString(),
        settle_time=NOW + 1,
        expire_time=0,
    )
    shown = responses.interaction(row)
    assert (shown.state, shown.answer) == (I.Interaction.STATE_ANSWERED, answer)
    assert not shown.HasField("expire_time")
    assert shown.settle_time.ToMicroseconds() == NOW + 1
    closed = responses.interaction(
        interaction_row(state=InteractionState.CLOSED, close_reason=InteractionClose.EXPIRED)
    )
    assert closed.close_reason == I.Interaction.CLOSE_REASON_EXPIRED
    assert not closed.HasField("answer")


def test_a_call_without_a_stored_result():
    waiting = responses.tool_call(tool_call_row(outcome=ToolOutcome.ERROR, result=b""))
    assert (waiting.result.outcome, list(waiting.result.content)) == (2, [])
    # The closer of a call that was never run is a message of the history, not its result.
    closed = responses.tool_call(tool_call_row(state=ToolCallState.CANCELLED))
    assert not closed.HasField("result")
    malformed = responses.tool_call(tool_call_row(arguments_json=None))
    assert malformed.arguments_json == ""
    large = tool_call_row(
        arguments_json=f'"{"x" * (3 * MEBIBYTE)}"',
        result=text_result("c", ToolOutcome.OK, "x" * (2 * MEBIBYTE)).data,
    )
    shown = responses.tool_call(large)
    assert shown.ByteSize() <= SEND_BYTES_MAX
    assert (shown.result.outcome, list(shown.result.content)) == (1, [])


def test_prompts_that_do_not_fit_the_live_state_are_left_out():
    schema = "x" * 60_000
    form = interaction_pb2.Prompt(form=interaction_pb2.FormPrompt(json_schema=schema))
    rows = [interaction_row(form, interaction_id=f"int_{n}") for n in range(256)]
    session = SessionView(
        SessionFacts("s", SessionStatus.OPEN, 1, "r1", 0, "run_1", NOW, NOW), SessionRecord()
    )
    encoded = responses.live_state(LiveView(session, None, [], [], [], False, 1, rows))
    assert len(encoded) <= SEND_BYTES_MAX
    shown = session_service_pb2.GetLiveStateResponse.FromString(encoded).live_state
    found = shown.open_interactions
    assert [one.interaction_id for one in found] == [f"int_{n}" for n in range(256)]
    assert found[0].HasField("prompt")
    assert not found[-1].HasField("prompt")
