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


async def test_keys_outlive_the_process(path):
    first = SqliteStore(path)
    await first.open(0, "")
    await first.save_api_key(made("key_1", 1))
    await first.close()
    second = SqliteStore(path)
    await second.open(0, "")
    assert await second.api_keys() == [made("key_1", 1)]
    await second.close()
