"""What a server says of itself, and what it refuses to start on."""

import asyncio
import shutil
import sqlite3
import stat
from contextlib import closing

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from runlane.v1 import server_service_pb2 as pb
from runlane.v1 import session_service_pb2
from support_server import Link, ServerProcess, dense, unique

pytestmark = pytest.mark.asyncio

DURABILITY = pb.GetServerInfoResponse.Durability


async def info(address: str):
    async with Link(address) as link:
        return await link.server.GetServerInfo(pb.GetServerInfoRequest(), timeout=10)


async def test_a_server_on_a_file_says_what_it_is_and_keeps_its_identity(make_server):
    server = make_server(streams_max=77, max_pending_steers=5).start()
    first = await info(server.address)
    assert first.store_kind == "sqlite"
    assert first.durability == DURABILITY.DURABILITY_DISK
    assert first.store_id.startswith("sto_")
    assert first.store_epoch == 1
    assert first.version
    limits = {one.name: (one.value, one.unit) for one in first.limits}
    assert limits["streams_max"] == (77, "items")
    assert limits["max_pending_steers"] == (5, "items")
    assert all(one.unit in {"bytes", "seconds", "milliseconds", "items"} for one in first.limits)
    server.restart()
    assert await info(server.address) == first


async def test_a_server_in_memory_says_so_and_starts_empty(make_server):
    server = make_server(store="memory").start()
    first = await info(server.address)
    assert first.store_kind == "memory"
    assert first.durability == DURABILITY.DURABILITY_PROCESS
    session = unique("memory")
    async with Link(server.address) as link:
        await link.run(session)
        dense(await link.events(session))
    server.restart(gently=True)
    assert (await info(server.address)).store_id != first.store_id
    async with Link(server.address) as link:
        await link.create(session)
        assert (await link.live(session)).sequence == 1
    assert not server.path.exists()


async def test_health_and_reflection_are_served_for_every_service(shared):
    async with Link(shared.address) as link:
        stub = reflection_pb2_grpc.ServerReflectionStub(link.channel)

        async def ask(**asked):
            call = stub.ServerReflectionInfo(timeout=10)
            await call.write(reflection_pb2.ServerReflectionRequest(**asked))
            answer = await call.read()
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
            return answer

        names = [one.name for one in (await ask(list_services="")).list_services_response.service]
        ours = [one for one in names if one.startswith("runlane.v1.")]
        assert len(ours) == 5
        for name in ours:
            found = (await ask(file_containing_symbol=name)).file_descriptor_response
            files = [FileDescriptorProto.FromString(one) for one in found.file_descriptor_proto]
            assert any(one.package == "runlane.v1" for one in files)
            health = await link.health.Check(
                health_pb2.HealthCheckRequest(service=name), timeout=10
            )
            assert health.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_second_server_on_the_file_is_refused_and_the_first_unharmed(server, make_server):
    session = unique("first")
    async with Link(server.address) as link:
        await link.run(session)
        second = ServerProcess(server.path.parent)
        code, said = second.refuses_to_start()
        assert code == 1
        assert str(server.path) in said
        assert "in use" in said
        assert str(server.pid) in said
        assert "Traceback" not in said
        await link.run(session)
        assert len(await link.messages(session)) == 4
    assert server.check()[0] == 1, "nor is a file checked that a server has"


async def test_a_second_server_on_the_port_is_refused(server, tmp_path):
    other = ServerProcess(tmp_path, store="memory", address=server.address)
    code, said = other.refuses_to_start()
    assert code == 1
    assert server.address in said
    assert "Traceback" not in said


def newer(path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("INSERT INTO migrations VALUES (9999, 'from the future', 'x', 0)")
        conn.execute("PRAGMA user_version=9999")
        conn.commit()


def changed(path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("UPDATE migrations SET checksum = 'x'")
        conn.commit()


def foreign(path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE theirs (x)")
        conn.commit()


def text(path) -> None:
    path.write_text("something else " * 100, encoding="utf-8")


def cut(path) -> None:
    path.write_bytes(path.read_bytes()[:50])


@pytest.mark.parametrize("spoil", [newer, changed, foreign, text, cut])
async def test_a_file_that_is_not_ours_or_newer_is_refused_unchanged(make_server, spoil):
    server = make_server().start()
    async with Link(server.address) as link:
        await link.run(unique("before"))
    assert server.stop() == 0
    for suffix in ("-wal", "-shm"):
        server.path.with_name(server.path.name + suffix).unlink(missing_ok=True)
    spoil(server.path)
    for suffix in ("-wal", "-shm", "-journal"):
        server.path.with_name(server.path.name + suffix).unlink(missing_ok=True)
    before = server.path.read_bytes()
    code, said = server.refuses_to_start()
    assert code == 1, said
    assert str(server.path) in said
    assert "Traceback" not in said
    assert server.path.read_bytes() == before


async def test_a_folder_that_is_not_there_is_refused(tmp_path):
    server = ServerProcess(tmp_path, store=f"sqlite:{tmp_path}/none/runlane.db")
    code, said = server.refuses_to_start()
    assert code == 1
    assert "does not exist" in said
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("path", [".", "/", "{folder}", "{folder}/."])
async def test_a_folder_is_no_store(tmp_path, path):
    server = ServerProcess(tmp_path, store=f"sqlite:{path.format(folder=tmp_path)}")
    code, said = server.refuses_to_start()
    assert code == 1
    assert "is not a file" in said
    assert "Traceback" not in said


async def test_only_its_owner_can_read_a_file_and_what_lies_beside_it(server):
    async with Link(server.address) as link:
        await link.create(unique("private"))
    modes = {
        path.name.removeprefix(server.path.name): stat.S_IMODE(path.stat().st_mode)
        for path in server.path.parent.glob(server.path.name + "*")
    }
    assert modes == {"": 0o600, "-wal": 0o600, "-shm": 0o600, ".lock": 0o600}


async def test_listening_beyond_this_machine_takes_a_word_for_it(make_server, tmp_path):
    for address in ("0.0.0.0:0", "[::]:0"):
        server = make_server(tmp_path / "open", store="memory", address=address)
        code, said = server.refuses_to_start()
        assert code == 2
        assert "--insecure-listen" in said
        assert "Traceback" not in said
    server = make_server(
        tmp_path / "open", store="memory", address="0.0.0.0:0", arguments=["--insecure-listen"]
    ).start()
    port = server.address.rpartition(":")[2]
    assert (await info(f"127.0.0.1:{port}")).store_kind == "memory"
    assert "other machines may reach this server" in server.told()
    assert "nobody is asked for a credential" in server.told()


async def test_a_socket_file_is_listened_on(make_server, tmp_path):
    server = make_server(store="memory", address=f"unix:{tmp_path}/s.sock").start()
    assert (await info(server.address)).store_kind == "memory"
    assert server.stop() == 0


async def test_a_copy_of_the_files_of_a_killed_server_is_a_store(server, make_server, tmp_path):
    """What was answered is in the file and its log, without anything that only memory had."""
    session = unique("copied")
    async with Link(server.address) as link:
        await link.run(session)
        events = dense(await link.events(session))
        folder = tmp_path / "copy"
        folder.mkdir()
        server.kill()
        for path in server.path.parent.glob("runlane.db*"):
            shutil.copy(path, folder)
    copy = make_server(folder).start()
    async with Link(copy.address) as link:
        assert await link.events(session) == events
    assert copy.stop() == 0
    assert copy.check() == (0, "")


async def test_a_burst_of_3000_calls_is_answered(link: Link):
    """By default a server of gRPC cancels at random what waits beyond a thousand."""
    session = unique("burst")
    await link.create(session)
    request = session_service_pb2.GetSessionRequest(session_id=session)
    calls = [link.sessions.GetSession(request, timeout=60) for _ in range(3000)]

    async def finished(call) -> bool:
        return (await call).session.session_id == session

    assert all(await asyncio.gather(*(finished(call) for call in calls)))
