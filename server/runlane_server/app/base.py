"""What all use cases share: the parts that they are made of, and small steps."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runlane_server.app.places import Places
from runlane_server.app.views import Caller, Result, RunView, SessionView
from runlane_server.core.answers import Answer, RunFacts, SubmissionFacts
from runlane_server.core.context import Context, Decision
from runlane_server.core.drafting import NewId, live_run_facts, session_facts
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import ParentLink, Rules, SessionKey, SessionState
from runlane_server.core.words import Phase, Position, RunFailure, StopReason, SubmissionFailure
from runlane_server.runtime.bus import Bus
from runlane_server.runtime.codec import Codec
from runlane_server.runtime.dispatch import Dispatch
from runlane_server.runtime.engine import Engine, Plan, Time, plan
from runlane_server.runtime.follower import Follower
from runlane_server.runtime.quotas import Quotas
from runlane_server.runtime.records import decode_cancellation, decode_state, decode_totals
from runlane_server.runtime.relay import Relay
from runlane_server.store.base import RequestKey, RunRow, SessionRow, Store, SubmissionRow


@dataclass(slots=True, frozen=True)
class Limits:
    """Settings of the use cases.

    Attributes:
        streams_max: Event streams that are open at once.
        request_keep: How long a request record is kept, in microseconds.
        feeds_max: Feeds that are open at once; each is a stream, too.
        imports_max: Imports that go on at once.
        import_bytes_max: Bytes of the records of one.
        import_messages_max: Messages of one.
        import_runs_max: Runs of one.
        import_silence: Seconds between two of its requests.
        waits_max: Calls that wait at once for the end of a run.
    """

    streams_max: int = 10_000
    request_keep: int = 24 * 3600 * 1_000_000
    feeds_max: int = 64
    imports_max: int = 4
    import_bytes_max: int = 64 * 1024 * 1024
    import_messages_max: int = 10_000
    import_runs_max: int = 5_000
    import_silence: float = 60.0
    waits_max: int = 10_000


@dataclass(slots=True)
class Services:
    """The parts.

    Attributes:
        follower: Follows other servers on the same store; None: there can be none.
        quotas: None: no namespace has one.
        relay: Passes deltas on to them; likewise.
        streams: The places of event streams.
        waits: Those of waits for the end of a run.
        draining: No new work is taken.
        background: What goes on after the call that began it was cancelled.
    """

    store: Store
    engine: Engine
    bus: Bus
    dispatch: Dispatch
    codec: Codec
    clock: Time
    new_id: NewId
    rules: Rules
    limits: Limits
    quotas: Quotas | None = None
    follower: Follower | None = None
    relay: Relay | None = None
    draining: bool = False
    background: set[asyncio.Task[Any]] = field(default_factory=set)
    streams: Places = field(init=False)
    waits: Places = field(init=False)

    def __post_init__(self) -> None:
        quotas = self.quotas
        self.streams, self.waits = Places(self.limits.streams_max), Places(self.limits.waits_max)
        if quotas is not None:
            self.streams.count(quotas.open_stream, quotas.close_stream)
            self.waits.count(quotas.open_wait, quotas.close_wait)


class UseCase:
    """Base of the use cases."""

    def __init__(self, services: Services) -> None:
        self.services = services

    async def _execute(self, command: Plan) -> Result[Any]:
        answer, replayed = await self.services.engine.execute(command)
        return Result(answer, replayed)

    async def _command(
        self, caller: Caller, key: SessionKey, command: Any, *, scope: str | None = None
    ) -> Result[Any]:
        """Runs a command on one session; the scope of its request_id is the session."""
        scope = key.session_id if scope is None else scope
        request = request_of(caller, scope)
        return await self._execute(
            plan(
                key,
                command,
                caller.actor,
                request,
                caller.request_hash,
                caller.toll,
                caller.trace,
            )
        )

    async def _run_row(self, namespace: str, run_id: str, session_id: str = "") -> RunRow:
        """Reads a run; a caller that names its session too must name the right one."""
        row = await self.services.store.run(namespace, run_id)
        if row is None:
            raise Refused(Reason.RUN_NOT_FOUND)
        check_session(session_id, row.session_id, Reason.RUN_NOT_FOUND)
        return row

    async def _unchanged(
        self, caller: Caller, key: SessionKey, gone: Reason, answer: Callable[[int], Answer]
    ) -> Result[Any]:
        """Answers of what never changes again, and records it; `gone`: the session is deleted."""

        def decide(states: list[SessionState | None], _: list[Context]) -> tuple[Decision]:
            state = states[0]
            if state is None or state.deleted:
                raise Refused(gone)
            return (Decision(None, answer(state.sequence)),)

        request = request_of(caller, key.session_id)
        return await self._execute(
            Plan((key,), decide, caller.actor, request, caller.request_hash, caller.toll)
        )


def request_of(caller: Caller, scope: str) -> RequestKey | None:
    """Returns the name of the caller's request_id; None: it has none."""
    if not caller.request_id:
        return None
    return RequestKey(caller.namespace, caller.method, scope, caller.request_id)


def session_view(row: SessionRow) -> SessionView:
    """Returns a session as it is shown."""
    facts = session_facts(decode_state(row.state))
    return SessionView(facts, row.record, row.source_session_id, row.source_run_id)


def run_view(row: RunRow) -> RunView:
    """Returns a run as it is shown: a live one as its session's state has it."""
    if row.phase is not Phase.TERMINAL and row.state is not None:
        state = decode_state(row.state)
        if state.run is not None and state.run.run_id == row.run_id:
            return RunView(live_run_facts(state), row.options, row.preview)
    return RunView(
        _ended_facts(row),
        row.options,
        row.preview,
        row.failure_message,
        row.output_json,
        row.digest,
    )


def submission_facts(row: SubmissionRow) -> SubmissionFacts:
    """Returns the facts of a stored submission."""
    return SubmissionFacts(
        row.submission_id,
        row.session_id,
        row.run_id,
        row.mode,
        row.route,
        row.state,
        row.create_time,
        row.settle_time,
        row.message_number,
        SubmissionFailure(row.failure) if row.failure else None,
        row.request_id,
    )


def _ended_facts(row: RunRow) -> RunFacts:
    used = decode_totals(row.usage)
    return RunFacts(
        row.run_id,
        row.session_id,
        row.submission_id,
        row.agent,
        row.phase,
        row.attempt,
        Position.OUTCOME_READY if row.output_message_number else Position.BEFORE_MODEL,
        row.create_time,
        used.usage,
        used.steps_reserved,
        used.steps_committed,
        tool_calls=used.tool_calls,
        cause=StopReason(row.cause) if row.cause else None,
        cancellation=decode_cancellation(row.cancellation),
        stop_reason=StopReason(row.stop_reason) if row.stop_reason else None,
        failure_reason=RunFailure(row.failure_reason) if row.failure_reason else None,
        failure_retryable=row.failure_retryable,
        output_message_number=row.output_message_number,
        message_cutoff=row.message_cutoff,
        end_time=row.end_time,
        parent=_parent(row),
    )


def _parent(row: RunRow) -> ParentLink | None:
    if not row.parent_run_id:
        return None
    return ParentLink(
        row.parent_session_id, row.parent_run_id, row.parent_call_id, row.parent_depth
    )


def check_session(given: str, found: str, reason: Reason) -> None:
    """Refuses where a caller names another session than the one that was found."""
    if given and given != found:
        raise Refused(reason)
