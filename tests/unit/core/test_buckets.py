"""Quotas and the buckets of rates."""

from hypothesis import given
from hypothesis import strategies as st
from runlane_server.core.errors import Reason
from runlane_server.core.quotas import QUOTAS, Bucket, Quota, exceeded

SECOND = 1_000_000
START = 1_700_000_000 * SECOND


def taken(bucket: Bucket, now: int, wanted: int) -> int:
    """Takes as many tokens as are there, up to `wanted`; returns how many."""
    for count in range(wanted):
        if bucket.wait(now):
            return count
        bucket.draw(1)
    return wanted


def test_a_bucket_is_full_at_first_and_no_fuller_ever():
    bucket = Bucket(5, 2, START)
    assert taken(bucket, START, 100) == 10
    assert taken(bucket, START + 3600 * SECOND, 100) == 10


def test_tokens_come_back_at_the_rate():
    bucket = Bucket(5, 2, START)
    taken(bucket, START, 100)
    assert bucket.wait(START) == SECOND // 5
    assert bucket.wait(START + SECOND // 5 - 1) == 1
    assert bucket.wait(START + SECOND // 5) == 0
    assert taken(bucket, START + SECOND, 100) == 5


@given(
    rate=st.integers(1, 100_000),
    burst=st.integers(1, 60),
    steps=st.lists(st.tuples(st.integers(0, 10 * SECOND), st.integers(0, 200_000)), max_size=20),
)
def test_what_a_bucket_says_of_its_wait_is_true_to_the_microsecond(rate, burst, steps):
    bucket, now = Bucket(rate, burst, START), START
    for pause, cost in steps:
        now += pause
        bucket.draw(cost)
        wait = bucket.wait(now)
        if wait:
            assert bucket.wait(now + wait - 1) == 1
        now += wait
        assert bucket.wait(now) == 0


@given(
    rate=st.integers(1, 1000),
    burst=st.integers(1, 10),
    pauses=st.lists(st.integers(0, SECOND), max_size=200),
)
def test_no_span_of_time_sees_more_than_the_burst_and_the_rate(rate, burst, pauses):
    bucket, now, count = Bucket(rate, burst, START), START, 0
    for pause in pauses:
        now += pause
        count += taken(bucket, now, 3)
    assert count * SECOND <= rate * burst * SECOND + rate * (now - START)


def test_debt_is_paid_first():
    bucket = Bucket(10, 1, START)
    bucket.draw(30)
    assert bucket.wait(START) == 2 * SECOND + SECOND // 10
    bucket.give_back(20)
    assert bucket.wait(START) == SECOND // 10
    bucket.give_back(10**6)
    assert taken(bucket, START, 100) == 10


def test_time_that_goes_back_brings_nothing():
    bucket = Bucket(1, 1, START)
    bucket.draw(1)
    assert bucket.wait(START + SECOND // 2) == SECOND // 2
    assert bucket.wait(START) == SECOND // 2
    assert bucket.wait(START + SECOND) == 0


def test_a_refusal_tells_its_quota_and_a_wait_that_is_not_too_short():
    refused = exceeded("requests_per_second", 5, "too many", 1)
    assert refused.reason is Reason.QUOTA_EXCEEDED
    assert refused.metadata == {"quota": "requests_per_second", "limit": "5"}
    assert refused.retry_milliseconds == 1
    assert exceeded("requests_per_second", 5, "too many", 1000).retry_milliseconds == 1
    assert exceeded("sessions_max", 5, "full").retry_milliseconds == 0


def test_only_what_is_limited_is_told():
    assert Quota().limits() == []
    assert not Quota(open_streams_max=1).has_rates
    assert not Quota(open_streams_max=1).has_amounts
    rated = Quota(requests_per_second=3, stored_bytes_max=7)
    assert rated.limits() == [
        ("quota_requests_per_second", 3, "items"),
        ("quota_burst_seconds", 10, "seconds"),
        ("quota_stored_bytes_max", 7, "bytes"),
    ]
    told = {name.removeprefix("quota_") for name, _, _ in Quota(1, 1, 1, 1, 1, 1).limits()}
    assert told == set(QUOTAS) - {"keys"} | {"burst_seconds"}
