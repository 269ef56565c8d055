"""Dispatch: who waits longest goes first, and nothing waits while somebody polls for it."""

import asyncio

import pytest
from runlane_server.core.model import SessionKey
from runlane_server.core.rows import (
    ActivationDequeued,
    ActivationQueued,
    LeaseDropped,
    LeasePut,
)
from runlane_server.runtime.dispatch import Dispatch, Waiting
from runlane_server.store.base import QueuedActivation
from support.gate import yielded
from support.steps import LEASE

KEY = SessionKey("default", "ses_1")


def _queue(
    dispatch: Dispatch, activation_id: str, agent: str, time: int, not_before: int = 0
) -> None:
    dispatch.committed(
        KEY, [ActivationQueued(activation_id, f"run_{activation_id}", agent, time, not_before)]
    )


def test_the_one_that_waited_longest_goes_first_over_all_agents():
    dispatch = Dispatch()
    _queue(dispatch, "b1", "b", 2)
    _queue(dispatch, "a1", "a", 1)
    _queue(dispatch, "a2", "a", 3)
    taken = [dispatch.take("default", ["a", "b"]).activation_id for _ in range(3)]
    assert taken == ["a1", "b1", "a2"]
    assert dispatch.take("default", ["a", "b"]) is None


def test_another_namespace_or_agent_gets_nothing():
    dispatch = Dispatch()
    _queue(dispatch, "a1", "a", 1)
    assert dispatch.take("other", ["a"]) is None
    assert dispatch.take("default", ["b"]) is None


def test_what_is_put_back_goes_first_again():
    dispatch = Dispatch()
    _queue(dispatch, "a1", "a", 1)
    _queue(dispatch, "a2", "a", 2)
    dispatch.put_back(dispatch.take("default", ["a"]))
    assert dispatch.take("default", ["a"]).activation_id == "a1"


def test_counts_follow_the_rows():
    dispatch = Dispatch()
    _queue(dispatch, "a1", "a", 1)
    assert dispatch.agents("default") == [("a", 0, 1, 0)]
    put = LeasePut("a1", "run_1", 1, "a", "x1", LEASE, 5, confirmed=False)
    dispatch.committed(KEY, [ActivationDequeued("a1"), put])
    dispatch.committed(KEY, [put])  # renewed
    assert dispatch.agents("default") == [("a", 0, 0, 1)]
    assert (dispatch.leased_by("default", "x1"), dispatch.leased_by("default", "x2")) == (1, 0)
    dispatch.committed(KEY, [LeaseDropped("a1")])
    assert dispatch.agents("default") == []


def _waiting(dispatch: Dispatch, *agents: str) -> asyncio.Future:
    return asyncio.ensure_future(dispatch.wait("default", agents, 60.0))


@pytest.mark.asyncio
async def test_one_poller_is_woken_for_one_activation():
    dispatch = Dispatch()
    pollers = [_waiting(dispatch, "a") for _ in range(3)]
    await yielded()
    _queue(dispatch, "a1", "a", 1)
    await yielded()
    assert [one.done() for one in pollers] == [True, False, False]
    dispatch.wake_all()
    await asyncio.gather(*pollers)


@pytest.mark.asyncio
async def test_a_poller_that_goes_away_as_it_is_woken_wakes_the_next():
    dispatch = Dispatch()
    one, two = _waiting(dispatch, "a"), _waiting(dispatch, "a")
    await yielded()
    _queue(dispatch, "a1", "a", 1)
    one.cancel()
    await two
    assert dispatch.take("default", ["a"]).activation_id == "a1"


@pytest.mark.asyncio
async def test_one_that_takes_another_than_it_was_woken_for_wakes_who_waits_for_that():
    dispatch = Dispatch()
    both, second = _waiting(dispatch, "a", "b"), _waiting(dispatch, "b")
    await yielded()
    _queue(dispatch, "b1", "b", 5)  # wakes `both`
    dispatch.put_back(Waiting(KEY, "a1", "a", 1))  # older: `both` will take it
    await both
    assert dispatch.take("default", ["a", "b"]).activation_id == "a1"
    async with asyncio.timeout(1):
        await second
    assert dispatch.take("default", ["b"]).activation_id == "b1"


def test_what_is_in_back_off_is_given_when_its_alarm_rings():
    dispatch = Dispatch()
    _queue(dispatch, "a1", "a", 1, not_before=5)
    _queue(dispatch, "a2", "a", 2)
    assert dispatch.take("default", ["a"]).activation_id == "a2"
    assert dispatch.take("default", ["a"]) is None
    dispatch.backed_off("a1")
    assert dispatch.take("default", ["a"]).activation_id == "a1"
    dispatch.backed_off("a1")
    assert dispatch.take("default", ["a"]) is None


def test_a_back_off_that_was_ended_by_hand_rings_for_nothing():
    dispatch = Dispatch()
    _queue(dispatch, "a1", "a", 1, not_before=5)
    dispatch.committed(KEY, [ActivationDequeued("a1")])
    dispatch.backed_off("a1")
    assert dispatch.take("default", ["a"]) is None
    _queue(dispatch, "a2", "a", 1, not_before=5)
    dispatch.committed(KEY, [ActivationDequeued("a2")])
    _queue(dispatch, "a2", "a", 1)
    assert dispatch.take("default", ["a"]).activation_id == "a2"


def test_what_the_store_holds_in_back_off_waits_for_its_alarm():
    dispatch = Dispatch()
    dispatch.load([QueuedActivation(KEY, "a1", "a", 1, 5), QueuedActivation(KEY, "a2", "a", 2)], [])
    assert dispatch.take("default", ["a"]).activation_id == "a2"
    assert dispatch.take("default", ["a"]) is None


@pytest.mark.asyncio
async def test_the_end_of_a_back_off_wakes_who_waits():
    dispatch = Dispatch()
    poller = _waiting(dispatch, "a")
    _queue(dispatch, "a1", "a", 1, not_before=5)
    await yielded()
    assert not poller.done()
    dispatch.backed_off("a1")
    await poller


@pytest.mark.asyncio
async def test_agents_that_nothing_waits_for_are_forgotten_beyond_a_bound(monkeypatch):
    monkeypatch.setattr("runlane_server.runtime.dispatch.LANES_MAX", 10)
    dispatch = Dispatch()
    for number in range(100):
        dispatch.seen("default", "x1", [f"agent-{number}"], number + 1)
    known = dispatch.agents("default")
    assert len(known) <= 10
    assert "agent-99" in [name for name, *_ in known]


def test_drained_executors_are_forgotten_beyond_a_bound(monkeypatch):
    monkeypatch.setattr("runlane_server.runtime.dispatch.DRAINED_MAX", 10)
    drained = Dispatch().drained
    drained.update(("default", f"x{number}") for number in range(10))
    drained.add(("default", "x0"))
    drained.add(("default", "x10"))
    assert len(drained) == 10
    assert ("default", "x0") in drained, "it was drained again since"
    assert ("default", "x1") not in drained
    assert ("default", "x10") in drained
    assert ("other", "x10") not in drained
