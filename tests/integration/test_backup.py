"""Copies of a store beside its server, and what is restored from them."""

import asyncio
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from runlane.v1 import server_service_pb2 as pb
from support_server import EVENT, Link, dense, refused, unique, until

pytestmark = pytest.mark.asyncio

SECONDS = 60


async def db(*arguments: object) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "runlane_server",
        "db",
        *map(str, arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    told, complained = await asyncio.wait_for(process.communicate(), SECONDS)
    assert b"Traceback" not in complained, complained.decode()
    return process.returncode, told.decode(), complained.decode()


async def good(*arguments: object) -> str:
    code, told, complained = await db(*arguments)
    assert (code, complained) == (0, "")
    return told


async def bad(*arguments: object) -> str:
    code, told, complained = await db(*arguments)
    assert (code, told) == (1, "")
    return complained


async def info(link: Link) -> pb.GetServerInfoResponse:
    return await link.server.GetServerInfo(pb.GetServerInfoRequest(), timeout=10)


async def work(link: Link, session: str, stop: asyncio.Event, ended: list[str]) -> None:
    """Has one run after the other, and notes those that were answered."""
    while not stop.is_set():
        ended.append(await link.run(session))


def left_behind(folder) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if one.name.startswith("."))


async def test_a_copy_under_load_is_a_store_as_of_one_moment(server, make_server, tmp_path):
    stop, copy = asyncio.Event(), tmp_path / "copy.db"
    sessions = [unique("load") for _ in range(4)]
    ended: dict[str, list[str]] = {session: [] for session in sessions}
    async with Link(server.address) as link:
        tasks = [asyncio.create_task(work(link, one, stop, ended[one])) for one in sessions]
        await until(lambda: all(len(runs) > 2 for runs in ended.values()))
        before = {session: len(runs) for session, runs in ended.items()}
        assert str(copy) in await good("backup", server.path, copy)
        stop.set()
        await asyncio.gather(*tasks)
        events = {session: dense(await link.events(session)) for session in sessions}
        first = await info(link)
    assert left_behind(tmp_path) == []
    folder = tmp_path / "restored"
    folder.mkdir()
    told = await good("restore", copy, folder / "runlane.db")
    restored = make_server(folder).start()
    async with Link(restored.address) as link:
        second = await info(link)
        assert second.store_id == first.store_id
        assert second.store_epoch > first.store_epoch
        assert f"store_epoch {second.store_epoch}" in told
        for session in sessions:
            kept = dense(await link.events(session))
            assert kept == events[session][: len(kept)], "nothing that was not so"
            runs = {one.run_id for one in kept if one.type == EVENT.TYPE_RUN_TERMINAL}
            assert set(ended[session][: before[session]]) <= runs, "all that was answered"
        await link.run(unique("after"))
    assert restored.stop() == 0
    assert restored.check() == (0, "")


async def test_each_restore_of_a_copy_has_a_later_epoch(server, make_server, tmp_path):
    copy, session = tmp_path / "copy.db", unique("again")
    async with Link(server.address) as link:
        await link.run(session)
        kept = dense(await link.events(session))
        await good("backup", server.path, copy)
        await link.run(session)
        lost = dense(await link.events(session))[-1].sequence
        epochs = [(await info(link)).store_epoch]
    server.kill()  # what it committed last is in its log alone
    content = copy.read_bytes()
    for _ in range(2):
        await good("restore", copy, server.path, "--replace")
        assert not list(tmp_path.glob("runlane.db-*"))
        server.start()
        async with Link(server.address) as link:
            epochs.append((await info(link)).store_epoch)
            assert dense(await link.events(session)) == kept
            assert (await refused(link.live(session, min_sequence=lost))).reason == "SEQUENCE_AHEAD"
            await link.run(session)
        server.kill()
    assert epochs == sorted(set(epochs))
    assert copy.read_bytes() == content
    assert server.check() == (0, "")


async def test_what_is_there_is_not_lost_by_a_slip(server, tmp_path):
    copy = tmp_path / "copy.db"
    async with Link(server.address) as link:
        await link.run(unique("slip"))
        await good("backup", server.path, copy)
        before = copy.read_bytes()
        assert "exists" in await bad("backup", server.path, copy)
        assert copy.read_bytes() == before
        for more in ((), ("--replace",)):
            assert f"in use by process {server.pid}" in await bad(
                "restore", copy, server.path, *more
            )
        await link.run(unique("slip"))
    assert server.stop() == 0
    content = server.path.read_bytes()
    assert "--replace" in await bad("restore", copy, server.path)
    assert "restored to" in await bad("restore", server.path, server.path, "--replace")
    assert "no such file" in await bad("restore", tmp_path / "none", server.path, "--replace")
    assert "no such file" in await bad("backup", tmp_path / "none", tmp_path / "new")
    assert "does not exist" in await bad("backup", server.path, tmp_path / "none" / "copy.db")
    assert server.path.read_bytes() == content
    assert left_behind(tmp_path) == []


async def test_a_copy_with_a_fault_is_neither_made_nor_restored(server, tmp_path):
    async with Link(server.address) as link:
        await link.run(unique("fault"))
    assert server.stop() == 0
    faulty = tmp_path / "faulty.db"
    shutil.copy(server.path, faulty)
    with closing(sqlite3.connect(faulty)) as conn:
        conn.execute("UPDATE sessions SET state = x''")
        conn.commit()
    content = server.path.read_bytes()
    for arguments in (
        ("backup", faulty, tmp_path / "copy.db"),
        ("restore", faulty, server.path, "--replace"),
    ):
        code, told, _ = await db(*arguments)
        assert code == 1
        assert "without token or state" in told
    (tmp_path / "text.db").write_text("no database" * 100)
    assert "not a SQLite database" in await bad(
        "restore", tmp_path / "text.db", server.path, "--replace"
    )
    assert not (tmp_path / "copy.db").exists()
    assert server.path.read_bytes() == content
    assert left_behind(tmp_path) == []
