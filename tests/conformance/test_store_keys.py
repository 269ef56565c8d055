"""API keys."""

from dataclasses import replace

import pytest
from runlane_server.core.keys import ApiKey, Scope, scope_bits
from runlane_server.store.sqlite import SqliteStore

pytestmark = pytest.mark.asyncio


def made(key_id: str, time: int, **fields) -> ApiKey:
    bits = scope_bits(Scope.READ, Scope.ADMIN)
    return ApiKey(key_id, "name", "default", bits, bytes(32), "abcd", time, **fields)


async def test_keys_are_kept_in_order_and_revoked_once(store):
    assert await store.api_keys() == []
    late, early = made("key_1", 9), made("key_2", 5, expire_time=7, request_id="default/r")
    tie = made("key_0", 9)
    for key in (late, early, tie):
        await store.save_api_key(key)
    assert await store.api_keys() == [early, tie, late]
    await store.save_api_key(replace(tie, revoke_time=20))
    await store.save_api_key(replace(tie, revoke_time=30))
    await store.save_api_key(replace(late, name="other", scopes=0, hash=b"x"))
    assert await store.api_keys() == [early, replace(tie, revoke_time=20), late]


async def test_keys_are_read_by_what_is_asked_for(store):
    rows = [
        made("key_1", 1),
        made("key_2", 1, expire_time=50),
        made("key_3", 2, revoke_time=9),
        replace(made("key_4", 3), namespace="other"),
        replace(made("key_5", 4, expire_time=60), namespace="third"),
    ]
    for key in reversed(rows):
        assert await store.save_api_key(key)
    assert await store.api_keys(49) == [rows[0], rows[1], *rows[3:]]
    assert await store.api_keys(50) == [rows[0], *rows[3:]], "it ends at its time"
    assert await store.api_keys(60) == [rows[0], rows[3]]
    assert await store.api_keys(0, ["default", "third"]) == [*rows[:3], rows[4]]
    assert await store.api_keys(0, []) == []
    assert await store.api_keys(0, None, (1, "key_1"), 2) == rows[1:3]
    assert await store.api_keys(50, ["other", "third"], (3, "key_4"), 9) == rows[4:]
    assert await store.api_key("key_3") == rows[2]
    assert await store.api_key("key_9") is None


async def test_a_request_makes_one_key(store):
    first = made("key_1", 1, request_id="default/r")
    assert await store.save_api_key(first)
    assert not await store.save_api_key(made("key_2", 2, request_id="default/r"))
    for number in (3, 4):
        assert await store.save_api_key(made(f"key_{number}", 3)), "no request, no bound"
    assert await store.api_key_of_request("default/r") == first
    assert await store.api_key_of_request("") is None
    ended = replace(first, revoke_time=9)
    assert await store.save_api_key(ended)
    assert await store.api_key_of_request("default/r") == ended
    assert len(await store.api_keys()) == 3


async def test_keys_outlive_the_process(path):
    first = SqliteStore(path)
    await first.open(0, "")
    await first.save_api_key(made("key_1", 1))
    await first.close()
    second = SqliteStore(path)
    await second.open(0, "")
    assert await second.api_keys() == [made("key_1", 1)]
    await second.close()
