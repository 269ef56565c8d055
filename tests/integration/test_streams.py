"""Readers of events: one order, no gap, no repeat, whatever happens to their connections."""

import asyncio
import time

import grpc
import pytest
from runlane import Client
from runlane.v1 import (
    event_pb2,
    executor_service_pb2,
    history_service_pb2,
    session_service_pb2,
)
from support_server import (
    EVENT,
    MODE,
    Link,
    ask,
    dense,
    failed,
    refused,
    reserve,
    rest,
    told,
    unique,
    until,
    within,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]

CUT_AFTER = 97


async def play(link: Link, session: str, runs: int, *, broken: int = -1) -> list[str]:
    """Plays runs one after the other; returns their ids."""
    done = []
    for number in range(runs):
        if number != broken:
            done.append(await link.run(session, f"input {number}"))
            continue
        await link.submit(session, f"input {number}")
        fence = (await link.lease(session)).fence
        await link.commit(fence, finish=failed())
        done.append(fence.run_id)
    return done


async def read_in_pieces(link: Link, session: str, piece: int = CUT_AFTER, **fields):
    """Reads a session to its end; the stream is cut after each `piece` events."""
    read, cursor = [], 0
    while True:
        taken = 0
        call = link.stream(session, after_sequence=cursor, **fields)
        caught_up = False
        async for frame in call:
            if frame.WhichOneof("frame") == "bookmark" and frame.bookmark.caught_up:
                caught_up = True
                break
            for event in frame.batch.events:
                read.append(event)
                cursor = event.sequence
                taken += 1
                if taken == piece:
                    break
            if taken == piece:
                break
        else:
            return read
        call.cancel()
        if caught_up:
            return read


async def test_a_reader_cut_at_every_97th_event_sees_each_once_also_after_a_restart(server):
    session = unique("cut")
    async with Link(server.address) as link:
        runs = await play(link, session, 40)
        whole = dense(await link.events(session))
        assert len(whole) > 3 * CUT_AFTER
        filters = [
            {},
            {"run_ids": runs[3:37:2]},
            {"types": [EVENT.TYPE_RUN_TERMINAL, EVENT.TYPE_MESSAGE_APPENDED]},
            {"run_ids": runs[:20], "types": [EVENT.TYPE_ACTIVATION_LEASED]},
        ]

        def wanted(event, run_ids=(), types=()):
            return (not run_ids or event.run_id in run_ids) and (not types or event.type in types)

        for fields in filters:
            expected = [one for one in whole if wanted(one, **fields)]
            assert expected
            for piece in (CUT_AFTER, 7):
                assert await read_in_pieces(link, session, piece, **fields) == expected
    server.restart()
    async with Link(server.address) as link:
        for fields in filters:
            expected = [one for one in whole if wanted(one, **fields)]
            assert await read_in_pieces(link, session, **fields) == expected


async def test_readers_that_are_cut_while_writers_go_on_see_the_same_order(link: Link):
    session = unique("live-cut")
    await link.create(session)

    async def read(piece: int):
        read, cursor = [], 0
        while not (read and read[-1].HasField("session_closed")):
            taken = 0
            async for event in link.follow(session, after_sequence=cursor):
                read.append(event)
                cursor = event.sequence
                taken += 1
                if taken == piece or event.HasField("session_closed"):
                    break
        return read

    readers = [asyncio.create_task(read(piece)) for piece in (3, 10, CUT_AFTER, 100_000)]
    await play(link, session, 30)
    await close(link, session)
    whole = dense(await link.events(session))
    for reader in readers:
        assert await within(20, reader) == whole


async def test_live_state_and_the_stream_from_its_sequence_leave_no_gap_under_writers(link: Link):
    session = unique("handover")
    await link.create(session)
    writer = asyncio.create_task(play(link, session, 25))
    views = []
    while not writer.done():
        live = await link.live(session)
        events = [
            one
            async for frame in link.stream(session, after_sequence=live.sequence, follow=False)
            for one in frame.batch.events
        ]
        views.append((live, events))
    await writer
    whole = dense(await link.events(session))
    for live, events in views:
        dense(events, live.sequence + 1)
        assert events == whole[live.sequence : live.sequence + len(events)]
        appended = [
            one.message_appended.number
            for one in whole[: live.sequence]
            if one.type == EVENT.TYPE_MESSAGE_APPENDED
        ]
        assert live.session.message_count == max(appended, default=0)
        assert [one.number for one in live.messages] == appended[-len(live.messages) :]
        ended = {one.run_id for one in whole[: live.sequence] if one.HasField("run_terminal")}
        begun = {one.run_id for one in whole[: live.sequence] if one.HasField("run_created")}
        assert {live.run.run_id} - {""} == begun - ended


async def test_two_streams_on_one_channel_with_one_cursor_each_get_a_complete_copy(link: Link):
    session = unique("twice")
    await play(link, session, 10)
    copies = await asyncio.gather(
        *(link.events(session, after_sequence=13, include_messages=True) for _ in range(2))
    )
    assert copies[0] == copies[1]
    dense(copies[0], 14)


async def test_500_events_of_one_transaction_keep_their_order_and_pages(link: Link):
    """64 next runs that a close fails have one time and one transaction."""
    session = unique("one-time")
    for _ in range(8):
        await link.submit(session, "work")
        fence = (await link.lease(session)).fence
        queued = [link.submit(session, "more", mode=MODE.MODE_FOLLOW_UP) for _ in range(63)]
        await asyncio.gather(*queued)
        await close(link, session)
        await link.commit(fence, finish=failed())
        await reopen(link, session)
    whole = dense(await link.events(session))
    failures = [one for one in whole if one.type == EVENT.TYPE_SUBMISSION_FAILED]
    assert len(failures) == 8 * 63
    assert len({one.event_time.ToNanoseconds() for one in failures}) == 8
    for piece in (CUT_AFTER, 10):
        assert await read_in_pieces(link, session, piece) == whole
    request = history_service_pb2.ListEventsRequest(session_id=session)
    assert await link.pages(link.history.ListEvents, request, "events", 7) == whole


async def close(link: Link, session: str, **fields):
    await link.sessions.CloseSession(
        session_service_pb2.CloseSessionRequest(session_id=session, **fields)
    )


async def reopen(link: Link, session: str):
    await link.sessions.ReopenSession(session_service_pb2.ReopenSessionRequest(session_id=session))


async def test_a_failed_run_in_the_middle_does_not_end_a_stream_of_its_session(link: Link):
    session = unique("failed")
    await link.create(session)
    stream = link.follow(session)
    runs = await play(link, session, 3, broken=1)
    ends = []
    async with asyncio.timeout(10):
        async for event in stream:
            if event.HasField("run_terminal"):
                ends.append(event.run_id)
            if len(ends) == 3:
                break
    assert ends == runs


async def test_a_stream_of_a_finished_run_ends_within_a_second_also_after_a_restart(make_server):
    session = unique("finished")
    server = make_server(bookmark_seconds=45).start()
    async with Link(server.address) as link:
        runs = await play(link, session, 2)
        last = (await link.live(session)).sequence
        await check_ends(link, session, runs, last)
    server.restart()
    async with Link(server.address) as link:
        await check_ends(link, session, runs, last)


async def check_ends(link: Link, session: str, runs: list[str], last: int):
    for after in (0, last):
        for named in ([runs[1]], [runs[0]], runs):
            begun = time.monotonic()
            events = [e async for e in link.follow(session, after_sequence=after, run_ids=named)]
            assert time.monotonic() - begun < 1
            ends = [one.run_id for one in events if one.HasField("run_terminal")]
            assert ends == (named if after == 0 else [])
    for run_id in runs:
        count = 0
        for after in (0, 5, 10_000):
            request = history_service_pb2.StreamRunEventsRequest(
                run_id=run_id, after_run_sequence=after
            )
            begun = time.monotonic()
            call = link.history.StreamRunEvents(request, timeout=10)
            events = [event async for frame in call for event in frame.events]
            assert time.monotonic() - begun < 1
            assert all(one.run_id == run_id for one in events)
            if after == 0:
                count = len(events)
                assert [one.run_sequence for one in events] == list(range(1, count + 1))
            assert len(events) == max(0, count - after)


async def test_a_stream_of_a_run_ends_once_the_run_has_ended(link: Link):
    session = unique("to-the-end")
    run_id = (await link.submit(session)).submission.run_id
    reader = asyncio.create_task(collect(link.follow(session, run_ids=[run_id])))
    following = (await link.submit(session, "next", mode=MODE.MODE_FOLLOW_UP)).submission.run_id
    waiter = asyncio.create_task(collect(link.follow(session, run_ids=[following])))
    await link.answer((await link.lease(session)).fence)
    assert (await within(5, reader))[-1].HasField("run_terminal")
    assert not waiter.done()
    await link.answer((await link.lease(session)).fence)
    assert (await within(5, waiter))[-1].HasField("run_terminal")


async def test_a_stream_of_a_reserved_run_that_never_was_ends(link: Link):
    session = unique("never")
    await link.submit(session)
    queued = (await link.submit(session, "next", mode=MODE.MODE_FOLLOW_UP)).submission
    live = asyncio.create_task(collect(link.follow(session, run_ids=[queued.run_id])))
    await link.live(session)
    await close(link, session)
    events = await within(5, live)
    assert [one.type for one in events] == [
        EVENT.TYPE_SUBMISSION_PENDING,
        EVENT.TYPE_SUBMISSION_FAILED,
    ]
    last = (await link.live(session)).sequence
    for after in (0, last):
        again = link.follow(session, run_ids=[queued.run_id], after_sequence=after)
        assert len(await within(1, collect(again))) == (2 if after == 0 else 0)


async def collect(events):
    return [event async for event in events]


async def test_the_first_subscriber_that_leaves_harms_nobody(link: Link):
    session = unique("leaves")
    await link.submit(session)
    first = link.follow(session)
    for _ in range(3):
        await anext(first)
    await first.aclose()
    fence = (await link.lease(session)).fence
    second = link.follow(session)
    await link.answer(fence)
    seen = []
    async with asyncio.timeout(10):
        async for event in second:
            seen.append(event)
            if event.HasField("run_terminal"):
                break
    assert dense(seen)[:3] == dense(await link.events(session))[:3]


async def test_two_subscribers_see_5000_events_in_one_order(link: Link):
    session = unique("same-order")
    await link.create(session)
    pauses = (lambda number: number % 5 == 0, lambda number: number % 7 == 3)

    async def read(pause):
        seen = []
        async for event in link.follow(session, timeout=90):
            seen.append(event.SerializeToString(deterministic=True))
            if pause(event.sequence):
                await asyncio.sleep(0)
            if event.HasField("session_closed"):
                break
        return seen

    readers = [asyncio.create_task(read(pause)) for pause in pauses]
    await asyncio.gather(*(update(link, session, number) for number in range(5000)))
    await close(link, session)
    first, second = await within(60, asyncio.gather(*readers))
    assert first == second
    assert len(first) > 5000


async def update(link: Link, session: str, number: int):
    request = session_service_pb2.UpdateSessionRequest(
        session_id=session, display_name=f"name {number}"
    )
    await link.sessions.UpdateSession(request, timeout=60)


async def test_readers_at_one_place_are_all_told_of_each_event_at_once(link: Link):
    """They share the pages that one of them makes; no tick comes to the help of one left out."""
    session = unique("together")
    await link.create(session)
    readers = [link.follow(session) for _ in range(12)]
    expected = 0
    for number in range(150):
        if number:
            await asyncio.gather(*(update(link, session, number) for _ in range(number % 3 + 1)))
        last = (await link.live(session)).sequence

        async def read(reader, first=expected + 1, last=last):
            for sequence in range(first, last + 1):
                assert (await anext(reader)).sequence == sequence

        await within(5, asyncio.gather(*(read(reader) for reader in readers)))
        expected = last
    for reader in readers:
        await reader.aclose()


async def test_filters_do_not_hold_a_cursor_back(link: Link):
    """A reader that wants nothing is told how far it has read, and can go on there."""
    session = unique("held-back")
    runs = await play(link, session, 3)
    call = link.stream(session, types=[EVENT.TYPE_SESSION_DELETED])
    async for frame in call:
        if frame.HasField("bookmark"):
            break
        assert not frame.batch.events
    call.cancel()
    assert frame.bookmark.caught_up
    assert frame.bookmark.sequence == (await link.live(session)).sequence
    assert runs


async def test_a_deleted_session_ends_its_streams_ok_and_opens_no_more(link: Link):
    session = unique("deleted")
    run_id = await link.run(session)
    await link.submit(session)
    both = [run_id, (await link.live(session)).run.run_id]
    filters = [{}, {"run_ids": both}, {"types": [EVENT.TYPE_SESSION_DELETED]}]
    calls = [link.stream(session, **one) for one in filters]
    begun = [await call.read() for call in calls]
    assert (await refused(link.delete(session))).reason == "SESSION_LIVE"
    await link.delete(session, force=True)
    ends = []
    for call, first in zip(calls, begun, strict=True):
        async with asyncio.timeout(5):
            frames = [first, *[frame async for frame in rest(call)]]
        ends.append([event for frame in frames for event in frame.batch.events])
    whole, of_runs, last = ends
    assert dense(whole)[-1].HasField("session_deleted")
    assert all(one.run_id in both for one in of_runs)
    assert [one.type for one in last] == [EVENT.TYPE_SESSION_DELETED]
    error = await refused(collect(link.follow(session)))
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")


async def test_cursors_that_are_ahead_or_negative_are_refused(link: Link):
    session = unique("ahead")
    await link.create(session)
    last = (await link.live(session)).sequence
    error = await refused(collect(link.follow(session, after_sequence=last + 1)))
    assert (error.code, error.reason) == (grpc.StatusCode.OUT_OF_RANGE, "SEQUENCE_AHEAD")
    assert error.metadata["sequence"] == str(last)
    error = await refused(collect(link.follow(session, after_sequence=-1)))
    assert (error.code, error.fields) == (grpc.StatusCode.INVALID_ARGUMENT, ["after_sequence"])
    error = await refused(collect(link.follow(session, after_sequence=2**63 - 1)))
    assert error.reason == "SEQUENCE_AHEAD"
    assert await link.events(session, after_sequence=last) == []
    assert (await refused(link.live(session, min_sequence=last + 1))).reason == "SEQUENCE_AHEAD"


async def test_last_events_starts_with_the_newest_few(link: Link):
    session = unique("newest")
    await play(link, session, 3)
    whole = dense(await link.events(session))
    for count in (0, 1, 5, 1000):
        newest = whole[-count:] if count else []
        assert await link.events(session, last_events=count) == newest


async def test_streams_of_events_bring_the_messages_that_the_history_has(link: Link):
    session = unique("with-messages")
    runs = await play(link, session, 5)
    events = await link.events(session, include_messages=True)
    brought = [one.message for one in events if one.HasField("message")]
    assert brought == await link.messages(session)
    appended = [one for one in events if one.type == EVENT.TYPE_MESSAGE_APPENDED]
    assert [one.message_appended.number for one in appended] == [one.number for one in brought]
    request = history_service_pb2.StreamRunEventsRequest(run_id=runs[2], include_messages=True)
    call = link.history.StreamRunEvents(request, timeout=10)
    of_run = [
        event.message async for frame in call for event in frame.events if event.HasField("message")
    ]
    assert of_run == [one for one in brought if one.run_id == runs[2]]


async def test_deltas_are_tied_to_their_message_and_none_comes_after_it(link: Link):
    session = unique("deltas")
    await link.submit(session)
    fence = (await link.lease(session)).fence
    granted = await link.commit(fence, reserve())
    stream_id = granted.results[0].reserve_model_step.model_stream_id
    call = link.stream(session, include_deltas=True)
    frames = call.__aiter__()
    while (await anext(frames)).WhichOneof("frame") != "bookmark":
        pass

    async def pieces():
        for number, piece in enumerate(("one ", "two ", "three")):
            delta = event_pb2.Delta(
                model_stream_id=stream_id,
                step=1,
                kind=event_pb2.Delta.KIND_TEXT,
                base_revision=number,
                revision=number + 1,
                append_text=piece,
            )
            yield executor_service_pb2.PublishDeltasRequest(
                fence=fence if number == 0 else None, deltas=[delta]
            )

    answer = await link.executors.PublishDeltas(pieces(), timeout=10)
    assert answer.delta_count == 3
    told_text, revision = "", 0
    async with asyncio.timeout(10):
        while told_text != "one two three":
            frame = await anext(frames)
            for delta in frame.deltas.deltas:
                assert delta.model_stream_id == stream_id
                if delta.WhichOneof("piece") == "snapshot_text":
                    told_text = delta.snapshot_text
                else:
                    assert delta.base_revision == revision
                    told_text += delta.append_text
                revision = delta.revision
        await link.answer_reserved(fence, "one two three")
        kinds = []
        async for frame in frames:
            kinds.append(frame.WhichOneof("frame"))
            if any(one.HasField("run_terminal") for one in frame.batch.events):
                break
    assert "deltas" not in kinds
    # What comes for a step that is over is dropped.
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await link.executors.PublishDeltas(pieces(), timeout=10)
    assert told(caught.value).reason == "STALE_ACTIVATION"
    call.cancel()


async def test_control_frames_say_what_may_be_done_now(link: Link):
    session = unique("control")
    await link.create(session)
    call = link.stream(session, include_control=True)
    await link.submit(session)
    fence = (await link.lease(session)).fence
    await link.submit(session, "steer", mode=MODE.MODE_STEER)
    controls = []
    async with asyncio.timeout(10):
        async for frame in call:
            if frame.HasField("control"):
                controls.append(frame.control)
                if frame.control.pending_steers:
                    break
    call.cancel()
    assert controls[-1].run_id == fence.run_id
    live = await link.live(session)
    assert list(controls[-1].allowed_commands) == list(live.allowed_commands)
    assert controls[-1].as_of_sequence == live.sequence


async def test_the_client_resumes_over_restarts_of_the_server_without_a_gap(server):
    session = unique("client")
    async with Link(server.address) as link:
        await link.create(session)
    async with Client(server.address) as client:
        events = client.events(session)
        seen = []
        for gently in (False, True):
            async with Link(server.address) as link:
                await play(link, session, 3)
                last = (await link.live(session)).sequence
            async with asyncio.timeout(20):
                while not seen or seen[-1].sequence < last:
                    seen.append(await anext(events))
            server.restart(gently=gently)
        async with Link(server.address) as link:
            await link.run(session)
            last = (await link.live(session)).sequence
        async with asyncio.timeout(20):
            while seen[-1].sequence < last:
                seen.append(await anext(events))
        await events.aclose()
    assert [one.sequence for one in seen] == list(range(1, last + 1))


async def test_a_reader_that_a_sweep_overtook_is_told_and_sees_no_gap(make_server):
    server = make_server(sweep_delay_seconds=0, bookmark_seconds=45).start()
    session = unique("overtaken")
    narrow = [("grpc.http2.bdp_probe", 0)]
    async with Link(server.address, narrow) as link, Link(server.address) as writer:
        await writer.create(session)
        await asyncio.gather(*(update(writer, session, number) for number in range(8000)))
        slow = link.stream(session)
        read = list((await slow.read()).batch.events)
        await writer.delete(session)
        await until(lambda: rows_of_events(server, session) == 1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(10):
                async for frame in rest(slow):
                    read += frame.batch.events
    dense(read)
    assert len(read) < 8000
    error = told(caught.value)
    assert (error.code, error.reason) == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")


def rows_of_events(server, session: str) -> int:
    of_file = (
        "SELECT count(*) FROM entries e JOIN sessions s ON e.id >> 32 = s.key"
        " WHERE s.session_id = ?"
    )
    of_database = (
        "SELECT count(*) FROM events e JOIN sessions s ON e.session_key = s.key"
        " WHERE s.session_id = ?"
    )
    on_sqlite = server.store.startswith("sqlite:")
    return ask(server.store, of_file if on_sqlite else of_database, session)[0][0]
