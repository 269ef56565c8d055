"""What namespaces have in the store."""

import sqlite3

import asyncpg
import pytest
from runlane_server.core.rows import SessionDeleted, TimerSet
from runlane_server.core.words import TimerKind
from runlane_server.store.base import Committed, CommitUnit, Conflict, Duplicate, Usage
from runlane_server.store.migrate import read_migrations
from runlane_server.store.postgres import Address, PostgresStore
from runlane_server.store.postgres.connect import SCHEMA
from runlane_server.store.sqlite import SqliteStore
from store_builders import Scripted, request

pytestmark = pytest.mark.asyncio


def sized(unit: CommitUnit, *sizes: int) -> CommitUnit:
    for commit, size in zip(unit.sessions, sizes, strict=True):
        commit.size = size
    return unit


async def write(store, *units: CommitUnit) -> None:
    assert await store.commit(units) == [Committed()] * len(units)


async def test_sizes_of_commits_are_summed_up_by_namespace(store):
    assert await store.usage("default") == Usage(0, 0)
    one, two, other = Scripted(), Scripted(), Scripted(namespace="other")
    await write(
        store,
        sized(one.create().unit(), 10),
        sized(two.create().unit(), 200),
        sized(other.create().unit(), 7),
    )
    one.time += 1  # its update_time changes, and then stays
    await write(store, sized(one.unit(), 3_000))
    await write(store, sized(one.unit(), 40_000), sized(one.unit(), 500_000))
    assert await store.usage("default") == Usage(2, 543_210)
    assert await store.usage("other") == Usage(1, 7)
    assert await store.usage("none") == Usage(0, 0)


async def test_what_is_not_written_adds_nothing(store):
    one = Scripted()
    known = request(one.session_id)
    await write(store, sized(one.create().unit(known), 1))
    again, stale = Scripted(session_id=one.session_id), Scripted(session_id=one.session_id)
    stale.token = bytes(16)
    units = [sized(again.create().unit(), 9), sized(stale.unit(), 9), sized(one.unit(known), 9)]
    outcomes = await store.commit(units)
    assert [type(one) for one in outcomes] == [Conflict, Conflict, Duplicate]
    assert await store.usage("default") == Usage(1, 1)


async def test_a_deleted_session_takes_nothing(store):
    one, two = Scripted(), Scripted()
    await write(store, sized(one.create().unit(), 5), sized(two.create().unit(), 6))
    one.add(SessionDeleted(100)).add(TimerSet(TimerKind.SWEEP, 160))
    await write(store, sized(one.unit(), 1))
    assert await store.usage("default") == Usage(1, 6)
    assert await store.sweep(one.key, 100)
    assert await store.usage("default") == Usage(1, 6)


async def unmeasured(store) -> Usage:
    """Writes what nobody has said the size of; returns what it takes."""
    one, two = Scripted(), Scripted()
    await write(store, one.create().unit(size=100), two.create().unit(size=30))
    await write(store, one.start(b"m" * 400).unit(size=1_000))
    await write(store, two.start(b"m" * 200).unit(size=50))
    two.queue(b"w" * 7_000)
    await write(store, two.unit(size=20_000))
    assert await store.usage("default") == Usage(2, 0)
    events, messages, waits = 100 + 30 + 1_000 + 50 + 20_000, 400 + 200, 7_000
    return Usage(2, events + messages + waits)


async def test_a_file_of_the_version_before_is_measured(path):
    store = SqliteStore(path)
    await store.open(0, "")
    expected = await unmeasured(store)
    await store.close()
    conn = sqlite3.connect(path)
    conn.executescript(
        "DROP INDEX api_keys_by_request; DROP INDEX api_keys_by_expiry;"
        " DROP INDEX api_keys_by_create_time; DROP INDEX drained_executors_by_time;"
        " ALTER TABLE drained_executors DROP COLUMN drain_time;"
        " ALTER TABLE sessions DROP COLUMN stored_bytes;"
    )
    conn.execute("DELETE FROM migrations WHERE version >= 3")
    conn.execute("PRAGMA user_version = 2")
    conn.commit()
    conn.close()
    store = SqliteStore(path)
    await store.open(0, "")
    assert await store.usage("default") == expected
    await store.close()


async def test_a_database_of_the_version_before_is_measured(postgres):
    store = PostgresStore(Address(postgres))
    await store.open(0, "")
    expected = await unmeasured(store)
    await store.close()
    conn = await asyncpg.connect(postgres, server_settings={"search_path": SCHEMA})
    await conn.execute("ALTER TABLE sessions DROP COLUMN stored_bytes")
    await conn.execute(read_migrations("runlane_server.store.postgres")[2].sql)
    await conn.close()
    store = PostgresStore(Address(postgres))
    await store.open(0, "")
    assert await store.usage("default") == expected
    await store.close()
