"""What a batch is on PostgreSQL: its rows, its statements, their plans."""

import re
from itertools import pairwise

import pytest
from runlane_server.core.model import SessionRecord
from runlane_server.core.rows import SessionUpdated
from runlane_server.core.words import InteractionState, Phase
from runlane_server.store.base import (
    FEED_START,
    Committed,
    Rejected,
    SessionFilter,
    SharedBlock,
)
from runlane_server.store.postgres import Address, PostgresStore, connect
from store_builders import Scripted, request

pytestmark = pytest.mark.asyncio


async def write(store, *units):
    assert await store.commit(units) == [Committed()] * len(units)


# --- rows ------------------------------------------------------------------------------


async def test_nul_that_got_past_the_door_is_rejected_alone(one):
    good, bad = Scripted(), Scripted()
    await write(one, good.create().unit(), bad.create().unit())
    bad.add(SessionUpdated(display_name="a\0b"))
    outcomes = await one.commit([good.start().unit(), bad.unit(), good.end().unit()])
    assert [type(one) for one in outcomes] == [Committed, Rejected, Committed]


async def test_many_commits_of_few_sessions_in_one_batch(one):
    """Each stands on the one before it, and rows are made, changed and removed again."""
    made = [Scripted() for _ in range(5)]
    batch = [s.create(SessionRecord(labels={"n": "0"})).unit() for s in made]
    for number in range(8):
        for s in made:
            s.add(SessionUpdated(set_labels={"n": str(number)}, remove_labels=["n"]))
            batch.append(s.start(b"%d" % number).unit(request(s.session_id)))
            queued = s.queue(
                b"queued %d" % number, run_id=(run_id := f"run_{s.session_id}_{number}")
            )
            batch += [
                s.lease().unit(),
                s.end().deliver(queued, b"Q:", run_id).unit(),
                s.end().unit(),
            ]
    fork = made[0].fork("run_1", 5)
    batch += [fork.unit(), fork.message(b"own", "run_2").unit()]
    await write(one, *batch)
    for s in made:
        texts = [m.data for m in await one.messages(s.key, 1, 99, 99, 9999)]
        assert texts == [text for n in range(8) for text in (b"%d" % n, b"Q:queued %d" % n)]
        assert (await one.session(s.key)).record.labels == {"n": "7"}
        assert (await one.load(s.key)).token == s.token
    assert [m.data for m in await one.messages(fork.key, 5, 9, 9, 99)] == [b"2", b"own"]
    assert await one.queued_activations() == []
    assert await one.leases() == []
    assert await one.check() == []


# --- what work costs -------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch):
    """The statements on all connections of stores."""
    found = []

    def watch(name):
        call = getattr(connect._Connection, name)

        def watched(self, query, *args, **how):
            if "pg_notify" not in query:  # on a connection of its own, when it comes to it
                found.append(query)
            return call(self, query, *args, **how)

        monkeypatch.setattr(connect._Connection, name, watched)

    for name in ("execute", "fetch", "fetchrow", "fetchval"):
        watch(name)
    return found


async def test_batch_of_submits_is_four_statements(one, seen):
    made = [Scripted() for _ in range(64)]
    await write(one, *(s.create().unit() for s in made))
    for batch in (made[:1], made):
        seen.clear()
        await write(one, *(s.start().unit(request(s.session_id)) for s in batch))
        assert len(seen) == 4, seen
        await write(one, *(s.lease().unit() for s in batch))
        seen.clear()
        await write(one, *(s.calls(1, "{}").unit(request(s.session_id)) for s in batch))
        assert len(seen) == 4, seen
        seen.clear()
        await write(one, *(s.end().unit(request(s.session_id)) for s in batch))
        assert len(seen) == 4, seen


def _reads(store, s):
    for after in (None, (5, "x")):
        for phases in ((), (Phase.WAITING, Phase.PAUSED), (Phase.TERMINAL,)):
            yield store.list_runs(s.key, phases, after, 50)
        yield store.list_submissions(s.key, (), after, 50, 9)
        for order in (1, 2, 3):
            yield store.list_sessions("default", SessionFilter(), order, after, 50)
        yield store.list_sessions("default", SessionFilter(forks_of="x"), 1, after, 50)
        yield store.list_stalled_runs("default", after, 50)
        yield store.list_child_runs("default", "run_x", after, 50)
        for session_id in ("", s.session_id):
            yield store.list_interactions("default", session_id, InteractionState.OPEN, after, 50)
    yield store.list_tool_calls("default", s.run_id, (5, 1), 50)
    yield store.interaction("default", "int_x")
    yield store.answered_interactions("default", s.run_id, 1)
    yield store.load(s.key)
    yield store.live(s.key, 9, 99, 9)
    yield store.events(s.key, 0, 99, 9, 99)
    yield store.feed("default", FEED_START, 9, 99)
    yield store.feed_end()
    yield store.messages(s.key, 1, 99, 9, 99)
    yield store.messages_by_number(s.key, [1, 2])
    yield store.ancestors(s.key, 9)
    yield store.last_sequence(s.key)
    yield store.submission("default", "sub_x")
    yield store.find_session_of_submission("default", "sub_x")
    yield store.expire_requests(0, 10)
    shared = store.shared
    yield shared.tokens([s.key])
    yield shared.moved("1:1:")
    yield shared.queued_for([("default", "main")], 0, 9)
    yield shared.due(0, 0, 9)
    yield shared.met("me", [], 0)
    yield shared.roster("me", 0, 0)
    yield shared.drained_among([("default", "exe")])
    yield shared.put_blocks("me", [block := SharedBlock(s.key, "str_x", 1, b"text")], [block], 0)
    yield shared.blocks("you", {s.key: 0}, 99)
    yield shared.commit_locked([s.key], lambda _: [])


SORTED = (
    "FROM messages m WHERE",
    "FROM sessions s CROSS JOIN unnest(",
    "FOR NO KEY UPDATE",
    "WITH RECURSIVE",
    "WITH page",
    "JOIN deltas d ON",
)
"""What is sorted is a page, a batch, a line of forks, or the blocks on their way that are read."""


BY_ID = r"\b(key|(?!proxy_|model_stream_|request_)\w+_id)\)?(::text)? = "
WALKED = (
    "FROM timers t",
    "FROM leases l JOIN sessions s ON s.key = l.session_key",
    "FROM notices WHERE",
    "FROM queued WHERE namespace >= ''",
)
"""What is walked from one end: what is due or counted, up to a limit."""


@pytest.mark.parametrize("rows", [0, 1_000_000])
async def test_plans_use_the_indexes(database, seen, rows):
    """No statement scans or sorts what it does not show: not even where tables are empty.

    On a database of its own: what was counted in another test would be believed here.
    """
    store = PostgresStore(Address(database), readers=2)
    await store.open(0, "")
    try:
        seen.clear()
        found = await _bad_plans(database, store, seen, rows)
    finally:
        await store.close()
    for sql, plan in found:
        print(sql, *plan, sep="\n")
    assert not found


async def _bad_plans(database, one, seen, rows):
    s = Scripted()
    await write(one, s.create().unit(), s.start().unit(request(s.session_id)))
    for read in _reads(one, s):
        await read
    await write(one, s.lease().unit(), s.calls(1, "{}").unit(), s.end().unit())
    found = []
    conn = await Address(database).connect("test", **connect._PLANS)
    if rows:  # A planner takes from here how many a page holds.
        await conn.execute(
            "UPDATE pg_class SET relpages = pg_relation_size(oid) / 8192, reltuples = $1::bigint"
            " WHERE relnamespace = 'runlane'::regnamespace AND pg_relation_size(oid) > 0",
            rows,
        )
    skipped = ("BEGIN", "COMMIT", "ROLLBACK")
    try:
        for number, sql in enumerate(
            dict.fromkeys(one for one in seen if not one.startswith(skipped))
        ):
            if "nextval" in sql or "set_config" in sql:
                continue
            count = max((int(one) for one in re.findall(r"\$(\d+)", sql)), default=0)
            await conn.execute(f"PREPARE p{number} AS {sql}")
            given = f"({', '.join(['NULL'] * count)})" if count else ""
            plan = [row[0] for row in await conn.fetch(f"EXPLAIN EXECUTE p{number}{given}")]
            if any(_is_bad(sql, *lines) for lines in pairwise([*map(str.strip, plan), ""])):
                found.append((sql, plan))
    finally:
        await conn.close()
    return found


def _is_bad(sql, line, following):
    """Tells whether a line of a plan is a walk, or sorts, or throws away what it found."""
    line = line.removeprefix("->  ")
    if "Seq Scan" in line:
        return True
    if line.startswith("Sort  "):
        return not any(one in sql for one in SORTED)
    if line.startswith("Index ") and " Scan " in line and not following.startswith("Index Cond"):
        return not any(one in sql for one in WALKED)
    return line.startswith(("Filter:", "Join Filter:")) and re.search(BY_ID, line)
