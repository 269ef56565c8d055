"""Stopping: health first, calls answered, streams ended so that clients go on elsewhere."""

import asyncio
import signal
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2
from runlane import Client
from runlane.v1 import executor_service_pb2 as executor_pb
from runlane.v1 import history_service_pb2 as history_pb
from runlane.v1 import run_pb2
from runlane.v1 import session_service_pb2 as session_pb
from support_server import (
    EVENT,
    Link,
    refused,
    rest,
    seconds,
    told,
    unique,
    until,
    within,
)

pytestmark = pytest.mark.asyncio

GRACE = 10


@pytest.mark.every_store
async def test_a_drain_answers_calls_in_flight_ends_streams_and_is_over_in_time(server):
    """20 streams and 5 long waits are open when SIGTERM comes."""
    session = unique("drain")
    async with Link(server.address) as link:
        run_id = (await link.submit(session)).submission.run_id
        fence = (await link.lease(session)).fence
        watching = link.health.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING

        streams = [link.stream(session) for _ in range(10)]
        streams += [link.stream(session, run_ids=[run_id]) for _ in range(5)]
        for _ in range(3):
            request = history_pb.StreamRunEventsRequest(run_id=run_id)
            streams.append(link.history.StreamRunEvents(request, timeout=60))
        for _ in range(2):
            request = executor_pb.WatchActivationRequest(fence=fence)
            streams.append(link.executors.WatchActivation(request, timeout=60))
        for stream in streams:
            await stream.read()

        wait = history_pb.WaitRunRequest(run_id=run_id, wait_duration=seconds(100))
        poll = executor_pb.PollActivationRequest(
            executor_id="e", agents=["nobody"], wait_duration=seconds(100)
        )
        stop = session_pb.InterruptRunRequest(run_id=run_id, wait_duration=seconds(100))
        unary = [
            link.history.WaitRun(wait, timeout=200),
            link.history.WaitRun(wait, timeout=200),
            link.executors.PollActivation(poll, timeout=200),
            link.executors.PollActivation(poll, timeout=200),
            link.sessions.InterruptRun(stop, timeout=200),
        ]
        order = []

        async def note(name, awaitable):
            try:
                answer = await awaitable
            except grpc.aio.AioRpcError as error:
                answer = told(error)
            order.append(name)
            return answer

        async def to_its_end(stream):
            async for _ in rest(stream):
                pass

        async def asked() -> bool:
            return (await link.heartbeat(fence)).control.cancel_requested

        noted = [asyncio.create_task(note("unary", one)) for one in unary]
        # The last of them has arrived when the executor is told of the cancellation.
        await until(asked)
        ended = [asyncio.create_task(note("stream", to_its_end(one))) for one in streams]
        health = asyncio.create_task(note("health", watching.read()))
        begun = time.monotonic()
        server.send(signal.SIGTERM)
        answers = await within(GRACE, asyncio.gather(*noted))
        ends = await within(GRACE, asyncio.gather(*ended))
        status = await within(GRACE, health)
        code = await asyncio.to_thread(server.wait)
        assert code == 0
        assert time.monotonic() - begun < GRACE
    assert status.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert order[0] == "health"
    assert answers[0].run.run_id == answers[1].run.run_id == run_id
    assert not answers[2].HasField("activation")
    assert not answers[4].settled
    assert answers[4].run.HasField("cancellation")
    for end in ends:
        assert end.code == grpc.StatusCode.UNAVAILABLE
        assert end.reason in {"STREAM_ENDED", "DRAINING"}
        assert end.retry_seconds is not None


async def test_new_calls_to_a_draining_server_are_told_to_try_again(make_server):
    server = make_server(drain_grace_seconds=5).start()
    session = unique("draining")
    narrow = [("grpc.http2.bdp_probe", 0)]
    async with Link(server.address) as link, Link(server.address, narrow) as stuck:
        await link.submit(session, "x" * 3_000_000)
        # A reader that does not read holds the door open.
        blocked = stuck.stream(session, include_messages=True)
        await blocked.wait_for_connection()
        await asyncio.sleep(0.3)
        server.send(signal.SIGTERM)
        begun = time.monotonic()
        seen = None
        while seen is None and time.monotonic() - begun < 3:
            try:
                await link.session(session)
            except grpc.aio.AioRpcError as error:
                seen = told(error)
        assert seen.code == grpc.StatusCode.UNAVAILABLE
        assert seen.reason in {"DRAINING", ""}
        if seen.reason:
            assert seen.retry_seconds is not None
        assert await asyncio.to_thread(server.wait) == 0
        assert time.monotonic() - begun < 5 + 3
        blocked.cancel()


async def test_writes_in_flight_at_a_sigterm_are_answered_or_absent(server):
    session = unique("writes")
    answered: list[int] = []
    async with Link(server.address) as link:
        await link.create(session)

        async def write(number: int) -> None:
            request = session_pb.UpdateSessionRequest(
                session_id=session, display_name=f"n{number}", request_id=f"r{number}"
            )
            call = link.sessions.UpdateSession(request, timeout=20)
            (answer,) = await asyncio.gather(call, return_exceptions=True)
            if isinstance(answer, BaseException):
                assert answer.code() == grpc.StatusCode.UNAVAILABLE
            else:
                answered.append(answer.sequence)

        writers = [asyncio.create_task(write(number)) for number in range(2000)]
        await until(lambda: len(answered) >= 100)
        server.send(signal.SIGTERM)
        await within(30, asyncio.gather(*writers))
        assert await asyncio.to_thread(server.wait) == 0
    server.start()
    async with Link(server.address) as link:
        events = await link.events(session)
        assert [one.sequence for one in events] == list(range(1, len(events) + 1))
        assert set(answered) <= {one.sequence for one in events}
        # Who was answered UNAVAILABLE with a reason was refused before anything was written.
        assert len(events) == 1 + len(answered)
    assert server.stop() == 0
    assert server.check() == (0, "")


@pytest.mark.parametrize("gently", [True, False], ids=["SIGTERM", "SIGKILL"])
async def test_the_client_goes_on_by_its_cursor_while_writers_write_over_a_restart(server, gently):
    session = unique("client")
    async with Link(server.address) as link:
        await link.create(session)
    async with Client(server.address) as client, Client(server.address) as writer:
        events = client.events(session)
        last = 0

        async def write() -> None:
            nonlocal last
            for number in range(60):
                made = await writer.update_session(session, display_name=f"name {number}")
                assert made is not None
                if number == 20:
                    restarted.set()

        restarted = asyncio.Event()
        writing = asyncio.create_task(write())
        await restarted.wait()
        await asyncio.to_thread(server.restart, gently=gently)
        await within(40, writing)
        async with Link(server.address) as link:
            last = (await link.live(session)).sequence
        seen = []
        async with asyncio.timeout(30):
            while not seen or seen[-1].sequence < last:
                seen.append(await anext(events))
        await events.aclose()
        assert [one.sequence for one in seen] == list(range(1, last + 1))
        assert last == 61, "each write took effect once"


async def test_connections_that_are_sent_away_by_age_leave_no_gap(make_server):
    server = make_server(max_connection_age_seconds=1).start()
    session = unique("age")
    async with Client(server.address) as setup:
        await setup.create_session(session)
    async with Client(server.address) as client, Client(server.address) as writer:
        events = client.events(session)
        begun = time.monotonic()
        count = 0
        while time.monotonic() - begun < 5:
            await writer.update_session(session, display_name=f"name {count}")
            count += 1
            await asyncio.sleep(0.02)
        seen = []
        async with asyncio.timeout(45):
            while len(seen) < count + 1:
                seen.append(await anext(events))
        await events.aclose()
    assert [one.sequence for one in seen] == list(range(1, count + 2))


async def test_a_second_sigterm_and_a_sigint_change_nothing(server):
    async with Link(server.address) as link:
        await link.create(unique("twice"))
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
            server.send(number)
        assert await asyncio.to_thread(server.wait) == 0
        error = await refused(link.live("x"))
        assert error.code == grpc.StatusCode.UNAVAILABLE


AGENT = """
[[agent]]
name = "slow"
model = {{kind = "scripted", script = [{{answer = "done", delay_seconds = {delay}}}]}}
"""


async def test_a_drain_lets_executors_finish_while_nobody_new_comes_in(make_server, tmp_path):
    """The server's own run ends in the drain; another's Commit is taken, a Submit is not."""
    (tmp_path / "runlane.toml").write_text(AGENT.format(delay=3), encoding="utf-8")
    server = make_server(agent_grace_seconds=20).start()
    own, remote = unique("own"), unique("remote")
    async with Link(server.address) as link:
        spec = session_pb.SessionSpec(default_agent="slow")
        run_id = (await link.submit(own, create_session=spec)).submission.run_id
        await link.submit(remote)
        fence = (await link.lease(remote)).fence
        await until(lambda: leased(link, own))
        begun = time.monotonic()
        server.send(signal.SIGTERM)
        await until(lambda: draining(link, own))
        # Twice asked is not asked to hurry.
        server.send(signal.SIGTERM)
        assert not (await link.heartbeat(fence)).control.ended
        await link.answer(fence, "in time")
        for call in (link.submit(own), link.poll(remote, wait=0)):
            error = await refused(call)
            assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
            assert error.retry_seconds is not None
        assert await asyncio.to_thread(server.wait) == 0
        assert 2 < time.monotonic() - begun < 15
    server.start()
    async with Link(server.address) as link:
        run = await link.wait_run(run_id)
        assert run.outcome.stop_reason == run_pb2.Run.STOP_REASON_COMPLETED
        assert run.attempt == 1
        assert [one.content[0].text for one in await link.messages(remote)] == ["hello", "in time"]


async def test_a_drain_gives_back_what_takes_longer_than_its_grace(make_server, tmp_path):
    (tmp_path / "runlane.toml").write_text(AGENT.format(delay=600), encoding="utf-8")
    server = make_server(agent_grace_seconds=0.5).start()
    session = unique("long")
    async with Link(server.address) as link:
        spec = session_pb.SessionSpec(default_agent="slow")
        run_id = (await link.submit(session, create_session=spec)).submission.run_id
        await until(lambda: leased(link, session))
    begun = time.monotonic()
    assert await asyncio.to_thread(server.stop) == 0
    assert time.monotonic() - begun < 8
    (tmp_path / "runlane.toml").write_text("", encoding="utf-8")
    server.start()
    async with Link(server.address) as link:
        # It waits in the queue, for whoever comes; nothing of it was counted as a failure.
        taken = await link.lease("slow")
        assert (taken.fence.run_id, taken.fence.epoch) == (run_id, 2)
        types = {one.type for one in await link.events(session)}
        assert EVENT.TYPE_RUN_RECOVERING not in types
        await link.answer(taken.fence)


async def leased(link: Link, session: str) -> bool:
    activation = (await link.live(session)).run.activation
    return activation.state == activation.STATE_LEASED


async def draining(link: Link, session: str) -> bool:
    try:
        await link.live(session)
    except grpc.aio.AioRpcError as error:
        return told(error).reason == "DRAINING"
    return False
