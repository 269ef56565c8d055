"""Archives: the records of a session, to and from what the core knows of them."""

from collections.abc import AsyncIterator, Iterable
from hashlib import sha256
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from runlane.v1 import archive_pb2 as pb
from runlane.v1 import message_pb2, run_pb2, session_pb2, session_service_pb2

from runlane_server.app.archives import Exported, ExportedRun, ExportView
from runlane_server.core.archives import (
    Archive,
    ArchivedMessage,
    ArchivedRun,
    ArchivedSummary,
    ContentDigest,
)
from runlane_server.core.errors import Reason, Refused, invalid
from runlane_server.core.model import (
    Cancellation,
    Content,
    Failure,
    SessionRecord,
    Usage,
)
from runlane_server.core.words import Author, Role, RunFailure, StopReason, ToolOutcome
from runlane_server.store.base import MessageRow, SummaryRow
from runlane_server.transport import requests, responses
from runlane_server.transport.content import (
    check_metadata,
    input_content,
    result_content,
    step_content,
    stored_content,
)
from runlane_server.transport.values import (
    check_json,
    length_delimited,
    time_micros,
    timestamp,
)

FORMAT_VERSION = 1

_RECORD = b"\x0a"  # field 1 of ExportSessionResponse
_MESSAGE = b"\x22"  # field 4 of ArchiveRecord
_EVENT = b"\x2a"  # field 5
_BATCH_RECORDS = 256
_BATCH_BYTES = 1024 * 1024
_BLOCKS_MAX = 256
_METADATA_MAX = 32
_NAME_BYTES_MAX = 255
_SUMMARY_BYTES_MAX = 256 * 1024
_ORDER = ("header", "run", "summary", "message", "event", "end")
_AUTHORS = {
    Role.USER: {Author.INPUT, Author.STEER},
    Role.ASSISTANT: {Author.MODEL},
    Role.TOOL: {Author.TOOL, Author.CLOSER},
}


# --- out -------------------------------------------------------------------


async def export_frames(pieces: AsyncIterator[Exported], source: str) -> AsyncIterator[bytes]:
    """Encodes an export as ExportSessionResponse; `source` says what made it."""
    writer = _Writer(source)
    batch: list[bytes] = []
    size = 0
    async for piece in pieces:
        for record in writer.records(piece):
            if batch and (len(batch) == _BATCH_RECORDS or size + len(record) > _BATCH_BYTES):
                yield b"".join(batch)
                batch, size = [], 0
            batch.append(length_delimited(_RECORD, record))
            size += len(record)
    batch.append(length_delimited(_RECORD, writer.end()))
    yield b"".join(batch)


class _Writer:
    """Encodes what an export gives, and sums it up."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._digest = ContentDigest()
        self._runs = 0
        self._messages = 0

    def records(self, piece: Exported) -> Iterable[bytes]:
        """Encodes a piece."""
        if isinstance(piece, ExportView):
            yield self._header(piece)
        elif isinstance(piece, ExportedRun):
            run = _run_of(piece)
            self._digest.run(run)
            self._runs += 1
            yield pb.ArchiveRecord(run=_shown_run(run, piece)).SerializeToString()
        elif isinstance(piece, SummaryRow):
            self._digest.summary(
                ArchivedSummary(0, piece.through, piece.text, piece.model, piece.create_time)
            )
            yield pb.ArchiveRecord(summary=responses.summary(piece)).SerializeToString()
        else:
            for one in piece:
                if isinstance(one, bytes):
                    yield length_delimited(_EVENT, one)
                else:
                    yield self._message(one)

    def end(self) -> bytes:
        """Encodes the last record."""
        end = pb.ArchiveEnd(
            message_count=self._messages,
            run_count=self._runs,
            content_digest=self._digest.digest().hex(),
        )
        return pb.ArchiveRecord(end=end).SerializeToString()

    def _header(self, view: ExportView) -> bytes:
        record = view.session.record
        self._digest.record(record)
        header = pb.ArchiveHeader(
            format_version=FORMAT_VERSION,
            record=session_service_pb2.SessionSpec(
                display_name=record.display_name,
                labels=record.labels,
                metadata_json=record.metadata_json,
                default_agent=record.default_agent,
            ),
            session_id=view.session.facts.session_id,
            sequence=view.sequence,
            live_run_id=view.live_run_id,
            ancestors=[
                session_pb2.ForkSource(session_id=session_id, run_id=run_id)
                for session_id, run_id in view.lineage.ancestors
            ],
            parents=[responses.parent(link) for link in view.lineage.parents],
            export_time=timestamp(view.now),
            source=self._source,
        )
        return pb.ArchiveRecord(header=header).SerializeToString()

    def _message(self, row: MessageRow) -> bytes:
        self._messages += 1
        message = message_pb2.Message.FromString(row.data)
        data = stored_content(message)
        self._digest.message(
            row.number,
            ArchivedMessage(
                0,
                "",
                Role(message.role),
                Author(message.author),
                message.step,
                message.model,
                time_micros(message.create_time, "create_time"),
                Content(b"", 0, sha256(data).digest()),
            ),
        )
        return length_delimited(_MESSAGE, row.data)


def _run_of(exported: ExportedRun) -> ArchivedRun:
    view, facts = exported.view, exported.view.facts
    assert facts.stop_reason is not None, "it is at rest"  # noqa: S101 - invariant
    failure = None
    if facts.failure_reason is not None:
        failure = Failure(facts.failure_reason, view.failure_message, facts.failure_retryable)
    return ArchivedRun(
        0,
        facts.run_id,
        requests.options(run_pb2.RunOptions.FromString(view.options), "options"),
        exported.first,
        facts.message_cutoff,
        facts.stop_reason,
        facts.cause,
        failure,
        facts.output_message_number,
        view.output_json,
        facts.usage,
        facts.steps_reserved,
        facts.steps_committed,
        facts.tool_calls,
        facts.attempt,
        facts.cancellation,
        facts.create_time,
        facts.end_time,
        exported.summary_through,
    )


def _shown_run(run: ArchivedRun, exported: ExportedRun) -> pb.ArchivedRun:
    cancelled, failure = run.cancellation, run.failure
    return pb.ArchivedRun(
        run_id=run.run_id,
        options=run_pb2.RunOptions.FromString(exported.view.options),
        first_message_number=run.first,
        message_cutoff=run.cutoff,
        stop_reason=run.stop_reason,  # type: ignore[arg-type]
        cause=run.cause or 0,  # type: ignore[arg-type]
        failure_reason=failure.reason if failure is not None else 0,  # type: ignore[arg-type]
        failure_message=failure.message if failure is not None else "",
        failure_retryable=failure is not None and failure.retryable,
        output_message_number=run.output_message_number,
        output_json=run.output_json,
        usage=responses.usage(run.usage, run.steps_reserved, run.steps_committed, run.tool_calls),
        attempt=run.attempt,
        cancel_reason=cancelled.reason if cancelled is not None else "",
        cancel_request_time=timestamp(cancelled.request_time) if cancelled is not None else None,
        create_time=timestamp(run.create_time),
        end_time=timestamp(run.end_time),
        summary_through=run.summary_through,
    )


# --- in --------------------------------------------------------------------


class ArchiveReader:
    """Takes the records of an archive in turn, each of them valid by its proto."""

    def __init__(self, bytes_max: int, messages_max: int, runs_max: int) -> None:
        """Makes a reader of an archive that may be so large."""
        self._bytes_max, self._messages_max, self._runs_max = bytes_max, messages_max, runs_max
        self._archive: Archive | None = None
        self._digest = ContentDigest()
        self._stage = 0
        self._ids: set[str] = set()
        self._size = 0
        self.count = 0
        """Records so far."""
        self.events = 0
        """Events among them, which are left out."""

    def take(self, records: Iterable[pb.ArchiveRecord], size: int) -> None:
        """Takes the next records, which are so many bytes.

        Raises:
            Refused: They do not fit those before them, or are too many.
        """
        self._size += size
        if self._size > self._bytes_max:
            raise Refused(
                Reason.MESSAGE_TOO_LARGE,
                f"the archive is over the limit of {self._bytes_max} bytes",
                size_bytes=str(self._size),
                limit_bytes=str(self._bytes_max),
            )
        for record in records:
            self._take(record)
            self.count += 1

    def finish(self) -> Archive:
        """Returns the whole archive.

        Raises:
            Refused: Its end is missing.
        """
        if self._archive is None:
            raise invalid("records", "must begin with a header")
        if _ORDER[self._stage] != "end":
            raise invalid("records", "must end with an end: the archive is not whole")
        return self._archive

    def _take(self, record: pb.ArchiveRecord) -> None:
        path = f"records[{self.count}]"
        kind = record.WhichOneof("record") or ""
        if (self.count == 0) is not (kind == "header"):
            raise invalid(path, "must be the header where it is the first, and only there")
        if _ORDER[self._stage] == "end":
            raise invalid(path, "must not follow the end")
        stage = _ORDER.index(kind)
        if stage < self._stage:
            raise invalid(path, f"must not be a {kind} behind a record {_ORDER[self._stage]!r}")
        self._stage = stage
        getattr(self, f"_take_{kind}")(getattr(record, kind), f"{path}.{kind}.")

    def _take_header(self, header: pb.ArchiveHeader, path: str) -> None:
        if header.format_version != FORMAT_VERSION:
            raise invalid(f"{path}format_version", f"must be {FORMAT_VERSION}")
        given = header.record
        record = SessionRecord(
            given.display_name, dict(given.labels), given.metadata_json, given.default_agent
        )
        if record.metadata_json:
            check_json(record.metadata_json, f"{path}record.metadata_json", is_object=True)
        self._archive = Archive(record, header.session_id)
        self._digest.record(record)

    def _take_run(self, given: pb.ArchivedRun, path: str) -> None:
        archive = self._whole()
        if len(archive.runs) == self._runs_max:
            raise invalid("records", f"must hold at most {self._runs_max} runs")
        if given.run_id in self._ids:
            raise invalid(f"{path}run_id", "must not be that of a run before it")
        self._ids.add(given.run_id)
        run = _read_run(given, self.count, path)
        archive.runs.append(run)
        self._digest.run(run)

    def _take_summary(self, given: message_pb2.Summary, path: str) -> None:
        if not 0 < len(given.text.encode()) <= _SUMMARY_BYTES_MAX:
            raise invalid(f"{path}text", f"must hold 1 to {_SUMMARY_BYTES_MAX} bytes")
        summary = ArchivedSummary(
            self.count,
            given.through_message_number,
            _text(given.text, f"{path}text"),
            _name(given.model, f"{path}model"),
            _time(given.create_time, f"{path}create_time"),
        )
        self._whole().summaries.append(summary)
        self._digest.summary(summary)

    def _take_message(self, given: message_pb2.Message, path: str) -> None:
        archive = self._whole()
        number = len(archive.messages) + 1
        if number > self._messages_max:
            raise invalid("records", f"must hold at most {self._messages_max} messages")
        if given.number != number:
            raise invalid(f"{path}number", f"must be {number}")
        message = _read_message(given, self.count, path)
        archive.messages.append(message)
        self._digest.message(number, message)

    def _take_event(self, _given: Any, _path: str) -> None:
        self.events += 1

    def _take_end(self, end: pb.ArchiveEnd, path: str) -> None:
        archive = self._whole()
        archive.digest = self._digest.digest()
        for name, count in (
            ("message_count", len(archive.messages)),
            ("run_count", len(archive.runs)),
        ):
            if getattr(end, name) != count:
                raise invalid(f"{path}{name}", f"must be {count}, as many as there are")
        if end.content_digest and end.content_digest != archive.digest.hex():
            raise invalid(
                f"{path}content_digest",
                "must be that of the content: the archive is damaged, or was changed",
            )

    def _whole(self) -> Archive:
        assert self._archive is not None, "the header came first"  # noqa: S101 - tested
        return self._archive


def _read_run(given: pb.ArchivedRun, place: int, path: str) -> ArchivedRun:
    options = requests.options(given.options, f"{path}options")
    if not options.agent:
        raise invalid(f"{path}options.agent", "is required")
    failure = None
    if given.failure_reason:
        reason = RunFailure(given.failure_reason)
        failure = Failure(reason, given.failure_message, given.failure_retryable)
    cancellation = None
    if given.HasField("cancel_request_time"):
        asked = _time(given.cancel_request_time, f"{path}cancel_request_time")
        cancellation = Cancellation(given.cancel_reason, asked, asked)
    if given.output_json:
        check_json(given.output_json, f"{path}output_json")
    used = given.usage
    counts = (used.model_steps_reserved, used.model_steps_committed, used.tool_calls)
    spent = (used.compaction_input_tokens, used.compaction_output_tokens)
    if min(*counts, *spent) < 0:
        raise invalid(f"{path}usage", "must not be negative")
    return ArchivedRun(
        place,
        given.run_id,
        options,
        given.first_message_number,
        given.message_cutoff,
        StopReason(given.stop_reason),
        StopReason(given.cause) if given.cause else None,
        failure,
        given.output_message_number,
        given.output_json,
        Usage(
            used.input_tokens,
            used.output_tokens,
            used.cached_input_tokens,
            used.reasoning_tokens,
            used.cost_usd_micros,
            *spent,
        ),
        *counts,
        given.attempt,
        cancellation,
        _time(given.create_time, f"{path}create_time"),
        _time(given.end_time, f"{path}end_time"),
        given.summary_through,
    )


def _read_message(given: message_pb2.Message, place: int, path: str) -> ArchivedMessage:
    try:
        role, author = Role(given.role), Author(given.author)
    except ValueError:
        raise invalid(f"{path}role", "must be set, and author too") from None
    if author not in _AUTHORS[role]:
        raise invalid(f"{path}author", f"must not be {author.name} with role {role.name}")
    if len(given.content) > _BLOCKS_MAX:
        raise invalid(f"{path}content", f"must hold at most {_BLOCKS_MAX} blocks")
    call, outcome = "", None
    if given.metadata and role is not Role.USER:
        raise invalid(f"{path}metadata", "is allowed with role USER alone")
    if role is Role.USER:
        _check_metadata(given, f"{path}metadata")
        content = input_content(given.content, given.metadata, path)
    elif role is Role.ASSISTANT:
        content = step_content(given.content, path)
    else:
        if len(given.content) != 1 or not given.content[0].HasField("tool_result"):
            raise invalid(f"{path}content", "must be one tool_result with role TOOL")
        result = given.content[0].tool_result
        call, outcome = result.tool_call_id, ToolOutcome(result.outcome)
        content = result_content(result, f"{path}content[0].tool_result.")
    return ArchivedMessage(
        place,
        given.run_id,
        role,
        author,
        given.step,
        _name(given.model, f"{path}model"),
        _time(given.create_time, f"{path}create_time"),
        content,
        call,
        outcome,
    )


def _check_metadata(given: message_pb2.Message, field: str) -> None:
    if len(given.metadata) > _METADATA_MAX:
        raise invalid(field, f"must hold at most {_METADATA_MAX} entries")
    for key, value in given.metadata.items():
        if not key or len(key.encode()) > _NAME_BYTES_MAX:
            raise invalid(field, f"each key: must hold 1 to {_NAME_BYTES_MAX} bytes")
        _text(key, field)
        _text(value, field)
    check_metadata(given.metadata, field)


def _time(given: Timestamp, field: str) -> int:
    micros = time_micros(given, field)
    if micros <= 0:
        raise invalid(field, "must be later than 1970")
    return micros


def _name(text: str, field: str) -> str:
    if len(text.encode()) > _NAME_BYTES_MAX:
        raise invalid(field, f"must hold at most {_NAME_BYTES_MAX} bytes")
    return _text(text, field)


def _text(text: str, field: str) -> str:
    if "\0" in text:
        raise invalid(field, "must not contain U+0000")
    return text
