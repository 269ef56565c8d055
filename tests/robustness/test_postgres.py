"""A server on PostgreSQL that is killed, and one whose database leaves it."""

import asyncio
import random

import grpc
import pytest
from runlane.v1 import server_service_pb2 as server_pb
from support_server import Link, told, unique, until
from test_kill import WRITERS, Book, check, execute_on, send, survive

pytestmark = pytest.mark.asyncio


@pytest.fixture
def server(make_server, postgres):
    """A server on a database, for one test."""
    return make_server(store=postgres).start()


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(20, marks=pytest.mark.timeout(300)),
        pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(7200)]),
    ],
)
async def test_every_answered_write_survives_a_kill_on_postgres(server, kills):
    await survive(server, kills)


class Crowd:
    """Writers and executors that go on whatever they are told, until they are stopped."""

    def __init__(self, link: Link, sessions: list[str], rng: random.Random) -> None:
        self.link, self.book, self.away = link, Book(), 0
        self.reasons: set[str] = set()
        self.stopped = False
        self.tasks = [
            asyncio.create_task(self.write(session, random.Random(rng.random())))
            for session in sessions
        ]
        self.executors = [asyncio.create_task(self.execute(session)) for session in sessions]

    async def write(self, session: str, rng: random.Random) -> None:
        while not self.stopped:
            one = self.book.next(session, rng)
            while one in self.book.open:
                try:
                    self.book.settle(one, await send(self.link, one, 20))
                except grpc.aio.AioRpcError as error:
                    if told(error).reason == "QUEUE_FULL":
                        self.book.open.remove(one)
                    elif error.code() == grpc.StatusCode.UNAVAILABLE:
                        self.reasons.add(told(error).reason)
                        self.away += 1
                    else:
                        raise
                    await asyncio.sleep(0.005)

    async def execute(self, session: str) -> None:
        while not self.stopped:
            await execute_on(self.link, session)
            await asyncio.sleep(0.005)

    async def moves_on(self, count: int) -> None:
        """Waits until so many more writes were answered."""
        wanted = len(self.book.answered) + count
        await until(lambda: len(self.book.answered) >= wanted)

    async def stop(self) -> None:
        self.stopped = True
        for task in self.executors:
            task.cancel()
        await asyncio.gather(*self.executors, return_exceptions=True)
        async with asyncio.timeout(30):
            await asyncio.gather(*self.tasks)


async def _strike(server, rounds: int, strike) -> None:
    rng, hits = random.Random(rounds), rounds // 2
    sessions = [unique("cut") for _ in range(WRITERS)]
    async with Link(server.address) as link:
        for session in sessions:
            await link.create(session)
        crowd = Crowd(link, sessions, rng)
        try:
            # A blow between two writes hits nobody.
            while rounds > 0 or crowd.away < hits:
                await crowd.moves_on(rng.randint(20, 60))
                await asyncio.sleep(rng.random() * 0.02)
                strike()
                rounds -= 1
            await crowd.moves_on(50)
        finally:
            await crowd.stop()
        assert crowd.away >= hits
        assert crowd.reasons == {"STORE_UNAVAILABLE"}
        assert crowd.book.open == []
    await check(server, sessions, crowd.book)
    async with Link(server.address) as link:
        # It lives: a run from its input to its end.
        session = unique("after")
        await link.create(session)
        await link.submit(session)
        fence = (await link.lease(session)).fence
        assert (await link.answer(fence)) is not None
    assert server.stop() == 0
    assert server.check() == (0, "")


@pytest.mark.timeout(300)
async def test_all_connections_are_cut_under_load_again_and_again(server, postgres_server):
    await _strike(server, 10, lambda: postgres_server.terminate("test"))


@pytest.mark.timeout(300)
async def test_the_database_is_restarted_under_load(server, postgres_server):
    await _strike(server, 2, postgres_server.restart)


async def test_a_server_says_what_it_is_on(server):
    async with Link(server.address) as link:
        info = await link.server.GetServerInfo(server_pb.GetServerInfoRequest())
    assert (info.store_kind, info.store_epoch) == ("postgresql", 1)
    assert info.durability == info.DURABILITY_DISK
    assert info.store_id.startswith("sto_")


async def test_a_start_that_fails_tells_no_password(server, make_server, postgres_server, tmp_path):
    """One that lets nobody in, and addresses that are none."""
    held = server.store.replace("runlane@", "runlane:hush-hush@")
    locked = postgres_server.url("postgres", "locked:hush-hush")
    for store, code, words in (
        (locked, 1, "password authentication failed"),
        (f"{held}?sslmode=hush", 1, "cannot be read"),
        (held.replace("127", "[127"), 2, "cannot be read"),
    ):
        other = make_server(tmp_path / "other", store=store)
        ended, said = other.refuses_to_start()
        assert ended == code, said
        assert words in said
        assert "hush" not in said
        assert "Traceback" not in said
