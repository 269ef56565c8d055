"""What a decision is given and what it gives, and the steps that all decisions share."""

from collections.abc import Callable
from dataclasses import dataclass, field

from runlane_server.core.admission import allowed_commands
from runlane_server.core.answers import Answer
from runlane_server.core.draft import Draft
from runlane_server.core.drafting import NewId
from runlane_server.core.errors import NotLive, Reason, Refused
from runlane_server.core.model import Rules, Run, SessionKey, SessionRecord, SessionState
from runlane_server.core.rows import Event, EventType, Row, SessionInserted


@dataclass(slots=True)
class Decision:
    """What a command does to one session.

    Attributes:
        state: The new hot state; None: nothing is written.
        answer: None for what is due, and for the second of two sessions.
    """

    state: SessionState | None
    answer: Answer | None
    events: list[Event] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    lease_expire_time: int | None = None
    lease_confirmed: bool = True


@dataclass(slots=True, frozen=True)
class Context:
    """What a decision may use besides state and command.

    Attributes:
        now: Microseconds; never goes back in a session.
        lease_expire_time: Of the live run's lease; 0: none.
        lease_confirmed: Whether anything was heard on it.
        new_id: Makes ids.
        trace: The W3C traceparent of the call; empty: none.
    """

    key: SessionKey
    now: int
    lease_expire_time: int
    new_id: NewId
    rules: Rules
    request_id: str = ""
    lease_confirmed: bool = True
    trace: str = ""


def new_draft(state: SessionState, ctx: Context) -> Draft:
    """Returns a draft of a decision on a session."""
    return Draft(state, ctx.now, ctx.new_id, ctx.rules)


def created_draft(
    ctx: Context, record: SessionRecord, inserted: SessionInserted | None = None
) -> Draft:
    """Returns the draft of a session that is new."""
    state = SessionState(
        ctx.key.namespace, ctx.key.session_id, ctx.now, default_agent=record.default_agent
    )
    draft = Draft(state, ctx.now, ctx.new_id, ctx.rules)
    row = inserted or SessionInserted(record, ctx.now)
    draft.rows.append(row)
    draft.record_changed = True
    draft.state.parent = row.parent
    body = {"parent_run_id": row.parent.run_id} if row.parent is not None else {}
    draft.event(EventType.SESSION_CREATED, message_count=row.message_count, **body)
    return draft


def decided(draft: Draft, answer: Callable[[], Answer] | None) -> Decision:
    """Ends a draft: the next run starts where the lane is free, then the answer is made."""
    draft.promote()
    draft.tell_parent()
    draft.finish()
    return Decision(draft.state, answer() if answer is not None else None, draft.events, draft.rows)


def present_session(state: SessionState | None) -> SessionState:
    """Returns the session where there is one that is not deleted."""
    if state is None or state.deleted:
        raise Refused(Reason.SESSION_NOT_FOUND)
    return state


def named_run(state: SessionState | None, run_id: str) -> tuple[SessionState, Run]:
    """Returns the live run where it is the one that is named, or none is."""
    if run_id and (state is None or state.deleted):
        raise Refused(Reason.RUN_NOT_FOUND)
    present = present_session(state)
    run = present.run
    if run_id and (run is None or run.run_id != run_id):
        raise NotLive
    if run is None:
        raise Refused(Reason.SESSION_IDLE, allowed_commands=allowed_words(present))
    return present, run


def cancelling(run: Run) -> Refused:
    """Returns the refusal of what a run that is being cancelled, or ends, takes no longer."""
    refused = Refused(Reason.RUN_CANCELLING, run_id=run.run_id)
    if run.ending is not None:
        refused.metadata["cause"] = run.ending.stop_reason.name
    return refused


def child_session(state: SessionState) -> Refused:
    """Returns the refusal of what the session of a child run does not take."""
    parent = state.parent
    return Refused(Reason.CHILD_SESSION, parent_run_id=parent.run_id if parent is not None else "")


def allowed_words(state: SessionState) -> str:
    """Returns the allowed commands as metadata of a refusal."""
    return ",".join(word.name for word in allowed_commands(state))


def exists(state: SessionState) -> Refused:
    """Returns the refusal of what would make a session that there is, or was."""
    return Refused(
        Reason.SESSION_EXISTS,
        session_id=state.session_id,
        deleted="true" if state.deleted else "false",
    )
