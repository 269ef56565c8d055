"""Traces of a real server, a client and an executor: one trace for all that an input brings about.

The server exports to a collector in the test; the client and the executor record with a
provider of their own, as a program of their users would.
"""

import asyncio
import sys
from collections import defaultdict

import grpc.aio
import pytest
import pytest_asyncio
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from runlane import (
    Agent,
    ChildRun,
    Client,
    Executor,
    ModelResponse,
    SessionBusy,
    ToolUseBlock,
    Usage,
    tool,
)
from runlane.v1 import (
    executor_service_pb2,
    history_service_pb2,
    run_pb2,
    session_service_pb2,
)
from support_server import CANCELLED, MODE, Link, reserve, text, unique
from support_server.turns import asks

pytestmark = pytest.mark.asyncio

SECRET = "words that nobody else may read"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes what the server exports."""

    def __init__(self):
        self.spans = []
        self.resources = []

    async def Export(self, request, context):
        for one in request.resource_spans:
            self.resources.append({a.key: a.value.string_value for a in one.resource.attributes})
            for scope in one.scope_spans:
                self.spans += scope.spans
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name):
        return [one for one in self.spans if one.name.rpartition("/")[2] == name]

    def in_trace(self, trace_id):
        return [one for one in self.spans if one.trace_id.hex() == trace_id]


@pytest_asyncio.fixture
async def collector(monkeypatch):
    made = Collector()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(made, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    yield made
    await server.stop(0)


@pytest.fixture
def recorded(monkeypatch):
    """What this process records, the client and the executor in it."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


def attributes(span):
    """Returns the attributes of a span, whoever recorded it."""
    if not isinstance(span.attributes, dict) and hasattr(span, "trace_id"):
        return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}
    return dict(span.attributes)


class Host:
    """Calls a tool and gives work to the helper, once each, then answers."""

    async def complete(self, request):
        results = [m.tool_result for m in request.messages if m.tool_result]
        if results:
            return ModelResponse(text=SECRET, usage=Usage(input_tokens=7, output_tokens=3))
        names = ("look", "ask_helper")
        uses = [ToolUseBlock(tool_call_id=one, name=one, arguments={}) for one in names]
        return ModelResponse(tool_calls=uses)


class Helper:
    async def complete(self, request):
        return ModelResponse(text=SECRET)


def agents(host, helper):
    @tool
    async def look() -> str:
        return SECRET

    @tool(agent=helper)
    def ask_helper() -> ChildRun:
        return ChildRun(helper, SECRET)

    return [
        Agent(host, model=Host(), tools=[look, ask_helper], model_name="some-model"),
        Agent(helper, model=Helper()),
    ]


async def play(address):
    """Runs a host and its helper inside a span of this process; returns its trace id."""
    host, helper = unique("host"), unique("helper")
    async with Client(address) as client, Executor(client, agents(host, helper)):
        with trace.get_tracer("test").start_as_current_span("request") as span:
            receipt = await client.submit(SECRET, host, options={"agent": host}, create=True)
        done = await client.wait_run(receipt.run_id, timeout=30)
        assert done.text == SECRET
        children = await client.list_child_runs(done.run.run_id)
    return f"{span.get_span_context().trace_id:032x}", done.run, children.items[0]


async def test_submit_run_executor_tool_and_child_run_are_one_trace(
    make_server, collector, recorded
):
    server = make_server(otel="true").start()
    trace_id, run, child = await play(server.address)
    assert await asyncio.to_thread(server.stop) == 0
    assert collector.resources[0]["service.name"] == "runlane"

    ours = [one for one in recorded.get_finished_spans() if one.name != "request"]
    assert {f"{one.context.trace_id:032x}" for one in ours} == {trace_id}
    names = [one.name.partition(" ")[0] for one in ours]
    # The host works twice: before the child's end and after it.
    assert names.count("invoke_agent") == 3
    assert names.count("chat") == 3
    assert names.count("execute_tool") == 1

    theirs = collector.in_trace(trace_id)
    kinds = defaultdict(list)
    for one in theirs:
        kinds[one.name.rpartition("/")[2].partition(" ")[0]].append(one)
    assert len(kinds["Submit"]) == 1
    assert len(kinds["run"]) == 2
    assert kinds["Commit"]
    # What is asked again and again is in no trace.
    assert not collector.named("PollActivation")
    assert not collector.named("Heartbeat")

    # Who hangs on whom: the submit on the request, the run and its executor on the submit,
    # the child on the commit that started it, commits on the executor's spans.
    client_ids = {f"{one.context.span_id:016x}": one for one in recorded.get_finished_spans()}
    submit = kinds["Submit"][0]
    assert client_ids[submit.parent_span_id.hex()].name == "request"
    assert attributes(submit)["runlane.run_id"] == run.run_id
    assert attributes(submit)["runlane.session_id"] == run.session_id
    assert attributes(submit)["rpc.grpc.status_code"] == 0
    runs = {attributes(one)["runlane.run_id"]: one for one in kinds["run"]}
    assert runs[run.run_id].parent_span_id == submit.span_id
    commits = {one.span_id: one for one in kinds["Commit"]}
    starts = commits[runs[child.run_id].parent_span_id]
    assert client_ids[starts.parent_span_id.hex()].attributes["runlane.run_id"] == run.run_id
    for one in kinds["Commit"]:
        assert client_ids[one.parent_span_id.hex()].name.startswith("invoke_agent")
    for one in ours:
        if one.name.startswith("invoke_agent"):
            is_child = one.attributes["runlane.run_id"] == child.run_id
            expected = starts if is_child else submit
            assert f"{one.parent.span_id:016x}" == expected.span_id.hex()
        else:
            assert client_ids[f"{one.parent.span_id:016x}"].name.startswith("invoke_agent")
    ended = attributes(runs[run.run_id])
    assert ended["runlane.stop_reason"] == "COMPLETED"
    assert ended["runlane.model_steps"] == 2
    span = runs[run.run_id]
    assert span.start_time_unix_nano == round(run.create_time.timestamp() * 1e6) * 1000
    assert span.end_time_unix_nano > max(one.end_time for one in ours) - 10**9

    chats = [one for one in ours if one.name == "chat some-model"]
    assert [one.attributes["gen_ai.usage.input_tokens"] for one in chats] == [0, 7]

    # Names, ids and counts; never content.
    everything = repr([dict(one.attributes) for one in ours]) + repr(theirs)
    assert SECRET not in everything
    assert not any(one.events for one in ours)


async def test_the_agents_of_the_server_record_with_it(make_server, collector, tmp_path):
    agent = '[[agent]]\nname = "echo"\nmodel = {kind = "scripted"}\n'
    (tmp_path / "runlane.toml").write_text(agent, encoding="utf-8")
    server = make_server(otel="true").start()
    async with Client(server.address) as client:
        done = await client.start(SECRET, options={"agent": "echo"})
    assert done.text == SECRET
    assert await asyncio.to_thread(server.stop) == 0
    (submit,) = collector.named("Submit")
    spans = collector.in_trace(submit.trace_id.hex())
    names = {one.name for one in spans}
    assert {"run echo", "invoke_agent echo", "chat scripted"} <= names
    assert SECRET not in repr(collector.spans)


async def test_a_server_that_records_nothing_passes_the_trace_on(shared, recorded):
    trace_id, _, _ = await play(shared.address)
    ours = recorded.get_finished_spans()
    assert {f"{one.context.trace_id:032x}" for one in ours} == {trace_id}
    request = next(one for one in ours if one.name == "request")
    parents = [one.parent.span_id for one in ours if one.name.startswith("invoke_agent")]
    assert parents.count(request.context.span_id) == 2  # the host; the child hangs on the host


async def test_a_refusal_names_its_reason_and_no_content(make_server, collector):
    server = make_server(otel="true").start()
    session = unique("refused")
    async with Client(server.address) as client:
        await client.submit(SECRET, session, options={"agent": session}, create=True)
        with pytest.raises(SessionBusy):
            await client.submit(SECRET, session, options={"agent": session}, mode="start")
    assert await asyncio.to_thread(server.stop) == 0
    taken, busy = collector.named("Submit")
    assert attributes(busy)["error.type"] == "SESSION_BUSY"
    assert attributes(busy)["rpc.grpc.status_code"] == 9
    assert attributes(busy)["runlane.session_id"] == session
    assert busy.status.code == 0  # the server did as it should
    assert "error.type" not in attributes(taken)
    # Without a trace of the caller's each call begins one.
    assert not taken.parent_span_id
    assert taken.trace_id != busy.trace_id
    assert SECRET not in repr(collector.spans)


async def test_a_run_keeps_its_trace_over_a_restart_and_each_input_has_its_own(make_server):
    server = make_server().start()
    session = unique("kept")
    call = session_service_pb2.SubmitRequest(session_id=session, content=[{"text": "hello"}])
    call.create_session.default_agent = session
    call.request_id = unique("first")
    async with Link(server.address) as link:
        sent = {"timeout": 20}
        first = await link.sessions.Submit(call, metadata=[("traceparent", TRACE)], **sent)
        # The trace is no part of the request: a repeat in another span is the same call.
        again = await link.sessions.Submit(call, metadata=[("traceparent", OTHER)], **sent)
        assert again.replayed
        assert again.submission.run_id == first.submission.run_id
        call.request_id, call.mode = "", MODE.MODE_QUEUE
        await link.sessions.Submit(call, metadata=[("traceparent", OTHER)], **sent)
        for bad in ("", "00-zz", "00-" + "0" * 32 + "-b7ad6b7169203331-01", TRACE.upper()):
            await link.sessions.Submit(call, metadata=[("traceparent", bad)], **sent)
    server.restart()
    traces = []
    async with Link(server.address) as link:
        for _ in range(6):
            leased = await link.lease(session)
            traces.append(leased.traceparent)
            await link.answer(leased.fence)
    assert traces == [TRACE, OTHER, "", "", "", ""]


async def test_a_steer_that_missed_goes_on_in_its_own_trace(shared):
    session = unique("moved")
    async with Link(shared.address) as link:
        receipt = await link.submit(session)
        call = session_service_pb2.SubmitRequest(session_id=session, content=[{"text": "more"}])
        call.mode, call.on_miss = MODE.MODE_STEER, 2
        steer = await link.sessions.Submit(call, metadata=[("traceparent", OTHER)], timeout=20)
        await link.interrupt(session)
        await link.wait_run(receipt.submission.run_id)
        leased = await link.lease(session)
        moved = await link.sessions.GetSubmission(
            session_service_pb2.GetSubmissionRequest(submission_id=steer.submission.submission_id),
            timeout=20,
        )
        assert moved.submission.run_id == leased.fence.run_id
        assert leased.traceparent == OTHER


async def test_a_collector_that_is_away_holds_nothing_up(make_server, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    server = make_server(otel="true").start()
    async with Link(server.address) as link:
        await link.run(unique("alone"))
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert await asyncio.to_thread(server.stop) == 0
    assert loop.time() - begun < 15


async def test_an_unknown_protocol_is_told_before_anything_is_served(make_server, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")
    code, said = make_server(otel="true").refuses_to_start()
    assert code == 1
    assert "carrier-pigeon" in said
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    code, said = make_server(otel="true").refuses_to_start()
    assert code == 1
    assert "needs a package" in said


async def test_nothing_of_opentelemetry_is_loaded_where_nobody_asks_for_it(shared):
    """Neither by the server nor by the client: what is not loaded costs nothing."""
    code = (
        "import sys, asyncio, runlane\n"
        "async def main():\n"
        f"    async with runlane.Client({shared.address!r}) as client:\n"
        "        await client.list_agents()\n"
        "asyncio.run(main())\n"
        "import runlane_server.bootstrap\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert said.decode().strip() == "[]"


async def test_a_child_run_and_the_run_of_a_fork_have_the_trace_of_what_began_them(shared):
    session, child = unique("parent"), unique("child")
    start = executor_service_pb2.StartChildRun(
        tool_call_id="c1", content=text("help"), run_options=run_pb2.RunOptions(agent=child)
    )
    operation = executor_service_pb2.Operation(start_child_run=start)
    async with Link(shared.address, metadata=(("traceparent", TRACE),)) as link:
        await link.submit(session)
    async with Link(shared.address) as link:
        leased = await link.lease(session)
        await link.commit(leased.fence, reserve())
        # This executor says nothing of traces: the parent's run stands in.
        await link.commit(leased.fence, asks("c1"), operation)
        below = await link.lease(child)
        assert below.traceparent == leased.traceparent == TRACE
        await link.answer(below.fence)
        await link.interrupt(session)
        await link.commit(leased.fence, finish=CANCELLED)
    async with Link(shared.address, metadata=(("traceparent", OTHER),)) as link:
        first = history_service_pb2.ForkInput(content=text("on"))
        made = await link.fork(leased.fence.run_id, input=first)
        leased = await link.lease(session)
        assert leased.fence.session_id == made.session.session_id
        assert leased.traceparent == OTHER
