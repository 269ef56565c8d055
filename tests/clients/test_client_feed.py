"""The feed as the client reads it, over connections that are lost."""

import grpc
import pytest
from client_fakes import FakeServer, refuse
from runlane.errors import PageTokenMismatch
from runlane.v1 import admin_service_pb2 as pb
from runlane.v1 import event_pb2

pytestmark = pytest.mark.asyncio

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def batch(*numbers: int) -> pb.StreamFeedResponse:
    kind = event_pb2.Event.TYPE_RUN_PAUSED
    entries = [
        pb.FeedEvent(event=event_pb2.Event(sequence=one, type=kind), cursor=f"c{one}")
        for one in numbers
    ]
    return pb.StreamFeedResponse(batch=pb.FeedBatch(events=entries))


def bookmark(cursor: str) -> pb.StreamFeedResponse:
    return pb.StreamFeedResponse(bookmark=pb.FeedBookmark(cursor=cursor, caught_up=True))


async def test_it_goes_on_after_what_it_was_told_and_no_event_comes_twice(
    server: FakeServer, client
):
    frames = [[batch(1, 2)], [bookmark("c7")], [], [batch(8)]]
    asked = []

    async def stream(request, context):
        asked.append(request.after_cursor)
        for frame in frames[len(asked) - 1]:
            await context.write(frame)
        if len(asked) < len(frames):
            await context.abort(UNAVAILABLE, "gone")

    server.handlers["StreamFeed"] = stream
    items = client.feed(after="c0", types=["run.paused"], follow=False)
    assert items.cursor == "c0"
    first = await anext(items)
    assert (first.cursor, first.event.sequence, items.cursor) == ("c1", 1, "c1")
    assert [item.event.sequence async for item in items] == [2, 8]
    assert asked == ["c0", "c2", "c7", "c7"]
    assert items.cursor == "c8"
    assert not server.calls["StreamFeed"][0].follow


async def test_from_the_end_it_goes_on_from_where_the_end_was(server: FakeServer, client):
    asked = []

    async def stream(request, context):
        asked.append(request)
        if len(asked) == 1:
            await context.write(bookmark("c5"))
            await context.abort(UNAVAILABLE, "gone")
        await context.write(batch(6))

    server.handlers["StreamFeed"] = stream
    assert [item.cursor async for item in client.feed(at_end=True)] == ["c6"]
    assert [one.WhichOneof("start") for one in asked] == ["at_end", "after_cursor"]
    assert asked[1].after_cursor == "c5"


async def test_a_refused_cursor_ends_it(server: FakeServer, client):
    async def stream(request, context):
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "PAGE_TOKEN_MISMATCH")

    server.handlers["StreamFeed"] = stream
    with pytest.raises(PageTokenMismatch):
        await anext(client.feed(after="of another store"))
    assert len(server.calls["StreamFeed"]) == 1
