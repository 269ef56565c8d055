"""The Protocol that every store fulfils, and the records that it takes and gives.

A store knows sessions, rows and bytes, and no rules. What is encoded (hot
state, events, messages, options) is opaque to it. Every list is ordered, total
and stable; every read is one snapshot of committed rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeVar

from runlane_server.core.keys import ApiKey
from runlane_server.core.model import SessionKey, SessionRecord
from runlane_server.core.rows import Row
from runlane_server.core.words import (
    InteractionState,
    Mode,
    NoticeKind,
    Phase,
    PromptKind,
    Route,
    SessionStatus,
    StopReason,
    SubmissionState,
    TimerKind,
    ToolCallState,
)

READ_BYTES = 4 * 1024 * 1024
"""What one read of rows that may be large gives, where the caller says nothing."""

KEPT_METHODS = frozenset({"CreateSession", "ForkSession", "ImportSession"})
"""Methods whose request records stay as long as the session that they made."""

DRAINED_MAX = 10_000
"""Drained executors that are kept: those that were drained last."""

ANSWERED_MAX = 256
"""Answers that a run is told of at most; the newest."""

FEED_SCAN = 4096
"""Rows of all namespaces that one read of the feed looks at."""

# --- what is written -------------------------------------------------------


@dataclass(slots=True)
class EventGroup:
    """The events of one commit of one session, `first` to `last` by sequence.

    Attributes:
        data: The encoded group, opaque to the store.
    """

    first: int
    last: int
    data: bytes


@dataclass(slots=True)
class SessionCommit:
    """What one decision writes to one session.

    Attributes:
        expected_token: The token that the stored state must have; None: the session must
            not exist.
        token: The new token; no other writer can make the same.
        state: The encoded hot state.
        status: For lists, as are `current_run_id` and `update_time`.
        events: None where nothing happened.
        rows: Written in order. Byte fields of rows are in `encoded`.
        encoded: By the index of its row: RunInserted, SubmissionInserted: the encoded
            options; MessageAppended: the whole encoded message where its content or its
            closer is given; else the encoded message without content, to be followed by the
            stored result of its call (`from_call`), or the stored content of its submission.
        size: Bytes of messages, waiting input and events that it adds.
    """

    key: SessionKey
    expected_token: bytes | None
    token: bytes
    state: bytes
    status: SessionStatus
    current_run_id: str
    update_time: int
    events: EventGroup | None = None
    rows: list[Row] = field(default_factory=list)
    encoded: dict[int, bytes] = field(default_factory=dict)
    size: int = 0


@dataclass(slots=True, frozen=True)
class RequestKey:
    """Names a request_id: namespace, method, scope (see the design) and the id."""

    namespace: str
    method: str
    scope: str
    request_id: str


@dataclass(slots=True)
class RequestRecord:
    """The answer that a request_id got.

    Attributes:
        hash: Of the request, to tell another request with the same id.
        answer: Encoded; ids and states only.
    """

    key: RequestKey
    hash: bytes
    answer: bytes
    create_time: int


@dataclass(slots=True)
class CommitUnit:
    """All or none: commits of one or two sessions and the record of their request.

    One that holds nothing tells whether the store takes writes: it is written to disk like
    any other, and leaves nothing.

    Attributes:
        sessions: In order of (namespace, session_id). May be empty.
        unchanged: Sessions that must still have this token and are not written: what a
            no-op with a request_id was decided on.
        drained_executor: (namespace, executor_id) that takes no more activations.
    """

    sessions: list[SessionCommit] = field(default_factory=list)
    request: RequestRecord | None = None
    unchanged: list[tuple[SessionKey, bytes]] = field(default_factory=list)
    drained_executor: tuple[str, str] | None = None


@dataclass(slots=True)
class LeaseRenewal:
    """A heartbeat: sets the end of a lease where activation and epoch still hold it.

    The lease counts as confirmed from then on.
    """

    activation_id: str
    epoch: int
    duration: int
    expire_time: int


Write = CommitUnit | LeaseRenewal


@dataclass(slots=True)
class Committed:
    """It is durable."""


@dataclass(slots=True)
class Conflict:
    """The state it was decided on is not the stored one; nothing was written."""


@dataclass(slots=True)
class Duplicate:
    """The request_id has an answer already; nothing was written."""

    record: RequestRecord


@dataclass(slots=True)
class Rejected:
    """A row broke a constraint; nothing of the unit was written, its neighbours were."""

    detail: str


@dataclass(slots=True)
class Unavailable:
    """The store failed; nothing of the whole batch is to be relied on."""

    detail: str


Outcome = Committed | Conflict | Duplicate | Rejected | Unavailable

# --- what is read ----------------------------------------------------------


@dataclass(slots=True)
class StoreInfo:
    """What the store is.

    Attributes:
        kind: `sqlite`, `memory` or `postgresql`.
        durable: Whether an answered write is on disk.
        epoch: New at each restore of a backup.
        secret: 32 random bytes, made with the store: the key that tokens are derived with.
        shared: Whether others may write to it, too.
    """

    kind: str
    durable: bool
    store_id: str
    epoch: int
    secret: bytes = field(default=b"", repr=False)
    shared: bool = False


@dataclass(slots=True)
class LoadedSession:
    """What a decision starts from. `lease_expire_time` and `_duration` are 0 without a lease."""

    token: bytes
    state: bytes
    lease_expire_time: int
    lease_confirmed: bool = True
    lease_duration: int = 0


@dataclass(slots=True)
class SessionRow:
    """A session as it is shown; `state` is the encoded hot state.

    Attributes:
        source_session_id: Of a fork.
        parent_run_id: Of the session of a child run.
    """

    record: SessionRecord
    state: bytes
    source_session_id: str = ""
    source_run_id: str = ""
    parent_run_id: str = ""


class SessionOrder:
    """Orders of `list_sessions`; equal times are ordered by session_id."""

    CREATED_DESC = 1
    CREATED_ASC = 2
    UPDATED_DESC = 3


@dataclass(slots=True)
class SessionFilter:
    """Which sessions; deleted ones never. Times: from inclusive, before exclusive; 0: none."""

    labels: dict[str, str] = field(default_factory=dict)
    status: SessionStatus | None = None
    create_time_from: int = 0
    create_time_before: int = 0
    roots_only: bool = False
    forks_of: str = ""


@dataclass(slots=True)
class RunRow:
    """A run as it is stored.

    Attributes:
        options: Encoded options.
        state: The session's encoded hot state where the run is live, else None.
        first_sequence: Of the event that its creation appended first.
        last_sequence: Of its terminal event; 0 while it lives.
        usage: msgpack of a map: `usage` (a core Usage), `steps_reserved`,
            `steps_committed`, `tool_calls`; empty while it lives.
        cancellation: msgpack of a core Cancellation; empty: none, or the run lives.
        parent_session_id: Of a child run, as are the three that follow.
        summary_through: Names the summary in force when it ended; 0: none, or the run lives.
    """

    run_id: str
    session_id: str
    submission_id: str
    agent: str
    mode: Mode
    request_id: str
    create_time: int
    first_sequence: int
    message_number: int
    options: bytes
    preview: str
    phase: Phase
    state: bytes | None = None
    stop_reason: StopReason | None = None
    cause: StopReason | None = None
    failure_reason: int = 0
    failure_message: str = ""
    failure_retryable: bool = False
    output_message_number: int = 0
    output_json: str = ""
    message_cutoff: int = 0
    digest: bytes = b""
    end_time: int = 0
    last_sequence: int = 0
    attempt: int = 0
    usage: bytes = b""
    cancellation: bytes = b""
    parent_session_id: str = ""
    parent_run_id: str = ""
    parent_call_id: str = ""
    parent_depth: int = 0
    summary_through: int = 0


@dataclass(slots=True)
class SummaryRow:
    """A summary of the messages 1 to `through`."""

    through: int
    text: str
    model: str
    create_time: int


@dataclass(slots=True)
class SubmissionRow:
    """A submission as it is stored: one that was queued, or one that started a run at once.

    Attributes:
        content: Encoded content; for a delivered one its whole encoded message. Empty where
            it is over a limit that was asked for.
        failure: A SubmissionFailure; 0: none.
        preview: The first 200 characters; empty for a queued one once it is delivered.
    """

    submission_id: str
    session_id: str
    run_id: str
    mode: Mode
    route: Route
    state: SubmissionState
    request_id: str
    create_time: int
    settle_time: int = 0
    failure: int = 0
    message_number: int = 0
    content: bytes = b""
    preview: str = ""


@dataclass(slots=True)
class ToolCallRow:
    """A tool call as it is stored.

    Attributes:
        arguments_json: None where the arguments are malformed.
        result: Encoded: a message that holds nothing but the result, or that of its result
            message; empty: there is none.
        outcome: A ToolOutcome; 0: none yet.
        child_run_id: The child run that answers it; empty: none.
    """

    tool_call_id: str
    run_id: str
    step: int
    ordinal: int
    name: str
    arguments_json: str | None
    state: ToolCallState
    idempotent: bool
    outcome: int
    create_time: int
    settle_time: int
    result: bytes = b""
    child_run_id: str = ""

    @property
    def size(self) -> int:
        """Bytes that it takes, nearly."""
        return len(self.result) + len(self.arguments_json or "")


@dataclass(slots=True)
class InteractionRow:
    """An interaction as it is stored; `prompt` and `answer` are encoded.

    Attributes:
        close_reason: An InteractionClose; 0: none.
        expire_time: 0: never.
        proxy_session_id: Of a proxy, as are the two that follow: the question that it shows.
    """

    interaction_id: str
    run_id: str
    session_id: str
    version: int
    state: InteractionState
    kind: PromptKind
    prompt: bytes
    answer: bytes
    answer_hash: bytes
    close_reason: int
    expire_time: int
    create_time: int
    settle_time: int
    proxy_session_id: str = ""
    proxy_run_id: str = ""
    proxy_interaction_id: str = ""

    @property
    def size(self) -> int:
        """Bytes that it takes, nearly."""
        return len(self.prompt) + len(self.answer)


Sized = TypeVar("Sized", ToolCallRow, InteractionRow)


def fitting(rows: Iterable[Sized], max_bytes: int) -> list[Sized]:
    """Takes rows up to the one that makes them as large as that; the others are not read."""
    taken: list[Sized] = []
    size = 0
    for row in rows:
        taken.append(row)
        size += row.size
        if size >= max_bytes:
            break
    return taken


def without_long_prompts(rows: Iterable[InteractionRow], max_bytes: int) -> list[InteractionRow]:
    """Empties the prompts beyond `max_bytes` in all."""
    found = []
    for row in rows:
        max_bytes -= len(row.prompt)
        if max_bytes < 0:
            row.prompt = b""
        found.append(row)
    return found


@dataclass(slots=True)
class MessageRow:
    """A message as it is stored; `data` is encoded whole."""

    number: int
    data: bytes


class FeedPlace(NamedTuple):
    """A place in the order of all events of a store.

    That of an event is after all whose `feed` is smaller, then by session, then by sequence.
    What a store gives out as `feed` never falls, and is never given out again.
    """

    feed: int
    session_key: int
    sequence: int


FEED_START = FeedPlace(0, 0, 0)
"""Before the first event."""


@dataclass(slots=True)
class FeedGroup:
    """A group of events in the feed; `place` is that of its last event."""

    place: FeedPlace
    session_id: str
    events: EventGroup


@dataclass(slots=True)
class FeedPage:
    """What one read of the feed gives.

    Attributes:
        groups: Of the namespace, in the order of the feed.
        through: All up to this place was looked at; nothing will come before it.
        more: Whether there may be more already: the read came to one of its bounds.
    """

    groups: list[FeedGroup]
    through: FeedPlace
    more: bool


@dataclass(slots=True)
class LiveRows:
    """One snapshot of all that the live state shows.

    Attributes:
        pending: Pending submissions in no particular order.
        messages: The newest messages, ascending.
        interactions: The open ones, oldest first; prompts that are too many bytes are empty.
    """

    session: SessionRow
    run: RunRow | None
    pending: list[SubmissionRow]
    messages: list[MessageRow]
    interactions: list[InteractionRow] = field(default_factory=list)


@dataclass(slots=True)
class Counts:
    """How much of some things there is, up to a limit.

    Attributes:
        sessions: By status, among those that changed last.
        more_sessions: Whether there are more than were counted.
        live_runs: Of those sessions, by phase.
        stalled_runs: Live runs that are stalled.
        open_interactions: But for proxies.
        size: Bytes of the whole store, of all namespaces.
    """

    sessions: dict[SessionStatus, int]
    more_sessions: bool
    live_runs: dict[Phase, int]
    stalled_runs: int
    open_interactions: int
    size: int


@dataclass(slots=True, frozen=True)
class Usage:
    """What a namespace has in the store.

    Attributes:
        sessions: That are not deleted.
        size: The sum of the sizes of their commits: bytes of messages, of input that waits
            or waited in vain, and of events.
    """

    sessions: int
    size: int


@dataclass(slots=True)
class QueuedActivation:
    """An activation that waits for an executor."""

    key: SessionKey
    activation_id: str
    agent: str
    queue_time: int
    not_before: int = 0


@dataclass(slots=True)
class LiveLease:
    """A lease that stands. `agent` is its run's."""

    key: SessionKey
    activation_id: str
    agent: str
    executor_id: str
    expire_time: int


@dataclass(slots=True)
class StoredTimer:
    """A durable timer."""

    key: SessionKey
    kind: TimerKind
    due_time: int


@dataclass(slots=True)
class StoredNotice:
    """What a session is to be told."""

    key: SessionKey
    kind: NoticeKind
    cause: str


@dataclass(slots=True)
class Moves:
    """What other servers have committed.

    Attributes:
        cursor: Where the next read goes on.
        sessions: Sessions with new events, and the sequence of the newest; None: they may be
            any.
        time: The store's, in microseconds since 1970 UTC.
    """

    cursor: str
    sessions: dict[SessionKey, int] | None
    time: int


@dataclass(slots=True)
class Due:
    """What is due, whoever wrote it."""

    timers: list[StoredTimer]
    leases: list[LiveLease]
    notices: list[StoredNotice]


@dataclass(slots=True)
class PollingExecutor:
    """An executor that polls a server, or did."""

    namespace: str
    executor_id: str
    agents: Sequence[str]
    last_poll_time: int
    polling: bool


@dataclass(slots=True)
class Roster:
    """Who works, and for what, on all servers.

    Attributes:
        executors: Those that other servers have seen.
        queued: How many activations wait, and since when the oldest does, by (namespace,
            agent); those that back off do not.
        leased: How many activations an executor has, by (namespace, agent, executor_id).
    """

    executors: list[PollingExecutor]
    queued: dict[tuple[str, str], tuple[int, int]]
    leased: dict[tuple[str, str, str], int]


@dataclass(slots=True)
class SharedBlock:
    """The newest state of a block on its way, for readers on other servers.

    Attributes:
        data: The block, encoded, opaque to the store; empty where it is only named.
        put_time: When it was written, by the store's clock.
        state: The session's encoded hot state, of the same snapshot.
    """

    key: SessionKey
    model_stream_id: str
    block_index: int
    data: bytes = b""
    put_time: int = 0
    state: bytes = b""


class Shared(Protocol):
    """What a store adds that other servers write at the same time."""

    async def tokens(self, keys: Sequence[SessionKey]) -> dict[SessionKey, bytes]:
        """Reads the tokens of the sessions that are there."""

    async def commit_locked(
        self,
        keys: Sequence[SessionKey],
        decide: Callable[[list[LoadedSession | None]], Sequence[CommitUnit]],
    ) -> list[Outcome]:
        """Locks sessions and writes what is decided on them, in one transaction.

        Args:
            keys: All sessions that the writes are about.
            decide: Gives the writes. It may be asked again; what counts is its last answer.

        Returns:
            One outcome for each write; one that is Unavailable may stand for all.
        """

    async def moved(self, cursor: str) -> Moves:
        """Reads what others have committed since a cursor; "": from now on.

        No commit is left out, also not one of a transaction that began long before.
        """

    async def wait_told(self, seconds: float) -> set[str]:
        """Waits until a server tells something, or the time is over; for one caller alone."""

    def tell(self, what: str) -> None:
        """Tells all other servers a word, soon; it may be lost."""

    def hear(self, what: str) -> None:
        """Ends `wait_told` here, as though another server had told a word."""

    async def queued_for(
        self, lanes: Sequence[tuple[str, str]], now: int, limit: int
    ) -> list[QueuedActivation]:
        """Reads up to `limit` activations of each (namespace, agent), oldest first.

        Those that back off beyond `now` are left out.
        """

    async def due(self, before: int, put_before: int, limit: int) -> Due:
        """Reads timers and leases that end, and notices that were put, before a time."""

    async def met(
        self, server: str, executors: Sequence[PollingExecutor], forget_before: int
    ) -> None:
        """Writes which executors a server sees; forgets those that polled last before a time."""

    async def roster(self, server: str, since: int, now: int) -> Roster:
        """Reads who works; `since`: executors of other servers that polled at or after it."""

    async def drained_among(self, names: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """Reads which of these (namespace, executor_id) are drained."""

    async def put_blocks(
        self,
        server: str,
        blocks: Sequence[SharedBlock],
        gone: Sequence[SharedBlock],
        forget_before: int,
    ) -> None:
        """Writes newest states of blocks, beside commits and without waiting for the disk.

        Args:
            server: Who writes.
            blocks: What is new; replaces what was there.
            gone: Blocks that are on their way no more.
            forget_before: Also remove what was written before this time; 0: nothing.
        """

    async def blocks(
        self, server: str, after: Mapping[SessionKey, int], max_bytes: int
    ) -> list[SharedBlock]:
        """Reads what other servers wrote of sessions, each after its `put_time`.

        Ends with the one that makes them `max_bytes` large; the oldest come first.
        """


class Store(Protocol):
    """Sessions, rows and bytes, durable.

    Every method may raise StoreUnavailable or StoreCorrupt. Methods that take a
    session give None, or nothing, where it is not there; a deleted one is there for
    `load` alone, and for `events`, of which a sweep leaves the last group.
    """

    info: StoreInfo

    @property
    def shared(self) -> Shared | None:
        """What it adds where other servers may write it; None: this process has it alone."""

    async def open(self, now: int | None, embedded_prefix: str) -> None:
        """Takes the store for this process, or fails with StoreRefused, nothing changed.

        Migrates an older schema. Where no other server has it open: leases of executors
        whose id starts with `embedded_prefix` belong to a process that is gone: they end at
        `now`. All others may be renewed for one full lease: they end no sooner than `now`
        plus their duration. Beside other servers, which took heartbeats all the time, leases
        stay as they are. Where it cannot be told whether a process is gone, it is not.

        Args:
            now: None: the time where the store is.
            embedded_prefix: Empty: no executor is embedded.
        """

    async def close(self) -> None:
        """Gives the store back; writes in flight are finished first."""

    async def commit(self, batch: Sequence[Write]) -> list[Outcome]:
        """Writes a batch in one transaction; one outcome each, in order.

        Returns after the commit is durable. Later writes of a batch see the earlier ones:
        what was decided on one that was not written gets Conflict.
        """

    async def load(self, key: SessionKey) -> LoadedSession | None:
        """Reads what a decision starts from."""

    async def find_request(self, key: RequestKey) -> RequestRecord | None:
        """Reads the answer of a request_id."""

    async def find_session_of_run(self, namespace: str, run_id: str) -> str | None:
        """Returns the session of a run that exists; also of a terminal one."""

    async def find_session_of_submission(self, namespace: str, submission_id: str) -> str | None:
        """Returns the session of a submission."""

    async def session(self, key: SessionKey) -> SessionRow | None:
        """Reads a session."""

    async def list_sessions(
        self,
        namespace: str,
        where: SessionFilter,
        order: int,
        after: tuple[int, str] | None,
        limit: int,
    ) -> list[SessionRow]:
        """Lists sessions after (time, session_id) in an order of SessionOrder."""

    async def run(self, namespace: str, run_id: str) -> RunRow | None:
        """Reads a run."""

    async def list_runs(
        self,
        key: SessionKey,
        phases: Sequence[Phase],
        after: tuple[int, str] | None,
        limit: int,
    ) -> list[RunRow] | None:
        """Lists runs ascending by (create_time, run_id); `phases` empty: all."""

    async def list_stalled_runs(
        self, namespace: str, after: tuple[int, str] | None, limit: int
    ) -> list[RunRow]:
        """Lists stalled runs of all sessions, ascending by (create_time, run_id)."""

    async def list_child_runs(
        self, namespace: str, run_id: str, after: tuple[int, str] | None, limit: int
    ) -> list[RunRow]:
        """Lists the child runs of a run, ascending by (create_time, run_id)."""

    async def child_sessions(self, key: SessionKey, limit: int) -> list[str]:
        """Reads ids of the sessions of child runs of a session's runs; not deleted ones.

        The session itself may be deleted.
        """

    async def summary(self, key: SessionKey, through: int) -> SummaryRow | None:
        """Reads the summary of a session that covers the messages up to a number."""

    async def notices(self) -> list[StoredNotice]:
        """Reads all notices."""

    async def list_tool_calls(
        self,
        namespace: str,
        run_id: str,
        after: tuple[int, int] | None,
        limit: int,
        max_bytes: int = READ_BYTES,
    ) -> list[ToolCallRow]:
        """Lists the calls of a run, ascending by (step, ordinal).

        Ends with the one that makes them `max_bytes` large.
        """

    async def interaction(self, namespace: str, interaction_id: str) -> InteractionRow | None:
        """Reads an interaction."""

    async def list_interactions(
        self,
        namespace: str,
        session_id: str,
        state: InteractionState,
        after: tuple[int, str] | None,
        limit: int,
        max_bytes: int = READ_BYTES,
    ) -> list[InteractionRow]:
        """Lists interactions, ascending by (create_time, interaction_id).

        "": those of all sessions, but for proxies. Ends with the one that makes them
        `max_bytes` large.
        """

    async def answered_interactions(
        self, namespace: str, run_id: str, step: int, max_bytes: int = READ_BYTES
    ) -> list[InteractionRow]:
        """Reads the newest answered interactions that a run opened after a committed model step.

        Oldest first; at most 256, and up to the one that makes them `max_bytes` large. Proxies
        are none of them.
        """

    async def submission(self, namespace: str, submission_id: str) -> SubmissionRow | None:
        """Reads a submission."""

    async def submission_of_reserved_run(self, namespace: str, run_id: str) -> SubmissionRow | None:
        """Reads the queued submission that the run id is, or was, reserved for."""

    async def list_submissions(
        self,
        key: SessionKey,
        states: Sequence[SubmissionState],
        after: tuple[int, str] | None,
        limit: int,
        content_limit: int,
    ) -> list[SubmissionRow] | None:
        """Lists submissions ascending by (create_time, submission_id).

        Content over `content_limit` bytes is left out.
        """

    async def last_sequence(self, key: SessionKey) -> int | None:
        """Reads the sequence of the newest event; also of a deleted session."""

    async def events(
        self, key: SessionKey, after: int, through: int, max_events: int, max_bytes: int
    ) -> list[EventGroup]:
        """Reads groups that hold events after `after` up to `through`, ascending.

        Stops once it has `max_events` events or `max_bytes`; gives at least one group
        where there is one.
        """

    async def feed(
        self, namespace: str, after: FeedPlace, max_events: int, max_bytes: int
    ) -> FeedPage:
        """Reads groups of all sessions of a namespace that hold events after a place.

        Looks at `FEED_SCAN` rows at most, whoever's they are, and stops once it has
        `max_events` events or `max_bytes`. No later commit comes before what was read: where
        several write, a group is given once all that can come before it is there.
        """

    async def feed_end(self) -> FeedPlace:
        """Returns a place that all that is committed from now on comes after."""

    async def messages(
        self,
        key: SessionKey,
        first: int,
        last: int,
        max_items: int,
        max_bytes: int,
        *,
        descending: bool = False,
    ) -> list[MessageRow]:
        """Reads messages numbered `first` to `last`, ascending or descending.

        Messages that a fork took over are its own here. Stops before it passes
        `max_bytes`, but gives at least one message where there is one.
        """

    async def messages_by_number(self, key: SessionKey, numbers: Sequence[int]) -> list[MessageRow]:
        """Reads these messages, at most 256, ascending."""

    async def live(
        self, key: SessionKey, message_limit: int, max_bytes: int, content_limit: int
    ) -> LiveRows | None:
        """Reads all that the live state shows in one snapshot."""

    async def ancestors(self, key: SessionKey, limit: int) -> list[tuple[str, str]]:
        """Reads (session_id, run_id) of the direct source, its source, and so on."""

    async def counts(self, namespace: str, limit: int) -> Counts:
        """Counts, looking at `limit` rows of a kind at most."""

    async def usage(self, namespace: str) -> Usage:
        """Sums up what the sessions of a namespace take."""

    async def queued_activations(self) -> list[QueuedActivation]:
        """Reads all activations that wait, ascending by queue_time."""

    async def leases(self) -> list[LiveLease]:
        """Reads all leases."""

    async def timers(self) -> list[StoredTimer]:
        """Reads all durable timers."""

    async def drained_executors(self) -> list[tuple[str, str]]:
        """Reads (namespace, executor_id) of the drained executors that are kept, newest last."""

    async def api_keys(
        self,
        live_at: int = 0,
        namespaces: Sequence[str] | None = None,
        after: tuple[int, str] | None = None,
        limit: int = 0,
    ) -> list[ApiKey]:
        """Reads API keys, ascending by (create_time, key_id).

        Args:
            live_at: Only those that open something at this time; 0: ended ones too.
            namespaces: Only those of these; None: of all.
            after: Only those that come later.
            limit: How many; 0: all.
        """

    async def api_key(self, key_id: str) -> ApiKey | None:
        """Reads an API key."""

    async def api_key_of_request(self, request_id: str) -> ApiKey | None:
        """Reads the API key that a request made; `request_id` as the key has it."""

    async def save_api_key(self, key: ApiKey) -> bool:
        """Adds an API key, durable on return; of one that is there, sets revoke_time once.

        Returns:
            False: nothing was written, its request made another key.
        """

    async def sweep(self, key: SessionKey, max_rows: int) -> bool:
        """Removes up to `max_rows` rows of a deleted session; True once none is left.

        Its last group of events stays, which tells that it was deleted. Messages that forks
        show are kept. The last step clears the timer.
        """

    async def expire_requests(self, before: int, max_rows: int) -> int:
        """Removes request records that nothing keeps, made before a time."""

    async def check(self) -> list[str]:
        """Verifies the whole store; returns what is wrong, one line each."""
