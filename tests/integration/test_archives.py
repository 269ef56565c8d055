"""Export and import at a server's door, and at the terminal."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
import runlane
from runlane.v1 import admin_service_pb2, archive_pb2, history_service_pb2
from support_server import Link, ServerProcess, refused, rest, unique, until

pytestmark = pytest.mark.asyncio
FILES = Path(__file__).parents[1] / "clients" / "transcripts"


async def export(link: Link, session: str, **fields) -> list[archive_pb2.ArchiveRecord]:
    request = history_service_pb2.ExportSessionRequest(session_id=session, **fields)
    return [
        record
        async for answer in link.history.ExportSession(request, timeout=30)
        for record in answer.records
    ]


async def send(link: Link, records, session: str = "", request_id: str = "", each: int = 2):
    first = admin_service_pb2.ImportSessionRequest(session_id=session, request_id=request_id)
    parts = [
        admin_service_pb2.ImportSessionRequest(records=records[start : start + each])
        for start in range(0, len(records), each)
    ]
    return await link.admin.ImportSession(iter([first, *parts]), timeout=30)


async def two_runs(link: Link) -> str:
    session = unique("source")
    await link.create(session, display_name="Name", labels={"team": "blue"})
    await link.run(session, "first 🙂", "one")
    await link.run(session, "second", "two")
    return session


async def test_an_archive_goes_to_another_server_and_back(link: Link, make_server):
    session = await two_runs(link)
    records = await export(link, session, include_events=True)
    other = make_server().start()
    async with Link(other.address) as there:
        made = await send(there, records, "copy", "r1")
        assert (made.message_count, made.run_count, made.replayed) == (4, 2, False)
        assert made.content_digest == records[-1].end.content_digest
        assert made.skipped_event_count == records[0].header.sequence
        assert made.session.display_name == "Name"
        assert made.session.labels == {"team": "blue"}
        again = await send(there, records, "copy", "r1", each=100)
        assert again.replayed
        assert again.session == made.session
        copy = await export(there, "copy")
        [event] = [one async for one in there.follow("copy", follow=False, types=[26])]
        assert event.session_imported.source_session_id == session
        assert event.session_imported.content_digest == made.content_digest
        assert (await there.session("copy")).current_run_id == ""
        points = await there.history.ListForkPoints(
            history_service_pb2.ListForkPointsRequest(session_id="copy"), timeout=10
        )
        assert [one.message_count for one in points.fork_points] == [2, 4]
        assert points.fork_points[0].create_time == records[1].run.create_time
        await there.submit("copy", "third")
        await there.answer((await there.lease(session)).fence, "three")
    assert copy[-1].end == records[-1].end
    back = await send(link, copy, unique("back"))
    assert back.content_digest == made.content_digest


def header(**fields):
    return archive_pb2.ArchiveRecord(header={"format_version": 1, **fields})


WRONG = {
    "no header": (lambda r: r[1:], "records[0]"),
    "nothing": (lambda r: [], "records"),
    "two headers": (lambda r: [r[0], *r], "records[1]"),
    "no end": (lambda r: r[:-1], "records"),
    "something behind the end": (lambda r: [*r, r[-2]], "records[8]"),
    "a run behind a message": (lambda r: [*r[:4], r[1], *r[4:]], "records[4]"),
    "the same run twice": (lambda r: [*r[:3], r[2], *r[3:]], "records[3].run.run_id"),
    "no first message": (lambda r: [*r[:3], *r[4:]], "records[3].message.number"),
    "a message is missing": (lambda r: [*r[:5], *r[6:]], "records[5].message.number"),
    "a message is missing at the end": (lambda r: [*r[:6], r[7]], "records[6].end"),
    "a wrong digest": (lambda r: edit(r, 7, lambda e: setattr(e.end, "content_digest", "0" * 64)), "records[7].end.content_digest"),
    "a changed text": (lambda r: edit(r, 4, lambda e: setattr(e.message.content[0], "text", "no")), "records[7].end.content_digest"),
    "another version": (lambda r: edit(r, 0, lambda e: setattr(e.header, "format_version", 2)), "records[0].header.format_version"),
    "a broken rule": (lambda r: edit(r, 5, lambda e: e.message.content.add()), "records[5].message.content[1].block"),
    "a run that has not ended": (lambda r: edit(r, 1, lambda e: e.run.ClearField("stop_reason")), "records[1].run.stop_reason"),
    "a run without an agent": (lambda r: edit(r, 1, lambda e: e.run.options.ClearField("agent")), "records[1].run.options.agent"),
    "runs that overlap": (lambda r: edit(r, 2, lambda e: setattr(e.run, "first_message_number", 2)), "records[2].run.first_message_number"),
    "a cutoff beyond the end": (lambda r: edit(r, 2, lambda e: setattr(e.run, "message_cutoff", 9)), "records[2].run.message_cutoff"),
    "messages of no run at the end": (lambda r: edit(r, 2, lambda e: (setattr(e.run, "message_cutoff", 3), e.run.ClearField("output_message_number"))), "records[6].message.number"),
    "runs out of order": (lambda r: edit(r, 2, lambda e: setattr(e.run.create_time, "seconds", 1)), "records[2].run.create_time"),
    "a time to come": (lambda r: edit(r, 2, lambda e: setattr(e.run.create_time, "seconds", 9 * 10**9)), "records[2].run.create_time"),
    "a cause of nothing": (lambda r: edit(r, 1, lambda e: setattr(e.run, "cause", 2)), "records[1].run.cause"),
    "an output that is an input": (lambda r: edit(r, 1, lambda e: setattr(e.run, "output_message_number", 1)), "records[1].run.output_message_number"),
    "an input in the middle": (lambda r: edit(r, 4, lambda e: (setattr(e.message, "role", 1), setattr(e.message, "author", 1), setattr(e.message, "step", 0))), "records[1].run.output_message_number"),
    "an author of another role": (lambda r: edit(r, 4, lambda e: setattr(e.message, "author", 1)), "records[4].message.author"),
    "a wrong step": (lambda r: edit(r, 4, lambda e: setattr(e.message, "step", 2)), "records[4].message.step"),
    "a call without a result": (lambda r: edit(r, 4, lambda e: e.message.content.add(tool_use={"tool_call_id": "c", "name": "t"})), "records[5].message.role"),
    "a result without a call": (lambda r: edit(r, 4, lambda e: (setattr(e.message, "role", 3), setattr(e.message, "author", 4), e.message.ClearField("content"), e.message.content.add(tool_result={"tool_call_id": "c", "outcome": 1}))), "records[4].message.content"),
    "a message of another run": (lambda r: edit(r, 4, lambda e: setattr(e.message, "run_id", "run_x")), "records[4].message.run_id"),
    "an empty input": (lambda r: edit(r, 3, lambda e: setattr(e.message.content[0], "text", " ")), "records[3].message.content"),
    "U+0000": (lambda r: edit(r, 4, lambda e: setattr(e.message, "model", "a\0")), "records[4].message.model"),
    "a summary of nothing": (lambda r: [*r[:3], archive_pb2.ArchiveRecord(summary={"text": "s", "through_message_number": 5, "create_time": {"seconds": 1}}), *r[3:]], "records[3].summary.through_message_number"),
}  # fmt: skip


def edit(records, index, change):
    """Changes a record; its digest is not told then, unless that is what is changed."""
    copies = [archive_pb2.ArchiveRecord.FromString(one.SerializeToString()) for one in records]
    change(copies[index])
    if index != len(records) - 1 and copies[index].WhichOneof("record") != "message":
        copies[-1].end.ClearField("content_digest")
    return copies


@pytest.mark.parametrize("name", WRONG)
async def test_what_is_no_archive_is_refused_with_its_place_and_stores_nothing(link: Link, name):
    records = await export(link, await two_runs(link))
    assert len(records) == 8
    spoil, field = WRONG[name]
    wrong = spoil(records)
    if field != "records[7].end.content_digest" and wrong and wrong[-1].HasField("end"):
        wrong[-1] = archive_pb2.ArchiveRecord.FromString(wrong[-1].SerializeToString())
        wrong[-1].end.ClearField("content_digest")
    target = unique("wrong")
    for each in (1, 3, 100):
        error = await refused(send(link, wrong, target, each=each))
        assert error.code is grpc.StatusCode.INVALID_ARGUMENT, error
        assert error.reason in {"FIELD_INVALID", "INPUT_EMPTY"}
        assert error.fields[0].startswith(field), error.fields
    error = await refused(link.session(target))
    assert error.reason == "SESSION_NOT_FOUND"


async def test_limits_hold_and_are_told(make_server):
    server: ServerProcess = make_server(
        import_bytes_max=5000, import_messages_max=4, import_runs_max=2, imports_max=1
    ).start()
    async with Link(server.address) as link:
        session = await two_runs(link)
        records = await export(link, session)
        assert (await send(link, records, "fits")).run_count == 2
        await link.run(session, "third", "three")
        error = await refused(send(link, await export(link, session)))
        assert error.everything.count("at most 2 runs")
        large = edit(records, 3, lambda one: setattr(one.message.content[0], "text", "x" * 6000))
        error = await refused(send(link, large))
        assert (error.reason, error.metadata["limit_bytes"]) == ("MESSAGE_TOO_LARGE", "5000")
        waiting = link.admin.ImportSession(timeout=30)
        await waiting.write(admin_service_pb2.ImportSessionRequest(records=records[:1]))

        async def full() -> bool:
            try:
                await send(link, records)
            except grpc.aio.AioRpcError as error:
                return error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            return False

        await until(full)
        error = await refused(send(link, records))
        assert (error.reason, error.metadata["limit"]) == ("STREAM_LIMIT", "1")
        assert error.retry_seconds
        waiting.cancel()

        async def free() -> bool:
            return not await full()

        await until(free)


@pytest.mark.parametrize("sent", [0, 1])
async def test_an_import_that_says_nothing_gives_its_place_back(make_server, sent):
    server = make_server(imports_max=1, import_silence_seconds=1).start()
    async with Link(server.address) as link:
        records = await export(link, await two_runs(link))
        silent = link.admin.ImportSession(timeout=20)
        for _ in range(sent):
            await silent.write(
                admin_service_pb2.ImportSessionRequest(session_id="silent", records=records)
            )
        error = await refused(silent)
        assert (error.code, error.reason) == (grpc.StatusCode.UNAVAILABLE, "STREAM_ENDED")
        assert error.retry_seconds
        assert (await refused(link.session("silent"))).reason == "SESSION_NOT_FOUND"
        assert (await send(link, records, "silent")).run_count == 2, "the one place is free"


async def test_an_import_takes_an_id_that_was_never_used(link: Link):
    session = await two_runs(link)
    records = await export(link, session)
    error = await refused(send(link, records, session))
    assert (error.reason, error.metadata["deleted"]) == ("SESSION_EXISTS", "false")
    await link.delete(session)
    error = await refused(send(link, records, session))
    assert (error.reason, error.metadata["deleted"]) == ("SESSION_EXISTS", "true")


async def test_a_message_of_3_mib_goes_there_and_back(link: Link):
    session = unique("large")
    text = "é" * (3 * 1024 * 1024 // 2 - 100)
    await link.run(session, text, "done")
    request = history_service_pb2.ExportSessionRequest(session_id=session)
    call = link.history.ExportSession(request, timeout=30)
    sizes = [answer.ByteSize() async for answer in rest(call)]
    assert max(sizes) < 4 * 1024 * 1024 - 64 * 1024
    records = await export(link, session)
    made = await send(link, records, each=1)
    assert made.content_digest == records[-1].end.content_digest
    assert (await link.messages(made.session.session_id))[0].content[0].text == text


@pytest.mark.parametrize(
    "name", ["agents.sqlite", "claude_code.jsonl", "langgraph.sqlite", "openai_chat.json"]
)
async def test_transcripts_become_sessions_that_go_on(shared, link: Link, name):
    found = runlane.read_transcripts(FILES / name, agent=unique("agent"))
    async with runlane.Client(shared.address) as client:
        for one in found:
            made = await client.import_session(one.lines)
            assert (made.message_count, made.run_count) == (one.message_count, one.run_count)
            session = made.session.session_id
            points = await client.list_runs(session)
            assert len(points.items) == one.run_count
            lines = [line async for line in client.export_session(session)]
            assert json.loads(lines[-1])["end"]["contentDigest"] == made.content_digest
            again = await client.import_session(lines)
            assert again.content_digest == made.content_digest
            agent = made.session.default_agent
            await link.submit(session, "and then?")
            await link.answer((await link.lease(agent)).fence, "this")


ODD = {
    "chat": [
        {"role": "system", "content": "a\0b\ud800"},
        {"role": "user", "name": "\0", "content": ["a\0", {"type": "\ud800\0", "x": "\0", "\0": [1e300, "\\u0000"]}]},
        {"role": "assistant", "reasoning_content": "\0", "tool_calls": [
            {"id": "a", "function": {"name": "n" * 300, "arguments": {"a": "\0", "n": 10**400, "\ud800": "\\u0000"}}},
            {"id": "b", "function": {"name": "\0", "arguments": '{"a": NaN}'}},
            {"id": "c", "function": {"name": "f", "arguments": '{"a": "\\ud800"}'}},
            {"id": "d", "function": {"name": "f", "arguments": '{"a": "\\\\u0000"}'}},
            {"id": "e", "function": {"name": "f", "arguments": "[" * 500 + "]" * 500}},
        ]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "thinking", "thinking": "\0"}]},
        {"role": "user", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": {}}]},
        {"role": "assistant", "content": [{"type": "deep", "a": json.loads("[" * 300 + "]" * 300)}] * 300},
    ],
    "lines": [
        {"type": "user", "uuid": "1", "sessionId": "\0" * 70_000, "message": {"content": [{"type": "document", "data": float("nan")}]}},
        {"type": "assistant", "uuid": "2", "parentUuid": "1", "message": {"model": "m" * 300, "content": [
            {"type": "thinking", "thinking": "\0", "signature": "\0" + "s" * 70_000},
            {"type": "tool_use", "id": "t" * 200, "name": "", "input": [float("inf")]},
            {"type": "image", "source": {"type": "base64", "media_type": "a/" + "b" * 300, "data": "aGVsbG8="}},
        ]}},
        {"type": "user", "uuid": "3", "parentUuid": "2", "message": {"content": [{"type": "tool_result", "tool_use_id": "t" * 200, "content": [{"type": "document", "x": "\0"}]}]}},
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
async def test_what_is_odd_in_a_transcript_is_imported(shared, tmp_path, name):
    path = tmp_path / name
    many = name == "lines"
    path.write_text("\n".join(map(json.dumps, ODD[name])) if many else json.dumps(ODD[name]))
    [one] = runlane.read_transcripts(path)
    async with runlane.Client(shared.address) as client:
        made = await client.import_session(one.lines)
        assert made.message_count == one.message_count
        lines = [line async for line in client.export_session(made.session.session_id)]
    kept = sum("toolUse" in block for line in lines for block in content_of(line))
    assert kept == one.kept["tool call"]


def content_of(line: str) -> list[dict]:
    return json.loads(line).get("message", {}).get("content", [])


def runlane_cli(server, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "runlane_server", *words, "--target", server.address],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_the_terminal_exports_and_imports(shared, link: Link, tmp_path):
    session = await two_runs(link)
    file = tmp_path / "a.jsonl"
    done = await asyncio.to_thread(runlane_cli, shared, "export", session, "-o", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    printed = await asyncio.to_thread(runlane_cli, shared, "export", session)
    assert printed.stdout.splitlines()[1:] == file.read_text().splitlines()[1:]
    copy = unique("copy")
    done = await asyncio.to_thread(runlane_cli, shared, "import", str(file), "--session", copy)
    assert done.stdout == f"{session}: session {copy}, 4 messages in 2 runs\n"
    assert (await link.session(copy)).message_count == 4
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:3], *lines[4:]]))
    done = await asyncio.to_thread(runlane_cli, shared, "import", str(file))
    assert done.returncode == 1
    assert "records[3].message.number" in done.stderr


async def test_the_terminal_lists_what_it_cannot_keep(shared):
    words = ("import", str(FILES / "openai_chat.json"))
    tried = await asyncio.to_thread(runlane_cli, shared, *words, "--dry-run")
    assert tried.returncode == 0, tried.stderr
    assert "one: would be imported, 10 messages in 3 runs" in tried.stdout
    assert "  dropped: 1 message field annotations" in tried.stdout
    done = await asyncio.to_thread(runlane_cli, shared, *words, "--json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["dropped"] for one in told] == [
        {"message field annotations": 1},
        {"tool result without its call": 1},
    ]
    assert all(one["session_id"] for one in told)
    several = await asyncio.to_thread(runlane_cli, shared, *words, "--session", "x")
    assert (several.returncode, "holds 2" in several.stderr) == (2, True)
