"""A session as an archive has it: its records, the rules that they keep, and their digest.

An archive is a session at rest: every run has ended, and every tool call has its one result
right behind the message that asks for it.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

from runlane_server.core.errors import Refused, invalid
from runlane_server.core.model import (
    Cancellation,
    Content,
    Failure,
    RunOptions,
    SessionRecord,
    Usage,
)
from runlane_server.core.words import Author, Role, StopReason, ToolOutcome

CLOCKS_DIFFER = 60_000_000
"""How far ahead of this server's clock the time of an archive may be, in microseconds."""


@dataclass(slots=True, frozen=True)
class ArchivedMessage:
    """A message.

    Attributes:
        place: Of its record in the archive, from 0.
        run_id: The run that it says it is of; empty: it does not say.
        tool_call_id: Of a result, the call.
        outcome: Of a result.
    """

    place: int
    run_id: str
    role: Role
    author: Author
    step: int
    model: str
    create_time: int
    content: Content
    tool_call_id: str = ""
    outcome: ToolOutcome | None = None


@dataclass(slots=True, frozen=True)
class ArchivedRun:
    """A run that has ended.

    Attributes:
        place: Of its record in the archive, from 0.
        first: Number of its first message.
        cutoff: Number of its last message.
        steps_reserved: Model steps, as is the next.
        tool_calls: That model steps asked for.
        summary_through: What the summary covers that stood when it ended; 0: there was none.
    """

    place: int
    run_id: str
    options: RunOptions
    first: int
    cutoff: int
    stop_reason: StopReason
    cause: StopReason | None
    failure: Failure | None
    output_message_number: int
    output_json: str
    usage: Usage
    steps_reserved: int
    steps_committed: int
    tool_calls: int
    attempt: int
    cancellation: Cancellation | None
    create_time: int
    end_time: int
    summary_through: int


@dataclass(slots=True, frozen=True)
class ArchivedSummary:
    """A summary of the messages 1 to `through`; `place` is that of its record."""

    place: int
    through: int
    text: str
    model: str
    create_time: int


@dataclass(slots=True)
class Archive:
    """A whole archive.

    Attributes:
        source_session_id: As the archive calls its session.
        digest: Of its content.
    """

    record: SessionRecord
    source_session_id: str = ""
    runs: list[ArchivedRun] = field(default_factory=list)
    summaries: list[ArchivedSummary] = field(default_factory=list)
    messages: list[ArchivedMessage] = field(default_factory=list)
    digest: bytes = b""

    @property
    def taken_over(self) -> int:
        """How many messages are of no run of the archive: they come first."""
        return self.runs[0].first - 1 if self.runs else len(self.messages)


class ContentDigest:
    """SHA-256 over a line of JSON for each record that an import takes, in their order.

    Ids of sessions and runs are no part of it, so an import has the digest of its archive.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def record(self, record: SessionRecord) -> None:
        """Takes what the session is called."""
        self._line(
            "session",
            record.display_name,
            record.labels,
            record.metadata_json,
            record.default_agent,
        )

    def run(self, run: ArchivedRun) -> None:
        """Takes a run."""
        # The end of the grace tells how long the server would have waited, and nothing more.
        cancelled = run.cancellation
        self._line(
            "run",
            run.first,
            run.cutoff,
            run.stop_reason,
            run.cause or 0,
            astuple(run.failure) if run.failure is not None else None,
            run.output_message_number,
            run.output_json,
            astuple(run.usage),
            run.steps_reserved,
            run.steps_committed,
            run.tool_calls,
            run.attempt,
            [cancelled.reason, cancelled.request_time] if cancelled is not None else None,
            run.create_time,
            run.end_time,
            run.summary_through,
            astuple(run.options),
        )

    def summary(self, summary: ArchivedSummary) -> None:
        """Takes a summary."""
        self._line("summary", summary.through, summary.text, summary.model, summary.create_time)

    def message(self, number: int, message: ArchivedMessage) -> None:
        """Takes a message."""
        self._line(
            "message",
            number,
            message.role,
            message.author,
            message.step,
            message.model,
            message.create_time,
            message.content.hash.hex(),
        )

    def digest(self) -> bytes:
        """Returns the digest of all that it took."""
        return self._hash.digest()

    def _line(self, *values: object) -> None:
        line = json.dumps(values, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        self._hash.update(line.encode())
        self._hash.update(b"\n")


def check_archive(archive: Archive, now: int) -> None:
    """Refuses an archive that is no history of a session at rest.

    Args:
        archive: All of it.
        now: The time, in microseconds.

    Raises:
        Refused: FIELD_INVALID, naming the record.
    """
    latest = now + CLOCKS_DIFFER
    for message in archive.messages:
        if message.create_time > latest:
            raise _wrong(message, "create_time", "must not be in the future")
    _check_results(archive.messages)
    _check_summaries(archive)
    summaries = {0, *(one.through for one in archive.summaries)}
    before = archive.taken_over
    last_time = -1
    for run in archive.runs:
        _check_run(run, archive, before, last_time, latest)
        if run.summary_through not in summaries or run.summary_through > run.cutoff:
            raise _wrong(run, "summary_through", "must be what a summary of the archive covers")
        _check_messages(run, archive.messages[run.first - 1 : run.cutoff])
        before, last_time = run.cutoff, run.create_time
    if before != len(archive.messages):
        first = archive.messages[before]
        raise _wrong(first, "number", "must be within the messages of a run")
    ids = {run.run_id for run in archive.runs}
    for message in archive.messages[: archive.taken_over]:
        if message.run_id in ids:
            raise _wrong(message, "run_id", "must not be that of a run that begins later")


def _check_run(
    run: ArchivedRun, archive: Archive, before: int, last_time: int, latest: int
) -> None:
    if run.first != before + 1:
        raise _wrong(run, "first_message_number", f"must be {before + 1}")
    if not run.first <= run.cutoff <= len(archive.messages):
        raise _wrong(run, "message_cutoff", f"must be from {run.first} to {len(archive.messages)}")
    if run.create_time <= last_time:
        raise _wrong(run, "create_time", "must be later than that of the run before it")
    if run.create_time > latest:
        raise _wrong(run, "create_time", "must not be in the future")
    if run.end_time > latest:
        raise _wrong(run, "end_time", "must not be in the future")
    unknown = run.stop_reason is StopReason.OUTCOME_UNKNOWN
    if (run.cause is not None) is not unknown:
        raise _wrong(run, "cause", "must be set with stop_reason OUTCOME_UNKNOWN, and only then")
    if run.failure is not None and StopReason.FAILED not in {run.stop_reason, run.cause}:
        raise _wrong(run, "failure_reason", "must be set with stop_reason FAILED alone")
    output = run.output_message_number
    if output and not (
        run.first <= output <= run.cutoff
        and archive.messages[output - 1].author is Author.MODEL
        and not archive.messages[output - 1].content.tool_uses
    ):
        raise _wrong(run, "output_message_number", "must be an answer of a model in the run")


def _check_messages(run: ArchivedRun, messages: Sequence[ArchivedMessage]) -> None:
    """Checks that the messages of a run are what a run appends: input, steps, steers."""
    step = 0
    for index, message in enumerate(messages):
        if message.run_id not in {"", run.run_id}:
            raise _wrong(message, "run_id", "must be that of the run that the message is in")
        if (index == 0) is not (message.author is Author.INPUT):
            raise _wrong(message, "author", "must be INPUT for the first message of a run alone")
        if message.author is Author.MODEL:
            step += 1
        if message.step != step:
            raise _wrong(message, "step", f"must be {step}")


def _check_results(messages: Sequence[ArchivedMessage]) -> None:
    """Checks that every tool call has its one result, in order, right behind its message."""
    asked: list[str] = []
    for message in messages:
        if message.role is Role.TOOL:
            if not asked or message.tool_call_id != asked[0]:
                wanted = f"that of {asked[0]!r}" if asked else "absent: no tool call is open"
                raise _wrong(message, "content", f"must be {wanted}")
            asked.pop(0)
            continue
        if asked:
            raise _wrong(message, "role", f"must be TOOL: the call {asked[0]!r} has no result")
        asked = [use.tool_call_id for use in message.content.tool_uses]
        if len(set(asked)) < len(asked):
            raise _wrong(message, "content", "must not have two calls with the same id")
    if asked:
        raise _wrong(messages[-1], "content", f"has a call {asked[0]!r} without a result")


def _check_summaries(archive: Archive) -> None:
    before, count = 0, len(archive.messages)
    for summary in archive.summaries:
        field = f"records[{summary.place}].summary.through_message_number"
        if not before < summary.through <= count:
            raise invalid(field, f"must be from {before + 1} to {count}")
        if summary.through < count and archive.messages[summary.through].role is Role.TOOL:
            raise invalid(field, "must not part tool calls from their results")
        before = summary.through


def _wrong(record: ArchivedMessage | ArchivedRun, name: str, rule: str) -> Refused:
    kind = "run" if isinstance(record, ArchivedRun) else "message"
    return invalid(f"records[{record.place}].{kind}.{name}", rule)
