"""An archive in the making: turns, model steps and results, in the order of a transcript."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.timestamp_pb2 import Timestamp

from runlane._transcripts.parts import NAME_BYTES_MAX, Part
from runlane._transcripts.report import Report, cut, plain_json
from runlane.v1 import archive_pb2 as pb
from runlane.v1 import message_pb2, run_pb2

CONTENT_BYTES_MAX: Final = 3 * 1024 * 1024
_BLOCKS_MAX = 256
_METADATA_BYTES_MAX = 64 * 1024
_ROOM = CONTENT_BYTES_MAX - 1024
_FRAME = 8
_CALL_BYTES = 512
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")
_NO_RESULT = "No result of this call is in the transcript."
_OUTCOME = message_pb2.ToolResult.Outcome
_ROLE = message_pb2.Message.Role
_AUTHOR = message_pb2.Message.Author
_TOO_LARGE = "[left out: too large for a message]"
_ARGUMENTS_TOO_LARGE = "[left out: too large]"
_KEPT = {"tool_use": "tool call", "media": "media", "reasoning": "reasoning"}


@dataclass(frozen=True)
class Transcript:
    """One conversation of a file, ready to be imported.

    Attributes:
        name: What the file calls it.
        lines: The archive, for `Client.import_session`.
        message_count: Messages in it.
        run_count: Runs in it: one a user turn.
        kept: What is in it, by kind.
        changed: What is in it in another form, by kind.
        dropped: What is not in it, by kind.
    """

    name: str
    lines: tuple[str, ...]
    message_count: int
    run_count: int
    kept: Mapping[str, int]
    changed: Mapping[str, int]
    dropped: Mapping[str, int]


@dataclass
class _Step:
    message: message_pb2.Message
    results: dict[str, message_pb2.Message] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


@dataclass
class _Turn:
    """One user turn; the first one has no input where a transcript begins with an answer."""

    input: message_pb2.Message | None
    steps: list[_Step] = field(default_factory=list)
    used: run_pb2.Usage = field(default_factory=run_pb2.Usage)


class Draft:
    """Takes a conversation message by message; a user message begins a run."""

    def __init__(self, source: str, name: str, start: int, agent: str) -> None:
        """Begins a conversation.

        Args:
            source: The format.
            name: What the file calls the conversation.
            start: Microseconds since 1970; for what has no time of its own.
            agent: The agent of its runs.
        """
        self.source, self.name, self.agent = source, name, agent
        self.title = ""
        self.report = Report()
        self.extra: dict[str, Any] = {}
        self._time = start
        self._turns = [_Turn(None)]
        self._system: list[str] = []

    # --- what a transcript holds ---------------------------------------------

    def system(self, parts: Sequence[Part]) -> None:
        """Takes instructions: no message of a session, so its metadata keep their texts."""
        blocks = [part.block for part in parts]
        texts = [block.text for block in blocks if block.WhichOneof("block") == "text"]
        self.report.drop("part of a system message that is no text", len(blocks) - len(texts))
        self._system.append("\n".join(texts))

    def user(self, parts: Sequence[Part], time: int | None = None) -> None:
        """Takes a user message."""
        if all(one.block.WhichOneof("block") == "text" and _blank(one) for one in parts):
            self.report.drop("empty user message")
            return
        self._turns.append(_Turn(self._message(_ROLE.ROLE_USER, self._blocks(parts), time)))

    def assistant(
        self,
        parts: Sequence[Part],
        time: int | None = None,
        model: str = "",
        usage: run_pb2.Usage | None = None,
    ) -> None:
        """Takes an answer of a model, with the calls that it asks for."""
        turn = self._turns[-1]
        step = _Step(message_pb2.Message())
        kept = self._blocks(parts)
        for block in kept:
            if block.WhichOneof("block") == "tool_use":
                self._name_call(block.tool_use, step)
        step.message = self._message(_ROLE.ROLE_ASSISTANT, kept, time)
        step.message.model = cut(model, NAME_BYTES_MAX, "name of a model", self.report)
        turn.steps.append(step)
        if usage is not None:
            for name in (
                "input_tokens",
                "output_tokens",
                "cached_input_tokens",
                "reasoning_tokens",
            ):
                setattr(turn.used, name, getattr(turn.used, name) + getattr(usage, name))

    def result(
        self,
        call_id: str,
        parts: Sequence[Part],
        time: int | None = None,
        *,
        error: bool = False,
    ) -> None:
        """Takes the result of a call of this turn."""
        for step in reversed(self._turns[-1].steps):
            own = step.names.get(call_id)
            if own is None or own in step.results:
                continue
            if step is not self._turns[-1].steps[-1]:
                self.report.change("tool result (moved behind its call)")
            outcome = _OUTCOME.OUTCOME_ERROR if error else _OUTCOME.OUTCOME_OK
            step.results[own] = self._result(own, outcome, self._blocks(parts), time)
            return
        self.report.drop("tool result without its call")

    def name_of(self, call_id: str) -> str:
        """Returns the name of a call of this turn; empty: there is none."""
        for step in reversed(self._turns[-1].steps):
            for block in step.message.content:
                if block.tool_use.tool_call_id == step.names.get(call_id):
                    return block.tool_use.name
        return ""

    # --- the archive -----------------------------------------------------------

    def finish(self) -> Transcript:
        """Returns the archive of all that was taken."""
        messages: list[message_pb2.Message] = []
        runs: list[pb.ArchivedRun] = []
        last_time = 0
        self.report.settle()
        if self._turns[0].used.ByteSize():
            self.report.drop("usage of an answer that is of no run")
        for number, turn in enumerate(self._turns):
            first = len(messages) + 1
            messages += self._messages(turn)
            if turn.input is not None:
                run = self._run(turn, number, first, messages)
                last_time = max(_micros(run.create_time), last_time + 1)
                run.create_time.CopyFrom(_timestamp(last_time))
                runs.append(run)
        for index, message in enumerate(messages, 1):
            message.number = index
        records = [pb.ArchiveRecord(header=self._header())]
        records += [pb.ArchiveRecord(run=run) for run in runs]
        records += [pb.ArchiveRecord(message=message) for message in messages]
        end = pb.ArchiveEnd(message_count=len(messages), run_count=len(runs))
        records.append(pb.ArchiveRecord(end=end))
        return Transcript(
            self.name,
            tuple(
                json_format.MessageToJson(one, indent=None, ensure_ascii=False) for one in records
            ),
            len(messages),
            len(runs),
            _kept(messages),
            dict(self.report.changed),
            dict(self.report.dropped),
        )

    def _messages(self, turn: _Turn) -> list[message_pb2.Message]:
        found = []
        if turn.input is not None:
            turn.input.author = _AUTHOR.AUTHOR_INPUT
            found.append(turn.input)
        for number, step in enumerate(turn.steps, 1):
            step.message.step = number if turn.input is not None else 0
            step.message.author = _AUTHOR.AUTHOR_MODEL
            found.append(step.message)
            for own in step.names.values():
                result = step.results.get(own)
                if result is None:
                    text = [message_pb2.Block(text=_NO_RESULT)]
                    time = _micros(step.message.create_time)
                    result = self._result(own, _OUTCOME.OUTCOME_CANCELLED, text, time)
                    result.author = _AUTHOR.AUTHOR_CLOSER
                    self.report.change("tool call without a result (closed)")
                result.step = step.message.step
                found.append(result)
        return found

    def _run(
        self, turn: _Turn, number: int, first: int, messages: Sequence[message_pb2.Message]
    ) -> pb.ArchivedRun:
        assert turn.input is not None  # noqa: S101 - tested by the caller
        answered = bool(turn.steps) and not turn.steps[-1].names
        stop = run_pb2.Run.STOP_REASON_COMPLETED if answered else run_pb2.Run.STOP_REASON_CANCELLED
        if not answered:
            self.report.change("turn without an answer (a cancelled run)")
        used = turn.used
        used.model_steps_reserved = used.model_steps_committed = len(turn.steps)
        used.tool_calls = sum(len(step.names) for step in turn.steps)
        cutoff = len(messages)
        return pb.ArchivedRun(
            run_id=f"run-{number}",
            options=run_pb2.RunOptions(agent=self.agent),
            first_message_number=first,
            message_cutoff=cutoff,
            stop_reason=stop,
            output_message_number=cutoff if answered else 0,
            usage=used,
            attempt=1,
            create_time=turn.input.create_time,
            end_time=messages[-1].create_time,
        )

    def _header(self) -> pb.ArchiveHeader:
        name = cut(self.name, NAME_BYTES_MAX, "name of a conversation", self.report)
        kept: dict[str, Any] = {"imported_from": {"format": self.source, "name": name}}
        if self.extra:
            kept["imported_from"] |= self.extra
        if self._system:
            kept["system"] = self._system
        text = plain_json(kept, self.report)
        if len(text.encode()) > _METADATA_BYTES_MAX and self._system:
            del kept["system"]
            self.report.drop("system message (over 64 KiB)", len(self._system))
            text = plain_json(kept, self.report)
        else:
            self.report.change("system message (kept in metadata_json)", len(self._system))
        header = pb.ArchiveHeader(format_version=1, source=self.source, session_id=name)
        title = self.title and cut(self.title, NAME_BYTES_MAX, "title", self.report)
        header.record.display_name = title or name
        header.record.metadata_json = text
        header.record.default_agent = self.agent
        return header

    # --- pieces ----------------------------------------------------------------

    def _message(
        self,
        role: message_pb2.Message.Role.ValueType,
        blocks: list[message_pb2.Block],
        time: int | None,
    ) -> message_pb2.Message:
        self._time = self._time + 1 if time is None else time
        return message_pb2.Message(
            role=role, content=blocks, create_time=_timestamp(max(1, self._time))
        )

    def _result(
        self,
        call: str,
        outcome: message_pb2.ToolResult.Outcome.ValueType,
        blocks: list[message_pb2.Block],
        time: int | None,
    ) -> message_pb2.Message:
        result = message_pb2.ToolResult(tool_call_id=call, outcome=outcome, content=blocks)
        made = self._message(_ROLE.ROLE_TOOL, [message_pb2.Block(tool_result=result)], time)
        made.author = _AUTHOR.AUTHOR_TOOL
        return made

    def _name_call(self, use: message_pb2.ToolUse, step: _Step) -> None:
        """Gives a call an id that fits and is its own in its step."""
        asked = use.tool_call_id
        own = asked
        if not _ID.fullmatch(asked) or asked in step.names.values():
            own = f"call-{len(step.names) + 1}"
            while own in step.names.values():
                own += "x"
            self.report.change("tool call id")
        use.tool_call_id = own
        step.names[asked if asked not in step.names else own] = own

    def _blocks(self, parts: Sequence[Part]) -> list[message_pb2.Block]:
        """Keeps what fits one message, calls first, and says in it where something is missing."""
        sizes = [part.block.ByteSize() + _FRAME for part in parts]
        whole = sum(sizes) <= _ROOM and len(parts) <= _BLOCKS_MAX
        kept = range(len(parts)) if whole else self._fitting(parts, sizes)
        found: list[message_pb2.Block] = []
        told = False
        for number, part in enumerate(parts):
            if number in kept:
                found.append(part.block)
                self.report.change(part.changed)
                continue
            is_call = part.block.WhichOneof("block") == "tool_use"
            kind = "tool call" if is_call else "content"
            self.report.drop(f"{kind} over 3 MiB or 256 blocks in a message")
            if not told:
                found.append(message_pb2.Block(text=_TOO_LARGE))
                told = True
        return found

    def _fitting(self, parts: Sequence[Part], sizes: Sequence[int]) -> set[int]:
        """Returns which parts fit a message beside a note; a call may lose its arguments."""
        room, kept = _ROOM - len(_TOO_LARGE) - _FRAME, set[int]()
        calls = [n for n, one in enumerate(parts) if one.block.WhichOneof("block") == "tool_use"]
        others = [n for n in range(len(parts)) if n not in set(calls)]
        calls = calls[: _BLOCKS_MAX - 1]
        # Each call is answered by a result: it stays, if without its arguments.
        room -= _CALL_BYTES * len(calls)
        for number in calls:
            use = parts[number].block.tool_use
            if sizes[number] - _CALL_BYTES > room:
                use.arguments_text = _ARGUMENTS_TOO_LARGE
                self.report.drop("tool arguments over 3 MiB")
            else:
                room -= max(0, sizes[number] - _CALL_BYTES)
            kept.add(number)
        for number in others:
            if len(kept) < _BLOCKS_MAX - 1 and sizes[number] <= room:
                room -= sizes[number]
                kept.add(number)
        return kept


def _blank(part: Part) -> bool:
    return not part.block.text.strip()


def _kept(messages: Sequence[message_pb2.Message]) -> dict[str, int]:
    """Counts what is in the archive."""
    found: Counter[str] = Counter()
    for message in messages:
        if message.role == _ROLE.ROLE_USER:
            found["user message"] += 1
        elif message.role == _ROLE.ROLE_ASSISTANT:
            found["assistant message"] += 1
        elif message.author == _AUTHOR.AUTHOR_TOOL:
            found["tool result"] += 1
        for block in message.content:
            for one in (block, *block.tool_result.content):
                kind = _KEPT.get(one.WhichOneof("block") or "")
                if kind is not None:
                    found[kind] += 1
    return dict(found)


def _timestamp(micros: int) -> Timestamp:
    seconds, rest = divmod(micros, 1_000_000)
    return Timestamp(seconds=seconds, nanos=rest * 1000)


def _micros(time: Timestamp) -> int:
    return time.seconds * 1_000_000 + time.nanos // 1000
