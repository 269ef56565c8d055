"""What no archive holds is counted: nothing of a file of another program is lost in silence."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import runlane
from client_transcript_files import (
    CHAT,
    FORMATS,
    MARK,
    changed,
    entry,
    read,
    totals,
    walk,
    write_chat,
    write_checkpoints,
    write_graph,
    write_items,
    write_lines,
    write_rows,
)
from runlane._archive_calls import read_records

FILES = Path(__file__).parent / "transcripts"

WHOLE = {
    "openai-chat": {(0, "messages", 0, "content", 1)},
    "agents-sdk": set(),
    "langgraph": {(2, "additional_kwargs", "other"), (3, "artifact")},
    "claude-code": {(3, "toolUseResult")},
}
"""What is counted as one thing that is lost, whatever is in it."""


@pytest.mark.parametrize("given", [MARK, 0.0, False, {"a": None}])
@pytest.mark.parametrize("name", FORMATS)
def test_a_field_that_nobody_knows_is_kept_or_counted(tmp_path, name, given):
    value, write = FORMATS[name]
    _, before = totals(read(tmp_path, write, value))
    silent = []
    for path, one in walk(value):
        if not isinstance(one, dict) or is_whole(name, (*path, "zz")):
            continue
        lines, after = totals(
            read(tmp_path, write, changed(value, path, lambda at: {**at, "zz": given}))
        )
        if "zz" not in lines and after != before + 1:
            silent.append(path)
    assert silent == [], "\n".join(map(str, silent))


def is_whole(name, path):
    """Tells whether a place is in something that is counted as a whole."""
    return any(path[: len(one)] == one and path != one for one in WHOLE[name])


# docs/migrating.md says that these are not counted: ids, and the time of an entry before the last
# one of a step.
IDS = {"uuid", "parentUuid", "sessionId", "id"}
EARLIER = ("claude-code", (1, "timestamp"))


def dropped_without(tmp_path, write, value, path):
    """Counts what is dropped where a place is empty; -1: such a file is refused."""
    try:
        return totals(read(tmp_path, write, changed(value, path, lambda _: None)))[1]
    except runlane.TranscriptError:
        return -1


@pytest.mark.parametrize("name", FORMATS)
def test_a_value_is_kept_or_counted_or_told(tmp_path, name):
    value, write = FORMATS[name]
    base, before = totals(read(tmp_path, write, value))
    silent = []
    for path, one in walk(value):
        if isinstance(one, dict | list) or one is None or path[-1] in IDS:
            continue
        if is_whole(name, path) or (name, path) == EARLIER:
            continue
        own = MARK if isinstance(one, str) else 7_777_777
        try:
            lines, after = totals(read(tmp_path, write, changed(value, path, lambda _, v=own: v)))
        except runlane.TranscriptError:
            continue
        kept = MARK in lines if own == MARK else lines != base
        if not kept and after <= min(before, dropped_without(tmp_path, write, value, path)):
            silent.append(path)
    assert silent == [], "\n".join(map(str, silent))


CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}],
}
HI = {"role": "user", "content": "hi"}


def told(transcript):
    return [one.message for one in read_records(transcript.lines) if one.HasField("message")]


def test_six_characters_that_look_like_an_escape_are_kept(tmp_path):
    text, nul = "x = '\\u0000'", "a\0b"
    assert (len(text), len(nul)) == (12, 3)
    lines = [
        entry("user", "1", None, [{"type": "document", "data": [text, nul, {nul: 1}]}]),
        entry("assistant", "2", "1", [
            {"type": "thinking", "thinking": nul, "signature": text},
            {"type": "tool_use", "id": "t", "name": "Edit", "input": {"new": text, "old": nul}},
        ]),
    ]  # fmt: skip
    [one] = read(tmp_path, write_lines, lines)
    user, answer, _ = told(one)
    assert json.loads(user.content[0].data.json)["data"] == [text, "ab", {"ab": 1}]
    assert json.loads(answer.content[0].provider_json)["signature"] == text
    assert json.loads(answer.content[1].tool_use.arguments_json) == {"new": text, "old": "ab"}
    # In a text, as a key, of a piece; in the text and in the sealed one; in arguments.
    assert one.changed["U+0000 (taken out)"] == 5
    written = json.dumps({"new": text})
    [two] = read(tmp_path, write_chat, [HI, changed(CALL, ("tool_calls", 0, "function", "arguments"), lambda _: written)])  # fmt: skip
    assert told(two)[1].content[0].tool_use.arguments_json == written
    assert "malformed tool arguments (kept as text)" not in two.changed


def test_what_no_json_holds_is_kept_as_text(tmp_path):
    deep = 1
    for _ in range(200):
        deep = [deep]
    given = {"nan": float("nan"), "inf": float("inf"), "large": 10**400, "deep": deep}
    lines = [
        entry("user", "1", None, "hi"),
        entry(
            "assistant", "2", "1", [{"type": "tool_use", "id": "t", "name": "f", "input": given}]
        ),
    ]
    [one] = read(tmp_path, write_lines, lines)
    kept = told(one)[1].content[0].tool_use.arguments_json
    assert json.loads(kept)["nan"] == "nan"
    assert one.changed["number that JSON cannot hold (kept as text)"] == 3
    assert one.changed["nesting over 100 levels (kept as text)"] == 1
    [two] = read(tmp_path, write_chat, [HI, changed(CALL, ("tool_calls", 0, "function", "arguments"), lambda _: '{"a": NaN}')])  # fmt: skip
    assert told(two)[1].content[0].tool_use.arguments_text == '{"a": NaN}'
    assert two.changed["malformed tool arguments (kept as text)"] == 1


def test_pictures_in_instructions_are_counted_as_lost(tmp_path):
    for name, value, write in (
        ("chat", [{"role": "system", "content": CHAT[0]["messages"][0]["content"]}, HI], write_chat),
        ("items", [{"role": "developer", "content": CHAT[0]["messages"][0]["content"]}, HI], write_items),
        ("graph", [{"type": "system", "content": CHAT[0]["messages"][0]["content"]}], write_graph),
    ):  # fmt: skip
        [one] = read(tmp_path, write, value)
        assert one.dropped == {"part of a system message that is no text": 1}, name
        assert "media" not in one.kept
        assert one.changed["system message (kept in metadata_json)"] == 1


def test_fields_of_a_conversation(tmp_path):
    one = {"id": "c", "title": "T", "model": "gpt", "temperature": 0, "messages": [HI]}
    [found] = read(tmp_path, write_chat, one)
    assert found.dropped == {"conversation field model": 1, "conversation field temperature": 1}
    assert read_records(found.lines)[0].header.record.display_name == "T"
    with pytest.raises(runlane.TranscriptError, match="has the field 'id' twice"):
        read(
            tmp_path,
            lambda value, path: path.write_text(value),
            '{"id": 1, "id": 2, "messages": []}',
        )


@pytest.mark.parametrize(
    "time", [1700000000, 1700000000000, 1700000000000000, "2023-11-14T22:13:20Z"]
)
def test_times_in_any_unit(tmp_path, time):
    [one] = read(tmp_path, write_chat, [{**HI, "created_at": time}])
    assert told(one)[0].create_time.ToJsonString() == "2023-11-14T22:13:20Z"
    assert one.dropped == {}


@pytest.mark.parametrize("time", ["soon", -1, True, 0, 10**20])
def test_a_time_that_is_none_is_counted(tmp_path, time):
    [one] = read(tmp_path, write_chat, [{**HI, "created_at": time}])
    assert one.dropped == {"message field created_at": 1}


def test_a_day_is_a_time(tmp_path):
    [one] = read(tmp_path, write_chat, [{**HI, "created_at": "2025-01-02"}])
    assert told(one)[0].create_time.ToJsonString() == "2025-01-02T00:00:00Z"


LOST = "entry that hangs on no conversation"


@pytest.mark.parametrize(
    ("more", "report"),
    [
        ([{**entry("user", "7", None, "a"), "uuid": None}], {LOST: 1}),
        ([entry("user", "7", "8", "a"), entry("assistant", "8", "7", "b")], {LOST: 2}),
        ([entry("user", "1", None, "another one")], {LOST: 1}),
        ([entry("user", "1", None, "hi")], {}),
        ([{"type": "summary", "summary": "a"}, {"type": "summary", "summary": "b"}], {"summary before the newest": 1}),
    ],
)  # fmt: skip
def test_entries_that_hang_on_no_conversation(tmp_path, more, report):
    talk = [entry("user", "1", None, "hi"), entry("assistant", "2", "1", "x")]
    [one] = read(tmp_path, write_lines, [*more, *talk])
    assert one.dropped == report
    assert [message.content[0].text for message in told(one)] == ["hi", "x"]


def test_calls_that_were_asked_for_at_once_are_one_step(tmp_path):
    def call(uuid, parent, name, message="m1"):
        part = {"type": "tool_use", "id": name, "name": "f", "input": {}}
        return entry("assistant", uuid, parent, [part], id=message)

    def result(uuid, parent, name):
        part = {"type": "tool_result", "tool_use_id": name, "content": name}
        return entry("user", uuid, parent, [part])

    def shown(lines):
        return [
            [
                block.tool_use.tool_call_id or block.tool_result.tool_call_id or block.text
                for message in told(one)
                for block in message.content
            ]
            for one in read(tmp_path, write_lines, [entry("user", "1", None, "hi"), *lines])
        ]

    calls = [call("2", "1", "a"), call("3", "2", "b")]
    both = [result("4", "2", "a"), result("5", "3", "b")]
    whole = [["hi", "a", "b", "a", "b", "done"]]
    assert shown([*calls, *both, entry("assistant", "6", "5", "done")]) == whole
    assert shown([*calls, *both, entry("assistant", "6", "4", "done")]) == whole
    # What a program writes beside it is no branch.
    note = {"type": "progress", "uuid": "7", "parentUuid": "2"}
    assert shown([*calls, *both, entry("assistant", "6", "5", "done"), note]) == whole
    # A user who went back to a call, and one who said something beside the result.
    again = [*calls, *both, entry("assistant", "6", "5", "done"), result("7", "3", "b")]
    assert len(shown(again)) == 2
    beside = result("4", "2", "a")
    beside["message"]["content"].append({"type": "text", "text": "stop"})
    assert len(shown([*calls, beside, both[1], entry("assistant", "6", "5", "done")])) == 2


def test_a_file_of_which_nothing_is_left_says_what_there_was(tmp_path):
    loop = [entry("user", "7", "8", "a"), entry("assistant", "8", "7", "b")]
    with pytest.raises(runlane.TranscriptError, match=f"holds no conversation, but 2 {LOST}"):
        read(tmp_path, write_lines, loop)


def test_a_call_that_is_in_the_content_alone(tmp_path):
    part = {"type": "tool_use", "id": "q", "name": "f", "input": {"a": 1}}
    answer = {"type": "ai", "content": [part, {"type": "text", "text": "x"}], "tool_calls": []}
    [one] = read(tmp_path, write_graph, [{"type": "human", "content": "hi"}, answer])
    use = told(one)[1].content[0].tool_use
    assert (use.tool_call_id, json.loads(use.arguments_json)) == ("q", {"a": 1})
    known = {
        **answer,
        "tool_calls": [{"id": "q", "name": "f", "args": {"a": 1}, "type": "tool_call"}],
    }
    [two] = read(tmp_path, write_graph, [{"type": "human", "content": "hi"}, known])
    assert [block.WhichOneof("block") for block in told(two)[1].content] == ["text", "tool_use"]
    assert (two.dropped, two.kept["tool call"]) == ({}, 1)


def test_branches_subgraphs_and_writes_of_a_thread(tmp_path):
    def row(number, parent, text, namespace="", **channels):
        message = {"type": "human", "id": "m", "content": text}
        values = {"messages": [message], **channels}
        data = json.dumps({"id": number, "channel_values": values})
        return "t", namespace, number, parent, "json", data

    rows = [
        row("1", None, "a"),
        row("2", "1", "new"),
        row("3", "1", "old"),
        row("4", "1", "old", note=0),
    ]
    path = tmp_path / "file"
    write_checkpoints(
        [*rows, row("5", None, "x", "sub")],
        path,
        [("t", "", "4", "files"), ("t", "", "1", "files")],
    )
    found = runlane.read_transcripts(path)
    assert [told(one)[0].content[0].text for one in found] == ["old", "new"], (
        "ids alone are not the same"
    )
    assert found[0].dropped == {
        "channel note": 1,
        "pending write of files": 1,
        "checkpoint of a subgraph": 1,
    }
    assert found[0].changed["branch that another one holds whole"] == 1
    write_checkpoints([row("5", None, "x", "sub")], path)
    with pytest.raises(runlane.TranscriptError, match="but 1 checkpoint of a subgraph"):
        runlane.read_transcripts(path)


@pytest.mark.parametrize(
    ("rows", "where"),
    [
        ([(None, "{}", None)], "row 1: session_id is no text"),
        ([("s", "{}", None), (5, "{}", None)], "session_id is no text"),
        ([(b"\xff", "{}", None)], "session_id is no text"),
        ([("s", 7, None)], "row 1: message_data is no text"),
        ([("s", b"\xff", None)], "row 1: is no JSON"),
    ],
)
def test_odd_rows_of_sessions(tmp_path, rows, where):
    with pytest.raises(runlane.TranscriptError) as caught:
        read(tmp_path, write_rows, rows)
    assert where in str(caught.value)


def test_the_time_of_a_row_is_counted_where_it_is_none(tmp_path):
    [one] = read(tmp_path, write_rows, [("s", json.dumps(HI), "x"), ("s", json.dumps(HI), None)])
    assert one.dropped == {"row field created_at": 1}


@pytest.mark.parametrize(
    ("row", "where"),
    [
        (("t", "", "1", None, "json", 10**12), "thread 't', checkpoint '1': checkpoint is neither"),
        (("t", "", "1", None, "json", 1.5), "checkpoint is neither"),
        ((None, "", "1", None, "json", "{}"), "thread None, checkpoint '1': thread_id is no text"),
        (("t", "", 7, None, "json", "{}"), "checkpoint_id is no text"),
        (("t", "", "1", 7, "json", "{}"), "parent_checkpoint_id is no text"),
        (("t", "", "1", None, 7, "{}"), "type is no text"),
        (("t", 7, "1", None, "json", "{}"), "checkpoint_ns is no text"),
        (("t", "", "1", None, "json", None), "is no JSON"),
    ],
)
def test_odd_rows_of_checkpoints(tmp_path, row, where):
    with pytest.raises(runlane.TranscriptError) as caught:
        read(tmp_path, write_checkpoints, [row])
    assert where in str(caught.value)


def test_a_checkpoint_that_is_text(tmp_path):
    data = json.dumps({"channel_values": {"messages": [{"type": "human", "content": "hi"}]}})
    [one] = read(tmp_path, write_checkpoints, [("t", None, "1", None, "json", data)])
    assert told(one)[0].content[0].text == "hi"


def test_one_large_piece_takes_nothing_else_along(tmp_path):
    large = "x" * 4_000_000
    content = [{"type": "text", "text": text} for text in (large, "kept?", large, "and me?")]
    [one] = read(tmp_path, write_chat, [HI, {**CALL, "content": content}, {"role": "tool", "tool_call_id": "a", "content": "1"}])  # fmt: skip
    answer = told(one)[1]
    assert [block.text for block in answer.content] == [
        "[left out: too large for a message]",
        "kept?",
        "and me?",
        "",
    ]
    assert one.dropped == {"content over 3 MiB or 256 blocks in a message": 2}
    assert one.kept == {"user message": 1, "assistant message": 1, "tool call": 1, "tool result": 1}


def test_calls_stay_where_there_are_too_many_pieces(tmp_path):
    image = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    calls = [{"id": f"c{n}", "function": {"name": "f", "arguments": "{}"}} for n in range(2)]
    calls[0]["function"]["arguments"] = json.dumps({"a": "x" * 4_000_000})
    answer = {"role": "assistant", "content": [image] * 300, "tool_calls": calls}
    [one] = read(tmp_path, write_chat, [HI, answer])
    blocks = told(one)[1].content
    assert [block.WhichOneof("block") for block in blocks] == [
        *["media"] * 253,
        "text",
        *["tool_use"] * 2,
    ]
    assert (one.kept["media"], one.kept["tool call"]) == (253, 2)
    assert one.dropped == {
        "tool arguments over 3 MiB": 1,
        "content over 3 MiB or 256 blocks in a message": 47,
    }
    assert blocks[-2].tool_use.arguments_text == "[left out: too large]"
    assert blocks[-1].tool_use.arguments_json == "{}"
    [two] = read(tmp_path, write_chat, [HI, {**answer, "tool_calls": [], "content": [image] * 256}])
    assert (len(told(two)[1].content), two.dropped) == (256, {})


def test_a_result_that_is_dropped_counts_for_nothing_else(tmp_path):
    content = [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}, {"type": "web"}]
    [one] = read(
        tmp_path, write_chat, [HI, {"role": "tool", "tool_call_id": "zz", "content": content}]
    )
    assert (one.kept, one.dropped) == ({"user message": 1}, {"tool result without its call": 1})
    assert set(one.changed) == {"turn without an answer (a cancelled run)"}


def test_usage_of_an_answer_before_the_first_turn_is_counted(tmp_path):
    answer = {"type": "ai", "content": "hello", "usage_metadata": {"input_tokens": 3}}
    [one] = read(tmp_path, write_graph, [answer, {"type": "human", "content": "hi"}])
    assert one.dropped == {"usage of an answer that is of no run": 1}


def test_what_is_cut_is_said(tmp_path):
    long = "n" * 300
    value = {"id": long, "title": long, "messages": [HI, changed(CALL, ("tool_calls", 0, "function", "name"), lambda _: long)]}  # fmt: skip
    [one] = read(tmp_path, write_chat, value)
    for kind in ("name of a conversation", "title", "tool name"):
        assert one.changed[f"{kind} (cut at 255 bytes)"] == 1


def test_lineage_of_an_archive_is_not_imported_and_that_is_said(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = list(runlane.read_transcripts(FILES / "agents.sqlite")[0].lines)
    header = json.loads(lines[0])
    header["header"] |= {"parents": [{"runId": "r"}], "ancestors": [], "liveRunId": "r"}
    path.write_text("\n".join([json.dumps(header), *lines[1:]]))
    [one] = runlane.read_transcripts(path)
    assert one.dropped == {"header field parents": 1, "header field liveRunId": 1}


def test_a_pipe_is_refused_and_not_called_empty(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    for one in (path, tmp_path):
        with pytest.raises(runlane.TranscriptError, match="is no file"):
            runlane.read_transcripts(one)


SHOW = """
import sys, runlane
for one in runlane.read_transcripts(sys.argv[1]):
    print(one.name, *one.lines, one.kept, one.changed, one.dropped, sep="\\n")
"""


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_is_read_twice_gives_the_same(tmp_path, name):
    value, write = FORMATS[name]
    path = tmp_path / "file"
    write(value, path)
    first, second = (
        subprocess.run(
            [sys.executable, "-c", SHOW, str(path)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert first == second
    assert MARK not in first
