"""Connections that are sent away, cut while they are quiet, or die without a word."""

import asyncio
import gc
import time

import grpc
import grpc.aio
import pytest
from runlane import Agent, Client, Executor, ModelResponse
from runlane._calls import _OPTIONS
from runlane.v1 import admin_service_pb2 as admin_pb
from runlane.v1 import executor_service_pb2 as executor_pb
from runlane.v1 import history_service_pb2 as history_pb
from runlane.v1 import run_pb2
from runlane.v1 import session_service_pb2 as session_pb
from support_server import (
    Link,
    Proxy,
    dense,
    rest,
    told,
    unique,
    until,
    within,
)

pytestmark = pytest.mark.asyncio


async def test_streams_on_connections_sent_away_by_age_are_ended_in_time_and_go_on(make_server):
    """Each stream ends by the server's own word, before gRPC cuts its connection off."""
    server = make_server(max_connection_age_seconds=1, max_connection_age_grace_seconds=2).start()
    session = unique("age")
    async with Link(server.address) as link:
        await link.create(session)
        run = (await link.submit(session)).submission.run_id
        fence = (await link.lease(session)).fence
        endless = [
            link.stream(session),
            link.history.StreamRunEvents(history_pb.StreamRunEventsRequest(run_id=run), timeout=60),
            link.executors.WatchActivation(
                executor_pb.WatchActivationRequest(fence=fence), timeout=60
            ),
            link.admin.StreamFeed(admin_pb.StreamFeedRequest(), timeout=60),
        ]
        for stream in endless:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async with asyncio.timeout(5):
                    async for _ in rest(stream):
                        pass
            end = told(caught.value)
            assert (end.code, end.reason) == (grpc.StatusCode.UNAVAILABLE, "STREAM_ENDED")
            assert end.retry_seconds is not None
        # A wait that is longer than its connection lives is answered with what is true.
        begun = time.monotonic()
        assert not (await link.wait_run(run, wait=100)).HasField("outcome")
        assert not (await link.poll("nobody", wait=100)).HasField("activation")
        assert time.monotonic() - begun < 2 * 3


async def test_readers_and_callers_notice_nothing_of_connections_sent_away_by_age(make_server):
    server = make_server(max_connection_age_seconds=1, max_connection_age_grace_seconds=1).start()
    session = unique("age")
    async with Client(server.address) as client, Client(server.address) as writer:
        await writer.create_session(session)
        events = client.events(session)
        begun = time.monotonic()
        count = 0
        seen = []

        async def read() -> None:
            async for event in events:
                seen.append(event)  # noqa: PERF401 - it is looked at meanwhile

        reading = asyncio.create_task(read())
        while time.monotonic() - begun < 6:
            await writer.update_session(session, display_name=f"name {count}")
            count += 1
        await until(lambda: len(seen) == count + 1)
        await events.aclose()
        await reading
    assert [one.sequence for one in seen] == list(range(1, count + 2))
    assert count > 20


async def test_calls_whose_connection_is_cut_again_and_again_take_effect_once(server):
    """Whether a cut call was taken is open to its caller; its request id settles it."""
    session = unique("cut")
    async with Link(server.address) as link, Proxy(server.address) as proxy:
        await link.create(session)
        async with Client(proxy.address) as client:

            async def write(number: int) -> None:
                await asyncio.sleep(number * 0.02)
                await client.update_session(session, display_name=f"name {number}")

            writing = asyncio.gather(*(write(number) for number in range(150)))
            while not writing.done():
                await asyncio.sleep(0.15)
                proxy.cut()
            await writing
        assert proxy.connections > 5
        events = dense(await link.events(session))
        assert len(events) == 1 + 150


class Slow:
    """A model that takes its time."""

    def __init__(self, answer: float) -> None:
        self.seconds = answer
        self.asked = asyncio.Event()
        self.count = 0

    async def complete(self, request):
        self.count += 1
        self.asked.set()
        await asyncio.sleep(self.seconds)
        return ModelResponse(text="done")


async def test_an_executor_works_on_over_connections_sent_away_by_age(make_server):
    server = make_server(max_connection_age_seconds=1, max_connection_age_grace_seconds=1).start()
    agent = unique("age")
    model = Slow(6)
    async with (
        Client(server.address) as client,
        Executor(client, Agent(agent, model=model), lease_duration=5),
    ):
        done = await within(30, client.start("go", options={"agent": agent}))
        assert done.text == "done"
        assert (done.run.attempt, model.count) == (1, 1)


async def test_a_quiet_stream_outlives_a_proxy_that_cuts_idle_connections(make_server):
    """The bookmarks of a stream, and the pings of either side, keep its connection open."""
    server = make_server(bookmark_seconds=45, keepalive_seconds=1).start()
    session = unique("quiet")
    async with Link(server.address) as setup, Proxy(server.address, idle_seconds=3) as proxy:
        await setup.create(session)
        async with Link(proxy.address) as link:
            stream = link.stream(session, after_sequence=1)
            await stream.wait_for_connection()
            # More silence than two pings last, which is all that gRPC sends by default.
            await asyncio.sleep(8)
            await setup.submit(session)
            frame = await within(5, stream.read())
            while not frame.batch.events:
                frame = await within(5, stream.read())
            assert frame.batch.events[0].sequence == 2
            assert proxy.connections == 1
            stream.cancel()


async def test_pings_of_the_client_keep_a_quiet_connection_and_are_never_refused(make_server):
    """As often as a client may ask, for longer than the strikes that gRPC allows."""
    server = make_server(bookmark_seconds=45, keepalive_seconds=600).start()
    session = unique("pings")
    async with Link(server.address) as setup, Proxy(server.address, idle_seconds=8) as proxy:
        await setup.create(session)
        async with Client(proxy.address, keepalive=5) as client:
            events = client.events(session)
            await anext(events)
            await asyncio.sleep(26)
            await setup.submit(session)
            assert (await within(5, anext(events))).sequence == 2
            assert proxy.connections == 1
            await events.aclose()


async def test_a_stream_whose_reader_forgot_it_ends_by_itself(make_server):
    """A call that nobody refers to any more is not cancelled by gRPC."""
    server = make_server(max_stream_seconds=1).start()
    session = unique("forgotten")
    async with Link(server.address) as link, Link(server.address) as careless:
        await link.create(session)
        for _ in range(20):
            await careless.sessions.StreamEvents(
                session_pb.StreamEventsRequest(session_id=session)
            ).read()
        gc.collect()
        assert await streams(link, 20)
        await until(lambda: streams(link, 0), limit=5)


async def test_a_server_drops_a_client_that_is_gone_without_a_word(make_server):
    server = make_server(keepalive_seconds=1, keepalive_timeout_seconds=1).start()
    session, agent = unique("gone"), unique("nobody")
    async with Link(server.address) as link, Proxy(server.address) as proxy:
        await link.create(session)
        async with Link(proxy.address) as lost:
            stream = lost.stream(session)
            await stream.read()
            poll = asyncio.create_task(lost.poll(agent, wait=60))
            await until(lambda: streams(link, 1))
            await until(lambda: polling(link, 1))
            begun = time.monotonic()
            proxy.swallow()
            await until(lambda: streams(link, 0), limit=5)
            await until(lambda: polling(link, 0), limit=5)
            assert time.monotonic() - begun < 5
            # Work that comes now goes to whoever is there: the dead poll takes nothing.
            await link.submit(agent)
            assert (await link.lease(agent)).fence.epoch == 1
            poll.cancel()
            stream.cancel()


async def streams(link: Link, count: int) -> bool:
    request = admin_pb.GetOverviewRequest()
    return (await link.admin.GetOverview(request, timeout=10)).stream_count == count


async def polling(link: Link, count: int) -> bool:
    listed = await link.admin.ListExecutors(admin_pb.ListExecutorsRequest(), timeout=10)
    return sum(one.polling for one in listed.executors) == count


async def test_a_reader_notices_a_connection_that_died_without_a_word(server):
    session = unique("half")
    async with Link(server.address) as link, Proxy(server.address) as proxy:
        await link.create(session)
        quick = dict(_OPTIONS) | {
            "grpc.keepalive_time_ms": 1000,
            "grpc.keepalive_timeout_ms": 1000,
            "grpc.http2.ping_timeout_ms": 1000,
        }
        channel = grpc.aio.insecure_channel(proxy.address, options=list(quick.items()))
        async with Client(proxy.address, channel=channel) as client:
            events = client.events(session)
            assert (await anext(events)).sequence == 1
            proxy.swallow()
            await link.submit(session)
            begun = time.monotonic()
            # Well before the silence of the stream is noticed, which takes a minute.
            following = [await within(10, anext(events)) for _ in range(2)]
            assert [one.sequence for one in following] == [2, 3]
            assert time.monotonic() - begun < 10
            assert proxy.connections == 2
            await events.aclose()
        await channel.close()


async def test_an_executor_keeps_its_lease_over_a_connection_that_died_without_a_word(server):
    """With what a client does by default, and a lease as long as it is by default."""
    agent = unique("holder")
    model = Slow(33)
    async with Link(server.address) as link, Proxy(server.address) as proxy:
        async with Client(proxy.address) as client, Executor(client, Agent(agent, model=model)):
            await link.submit(agent)
            await within(10, model.asked.wait())
            # The lease was confirmed by the reservation of the step.
            proxy.swallow()
            run = (await link.live(agent)).run.run_id
            done = await link.wait_run(run, wait=60)
            assert done.outcome.stop_reason == run_pb2.Run.STOP_REASON_COMPLETED
            assert (done.attempt, model.count) == (1, 1)
        dense(await link.events(agent))
