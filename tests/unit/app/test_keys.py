"""The ring of keys: looked up without a store, changed in it, and followed."""

import asyncio
import hmac
from dataclasses import replace

import pytest
from runlane_server.app import keys as module
from runlane_server.app.keys import NO_GRANT, KeyRing, NewKey, grant_of
from runlane_server.core import keys as core
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.keys import ALL_SCOPES, Scope, place_in, proves, scope_bits, scopes_of
from runlane_server.runtime import forever as forever_module

pytestmark = pytest.mark.asyncio
SECOND = 1_000_000


class Store:
    def __init__(self):
        self.rows = {}
        self.reads = 0

    async def api_keys(self, live_at=0, namespaces=None, after=None, limit=0):
        self.reads += 1
        await asyncio.sleep(0)
        found = sorted(self.rows.values(), key=lambda key: (key.create_time, key.key_id))
        return [
            key
            for key in found
            if (not live_at or not key.ended(live_at))
            and (namespaces is None or key.namespace in namespaces)
            and (after is None or (key.create_time, key.key_id) > after)
        ][: limit or None]

    async def api_key(self, key_id):
        await asyncio.sleep(0)
        return self.rows.get(key_id)

    async def api_key_of_request(self, request_id):
        await asyncio.sleep(0)
        return next((one for one in self.rows.values() if one.request_id == request_id), None)

    async def save_api_key(self, key):
        await asyncio.sleep(0)
        request = key.request_id
        if key.key_id not in self.rows and any(
            request and one.request_id == request for one in self.rows.values()
        ):
            return False
        self.rows[key.key_id] = key
        return True


class Clock:
    time = 1000 * SECOND

    def now(self):
        return self.time


def ring_of(store, clock):
    numbers = iter(range(1000, 10**6))
    return KeyRing(store, clock, lambda prefix: f"{prefix}_{next(numbers):032x}")


@pytest.fixture
def parts():
    store, clock = Store(), Clock()
    return ring_of(store, clock), store, clock


def new(**fields) -> NewKey:
    return NewKey(**{"name": "n", "namespace": "default", "scopes": ALL_SCOPES, **fields})


async def test_a_secret_is_found_without_a_read_and_no_other_is(parts):
    ring, store, _ = parts
    made = await ring.create(NO_GRANT, "default", new(name="a"))
    await ring.create(NO_GRANT, "default", new(name="b"))
    reads = store.reads
    assert ring.find(made.secret).actor == "client:a"
    for wrong in ("", made.secret[:-1], made.secret + "x", made.secret.upper(), "rlk_" + "0" * 76):
        assert ring.find(wrong) is None
    assert store.reads == reads
    assert made.secret not in repr(made)
    row = store.rows[made.key.key_id]
    assert made.secret not in repr(row)
    assert made.secret[40:] not in repr(row)
    assert len(made.secret) == 80
    assert made.key.last_characters == made.secret[-4:]


async def test_secrets_are_compared_in_constant_time(parts, monkeypatch):
    ring, _, _ = parts
    made = await ring.create(NO_GRANT, "default", new())
    compared = []

    def compare(one, other):
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(core, "hmac", type("Spy", (), {"compare_digest": staticmethod(compare)}))
    wrong = made.secret[:-1] + ("A" if made.secret[-1] != "A" else "B")
    assert ring.find(made.secret) is not None
    assert ring.find(wrong) is None
    assert compared == [(32, 32), (32, 32)]


async def test_a_key_expires_and_what_lasts_under_it_is_ended(parts):
    ring, _, clock = parts
    made = await ring.create(NO_GRANT, "default", new(lifetime=5 * SECOND))
    assert made.key.expire_time == clock.time + 5 * SECOND
    grant = ring.find(made.secret)
    call = asyncio.create_task(asyncio.sleep(60))
    grant.calls.add(call)
    await ring.start()
    clock.time += 5 * SECOND - 1
    assert ring.find(made.secret) is grant
    clock.time += 1
    assert ring.find(made.secret) is None
    await asyncio.wait([call], timeout=3)
    assert call.cancelled()
    assert grant.cut == {call}
    await ring.close()


async def test_what_another_process_did_is_taken_in(parts):
    ring, store, clock = parts
    other = ring_of(store, clock)
    made = await ring.create(NO_GRANT, "default", new())
    assert other.find(made.secret) is None
    await other.start()
    assert other.find(made.secret) is not None
    assert other.count == 1
    await ring.revoke(NO_GRANT, made.key.key_id)
    assert ring.find(made.secret) is None
    await other.reload()
    assert other.find(made.secret) is None
    assert other.count == 0
    await other.close()


async def test_an_own_key_opens_all_and_is_stored_nowhere(parts):
    ring, store, _ = parts
    secret = ring.own("client:embedded")
    await ring.reload()
    grant = ring.find(secret)
    assert (grant.actor, grant.opens("any"), grant.scopes) == ("client:embedded", True, ALL_SCOPES)
    assert store.rows == {}


async def test_a_namespace_has_a_number_of_live_keys(parts, monkeypatch):
    monkeypatch.setattr(module, "KEYS_MAX", 3)
    ring, _, clock = parts
    made = [await ring.create(NO_GRANT, "default", new(lifetime=9 * SECOND)) for _ in range(3)]
    await ring.create(NO_GRANT, "default", new(namespace="other"))
    for free in ("revoked", "expired"):
        with pytest.raises(Refused) as caught:
            await ring.create(NO_GRANT, "default", new())
        assert caught.value.reason is Reason.QUOTA_EXCEEDED
        assert caught.value.metadata == {"quota": "keys", "limit": "3"}
        if free == "revoked":
            await ring.revoke(NO_GRANT, made[0].key.key_id)
            await ring.create(NO_GRANT, "default", new())
        else:
            clock.time += 9 * SECOND
            await ring.create(NO_GRANT, "default", new())


async def test_a_request_id_makes_one_key_in_each_namespace(parts):
    ring, store, _ = parts
    asked = new(request_id="r")
    first, again = await asyncio.gather(
        *(ring.create(NO_GRANT, "default", asked) for _ in range(2))
    )
    assert first.key == again.key
    assert (bool(first.secret), again.secret) == (True, "")
    await ring.create(NO_GRANT, "elsewhere", asked)
    assert len(store.rows) == 2
    with pytest.raises(Refused) as caught:
        await ring.create(NO_GRANT, "default", replace(asked, name="m"))
    assert caught.value.reason is Reason.REQUEST_ID_REUSED


async def test_a_request_id_makes_one_key_at_two_servers(parts):
    ring, store, clock = parts
    numbers = iter(range(10**6, 10**7))
    other = KeyRing(store, clock, lambda prefix: f"{prefix}_{next(numbers):032x}")
    asked = new(request_id="r")
    made = await asyncio.gather(*(one.create(NO_GRANT, "default", asked) for one in (ring, other)))
    (row,) = store.rows.values()
    assert [one.key for one in made] == [row, row]
    assert sorted(bool(one.secret) for one in made) == [False, True]


async def test_keys_are_listed_in_pages(parts):
    ring, _, clock = parts
    made = []
    for _ in range(5):
        made.append((await ring.create(NO_GRANT, "default", new())).key)
        clock.time += 1
    seen, after = [], None
    while True:
        page = await ring.list(NO_GRANT, after, 2, ended=False)
        seen += page.items
        after = page.after
        if after is None:
            break
    assert seen == made


async def test_scopes_are_a_set_of_numbers():
    bits = scope_bits(Scope.READ, Scope.ADMIN)
    assert scopes_of(bits) == [Scope.READ, Scope.ADMIN]
    assert scopes_of(ALL_SCOPES) == list(Scope)
    key = core.ApiKey("key_1", "n", "*", bits, b"", "", 0)
    grant = grant_of(key)
    assert (grant.every, grant.namespaces) == (True, ("default",))
    assert not grant_of(replace(key, namespace="a")).opens("*")
    assert place_in("rlk_") == ""
    assert not proves("x", b"")


async def test_keys_are_followed_also_after_a_fault(parts, monkeypatch):
    """Whatever a read of the store ends with, revocations are taken in by the next."""
    ring, store, clock = parts
    made = await ring.create(NO_GRANT, "default", new())
    follower = KeyRing(store, clock, str, reload_seconds=1)
    await follower.start()
    call = asyncio.create_task(asyncio.sleep(60))
    follower.find(made.secret).calls.add(call)
    read = store.api_keys

    async def fails(*_which):
        store.api_keys = read
        raise RuntimeError("a fault")

    monkeypatch.setattr(forever_module, "PAUSE_SECONDS", 0)
    await ring.revoke(NO_GRANT, made.key.key_id)
    store.api_keys = fails
    await asyncio.wait([call], timeout=10)
    assert call.cancelled()
    assert store.api_keys is not fails
    await follower.close()


async def test_who_made_and_who_revoked_a_key_is_told_once(parts):
    ring, _, _ = parts
    told = []
    ring.on_change = lambda key, actor: told.append((key.key_id, bool(key.revoke_time), actor))
    for _ in range(2):
        made = await ring.create(NO_GRANT, "default", new(request_id="r"), "client:root")
    for _ in range(2):
        await ring.revoke(NO_GRANT, made.key.key_id, "client:other")
    assert told == [
        (made.key.key_id, False, "client:root"),
        (made.key.key_id, True, "client:other"),
    ]
