"""Quotas beneath the door: what is refused when, what a repeated call costs, what is counted."""

import asyncio

import pytest
from runlane_server.app.views import ForkRequest
from runlane_server.core.commands import (
    CloseSession,
    CreateSession,
    DeleteSession,
    Submit,
    UpdateSession,
)
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import SessionRecord
from runlane_server.core.quotas import Quota
from runlane_server.core.words import Mode
from runlane_server.runtime.amounts import COUNT_AGE, DOUBTED_AGE
from runlane_server.store.sqlite import SqliteStore
from support.lane import KEY
from support.steps import (
    COMPLETED,
    SECOND,
    answer,
    asks,
    claims,
    commit,
    create,
    interrupt,
    lease,
    put,
    reserve,
    results,
    starts,
    steer,
    text,
)
from support.world import World

pytestmark = pytest.mark.asyncio
RECORD = SessionRecord(default_agent="main")
ONE_A_SECOND = Quota(requests_per_second=1, burst_seconds=1)


def world_of(path, quota: Quota) -> World:
    return World(path, quotas={"default": quota})


async def make(world: World, session_id: str, request_id: str = ""):
    caller = world.caller("CreateSession", request_id, session_id)
    result, _ = await world.app.create_session(caller, session_id, CreateSession(RECORD))
    return result


async def say(world: World, session_id: str, words: str = "hello", request_id: str = "", **how):
    caller = world.caller("Submit", request_id, words)
    return await world.app.submit(caller, session_id, Submit(text(words), **how))


async def refused(call) -> Refused:
    with pytest.raises(Refused) as caught:
        await call
    return caught.value


async def first_run(world: World) -> str:
    rows = await world.store.list_runs(KEY, [], None, 1)
    return rows[0].run_id


async def quota_of(call) -> str:
    refusal = await refused(call)
    assert refusal.reason is Reason.QUOTA_EXCEEDED, refusal
    return refusal.metadata["quota"]


# --- rates and repeated calls -------------------------------------------------


@pytest.mark.parametrize("cold", [False, True])
async def test_a_repeated_call_is_answered_without_a_token_and_costs_none(path, cold):
    async with world_of(path, ONE_A_SECOND) as world:
        made = await make(world, "ses_1", "r1")
        if cold:
            await world.restart()
            assert world.caller("CreateSession").toll.refusal is None  # takes the only token
        for _ in range(5):
            again = await make(world, "ses_1", "r1")
            assert again.replayed
            assert again.answer == made.answer
        assert await quota_of(make(world, "ses_2", "r2")) == "requests_per_second"
        assert await quota_of(make(world, "ses_2")) == "requests_per_second"
        world.clock.advance(SECOND)
        if cold:
            await world.restart()  # the answer is in the store alone
        for _ in range(5):
            assert (await make(world, "ses_1", "r1")).replayed
        assert not (await make(world, "ses_2", "r2")).replayed
        assert await quota_of(make(world, "ses_3", "r3")) == "requests_per_second"


async def test_calls_at_once_with_one_request_id_cost_one_token(path):
    async with world_of(path, Quota(requests_per_second=2, burst_seconds=1)) as world:
        all_made = await asyncio.gather(*(make(world, "ses_1", "r1") for _ in range(20)))
        assert [one.replayed for one in all_made].count(False) == 1
        await make(world, "ses_2", "r2")
        assert await quota_of(make(world, "ses_3", "r3")) == "requests_per_second"


async def test_a_request_id_with_another_request_is_told_so_without_a_token(path):
    async with world_of(path, ONE_A_SECOND) as world:
        await make(world, "ses_1", "r1")
        refusal = await refused(make(world, "ses_2", "r1"))
        assert refusal.reason is Reason.REQUEST_ID_REUSED


async def test_what_was_refused_leaves_nothing_behind_its_request_id(path):
    async with world_of(path, ONE_A_SECOND) as world:
        await make(world, "ses_1")
        assert await quota_of(make(world, "ses_2", "r2")) == "requests_per_second"
        assert await world.state("ses_2") is None
        world.clock.advance(SECOND)
        assert not (await make(world, "ses_2", "r2")).replayed


async def test_events_are_paid_for_by_the_calls_that_appended_them(path):
    async with world_of(path, Quota(events_per_second=2, burst_seconds=1)) as world:
        await make(world, "ses_1")
        first = await say(world, "ses_1")
        cost = len(await world.events("ses_1"))
        assert cost == first.answer.sequence > 3
        refusal = await refused(say(world, "ses_1", mode=Mode.QUEUE))
        assert refusal.metadata["quota"] == "events_per_second"
        # The bucket held two, and one must be there.
        assert refusal.retry_milliseconds == (cost - 2 + 1) * 1000 // 2
        # What executors and the server itself do goes on, and costs nothing.
        await world.do("ses_1", lease(), reserve, commit(answer(), outcome=COMPLETED))
        world.clock.advance(refusal.retry_milliseconds * 1000 - 1)
        await refused(say(world, "ses_1", mode=Mode.QUEUE))
        world.clock.advance(1)
        await say(world, "ses_1", mode=Mode.QUEUE)


# --- sessions -------------------------------------------------------------------


async def test_of_many_at_once_as_many_are_made_as_may_be(path):
    async with world_of(path, Quota(sessions_max=10)) as world:
        calls = [make(world, f"ses_{number}", f"r{number}") for number in range(50)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        told = [one for one in done if isinstance(one, Refused)]
        assert len(told) == 40
        assert {one.metadata["quota"] for one in told} == {"sessions_max"}
        assert {one.metadata["limit"] for one in told} == {"10"}
        assert not any(one.retry_milliseconds for one in told)
        assert (await world.store.usage("default")).sessions == 10
        await world.restart()
        assert await quota_of(make(world, "more")) == "sessions_max"
        assert await quota_of(say(world, "", create_session=RECORD)) == "sessions_max"
        for number, one in enumerate(done):
            if not isinstance(one, Refused):
                assert (await make(world, f"ses_{number}", f"r{number}")).replayed
        assert (await world.quotas.used("default")) == [("sessions_max", 10, 10)]


async def test_a_deleted_session_makes_room_at_once(path):
    async with world_of(path, Quota(sessions_max=2)) as world:
        await make(world, "ses_1")
        await make(world, "ses_2")
        assert await quota_of(make(world, "ses_3")) == "sessions_max"
        caller = world.caller("DeleteSession")
        await world.app.delete_session(caller, "ses_1", DeleteSession(force=False))
        await make(world, "ses_3")
        assert await quota_of(make(world, "ses_4")) == "sessions_max"


async def test_forks_count_and_child_runs_count_but_are_never_refused(path):
    async with world_of(path, Quota(sessions_max=2)) as world:
        await world.do("ses_1", create, put("r1", Mode.START), lease(), reserve)
        await world.do("ses_1", commit(answer(), outcome=COMPLETED))
        run = await first_run(world)
        await world.app.fork(world.caller("ForkSession"), run, "ses_2", ForkRequest())
        fork = world.app.fork(world.caller("ForkSession"), run, "ses_3", ForkRequest())
        assert await quota_of(fork) == "sessions_max"
        await world.do("ses_1", put("r2", Mode.START), lease(), reserve, commit(asks("c1")))
        await world.do("ses_1", commit(starts("c1")))
        assert (await world.store.usage("default")).sessions == 3
        assert (await world.quotas.used("default")) == [("sessions_max", 3, 2)]


async def test_an_amount_is_the_last_that_is_refused(path):
    async with world_of(path, Quota(sessions_max=1, stored_bytes_max=1)) as world:
        await world.do("ses_1", create, put("r1", Mode.START))
        await world.restart()
        cases = {
            Reason.SESSION_EXISTS: make(world, "ses_1"),
            Reason.SESSION_NOT_FOUND: say(world, "ses_2"),
            Reason.SESSION_BUSY: say(world, "ses_1", mode=Mode.START),
            Reason.REVISION_MISMATCH: say(world, "ses_1", mode=Mode.QUEUE, expected_revision=99),
        }
        for reason, call in cases.items():
            assert (await refused(call)).reason is reason
        assert await quota_of(say(world, "ses_1", mode=Mode.QUEUE)) == "stored_bytes_max"
        assert await quota_of(make(world, "ses_2")) == "sessions_max"


# --- bytes ----------------------------------------------------------------------


async def stored(world: World) -> int:
    """Counts the bytes of messages, events and input that the store holds."""
    if isinstance(world.store, SqliteStore):
        sums = (
            "SELECT sum(length(data)) FROM entries WHERE id > 0",
            "SELECT sum(length(content)) FROM submissions",
            "SELECT sum(length(result)) FROM tool_calls",
        )
        return await world.store._read(
            lambda conn: sum(conn.execute(one).fetchone()[0] or 0 for one in sums)
        )
    sums = (
        "SELECT sum(octet_length(data)) FROM messages",
        "SELECT sum(octet_length(data)) FROM events",
        "SELECT sum(octet_length(content)) FROM submissions",
        "SELECT sum(octet_length(result)) FROM tool_calls",
    )

    async def count(conn) -> int:
        return sum([await conn.fetchval(one) or 0 for one in sums])

    return await world.store._read(count)


async def test_what_is_counted_is_what_is_stored(path):
    async with world_of(path, Quota(stored_bytes_max=10**9)) as world:
        assert await world.quotas.used("default") == [("stored_bytes_max", 0, 10**9)]
        await world.do("ses_1", create, put("r1", Mode.START), lease(), reserve)
        await world.do("ses_1", steer("s" * 100), put("f" * 200, Mode.FOLLOW_UP))
        await world.do("ses_1", commit(asks("c1", "c2")), commit(claims("c1", "c2")))
        await world.do("ses_1", commit(results("c2")))  # waits for the one before it
        assert (await world.store.usage("default")).size == await stored(world)
        await world.do("ses_1", commit(results("c1")), reserve)  # the steer is delivered
        await world.do("ses_1", commit(answer(), outcome=COMPLETED))  # and the next run begins
        await world.do("ses_1", steer("lost"), interrupt())
        run = await first_run(world)
        await world.app.fork(world.caller("ForkSession"), run, "ses_2", ForkRequest())
        await world.do("ses_2", put("r3", Mode.START))
        size = await stored(world)
        assert (await world.store.usage("default")).size == size
        assert await world.quotas.used("default") == [("stored_bytes_max", size, 10**9)]
        await world.restart()
        assert await world.quotas.used("default") == [("stored_bytes_max", size, 10**9)]


async def test_a_full_namespace_takes_no_input_and_all_that_may_make_room(path):
    async with world_of(path, Quota(stored_bytes_max=10_000)) as world:
        await make(world, "ses_1")
        await say(world, "ses_1", "x" * 9_000)
        assert await quota_of(say(world, "ses_1", "x" * 2_000, mode=Mode.QUEUE)) == (
            "stored_bytes_max"
        )
        await say(world, "ses_1", "waits", mode=Mode.FOLLOW_UP)
        # An executor goes on, beyond the quota too.
        await world.do("ses_1", lease(), reserve, commit(answer("y" * 5_000)))
        for call in (
            say(world, "ses_1", "no", mode=Mode.AUTO),
            say(world, "ses_1", "no", mode=Mode.REPLACE),
            make(world, "ses_2"),
        ):
            assert await quota_of(call) == "stored_bytes_max"
        app = world.app
        await app.live_state("default", "ses_1", 50, 0)
        await app.update_session(world.caller("UpdateSession"), "ses_1", UpdateSession())
        await app.interrupt(world.caller("InterruptRun"), "ses_1", "", "", 0)
        await app.close_session(world.caller("CloseSession"), "ses_1", CloseSession())
        await app.delete_session(world.caller("DeleteSession"), "ses_1", DeleteSession(force=True))
        world.clock.advance(DOUBTED_AGE)
        await make(world, "ses_2")
        await say(world, "ses_2", "x" * 9_000)


async def test_calls_in_flight_share_what_is_left(path):
    async with world_of(path, Quota(stored_bytes_max=100_000)) as world:
        for number in range(20):
            await make(world, f"ses_{number}")
        calls = [say(world, f"ses_{number}", "x" * 20_000) for number in range(20)]
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(not isinstance(one, Refused) for one in done) == 4
        # Beyond it are the events and the frames of messages alone.
        assert (await world.store.usage("default")).size < 110_000


async def test_what_another_server_did_is_known_at_the_next_count(path):
    async with world_of(path, Quota(sessions_max=2)) as world:
        await make(world, "ses_1")
        world.quotas._amounts.of("default").sessions = 0  # as if another had made it
        await make(world, "ses_2")
        world.clock.advance(COUNT_AGE)
        await refused(say(world, "none"))  # begins a count
        assert await quota_of(make(world, "ses_3")) == "sessions_max"
