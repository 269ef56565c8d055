"""What each kind of row writes, as steps of a plan. One function a kind, found by type."""

from collections.abc import Callable
from typing import Any

import msgspec

from runlane_server.core.rows import (
    MessageAppended,
    RunEnded,
    RunInserted,
    RunMoved,
    SessionDeleted,
    SessionUpdated,
    SubmissionInserted,
    SubmissionMoved,
    SubmissionSettled,
)
from runlane_server.core.words import Route, SubmissionState, TimerKind
from runlane_server.store.base import SessionCommit
from runlane_server.store.postgres.plan import BadRow, Kind, Plan, columns

Writer = Callable[[Plan, int, Any, bytes | None, SessionCommit], None]
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


def json_text(value: object) -> str:
    """Encodes labels for a parameter of type jsonb."""
    return _encode_json(value).decode()


def run_of_submission(submission_id: str) -> str:
    """Returns the id of the run that an input started, where it started one at once."""
    return f"run_{submission_id.partition('_')[2]}"


def submission_of_run(run_id: str) -> str:
    """Returns the id of the input that started a run at once."""
    return f"sub_{run_id.partition('_')[2]}"


# --- sessions --------------------------------------------------------------

_UPDATE_SESSION = Kind(
    columns("key bigint, display_name, metadata_json, default_agent text, removed, added jsonb"),
    "UPDATE sessions s SET labels = (s.labels - ARRAY(SELECT jsonb_array_elements_text(u.removed)))"
    " || u.added, display_name = coalesce(u.display_name, s.display_name),"
    " metadata_json = coalesce(u.metadata_json, s.metadata_json),"
    " default_agent = coalesce(u.default_agent, s.default_agent) FROM {u} WHERE s.key = u.key",
    "update of a session",
)
_DELETE_SESSION = Kind(
    columns("key, time bigint"),
    "UPDATE sessions s SET deleted_time = u.time, display_name = '', labels = '{}',"
    " metadata_json = '', default_agent = '' FROM {u} WHERE s.key = u.key",
    "deletion of a session",
)
_DROP_QUEUED = Kind(
    columns("key bigint"), "DELETE FROM queued t USING {u} WHERE t.session_key = u.key"
)
_DROP_LEASES = Kind(
    columns("key bigint"), "DELETE FROM leases t USING {u} WHERE t.session_key = u.key"
)
_DROP_TIMERS = Kind(
    columns("key bigint, kept integer"),
    "DELETE FROM timers t USING {u} WHERE t.session_key = u.key AND t.kind <> u.kept",
)


def _session_updated(
    plan: Plan, key: int, row: SessionUpdated, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    values = (
        key,
        row.display_name,
        row.metadata_json,
        row.default_agent,
        json_text(row.remove_labels),
        json_text(row.set_labels),
    )
    plan.add(_UPDATE_SESSION, values, [("session", key)])


def _session_deleted(
    plan: Plan, key: int, row: SessionDeleted, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    # It touches rows that nothing here names one by one.
    plan.bar()
    plan.add(_DELETE_SESSION, (key, row.delete_time))
    plan.add(_DROP_QUEUED, (key,))
    plan.add(_DROP_LEASES, (key,))
    plan.add(_DROP_TIMERS, (key, int(TimerKind.SWEEP)))
    plan.bar()


# --- runs ------------------------------------------------------------------

_INSERT_RUN = Kind(
    columns(
        "run_id text, session_key, create_time bigint, mode integer, first_sequence,"
        " message_number bigint, parent_run_id, agent, request_id, preview text, options bytea"
    ),
    "INSERT INTO runs (run_id, session_key, create_time, phase, mode, first_sequence,"
    " message_number, parent_run_id, agent, request_id, preview, options)"
    " SELECT run_id, session_key, create_time, 1, mode, first_sequence, message_number,"
    " parent_run_id, agent, request_id, preview, options FROM {u}",
)
_INSERT_QUEUED_RUN = Kind(
    columns(
        "run_id, submission_id text, session_key, create_time bigint, mode integer,"
        " first_sequence, message_number bigint, agent, request_id text"
    ),
    "INSERT INTO runs (run_id, session_key, create_time, phase, mode, first_sequence,"
    " message_number, submission_id, agent, request_id, preview, options)"
    " SELECT u.run_id, u.session_key, u.create_time, 1, u.mode, u.first_sequence,"
    " u.message_number, q.submission_id, u.agent,"
    " CASE WHEN u.request_id = '' THEN q.request_id ELSE u.request_id END, q.preview, q.options"
    " FROM {u} JOIN submissions q ON q.submission_id = u.submission_id"
    " AND q.session_key = u.session_key AND q.state = 1",
    "run of a queued submission",
)
_MOVE_RUN = Kind(
    columns("run_id text, session_key bigint, phase integer, stalled boolean"),
    "UPDATE runs r SET phase = u.phase, stalled = u.stalled FROM {u}"
    " WHERE r.run_id = u.run_id AND r.session_key = u.session_key AND r.phase <> 4",
    "move of a run",
)
_END_RUN = Kind(
    columns(
        "run_id text, session_key bigint, stop_reason, cause integer, end_time,"
        " last_sequence bigint, attempt integer, message_cutoff, summary_through bigint,"
        " digest bytea, output_message_number bigint, output_json text, failure_reason integer,"
        " failure_message text, failure_retryable boolean, cancellation, usage bytea"
    ),
    "UPDATE runs r SET phase = 4, stalled = false, stop_reason = u.stop_reason, cause = u.cause,"
    " end_time = u.end_time, last_sequence = u.last_sequence, attempt = u.attempt,"
    " message_cutoff = u.message_cutoff, summary_through = u.summary_through,"
    " digest = u.digest, output_message_number = u.output_message_number,"
    " output_json = u.output_json, failure_reason = u.failure_reason,"
    " failure_message = u.failure_message, failure_retryable = u.failure_retryable,"
    " cancellation = u.cancellation, usage = u.usage FROM {u}"
    " WHERE r.run_id = u.run_id AND r.session_key = u.session_key AND r.phase <> 4",
    "end of a run",
)


def _run_inserted(
    plan: Plan, key: int, row: RunInserted, encoded: bytes | None, _commit: SessionCommit
) -> None:
    writes = [("run", row.run_id)]
    if row.from_submission:
        values: tuple[Any, ...] = (
            row.run_id,
            row.submission_id,
            key,
            row.create_time,
            int(row.mode),
            row.first_sequence,
            row.message_number,
            row.agent,
            row.request_id,
        )
        plan.add(_INSERT_QUEUED_RUN, values, writes, [("submission", row.submission_id)])
        return
    if row.submission_id != submission_of_run(row.run_id):
        raise BadRow(f"{row.submission_id} is not the submission of {row.run_id}")
    values = (
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
    )
    plan.add(_INSERT_RUN, values, writes)


def _run_moved(
    plan: Plan, key: int, row: RunMoved, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    plan.add(_MOVE_RUN, (row.run_id, key, int(row.phase), bool(row.stalled)), [("run", row.run_id)])


def _run_ended(
    plan: Plan, key: int, row: RunEnded, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    failure = row.failure
    usage = {
        "usage": row.usage,
        "steps_reserved": row.steps_reserved,
        "steps_committed": row.steps_committed,
        "tool_calls": row.tool_calls,
    }
    values = (
        row.run_id,
        key,
        int(row.stop_reason),
        int(row.cause) if row.cause is not None else None,
        row.end_time,
        row.last_sequence,
        row.attempt,
        row.message_cutoff,
        row.summary_through,
        row.digest,
        row.output_message_number,
        row.output_json,
        int(failure.reason) if failure is not None else 0,
        failure.message if failure is not None else "",
        failure is not None and failure.retryable,
        _encode(row.cancellation) if row.cancellation is not None else b"",
        _encode(usage),
    )
    plan.add(_END_RUN, values, [("run", row.run_id)])


# --- submissions -----------------------------------------------------------

_INSERT_SUBMISSION = Kind(
    columns(
        "submission_id text, session_key bigint, run_id text, mode, route integer,"
        " create_time bigint, request_id, preview text, options, content bytea"
    ),
    "INSERT INTO submissions (submission_id, session_key, run_id, mode, route, state,"
    " create_time, request_id, preview, options, content)"
    " SELECT submission_id, session_key, run_id, mode, route, 1, create_time, request_id,"
    " preview, options, content FROM {u}",
)
_MOVE_SUBMISSION = Kind(
    columns("submission_id text, session_key bigint, run_id text, route integer"),
    "UPDATE submissions q SET run_id = u.run_id, route = u.route FROM {u}"
    " WHERE q.submission_id = u.submission_id AND q.session_key = u.session_key AND q.state = 1",
    "move of a submission",
)
# A message has the content of a delivered one, and a run its options.
_SETTLE_SUBMISSION = Kind(
    columns(
        "submission_id text, session_key bigint, state integer, settle_time bigint,"
        " failure integer, message_number bigint, emptied boolean"
    ),
    "UPDATE submissions q SET state = u.state, settle_time = u.settle_time, failure = u.failure,"
    " message_number = u.message_number, content = CASE WHEN u.emptied THEN '' ELSE q.content END,"
    " options = CASE WHEN u.emptied THEN '' ELSE q.options END,"
    " preview = CASE WHEN u.emptied THEN '' ELSE q.preview END FROM {u}"
    " WHERE q.submission_id = u.submission_id AND q.session_key = u.session_key AND q.state = 1",
    "end of a submission",
)


def _submission_inserted(
    plan: Plan, key: int, row: SubmissionInserted, encoded: bytes | None, _commit: SessionCommit
) -> None:
    values = (
        row.submission_id,
        key,
        row.run_id,
        int(row.mode),
        int(row.route),
        row.create_time,
        row.request_id,
        row.content.preview,
        encoded,
        row.content.data,
    )
    plan.add(_INSERT_SUBMISSION, values, [("submission", row.submission_id)])


def _submission_moved(
    plan: Plan, key: int, row: SubmissionMoved, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    values = (row.submission_id, key, row.run_id, int(Route.FOLLOW_UP))
    plan.add(_MOVE_SUBMISSION, values, [("submission", row.submission_id)])


def _submission_settled(
    plan: Plan, key: int, row: SubmissionSettled, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    values = (
        row.submission_id,
        key,
        int(row.state),
        row.settle_time,
        int(row.failure or 0),
        row.message_number,
        row.state is SubmissionState.DELIVERED,
    )
    plan.add(_SETTLE_SUBMISSION, values, [("submission", row.submission_id)])


# --- messages --------------------------------------------------------------

_INSERT_MESSAGE = Kind(
    columns("session_key, number bigint, data bytea"),
    "INSERT INTO messages (session_key, number, data) SELECT session_key, number, data FROM {u}",
)
_MESSAGE_OF_CALL = Kind(
    columns("session_key, number bigint, head bytea, run_id text, step, ordinal integer"),
    "INSERT INTO messages (session_key, number, data) SELECT u.session_key, u.number,"
    " u.head || c.result FROM {u} JOIN tool_calls c ON c.run_id = u.run_id AND c.step = u.step"
    " AND c.ordinal = u.ordinal AND c.session_key = u.session_key AND c.result IS NOT NULL",
    "message of a stored result",
)
_MESSAGE_OF_SUBMISSION = Kind(
    columns("session_key, number bigint, head bytea, submission_id text"),
    "INSERT INTO messages (session_key, number, data) SELECT u.session_key, u.number,"
    " u.head || q.content FROM {u} JOIN submissions q ON q.submission_id = u.submission_id"
    " AND q.session_key = u.session_key AND q.state = 1",
    "message of a queued submission",
)
_SHOW_RESULT = Kind(
    columns("session_key, number bigint, run_id text, step, ordinal integer"),
    "UPDATE tool_calls c SET message_number = u.number, result = NULL FROM {u}"
    " WHERE c.run_id = u.run_id AND c.step = u.step AND c.ordinal = u.ordinal"
    " AND c.session_key = u.session_key AND c.message_number = 0",
    "result message of a call",
)


def _message_appended(
    plan: Plan, key: int, row: MessageAppended, encoded: bytes | None, _commit: SessionCommit
) -> None:
    if row.content is not None or row.closer is not None:
        plan.add(_INSERT_MESSAGE, (key, row.number, encoded))
    elif row.from_call is not None:
        values: tuple[Any, ...] = (key, row.number, encoded, row.run_id, *row.from_call)
        plan.add(_MESSAGE_OF_CALL, values, (), [("call", row.run_id, *row.from_call)])
    else:
        values = (key, row.number, encoded, row.submission_id)
        plan.add(_MESSAGE_OF_SUBMISSION, values, (), [("submission", row.submission_id)])
    if row.call is not None:
        values = (key, row.number, row.run_id, *row.call)
        plan.add(_SHOW_RESULT, values, [("call", row.run_id, *row.call)])


WRITERS: dict[type[Any], Writer] = {
    SessionUpdated: _session_updated,
    SessionDeleted: _session_deleted,
    RunInserted: _run_inserted,
    RunMoved: _run_moved,
    RunEnded: _run_ended,
    SubmissionInserted: _submission_inserted,
    SubmissionMoved: _submission_moved,
    SubmissionSettled: _submission_settled,
    MessageAppended: _message_appended,
}
