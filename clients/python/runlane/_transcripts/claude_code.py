"""Claude Code's JSONL: an entry a line, linked by parentUuid, with side chains of sub-agents."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from runlane._transcripts.draft import Draft, Report, TranscriptError
from runlane._transcripts.openai_chat import part_block
from runlane._transcripts.parts import call_block, reasoning_block, time_of, word
from runlane.v1 import message_pb2, run_pb2

Entry = tuple[int, Mapping[str, Any]]
"""Number of a line, from 1, and what it holds."""

_TALK = ("user", "assistant")
_KNOWN = (
    *("type", "uuid", "parentUuid", "logicalParentUuid", "isSidechain", "sessionId", "timestamp"),
    *("message", "isMeta", "requestId"),
    # Where and by which program it was written.
    *("cwd", "gitBranch", "version", "userType", "slug", "agentId", "entrypoint"),
)


def entries(lines: Sequence[str]) -> list[Entry]:
    """Reads the lines of a file.

    Raises:
        TranscriptError: A line is no entry; the text names it.
    """
    found: list[Entry] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise TranscriptError(f"line {number}: is no JSON") from None
        if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
            raise TranscriptError(f"line {number}: is no entry: it has no type")
        if value["type"] in _TALK and not isinstance(value.get("message"), Mapping):
            raise TranscriptError(f"line {number}: has no message")
        found.append((number, value))
    return found


def chains(found: Sequence[Entry]) -> list[tuple[str, list[Entry]]]:
    """Finds the conversations: the newest one, other branches of it, and side chains."""
    by_id = {str(one.get("uuid")): (number, one) for number, one in found if one.get("uuid")}
    parents = {_parent(one) for _, one in found}
    ends = [
        (number, one)
        for number, one in found
        if one.get("uuid") and str(one["uuid"]) not in parents
    ]
    main: list[tuple[str, list[Entry]]] = []
    side: list[tuple[str, list[Entry]]] = []
    for end in reversed(ends):
        chain = _chain(end, by_id)
        if not any(one["type"] in _TALK for _, one in chain):
            continue
        if end[1].get("isSidechain"):
            side.append((f"side chain {len(ends) - len(side)}", chain))
        else:
            main.append(("" if not main else f"branch {len(main) + 1}", chain))
    return [
        *main,
        *((f"side chain {number}", chain) for number, (_, chain) in enumerate(reversed(side), 1)),
    ]


def _parent(one: Mapping[str, Any]) -> str:
    return str(one.get("parentUuid") or one.get("logicalParentUuid") or "")


def _chain(end: Entry, by_id: Mapping[str, Entry]) -> list[Entry]:
    chain, seen = [end], {str(end[1].get("uuid"))}
    while (parent := _parent(chain[-1][1])) in by_id and parent not in seen:
        seen.add(parent)
        chain.append(by_id[parent])
    return chain[::-1]


def other_entries(found: Sequence[Entry], report: Report) -> str:
    """Counts what is no talk; returns the newest summary, which is a title."""
    title = ""
    for _, one in found:
        if one["type"] == "summary":
            title = str(one.get("summary") or "")
            report.changed["summary (kept as the name)"] += 1
        elif one["type"] not in _TALK:
            report.dropped[f"entry {one['type']}"] += 1
    return title


def convert(chain: Sequence[Entry], draft: Draft) -> None:
    """Takes one conversation. Entries with the same id of their message are one model step.

    Raises:
        TranscriptError: An entry is none; the text names its line.
    """
    step: list[Entry] = []
    for entry in chain:
        number, one = entry
        if one["type"] not in _TALK:
            continue
        draft.report.drop_fields("entry", one, _KNOWN)
        if one["type"] == "assistant":
            if step and _message_id(step[-1][1]) != _message_id(one):
                _assistant(step, draft)
                step = []
            step.append(entry)
            continue
        if step:
            _assistant(step, draft)
            step = []
        _user(number, one, draft)
    if step:
        _assistant(step, draft)


def _message_id(one: Mapping[str, Any]) -> str:
    return str(one["message"].get("id") or one.get("uuid"))


def _assistant(step: Sequence[Entry], draft: Draft) -> None:
    blocks: list[message_pb2.Block] = []
    for number, one in step:
        for part in _parts(one["message"].get("content"), number):
            kind = word(part.get("type"))
            if kind == "tool_use":
                named = str(part.get("id") or ""), str(part.get("name") or "")
                blocks.append(call_block(*named, part.get("input"), draft.report))
            elif kind in {"thinking", "redacted_thinking"}:
                text = str(part.get("thinking") or "")
                blocks.append(reasoning_block(text, draft.report, sealed=part))
            elif kind != "text" or part.get("text"):
                blocks.append(part_block(part, draft, f"line {number}"))
    last = step[-1][1]
    message = last["message"]
    draft.assistant(
        blocks, time_of(last.get("timestamp")), str(message.get("model") or ""), _usage(message)
    )


def _user(number: int, one: Mapping[str, Any], draft: Draft) -> None:
    time = time_of(one.get("timestamp"))
    if one.get("isMeta"):
        draft.report.dropped["meta message of the program"] += 1
        return
    said: list[message_pb2.Block] = []
    results = 0
    for part in _parts(one["message"].get("content"), number):
        if part.get("type") != "tool_result":
            said.append(part_block(part, draft, f"line {number}"))
            continue
        results += 1
        content = [
            part_block(piece, draft, f"line {number}")
            for piece in _parts(part.get("content"), number)
        ]
        named, failed = str(part.get("tool_use_id") or ""), bool(part.get("is_error"))
        draft.result(named, content, time, error=failed)
    if said or not results:
        draft.user(said, time)


def _parts(content: Any, number: int) -> list[Mapping[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(one, Mapping) for one in content):
        raise TranscriptError(f"line {number}: its content is neither text nor a list of parts")
    return content


def _usage(message: Mapping[str, Any]) -> run_pb2.Usage | None:
    given = message.get("usage")
    if not isinstance(given, Mapping):
        return None

    def count(name: str) -> int:
        value = given.get(name)
        return value if isinstance(value, int) and 0 <= value <= 10**11 else 0

    cached = count("cache_read_input_tokens")
    return run_pb2.Usage(
        input_tokens=count("input_tokens") + cached + count("cache_creation_input_tokens"),
        output_tokens=count("output_tokens"),
        cached_input_tokens=cached,
    )
