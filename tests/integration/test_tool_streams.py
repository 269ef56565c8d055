"""Readers of events of runs with tools and waits: one order, no gap, no repeat."""

import asyncio
from collections import Counter

import pytest
from runlane.v1 import executor_service_pb2 as pb
from runlane.v1 import run_pb2
from support_server import (
    COMPLETED,
    EVENT,
    Link,
    dense,
    failed,
    reserve,
    seconds,
    step,
    unique,
    within,
)
from support_server.turns import (
    RUN,
    answer_to,
    asked,
    asks,
    claims,
    closed_once,
    pause,
    permission,
    question,
    restore,
    results,
    unpause,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]
CALLS = ("c1", "c2", "c3")


async def leased(link: Link, session: str, **options) -> run_pb2.Fence:
    await link.submit(session, run_options=run_pb2.RunOptions(**options))
    return (await link.lease(session)).fence


async def asking(link: Link, session: str, **options) -> run_pb2.Fence:
    fence = await leased(link, session, **options)
    await link.commit(fence, reserve())
    await link.commit(fence, asks(*CALLS), suspend=permission(*CALLS))
    return fence


async def completed(link: Link, session: str) -> None:
    await asking(link, session)
    await pause(link, session)
    await answer_to(link, await asked(link, session))
    await unpause(link, session)
    fence = (await link.lease(session)).fence
    await link.commit(fence, claims(*CALLS, idempotent=True), results("c2"))
    await restore(link, fence.run_id, fence.activation_id, force=True)
    fence = (await link.lease(session)).fence
    await link.commit(fence, claims("c1", "c3"))
    await link.commit(fence, results("c3", "c1"), reserve())
    await link.commit(fence, step("done"), finish=COMPLETED)


async def unknown(link: Link, session: str) -> None:
    await asking(link, session)
    await answer_to(link, await asked(link, session))
    fence = (await link.lease(session)).fence
    await link.commit(fence, claims("c1", "c2"))
    await restore(link, fence.run_id, fence.activation_id, force=True)


async def expired(link: Link, session: str) -> None:
    fence = await leased(link, session)
    await link.commit(fence, suspend=question(expire=0.3))
    run = await link.wait_run(fence.run_id)
    assert run.outcome.stop_reason == RUN.STOP_REASON_INTERACTION_EXPIRED


async def interrupted(link: Link, session: str) -> None:
    await asking(link, session)
    await link.interrupt(session)


async def broken(link: Link, session: str) -> None:
    fence = await leased(link, session)
    await link.commit(fence, finish=failed())


async def too_late(link: Link, session: str) -> None:
    limits = run_pb2.RunLimits(max_duration=seconds(0.4))
    fence = await asking(link, session, limits=limits)
    run = await link.wait_run(fence.run_id)
    assert run.outcome.stop_reason == RUN.STOP_REASON_DEADLINE_EXCEEDED


PLAYS = (completed, unknown, completed, expired, interrupted, broken, too_late, completed)
REASONS = [
    RUN.STOP_REASON_COMPLETED,
    RUN.STOP_REASON_OUTCOME_UNKNOWN,
    RUN.STOP_REASON_COMPLETED,
    RUN.STOP_REASON_INTERACTION_EXPIRED,
    RUN.STOP_REASON_CANCELLED,
    RUN.STOP_REASON_FAILED,
    RUN.STOP_REASON_DEADLINE_EXCEEDED,
    RUN.STOP_REASON_COMPLETED,
]


async def in_pieces(link: Link, session: str, piece: int, **fields) -> list:
    """Reads what there is; the stream is cut after each `piece` events."""
    read, cursor = [], 0
    while True:
        part = []
        async for event in link.follow(session, after_sequence=cursor, follow=False, **fields):
            part.append(event)
            if len(part) == piece:
                break
        if not part:
            return read
        read += part
        cursor = part[-1].sequence


async def test_a_reader_that_is_cut_sees_tools_and_waits_once_also_after_a_kill(server):
    session = unique("cut-tools")
    async with Link(server.address) as link:
        await link.create(session)
        following = asyncio.create_task(until_ends(link, session, len(PLAYS)))
        cutting = asyncio.create_task(until_ends(link, session, len(PLAYS), piece=5))
        for play in PLAYS:
            await play(link, session)
        whole = dense(await link.events(session))
        # No end of a run, whatever it was, ended the stream of its session.
        assert await within(10, following) == whole
        assert await within(10, cutting) == whole
        ends = [one.run_terminal.stop_reason for one in whole if one.HasField("run_terminal")]
        assert ends == REASONS
        runs = [one.run_id for one in whole if one.HasField("run_created")]
        tools = [EVENT.TYPE_TOOL_CALL_CLAIMED, EVENT.TYPE_TOOL_CALL_PREPARED]
        waits = [EVENT.TYPE_INTERACTION_OPENED, EVENT.TYPE_RUN_WAITING, EVENT.TYPE_RUN_TERMINAL]
        filters = [
            {},
            {"run_ids": runs[1::2]},
            {"types": tools},
            {"run_ids": runs[:5], "types": waits},
        ]

        def wanted(event, run_ids=(), types=()):
            return (not run_ids or event.run_id in run_ids) and (not types or event.type in types)

        for fields in filters:
            expected = [one for one in whole if wanted(one, **fields)]
            assert expected
            for piece in (1, 7, 97):
                assert await in_pieces(link, session, piece, **fields) == expected
        closed_once(await link.messages(session))
        attempts_are_told(whole)
    server.restart()
    async with Link(server.address) as link:
        for fields in filters:
            expected = [one for one in whole if wanted(one, **fields)]
            assert await in_pieces(link, session, 7, **fields) == expected


async def until_ends(link: Link, session: str, ends: int, piece: int = 0) -> list:
    """Follows a session until so many runs have ended; cut and opened again at each piece."""
    read, left = [], ends
    while left:
        cursor, taken = read[-1].sequence if read else 0, 0
        async for event in link.follow(session, after_sequence=cursor):
            read.append(event)
            taken += 1
            left -= event.HasField("run_terminal")
            if not left or taken == piece:
                break
    return read


def attempts_are_told(events: list) -> None:
    """What an executor did names its activation and attempt, so readers know what is void."""
    of_executors = {
        EVENT.TYPE_ACTIVATION_LEASED,
        EVENT.TYPE_MODEL_STEP_RESERVED,
        EVENT.TYPE_MODEL_STEP_COMMITTED,
        EVENT.TYPE_TOOL_CALL_CLAIMED,
        EVENT.TYPE_TOOL_CALL_COMMITTED,
    }
    newest: Counter[str] = Counter()
    for event in events:
        if event.type in of_executors:
            assert event.activation_id
            assert event.attempt >= 1
        if event.run_sequence:
            assert event.attempt >= newest[event.run_id]
            newest[event.run_id] = event.attempt
    # Started, answered, restored.
    assert max(newest.values()) == 3


async def test_events_of_a_batch_of_64_calls_in_one_commit_have_one_order_from_every_cursor(
    link: Link,
):
    session = unique("batch")
    calls = [f"c{number}" for number in range(64)]
    fence = await leased(link, session)
    await link.commit(fence, reserve())
    await link.commit(fence, asks(*calls), claims(*calls), results(*reversed(calls)), reserve())
    await link.commit(fence, step("done"), finish=COMPLETED)
    whole = dense(await link.events(session))
    assert len(whole) > 4 * 64
    for cursor in range(0, len(whole), 13):
        assert await link.events(session, after_sequence=cursor) == whole[cursor:]
    both = await asyncio.gather(*(in_pieces(link, session, 11) for _ in range(2)))
    assert both == [whole, whole]
    told = [m.content[0].tool_result.tool_call_id for m in await link.messages(session)][2:-1]
    assert told == calls


async def test_what_happened_while_a_reader_was_cut_comes_first_and_then_what_is_live(link: Link):
    """20 sessions: cut while their runs wait, and back when they have been answered."""

    async def one() -> None:
        session = unique("away")
        await asking(link, session)
        first = []
        async for event in link.follow(session):
            first.append(event)
            if event.type == EVENT.TYPE_RUN_WAITING:
                break
        await answer_to(link, await asked(link, session))
        fence = (await link.lease(session)).fence
        await link.commit(fence, claims(*CALLS), results(*CALLS), reserve())
        missed = dense(await link.events(session))[len(first) :]
        rest, back = [], asyncio.Event()

        async def read() -> None:
            async for event in link.follow(session, after_sequence=first[-1].sequence):
                rest.append(event)
                if len(rest) == len(missed):
                    back.set()
                if event.HasField("run_terminal"):
                    return

        reading = asyncio.create_task(read())
        await within(10, back.wait())
        await link.commit(fence, step("done"), finish=COMPLETED)
        await within(10, reading)
        assert rest[: len(missed)] == missed
        assert first + rest == dense(await link.events(session))

    await asyncio.gather(*(one() for _ in range(20)))


async def test_a_stream_of_a_run_outlasts_its_waits_and_ends_with_it(link: Link):
    """20 runs: waiting, answered, paused and on; then over, also for who comes late."""

    async def one() -> None:
        session = unique("outlasts")
        fence = await asking(link, session)
        call = link.stream(session, run_ids=[fence.run_id])
        reading = asyncio.create_task(whole_of(call))
        await pause(link, session)
        await answer_to(link, await asked(link, session))
        await unpause(link, session)
        leased_again = (await link.lease(session)).fence
        await link.commit(leased_again, claims(*CALLS), results(*CALLS))
        assert not reading.done()
        await link.answer(leased_again)
        events = await within(5, reading)
        assert events == [one for one in await link.events(session) if one.run_id == fence.run_id]
        again = link.stream(session, run_ids=[fence.run_id], after_sequence=events[-1].sequence)
        assert await within(1, whole_of(again)) == []

    await asyncio.gather(*(one() for _ in range(20)))


async def whole_of(call) -> list:
    return [event async for frame in call for event in frame.batch.events]


async def test_a_reader_that_leaves_while_a_run_waits_harms_nobody(link: Link):
    async def one() -> None:
        session = unique("leaves")
        await asking(link, session)
        async for event in link.follow(session):
            if event.type == EVENT.TYPE_RUN_WAITING:
                break
        second = asyncio.create_task(until_ends(link, session, 1))
        await answer_to(link, await asked(link, session))
        fence = (await link.lease(session)).fence
        await link.commit(fence, claims(*CALLS))
        await link.commit(fence, results(*CALLS))
        await link.answer(fence)
        assert await within(10, second) == dense(await link.events(session))

    await asyncio.gather(*(one() for _ in range(20)))


async def test_a_heartbeat_alone_is_no_event(link: Link):
    session = unique("quiet")
    fence = await leased(link, session)
    await link.commit(fence, reserve())
    before = await link.events(session)
    for _ in range(20):
        await link.heartbeat(fence)
        await link.commit(fence)
    assert await link.events(session) == before
    request = pb.HeartbeatRequest(fence=fence)
    control = (await link.executors.Heartbeat(request, timeout=10)).control
    assert control.lease_expire_time.seconds
