"""Streams: fan-out, the way from a commit to a subscriber, histories, idle streams."""

import asyncio
import time
from contextlib import asynccontextmanager

from runlane.v1 import history_service_pb2 as history
from runlane.v1 import session_service_pb2 as session
from uuid_utils import uuid7

from tests.bench import processes
from tests.bench.client import (
    MODES,
    TEXT,
    TIMEOUT,
    Client,
    FloorClient,
    connected,
    connected_floor,
    fresh,
    run,
)
from tests.bench.figures import Line, line, percentile
from tests.bench.plan import Plan

SUBSCRIBERS = 100
BURST = 512
FRAME = 64
PENDING = BURST - 4  # closed, cancellation requested, abandoned, terminal: 512 in all

_EVENTS = "events/s"
_KIB = 1024
_SOME_FRAME = session.StreamEventsResponse(
    bookmark=session.Bookmark(sequence=1, caught_up=True)
).SerializeToString()


class Subscriber:
    """A reader of a session's events that knows how far it has come, and since when."""

    def __init__(self, client: Client, session_id: str) -> None:
        self._call = client.sessions.StreamEvents(
            session.StreamEventsRequest(session_id=session_id, last_events=0)
        )
        self._reached: asyncio.Event = asyncio.Event()
        self._goal = 0
        self.sequence = 0
        self.arrivals: list[tuple[int, float]] = []
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for frame in self._call:
            now = time.perf_counter()
            events = frame.batch.events
            self.sequence = events[-1].sequence if events else frame.bookmark.sequence
            self.arrivals.append((self.sequence, now))
            if self.sequence >= self._goal:
                self._reached.set()

    async def reach(self, sequence: int) -> None:
        self._goal = sequence
        if self.sequence < sequence:
            self._reached.clear()
            async with asyncio.timeout(TIMEOUT):
                await self._reached.wait()

    async def stop(self) -> None:
        self._call.cancel()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


@asynccontextmanager
async def subscribed(client: Client, session_id: str, count: int):
    readers = [Subscriber(client, session_id) for _ in range(count)]
    await asyncio.gather(*(one.reach(1) for one in readers))
    yield readers
    await asyncio.gather(*(one.stop() for one in readers))


class FloorSubscriber:
    """A reader of the floor's frames that counts them."""

    def __init__(self, floor: FloorClient) -> None:
        self._call = floor.wait(b"")
        self._count = -1
        self._goal = 0
        self._reached = asyncio.Event()
        self.arrived = 0.0
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for _ in self._call:
            self._count += 1
            self.arrived = time.perf_counter()
            if self._count >= self._goal:
                self._reached.set()

    async def reach(self, more: int) -> None:
        self._goal += more
        if self._count < self._goal:
            self._reached.clear()
            async with asyncio.timeout(TIMEOUT):
                await self._reached.wait()

    def stop(self) -> None:
        self._call.cancel()
        self._reading.cancel()


async def fan_out(plan: Plan) -> list[Line]:
    """A commit of 512 events to 100 subscribers."""
    batches, singles = [], []
    with (
        processes.floor(plan.folder) as base,
        processes.server(plan.folder, "fan.db", max_pending_next_runs=BURST) as server,
    ):
        async with connected_floor(base.address) as floor, connected(server.address) as client:
            session_id = await client.create(fresh())
            async with subscribed(client, session_id, SUBSCRIBERS) as readers:
                await _burst(client, session_id, readers)
                await _keep_events(client, floor, session_id, readers[0].sequence)
                readers_floor = [FloorSubscriber(floor) for _ in range(SUBSCRIBERS)]
                await asyncio.gather(*(one.reach(0) for one in readers_floor))
                for _ in range(plan.rounds):
                    batched = await _floor_burst(floor, readers_floor, "batches", BURST // FRAME)
                    single = await _floor_burst(floor, readers_floor, "singles", FRAME)
                    figure = await _burst(client, session_id, readers)
                    batches.append((BURST * SUBSCRIBERS / batched, BURST * SUBSCRIBERS / figure))
                    singles.append((FRAME * SUBSCRIBERS / single, BURST * SUBSCRIBERS / figure))
                for one in readers_floor:
                    one.stop()
    note = "floor: batches of 64 passed through; figure from the call on"
    return [
        line("events to 100 subscribers, bursts", _EVENTS, batches, bound=1.2, note=note),
        line("  against one event a write", _EVENTS, singles, bound=20),
    ]


async def _burst(client: Client, session_id: str, readers: list[Subscriber]) -> float:
    """Returns the seconds from a call that makes 512 events until all subscribers have them."""
    await client.submit(session_id, MODES.MODE_QUEUE)
    jobs = (lambda: client.submit(session_id, MODES.MODE_QUEUE) for _ in range(PENDING))
    await run(jobs, 64)
    state = await client.sessions.GetLiveState(
        session.GetLiveStateRequest(session_id=session_id, message_limit=0)
    )
    await asyncio.gather(*(one.reach(state.live_state.sequence) for one in readers))
    start = time.perf_counter()
    closed = await client.sessions.CloseSession(
        session.CloseSessionRequest(
            session_id=session_id, cancel_run=True, request_id=str(uuid7())
        ),
        timeout=TIMEOUT,
    )
    assert closed.sequence - state.live_state.sequence == BURST
    await asyncio.gather(*(one.reach(closed.sequence) for one in readers))
    seconds = time.perf_counter() - start
    opened = await client.sessions.ReopenSession(
        session.ReopenSessionRequest(session_id=session_id, request_id=str(uuid7()))
    )
    await asyncio.gather(*(one.reach(opened.sequence) for one in readers))
    return seconds


async def _keep_events(client: Client, floor: FloorClient, session_id: str, last: int) -> None:
    """Gives the floor a burst's events, as batches and one by one."""
    page = await client.history.ListEvents(
        history.ListEventsRequest(
            session_id=session_id, after_sequence=last - 1 - BURST, page_size=BURST
        )
    )
    events = page.events[:BURST]

    def frame(first: int, count: int) -> bytes:
        batch = session.EventBatch(events=events[first : first + count])
        return session.StreamEventsResponse(batch=batch).SerializeToString()

    await floor.keep("batches", (frame(first, FRAME) for first in range(0, BURST, FRAME)))
    await floor.keep("singles", (frame(first, 1) for first in range(FRAME)))


async def _floor_burst(
    floor: FloorClient, readers: list[FloorSubscriber], name: str, frames: int
) -> float:
    start = time.perf_counter()
    await floor.go(name)
    await asyncio.gather(*(one.reach(frames) for one in readers))
    return time.perf_counter() - start


async def latency(plan: Plan) -> list[Line]:
    """From the call of a Submit to its event at the subscribers."""
    lines = []
    with processes.floor(plan.folder) as base, processes.server(plan.folder, "way.db") as server:
        async with connected_floor(base.address) as floor, connected(server.address) as client:
            await floor.keep("one", [_SOME_FRAME])
            for count, bound in ((1, 3), (SUBSCRIBERS, 7)):
                session_id = await client.create(fresh())
                await client.submit(session_id)
                echoes, raw, seconds = [], [], []
                bare = [FloorSubscriber(floor) for _ in range(count)]
                await asyncio.gather(*(one.reach(0) for one in bare))
                async with subscribed(client, session_id, count) as readers:
                    for _ in range(plan.rounds + 1):
                        echo = await floor.echo_load(1, 200)
                        bare_ways = percentile(await _bare_ways(floor, bare), 0.5) * 1000
                        found = await _ways(client, session_id, readers)
                        way = percentile(found, 0.5) * 1000
                        echoes.append((percentile(echo.seconds, 0.5) * 1000, way))
                        raw.append((bare_ways, way))
                        seconds += found
                for one in bare:
                    one.stop()
                work = f"Submit to {count} subscriber{'s' * (count > 1)}, p50"
                told = {"at_most": True, "seconds": seconds, "note": "floor: echo p50"}
                lines += [
                    line(work, "ms", echoes[1:], bound=bound, **told),
                    line(
                        "  against raw streams", "ms", raw[1:], note="floor: a call and its frame"
                    ),
                ]
    return lines


async def _bare_ways(floor: FloorClient, readers: list[FloorSubscriber]) -> list[float]:
    """The same without Runlane: a call after which the floor sends each reader a frame."""
    seconds: list[float] = []
    for _ in range(60):
        start = time.perf_counter()
        await asyncio.gather(floor.go("one"), *(one.reach(1) for one in readers))
        seconds += [one.arrived - start for one in readers]
    return seconds


async def _ways(client: Client, session_id: str, readers: list[Subscriber]) -> list[float]:
    seconds: list[float] = []
    for _ in range(60):
        for reader in readers:
            reader.arrivals.clear()
        start = time.perf_counter()
        done = await client.submit(session_id, MODES.MODE_QUEUE)
        await asyncio.gather(*(one.reach(done.sequence) for one in readers))
        for reader in readers:
            arrived = next(at for last, at in reader.arrivals if last >= done.sequence)
            seconds.append(arrived - start)
        withdrawn = await client.sessions.WithdrawSubmission(
            session.WithdrawSubmissionRequest(
                submission_id=done.submission.submission_id,
                session_id=session_id,
                request_id=str(uuid7()),
            ),
            timeout=TIMEOUT,
        )
        await asyncio.gather(*(one.reach(withdrawn.sequence) for one in readers))
    return seconds


async def read(plan: Plan) -> list[Line]:
    """A history of 10,000 messages, streamed."""
    session_id = fresh()
    count = 10_000
    text = (TEXT + " ") * 11  # 1 KiB with what stands around it
    processes.inside(plan.folder, "fill", store="read.db", runs={session_id: count}, text=text)
    passed, recoded = [], []
    with processes.floor(plan.folder) as base, processes.server(plan.folder, "read.db") as server:
        async with connected_floor(base.address) as floor, connected(server.address) as client:
            stream = client.history.StreamMessages
            asked = history.StreamMessagesRequest(session_id=session_id)
            frames = [frame.SerializeToString() async for frame in stream(asked)]
            await floor.keep("history", frames)
            for _ in range(plan.rounds + 1):
                base_seconds = await _drain(lambda: floor.replay(b"history"))
                again_seconds = await _drain(lambda: floor.recode(b"history"))
                seconds = await _drain(lambda: stream(asked))
                passed.append((count / base_seconds, count / seconds))
                recoded.append((count / again_seconds, count / seconds))
    size = sum(map(len, frames)) / 2**20
    note = f"{size:.1f} MiB in {len(frames)} frames; floor: from memory"
    return [
        line("history of 10,000 messages", "messages/s", passed[1:], bound=0.55, note=note),
        line("  against decode and encode again", "messages/s", recoded[1:], bound=1.2),
    ]


async def _drain(stream) -> float:
    """Returns the seconds that a stream takes, the median of a few."""
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        async for _ in stream():
            pass
        seconds.append(time.perf_counter() - start)
    return percentile(seconds, 0.5)


async def idle(plan: Plan, streams: int = 5000) -> list[Line]:
    """Memory of streams that nothing happens on; they are opened and dropped in turn."""
    opened, dropped = [], []
    with processes.server(plan.folder, "idle.db") as server:
        async with connected(server.address) as client:
            made = await client.idle_sessions(50)
        before = server.rss()
        for _ in range(5):
            async with connected(server.address) as client:
                calls = [
                    client.sessions.StreamEvents(
                        session.StreamEventsRequest(session_id=made[number % len(made)])
                    )
                    for number in range(streams)
                ]
                await run((lambda call=call: _caught_up(call) for call in calls), 256)
                opened.append(server.rss())
                for call in calls:
                    call.cancel()
            await asyncio.sleep(2)
            dropped.append(server.rss())
    each = _KIB * streams
    first, second = opened[0] - before, opened[1] - dropped[0]
    left = max(0, dropped[-1] - max(dropped[:3])) / 2
    return [
        Line("an idle stream, first time", "KiB", first / each, bound=22.5, at_most=True),
        Line("  second time", "KiB", second / each, bound=5, at_most=True),
        Line(
            "  more kept a round, after the third",
            "KiB",
            left / each,
            bound=0.1,
            at_most=True,
            note=f"resident MiB: {before >> 20}, then {[one >> 20 for one in dropped]}",
        ),
    ]


async def _caught_up(call) -> None:
    while (await call.read()).WhichOneof("frame") != "bookmark":
        pass
