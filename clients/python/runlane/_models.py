"""The records of the service, as frozen models. Times are aware and in UTC."""

from collections.abc import Mapping
from datetime import datetime
from typing import Generic, TypeVar

from runlane._content import Block, Message, Record, text_of
from runlane._enums import (
    Command,
    Durability,
    PauseReceipt,
    RestoreOutcome,
    SessionState,
    StopReason,
    SubmissionFailure,
    SubmissionState,
    SubmitMode,
    SubmitRoute,
)
from runlane._interactions import Interaction
from runlane._run_models import ParentRun, Run

_T = TypeVar("_T")


class ForkSource(Record):
    """Where a forked session comes from.

    Attributes:
        session_id: The session that was forked.
        run_id: The run at whose end it was forked.
    """

    session_id: str
    run_id: str


class Session(Record):
    """A conversation.

    Attributes:
        session_id: Its id.
        display_name: Name for people; may be empty.
        labels: Labels to list sessions by.
        metadata_json: A JSON object of the application; empty means none.
        default_agent: Agent of runs that name none.
        state: Whether it takes new input.
        current_run_id: The live run; None while it is idle.
        message_count: Number of committed messages.
        forked_from: The direct source of a fork.
        revision: Grows by one with each change of messages or record.
        etag: Tag of the record, for `Client.update_session`.
        create_time: When it was created.
        update_time: When the revision last grew.
        parent_run_id: Of the session of a child run, the run that started it.
        compacted_through: Number of the last message that its summary covers; None: it has none.
    """

    session_id: str
    display_name: str
    labels: Mapping[str, str]
    metadata_json: str
    default_agent: str
    state: SessionState
    current_run_id: str | None
    message_count: int
    forked_from: ForkSource | None
    revision: int
    etag: str
    create_time: datetime | None
    update_time: datetime | None
    parent_run_id: str | None
    compacted_through: int | None


class Submission(Record):
    """One accepted input and what became of it.

    Attributes:
        submission_id: Its id.
        session_id: The session that took it.
        run_id: The run it steers or becomes; of a pending next run a reserved id.
        mode: What was asked.
        route: What was done.
        state: How far it has come.
        failure_reason: Why it failed.
        content: The input; may be left out.
        content_truncated: Whether `content` is not the whole.
        message_number: Number of its message; None until that is in the history.
        metadata: Entries of the application.
        request_id: The request id it was submitted with.
        create_time: When it was accepted.
        settle_time: When it reached its end.
    """

    submission_id: str
    session_id: str
    run_id: str
    mode: SubmitMode
    route: SubmitRoute
    state: SubmissionState
    failure_reason: SubmissionFailure | None
    content: tuple[Block, ...]
    content_truncated: bool
    message_number: int | None
    metadata: Mapping[str, str]
    request_id: str
    create_time: datetime | None
    settle_time: datetime | None

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return text_of(self.content)


class Receipt(Record):
    """The answer to an input: it is accepted and durable.

    Attributes:
        submission_id: Its id.
        session_id: The session that took it.
        run_id: The run it steers or becomes; of a pending next run a reserved id.
        mode: What was asked.
        route: What was done.
        state: `delivered` where a run was started, else `pending`.
        sequence: The session's sequence after the call.
        session_created: Whether the session was created by it.
        replayed: Whether it repeats the answer to an earlier call of the same request id.
    """

    submission_id: str
    session_id: str
    run_id: str
    mode: SubmitMode
    route: SubmitRoute
    state: SubmissionState
    sequence: int
    session_created: bool
    replayed: bool


class Interruption(Record):
    """The answer to a request to cancel a run.

    Attributes:
        run: The run.
        settled: Whether it has ended.
        sequence: The session's sequence after the request was taken.
        replayed: Whether it repeats the answer to an earlier call of the same request id.
    """

    run: Run
    settled: bool
    sequence: int
    replayed: bool


class Pausing(Record):
    """The answer to a request to pause or unpause a run.

    Attributes:
        receipt: What became of it.
        run: The run.
        sequence: The session's sequence after the call.
        replayed: Whether it repeats the answer to an earlier call of the same request id.
    """

    receipt: PauseReceipt
    run: Run
    sequence: int
    replayed: bool


class Answered(Record):
    """The receipt of an answer to an interaction: it is stored, and its run goes on.

    Attributes:
        run_id: The run.
        interaction_id: The interaction.
        interaction: The interaction, without its prompt.
        run: The run; None where another system answered with a token.
        sequence: The session's sequence after the call.
        replayed: Whether it repeats the answer to an earlier call of the same request id.
    """

    run_id: str
    interaction_id: str
    interaction: Interaction
    run: Run | None
    sequence: int
    replayed: bool


class Restoration(Record):
    """The answer to a request to bring back a run.

    Attributes:
        outcome: What became of it.
        run: The run.
        sequence: The session's sequence after the call.
        replayed: Whether it repeats the answer to an earlier call of the same request id.
    """

    outcome: RestoreOutcome
    run: Run
    sequence: int
    replayed: bool


class LiveState(Record):
    """One consistent read of a session.

    Attributes:
        session: The session's record.
        run: The live run; None while the session is idle.
        open_interactions: What the live run waits for.
        pending: Steers, then next runs, each in the order in which they will be delivered.
        messages: The newest messages, ascending.
        first_message_number: Number of the first of them; None where there is none.
        allowed_commands: What the session would accept.
        waiting_for_executor: Whether the live run waits and nobody polls for its agent.
        sequence: The sequence at which all of this is true; go on from it with events.
    """

    session: Session
    run: Run | None
    open_interactions: tuple[Interaction, ...]
    pending: tuple[Submission, ...]
    messages: tuple[Message, ...]
    first_message_number: int | None
    allowed_commands: tuple[Command, ...]
    waiting_for_executor: bool
    sequence: int


class Page(Record, Generic[_T]):
    """A part of a list.

    Attributes:
        items: What is on it.
        next_cursor: Pass it as `after` for the next page; None on the last one.
    """

    items: tuple[_T, ...]
    next_cursor: str | None


class ForkPoint(Record):
    """A terminal run, at whose end a session can be forked.

    Attributes:
        run_id: The run.
        session_id: Its session.
        agent: Its agent.
        stop_reason: Why it ended.
        message_count: Number of messages of the session at its end.
        input_preview: The first 200 characters of its input.
        create_time: When it was created.
        end_time: When it ended.
    """

    run_id: str
    session_id: str
    agent: str
    stop_reason: StopReason
    message_count: int
    input_preview: str
    create_time: datetime | None
    end_time: datetime | None


class Summary(Record):
    """What stands for the first messages of a history when a model is asked.

    Attributes:
        text: The summary.
        through_message_number: Number of the last message that it covers.
        model: The model that wrote it, as its executor named it.
        create_time: When it was recorded.
    """

    text: str
    through_message_number: int
    model: str
    create_time: datetime | None


class HistoryAtRun(Record):
    """The whole committed history at the end of a run.

    Attributes:
        run: The run.
        messages: The messages, from the first of the session.
        digest: Histories with equal digests hold the same messages.
        summary: What the model saw in place of the first messages when the run ended; None:
            it saw them.
    """

    run: Run
    messages: tuple[Message, ...]
    digest: str
    summary: Summary | None


class Fork(Record):
    """A session that was forked.

    Attributes:
        session: The new session.
        forked_from_run_id: The run at whose end it was forked.
        message_count: Number of messages that it took over.
        digest: Digest of those, as in `HistoryAtRun`.
        submission: Its first input; None where none was given.
        sequence: The new session's sequence after the call.
        replayed: Whether it repeats the answer to an earlier call of the same request id.
    """

    session: Session
    forked_from_run_id: str
    message_count: int
    digest: str
    submission: Receipt | None
    sequence: int
    replayed: bool

    @property
    def session_id(self) -> str:
        """The id of the new session."""
        return self.session.session_id


class Lineage(Record):
    """Where a session comes from and which sessions were forked from it.

    Attributes:
        ancestors: From the direct source to the root.
        forks: A page of the sessions that were forked from it directly.
        parents: Of the session of a child run: from its parent to the top-level run.
    """

    ancestors: tuple[ForkSource, ...]
    parents: tuple[ParentRun, ...]
    forks: Page[Session]


class AgentStatus(Record):
    """A name that executors poll for.

    Attributes:
        name: The name.
        last_poll_time: When an executor last polled for it; None where none did.
        executor_count: Executors that polled for it within the last 60 s, or poll now.
        queued_count: Activations that wait.
        leased_count: Activations that executors have.
    """

    name: str
    last_poll_time: datetime | None
    executor_count: int
    queued_count: int
    leased_count: int


class ExecutorStatus(Record):
    """What is known of an executor.

    Attributes:
        executor_id: Its id.
        agents: The agents that it polled for last; empty where it has not polled since the
            server was started.
        last_poll_time: When its last poll ended, or began where it polls now.
        polling: Whether it polls now.
        leased_count: Activations that it has.
        draining: Whether it takes no more activations.
    """

    executor_id: str
    agents: tuple[str, ...]
    last_poll_time: datetime | None
    polling: bool
    leased_count: int
    draining: bool


class QuotaUsage(Record):
    """How much of a quota is used.

    Attributes:
        used: Items, or bytes; some seconds old where other servers have the store too.
        limit: What may be used.
    """

    used: int
    limit: int


class Overview(Record):
    """How a server is doing.

    Sessions and live runs are counted among the 10,000 sessions that changed last, stalled
    runs and interactions up to 10,000.

    Attributes:
        more_sessions: Whether there are more sessions than were counted.
        active_run_count: Live runs that are active, stalled ones too.
        open_interaction_count: Questions that wait for an answer.
        queued_activation_count: Activations that wait for an executor.
        oldest_queued_seconds: How long the oldest of them has waited; None: there is none.
        leased_activation_count: Activations that executors have.
        executor_count: Executors that polled within the last 60 s, or poll now.
        stream_count: Event streams and watches that are open.
        store_size_bytes: The whole store on disk, its log included.
        store_available: Whether the store takes writes.
        server_time: The time of the server.
        quotas: What the namespace has of what it has a quota of, by the quota's name:
            sessions_max, open_streams_max, stored_bytes_max.
    """

    open_session_count: int
    closed_session_count: int
    more_sessions: bool
    active_run_count: int
    waiting_run_count: int
    paused_run_count: int
    stalled_run_count: int
    open_interaction_count: int
    queued_activation_count: int
    oldest_queued_seconds: float | None
    leased_activation_count: int
    executor_count: int
    stream_count: int
    store_size_bytes: int
    store_available: bool
    server_time: datetime | None
    quotas: Mapping[str, QuotaUsage] = {}


class Limit(Record):
    """A limit of the server.

    Attributes:
        value: Its value.
        unit: What it counts: bytes, seconds, milliseconds, items.
    """

    value: int
    unit: str


class ServerInfo(Record):
    """What the server is and which limits it holds.

    Attributes:
        version: Version of the server.
        store_kind: Kind of store: `sqlite` or `memory`.
        durability: How durable an answered write is.
        store_id: Id of the store.
        store_epoch: New at each restore of a backup.
        features: What it can do beyond the base contract.
        limits: Every limit that a client can meet, by name.
    """

    version: str
    store_kind: str
    durability: Durability
    store_id: str
    store_epoch: int
    features: tuple[str, ...]
    limits: Mapping[str, Limit]
