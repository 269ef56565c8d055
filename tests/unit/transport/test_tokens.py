"""Tokens of an issuer: what proves them, what they open, and how often its keys are read."""

import asyncio
import json
import time

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from pydantic import ValidationError
from runlane_server.access_settings import JwtConfig
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.keys import Scope, scope_bits
from runlane_server.transport import tokens as module
from runlane_server.transport.tokens import JwtTokens, read_keys

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
        self.away = False
        self.now = 0.0

    def read(self, _config) -> bytes:
        self.reads += 1
        if self.away:
            raise OSError("away")
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
    issuer.away = True
    tokens.tick(0)
    await tokens._refreshing
    assert tokens.known(token) is not None
    issuer.away = False
    issuer.now += module.REFRESH_SECONDS + 1
    tokens.tick(0)
    await tokens._refreshing
    assert tokens.known(token) is None
    assert tokens.known(stays) is not None


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
