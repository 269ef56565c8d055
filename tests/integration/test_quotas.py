"""Quotas over sockets: what each of them refuses, whom, and how it is told."""

import asyncio
import time

import grpc
import pytest
import runlane
from access import METHODS, Scene, bearer, made_server, new_key, send
from google.rpc import error_details_pb2, status_pb2
from runlane.v1 import executor_service_pb2, session_service_pb2
from runlane_server.cli._app import app
from runlane_server.transport.access import EXEMPT
from support_server import COMPLETED, Link, refused, told, unique, until
from typer.testing import CliRunner

pytestmark = pytest.mark.asyncio
SECONDS = 30
SLOW = {"quota_requests_per_second": 1, "quota_burst_seconds": 1}
GET = session_service_pb2.GetSessionRequest(session_id="nobody")


async def get(link: Link) -> grpc.aio.AioRpcError:
    """Makes a call that costs a token; returns how it failed."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await link.sessions.GetSession(GET, timeout=SECONDS)
    return caught.value


async def exhaust(link: Link, seconds: float = 0.2) -> float:
    """Calls until no token will be there for that long; returns how long that is."""
    while True:
        wait = told(await get(link)).retry_seconds
        if wait is not None and wait >= seconds:
            return wait


async def with_scene(make_server, **quotas: object):
    """Returns a server with quotas, on a file that was filled without."""
    server = make_server().start()
    async with Link(server.address) as link:
        scene = await Scene().play(link, "scene")
    assert server.stop() == 0
    server.settings.update(quotas)
    return server.start(), scene


async def test_each_call_is_refused_for_a_rate_but_for_those_that_are_exempt(make_server):
    server, scene = await with_scene(make_server, **SLOW)
    async with Link(server.address) as link:
        # What ends the activation comes last.
        paths = sorted(METHODS, key=lambda path: path.endswith("/Commit"))
        for path in paths:
            await exhaust(link)
            raw = scene.request(path)
            if path in EXEMPT:
                if path == "AdminService/RevokeKey":
                    assert (await refused(send(link, path, raw.SerializeToString()))).reason == (
                        "KEY_NOT_FOUND"
                    )
                else:
                    assert await send(link, path, raw.SerializeToString()) is not None, path
                continue
            for request_id in ["", "new"] if hasattr(raw, "request_id") else [None]:
                if request_id is not None:
                    raw.request_id = request_id
                found = await refused(send(link, path, raw.SerializeToString()))
                assert found.reason == "QUOTA_EXCEEDED", (path, found)
                assert found.code is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert found.metadata == {"quota": "requests_per_second", "limit": "1"}
                assert 0 < found.retry_seconds <= 1
        # Of all that was refused nothing was done.
        await asyncio.sleep(1)
        assert (await link.session(scene.ids["session_id"])).state == 1


async def test_exempt_calls_cost_nothing(make_server):
    server, scene = await with_scene(make_server, quota_requests_per_second=2, quota_burst_seconds=1)  # fmt: skip
    async with Link(server.address) as link:
        for _ in range(50):
            await link.heartbeat(scene.fence)
        assert told(await get(link)).reason == "SESSION_NOT_FOUND"


async def test_the_wait_that_is_told_is_true_and_told_in_full(make_server):
    server = make_server(quota_requests_per_second=3, quota_burst_seconds=1).start()
    async with Link(server.address) as link:
        for _ in range(2):
            wait = await exhaust(link, 0.1)
            await asyncio.sleep(wait)
            assert told(await get(link)).reason == "SESSION_NOT_FOUND"
        await exhaust(link, 0.1)
        error = await get(link)
        trailers = dict(error.trailing_metadata())
        found = {}
        for detail in status_pb2.Status.FromString(trailers["grpc-status-details-bin"]).details:
            kind = detail.TypeName().rpartition(".")[2]
            found[kind] = getattr(error_details_pb2, kind)()
            assert detail.Unpack(found[kind])
        assert found["QuotaFailure"].violations[0].subject == "requests_per_second"
        delay = found["RetryInfo"].retry_delay.ToMilliseconds()
        assert 0 < delay == int(trailers["grpc-retry-pushback-ms"]) <= 334


async def test_a_repeated_call_is_answered_while_nothing_new_is(make_server):
    server = make_server(**SLOW).start()
    session = unique("again")
    async with Link(server.address) as link:
        first = await link.submit(session, request_id="once")
        await exhaust(link)
        again = await link.submit(session, request_id="once")
        assert again.replayed
        assert again.submission.run_id == first.submission.run_id
        other = await refused(link.submit(session, "another", request_id="once"))
        assert other.reason == "REQUEST_ID_REUSED"
        empty = await refused(link.submit(session, " "))
        assert empty.reason == "INPUT_EMPTY"
        assert (await refused(link.submit(session, request_id="new"))).reason == "QUOTA_EXCEEDED"


async def test_input_that_was_accepted_is_started_and_ended(make_server):
    server = make_server(quota_events_per_second=1, quota_burst_seconds=1).start()
    session = unique("events")
    async with Link(server.address) as link:
        await link.submit(session)
        found = await refused(link.submit(session, mode="MODE_QUEUE"))
        assert found.metadata == {"quota": "events_per_second", "limit": "1"}
        assert found.retry_seconds > 1
        leased = await link.lease(session)
        await link.answer(leased.fence)
        assert len(await link.messages(session)) == 2
        assert (await refused(link.submit(session))).reason == "QUOTA_EXCEEDED"


async def test_namespaces_do_not_disturb_each_other(make_server, tmp_path):
    config = tmp_path / "quotas.toml"
    config.write_text(
        "quota_sessions_max = 3\nquota_burst_seconds = 1\n"
        '[[quota]]\nnamespace = "slow"\nrequests_per_second = 1\nopen_streams_max = 1\n'
        '[[quota]]\nnamespace = "free"\nsessions_max = 0\n',
        encoding="utf-8",
    )
    server = made_server(make_server, tmp_path / "keys", arguments=["--config", str(config)])
    async with Link(server.address, metadata=bearer(server.root)) as root:
        secrets = {
            name: (await new_key(root, name, namespace=name)).secret for name in ("slow", "free")
        }
        slow, free = (Link(server.address, metadata=bearer(one)) for one in secrets.values())
    async with slow, free:
        await exhaust(slow)
        for number in range(10):
            await free.create(f"s{number}")
        assert (await refused(slow.create("s0"))).metadata["quota"] == "requests_per_second"
        limits = {}
        for name, secret in secrets.items():
            async with runlane.Client(server.address, api_key=secret) as client:
                limits[name] = {
                    key: (limit.value, limit.unit)
                    for key, limit in (await client.server_info()).limits.items()
                    if key.startswith("quota_")
                }
        assert limits == {
            "slow": {
                "quota_requests_per_second": (1, "items"),
                "quota_burst_seconds": (1, "seconds"),
                "quota_sessions_max": (3, "items"),
                "quota_open_streams_max": (1, "items"),
            },
            "free": {},
        }


async def test_streams_of_a_namespace_are_limited_and_their_places_come_back(make_server):
    server = make_server(quota_open_streams_max=2).start()
    session = unique("streams")
    async with Link(server.address) as link:
        run = await link.run(session)
        await link.submit(session)
        fence = (await link.lease(session)).fence
        streams = [link.stream(session) for _ in range(2)]
        for stream in streams:
            await stream.read()
        found = await refused(link.stream(session).read())
        assert (found.reason, found.code) == (
            "STREAM_LIMIT",
            grpc.StatusCode.RESOURCE_EXHAUSTED,
        )
        assert found.metadata == {"quota": "open_streams_max", "limit": "2"}
        assert found.retry_seconds is None
        # What an executor watches, waits, and reads are no event streams.
        watch = link.executors.WatchActivation(
            executor_service_pb2.WatchActivationRequest(fence=fence), timeout=SECONDS
        )
        await watch.read()
        await link.wait_run(run)
        assert len(await link.messages(session)) == 3
        streams[0].cancel()

        async def opens() -> bool:
            stream = link.stream(session)
            try:
                await stream.read()
            except grpc.aio.AioRpcError:
                return False
            stream.cancel()
            return True

        await until(opens)


async def test_waits_of_a_namespace_are_as_many_as_its_streams_and_beside_them(make_server):
    server = make_server(quota_open_streams_max=1).start()
    session = unique("waits")
    async with Link(server.address) as link, runlane.Client(server.address) as client:
        run = (await link.submit(session)).submission.run_id
        stream = link.stream(session)
        await stream.read()
        wait = asyncio.ensure_future(link.wait_run(run, 60))

        async def inside() -> bool:
            return (await client.overview()).stream_count == 2

        await until(inside)
        found = await refused(link.wait_run(run, 60))
        assert found.reason == "STREAM_LIMIT"
        assert found.metadata == {"quota": "open_streams_max", "limit": "1"}
        await link.interrupt(session)
        assert (await wait).run_id == run
        stream.cancel()


async def test_amounts_hold_over_a_restart_and_are_shown(make_server):
    server = make_server(quota_sessions_max=2, quota_stored_bytes_max=20_000).start()
    async with Link(server.address) as link:
        await link.create("one")
        await link.submit("two", "x" * 10_000)
        for call in (link.create("three"), link.submit("three")):
            found = await refused(call)
            assert (found.reason, found.retry_seconds) == ("QUOTA_EXCEEDED", None)
            assert found.metadata == {"quota": "sessions_max", "limit": "2"}
    server.kill()
    server.start()
    async with Link(server.address) as link, runlane.Client(server.address) as client:
        assert (await refused(link.create("three"))).metadata["quota"] == "sessions_max"
        found = await refused(link.submit("two", "x" * 10_000, mode="MODE_QUEUE"))
        assert found.metadata == {"quota": "stored_bytes_max", "limit": "20000"}
        used = (await client.overview()).quotas
        assert used.keys() == {"sessions_max", "stored_bytes_max"}
        assert (used["sessions_max"].used, used["sessions_max"].limit) == (2, 2)
        assert 10_000 < used["stored_bytes_max"].used < 13_000
        said = await asyncio.to_thread(
            CliRunner().invoke, app, ["overview", "--target", server.address]
        )
        assert "sessions_max 2 of 2" in said.stdout
        with pytest.raises(runlane.errors.QuotaExceeded) as caught:
            await client.submit("x" * 20_000, "two", mode="queue")
        assert caught.value.retry_after is None
        # An executor ends its run; what is deleted makes room.
        leased = await link.lease("two")
        await link.commit(leased.fence, finish=COMPLETED)
        await link.delete("two")
        await asyncio.sleep(1)  # what the page tells of bytes
        await link.submit("two-again", "x" * 15_000)


async def test_the_client_waits_for_a_rate_and_for_nothing_else(make_server):
    server = make_server(
        quota_requests_per_second=4, quota_burst_seconds=1, quota_sessions_max=1
    ).start()
    async with runlane.Client(server.address) as client:
        begun = time.monotonic()
        await client.create_session("one")
        for _ in range(8):
            await client.get_session("one")
        assert time.monotonic() - begun > 1
        async with (
            runlane.Client(server.address, timeout=0.1) as hasty,
            Link(server.address) as link,
        ):
            await exhaust(link, 0.15)
            with pytest.raises(runlane.errors.QuotaExceeded) as caught:
                await hasty.get_session("one")
            assert 0 < caught.value.retry_after <= 0.25
        begun = time.monotonic()
        with pytest.raises(runlane.errors.QuotaExceeded, match="sessions"):
            await client.create_session("two")
        assert time.monotonic() - begun < 5
