"""Slots: one valid slot a session, whatever is kept, forgotten or loaded at once."""

import asyncio
import gc

import pytest
from runlane_server.core.model import SessionKey
from runlane_server.runtime.records import encode_state
from runlane_server.runtime.slots import Slots
from runlane_server.store.base import LoadedSession
from runlane_server.store.errors import StoreCorrupt, StoreUnavailable
from support.gate import yielded
from support.lane import Lane
from support.steps import create, first


def _key(number: int) -> SessionKey:
    return SessionKey("default", f"ses_{number}")


class Loads:
    """A store that counts what is read of it."""

    def __init__(self) -> None:
        lane = Lane()
        lane.do(create, first)
        self.data = encode_state(lane.state)
        self.counts: dict[SessionKey, int] = {}
        self.error: Exception | None = None

    async def load(self, key: SessionKey) -> LoadedSession | None:
        self.counts[key] = self.counts.get(key, 0) + 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return LoadedSession(b"token", self.data, 7)


@pytest.mark.asyncio
async def test_many_that_ask_at_once_read_once():
    loads = Loads()
    slots = Slots(loads.load, 10, 10**9)
    taken = await asyncio.gather(*(slots.take(_key(1)) for _ in range(20)))
    assert len({id(slot) for slot in taken}) == 1
    assert loads.counts == {_key(1): 1}
    assert (taken[0].token, taken[0].lease_expire_time) == (b"token", 7)


@pytest.mark.asyncio
async def test_one_that_goes_away_does_not_end_the_load():
    loads = Loads()
    slots = Slots(loads.load, 10, 10**9)
    one, two = (asyncio.ensure_future(slots.take(_key(1))) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    assert (await two).valid


@pytest.mark.asyncio
async def test_one_that_is_held_stays_the_only_one_though_it_was_let_go():
    loads = Loads()
    slots = Slots(loads.load, 1, 10**9)
    held = await slots.take(_key(1))
    for number in range(2, 6):
        await slots.take(_key(number))
    assert await slots.take(_key(1)) is held
    assert loads.counts[_key(1)] == 1
    await slots.take(_key(2))
    del held
    await yielded()
    gc.collect()
    await slots.take(_key(1))
    assert loads.counts[_key(1)] == 2


@pytest.mark.asyncio
async def test_bytes_are_limited_and_counted():
    loads = Loads()
    slots = Slots(loads.load, 1000, 5 * (1024 + len(loads.data)))
    for number in range(50):
        await slots.take(_key(number))
    assert len(slots._kept) == 5
    assert slots._bytes == sum(slot.size for slot in slots._kept.values())
    slots.resize(slots._kept[_key(49)], 100_000)
    assert slots._bytes == sum(slot.size for slot in slots._kept.values())
    slots.drop(slots._kept[_key(48)])
    await slots.take(_key(1))
    assert slots._bytes == sum(slot.size for slot in slots._kept.values())


@pytest.mark.asyncio
async def test_one_that_fell_is_read_again():
    loads = Loads()
    slots = Slots(loads.load, 10, 10**9)
    fallen = await slots.take(_key(1))
    slots.drop(fallen)
    again = await slots.take(_key(1))
    assert (fallen.valid, again.valid, again is fallen) == (False, True, False)
    slots.drop(fallen)  # a second write on it that falls harms no other
    assert await slots.take(_key(1)) is again


@pytest.mark.asyncio
@pytest.mark.parametrize("error", [StoreUnavailable("gone"), None])
async def test_a_load_that_fails_is_told_to_all_and_tried_again(error):
    loads = Loads()
    good = loads.data
    loads.error = error
    loads.data = b"\x01\xc1"
    slots = Slots(loads.load, 10, 10**9)
    results = await asyncio.gather(*(slots.take(_key(1)) for _ in range(3)), return_exceptions=True)
    kind = StoreUnavailable if error is not None else StoreCorrupt
    assert [type(one) for one in results] == [kind] * 3
    loads.error, loads.data = None, good
    assert (await slots.take(_key(1))).valid
