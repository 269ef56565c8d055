"""Tokens of an issuer: what proves them, what they open, and how often its keys are read."""

import asyncio
import json
import time
from http.client import BadStatusLine

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from pydantic import ValidationError
from runlane_server.access_settings import JwtConfig
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.keys import Scope, scope_bits
from runlane_server.transport import tokens as module
from runlane_server.transport.errors import status_of
from runlane_server.transport.tokens import JwtTokens, read_keys
from structlog.testing import capture_logs

pytestmark = pytest.mark.asyncio
ISSUER = {"issuer": "https://issuer.example", "audience": "runlane", "jwks": "keys.json"}
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
OTHER = ec.generate_private_key(ec.SECP256R1())


def public(key, kid: str) -> dict:
    kind = jwt.algorithms.RSAAlgorithm if key is RSA else jwt.algorithms.ECAlgorithm
    alg = "RS256" if key is RSA else "ES256"
    return {**json.loads(kind.to_jwk(key.public_key())), "kid": kid, "alg": alg, "use": "sig"}


class Issuer:
    """Signs tokens, and counts how often its keys are read."""

    def __init__(self):
        self.keys = [public(RSA, "rsa"), public(EC, "ec")]
        self.reads = 0
        self.away: Exception | None = None
        self.now = 0.0
        self.body = b""

    def read(self, _config) -> bytes:
        self.reads += 1
        if self.away:
            raise self.away
        if self.body:
            return self.body
        return json.dumps({"keys": self.keys}).encode()

    def token(self, key=RSA, kid: str = "rsa", algorithm: str = "RS256", drop=(), **claims) -> str:
        whole = {
            "iss": "https://issuer.example",
            "aud": "runlane",
            "exp": int(time.time()) + 60,
            "sub": "alice",
            "scope": "openid runlane:read runlane:answer runlane:fly",
            "runlane_namespace": "acme",
            **claims,
        }
        for name in drop:
            del whole[name]
        return jwt.encode(whole, key, algorithm, headers={"kid": kid})


class Clock:
    def now(self):
        return time.time_ns() // 1000


def made(issuer: Issuer, **fields) -> JwtTokens:
    config = JwtConfig(**ISSUER, **fields)
    return JwtTokens(config, Clock(), issuer.read, lambda: issuer.now)


async def refused(tokens: JwtTokens, token: str) -> None:
    with pytest.raises(Refused) as caught:
        await tokens.prove(token)
    assert caught.value.reason is Reason.CREDENTIAL_INVALID
    assert tokens.known(token) is None


async def test_a_token_opens_what_its_claims_say_until_it_expires():
    issuer = Issuer()
    tokens = made(issuer)
    token = issuer.token(exp=int(time.time()) + 2)
    assert tokens.known(token) is None
    await tokens.prove(token)
    grant = tokens.known(token)
    assert (grant.actor, grant.namespaces, grant.every) == ("client:alice", ("acme",), False)
    assert grant.scopes == scope_bits(Scope.READ, Scope.ANSWER)
    call = asyncio.create_task(asyncio.sleep(60))
    grant.calls.add(call)
    tokens.tick(Clock().now())
    assert tokens.known(token) is grant
    tokens.tick(grant.expire_time)
    assert tokens.known(token) is None
    await asyncio.wait([call])
    assert call.cancelled()
    assert issuer.reads == 1


async def test_claims_are_named_by_settings():
    issuer = Issuer()
    tokens = made(
        issuer, name_claim="email", scope_claim="roles", scope_prefix="", namespace_claim="orgs"
    )
    token = issuer.token(
        EC, "ec", "ES256", email="ä@x", roles=["submit", "execute", 7], orgs=["a", "*", "b", "No"]
    )
    await tokens.prove(token)
    grant = tokens.known(token)
    assert (grant.actor, grant.namespaces) == ("client:?@x", ("a", "b"))
    assert grant.scopes == scope_bits(Scope.SUBMIT, Scope.EXECUTE)
    assert (grant.opens("b"), grant.opens("*"), grant.opens("c")) == (True, False, False)
    fixed = made(issuer, namespace="staff")
    await fixed.prove(issuer.token(drop=["runlane_namespace"]))
    bare = issuer.token(drop=["runlane_namespace", "scope"])
    await fixed.prove(bare)
    assert (fixed.known(bare).namespaces, fixed.known(bare).scopes) == (("staff",), 0)


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://other.example"},
        {"aud": "other"},
        {"exp": 1},
        {"nbf": 2**40},
        {"drop": ["exp"]},
        {"drop": ["aud"]},
        {"drop": ["iss"]},
        {"drop": ["sub"]},
        {"drop": ["runlane_namespace"]},
        {"runlane_namespace": "*"},
        {"runlane_namespace": ["A b"]},
        {"key": OTHER, "kid": "ec", "algorithm": "ES256"},
        {"key": EC, "kid": "rsa", "algorithm": "ES256"},
        {"key": "x" * 64, "kid": "rsa", "algorithm": "HS256"},
        {"algorithm": "RS512"},
    ],
    ids=" ".join,
)
async def test_what_does_not_fit_is_refused(claims):
    issuer = Issuer()
    await refused(made(issuer), issuer.token(**claims))


async def test_what_is_no_token_or_is_unsigned_is_refused():
    issuer = Issuer()
    tokens = made(issuer)
    whole = issuer.token()
    head, body, _ = whole.split(".")
    unsigned = jwt.encode({"sub": "x"}, None, "none", headers={"kid": "rsa"})
    for bad in ("", "x", "a.b.c", f"{head}.{body}.", f"{head}.{body}.AAAA", unsigned, whole + "x"):
        await refused(tokens, bad)


async def test_an_unknown_key_makes_the_keys_be_read_again_but_not_often():
    issuer = Issuer()
    tokens = made(issuer)
    await tokens.refresh()
    for _ in range(5):
        await refused(tokens, issuer.token(OTHER, "new", "ES256"))
    assert issuer.reads == 1
    issuer.keys.append(public(OTHER, "new"))
    issuer.now += module.RETRY_SECONDS
    token = issuer.token(OTHER, "new", "ES256")
    await asyncio.gather(*(tokens.prove(token) for _ in range(10)))
    assert issuer.reads == 2
    assert tokens.known(token) is not None


async def test_a_key_that_is_withdrawn_opens_nothing_more():
    issuer = Issuer()
    tokens = made(issuer)
    token, stays = issuer.token(EC, "ec", "ES256"), issuer.token()
    for one in (token, stays):
        await tokens.prove(one)
    del issuer.keys[1]
    issuer.now += module.REFRESH_SECONDS + 1
    issuer.away = OSError("away")
    tokens.tick(0)
    await tokens._refreshing
    assert tokens.known(token) is not None
    issuer.away = None
    # A read that failed is made again soon, not when the keys are old again.
    issuer.now += module.RETRY_SECONDS + 1
    tokens.tick(0)
    await tokens._refreshing
    assert tokens.known(token) is None
    assert tokens.known(stays) is not None


BAD = {
    "a list": b"[]",
    "null": b"null",
    "no object in it": b'{"keys": [null, 3, []]}',
    "keys that are none": b'{"keys": {"a": 1}}',
    "keys of no use": b'{"keys": [{"kty": "RSA"}, {"kty": "none"}]}',
    "no key": b'{"keys": []}',
    "no JSON": b"<html>",
    "no UTF-8": b"\xff\xfe",
    "nested deep": b"[" * 100_000,
}


@pytest.mark.parametrize("name", BAD)
async def test_a_reply_that_is_no_key_set_leaves_the_last_keys_and_is_said_once(name):
    issuer = Issuer()
    tokens = made(issuer)
    await tokens.prove(issuer.token())
    issuer.body = BAD[name]
    with capture_logs() as lines:
        for _ in range(3):
            issuer.now += module.REFRESH_SECONDS + 1
            tokens.tick(0)
            await tokens._refreshing
        await tokens.prove(issuer.token(jti="2"))
        issuer.body = b""
        issuer.now += module.RETRY_SECONDS + 1
        tokens.tick(0)
        await tokens._refreshing
    assert [one["event"] for one in lines] == [
        "the issuer's keys cannot be read",
        "the issuer's keys are read again",
    ]


@pytest.mark.parametrize("error", [OSError("away"), BadStatusLine("SSH-2.0-x"), KeyError("x")])
async def test_while_the_keys_cannot_be_read_a_token_may_come_again(error):
    issuer = Issuer()
    issuer.away = error
    tokens = made(issuer)
    with capture_logs() as lines:
        await tokens.refresh()
        issuer.now += 4
        with pytest.raises(Refused) as caught:
            await tokens.prove(issuer.token())
    assert caught.value.reason is Reason.STORE_UNAVAILABLE
    assert caught.value.retry_milliseconds == (module.RETRY_SECONDS - 4) * 1000
    assert issuer.reads == 1
    assert "SSH-2.0" not in str(lines)
    status = status_of(caught.value, "GetSession")
    assert status.code is grpc.StatusCode.UNAVAILABLE
    issuer.away = None
    issuer.now += module.RETRY_SECONDS
    await tokens.prove(issuer.token())
    # Now it is known which keys there are, and an unknown one is refused for good.
    await refused(tokens, issuer.token(OTHER, "new", "ES256"))


RSA_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]


@pytest.mark.parametrize("algorithm", RSA_ALGORITHMS)
async def test_an_rsa_key_that_names_no_algorithm_is_fit_for_those_that_are_set(algorithm):
    issuer = Issuer()
    for key in issuer.keys:
        del key["alg"]
    tokens = made(issuer, algorithms=[algorithm, "ES256"])
    for token in (issuer.token(algorithm=algorithm), issuer.token(EC, "ec", "ES256")):
        await tokens.prove(token)
        assert tokens.known(token) is not None
    for other in RSA_ALGORITHMS:
        if other != algorithm:
            await refused(tokens, issuer.token(algorithm=other))
    # A token that names one key and is signed with another.
    await refused(tokens, issuer.token(EC, "rsa", "ES256"))
    await refused(tokens, issuer.token(RSA, "ec", algorithm))
    await refused(tokens, issuer.token("x" * 64, "rsa", "HS256"))


async def test_the_log_says_why_tokens_are_refused_now_and_then_and_holds_none_of_them():
    issuer = Issuer()
    tokens = made(issuer)
    wrong = [
        issuer.token(aud="other"),
        issuer.token(iss="https://other.example"),
        issuer.token(exp=1),
        issuer.token(OTHER, "ec", "ES256"),
        issuer.token(OTHER, "new", "ES256"),
        issuer.token(runlane_namespace="*"),
        issuer.token(drop=["sub"]),
        "x",
    ]
    with capture_logs() as lines:
        for _ in range(3):
            for token in wrong:
                await refused(tokens, token)
        issuer.now += module.TELL_SECONDS
        await refused(tokens, wrong[0])
    assert [one["why"] for one in lines if one["event"] == "token refused"] == [
        "InvalidAudienceError",
        "InvalidIssuerError",
        "ExpiredSignatureError",
        "InvalidSignatureError",
        "unknown key",
        "no namespace",
        "no name",
        "no token",
        "InvalidAudienceError",
    ]
    assert {key for one in lines for key in one} == {"event", "log_level", "why"}


async def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "KNOWN_MAX", 2)
    issuer = Issuer()
    tokens = made(issuer)
    all_ = [issuer.token(jti=str(number)) for number in range(4)]
    await tokens.prove(all_[0])
    tokens.known(all_[0]).calls.add(asyncio.current_task())
    for token in all_[1:]:
        await tokens.prove(token)
    assert [tokens.known(token) is not None for token in all_] == [True, False, False, True]


async def test_where_keys_come_from(tmp_path):
    path = tmp_path / "keys.json"
    path.write_text('{"keys": []}')
    assert read_keys(JwtConfig(**{**ISSUER, "jwks": str(path)})) == b'{"keys": []}'
    with pytest.raises(OSError, match="No such file"):
        read_keys(JwtConfig(**{**ISSUER, "jwks": str(tmp_path / "none")}))
    assert JwtConfig(**{**ISSUER, "jwks": "http://127.0.0.1/keys"}).is_url
    with pytest.raises(ValidationError, match="https"):
        JwtConfig(**{**ISSUER, "jwks": "http://issuer.example/keys"})
    with pytest.raises(ValidationError):
        JwtConfig(**ISSUER, algorithms=["HS256"])
