"""Files of other programs with one of each thing in them, and means to change them."""

import copy
import json
import sqlite3
from contextlib import closing

import runlane

MARK = "mark-7f3"

CHAT = [
    {
        "id": "c1",
        "title": "Rain",
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]},
            {"role": "user", "created_at": 1700000000, "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "https://x/z.png", "detail": "low"}}, {"type": "input_audio", "input_audio": {"data": "aGVsbG8=", "format": "wav"}}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}, {"type": "web", "query": {"q": 1}}]},
            {"role": "assistant", "reasoning_content": "hm", "refusal": "no", "content": "yes", "timestamp": 1700000001, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}, {"id": "b", "type": "custom", "custom": {"name": "g", "input": "raw"}}], "function_call": {"name": "h", "arguments": "{}"}},
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            {"role": "function", "name": "h", "content": [{"type": "text", "text": "2"}]},
        ],
    }
]  # fmt: skip
ITEMS = [
    {"role": "user", "content": [{"type": "input_text", "text": "hi"}, {"type": "input_image", "image_url": "https://x/y.png"}]},
    {"id": "rs", "type": "reasoning", "summary": [{"type": "summary_text", "text": "sum"}], "encrypted_content": "c2U="},
    {"type": "function_call", "id": "fc", "call_id": "call_1", "name": "add", "arguments": "{}", "status": "completed"},
    {"type": "custom_tool_call", "id": "fd", "call_id": "call_2", "name": "sh", "input": "ls"},
    {"type": "function_call_output", "call_id": "call_1", "output": "4"},
    {"type": "custom_tool_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "ok"}]},
    {"id": "ws", "type": "web_search_call", "status": "completed", "action": {"query": "2+2"}},
    {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "4"}]},
]  # fmt: skip
GRAPH = [
    {"type": "system", "content": "Be brief."},
    {"type": "human", "content": [{"type": "text", "text": "hi"}], "name": "Bob", "example": False},
    {"type": "ai", "content": [{"type": "thinking", "thinking": "hm", "signature": "c2"}, {"type": "tool_use", "id": "q", "name": "f", "input": {"a": 1}}, {"type": "tool_use", "id": "lost", "name": "g", "input": {"b": 1}}, {"type": "text", "text": "x"}], "name": "planner", "tool_calls": [{"id": "q", "name": "f", "args": {"a": 1}, "type": "tool_call"}], "invalid_tool_calls": [{"id": "w", "name": "g", "args": "{", "error": "bad"}], "usage_metadata": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7, "input_token_details": {"cache_read": 2}}, "response_metadata": {"model_name": "m1", "finish_reason": "stop"}, "additional_kwargs": {"other": {"a": 1}}},
    {"type": "tool", "tool_call_id": "q", "name": "f", "content": "1", "status": "success", "artifact": {"z": 1}},
    {"type": "ai", "content": "done", "response_metadata": {"created_at": 1700000002}},
]  # fmt: skip


def entry(kind, uuid, parent, content, **message):
    return {
        "type": kind,
        "uuid": uuid,
        "parentUuid": parent,
        "sessionId": "s",
        "timestamp": f"2025-01-01T00:00:0{uuid}Z",
        "message": {"role": kind, "content": content, **message},
    }


LINES = [
    entry("user", "1", None, [{"type": "text", "text": "hi"}, {"type": "document", "source": {"data": "aGk="}}]),
    entry("assistant", "2", "1", [{"type": "thinking", "thinking": "hm", "signature": "c2"}], id="m1", model="x"),
    entry("assistant", "3", "2", [{"type": "tool_use", "id": "t1", "name": "Bash", "input": {"c": "ls"}}], id="m1", model="x", type="message", stop_reason="tool_use", usage={"input_tokens": 3, "output_tokens": 5, "tier": "std"}),
    {**entry("user", "4", "3", [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a"}], "is_error": True}]), "toolUseResult": {"stdout": "a"}},
    entry("assistant", "5", "4", "done", id="m2", model="x"),
]  # fmt: skip


def write_chat(value, path):
    path.write_text(json.dumps(value))


def write_lines(value, path):
    path.write_text("\n".join(json.dumps(one) for one in value) + "\n")


def write_items(value, path):
    rows = [("s", json.dumps(one), f"2025-01-01 00:00:0{n}") for n, one in enumerate(value)]
    write_rows(rows, path)


def write_rows(rows, path):
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("PRAGMA synchronous = OFF")
        conn.execute(
            "CREATE TABLE agent_messages(id INTEGER PRIMARY KEY, session_id, message_data, created_at)"
        )
        insert = "INSERT INTO agent_messages(session_id, message_data, created_at) VALUES (?, ?, ?)"
        conn.executemany(insert, rows)


def write_graph(value, path):
    checkpoint = {"v": 4, "ts": "2025-01-01", "id": "1", "channel_values": {"messages": value}}
    write_checkpoints([("t", "", "1", None, "json", json.dumps(checkpoint).encode())], path)


def write_checkpoints(rows, path, writes=()):
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("PRAGMA synchronous = OFF")
        conn.execute(
            "CREATE TABLE checkpoints(thread_id, checkpoint_ns, checkpoint_id,"
            " parent_checkpoint_id, type, checkpoint)"
        )
        conn.execute("CREATE TABLE writes(thread_id, checkpoint_ns, checkpoint_id, channel)")
        conn.executemany("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?)", rows)
        conn.executemany("INSERT INTO writes VALUES (?, ?, ?, ?)", writes)


FORMATS = {
    "openai-chat": (CHAT, write_chat),
    "agents-sdk": (ITEMS, write_items),
    "langgraph": (GRAPH, write_graph),
    "claude-code": (LINES, write_lines),
}


def read(tmp_path, write, value):
    path = tmp_path / "file"
    write(value, path)
    return runlane.read_transcripts(path)


def totals(found):
    lines = "\n".join(line for one in found for line in one.lines)
    return lines, sum(sum(one.dropped.values()) for one in found)


def walk(value, path=()):
    """Gives each place in a value, with what is there."""
    yield path, value
    if isinstance(value, dict):
        inner = value.items()
    else:
        inner = enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from walk(one, (*path, key))


def changed(value, path, change):
    """Copies a value; what is at a place is what `change` makes of it."""
    copied = copy.deepcopy(value)
    at = copied
    for key in path[:-1]:
        at = at[key]
    if not path:
        return change(copied)
    at[path[-1]] = change(at[path[-1]])
    return copied
