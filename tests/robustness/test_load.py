"""Many at once, and some that are slow: no fault, no harm to others, bounded memory."""

import asyncio
import itertools
import random
import statistics
import time

import grpc
import pytest
from runlane.v1 import event_pb2
from runlane.v1 import executor_service_pb2 as executor_pb
from runlane.v1 import history_service_pb2 as history_pb
from runlane.v1 import session_service_pb2 as session_pb
from support_server import (
    MODE,
    Link,
    ask,
    dense,
    reserve,
    rest,
    step,
    told,
    unique,
    within,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(900), pytest.mark.alone]

MEBIBYTE = 1024 * 1024
BLOCK = 10_000
"""Tokens of a block: a longer one than a server keeps would go on without deltas."""
FIND_IN_TABLES = """
    SELECT format('SELECT count(*) FROM %I.%I t WHERE t::text ~ MARK', schemaname, tablename)
    FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
"""
"""Makes a question of each table, in which MARK stands for what is looked for."""


@pytest.mark.every_store
@pytest.mark.parametrize("duration", [pytest.param(4), pytest.param(30, marks=pytest.mark.long)])
async def test_64_clients_that_submit_commit_and_list_meet_no_fault(server, duration: float):
    links = [Link(server.address) for _ in range(8)]
    end = time.monotonic() + duration
    latencies: list[float] = []
    faults: list[object] = []
    expected = {"SESSION_BUSY", "SESSION_IDLE", "QUEUE_FULL", "RUN_NOT_TERMINAL"}

    async def client(number: int) -> None:
        link = links[number % len(links)]
        session = f"load-{number % 32}"
        while time.monotonic() < end:
            begun = time.monotonic()
            try:
                await link.submit(session, f"input of {number}", mode=number % 3 + 1)
                answer = await link.poll(session, 0, executor_id=f"e{number}")
                if answer.HasField("activation"):
                    fence = answer.activation.fence
                    await link.commit(fence, reserve())
                    await link.answer_reserved(fence)
                await link.live(session)
                await link.history.ListSessions(history_pb.ListSessionsRequest(), timeout=20)
                request = history_pb.ListRunsRequest(session_id=session)
                page = await link.history.ListRuns(request, timeout=20)
                if number % 16 == 0:
                    await link.fork(page.runs[0].run_id)
            except grpc.aio.AioRpcError as error:
                if told(error).reason not in expected:
                    faults.append(error)
            latencies.append(time.monotonic() - begun)

    await asyncio.gather(*(client(number) for number in range(64)))
    assert faults == []
    assert len(latencies) > 64
    for number in range(32):
        dense(await links[0].events(f"load-{number}"))
    for link in links:
        await link.channel.close()
    assert server.stop() == 0
    assert server.check() == (0, "")


@pytest.mark.every_store
async def test_100_000_tokens_leave_no_delta_in_the_database(server):
    count = 100_000
    session = unique("tokens")
    mark = "never-to-be-kept"
    async with Link(server.address) as link:
        await link.submit(session)
        fence = (await link.lease(session)).fence
        granted = await link.commit(fence, reserve())
        stream_id = granted.results[0].reserve_model_step.model_stream_id
        watching = link.stream(session, include_deltas=True)
        read = asyncio.create_task(collect_deltas(watching))

        def delta(number: int) -> event_pb2.Delta:
            index, revision = divmod(number, BLOCK)
            return event_pb2.Delta(
                model_stream_id=stream_id,
                step=1,
                block_index=index,
                kind=event_pb2.Delta.KIND_TEXT,
                base_revision=revision,
                revision=revision + 1,
                append_text=f"{mark}-{number} ",
            )

        async def tokens():
            size = 100
            for start in range(0, count, size):
                deltas = [delta(number) for number in range(start, start + size)]
                yield executor_pb.PublishDeltasRequest(fence=fence, deltas=deltas)

        sent = await link.executors.PublishDeltas(tokens(), timeout=600)
        assert sent.delta_count == count
        events = (await link.live(session)).sequence
        await link.answer_reserved(fence, "the whole answer")
        seen = await within(10, read)
        assert seen > 0
        messages = await link.messages(session)
        assert [one.content[0].text for one in messages] == ["hello", "the whole answer"]
        assert (await link.live(session)).sequence - events < 8
    server.kill()
    if server.store.startswith("sqlite:"):
        for path in server.path.parent.glob("runlane.db*"):
            assert mark.encode() not in path.read_bytes(), path
        return
    # Bytes are shown in hexadecimal digits there.
    found = f"{mark}|{mark.encode().hex()}"
    questions = [sql.replace("MARK", "?") for (sql,) in ask(server.store, FIND_IN_TABLES)]
    assert len(questions) > 5
    for sql in questions:
        assert ask(server.store, sql, found) == [(0,)], sql


async def collect_deltas(call) -> int:
    seen = 0
    async for frame in rest(call):
        seen += len(frame.deltas.deltas)
        if any(one.HasField("run_terminal") for one in frame.batch.events):
            call.cancel()
            break
    return seen


async def update(link: Link, session: str, number: int) -> None:
    request = session_pb.UpdateSessionRequest(
        session_id=session, display_name=f"{number} " + "x" * 200
    )
    await link.sessions.UpdateSession(request, timeout=60)


async def test_readers_that_stop_reading_cost_bounded_memory_and_harm_nobody(server):
    """20 readers read one frame and no more, beside a writer of 12,000 events and a fast reader."""
    session, other = unique("slow"), unique("other")
    narrow = [("grpc.http2.bdp_probe", 0)]
    count = 12_000
    async with Link(server.address) as link, Link(server.address, narrow) as slow_link:
        await link.create(session)
        await link.create(other)
        await asyncio.gather(*(update(link, other, number) for number in range(500)))
        slow = [slow_link.stream(session, timeout=300) for _ in range(20)]
        first = [await call.read() for call in slow]
        before = server.memory()
        fast = asyncio.create_task(read_to(link, session, count + 1))
        peak = before
        longest = 0.0
        for start in range(0, count, 500):
            await asyncio.gather(*(update(link, session, start + n) for n in range(500)))
            begun = time.monotonic()
            await update(link, other, start)
            longest = max(longest, time.monotonic() - begun)
            peak = max(peak, server.memory())
        await within(30, fast)
        assert longest < 2
        assert (peak - before) < 64 * MEBIBYTE, f"{(peak - before) // MEBIBYTE} MiB"
        # One of them goes on where it is, another comes again from its cursor.
        sequences = [event.sequence for event in first[0].batch.events]
        async with asyncio.timeout(60):
            async for frame in rest(slow[0]):
                sequences += [event.sequence for event in frame.batch.events]
                if sequences and sequences[-1] >= count + 1:
                    break
        assert sequences == list(range(1, count + 2))
        cursor = first[1].batch.events[-1].sequence
        for call in slow:
            call.cancel()
        resumed = await link.events(session, after_sequence=cursor)
        assert [one.sequence for one in resumed] == list(range(cursor + 1, count + 2))


async def read_to(link: Link, session: str, last: int) -> None:
    expected = 1
    async for event in link.follow(session, timeout=300):
        assert event.sequence == expected
        expected += 1
        if event.sequence == last:
            return


@pytest.mark.parametrize(
    ("count", "rounds"), [(1000, 3), pytest.param(5000, 10, marks=pytest.mark.long)]
)
async def test_idle_streams_that_are_opened_and_dropped_leave_no_memory(
    server, count: int, rounds: int
):
    sessions = [unique("idle") for _ in range(50)]
    async with Link(server.address) as link:
        for session in sessions:
            await link.create(session)

    async def open_and_drop() -> None:
        async with Link(server.address) as link:
            calls = [link.stream(sessions[number % 50]) for number in range(count)]
            for start in range(0, count, 100):
                await asyncio.gather(*(call.read() for call in calls[start : start + 100]))
            for call in calls:
                call.cancel()

    await open_and_drop()
    async with Link(server.address) as link:
        await until_streams_are_gone(link)
        before, after = server.memory(), []
        for _ in range(rounds):
            await open_and_drop()
            await until_streams_are_gone(link)
            after.append(server.memory())
        # The allocator takes and gives back some 16 MiB at a time: what stays is the least.
        grown = [one - before for one in after]
        assert min(grown[rounds // 2 :]) < 32 * MEBIBYTE, grown
        await update(link, sessions[0], 1)


async def until_streams_are_gone(link: Link) -> None:
    """A round of calls: the cancellations are behind it."""
    for _ in range(20):
        await link.history.ListSessions(history_pb.ListSessionsRequest(), timeout=10)


async def test_streams_beyond_the_limit_are_refused_and_places_come_back(make_server):
    server = make_server(streams_max=20).start()
    session = unique("limit")
    async with Link(server.address) as link:
        await link.create(session)
        for _ in range(3):
            calls = [link.stream(session) for _ in range(20)]
            for call in calls:
                await call.read()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await link.stream(session).read()
            error = told(caught.value)
            assert (error.code, error.reason) == (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "STREAM_LIMIT",
            )
            assert error.metadata["limit"] == "20"
            # Waits of unary calls take no place of a stream.
            run_id = (await link.submit(unique("wait"))).submission.run_id
            assert (await link.wait_run(run_id, 0.1)).run_id == run_id
            for call in calls:
                call.cancel()
            await gone(link, session)


async def gone(link: Link, session: str) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await link.events(session)
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.02)
                continue
            return


async def test_a_session_with_a_long_history_is_as_fast_as_a_new_one(server):
    """A Submit, a page and a live state take no longer behind 400 runs than behind one."""
    long, short = unique("long"), unique("short")
    async with Link(server.address) as link:
        for number in range(400):
            await link.run(long, f"input {number} " + "x" * 500)
        await link.run(short)

        async def measure(session: str) -> float:
            begun = time.perf_counter()
            await link.submit(session, mode=MODE.MODE_START)
            await link.live(session)
            request = history_pb.ListRunsRequest(session_id=session, page_size=10)
            await link.history.ListRuns(request, timeout=10)
            fence = (await link.lease(session)).fence
            await link.commit(fence, reserve())
            await link.commit(fence, step(), finish=executor_pb.Finish(completed={}))
            return time.perf_counter() - begun

        times = {session: [] for session in (short, long)}
        for _ in range(15):
            for session, taken in times.items():
                taken.append(await measure(session))
        middle = {session: sorted(taken)[7] for session, taken in times.items()}
        assert middle[long] < 4 * middle[short]


@pytest.mark.every_store
@pytest.mark.parametrize("count", [2000, pytest.param(20_000, marks=pytest.mark.long)])
async def test_the_last_page_of_many_sessions_comes_as_fast_as_the_first(server, count: int):
    async with Link(server.address) as link:
        for start in range(0, count, 100):
            await asyncio.gather(
                *(link.create(f"many-{number}") for number in range(start, start + 100))
            )
        pages: list[float] = []
        names: list[str] = []
        request = history_pb.ListSessionsRequest(page_size=100)
        while True:
            begun = time.perf_counter()
            page = await link.history.ListSessions(request, timeout=10)
            pages.append(time.perf_counter() - begun)
            names += [one.session_id for one in page.sessions]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
    assert len(names) == len(set(names)) == count
    tenth = len(pages) // 10
    first, last = statistics.median(pages[:tenth]), statistics.median(pages[-tenth:])
    assert statistics.median(pages) < 0.1
    assert last < 4 * first


@pytest.mark.every_store
@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.long)])
async def test_a_store_grows_as_what_is_said_and_forks_copy_nothing(server, count: int):
    """Runs of 8 KiB each, which cannot be pressed together; then a fork at every tenth."""
    session = unique("grows")
    rng = random.Random(count)
    async with Link(server.address) as link:
        await link.create(session)
        sizes = [await size_of(server)]
        runs = []
        for _ in range(count):
            said = rng.randbytes(2048).hex()
            runs.append(await link.run(session, said, said[::-1]))
            if len(runs) in {count // 2, count}:
                sizes.append(await size_of(server))
        for run_id in runs[::10]:
            await link.fork(run_id)
        sizes.append(await size_of(server))
    payload = count * 2 * 4096
    first, second, forks = (after - before for before, after in itertools.pairwise(sizes))
    assert first + second < 3 * payload
    assert second < 1.5 * first + MEBIBYTE
    assert forks < payload / 4


async def size_of(server) -> int:
    """Returns the bytes that a store takes, without what it keeps to recover itself."""
    if server.store.startswith("sqlite:"):
        size = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
    else:
        size = "SELECT pg_database_size(current_database())"
    return (await asyncio.to_thread(ask, server.store, size))[0][0]
