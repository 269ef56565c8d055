"""What concerns a PostgreSQL database alone: what it is, what is lost with it."""

import asyncio
import contextlib

import asyncpg
import pytest
import pytest_asyncio
from runlane_server.store.base import (
    Committed,
    CommitUnit,
    Duplicate,
    Unavailable,
)
from runlane_server.store.errors import (
    StoreCorrupt,
    StoreError,
    StoreFault,
    StoreRefused,
    StoreUnavailable,
)
from runlane_server.store.migrate import Migration, read_migrations
from runlane_server.store.postgres import Address, PostgresStore, check_database, connect, schema
from runlane_server.store.postgres.schema import MIGRATING
from store_builders import Scripted, request
from support.postgres import PASSWORD
from support_server import Proxy

pytestmark = pytest.mark.asyncio

PACKAGE = "runlane_server.store.postgres"


async def write(store, *units):
    assert await store.commit(units) == [Committed()] * len(units)


async def run(url, sql):
    conn = await asyncpg.connect(url)
    try:
        return await conn.fetch(sql) if sql.startswith("SELECT") else await conn.execute(sql)
    finally:
        await conn.close()


async def refused(url, *words, **how):
    store = PostgresStore(Address(url, **how))
    with pytest.raises(StoreRefused) as caught:
        await store.open(0, "")
    for word in words:
        assert word in str(caught.value)
    assert not store.is_open
    return str(caught.value)


async def opened(url):
    store = PostgresStore(Address(url))
    await store.open(0, "")
    await store.close()
    return store.info


async def within(seconds, holds):
    async with asyncio.timeout(seconds):
        while not await holds():  # noqa: ASYNC110 - the database sets no event
            await asyncio.sleep(0.02)


# --- what a database is ----------------------------------------------------------------


async def test_store_is_the_same_after_it_was_opened_again(postgres):
    store = PostgresStore(Address(postgres))
    await store.open(0, "")
    s = Scripted()
    await write(store, s.create().unit(), s.start(b"kept").unit(request(s.session_id)))
    info = store.info
    assert (info.kind, info.durable, info.epoch, len(info.secret)) == ("postgresql", True, 1, 32)
    await store.close()
    await store.close()
    again = PostgresStore(Address(postgres))
    await again.open(0, "")
    assert again.info == info
    assert (await again.live(s.key, 9, 999, 9)).messages[0].data == b"kept"
    assert await again.check() == []
    await again.close()


async def test_a_database_may_hold_other_things(database):
    await run(database, "CREATE TABLE sessions (mine integer)")
    info = await opened(database)
    assert await opened(database) == info
    assert await run(database, "SELECT * FROM sessions") == []


async def test_foreign_schema_is_refused_and_stays_as_it_was(database):
    await run(database, "CREATE SCHEMA runlane")
    await run(database, "CREATE TABLE runlane.mine (x integer)")
    await refused(database, "not one of Runlane")
    assert len(await run(database, "SELECT 1 FROM pg_tables WHERE schemaname = 'runlane'")) == 1


async def test_role_that_may_not_make_a_schema_uses_the_one_that_was_made_for_it(
    postgres_server, database
):
    locked = postgres_server.url("fresh", f"locked:{PASSWORD}")
    await refused(locked, "permission denied")
    await run(database, "CREATE SCHEMA runlane AUTHORIZATION locked")
    await opened(locked)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE runlane.migrations SET checksum = 'x'",
        "DELETE FROM runlane.migrations",
        "INSERT INTO runlane.migrations VALUES (99, 'later', 'x', 0)",
        "DROP TABLE runlane.migrations",
    ],
)
async def test_newer_schema_and_changed_history_are_refused(database, sql):
    await opened(database)
    await run(database, sql)
    await refused(database)


async def test_older_schema_is_migrated_or_stays_as_it_was(database, monkeypatch):
    info = await opened(database)
    known = read_migrations(PACKAGE)

    def with_next(sql):
        later = Migration(known[-1].version + 1, "later", sql, "sum")
        monkeypatch.setattr(schema, "read_migrations", lambda _package: [*known, later])

    with_next("CREATE TABLE later (x integer);\nCREATE TABLE later (x integer);\n")
    await refused(database, "already exists")
    with pytest.raises(StoreRefused, match="may not be made"):
        await check_database(Address(database))
    monkeypatch.undo()
    assert await opened(database) == info
    with_next("CREATE TABLE later (x integer);\n")
    assert await opened(database) == info
    monkeypatch.undo()
    await refused(database, f"schema version {known[-1].version + 1}")


async def test_no_tables_are_changed_under_servers_that_do_not_know_it(database, monkeypatch):
    serving = PostgresStore(Address(database))
    await serving.open(0, "")
    known = read_migrations(PACKAGE)
    later = Migration(known[-1].version + 1, "later", "CREATE TABLE later (x integer);\n", "sum")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "read_migrations", lambda _package: [*known, later])
        await refused(database, "older version", "stop them")
        assert await run(database, "SELECT to_regclass('runlane.later')") == [(None,)]
    await opened(database)  # of the same version
    await serving.close()
    with monkeypatch.context() as patch:
        patch.setattr(schema, "read_migrations", lambda _package: [*known, later])
        await opened(database)


async def test_start_fails_while_another_server_migrates(database):
    conn = await asyncpg.connect(database)
    await conn.execute(f"SELECT pg_advisory_lock({MIGRATING})")
    await refused(database, "being migrated")
    await conn.close()
    await opened(database)


async def test_check_of_a_database(database, postgres_server):
    with pytest.raises(StoreRefused, match="no store"):
        await check_database(Address(database))
    store = PostgresStore(Address(database))
    await store.open(0, "")
    s = Scripted()
    await write(store, s.create().unit(), s.start().unit())
    assert await check_database(Address(database)) == [], "also beside its server"
    await store.close()
    await run(database, "UPDATE runlane.runs SET phase = 3")
    (found,) = await check_database(Address(database))
    assert "not active" in found


async def test_what_cannot_be_reached_is_refused_without_its_password(postgres_server):
    port = postgres_server.port
    for url, word in (
        (f"postgresql://locked:hush-hush@127.0.0.1:{port}/postgres", "password"),
        (f"postgresql://runlane:hush-hush@127.0.0.1:{port}/nowhere", "nowhere"),
        ("postgresql://runlane:hush-hush@127.0.0.1:1/test", "reached"),
        ("postgresql://runlane:hush-hush@no-such-host.invalid/test", "reached"),
        ("postgresql://runlane:hush-hush@127.0.0.1:port/test", "address"),
        (f"postgresql://runlane:hush-hush@127.0.0.1:{port}/test?sslmode=hush", "address"),
    ):
        told = await refused(url, word)
        assert "hush" not in told
        assert "\n" not in told
    assert "hush" not in repr(Address("postgresql://runlane:hush-hush@host/test"))


async def _goes_on(store):
    async def holds():
        return await store.commit([CommitUnit()]) == [Committed()]

    await within(10, holds)


# --- connections that are lost ---------------------------------------------------------


async def test_lost_connection_in_a_batch_makes_all_of_it_unavailable(postgres_server, one):
    s, other = Scripted(), Scripted()
    await write(one, s.create().unit(), other.create().unit())
    for point in ("unit", "commit"):
        token, sequence, messages = s.token, s.sequence, s.messages
        asked = request(s.session_id)

        def cut(where, point=point, store=one):
            if where == point:
                store.committer.faults = None
                assert postgres_server.terminate("test") >= 2

        one.committer.faults = cut
        outcomes = await one.commit([s.start().unit(asked), CommitUnit()])
        assert [type(outcome) for outcome in outcomes] == [Unavailable, Unavailable]
        await _goes_on(one)
        assert await one.find_request(asked.key) is None
        assert (await one.load(s.key)).token == token
        s.token, s.sequence, s.messages = token, sequence, messages
    await write(one, s.start().unit())


async def test_commit_that_was_done_and_not_answered_is_settled_by_its_request(one, monkeypatch):
    s = Scripted()
    await write(one, s.create().unit())
    asked = request(s.session_id)
    conn = await one._writing.get()
    execute = conn.execute

    async def cut(query, *args, **how):
        status = await execute(query, *args, **how)
        if query == "COMMIT":
            conn.terminate()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle")
        return status

    monkeypatch.setattr(conn, "execute", cut)
    unit = s.start().unit(asked)
    assert [type(one) for one in await one.commit([unit])] == [Unavailable]
    assert await one.find_request(asked.key) == asked
    assert await one.commit([unit]) == [Duplicate(asked)]


async def test_read_over_its_time_is_unavailable_and_harms_no_other(postgres):
    store = PostgresStore(Address(postgres, statement_timeout=1.0), readers=1)
    await store.open(0, "")

    async def slow(conn):
        await conn.fetch("SELECT pg_sleep(30)")

    with pytest.raises(StoreUnavailable):
        await store._read(slow)
    assert await store.timers() == []
    await store.close()


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("CREATE TABLE mine (x integer)", StoreUnavailable),  # as a standby would say
        ("DO $$ BEGIN RAISE SQLSTATE '53300'; END $$", StoreUnavailable),
        ("DO $$ BEGIN RAISE SQLSTATE '57P01'; END $$", StoreUnavailable),
        ("DO $$ BEGIN RAISE SQLSTATE 'XX000'; END $$", StoreUnavailable),
        ("DO $$ BEGIN RAISE SQLSTATE 'XX001'; END $$", StoreCorrupt),
        ("SELECT * FROM nowhere", StoreFault),
        (
            "SELECT pg_read_file('/x') FROM (SELECT set_config('role', 'locked', true)) x",
            StoreFault,
        ),
        ("SELECT 'hush'::integer", StoreFault),
    ],
)
async def test_only_what_passes_is_unavailable(one, sql, kind):
    async def ask(conn):
        await conn.fetch(sql)

    with pytest.raises(StoreError) as caught:
        await one._read(ask)
    assert type(caught.value) is kind
    assert "hush" not in str(caught.value)


async def test_what_the_driver_cannot_send_is_no_fault_of_the_connection(one):
    async def ask(conn):
        used.append(await conn.fetchval("SELECT pg_backend_pid()"))
        await conn.fetch("SELECT $1::integer", 2**40)

    used = []
    for _ in range(3):
        with pytest.raises(StoreFault):
            await one._read(ask)
    assert len(set(used)) == 1


@pytest_asyncio.fixture
async def silent(postgres, monkeypatch):
    """A store whose two connections that read are both in use, and get no answer."""
    monkeypatch.setattr(connect, "_STILL_SECONDS", 0.3)
    monkeypatch.setattr(connect, "_CLOSE_SECONDS", 0.3)
    store = PostgresStore(Address(postgres), readers=2)
    await store.open(0, "")
    begun = asyncio.Barrier(3)

    async def hang(conn):
        await begun.wait()
        await conn.fetch("SELECT pg_sleep(60)")

    hanging = [asyncio.ensure_future(store._read(hang)) for _ in range(2)]
    await begun.wait()
    yield store, hanging
    await store.close()
    for one in hanging:
        assert isinstance(one.exception(), StoreUnavailable)


async def test_reads_of_a_database_that_says_nothing_are_refused_soon(silent):
    store, _ = silent
    async with asyncio.timeout(5):
        found = await asyncio.gather(*(store.timers() for _ in range(20)), return_exceptions=True)
        assert {type(one) for one in found} == {StoreUnavailable}
        with pytest.raises(StoreUnavailable):
            await store.timers()


async def test_reads_that_nobody_waits_for_do_not_queue(silent, monkeypatch):
    store, _ = silent
    monkeypatch.setattr(connect, "_STILL_SECONDS", 60)
    left = [asyncio.ensure_future(store.timers()) for _ in range(50)]
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(store.timers())
    await asyncio.sleep(0)
    for one in left:
        one.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.sleep(0)
    assert len(store._reading._tasks) == 3
    async with asyncio.timeout(5):
        await store.close()
    with pytest.raises(StoreUnavailable):
        await waiting


async def test_a_busy_database_is_not_a_silent_one(postgres, monkeypatch):
    """A read waits as long as others come to an end before it."""
    monkeypatch.setattr(connect, "_STILL_SECONDS", 0.5)
    store = PostgresStore(Address(postgres), readers=1)
    await store.open(0, "")

    async def slow(conn):
        await conn.fetch("SELECT pg_sleep(0.1)")

    async with asyncio.timeout(20):
        await asyncio.gather(*(store._read(slow) for _ in range(12)))
    await store.close()


async def test_a_stop_waits_for_no_write_for_ever(postgres, monkeypatch):
    monkeypatch.setattr(Address, "longest", 0.3)
    store = PostgresStore(Address(postgres))
    await store.open(0, "")
    begun = asyncio.Event()

    async def hang(conn):
        begun.set()
        await conn.execute("SELECT pg_sleep(60)", timeout=60)

    late = [asyncio.ensure_future(store._write(hang)) for _ in range(3)]
    await begun.wait()
    async with asyncio.timeout(5):
        await store.close()
    told = await asyncio.gather(*late, return_exceptions=True)
    assert [type(one) for one in told] == [StoreUnavailable] * 3


async def test_cancelled_calls_leave_no_connection_behind(postgres, one):
    s = Scripted()
    await write(one, s.create().unit())
    for number in range(300):
        calls = [one.live(s.key, 5, 99, 9), one.session(s.key), one.commit([CommitUnit()])]
        task = asyncio.ensure_future(calls[number % 3])
        for other in calls:
            if other is not calls[number % 3]:
                other.close()
        for _ in range(number % 7):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    await _goes_on(one)
    await one.live(s.key, 5, 99, 9)
    sql = "SELECT state FROM pg_stat_activity WHERE datname = 'test' AND pid <> pg_backend_pid()"
    states = [row[0] for row in await run(postgres, sql)]
    assert states == ["idle"] * 4, "two read, one writes, one listens"


async def test_role_that_does_not_wait_for_the_disk_waits_here(postgres):
    await run(postgres, "ALTER DATABASE test SET synchronous_commit = off")
    try:
        store = PostgresStore(Address(postgres))
        await store.open(0, "")
        assert await (await store._writing.get()).fetchval("SHOW synchronous_commit") == "on"
        await store.close()
    finally:
        await run(postgres, "ALTER DATABASE test RESET synchronous_commit")


async def test_a_name_that_shows_a_standby_for_a_while_costs_that_while_alone(
    postgres_server, postgres
):
    """A fail-over: the name leads to a standby before it leads to the primary."""
    address = f"127.0.0.1:{postgres_server.port}"
    with postgres_server.standby() as port:
        async with Proxy(address) as proxy:
            store = PostgresStore(Address(postgres.replace(address, proxy.address)), readers=2)
            await store.open(0, "")
            try:
                s = Scripted()
                await write(store, s.create().unit())
                proxy.turn_to(f"127.0.0.1:{port}")
                proxy.cut()
                unit = s.start().unit()
                for _ in range(3):
                    assert [type(one) for one in await store.commit([unit])] == [Unavailable]
                with pytest.raises(StoreUnavailable):
                    await store.session(s.key)
                standby = Address(postgres.replace(address, f"127.0.0.1:{port}"))
                assert await check_database(standby) == [], "it is read there"
                proxy.turn_to(address)

                async def written():
                    return await store.commit([unit]) == [Committed()]

                await within(10, written)
                assert (await store.session(s.key)) is not None
            finally:
                await store.close()
