"""What concerns a file alone: who holds it, what it is, what a write costs."""

import asyncio
import hashlib
import os
import random
import shutil
import sqlite3

import pytest
from runlane_server.core.rows import TimerSet
from runlane_server.core.words import InteractionState, Phase, TimerKind, ToolCallState
from runlane_server.store import migrate
from runlane_server.store.base import (
    FEED_START,
    Committed,
    CommitUnit,
    SessionFilter,
    SessionOrder,
)
from runlane_server.store.errors import StoreCorrupt, StoreError, StoreRefused
from runlane_server.store.migrate import Migration, plan, read_migrations
from runlane_server.store.sqlite import SqliteStore, files
from runlane_server.store.sqlite.store import check_file
from store_builders import Scripted, request

pytestmark = pytest.mark.asyncio


async def write(store, *units):
    assert await store.commit(units) == [Committed()] * len(units)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


async def refused(path, *words):
    store = SqliteStore(path)
    before = digest(path) if path.is_file() else None
    with pytest.raises(StoreRefused) as caught:
        await store.open(0, "")
    for word in words:
        assert word in str(caught.value)
    assert (digest(path) if path.is_file() else None) == before


async def made(path, sessions=0):
    store = SqliteStore(path)
    await store.open(0, "")
    for _ in range(sessions):
        await write(store, Scripted().create().unit())
    await store.close()
    return store.info


async def test_store_is_the_same_after_it_was_opened_again(path):
    store = SqliteStore(path)
    await store.open(0, "")
    s = Scripted()
    await write(store, s.create().unit(), s.start(b"kept").unit(request(s.session_id)))
    info = store.info
    assert (info.kind, info.durable, info.epoch) == ("sqlite", True, 1)
    await store.close()
    await store.close()
    again = SqliteStore(path)
    await again.open(0, "")
    assert again.info == info
    assert len(info.secret) == 32
    assert repr(info.secret) not in repr(info), "it is in no log"
    assert (await again.live(s.key, 9, 999, 9)).messages[0].data == b"kept"
    assert await again.check() == []
    await again.close()


async def test_memory_stores_are_private():
    one, two = SqliteStore(None), SqliteStore(None)
    await one.open(0, "")
    await two.open(0, "")
    s = Scripted()
    await write(one, s.create().unit())
    assert await two.load(s.key) is None
    assert (one.info.kind, one.info.durable) == ("memory", False)
    assert one.info.store_id != two.info.store_id
    assert one.info.secret != two.info.secret
    assert len(one.info.secret) == 32
    await one.close()
    await two.close()


async def test_second_opener_is_refused_and_told_who_holds_it(path, file_store):
    await refused(path, str(path), str(os.getpid()))
    s = Scripted()
    await write(file_store, s.create().unit())
    await file_store.close()
    assert (await made(path)).store_id == file_store.info.store_id


async def test_missing_folder_is_refused(tmp_path):
    await refused(tmp_path / "no" / "test.db", "folder", "does not exist")
    await refused(tmp_path, "not a file")


async def test_foreign_files_are_refused(path):
    path.write_bytes(b"some text that is no database" * 100)
    await refused(path, "not a SQLite database")
    assert not path.with_name("test.db.lock").exists()
    path.unlink()
    with sqlite3.connect(path) as conn:
        conn.execute("CREATE TABLE mine (x)")
    conn.close()
    await refused(path, "not one of Runlane")


async def test_newer_schema_is_refused(path):
    await made(path, 1)
    conn = sqlite3.connect(path)
    conn.execute("INSERT INTO migrations VALUES (99, 'later', 'x', 0)")
    conn.execute("PRAGMA user_version=99")
    conn.commit()
    conn.close()
    await refused(path, "schema version 99")


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE migrations SET checksum = 'x'",
        "DELETE FROM migrations",
        "PRAGMA user_version=7",
        "DROP TABLE migrations",
    ],
)
async def test_changed_history_of_migrations_is_refused(path, sql):
    await made(path, 1)
    conn = sqlite3.connect(path)
    conn.execute(sql)
    conn.commit()
    conn.close()
    await refused(path)


async def test_older_schema_is_migrated_or_stays_as_it_was(path, monkeypatch):
    info = await made(path, 1)
    known = read_migrations("runlane_server.store.sqlite")

    def with_next(sql):
        later = Migration(len(known) + 1, "later", sql, "sum")
        monkeypatch.setattr(files, "read_migrations", lambda _package: [*known, later])

    with_next("CREATE TABLE later (x INTEGER);\nCREATE TABLE later (x INTEGER);\n")
    with pytest.raises(StoreRefused):
        await SqliteStore(path).open(0, "")
    monkeypatch.undo()
    assert (await made(path)).store_id == info.store_id
    with_next("CREATE TABLE later (x INTEGER);\n")
    assert await made(path) == info
    monkeypatch.undo()
    await refused(path, f"schema version {len(known) + 1}")


async def test_plan_of_migrations():
    one, two = Migration(1, "one", "", "a"), Migration(2, "two", "", "b")
    assert plan([one, two], {}, "it") == [one, two]
    assert plan([one, two], {1: "a"}, "it") == [two]
    assert plan([one, two], {1: "a", 2: "b"}, "it", verify=True) == []
    for applied, verify in (
        ({1: "a"}, True),
        ({1: "z"}, False),
        ({2: "b"}, False),
        ({1: "a", 2: "b", 3: "c"}, False),
    ):
        with pytest.raises(StoreRefused):
            plan([one, two], applied, "it", verify=verify)
    with pytest.raises(ValueError, match="inside"):
        Migration(1, "x", "CREATE TABLE a (b)", "").statements()
    assert migrate.read_migrations("runlane_server.store.sqlite")[0].version == 1


async def test_leases_at_reopening(path):
    store = SqliteStore(path)
    await store.open(0, "")
    for executor, expire in (("embedded-1", 900), ("embedded-2", 50), ("x1", 60), ("x2", 900)):
        s = Scripted()
        await write(store, s.create().unit(), s.start().unit())
        await write(store, s.lease(executor, expire, 30, confirmed=executor == "x2").unit())
    await store.close()
    again = SqliteStore(path)
    await again.open(100, "embedded-")
    found = await again.leases()
    assert {lease.executor_id: lease.expire_time for lease in found} == {
        "embedded-1": 100,
        "embedded-2": 50,
        "x1": 130,
        "x2": 900,
    }
    for lease in found:
        loaded = await again.load(lease.key)
        assert loaded.lease_expire_time == lease.expire_time
        assert loaded.lease_confirmed is (lease.executor_id == "x2")
    await again.close()


async def test_what_runs_wait_for_is_there_after_reopening(path):
    store = SqliteStore(path)
    await store.open(0, "")
    asking, paused, behind = Scripted(), Scripted(), Scripted()
    for s in (asking, paused, behind):
        await write(store, s.create().unit(), s.start().unit(), s.lease().unit())
    asking.calls(1, "{}", "{}").move_call(1, 2, ToolCallState.COMMITTED, b"\x00kept")
    interaction_id = asking.ask(1, expire=500)
    asking.add(TimerSet(TimerKind.INTERACTION, 500))
    paused.hold(Phase.PAUSED)
    behind.hold(Phase.ACTIVE).go_on(not_before=90)
    await write(store, asking.unit(), paused.unit(), behind.unit())
    inbox = await store.list_interactions("default", "", InteractionState.OPEN, None, 9)
    calls = await store.list_tool_calls("default", asking.run_id, None, 9)
    await store.close()
    again = SqliteStore(path)
    await again.open(0, "")
    assert [row.interaction_id for row in inbox] == [interaction_id]
    assert await again.list_interactions("default", "", InteractionState.OPEN, None, 9) == inbox
    assert await again.list_tool_calls("default", asking.run_id, None, 9) == calls
    assert calls[1].result == b"\x00kept"
    assert (await again.run("default", asking.run_id)).phase is Phase.WAITING
    assert (await again.run("default", paused.run_id)).phase is Phase.PAUSED
    assert [one.not_before for one in await again.queued_activations()] == [90]
    assert [(one.kind, one.due_time) for one in await again.timers()] == [
        (TimerKind.INTERACTION, 500)
    ]
    assert await again.check() == []
    await again.close()


async def test_copy_of_the_files_while_writing_is_whole(path, file_store, tmp_path):
    s = Scripted()
    await write(file_store, s.create().unit())
    for _ in range(20):
        await write(file_store, s.start().unit(), s.end().unit())
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    shutil.copy(f"{path}-wal", f"{copy}-wal")
    again = SqliteStore(copy)
    await again.open(0, "")
    assert (await again.load(s.key)).token == s.token
    assert await again.check() == []
    await again.close()


async def test_a_check_reads_what_a_dead_server_left_and_leaves_it(path, file_store, tmp_path):
    s = Scripted()
    await write(file_store, s.create().unit(), s.start().unit(), s.end().unit())
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    log = copy.with_name("copy.db-wal")
    shutil.copy(f"{path}-wal", log)
    before = copy.read_bytes(), log.read_bytes()
    assert check_file(copy) == []
    assert (copy.read_bytes(), log.read_bytes()) == before


async def test_a_check_leaves_nothing_beside_a_file_that_was_closed(path, tmp_path):
    store = SqliteStore(path)
    await store.open(0, "")
    await store.close()
    before = path.read_bytes()
    assert check_file(path) == []
    assert path.read_bytes() == before
    assert sorted(one.name for one in path.parent.iterdir() if one.name.startswith(path.name)) == [
        path.name,
        f"{path.name}.lock",
    ]


async def test_damaged_page_is_corrupt_and_told_by_check(path):
    store = SqliteStore(path)
    await store.open(0, "")
    s = Scripted()
    await write(store, s.create().unit())
    for _ in range(50):
        await write(store, s.start(b"x" * 3000).unit(), s.end().unit())
    await store.close()
    data = bytearray(path.read_bytes())
    for page in range(3 * 4096, len(data), 4096):
        data[page : page + 64] = b"\xff" * 64
    path.write_bytes(bytes(data))
    again = SqliteStore(path)
    with pytest.raises(StoreError):
        await again.open(0, "")
        assert await again.check() != []
        await again.messages(s.key, 1, 99, 99, 99_999)
    await again.close()


async def test_error_of_a_damaged_file_is_store_corrupt(file_store):
    def read(_conn):
        raise sqlite3.DatabaseError("database disk image is malformed")

    with pytest.raises(StoreCorrupt):
        await file_store._read(read)


async def test_reader_sees_one_snapshot_while_another_writes(file_store):
    s = Scripted()
    await write(file_store, s.create().unit())
    loop = asyncio.get_running_loop()

    def read(conn):
        first = conn.execute("SELECT count(*) FROM entries").fetchone()
        asyncio.run_coroutine_threadsafe(write(file_store, s.start().unit()), loop).result(10)
        return first == conn.execute("SELECT count(*) FROM entries").fetchone()

    assert await file_store._read(read)


# --- what work costs, in statements and pages ------------------------------------------


async def statements(store, act):
    """Counts the statements on every connection while something is done."""
    seen = []
    conns = [store._conn, *store._readers._connections]
    for conn in conns:
        conn.set_trace_callback(seen.append)
    await act()
    for conn in [*conns, *store._readers._connections]:
        conn.set_trace_callback(None)
    return len(seen)


async def test_statements_do_not_grow_with_the_history(file_store):
    store = file_store
    store._readers._pool._max_workers = 1  # One connection, so that none goes uncounted.
    s = Scripted()
    await write(store, s.create().unit(), s.start().unit(), s.end().unit())
    counted = []
    for _ in range(2):
        costs = {}
        costs["submit"] = await statements(
            store, lambda: write(store, s.start().unit(request(s.session_id)))
        )
        await write(store, s.lease().unit())
        waits = {"batch": s.calls(1, "{}").unit()}
        s.move_call(1, 1, ToolCallState.COMMITTED).result(1, 1, b"r")
        waits["result"] = s.unit()
        asked = s.ask(1)
        waits["suspend"] = s.unit()
        waits["answer"] = s.answer(asked).unit()
        for name, unit in waits.items():
            costs[name] = await statements(store, lambda one=unit: write(store, one))
        run_id = s.run_id
        costs["end"] = await statements(
            store, lambda: write(store, s.end().unit(request(s.session_id)))
        )
        fork = s.fork("run_1", s.messages)
        costs["fork"] = await statements(
            store, lambda one=fork: write(store, one.unit(request(method="ForkSession")))
        )
        reads = {
            "runs": lambda: store.list_runs(s.key, (), None, 50),
            "submissions": lambda: store.list_submissions(s.key, (), None, 50, 100),
            "sessions": lambda: store.list_sessions(
                "default", SessionFilter(), SessionOrder.CREATED_DESC, None, 50
            ),
            "events": lambda: store.events(s.key, 0, 10**9, 256, 10**6),
            "messages": lambda one=fork: store.messages(one.key, 1, 10**9, 256, 10**6),
            "by number": lambda one=fork: store.messages_by_number(one.key, [1, 2]),
            "live": lambda: store.live(s.key, 50, 10**6, 100),
            "load": lambda: store.load(s.key),
            "calls": lambda one=run_id: store.list_tool_calls("default", one, None, 50),
            "inbox": lambda: store.list_interactions(
                "default", "", InteractionState.ANSWERED, None, 50
            ),
            "stalled": lambda: store.list_stalled_runs("default", None, 50),
        }
        for name, read in reads.items():
            await read()
            costs[name] = await statements(store, read)
        counted.append(costs)
        for _ in range(60):
            await write(store, s.start().unit(), s.calls(1, "{}").unit())
            s.move_call(1, 1, ToolCallState.COMMITTED).result(1, 1, b"r")
            asked = s.ask(1)
            await write(store, s.unit(), s.answer(asked).unit(), s.end().unit())
    assert counted[0] == counted[1]
    assert counted[1]["submit"] <= 10


@pytest.mark.parametrize(("batch", "most"), [(1, 12), (64, 5)])
async def test_pages_written_for_a_submit_to_an_idle_session(path, file_store, batch, most):
    store, count = file_store, 640
    made = [Scripted() for _ in range(count)]
    for start in range(0, count, 64):
        await write(store, *(s.create().unit() for s in made[start : start + 64]))
    for _ in range(3):
        await write(store, *(s.start().unit(request(s.session_id), events=3) for s in made))
        await write(store, *(s.lease().unit() for s in made))
        await write(store, *(s.end().unit(request(s.session_id), events=3) for s in made))
    random.Random(1).shuffle(made)
    store._conn.execute("PRAGMA wal_autocheckpoint=0")
    store._conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    page = store._conn.execute("PRAGMA page_size").fetchone()[0]
    log = path.with_name("test.db-wal")
    written = 0
    for start in range(0, count, batch):
        some = made[start : start + batch]
        before = log.stat().st_size if log.exists() else 0
        await write(store, *(s.start().unit(request(s.session_id), events=3) for s in some))
        written += (log.stat().st_size - before) // (page + 24)
        await write(store, *(s.lease().unit() for s in some))
    print(f"batch {batch}: {written / count:.2f} pages a submit")
    assert written / count <= most


async def test_plans_use_the_indexes(file_store):
    """A page never sorts or scans what it does not show."""
    seen = []
    s = Scripted()
    await write(file_store, s.create().unit(), s.start().unit())
    await file_store.load(s.key)
    file_store._readers._pool._max_workers = 1
    conn = file_store._readers._connections[0]
    conn.set_trace_callback(seen.append)
    for after in (None, (5, "x")):
        await file_store.list_runs(s.key, (), after, 50)
        await file_store.list_submissions(s.key, (), after, 50, 9)
        for order in (1, 2, 3):
            await file_store.list_sessions("default", SessionFilter(), order, after, 50)
        await file_store.list_sessions("default", SessionFilter(forks_of="x"), 1, after, 50)
        await file_store.list_runs(s.key, (Phase.WAITING, Phase.PAUSED), after, 50)
        await file_store.list_runs(s.key, (Phase.TERMINAL,), after, 50)
        await file_store.list_stalled_runs("default", after, 50)
        for session_id in ("", s.session_id):
            for state in InteractionState:
                await file_store.list_interactions("default", session_id, state, after, 50)
    for place in (None, (5, 1)):
        await file_store.list_tool_calls("default", s.run_id, place, 50)
    await file_store.interaction("default", "int_x")
    await file_store.answered_interactions("default", s.run_id, 1)
    await file_store.load(s.key)
    await file_store.live(s.key, 9, 99, 9)
    await file_store.events(s.key, 0, 99, 9, 99)
    await file_store.feed("default", FEED_START, 9, 99)
    await file_store.feed_end()
    conn.set_trace_callback(None)
    plain = sqlite3.connect(
        f"file:{conn.execute('PRAGMA database_list').fetchone()[2]}?mode=ro", uri=True
    )
    for sql in seen:
        if sql.startswith(("BEGIN", "ROLLBACK")):
            continue
        steps = [row[3] for row in plain.execute(f"EXPLAIN QUERY PLAN {sql}")]
        for step in steps:
            assert not step.startswith("SCAN") or step == "SCAN CONSTANT ROW", (sql, steps)
            assert step != "USE TEMP B-TREE FOR ORDER BY", (sql, steps)
    plain.close()


async def test_an_empty_unit_tries_the_disk_and_leaves_nothing(file_store):
    path = file_store._path
    log = path.with_name(path.name + "-wal")
    for _ in range(3):
        before = digest(log)
        await write(file_store, CommitUnit())
        assert digest(log) != before
    assert await file_store.drained_executors() == []
    assert await file_store.check() == []
