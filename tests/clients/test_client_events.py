"""Event streams: each event once, in order, over whatever happens to the connection."""

import asyncio

import grpc
import pytest
import runlane
from client_fakes import FakeServer, refuse
from runlane import RunEventKind, SessionNotFound, StreamGapError, TransportError
from runlane.v1 import event_pb2, run_pb2, submission_pb2
from runlane.v1 import session_service_pb2 as pb

pytestmark = pytest.mark.asyncio
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
LAST = 12


def batch(*numbers: int) -> pb.StreamEventsResponse:
    events = [
        event_pb2.Event(
            sequence=number,
            session_id="main",
            type=event_pb2.Event.TYPE_RUN_CREATED,
            run_created=event_pb2.RunCreated(agent="a"),
        )
        for number in numbers
    ]
    return pb.StreamEventsResponse(batch=pb.EventBatch(events=events))


def bookmark(sequence: int) -> pb.StreamEventsResponse:
    return pb.StreamEventsResponse(bookmark=pb.Bookmark(sequence=sequence))


class Cutter:
    """Serves events 1 to LAST, two a connection, and ends each as it is told."""

    def __init__(self, *ends, repeat: bool = False):
        self.ends = list(ends)
        self.repeat = repeat

    async def __call__(self, request, context):
        start = request.after_sequence
        if start >= LAST:
            return
        first = start if self.repeat and start else start + 1
        await context.write(batch(*range(first, start + 3)))
        await self.ends[(start // 2) % len(self.ends)](context, start + 2)


async def abort_unavailable(context, _last):
    await context.abort(UNAVAILABLE, "gone")


async def drain(context, _last):
    await refuse(context, UNAVAILABLE, "DRAINING")


async def end_stream(context, _last):
    await refuse(context, UNAVAILABLE, "STREAM_ENDED")


async def reset(context, _last):
    await context.abort(grpc.StatusCode.INTERNAL, "RST_STREAM")


async def cancelled(context, _last):
    await context.abort(grpc.StatusCode.CANCELLED, "proxy")


async def unknown(context, _last):
    await context.abort(grpc.StatusCode.UNKNOWN, "stream removed")


async def bookmark_and_cut(context, last):
    await context.write(bookmark(last))
    await context.abort(UNAVAILABLE, "gone")


ENDS = [abort_unavailable, drain, end_stream, reset, cancelled, unknown, bookmark_and_cut]


async def numbers_of(stream) -> list[int]:
    async with asyncio.timeout(30):
        return [item.sequence async for item in stream]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("repeat", [False, True], ids=["exact", "doubled"])
async def test_each_event_once_in_order(server: FakeServer, client, end, repeat):
    server.handlers["StreamEvents"] = Cutter(end, repeat=repeat)
    assert await numbers_of(client.events("main")) == list(range(1, LAST + 1))
    starts = [request.after_sequence for request in server.calls["StreamEvents"]]
    assert starts == list(range(0, LAST + 1, 2))


async def test_all_kinds_of_end_in_one_stream(server: FakeServer, client):
    server.handlers["StreamEvents"] = Cutter(*ENDS)
    assert await numbers_of(client.events("main", after_sequence=2)) == list(range(3, LAST + 1))


async def test_a_bookmark_moves_the_cursor_of_a_filtered_stream(server: FakeServer, client):
    async def stream(request, context):
        if request.after_sequence == 0:
            await context.write(batch(4))
            await context.write(bookmark(40))
            await context.abort(UNAVAILABLE, "gone")
        if request.after_sequence == 40:
            await context.write(batch(77))

    server.handlers["StreamEvents"] = stream
    events = client.events("main", types=[RunEventKind.RUN_CREATED, "run.terminal"])
    assert await numbers_of(events) == [4, 77]
    assert events.sequence == 77
    assert [request.after_sequence for request in server.calls["StreamEvents"]] == [0, 40]
    assert list(server.calls["StreamEvents"][1].types) == [40, 49]


@pytest.mark.parametrize("frames", [[batch(1, 3)], [batch(1), bookmark(2)], [batch(2)]])
async def test_a_gap_is_an_error_where_nothing_was_filtered(server: FakeServer, client, frames):
    async def stream(request, context):
        for frame in frames:
            await context.write(frame)

    server.handlers["StreamEvents"] = stream
    with pytest.raises(StreamGapError):
        await numbers_of(client.events("main"))


async def test_a_killed_server_is_waited_for(server: FakeServer, client):
    hold = asyncio.Event()

    async def stream(request, context):
        if request.after_sequence == 0:
            await context.write(batch(1, 2))
            await hold.wait()
        else:
            await context.write(batch(3))

    server.handlers["StreamEvents"] = stream
    events = client.events("main")
    assert (await anext(events)).sequence == 1
    await server.restart()
    assert await numbers_of(events) == [2, 3]


async def test_a_stream_without_connection_gives_up_after_its_time(server: FakeServer, client):
    await server.stop()
    with pytest.raises(TransportError) as caught:
        await numbers_of(client.events("main", reconnect_timeout=0.2))
    assert caught.value.code is UNAVAILABLE


async def test_refusals_end_the_stream(server: FakeServer, client):
    async def stream(request, context):
        await refuse(context, grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")

    server.handlers["StreamEvents"] = stream
    with pytest.raises(SessionNotFound):
        await numbers_of(client.events("main"))
    assert len(server.calls["StreamEvents"]) == 1


async def test_a_full_server_is_tried_again_once_the_stream_was_open(server: FakeServer, client):
    count = 0

    async def stream(request, context):
        nonlocal count
        count += 1
        if count == 1:
            await context.write(batch(1))
            await context.abort(UNAVAILABLE, "gone")
        if count == 2:
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "STREAM_LIMIT")
        await context.write(batch(2))

    server.handlers["StreamEvents"] = stream
    assert await numbers_of(client.events("main")) == [1, 2]


async def test_deletion_is_the_end_also_where_the_connection_is_cut(server: FakeServer, client):
    async def stream(request, context):
        deleted = event_pb2.Event(sequence=1, type=event_pb2.Event.TYPE_SESSION_DELETED)
        deleted.session_deleted.SetInParent()
        await context.write(pb.StreamEventsResponse(batch=pb.EventBatch(events=[deleted])))
        await context.abort(UNAVAILABLE, "gone")

    server.handlers["StreamEvents"] = stream
    assert await numbers_of(client.events("main")) == [1]
    assert len(server.calls["StreamEvents"]) == 1


async def test_closing_ends_a_reader_that_waits(server: FakeServer, client):
    async def stream(request, context):
        await context.write(batch(1))
        await asyncio.Event().wait()

    server.handlers["StreamEvents"] = stream
    events = client.events("main")
    seen = []
    read_one = asyncio.Event()

    async def read():
        async for event in events:
            seen.append(event.sequence)
            read_one.set()

    reader = asyncio.create_task(read())
    await asyncio.wait_for(read_one.wait(), 10)
    await events.aclose()
    await events.aclose()
    await asyncio.wait_for(reader, 10)
    assert seen == [1]
    assert events.closed


async def test_cancelling_a_read_loses_nothing(server: FakeServer, client):
    reached = asyncio.Event()

    async def stream(request, context):
        if request.after_sequence == 0:
            await context.write(batch(1, 2))
            reached.set()
            await asyncio.Event().wait()
        await context.write(batch(3))

    server.handlers["StreamEvents"] = stream
    events = client.events("main")
    assert [(await anext(events)).sequence, (await anext(events)).sequence] == [1, 2]
    waiting = asyncio.create_task(anext(events))
    await asyncio.wait_for(reached.wait(), 10)
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await numbers_of(events) == [3]


async def test_two_tasks_cannot_read_one_stream(server: FakeServer, client):
    async def stream(request, context):
        await asyncio.Event().wait()

    server.handlers["StreamEvents"] = stream
    async with client.events("main") as events:
        first = asyncio.create_task(anext(events))
        await server.called("StreamEvents")
        with pytest.raises(RuntimeError, match="another task"):
            await anext(events)
    with pytest.raises(StopAsyncIteration):
        await first


async def test_the_newest_events_and_what_follows(server: FakeServer, client):
    async def stream(request, context):
        if request.WhichOneof("start") == "last_events":
            await context.write(batch(8, 9))
            await context.abort(UNAVAILABLE, "gone")
        await context.write(batch(10))

    server.handlers["StreamEvents"] = stream
    assert await numbers_of(client.events("main", last_events=2)) == [8, 9, 10]
    assert server.calls["StreamEvents"][1].after_sequence == 9


async def test_the_sequence_stays_while_pieces_are_read(server: FakeServer, client):
    delta = event_pb2.Delta(kind=event_pb2.Delta.KIND_TEXT, append_text="x")

    async def stream(request, context):
        await context.write(pb.StreamEventsResponse(bookmark=pb.Bookmark(sequence=500)))
        deltas = pb.DeltaBatch(deltas=[delta, delta])
        await context.write(pb.StreamEventsResponse(deltas=deltas))

    server.handlers["StreamEvents"] = stream
    reading = client.events("main", last_events=0, include_deltas=True)
    assert [reading.sequence async for _ in reading] == [500, 500]


async def test_every_frame_and_kind_has_its_model(server: FakeServer, client):
    sub = submission_pb2.Submission
    events = [
        event_pb2.Event(
            sequence=1,
            type=event_pb2.Event.TYPE_SUBMISSION_PENDING,
            run_id="run_1",
            submission_pending=event_pb2.SubmissionPending(
                submission_id="sub_1", mode=sub.MODE_STEER, route=sub.ROUTE_STEER
            ),
        ),
        event_pb2.Event(
            sequence=2,
            type=event_pb2.Event.TYPE_SUBMISSION_FAILED,
            submission_failed=event_pb2.SubmissionFailed(
                mode=sub.MODE_STEER, reason=sub.FAILURE_REASON_TARGET_TERMINAL
            ),
        ),
        event_pb2.Event(
            sequence=3,
            type=event_pb2.Event.TYPE_RUN_TERMINAL,
            run_terminal=event_pb2.RunTerminal(stop_reason=run_pb2.Run.STOP_REASON_COMPLETED),
        ),
        event_pb2.Event(
            sequence=4,
            type=event_pb2.Event.TYPE_ACTIVATION_ABANDONED,
            activation_abandoned=event_pb2.ActivationAbandoned(
                reason=event_pb2.ActivationAbandoned.REASON_LEASE_EXPIRED
            ),
        ),
        event_pb2.Event(sequence=5, type=999, may_skip=True),
    ]

    async def stream(request, context):
        await context.write(
            pb.StreamEventsResponse(control=event_pb2.Control(run_id="run_1", pending_steers=2))
        )
        await context.write(
            pb.StreamEventsResponse(
                deltas=pb.DeltaBatch(
                    deltas=[event_pb2.Delta(kind=event_pb2.Delta.KIND_TEXT, append_text="x")]
                )
            )
        )
        await context.write(pb.StreamEventsResponse(batch=pb.EventBatch(events=events)))

    server.handlers["StreamEvents"] = stream
    items = [item async for item in client.events("main", include_deltas=True)]
    control, delta, pending, failed, terminal, abandoned, new = items
    assert (control.run_id, control.pending_steers) == ("run_1", 2)
    assert (delta.append_text, delta.snapshot_text, str(delta.kind)) == ("x", None, "text")
    assert isinstance(pending, runlane.SubmissionEvent)
    assert f"{pending.mode} {pending.state}" == "steer pending"
    assert f"{failed.state} {failed.reason}" == "failed target_terminal"
    assert isinstance(terminal, runlane.RunEvent)
    assert terminal.kind is RunEventKind.RUN_TERMINAL
    assert str(terminal.stop_reason) == "completed"
    assert str(abandoned.end_reason) == "lease_expired"
    assert isinstance(new, runlane.UnknownEvent)
    assert (new.type, new.may_skip) == (999, True)
