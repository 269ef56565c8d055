"""`runlane keys`, and what a server says of its keys at the start."""

import pytest
from access import bearer, first_key, keys, made_server, new_key
from runlane.v1 import admin_service_pb2
from support_server import Link, refused

pytestmark = pytest.mark.asyncio


async def test_the_first_key_is_made_in_the_file_and_the_next_through_the_server(
    tmp_path, make_server
):
    listed = keys(tmp_path, "list", "--store", "sqlite:runlane.db")
    assert (listed.returncode, "there is no such file" in listed.stderr) == (1, True)
    server = made_server(make_server, tmp_path, "admin")
    file = server.path.read_bytes() + server.path.with_name("runlane.db-wal").read_bytes()
    assert server.root.encode() not in file
    assert server.root[40:].encode() not in file
    where = ("--target", server.address)
    assert "CREDENTIAL_MISSING" in keys(tmp_path, "list", *where).stderr
    made = keys(
        tmp_path, "create", "bot", "--scope", "read", *where, "--json", RUNLANE_API_KEY=server.root
    )
    assert made.returncode == 0, made.stderr
    assert '"name":"bot"' in made.stdout
    # Whole lines, however wide the terminal is: they are there to be searched.
    table = keys(tmp_path, "list", *where, "--api-key", server.root, COLUMNS="40")
    rows = [row.split() for row in table.stdout.splitlines()]
    assert rows[0] == ["id", "name", "namespace", "scopes", "secret", "expires"]
    assert [row[1] for row in rows[1:]].count("bot") == 1
    assert all(len(row) >= 5 for row in rows)
    table = keys(tmp_path, "list", *where, "--api-key", server.root, "--ended")
    assert table.stdout.splitlines()[0].endswith("revoked")
    assert server.root not in table.stdout + table.stderr
    held = keys(tmp_path, "list", "--store", "sqlite:runlane.db", RUNLANE_API_KEY=server.root)
    assert "is in use by process" in held.stderr
    assert "--target names the one that has it" in held.stderr
    first = keys(tmp_path, "create", "x", "--scope", "admin", *where)
    assert first.returncode == 1
    assert "to make the first key, stop the server" in first.stderr
    for wrong in (
        ["create", "x", "--scope", "all"],
        ["create", "x", "--scope", "read", "--expires", "soon"],
    ):
        assert keys(tmp_path, *wrong).returncode == 2
    server.stop()
    listed = keys(tmp_path, "list", "--store", "sqlite:runlane.db", "--json")
    assert listed.stdout.count('"key_id"') == 2


async def test_without_a_key_a_server_that_asks_says_so(tmp_path, make_server):
    server = make_server(auth="keys").start()
    assert "there is no API key yet" in server.told()
    assert "stop the server, make one with `runlane keys create" in server.told()
    async with Link(server.address) as link:
        assert (await refused(link.session("s"))).reason == "CREDENTIAL_MISSING"
    server.stop()
    root = first_key(tmp_path)
    server.settings["auth"] = "none"
    server.start()
    assert "API keys are not asked for" in server.told()
    async with Link(server.address, metadata=bearer(root)) as link:
        await link.create("s")
        # On this machine, with nobody asked, all keys are seen and made.
        assert len((await link.admin.ListKeys(admin_service_pb2.ListKeysRequest())).keys) == 1
        await new_key(link, "more", "read", namespace="elsewhere")
