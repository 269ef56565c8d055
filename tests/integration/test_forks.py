"""Forks: exactly the prefix, nothing shared that can change, nothing half made."""

import asyncio
import time

import grpc
import pytest
from runlane.v1 import history_service_pb2, session_service_pb2
from support_server import (
    EVENT,
    MODE,
    Link,
    ask,
    dense,
    failed,
    refused,
    told,
    unique,
    until,
    within,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]


async def five_runs(link: Link, session: str) -> list[str]:
    await link.create(session, labels={"team": "blue"}, metadata_json='{"a":1}')
    runs = []
    for number in range(5):
        if number == 2:
            await link.submit(session, "this one fails")
            fence = (await link.lease(session)).fence
            await link.commit(fence, finish=failed())
            runs.append(fence.run_id)
        else:
            runs.append(await link.run(session, f"input {number} é", f"answer {number} 答"))
    return runs


async def raw_history(link: Link, run_id: str) -> tuple[bytes, list[bytes]]:
    """Reads the frames of GetHistoryAtRun as they came."""
    call = link.channel.unary_stream(
        "/runlane.v1.HistoryService/GetHistoryAtRun",
        request_serializer=history_service_pb2.GetHistoryAtRunRequest.SerializeToString,
        response_deserializer=None,
    )
    header, messages = b"", b""
    async for frame in call(history_service_pb2.GetHistoryAtRunRequest(run_id=run_id), timeout=20):
        if history_service_pb2.GetHistoryAtRunResponse.FromString(frame).HasField("header"):
            header += frame
        else:
            messages += frame
    return header, messages


async def raw_messages(link: Link, session: str) -> bytes:
    call = link.channel.unary_stream(
        "/runlane.v1.HistoryService/StreamMessages",
        request_serializer=history_service_pb2.StreamMessagesRequest.SerializeToString,
        response_deserializer=None,
    )
    request = history_service_pb2.StreamMessagesRequest(session_id=session)
    return b"".join([frame async for frame in call(request, timeout=20)])


async def test_a_fork_at_each_of_five_runs_holds_that_prefix_byte_for_byte(link: Link):
    source = unique("source")
    runs = await five_runs(link, source)
    before = await raw_messages(link, source)
    sizes = []
    for number, run_id in enumerate(runs):
        _, prefix = await raw_history(link, run_id)
        header, _ = await link.history_at(run_id)
        made = await link.fork(run_id)
        assert made.session.forked_from.session_id == source
        assert made.session.forked_from.run_id == run_id
        assert made.message_count == header.message_count == made.session.message_count
        assert made.digest == header.digest
        assert made.session.labels == {"team": "blue"}
        assert made.session.metadata_json == '{"a":1}'
        assert made.session.default_agent == source
        fork = made.session.session_id
        assert await raw_messages(link, fork) == prefix
        sizes.append(header.message_count)
        # What is added to the fork goes behind the prefix, and nowhere else.
        await link.submit(fork, f"only here {number}")
        fence = (await link.lease(source)).fence
        assert fence.session_id == fork
        await link.answer(fence, "fork's own")
        whole = await raw_messages(link, fork)
        assert whole.startswith(prefix)
        own = history_service_pb2.StreamMessagesResponse.FromString(whole[len(prefix) :])
        assert [one.content[0].text for one in own.messages] == [
            f"only here {number}",
            "fork's own",
        ]
        assert (await raw_history(link, run_id))[1] == prefix
    assert sizes == [2, 4, 5, 7, 9]
    assert await raw_messages(link, source) == before
    events = dense(await link.events(source))
    forked = [one for one in events if one.HasField("session_forked")]
    assert len(forked) == 5
    assert all(one.session_forked.source_run_id in runs for one in forked)


async def test_a_fork_of_a_fork_and_of_its_own_run_go_on(link: Link):
    source = unique("chain")
    first = await link.run(source, "one")
    last, session = first, source
    for depth in range(5):
        made = await link.fork(last, default_agent=f"{source}-{depth}")
        session = made.session.session_id
        await link.submit(session, f"depth {depth}")
        fence = (await link.lease(f"{source}-{depth}")).fence
        await link.answer(fence, f"answer {depth}")
        last = fence.run_id
    words = [one.content[0].text for one in await link.messages(session)]
    expected = [word for depth in range(5) for word in (f"depth {depth}", f"answer {depth}")]
    assert words == ["one", "done", *expected]
    request = history_service_pb2.GetLineageRequest(session_id=session)
    lineage = await link.history.GetLineage(request, timeout=10)
    assert len(lineage.ancestors) == 5
    assert lineage.ancestors[-1].session_id == source


async def test_50_parallel_forks_of_one_run_are_50_sessions(link: Link):
    source = unique("parallel")
    run_id = await link.run(source)
    before = await link.session(source)
    made = await asyncio.gather(*(link.fork(run_id) for _ in range(50)))
    assert len({one.session.session_id for one in made}) == 50
    prefix = await raw_messages(link, source)
    for one in made:
        assert await raw_messages(link, one.session.session_id) == prefix
        events = dense(await link.events(one.session.session_id))
        assert [one.type for one in events] == [
            EVENT.TYPE_SESSION_CREATED,
            EVENT.TYPE_SESSION_FORKED,
        ]
    after = await link.session(source)
    assert after.revision == before.revision
    assert after.etag == before.etag
    events = dense(await link.events(source))
    assert sum(one.HasField("session_forked") for one in events) == 50
    request = history_service_pb2.GetLineageRequest(session_id=source)
    forks = await link.pages(link.history.GetLineage, request, "forks", 7)
    assert {one.session_id for one in forks} == {one.session.session_id for one in made}


async def test_forks_race_writers_of_their_source(link: Link):
    source = unique("racing")
    run_id = await link.run(source)

    async def write():
        for number in range(15):
            await link.run(source, f"input {number}")

    writer = asyncio.create_task(write())
    made = []
    while not writer.done():
        made.append(await link.fork(run_id))
    await writer
    prefix = (await raw_history(link, run_id))[1]
    for one in made[::5]:
        assert await raw_messages(link, one.session.session_id) == prefix
    dense(await link.events(source))
    assert (await link.session(source)).message_count == 2 + 30


async def test_deleting_the_source_and_sweeping_it_harms_no_fork(make_server):
    server = make_server(sweep_delay_seconds=0).start()
    source = unique("swept")
    async with Link(server.address) as link:
        runs = await five_runs(link, source)
        forks = [(await link.fork(run_id)).session.session_id for run_id in runs]
        grandchild = (await link.fork(runs[1])).session.session_id
        prefixes = [await raw_messages(link, fork) for fork in forks]
        headers = [await link.live(fork) for fork in forks]
        await link.delete(source)
        for run_id in runs:
            assert (await refused(link.fork(run_id))).reason == "RUN_NOT_FOUND"
            error = await refused(link.history_at(run_id))
            assert error.reason == "RUN_NOT_FOUND"
        await until(lambda: not rows_of_runs(server, source))
        assert [await raw_messages(link, fork) for fork in forks] == prefixes
        assert [await link.live(fork) for fork in forks] == headers
        await link.delete(grandchild)
        assert [await raw_messages(link, fork) for fork in forks] == prefixes
        # The newest fork still takes input, and shows all that it took over.
        await link.submit(forks[-1], "go on")
        leased = await link.lease(source, context_bytes_max=100_000)
        assert len(leased.context.messages) == 10
        await link.answer(leased.fence)
        error = await refused(link.create(source))
        assert (error.reason, error.metadata["deleted"]) == ("SESSION_EXISTS", "true")
    server.restart()
    async with Link(server.address) as link:
        assert [await raw_messages(link, fork) for fork in forks[:-1]] == prefixes[:-1]
    assert server.stop() == 0
    assert server.check() == (0, "")


def rows_of_runs(server, session: str) -> int:
    count = (
        "SELECT count(*) FROM runs r JOIN sessions s ON s.key = r.session_key"
        " WHERE s.session_id = ?"
    )
    return ask(server.store, count, session)[0][0]


async def test_a_live_run_is_no_fork_point_and_earlier_ones_of_its_session_are(link: Link):
    source = unique("live")
    first = await link.run(source)
    live = (await link.submit(source, "at work")).submission.run_id
    for leased in (False, True):
        fence = (await link.lease(source)).fence if leased else None
        error = await refused(link.fork(live))
        assert (error.code, error.reason) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "RUN_NOT_TERMINAL",
        )
        assert error.metadata["run_id"] == live
        assert (await refused(link.history_at(live))).reason == "RUN_NOT_TERMINAL"
        made = await link.fork(first)
        assert made.message_count == 2
    request = history_service_pb2.ListForkPointsRequest(session_id=source)
    points = await link.history.ListForkPoints(request, timeout=10)
    assert [one.run_id for one in points.fork_points] == [first]
    await link.answer(fence)
    assert (await link.fork(live)).message_count == 4


async def test_a_fork_onto_an_id_that_is_taken_leaves_the_source_usable_and_nothing_half(
    link: Link,
):
    source, taken, gone = unique("usable"), unique("taken"), unique("gone")
    run_id = await link.run(source)
    await link.run(taken, "its own")
    await link.create(gone)
    await link.delete(gone)
    before = [await link.live(one) for one in (source, taken)]
    for target, deleted in ((taken, "false"), (source, "false"), (gone, "true")):
        error = await refused(link.fork(run_id, session_id=target))
        assert (error.code, error.reason) == (grpc.StatusCode.ALREADY_EXISTS, "SESSION_EXISTS")
        assert error.metadata["deleted"] == deleted
    assert [await link.live(one) for one in (source, taken)] == before
    assert (await refused(link.session(gone))).reason == "SESSION_NOT_FOUND"
    await link.run(source, "goes on")
    # 20 at once onto one free id: one wins.
    target = unique("contested")
    answers = await asyncio.gather(
        *(link.fork(run_id, session_id=target) for _ in range(20)), return_exceptions=True
    )
    errors = [told(one) for one in answers if isinstance(one, grpc.aio.AioRpcError)]
    assert len(errors) == 19
    assert {one.reason for one in errors} == {"SESSION_EXISTS"}
    forked = [one for one in await link.events(source) if one.HasField("session_forked")]
    assert len(forked) == 1


@pytest.mark.parametrize("gently", [False, True], ids=["SIGKILL", "SIGTERM"])
async def test_a_fork_again_with_its_request_id_is_the_same_session_over_a_restart(server, gently):
    source = unique("again")
    async with Link(server.address) as link:
        run_id = await link.run(source)
        first = await link.fork(run_id, request_id="fork-1")
    server.restart(gently=gently)
    async with Link(server.address) as link:
        second = await link.fork(run_id, request_id="fork-1")
        assert second.replayed
        second.replayed = False
        assert second == first
        error = await refused(link.fork(run_id, request_id="fork-1", display_name="another"))
        assert error.reason == "REQUEST_ID_REUSED"
        request = history_service_pb2.GetLineageRequest(session_id=source)
        forks = await link.pages(link.history.GetLineage, request, "forks", 10)
        assert len(forks) == 1
        # It is known for as long as the session is, and after it.
        await link.delete(first.session.session_id)
        third = await link.fork(run_id, request_id="fork-1")
        assert third.replayed
        assert third.session.session_id == first.session.session_id


async def test_a_fork_with_a_first_input_is_one_act(link: Link):
    source, target = unique("input"), unique("input-fork")
    run_id = await link.run(source)
    content = [{"text": "go another way"}]
    made = await link.fork(
        run_id,
        session_id=target,
        default_agent=target,
        input=history_service_pb2.ForkInput(content=content),
        request_id="with-input",
    )
    assert made.submission.run_id == made.session.current_run_id
    again = await link.fork(
        run_id,
        session_id=target,
        default_agent=target,
        input=history_service_pb2.ForkInput(content=content),
        request_id="with-input",
    )
    assert again.replayed
    leased = await link.lease(target, context_bytes_max=100_000)
    assert [one.content[0].text for one in leased.context.messages] == [
        "hello",
        "done",
        "go another way",
    ]
    await link.answer(leased.fence)
    assert (await link.live(target)).session.message_count == 4
    # An input that is refused makes no session.
    other = unique("blank")
    error = await refused(
        link.fork(
            run_id, session_id=other, input=history_service_pb2.ForkInput(content=[{"text": " "}])
        )
    )
    assert (error.reason, error.fields) == ("INPUT_EMPTY", ["input.content"])
    assert (await refused(link.session(other))).reason == "SESSION_NOT_FOUND"


async def test_a_fork_takes_a_long_history_as_fast_as_a_short_one(link: Link):
    short, long = unique("short"), unique("long")
    runs = {short: await link.run(short), long: ""}
    for number in range(150):
        runs[long] = await link.run(long, "x" * 1000, f"answer {number}")
    times = {short: [], long: []}
    for _ in range(10):
        for session, run_id in runs.items():
            begun = time.perf_counter()
            await link.fork(run_id)
            times[session].append(time.perf_counter() - begun)
    # The medians; a linear fork would take 150 times as long.
    middle = {session: sorted(taken)[5] for session, taken in times.items()}
    assert middle[long] < 10 * middle[short]


async def test_a_fork_has_no_lane_queue_or_live_run_of_its_source(link: Link):
    source = unique("lane")
    first = await link.run(source)
    await link.submit(source, "at work")
    await link.submit(source, "next", mode=MODE.MODE_FOLLOW_UP)
    made = (await link.fork(first)).session
    live = await link.live(made.session_id)
    assert not live.HasField("run")
    assert not live.pending_submissions
    assert len(await within(5, link.events(made.session_id))) == 2
    request = session_service_pb2.CloseSessionRequest(session_id=made.session_id)
    await link.sessions.CloseSession(request, timeout=5)
    assert (await link.live(source)).session.state == 1
