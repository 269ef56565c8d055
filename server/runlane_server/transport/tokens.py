"""Tokens of an OIDC issuer: proved by its public keys, remembered until they expire."""

import asyncio
import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import jwt
import structlog

from runlane_server.access_settings import JwtConfig
from runlane_server.app.keys import Grant
from runlane_server.core.keys import Scope, scope_bits
from runlane_server.runtime.engine import Time
from runlane_server.transport.access import unknown

KNOWN_MAX = 10_000
"""Tokens that are remembered."""

REFRESH_SECONDS = 600.0
"""Age after which the issuer's keys are read again: one that was withdrawn is taken no longer."""

RETRY_SECONDS = 10.0
"""The least time between two reads, whatever key a token names."""

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
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at = float("-inf")
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
            raise unknown() from None
        kid = str(header.get("kid", ""))
        if kid not in self._keys:
            await self.refresh()
        if self.known(token) is not None:  # Another call was faster.
            return
        key = self._keys.get(kid)
        if key is None:
            raise unknown()
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
        except jwt.PyJWTError:
            raise unknown() from None
        grant = self._grant(claims)
        if grant.expire_time <= self._clock.now():
            raise unknown()
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
            except (OSError, ValueError, jwt.PyJWTError) as error:
                _log.warning("the issuer's keys cannot be read", error=str(error))
                return
            self._keys = keys
            for digest, one in list(self._known.items()):
                if one.kid not in keys:
                    del self._known[digest]
                    one.grant.end()

    def tick(self, now: int) -> None:
        """Forgets what has expired, and ends what lasts under it; reads old keys again."""
        old = self._monotonic() - self._read_at > REFRESH_SECONDS
        if old and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.get_running_loop().create_task(self.refresh())
        for digest, one in list(self._known.items()):
            if one.grant.expire_time <= now:
                del self._known[digest]
                one.grant.end()

    def _grant(self, claims: Mapping[str, Any]) -> Grant:
        config = self._config
        claimed = _words(claims.get(config.namespace_claim))
        namespaces = tuple(word for word in claimed if _NAMESPACE.fullmatch(word))
        if config.namespace_claim not in claims and config.namespace:
            namespaces = (config.namespace,)
        name = claims.get(config.name_claim)
        if not namespaces or not isinstance(name, str) or not name:
            raise unknown()
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


def _parse(data: bytes) -> dict[str, jwt.PyJWK]:
    """Returns keys by their kid; a lone key needs none."""
    found = jwt.PyJWKSet.from_json(data.decode())
    return {key.key_id or "": key for key in found.keys}


def _words(claim: object) -> list[str]:
    if isinstance(claim, str):
        return claim.split()
    if isinstance(claim, list):
        return [word for word in claim if isinstance(word, str)]
    return []


def _digest(token: str) -> bytes:
    # No secret is kept, and what a stranger sends is not compared with one.
    return hashlib.sha256(token.encode()).digest()
