"""What is wrong, in plain words."""

import asyncio
import json
import os
import resource
import sqlite3
import subprocess
import sys
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
import runlane
from access import first_key
from runlane.v1 import run_pb2
from runlane_server.cli import _doctor
from runlane_server.cli._doctor import Grade
from runlane_server.store.postgres import Address, PostgresStore
from runlane_server.store.sqlite import Examined, examine_file
from support_server import Link, seconds, unique, until

pytestmark = pytest.mark.asyncio
SECONDS = 60


async def doctor(folder: Path, *arguments: str, **variables: str) -> tuple[int, dict]:
    """Returns its end, and what it says of each thing with its grade."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("RUNLANE_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "runlane_server",
        "doctor",
        "--json",
        *arguments,
        cwd=folder,
        env={**clean, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    told, complained = await asyncio.wait_for(process.communicate(), SECONDS)
    assert complained == b"", complained.decode()
    found: dict[str, tuple[str, str]] = {}
    for line in told.decode().splitlines():
        one = json.loads(line)
        if found.get(one["about"], ("ok",))[0] != "fault":
            found[one["about"]] = (one["grade"], one["text"])
    assert process.returncode == any(grade == "fault" for grade, _ in found.values())
    return process.returncode, found


async def test_where_nothing_was_started_yet_nothing_is_wrong(tmp_path):
    code, found = await doctor(tmp_path, RUNLANE_TARGET="127.0.0.1:1")
    assert (code, found["server"][0]) == (1, "fault"), "a server that was named is expected"
    code, found = await doctor(tmp_path, "--store", f"sqlite:{tmp_path}/none.db")
    assert (code, found["store"][0]) == (1, "fault")
    assert "server" not in found
    code, found = await doctor(tmp_path, "--target", "127.0.0.1:1")
    assert (code, found["server"][0]) == (1, "fault")
    assert "store" not in found
    code, found = await doctor(tmp_path, "--store", "memory")
    assert (code, found["store"][0]) == (0, "note")
    code, found = await doctor(tmp_path, "--store", "what")
    assert (code, found["settings"][0]) == (1, "fault")
    assert list(tmp_path.iterdir()) == []


async def test_a_healthy_server_and_its_store(server):
    async with Link(server.address) as link:
        await link.run(unique("healthy"))
    code, found = await doctor(
        server.path.parent, RUNLANE_TARGET=server.address, RUNLANE_STORE=server.store
    )
    assert code == 0
    assert {grade for grade, _ in found.values()} <= {"ok", "note"}
    assert f"process {server.pid}" in found["store"][1]
    assert found["schema"][0] == "ok"
    assert found["damage"][0] == "ok"
    assert found["health"] == ("ok", "SERVING")
    assert found["version"][0] == "ok"
    assert found["clock"][0] == "ok"
    async with Link(server.address) as link:
        await link.run(unique("after"))
    assert server.stop() == 0
    before = server.path.read_bytes()
    code, found = await doctor(server.path.parent, "--store", server.store)
    assert code == 0
    assert "no server has it open" in found["store"][1]
    assert server.path.read_bytes() == before
    assert server.start().running


async def test_work_that_stands_still_is_a_fault(server):
    alone, stalled = unique("alone"), unique("stalled")
    async with Link(server.address) as link:
        await link.submit(alone)
        await link.submit(stalled, run_options=run_pb2.RunOptions(recovery=run_pb2.RECOVERY_MANUAL))
        leased = await link.lease(stalled, lease_duration=seconds(5))
        await link.heartbeat(leased.fence, lease=5)

        async def stands() -> bool:
            return (await link.get_run(leased.fence.run_id)).stalled

        await until(stands)
    code, found = await doctor(server.path.parent, "--target", server.address)
    assert code == 1
    assert found["agents"] == (
        "fault",
        f"{alone}: 1 queued, and no executor polls for it; start one",
    )
    assert found["runs"][0] == "fault"
    assert found["runs"][1].startswith("1 stalled")


async def test_a_store_that_takes_no_writes_is_a_fault(server):
    async with Link(server.address) as link:
        await link.run(unique("before"))
        log = server.path.with_name(server.path.name + "-wal")
        _, hard = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (log.stat().st_size, hard))

        async def away() -> bool:
            try:
                await link.create(unique("away"))
            except grpc.aio.AioRpcError:
                return True
            return False

        await until(away)
        code, found = await doctor(server.path.parent, "--target", server.address)
        assert code == 1
        assert found["health"][0] == "fault"
        assert "takes no writes" in found["health"][1]
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (hard, hard))


async def test_a_database_is_looked_at_and_not_taken_for_memory(tmp_path, postgres_server):
    await postgres_server.execute("DROP DATABASE IF EXISTS looked WITH (FORCE)")
    await postgres_server.execute("CREATE DATABASE looked")
    address = postgres_server.url("looked")
    place = address.rpartition("@")[2]
    code, found = await doctor(tmp_path, "--store", address)
    assert (code, found["store"]) == (
        1,
        ("fault", f"{place} holds no store; `runlane serve` makes it"),
    )
    code, found = await doctor(tmp_path, RUNLANE_STORE=address)
    assert (code, found["store"][0]) == (0, "note")
    store = PostgresStore(Address(address))
    await store.open(0, "")
    try:
        code, found = await doctor(tmp_path, RUNLANE_STORE=address)
        assert code == 0
        assert found["store"] == (
            "ok",
            f"{place}, store_epoch 1; servers that have it open: 1",
        )
        assert found["database"][1].startswith("PostgreSQL ")
        assert found["schema"][0] == "ok"
    finally:
        await store.close()
    _, found = await doctor(tmp_path, "--store", address)
    assert found["store"][1].endswith("servers that have it open: 0")
    await postgres_server.execute(
        "DELETE FROM runlane.migrations"
        " WHERE version = (SELECT max(version) FROM runlane.migrations)",
        "looked",
    )
    code, found = await doctor(tmp_path, "--store", address)
    assert (code, found["schema"][0]) == (0, "note")
    assert "make a copy before (`pg_dump`)" in found["schema"][1]
    insert = "INSERT INTO runlane.migrations VALUES (9999, 'from the future', 'x', 0)"
    await postgres_server.execute(insert, "looked")
    code, found = await doctor(tmp_path, "--store", address)
    assert (code, found["store"][0]) == (1, "fault")
    assert "9999" in found["store"][1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("locked:wrong@127.0.0.1:{port}/test", "127.0.0.1:{port}/test does not let us in: "),
        ("runlane@127.0.0.1:{port}/none", "127.0.0.1:{port}/none does not let us in: "),
        ("u:pw@127.0.0.1:1/test", "127.0.0.1:1/test cannot be reached: "),
        ("runlane@127.0.0.1:{port}/test?sslmod=require", 'configuration parameter "sslmod"'),
    ],
)
async def test_a_database_that_does_not_answer_is_a_fault_and_named(
    tmp_path, postgres_server, words, told
):
    postgres_server.clean()
    address = "postgresql://" + words.format(port=postgres_server.port)
    code, found = await doctor(tmp_path, RUNLANE_STORE=address)
    assert (code, found["store"][0]) == (1, "fault")
    assert told.format(port=postgres_server.port) in found["store"][1]


async def test_a_stranger_is_told_no_fact_that_is_none(tmp_path, make_server):
    first_key(tmp_path, "read")
    server = make_server(auth="keys").start()
    _, found = await doctor(tmp_path, "--target", server.address)
    assert ("CREDENTIAL_MISSING" in found["server"][1]) or found["server"][1] == server.address
    assert "store_epoch" not in found["server"][1]


async def test_files_that_are_damaged_newer_or_foreign_are_faults(server, tmp_path):
    async with Link(server.address) as link:
        for number in range(20):
            await link.run(unique("filled"), "x" * 5000 + str(number))
    assert server.stop() == 0
    content = server.path.read_bytes()
    damaged = bytearray(content)
    for page in range(20, len(content) // 4096, 3):
        damaged[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    server.path.write_bytes(damaged)
    _, found = await doctor(tmp_path, "--store", server.store)
    assert (found.get("damage") or found["store"])[0] == "fault"
    faults = examine_file(server.path, 2**30)
    faults.refused = ""
    faults.faults = ["*** in database main ***\nPage 7: odd", "Page 8: odd"]
    told = [one for one in _doctor._file(faults, expected=True) if one.about == "damage"]
    assert [one.text.partition(";")[0] for one in told] == ["*** in database main *** and 2 more"]
    server.path.chmod(0o644)
    _, found = await doctor(tmp_path, "--store", server.store)
    assert found["rights"][0] == "note"
    assert "chmod 600" in found["rights"][1]
    server.path.write_bytes(content)
    with closing(sqlite3.connect(server.path)) as conn:
        conn.execute("INSERT INTO migrations VALUES (9999, 'from the future', 'x', 0)")
        conn.execute("PRAGMA user_version=9999")
        conn.commit()
    _, found = await doctor(tmp_path, "--store", server.store)
    assert found["store"][0] == "fault"
    assert "9999" in found["store"][1]
    server.path.write_bytes(b"a text" * 1000)
    _, found = await doctor(tmp_path, "--store", server.store)
    assert found["store"][0] == "fault"
    assert "not a SQLite database" in found["store"][1]


async def test_a_file_too_large_to_be_read_is_no_fault(server):
    async with Link(server.address) as link:
        await link.run(unique("large"))
    assert server.stop() == 0
    found = examine_file(server.path, 1000)
    assert not found.checked
    told = {one.about: one for one in _doctor._file(found, expected=True)}
    assert told["damage"].grade is Grade.NOTE
    assert examine_file(server.path, 1_000_000_000).checked


@pytest.mark.parametrize(
    ("mounts", "kind"),
    [
        ("/dev/a / ext4 rw 0 0\nserver:/x {place} nfs4 rw 0 0\n", "nfs4"),
        ("/dev/a / ext4 rw 0 0\nserver:/x {place}-not nfs4 rw 0 0\n", "ext4"),
        ("/dev/a {place} tmpfs rw 0 0\n/dev/b {place} cifs rw 0 0\n", "cifs"),
        ("nonsense\n", ""),
    ],
)
async def test_the_file_system_is_told(tmp_path, monkeypatch, mounts, kind):
    place = tmp_path / "a place"
    place.mkdir()
    table = tmp_path / "mounts"
    table.write_text(mounts.format(place=str(place).replace(" ", "\\040")))
    monkeypatch.setattr("runlane_server.store.sqlite.examine._MOUNTS", table)
    found = examine_file(place / "runlane.db", 1)
    assert found.file_system == kind
    graded = {one.about: one.grade for one in _doctor._place(found)}
    expected = {"nfs4": Grade.FAULT, "cifs": Grade.FAULT, "ext4": Grade.OK}
    assert graded.get("disk") == expected.get(kind)


@pytest.mark.parametrize(
    ("free", "grade"),
    [(50 * 2**20, Grade.FAULT), (500 * 2**20, Grade.NOTE), (30 * 2**30, Grade.OK)],
)
async def test_space_is_graded(free, grade):
    found = Examined(Path("x"), exists=True, free=free, disk=100 * 2**30, file_system="ext4")
    assert {one.about: one.grade for one in _doctor._place(found)}["space"] is grade


@pytest.mark.parametrize(
    ("apart", "grade"), [(0, Grade.OK), (-5, Grade.NOTE), (5, Grade.NOTE), (3600, Grade.FAULT)]
)
async def test_clocks_are_compared(apart, grade):
    start = datetime(2030, 1, 1, tzinfo=UTC)
    end = start + timedelta(seconds=1)
    theirs = start + timedelta(seconds=0.5 + apart)
    assert _doctor._clock(theirs, start, end).grade is grade


async def test_a_server_whose_store_is_away_is_not_taken_for_one_that_stops(monkeypatch):
    class Silent:
        async def server_info(self) -> runlane.ServerInfo:
            return runlane.ServerInfo.model_construct(version="1", store_kind="", store_epoch=0)

        async def healthy(self) -> bool:
            return False

        async def overview(self) -> None:
            await asyncio.Event().wait()

    @asynccontextmanager
    async def connected(_target: str):
        yield Silent()

    monkeypatch.setattr(_doctor, "connected", connected)
    monkeypatch.setattr(_doctor, "_ANSWER_SECONDS", 0.01)
    found = {one.about: one async for one in _doctor._server("here", expected=True)}
    assert found["server"].text == "here"
    assert found["health"].grade is Grade.FAULT
    assert "or its store takes no writes" in found["health"].text
