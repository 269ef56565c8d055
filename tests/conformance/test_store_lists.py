"""Pages, keysets, filters, histories."""

import pytest
from runlane_server.core.model import SessionKey, SessionRecord
from runlane_server.core.words import Phase, Route, SessionStatus, SubmissionState
from runlane_server.store.base import Committed, SessionFilter, SessionOrder
from store_builders import Scripted, fresh

pytestmark = pytest.mark.asyncio


async def write(store, *units):
    assert await store.commit(units) == [Committed()] * len(units)


async def pages(read, place, limit=2):
    """Reads page after page, and gives all."""
    found, after = [], None
    while page := await read(after, limit):
        assert len(page) <= limit
        found += page
        after = place(page[-1])
    return found


async def sessions(store, order, where=None, limit=2, key="create"):
    # The state of each says its times and id, as an encoded one does.
    def place(row):
        create, update, session_id = row.state.decode().split()
        return int(create if key == "create" else update), session_id

    async def read(after, limit):
        return await store.list_sessions("default", where or SessionFilter(), order, after, limit)

    return [place(row) for row in await pages(read, place, limit)]


async def make(store, session_id, create, update, labels=None):
    s = Scripted(
        session_id,
        time=create,
        update_time=update,
        state=f"{create} {update} {session_id}".encode(),
    )
    await write(store, s.create(SessionRecord(labels=labels or {})).unit())
    return s


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_orders_of_sessions_with_equal_times(store, limit):
    made = [("c", 5, 50), ("a", 5, 50), ("b", 5, 40), ("e", 9, 50), ("d", 1, 40)]
    for session_id, create, update in made:
        await make(store, session_id, create, update)
    found = await sessions(store, SessionOrder.CREATED_ASC, limit=limit)
    assert [one[1] for one in found] == ["d", "a", "b", "c", "e"]
    found = await sessions(store, SessionOrder.CREATED_DESC, limit=limit)
    assert [one[1] for one in found] == ["e", "a", "b", "c", "d"]
    found = await sessions(store, SessionOrder.UPDATED_DESC, limit=limit, key="update")
    assert [one[1] for one in found] == ["a", "c", "e", "b", "d"]


async def test_ids_are_in_the_order_of_their_bytes(store):
    """Not in that of a dictionary, and the same on every store."""
    ids = ["B", "a", "_", "Z", "b-", "b.a", "bA", "A", "é", "z", "e", "\U0001f600", "\uffee"]
    for session_id in ids:
        s = await make(store, session_id, 5, 50)
        await write(store, s.start(time=7, run_id=f"run_{session_id}").unit())
        await write(store, s.hold(Phase.ACTIVE, stalled=True).unit())
    wanted = sorted(ids, key=str.encode)
    for limit in (3, 100):
        for order, key in (
            (SessionOrder.CREATED_ASC, "create"),
            (SessionOrder.UPDATED_DESC, "update"),
        ):
            found = await sessions(store, order, limit=limit, key=key)
            assert [one[1] for one in found] == wanted

        async def stalled(after, count):
            return await store.list_stalled_runs("default", after, count)

        found = await pages(stalled, lambda row: (row.create_time, row.run_id), limit)
        assert [row.run_id for row in found] == [f"run_{one}" for one in wanted]


async def test_filters_of_sessions(store):
    a = await make(store, "a", 1, 1, {"team": "x", "env": "p"})
    await make(store, "b", 2, 2, {"team": "x"})
    c = await make(store, "c", 3, 3, {"team": "y"})
    await write(store, a.start().unit(), a.end().unit())
    fork = a.fork("run_1", 1, time=4)
    fork.state = f"4 4 {fork.session_id}".encode()
    await write(store, fork.unit())

    async def names(**filters):
        found = await sessions(store, SessionOrder.CREATED_ASC, SessionFilter(**filters))
        return [one[1] for one in found]

    assert await names(labels={"team": "x"}) == ["a", "b"]
    assert await names(labels={"team": "x", "env": "p"}) == ["a"]
    assert await names(labels={"team": ""}) == []
    assert await names(create_time_from=2, create_time_before=3) == ["b"]
    assert await names(roots_only=True) == ["a", "b", "c"]
    assert await names(forks_of="a") == [fork.session_id]
    assert await names(forks_of="b") == []
    closed = c.commit()
    closed.status = SessionStatus.CLOSED
    from runlane_server.store.base import CommitUnit

    await write(store, CommitUnit([closed]))
    assert await names(status=SessionStatus.CLOSED) == ["c"]
    assert len(await names(status=SessionStatus.OPEN)) == 3
    assert (
        await store.list_sessions("other", SessionFilter(), SessionOrder.CREATED_ASC, None, 9) == []
    )


async def test_update_moves_a_session_up(store):
    a, b = await make(store, "a", 1, 1), await make(store, "b", 2, 2)
    for s, time in ((a, 3), (b, 3), (a, 4)):
        s.update_time, s.state = time, f"{s.time} {time} {s.session_id}".encode()
        await write(store, s.unit())
    found = await sessions(store, SessionOrder.UPDATED_DESC, key="update", limit=1)
    assert found == [(4, "a"), (3, "b")]


@pytest.mark.parametrize("limit", [1, 2, 50])
async def test_runs_and_submissions_are_paged_in_lane_order(store, limit):
    s = Scripted()
    await write(store, s.create().unit())
    runs, subs = [], []
    for n in range(4):
        await write(store, s.start(b"m%d" % n).unit())
        runs.append(s.run_id)
        subs.append(s.submission_id)
        queued, reserved = s.queue(b"q%d" % n, run_id=(run := fresh("run"))), run
        subs.append(queued)
        await write(store, s.unit())
        await write(store, s.end().deliver(queued, b"", reserved).unit())
        runs.append(reserved)
        await write(store, s.end().unit())
    await write(store, s.start(b"live").unit())
    pending = s.queue(b"waits")
    await write(store, s.unit())

    def place(row):
        return row.create_time, row.run_id

    async def listed(*phases):
        return [
            r.run_id
            for r in await pages(
                lambda after, n: store.list_runs(s.key, phases, after, n), place, limit
            )
        ]

    assert await listed() == [*runs, s.run_id]
    assert await listed(Phase.TERMINAL) == runs
    assert await listed(Phase.ACTIVE) == [s.run_id]
    assert await listed(Phase.ACTIVE, Phase.TERMINAL) == [*runs, s.run_id]

    async def submitted(*states):
        found = await pages(
            lambda after, n: store.list_submissions(s.key, states, after, n, 3),
            lambda row: (row.create_time, row.submission_id),
            limit,
        )
        return [(r.submission_id, r.content) for r in found]

    contents = [b"m0", b"q0", b"m1", b"q1", b"m2", b"q2", b"m3", b"q3"]
    delivered = [*zip(subs, contents, strict=True), (s.submission_id, b"")]
    assert await submitted(SubmissionState.DELIVERED) == delivered
    assert await submitted(SubmissionState.PENDING) == [(pending, b"")]
    assert await submitted() == [*delivered, (pending, b"")]
    assert await submitted(SubmissionState.FAILED) == []


async def test_page_of_events_is_bounded_and_holds_at_least_one(store):
    s = Scripted()
    await write(store, s.create().unit(size=10))
    for _ in range(5):
        await write(store, s.unit(events=3, size=10))

    async def read(*args):
        return [(g.first, g.last) for g in await store.events(s.key, *args)]

    assert await read(0, 99, 99, 9999) == [(1, 1), (2, 4), (5, 7), (8, 10), (11, 13), (14, 16)]
    assert await read(2, 8, 99, 9999) == [(2, 4), (5, 7), (8, 10)]
    assert await read(4, 99, 4, 9999) == [(5, 7), (8, 10)]
    assert await read(4, 99, 99, 59) == [(5, 7)]
    assert await read(4, 99, 99, 60) == [(5, 7), (8, 10)]
    assert await read(4, 99, 1, 1) == [(5, 7)]
    assert await read(16, 99, 9, 999) == []
    assert await read(2**62, 2**62, 9, 999) == []
    assert await store.last_sequence(s.key) == 16


async def test_pages_of_messages(store):
    s = Scripted()
    await write(store, s.create().unit())
    for n in range(1, 6):
        await write(store, s.message(b"%d" % n * 10, "run_1").unit())

    async def read(*args, **how):
        return [m.number for m in await store.messages(s.key, *args, **how)]

    assert await read(1, 99, 99, 999) == [1, 2, 3, 4, 5]
    assert await read(2, 4, 99, 999) == [2, 3, 4]
    assert await read(1, 99, 2, 999) == [1, 2]
    assert await read(1, 99, 99, 29) == [1, 2]
    assert await read(1, 99, 99, 1) == [1]
    assert await read(1, 4, 2, 999, descending=True) == [4, 3]
    assert await read(1, 2**62, 99, 10, descending=True) == [5]
    assert [m.number for m in await store.messages_by_number(s.key, [4, 2, 2, 77])] == [2, 4]
    live = await store.live(s.key, 2, 999, 1)
    assert [m.number for m in live.messages] == [4, 5]


async def grow(s, store, count):
    for _ in range(count):
        await write(store, s.message(f"{s.session_id} {s.messages + 1}".encode(), "run_1").unit())


async def test_forks_at_several_depths_show_their_prefix_byte_for_byte(store):
    root = Scripted()
    await write(store, root.create().unit())
    await grow(root, store, 6)
    expected = {root.session_id: [f"{root.session_id} {n}".encode() for n in range(1, 7)]}
    line = [root]
    for cut in (4, 6, 2, 3, 1):
        source = line[-1]
        fork = source.fork("run_1", cut)
        await write(store, fork.unit())
        start = expected[source.session_id][:cut]
        await grow(fork, store, 3)
        expected[fork.session_id] = start + [
            f"{fork.session_id} {n}".encode() for n in range(cut + 1, cut + 4)
        ]
        line.append(fork)
        await grow(source, store, 1)  # What comes later in a source is not the fork's.
        expected[source.session_id].append(f"{source.session_id} {source.messages}".encode())
    for s in line:
        wanted = expected[s.session_id]
        total = len(wanted)
        whole = await store.messages(s.key, 1, 99, 99, 9999)
        assert [m.data for m in whole] == wanted
        assert [m.number for m in whole] == list(range(1, total + 1))
        assert (await store.messages(s.key, 1, 99, 99, 9999, descending=True)) == whole[::-1]
        assert await store.messages(s.key, 2, total - 1, 99, 9999) == whole[1:-1]
        assert await store.messages(s.key, 1, 99, 3, 9999, descending=True) == whole[:-4:-1]
        assert await store.messages_by_number(s.key, range(1, 50)) == whole
        live = await store.live(s.key, 50, 9999, 0)
        assert live.messages == whole
    chain = [(s.session_id, "run_1") for s in line[-2::-1]]
    assert await store.ancestors(line[-1].key, 10) == chain
    assert await store.ancestors(line[-1].key, 2) == chain[:2]
    assert await store.ancestors(root.key, 2) == []
    row = await store.session(line[1].key)
    assert (row.source_session_id, row.source_run_id) == (root.session_id, "run_1")


async def test_fork_of_an_unknown_source_is_rejected(store):
    gone = Scripted().fork("run_1", 3)
    assert type((await store.commit([gone.unit()]))[0]).__name__ == "Rejected"
    assert await store.load(SessionKey("default", gone.session_id)) is None


async def test_content_over_the_limit_is_left_out(store):
    s = Scripted()
    await write(store, s.create().unit(), s.start().unit())
    s.queue(b"12345", Route.STEER, s.run_id)
    await write(store, s.unit())
    for limit, wanted in ((4, b""), (5, b"12345")):
        (row,) = await store.list_submissions(s.key, [SubmissionState.PENDING], None, 9, limit)
        assert row.content == wanted
        assert (await store.live(s.key, 1, 99, limit)).pending[0].content == wanted
