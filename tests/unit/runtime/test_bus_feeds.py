"""Those who read all sessions of a namespace, at the bus."""

import asyncio

import pytest
from runlane_server.core.model import SessionKey
from runlane_server.runtime.bus import Bus, feed_of
from runlane_server.store.base import EventGroup

pytestmark = pytest.mark.asyncio


async def waits(subscription) -> bool:
    """Tells whether a reader waits; it is left as it was."""
    waiting = asyncio.ensure_future(subscription.moved())
    for _ in range(3):
        await asyncio.sleep(0)
    done = waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    return not done


async def test_a_commit_wakes_the_feeds_of_its_namespace_alone():
    bus = Bus()
    mine, other = bus.subscribe(feed_of("mine")), bus.subscribe(feed_of("other"))
    of_session = bus.subscribe(SessionKey("mine", "s1"))
    try:
        assert (bus.feed_count, bus.subscription_count) == (2, 3)
        assert bus.subscriptions_of("mine") == 2
        bus.publish(SessionKey("mine", "s2"), EventGroup(1, 1, b"\x90"))
        assert [await waits(one) for one in (mine, other, of_session)] == [False, True, True]
        bus.wake_feeds()
        assert [await waits(one) for one in (mine, other, of_session)] == [False, False, True]
        # What comes between a read and the wait for more is not lost.
        bus.publish(SessionKey("mine", "s3"), EventGroup(1, 1, b"\x90"))
        assert not await waits(mine)
        bus.unsubscribe(mine)
        assert bus.feed_count == 1
        bus.publish(SessionKey("mine", "s2"), EventGroup(2, 2, b"\x90"))
        bus.unsubscribe(other)
        bus.unsubscribe(of_session)
        assert (bus.feed_count, bus.subscription_count) == (0, 0)
    finally:
        bus.close()
