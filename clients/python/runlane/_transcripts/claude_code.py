"""Claude Code's JSONL: an entry a line, linked by parentUuid, with side chains of sub-agents."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runlane._transcripts.draft import Draft
from runlane._transcripts.parts import Part, call_part, content_part, reasoning_part
from runlane._transcripts.report import Piece, Report, TranscriptError, read_json
from runlane.v1 import run_pb2

Entry = tuple[int, Mapping[str, Any]]
"""Number of a line, from 1, and what it holds."""

_TALK = ("user", "assistant")
_COUNT_MAX = 10**11
# Ids, and where and by which program it was written.
_OWN = (
    *("type", "uuid", "parentUuid", "logicalParentUuid", "isSidechain", "sessionId", "requestId"),
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
        value = read_json(line, f"line {number}")
        if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
            raise TranscriptError(f"line {number}: is no entry: it has no type")
        if value["type"] in _TALK and not isinstance(value.get("message"), Mapping):
            raise TranscriptError(f"line {number}: has no message")
        found.append((number, value))
    return found


def single(found: Sequence[Entry], report: Report) -> list[Entry]:
    """Leaves out entries that are there twice, word for word."""
    seen: dict[str, Mapping[str, Any]] = {}
    kept = []
    for number, one in found:
        own = str(one.get("uuid") or "")
        if own and seen.setdefault(own, one) is not one and seen[own] == one:
            report.change("entry that is there twice")
        else:
            kept.append((number, one))
    return kept


def chains(found: Sequence[Entry]) -> list[tuple[str, list[Entry]]]:
    """Finds the conversations: the newest one, other branches of it, and side chains."""
    by_id = {str(one.get("uuid")): (number, one) for number, one in found if one.get("uuid")}
    parents = {_parent(one) for _, one in found}
    ends = [
        (number, one)
        for number, one in found
        if one.get("uuid") and str(one["uuid"]) not in parents
    ]
    main: list[list[Entry]] = []
    side: list[list[Entry]] = []
    for end in reversed(ends):
        chain = _chain(end, by_id)
        of_its_kind = side if end[1].get("isSidechain") else main
        if not any(one["type"] in _TALK for _, one in chain):
            continue
        if any(_join(other, chain) for other in of_its_kind):
            continue
        # The newest end may be the rest of a step, or a note beside it.
        place = next((n for n, other in enumerate(of_its_kind) if _join(chain, other)), None)
        if place is None:
            of_its_kind.append(chain)
        else:
            of_its_kind[place] = chain
    return [
        *((f"branch {n}" if n > 1 else "", chain) for n, chain in enumerate(main, 1)),
        *((f"side chain {n}", chain) for n, chain in enumerate(reversed(side), 1)),
    ]


def _join(main: list[Entry], chain: Sequence[Entry]) -> bool:
    """Puts into a conversation what is no branch of it, but the rest of one of its steps.

    Of calls that a model asks for at once, each result hangs on the entry of its call, and what
    comes next on one of them: the other calls and results are ends of their own.
    """
    lines = {number: place for place, (number, _) in enumerate(main)}
    rest = [entry for entry in chain if entry[0] not in lines]
    shared = [lines[number] for number, _ in chain if number in lines]
    if not shared:
        return False
    fork = shared[-1]
    asking = _message_id(main[fork][1])
    asked = {call for _, one in (*main, *rest) for call in _linked(one, "tool_use", "id")}
    answered = {call for _, one in main for call in _linked(one, "tool_result", "tool_use_id")}
    for _, one in rest:
        results = _linked(one, "tool_result", "tool_use_id")
        if one["type"] == "assistant" and asking and _message_id(one) == asking:
            continue
        if one["type"] in _TALK and not (
            len(results) == len(_content(one)) > 0 and asked.issuperset(results)
        ):
            return False
        if answered.intersection(results):
            return False
    place = fork + 1
    while place < len(main) and main[place][1]["type"] != "user":
        place += 1
    main[place:place] = rest
    return True


def _message_id(one: Mapping[str, Any]) -> str:
    message = one.get("message")
    return str(message.get("id") or "") if isinstance(message, Mapping) else ""


def _content(one: Mapping[str, Any]) -> list[Any]:
    content = one["message"].get("content") if one["type"] in _TALK else None
    return content if isinstance(content, list) else [content] if content else []


def _linked(one: Mapping[str, Any], kind: str, name: str) -> list[str]:
    """Returns the calls that parts of a kind name."""
    parts = [part for part in _content(one) if isinstance(part, Mapping)]
    return [str(part.get(name)) for part in parts if part.get("type") == kind]


def _parent(one: Mapping[str, Any]) -> str:
    return str(one.get("parentUuid") or one.get("logicalParentUuid") or "")


def _chain(end: Entry, by_id: Mapping[str, Entry]) -> list[Entry]:
    chain, seen = [end], {str(end[1].get("uuid"))}
    while (parent := _parent(chain[-1][1])) in by_id and parent not in seen:
        seen.add(parent)
        chain.append(by_id[parent])
    return chain[::-1]


def other_entries(found: Sequence[Entry], told: Iterable[Sequence[Entry]], report: Report) -> str:
    """Counts what is no talk, and talk that is told in no chain; returns the newest summary."""
    lines = {number for chain in told for number, _ in chain}
    titles = [str(one.get("summary") or "") for _, one in found if one["type"] == "summary"]
    for number, one in found:
        if one["type"] in _TALK:
            report.drop("entry that hangs on no conversation", number not in lines)
        elif one["type"] != "summary":
            report.drop(f"entry {one['type']}")
    report.change("summary (kept as the name)", bool(titles))
    report.drop("summary before the newest", len(titles[:-1]))
    return titles[-1] if titles else ""


def convert(chain: Sequence[Entry], draft: Draft) -> None:
    """Takes one conversation. Entries with the same id of their message are one model step.

    Raises:
        TranscriptError: An entry is none; the text names its line.
    """
    step: list[tuple[Piece, Piece]] = []
    step_id = ""
    for number, one in chain:
        if one["type"] not in _TALK:
            continue
        entry = draft.report.open(one, "entry", f"line {number}")
        entry.leave(*_OWN)
        message = entry.piece("message")
        assert message is not None, "`entries` has looked"  # noqa: S101 - invariant
        message.says("role", one["type"])
        message.says("type", "message")
        own = message.name("id") or str(one.get("uuid"))
        if step and (one["type"] == "user" or own != step_id):
            _assistant(step, draft)
            step = []
        if one["type"] == "user":
            _user(entry, message, draft)
        else:
            step.append((entry, message))
            step_id = own
    if step:
        _assistant(step, draft)


def _assistant(step: Sequence[tuple[Piece, Piece]], draft: Draft) -> None:
    parts: list[Part] = []
    last, end = step[-1]
    model = end.text("model")
    for entry, message in step:
        if entry is not last:
            # The last one has the time of the step, and all that it used.
            entry.leave("timestamp")
            message.leave("usage")
            message.says("model", model)
        for part in message.content():
            kind = part.text("type")
            if kind == "tool_use":
                named = part.name("id"), part.text("name")
                parts.append(call_part(*named, part.value("input"), draft.report))
            elif kind in {"thinking", "redacted_thinking"}:
                text = part.text("thinking")
                parts.append(reasoning_part(text, draft.report, sealed=part.whole()))
            elif kind != "text" or part.peek("text"):
                parts.append(content_part(part, draft.report))
    draft.assistant(parts, last.time("timestamp"), model, _usage(end.piece("usage")))


def _user(entry: Piece, message: Piece, draft: Draft) -> None:
    if entry.value("isMeta"):
        entry.whole()
        draft.report.drop("meta message of the program")
        return
    time = entry.time("timestamp")
    said: list[Part] = []
    results = 0
    for part in message.content():
        if not part.says("type", "tool_result"):
            said.append(content_part(part, draft.report))
            continue
        results += 1
        content = [content_part(piece, draft.report) for piece in part.content()]
        failed = part.says("is_error", True)
        part.says("is_error", False)
        draft.result(part.name("tool_use_id"), content, time, error=failed)
    if said or not results:
        draft.user(said, time)


def _usage(given: Piece | None) -> run_pb2.Usage | None:
    if given is None:
        return None
    read, written, cached, stored = (
        given.count(name, _COUNT_MAX)
        for name in (
            *("input_tokens", "output_tokens"),
            *("cache_read_input_tokens", "cache_creation_input_tokens"),
        )
    )
    return run_pb2.Usage(
        input_tokens=read + cached + stored, output_tokens=written, cached_input_tokens=cached
    )
