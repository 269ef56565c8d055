"""Messages up to the limit go everywhere that a message goes; beyond it a typed refusal."""

import asyncio

import grpc
import pytest
from runlane.v1 import (
    executor_service_pb2,
    history_service_pb2,
    message_pb2,
    session_service_pb2,
)
from support_server import (
    MODE,
    Link,
    refused,
    reserve,
    step,
    text,
    unique,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]

LIMIT = 3 * 1024 * 1024
TRANSPORT_LIMIT = 8 * 1024 * 1024


def sized(size: int, letter: str = "x") -> str:
    """Returns a text whose block list is encoded in so many bytes."""
    overhead = message_pb2.Message(content=text("x" * size)).ByteSize() - size
    return letter * (size - overhead)


async def test_three_messages_of_3_mib_come_back_from_every_read(link: Link):
    session = unique("large")
    words = [sized(LIMIT, letter) for letter in "abc"]
    await link.submit(session, words[0])
    leased = await link.lease(session, context_bytes_max=2 * 1024 * 1024)
    assert not leased.HasField("context")
    assert await context(link, leased.fence) == [words[0]]
    await link.commit(leased.fence, reserve())
    await link.submit(session, words[2], mode=MODE.MODE_STEER)
    delivered = await link.answer_reserved(leased.fence, words[1])
    assert [one.content[0].text for one in delivered.delivered] == [words[2]]
    expected = [words[0], words[1], words[2]]
    assert await context(link, leased.fence) == expected
    await link.answer(leased.fence, "end")
    expected.append("end")

    assert [one.content[0].text for one in await link.messages(session)] == expected
    _, history = await link.history_at(leased.fence.run_id)
    assert [message_pb2.Message.FromString(one).content[0].text for one in history] == expected
    live = await link.live(session)
    assert [one.content[0].text for one in live.messages] == ["end"]
    assert live.first_message_number == 4
    newest = await link.live(session, message_limit=1)
    assert len(newest.messages) == 1

    sizes = []
    request = history_service_pb2.ListMessagesRequest(session_id=session, page_size=100)
    listed = []
    while True:
        page = await link.history.ListMessages(request, timeout=30)
        sizes.append(len(page.messages))
        listed += page.messages
        request.page_token = page.next_page_token
        if not page.next_page_token:
            break
    assert [one.content[0].text for one in listed] == expected
    assert sizes == [1, 1, 1, 1]
    backwards = history_service_pb2.ListMessagesRequest(session_id=session, before_number=0)
    found = await link.pages(link.history.ListMessages, backwards, "messages", 100)
    assert [one.content[0].text for one in found] == expected[::-1]

    events = await link.events(session, include_messages=True)
    brought = [one.message.content[0].text for one in events if one.HasField("message")]
    assert brought == expected
    request = history_service_pb2.ListEventsRequest(session_id=session, include_messages=True)
    found = await link.pages(link.history.ListEvents, request, "events", 100)
    assert found == events
    request = history_service_pb2.StreamRunEventsRequest(
        run_id=leased.fence.run_id, include_messages=True
    )
    call = link.history.StreamRunEvents(request, timeout=30)
    of_run = [event async for frame in call for event in frame.events]
    assert [one.message.content[0].text for one in of_run if one.HasField("message")] == expected

    fork = (await link.fork(leased.fence.run_id)).session.session_id
    assert [one.content[0].text for one in await link.messages(fork)] == expected


async def context(link: Link, fence) -> list[str]:
    request = executor_service_pb2.StreamModelContextRequest(fence=fence)
    call = link.executors.StreamModelContext(request, timeout=30)
    return [one.content[0].text async for frame in call for one in frame.messages]


async def test_the_live_state_holds_one_newest_message_of_3_mib_beside_a_full_queue(link: Link):
    session = unique("fullest")
    await link.create(session, metadata_json='{"a":"%s"}' % ("m" * 65_000))
    await link.submit(session, sized(LIMIT))
    await link.lease(session)
    queued = [
        link.submit(
            session,
            "q" * 1900,
            mode=mode,
            metadata={"k": "v" * 1900},
        )
        for mode in (MODE.MODE_STEER, MODE.MODE_FOLLOW_UP)
        for _ in range(64)
    ]
    await asyncio.gather(*queued)
    live = await link.live(session)
    assert len(live.messages) == 1
    assert len(live.pending_submissions) == 128
    error = await refused(link.submit(session, "one more", mode=MODE.MODE_STEER))
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")


@pytest.mark.parametrize("size", [LIMIT + 1, 5 * 1024 * 1024, TRANSPORT_LIMIT - 4096])
async def test_content_over_the_limit_is_refused_with_its_size_and_the_limit(link: Link, size: int):
    session = unique("too-large")
    run_id = await link.run(session)
    await link.submit(session)
    fence = (await link.lease(session)).fence
    await link.commit(fence, reserve())
    before = (await link.live(session)).sequence
    words = sized(size)
    fork = history_service_pb2.ForkInput(content=text(words))
    new = unique("never")
    for call in (
        link.submit(session, words, mode=MODE.MODE_STEER, request_id="large"),
        link.submit(new, words),
        link.fork(run_id, session_id=new, input=fork),
        link.commit(fence, step(words)),
    ):
        error = await refused(call)
        assert error.code == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert error.reason == "MESSAGE_TOO_LARGE"
        assert abs(int(error.metadata["size_bytes"]) - size) < 64
        assert error.metadata["limit_bytes"] == str(LIMIT)
        assert "xxx" not in error.everything
    assert (await link.live(session)).sequence == before
    assert (await refused(link.session(new))).reason == "SESSION_NOT_FOUND"
    # The request_id of a refusal is free.
    receipt = await link.submit(session, "small", mode=MODE.MODE_STEER, request_id="large")
    assert not receipt.replayed


async def test_what_is_over_8_mib_is_refused_by_the_transport(link: Link):
    session = unique("beyond")
    await link.create(session)
    error = await refused(link.submit(session, sized(TRANSPORT_LIMIT + 4096)))
    assert (error.code, error.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "")
    assert (await link.live(session)).sequence == 1


async def test_large_pending_input_is_cut_in_lists_and_whole_where_it_is_named(link: Link):
    session = unique("pending")
    await link.submit(session)
    words = sized(LIMIT)
    receipts = [await link.submit(session, words, mode=MODE.MODE_FOLLOW_UP) for _ in range(2)]
    error = await refused(link.submit(session, words, mode=MODE.MODE_FOLLOW_UP))
    assert error.reason == "QUEUE_FULL"
    live = await link.live(session)
    assert [one.content_truncated for one in live.pending_submissions] == [True, True]
    cut = [words[:200]]
    assert [[block.text for block in one.content] for one in live.pending_submissions] == [cut, cut]
    request = session_service_pb2.GetSubmissionRequest(
        submission_id=receipts[0].submission.submission_id
    )
    whole = (await link.sessions.GetSubmission(request, timeout=30)).submission
    assert whole.content[0].text == words
    assert not whole.content_truncated
    request = history_service_pb2.ListSubmissionsRequest(session_id=session)
    listed = await link.pages(link.history.ListSubmissions, request, "submissions", 1)
    assert [one.content_truncated for one in listed] == [False, True, True]


@pytest.mark.alone
async def test_reading_a_history_of_large_messages_takes_bounded_memory(make_server):
    """40 messages of 3 MiB: no read may hold them all at once."""
    server = make_server().start()
    session = unique("history")
    async with Link(server.address) as link:
        await link.submit(session, sized(LIMIT))
        fence = (await link.lease(session)).fence
        await link.commit(fence, reserve())
        for _ in range(19):
            await link.submit(session, sized(LIMIT), mode=MODE.MODE_STEER)
            await link.commit(fence, step(sized(LIMIT)), reserve())
        await link.answer_reserved(fence, "end")
    server.restart()
    async with Link(server.address) as link:
        await link.events(session)
        before = server.memory()
        peak = 0
        count = 0
        call = link.stream(session, include_messages=True, follow=False)
        async for frame in call:
            count += sum(one.HasField("message") for one in frame.batch.events)
            peak = max(peak, server.memory())
        assert count == 40
        request = history_service_pb2.ListEventsRequest(session_id=session, include_messages=True)
        events = await link.pages(link.history.ListEvents, request, "events", 1000)
        assert sum(one.HasField("message") for one in events) == 40
        peak = max(peak, server.memory())
        assert len(await link.messages(session)) == 40
        peak = max(peak, server.memory())
    assert peak - before < 60 * 1024 * 1024, f"{(peak - before) >> 20} MiB"
