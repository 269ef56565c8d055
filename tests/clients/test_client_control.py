"""Pauses, answers and recovery: what is sent, and what comes of it."""

import grpc
import pytest
import runlane
from client_fakes import FakeServer, answering, refuse
from runlane import (
    Client,
    Decision,
    ExternalAnswer,
    FormAnswer,
    Interaction,
    InteractionNotFound,
    PermissionAnswer,
    PromptKind,
    QuestionAnswer,
    RunOptions,
    SessionManager,
    Verdict,
    tool,
)
from runlane._interactions import answer_to_pb, interaction_from_pb
from runlane.v1 import (
    admin_service_pb2,
    executor_service_pb2,
    history_service_pb2,
    interaction_pb2,
    message_pb2,
    run_pb2,
    session_pb2,
)
from runlane.v1 import session_service_pb2 as pb

pytestmark = pytest.mark.asyncio


def asked(**prompt) -> interaction_pb2.Interaction:
    return interaction_pb2.Interaction(
        interaction_id="int_1",
        run_id="run_1",
        session_id="main",
        version=1,
        state=interaction_pb2.Interaction.STATE_OPEN,
        prompt=interaction_pb2.Prompt(**prompt),
    )


PERMISSION = asked(
    permission=interaction_pb2.PermissionPrompt(
        calls=[
            interaction_pb2.PermissionCall(tool_call_id=key, name="pay", arguments_json='{"n": 1}')
            for key in ("a", "b")
        ],
        reason="money",
    )
)
QUESTION = asked(question=interaction_pb2.QuestionPrompt(text="Which?", options=["x", "y"]))
FORM = asked(form=interaction_pb2.FormPrompt(text="Fill", json_schema="{}"))
EXTERNAL = asked(external=interaction_pb2.ExternalPrompt(reason="a webhook"))


def read(record: interaction_pb2.Interaction) -> Interaction:
    return interaction_from_pb(record)


def verdicts(answer: interaction_pb2.InteractionAnswer) -> list[tuple]:
    return [(one.tool_call_id, one.verdict, one.reason) for one in answer.permission.decisions]


APPROVE, REJECT = interaction_pb2.Decision.VERDICT_APPROVE, interaction_pb2.Decision.VERDICT_REJECT


async def test_prompts_and_answers_are_read():
    permission = read(PERMISSION)
    assert permission.kind is PromptKind.PERMISSION
    assert [(one.tool_call_id, one.arguments) for one in permission.calls] == [
        ("a", {"n": 1}),
        ("b", {"n": 1}),
    ]
    assert (read(QUESTION).prompt.text, read(QUESTION).prompt.options) == ("Which?", ("x", "y"))
    assert read(FORM).prompt.json_schema == "{}"
    assert read(EXTERNAL).prompt.reason == "a webhook"
    bare = read(interaction_pb2.Interaction(interaction_id="int_1"))
    assert (bare.kind, bare.prompt, bare.answer, bare.calls) == ("unknown", None, None, ())
    for given in (
        PermissionAnswer(
            decisions=(Decision(tool_call_id="a", verdict=Verdict.REJECT, reason="r"),)
        ),
        QuestionAnswer(text="x"),
        FormAnswer(json_text="{}"),
        ExternalAnswer(result_json="1"),
        ExternalAnswer(error="no"),
    ):
        record = interaction_pb2.Interaction(answer=answer_to_pb(given))
        assert read(record).answer == given


async def test_answers_are_written_by_their_question():
    permission = read(PERMISSION)
    assert verdicts(answer_to_pb(True, permission)) == [("a", APPROVE, ""), ("b", APPROVE, "")]
    assert verdicts(answer_to_pb((False, "no"), permission)) == [
        ("a", REJECT, "no"),
        ("b", REJECT, "no"),
    ]
    mixed = answer_to_pb({"a": True, "b": (False, "no")}, permission)
    assert verdicts(mixed) == [("a", APPROVE, ""), ("b", REJECT, "no")]
    assert answer_to_pb("y", read(QUESTION)).question.text == "y"
    assert answer_to_pb({"a": True}, read(FORM)).form.json == '{"a": true}'
    for wrong, question in (
        ({"a": True}, permission),
        ({"a": True, "b": True, "c": True}, permission),
        (True, read(QUESTION)),
        (True, None),
        (True, read(FORM)),
        ({"a": 1}, read(EXTERNAL)),
        (ExternalAnswer(), None),
    ):
        with pytest.raises(ValueError, match=r"."):
            answer_to_pb(wrong, question)


async def test_pause_and_unpause(server: FakeServer, client):
    run = run_pb2.Run(run_id="run_1", phase=run_pb2.Run.PHASE_PAUSED, pause_requested=True)
    paused = pb.PauseRunResponse(receipt=pb.PAUSE_RECEIPT_PAUSED, run=run, sequence=7)
    server.handlers["PauseRun"] = answering(paused)
    resumed = pb.UnpauseRunResponse(receipt=pb.PAUSE_RECEIPT_RESUMED, run=run, replayed=True)
    server.handlers["UnpauseRun"] = answering(resumed)
    done = await client.pause("main", run_id="run_1", request_id="r-1")
    assert (done.receipt, done.sequence, done.run.stopped) == ("paused", 7, True)
    assert done.run.pause_requested
    sent = server.calls["PauseRun"][0]
    assert (sent.session_id, sent.run_id, sent.request_id) == ("main", "run_1", "r-1")
    assert (await client.unpause("main")).receipt == "resumed"
    assert server.calls["UnpauseRun"][0].request_id


async def test_an_answer_reads_its_question_only_where_it_must(server: FakeServer, client):
    server.handlers["AnswerInteraction"] = answering(
        pb.AnswerInteractionResponse(interaction=QUESTION, run=run_pb2.Run(run_id="run_1"))
    )
    receipt = await client.answer("run_1", "int_1", 1, "y")
    assert (receipt.run_id, receipt.interaction_id) == ("run_1", "int_1")
    assert not server.calls["GetRun"]
    found = history_service_pb2.GetRunResponse(run=run_pb2.Run(session_id="main"))
    server.handlers["GetRun"] = answering(found)

    async def interactions(request, context):
        answered = request.state == interaction_pb2.Interaction.STATE_ANSWERED
        listed = [PERMISSION] if answered and request.page_token else []
        more = "next" if answered and not request.page_token else ""
        return history_service_pb2.ListInteractionsResponse(
            interactions=listed, next_page_token=more
        )

    server.handlers["ListInteractions"] = interactions
    await client.answer("run_1", "int_1", 1, True)
    sent = server.calls["AnswerInteraction"][1]
    assert verdicts(sent.answer) == [("a", APPROVE, ""), ("b", APPROVE, "")]
    with pytest.raises(InteractionNotFound) as caught:
        await client.answer("run_1", "int_2", 1, True)
    assert caught.value.code is grpc.StatusCode.NOT_FOUND


async def test_an_external_wait_is_completed_with_its_token(server: FakeServer, client):
    server.handlers["CompleteExternal"] = answering(
        pb.CompleteExternalResponse(interaction=EXTERNAL, sequence=3)
    )
    done = await client.complete_external("t" * 20, result={"ok": True})
    assert (done.run_id, done.run, done.sequence) == ("run_1", None, 3)
    await client.complete_external("t" * 20)
    await client.complete_external("t" * 20, error="no")
    said = [one.answer for one in server.calls["CompleteExternal"]]
    assert [one.result_json for one in said] == ['{"ok": true}', "null", ""]
    assert said[2].error == "no"
    with pytest.raises(ValueError, match="either"):
        await client.complete_external("t" * 20, result=1, error="no")


async def test_restore_and_settle(server: FakeServer, client):
    outcome = pb.RestoreRunResponse.OUTCOME_RECOVERY_QUEUED
    run = run_pb2.Run(run_id="run_1", stalled=True, recoveries=2)
    server.handlers["RestoreRun"] = answering(pb.RestoreRunResponse(run=run, outcome=outcome))
    done = await client.restore("run_1", "act_1", force=True)
    assert (done.outcome, done.run.stalled, done.run.recoveries) == ("recovery_queued", True, 2)
    sent = server.calls["RestoreRun"][0]
    assert (sent.expected_activation_id, sent.force) == ("act_1", True)
    code = grpc.StatusCode.ABORTED

    async def mismatch(_request, context):
        await refuse(context, code, "ACTIVATION_MISMATCH", activation_id="act_2")

    server.handlers["RestoreRun"] = mismatch
    with pytest.raises(runlane.ActivationMismatch):
        await client.restore("run_1")
    stalled = admin_service_pb2.ListStalledRunsResponse(runs=[run], next_page_token="more")
    server.handlers["ListStalledRuns"] = answering(stalled)
    page = await client.list_stalled_runs()
    assert ([one.run_id for one in page.items], page.next_cursor) == (["run_1"], "more")
    server.handlers["SettleRun"] = answering(admin_service_pb2.SettleRunResponse(run=run))
    await client.settle_run("run_1", "cancelled", reason="gone")
    assert server.calls["SettleRun"][0].stop_reason == run_pb2.Run.STOP_REASON_CANCELLED


async def test_how_a_server_is_doing_is_read(server: FakeServer, client):
    told = admin_service_pb2.GetOverviewResponse(
        open_session_count=3, more_sessions=True, store_size_bytes=2**40, store_available=True
    )
    server.handlers["GetOverview"] = answering(told)
    seen = await client.overview()
    assert (seen.open_session_count, seen.closed_session_count) == (3, 0)
    assert (seen.more_sessions, seen.store_available) == (True, True)
    assert (seen.oldest_queued_seconds, seen.server_time) == (None, None)
    assert seen.store_size_bytes == 2**40
    told.oldest_queued_duration.FromMilliseconds(1500)
    told.server_time.FromSeconds(7)
    seen = await client.overview()
    assert (seen.oldest_queued_seconds, seen.server_time.timestamp()) == (1.5, 7)
    one = admin_service_pb2.ExecutorStatus(executor_id="e", agents=["a"], leased_count=2)
    server.handlers["ListExecutors"] = answering(
        admin_service_pb2.ListExecutorsResponse(executors=[one], next_page_token="more")
    )
    page = await client.list_executors(limit=1, after="x")
    assert page.next_cursor == "more"
    (read,) = page.items
    assert (read.executor_id, read.agents, read.leased_count) == ("e", ("a",), 2)
    assert (read.last_poll_time, read.polling, read.draining) == (None, False, False)
    sent = server.calls["ListExecutors"][0]
    assert (sent.page_size, sent.page_token) == (1, "x")


async def test_tool_calls_are_read(server: FakeServer, client):
    result = message_pb2.ToolResult(
        tool_call_id="c",
        outcome=message_pb2.ToolResult.OUTCOME_OK,
        content=[message_pb2.Block(text="3")],
    )
    call = executor_service_pb2.ToolCall(
        tool_call_id="c",
        name="add",
        ordinal=1,
        step=2,
        arguments_json='{"a": 1}',
        state=executor_service_pb2.ToolCall.STATE_COMMITTED,
        result=result,
    )
    bare = executor_service_pb2.ToolCall(tool_call_id="d")
    answer = history_service_pb2.ListToolCallsResponse(tool_calls=[call, bare])
    server.handlers["ListToolCalls"] = answering(answer)
    first, second = (await client.list_tool_calls("run_1")).items
    assert (first.arguments, first.outcome, first.text, first.state) == (
        {"a": 1},
        "ok",
        "3",
        "committed",
    )
    assert (second.arguments, second.outcome, second.content) == ({}, None, ())


async def test_options_go_there_and_back():
    from runlane._convert import options_to_pb, run_options

    options = RunOptions(
        agent="a",
        max_tool_calls=5,
        max_total_tokens=1000,
        max_cost_usd_micros=9,
        max_duration=60,
        interaction_timeout=1.5,
        start_timeout=2,
        tools=("add",),
        tool_timeout=3,
        tool_error_policy="stop",
        recovery="manual",
        max_recoveries=0,
    )
    written = options_to_pb(options)
    assert written.limits.max_duration.seconds == 60
    assert written.HasField("max_recoveries")
    assert run_options(written) == options
    assert not options_to_pb(RunOptions()).ByteSize()


async def test_a_manager_answers_what_its_session_waits_for(server: FakeServer, client: Client):
    created = pb.CreateSessionResponse(session=session_pb2.Session(session_id="main"), sequence=1)
    server.handlers["CreateSession"] = answering(created)
    waiting = run_pb2.Run(run_id="run_1", session_id="main", phase=run_pb2.Run.PHASE_WAITING)
    ended = run_pb2.Run(run_id="run_1", session_id="main", phase=run_pb2.Run.PHASE_TERMINAL)
    live = session_pb2.LiveState(run=waiting, open_interactions=[PERMISSION], sequence=5)
    server.handlers["GetLiveState"] = answering(pb.GetLiveStateResponse(live_state=live))
    server.handlers["WaitRun"] = answering(history_service_pb2.WaitRunResponse(run=waiting))
    server.handlers["AnswerInteraction"] = answering(
        pb.AnswerInteractionResponse(interaction=PERMISSION, run=waiting)
    )
    manager = SessionManager(client, "main")
    stopped = await manager.wait("run_1", until="stopped")
    assert (stopped.phase, stopped.interaction.interaction_id) == ("waiting", "int_1")
    receipt = await manager.admit_resume({"a": True, "b": False})
    assert (receipt.run_id, receipt.interaction_id) == ("run_1", "int_1")
    server.handlers["WaitRun"] = answering(history_service_pb2.WaitRunResponse(run=ended))
    for question in (None, "int_1", stopped.interaction):
        assert (await manager.resume(True, question)).phase == "terminal"
    assert len(server.calls["AnswerInteraction"]) == 4
    server.handlers["ListInteractions"] = answering(history_service_pb2.ListInteractionsResponse())
    with pytest.raises(InteractionNotFound):
        await manager.resume(True, "int_9")
    await manager.close()
    with pytest.raises(runlane.ManagerClosedError):
        await manager.resume(True)


async def test_a_prompt_that_the_live_state_left_out_is_read_by_itself(server, client):
    waiting = run_pb2.Run(
        run_id="run_1", session_id="main", phase=run_pb2.Run.PHASE_WAITING, interaction_id="int_1"
    )
    bare = interaction_pb2.Interaction()
    bare.CopyFrom(PERMISSION)
    bare.ClearField("prompt")
    live = session_pb2.LiveState(
        session=session_pb2.Session(session_id="main"), run=waiting, open_interactions=[bare]
    )
    server.handlers["GetLiveState"] = answering(pb.GetLiveStateResponse(live_state=live))
    server.handlers["WaitRun"] = answering(history_service_pb2.WaitRunResponse(run=waiting))
    server.handlers["CreateSession"] = answering(
        pb.CreateSessionResponse(session=session_pb2.Session(session_id="main"))
    )
    server.handlers["ListInteractions"] = answering(
        history_service_pb2.ListInteractionsResponse(interactions=[PERMISSION])
    )
    server.handlers["AnswerInteraction"] = answering(
        pb.AnswerInteractionResponse(interaction=PERMISSION, run=waiting)
    )
    manager = SessionManager(client, "main")
    stopped = await manager.wait("run_1", until="stopped")
    assert [call.tool_call_id for call in stopped.interaction.calls] == ["a", "b"]
    await manager.admit_resume(True)
    (sent,) = server.calls["AnswerInteraction"]
    assert len(sent.answer.permission.decisions) == 2


async def test_a_tool_keeps_what_it_was_made_with():
    @tool(name="n", description="d", idempotent=True, policy="ask", timeout=3)
    def function(a: int, b: "list[str]", json: str = "x") -> None:
        """Not this."""

    assert (function.name, function.description, function.idempotent) == ("n", "d", True)
    assert (function.policy, function.timeout) == ("ask", 3)
    schema = function.schema
    assert schema["required"] == ["a", "b"]
    assert schema["additionalProperties"] is False
    assert schema["properties"] == {
        "a": {"type": "integer"},
        "b": {"type": "array", "items": {"type": "string"}},
        "json": {"type": "string", "default": "x"},
    }
    assert function.arguments({"a": 1, "b": ["c"]}) == {"a": 1, "b": ["c"], "json": "x"}
