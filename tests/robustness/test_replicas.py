"""Two servers on one database, with executors and readers spread over both."""

import asyncio
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import grpc
import pytest
from runlane.v1 import admin_service_pb2 as admin_pb
from runlane.v1 import executor_service_pb2 as executor_pb
from runlane.v1 import history_service_pb2 as history_pb
from runlane.v1 import session_service_pb2 as session_pb
from support_server import (
    CANCELLED,
    COMPLETED,
    EVENT,
    MODE,
    Link,
    ServerProcess,
    dense,
    refused,
    reserve,
    seconds,
    step,
    told,
    unique,
    until,
    within,
)
from support_server.turns import asks, claims, results
from test_kill import PASSING, WRITERS, Book, check, send

pytestmark = pytest.mark.asyncio

AHEAD = Path(__file__).with_name("ahead_server.py")


class AheadServer(ServerProcess):
    """`runlane serve` on a machine whose clock is 60 s ahead."""

    def command(self) -> list[str]:
        return [sys.executable, str(AHEAD), *super().command()[3:]]


@pytest.fixture
def pair(make_server, postgres, tmp_path):
    """Two servers on one database."""
    return [
        make_server(tmp_path / name, store=postgres, drain_grace_seconds=1).start()
        for name in ("a", "b")
    ]


@pytest.fixture(scope="module")
def steady(postgres_server, tmp_path_factory):
    """Two servers on one database, for all tests that leave them as they are."""
    store = postgres_server.clean("replicas")
    made = [ServerProcess(tmp_path_factory.mktemp(name), store=store) for name in ("a", "b")]
    for server in made:
        server.start()
    yield made
    for server in made:
        server.kill()
        assert server.incidents() == []


class Both:
    """Channels to two servers; what one does not answer is asked of the other."""

    def __init__(self, servers, seed: int) -> None:
        self.links = [Link(server.address) for server in servers]
        self.rng = random.Random(seed)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for link in self.links:
            await link.channel.close()

    async def ask(self, call):
        """Asks until it is answered, of either; returns the answer."""
        number = self.rng.randrange(2)
        while True:
            try:
                return await call(self.links[number])
            except grpc.aio.AioRpcError as error:
                if error.code() not in PASSING:
                    raise
                number = 1 - number
                await asyncio.sleep(0.01)


class Crowd:
    """Writers, executors and readers that go on over both servers until they are stopped."""

    def __init__(self, servers, sessions: list[str], seed: int) -> None:
        self.both = Both(servers, seed)
        self.sessions, self.book, self.stopped = sessions, Book(), False
        self.read: dict[str, list[int]] = {session: [] for session in sessions}
        self.effects: Counter[str] = Counter()
        self.codes: set[str] = set()
        self.longest = 0.0
        rng = random.Random(seed)
        self.writers = [
            asyncio.create_task(self.write(session, random.Random(rng.random())))
            for session in sessions
        ]
        self.others = [asyncio.create_task(self.follow(session)) for session in sessions]
        self.others += [
            asyncio.create_task(self.execute(session, link))
            for session in sessions
            for link in self.both.links
        ]

    async def write(self, session: str, rng: random.Random) -> None:
        while not self.stopped:
            one = self.book.next(session, rng)
            try:
                self.book.settle(one, await self.both.ask(lambda link, one=one: send(link, one, 5)))
            except grpc.aio.AioRpcError as error:
                if told(error).reason != "QUEUE_FULL":
                    raise
                self.book.open.remove(one)
                await asyncio.sleep(0.01)

    async def follow(self, session: str) -> None:
        read, number = self.read[session], len(self.read)
        while True:
            link = self.both.links[number % 2]
            try:
                async for event in link.follow(session, after_sequence=read[-1] if read else 0):
                    read.append(event.sequence)
            except grpc.aio.AioRpcError as error:
                if error.code() not in PASSING and told(error).reason != "STREAM_ENDED":
                    raise
            number += 1
            await asyncio.sleep(0.01)

    async def execute(self, session: str, link: Link) -> None:
        while True:
            try:
                answer = await link.poll(session, 5, lease_duration=seconds(5))
                if answer.HasField("activation"):
                    await self.work(answer.activation.fence)
            except grpc.aio.AioRpcError as error:
                lost = told(error).reason in {"STALE_ACTIVATION", "OPERATION_INVALID", "RUN_CANCELLING"}  # fmt: skip
                if not lost and error.code() not in PASSING:
                    raise
                await asyncio.sleep(0.01)

    async def work(self, fence) -> None:
        """A run with one tool whose side effect is counted; each Commit goes to either server."""
        name = f"call-{fence.activation_id}"

        async def commit(*operations, **fields):
            fields["request_id"] = unique("c")
            return await self.both.ask(lambda link: link.commit(fence, *operations, **fields))

        await commit(reserve())
        await commit(asks(name))
        claimed = await commit(claims(name))
        assert not claimed.replayed or claimed.results
        self.effects[name] += 1
        await commit(results(name))
        while True:
            await commit(reserve())
            if (await commit(step("done"), finish=COMPLETED)).outcome_applied:
                return

    async def moves_on(self, count: int, limit: float = 60) -> None:
        """Waits until so many more writes were answered."""
        wanted = len(self.book.answered) + count
        await until(lambda: len(self.book.answered) >= wanted or self.failed(), limit)
        for task in (*self.writers, *self.others):
            if task.done() and task.exception():
                raise task.exception()

    def failed(self) -> bool:
        return any(task.done() and task.exception() for task in (*self.writers, *self.others))

    async def stop(self) -> None:
        self.stopped = True
        await within(60, asyncio.gather(*self.writers))
        # Readers come to the end of what there is.
        for session in self.sessions:
            events = await self.both.ask(lambda link, session=session: link.events(session))
            last = dense(events)[-1].sequence
            await until(lambda last=last, session=session: self.read[session][-1:] >= [last], 30)
        for task in self.others:
            task.cancel()
        await asyncio.gather(*self.others, return_exceptions=True)

    async def settle(self, server) -> None:
        """Asserts that nothing was lost, doubled or missed."""
        await check(server, self.sessions, self.book)
        for session, read in self.read.items():
            assert read == list(range(1, len(read) + 1)), session
        assert set(self.effects.values()) <= {1}
        assert len(self.effects) > 0


async def start_crowd(servers, seed: int) -> Crowd:
    sessions = [unique("both") for _ in range(WRITERS)]
    async with Link(servers[0].address) as link:
        for session in sessions:
            await link.create(session)
    return Crowd(servers, sessions, seed)


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(4, marks=pytest.mark.timeout(200)),
        pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
async def test_one_of_two_is_killed_under_load_again_and_again(pair, rounds):
    crowd = await start_crowd(pair, rounds)
    rng = random.Random(rounds)
    try:
        for number in range(rounds):
            await crowd.moves_on(rng.randint(20, 60))
            victim = pair[number % 2]
            victim.kill()
            await crowd.moves_on(20)
            victim.start()
            await crowd.moves_on(20)
    finally:
        await crowd.stop()
    await crowd.settle(pair[1])
    await crowd.both.__aexit__()
    assert [server.stop() for server in pair] == [0, 0]
    assert pair[0].check() == (0, "")


@pytest.mark.timeout(200)
async def test_the_database_is_restarted_under_two_servers(pair, postgres_server):
    crowd = await start_crowd(pair, 7)
    try:
        await crowd.moves_on(40)
        postgres_server.restart()
        await crowd.moves_on(60)
    finally:
        await crowd.stop()
    await crowd.settle(pair[0])
    await crowd.both.__aexit__()
    assert pair[0].check() == (0, "")


async def _cut_listeners(postgres_server) -> int:
    rows = await postgres_server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'runlane listen %'"
    )
    return len(rows)


async def test_events_go_on_where_the_listener_is_cut_again_and_again(steady, postgres_server):
    """What the other server wrote comes within the poll interval though nothing is told."""
    session = unique("quiet")
    async with Link(steady[0].address) as a, Link(steady[1].address) as b:
        await a.create(session)
        seen: list[float] = []

        async def follow():
            async for event in b.follow(session, types=[EVENT.TYPE_SESSION_UPDATED]):
                assert event.session_updated.revision == len(seen) + 2
                seen.append(time.monotonic())

        following = asyncio.create_task(follow())
        await asyncio.sleep(0.2)
        sent = []
        for number in range(20):
            if number % 4 == 0:
                assert await _cut_listeners(postgres_server) >= 1
            request = session_pb.UpdateSessionRequest(session_id=session, display_name=f"n{number}")
            await a.sessions.UpdateSession(request, timeout=20)
            sent.append(time.monotonic())
            await asyncio.sleep(0.05)
        await until(lambda: len(seen) == 20)
        following.cancel()
    late = [seen[number] - sent[number] for number in range(20)]
    # The interval, and what a busy machine adds.
    assert max(late) < 1.0 + 1.5
    assert sorted(late)[10] < 1.0


async def test_calls_reach_an_executor_and_readers_that_are_connected_elsewhere(steady):
    session = unique("far")
    async with Link(steady[0].address) as a, Link(steady[1].address) as b:
        await a.create(session)
        lease = asyncio.create_task(b.lease(session, 20))
        run_id = (await a.submit(session)).submission.run_id
        fence = (await within(10, lease)).fence
        watched = b.executors.WatchActivation(
            executor_pb.WatchActivationRequest(fence=fence), timeout=30
        )
        assert not (await within(10, watched.read())).control.cancel_requested
        started = time.monotonic()
        await a.interrupt(session)
        assert (await within(10, watched.read())).control.cancel_requested
        assert time.monotonic() - started < 2
        assert (await b.heartbeat(fence)).control.cancel_requested
        waited = asyncio.create_task(a.wait_run(run_id, 20))
        await b.commit(fence, finish=CANCELLED)
        run = await within(10, waited)
        assert run.outcome.stop_reason == run.STOP_REASON_CANCELLED
        assert (await refused(a.heartbeat(fence))).reason == "STALE_ACTIVATION"


async def test_a_page_token_of_one_is_good_on_the_other(steady):
    session = unique("pages")
    async with Link(steady[0].address) as a, Link(steady[1].address) as b:
        for number in range(5):
            await a.run(session, f"words {number}")
        request = history_pb.ListRunsRequest(session_id=session, page_size=2)
        found, links = [], [a, b]
        while True:
            answer = await links[0].history.ListRuns(request, timeout=20)
            found += [run.run_id for run in answer.runs]
            if not answer.next_page_token:
                break
            request.page_token = answer.next_page_token
            links.reverse()
        assert len(found) == len(set(found)) == 5


async def test_no_lease_is_taken_early_by_a_server_whose_clock_is_ahead(
    make_server, postgres, tmp_path
):
    right = make_server(tmp_path / "right", store=postgres).start()
    ahead = AheadServer(_made(tmp_path / "ahead"), store=postgres)
    ahead.start()
    session = unique("ahead")
    try:
        async with Link(right.address) as a, Link(ahead.address) as b:
            await a.create(session)
            await a.submit(session)
            fence = (await a.lease(session, lease_duration=seconds(30))).fence
            await a.heartbeat(fence, 30)
            # All that looks at the time there: alarms, a command, a heartbeat, a poll.
            for _ in range(4):
                await asyncio.sleep(0.6)
                assert (await b.live(session)).run.phase != 0
                await b.submit(session, "steer", mode=MODE.MODE_AUTO)
            assert not (await b.poll(session, 0.5)).HasField("activation")
            control = (await b.heartbeat(fence, 30)).control
            end = control.lease_expire_time.seconds
            assert abs(end - time.time() - 30) < 5
            await a.commit(fence, reserve())
            names = {event.type for event in await a.events(session)}
            assert EVENT.TYPE_ACTIVATION_ABANDONED not in names
            times = [event.event_time.seconds for event in await a.events(session)]
            assert max(times) - min(times) < 30
    finally:
        ahead.kill()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def test_a_server_that_was_stopped_ends_no_lease_that_was_renewed_on_the_other(steady):
    session = unique("stopped")
    async with Link(steady[0].address) as a, Link(steady[1].address) as b:
        await a.create(session)
        await a.submit(session)
        fence = (await a.lease(session, lease_duration=seconds(5))).fence
        await a.heartbeat(fence, 5)
        steady[0].send(signal.SIGSTOP)
        for _ in range(7):
            await b.heartbeat(fence, 5)
            await asyncio.sleep(1)
        steady[0].send(signal.SIGCONT)
        for _ in range(3):
            await asyncio.sleep(0.5)
            await b.heartbeat(fence, 5)
        assert (await b.commit(fence, reserve())).sequence > 0
        names = {event.type for event in await a.events(session)}
        assert EVENT.TYPE_ACTIVATION_ABANDONED not in names


@pytest.mark.timeout(120)
async def test_what_a_dead_server_was_to_do_is_done_by_the_other_in_time(pair):
    """A deadline that the dead one has written, and a lease of an executor that died with it."""
    session, other = unique("deadline"), unique("lease")
    async with Link(pair[0].address) as a, Link(pair[1].address) as b:
        await a.create(session)
        await a.create(other)
        limits = session_pb.SubmitRequest().run_options.limits
        limits.max_duration.CopyFrom(seconds(4))
        started = time.monotonic()
        request = session_pb.SubmitRequest(session_id=session)
        request.content.add(text="hello")
        request.run_options.limits.CopyFrom(limits)
        run_id = (await a.sessions.Submit(request, timeout=20)).submission.run_id
        await a.submit(other)
        fence = (await a.lease(other, lease_duration=seconds(5))).fence
        await a.heartbeat(fence, 5)
        pair[0].kill()
        run = await b.wait_run(run_id, 20)
        assert run.outcome.stop_reason == run.STOP_REASON_DEADLINE_EXCEEDED
        assert 3.4 < time.monotonic() - started < 4 + 2
        lease = await b.lease(other, 20)
        assert lease.fence.run_id == fence.run_id
        assert time.monotonic() - started < 5 + 2 + 5


async def test_keys_of_one_are_known_on_the_other(make_server, postgres, tmp_path):
    servers = [
        make_server(tmp_path / name, store=postgres, auth="keys", insecure_listen=True)
        for name in ("a", "b")
    ]
    for server in servers:
        server.start()
    made = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runlane_server", "keys", "create", "first", "--scope", "admin",
        "--scope", "read", "--store", postgres,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said = (await made.communicate())[0].decode()
    metadata = (("authorization", f"Bearer {said.strip()}"),)
    async with (
        Link(servers[0].address, metadata=metadata) as a,
        Link(servers[1].address, metadata=metadata) as b,
    ):
        request = admin_pb.ListExecutorsRequest()

        async def let_in(link) -> bool:
            try:
                await link.admin.ListExecutors(request, timeout=20)
            except grpc.aio.AioRpcError as error:
                return error.code() != grpc.StatusCode.UNAUTHENTICATED
            return True

        await until(lambda: let_in(a), 5)
        await until(lambda: let_in(b), 5)
        keys = (await a.admin.ListKeys(admin_pb.ListKeysRequest(), timeout=20)).keys
        revoke = admin_pb.RevokeKeyRequest(key_id=keys[0].key_id)
        await a.admin.RevokeKey(revoke, timeout=20)
        started = time.monotonic()

        async def shut_out() -> bool:
            return not await let_in(b)

        await until(shut_out, 10)
        assert time.monotonic() - started < 3
