"""Quotas of several namespaces, with a clock that is set by hand."""

import pytest
from runlane_server.core.context import Decision
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.quotas import Quota
from runlane_server.runtime.quotas import Quotas, make_quotas
from runlane_server.store.base import CommitUnit, EventGroup, SessionCommit, Usage

SECOND = 1_000_000


class Hand:
    def __init__(self) -> None:
        self.time = SECOND

    def __call__(self) -> int:
        return self.time


async def nothing(_namespace: str) -> Usage:
    return Usage(0, 0)


def quotas(default: Quota, hand: Hand | None = None, **own: Quota) -> Quotas:
    return Quotas(default, own, nothing, hand or Hand())


def refusal(call, *args) -> Refused:
    with pytest.raises(Refused) as caught:
        call(*args)
    return caught.value


def unit(*groups: tuple[int, int]) -> CommitUnit:
    """What was committed: groups of events by first and last sequence."""
    made = CommitUnit()
    for first, last in groups:
        commit = SessionCommit(None, None, b"", b"", 1, "", 0, EventGroup(first, last, b""))
        made.sessions.append(commit)
    return made


def test_nobody_looks_where_nothing_is_limited():
    assert make_quotas(Quota(), {}, nothing, Hand()) is None
    assert make_quotas(Quota(), {"a": Quota()}, nothing, Hand()) is None
    assert make_quotas(Quota(), {"a": Quota(sessions_max=1)}, nothing, Hand()) is not None


def test_a_namespace_without_a_quota_pays_nothing():
    one = quotas(Quota(), a=Quota(requests_per_second=1, burst_seconds=1))
    for _ in range(100):
        one.read("b")
        assert one.write("b") is None


def test_namespaces_do_not_disturb_each_other():
    one = quotas(Quota(requests_per_second=1, burst_seconds=3), b=Quota(2, burst_seconds=1))
    for _ in range(3):
        one.read("a")
    refused = refusal(one.read, "a")
    assert refused.metadata == {"quota": "requests_per_second", "limit": "1"}
    assert refused.retry_milliseconds == 1000
    one.read("b")
    one.read("b")
    assert refusal(one.read, "b").retry_milliseconds == 500
    for _ in range(3):
        assert one.write("c").refusal is None
    assert one.write("c").refusal.reason is Reason.QUOTA_EXCEEDED


def test_the_wait_that_is_told_is_long_enough():
    hand = Hand()
    one = quotas(Quota(requests_per_second=7, burst_seconds=1), hand)
    for _ in range(7):
        one.read("a")
    hand.time += refusal(one.read, "a").retry_milliseconds * 1000
    one.read("a")
    refusal(one.read, "a")


def test_reads_and_writes_share_the_calls_and_only_writes_heed_events():
    hand = Hand()
    one = quotas(Quota(requests_per_second=100, events_per_second=2, burst_seconds=1), hand)
    toll = one.write("a")
    toll.settled(unit((1, 4), (8, 8)))
    refused = one.write("a").refusal
    assert refused.metadata == {"quota": "events_per_second", "limit": "2"}
    assert refused.retry_milliseconds == 2000
    one.read("a")
    hand.time += 2 * SECOND - 1
    assert one.write("a").refusal is not None
    hand.time += 1
    assert one.write("a").refusal is None


def test_of_two_rates_the_one_that_lasts_longer_is_told():
    one = quotas(Quota(requests_per_second=1, events_per_second=1, burst_seconds=1))
    one.write("a").settled(unit((1, 2)))
    assert one.write("a").refusal.metadata["quota"] == "events_per_second"
    assert one.write("a").refusal.retry_milliseconds == 2000
    other = quotas(Quota(requests_per_second=1, events_per_second=10, burst_seconds=1))
    other.write("a").settled(unit((1, 10)))
    assert other.write("a").refusal.metadata["quota"] == "requests_per_second"


def test_what_was_not_committed_costs_no_events_and_a_repeat_costs_nothing():
    one = quotas(Quota(requests_per_second=1, events_per_second=1, burst_seconds=1))
    toll = one.write("a")
    toll.settled(None)
    toll.replayed()
    toll.replayed()
    toll = one.write("a")
    assert toll.refusal is None
    refused = one.write("a")
    refused.replayed()
    assert one.write("a").refusal is not None, "what was refused has paid nothing"


def test_buckets_of_those_who_called_longest_ago_are_dropped():
    one = Quotas(Quota(requests_per_second=1, burst_seconds=1), {}, nothing, Hand(), 2)
    one.read("a")
    one.read("b")
    refusal(one.read, "a")
    one.read("c")
    refusal(one.read, "a")
    one.read("b")
    assert len(one._rates) == 2


def test_streams_are_counted_by_namespace():
    one = quotas(Quota(open_streams_max=2), b=Quota())
    one.open_stream("a")
    one.open_stream("a")
    refused = refusal(one.open_stream, "a")
    assert refused.reason is Reason.STREAM_LIMIT
    assert refused.metadata == {"quota": "open_streams_max", "limit": "2"}
    for _ in range(9):
        one.open_stream("b")
    one.close_stream("a")
    one.open_stream("a")
    for _ in range(2):
        one.close_stream("a")
    for _ in range(9):
        one.close_stream("b")
    assert not one._streams, "a namespace that reads nothing takes no memory"


def test_a_namespace_may_wait_as_often_as_it_may_read_and_beside_it():
    one = quotas(Quota(open_streams_max=1), b=Quota())
    one.open_stream("a")
    one.open_wait("a")
    refused = refusal(one.open_wait, "a")
    assert refused.reason is Reason.STREAM_LIMIT
    assert refused.metadata == {"quota": "open_streams_max", "limit": "1"}
    one.open_wait("b")
    one.open_wait("b")
    one.close_wait("a")
    one.open_wait("a")
    for namespace in "abb":
        one.close_wait(namespace)
    assert not one._waits, "a namespace that waits for nothing takes no memory"


@pytest.mark.asyncio
async def test_a_toll_without_amounts_admits_all():
    toll = quotas(Quota(requests_per_second=1)).write("a")
    await toll.ready()
    toll.admit([Decision(None, None)])


@pytest.mark.asyncio
async def test_what_is_used_is_told_of_amounts_alone():
    one = quotas(Quota(9, 9, 9, 3, 2, 1), a=Quota(requests_per_second=1))
    one.open_stream("x")
    assert await one.used("x") == [
        ("sessions_max", 0, 3),
        ("open_streams_max", 1, 2),
        ("stored_bytes_max", 0, 1),
    ]
    assert await one.used("a") == []
