import time

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from runlane.v1 import (
    admin_service_pb2,
    event_pb2,
    executor_service_pb2,
    history_service_pb2,
    interaction_pb2,
    message_pb2,
    run_pb2,
    session_service_pb2,
)
from runlane_server.core.commands import ClaimToolCalls, SettleRun
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import RunLimits, RunOptions
from runlane_server.core.words import Mode, OnMiss, Recovery, StopReason, ToolOutcome
from runlane_server.transport import requests
from runlane_server.transport.validation import validate

S, H, E, M = session_service_pb2, history_service_pb2, executor_service_pb2, message_pb2
A, I = admin_service_pb2, interaction_pb2  # noqa: E741 - the protos by their first letters
HELLO = [M.Block(text="hello")]
FENCE = run_pb2.Fence(session_id="s", run_id="r", activation_id="a", epoch=1)
LONG = "x" * 300
SECRET = "hunter2\0"
OK = M.ToolResult(tool_call_id="c", outcome=1)


def submit(**fields):
    return S.SubmitRequest(**{"session_id": "s", "content": HELLO, **fields})


def commit(**fields):
    return E.CommitRequest(fence=FENCE, **fields)


def step(**fields):
    return commit(operations=[E.Operation(commit_model_step=E.CommitModelStep(**fields))])


def results(*given):
    return commit(operations=[E.Operation(commit_tool_results=E.CommitToolResults(results=given))])


def claim(*names):
    return commit(operations=[E.Operation(claim_tool_calls=E.ClaimToolCalls(tool_call_ids=names))])


def suspend(seconds=None, **prompt):
    given = E.Suspend(prompt=I.Prompt(**prompt))
    if seconds is not None:
        given.expire_duration.FromSeconds(seconds)
    return commit(suspend=given)


def limits(**fields):
    return submit(run_options=run_pb2.RunOptions(limits=run_pb2.RunLimits(**fields)))


def unknown(message, **fields):
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def convert(request):
    """Does to a request what its servicer does."""
    converters = {
        S.SubmitRequest: requests.submit,
        S.CreateSessionRequest: requests.create_session,
        S.UpdateSessionRequest: requests.update_session,
        S.InterruptRunRequest: lambda r: (requests.run_target(r), requests.wait_micros(r.wait_duration)),
        S.PauseRunRequest: requests.run_target,
        S.UnpauseRunRequest: requests.run_target,
        A.SettleRunRequest: requests.settle_run,
        H.ForkSessionRequest: requests.fork,
        H.ListSessionsRequest: requests.session_filter,
        H.WaitRunRequest: lambda r: requests.wait_micros(r.wait_duration),
        E.CommitRequest: requests.commit,
        E.HeartbeatRequest: requests.lease_micros,
        E.PublishDeltasRequest: lambda r: requests.deltas(r, requests.fence(r.fence)),
    }  # fmt: skip
    validate(request, request.ByteSize())
    return converters.get(type(request), lambda _: None)(request)


def delta(**fields):
    given = {
        "model_stream_id": "m",
        "step": 1,
        "kind": 1,
        "revision": 1,
        "append_text": "x",
        **fields,
    }
    return E.PublishDeltasRequest(fence=FENCE, deltas=[event_pb2.Delta(**given)])


BAD = [
    (submit(session_id=LONG), "session_id"),
    (submit(session_id="a b"), "session_id"),
    (submit(session_id="a\n"), "session_id"),
    (submit(session_id=""), "session_id"),
    (submit(request_id=LONG), "request_id"),
    (submit(mode=77), "mode"),
    (submit(mode=-1), "mode"),
    (submit(on_miss=9), "on_miss"),
    (submit(target_run_id="r"), "target_run_id"),
    (submit(target_run_id="r", mode=3), "target_run_id"),
    (submit(target_run_id="r", mode=5), "target_run_id"),
    (submit(on_miss=2), "on_miss"),
    (submit(on_miss=1, mode=3), "on_miss"),
    (submit(on_miss=2, mode=6), "on_miss"),
    (submit(expected_revision=-1), "expected_revision"),
    (submit(content=[M.Block(text=SECRET)]), "content[0].text"),
    (submit(content=[M.Block()]), "content[0].block"),
    (submit(content=HELLO * 257), "content"),
    (submit(content=[M.Block(media=M.Media(kind=0, uri="u"))]), "content[0].media.kind"),
    (submit(content=[M.Block(media=M.Media(kind=8, uri="u"))]), "content[0].media.kind"),
    (submit(content=[M.Block(media=M.Media(kind=1))]), "content[0].media.source"),
    (submit(content=[M.Block(media=M.Media(kind=1, inline_data=b"x" * 262_145))]), "content[0].media.inline_data"),
    (submit(content=[M.Block(media=M.Media(kind=1, uri="u", size_bytes=-1))]), "content[0].media.size_bytes"),
    (submit(content=[M.Block(media=M.Media(kind=1, uri="u", size_bytes=2**53))]), "content[0].media.size_bytes"),
    (submit(content=[M.Block(data=M.Data(content_type="t", json="{"))]), "content[0].data.json"),
    (submit(content=[M.Block(text="a", provider_json="x" * 65_537)]), "content[0].provider_json"),
    (submit(metadata={SECRET: "v"}), "metadata"),
    (submit(metadata={"key": SECRET}), "metadata[key]"),
    (submit(metadata={str(n): "v" for n in range(33)}), "metadata"),
    (submit(metadata={"a": "x" * 4096}), "metadata"),
    (submit(create_session=S.SessionSpec(labels={"BAD KEY": "v"})), "create_session.labels"),
    (submit(create_session=S.SessionSpec(labels={"ok": "v" * 256})), "create_session.labels[ok]"),
    (submit(create_session=S.SessionSpec(metadata_json="[]")), "create_session.metadata_json"),
    (submit(create_session=S.SessionSpec(default_agent="a b")), "create_session.default_agent"),
    (submit(run_options=run_pb2.RunOptions(agent=LONG)), "run_options.agent"),
    (submit(run_options=run_pb2.RunOptions(request_options_json="1")), "run_options.request_options_json"),
    (submit(run_options=run_pb2.RunOptions(limits=run_pb2.RunLimits(max_model_steps=-1))), "run_options.limits.max_model_steps"),
    (submit(run_options=run_pb2.RunOptions(limits=run_pb2.RunLimits(max_total_tokens=2**53))), "run_options.limits.max_total_tokens"),
    (submit(run_options=run_pb2.RunOptions(limits=run_pb2.RunLimits(max_cost_usd_micros=2**63 - 1))), "run_options.limits.max_cost_usd_micros"),
    (submit(run_options=run_pb2.RunOptions(cancel_grace_duration=Duration(seconds=601))), "run_options.cancel_grace_duration"),
    (submit(run_options=run_pb2.RunOptions(cancel_grace_duration=Duration(seconds=1, nanos=-1))), "run_options.cancel_grace_duration"),
    (S.CreateSessionRequest(metadata_json="null"), "metadata_json"),
    (S.CreateSessionRequest(if_exists=3), "if_exists"),
    (S.CreateSessionRequest(display_name=SECRET), "display_name"),
    (S.CreateSessionRequest(display_name="é" * 128), "display_name"),
    (S.UpdateSessionRequest(session_id="s", metadata_json="{"), "metadata_json"),
    (S.UpdateSessionRequest(session_id="s", remove_labels=["Z"]), "remove_labels[0]"),
    (S.UpdateSessionRequest(), "session_id"),
    (S.InterruptRunRequest(), "session_id"),
    (S.InterruptRunRequest(session_id="s", wait_duration=Duration(seconds=301)), "wait_duration"),
    (S.InterruptRunRequest(session_id="s", wait_duration=Duration(seconds=-1)), "wait_duration"),
    (S.InterruptRunRequest(session_id="s", reason=SECRET), "reason"),
    (S.GetLiveStateRequest(session_id="s", message_limit=201), "message_limit"),
    (S.GetLiveStateRequest(session_id="s", min_sequence=-1), "min_sequence"),
    (S.StreamEventsRequest(session_id="s", after_sequence=-1), "after_sequence"),
    (S.StreamEventsRequest(session_id="s", last_events=1001), "last_events"),
    (S.StreamEventsRequest(session_id="s", types=[0]), "types[0]"),
    (S.StreamEventsRequest(session_id="s", types=[99]), "types[0]"),
    (S.StreamEventsRequest(session_id="s", run_ids=["a", "a"]), "run_ids"),
    (H.ListSessionsRequest(page_size=-1), "page_size"),
    (H.ListSessionsRequest(page_token="x" * 2049), "page_token"),
    (H.ListSessionsRequest(state=5), "state"),
    (H.ListSessionsRequest(order=5), "order"),
    (H.ListSessionsRequest(labels={"a": SECRET}), "labels[a]"),
    (H.ListSessionsRequest(create_time_from=Timestamp(seconds=10**15)), "create_time_from"),
    (H.ListSessionsRequest(create_time_before=Timestamp(nanos=-1)), "create_time_before"),
    (H.ListRunsRequest(session_id="s", phases=[9]), "phases[0]"),
    (H.ListEventsRequest(), "scope"),
    (H.ListMessagesRequest(session_id="s", before_number=-5), "before_number"),
    (H.WaitRunRequest(run_id="r", wait_duration=Duration(seconds=10**12)), "wait_duration"),
    (H.ForkSessionRequest(), "source"),
    (H.ForkSessionRequest(run_id="r", metadata_json=""), None),
    (H.ForkSessionRequest(run_id="r", input=H.ForkInput(content=[M.Block(data=M.Data(content_type="t", json="-"))])), "input.content[0].data.json"),
    (E.PollActivationRequest(executor_id="e"), "agents"),
    (E.PollActivationRequest(executor_id="e", agents=["a"] * 2), "agents"),
    (E.PollActivationRequest(executor_id="e", agents=["a"], context_bytes_max=2**22), "context_bytes_max"),
    (E.HeartbeatRequest(), "fence"),
    (E.HeartbeatRequest(fence=run_pb2.Fence(session_id="s", run_id="r", activation_id="a")), "fence.epoch"),
    (E.HeartbeatRequest(fence=FENCE, lease_duration=Duration(seconds=4)), "lease_duration"),
    (commit(operations=[E.Operation()]), "operations[0].operation"),
    (step(usage=run_pb2.Usage(input_tokens=-1)), "operations[0].commit_model_step.usage.input_tokens"),
    (step(content=[M.Block(text="a", provider_json="{")]), "operations[0].commit_model_step.content[0].provider_json"),
    (step(model="m" * 256), "operations[0].commit_model_step.model"),
    (step(content=[M.Block(tool_result=OK)]), "operations[0].commit_model_step.content[0].tool_result"),
    (step(content=[M.Block(tool_use=M.ToolUse(tool_call_id="a b", name="n"))]), "operations[0].commit_model_step.content[0].tool_use.tool_call_id"),
    (step(content=[M.Block(tool_use=M.ToolUse(tool_call_id="c"))]), "operations[0].commit_model_step.content[0].tool_use.name"),
    (claim(), "operations[0].claim_tool_calls.tool_call_ids"),
    (claim("a", "a"), "operations[0].claim_tool_calls.tool_call_ids"),
    (results(), "operations[0].commit_tool_results.results"),
    (results(OK, OK), "operations[0].commit_tool_results.results[1].tool_call_id"),
    (results(M.ToolResult(tool_call_id="c")), "operations[0].commit_tool_results.results[0].outcome"),
    (results(M.ToolResult(tool_call_id="c", outcome=1, content=[M.Block(tool_result=OK)])), "operations[0].commit_tool_results.results[0].content[0].tool_result"),
    (results(M.ToolResult(tool_call_id="c", outcome=1, content=[M.Block(data=M.Data(content_type="t", json="{"))])), "operations[0].commit_tool_results.results[0].content[0].data.json"),
    (commit(suspend=E.Suspend()), "suspend.wait"),
    (suspend(), "suspend.prompt.kind"),
    (suspend(permission=I.PermissionPrompt()), "suspend.prompt.permission.calls"),
    (suspend(permission=I.PermissionPrompt(calls=[I.PermissionCall(tool_call_id="c")] * 2)), "suspend.prompt.permission.calls[1].tool_call_id"),
    (suspend(question=I.QuestionPrompt()), "suspend.prompt.question.text"),
    (suspend(question=I.QuestionPrompt(text="?", tool_call_id="a b")), "suspend.prompt.question.tool_call_id"),
    (suspend(form=I.FormPrompt()), "suspend.prompt.form.json_schema"),
    (suspend(form=I.FormPrompt(json_schema="x" * 65_537)), "suspend.prompt.form.json_schema"),
    (suspend(external=I.ExternalPrompt(), seconds=0), "suspend.expire_duration"),
    (suspend(external=I.ExternalPrompt(), seconds=2_592_001), "suspend.expire_duration"),
    (limits(max_tool_calls=-1), "run_options.limits.max_tool_calls"),
    (limits(max_duration=Duration()), "run_options.limits.max_duration"),
    (limits(start_timeout_duration=Duration(seconds=1, nanos=-1)), "run_options.limits.start_timeout_duration"),
    (submit(run_options=run_pb2.RunOptions(tools=["a", "a"])), "run_options.tools"),
    (submit(run_options=run_pb2.RunOptions(recovery=9)), "run_options.recovery"),
    (submit(run_options=run_pb2.RunOptions(tool_error_policy=9)), "run_options.tool_error_policy"),
    (submit(run_options=run_pb2.RunOptions(max_recoveries=101)), "run_options.max_recoveries"),
    (S.PauseRunRequest(), "session_id"),
    (S.UnpauseRunRequest(), "session_id"),
    (S.AnswerInteractionRequest(run_id="r", interaction_id="i", version=1), "answer"),
    (S.AnswerInteractionRequest(run_id="r", interaction_id="i", version=1, answer=I.InteractionAnswer()), "answer.kind"),
    (S.AnswerInteractionRequest(run_id="r", interaction_id="i", answer=I.InteractionAnswer(question=I.QuestionAnswer(text="x"))), "version"),
    (S.CompleteExternalRequest(token="x", answer=I.ExternalAnswer(error="e")), "token"),
    (S.CompleteExternalRequest(token="x" * 16, answer=I.ExternalAnswer()), "answer.outcome"),
    (S.RestoreRunRequest(), "run_id"),
    (A.SettleRunRequest(run_id="r", stop_reason=1), "stop_reason"),
    (H.ListToolCallsRequest(), "run_id"),
    (H.ListInteractionsRequest(state=9), "state"),
    (commit(finish=E.Finish()), "finish.outcome"),
    (commit(finish=E.Finish(completed=E.Completed(output_json="{"))), "finish.completed.output_json"),
    (commit(finish=E.Finish(failed=run_pb2.RunFailure(reason=2))), "finish.failed.reason"),
    (delta(kind=0), "deltas[0].kind"),
    (delta(kind=9), "deltas[0].kind"),
    (delta(model_stream_id=""), "deltas[0].model_stream_id"),
    (delta(step=0), "deltas[0].step"),
    (delta(block_index=-1), "deltas[0].block_index"),
    (delta(base_revision=-1), "deltas[0].base_revision"),
    (delta(revision=0), "deltas[0].revision"),
    (delta(append_text="x" * 262_145), "deltas[0].append_text"),
    (delta(append_text="\0"), "deltas[0].append_text"),
    (E.PublishDeltasRequest(fence=FENCE, deltas=[event_pb2.Delta(model_stream_id="m", step=1, kind=1, revision=1)]), "deltas[0].piece"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "field"), BAD, ids=[f"{type(r).__name__}-{f}-{n}" for n, (r, f) in enumerate(BAD)]
)
def test_a_bad_request_is_refused_and_its_field_named(request_, field):
    if field is None:
        convert(request_)
        return
    with pytest.raises(Refused) as caught:
        convert(request_)
    error = caught.value
    assert error.reason is Reason.FIELD_INVALID
    assert field in [name for name, _ in error.violations]
    told = error.message + repr(error.violations)
    assert "hunter2" not in told
    assert LONG not in told


@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4, 5, 6])
def test_zero_means_the_stated_default(mode):
    command = convert(submit(mode=mode))
    assert command.mode is (Mode(mode) if mode else Mode.START)
    assert command.on_miss is OnMiss.FAIL
    assert command.expected_revision is None
    assert convert(submit(expected_revision=0)).expected_revision == 0


def test_options_of_a_steer_are_left_to_the_machine():
    assert convert(submit(mode=4, run_options=run_pb2.RunOptions())).options is not None


def test_limits_are_spans_in_microseconds():
    given = run_pb2.RunOptions(
        limits=run_pb2.RunLimits(
            max_tool_calls=2, max_duration=Duration(seconds=3), start_timeout_duration=Duration(nanos=4000)
        ),
        tools=["t"],
        recovery=2,
        max_recoveries=0,
    )  # fmt: skip
    asked = convert(submit(run_options=given)).options
    assert asked == RunOptions(
        limits=RunLimits(max_tool_calls=2, max_duration=3_000_000, start_timeout=4),
        tools=("t",),
        recovery=Recovery.MANUAL,
        max_recoveries=0,
    )
    assert convert(submit(run_options=run_pb2.RunOptions())).options == RunOptions()


def test_operations_on_tools():
    (claimed,) = convert(claim("b", "a")).operations
    assert claimed == ClaimToolCalls(("b", "a"))
    given = M.ToolResult(tool_call_id="d", outcome=2, content=HELLO)
    (done,) = convert(results(OK, given)).operations
    assert [(one.tool_call_id, one.outcome) for one in done.results] == [
        ("c", ToolOutcome.OK),
        ("d", ToolOutcome.ERROR),
    ]
    read = M.Message.FromString(done.results[1].content.data)
    assert [block.tool_result for block in read.content] == [given]


def test_settled_by_hand():
    assert convert(A.SettleRunRequest(run_id="r")) == SettleRun("r", StopReason.FAILED)
    asked = convert(A.SettleRunRequest(run_id="r", stop_reason=3, reason="x"))
    assert asked == SettleRun("r", StopReason.CANCELLED, "x")


def test_results_are_bounded_together():
    half = [M.Block(text="x" * (1024 * 1024))]
    many = [M.ToolResult(tool_call_id=f"c{n}", outcome=1, content=half) for n in range(4)]
    convert(results(*many[:2]))
    with pytest.raises(Refused) as caught:
        convert(results(*many))
    assert caught.value.reason is Reason.MESSAGE_TOO_LARGE


def test_content_over_the_limit_is_told_with_its_size():
    for given in (
        submit(content=[M.Block(text="\0" * (3 * 1024 * 1024 + 1))]),
        step(content=[M.Block(text="\0" * (3 * 1024 * 1024 + 1))]),
        H.ForkSessionRequest(
            run_id="r", input=H.ForkInput(content=[M.Block(text="x" * 4_000_000)])
        ),
    ):
        with pytest.raises(Refused) as caught:
            convert(given)
        assert caught.value.reason is Reason.MESSAGE_TOO_LARGE


def test_many_broken_rules_cost_little():
    raw = b"\x3a\x00" * 1_400_000
    given = S.SubmitRequest.FromString(raw)
    began = time.perf_counter()
    with pytest.raises(Refused):
        validate(given, len(raw))
    assert time.perf_counter() - began < 2
