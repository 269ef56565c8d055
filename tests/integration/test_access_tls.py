"""TLS, files that are replaced, client certificates, and what is refused at the start."""

import asyncio
import json
import socket
import subprocess
import sys
import time

import grpc
import jwt
import pytest
import runlane
import trustme
from access import bearer, first_key
from cryptography.hazmat.primitives.asymmetric import ec
from runlane.errors import CredentialInvalid, CredentialMissing, ScopeMissing, TransportError
from runlane_server.cli._app import app
from support_server import Link, refused, unique
from typer.testing import CliRunner

pytestmark = pytest.mark.asyncio


class Files:
    """An authority, and the files of a server in a folder."""

    def __init__(self, folder):
        self.ca = trustme.CA()
        self.folder = folder
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.ca_file = folder / "ca.pem"
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.issue()

    def issue(self, ca: trustme.CA | None = None) -> None:
        made = (ca or self.ca).issue_cert("localhost", "127.0.0.1")
        made.private_key_pem.write_to_path(self.key)
        made.cert_chain_pems[0].write_to_path(self.cert)

    def client(self, name: str) -> runlane.Tls:
        made = self.ca.issue_cert(f"{name}@example.org", common_name=name)
        cert, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        made.cert_chain_pems[0].write_to_path(cert)
        made.private_key_pem.write_to_path(key)
        return runlane.Tls(ca=self.ca_file, cert=cert, key=key)

    @property
    def settings(self) -> dict[str, object]:
        return {"tls_cert": self.cert, "tls_key": self.key}


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


async def version(target: str, **how) -> str:
    async with runlane.Client(target, timeout=1.5, **how) as client:
        return (await client.server_info()).version


async def test_a_key_over_tls_from_other_machines(files, tmp_path, make_server):
    root = first_key(tmp_path, "read", "submit")
    server = make_server(address="0.0.0.0:0", auth="keys", **files.settings).start()
    target = f"127.0.0.1:{server.address.rpartition(':')[2]}"
    async with runlane.Client(target, tls=files.ca_file, api_key=root) as client:
        await client.create_session("s")
        assert (await client.get_session("s")).session_id == "s"
    async with runlane.Client(target, tls=str(files.ca_file), api_key="") as client:
        with pytest.raises(CredentialMissing):
            await client.get_session("s")
    async with runlane.Client(target, tls=files.ca_file, api_key="rlk_no") as client:
        with pytest.raises(CredentialInvalid):
            await client.get_session("s")
    for how in ({}, {"tls": True}):
        with pytest.raises(TransportError):
            await version(target, api_key="", **how)


async def test_the_health_of_a_server_with_tls_is_asked_at_the_terminal(files, make_server):
    server = make_server(**files.settings).start()

    def health(*words: str) -> int:
        return CliRunner().invoke(app, ["health", "--target", server.address, *words]).exit_code

    assert await asyncio.to_thread(health, "--tls-ca", str(files.ca_file)) == 0
    assert await asyncio.to_thread(health) == 1


async def complaint(address: str, *words: object, command: str = "health") -> str:
    """Returns what a command says on stderr; nothing where it was done."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "runlane_server", command, "--target", address, *map(str, words),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    stdout, stderr = await asyncio.wait_for(process.communicate(), 60)
    told = (stdout if command == "doctor" else stderr).decode()
    assert (process.returncode == 0) == ("SERVING" in stdout.decode()), told
    return told


async def test_the_terminal_says_what_is_wrong_with_tls(files, make_server):
    ca = ("--tls-ca", files.ca_file)
    other = files.folder / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    server = make_server(**files.settings).start()
    told = await complaint(server.address)
    assert "speaks TLS: name a file with its authorities with --tls-ca" in told
    told = await complaint(server.address, "--tls-ca", other)
    assert "is not good: unable to get local issuer certificate" in told
    # Of gRPC's own lines there is none, here and there.
    assert len(told.splitlines()) == 1
    assert "Handshake" not in server.told()
    assert "speaks TLS" in await complaint(server.address, command="doctor")
    told = await complaint(server.address, "--tls-ca", files.key)
    assert f"{files.key} holds no certificate of an authority" in told
    server.stop()
    plain = make_server(files.folder / "plain", store="memory").start()
    assert "does not speak TLS; leave --tls-ca" in await complaint(plain.address, *ca)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        told = await complaint(f"127.0.0.1:{silent.getsockname()[1]}")
        assert "and says nothing" in told


async def test_the_terminal_shows_a_certificate(files, make_server, monkeypatch):
    server = make_server(tls_client_ca=files.ca_file, **files.settings).start()
    ca = ("--tls-ca", files.ca_file)
    me = files.client("me")
    own = ("--tls-cert", me.cert, "--tls-key", me.key)
    assert "--tls-cert and --tls-key show one" in await complaint(server.address, *ca)
    assert await complaint(server.address, *ca, *own) == ""
    assert "go together" in await complaint(server.address, *ca, *own[:2])
    assert "says off" in await complaint(server.address, "--tls-ca", "off", *own)
    stranger = trustme.CA().issue_cert("me@example.org")
    stranger.cert_chain_pems[0].write_to_path(me.cert)
    stranger.private_key_pem.write_to_path(me.key)
    told = await complaint(server.address, *ca, *own)
    assert "does it take that of --tls-cert?" in told
    monkeypatch.setenv("RUNLANE_TLS_CA", str(files.ca_file))
    fresh = files.client("fresh")
    monkeypatch.setenv("RUNLANE_TLS_CLIENT_CERT", str(fresh.cert))
    monkeypatch.setenv("RUNLANE_TLS_CLIENT_KEY", str(fresh.key))
    assert await complaint(server.address) == ""


async def test_new_files_are_used_by_the_next_connection_and_half_a_pair_by_none(
    files, make_server
):
    server = make_server(**files.settings).start()
    async with runlane.Client(server.address, tls=files.ca_file) as stands:
        await stands.create_session("s")
        other = trustme.CA()
        other_file = files.folder / "other.pem"
        other.cert_pem.write_to_path(other_file)
        old_key = files.key.read_bytes()
        files.issue(other)
        new_key = files.key.read_bytes()
        files.key.write_bytes(old_key)
        assert await version(server.address, tls=files.ca_file)
        assert "TLS files do not fit" in server.told()
        files.key.write_bytes(new_key)
        assert await version(server.address, tls=other_file)
        assert server.told().count("TLS files read") == 1
        with pytest.raises(TransportError):
            await version(server.address, tls=files.ca_file)
        # What was connected before goes on.
        assert (await stands.get_session("s")).session_id == "s"
        files.cert.unlink()
        assert await version(server.address, tls=other_file)


async def test_a_client_certificate_is_a_credential_and_names_the_actor(files, make_server):
    server = make_server(address="0.0.0.0:0", tls_client_ca=files.ca_file, **files.settings).start()
    target = f"127.0.0.1:{server.address.rpartition(':')[2]}"
    with pytest.raises(TransportError):
        await version(target, tls=files.ca_file)
    session = unique("cert")
    tls = files.client("worker-7")
    async with runlane.Client(target, tls=tls, client_name="liar") as client:
        await client.create_session(session)
        events = client.events(session, after_sequence=0, follow=False)
        assert [event.actor async for event in events] == ["client:worker-7"]


async def test_a_certificate_beside_a_key(files, tmp_path, make_server):
    root = first_key(tmp_path, "read")
    server = make_server(auth="keys", tls_client_ca=files.ca_file, **files.settings).start()
    tls = files.client("somebody")
    async with runlane.Client(server.address, tls=tls, api_key="") as client:
        with pytest.raises(CredentialMissing):
            await client.list_sessions()
    async with runlane.Client(server.address, tls=tls, api_key=root) as client:
        assert (await client.list_sessions()).items == ()


async def test_a_socket_file_is_not_encrypted_and_asks_all_the_same(files, tmp_path, make_server):
    root = first_key(tmp_path, "read")
    server = make_server(address=f"unix:{tmp_path}/s", auth="keys", **files.settings).start()
    async with Link(server.address, metadata=bearer(root)) as link:
        assert (await refused(link.session("s"))).reason == "SESSION_NOT_FOUND"
    async with Link(server.address) as link:
        assert (await refused(link.session("s"))).code == grpc.StatusCode.UNAUTHENTICATED


async def test_what_is_open_to_others_is_refused_at_the_start(files, make_server):
    def said(**settings) -> str:
        code, text = make_server(address="0.0.0.0:0", **settings).refuses_to_start()
        assert code == 2
        return text

    assert 'auth = "keys"' in said()
    assert "tls_cert" in said()
    assert "tls_cert" in said(auth="keys")
    text = said(**files.settings)
    assert 'auth = "keys"' in text
    assert "can be read" not in text
    assert "go together" in said(tls_cert=files.cert)
    assert "tls_client_ca needs" in said(tls_client_ca=files.ca_file)
    files.key.write_text("no key")
    code, text = make_server(**files.settings).refuses_to_start()
    assert (code, "key.pem" in text) == (1, True)
    code, text = make_server(tls_cert="gone.pem", tls_key="gone.key").refuses_to_start()
    assert (code, "gone.pem" in text) == (1, True)


async def test_agents_of_the_server_serve_their_namespaces(tmp_path, make_server):
    root = first_key(tmp_path, "read", "submit")
    (tmp_path / "runlane.toml").write_text(
        '[[agent]]\nname = "echo"\nnamespaces = ["default", "acme"]\nmodel = {kind = "scripted"}\n'
    )
    server = make_server(auth="keys").start()
    for namespace in ("default", "acme"):
        async with runlane.Client(
            server.address, api_key=root, namespace=namespace, tls=False
        ) as client:
            result = await client.start("hello", "s", options={"agent": "echo"}, timeout=20)
            assert result.text == "hello"
    async with runlane.Client(server.address, api_key=root, namespace="other") as client:
        agents = await client.list_agents()
        assert agents.items == ()


async def test_tokens_of_an_issuer_beside_keys(tmp_path, make_server):
    root = first_key(tmp_path, "read")
    private = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key()))
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [{**public, "kid": "1"}]}))
    (tmp_path / "runlane.toml").write_text(
        '[jwt]\nissuer = "https://i"\naudience = "runlane"\njwks = "keys.json"\n'
    )
    server = make_server(auth="jwt").start()

    def token(seconds: float, **claims: object) -> str:
        whole = {"iss": "https://i", "aud": "runlane", "sub": "alice", **claims}
        whole["exp"] = int(time.time() + seconds)
        return jwt.encode(whole, private, "ES256", headers={"kid": "1"})

    scope = "runlane:read runlane:submit"
    alice = token(4, scope=scope, runlane_namespace=["acme", "other"])
    async with runlane.Client(server.address, api_key=alice) as client:
        await client.create_session("s")
        events = client.events("s", after_sequence=0)
        assert (await anext(events)).actor == "client:alice"
        with pytest.raises(CredentialInvalid):
            await asyncio.wait_for(anext(events), 8)
    async with runlane.Client(
        server.address,
        api_key=token(60, scope=scope, runlane_namespace=["acme", "other"]),
        namespace="other",
    ) as client:
        assert (await client.list_sessions()).items == ()
    async with runlane.Client(server.address, api_key=token(60)) as client:
        with pytest.raises(CredentialInvalid):
            await client.list_sessions()
    async with runlane.Client(
        server.address, api_key=token(60, runlane_namespace="acme")
    ) as client:
        with pytest.raises(ScopeMissing):
            await client.list_sessions()
    async with runlane.Client(server.address, api_key=root) as client:
        assert (await client.list_sessions()).items == ()
    server.stop()
    (tmp_path / "runlane.toml").unlink()
    code, text = make_server(auth="jwt").refuses_to_start()
    assert (code, "go together" in text) == (2, True)
