"""What each kind of row writes.

One function a kind, found by type; each is called inside the transaction of its
batch. A statement that must hit a row and does not raises BadRow: the unit that
it is of is rejected, and its neighbours are not.
"""

import sqlite3
from collections.abc import Callable
from typing import Any

import msgspec

from runlane_server.core.rows import (
    ActivationDequeued,
    ActivationQueued,
    LeaseDropped,
    LeasePut,
    MessageAppended,
    NoticePut,
    NoticeTaken,
    RunEnded,
    RunInserted,
    RunMoved,
    SessionDeleted,
    SessionInserted,
    SessionUpdated,
    SubmissionInserted,
    SubmissionMoved,
    SubmissionSettled,
    SummaryInserted,
    TimerSet,
)
from runlane_server.core.words import Route, SubmissionState, TimerKind

SPAN = 2**31
"""A session has room for one less messages, and as many events: the ids of its entries."""

_NO_PARENT = ("", "", "", 0)

Execute = Callable[..., sqlite3.Cursor]
Writer = Callable[[Execute, int, Any, bytes | None, str], None]
_encode = msgspec.msgpack.Encoder().encode


def messages_start(key: int) -> int:
    """Returns what a message's number is added to for the id of its entry."""
    return key * 2 * SPAN


def events_start(key: int) -> int:
    """Returns what the last sequence of a group is added to for the id of its entry."""
    return key * 2 * SPAN + SPAN


class BadRow(Exception):  # noqa: N818 - named for what it is about
    """A row does not fit what is stored."""


def run_of_submission(submission_id: str) -> str:
    """Returns the id of the run that an input started, where it started one at once."""
    return f"run_{submission_id.partition('_')[2]}"


def submission_of_run(run_id: str) -> str:
    """Returns the id of the input that started a run at once."""
    return f"sub_{run_id.partition('_')[2]}"


def must_hit(cursor: sqlite3.Cursor, what: str) -> None:
    """Raises BadRow where a statement has not written its one row."""
    if cursor.rowcount != 1:
        raise BadRow(f"{what}: {cursor.rowcount} rows were written, not 1")


def _labels(labels: dict[str, str]) -> str:
    return msgspec.json.encode(labels).decode() if labels else ""


def read_labels(text: str) -> dict[str, str]:
    """Decodes the labels column."""
    return msgspec.json.decode(text, type=dict[str, str]) if text else {}


def insert_session(
    execute: Execute, namespace: str, session_id: str, row: SessionInserted, values: tuple[Any, ...]
) -> int:
    """Inserts a session; returns its key, or 0 where it exists.

    Args:
        execute: Of the writer's connection.
        namespace: Of the session.
        session_id: Its id.
        row: What it is.
        values: token, state, status, current_run_id, update_time, stored_bytes.
    """
    record, parent = row.record, row.parent
    cursor = execute(
        "INSERT INTO sessions (namespace, session_id, token, state, status, current_run_id,"
        " update_time, stored_bytes, create_time, base_count, source_session_id, source_run_id,"
        " parent_session_id, parent_run_id, parent_call_id, parent_depth, display_name,"
        " labels, metadata_json, default_agent)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (namespace, session_id) DO NOTHING",
        (
            namespace,
            session_id,
            *values,
            row.create_time,
            row.message_count,
            row.source_session_id,
            row.source_run_id,
            *(
                _NO_PARENT
                if parent is None
                else (parent.session_id, parent.run_id, parent.tool_call_id, parent.depth)
            ),
            record.display_name,
            _labels(record.labels),
            record.metadata_json,
            record.default_agent,
        ),
    )
    if cursor.rowcount == 0:
        return 0
    key = cursor.lastrowid
    assert key is not None, "an insert has a rowid"  # noqa: S101 - invariant
    return key


def _session_inserted(
    execute: Execute, key: int, row: SessionInserted, _encoded: bytes | None, namespace: str
) -> None:
    _put_labels(execute, key, row.record.labels)
    if not row.message_count:
        return
    source = execute(
        "SELECT key, base_count FROM sessions WHERE namespace = ? AND session_id = ?",
        (namespace, row.source_session_id),
    ).fetchone()
    if source is None:
        raise BadRow(f"the source {row.source_session_id} of a fork does not exist")
    source_key, base_count = source
    # What the source took over, and its own part; a message is never copied.
    execute(
        "INSERT INTO segments (session_key, first, last, owner_key)"
        " SELECT ?1, first, min(last, ?2), owner_key FROM segments"
        " WHERE session_key = ?3 AND first <= ?2",
        (key, row.message_count, source_key),
    )
    if row.message_count > base_count:
        execute(
            "INSERT INTO segments (session_key, first, last, owner_key) VALUES (?, ?, ?, ?)",
            (key, base_count + 1, row.message_count, source_key),
        )
    if row.summary_through:
        must_hit(
            execute(
                "INSERT INTO summaries (session_key, through, create_time, model, text)"
                " SELECT ?, through, create_time, model, text FROM summaries"
                " WHERE session_key = ? AND through = ?",
                (key, source_key, row.summary_through),
            ),
            "summary of a fork",
        )


def _put_labels(execute: Execute, key: int, labels: dict[str, str]) -> None:
    for label, value in labels.items():
        execute(
            "INSERT INTO session_labels (session_key, label, value) VALUES (?, ?, ?)"
            " ON CONFLICT (session_key, label) DO UPDATE SET value = excluded.value",
            (key, label, value),
        )


def _session_updated(
    execute: Execute, key: int, row: SessionUpdated, _encoded: bytes | None, _namespace: str
) -> None:
    found = execute("SELECT labels FROM sessions WHERE key = ?", (key,)).fetchone()
    labels = read_labels(found[0])
    for label in row.remove_labels:
        if labels.pop(label, None) is not None:
            execute("DELETE FROM session_labels WHERE session_key = ? AND label = ?", (key, label))
    labels.update(row.set_labels)
    _put_labels(execute, key, row.set_labels)
    must_hit(
        execute(
            "UPDATE sessions SET labels = ?, display_name = coalesce(?, display_name),"
            " metadata_json = coalesce(?, metadata_json),"
            " default_agent = coalesce(?, default_agent) WHERE key = ?",
            (_labels(labels), row.display_name, row.metadata_json, row.default_agent, key),
        ),
        "session update",
    )


def _session_deleted(
    execute: Execute, key: int, row: SessionDeleted, _encoded: bytes | None, _namespace: str
) -> None:
    must_hit(
        execute(
            "UPDATE sessions SET deleted_time = ?, display_name = '', labels = '',"
            " metadata_json = '', default_agent = '' WHERE key = ?",
            (row.delete_time, key),
        ),
        "session deletion",
    )
    execute("DELETE FROM session_labels WHERE session_key = ?", (key,))
    execute("DELETE FROM queued WHERE session_key = ?", (key,))
    execute("DELETE FROM leases WHERE session_key = ?", (key,))
    execute("DELETE FROM timers WHERE session_key = ? AND kind <> ?", (key, TimerKind.SWEEP))


def _run_inserted(
    execute: Execute, key: int, row: RunInserted, encoded: bytes | None, _namespace: str
) -> None:
    if row.from_submission:
        must_hit(
            execute(
                "INSERT INTO runs (run_id, session_key, create_time, phase, mode, first_sequence,"
                " message_number, submission_id, agent, request_id, preview, options)"
                " SELECT ?, session_key, ?, 1, ?, ?, ?, submission_id, ?,"
                " CASE WHEN ?7 = '' THEN request_id ELSE ?7 END, preview, options"
                " FROM submissions WHERE submission_id = ?8 AND session_key = ?9 AND state = 1",
                (
                    row.run_id,
                    row.create_time,
                    row.mode,
                    row.first_sequence,
                    row.message_number,
                    row.agent,
                    row.request_id,
                    row.submission_id,
                    key,
                ),
            ),
            "run of a queued submission",
        )
        return
    if row.submission_id != submission_of_run(row.run_id):
        raise BadRow(f"{row.submission_id} is not the submission of {row.run_id}")
    execute(
        "INSERT INTO runs (run_id, session_key, create_time, phase, mode, first_sequence,"
        " message_number, parent_run_id, agent, request_id, preview, options)"
        " VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.run_id,
            key,
            row.create_time,
            int(row.mode),
            row.first_sequence,
            row.message_number,
            row.parent.run_id if row.parent is not None else "",
            row.agent,
            row.request_id,
            row.preview,
            encoded,
        ),
    )


def _run_moved(
    execute: Execute, key: int, row: RunMoved, _encoded: bytes | None, _namespace: str
) -> None:
    must_hit(
        execute(
            "UPDATE runs SET phase = ?, stalled = ?"
            " WHERE run_id = ? AND session_key = ? AND phase <> 4",
            (row.phase, row.stalled, row.run_id, key),
        ),
        "move of a run",
    )


def _run_ended(
    execute: Execute, key: int, row: RunEnded, _encoded: bytes | None, _namespace: str
) -> None:
    failure = row.failure
    usage = {
        "usage": row.usage,
        "steps_reserved": row.steps_reserved,
        "steps_committed": row.steps_committed,
        "tool_calls": row.tool_calls,
    }
    must_hit(
        execute(
            "UPDATE runs SET phase = 4, stalled = 0, stop_reason = ?, cause = ?, end_time = ?,"
            " last_sequence = ?, attempt = ?, message_cutoff = ?, summary_through = ?, digest = ?,"
            " output_message_number = ?, output_json = ?, failure_reason = ?,"
            " failure_message = ?, failure_retryable = ?, cancellation = ?, usage = ?"
            " WHERE run_id = ? AND session_key = ? AND phase <> 4",
            (
                row.stop_reason,
                row.cause,
                row.end_time,
                row.last_sequence,
                row.attempt,
                row.message_cutoff,
                row.summary_through,
                row.digest,
                row.output_message_number,
                row.output_json,
                failure.reason if failure is not None else 0,
                failure.message if failure is not None else "",
                failure is not None and failure.retryable,
                _encode(row.cancellation) if row.cancellation is not None else b"",
                _encode(usage),
                row.run_id,
                key,
            ),
        ),
        "end of a run",
    )


def _submission_inserted(
    execute: Execute, key: int, row: SubmissionInserted, encoded: bytes | None, _namespace: str
) -> None:
    execute(
        "INSERT INTO submissions (submission_id, session_key, run_id, mode, route, state,"
        " create_time, request_id, preview, options, content)"
        " VALUES (?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?)",
        (
            row.submission_id,
            key,
            row.run_id,
            row.mode,
            row.route,
            row.create_time,
            row.request_id,
            row.content.preview,
            encoded,
            row.content.data,
        ),
    )


def _submission_moved(
    execute: Execute, key: int, row: SubmissionMoved, _encoded: bytes | None, _namespace: str
) -> None:
    must_hit(
        execute(
            "UPDATE submissions SET run_id = ?, route = ?"
            " WHERE submission_id = ? AND session_key = ? AND state = 1",
            (row.run_id, Route.FOLLOW_UP, row.submission_id, key),
        ),
        "move of a submission",
    )


def _submission_settled(
    execute: Execute, key: int, row: SubmissionSettled, _encoded: bytes | None, _namespace: str
) -> None:
    # A message has the content of a delivered one, and a run its options.
    emptied = (
        ", content = x'', options = x'', preview = ''"
        if row.state is SubmissionState.DELIVERED
        else ""
    )
    must_hit(
        execute(
            "UPDATE submissions SET state = ?, settle_time = ?, failure = ?, message_number = ?"  # noqa: S608 - two constants
            f"{emptied} WHERE submission_id = ? AND session_key = ? AND state = 1",
            (
                row.state,
                row.settle_time,
                row.failure or 0,
                row.message_number,
                row.submission_id,
                key,
            ),
        ),
        "end of a submission",
    )


def _message_appended(
    execute: Execute, key: int, row: MessageAppended, encoded: bytes | None, _namespace: str
) -> None:
    entry = messages_start(key) + row.number
    if row.content is not None or row.closer is not None:
        execute("INSERT INTO entries (id, first, data) VALUES (?, 0, ?)", (entry, encoded))
    elif row.from_call is not None:
        must_hit(
            execute(
                "INSERT INTO entries (id, first, data) SELECT ?, 0, CAST(? || result AS BLOB)"
                " FROM tool_calls WHERE run_id = ? AND step = ? AND ordinal = ?"
                " AND session_key = ? AND result IS NOT NULL",
                (entry, encoded, row.run_id, *row.from_call, key),
            ),
            "message of a stored result",
        )
    else:
        must_hit(
            execute(
                "INSERT INTO entries (id, first, data) SELECT ?, 0, CAST(? || content AS BLOB)"
                " FROM submissions WHERE submission_id = ? AND session_key = ? AND state = 1",
                (entry, encoded, row.submission_id, key),
            ),
            "message of a queued submission",
        )
    if row.call is not None:
        must_hit(
            execute(
                "UPDATE tool_calls SET message_number = ?, result = NULL"
                " WHERE run_id = ? AND step = ? AND ordinal = ? AND session_key = ?"
                " AND message_number = 0",
                (row.number, row.run_id, *row.call, key),
            ),
            "result message of a call",
        )


def _activation_queued(
    execute: Execute, key: int, row: ActivationQueued, _encoded: bytes | None, _namespace: str
) -> None:
    execute(
        "INSERT INTO queued (activation_id, session_key, run_id, agent, queue_time, not_before)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (row.activation_id, key, row.run_id, row.agent, row.queue_time, row.not_before),
    )


def _activation_dequeued(
    execute: Execute, key: int, row: ActivationDequeued, _encoded: bytes | None, _namespace: str
) -> None:
    execute(
        "DELETE FROM queued WHERE activation_id = ? AND session_key = ?",
        (row.activation_id, key),
    )


def _lease_put(
    execute: Execute, key: int, row: LeasePut, _encoded: bytes | None, _namespace: str
) -> None:
    execute(
        "INSERT INTO leases (activation_id, session_key, run_id, epoch, agent, executor_id,"
        " duration, expire_time, confirmed) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (activation_id) DO UPDATE SET epoch = excluded.epoch,"
        " executor_id = excluded.executor_id, duration = excluded.duration,"
        " expire_time = excluded.expire_time, confirmed = excluded.confirmed",
        (
            row.activation_id,
            key,
            row.run_id,
            row.epoch,
            row.agent,
            row.executor_id,
            row.duration,
            row.expire_time,
            row.confirmed,
        ),
    )


def _lease_dropped(
    execute: Execute, key: int, row: LeaseDropped, _encoded: bytes | None, _namespace: str
) -> None:
    # Whether it had expired was tested before the unit wrote anything.
    execute(
        "DELETE FROM leases WHERE activation_id = ? AND session_key = ?",
        (row.activation_id, key),
    )


def _timer_set(
    execute: Execute, key: int, row: TimerSet, _encoded: bytes | None, _namespace: str
) -> None:
    if row.due_time is None:
        execute("DELETE FROM timers WHERE session_key = ? AND kind = ?", (key, row.kind))
        return
    execute(
        "INSERT INTO timers (session_key, kind, due_time) VALUES (?, ?, ?)"
        " ON CONFLICT (session_key, kind) DO UPDATE SET due_time = excluded.due_time",
        (key, row.kind, row.due_time),
    )


def _summary_inserted(
    execute: Execute, key: int, row: SummaryInserted, _encoded: bytes | None, _namespace: str
) -> None:
    execute(
        "INSERT INTO summaries (session_key, through, create_time, model, text)"
        " VALUES (?, ?, ?, ?, ?)",
        (key, row.through, row.create_time, row.model, row.text),
    )


def _notice_put(
    execute: Execute, _key: int, row: NoticePut, _encoded: bytes | None, namespace: str
) -> None:
    execute(
        "INSERT INTO notices (namespace, session_id, kind, cause) VALUES (?, ?, ?, ?)"
        " ON CONFLICT DO NOTHING",
        (namespace, row.session_id, int(row.kind), row.cause),
    )


def _notice_taken(
    execute: Execute, key: int, row: NoticeTaken, _encoded: bytes | None, namespace: str
) -> None:
    execute(
        "DELETE FROM notices WHERE namespace = ?"
        " AND session_id = (SELECT session_id FROM sessions WHERE key = ?)"
        " AND kind = ? AND cause = ?",
        (namespace, key, int(row.kind), row.cause),
    )


WRITERS: dict[type[Any], Writer] = {
    SessionInserted: _session_inserted,
    SessionUpdated: _session_updated,
    SessionDeleted: _session_deleted,
    RunInserted: _run_inserted,
    RunMoved: _run_moved,
    RunEnded: _run_ended,
    SubmissionInserted: _submission_inserted,
    SubmissionMoved: _submission_moved,
    SubmissionSettled: _submission_settled,
    MessageAppended: _message_appended,
    ActivationQueued: _activation_queued,
    ActivationDequeued: _activation_dequeued,
    LeasePut: _lease_put,
    LeaseDropped: _lease_dropped,
    TimerSet: _timer_set,
    SummaryInserted: _summary_inserted,
    NoticePut: _notice_put,
    NoticeTaken: _notice_taken,
}
