import asyncio
from dataclasses import replace

import grpc
import pytest
from fakes import (
    FENCE,
    NOW,
    FakeApp,
    details,
    interaction_row,
    message_row,
    run_view,
    serving,
    tool_call_row,
)
from grpc_health.v1 import health_pb2, health_pb2_grpc
from runlane.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    executor_service_pb2,
    executor_service_pb2_grpc,
    history_service_pb2,
    history_service_pb2_grpc,
    interaction_pb2,
    message_pb2,
    run_pb2,
    session_service_pb2,
    session_service_pb2_grpc,
)
from runlane_server.core.commands import ClaimToolCalls, RestoreRun, SettleRun, Suspend
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.words import (
    InteractionState,
    PromptKind,
    StopReason,
    ToolCallState,
    ToolOutcome,
)
from runlane_server.transport.content import text_result
from runlane_server.transport.values import SEND_BYTES_MAX

pytestmark = pytest.mark.asyncio
I = interaction_pb2  # noqa: E741 - the protos by their first letters
E = executor_service_pb2
PB_FENCE = run_pb2.Fence(session_id="s", run_id="run_1", activation_id="act_1", epoch=1)
PERMISSION = I.Prompt(
    permission=I.PermissionPrompt(
        calls=[I.PermissionCall(tool_call_id="call_1", name="tool", arguments_json='{"a":1}')]
    )
)
MEBIBYTE = 1024 * 1024


async def failing(call) -> dict:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return details(caught.value)


async def test_pause_restore_and_settle():
    pb = session_service_pb2
    app = FakeApp()
    async with serving(app) as (_, channel):
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        paused = await stub.PauseRun(pb.PauseRunRequest(session_id="s", request_id="r"))
        assert (paused.receipt, paused.sequence) == (pb.PAUSE_RECEIPT_REQUESTED, 9)
        assert paused.run.activation.kind == run_pb2.Activation.KIND_CONTINUE
        assert app.asked[-1][2:] == ("s", "")
        assert len(app.asked[-1][1].request_hash) == 16
        unpaused = await stub.UnpauseRun(pb.UnpauseRunRequest(run_id="run_1"))
        assert (unpaused.receipt, unpaused.replayed) == (pb.PAUSE_RECEIPT_RESUMED, True)
        assert app.asked[-1][2:] == ("", "run_1")
        restored = await stub.RestoreRun(
            pb.RestoreRunRequest(run_id="run_1", expected_activation_id="act_1", force=True)
        )
        assert restored.outcome == pb.RestoreRunResponse.OUTCOME_RECOVERY_QUEUED
        assert app.asked[-1][2] == RestoreRun("run_1", "act_1", True)

        admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        settled = await admin.SettleRun(
            admin_service_pb2.SettleRunRequest(run_id="run_1", stop_reason=3, reason="x")
        )
        assert settled.run.phase == run_pb2.Run.PHASE_TERMINAL
        assert (settled.sequence, settled.replayed) == (9, True)
        assert app.asked[-1][2] == SettleRun("run_1", StopReason.CANCELLED, "x")
        page = await admin.ListStalledRuns(admin_service_pb2.ListStalledRunsRequest())
        assert [run.run_id for run in page.runs] == ["run_1"]
        await admin.ListStalledRuns(
            admin_service_pb2.ListStalledRunsRequest(page_token=page.next_page_token)
        )
        assert app.asked[-1] == ("list_stalled_runs", "default", (5, "x"), 50)
        seen = await admin.GetOverview(admin_service_pb2.GetOverviewRequest())
        assert (seen.open_session_count, seen.closed_session_count) == (3, 0)
        assert seen.more_sessions
        assert (seen.active_run_count, seen.waiting_run_count, seen.stalled_run_count) == (0, 2, 1)
        assert (seen.open_interaction_count, seen.queued_activation_count) == (4, 6)
        assert seen.oldest_queued_duration.ToMilliseconds() == 1500
        assert (seen.leased_activation_count, seen.executor_count, seen.stream_count) == (7, 8, 9)
        assert (seen.store_size_bytes, seen.store_available) == (5_000_000_000, True)
        assert seen.server_time.ToMicroseconds() == NOW
        listed = await admin.ListExecutors(admin_service_pb2.ListExecutorsRequest(page_size=1))
        assert app.asked[-1] == ("list_executors", "default", "", 1)
        (one,) = listed.executors
        assert (one.executor_id, one.agents, one.leased_count) == ("e", ["a", "b"], 2)
        assert one.polling
        assert one.draining
        await admin.ListExecutors(
            admin_service_pb2.ListExecutorsRequest(page_token=listed.next_page_token)
        )
        assert app.asked[-1] == ("list_executors", "default", "e", 50)
        health = health_pb2_grpc.HealthStub(channel)
        status = await health.Check(
            health_pb2.HealthCheckRequest(service="runlane.v1.AdminService")
        )
        assert status.status == health_pb2.HealthCheckResponse.SERVING


async def test_an_answer():
    pb = session_service_pb2
    app = FakeApp()
    async with serving(app) as (_, channel):
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        request = pb.AnswerInteractionRequest(
            run_id="run_1",
            interaction_id="int_1",
            version=1,
            answer=I.InteractionAnswer(question=I.QuestionAnswer(text="because")),
            request_id="r",
        )
        answered = await stub.AnswerInteraction(request)
        assert answered.interaction.state == I.Interaction.STATE_ANSWERED
        assert not answered.interaction.HasField("prompt")
        assert answered.interaction.settle_time.ToMicroseconds() == NOW
        assert (answered.run.run_id, answered.sequence, answered.replayed) == ("run_1", 9, True)
        (_, *looked), (_, caller, row, command) = app.asked
        assert looked == ["default", "run_1", "int_1"]
        assert row is app.interaction
        assert (command.kind, command.version) == (PromptKind.QUESTION, 1)
        digest = caller.request_hash
        request.answer.question.text = "other"
        await stub.AnswerInteraction(request)
        assert app.asked[-1][1].request_hash != digest

        request.answer.form.json = "1"
        found = await failing(stub.AnswerInteraction(request))
        assert found["ErrorInfo"].reason == "ANSWER_INVALID"
        assert found["BadRequest"].field_violations[0].field == "answer.form"
        app.interaction.state = InteractionState.CLOSED
        await stub.AnswerInteraction(request)
        assert app.asked[-1][3].kind is PromptKind.FORM


async def test_the_json_of_a_form_is_held_to_its_schema():
    app = FakeApp()
    schema = '{"properties":{"a":{"type":"integer"}}}'
    app.interaction = interaction_row(I.Prompt(form=I.FormPrompt(json_schema=schema)))
    async with serving(app) as (_, channel):
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        request = session_service_pb2.AnswerInteractionRequest(
            run_id="run_1",
            interaction_id="int_1",
            version=1,
            answer=I.InteractionAnswer(form=I.FormAnswer(json='{"a":"x"}')),
        )
        found = await failing(stub.AnswerInteraction(request))
        assert found["ErrorInfo"].reason == "ANSWER_INVALID"
        assert found["BadRequest"].field_violations[0].field == "answer.form.json"
        request.answer.form.json = '{"a":1}'
        await stub.AnswerInteraction(request)
        assert app.asked[-1][0] == "answer_interaction"


async def test_a_token_completes_an_external_wait_and_nothing_else():
    pb = session_service_pb2
    app = FakeApp()
    app.interaction = interaction_row(
        I.Prompt(external=I.ExternalPrompt(tool_call_id="call_1")), version=3
    )
    async with serving(app) as (_, channel):
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        request = pb.CompleteExternalRequest(
            token="int_1.0123456789", answer=I.ExternalAnswer(error="broken")
        )
        completed = await stub.CompleteExternal(request)
        assert completed.interaction.interaction_id == "int_1"
        (_, *looked), (_, _, _, command) = app.asked
        assert looked == ["int_1.0123456789"]
        assert (command.version, command.outcome) == (3, ToolOutcome.ERROR)
        request.answer.result_json = "{"
        found = await failing(stub.CompleteExternal(request))
        assert found["ErrorInfo"].reason == "ANSWER_INVALID"
        app.interaction = interaction_row()
        request.answer.result_json = "{}"
        found = await failing(stub.CompleteExternal(request))
        assert found["ErrorInfo"].reason == "INTERACTION_NOT_FOUND"


async def test_the_lists():
    pb = history_service_pb2
    app = FakeApp()
    async with serving(app) as (_, channel):
        stub = history_service_pb2_grpc.HistoryServiceStub(channel)
        page = await stub.ListToolCalls(pb.ListToolCallsRequest(run_id="run_1"))
        done, waiting = page.tool_calls
        assert (done.tool_call_id, done.step, done.ordinal, done.name) == ("call_1", 1, 1, "tool")
        assert (done.state, done.idempotent) == (E.ToolCall.STATE_COMMITTED, True)
        assert done.result.content[0].text == "done"
        assert done.settle_time.ToMicroseconds() == NOW + 1
        assert not waiting.HasField("result")
        await stub.ListToolCalls(
            pb.ListToolCallsRequest(run_id="run_1", page_token=page.next_page_token, page_size=7)
        )
        assert app.asked[-1] == ("list_tool_calls", "default", "run_1", (1, 2), 7)
        found = await failing(
            stub.ListToolCalls(
                pb.ListToolCallsRequest(run_id="run_2", page_token=page.next_page_token)
            )
        )
        assert found["ErrorInfo"].reason == "PAGE_TOKEN_MISMATCH"

        listed = await stub.ListInteractions(pb.ListInteractionsRequest())
        assert listed.interactions[0].prompt.question.text == "why?"
        assert listed.interactions[0].expire_time.ToMicroseconds() == NOW + 9
        assert not listed.interactions[0].HasField("settle_time")
        assert app.asked[-1] == (
            "list_interactions",
            "default",
            "",
            InteractionState.OPEN,
            None,
            50,
        )
        await stub.ListInteractions(
            pb.ListInteractionsRequest(state=1, page_token=listed.next_page_token)
        )
        assert app.asked[-1][4] == (5, "x")
        await stub.ListInteractions(pb.ListInteractionsRequest(session_id="s", state=3))
        assert app.asked[-1][2:4] == ("s", InteractionState.CLOSED)

        live = session_service_pb2_grpc.SessionServiceStub(channel)
        state = await live.GetLiveState(session_service_pb2.GetLiveStateRequest(session_id="s"))
        assert [one.interaction_id for one in state.live_state.open_interactions] == ["int_1"]


async def test_pages_of_calls_are_cut_by_bytes():
    pb = history_service_pb2
    app = FakeApp()
    large = text_result("c", ToolOutcome.OK, "x" * 1_500_000).data
    app.calls = ([tool_call_row(n, result=large) for n in (1, 2, 3)], None)
    async with serving(app) as (_, channel):
        stub = history_service_pb2_grpc.HistoryServiceStub(channel)
        page = await stub.ListToolCalls(pb.ListToolCallsRequest(run_id="run_1"))
        assert [call.ordinal for call in page.tool_calls] == [1]
        await stub.ListToolCalls(
            pb.ListToolCallsRequest(run_id="run_1", page_token=page.next_page_token)
        )
        assert app.asked[-1][3] == (1, 1)


async def test_what_an_executor_is_given():
    app = FakeApp()
    async with serving(app) as (_, channel):
        stub = executor_service_pb2_grpc.ExecutorServiceStub(channel)
        polled = await stub.PollActivation(E.PollActivationRequest(executor_id="e", agents=["a"]))
        given = polled.activation
        assert given.kind == run_pb2.Activation.KIND_CONTINUE
        assert [call.tool_call_id for call in given.tool_calls] == ["call_1", "call_2"]
        assert given.tool_calls[0].result.content[0].text == "done"
        assert given.tool_calls[1].arguments_json == '{"a":1}'
        assert given.answered_interactions[0].state == I.Interaction.STATE_ANSWERED
        assert given.control.pause_requested
        assert len(given.context.messages) == 2


async def test_what_is_given_to_an_executor_fits_a_message():
    app = FakeApp()
    arguments = f'{{"a":"{"x" * (3 * MEBIBYTE)}"}}'
    result = text_result("c", ToolOutcome.OK, "x" * (MEBIBYTE // 2)).data
    calls = [
        tool_call_row(1, ToolCallState.PREPARED, arguments_json=arguments),
        tool_call_row(2, result=result),
        tool_call_row(3, result=result),
    ]
    prompt = I.Prompt()
    prompt.CopyFrom(PERMISSION)
    prompt.permission.calls[0].arguments_json = arguments
    answered = [interaction_row(PERMISSION) for _ in range(2)] + [interaction_row(prompt)]
    app.leased = replace(app.leased, calls=calls, answered=answered, context=[message_row(1, "x" * MEBIBYTE)])  # fmt: skip
    async with serving(app) as (_, channel):
        stub = executor_service_pb2_grpc.ExecutorServiceStub(channel)
        polled = await stub.PollActivation(E.PollActivationRequest(executor_id="e", agents=["a"]))
        given = polled.activation
        assert polled.ByteSize() <= SEND_BYTES_MAX
        assert given.tool_calls[0].arguments_json == arguments
        assert [len(call.result.content) for call in given.tool_calls] == [0, 1, 0]
        assert given.tool_calls[2].result.outcome == message_pb2.ToolResult.OUTCOME_OK
        assert len(given.answered_interactions) == 3
        assert not given.answered_interactions[2].prompt.permission.calls[0].arguments_json
        assert not given.HasField("context")

        many = [interaction_row(I.Prompt(question=I.QuestionPrompt(text="x" * MEBIBYTE)), version=n) for n in range(9)]  # fmt: skip
        app.leased = replace(app.leased, calls=[], answered=many)
        polled = await stub.PollActivation(E.PollActivationRequest(executor_id="e", agents=["a"]))
        assert [one.version for one in polled.activation.answered_interactions] == [6, 7, 8]


def suspend(**prompt):
    return E.CommitRequest(fence=PB_FENCE, suspend=E.Suspend(prompt=I.Prompt(**prompt)))


async def test_permission_is_asked_with_what_the_calls_are():
    app = FakeApp()
    app.run = run_view()
    asking = I.PermissionPrompt(
        calls=[
            I.PermissionCall(tool_call_id="call_1", name="forged", arguments_json="{}"),
            I.PermissionCall(tool_call_id="call_9", name="forged"),
        ]
    )
    async with serving(app) as (_, channel):
        stub = executor_service_pb2_grpc.ExecutorServiceStub(channel)
        request = suspend(permission=asking)
        request.request_id = "r"
        committed = await stub.Commit(request)
        assert committed.external_token == "t"
        assert app.asked[-2] == ("list_tool_calls", "default", "run_1", (1, 0), 256)
        _, caller, command = app.asked[-1]
        assert isinstance(command.outcome, Suspend)
        assert command.outcome.tool_call_ids == ("call_1", "call_9")
        first, unknown = I.Prompt.FromString(command.outcome.prompt).permission.calls
        assert (first.name, first.arguments_json) == ("tool", '{"a":1}')
        assert (unknown.name, unknown.arguments_json) == ("", "")

        # The request is the same whatever the batch is by then: its answer may be a replay.
        app.calls = ([], None)
        await stub.Commit(request)
        assert app.asked[-1][1].request_hash == caller.request_hash

        step = E.CommitModelStep(
            content=[
                message_pb2.Block(
                    tool_use=message_pb2.ToolUse(
                        tool_call_id="call_1", name="mine", arguments_json='{"b":2}'
                    )
                )
            ]
        )
        request.operations.add(commit_model_step=step)
        await stub.Commit(request)
        assert [name for name, *_ in app.asked[-2:]] == ["commit", "commit"]
        first = I.Prompt.FromString(app.asked[-1][2].outcome.prompt).permission.calls[0]
        assert (first.name, first.arguments_json) == ("mine", '{"b":2}')


async def test_a_run_that_is_gone_is_for_the_command_to_refuse():
    app = FakeApp()

    async def gone(*_args):
        raise Refused(Reason.RUN_NOT_FOUND)

    app.get_run = gone
    async with serving(app) as (_, channel):
        stub = executor_service_pb2_grpc.ExecutorServiceStub(channel)
        asking = I.PermissionPrompt(calls=[I.PermissionCall(tool_call_id="call_1")])
        await stub.Commit(suspend(permission=asking))
        assert app.asked[-1][0] == "commit"


async def test_a_form_needs_a_schema_and_the_server_goes_on_meanwhile():
    app = FakeApp()
    async with serving(app) as (_, channel):
        stub = executor_service_pb2_grpc.ExecutorServiceStub(channel)
        found = await failing(stub.Commit(suspend(form=I.FormPrompt(json_schema='{"type":"x"}'))))
        assert found["ErrorInfo"].reason == "FIELD_INVALID"
        field = found["BadRequest"].field_violations[0].field
        assert field == "suspend.prompt.form.json_schema"
        parts = ",".join(f'"p{n}":{{"type":"string"}}' for n in range(2000))
        slow = stub.Commit(suspend(form=I.FormPrompt(json_schema=f'{{"properties":{{{parts}}}}}')))
        quick = stub.Heartbeat(E.HeartbeatRequest(fence=PB_FENCE))
        first, _ = await asyncio.wait(
            [asyncio.ensure_future(_result(slow, "slow")), asyncio.ensure_future(_result(quick, "quick"))],
            return_when=asyncio.FIRST_COMPLETED,
        )  # fmt: skip
        assert [done.result() for done in first] == ["quick"]
        await slow
        assert app.asked[-1][2].outcome.kind is PromptKind.FORM


async def _result(call, name):
    await call
    return name


async def test_the_results_of_operations_on_tools():
    app = FakeApp()
    use = message_pb2.ToolUse(tool_call_id="call_1", name="tool", arguments_json='{"a":1}')
    result = message_pb2.ToolResult(tool_call_id="call_1", outcome=1)
    operations = [
        E.Operation(commit_model_step=E.CommitModelStep(content=[message_pb2.Block(tool_use=use)])),
        E.Operation(claim_tool_calls=E.ClaimToolCalls(tool_call_ids=["call_1"], idempotent=True)),
        E.Operation(commit_tool_results=E.CommitToolResults(results=[result])),
    ]
    async with serving(app) as (_, channel):
        stub = executor_service_pb2_grpc.ExecutorServiceStub(channel)
        request = E.CommitRequest(fence=PB_FENCE, operations=operations)
        committed = await stub.Commit(request)
        assert app.asked[-1][2].operations[1] == ClaimToolCalls(("call_1",), True)
        assert app.asked[-1][2].fence == FENCE
        kinds = [one.WhichOneof("result") for one in committed.results]
        assert kinds == ["commit_model_step", "claim_tool_calls", "commit_tool_results"]
        (call,) = committed.results[0].commit_model_step.tool_calls
        assert (call.tool_call_id, call.run_id, call.step, call.ordinal) == (
            "call_1",
            "run_1",
            1,
            1,
        )
        assert (call.name, call.arguments_json) == ("tool", '{"a":1}')
        assert call.state == E.ToolCall.STATE_PREPARED
        assert not call.HasField("result")
        assert committed.results[2].commit_tool_results.batch_closed

        app.messages = [message_row(1, "x" * (2 * MEBIBYTE))]
        use.arguments_json = f'{{"a":"{"x" * (2 * MEBIBYTE)}"}}'
        operations[0].commit_model_step.content[0].tool_use.CopyFrom(use)
        committed = await stub.Commit(E.CommitRequest(fence=PB_FENCE, operations=operations[:1]))
        assert not committed.results[0].commit_model_step.tool_calls[0].arguments_json
        assert len(committed.delivered) == 1


async def test_the_live_state_fits_a_message():
    app = FakeApp()
    prompt = I.Prompt()
    prompt.CopyFrom(PERMISSION)
    prompt.permission.calls[0].arguments_json = f'"{"x" * (2 * MEBIBYTE)}"'
    app.interaction = interaction_row(prompt)
    async with serving(app) as (_, channel):
        stub = session_service_pb2_grpc.SessionServiceStub(channel)
        request = session_service_pb2.GetLiveStateRequest(session_id="s")
        state = (await stub.GetLiveState(request)).live_state
        assert state.open_interactions[0].prompt == prompt
        app.messages = [message_row(1, "x" * (2 * MEBIBYTE))]
        answer = await stub.GetLiveState(request)
        assert answer.ByteSize() <= SEND_BYTES_MAX
        call = answer.live_state.open_interactions[0].prompt.permission.calls[0]
        assert (call.name, call.arguments_json) == ("tool", "")
