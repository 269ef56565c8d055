"""A full disk: what fails says so and is absent whole; what was answered stays."""

import asyncio
import contextlib
import resource
import sqlite3
import subprocess
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2
from runlane import Agent, Client, Executor, ModelResponse
from runlane.v1 import message_pb2, run_pb2
from support_server import Link, dense, refused, seconds, told, unique, until, within

pytestmark = pytest.mark.asyncio

STATUS = health_pb2.HealthCheckResponse
SERVICES = ("Session", "History", "Executor", "Admin", "Server")
UNAVAILABLE = (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 6 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place):
    """Takes all space but a little."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    return filler


async def write_until_refused(link: Link, session: str, first: int) -> tuple[list, grpc.StatusCode]:
    """Submits until the store takes no more; returns the answers."""
    answers = []
    for number in range(first, first + 2000):
        try:
            answers.append(
                await link.submit(
                    session,
                    f"{number} " + "x" * 20_000,
                    request_id=f"r{number}",
                    mode=3,
                    timeout=20,
                )
            )
        except grpc.aio.AioRpcError as error:
            failure = told(error)
            if failure.reason == "QUEUE_FULL":
                await link.interrupt(session)
                continue
            return answers, failure
    raise AssertionError("the disk was never full")


async def check_answered(link: Link, session: str, answers: list) -> None:
    events = dense(await link.events(session))
    known = {one.request_id for one in events}
    for answer in answers:
        assert answer.sequence <= len(events)
        assert answer.submission.request_id in known


async def test_a_full_disk_refuses_writes_loses_nothing_and_goes_on_when_there_is_space(
    make_server, small_disk, tmp_path
):
    server = make_server(tmp_path / "log", store=f"sqlite:{small_disk}/runlane.db").start()
    session = unique("full")
    async with Link(server.address) as link:
        await link.create(session)
        await link.run(session)
        filler = fill(small_disk)
        answers, failure = await write_until_refused(link, session, 0)
        assert (failure.code, failure.reason) == UNAVAILABLE
        assert failure.retry_seconds is not None
        assert "full" not in failure.everything, "what the disk says is for the log"
        # Reads go on, and say only what is true.
        await check_answered(link, session, answers)
        before = (await link.live(session)).sequence
        for number in range(20):
            error = await refused(
                link.submit(session, "y" * 2_000_000, mode=3, request_id=f"never{number}")
            )
            assert error.reason in {"STORE_UNAVAILABLE", "QUEUE_FULL"}
        assert (await link.live(session)).sequence == before
        filler.unlink()
        # The same server takes writes again, the one that failed too.
        again = await write_once_there_is_space(link, session, len(answers))
        answers.append(again)
        await check_answered(link, session, answers)
        await link.interrupt(session)
    server.restart()
    async with Link(server.address) as link:
        await check_answered(link, session, answers)
        replay = await link.submit(
            session,
            f"{len(answers) - 1} " + "x" * 20_000,
            request_id=again.submission.request_id,
            mode=3,
        )
        assert replay.replayed
    assert server.stop() == 0


async def write_once_there_is_space(link: Link, session: str, number: int):
    end = time.monotonic() + 10
    while True:
        try:
            return await link.submit(
                session, f"{number} " + "x" * 20_000, request_id=f"r{number}", mode=3
            )
        except grpc.aio.AioRpcError as error:
            failure = told(error)
            if failure.reason == "QUEUE_FULL":
                await link.interrupt(session)
            else:
                assert (failure.code, failure.reason) == UNAVAILABLE
            assert time.monotonic() < end
            await asyncio.sleep(0.05)


async def test_a_limit_on_the_size_of_files_is_a_full_disk_and_passes(server):
    """The same where nothing can be mounted, and with another error of the system."""
    session = unique("limit")
    log = server.path.with_name(server.path.name + "-wal")
    async with Link(server.address) as link:
        await link.create(session)
        run_id = await link.run(session)
        room = log.stat().st_size + 100_000
        _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (room, hard))
        answers, failure = await write_until_refused(link, session, 0)
        assert (failure.code, failure.reason) == UNAVAILABLE
        await check_answered(link, session, answers)
        errors = await asyncio.gather(
            *(link.create(unique("none"), display_name="x" * 200) for _ in range(50)),
            return_exceptions=True,
        )
        for one in errors:
            if isinstance(one, grpc.aio.AioRpcError):
                assert (one.code(), told(one).reason) == UNAVAILABLE
        # A fork that finds no space harms its source, and leaves nothing of itself.
        fork = unique("fork")
        content = [message_pb2.Block(text="x" * 1_000_000)]
        error = await refused(link.fork(run_id, session_id=fork, input={"content": content}))
        assert (error.code, error.reason) == UNAVAILABLE
        assert (await refused(link.session(fork))).reason == "SESSION_NOT_FOUND"
        await check_answered(link, session, answers)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))
        answers.append(await write_once_there_is_space(link, session, len(answers)))
        await check_answered(link, session, answers)
        assert (await link.fork(run_id, session_id=fork)).session.session_id == fork
    server.restart()
    async with Link(server.address) as link:
        await check_answered(link, session, answers)
    assert server.stop() == 0
    assert server.check() == (0, "")


async def test_health_tells_a_store_that_takes_no_writes(server):
    session = unique("ready")
    log = server.path.with_name(server.path.name + "-wal")
    services = ["", *(f"runlane.v1.{name}Service" for name in SERVICES)]
    async with Link(server.address) as link:
        await link.run(session)
        assert await healths(link, services) == {STATUS.SERVING}
        watching = link.health.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert (await watching.read()).status == STATUS.SERVING
        _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        await write_until_log_is_at_its_end(server, link, log)
        assert (await within(5, watching.read())).status == STATUS.NOT_SERVING
        end = time.monotonic() + 4
        while time.monotonic() < end:  # It is tried each second, and must not seem to be back.
            assert await healths(link, services) == {STATUS.NOT_SERVING}
            await asyncio.sleep(0.1)
        assert len(await link.messages(session)) == 2, "reads go on"
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))
        # Nobody writes: the server finds out by itself.
        assert (await within(5, watching.read())).status == STATUS.SERVING
        assert await healths(link, services) == {STATUS.SERVING}
        watching.cancel()
        await link.run(session)
    told = server.told()
    assert told.count("not serving: the store takes no writes") == 1
    assert told.count("serving again") == 1
    assert server.stop() == 0


async def healths(link: Link, services: list[str]) -> set[int]:
    asked = (health_pb2.HealthCheckRequest(service=name) for name in services)
    answers = await asyncio.gather(*(link.health.Check(one, timeout=10) for one in asked))
    return {one.status for one in answers}


async def test_due_decisions_that_the_disk_refused_are_made_when_there_is_space(server):
    """A lease that ends while nothing can be written is no reason to stop the clock."""
    session = unique("due")
    log = server.path.with_name(server.path.name + "-wal")
    async with Link(server.address) as link:
        await link.submit(session)
        leased = await link.lease(session, lease_duration=seconds(5))
        _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        await write_until_log_is_at_its_end(server, link, log)
        await asyncio.sleep(6)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))
        taken = await link.lease(session, wait=10)
        assert (taken.fence.run_id, taken.fence.epoch) == (leased.fence.run_id, 2)
        await link.answer(taken.fence)
        dense(await link.events(session))


@contextlib.asynccontextmanager
async def full(server, link):
    """The store takes no writes, since there is no space."""
    _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    log = server.path.with_name(server.path.name + "-wal")
    await write_until_log_is_at_its_end(server, link, log)
    yield
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextlib.asynccontextmanager
async def locked(server, _link):
    """The store takes no writes, since another program holds its file."""
    other = sqlite3.connect(server.path, timeout=30, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


class Slow:
    """A model that answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.go, self.count = asyncio.Event(), asyncio.Event(), 0

    async def complete(self, request):
        self.count += 1
        self.asked.set()
        await self.go.wait()
        return ModelResponse(text="done")


@pytest.mark.parametrize("outage", [full, locked])
async def test_an_outage_of_the_store_is_ridden_out_by_all_that_use_it(server, outage):
    """A writer, a reader and an executor notice it, lose nothing, and need nobody's help."""
    session, agent = unique("outage"), unique("agent")
    model = Slow()
    async with (
        Link(server.address) as link,
        Client(server.address, timeout=60) as client,
        Executor(client, Agent(agent, model=model), lease_duration=5),
    ):
        await link.create(session)
        run_id = (await link.submit(agent)).submission.run_id
        await within(10, model.asked.wait())
        events = client.events(session)
        assert (await anext(events)).sequence == 1
        async with outage(server, link):
            writes = [
                asyncio.create_task(client.update_session(session, display_name=f"n{number}"))
                for number in range(20)
            ]
            error = await refused(link.submit(session, request_id="raw"))
            assert (error.code, error.reason) == UNAVAILABLE
            assert error.retry_seconds is not None
            # Reads go on, and a lease outlives an outage that is longer than it.
            assert (await link.live(session)).sequence == 1
            model.go.set()
            await asyncio.sleep(7)
            assert not any(one.done() for one in writes)
        await within(40, asyncio.gather(*writes))
        done = await link.wait_run(run_id, wait=30)
        assert done.outcome.stop_reason == run_pb2.Run.STOP_REASON_COMPLETED
        assert (done.attempt, model.count) == (1, 1)
        # Each write took effect once, and the reader has seen each.
        seen = [(await within(10, anext(events))).sequence for _ in range(20)]
        assert seen == list(range(2, 22))
        assert not (await link.submit(session, request_id="raw")).replayed
        await events.aclose()
        await link.interrupt(session)
    assert server.stop() == 0
    assert server.check() == (0, "")


async def write_until_log_is_at_its_end(server, link: Link, log) -> None:
    """Sets a limit that the log has reached, so that every further write is refused."""
    room = log.stat().st_size

    async def full() -> bool:
        try:
            await link.create(unique("filler"))
        except grpc.aio.AioRpcError as error:
            return told(error).reason == "STORE_UNAVAILABLE"
        return False

    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    await until(full)


async def test_a_server_that_cannot_make_its_file_says_so(make_server, small_disk, tmp_path):
    fill(small_disk)
    server = make_server(tmp_path / "log", store=f"sqlite:{small_disk}/runlane.db")
    code, said = server.refuses_to_start()
    assert code == 1
    assert "runlane.db" in said
    assert "Traceback" not in said
    (small_disk / "filler").unlink()
    server.start()
    async with Link(server.address) as link:
        await link.run(unique("after"))
    assert server.stop() == 0
