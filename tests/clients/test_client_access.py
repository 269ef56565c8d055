"""Keys: sent where they may be, shown nowhere; and the calls that make them."""

import traceback
from datetime import UTC, datetime, timedelta

import grpc
import pytest
import runlane
from client_fakes import refuse
from google.protobuf.timestamp_pb2 import Timestamp
from runlane.errors import CredentialInvalid, ScopeMissing
from runlane.v1 import admin_service_pb2, api_key_pb2, session_service_pb2

pytestmark = pytest.mark.asyncio
SECRET = "rlk_0123_secret"


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    monkeypatch.delenv("RUNLANE_API_KEY", raising=False)


async def sent(server, **how) -> dict:
    """Returns the metadata of a call."""

    async def answer(_request, _context):
        return session_service_pb2.GetSessionResponse()

    server.handlers["GetSession"] = answer
    async with runlane.Client(server.target, **how) as client:
        await client.get_session("s")
    return server.metadata["GetSession"][-1]


async def test_a_key_is_sent_with_each_call(server, monkeypatch):
    assert "authorization" not in await sent(server)
    found = await sent(server, api_key=SECRET, namespace="acme", client_name="me")
    assert found["authorization"] == f"Bearer {SECRET}"
    assert (found["runlane-namespace"], found["runlane-client"]) == ("acme", "me")
    monkeypatch.setenv("RUNLANE_API_KEY", "from-the-environment")
    assert (await sent(server))["authorization"] == "Bearer from-the-environment"
    assert (await sent(server, api_key="given"))["authorization"] == "Bearer given"
    assert "authorization" not in await sent(server, api_key="")


async def test_a_key_goes_in_clear_to_this_machine_alone():
    for target in ("127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/x", "dns:///localhost:1"):
        runlane.Client(target, api_key=SECRET)
    for target in ("example.org:1", "10.0.0.1:1", "0.0.0.0:1", "dns:///example.org:1"):
        with pytest.raises(ValueError, match="tls=True") as caught:
            runlane.Client(target, api_key=SECRET)
        assert SECRET not in str(caught.value)
        runlane.Client(target, api_key=SECRET, tls=False)
        runlane.Client(target, api_key=SECRET, tls=True)
        runlane.Client(target, api_key="")


async def test_what_is_no_key_is_refused_without_being_shown(monkeypatch):
    for wrong in ("line\n", "two words", "ä"):
        with pytest.raises(ValueError, match="api_key has") as caught:
            runlane.Client(api_key=wrong)
        assert wrong not in str(caught.value)
    monkeypatch.setenv("RUNLANE_API_KEY", "line\n")
    with pytest.raises(ValueError, match="RUNLANE_API_KEY has"):
        runlane.Client()
    with pytest.raises(ValueError, match="go together"):
        runlane.Tls(cert="x")
    with pytest.raises(FileNotFoundError):
        runlane.Client(api_key="", tls="/none.pem")


async def test_a_key_is_in_no_error_and_no_representation(server, caplog):
    async def never(_request, context):
        await refuse(context, grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_INVALID")

    server.handlers["GetSession"] = never
    caplog.set_level("DEBUG")
    async with runlane.Client(server.target, api_key=SECRET) as client:
        with pytest.raises(CredentialInvalid) as caught:
            await client.get_session("s")
        assert len(server.calls["GetSession"]) == 1, "it is not tried again"
        told = "".join(traceback.format_exception(caught.value))
        assert SECRET not in told + repr(client) + repr(client._caller) + caplog.text


async def test_keys_are_made_listed_and_revoked(server):
    key = api_key_pb2.ApiKey(
        key_id="key_1",
        name="bot",
        namespace="acme",
        scopes=[1, 5],
        last_characters="cret",
        create_time=Timestamp(seconds=1),
        revoke_time=Timestamp(seconds=2),
    )

    async def create(_request, _context):
        return admin_service_pb2.CreateKeyResponse(key=key, secret=SECRET)

    async def list_(_request, _context):
        return admin_service_pb2.ListKeysResponse(keys=[key], next_page_token="more")

    async def revoke(_request, context):
        await refuse(context, grpc.StatusCode.PERMISSION_DENIED, "SCOPE_MISSING", scope="admin")

    server.handlers.update(CreateKey=create, ListKeys=list_, RevokeKey=revoke)
    async with runlane.Client(server.target) as client:
        made = await client.create_key(
            "bot", [runlane.Scope.READ, "admin"], namespace="acme", lifetime=timedelta(hours=1)
        )
        asked = server.calls["CreateKey"][-1]
        assert (asked.name, asked.namespace, list(asked.scopes)) == ("bot", "acme", [1, 5])
        assert asked.expire_duration.seconds == 3600
        assert asked.request_id
        assert made.secret == SECRET
        assert SECRET not in repr(made) + str(made)
        assert made.key.scopes == (runlane.Scope.READ, runlane.Scope.ADMIN)
        assert made.key.create_time == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
        assert (made.key.expire_time, made.replayed) == (None, False)
        with pytest.raises(ValueError, match="no scope"):
            await client.create_key("bot", ["fly"])
        page = await client.list_keys(include_ended=True, after="before", limit=3)
        assert (page.items, page.next_cursor) == ((made.key,), "more")
        asked = server.calls["ListKeys"][-1]
        assert (asked.include_ended, asked.page_token, asked.page_size) == (True, "before", 3)
        with pytest.raises(ScopeMissing) as caught:
            await client.revoke_key("key_1")
        assert caught.value.metadata == {"scope": "admin"}
