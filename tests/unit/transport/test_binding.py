"""Streams that the server ends by itself."""

import asyncio

import pytest
from runlane_server.core.errors import Reason, Refused
from runlane_server.transport.binding import _ended, is_endless
from runlane_server.transport.server import SERVICES

pytestmark = pytest.mark.asyncio
LONG = 3600


ENDLESS = {"StreamEvents", "StreamRunEvents", "StreamFeed", "WatchActivation"}
END_WITH_WHAT_THERE_IS = {
    "StreamMessages",
    "GetHistoryAtRun",
    "ExportSession",
    "StreamModelContext",
}


async def test_every_stream_that_may_follow_is_ended_by_the_server():
    """Whoever declares a stream decides here whether it has an end of its own."""
    streams = {
        method.name: is_endless(method)
        for service in SERVICES
        for method in service.methods
        if method.server_streaming
    }
    assert {name for name, endless in streams.items() if endless} == ENDLESS
    assert streams.keys() == ENDLESS | END_WITH_WHAT_THERE_IS


class Frames:
    """A stream that gives what is put in, and knows how it was ended."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.waiting = asyncio.Event()
        self.closed = False

    async def __call__(self):
        try:
            while True:
                self.waiting.set()
                frame = await self.queue.get()
                if not frame:
                    return
                yield frame
        finally:
            self.closed = True


async def read(frames, seconds):
    return [frame async for frame in _ended(frames(), seconds)]


async def test_a_wait_for_a_frame_is_broken_off():
    frames = Frames()
    with pytest.raises(Refused, check=lambda error: error.reason is Reason.STREAM_ENDED):
        await read(frames, 0)
    assert frames.closed
    assert asyncio.current_task().cancelling() == 0


async def test_a_frame_on_its_way_is_written_and_is_the_last():
    frames = Frames()
    stream = _ended(frames(), 0)
    frames.queue.put_nowait(b"1")
    frames.queue.put_nowait(b"2")
    assert await anext(stream) == b"1"
    # As long as a write may take: it is not broken off.
    for _ in range(3):
        await asyncio.sleep(0)
    with pytest.raises(Refused, check=lambda error: error.reason is Reason.STREAM_ENDED):
        await anext(stream)
    assert frames.closed


async def test_a_stream_that_ends_before_is_left_alone():
    frames = Frames()
    for frame in (b"1", b"2", b""):
        frames.queue.put_nowait(frame)
    assert await read(frames, LONG) == [b"1", b"2"]
    assert frames.closed


@pytest.mark.parametrize("seconds", [LONG, 0], ids=["before its end", "at its end"])
async def test_a_client_that_leaves_cancels_it(seconds):
    frames = Frames()
    reading = asyncio.create_task(read(frames, seconds))
    await frames.waiting.wait()
    if not seconds:
        # Both at once: the timer has fired, and the client leaves before the task goes on.
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert reading.cancelled()
    assert frames.closed


async def test_an_error_of_the_stream_is_its_own():
    async def breaks():
        yield b"1"
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await read(breaks, LONG)
