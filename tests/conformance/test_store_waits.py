"""Runs that wait: tool calls, interactions, phases, leases nothing was heard on."""

import itertools

import msgspec
import pytest
from runlane_server.core.model import SessionKey
from runlane_server.core.rows import RunMoved, SessionDeleted, TimerSet
from runlane_server.core.words import (
    InteractionState,
    Phase,
    PromptKind,
    SessionStatus,
    StopReason,
    TimerKind,
    ToolCallState,
    ToolOutcome,
)
from runlane_server.store.base import Committed, LeaseRenewal, Rejected, fitting
from runlane_server.store.postgres import connect
from store_builders import Scripted
from store_inside import inside

pytestmark = pytest.mark.asyncio

PREPARED, CLAIMED, COMMITTED = (
    ToolCallState.PREPARED,
    ToolCallState.CLAIMED,
    ToolCallState.COMMITTED,
)
EVERY_BYTE = bytes(range(256))


async def write(store, *units):
    assert await store.commit(units) == [Committed()] * len(units)


async def rejected(store, s):
    """What was gathered is refused alone; a neighbour in its batch is written."""
    token, other = s.token, Scripted()
    outcomes = await store.commit([s.unit(), other.create().unit()])
    assert [type(one) for one in outcomes] == [Rejected, Committed]
    s.token = token


async def running(store, **how):
    s = Scripted(**how)
    await write(store, s.create().unit(), s.start(b"input").unit(), s.lease().unit())
    return s


async def pages(read, place, limit):
    found, after = [], None
    while page := await read(after, limit):
        assert len(page) <= limit
        found += page
        after = place(page[-1])
    return found


async def delete(store, s):
    await write(store, s.add(SessionDeleted(100)).add(TimerSet(TimerKind.SWEEP, 160)).unit())


# --- tool calls ------------------------------------------------------------------------


async def test_results_that_came_out_of_order_become_messages_byte_for_byte(store):
    s = await running(store)
    await write(store, s.calls(1, '{"a":1}', "{}", None, '"é\\u0000"').unit())
    results = {2: EVERY_BYTE, 3: b"", 4: b"\x00\xff\x80 text " * 1000}
    for ordinal in (4, 2, 3):
        s.move_call(1, ordinal, CLAIMED)
        s.move_call(1, ordinal, COMMITTED, results[ordinal], outcome=ToolOutcome.OK)
        await write(store, s.unit())
    rows = await store.list_tool_calls("default", s.run_id, None, 9)
    assert [row.result for row in rows] == [b"", *results.values()]
    assert [row.arguments_json for row in rows] == ['{"a":1}', "{}", None, '"é\\u0000"']
    assert [row.state for row in rows] == [PREPARED, COMMITTED, COMMITTED, COMMITTED]
    # The first one's result lets all that wait behind it be appended.
    s.move_call(1, 1, COMMITTED, outcome=ToolOutcome.ERROR).result(1, 1, b"head 1 whole")
    for ordinal in results:
        s.result(1, ordinal, b"head \x00\xfe%d " % ordinal, stored=True)
    await write(store, s.unit())
    wanted = [
        b"head 1 whole",
        *(b"head \x00\xfe%d " % ordinal + data for ordinal, data in results.items()),
    ]
    assert [m.data for m in await store.messages(s.key, 2, 99, 99, 99_999)] == wanted
    rows = await store.list_tool_calls("default", s.run_id, None, 9)
    assert [row.result for row in rows] == wanted, "a settled call shows its whole message"
    assert await inside(store, "results") == 0, "a result is stored once"


async def test_result_and_its_message_in_one_commit(store):
    s = await running(store)
    s.calls(1, "{}", "{}").move_call(1, 2, COMMITTED, b"second", outcome=ToolOutcome.OK)
    s.move_call(1, 1, COMMITTED, outcome=ToolOutcome.ERROR).result(1, 1, b"closer", closer=True)
    await write(store, s.result(1, 2, b"2:", stored=True).unit())
    rows = await store.list_tool_calls("default", s.run_id, None, 9)
    assert [row.result for row in rows] == [b"closer", b"2:second"]
    assert [m.data for m in await store.messages(s.key, 2, 9, 9, 99)] == [b"closer", b"2:second"]


async def test_fields_of_a_tool_call(store):
    s = await running(store)
    created = s.time
    await write(store, s.calls(3, '{"x":2}').unit())
    (row,) = await store.list_tool_calls("default", s.run_id, None, 9)
    assert (row.tool_call_id, row.run_id, row.step, row.ordinal, row.name) == (
        "call_3_1",
        s.run_id,
        3,
        1,
        "tool",
    )
    assert (row.state, row.idempotent, row.outcome, row.create_time, row.settle_time) == (
        PREPARED,
        False,
        0,
        created,
        0,
    )
    await write(store, s.move_call(3, 1, CLAIMED, idempotent=True).unit())
    (row,) = await store.list_tool_calls("default", s.run_id, None, 9)
    assert (row.state, row.idempotent, row.settle_time) == (CLAIMED, True, 0)
    # A recovery takes the claim back, and all that it said.
    await write(store, s.move_call(3, 1, PREPARED, idempotent=True).unit())
    (row,) = await store.list_tool_calls("default", s.run_id, None, 9)
    assert (row.state, row.idempotent, row.settle_time) == (PREPARED, False, 0)
    s.move_call(3, 1, CLAIMED)
    s.move_call(3, 1, ToolCallState.OUTCOME_UNKNOWN, outcome=ToolOutcome.UNKNOWN)
    settled = s.time
    await write(store, s.result(3, 1, b"closer", closer=True).unit())
    (row,) = await store.list_tool_calls("default", s.run_id, None, 9)
    assert (row.state, row.outcome, row.settle_time, row.result) == (
        ToolCallState.OUTCOME_UNKNOWN,
        ToolOutcome.UNKNOWN,
        settled,
        b"closer",
    )


async def test_arguments_of_any_length(store):
    s = await running(store)
    made = ["{}", *(f'"{"é" * count}"' for count in (700, 797, 798, 799, 5_000, 300_000)), None]
    await write(store, s.calls(1, *made).unit())
    for ordinal in range(1, len(made) + 1):
        s.move_call(1, ordinal, CLAIMED)
    await write(store, s.unit())
    rows = await store.list_tool_calls("default", s.run_id, None, 99)
    assert [row.arguments_json for row in rows] == made


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
async def test_tool_calls_are_paged_by_step_and_ordinal(store, limit):
    s, other = await running(store), await running(store)
    await write(store, other.calls(1, "{}").unit())
    wanted = []
    for step, count in ((1, 1), (2, 3), (10, 2)):
        await write(store, s.calls(step, *["{}"] * count).unit())
        wanted += [(step, ordinal) for ordinal in range(1, count + 1)]

    def place(row):
        return row.step, row.ordinal

    async def read(after, count):
        return await store.list_tool_calls("default", s.run_id, after, count)

    assert [place(row) for row in await pages(read, place, limit)] == wanted
    assert await store.list_tool_calls("other", s.run_id, None, 9) == []
    assert await store.list_tool_calls("default", "run_none", None, 9) == []
    assert [place(row) for row in await read((2, 0), 3)] == [(2, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize(
    "what", ["twice", "no result", "settled", "no such call", "other session", "message twice"]
)
async def test_call_that_does_not_fit_is_rejected_alone(store, what):
    s, other = await running(store), await running(store)
    await write(store, s.calls(1, "{}", "{}").unit(), other.calls(1, "{}").unit())
    await write(store, s.move_call(1, 1, COMMITTED, outcome=ToolOutcome.OK).unit())
    if what == "twice":
        s.calls(1, "{}")
    elif what == "no result":
        s.result(1, 2, b"", stored=True)
    elif what == "settled":
        s.move_call(1, 1, PREPARED)
    elif what == "no such call":
        s.move_call(2, 1, CLAIMED)
    elif what == "other session":
        s.run_id, mine = other.run_id, s.run_id
        s.move_call(1, 1, CLAIMED)
        s.run_id = mine
    else:
        s.result(1, 1, b"one").result(1, 1, b"two")
    await rejected(store, s)
    assert len(await store.messages(s.key, 1, 9, 9, 999)) == 1


# --- interactions ----------------------------------------------------------------------


async def test_interaction_from_question_to_answer(store):
    s = await running(store)
    asked = s.time
    interaction_id = s.ask(2, EVERY_BYTE, expire=900)
    await write(store, s.unit())
    row = await store.interaction("default", interaction_id)
    assert (row.interaction_id, row.run_id, row.session_id, row.version, row.kind) == (
        interaction_id,
        s.run_id,
        s.session_id,
        1,
        PromptKind.QUESTION,
    )
    assert (row.state, row.prompt, row.answer, row.answer_hash, row.close_reason) == (
        InteractionState.OPEN,
        EVERY_BYTE,
        b"",
        b"",
        0,
    )
    assert (row.expire_time, row.create_time, row.settle_time) == (900, asked, 0)
    assert (await store.live(s.key, 1, 9, 9)).interactions == [row]
    assert await store.interaction("other", interaction_id) is None
    assert await store.interaction("default", "int_none") is None
    await write(store, s.answer(interaction_id, b"\x00yes").unit())
    row = await store.interaction("default", interaction_id)
    assert (row.state, row.answer, row.answer_hash, row.close_reason, row.settle_time) == (
        InteractionState.ANSWERED,
        b"\x00yes",
        b"#" * 32,
        0,
        s.time,
    )
    assert (await store.live(s.key, 1, 9, 9)).interactions == []
    again = s.ask()
    await write(store, s.close_interaction(again).end(StopReason.CANCELLED).unit())
    row = await store.interaction("default", again)
    assert (row.state, row.close_reason, row.answer) == (InteractionState.CLOSED, 1, b"")
    for settled in (interaction_id, again, "int_none"):
        await rejected(store, s.close_interaction(settled))


async def test_answers_that_a_run_has_not_read_yet(store):
    s = await running(store)
    ids = []
    for step in (0, 1, 1, 1):
        ids.append(s.ask(step))
        await write(store, s.unit())
        await write(store, s.answer(ids[-1]).unit())
    ids.append(s.ask(1))
    await write(store, s.unit())

    async def answered(step, namespace="default", run_id=s.run_id):
        rows = await store.answered_interactions(namespace, run_id, step)
        return [row.interaction_id for row in rows]

    assert await answered(1) == ids[1:4]
    assert await answered(0) == ids[:4]
    assert await answered(2) == []
    assert await answered(0, "other") == []
    assert await answered(0, run_id="run_none") == []


@pytest.mark.parametrize("limit", [1, 2, 50])
async def test_inbox_is_paged_over_all_sessions_oldest_first(store, limit):
    """Equal times are in the order of ids; sessions were made in another one."""
    made = {}
    for time in (50, 40, 50, 30, 50):
        s = await running(store)
        s.time = time
        made[time, s.ask()] = s
        await write(store, s.unit())
    elsewhere = await running(store, namespace="other")
    elsewhere.time = 10
    elsewhere.ask()
    await write(store, elsewhere.unit())

    def place(row):
        return row.create_time, row.interaction_id

    async def listed(state, session_id="", namespace="default"):
        async def read(after, count):
            return await store.list_interactions(namespace, session_id, state, after, count)

        return [place(row) for row in await pages(read, place, limit)]

    wanted = sorted(made)
    assert await listed(InteractionState.OPEN) == wanted
    assert await listed(InteractionState.ANSWERED) == []
    assert len(await listed(InteractionState.OPEN, namespace="other")) == 1
    answered, closed, deleted = wanted[0], wanted[2], wanted[3]
    s = made[answered]
    await write(store, s.answer(answered[1]).unit())
    s.time = 60
    second = s.ask()
    await write(store, s.unit())
    await write(store, made[closed].close_interaction(closed[1]).end().unit())
    await delete(store, made[deleted])
    assert await listed(InteractionState.OPEN) == [wanted[1], wanted[4], (60, second)]
    assert await listed(InteractionState.ANSWERED) == [answered]
    assert await listed(InteractionState.CLOSED) == [closed]
    assert await listed(InteractionState.OPEN, s.session_id) == [(60, second)]
    assert await listed(InteractionState.ANSWERED, s.session_id) == [answered]
    assert await listed(InteractionState.OPEN, s.session_id, "other") == []
    assert await listed(InteractionState.OPEN, "nobody") == []
    assert await listed(InteractionState.OPEN, made[deleted].session_id) == []
    assert await store.interaction("default", deleted[1]) is None
    assert await store.answered_interactions("default", made[deleted].run_id, 0) == []


# --- phases ----------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.ACTIVE, Phase.WAITING, Phase.PAUSED])
async def test_live_run_in_each_phase(store, phase):
    s = await running(store)
    first = s.run_id
    await write(store, s.end().unit(), s.start().unit(), s.lease().unit())
    if phase is Phase.WAITING:
        interaction_id = s.ask()
    elif phase is Phase.PAUSED:
        s.hold(phase)
    await write(store, s.unit())
    run_id = s.run_id
    row = await store.run("default", run_id)
    assert (row.phase, row.state, row.stop_reason, row.cause) == (phase, s.state, None, None)
    assert (await store.live(s.key, 1, 9, 9)).run == row

    async def listed(*phases):
        rows = await store.list_runs(s.key, phases, None, 9)
        return [(one.run_id, one.phase) for one in rows]

    both = [(first, Phase.TERMINAL), (run_id, phase)]
    assert await listed() == both
    for asked in (Phase.ACTIVE, Phase.WAITING, Phase.PAUSED):
        assert await listed(asked) == ([both[1]] if asked is phase else [])
        assert await listed(asked, Phase.TERMINAL) == (both if asked is phase else both[:1])
    assert await listed(Phase.ACTIVE, Phase.WAITING, Phase.PAUSED) == both[1:]
    assert await listed(*Phase) == both
    if phase is Phase.WAITING:
        s.close_interaction(interaction_id)
    ended = s.end(StopReason.OUTCOME_UNKNOWN, cause=StopReason.FAILED, tool_calls=7).unit()
    await write(store, ended)
    row = await store.run("default", run_id)
    assert (row.phase, row.state, row.stop_reason, row.cause) == (
        Phase.TERMINAL,
        None,
        StopReason.OUTCOME_UNKNOWN,
        StopReason.FAILED,
    )
    assert msgspec.msgpack.decode(row.usage)["tool_calls"] == 7
    await rejected(store, s.add(RunMoved(run_id, Phase.ACTIVE, stalled=False)))


@pytest.mark.parametrize("limit", [1, 2, 50])
async def test_stalled_runs_are_paged_over_all_sessions(store, limit):
    made = {}
    for time in (50, 40, 50, 30, 50):
        s = Scripted()
        await write(store, s.create().unit(), s.start(time=time).unit(), s.lease().unit())
        made[time, s.run_id] = s
        await write(store, s.hold(Phase.ACTIVE, stalled=True).unit())
    elsewhere = await running(store, namespace="other")
    await write(store, elsewhere.hold(Phase.ACTIVE, stalled=True).unit())
    await running(store)

    def place(row):
        return row.create_time, row.run_id

    async def listed():
        async def read(after, count):
            return await store.list_stalled_runs("default", after, count)

        rows = await pages(read, place, limit)
        assert {row.phase for row in rows} <= {Phase.ACTIVE}
        return [place(row) for row in rows]

    wanted = sorted(made)
    assert await listed() == wanted
    (row,) = await store.list_stalled_runs("other", None, 9)
    assert (row.run_id, row.state) == (elsewhere.run_id, elsewhere.state)
    await write(store, made[wanted[0]].go_on().unit())
    await write(store, made[wanted[2]].end().unit())
    await delete(store, made[wanted[3]])
    assert await listed() == [wanted[1], wanted[4]]


# --- leases and the queue --------------------------------------------------------------


async def test_lease_is_confirmed_by_what_is_heard_on_it(store):
    s = Scripted()
    await write(store, s.create().unit(), s.start().unit())
    assert (await store.load(s.key)).lease_confirmed, "there is none"
    await write(store, s.lease(expire=500, confirmed=False).unit())
    loaded = await store.load(s.key)
    assert (loaded.lease_expire_time, loaded.lease_confirmed) == (500, False)
    await write(store, LeaseRenewal(s.activation_id, 1, 30, 800))
    loaded = await store.load(s.key)
    assert (loaded.lease_expire_time, loaded.lease_confirmed) == (800, True)
    # What a commit writes stands, whichever it is.
    for confirmed in (False, True):
        await write(store, s.lease(confirmed=confirmed).unit())
        assert (await store.load(s.key)).lease_confirmed is confirmed
    await write(store, s.end().unit())
    assert (await store.load(s.key)).lease_confirmed


async def test_queued_activation_in_back_off(store):
    s = await running(store)
    await write(store, s.hold(Phase.ACTIVE).go_on(not_before=777).unit())
    other = Scripted(time=5)
    await write(store, other.create().unit(), other.start().unit())
    found = await store.queued_activations()
    assert [(one.key, one.activation_id, one.not_before) for one in found] == [
        (other.key, other.activation_id, 0),
        (s.key, s.activation_id, 777),
    ]


# --- deleting and sweeping -------------------------------------------------------------


async def waiting_session(store):
    s = await running(store)
    for step in (1, 2, 3):
        await write(store, s.calls(step, "{}", f'"{"x" * 2_000}"').unit())
        interaction_id = s.ask(step)
        await write(store, s.unit())
        await write(store, s.answer(interaction_id).unit())
    s.ask(3)
    await write(store, s.unit())
    return s


async def test_sweep_takes_calls_and_interactions_with_it(store):
    async def counted():
        tables = ("tool_calls", "long_arguments", "interactions", "runs")
        return tuple([await inside(store, table) for table in tables])

    s, other = await waiting_session(store), await waiting_session(store)
    assert await counted() == (12, 6, 8, 2)
    await delete(store, s)
    assert await store.list_tool_calls("default", s.run_id, None, 9) == []
    steps = 1
    while not await store.sweep(s.key, 2):
        steps += 1
    assert steps > 5
    assert await counted() == (6, 3, 4, 1)
    assert len(await store.list_tool_calls("default", other.run_id, None, 9)) == 6
    assert len((await store.live(other.key, 1, 9, 9)).interactions) == 1


# --- what a check finds ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("interaction of an active run", "open interaction of no waiting run"),
        ("interaction of an ended run", "open interaction of no waiting run"),
        ("two interactions", "more than one open interaction"),
        ("claimed call", "tool call of an ended run"),
        ("call without message", "tool call of an ended run"),
        ("lease of a paused run", "not active"),
        ("lease beside the queue", "more than one queued activation or lease"),
        ("stalled and paused", "stalled run is not active"),
    ],
)
async def test_check_tells_what_does_not_fit_together(store, what, words):
    s = await running(store)
    assert await store.check() == []
    if what == "interaction of an active run":
        s.ask()
        s.go_on()
    elif what == "interaction of an ended run":
        s.ask()
        s.end()
    elif what == "two interactions":
        s.ask()
        s.ask()
    elif what == "claimed call":
        s.calls(1, "{}").move_call(1, 1, CLAIMED).result(1, 1, b"").end()
    elif what == "call without message":
        s.calls(1, "{}").move_call(1, 1, COMMITTED).end()
    elif what == "lease of a paused run":
        s.add(RunMoved(s.run_id, Phase.PAUSED, stalled=False))
    elif what == "lease beside the queue":
        s.go_on()
    else:
        s.hold(Phase.PAUSED, stalled=True)
    await write(store, s.unit())
    assert any(words in line for line in await store.check())
    await store.close()


async def test_nothing_waits_where_there_is_nothing(store):
    assert await store.list_stalled_runs("default", None, 9) == []
    assert await store.list_tool_calls("default", "run_x", None, 9) == []
    assert await store.list_interactions("default", "", InteractionState.OPEN, None, 9) == []
    assert await store.live(SessionKey("default", "x"), 1, 1, 1) is None


async def test_counts_are_of_one_namespace_and_bounded(store):
    def told(counts):
        return (
            counts.sessions,
            counts.live_runs,
            counts.stalled_runs,
            counts.open_interactions,
            counts.more_sessions,
        )

    assert told(await store.counts("default", 100)) == ({}, {}, 0, 0, False)
    for _ in range(2):
        await running(store)
        asking = await running(store)
        asking.ask()
        await write(store, asking.unit())
        stalled = await running(store)
        await write(store, stalled.hold(Phase.ACTIVE, stalled=True).unit())
        paused = await running(store)
        await write(store, paused.hold(Phase.PAUSED).unit())
        ended = await running(store)
        await write(store, ended.end().unit())
        closed = await running(store)
        unit = closed.end().unit()
        unit.sessions[0].status, unit.sessions[0].current_run_id = SessionStatus.CLOSED, ""
        await write(store, unit)
        gone = await running(store)
        gone.ask()
        await write(store, gone.unit())
        await delete(store, gone)
        other = await running(store, namespace="other")
        await write(store, other.hold(Phase.ACTIVE, stalled=True).unit())
    counts = await store.counts("default", 12)
    assert told(counts) == (
        {SessionStatus.OPEN: 10, SessionStatus.CLOSED: 2},
        {Phase.ACTIVE: 4, Phase.WAITING: 2, Phase.PAUSED: 2},
        2,
        2,
        False,
    )
    assert counts.size > 4096
    few = await store.counts("default", 1)
    assert (sum(few.sessions.values()), few.more_sessions) == (1, True)
    assert (few.stalled_runs, few.open_interactions) == (1, 1)
    assert told(await store.counts("other", 100)) == (
        {SessionStatus.OPEN: 2},
        {Phase.ACTIVE: 2},
        2,
        0,
        False,
    )


# --- lists that are cut by bytes -------------------------------------------------------


@pytest.fixture
def rows_read(monkeypatch):
    """How many rows each statement on PostgreSQL gave."""
    found = []
    fetch = connect._Connection.fetch

    async def counted(self, *args, **how):
        rows = await fetch(self, *args, **how)
        found.append(len(rows))
        return rows

    monkeypatch.setattr(connect._Connection, "fetch", counted)
    return found


async def _same_as_fitting(store, rows_read, read, *, newest_first=False):
    """Looks at each limit that is between two rows, and at each that is one."""
    whole = (await read(2**40))[:: -1 if newest_first else 1]
    assert len(whole) > 3
    sizes = list(itertools.accumulate(row.size for row in whole))
    for limit in {1, *sizes, *(size + 1 for size in sizes), *(size - 1 for size in sizes)}:
        rows_read.clear()
        found = (await read(limit))[:: -1 if newest_first else 1]
        assert found == fitting(whole, limit)
        if store.info.kind == "postgresql":
            assert rows_read == [len(found)], "what is not shown is not read"


async def test_calls_up_to_some_bytes(store, rows_read):
    s = await running(store)
    await write(store, s.calls(1, '"ééé"', None, "{}", '"\U0001f600"', "[]").unit())
    for ordinal, result in ((2, b"r" * 50), (4, b"x" * 5_000)):
        s.move_call(1, ordinal, CLAIMED)
        await write(
            store, s.move_call(1, ordinal, COMMITTED, result, outcome=ToolOutcome.OK).unit()
        )
    s.move_call(1, 1, COMMITTED, outcome=ToolOutcome.ERROR).result(1, 1, b"first" * 9)
    await write(store, s.result(1, 2, b"2:", stored=True).unit())

    async def read(limit):
        return await store.list_tool_calls("default", s.run_id, None, 9, limit)

    await _same_as_fitting(store, rows_read, read)


async def test_interactions_up_to_some_bytes(store, rows_read):
    s = await running(store)
    for number in range(5):
        asked = s.ask(prompt=b"p" * (100 * number + 1))
        await write(store, s.unit())
        await write(store, s.answer(asked, b"a" * 7).unit())

    async def answered(limit):
        return await store.answered_interactions("default", s.run_id, 0, limit)

    await _same_as_fitting(store, rows_read, answered, newest_first=True)
    for session_id in ("", s.session_id):

        async def read(limit, where=session_id):
            return await store.list_interactions(
                "default", where, InteractionState.ANSWERED, None, 9, limit
            )

        await _same_as_fitting(store, rows_read, read)
