"""Files of other programs: what becomes of each part, and what is told of those that are wrong."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import runlane
from runlane._archive_calls import read_records
from runlane._transcripts.msgpack import Extension, unpack
from runlane.v1 import message_pb2

FILES = Path(__file__).parent / "transcripts"
ROLES = {1: "user", 2: "assistant", 3: "tool"}


def records(transcript):
    return read_records(transcript.lines)


def shown(transcript):
    """Each message as its role, step and the kinds of its blocks; a run begins with |."""
    found = []
    starts = {one.run.first_message_number for one in records(transcript) if one.HasField("run")}
    for one in records(transcript):
        if one.HasField("message"):
            kinds = "+".join(block.WhichOneof("block") for block in one.message.content)
            bar = "|" if one.message.number in starts else ""
            found.append(f"{bar}{ROLES[one.message.role]} {one.message.step} {kinds}")
    return found


def messages(transcript):
    return [one.message for one in records(transcript) if one.HasField("message")]


def ends(transcript):
    return [one.run.stop_reason for one in records(transcript) if one.HasField("run")]


def read(tmp_path, content):
    path = tmp_path / "file.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return runlane.read_transcripts(path)


def test_openai_chat():
    one, two = runlane.read_transcripts(FILES / "openai_chat.json", agent="helper")
    assert shown(one) == [
        "assistant 0 text",
        "|user 0 text+media+media",
        "assistant 1 tool_use+tool_use",
        "tool 1 tool_result",
        "tool 1 tool_result",
        "assistant 2 text",
        "|user 0 text",
        "|user 0 text",
        "assistant 1 tool_use",
        "tool 1 tool_result",
    ]
    assert ends(one) == [1, 3, 3]
    told = messages(one)
    uses = [block.tool_use for block in told[2].content]
    assert uses[0].arguments_json == '{"n": 1.0, "big": 9007199254740993}', "as it was written"
    assert uses[1].arguments_text == "{broken"
    results = [one.content[0].tool_result for one in told[3:5]]
    assert [one.tool_call_id for one in results] == ["call_a", "call_b"], (
        "in the order of the calls"
    )
    assert results[0].content[0].text == "a pixel 🙂"
    assert told[9].author == message_pb2.Message.AUTHOR_CLOSER
    header = records(one)[0].header
    assert json.loads(header.record.metadata_json)["system"] == ["Answer briefly."]
    assert (header.record.default_agent, header.source) == ("helper", "openai-chat")
    assert one.dropped == {"message field annotations": 1}
    assert one.changed["tool call id"] == 1
    assert (two.name, two.dropped) == ("two", {"tool result without its call": 1})


def test_langgraph_each_branch_is_a_session():
    one, branch, other = runlane.read_transcripts(FILES / "langgraph.sqlite")
    assert [x.name for x in (one, branch, other)] == ["thread-1", "thread-1 (branch 2)", "thread-2"]
    assert shown(one) == [
        "|user 0 text",
        "assistant 1 text+tool_use",
        "tool 1 tool_result",
        "assistant 2 text",
        "|user 0 text",
        "assistant 1 text",
    ]
    assert [m.content[0].text for m in messages(one)][4:] == ["and tomorrow?", "It is sunny (6)."]
    assert [m.content[0].text for m in messages(branch)][4:] == ["thanks", "It is sunny (6)."]
    assert json.loads(messages(one)[1].content[1].tool_use.arguments_json) == {
        "city": "Rome",
        "days": 2,
    }
    assert messages(one)[1].model == "tiny-1"
    assert records(one)[1].run.usage.input_tokens == 12
    assert one.dropped == {"channel extra": 1}


def test_agents_sdk():
    one, two = runlane.read_transcripts(FILES / "agents.sqlite")
    assert shown(one) == [
        "|user 0 text",
        "assistant 1 reasoning+tool_use+tool_use",
        "tool 1 tool_result",
        "tool 1 tool_result",
        "assistant 2 text",
        "|user 0 text",
        "assistant 1 data+text",
    ]
    reasoning = messages(one)[1].content[0]
    assert reasoning.reasoning.text == "simple sum"
    assert json.loads(reasoning.provider_json)["encrypted_content"] == "c2VhbGVk"
    assert ends(two) == [3]
    assert one.changed == {"web_search_call (kept as a data block)": 1}


def test_claude_code():
    main, branch, side = runlane.read_transcripts(FILES / "claude_code.jsonl")
    assert shown(main) == [
        "|user 0 text",
        "assistant 1 reasoning+tool_use",
        "tool 1 tool_result",
        "assistant 2 text",
        "|user 0 text+media",
        "assistant 1 text",
    ]
    assert records(main)[0].header.record.display_name == "Counting lines"
    assert main.dropped == {
        "entry file-history-snapshot": 1,
        "meta message of the program": 1,
        "entry field toolUseResult": 1,
    }
    assert messages(branch)[-1].content[0].text == "Delete it"
    assert [one.content[0].text for one in messages(side)] == ["Find a.txt", "Found."]
    used = records(main)[1].run.usage
    assert (used.input_tokens, used.cached_input_tokens, used.output_tokens) == (13, 10, 5)
    assert messages(main)[0].create_time.ToJsonString() == "2025-11-30T10:00:01Z"


WRONG = {
    "no JSON": ("{", "line 1: is no JSON"),
    "broken in line 2": ('[\n{"role": }]', "line 2: is no JSON"),
    "a broken line of several": ('{"messages":[]}\n{"messages":\n', "line 2: is no JSON"),
    "a number": ("1", "neither a list"),
    "a message that is none": ([{"role": "user", "content": "a"}, 1], "no list of messages"),
    "an unknown role": ([{"role": "user", "content": "a"}, {"role": "boss"}], "message 2: has no role"),
    "a strange content": ([{"role": "user", "content": 3}], "message 1: its content"),
    "a strange part": ([{"role": "user", "content": ["a", 3]}], "message 1, part 2: is no object"),
    "a call without a name": ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "tool call 1 has no function"),
    "a result of nothing": ([{"role": "tool", "content": "a"}], "message 1: has no tool_call_id"),
    "no entry": ('{"type":"user","message":{"content":"a"}}\n{"a":1}', "line 2: is no entry"),
    "an entry without a message": ('{"type":"user"}', "line 1: has no message"),
    "content of an entry": ('{"type":"user","uuid":"a","message":{"content":[1]}}', "line 1, part 1: is no object"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told_with_its_place(tmp_path, name):
    content, where = WRONG[name]
    with pytest.raises(runlane.TranscriptError) as caught:
        read(tmp_path, content)
    assert where in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "where"),
    [
        ("langgraph.sqlite", "UPDATE checkpoints SET checkpoint = x'81'", "thread 'thread-1', checkpoint"),
        ("langgraph.sqlite", "UPDATE checkpoints SET type = 'pickle'", "is stored as 'pickle', which is not read"),
        ("langgraph.sqlite", "UPDATE checkpoints SET checkpoint = x'80'", "has no channel_values"),
        ("langgraph.sqlite", "DROP TABLE writes", "cannot be read as SQLite: no such table"),
        ("agents.sqlite", "UPDATE agent_messages SET message_data = '{' WHERE id = 3", "session 'chat-1', row 3: is no JSON"),
        ("agents.sqlite", "UPDATE agent_messages SET message_data = '[]' WHERE id = 2", "row 2: is no object"),
        ("agents.sqlite", "DROP TABLE agent_messages", "without checkpoints and without agent_messages"),
    ],
)  # fmt: skip
def test_rows_that_are_wrong_are_named(tmp_path, name, change, where):
    path = tmp_path / name
    shutil.copy(FILES / name, path)
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute(change)
    with pytest.raises(runlane.TranscriptError) as caught:
        runlane.read_transcripts(path)
    assert where in str(caught.value)


def test_a_file_that_is_cut_off_is_told(tmp_path):
    path = tmp_path / "cut.sqlite"
    path.write_bytes((FILES / "langgraph.sqlite").read_bytes()[:5000])
    with pytest.raises(runlane.TranscriptError, match="cannot be read as SQLite"):
        runlane.read_transcripts(path)
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(runlane.TranscriptError, match="is no UTF-8, at byte 1"):
        runlane.read_transcripts(path)
    with pytest.raises(ValueError, match="is no format"):
        runlane.read_transcripts(path, "word")


def test_reading_leaves_a_file_as_it_was(tmp_path):
    for name in ("langgraph.sqlite", "agents.sqlite"):
        path = tmp_path / name
        shutil.copy(FILES / name, path)
        runlane.read_transcripts(path)
        assert path.read_bytes() == (FILES / name).read_bytes()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["agents.sqlite", "langgraph.sqlite"]


def test_what_no_message_holds_is_left_out_and_said(tmp_path):
    [one] = read(
        tmp_path,
        [
            {"role": "user", "content": "a\0b"},
            {"role": "user", "content": "   "},
            {"role": "assistant", "content": "x" * (3 * 1024 * 1024)},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "AAAA" * 90_000}}]},
            {"role": "assistant", "content": [{"type": "text", "text": str(n)} for n in range(300)]},
            {"role": "system", "content": "s" * 70_000},
        ],
    )  # fmt: skip
    assert messages(one)[0].content[0].text == "ab"
    assert one.dropped == {
        "empty user message": 1,
        "content over 3 MiB or 256 blocks in a message": 1 + 45,
        "media over 256 KiB": 1,
        "system message (over 64 KiB)": 1,
    }
    assert len(messages(one)[3].content) == 256
    assert all(len(message.SerializeToString()) < 3 * 1024 * 1024 for message in messages(one))


def test_an_archive_is_read_as_it_is(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = runlane.read_transcripts(FILES / "agents.sqlite")[0].lines
    path.write_text("\n".join(lines) + "\n")
    [one] = runlane.read_transcripts(path)
    assert (one.lines, one.run_count, one.message_count) == (lines, 2, 7)
    assert (one.kept, one.dropped) == ({"run": 2, "summary": 0, "message": 7}, {})
    with pytest.raises(ValueError, match="line 2: is no record of an archive"):
        read_records([lines[0], '{"nonsense": 1}'])


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\xc0", None),
        (b"\x93\x01\xff\xa1a", [1, -1, "a"]),
        (b"\x81\xa1k\xcb\x3f\xf8" + b"\0" * 6, {"k": 1.5}),
        (b"\xcf" + b"\xff" * 8, 2**64 - 1),
        (b"\xd3\x80" + b"\0" * 7, -(2**63)),
        (b"\xda\x00\x01b", "b"),
        (b"\xdc\x00\x01\xc3", [True]),
        (b"\xc4\x02ab", b"ab"),
        (b"\xc7\x02\x05\x91\x07", Extension(5, [7])),
        (b"\xd4\x01\xc1", Extension(1, b"\xc1")),
        (b"\xd5\x01\x01\x02", Extension(1, b"\x01\x02")),
        (b"\x81\x01\xa1\xff", {"1": "\udcff"}),
    ],
)
def test_messagepack(data, value):
    assert unpack(data) == value


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\xda\xff\xffa", b"\x91" * 70 + b"\x01", b"\x01\x02"]
)
def test_messagepack_that_is_none(data):
    with pytest.raises(ValueError, match=r"\w"):
        unpack(data)


@pytest.mark.parametrize("junk", [[], {}, 1, None, [None], {"type": []}, "\ud800"])
@pytest.mark.parametrize("field", ["role", "content", "tool_calls", "id", "created_at"])
def test_junk_in_any_field_is_taken_or_told(tmp_path, field, junk):
    message = {"role": "assistant", "content": "a", field: junk}
    told = ""
    try:
        found = read(tmp_path, [{"id": junk, "messages": [message]}])
    except runlane.TranscriptError as error:
        found, told = [], str(error)
    assert "message 1" in told or all(records(one) for one in found)
    assert bool(found) is not bool(told)
