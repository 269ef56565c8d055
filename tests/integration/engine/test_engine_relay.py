"""Deltas of an executor that is connected to one server, for a reader at the other one."""

import asyncio

import asyncpg
import pytest
import pytest_asyncio
from runlane.v1 import session_service_pb2 as pb
from runlane_server.app.views import EventQuery
from runlane_server.core.model import Delta, SessionKey
from runlane_server.core.words import DeltaKind, Mode
from runlane_server.runtime import relay as room
from runlane_server.runtime.relay import EAGER
from support.steps import COMPLETED, answer, commit, create, fence_of, first, lease, put, reserve
from support.world import World
from support_server import until

pytestmark = pytest.mark.asyncio

KEY = SessionKey("default", "ses_1")
finish = commit(answer(), outcome=COMPLETED)


@pytest_asyncio.fixture
async def a(postgres):
    async with World(postgres) as made:
        yield made


@pytest_asyncio.fixture
async def b(postgres, a):
    made = World(postgres)
    made.clock = a.clock
    made.new_id.count = 1_000_000  # ids are the same on no two servers
    async with made:
        yield made


async def rows(postgres) -> int:
    conn = await asyncpg.connect(postgres)
    try:
        return await conn.fetchval("SELECT count(*) FROM runlane.deltas")
    finally:
        await conn.close()


class Author:
    """An executor at one server, in a model step."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.revision: dict[int, int] = {}

    async def begin(self) -> "Author":
        await self.world.do("ses_1", create, first, lease(), reserve)
        return self

    async def say(self, text: str, index: int = 0, *, done: bool = False) -> int:
        state = await self.world.state("ses_1")
        base = self.revision.get(index, 0)
        self.revision[index] = base + 1
        delta = Delta(
            state.run.model_stream_id,
            "",
            "",
            1,
            index,
            DeltaKind.TEXT,
            base,
            base + 1,
            append_text=text,
            block_done=done,
        )
        fence = fence_of(state)
        return await self.world.app.publish_deltas(
            self.world.caller("PublishDeltas"), fence, [delta]
        )


class Reader:
    """A stream of deltas at one server."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.pieces: list = []
        self.events: list = []
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        query = EventQuery(include_deltas=True)
        async for raw in self.world.app.stream_events("default", "ses_1", query):
            frame = pb.StreamEventsResponse.FromString(raw)
            self.events += frame.batch.events
            self.pieces += frame.deltas.deltas

    async def caught_up(self) -> None:
        """Lets the reader come to where it waits."""
        newest = await self.world.store.last_sequence(KEY) or 0
        await until(lambda: bool(self.events) and self.events[-1].sequence >= newest)
        for _ in range(3):
            await self.world.store.last_sequence(KEY)
            for _ in range(20):
                await asyncio.sleep(0)

    def text(self) -> str:
        """What a client has of the block, as the contract says."""
        found = ""
        for one in self.pieces:
            kind = one.WhichOneof("piece")
            if kind == "snapshot_text":
                found = one.snapshot_text
            elif kind == "append_text":
                found += one.append_text
        return found

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def passes(source: World, target: World, reader: Reader) -> None:
    """One beat there, one look here."""
    await source.services.relay.beat()
    await target.hear()
    await target.services.relay.look()
    await reader.caught_up()


async def test_a_reader_elsewhere_sees_what_is_said_and_each_word_once(postgres, a, b):
    author = await Author(a).begin()
    reader = Reader(b)
    await reader.caught_up()
    await author.say("before ")
    await a.services.relay.beat()
    assert await rows(postgres) == 0, "nobody has told this server that deltas are read"
    await a.services.relay.heard({EAGER}, whole=False)
    await passes(a, b, reader)
    assert reader.text() == "before ", "what came before is told, too"
    for word in ("one ", "two ", "three"):
        await author.say(word)
        await passes(a, b, reader)
    await passes(a, b, reader)
    assert reader.text() == "before one two three"
    assert [one.append_text for one in reader.pieces[1:]] == ["one ", "two ", "three"]
    # What is said between two beats comes as one.
    await author.say(", ")
    await author.say("four", done=True)
    await passes(a, b, reader)
    assert reader.pieces[-2].append_text == ", four"
    assert reader.pieces[-1].block_done
    seen = len(reader.pieces)
    await a.do("ses_1", finish)
    await passes(a, b, reader)
    assert [one.type for one in reader.events][-1] == 49, "the run has ended"
    assert len(reader.pieces) == seen, "nothing of it comes after its message"
    assert await rows(postgres) == 0
    assert not b.services.bus.sessions_with_blocks()
    await reader.leave()


async def test_what_was_written_is_not_shown_once_its_step_is_over(postgres, a, b):
    author = await Author(a).begin()
    await a.services.relay.heard({EAGER}, whole=False)
    await author.say("late words")
    await a.services.relay.beat()
    assert await rows(postgres) == 1
    # The step is committed at the other server; this one does not know of it yet.
    await b.do("ses_1", finish)
    reader = Reader(b)
    await reader.caught_up()
    await b.services.relay.look()
    await reader.caught_up()
    assert reader.pieces == []
    await a.hear()
    assert not a.services.bus.sessions_with_blocks()
    await a.services.relay.beat()
    assert await rows(postgres) == 0
    await reader.leave()


async def test_input_at_the_other_server_leaves_what_is_on_its_way(a, b):
    author = await Author(a).begin()
    await a.services.relay.heard({EAGER}, whole=False)
    reader = Reader(b)
    await author.say("one ")
    await passes(a, b, reader)
    await b.do("ses_1", put("more", Mode.FOLLOW_UP))
    await a.hear()
    assert await author.say("two") == 1, "it extends what is there"
    await passes(a, b, reader)
    assert reader.text() == "one two"
    await reader.leave()


async def test_beats_and_looks_are_bounded(postgres, a, b, monkeypatch):
    monkeypatch.setattr(room, "BEAT_BYTES", 100)
    author = await Author(a).begin()
    await a.services.relay.heard({EAGER}, whole=False)
    await author.say("x" * 500)
    await author.say("y" * 500, 1)
    await a.services.relay.beat()
    assert await rows(postgres) == 2, "the blocks of a session go together"
    await a.services.relay.beat()
    wanted = {KEY: 0}
    found = await b.store.shared.blocks("other", wanted, 100)
    assert len(found) == 1, "one at least"
    later = await b.store.shared.blocks("other", {KEY: found[0].put_time}, 10_000)
    assert len(later) <= 1
    assert len(await b.store.shared.blocks("other", wanted, 10_000)) == 2
    own = a.services.relay._server
    assert await a.store.shared.blocks(own, wanted, 10_000) == []
    # What a server left that is gone is removed by the others, after a while.
    await b.store.shared.put_blocks("b", [], [], found[0].put_time + 10_000_000)
    assert await rows(postgres) == 0


async def test_whoever_reads_no_more_leaves_nothing(a, b):
    author = await Author(a).begin()
    await a.services.relay.heard({EAGER}, whole=False)
    reader = Reader(b)
    await author.say("one")
    await passes(a, b, reader)
    await reader.leave()
    assert not b.services.relay._wanted
    assert not b.services.relay._taken
    await a.do("ses_1", finish)
    await b.hear()
    assert not b.services.bus.sessions_with_blocks()
    assert b.services.bus.find(KEY) is None


async def test_who_has_the_message_already_is_shown_nothing_that_led_to_it(a, b):
    """A reader moves here from the other server before this one has heard of its last commits."""
    author = await Author(a).begin()
    frames: dict[str, list[pb.StreamEventsResponse]] = {"old": [], "moved": []}

    async def read(name, after):
        query = EventQuery(after=after, include_deltas=True)
        async for raw in b.app.stream_events("default", "ses_1", query):
            frames[name].append(pb.StreamEventsResponse.FromString(raw))

    def pieces(name):
        return [one for frame in frames[name] for one in frame.deltas.deltas]

    readers = [asyncio.create_task(read("old", 0))]
    try:
        await until(lambda: b.services.relay._wanted)
        await author.say("partial")
        await a.services.relay.heard({EAGER}, whole=False)
        await a.services.relay.beat()
        await b.hear()
        await b.services.relay.look()
        await until(lambda: pieces("old"))
        await a.do("ses_1", finish)
        last = (await a.events("ses_1"))[-1].sequence
        readers.append(asyncio.create_task(read("moved", last)))
        await until(lambda: any(one.HasField("bookmark") for one in frames["moved"]))
        assert not pieces("moved")
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def test_a_piece_that_fits_nothing_leaves_no_hub(a, b):
    """Its block began at the other server, and so go on the session's commits there."""
    await b.do("ses_1", create, first, lease(), reserve)
    author = Author(a)
    author.revision[0] = 5
    assert not await author.say("x")
    assert a.services.bus.find(KEY) is None
    await Author(a).say("y")
    assert a.services.bus.find(KEY) is not None
    await b.do("ses_1", finish)
    await a.hear()
    assert a.services.bus.find(KEY) is None
