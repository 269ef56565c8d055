"""Every RPC without a key, with each scope, with keys that ended, and with others' ids."""

import asyncio
import itertools
import time

import grpc
import pytest
import pytest_asyncio
import runlane
from access import (
    METHODS,
    SCOPES,
    Scene,
    bearer,
    first_key,
    new_key,
    revoke,
    scope_of,
    send,
)
from runlane.v1 import (
    admin_service_pb2,
    event_pb2,
    executor_service_pb2,
    history_service_pb2,
    server_service_pb2,
    session_service_pb2,
)
from runlane_server.transport import access as door
from support_server import (
    Link,
    ServerProcess,
    refused,
    reserve,
    rest,
    seconds,
    step,
    told,
    unique,
    until,
    within,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]

BROKEN = b"\xff"
"""Bytes that no request decodes from: who is let in is told so, and changes nothing."""

OTHERS = {
    "SessionService/CreateSession": "",
    "SessionService/GetSession": "SESSION_NOT_FOUND",
    "SessionService/UpdateSession": "SESSION_NOT_FOUND",
    "SessionService/DeleteSession": "SESSION_NOT_FOUND",
    "SessionService/CloseSession": "SESSION_NOT_FOUND",
    "SessionService/ReopenSession": "SESSION_NOT_FOUND",
    "SessionService/Submit": "SESSION_NOT_FOUND",
    "SessionService/WithdrawSubmission": "SUBMISSION_NOT_FOUND",
    "SessionService/GetSubmission": "SUBMISSION_NOT_FOUND",
    "SessionService/InterruptRun": "RUN_NOT_FOUND",
    "SessionService/PauseRun": "RUN_NOT_FOUND",
    "SessionService/UnpauseRun": "RUN_NOT_FOUND",
    "SessionService/AnswerInteraction": "INTERACTION_NOT_FOUND",
    "SessionService/RestoreRun": "RUN_NOT_FOUND",
    "SessionService/GetLiveState": "SESSION_NOT_FOUND",
    "SessionService/StreamEvents": "SESSION_NOT_FOUND",
    "SessionService/ListAgents": "",
    "HistoryService/ListSessions": "",
    "HistoryService/ListRuns": "SESSION_NOT_FOUND",
    "HistoryService/ListChildRuns": "RUN_NOT_FOUND",
    "HistoryService/GetRun": "RUN_NOT_FOUND",
    "HistoryService/WaitRun": "RUN_NOT_FOUND",
    "HistoryService/ListSubmissions": "SESSION_NOT_FOUND",
    "HistoryService/ListEvents": "RUN_NOT_FOUND",
    "HistoryService/ListMessages": "SESSION_NOT_FOUND",
    "HistoryService/StreamMessages": "SESSION_NOT_FOUND",
    "HistoryService/ListForkPoints": "SESSION_NOT_FOUND",
    "HistoryService/GetHistoryAtRun": "RUN_NOT_FOUND",
    "HistoryService/ListToolCalls": "RUN_NOT_FOUND",
    "HistoryService/ListInteractions": "",
    "HistoryService/ForkSession": "RUN_NOT_FOUND",
    "HistoryService/GetLineage": "SESSION_NOT_FOUND",
    "HistoryService/StreamRunEvents": "RUN_NOT_FOUND",
    "HistoryService/ExportSession": "SESSION_NOT_FOUND",
    # An id is taken in its own namespace alone.
    "AdminService/ImportSession": "",
    # Before a poll there names an agent as it is named here.
    "AdminService/GetOverview": "",
    "AdminService/ListExecutors": "",
    "AdminService/StreamFeed": "",
    "ExecutorService/PollActivation": "",
    "ExecutorService/DrainExecutor": "",
    "ExecutorService/Heartbeat": "RUN_NOT_FOUND",
    "ExecutorService/WatchActivation": "RUN_NOT_FOUND",
    "ExecutorService/Commit": "RUN_NOT_FOUND",
    "ExecutorService/StreamModelContext": "RUN_NOT_FOUND",
    "ExecutorService/PublishDeltas": "RUN_NOT_FOUND",
    "AdminService/ListStalledRuns": "",
    "AdminService/SettleRun": "RUN_NOT_FOUND",
    "AdminService/CreateKey": "",
    "AdminService/ListKeys": "",
    "AdminService/RevokeKey": "KEY_NOT_FOUND",
}
"""What is told of the ids of another namespace; empty: an answer without anything of them."""


@pytest.fixture(scope="module")
def asking(request, tmp_path_factory, store_kind):
    """A server that asks for keys, for all tests of this module."""
    folder = tmp_path_factory.mktemp("asking")
    store = ""
    if store_kind == "postgres":
        store = request.getfixturevalue("postgres_server").clean("asking")
    root = first_key(folder, store=store)
    server = ServerProcess(folder, store=store, auth="keys", bookmark_seconds=45)
    server.root = root
    server.start()
    yield server
    server.kill()
    assert server.incidents() == []
    assert "rlk_" not in server.told()


@pytest_asyncio.fixture
async def root(asking):
    async with Link(asking.address, metadata=bearer(asking.root)) as link:
        yield link


@pytest.fixture
def opened(asking):
    """Gives links with a secret."""
    made: list[Link] = []

    def open_(secret: str, *more: tuple[str, str]) -> Link:
        made.append(Link(asking.address, metadata=(*bearer(secret), *more)))
        return made[-1]

    return open_


@pytest.mark.usefixtures("asking")
async def test_the_table_has_every_rpc_and_gives_it_the_scope_of_the_contract():
    assert door.SCOPES.keys() == METHODS.keys()
    for path, bits in door.SCOPES.items():
        assert (door.scope_name(bits) if bits > 0 else "") == scope_of(path), path
    assert OTHERS.keys() == METHODS.keys() - {
        "SessionService/CompleteExternal",
        "ServerService/GetServerInfo",
    }


async def test_without_a_credential_nothing_is_told_but_that_one_is_missing(asking):
    for metadata in ((), (("runlane-namespace", "default"),), (("runlane-client", "x"),)):
        async with Link(asking.address, metadata=metadata) as link:
            for path in METHODS:
                if scope_of(path):
                    error = await refused(send(link, path, BROKEN))
                    assert error.code == grpc.StatusCode.UNAUTHENTICATED, path
                    assert (error.reason, error.metadata) == ("CREDENTIAL_MISSING", {}), path


async def test_a_credential_that_is_none_is_refused_whatever_is_called(asking, root, opened):
    revoked = await new_key(root, "gone")
    await revoke(root, revoked.key.key_id)
    expired = await new_key(root, "late", lifetime=1)
    other = await new_key(root, "other")
    await asyncio.sleep(1.1)
    swapped = f"{other.secret[:36]}{asking.root[36:]}"
    flipped = asking.root[:-1] + ("A" if asking.root[-1] != "A" else "B")
    bad = (
        revoked.secret,
        expired.secret,
        swapped,
        flipped,
        "",
        "rlk_",
        "x" * 80,
        "é".encode("punycode").decode(),
    )
    for secret in bad:
        link = opened(secret)
        for path in METHODS:
            if path == "SessionService/CompleteExternal":
                continue
            error = await refused(send(link, path, BROKEN))
            assert error.code == grpc.StatusCode.UNAUTHENTICATED, path
            assert (error.reason, error.metadata) == ("CREDENTIAL_INVALID", {}), path
    for value in (f"Basic {asking.root}", asking.root, f"Bearer{asking.root}"):
        async with Link(asking.address, metadata=(("authorization", value),)) as link:
            error = await refused(send(link, "HistoryService/ListSessions", b""))
            assert error.reason == "CREDENTIAL_INVALID"
    async with Link(asking.address, metadata=(("authorization", f"BEARER  {asking.root}"),)) as ok:
        assert await send(ok, "AdminService/ListKeys", b"")


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_scope_opens_its_calls_and_no_other(root, opened, scope):
    link = opened((await new_key(root, f"only-{scope}", scope)).secret)
    for path in METHODS:
        needed = scope_of(path)
        error = await refused(send(link, path, BROKEN))
        if needed in {scope, ""}:
            assert error.reason == "FIELD_INVALID", path
        else:
            assert error.code == grpc.StatusCode.PERMISSION_DENIED, path
            assert (error.reason, error.metadata) == ("SCOPE_MISSING", {"scope": needed}), path


async def test_who_shows_no_credential_is_told_version_and_features(asking, root):
    stub = server_service_pb2.GetServerInfoRequest()
    async with Link(asking.address) as link:
        told_ = await link.server.GetServerInfo(stub, timeout=10)
        assert told_.version
        assert not told_.store_id
        assert not told_.limits
        health = await link.channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=10)
        assert health == b"\x08\x01"
    assert (await root.server.GetServerInfo(stub, timeout=10)).store_id


async def answered(link: Link, path: str, request) -> tuple:
    """Returns what an RPC answers: its reason and metadata, or its bytes."""
    try:
        return "", await send(link, path, request.SerializeToString())
    except grpc.aio.AioRpcError as error:
        found = told(error)
        return found.reason, found.code, sorted(found.metadata), found.fields


async def reserved_is_nothing(a: Link, b: Link, scene: Scene) -> None:
    """The id that an input in the queue has for its run names nothing elsewhere."""
    reserved = scene.ids["reserved_run_id"]
    wait = "HistoryService/WaitRun"
    assert (await answered(a, wait, scene.request(wait, run_id=reserved)))[0] == ""
    asked = 0
    for path, reason in OTHERS.items():
        if "run_id" not in METHODS[path].input_type.fields_by_name:
            continue
        asked += 1
        theirs = await answered(b, path, scene.request(path, run_id=reserved))
        assert theirs == await answered(b, path, scene.request(path, run_id="none")), path
        assert theirs[0] == reason, path
    assert asked > 10
    await b.create("watched")
    for link, session, ids in ((b, "watched", [reserved]), (a, "scene-live", ["none"])):
        stream = link.stream(session, run_ids=ids)
        assert (await refused(stream.read())).reason == "RUN_NOT_FOUND"
    stream = a.stream("scene-live", run_ids=[reserved])
    assert await stream.read()
    stream.cancel()


async def test_ids_of_another_namespace_are_as_ids_of_nothing(root, opened):
    a = opened((await new_key(root, "a", namespace="a")).secret)
    b = opened((await new_key(root, "b", namespace="b")).secret)
    scene = await Scene().play(a, "scene")
    before = [(await a.live(name), await a.events(name)) for name in ("scene-live", "scene-asked")]
    nothing = scene.made_up()
    await reserved_is_nothing(a, b, scene)
    # What makes a session of that name here comes last.
    said = {}
    made = ("Create", "Import")
    for path in sorted(OTHERS, key=lambda path: any(word in path for word in made)):
        theirs = await answered(b, path, scene.request(path))
        said[path] = theirs[0]
        if theirs[0]:
            assert theirs == await answered(b, path, nothing.request(path)), path
        elif not any(word in path for word in made):
            for name in scene.ids.values():
                assert name.encode() not in theirs[1], path
    assert said == OTHERS
    assert before == [
        (await a.live(name), await a.events(name)) for name in ("scene-live", "scene-asked")
    ]
    # What was drained and polled for in one namespace is not in the other.
    await a.heartbeat(scene.fence)
    assert not (await a.poll("scene-live", 0)).draining


async def test_page_tokens_and_request_ids_do_not_cross(root, opened):
    a = opened((await new_key(root, "a", namespace="pages-a")).secret)
    b = opened((await new_key(root, "b", namespace="pages-b")).secret)
    for link in (a, b):
        await new_key(link, "second")
        await Scene().play(link, "same")
        await Scene().play(link, "more")
    tokens = 0
    for path, method in METHODS.items():
        if "page_token" not in method.input_type.fields_by_name:
            continue
        request = Scene()
        request.ids = {"session_id": "same-done", "ended_run_id": "", "run_id": ""}
        asked = request.request(path)
        if "run_id" in method.input_type.fields_by_name and method.name != "ListEvents":
            continue
        if method.name == "ListEvents":
            asked.session_id = "same-done"
        if method.name == "ListInteractions":
            asked.session_id = ""
        asked.page_size = 1
        answer_type = getattr(
            {"SessionService": session_service_pb2, "HistoryService": history_service_pb2}.get(
                path.partition("/")[0], admin_service_pb2
            ),
            method.output_type.name,
        )
        page = answer_type.FromString(await send(a, path, asked.SerializeToString()))
        if not page.next_page_token:
            continue
        tokens += 1
        asked.page_token = page.next_page_token
        assert await send(a, path, asked.SerializeToString())
        error = await refused(send(b, path, asked.SerializeToString()))
        assert error.reason == "PAGE_TOKEN_MISMATCH", path
    assert tokens >= 7
    # The request id of `play` is known in a, and in b it is its own.
    name = unique("again")
    first = await a.submit(name, "one", request_id=f"{name}-r")
    assert (await a.submit(name, "one", request_id=f"{name}-r")).replayed
    other = await b.submit(name, "two", request_id=f"{name}-r")
    assert not other.replayed
    assert other.submission.run_id != first.submission.run_id


async def test_a_token_completes_its_wait_whoever_calls_and_in_whatever_namespace(
    asking, opened, root
):
    a = opened((await new_key(root, "a", namespace="outside")).secret)
    scene = await Scene().play(a, "scene")
    request = scene.request("SessionService/CompleteExternal")
    assert scene.token.startswith("outside/")
    async with Link(asking.address) as nobody:
        forged = session_service_pb2.CompleteExternalRequest()
        forged.CopyFrom(request)
        forged.token = scene.token.removeprefix("outside/")
        error = await refused(nobody.sessions.CompleteExternal(forged, timeout=10))
        assert error.reason == "INTERACTION_NOT_FOUND"
        done = await nobody.sessions.CompleteExternal(request, timeout=10)
    events = await a.events("scene-outside")
    answered_ = next(one for one in events if one.HasField("interaction_answered"))
    assert answered_.actor == "client"
    assert done.interaction.interaction_id == answered_.interaction_answered.interaction_id


async def test_a_key_for_every_namespace_names_the_one_it_means(asking, root, opened):
    every = (await new_key(root, "every", namespace="*")).secret
    in_x, in_default = opened(every, ("runlane-namespace", "x")), opened(every)
    name = unique("here")
    await in_x.create(name)
    assert (await refused(in_default.session(name))).reason == "SESSION_NOT_FOUND"
    one = (await new_key(root, "x", namespace="x")).secret
    assert (await opened(one).session(name)).session_id == name
    assert (await opened(one, ("runlane-namespace", "x")).session(name)).session_id == name
    error = await refused(opened(one, ("runlane-namespace", "y")).session(name))
    assert (error.code, error.reason) == (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING")
    assert error.metadata == {"scope": "read", "namespace": "y"}
    error = await refused(opened(every, ("runlane-namespace", "X!")).session(name))
    assert (error.reason, error.fields) == ("FIELD_INVALID", ["runlane-namespace"])


async def test_an_admin_makes_and_sees_keys_of_its_namespaces_alone(root, opened):
    admin = opened((await new_key(root, "boss", "admin", namespace="mine")).secret)
    made = await new_key(admin, "worker", "execute")
    assert made.key.namespace == "mine"
    assert made.secret.endswith(made.key.last_characters)
    for namespace in ("other", "*", "default"):
        error = await refused(new_key(admin, "spy", "read", namespace=namespace))
        assert error.reason == "SCOPE_MISSING"
        assert error.metadata == {"scope": "admin", "namespace": namespace}
    listed = await admin.admin.ListKeys(admin_service_pb2.ListKeysRequest(), timeout=10)
    assert [key.name for key in listed.keys] == ["boss", "worker"]
    foreign = await new_key(root, "foreign", "read", namespace="other")
    assert (await refused(revoke(admin, foreign.key.key_id))).reason == "KEY_NOT_FOUND"
    await revoke(admin, made.key.key_id)
    await revoke(admin, made.key.key_id)
    listed = await admin.admin.ListKeys(admin_service_pb2.ListKeysRequest(), timeout=10)
    assert [key.name for key in listed.keys] == ["boss"]
    every = await admin.admin.ListKeys(
        admin_service_pb2.ListKeysRequest(include_ended=True), timeout=10
    )
    assert [key.HasField("revoke_time") for key in every.keys] == [False, True]


async def test_a_repeated_create_makes_one_key_and_tells_its_secret_once(root):
    request = admin_service_pb2.CreateKeyRequest(
        name="once", scopes=["SCOPE_READ"], namespace="once", request_id=unique("r")
    )
    first = await root.admin.CreateKey(request, timeout=10)
    again = await root.admin.CreateKey(request, timeout=10)
    assert (again.key, again.secret, again.replayed) == (first.key, "", True)
    request.scopes.append("SCOPE_ADMIN")
    error = await refused(root.admin.CreateKey(request, timeout=10))
    assert error.reason == "REQUEST_ID_REUSED"
    for wrong in (
        {"scopes": []},
        {"name": ""},
        {"name": "a b"},
        {"namespace": "A"},
        {"scopes": [9]},
    ):
        fields = {"name": "n", "scopes": [1], **wrong}
        error = await refused(
            root.admin.CreateKey(admin_service_pb2.CreateKeyRequest(**fields), timeout=10)
        )
        assert error.reason == "FIELD_INVALID", wrong


BLOCKS = itertools.count()


async def lasting(link: Link, session: str, fence, stream_id: str) -> dict[str, asyncio.Task]:
    """Opens a stream or a wait of each kind; returns once each of them is inside."""
    executor = unique("poller")

    async def drained(call):
        async for _ in rest(call):
            pass

    async def deltas():
        piece = event_pb2.Delta(
            model_stream_id=stream_id,
            step=1,
            block_index=next(BLOCKS),
            kind=event_pb2.Delta.KIND_TEXT,
            revision=1,
            append_text=executor,
        )
        yield executor_service_pb2.PublishDeltasRequest(fence=fence, deltas=[piece])
        await asyncio.sleep(60)

    async def run(call):
        return await call

    before = (await overview(link)).stream_count
    stream = link.stream(session, include_deltas=True)
    watch = link.executors.WatchActivation(
        executor_service_pb2.WatchActivationRequest(fence=fence), timeout=60
    )
    for call in (stream, watch):
        await within(10, call.read())
    published = asyncio.create_task(run(link.executors.PublishDeltas(deltas(), timeout=60)))
    async with asyncio.timeout(10):
        while executor not in str(await stream.read()):
            pass
    wait = history_service_pb2.WaitRunRequest(run_id=fence.run_id, wait_duration=seconds(60))
    tasks = {
        "stream": asyncio.create_task(drained(stream)),
        "watch": asyncio.create_task(drained(watch)),
        "wait": asyncio.create_task(run(link.history.WaitRun(wait, timeout=90))),
        "poll": asyncio.create_task(link.poll(unique("nobody"), 60, executor_id=executor)),
        "deltas": published,
    }

    async def inside() -> bool:
        listed = await link.admin.ListExecutors(
            admin_service_pb2.ListExecutorsRequest(), timeout=10
        )
        polls = any(one.polling for one in listed.executors if one.executor_id == executor)
        return polls and (await overview(link)).stream_count == before + 3

    await until(inside)
    assert not any(task.done() for task in tasks.values())
    return tasks


async def overview(link: Link):
    return await link.admin.GetOverview(admin_service_pb2.GetOverviewRequest(), timeout=10)


async def leased(link: Link, session: str) -> tuple:
    """Leases a run that is in a model step; returns its fence and the step's stream."""
    await link.submit(session)
    fence = (await link.lease(session)).fence
    granted = await link.commit(fence, reserve())
    return fence, granted.results[0].reserve_model_step.model_stream_id


async def ends(tasks: dict[str, asyncio.Task], limit: float) -> None:
    for name, task in tasks.items():
        error = await within(limit, refused(task))
        assert (name, error.code, error.reason) == (
            name,
            grpc.StatusCode.UNAUTHENTICATED,
            "CREDENTIAL_INVALID",
        )


async def test_what_lasts_ends_when_its_key_is_revoked_and_no_other(root, opened):
    own = unique("lasting")
    gone = await new_key(root, "gone", namespace=own)
    link = opened(gone.secret)
    stays = opened((await new_key(root, "stays", namespace=own)).secret)
    session = unique("lasts")
    fence, stream_id = await leased(link, session)
    tasks = await lasting(link, session, fence, stream_id)
    others = await lasting(stays, session, fence, stream_id)
    await revoke(root, gone.key.key_id)
    await ends(tasks, 1)
    assert (await refused(link.session(session))).reason == "CREDENTIAL_INVALID"
    await stays.commit(fence, step("said"))
    assert not any(task.done() for task in others.values())
    for task in others.values():
        task.cancel()
    await asyncio.gather(*others.values(), return_exceptions=True)


async def test_a_reader_that_stands_still_is_cut_too(root, opened):
    gone = await new_key(root, "gone")
    link = opened(gone.secret)
    session = unique("slow")
    for _ in range(40):
        await link.submit(session, "x" * 200_000, mode="MODE_QUEUE")
    stream = link.stream(session, include_messages=True)
    await stream.read()
    await asyncio.sleep(0.3)
    await revoke(root, gone.key.key_id)
    await asyncio.sleep(0.3)

    async def to_the_end():
        async for _ in rest(stream):
            pass

    error = await within(10, refused(to_the_end()))
    assert error.reason == "CREDENTIAL_INVALID"


async def test_an_executor_needs_its_scope_alone(asking, root, opened):
    class Model:
        async def complete(self, request):
            if request.messages[-1].role == "tool":
                return runlane.ModelResponse(text="done")
            use = runlane.ToolUseBlock(tool_call_id="c", name="ping", arguments={})
            return runlane.ModelResponse(content=[use])

    def ping() -> str:
        """Answers."""
        return "pong"

    secret = (await new_key(root, "worker", "execute")).secret
    session = unique("worked")
    agent = runlane.Agent(session, model=Model(), tools=[runlane.tool(ping)])
    user = opened((await new_key(root, "user", "read", "submit")).secret)
    receipt = await user.submit(session)
    async with (
        runlane.Client(asking.address, api_key=secret) as client,
        runlane.Executor(client, agent),
    ):
        run = await user.wait_run(receipt.submission.run_id)
    assert run.outcome.stop_reason == 1


async def test_what_lasts_ends_when_its_key_expires(root, opened):
    own = unique("lasting")
    link = opened((await new_key(root, "late", namespace=own, lifetime=5)).secret)
    begun = time.monotonic()
    session = unique("lasts")
    tasks = await lasting(link, session, *await leased(link, session))
    await ends(tasks, 8)
    assert 4.5 < time.monotonic() - begun < 7


async def test_events_name_the_key_that_caused_them(root, opened):
    people = {}
    for name in ("alice", "bob"):
        secret = (await new_key(root, name)).secret
        people[name] = opened(secret, ("runlane-client", "somebody-else"))
    session = unique("who")
    await people["alice"].submit(session)
    given = await people["bob"].lease(session, executor_id="worker-1")
    question = executor_service_pb2.Suspend(prompt={"question": {"text": "Well?"}})
    waits = await people["bob"].commit(given.fence, suspend=question)
    answer = session_service_pb2.AnswerInteractionRequest(
        run_id=waits.run.run_id,
        interaction_id=waits.run.interaction_id,
        version=1,
        answer={"question": {"text": "yes"}},
    )
    await people["bob"].sessions.AnswerInteraction(answer, timeout=10)
    await people["alice"].interrupt(session)
    actors = {one.WhichOneof("body"): one.actor for one in await people["alice"].events(session)}
    assert actors["run_created"] == "client:alice"
    assert actors["interaction_opened"] == "executor:worker-1"
    assert actors["interaction_answered"] == "client:bob"
    assert actors["run_terminal"] == "client:alice"
