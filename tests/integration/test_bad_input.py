"""Hostile and confused requests get a typed error that names the field, and leave nothing."""

import asyncio
import random

import grpc
import pytest
from google.protobuf import descriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from runlane.v1 import (
    event_pb2,
    executor_service_pb2,
    history_service_pb2,
    message_pb2,
    run_pb2,
    session_service_pb2,
)
from support_server import Link, reserve, step, text, told, unique

pytestmark = pytest.mark.asyncio

SERVICES = {
    "SessionService": session_service_pb2,
    "HistoryService": history_service_pb2,
    "ExecutorService": executor_service_pb2,
}
BAD_IDS = {
    "blank": " ",
    "inner blank": "a b",
    "300 characters": "a" * 300,
    "129 characters": "a" * 129,
    "slash": "a/b",
    "NUL": "a\0b",
    "leading NUL": "\0",
    "not ASCII": "é",
    "line feed at the end": "a\n",
    "leading dot": ".a",
}


def methods():
    """Names each method with its request."""
    for name, module in SERVICES.items():
        for method in module.DESCRIPTOR.services_by_name[name].methods:
            yield f"/runlane.v1.{name}/{method.name}", method


def call(link: Link, path: str, method, request: bytes, timeout: float = 10):
    """Calls a method with raw bytes; a stream is read up to its first frame."""
    if method.client_streaming:

        async def one():
            yield request

        return link.channel.stream_unary(path)(one(), timeout=timeout)
    if method.server_streaming:

        async def first():
            stream = link.channel.unary_stream(path)(request, timeout=timeout)
            try:
                return await stream.read()
            finally:
                stream.cancel()

        return first()
    return link.channel.unary_unary(path)(request, timeout=timeout)


def ids_of(message, path: str = ""):
    """Names each field that is an id, also in a fence."""
    for field in message.fields:
        where = f"{path}{field.name}"
        if field.message_type is not None and field.message_type.name == "Fence":
            yield from ids_of(field.message_type, f"{where}.")
        elif field.type == field.TYPE_STRING and field.name.endswith("_id"):
            yield where


def put(message, path: str, value) -> None:
    *outer, last = path.split(".")
    for name in outer:
        message = getattr(message, name)
    setattr(message, last, value)


def proper(method, session: str):
    """Returns a request that is well formed in all its ids."""
    request = GetMessageClass(method.input_type)()
    for path in ids_of(method.input_type):
        if path == "run_id" and method.name == "ListEvents":
            continue
        if path not in {"request_id", "target_run_id"}:
            put(request, path, session if path.endswith("session_id") else "some-id")
    names = {field.name for field in method.input_type.fields}
    if "fence" in names:
        request.fence.epoch = 1
    if "agents" in names:
        request.agents.append(session)
    if "content" in names:
        request.content.add(text="hello")
    if method.name == "AnswerInteraction":
        request.version = 1
        request.answer.question.text = "yes"
    if method.name == "CompleteExternal":
        request.token = "some-token-of-some-wait"
        request.answer.result_json = "1"
    return request


async def state(link: Link) -> list:
    request = history_service_pb2.ListSessionsRequest()
    sessions = await link.pages(link.history.ListSessions, request, "sessions", 1000)
    return [(one, (await link.live(one.session_id)).sequence) for one in sessions]


@pytest.mark.parametrize("path", [path for path, _ in methods()])
async def test_ids_that_are_none_are_refused_by_field_and_leave_nothing(link: Link, path: str):
    method = dict(methods())[path]
    session = unique("ids")
    await link.create(session)
    before = await state(link)
    for field in ids_of(method.input_type):
        for why, value in BAD_IDS.items():
            request = proper(method, session)
            if method.name == "ListEvents" and field == "run_id":
                request.ClearField("session_id")
            put(request, field, value)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(link, path, method, request.SerializeToString())
            error = told(caught.value)
            assert error.code == grpc.StatusCode.INVALID_ARGUMENT, (field, why)
            assert error.reason == "FIELD_INVALID"
            assert error.fields == [field], why
            assert "aaaa" not in error.everything
    assert await state(link) == before


@pytest.mark.parametrize("path", [path for path, _ in methods()])
async def test_required_ids_that_are_empty_are_refused_by_field(link: Link, path: str):
    method = dict(methods())[path]
    before = await state(link)
    optional = {
        "CreateSession",
        "ListSessions",
        "ListAgents",
        "ListInteractions",
        "ListStalledRuns",
        "GetOverview",
        "ListExecutors",
        "StreamFeed",
    }
    if method.name in optional:
        return
    request = GetMessageClass(method.input_type)()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(link, path, method, request.SerializeToString())
    error = told(caught.value)
    assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")
    assert error.fields
    assert await state(link) == before


@pytest.mark.parametrize("path", [path for path, _ in methods()])
async def test_bytes_that_are_no_request_are_refused(link: Link, path: str):
    method = dict(methods())[path]
    before = await state(link)
    broken = [b"\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0b" * 500, bytes(range(256))]
    not_utf8 = [b"\x0a\x02\xc3\x28", b"\x0a\x03\xed\xa0\x80"]
    # Where field 1 is a number, a text there is a field that the server does not know.
    has_text = method.input_type.fields_by_number[1].type != descriptor.FieldDescriptor.TYPE_INT32
    for raw in [*broken, *(not_utf8 if has_text else [])]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(link, path, method, raw)
        error = told(caught.value)
        assert error.code == grpc.StatusCode.INVALID_ARGUMENT, raw
        assert error.reason == "FIELD_INVALID"
        assert error.fields
    assert await state(link) == before


Block, Data, Tool = message_pb2.Block, message_pb2.Data, message_pb2.ToolUse
IMAGE = message_pb2.Media.KIND_IMAGE
DEEP = "[" * 100_000 + "]" * 100_000

BAD_BLOCKS = {
    "no block": (Block(), "content[0].block"),
    "NUL in text": (Block(text="a\0b"), "content[0].text"),
    "NUL in reasoning": (
        Block(reasoning=message_pb2.Reasoning(text="\0")),
        "content[0].reasoning.text",
    ),
    "no JSON": (Block(data=Data(content_type="a/b", json="{")), "content[0].data.json"),
    "NUL in JSON": (
        Block(data=Data(content_type="a/b", json='"\\u0000"')),
        "content[0].data.json",
    ),
    "raw NUL in JSON": (
        Block(data=Data(content_type="a/b", json='"\0"')),
        "content[0].data.json",
    ),
    "lone surrogate in JSON": (
        Block(data=Data(content_type="a/b", json='{"a":"\\ud800"}')),
        "content[0].data.json",
    ),
    "lone low surrogate in a key": (
        Block(data=Data(content_type="a/b", json='{"\\udc00":1}')),
        "content[0].data.json",
    ),
    "JSON nested deep": (
        Block(data=Data(content_type="a/b", json=DEEP)),
        "content[0].data.json",
    ),
    "NaN": (Block(data=Data(content_type="a/b", json="NaN")), "content[0].data.json"),
    "beyond a double": (Block(data=Data(content_type="a/b", json="1e999")), "content[0].data.json"),
    "no content type": (Block(data=Data(json="1")), "content[0].data.content_type"),
    "no data": (Block(data=Data(content_type="a/b")), "content[0].data.data"),
    "bad provider JSON": (Block(text="a", provider_json="{"), "content[0].provider_json"),
    "large provider JSON": (
        Block(text="a", provider_json='"%s"' % ("x" * 65_536)),
        "content[0].provider_json",
    ),
    "empty metadata key": (Block(text="a", metadata={"": "x"}), "content[0].metadata"),
    "large metadata": (
        Block(text="a", metadata={str(n): "x" * 1000 for n in range(5)}),
        "content[0].metadata",
    ),
    "media without a source": (
        Block(media=message_pb2.Media(kind=IMAGE)),
        "content[0].media.source",
    ),
    "media of no kind": (
        Block(media=message_pb2.Media(uri="https://a")),
        "content[0].media.kind",
    ),
    "media of an unknown kind": (
        Block(media=message_pb2.Media(kind=77, uri="https://a")),
        "content[0].media.kind",
    ),
    "bad hash": (
        Block(media=message_pb2.Media(kind=IMAGE, uri="https://a", sha256="XYZ")),
        "content[0].media.sha256",
    ),
    "negative size": (
        Block(media=message_pb2.Media(kind=IMAGE, uri="https://a", size_bytes=-1)),
        "content[0].media.size_bytes",
    ),
    "large inline data": (
        Block(media=message_pb2.Media(kind=IMAGE, inline_data=b"x" * 262_145)),
        "content[0].media.inline_data",
    ),
    "a tool use in an input": (
        Block(tool_use=Tool(tool_call_id="c", name="n", arguments_json="{}")),
        "content[0].tool_use",
    ),
}


@pytest.mark.parametrize("why", BAD_BLOCKS)
async def test_bad_content_is_refused_by_field_and_leaves_nothing(link: Link, why: str):
    block, field = BAD_BLOCKS[why]
    session, new = unique("content"), unique("new")
    run_id = await link.run(session)
    await link.submit(session)
    fence = (await link.lease(session)).fence
    await link.commit(fence, reserve())
    before = await state(link)
    fork = history_service_pb2.ForkInput(content=[block])
    prefixes = {
        "": (link.submit(session, [block], mode=4), link.submit(new, [block])),
        "input.": (link.fork(run_id, session_id=new, input=fork),),
        "operations[0].commit_model_step.": (link.commit(fence, step([block])),),
    }
    for prefix, calls in prefixes.items():
        if prefix.startswith("operations") and block.WhichOneof("block") == "tool_use":
            for one in calls:
                one.close()
            continue
        for one in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await one
            error = told(caught.value)
            assert (error.code, error.reason) == (
                grpc.StatusCode.INVALID_ARGUMENT,
                "FIELD_INVALID",
            ), prefix
            # The key of a map is named where it may be shown.
            assert error.fields[0].removesuffix("[]").startswith(prefix + field), error.fields
    assert await state(link) == before


async def test_inputs_that_say_nothing_are_refused(link: Link):
    session = unique("blank")
    await link.create(session)
    for content in ([], text(""), text(" \t\r\n\u00a0\u2003"), text(" ") + text("\n")):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await link.submit(session, content)
        error = told(caught.value)
        assert (error.reason, error.fields) == ("INPUT_EMPTY", ["content"])
    many = text("x") * 257
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await link.submit(session, many)
    assert told(caught.value).fields == ["content"]
    assert (await link.live(session)).sequence == 1
    image = message_pb2.Block(media=message_pb2.Media(kind=IMAGE, uri="https://example.com/a"))
    await link.submit(session, [image])


UNKNOWN = 99


def other_bad_requests(session: str, fence: run_pb2.Fence):
    """Names requests of which one field is wrong, with their method and that field."""
    sessions, history = session_service_pb2, history_service_pb2
    submit = {"session_id": session, "content": text("hello")}
    create = sessions.CreateSessionRequest
    options = run_pb2.RunOptions
    commit = executor_service_pb2.CommitRequest
    finish = executor_service_pb2.Finish
    long = Duration(seconds=301)
    negative = Duration(seconds=-1)
    mixed = Duration(seconds=1, nanos=-5)
    fence_fields = {"executor_id": "e", "agents": ["a"]}
    poll = executor_service_pb2.PollActivationRequest
    yield "Submit", sessions.SubmitRequest(**submit, mode=UNKNOWN), "mode"
    yield "Submit", sessions.SubmitRequest(**submit, on_miss=UNKNOWN), "on_miss"
    yield "Submit", sessions.SubmitRequest(**submit, on_miss=2), "on_miss"
    yield "Submit", sessions.SubmitRequest(**submit, target_run_id="run_1"), "target_run_id"
    yield "Submit", sessions.SubmitRequest(**submit, expected_revision=-1), "expected_revision"
    yield "Submit", sessions.SubmitRequest(**submit, metadata={"k\0": "v"}), "metadata"
    yield "Submit", sessions.SubmitRequest(**submit, metadata={"k": "v" * 4097}), "metadata[k]"
    yield (
        "Submit",
        sessions.SubmitRequest(**submit, run_options=options(limits={"max_model_steps": -1})),
        "run_options.limits.max_model_steps",
    )
    yield (
        "Submit",
        sessions.SubmitRequest(**submit, run_options=options(request_options_json="[]")),
        "run_options.request_options_json",
    )
    yield (
        "Submit",
        sessions.SubmitRequest(
            **submit, run_options=options(cancel_grace_duration=Duration(seconds=601))
        ),
        "run_options.cancel_grace_duration",
    )
    yield (
        "Submit",
        sessions.SubmitRequest(**submit, run_options=options(model="a\0b")),
        "run_options.model",
    )
    yield "Submit", sessions.SubmitRequest(content=text("hello")), "session_id"
    yield "CreateSession", create(if_exists=UNKNOWN), "if_exists"
    yield "CreateSession", create(labels={"Upper": "x"}), "labels"
    yield "CreateSession", create(labels={"a": "x" * 256}), "labels[a]"
    yield "CreateSession", create(labels={f"k{n}": "" for n in range(33)}), "labels"
    yield "CreateSession", create(metadata_json="[1]"), "metadata_json"
    yield "CreateSession", create(metadata_json='{"a":"\\ud83d"}'), "metadata_json"
    yield "CreateSession", create(metadata_json='{"a":"\\u0000"}'), "metadata_json"
    yield "CreateSession", create(display_name="a\0"), "display_name"
    yield "CreateSession", create(display_name="é" * 200), "display_name"
    yield "CreateSession", create(default_agent="a b"), "default_agent"
    yield "InterruptRun", sessions.InterruptRunRequest(), "session_id"
    yield (
        "InterruptRun",
        sessions.InterruptRunRequest(session_id=session, reason="\0"),
        "reason",
    )
    for bad in (long, negative, mixed):
        yield (
            "InterruptRun",
            sessions.InterruptRunRequest(session_id=session, wait_duration=bad),
            "wait_duration",
        )
        yield "WaitRun", history.WaitRunRequest(run_id="r", wait_duration=bad), "wait_duration"
        yield "PollActivation", poll(**fence_fields, wait_duration=bad), "wait_duration"
    for bad in (Duration(seconds=4, nanos=999_999_999), Duration(seconds=601), negative):
        yield "PollActivation", poll(**fence_fields, lease_duration=bad), "lease_duration"
        yield (
            "Heartbeat",
            executor_service_pb2.HeartbeatRequest(fence=fence, lease_duration=bad),
            "lease_duration",
        )
        yield "Commit", commit(fence=fence, lease_duration=bad), "lease_duration"
    yield "PollActivation", poll(executor_id="e"), "agents"
    yield "PollActivation", poll(executor_id="e", agents=["a", "a"]), "agents"
    yield "PollActivation", poll(executor_id="e", agents=["a", ""]), "agents[1]"
    yield "PollActivation", poll(**fence_fields, context_bytes_max=-1), "context_bytes_max"
    yield "Heartbeat", executor_service_pb2.HeartbeatRequest(), "fence"
    yield (
        "Heartbeat",
        executor_service_pb2.HeartbeatRequest(
            fence=run_pb2.Fence(session_id="a", run_id="b", activation_id="c")
        ),
        "fence.epoch",
    )
    yield "Commit", commit(fence=fence, operations=[{}]), "operations[0].operation"
    yield "Commit", commit(fence=fence, operations=[reserve()] * 65), "operations"
    yield "Commit", commit(fence=fence, finish=finish()), "finish.outcome"
    yield (
        "Commit",
        commit(fence=fence, finish=finish(failed=run_pb2.RunFailure())),
        "finish.failed.reason",
    )
    yield (
        "Commit",
        commit(fence=fence, finish=finish(failed=run_pb2.RunFailure(reason=UNKNOWN))),
        "finish.failed.reason",
    )
    yield (
        "Commit",
        commit(fence=fence, finish=finish(failed=run_pb2.RunFailure(reason=2))),
        "finish.failed.reason",
    )
    yield (
        "Commit",
        commit(fence=fence, finish=finish(completed={"output_json": "{"})),
        "finish.completed.output_json",
    )
    bad_step = executor_service_pb2.Operation(
        commit_model_step={"usage": {"input_tokens": -1}, "content": text("a")}
    )
    yield (
        "Commit",
        commit(fence=fence, operations=[bad_step]),
        "operations[0].commit_model_step.usage.input_tokens",
    )
    yield (
        "GetLiveState",
        sessions.GetLiveStateRequest(session_id=session, message_limit=201),
        ("message_limit"),
    )
    yield (
        "GetLiveState",
        sessions.GetLiveStateRequest(session_id=session, min_sequence=-1),
        ("min_sequence"),
    )
    stream = sessions.StreamEventsRequest
    yield "StreamEvents", stream(session_id=session, types=[UNKNOWN]), "types[0]"
    yield "StreamEvents", stream(session_id=session, types=[0]), "types[0]"
    yield "StreamEvents", stream(session_id=session, last_events=1001), "last_events"
    yield "StreamEvents", stream(session_id=session, last_events=-1), "last_events"
    yield "StreamEvents", stream(session_id=session, run_ids=["a/b"]), "run_ids[0]"
    yield (
        "StreamEvents",
        stream(session_id=session, run_ids=[f"r{n}" for n in range(65)]),
        ("run_ids"),
    )
    yield "ListSessions", history.ListSessionsRequest(order=UNKNOWN), "order"
    yield "ListSessions", history.ListSessionsRequest(state=UNKNOWN), "state"
    yield "ListSessions", history.ListSessionsRequest(labels={"\0": ""}), "labels"
    yield (
        "ListSessions",
        history.ListSessionsRequest(create_time_from=Timestamp(seconds=2**62)),
        "create_time_from",
    )
    yield (
        "ListSessions",
        history.ListSessionsRequest(create_time_before=Timestamp(nanos=-1)),
        "create_time_before",
    )
    yield "ListRuns", history.ListRunsRequest(session_id=session, phases=[UNKNOWN]), "phases[0]"
    yield "ListRuns", history.ListRunsRequest(session_id=session, phases=[UNKNOWN]), "phases[0]"
    yield (
        "ListSubmissions",
        history.ListSubmissionsRequest(session_id=session, states=[0]),
        "states[0]",
    )
    yield (
        "ListMessages",
        history.ListMessagesRequest(session_id=session, roles=[UNKNOWN]),
        "roles[0]",
    )
    yield (
        "ListMessages",
        history.ListMessagesRequest(session_id=session, after_number=-1),
        ("after_number"),
    )
    yield "ListEvents", history.ListEventsRequest(), "scope"
    yield "ListEvents", history.ListEventsRequest(session_id=session, types=[UNKNOWN]), "types[0]"
    yield "ForkSession", history.ForkSessionRequest(), "source"
    yield (
        "PublishDeltas",
        executor_service_pb2.PublishDeltasRequest(deltas=[event_pb2.Delta()]),
        "fence",
    )


async def test_each_field_has_its_limits_and_is_named(link: Link):
    session = unique("fields")
    await link.submit(session)
    fence = (await link.lease(session)).fence
    paths = {method.name: (path, method) for path, method in methods()}
    before = await state(link)
    for name, request, field in other_bad_requests(session, fence):
        path, method = paths[name]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(link, path, method, request.SerializeToString())
        error = told(caught.value)
        assert error.code == grpc.StatusCode.INVALID_ARGUMENT, (name, field)
        assert error.reason == "FIELD_INVALID", (name, field)
        assert error.fields[0].startswith(field), (name, field, error.fields)
    assert await state(link) == before


async def test_numbers_at_their_ends_are_no_fault(link: Link):
    session = unique("ends")
    run_id = await link.run(session)
    huge = 2**63 - 1
    history = history_service_pb2
    for request, method in (
        (history.ListEventsRequest(session_id=session, after_sequence=huge), "ListEvents"),
        (history.ListEventsRequest(run_id=run_id, after_sequence=huge), "ListEvents"),
        (history.ListMessagesRequest(session_id=session, after_number=huge), "ListMessages"),
        (
            history.ListSessionsRequest(create_time_from=Timestamp(seconds=253_402_300_799)),
            "ListSessions",
        ),
        (history.ListSessionsRequest(create_time_before=Timestamp(seconds=-1)), "ListSessions"),
    ):
        answer = await getattr(link.history, method)(request, timeout=10)
        assert answer.ByteSize() == 0
    request = history.ListMessagesRequest(session_id=session, before_number=huge)
    assert len((await link.history.ListMessages(request, timeout=10)).messages) == 2
    assert await link.messages(session, after=huge) == []


async def test_a_storm_of_random_bytes_is_no_fault(link: Link):
    """Bytes that look like requests, of all methods, at once: refused or answered, never INTERNAL."""
    rng = random.Random(11)
    session = unique("storm")
    await link.run(session)
    calls = []
    for path, method in list(methods()) * 12:
        request = bytearray(proper(method, session).SerializeToString())
        for _ in range(rng.randint(1, 6)):
            place = rng.randrange(len(request) + 1)
            request[place:place] = rng.randbytes(rng.randint(1, 4))
        calls.append(call(link, path, method, bytes(request), timeout=2))
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, grpc.aio.AioRpcError):
            assert answer.code() in {
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.NOT_FOUND,
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.ALREADY_EXISTS,
                grpc.StatusCode.OUT_OF_RANGE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.CANCELLED,
            }, answer
        else:
            assert not isinstance(answer, BaseException) or isinstance(
                answer, asyncio.CancelledError
            )


async def test_what_does_not_exist_is_not_found_by_its_kind(link: Link):
    session = unique("kinds")
    run_id = await link.run(session)
    other = unique("kinds")
    await link.create(other)
    history, sessions = history_service_pb2, session_service_pb2
    missing = [
        (link.sessions.GetSession, sessions.GetSessionRequest(session_id="no"), "SESSION"),
        (link.sessions.GetLiveState, sessions.GetLiveStateRequest(session_id="no"), "SESSION"),
        (link.sessions.CloseSession, sessions.CloseSessionRequest(session_id="no"), "SESSION"),
        (link.sessions.DeleteSession, sessions.DeleteSessionRequest(session_id="no"), "SESSION"),
        (link.sessions.UpdateSession, sessions.UpdateSessionRequest(session_id="no"), "SESSION"),
        (
            link.sessions.Submit,
            sessions.SubmitRequest(session_id="no", content=text("a")),
            "SESSION",
        ),
        (link.history.ListRuns, history.ListRunsRequest(session_id="no"), "SESSION"),
        (link.history.ListEvents, history.ListEventsRequest(session_id="no"), "SESSION"),
        (link.history.ListMessages, history.ListMessagesRequest(session_id="no"), "SESSION"),
        (link.history.GetRun, history.GetRunRequest(run_id=session), "RUN"),
        (link.history.GetRun, history.GetRunRequest(run_id=run_id, session_id=other), "RUN"),
        (link.history.WaitRun, history.WaitRunRequest(run_id="no"), "RUN"),
        (link.history.ForkSession, history.ForkSessionRequest(run_id="no"), "RUN"),
        (link.sessions.InterruptRun, sessions.InterruptRunRequest(run_id="no"), "RUN"),
        (
            link.sessions.InterruptRun,
            sessions.InterruptRunRequest(run_id=run_id, session_id=other),
            "RUN",
        ),
        (
            link.sessions.GetSubmission,
            sessions.GetSubmissionRequest(submission_id=run_id),
            "SUBMISSION",
        ),
        (
            link.sessions.WithdrawSubmission,
            sessions.WithdrawSubmissionRequest(submission_id="no"),
            "SUBMISSION",
        ),
    ]
    before = await state(link)
    for method, request, kind in missing:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(request, timeout=10)
        error = told(caught.value)
        assert (error.code, error.reason) == (
            grpc.StatusCode.NOT_FOUND,
            f"{kind}_NOT_FOUND",
        ), request
    assert await state(link) == before


async def test_metadata_of_a_call_that_is_wrong_is_refused(link: Link):
    request = session_service_pb2.ListAgentsRequest()
    for metadata in (
        [("runlane-namespace", "other")],
        [("runlane-client", "x" * 65)],
        [("runlane-client", "")],
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await link.sessions.ListAgents(request, metadata=metadata, timeout=10)
        assert told(caught.value).fields == [metadata[0][0]]
    await link.sessions.ListAgents(request, metadata=[("runlane-client", "x")], timeout=10)
