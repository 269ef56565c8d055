"""Metrics of a real server after known work."""

import asyncio
import re
import signal
import socket
import urllib.request

import grpc
import pytest
from runlane.v1 import session_service_pb2
from support_server import Link, refused, reserve, unique, until

pytestmark = pytest.mark.asyncio

SECONDS = 30
SAMPLE = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$", re.MULTILINE)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def scrape(address: str) -> dict[str, float]:
    """Returns the samples by name and labels."""

    def read() -> str:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            return answer.read().decode()

    found = {}
    for match in SAMPLE.finditer(await asyncio.to_thread(read)):
        labels = ",".join(sorted(match["labels"].split(","))) if match["labels"] else ""
        labels = f"{{{labels}}}" if labels else ""
        found[match["name"] + labels] = float(match["value"])
    return found


@pytest.fixture
def metered(make_server):
    address = f"127.0.0.1:{free_port()}"
    return make_server(metrics_listen=address).start(), address


async def test_what_quotas_refuse_is_counted(make_server):
    address = f"127.0.0.1:{free_port()}"
    server = make_server(
        metrics_listen=address, quota_sessions_max=1, quota_open_streams_max=1
    ).start()
    async with Link(server.address) as link:
        await link.create("one")
        for name in ("two", "three"):
            assert (await refused(link.create(name))).reason == "QUOTA_EXCEEDED"
        stream = link.stream("one")
        await stream.read()
        assert (await refused(link.stream("one").read())).reason == "STREAM_LIMIT"
        now = await scrape(address)
        stream.cancel()
    counts = {
        name.partition('"')[2].partition('"')[0]: value
        for name, value in now.items()
        if name.startswith("runlane_quota_refusals_total")
    }
    refusals = {"sessions_max": 2, "open_streams_max": 1}
    others = ("requests_per_second", "events_per_second", "stored_bytes_max", "keys")
    assert counts == {**refusals, **dict.fromkeys(others, 0)}


async def test_the_metrics_of_known_work(metered):
    server, address = metered
    session = unique("metered")
    async with Link(server.address) as link:
        before = await scrape(address)
        assert before["runlane_store_up"] == 1
        assert before["runlane_events_committed_total"] == 0
        await link.run(session)
        await link.run(session)
        assert (await refused(link.session("none"))).reason == "SESSION_NOT_FOUND"
        await link.submit(session)
        await asyncio.sleep(0.3)
        now = await scrape(address)
        assert now["runlane_activations_queued"] == 1
        assert 0.3 <= now["runlane_activations_queued_oldest_seconds"] < 60
        leased = await link.lease(session)
        stream = link.stream(session)
        await stream.read()
        now = await scrape(address)
        assert now["runlane_streams"] == 1
        assert now["runlane_leases"] == 1
        assert now["runlane_activations_queued"] == 0
        assert now["runlane_activations_queued_oldest_seconds"] == 0
        stream.cancel()
        await link.commit(leased.fence, reserve())
        await link.sessions.RestoreRun(
            session_service_pb2.RestoreRunRequest(
                run_id=leased.fence.run_id,
                expected_activation_id=leased.fence.activation_id,
                force=True,
            ),
            timeout=SECONDS,
        )
        assert (await refused(link.heartbeat(leased.fence))).reason == "STALE_ACTIVATION"
        await link.interrupt(session)
        events = len(await link.events(session))
        calls = 'runlane_calls_total{code="%s",method="%s"}'
        await until_ended(address, calls % ("CANCELLED", "StreamEvents"))
        now = await scrape(address)
    assert now[calls % ("OK", "Submit")] == 3
    assert now[calls % ("OK", "Commit")] == 5
    assert now[calls % ("OK", "PollActivation")] == 3
    assert now[calls % ("NOT_FOUND", "GetSession")] == 1
    assert now[calls % ("FAILED_PRECONDITION", "Heartbeat")] == 1
    assert now['runlane_call_seconds_count{method="Submit"}'] == 3
    assert 0 < now['runlane_call_seconds_sum{method="Submit"}'] < 60
    assert now['runlane_call_seconds_bucket{le="+Inf",method="Submit"}'] == 3
    assert 'runlane_call_seconds_count{method="StreamEvents"}' not in now
    assert now["runlane_events_committed_total"] == events
    assert now['runlane_runs_ended_total{stop_reason="COMPLETED"}'] == 2
    assert now['runlane_runs_ended_total{stop_reason="CANCELLED"}'] == 1
    assert now['runlane_runs_ended_total{stop_reason="FAILED"}'] == 0
    assert now["runlane_recoveries_total"] == 1
    assert now["runlane_streams"] == 0
    assert now["runlane_leases"] == 0
    assert now["runlane_hot_sessions"] >= 1
    assert now["runlane_commit_queue_length"] == 0
    assert now["runlane_notices_waiting"] == 0
    assert now["runlane_commit_batch_size_count"] == now["runlane_commit_seconds_count"]
    # 3 inputs, 3 leases, 5 commits, a restoration, an interruption; due decisions none.
    assert now["runlane_commit_batch_size_sum"] == 13
    assert now["process_resident_memory_bytes"] > 0
    assert server.stop() == 0


async def until_ended(address: str, name: str) -> None:
    async def ended() -> bool:
        return (await scrape(address)).get(name) == 1

    await until(ended)


async def test_a_write_that_the_store_does_not_take_is_counted(metered):
    import resource

    server, address = metered
    async with Link(server.address) as link:
        await link.run(unique("before"))
        log = server.path.with_name(server.path.name + "-wal")
        _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (log.stat().st_size, hard))

        async def away() -> bool:
            session = unique("away")
            request = session_service_pb2.CreateSessionRequest(
                session_id=session, display_name="x" * 200
            )
            try:
                await link.sessions.CreateSession(request, timeout=SECONDS)
            except grpc.aio.AioRpcError:
                return True
            return False

        await until(away)
        now = await scrape(address)
        assert now["runlane_store_up"] == 0
        assert now['runlane_store_errors_total{kind="unavailable"}'] >= 1
        assert now['runlane_calls_total{code="UNAVAILABLE",method="CreateSession"}'] == 1
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))

        async def back() -> bool:
            return (await scrape(address))["runlane_store_up"] == 1

        await until(back)


async def test_a_scrape_while_it_drains_is_answered(make_server):
    address = f"127.0.0.1:{free_port()}"
    server = make_server(metrics_listen=address, drain_grace_seconds=5).start()
    session = unique("held")
    narrow = [("grpc.http2.bdp_probe", 0)]
    async with Link(server.address) as link, Link(server.address, narrow) as stuck:
        await link.submit(session, "x" * 3_000_000)
        # A reader that does not read holds the door open.
        blocked = stuck.stream(session, include_messages=True)
        await blocked.wait_for_connection()
        server.send(signal.SIGTERM)
        await until(lambda: "draining" in server.told())
        now = await scrape(address)
        assert (now["runlane_store_up"], now["runlane_streams"]) == (1, 1)
        assert await asyncio.to_thread(server.wait) == 0
        blocked.cancel()
    with pytest.raises(OSError):
        await scrape(address)


async def test_metrics_beyond_this_machine_take_a_word_for_it(make_server, tmp_path):
    server = make_server(tmp_path / "open", store="memory", metrics_listen="0.0.0.0:0")
    code, said = server.refuses_to_start()
    assert code == 2
    assert "--insecure-listen" in said
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        server = make_server(tmp_path / "taken", store="memory", metrics_listen=f"127.0.0.1:{port}")
        code, said = server.refuses_to_start()
        assert code == 1
        assert f"cannot listen on 127.0.0.1:{port}" in said
        assert "Traceback" not in said
    server = make_server(
        tmp_path / "v6",
        store="memory",
        arguments=["--metrics-listen", f"[::1]:{port}"],
    ).start()
    assert (await scrape(f"[::1]:{port}"))["runlane_store_up"] == 1
    assert "serving metrics" in server.told()
