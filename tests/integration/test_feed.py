"""The feed: each event of all sessions once, wherever its reader is cut and goes on."""

import asyncio
import json
import random
from collections import defaultdict

import grpc
import pytest
import runlane
from access import bearer, made_server, new_key
from runlane.v1 import admin_service_pb2 as pb
from runlane_server import bootstrap
from runlane_server.cli._app import app
from support_server import EVENT, Link, dense, refused, unique, until, within
from typer.testing import CliRunner

pytestmark = pytest.mark.asyncio

STORES = ("sqlite", "postgres")
LONG = 60


@pytest.fixture(params=STORES)
def either(request, make_server):
    """A server on each kind of store, for one test."""
    store = request.getfixturevalue("postgres") if request.param == "postgres" else ""
    return make_server(store=store, bookmark_seconds=45).start()


def open_feed(link: Link, timeout: float = LONG, **fields):
    return link.admin.StreamFeed(pb.StreamFeedRequest(**fields), timeout=timeout)


async def whole(link: Link, after: str = "", **fields) -> tuple[list, str]:
    """Reads the feed to its end; returns its events, each with its cursor, and the end's."""
    found, frame = [], None
    async for frame in open_feed(link, after_cursor=after, follow=False, **fields):
        if frame.HasField("batch"):
            assert len(frame.batch.events) <= 256
            assert frame.ByteSize() < 4 * 1024 * 1024 - 64 * 1024
        found += frame.batch.events
    assert frame.WhichOneof("frame") == "bookmark", "where it is comes last"
    assert frame.bookmark.caught_up
    return found, frame.bookmark.cursor


def by_session(events) -> dict[str, list]:
    found = defaultdict(list)
    for one in events:
        found[one.session_id].append(one)
    return found


async def load(link: Link, sessions: list[str], runs: int, rng: random.Random) -> None:
    """Plays runs in sessions, eight of them at a time."""
    queues = [sessions[number::8] for number in range(8)]

    async def play(mine: list[str]) -> None:
        for _ in range(runs // 8):
            await link.run(rng.choice(mine))

    await asyncio.gather(*map(play, queues))


class CutReader:
    """Reads the feed and cuts itself at random places; what it has seen is kept over that."""

    def __init__(self, link: Link, rng: random.Random) -> None:
        self.link, self.rng = link, rng
        self.events, self.cuts, self.cursor = [], 0, ""
        self.over = False

    async def read(self) -> None:
        while not self.over:
            call = open_feed(self.link, after_cursor=self.cursor)
            left = self.rng.randint(1, 60)
            try:
                async for frame in call:
                    if frame.WhichOneof("frame") == "bookmark":
                        self.cursor = frame.bookmark.cursor
                    for one in frame.batch.events:
                        self.events.append(one.event)
                        self.cursor = one.cursor
                        left -= 1
                        if not left:  # also within a batch, and within a transaction
                            break
                    if not left:
                        break
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.02)
            finally:
                call.cancel()
            self.cuts += 1


@pytest.mark.timeout(180)
async def test_a_reader_that_is_cut_sees_each_event_of_fifty_sessions_once(either):
    rng = random.Random(11)
    sessions = [unique("fed") for _ in range(50)]
    async with Link(either.address) as link, runlane.Client(either.address) as client:
        reader = CutReader(link, rng)
        reading = asyncio.create_task(reader.read())
        items = []

        async def follow() -> None:
            async for item in client.feed():
                items.append(item)  # noqa: PERF401 - it does not end

        following = asyncio.create_task(follow())
        await load(link, sessions, 80, rng)
        either.restart()
        await until(lambda: ready(link))
        await load(link, sessions, 40, rng)
        either.restart(gently=True)
        await until(lambda: ready(link))
        await load(link, sessions, 40, rng)
        wanted = {name: await link.events(name) for name in sessions if await exists(link, name)}
        count = sum(map(len, wanted.values()))
        await until(lambda: len(reader.events) >= count and len(items) >= count)
        reader.over = True
        reading.cancel()
        following.cancel()
        await asyncio.gather(reading, following, return_exceptions=True)
        assert reader.cuts > 20
        assert by_session(reader.events) == wanted
        for name, found in by_session(event for _, event in items).items():
            dense(found)
            assert [one.sequence for one in found] == [one.sequence for one in wanted[name]]
        assert len(items) == len(reader.events) == count
        # The order is one: that of any other reader, whatever it was cut at.
        entries, end = await whole(link)
        assert [one.event for one in entries] == reader.events
        assert [one.cursor for one in entries] == [cursor for cursor, _ in items]
        place = entries[len(entries) // 3].cursor
        assert (await whole(link, place))[0] == entries[len(entries) // 3 + 1 :]
        assert (await whole(link, end))[0] == []


async def ready(link: Link) -> bool:
    try:
        await link.server.GetServerInfo(runlane.v1.server_service_pb2.GetServerInfoRequest())
    except grpc.aio.AioRpcError:
        return False
    return True


async def exists(link: Link, name: str) -> bool:
    try:
        return bool(await link.session(name))
    except grpc.aio.AioRpcError:
        return False


async def test_a_filter_lets_the_cursor_go_on(either):
    async with Link(either.address) as link:
        name = unique("some")
        for _ in range(3):
            await link.run(name)
        ends = [EVENT.TYPE_RUN_TERMINAL]
        found, end = await whole(link, types=ends)
        assert [one.event.type for one in found] == ends * 3
        call = open_feed(link, after_cursor=end, types=ends)
        frame = await within(10, call.read())
        assert frame.bookmark.caught_up
        await link.create(unique("other"))
        last = await link.run(name)
        frame = await within(10, call.read())
        assert [one.event.run_id for one in frame.batch.events] == [last]
        call.cancel()
        # Nothing of that kind is there: it is told how far that is true.
        found, later = await whole(link, end, types=[EVENT.TYPE_SESSION_DELETED])
        assert found == []
        assert later != end
        assert (await whole(link, later))[0] == []


async def test_a_feed_from_the_end_and_what_comes_wakes_it_at_once(either):
    async with Link(either.address) as link:
        name = unique("late")
        await link.run(name)
        call = open_feed(link, at_end=True)
        frame = await within(10, call.read())
        assert frame.bookmark.caught_up
        start = frame.bookmark.cursor
        # There is no tick for 45 s.
        run = await link.run(name)
        seen = []
        while not any(one.event.HasField("run_terminal") for one in seen):
            seen += (await within(5, call.read())).batch.events
        assert {one.event.run_id for one in seen} == {run}
        assert (await whole(link, start))[0] == seen
        call.cancel()


async def test_messages_are_bounded_as_batches_are(either):
    async with Link(either.address) as link:
        name = unique("large")
        words = [str(number) * 2_500_000 for number in range(3)]
        await link.run(name, words[0], words[1])
        await link.run(name, words[2], "small")
        found, _ = await whole(link, include_messages=True)
        messages = [one.event.message for one in found if one.event.HasField("message")]
        assert messages == await link.messages(name)
        bare, _ = await whole(link)
        assert [one.cursor for one in bare] == [one.cursor for one in found]
        assert not any(one.event.HasField("message") for one in bare)
        # From within a transaction it goes on with the rest of it.
        for number, one in enumerate(found):
            rest, _ = await whole(link, one.cursor, include_messages=True)
            assert rest == found[number + 1 :]


async def test_of_a_deleted_session_whoever_was_behind_is_told(make_server):
    server = make_server(sweep_delay_seconds=0).start()
    async with Link(server.address) as link:
        name, other = unique("gone"), unique("stays")
        await link.run(name)
        await link.run(other)
        seen, end = await whole(link)
        await link.delete(name)

        async def swept() -> bool:
            left = by_session(one.event for one in (await whole(link))[0])
            return len(left[name]) == 1

        await until(swept)
        after, _ = await whole(link, end, include_messages=True)
        assert [one.event.type for one in after] == [EVENT.TYPE_SESSION_DELETED]
        assert after[0].event.actor == "client"
        left = by_session(one.event for one in (await whole(link))[0])
        assert [one.type for one in left[name]] == [EVENT.TYPE_SESSION_DELETED]
        assert left[other] == by_session(one.event for one in seen)[other]


async def test_a_drain_ends_a_feed_with_where_to_go_on(server):
    async with Link(server.address) as link:
        await link.run(unique("drained"))
        call = open_feed(link)
        while (await within(10, call.read())).WhichOneof("frame") != "bookmark":
            pass
        assert await asyncio.to_thread(server.stop) == 0
        error = await refused(call.read())
        assert error.code == grpc.StatusCode.UNAVAILABLE
        assert error.reason == "STREAM_ENDED"
        assert error.retry_seconds is not None


async def test_feeds_are_as_many_as_the_setting_says(make_server):
    server = make_server(feeds_max=2).start()
    async with Link(server.address) as link:
        limits = {one.name: one.value for one in (await runlane_info(link)).limits}
        assert limits["feeds_max"] == 2
        calls = [open_feed(link) for _ in range(2)]
        for call in calls:
            await within(10, call.read())
        error = await refused(open_feed(link).read())
        assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "STREAM_LIMIT")
        assert error.metadata == {"limit": "2"}
        name = unique("beside")
        await link.create(name)
        assert await link.events(name), "other streams are not meant"
        calls.pop().cancel()

        async def free() -> bool:
            try:
                return bool(await open_feed(link, follow=False).read())
            except grpc.aio.AioRpcError:
                return False

        await until(free)
        calls.pop().cancel()


async def runlane_info(link: Link):
    request = runlane.v1.server_service_pb2.GetServerInfoRequest()
    return await link.server.GetServerInfo(request, timeout=10)


async def test_a_cursor_is_of_one_namespace_and_one_store(make_server, tmp_path):
    server = made_server(make_server, tmp_path / "one")
    async with Link(server.address, metadata=bearer(server.root)) as root:
        a = (await new_key(root, "a", namespace="a")).secret
        b = (await new_key(root, "b", namespace="b")).secret
        read = (await new_key(root, "reader", "read", namespace="a")).secret
        async with (
            Link(server.address, metadata=bearer(a)) as in_a,
            Link(server.address, metadata=bearer(b)) as in_b,
            Link(server.address, metadata=bearer(read)) as reader,
        ):
            for _ in range(3):
                await in_a.run("same")
                await in_b.run("same")
            ours, end = await whole(in_a)
            theirs, _ = await whole(in_b)
            for link, found in ((in_a, ours), (in_b, theirs)):
                assert [one.event for one in found] == await link.events("same")
            assert not {one.cursor for one in ours} & {one.cursor for one in theirs}
            for cursor in (end, ours[2].cursor):
                error = await refused(open_feed(in_b, after_cursor=cursor).read())
                assert (error.code.name, error.reason) == (
                    "INVALID_ARGUMENT",
                    "PAGE_TOKEN_MISMATCH",
                )
            flipped = end[:18] + ("A" if end[18] != "A" else "B") + end[19:]
            for cursor in ("x", "é", end[:-3], flipped, "A" * 2048):
                error = await refused(open_feed(in_a, after_cursor=cursor).read())
                assert error.reason == "PAGE_TOKEN_INVALID", cursor
            error = await refused(open_feed(in_a, after_cursor="A" * 2049).read())
            assert (error.reason, error.fields) == ("FIELD_INVALID", ["after_cursor"])
            error = await refused(open_feed(reader).read())
            assert (error.reason, error.metadata) == ("SCOPE_MISSING", {"scope": "admin"})
            # A busy neighbour wakes nobody, and nothing of it is told.
            call = open_feed(in_a, after_cursor=end)
            assert (await within(10, call.read())).bookmark.caught_up
            await in_b.run("same")
            run = await in_a.run("same")
            frame = await within(10, call.read())
            assert {one.event.run_id for one in frame.batch.events} <= {run, ""}
            call.cancel()
    server.stop()
    other = made_server(make_server, tmp_path / "two")
    async with Link(
        other.address, metadata=(*bearer(other.root), ("runlane-namespace", "a"))
    ) as link:
        error = await refused(open_feed(link, after_cursor=end).read())
        assert error.reason == "PAGE_TOKEN_MISMATCH", "another store"
    # A copy that is restored has lost what came after it.
    copy, path = tmp_path / "copy.db", tmp_path / "one" / "runlane.db"
    assert await bootstrap.backup_store(path, copy) == []
    await bootstrap.restore_store(copy, path, replace=True)
    server.start()
    async with Link(server.address, metadata=bearer(a)) as link:
        error = await refused(open_feed(link, after_cursor=end).read())
        assert error.reason == "PAGE_TOKEN_MISMATCH", "the store before it was restored"
        assert len((await whole(link))[0]) > len(ours)


async def test_the_client_and_the_terminal_go_on_from_a_cursor(server):
    async with Link(server.address) as link, runlane.Client(server.address) as client:
        await link.run("first", "hello", "world")
        async with client.feed(follow=False, include_messages=True) as items:
            found = [item async for item in items]
            end = items.cursor
        texts = [event.message.text for _, event in found if getattr(event, "message", None)]
        assert texts == ["hello", "world"]
        async with client.feed(after=found[2].cursor, follow=False) as items:
            assert [item.cursor async for item in items] == [one.cursor for one in found[3:]]
        with pytest.raises(ValueError, match="not both"):
            client.feed(after=end, at_end=True)
        with pytest.raises(runlane.PageTokenInvalid):
            await anext(client.feed(after="x"))
        items = client.feed(after=end)
        waiting = asyncio.create_task(anext(items))
        await asyncio.sleep(0)
        await link.create("second")
        assert (await within(10, waiting)).event.session_id == "second"
        assert items.cursor != end
        await items.aclose()

        async def terminal(*arguments: str) -> list:
            result = await asyncio.to_thread(
                CliRunner().invoke, app, ["feed", *arguments, "--target", server.address]
            )
            assert result.exit_code == 0, result.output
            return [json.loads(line) for line in result.stdout.splitlines()]

        lines = await terminal("--after", end, "--messages")
        assert [line["event"]["session_id"] for line in lines[:-1]] == ["second"]
        (last,) = lines[-1].items()
        assert last[0] == "cursor"
        assert await terminal("--after", last[1]) == [{"cursor": last[1]}]
        ends = await terminal("--type", "run.terminal")
        assert [line["event"]["kind"] for line in ends[:-1]] == ["run.terminal"]


async def test_a_slow_reader_is_told_to_nobody_else(server):
    """One that reads nothing holds up neither writers nor the others."""
    async with Link(server.address) as link:
        lazy = open_feed(link, include_messages=True)
        name = unique("much")
        for _ in range(12):
            await link.run(name, "x" * 1_000_000)
        found, _ = await whole(link, include_messages=True)
        dense([one.event for one in found])
        cursors = []
        async for frame in lazy:
            cursors += [one.cursor for one in frame.batch.events]
            if len(cursors) == len(found):
                break
        assert cursors == [one.cursor for one in found]
        lazy.cancel()
