"""Whose turn it is and what is to come: activations, leases, timers, summaries, notices."""

from typing import Any

from runlane_server.core.rows import (
    ActivationDequeued,
    ActivationQueued,
    LeaseDropped,
    LeasePut,
    NoticePut,
    NoticeTaken,
    SummaryInserted,
    TimerSet,
)
from runlane_server.store.base import SessionCommit
from runlane_server.store.postgres.plan import Kind, Plan, columns
from runlane_server.store.postgres.rows import Writer

# --- activations and leases ------------------------------------------------

_QUEUE = Kind(
    columns(
        "activation_id text, session_key bigint, namespace, run_id, agent text, queue_time,"
        " not_before bigint"
    ),
    "INSERT INTO queued (activation_id, session_key, namespace, run_id, agent, queue_time,"
    " not_before) SELECT activation_id, session_key, namespace, run_id, agent, queue_time,"
    " not_before FROM {u}",
)
_DEQUEUE = Kind(
    columns("activation_id text, session_key bigint"),
    "DELETE FROM queued a USING {u} WHERE a.activation_id = u.activation_id"
    " AND a.session_key = u.session_key",
)
_PUT_LEASE = Kind(
    columns(
        "activation_id text, session_key bigint, run_id text, epoch integer, agent,"
        " executor_id text, duration, expire_time bigint, confirmed boolean"
    ),
    "INSERT INTO leases (activation_id, session_key, run_id, epoch, agent, executor_id,"
    " duration, expire_time, confirmed) SELECT activation_id, session_key, run_id, epoch, agent,"
    " executor_id, duration, expire_time, confirmed FROM {u}"
    " ON CONFLICT (activation_id) DO UPDATE SET epoch = excluded.epoch,"
    " executor_id = excluded.executor_id, duration = excluded.duration,"
    " expire_time = excluded.expire_time, confirmed = excluded.confirmed",
    ordered=1,
)
_DROP_LEASE = Kind(
    columns("activation_id text, session_key bigint"),
    "DELETE FROM leases l USING {u} WHERE l.activation_id = u.activation_id"
    " AND l.session_key = u.session_key",
    ordered=1,
)
RENEW_LEASE = Kind(
    columns("activation_id text, epoch integer, duration, expire_time bigint"),
    "UPDATE leases l SET duration = u.duration, expire_time = u.expire_time, confirmed = true"
    " FROM {u} WHERE l.activation_id = u.activation_id AND l.epoch = u.epoch",
    "renewal of a lease",
)


def _activation_queued(
    plan: Plan, key: int, row: ActivationQueued, _encoded: bytes | None, commit: SessionCommit
) -> None:
    values = (
        row.activation_id,
        key,
        commit.key.namespace,
        row.run_id,
        row.agent,
        row.queue_time,
        row.not_before,
    )
    plan.add(_QUEUE, values, [("queued", row.activation_id)])


def _activation_dequeued(
    plan: Plan, key: int, row: ActivationDequeued, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    plan.add(_DEQUEUE, (row.activation_id, key), [("queued", row.activation_id)])


def _lease_put(
    plan: Plan, key: int, row: LeasePut, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    values = (
        row.activation_id,
        key,
        row.run_id,
        row.epoch,
        row.agent,
        row.executor_id,
        row.duration,
        row.expire_time,
        bool(row.confirmed),
    )
    plan.add(_PUT_LEASE, values, [("lease", row.activation_id)])


def _lease_dropped(
    plan: Plan, key: int, row: LeaseDropped, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    # Whether it had expired was tested before the unit wrote anything.
    plan.add(_DROP_LEASE, (row.activation_id, key), [("lease", row.activation_id)])


# --- timers, summaries, notices --------------------------------------------

_SET_TIMER = Kind(
    columns("session_key bigint, kind integer, due_time bigint"),
    "INSERT INTO timers (session_key, kind, due_time) SELECT session_key, kind, due_time FROM {u}"
    " ON CONFLICT (session_key, kind) DO UPDATE SET due_time = excluded.due_time",
)
_CLEAR_TIMER = Kind(
    columns("session_key bigint, kind integer"),
    "DELETE FROM timers t USING {u} WHERE t.session_key = u.session_key AND t.kind = u.kind",
)
_INSERT_SUMMARY = Kind(
    columns("session_key, through, create_time bigint, model, text text"),
    "INSERT INTO summaries (session_key, through, create_time, model, text)"
    " SELECT session_key, through, create_time, model, text FROM {u}",
)
_PUT_NOTICE = Kind(
    columns("namespace, session_id text, kind integer, cause text, put_time bigint"),
    "INSERT INTO notices (namespace, session_id, kind, cause, put_time)"
    " SELECT namespace, session_id, kind, cause, put_time FROM {u} ON CONFLICT DO NOTHING",
    ordered=4,
)
_TAKE_NOTICE = Kind(
    columns("namespace, session_id text, kind integer, cause text"),
    "DELETE FROM notices n USING {u} WHERE n.namespace = u.namespace"
    " AND n.session_id = u.session_id AND n.kind = u.kind AND n.cause = u.cause",
    ordered=4,
)


def _timer_set(
    plan: Plan, key: int, row: TimerSet, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    writes = [("timer", key, row.kind)]
    if row.due_time is None:
        plan.add(_CLEAR_TIMER, (key, int(row.kind)), writes)
    else:
        plan.add(_SET_TIMER, (key, int(row.kind), row.due_time), writes)


def _summary_inserted(
    plan: Plan, key: int, row: SummaryInserted, _encoded: bytes | None, _commit: SessionCommit
) -> None:
    values = (key, row.through, row.create_time, row.model, row.text)
    plan.add(_INSERT_SUMMARY, values, [("summary", key, row.through)])


def _notice_put(
    plan: Plan, _key: int, row: NoticePut, _encoded: bytes | None, commit: SessionCommit
) -> None:
    values = (commit.key.namespace, row.session_id, int(row.kind), row.cause)
    plan.add(_PUT_NOTICE, (*values, commit.update_time), [("notice", *values)])


def _notice_taken(
    plan: Plan, _key: int, row: NoticeTaken, _encoded: bytes | None, commit: SessionCommit
) -> None:
    values = (commit.key.namespace, commit.key.session_id, int(row.kind), row.cause)
    plan.add(_TAKE_NOTICE, values, [("notice", *values)])


WRITERS: dict[type[Any], Writer] = {
    ActivationQueued: _activation_queued,
    ActivationDequeued: _activation_dequeued,
    LeasePut: _lease_put,
    LeaseDropped: _lease_dropped,
    TimerSet: _timer_set,
    SummaryInserted: _summary_inserted,
    NoticePut: _notice_put,
    NoticeTaken: _notice_taken,
}
