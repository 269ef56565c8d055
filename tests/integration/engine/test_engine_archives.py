"""Archives on each store: what is exported is imported, and says the same again."""

import asyncio
import sqlite3

import pytest
from runlane.v1 import history_service_pb2, message_pb2
from runlane_server.app.views import ForkRequest
from runlane_server.core.commands import (
    CommitModelStep,
    CommitToolResults,
    CreateSession,
    DeleteSession,
    ToolResult,
)
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import SessionKey, SessionRecord, Usage
from runlane_server.core.quotas import Quota
from runlane_server.core.words import Mode, Phase, StopReason, ToolOutcome
from runlane_server.store.errors import StoreUnavailable
from runlane_server.transport.archives import ArchiveReader, export_frames
from runlane_server.transport.content import result_content, step_content
from support.steps import (
    COMPLETED,
    SECOND,
    answer,
    claims,
    commit,
    compacts,
    interrupt,
    lease,
    passes,
    put,
    question,
    reserve,
    settle,
    starts,
)
from support.world import World

pytestmark = pytest.mark.asyncio
S = "ses_1"
MANY = 10**9


def asks(*calls, malformed=""):
    """A model step that really holds its calls."""
    blocks = [message_pb2.Block(text="let me see")]
    for call in calls:
        use = message_pb2.ToolUse(tool_call_id=call, name="tool", arguments_json='{"n":1.0}')
        if call == malformed:
            use.arguments_json = "{"
        blocks.append(message_pb2.Block(tool_use=use))
    return CommitModelStep(step_content(blocks, ""), Usage(10, 5, 1, 2, 100), "m-1", "stop")


def results(*calls, outcome=ToolOutcome.OK):
    return CommitToolResults(
        tuple(
            ToolResult(
                one,
                outcome,
                result_content(
                    message_pb2.ToolResult(
                        tool_call_id=one,
                        outcome=outcome,
                        content=[message_pb2.Block(text=f"did {one}")],
                    ),
                    "",
                ),
            )
            for one in calls
        )
    )


async def export(world, session_id=S, *, events=False):
    pieces = world.app.export_session("default", session_id, events)
    records = []
    async for frame in export_frames(pieces, "runlane test"):
        answer = history_service_pb2.ExportSessionResponse.FromString(frame)
        assert 0 < len(answer.records) <= 256
        records += answer.records
    return records


def read(records):
    reader = ArchiveReader(MANY, MANY, MANY)
    reader.take(records, 1)
    return reader.finish()


async def imported(world, records, session_id="ses_new", request_id=""):
    archive = read(records)
    caller = world.caller("ImportSession", request_id, archive.digest)
    done, _ = await world.app.import_session(caller, session_id, archive)
    return done


async def begin(world):
    record = SessionRecord("Name", {"team": "blue"}, '{"a":1}', "main")
    await world.app.create_session(world.caller("CreateSession"), S, CreateSession(record))


async def all_kinds(world):
    """A session with runs of every end, tools of every outcome, steers and a summary."""
    await begin(world)
    await world.do(S, put("a", Mode.AUTO), lease(), reserve)
    await world.do(S, commit(asks("c1", "c2", "c3", malformed="c3"), claims("c1", "c2")))
    await world.do(S, put("s", Mode.STEER), passes(SECOND), commit(results("c2")))
    await world.do(S, commit(results("c1")), reserve)
    await world.do(S, commit(answer("one"), outcome=COMPLETED))
    await world.do(S, put("b", Mode.AUTO), lease(), reserve)
    await world.do(S, commit(asks("c1"), claims("c1")), interrupt("enough"), passes(60 * SECOND))
    await world.do(S, put("c", Mode.AUTO), settle(StopReason.FAILED))
    await world.do(S, put("d", Mode.AUTO), lease(), commit(compacts(7)), reserve)
    await world.do(S, commit(answer("four"), outcome=COMPLETED))


async def facts(world, session_id):
    """What a reader sees of a session, ids of runs and of the session left out."""
    key = SessionKey("default", session_id)
    rows = await world.store.list_runs(key, [], None, 1000)
    found = [
        (
            one.agent, one.phase, one.stop_reason, one.cause, one.failure_reason,
            one.failure_message, one.output_message_number, one.output_json, one.message_cutoff,
            one.message_number, one.create_time, one.end_time, one.attempt, one.usage, one.preview,
            one.options, one.summary_through,
            [
                (two.step, two.ordinal, two.tool_call_id, two.name, two.arguments_json, two.state,
                 two.outcome, two.create_time)
                for two in await world.store.list_tool_calls("default", one.run_id, None, 1000)
            ],
        )
        for one in rows
    ]  # fmt: skip
    messages = await world.messages(session_id)
    for message in messages:
        for name in ("session_id", "run_id", "submission_id", "model_stream_id"):
            message.ClearField(name)
    summary = await world.store.summary(key, 7)
    return found, messages, (summary.text, summary.model, summary.create_time)


async def test_an_import_has_the_same_history_and_its_export_the_same_digest(file_world):
    world = file_world
    await all_kinds(world)
    records = await export(world, events=True)
    kinds = [one.WhichOneof("record") for one in records]
    assert kinds == sorted(kinds, key=["header", "run", "summary", "message", "event", "end"].index)
    state = await world.state(S)
    assert records[0].header.sequence == kinds.count("event") == state.sequence
    assert kinds.count("run") == 4
    ends = [one.run.stop_reason for one in records if one.HasField("run")]
    assert ends == [
        StopReason.COMPLETED, StopReason.OUTCOME_UNKNOWN, StopReason.FAILED, StopReason.COMPLETED,
    ]  # fmt: skip
    done = await imported(world, records)
    assert done.answer.digest.hex() == records[-1].end.content_digest
    assert await facts(world, "ses_new") == await facts(world, S)
    assert await world.event_names("ses_new") == ["SESSION_CREATED", "SESSION_IMPORTED"]
    again = await export(world, "ses_new")
    assert again[-1].end == records[-1].end
    await world.restart()
    assert (await export(world, "ses_new"))[-1].end == records[-1].end
    # It goes on as any session does.
    await world.do("ses_new", put("e", Mode.START), lease(), reserve)
    await world.do("ses_new", commit(answer("five"), outcome=COMPLETED))
    assert (await world.messages("ses_new"))[-1].number == state.message_count + 2
    points = await world.app.fork_points("default", "ses_new", None, 10)
    assert len(points.items) == 5
    fork = points.items[1].facts
    made, _ = await world.app.fork(
        world.caller("ForkSession"), fork.run_id, "ses_fork", ForkRequest()
    )
    assert made.answer.message_count == fork.message_cutoff
    forked = await export(world, "ses_fork")
    assert [one.session_id for one in forked[0].header.ancestors] == ["ses_new"]
    # Nothing of a fork's own: what it took over is of no run, before and after.
    await imported(world, forked, "ses_2")
    assert (await export(world, "ses_2"))[-1].end == forked[-1].end


async def test_the_streams_of_an_imported_run_end_at_once(world):
    await all_kinds(world)
    await imported(world, await export(world))
    run = (await world.store.list_runs(SessionKey("default", "ses_new"), [], None, 1))[0]
    stream = world.app.stream_run_events("default", run.run_id, "", 0, True, False)
    assert [frame async for frame in stream] == []
    found = await world.app.list_events("default", "", run.run_id, 0, frozenset(), False, 10)
    assert found == ([], None)


LIVE = {
    "queued": ([put("a", Mode.AUTO)], "CANCELLED", []),
    "at a model": ([put("a", Mode.AUTO), lease(), reserve], "CANCELLED", []),
    "at tools": (
        [put("a", Mode.AUTO), lease(), reserve, commit(asks("c1", "c2"), claims("c1"))],
        "OUTCOME_UNKNOWN",
        ["UNKNOWN", "CANCELLED"],
    ),
    "at tools that may be run again": (
        [put("a", Mode.AUTO), lease(), reserve, commit(asks("c1"), claims("c1", idempotent=True))],
        "CANCELLED",
        ["UNKNOWN"],
    ),
    "with a result that waits": (
        [
            put("a", Mode.AUTO),
            lease(),
            reserve,
            commit(asks("c1", "c2"), claims("c2")),
            commit(results("c2")),
        ],
        "CANCELLED",
        ["CANCELLED", "OK"],
    ),
    "waiting": ([put("a", Mode.AUTO), lease(), commit(outcome=question())], "CANCELLED", []),
    "being cancelled": ([put("a", Mode.AUTO), lease(), interrupt("no")], "CANCELLED", []),
    "with a child": (
        [put("a", Mode.AUTO), lease(), reserve, commit(asks("c1")), commit(starts("c1"))],
        "CANCELLED",
        ["CANCELLED"],
    ),
}


@pytest.mark.parametrize("name", LIVE)
async def test_a_live_run_is_exported_as_if_it_were_cancelled(world, name):
    steps, end, outcomes = LIVE[name]
    await begin(world)
    await world.do(S, *steps)
    state = await world.state(S)
    records = await export(world)
    assert (await world.state(S)) == state, "nothing is decided by it"
    run = next(one.run for one in records if one.HasField("run"))
    assert records[0].header.live_run_id == run.run_id == state.run.run_id
    assert StopReason(run.stop_reason).name == end
    found = [
        one.message.content[0].tool_result
        for one in records
        if one.HasField("message") and one.message.role == 3
    ]
    assert [ToolOutcome(one.outcome).name for one in found] == outcomes
    await imported(world, records)
    assert (await export(world, "ses_new"))[-1].end == records[-1].end
    row = (await world.store.list_runs(SessionKey("default", "ses_new"), [], None, 1))[0]
    assert row.phase is Phase.TERMINAL


async def test_what_comes_while_it_is_exported_is_not_in_it(world):
    await begin(world)
    await world.do(S, put("a", Mode.AUTO), lease(), reserve, commit(asks("c1", "c2"), claims("c2")))
    await world.do(S, commit(results("c2")))
    whole = await export(world)
    pieces = world.app.export_session("default", S, True)
    found = [await anext(pieces)]
    await world.do(S, commit(claims("c1")), commit(results("c1")), reserve)
    await world.do(S, commit(answer("late"), outcome=COMPLETED))
    await world.do(S, put("b", Mode.AUTO))

    async def all_pieces():
        for piece in found:
            yield piece
        async for piece in pieces:
            yield piece

    records = []
    async for frame in export_frames(all_pieces(), "test"):
        records += history_service_pb2.ExportSessionResponse.FromString(frame).records
    assert records[-1].end == whole[-1].end
    assert [one for one in records if one.HasField("run")] == [
        one for one in whole if one.HasField("run")
    ]


async def test_a_session_that_is_deleted_meanwhile_is_not_found(world):
    await all_kinds(world)
    pieces = world.app.export_session("default", S, False)
    await anext(pieces)
    await world.do(S)
    await world.app.delete_session(world.caller("DeleteSession"), S, DeleteSession())
    with pytest.raises(Refused) as caught:
        [piece async for piece in pieces]
    assert caught.value.reason is Reason.SESSION_NOT_FOUND


async def test_an_import_is_idempotent_and_takes_no_id_twice(file_world):
    world = file_world
    await all_kinds(world)
    records = await export(world)
    first = await imported(world, records, "", "r1")
    await world.restart()
    again = await imported(world, records, "", "r1")
    assert again.replayed
    assert again.answer == first.answer
    with pytest.raises(Refused) as caught:
        await imported(world, records, S)
    assert caught.value.reason is Reason.SESSION_EXISTS
    records[0].header.record.display_name = "another"
    records[-1].end.ClearField("content_digest")
    with pytest.raises(Refused) as caught:
        await imported(world, records, "", "r1")
    assert caught.value.reason is Reason.REQUEST_ID_REUSED


@pytest.mark.parametrize(
    ("quota", "name"),
    [
        (Quota(sessions_max=1), "sessions_max"),
        (Quota(stored_bytes_max=8000), "stored_bytes_max"),
        (Quota(requests_per_second=1, burst_seconds=1), "requests_per_second"),
    ],
)
async def test_quotas_hold_for_an_import(path, tmp_path, quota, name):
    async with World(tmp_path / "source.db") as source:
        await all_kinds(source)
        records = await export(source)
        later = source.clock.time
    async with World(path, quotas={"default": quota}) as world:
        world.clock.time = later
        await imported(world, records, "ses_1", "r1")
        with pytest.raises(Refused) as caught:
            for number in range(9):
                await imported(world, records, f"more_{number}")
        assert caught.value.reason is Reason.QUOTA_EXCEEDED
        assert caught.value.metadata["quota"] == name
        assert (await imported(world, records, "ses_1", "r1")).replayed, "what was answered stands"


async def test_two_imports_of_one_request_at_once_make_one_session(world):
    await all_kinds(world)
    records = await export(world)
    done = await asyncio.gather(*(imported(world, records, "", "r1") for _ in range(8)))
    assert sorted(one.replayed for one in done) == [False] + [True] * 7
    assert len({one.answer.session.session_id for one in done}) == 1


async def test_a_store_that_fails_in_the_middle_keeps_nothing(world):
    await all_kinds(world)
    records = await export(world)
    full = OSError if isinstance(world.path, str) else sqlite3.OperationalError
    world.faults("commit", full("no space"))
    with pytest.raises(StoreUnavailable):
        await imported(world, records)
    assert await world.state("ses_new") is None
    await imported(world, records)
    assert (await export(world, "ses_new"))[-1].end == records[-1].end
