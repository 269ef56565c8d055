"""API keys: made, listed, revoked, and looked up for every call without a read of the store."""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from runlane_server.app.views import Page
from runlane_server.core.drafting import NewId
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.keys import (
    ALL_SCOPES,
    DEFAULT_NAMESPACE,
    EVERY_NAMESPACE,
    RANDOM_BYTES,
    ApiKey,
    hash_secret,
    make_secret,
    place_in,
    place_of,
    proves,
)
from runlane_server.runtime.engine import Time
from runlane_server.runtime.forever import forever
from runlane_server.store.base import Store
from runlane_server.store.errors import StoreError, StoreUnavailable

KEYS_MAX = 1000
"""Live keys of a namespace."""

RELOAD_SECONDS = 5
"""How often what other processes did to the keys is read."""


@dataclass(slots=True, eq=False)
class Grant:
    """What a credential opens, and the calls that last as long as it does.

    Attributes:
        actor: For events.
        namespaces: Those that it opens; a call that names none is in the first.
        every: It opens all others too.
        scopes: As of `scope_bits`.
        expire_time: 0: never.
        hash: Of the secret; empty where it is proved in another way.
        calls: Streams and waits that end with it.
        cut: Those of them that it has ended.
    """

    actor: str
    namespaces: tuple[str, ...]
    scopes: int
    every: bool = False
    expire_time: int = 0
    hash: bytes = b""
    calls: set[asyncio.Task[Any]] = field(default_factory=set)
    cut: set[asyncio.Task[Any]] = field(default_factory=set)

    def opens(self, namespace: str) -> bool:
        """Tells whether it opens a namespace; `*` is all of them."""
        return self.every or namespace in self.namespaces

    def end(self) -> None:
        """Ends the calls that last."""
        for task in self.calls - self.cut:
            self.cut.add(task)
            task.cancel()


NO_GRANT = Grant("client", (DEFAULT_NAMESPACE,), ALL_SCOPES, every=True)
"""What everybody has where nobody is asked for a credential."""


@dataclass(slots=True, frozen=True)
class NewKey:
    """What a key is made from.

    Attributes:
        lifetime: In microseconds; 0: without end.
        request_id: Empty: none.
    """

    name: str
    namespace: str
    scopes: int
    lifetime: int = 0
    request_id: str = ""


@dataclass(slots=True, frozen=True)
class MadeKey:
    """A key; `secret` is empty where an earlier call has told it."""

    key: ApiKey
    secret: str = field(default="", repr=False)


def grant_of(key: ApiKey) -> Grant:
    """Returns what a key opens."""
    every = key.namespace == EVERY_NAMESPACE
    return Grant(
        f"client:{key.name}",
        (DEFAULT_NAMESPACE if every else key.namespace,),
        key.scopes,
        every,
        key.expire_time,
        key.hash,
    )


class KeyRing:
    """All live keys, in memory: a call costs one look-up and one hash.

    It is as large as the keys are many, which `KEYS_MAX` bounds.
    """

    def __init__(
        self, store: Store, clock: Time, new_id: NewId, reload_seconds: float = RELOAD_SECONDS
    ) -> None:
        """Makes an empty ring.

        Args:
            store: Has the keys.
            clock: The time.
            new_id: Makes ids.
            reload_seconds: How often what other processes did to the keys is read, to the
                next whole second.
        """
        self._reload_seconds = max(1, round(reload_seconds))
        self._seconds = 0
        self._store = store
        self._clock = clock
        self._new_id = new_id
        self._grants: dict[str, Grant] = {}
        self._own: dict[str, Grant] = {}
        self._lock = asyncio.Lock()
        self._ticking: asyncio.Task[None] | None = None
        self.on_tick: Callable[[int], None] | None = None
        self.on_change: Callable[[ApiKey, str], None] | None = None
        """Told of a key that a caller made or revoked, and of its actor."""

    # --- every call ----------------------------------------------------------

    def find(self, secret: str) -> Grant | None:
        """Returns what a secret opens; None where it opens nothing."""
        place = place_in(secret)
        grant = self._grants.get(place) or self._own.get(place)
        if grant is None or not proves(secret, grant.hash):
            return None
        if 0 < grant.expire_time <= self._clock.now():
            return None
        return grant

    # --- the life of the process -----------------------------------------------

    async def start(self) -> None:
        """Takes in the keys of the store, and follows what becomes of them."""
        await self.reload()
        self._ticking = asyncio.get_running_loop().create_task(forever("keys", self._tick))

    async def close(self) -> None:
        """Follows no more."""
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.gather(self._ticking, return_exceptions=True)

    @property
    def count(self) -> int:
        """How many keys are live."""
        return len(self._grants)

    def own(self, actor: str) -> str:
        """Makes a key of the process itself, which opens all and is stored nowhere."""
        key_id = self._new_id("key")
        secret = make_secret(key_id, secrets.token_bytes(RANDOM_BYTES))
        self._own[place_of(key_id)] = Grant(
            actor, (DEFAULT_NAMESPACE,), ALL_SCOPES, every=True, hash=hash_secret(secret)
        )
        return secret

    async def reload(self) -> None:
        """Takes in what others wrote; ends what they revoked."""
        async with self._lock:
            now = self._clock.now()
            live = {place_of(key.key_id): key for key in await self._store.api_keys(now)}
            for place in self._grants.keys() - live.keys():
                self._grants.pop(place).end()
            for place in live.keys() - self._grants.keys():
                self._grants[place] = grant_of(live[place])

    async def _tick(self) -> None:
        """Ends, each second, the calls of keys that have expired; reads the store at times."""
        await asyncio.sleep(1)
        now = self._clock.now()
        for grant in list(self._grants.values()):
            if 0 < grant.expire_time <= now:
                grant.end()
        if self.on_tick is not None:
            self.on_tick(now)
        self._seconds += 1
        if self._seconds % self._reload_seconds == 0:
            # The store may be away; what is known of the keys stands meanwhile.
            with suppress(StoreError):
                await self.reload()

    # --- use cases -------------------------------------------------------------

    async def create(self, grant: Grant, namespace: str, asked: NewKey, actor: str = "") -> MadeKey:
        """Makes a key; `namespace` and `actor` are those of the call."""
        if not grant.opens(asked.namespace):
            raise Refused(
                Reason.SCOPE_MISSING,
                "the credential does not open the namespace of the key",
                scope="admin",
                namespace=asked.namespace,
            )
        async with self._lock:
            now = self._clock.now()
            request = f"{namespace}/{asked.request_id}" if asked.request_id else ""
            if request:
                before = await self._store.api_key_of_request(request)
                if before is not None:
                    return MadeKey(_same(before, asked))
            if len(await self._store.api_keys(now, [asked.namespace])) >= KEYS_MAX:
                raise Refused(Reason.QUOTA_EXCEEDED, quota="keys", limit=str(KEYS_MAX))
            key_id = self._new_id("key")
            secret = make_secret(key_id, secrets.token_bytes(RANDOM_BYTES))
            key = ApiKey(
                key_id,
                asked.name,
                asked.namespace,
                asked.scopes,
                hash_secret(secret),
                secret[-4:],
                now,
                now + asked.lifetime if asked.lifetime else 0,
                request_id=request,
            )
            if not await self._store.save_api_key(key):
                # Another server was asked the same at the same moment.
                before = await self._store.api_key_of_request(request)
                if before is None:
                    raise StoreUnavailable("a key could not be written")
                return MadeKey(_same(before, asked))
            self._grants[place_of(key_id)] = grant_of(key)
            if self.on_change is not None:
                self.on_change(key, actor)
            return MadeKey(key, secret)

    async def list(
        self, grant: Grant, after: tuple[int, str] | None, limit: int, *, ended: bool
    ) -> Page[ApiKey]:
        """Lists the keys of the namespaces that a credential opens."""
        live_at = 0 if ended else self._clock.now()
        namespaces = None if grant.every else grant.namespaces
        keys = await self._store.api_keys(live_at, namespaces, after, limit + 1)
        page = keys[:limit]
        more = len(keys) > limit
        return Page(page, (page[-1].create_time, page[-1].key_id) if more else None)

    async def revoke(self, grant: Grant, key_id: str, actor: str = "") -> ApiKey:
        """Ends a key, and the calls that last under it; `actor` is that of the call."""
        async with self._lock:
            key = await self._store.api_key(key_id)
            if key is None or not grant.opens(key.namespace):
                raise Refused(Reason.KEY_NOT_FOUND)
            if key.revoke_time:
                return key
            key = replace(key, revoke_time=self._clock.now())
            await self._store.save_api_key(key)
            held = self._grants.pop(place_of(key_id), None)
            if held is not None:
                held.end()
            if self.on_change is not None:
                self.on_change(key, actor)
            return key


def _same(key: ApiKey, asked: NewKey) -> ApiKey:
    """Returns the key that a request made, or refuses another request with its id."""
    lifetime = key.expire_time - key.create_time if key.expire_time else 0
    made = (key.name, key.namespace, key.scopes, lifetime)
    if made != (asked.name, asked.namespace, asked.scopes, asked.lifetime):
        raise Refused(Reason.REQUEST_ID_REUSED, request_id=asked.request_id)
    return key
