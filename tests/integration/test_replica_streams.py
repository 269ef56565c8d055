"""Two servers on one database: the feed and deltas, of what is done at the other one."""

import asyncio
import random

import pytest
import pytest_asyncio
from runlane.v1 import event_pb2, executor_service_pb2
from support_server import Link, dense, reserve, unique, until, within
from test_feed import CutReader, by_session, exists, load, open_feed, whole

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def two(make_server, postgres, tmp_path):
    """Links to two servers on one database."""
    servers = [
        make_server(tmp_path / name, store=postgres, bookmark_seconds=45).start() for name in "ab"
    ]
    async with Link(servers[0].address) as a, Link(servers[1].address) as b:
        yield a, b


@pytest.mark.timeout(180)
async def test_a_feed_has_each_event_of_both_servers_once(two):
    rng = random.Random(3)
    names = [unique("fed") for _ in range(24)]
    readers = [CutReader(link, rng) for link in two]
    reading = [asyncio.create_task(one.read()) for one in readers]
    halves = names[:12], names[12:]
    for _ in range(2):
        await asyncio.gather(*(load(*one, 32, rng) for one in zip(two, halves, strict=True)))
        halves = halves[::-1]
    wanted = {name: await two[0].events(name) for name in names if await exists(two[0], name)}
    count = sum(map(len, wanted.values()))
    await until(lambda: all(len(one.events) >= count for one in readers), 60)
    for one, task in zip(readers, reading, strict=True):
        one.over = True
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    for one in readers:
        assert by_session(one.events) == wanted
        assert len(one.events) == count
    assert readers[0].events == readers[1].events, "it is one order"
    # A cursor of one server is one of the other.
    entries, end = await whole(two[1])
    assert [one.event for one in entries] == readers[0].events
    assert (await whole(two[0], entries[9].cursor))[0] == entries[10:]
    call = open_feed(two[1], after_cursor=end)
    assert (await within(10, call.read())).bookmark.caught_up
    await two[0].run(names[0])
    assert (await within(10, call.read())).batch.events
    call.cancel()


async def test_deltas_are_read_at_the_other_server_and_none_after_the_message(two):
    a, b = two
    name = unique("said")
    await a.submit(name)
    fence = (await a.lease(name)).fence
    granted = (await a.commit(fence, reserve())).results[0].reserve_model_step
    stream = b.stream(name, include_deltas=True)
    frames: list = []
    enough = asyncio.Event()
    words = [f"word {number} " for number in range(30)]

    def shown() -> str:
        found = ""
        for frame in frames:
            for one in frame.deltas.deltas:
                whole_text = one.WhichOneof("piece") == "snapshot_text"
                found = one.snapshot_text if whole_text else found + one.append_text
        return found

    async def read() -> None:
        async for frame in stream:
            frames.append(frame)
            if shown() == "".join(words):
                enough.set()

    reading = asyncio.create_task(read())

    async def publish():
        for number, word in enumerate(words):
            delta = event_pb2.Delta(
                model_stream_id=granted.model_stream_id,
                step=granted.step,
                kind=event_pb2.Delta.KIND_TEXT,
                base_revision=number,
                revision=number + 1,
                append_text=word,
            )
            yield executor_service_pb2.PublishDeltasRequest(
                fence=None if number else fence, deltas=[delta]
            )
            await asyncio.sleep(0.02)
        await enough.wait()

    taken = await within(30, a.executors.PublishDeltas(publish(), timeout=60))
    assert taken.delta_count == 30
    # Whoever comes later is given what there is.
    late = b.stream(name, include_deltas=True)
    async with asyncio.timeout(10):
        while not (frame := await late.read()).deltas.deltas:
            pass
    assert frame.deltas.deltas[0].snapshot_text == "".join(words)
    late.cancel()
    await a.answer_reserved(fence, "".join(words))

    def ends() -> int:
        events = [event for frame in frames for event in frame.batch.events]
        return sum(event.HasField("run_terminal") for event in events)

    await until(lambda: ends() == 1)
    # What would still come of it comes before what follows.
    for number in range(2, 5):
        await a.run(name)
        await until(lambda number=number: ends() == number)
    dense([event for frame in frames for event in frame.batch.events])
    message = next(
        place
        for place, frame in enumerate(frames)
        if any(event.message_appended.step for event in frame.batch.events)
    )
    assert not [one for one in frames[message:] if one.deltas.deltas]
    assert len([one for one in frames if one.deltas.deltas]) < 30, "it comes in beats"
    reading.cancel()
    stream.cancel()
