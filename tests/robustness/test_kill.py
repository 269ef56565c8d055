"""SIGKILL at any moment: what was answered is there, and what was not happens once at most."""

import asyncio
import random
from typing import NamedTuple

import grpc
import pytest
from runlane.v1 import history_service_pb2 as history_pb
from runlane.v1 import session_service_pb2 as session_pb
from runlane.v1 import submission_pb2
from support_server import (
    COMPLETED,
    EVENT,
    MODE,
    Link,
    dense,
    reserve,
    seconds,
    step,
    told,
    unique,
    until,
    within,
)

pytestmark = pytest.mark.asyncio

MODES = (MODE.MODE_AUTO, MODE.MODE_QUEUE, MODE.MODE_QUEUE)
WRITERS = 6
DEADLINES = (0.001, 0.002, 0.004, 0.008, 0.02)


class Write(NamedTuple):
    """A write that was sent, and what is needed to send it again."""

    session: str
    kind: str
    request_id: str
    words: str
    mode: int


class Book:
    """What writers know of their writes."""

    def __init__(self) -> None:
        self.answered: dict[Write, object] = {}
        self.open: list[Write] = []
        self.count = 0

    def next(self, session: str, rng: random.Random) -> Write:
        self.count += 1
        kind = "update" if rng.random() < 0.3 else "submit"
        write = Write(session, kind, f"r-{self.count}", f"words {self.count}", rng.choice(MODES))
        self.open.append(write)
        return write

    def settle(self, write: Write, answer: object) -> None:
        self.answered[write] = answer
        self.open.remove(write)


def send(link: Link, write: Write, timeout: float):
    if write.kind == "update":
        request = session_pb.UpdateSessionRequest(
            session_id=write.session, display_name=write.words, request_id=write.request_id
        )
        return link.sessions.UpdateSession(request, timeout=timeout)
    return link.submit(
        write.session,
        write.words,
        mode=write.mode,
        request_id=write.request_id,
        on_miss=submission_pb2.Submission.ON_MISS_FOLLOW_UP if write.mode == MODE.MODE_AUTO else 0,
        timeout=timeout,
    )


PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
}


async def write_on(link: Link, session: str, book: Book, rng: random.Random) -> None:
    """Writes until the server is gone; some calls have a deadline that hardly fits."""
    while True:
        write = book.next(session, rng)
        timeout = rng.choice(DEADLINES) if rng.random() < 0.3 else 20
        try:
            answer = await send(link, write, timeout)
        except grpc.aio.AioRpcError as error:
            if told(error).reason == "QUEUE_FULL":
                book.open.remove(write)
                await asyncio.sleep(0.005)
                continue
            if error.code() not in PASSING:
                raise
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                return
            continue
        book.settle(write, answer)


async def execute_on(link: Link, session: str) -> None:
    """Plays the executor until the server is gone."""
    try:
        while True:
            answer = await link.poll(session, 20, lease_duration=seconds(5))
            if not answer.HasField("activation"):
                continue
            fence = answer.activation.fence
            while True:
                await link.commit(fence, reserve())
                if (await link.commit(fence, step("done"), finish=COMPLETED)).outcome_applied:
                    break
    except grpc.aio.AioRpcError as error:
        lost = told(error).reason in {"STALE_ACTIVATION", "OPERATION_INVALID"}
        if not lost and error.code() not in PASSING:
            raise


async def until_killed(server, sessions: list[str], book: Book, rng: random.Random) -> None:
    async with Link(server.address) as link:
        tasks = [
            asyncio.create_task(write_on(link, session, book, random.Random(rng.random())))
            for session in sessions
        ]
        tasks += [asyncio.create_task(execute_on(link, session)) for session in sessions]
        before = len(book.answered)
        enough = before + rng.randint(5, 60)
        await until(lambda: len(book.answered) >= enough)
        await asyncio.sleep(rng.random() * 0.01)
        server.kill()
        await within(30, asyncio.gather(*tasks))


async def check(server, sessions: list[str], book: Book) -> None:
    """Verifies what is on disk, and that each unanswered write has one effect in the end."""
    async with Link(server.address) as link:
        for write in list(book.open):
            try:
                book.settle(write, await send(link, write, 20))
            except grpc.aio.AioRpcError as error:
                if told(error).reason != "QUEUE_FULL":
                    raise
                book.open.remove(write)
        for session in sessions:
            events = dense(await link.events(session))
            of_request: dict[str, set[str]] = {}
            for event in events:
                if event.request_id.startswith("r-"):
                    of_request.setdefault(event.request_id, set()).add(event.WhichOneof("body"))
            submissions: dict[str, int] = {}
            delivered: dict[str, int] = {}
            numbers = []
            for event in events:
                if event.HasField("run_created"):
                    name = event.run_created.submission_id
                    submissions[name] = submissions.get(name, 0) + 1
                if event.type == EVENT.TYPE_SUBMISSION_DELIVERED:
                    name = event.submission_delivered.submission_id
                    delivered[name] = delivered.get(name, 0) + 1
                if event.type == EVENT.TYPE_MESSAGE_APPENDED:
                    numbers.append(event.message_appended.number)
            assert set(submissions.values()) <= {1}
            assert set(delivered.values()) <= {1}
            assert numbers == list(range(1, len(numbers) + 1))
            words = [
                one.content[0].text
                for one in await link.messages(session)
                if one.role == one.ROLE_USER
            ]
            assert len(words) == len(set(words)), "an input was delivered twice"
            live = await link.live(session)
            pending = {one.submission_id for one in live.pending_submissions}
            known = await submissions_of(link, session)
            assert len(known) == len({one.request_id for one in known if one.request_id})
            by_request = {one.request_id: one for one in known}
            for write, answer in book.answered.items():
                if write.session != session:
                    continue
                assert answer.sequence <= len(events)
                if write.kind == "update":
                    assert of_request[write.request_id] == {"session_updated"}
                    continue
                submission = by_request[write.request_id]
                assert submission.submission_id == answer.submission.submission_id
                if submission.state == submission.STATE_PENDING:
                    assert submission.submission_id in pending
                elif submission.state == submission.STATE_DELIVERED:
                    assert write.words in words
            updates = [one for one in events if one.HasField("session_updated")]
            assert len(updates) == len({one.request_id for one in updates})


async def submissions_of(link: Link, session: str):
    request = history_pb.ListSubmissionsRequest(session_id=session)
    return await link.pages(link.history.ListSubmissions, request, "submissions", 1000)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(100, marks=pytest.mark.timeout(900)),
        pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(7200)]),
    ],
)
async def test_every_answered_write_survives_a_kill_and_every_other_one_happens_once(
    server, kills: int
):
    """Six writers and six executors a kill: 100 kills cut more than 500 writes short."""
    await survive(server, kills)


async def survive(server, kills: int) -> None:
    rng = random.Random(kills)
    sessions: list[str] = []
    book = Book()
    cut = 0
    for number in range(kills):
        if number % 10 == 0:
            sessions = [unique("killed") for _ in range(WRITERS)]
            book.answered.clear()
            async with Link(server.address) as link:
                for session in sessions:
                    await link.create(session)
        await until_killed(server, sessions, book, rng)
        cut += len(book.open)
        server.start()
        await check(server, sessions, book)
        assert book.open == []
    assert cut >= 5 * kills
    assert server.stop() == 0
    assert server.check() == (0, "")


@pytest.mark.every_store
@pytest.mark.parametrize(
    "kills", [5, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
)
async def test_accepted_runs_that_no_executor_saw_end_after_a_kill(server, kills: int):
    """The kill comes right behind the answer, again and again."""
    sessions = []
    for _ in range(kills):
        session = unique("accepted")
        sessions.append(session)
        async with Link(server.address) as link:
            receipts = await asyncio.gather(
                *(link.submit(f"{session}.{n}", create_session=spec(session)) for n in range(10))
            )
        server.restart()
        async with Link(server.address) as link:
            for _ in receipts:
                fence = (await link.lease(session)).fence
                await link.answer(fence)
            for receipt in receipts:
                run = await link.get_run(receipt.submission.run_id)
                assert run.outcome.stop_reason == run.STOP_REASON_COMPLETED


def spec(agent: str) -> session_pb.SessionSpec:
    return session_pb.SessionSpec(default_agent=agent)


@pytest.mark.every_store
async def test_500_calls_that_are_given_up_at_once_harm_nothing(make_server):
    """Deadlines of 1 to 20 ms, and cancellations: no transaction, thread or handle is left."""
    server = make_server(reader_threads=1, postgres_connections=1).start()
    session = unique("given-up")
    rng = random.Random(5)
    async with Link(server.address) as link:
        await link.create(session)
        await link.run(session)
        run_id = (await link.submit(session)).submission.run_id

        async def give_up(number: int) -> None:
            update = session_pb.UpdateSessionRequest(
                session_id=session, display_name=f"n{number}", request_id=f"g{number}"
            )
            deadline = rng.uniform(0.001, 0.02)
            wait = history_pb.WaitRunRequest(run_id=run_id, wait_duration=seconds(30))
            stream = session_pb.StreamEventsRequest(session_id=session)
            calls = [
                lambda: link.sessions.UpdateSession(update, timeout=deadline),
                lambda: link.submit(session, f"w{number}", mode=MODE.MODE_STEER, timeout=deadline),
                lambda: link.history.WaitRun(wait, timeout=deadline),
                lambda: link.sessions.StreamEvents(stream, timeout=deadline).read(),
                lambda: link.history.ListSessions(
                    history_pb.ListSessionsRequest(), timeout=deadline
                ),
            ]
            try:
                if number % 2:
                    await calls[number % 5]()
                else:
                    await asyncio.wait_for(calls[number % 5](), deadline)
            except (grpc.aio.AioRpcError, TimeoutError):
                pass

        async def give_up_all() -> None:
            for start in range(0, 500, 50):
                await asyncio.gather(*(give_up(number) for number in range(start, start + 50)))

        await give_up_all()
        base = server.threads(), server.handles()
        await give_up_all()
        request = session_pb.UpdateSessionRequest(session_id=session, display_name="after")
        await within(1, link.sessions.UpdateSession(request))
        assert (await link.session(session)).display_name == "after"
        dense(await link.events(session))
        # gRPC's own threads come and go by two or three.
        threads, handles = base
        await until(lambda: server.threads() <= threads + 3 and server.handles() <= handles)
    assert server.stop() == 0
    assert server.check() == (0, "")
