"""A decision in the making: a copy of the hot state, and what it appends.

The base of `draft.Draft`: events, messages, and what settles at the end.
"""

import hashlib
from collections.abc import Callable
from typing import Any

from runlane_server.core.answers import RunFacts, SessionFacts
from runlane_server.core.model import Rules, Run, SessionState
from runlane_server.core.rows import Event, EventType, MessageAppended, Row
from runlane_server.core.words import ActivationState

NewId = Callable[[str], str]
"""Makes an id from its prefix (`run`, `sub`, `act`, `mst`); passed in, so that the core has
no randomness."""


class DraftBase:
    """A copy of one session's hot state and all that a decision appends to it."""

    __slots__ = ("ended", "events", "new_id", "now", "record_changed", "rows", "rules", "state")

    def __init__(self, state: SessionState, now: int, new_id: NewId, rules: Rules) -> None:
        self.state = state.copy()
        self.now = max(now, state.last_time)
        self.new_id = new_id
        self.rules = rules
        self.events: list[Event] = []
        self.rows: list[Row] = []
        self.record_changed = False
        self.ended: RunFacts | None = None
        self.state.last_time = self.now

    # --- events and messages -----------------------------------------------

    def event(self, kind: EventType, run_id: str = "", /, **body: Any) -> Event:
        """Appends an event; of the live run it names activation and attempt."""
        state = self.state
        state.sequence += 1
        event = Event(kind, state.sequence, self.now, run_id, body=body)
        run = state.run
        if run is not None and run.run_id == run_id:
            run.run_sequence += 1
            event.run_sequence = run.run_sequence
            event.attempt = run.attempt
            if run.activation is not None:
                event.activation_id = run.activation.activation_id
        self.events.append(event)
        return event

    def keep(self, row: MessageAppended, content_hash: bytes) -> None:
        """Appends a message without an event; the digest is chained over all that it says."""
        state = self.state
        state.message_count = row.number
        head = f"{row.role:d}:{row.author:d}:{row.run_id}:{row.submission_id}:{row.step}:"
        state.digest = hashlib.sha256(state.digest + head.encode() + content_hash).digest()
        self.rows.append(row)

    def message(self, row: MessageAppended, content_hash: bytes) -> None:
        """Appends a message and its event."""
        self.keep(row, content_hash)
        body: dict[str, Any] = {"number": row.number, "role": row.role, "author": row.author}
        if row.step:
            body["step"] = row.step
        if row.submission_id:
            body["submission_id"] = row.submission_id
        if row.model_stream_id:
            body["model_stream_id"] = row.model_stream_id
        event = self.event(EventType.MESSAGE_APPENDED, row.run_id, **body)
        event.message_number = row.number

    def finish(self) -> None:
        """Settles what depends on the whole: revision and update time."""
        if self.record_changed or any(isinstance(row, MessageAppended) for row in self.rows):
            self.state.revision += 1
            self.state.update_time = self.now

    def live(self) -> Run:
        """Returns the live run; the caller has seen that there is one."""
        run = self.state.run
        assert run is not None, "the caller has seen a live run"  # noqa: S101 - invariant
        return run


def live_run_facts(state: SessionState) -> RunFacts:
    """Returns the facts of a session's live run."""
    run = state.run
    assert run is not None, "the caller has seen a live run"  # noqa: S101 - invariant
    activation = run.activation
    return RunFacts(
        run.run_id,
        state.session_id,
        run.submission_id,
        run.agent,
        run.phase,
        run.attempt,
        run.position,
        run.create_time,
        run.usage,
        run.steps_reserved,
        run.steps_committed,
        activation=activation,
        cancellation=run.cancellation,
        output_message_number=run.output_message_number,
        tool_calls=run.tool_calls,
        deadline_time=run.deadline_time,
        interaction_id=run.wait.interaction_id if run.wait is not None else "",
        pause_requested=run.pause_requested,
        stalled=activation is not None and activation.state is ActivationState.ABANDONED,
        recoveries=run.recoveries,
        parent=state.parent,
        children_wait=run.children_wait,
        ending_cause=run.ending.stop_reason if run.ending is not None else None,
        live_children=len(run.children),
    )


def session_facts(state: SessionState) -> SessionFacts:
    """Returns the facts of a session."""
    return SessionFacts(
        state.session_id,
        state.status,
        state.revision,
        state.etag,
        state.message_count,
        state.run.run_id if state.run is not None else "",
        state.create_time,
        state.update_time,
        state.parent.run_id if state.parent is not None else "",
        state.compacted_through,
    )
