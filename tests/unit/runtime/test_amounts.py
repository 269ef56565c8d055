"""What namespaces have in the store, with a store and a clock that are set by hand."""

import asyncio

import pytest
from runlane_server.core.errors import Refused
from runlane_server.core.model import SessionKey, SessionRecord
from runlane_server.core.quotas import Quota
from runlane_server.core.rows import SessionDeleted, SessionInserted
from runlane_server.runtime.amounts import COUNT_AGE, COUNT_SHARE, DOUBTED_AGE, Amounts
from runlane_server.store.base import Usage
from runlane_server.store.errors import StoreUnavailable

pytestmark = pytest.mark.asyncio
MADE = SessionInserted(SessionRecord(), 1)
GONE = SessionDeleted(1)
KEY = SessionKey("a", "s")


class Scene:
    """Amounts over a store that answers when it is told to."""

    def __init__(self, sessions: int = 0, size: int = 0, **limits: int) -> None:
        self.time = 1
        self.usage = Usage(sessions, size)
        self.counts = 0
        self.takes = 0
        self.away = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.amounts = Amounts(lambda _: Quota(**limits), self.count, lambda: self.time)

    async def count(self, namespace: str) -> Usage:
        assert namespace == "a"
        self.counts += 1
        found = self.usage
        await self.gate.wait()
        self.time += self.takes
        if self.away:
            raise StoreUnavailable("away")
        return found

    @property
    def amount(self):
        return self.amounts.of("a")

    def commit(self, *rows, size: int = 0) -> None:
        self.amounts.committed(KEY, rows, size)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def refused(amount, sessions: int, size: int = 0) -> str:
    with pytest.raises(Refused) as caught:
        amount.admit(sessions, size)
    assert not caught.value.retry_milliseconds
    return caught.value.metadata["quota"]


async def test_it_is_counted_once_for_all_who_wait():
    scene = Scene(sessions=2, sessions_max=3)
    scene.gate.clear()
    waiting = [asyncio.create_task(scene.amount.refresh()) for _ in range(10)]
    await settled()
    waiting[0].cancel()
    scene.gate.set()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert scene.counts == 1
    scene.amount.admit(1, 0)
    assert refused(scene.amount, 1) == "sessions_max"


async def test_what_is_decided_counts_until_it_is_on_disk():
    scene = Scene(sessions_max=3)
    await scene.amount.refresh()
    for _ in range(3):
        scene.amount.admit(1, 0)
    refused(scene.amount, 1)
    scene.amount.release(1, 0)  # its write failed
    scene.amount.admit(1, 0)
    scene.commit(MADE)
    scene.amount.release(1, 0)  # its write is on disk
    refused(scene.amount, 1)
    scene.commit(GONE)
    scene.amount.admit(1, 0)


async def test_bytes_are_refused_where_they_do_not_fit_and_where_none_is_left():
    scene = Scene(size=90, stored_bytes_max=100)
    await scene.amount.refresh()
    assert refused(scene.amount, 0, 11) == "stored_bytes_max"
    scene.amount.admit(0, 10)
    assert refused(scene.amount, 1, 0) == "stored_bytes_max"
    scene.amount.release(0, 10)
    scene.commit(size=20)
    assert refused(scene.amount, 1, 0) == "stored_bytes_max"


async def test_an_old_count_serves_until_a_new_one_is_there():
    scene = Scene(sessions=1, sessions_max=10)
    await scene.amount.refresh()
    scene.time += COUNT_AGE - 1
    await scene.amount.refresh()
    assert scene.counts == 1
    scene.time += 1
    scene.usage = Usage(9, 0)  # another server made them
    scene.gate.clear()
    await scene.amount.refresh()
    assert scene.amount.sessions == 1
    scene.gate.set()
    await settled()
    assert (scene.counts, scene.amount.sessions) == (2, 9)


async def test_nobody_is_judged_by_a_count_of_long_ago():
    scene = Scene(size=90, stored_bytes_max=100)
    await scene.amount.refresh()
    scene.usage = Usage(0, 0)
    scene.time += 2 * COUNT_AGE
    await scene.amount.refresh()
    assert scene.amount.size == 0


async def test_a_quota_that_is_used_up_is_counted_before_anybody_is_refused():
    scene = Scene(sessions=3, sessions_max=3)
    await scene.amount.refresh()
    scene.usage = Usage(0, 0)  # another server deleted them
    scene.time += DOUBTED_AGE - 1
    await scene.amount.refresh()
    refused(scene.amount, 1)
    scene.time += 1
    await scene.amount.refresh()
    scene.amount.admit(3, 0)
    assert scene.counts == 2


async def test_a_deletion_has_the_bytes_counted_anew():
    scene = Scene(size=50, stored_bytes_max=100)
    await scene.amount.refresh()
    scene.commit(GONE)
    scene.usage = Usage(0, 0)
    scene.time += DOUBTED_AGE
    await scene.amount.refresh()
    assert (scene.counts, scene.amount.size) == (2, 0)
    scene.time += DOUBTED_AGE
    await scene.amount.refresh()
    await settled()
    assert scene.counts == 2, "one count is enough"


async def test_what_is_committed_during_a_count_is_rather_counted_twice_than_not():
    scene = Scene(sessions_max=10)
    scene.gate.clear()
    counting = asyncio.create_task(scene.amount.refresh())
    await settled()
    scene.commit(MADE, size=7)
    scene.commit(GONE)
    scene.commit(MADE, size=3)
    scene.gate.set()
    await counting
    assert (scene.amount.sessions, scene.amount.size) == (1, 10)
    scene.commit(GONE)
    assert scene.amount.sessions == 0


async def test_a_slow_count_is_good_for_longer():
    scene = Scene(sessions=3, sessions_max=3)
    scene.takes = COUNT_AGE
    await scene.amount.refresh()
    scene.time += COUNT_SHARE * COUNT_AGE - 1
    await scene.amount.refresh()
    assert scene.counts == 1
    scene.time += 1
    await scene.amount.refresh()
    assert scene.counts == 2


async def test_a_store_that_is_away_fails_those_who_must_know_and_nobody_else():
    scene = Scene(sessions=1, sessions_max=3)
    scene.away = True
    with pytest.raises(StoreUnavailable):
        await scene.amount.refresh()
    assert await scene.amounts.used("a") == Usage(0, 0)
    scene.away = False
    await scene.amount.refresh()
    scene.away = True
    scene.time += COUNT_AGE
    await scene.amount.refresh()
    await settled()
    assert await scene.amounts.used("a") == Usage(1, 0)


async def test_those_who_were_asked_for_longest_ago_are_forgotten():
    scene = Scene(sessions_max=3)
    scene.amounts._max = 2
    for name in ("a", "b", "a", "c"):
        scene.amounts.of(name)
    assert list(scene.amounts._kept) == ["a", "c"]
    scene.amounts.committed(SessionKey("b", "s"), [MADE], 1)
    assert "b" not in scene.amounts._kept
