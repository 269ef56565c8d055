"""Lists: every item once, in a stable order, whatever the size of a page."""

import asyncio
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b

import grpc
import msgspec
import pytest
from runlane.v1 import history_service_pb2 as history_pb
from runlane.v1 import session_service_pb2 as session_pb
from support_server import EVENT, MODE, Link, dense, failed, refused, told, unique

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]

ORDER = history_pb.ListSessionsRequest.Order


@pytest.mark.parametrize(
    "order",
    [ORDER.ORDER_CREATED_DESC, ORDER.ORDER_CREATED_ASC, ORDER.ORDER_UPDATED_DESC],
    ids=["newest first", "oldest first", "last changed first"],
)
async def test_1000_sessions_made_at_once_are_1000_in_pages_of_7(shared, crowd, order):
    async with Link(shared.address) as link:
        request = history_pb.ListSessionsRequest(labels={"crowd": "yes"}, order=order)
        listed = await link.pages(link.history.ListSessions, request, "sessions", 7)
        ids = [one.session_id for one in listed]
        assert len(ids) == len(set(ids)) == 1000
        assert set(ids) == set(crowd)
        field = "update_time" if order == ORDER.ORDER_UPDATED_DESC else "create_time"
        times = [getattr(one, field).ToNanoseconds() for one in listed]
        assert times == sorted(times, reverse=order != ORDER.ORDER_CREATED_ASC)
        request = history_pb.ListSessionsRequest(labels={"crowd": "yes"}, order=order)
        again = await link.pages(link.history.ListSessions, request, "sessions", 1000)
        assert again == listed


@pytest.fixture(scope="module")
def crowd(shared) -> list[str]:
    """1,000 sessions, created as fast as can be, with ids in no order."""

    async def make() -> list[str]:
        async with Link(shared.address) as link:
            ids = [f"{number * 7919 % 1000:03}-{unique('crowd')}" for number in range(1000)]
            await asyncio.gather(*(link.create(one, labels={"crowd": "yes"}) for one in ids))
        return ids

    return asyncio.run(make())


async def test_sessions_made_while_a_list_is_read_change_nothing_of_the_rest(shared, crowd):
    async with Link(shared.address) as link:
        label = unique("moving")
        made = [unique("moving") for _ in range(30)]
        for one in made:
            await link.create(one, labels={"moving": label})
        request = history_pb.ListSessionsRequest(
            labels={"moving": label}, order=ORDER.ORDER_CREATED_DESC, page_size=7
        )
        seen = []
        while True:
            page = await link.history.ListSessions(request, timeout=10)
            seen += [one.session_id for one in page.sessions]
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
            await link.create(unique("late"), labels={"moving": label})
            await link.delete(seen[-1])
        assert seen == made[::-1]
        assert crowd


async def test_runs_fork_points_submissions_events_and_messages_page_to_the_end(link: Link):
    session = unique("pages")
    await link.create(session)
    for number in range(40):
        if number % 10 == 3:
            await link.submit(session, f"input {number}")
            await link.commit((await link.lease(session)).fence, finish=failed())
        else:
            await link.run(session, f"input {number}", f"answer {number}")
    await link.submit(session, "the last one is live")
    for number in range(20):
        await link.submit(session, f"queued {number}", mode=MODE.MODE_FOLLOW_UP)
    history = link.history
    lists = [
        (history.ListRuns, history_pb.ListRunsRequest, "runs", lambda one: one.run_id, 41),
        (
            history.ListForkPoints,
            history_pb.ListForkPointsRequest,
            "fork_points",
            lambda one: one.run_id,
            40,
        ),
        (
            history.ListSubmissions,
            history_pb.ListSubmissionsRequest,
            "submissions",
            lambda one: one.submission_id,
            61,
        ),
        (history.ListMessages, history_pb.ListMessagesRequest, "messages", lambda m: m.number, 77),
    ]
    for method, request, field, name, count in lists:
        by_size = [
            await link.pages(method, request(session_id=session), field, size)
            for size in (7, 1, 1000)
        ]
        names = [name(one) for one in by_size[0]]
        assert len(names) == len(set(names)) == count, field
        assert by_size[0] == by_size[1] == by_size[2], field
    whole = dense(await link.events(session))
    request = history_pb.ListEventsRequest(session_id=session)
    assert await link.pages(history.ListEvents, request, "events", 7) == whole
    request = history_pb.ListEventsRequest(session_id=session, after_sequence=50)
    assert await link.pages(history.ListEvents, request, "events", 7) == whole[50:]
    request = history_pb.ListEventsRequest(
        session_id=session, types=[EVENT.TYPE_RUN_TERMINAL], after_sequence=20
    )
    ends = [one for one in whole[20:] if one.type == EVENT.TYPE_RUN_TERMINAL]
    assert await link.pages(history.ListEvents, request, "events", 7) == ends
    runs = await link.pages(
        history.ListRuns, history_pb.ListRunsRequest(session_id=session), "runs", 50
    )
    times = [one.create_time.ToNanoseconds() for one in runs]
    assert times == sorted(set(times)), "creation strictly grows"
    assert [one.run_id for one in whole if one.HasField("run_created")] == [
        one.run_id for one in runs
    ]
    for run in (runs[0], runs[20], runs[-1]):
        request = history_pb.ListEventsRequest(run_id=run.run_id)
        of_run = [one for one in whole if one.run_id == run.run_id]
        assert await link.pages(history.ListEvents, request, "events", 3) == of_run
    for first, field in ((0, "after_number"), (30, "after_number"), (30, "before_number")):
        request = history_pb.ListMessagesRequest(session_id=session, **{field: first})
        numbers = [m.number for m in await link.pages(history.ListMessages, request, "messages", 7)]
        up, down = list(range(first + 1, 78)), list(range(first - 1, 0, -1))
        assert numbers == (up if field == "after_number" else down)
    for role in (1, 2):
        request = history_pb.ListMessagesRequest(session_id=session, roles=[role])
        found = await link.pages(history.ListMessages, request, "messages", 7)
        assert len(found) == (41 if role == 1 else 36)
        assert {one.role for one in found} == {role}


async def test_sizes_of_pages_have_their_stated_meaning(shared, crowd):
    async with Link(shared.address) as link:

        async def count(size: int) -> int:
            request = history_pb.ListSessionsRequest(labels={"crowd": "yes"}, page_size=size)
            return len((await link.history.ListSessions(request, timeout=10)).sessions)

        assert await count(0) == 50
        assert await count(1) == 1
        assert await count(1_000_000_000) == 1000
        assert await count(2**31 - 1) == 1000
        error = await refused(count(-1))
        assert (error.code, error.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "FIELD_INVALID")
        assert error.fields == ["page_size"]
        assert crowd


def list_calls(link: Link, session: str):
    """Names each list with a request of it that has more than one page."""
    history = link.history
    return {
        "ListSessions": (history.ListSessions, history_pb.ListSessionsRequest()),
        "ListRuns": (history.ListRuns, history_pb.ListRunsRequest(session_id=session)),
        "ListForkPoints": (
            history.ListForkPoints,
            history_pb.ListForkPointsRequest(session_id=session),
        ),
        "ListSubmissions": (
            history.ListSubmissions,
            history_pb.ListSubmissionsRequest(session_id=session),
        ),
        "ListMessages": (history.ListMessages, history_pb.ListMessagesRequest(session_id=session)),
        "ListEvents": (history.ListEvents, history_pb.ListEventsRequest(session_id=session)),
        "GetLineage": (history.GetLineage, history_pb.GetLineageRequest(session_id=session)),
        "ListAgents": (link.sessions.ListAgents, session_pb.ListAgentsRequest()),
    }


async def test_tokens_of_other_calls_other_arguments_and_of_nobody_are_refused(link: Link):
    session, other = unique("tokens"), unique("tokens")
    for one in (session, other):
        runs = [await link.run(one) for _ in range(3)]
        for run_id in runs:
            await link.fork(run_id)
    tokens = {}
    for name, (method, request) in list_calls(link, session).items():
        request.page_size = 1
        tokens[name] = (await method(request, timeout=10)).next_page_token
        assert tokens[name], name
    foreign = list_calls(link, other)
    for name, (method, request) in list_calls(link, session).items():
        for other_name, token in tokens.items():
            request.page_token = token
            if other_name == name:
                await method(request, timeout=10)
                continue
            error = await refused(method(request, timeout=10))
            assert error.code == grpc.StatusCode.INVALID_ARGUMENT
            assert error.reason == "PAGE_TOKEN_MISMATCH", (name, other_name)
        if name not in {"ListSessions", "ListAgents"}:
            _, of_other = foreign[name]
            of_other.page_token = tokens[name]
            error = await refused(method(of_other, timeout=10))
            assert error.reason == "PAGE_TOKEN_MISMATCH"
    filtered = history_pb.ListSessionsRequest(
        page_token=tokens["ListSessions"], labels={"other": "filter"}
    )
    error = await refused(link.history.ListSessions(filtered, timeout=10))
    assert error.reason == "PAGE_TOKEN_MISMATCH"
    for name, (method, request) in list_calls(link, session).items():
        token = tokens[name]
        bad = ["x", "é", "a" * 2048, token[:-2], token[1:], token + "AAAA", flipped(token)]
        for one in bad:
            request.page_token = one
            error = await refused(method(request, timeout=10))
            assert error.code == grpc.StatusCode.INVALID_ARGUMENT, (name, one)
            assert error.reason == "PAGE_TOKEN_INVALID", (name, one)
        request.page_token = "a" * 2049
        assert (await refused(method(request, timeout=10))).fields == ["page_token"]


def flipped(token: str) -> str:
    data = bytearray(urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    data[-1] ^= 1
    return urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "cursor", [-1, -(2**40), 2**63, 2**64 - 1, (2**63, "x"), (-1, "x")], ids=str
)
async def test_forged_cursors_read_nothing_of_others_and_are_no_fault(link: Link, cursor):
    """A token is not secret: whoever makes one that fits gets a page of its call, or a refusal."""
    session, other = unique("forged"), unique("forged")
    await link.run(other, "of the other")
    await link.run(session, "its own")
    for name, (method, request) in list_calls(link, session).items():
        for size in (1, 50):
            request.page_size = size
            request.page_token = ""
            token = (await method(request, timeout=10)).next_page_token
            if token:
                break
        if not token:
            continue
        request.page_token = forged(token, cursor)
        (answer,) = await asyncio.gather(method(request, timeout=10), return_exceptions=True)
        if isinstance(answer, BaseException):
            assert told(answer).reason == "PAGE_TOKEN_INVALID", name
        elif name != "ListSessions":
            assert "of the other" not in str(answer), name


def forged(token: str, cursor) -> str:
    """Returns a token of the same call with another cursor, well made."""
    data = urlsafe_b64decode(token + "=" * (-len(token) % 4))
    head, body = data[:9], msgspec.msgpack.encode(cursor)
    total = blake2b(head + body, digest_size=4).digest()
    return urlsafe_b64encode(head + total + body).rstrip(b"=").decode()
