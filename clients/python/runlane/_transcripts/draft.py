"""An archive in the making: turns, model steps and results, in the order of a transcript."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.timestamp_pb2 import Timestamp

from runlane.v1 import archive_pb2 as pb
from runlane.v1 import message_pb2, run_pb2

CONTENT_BYTES_MAX: Final = 3 * 1024 * 1024
INLINE_BYTES_MAX: Final = 256 * 1024
_BLOCKS_MAX = 256
_METADATA_BYTES_MAX = 64 * 1024
_MARGIN = 1024
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}")
_NAME_MAX = 255
_NO_RESULT = "No result of this call is in the transcript."
_OUTCOME = message_pb2.ToolResult.Outcome
_ROLE = message_pb2.Message.Role
_AUTHOR = message_pb2.Message.Author


class TranscriptError(ValueError):
    """A file is no transcript of its format; the text names the line, row or place."""


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
class Report:
    """What becomes of the parts of a transcript, counted by kind."""

    kept: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)

    def drop_fields(self, where: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
        """Counts fields that hold something and that nobody reads."""
        for name in given.keys() - set(known):
            if given[name] not in (None, "", [], {}, False):
                self.dropped[f"{where} field {name}"] += 1


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

    def system(self, text: str) -> None:
        """Takes instructions: no message of a session, so its metadata keep them."""
        self._system.append(self._text(text))
        self.report.changed["system message (kept in metadata_json)"] += 1

    def user(self, blocks: Sequence[message_pb2.Block], time: int | None = None) -> None:
        """Takes a user message."""
        kept = self._blocks(blocks)
        if not any(one.text.strip() or one.WhichOneof("block") != "text" for one in kept):
            self.report.dropped["empty user message"] += 1
            return
        self._turns.append(_Turn(self._message(_ROLE.ROLE_USER, kept, time)))
        self.report.kept["user message"] += 1

    def assistant(
        self,
        blocks: Sequence[message_pb2.Block],
        time: int | None = None,
        model: str = "",
        usage: run_pb2.Usage | None = None,
    ) -> None:
        """Takes an answer of a model, with the calls that it asks for."""
        turn = self._turns[-1]
        step = _Step(message_pb2.Message())
        kept = self._blocks(blocks)
        for block in kept:
            if block.WhichOneof("block") == "tool_use":
                self._name_call(block.tool_use, step)
        step.message = self._message(_ROLE.ROLE_ASSISTANT, kept, time)
        step.message.model = self._text(model)[: _NAME_MAX // 4]
        turn.steps.append(step)
        if usage is not None:
            for name in (
                "input_tokens",
                "output_tokens",
                "cached_input_tokens",
                "reasoning_tokens",
            ):
                setattr(turn.used, name, getattr(turn.used, name) + getattr(usage, name))
        self.report.kept["assistant message"] += 1

    def result(
        self,
        call_id: str,
        blocks: Sequence[message_pb2.Block],
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
                self.report.changed["tool result (moved behind its call)"] += 1
            outcome = _OUTCOME.OUTCOME_ERROR if error else _OUTCOME.OUTCOME_OK
            step.results[own] = self._result(own, outcome, self._blocks(blocks), time)
            self.report.kept["tool result"] += 1
            return
        self.report.dropped["tool result without its call"] += 1

    # --- the archive -----------------------------------------------------------

    def finish(self) -> Transcript:
        """Returns the archive of all that was taken."""
        messages: list[message_pb2.Message] = []
        runs: list[pb.ArchivedRun] = []
        last_time = 0
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
            dict(self.report.kept),
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
                    self.report.changed["tool call without a result (closed)"] += 1
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
            self.report.changed["turn without an answer (a cancelled run)"] += 1
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
        kept: dict[str, Any] = {"imported_from": {"format": self.source, "name": self.name}}
        if self.extra:
            kept["imported_from"] |= self.extra
        if self._system:
            kept["system"] = self._system
        text = self._text(_json(kept))
        if len(text.encode()) > _METADATA_BYTES_MAX:
            del kept["system"]
            self.report.dropped["system message (over 64 KiB)"] += len(self._system)
            text = self._text(_json(kept))
        header = pb.ArchiveHeader(format_version=1, source=self.source)
        header.session_id = _cut(self._text(self.name), _NAME_MAX)
        header.record.display_name = _cut(self._text(self.title or self.name), _NAME_MAX)
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
            self.report.changed["tool call id"] += 1
        use.tool_call_id = own
        use.name = _cut(self._text(use.name), _NAME_MAX) or "unknown"
        step.names[asked if asked not in step.names else own] = own
        self.report.kept["tool call"] += 1

    def _blocks(self, blocks: Sequence[message_pb2.Block]) -> list[message_pb2.Block]:
        """Keeps what fits one message, and says in it where something is missing."""
        found: list[message_pb2.Block] = []
        room = CONTENT_BYTES_MAX - _MARGIN
        for block in blocks:
            size = block.ByteSize() + 8
            if size > room or len(found) == _BLOCKS_MAX - 1:
                # Its call is answered by a result: it stays, without its arguments.
                if block.WhichOneof("block") == "tool_use" and len(found) < _BLOCKS_MAX - 1:
                    block.tool_use.arguments_text = "[left out: too large]"
                    self.report.dropped["tool arguments over 3 MiB"] += 1
                else:
                    found.append(message_pb2.Block(text="[left out: too large for a message]"))
                    self.report.dropped["content over 3 MiB or 256 blocks in a message"] += 1
                    break
            room -= size
            found.append(block)
        return found

    def _text(self, text: str) -> str:
        return clean(text, self.report)


def clean(text: str, report: Report) -> str:
    """Takes out what no message may hold: U+0000, and halves of characters."""
    if "\0" in text:
        report.changed["U+0000 (taken out)"] += text.count("\0")
        text = text.replace("\0", "")
    kept = text.encode("utf-8", "replace").decode()
    if kept != text:
        report.changed["half a character (replaced by ?)"] += 1
    return kept


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(text: str, size: int) -> str:
    return text.encode()[:size].decode("utf-8", "ignore")


def _timestamp(micros: int) -> Timestamp:
    seconds, rest = divmod(micros, 1_000_000)
    return Timestamp(seconds=seconds, nanos=rest * 1000)


def _micros(time: Timestamp) -> int:
    return time.seconds * 1_000_000 + time.nanos // 1000
