"""Counting."""

import pytest
from runlane_server.core.model import Usage
from runlane_server.core.rows import (
    ActivationQueued,
    EventType,
    RunEnded,
    RunInserted,
    RunMoved,
)
from runlane_server.core.words import Mode, Phase, StopReason
from runlane_server.runtime.codec import StoredEvent, encode_group
from runlane_server.runtime.stats import Histogram, Stats
from runlane_server.store.base import Conflict, EventGroup, Rejected, Unavailable


@pytest.mark.parametrize(
    ("value", "place"), [(0, 0), (1, 0), (1.001, 1), (10, 1), (10.5, 2), (1e9, 2)]
)
def test_a_value_is_counted_once_and_at_its_bound(value, place):
    histogram = Histogram((1, 10))
    histogram.add(value)
    assert [count for count in histogram.counts if count] == [1]
    assert histogram.counts[place] == 1
    assert histogram.total == value


def group(first, *types):
    events = [StoredEvent(one, "run_1", 1, 0, b"") for one in types]
    return EventGroup(first, first + len(types) - 1, encode_group(events))


QUEUED = ActivationQueued("act_1", "run_1", "main", 1, 0)
MOVED = RunMoved("run_1", Phase.ACTIVE, stalled=False)
INSERTED = RunInserted("run_2", "sub_2", "main", Mode.QUEUE, 1, 1, 1)


def ended(reason):
    return RunEnded("run_1", reason, None, 1, 1, 1, 1, b"", 0, "", None, None, Usage(), 0, 0, 0)


def test_what_a_commit_holds_is_counted():
    stats = Stats()
    stats.committed(None, [])
    stats.committed(
        group(1, EventType.RUN_CREATED, EventType.ACTIVATION_QUEUED), [INSERTED, QUEUED]
    )
    stats.committed(
        group(3, EventType.ACTIVATION_ABANDONED, EventType.RUN_RECOVERING), [MOVED, QUEUED]
    )
    stats.committed(group(5, EventType.RUN_UNPAUSED), [MOVED, QUEUED])
    stats.committed(
        group(6, EventType.RUN_TERMINAL, EventType.RUN_CREATED),
        [ended(StopReason.COMPLETED), INSERTED, QUEUED],
    )
    stats.committed(group(8, EventType.RUN_TERMINAL), [ended(StopReason.FAILED)])
    assert (stats.events, stats.recoveries) == (8, 1)
    assert {reason.name: count for reason, count in stats.runs_ended.items() if count} == {
        "COMPLETED": 1,
        "FAILED": 1,
    }


def test_writes_that_failed_are_counted_by_kind():
    stats = Stats()
    for outcome in (Unavailable("x"), Unavailable("x"), Rejected("x"), Conflict()):
        stats.refused(outcome)
    assert stats.failed_writes == {"unavailable": 2, "rejected": 1}


def test_calls_are_counted_by_method_and_code():
    stats = Stats()
    stats.called("Submit", "OK", 0.2)
    stats.called("Submit", "OK", 0.4)
    stats.called("Submit", "NOT_FOUND", 0.2)
    stats.called("StreamEvents", "CANCELLED", None)
    assert stats.calls == {
        ("Submit", "OK"): 2,
        ("Submit", "NOT_FOUND"): 1,
        ("StreamEvents", "CANCELLED"): 1,
    }
    assert list(stats.call_seconds) == ["Submit"]
    copied = stats.copy()
    for name in Stats.__slots__:
        copy, own = getattr(copied, name), getattr(stats, name)
        if isinstance(own, Histogram):
            assert (copy.counts, copy.total) == (own.counts, own.total)
        elif name != "call_seconds":
            assert copy == own
    stats.called("Submit", "OK", 0.0)
    assert copied.calls["Submit", "OK"] == 2
    assert sum(copied.call_seconds["Submit"].counts) == 3
    assert stats.call_seconds["Submit"].total == pytest.approx(0.8)
