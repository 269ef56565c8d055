"""Tokens of an OIDC issuer: proved by its public keys, remembered until they expire."""

import asyncio
import hashlib
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import jwt
import structlog

from runlane_server.access_settings import JwtConfig
from runlane_server.app.keys import Grant
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.keys import Scope, scope_bits
from runlane_server.runtime.engine import Time
from runlane_server.transport.access import unknown

KNOWN_MAX = 10_000
"""Tokens that are remembered."""

REFRESH_SECONDS = 600.0
"""Age after which the issuer's keys are read again: one that was withdrawn is taken no longer."""

RETRY_SECONDS = 10.0
"""The least time between two reads, whatever key a token names; and that after one that failed."""

TELL_SECONDS = 60.0
"""How often the log says that tokens are refused for one reason."""

_FETCH_SECONDS = 5.0
_FETCH_BYTES_MAX = 1024 * 1024
_LEEWAY_SECONDS = 10
_ACTOR_MAX = 64
_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_UNPRINTED = re.compile(r"[^ -~]")

_log = structlog.get_logger(__name__)


class _Known(NamedTuple):
    grant: Grant
    kid: str


class JwtTokens:
    """Proves tokens. A known one costs a look-up; a new one a signature.

    Args:
        config: Whose tokens, and what they mean.
        clock: When they expire.
        read: Reads the issuer's keys, as JSON; blocks.
        monotonic: The time between reads.
    """

    def __init__(
        self,
        config: JwtConfig,
        clock: Time,
        read: Callable[[JwtConfig], bytes] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._clock = clock
        self._read = read or read_keys
        self._monotonic = monotonic
        self._keys: dict[str, Any] = {}
        self._read_at = float("-inf")
        # Why the keys could not be read when that was tried last; empty: they could.
        self._away = ""
        self._told: dict[str, float] = {}
        self._lock = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    def known(self, token: str) -> Grant | None:
        """Returns what a token opens that was proved before, and has not expired."""
        found = self._known.get(_digest(token))
        if found is None or found.grant.expire_time <= self._clock.now():
            return None
        return found.grant

    async def prove(self, token: str) -> None:
        """Proves a token, so that it is known, or refuses it."""
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError):
            raise self._refusal("no token") from None
        kid = str(header.get("kid", ""))
        if kid not in self._keys:
            await self.refresh()
        if self.known(token) is not None:  # Another call was faster.
            return
        key = self._keys.get(kid)
        if key is None:
            raise self._unreadable() if self._away else self._refusal("unknown key")
        config = self._config
        try:
            claims: Mapping[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(config.algorithms),
                audience=config.audience,
                issuer=config.issuer,
                leeway=_LEEWAY_SECONDS,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, TypeError, ValueError, OverflowError) as error:
            raise self._refusal(type(error).__name__) from None
        grant = self._grant(claims)
        if grant.expire_time <= self._clock.now():
            raise self._refusal(jwt.ExpiredSignatureError.__name__)
        self._known[_digest(token)] = _Known(grant, kid)
        if len(self._known) > KNOWN_MAX:
            # What lasts under a token must be found again when it expires.
            idle = next((key for key, one in self._known.items() if not one.grant.calls), None)
            if idle is not None:
                del self._known[idle]

    async def refresh(self) -> None:
        """Reads the issuer's keys, unless that was done a moment ago."""
        async with self._lock:
            if self._monotonic() - self._read_at < RETRY_SECONDS:
                return
            self._read_at = self._monotonic()
            try:
                keys = _parse(await asyncio.to_thread(self._read, self._config))
            except Exception as error:  # noqa: BLE001 - whatever answers there, the server goes on
                before, self._away = self._away, _why(error)
                if self._away != before:
                    _log.warning("the issuer's keys cannot be read", error=self._away)
                return
            if self._away:
                _log.info("the issuer's keys are read again")
            self._keys, self._away = keys, ""
            for digest, one in list(self._known.items()):
                if one.kid not in keys:
                    del self._known[digest]
                    one.grant.end()

    def tick(self, now: int) -> None:
        """Forgets what has expired, and ends what lasts under it; reads old keys again."""
        age = RETRY_SECONDS if self._away else REFRESH_SECONDS
        old = self._monotonic() - self._read_at > age
        if old and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.get_running_loop().create_task(self.refresh())
        for digest, one in list(self._known.items()):
            if one.grant.expire_time <= now:
                del self._known[digest]
                one.grant.end()

    def _refusal(self, why: str) -> Refused:
        """Returns the refusal of a token; the log says why, now and then, and holds none of it."""
        now = self._monotonic()
        if now - self._told.get(why, float("-inf")) >= TELL_SECONDS:
            self._told[why] = now
            _log.info("token refused", why=why)
        return unknown()

    def _unreadable(self) -> Refused:
        """Returns the refusal of a token that nobody can judge now."""
        left = self._read_at + RETRY_SECONDS - self._monotonic()
        return Refused(
            Reason.STORE_UNAVAILABLE,
            "the keys that prove the credential cannot be read now",
            retry_milliseconds=max(1000, round(left * 1000)),
        )

    def _grant(self, claims: Mapping[str, Any]) -> Grant:
        config = self._config
        claimed = _words(claims.get(config.namespace_claim))
        namespaces = tuple(word for word in claimed if _NAMESPACE.fullmatch(word))
        if config.namespace_claim not in claims and config.namespace:
            namespaces = (config.namespace,)
        name = claims.get(config.name_claim)
        if not namespaces:
            raise self._refusal("no namespace")
        if not isinstance(name, str) or not name:
            raise self._refusal("no name")
        scopes = [
            Scope[word.removeprefix(config.scope_prefix).upper()]
            for word in _words(claims.get(config.scope_claim))
            if word.startswith(config.scope_prefix)
            and word.removeprefix(config.scope_prefix) in _SCOPES
        ]
        return Grant(
            f"client:{_UNPRINTED.sub('?', name)[:_ACTOR_MAX]}",
            namespaces,
            scope_bits(*scopes),
            expire_time=int(claims["exp"]) * 1_000_000,
        )


_SCOPES = frozenset(scope.name.lower() for scope in Scope)


def read_keys(config: JwtConfig) -> bytes:
    """Reads the issuer's keys from where they are. Blocks.

    Raises:
        OSError: They cannot be read.
    """
    if not config.is_url:
        return Path(config.jwks).read_bytes()
    request = Request(config.jwks, headers={"accept": "application/json"})  # noqa: S310 - checked
    with urlopen(request, timeout=_FETCH_SECONDS) as answer:  # noqa: S310 - as above
        found: bytes = answer.read(_FETCH_BYTES_MAX)
    return found


def _parse(data: bytes) -> dict[str, Any]:
    """Returns keys by their kid; a lone key needs none. Those of no use are left out.

    Raises:
        ValueError: There is none.
    """
    whole = json.loads(data)
    listed = whole.get("keys") if isinstance(whole, dict) else None
    found: dict[str, Any] = {}
    for one in listed if isinstance(listed, list) else ():
        with suppress(jwt.PyJWTError):
            key = jwt.PyJWK(one) if isinstance(one, dict) else None
            if key is not None:
                # An RSA key that names no algorithm is fit for all of RSA; as a JWK it would be
                # for RS256 alone.
                bare = key.key_type == "RSA" and not one.get("alg")
                found[key.key_id or ""] = key.key if bare else key
    if not found:
        raise ValueError("there is no usable key in what was read")
    return found


def _why(error: Exception) -> str:
    """Returns what the log may say of a failed read: no text of a stranger."""
    if isinstance(error, OSError) or type(error) is ValueError:
        return str(error)
    return type(error).__name__


def _words(claim: object) -> list[str]:
    if isinstance(claim, str):
        return claim.split()
    if isinstance(claim, list):
        return [word for word in claim if isinstance(word, str)]
    return []


def _digest(token: str) -> bytes:
    # No secret is kept, and what a stranger sends is not compared with one.
    return hashlib.sha256(token.encode()).digest()
