"""Two servers on one database: any call on either, and one outcome."""

import asyncio
import functools

import asyncpg
import pytest
import pytest_asyncio
from runlane.v1 import session_service_pb2 as pb
from runlane_server.app.upkeep import Upkeep
from runlane_server.app.views import EventQuery
from runlane_server.core.commands import InterruptRun, Submit
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import RunLimits, RunOptions, SessionKey
from runlane_server.core.rows import EventType
from runlane_server.core.words import Mode
from runlane_server.runtime import follower
from runlane_server.runtime.engine import plan
from runlane_server.runtime.timers import Alarm
from runlane_server.store.base import LeaseRenewal, RequestKey
from runlane_server.store.errors import StoreUnavailable
from support.steps import (
    COMPLETED,
    LEASE,
    SECOND,
    answer,
    beat,
    commit,
    create,
    first,
    interrupt,
    lease,
    pause,
    put,
    reserve,
    text,
)
from support.world import World
from support_server import until

pytestmark = pytest.mark.asyncio

KEY = SessionKey("default", "ses_1")
finish = commit(answer(), outcome=COMPLETED)


@pytest_asyncio.fixture
async def a(postgres):
    async with World(postgres) as made:
        yield made


@pytest_asyncio.fixture
async def b(postgres, a):
    made = World(postgres)
    made.clock = a.clock
    made.new_id.count = 1_000_000  # ids are the same on no two servers
    async with made:
        yield made


def inputs_of(*worlds: World, count: int, mode: Mode = Mode.START, session: str = "ses_1"):
    """Sends inputs to all worlds in turn, at once; gives what became of each."""
    key = SessionKey("default", session)
    return asyncio.gather(
        *(
            worlds[number % len(worlds)].engine.execute(
                plan(
                    key,
                    Submit(text(f"i{number}"), mode),
                    "client",
                    RequestKey("default", "Submit", session, f"i{number}"),
                    b"#",
                )
            )
            for number in range(count)
        ),
        return_exceptions=True,
    )


# --- what is written -------------------------------------------------------------------


async def test_no_follow_up_is_lost_between_two_that_remember_the_session(a, b):
    await a.do("ses_1", create, first)
    for world in (b, a):  # both have it in memory
        await world.engine.peek(KEY)
    for number in range(10):
        world = (a, b)[number % 2]
        await world.do("ses_1", put(f"f{number}", Mode.FOLLOW_UP))
    found = await inputs_of(a, b, count=20, mode=Mode.FOLLOW_UP)
    assert not [one for one in found if isinstance(one, BaseException)]
    inputs = await a.inputs("ses_1")
    assert len(inputs) == 31
    assert [name for name, state in inputs.items() if state != "PENDING"] == ["first"]
    state = await a.state("ses_1")
    assert len(state.next_runs) == 30


async def test_of_100_starts_over_both_one_is_accepted_and_99_are_busy(a, b):
    await a.do("ses_1", create)
    found = await inputs_of(a, b, count=100)
    accepted = [one for one in found if not isinstance(one, BaseException)]
    assert len(accepted) == 1
    refusals = [one for one in found if isinstance(one, BaseException)]
    assert {type(one) for one in refusals} == {Refused}
    assert {one.reason for one in refusals} == {Reason.SESSION_BUSY}
    assert len(await a.runs("ses_1")) == 1


async def test_who_always_comes_late_decides_under_lock(a, b):
    """Between each load and its commit another server writes; the caller learns nothing of it."""
    await a.do("ses_1", create, first)
    commits = a.engine._committer._commit
    meanwhile = 0

    async def late(batch):
        nonlocal meanwhile
        meanwhile += 1
        await b.do("ses_1", put(f"b{meanwhile}", Mode.FOLLOW_UP))
        return await commits(batch)

    a.engine._committer._commit = late
    await a.do("ses_1", put("mine", Mode.FOLLOW_UP))
    with pytest.raises(Refused) as caught:
        await a.do("ses_1", put("no", Mode.START))
    assert caught.value.reason is Reason.SESSION_BUSY
    a.engine._committer._commit = commits
    inputs = await a.inputs("ses_1")
    assert inputs["mine"] == "PENDING"
    assert 2 <= meanwhile <= 3
    # What was decided under lock was told like any other commit.
    assert a.services.engine.hot_sessions <= 1
    await a.do("ses_1", interrupt())
    assert (await b.runs("ses_1"))[0] == "first CANCELLED"


async def test_what_is_due_is_decided_under_lock_with_the_command(a, b):
    limits = RunOptions(limits=RunLimits(max_duration=20 * SECOND))
    await a.do("ses_1", create, put("first", Mode.START, options=limits))
    await a.engine.peek(KEY)
    a.clock.advance(21 * SECOND)
    commits, meanwhile = a.engine._committer._commit, 0

    async def late(batch):
        nonlocal meanwhile
        meanwhile += 1
        await b.engine.execute(plan(KEY, Submit(text("x"), Mode.QUEUE), "client"))
        return await commits(batch)

    a.engine._committer._commit = late
    await a.do("ses_1", put("next", Mode.QUEUE))
    a.engine._committer._commit = commits
    assert (await a.runs("ses_1"))[0] == "first DEADLINE_EXCEEDED"
    assert (await a.inputs("ses_1"))["next"] == "PENDING"


async def test_a_caller_that_goes_leaves_what_it_began_under_lock(a, b):
    await a.do("ses_1", create, first)
    entered, go = asyncio.Event(), asyncio.Event()
    shared = a.store.shared
    locked = shared.commit_locked

    async def conflicts(batch):
        await b.do("ses_1", put(f"b{len(await b.inputs('ses_1'))}", Mode.FOLLOW_UP))
        return await commits(batch)

    async def slowly(keys, decide):
        entered.set()
        await go.wait()
        return await locked(keys, decide)

    commits, a.engine._committer._commit, shared.commit_locked = (
        a.engine._committer._commit,
        conflicts,
        slowly,
    )
    call = asyncio.ensure_future(a.do("ses_1", put("mine", Mode.FOLLOW_UP)))
    await entered.wait()
    again = asyncio.ensure_future(a.do("ses_1", put("mine", Mode.FOLLOW_UP)))
    await asyncio.sleep(0)
    call.cancel()
    a.engine._committer._commit = commits
    go.set()
    assert (await again).submission.run_id
    assert (await a.inputs("ses_1"))["mine"] == "PENDING"


# --- what is answered without a write --------------------------------------------------


async def test_a_refusal_stands_on_what_is_on_disk_and_not_on_what_is_remembered(a, b):
    await a.do("ses_1", create, first)
    await b.do("ses_1", interrupt())
    assert (await a.engine.peek(KEY)).state.run is not None, "it has not heard yet"
    await a.do("ses_1", put("second", Mode.START))
    assert await a.runs("ses_1") == ["first CANCELLED", "second LIVE"]
    # And the other way: nothing was there to pause as far as this one knew.
    assert (await b.do("ses_1", pause)) is not None
    with pytest.raises(Refused) as caught:
        await b.do("ses_1", put("third", Mode.START))
    assert caught.value.reason is Reason.SESSION_BUSY


async def test_a_refusal_does_not_stand_on_what_was_read_beside_a_write_on_its_way(a):
    """Its own write, too: it was on its way while the session was let go of and read again."""
    await a.do("ses_1", create, first)
    commits, entered, go = a.engine._committer._commit, asyncio.Event(), asyncio.Event()

    async def slow(batch):
        entered.set()
        await go.wait()
        return await commits(batch)

    a.engine._committer._commit = slow
    stop = asyncio.ensure_future(a.do("ses_1", interrupt()))
    await entered.wait()
    a.engine.doubt(KEY)
    assert (await a.engine.peek(KEY)).state.run is not None
    a.engine._committer._commit = commits
    go.set()
    await stop
    await a.do("ses_1", put("second", Mode.START))
    assert await a.runs("ses_1") == ["first CANCELLED", "second LIVE"]


async def test_a_session_that_was_made_elsewhere_is_found(a, b):
    with pytest.raises(Refused):
        await b.do("ses_1", put("x", Mode.START))
    await a.do("ses_1", create)
    await b.do("ses_1", first)
    assert await a.runs("ses_1") == ["first LIVE"]


async def test_a_fence_that_was_given_elsewhere_is_known(a, b):
    await a.do("ses_1", create, first)
    await b.engine.peek(KEY)
    await a.do("ses_1", lease())
    await b.do("ses_1", reserve, finish)
    assert await a.runs("ses_1") == ["first COMPLETED"]
    names = await a.event_names("ses_1")
    assert names.count("RUN_TERMINAL") == 1


# --- known faults of others ------------------------------------------------------------


async def test_a_replay_on_another_server_never_blocks_the_session(a, b):
    """bytedance/deer-flow#5393: a replay elsewhere keeps a stale copy, and all is busy."""
    await a.do("ses_1", create)
    (before, _) = await a.call("ses_1", first)
    again, replayed = await b.call("ses_1", first)
    assert (again, replayed) == (before, True)
    await a.do("ses_1", lease(), reserve, finish)
    await b.do("ses_1", put("second", Mode.START))
    assert await b.runs("ses_1") == ["first COMPLETED", "second LIVE"]
    assert (await b.call("ses_1", first)) == (before, True)
    reused = plan(
        KEY, Submit(text("other"), Mode.START), "c", RequestKey("default", "Submit", "ses_1", "first"), b"x"
    )  # fmt: skip
    with pytest.raises(Refused) as caught:
        await b.engine.execute(reused)
    assert caught.value.reason is Reason.REQUEST_ID_REUSED


async def test_interrupt_on_one_races_the_end_on_the_other(a, b):
    """bytedance/deer-flow#4500, #4064: one outcome; receipt and terminal event agree."""
    ends = set()
    for number in range(500):
        name = f"ses_{number}"
        key = SessionKey("default", name)
        await a.do(name, create, first, lease(), reserve)
        if number % 2:
            await b.engine.peek(key)
        state = await a.state(name)
        done = a.engine.execute(plan(key, finish.make(state), "executor"))
        stop = b.engine.execute(plan(key, InterruptRun(), "client"))
        found = await asyncio.gather(done, stop, return_exceptions=True)
        (run,) = await a.runs(name)
        events = await a.events(name)
        (terminal,) = [one for one in events if one.type == EventType.RUN_TERMINAL]
        if run == "first COMPLETED":
            assert isinstance(found[1], Refused)
            assert found[1].reason is Reason.SESSION_IDLE
            assert not isinstance(found[0], BaseException)
        else:
            assert run == "first CANCELLED"
            assert not isinstance(found[1], BaseException)
            (answer_of_finish, _) = found[0]
            assert answer_of_finish.run.stop_reason.name == "CANCELLED"
        assert terminal.run_terminal.stop_reason != 0
        ends.add(run)
    assert ends == {"first COMPLETED", "first CANCELLED"}


# --- leases ----------------------------------------------------------------------------


async def test_an_alarm_looks_at_the_lease_of_the_store_and_not_at_a_remembered_one(a, b):
    await a.do("ses_1", create, first, lease(), beat)
    activation = (await a.state("ses_1")).run.activation
    a.clock.advance(LEASE - SECOND)
    renewal = LeaseRenewal(activation.activation_id, activation.epoch, LEASE, 0)
    await b.engine.renew(KEY, lambda state: state.run is not None, renewal)
    a.clock.advance(2 * SECOND)
    upkeep, alarm = Upkeep(a.services), Alarm(KEY, None, activation.activation_id)
    assert await upkeep.fire(alarm) == renewal.expire_time
    assert await a.runs("ses_1") == ["first LIVE"]
    assert (await a.state("ses_1")).run.activation == activation


async def test_a_server_that_stood_still_ends_no_lease_that_was_renewed_elsewhere(postgres, b):
    """It has the old end in memory, and decides on it: the transaction looks at the row."""
    async with World(postgres, deaf_gap=None) as stopped:
        stopped.clock = b.clock
        stopped.engine.clock = b.clock
        stopped.new_id.count = 2_000_000
        await stopped.do("ses_1", create, first, lease(), reserve)
        activation = (await b.state("ses_1")).run.activation
        for _ in range(5):
            b.clock.advance(LEASE - SECOND)
            renewal = LeaseRenewal(activation.activation_id, activation.epoch, LEASE, 0)
            await b.engine.renew(KEY, lambda state: state.run is not None, renewal)
        slot = await stopped.engine.peek(KEY)
        assert slot.state.run.activation != activation, "as far as it knows the lease has run out"
        await stopped.engine.flush()
        assert (await b.state("ses_1")).run.activation == activation
        await stopped.do("ses_1", finish)
        assert await b.runs("ses_1") == ["first COMPLETED"]


async def test_a_heartbeat_tells_what_was_heard_of_another_server(a, b):
    await a.do("ses_1", create, first, lease(), beat)
    activation = (await a.state("ses_1")).run.activation
    await b.do("ses_1", interrupt())

    async def beats():
        renewal = LeaseRenewal(activation.activation_id, activation.epoch, LEASE, 0)
        return await a.engine.renew(KEY, lambda state: state.run is not None, renewal)

    await a.hear()
    assert (await beats()).run.cancellation is not None


async def test_a_load_that_began_before_what_was_heard_is_done_again(a, b):
    await a.do("ses_1", create, first)
    load, entered, go = a.store.load, asyncio.Event(), asyncio.Event()
    a.engine.doubt(KEY)

    async def slow(key):
        found = await load(key)
        entered.set()
        await go.wait()
        return found

    a.engine._slots._load = slow
    peek = asyncio.ensure_future(a.engine.peek(KEY))
    await entered.wait()
    await b.do("ses_1", interrupt())
    await a.hear()
    go.set()
    assert (await peek).state.run is None


# --- what is left undone ---------------------------------------------------------------


async def test_what_a_dead_server_left_is_done_by_another(postgres, b):
    """A deadline, a lease's end and its back-off, written by one that is gone since."""
    limits = RunOptions(limits=RunLimits(max_duration=20 * SECOND))
    async with World(postgres) as dead:
        dead.clock = dead.engine.clock = b.clock
        dead.new_id.count = 2_000_000
        await dead.do("ses_1", create, put("first", Mode.START, options=limits))
        await dead.do("ses_2", create, first, lease(), beat)
    await b.hear()
    b.clock.advance(19 * SECOND + SECOND // 2)
    await b.ring()
    assert await b.runs("ses_1") == ["first LIVE"]
    b.clock.advance(SECOND)
    await b.ring()
    assert await b.runs("ses_1") == ["first DEADLINE_EXCEEDED"]
    b.clock.advance(LEASE)
    await b.ring()
    assert (await b.event_names("ses_2"))[-2:] == ["RUN_RECOVERING", "ACTIVATION_QUEUED"]
    caller = b.caller("PollActivation")
    b.services.dispatch.forget(SessionKey("default", "ses_2"))
    b.clock.advance(60 * SECOND)
    poll = asyncio.ensure_future(b.app.poll(caller, "x1", ["main"], 20, LEASE, 0))
    while not b.services.dispatch.hungry():  # noqa: ASYNC110 - nothing tells of a poll
        await asyncio.sleep(0.001)
    await b.hear()
    assert (await poll).leased.fence.session_id == "ses_2"


async def test_an_alarm_of_what_was_done_elsewhere_is_forgotten(a, b):
    limits = RunOptions(limits=RunLimits(max_duration=20 * SECOND))
    await a.do("ses_1", create, put("first", Mode.START, options=limits))
    assert [one[2].key for one in a.app._timers._set.values()] == [KEY]
    await b.do("ses_1", interrupt())
    await a.hear()
    assert a.app._timers._set == {}
    # The follow-up of the other server's commit is not: this one wrote it after that.
    await a.do("ses_1", put("second", Mode.START, options=limits))
    await a.hear()
    assert len(a.app._timers._set) == 1


async def test_an_executor_gets_what_was_submitted_elsewhere(a, b):
    caller = b.caller("PollActivation")
    await a.do("ses_1", create)
    poll = asyncio.ensure_future(b.app.poll(caller, "x1", ["main"], 20, LEASE, 0))
    while not b.services.dispatch.hungry():  # noqa: ASYNC110 - nothing tells of a poll
        await asyncio.sleep(0.001)
    await a.do("ses_1", first)
    await b.hear()
    view = await poll
    assert view.leased.fence.session_id == "ses_1"
    assert (await a.app.poll(caller, "x2", ["main"], 0, LEASE, 0)).leased is None
    # It is in this one's memory still, as a hint; its lease is looked for on disk.
    assert a.services.dispatch.hungry() == []


async def test_one_activation_is_leased_once_however_many_want_it(a, b):
    for number in range(10):
        name = f"ses_{number}"
        await a.do(name, create, first)
    polls = [
        world.app.poll(world.caller("PollActivation"), f"x{number}", ["main"], 1, LEASE, 0)
        for number, world in enumerate([a, b] * 10)
    ]
    done = asyncio.gather(*polls)
    while not done.done():
        await b.hear()
        await a.hear()
        await asyncio.sleep(0.01)
    leased = [view.leased.fence.session_id for view in await done if view.leased is not None]
    assert sorted(leased) == sorted(f"ses_{number}" for number in range(10))


async def test_who_works_and_what_waits_is_the_same_on_both(a, b):
    await a.do("ses_1", create, first)
    poll = asyncio.ensure_future(
        b.app.poll(b.caller("PollActivation"), "x1", ["other"], 30, LEASE, 0)
    )
    while not b.services.dispatch.executors:  # noqa: ASYNC110 - nothing tells of a poll
        await asyncio.sleep(0.001)
    await b.services.follower.meet()
    for world in (a, b):
        agents, _ = await world.app.list_agents("default", "", 10)
        assert [
            (one.name, one.executor_count, one.queued_count, one.leased_count) for one in agents
        ] == [
            ("main", 0, 1, 0),
            ("other", 1, 0, 0),
        ]
        executors, _ = await world.app.list_executors("default", "", 10)
        assert [(one.executor_id, one.polling, one.agents) for one in executors] == [
            ("x1", True, ["other"])
        ]
        seen = await world.app.overview("default")
        assert (seen.queued, seen.leased, seen.executors) == (1, 0, 1)
    # It is drained where it does not poll.
    await a.app.drain_executor(a.caller("DrainExecutor"), "x1")
    await b.hear()
    assert (await poll).draining
    again = await b.app.poll(b.caller("PollActivation"), "x1", ["main"], 30, LEASE, 0)
    assert again.draining


async def test_a_drained_executor_that_comes_to_another_server_gets_nothing(a, b):
    await a.do("ses_1", create, first)
    await a.app.drain_executor(a.caller("DrainExecutor"), "x1")
    assert (await b.app.poll(b.caller("PollActivation"), "x1", ["main"], 5, LEASE, 0)).draining


# --- a COMMIT that is cut ---------------------------------------------------------------


async def test_no_input_is_doubled_where_the_connection_is_cut_in_a_commit(a, b):
    """100 times, before or after the database took it; the caller asks again on either."""
    await a.do("ses_1", create, first)
    cuts = 0
    for number in range(100):
        world, other = ((a, b), (b, a))[number % 2]
        conn = await world.store._writing.get()
        cut = {"left": True}

        async def execute(query, *args, conn=conn, cut=cut, after=number % 3 > 0, **how):
            if query != "COMMIT" or not cut["left"]:
                return await type(conn).execute(conn, query, *args, **how)
            cut["left"] = False
            if after:
                await type(conn).execute(conn, query, *args, **how)
            conn.terminate()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle")

        conn.execute = execute
        step = put(f"i{number}", Mode.QUEUE)
        with pytest.raises(StoreUnavailable):
            await world.do("ses_1", step)
        cuts += not cut["left"]
        result, _ = await (world if number % 5 else other).call("ses_1", step)
        assert result.submission.run_id
        if number % 50 == 49:  # the queue has room again
            while (await a.state("ses_1")).run is not None:
                await a.do("ses_1", interrupt())
            await a.do("ses_1", put(f"s{number}", Mode.START))
    assert cuts == 100
    texts = await a.texts("ses_1")
    assert len(texts) == len(set(texts)) == 1 + 100 + 2
    assert len(await a.inputs("ses_1")) == 1 + 100 + 2


async def test_nothing_is_missed_that_a_reader_of_one_server_wants_of_both(a, b):
    """Commits of both, in any order of hearing: each event once, in order."""
    await a.do("ses_1", create)
    hub = a.services.bus.subscribe(KEY).hub
    found: list[int] = []

    async def read():
        while True:
            groups = hub.after(found[-1] if found else 0)
            if groups is None:
                groups = await a.store.events(KEY, found[-1] if found else 0, 2**62, 99, 2**20)
            for group in groups:
                found.extend(range(max(group.first, (found or [0])[-1] + 1), group.last + 1))
            if hub.newest <= found[-1]:
                return

    for number in range(30):
        await (a, b)[number % 3 % 2].do("ses_1", put(f"q{number}", Mode.QUEUE))
        if number % 4 == 0:
            await a.hear()
        await read()
    await a.hear()
    await read()
    last = await a.store.last_sequence(KEY)
    assert found == list(range(1, last + 1))
    assert hub.newest == last


async def test_a_reader_here_learns_of_a_commit_of_ours_whose_answer_was_lost(a, b):
    """Other servers hear of it as of any; here a look has left it out as our own."""
    await a.do("ses_1", create, first, lease())
    seen: dict[World, list[str]] = {a: [], b: []}

    async def read(world):
        async for raw in world.app.stream_events("default", "ses_1", EventQuery()):
            events = pb.StreamEventsResponse.FromString(raw).batch.events
            seen[world] += [one.sequence for one in events]

    readers = [asyncio.create_task(read(world)) for world in seen]
    try:
        for world in (a, a, b):
            await world.hear()  # each knows its connection
        await until(lambda: seen[a] and seen[b])
        await a.do("ses_1", reserve)  # what readers here have of the newest commits is enough
        count = len(await a.events("ses_1"))
        await b.hear()
        await until(lambda: len(seen[a]) == len(seen[b]) == count)
        conn = await a.store._writing.get()
        execute = conn.execute

        async def cut(sql, *args):
            done = await execute(sql, *args)
            if sql == "COMMIT":
                await a.hear()  # a look between the COMMIT and the loss of its answer
                conn.terminate()
                raise ConnectionResetError("cut")
            return done

        conn.execute = cut
        with pytest.raises(StoreUnavailable):
            await a.do("ses_1", finish)
        assert await a.runs("ses_1") == ["first COMPLETED"]
        for world in (a, b):
            await world.hear()
        on_disk = [one.sequence for one in await a.events("ses_1")]
        assert len(on_disk) > count
        await until(lambda: seen[a] == seen[b] == on_disk)
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


@pytest.mark.parametrize("silent", [False, True])
async def test_who_only_looks_knows_that_the_store_was_away_and_ends_no_lease(a, b, silent):
    """The server that heartbeats come to writes nothing that another one's clock learns from."""
    await a.do("ses_1", create, first, lease(), beat)
    await b.hear()
    a.clock.advance(LEASE - SECOND)
    await b.engine.look()
    moved = b.services.follower._shared.moved

    async def away(cursor):
        a.clock.advance(4 * SECOND)
        if silent:
            return await moved(cursor)
        raise StoreUnavailable("away")

    b.services.follower._shared.moved = away
    take_in = functools.partial(b.services.follower.take_in, set(), whole=True, roster=False)
    assert await take_in() is silent
    b.services.follower._shared.moved = moved
    await b.ring()
    assert (await b.state("ses_1")).run.activation.epoch == 1
    assert await take_in()
    await b.ring()
    assert (await b.state("ses_1")).run.activation.epoch == 1
    a.clock.advance(LEASE + SECOND)
    await b.ring()
    assert (await b.state("ses_1")).run.activation.epoch == 2


async def test_what_fails_for_ever_puts_off_the_end_of_no_lease_for_ever(a, b, monkeypatch):
    """A session that cannot be read, a right that the role lost: only following stops."""
    await a.do("ses_1", create, first, lease(), beat)
    await b.engine.peek(KEY)
    await b.hear()

    async def fails(*_args):
        raise StoreUnavailable("this read fails")

    monkeypatch.setattr(b.services.follower._shared, "moved", fails)
    for _ in range(40):
        a.clock.advance(SECOND)
        assert not await b.services.follower.take_in(set(), whole=True, roster=False)
        await b.engine.look()  # tries a write, now and then
    a.clock.advance(LEASE + SECOND)
    await b.engine.peek(KEY)
    await b.engine.flush()
    assert (await a.state("ses_1")).run.activation.epoch == 2


async def test_each_of_many_agents_that_wait_here_gets_what_was_queued_elsewhere(a, b, monkeypatch):
    monkeypatch.setattr(follower, "LANES", 3)
    dispatch = b.services.dispatch
    waits = [
        asyncio.ensure_future(dispatch.wait("default", [f"idle{number}"], 60))
        for number in range(7)
    ]
    caller = b.caller("PollActivation")
    poll = asyncio.ensure_future(b.app.poll(caller, "x1", ["late"], 20 * SECOND, LEASE, 0))
    try:
        await until(lambda: ("default", "late") in dispatch.hungry())
        options = RunOptions(agent="late")
        await a.do("ses_1", create, put("first", Mode.START, options=options))
        await b.hear()
        await asyncio.wait_for(poll, 5)
    finally:
        for one in (poll, *waits):
            one.cancel()
        await asyncio.gather(poll, *waits, return_exceptions=True)


async def test_start_timers_of_runs_that_somebody_has_are_not_found_due(a, b, monkeypatch):
    """They would hide what a server that is gone has left behind them."""
    monkeypatch.setattr(follower, "DUE_MAX", 2)
    limits = RunLimits(start_timeout=5 * SECOND)
    for number in range(2):
        name = f"ses_{number}"
        options = RunOptions(limits=limits)
        await a.do(name, create, put("first", Mode.START, options=options), lease())
        activation = (await a.state(name)).run.activation
        renewal = LeaseRenewal(activation.activation_id, activation.epoch, 600 * SECOND, 0)
        key = SessionKey("default", name)
        await a.engine.renew(key, lambda state: state.run is not None, renewal)
    options = RunOptions(limits=RunLimits(max_duration=20 * SECOND))
    await a.do("ses_9", create, put("first", Mode.START, options=options))
    b.clock.advance(21 * SECOND)
    b.services.follower.patience = 0  # the other one is gone
    await b.ring()
    assert await b.runs("ses_9") == ["first DEADLINE_EXCEEDED"]
