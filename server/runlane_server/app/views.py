"""What queries give: records of the domain, ready to be shown."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from runlane_server.core.answers import CommitAnswer, RunFacts, SessionFacts, SubmissionFacts
from runlane_server.core.model import (
    Activation,
    Content,
    Fence,
    ParentLink,
    RunOptions,
    SessionRecord,
)
from runlane_server.core.words import Command, Phase
from runlane_server.runtime.quotas import Toll
from runlane_server.store.base import (
    FEED_START,
    Counts,
    FeedPlace,
    InteractionRow,
    MessageRow,
    SummaryRow,
    ToolCallRow,
)

Item = TypeVar("Item")
Given = TypeVar("Given")


@dataclass(slots=True, frozen=True)
class Caller:
    """Who calls.

    Attributes:
        namespace: Where; nothing crosses it.
        actor: For events: `client`, `client:NAME`, `executor:ID`.
        method: The RPC's name, such as Submit.
        request_id: Empty: none.
        request_hash: Hash of the request without request_id and waits; empty without a
            request_id.
        toll: What the call costs its namespace; None: nothing.
        trace: The W3C traceparent of the call, for the runs that come of it; empty: none. It
            is no part of the request.
    """

    namespace: str
    actor: str
    method: str = ""
    request_id: str = ""
    request_hash: bytes = b""
    toll: Toll | None = None
    trace: str = ""


@dataclass(slots=True)
class Result(Generic[Given]):
    """The answer of a command; `replayed`: it is that of an earlier call."""

    answer: Given
    replayed: bool


@dataclass(slots=True)
class ForkRequest:
    """What a fork is asked for; None: as the source has it, or none."""

    display_name: str = ""
    labels: dict[str, str] | None = None
    metadata_json: str | None = None
    default_agent: str | None = None
    input: Content | None = None
    options: RunOptions | None = None


@dataclass(slots=True)
class SessionView:
    """A session."""

    facts: SessionFacts
    record: SessionRecord
    source_session_id: str = ""
    source_run_id: str = ""


@dataclass(slots=True)
class RunView:
    """A run. `options` is encoded."""

    facts: RunFacts
    options: bytes = b""
    preview: str = ""
    failure_message: str = ""
    output_json: str = ""
    digest: bytes = b""


@dataclass(slots=True)
class SubmissionView:
    """A submission. `content` is encoded; `truncated`: it is left out, `preview` tells of it."""

    facts: SubmissionFacts
    request_id: str = ""
    content: bytes = b""
    truncated: bool = False
    preview: str = ""


@dataclass(slots=True)
class LiveView:
    """The live state at `sequence`."""

    session: SessionView
    run: RunView | None
    pending: list[SubmissionView]
    messages: list[MessageRow]
    allowed_commands: list[Command]
    waiting_for_executor: bool
    sequence: int
    interactions: list[InteractionRow]


@dataclass(slots=True)
class ControlView:
    """The control state of a session."""

    run_id: str
    phase: Phase | None
    activation: Activation | None
    cancelling: bool
    pause_requested: bool
    pending_steers: int
    pending_next_runs: int
    allowed_commands: list[Command]
    waiting_for_executor: bool
    as_of_sequence: int


@dataclass(slots=True)
class ActivationControl:
    """What the server asks of an executor. Times in microseconds; 0: none."""

    cancel_requested: bool = False
    cancel_grace_expire_time: int = 0
    pause_requested: bool = False
    lease_expire_time: int = 0
    ended: bool = False


@dataclass(slots=True)
class LeasedView:
    """A leased activation and what is needed to go on with its run.

    Attributes:
        reserved_step: A step that is reserved and not committed; 0: none.
        calls: The open batch.
        answered: Interactions that were answered since the newest model step.
        context: The messages where they fit what was asked for, else None.
        summary: What stands for those that are not among them; None: nothing does.
        trace: The W3C traceparent that the work belongs to; empty: none.
    """

    fence: Fence
    run: RunView
    reserved_step: int
    calls: list[ToolCallRow]
    answered: list[InteractionRow]
    context: list[MessageRow] | None
    control: ActivationControl
    summary: SummaryRow | None = None
    trace: str = ""


@dataclass(slots=True)
class PollView:
    """Answer of a poll; `leased` None: nothing was there."""

    leased: LeasedView | None = None
    draining: bool = False
    fence_lost: bool = False
    sequence: int = 0
    replayed: bool = False


@dataclass(slots=True)
class CommitView:
    """Answer of an executor's commit; `delivered`: messages that it has not written."""

    answer: CommitAnswer
    delivered: list[MessageRow]
    control: ActivationControl
    fence_lost: bool
    replayed: bool
    external_token: str = ""


@dataclass(slots=True)
class HistoryView:
    """The history at the end of a run: `message_count` messages with a digest."""

    run: RunView
    message_count: int
    digest: bytes
    summary: SummaryRow | None


@dataclass(slots=True)
class LineageView:
    """Where a session comes from.

    Attributes:
        ancestors: (session_id, run_id) of the direct source of a fork, its source, and so on.
        parents: Of the session of a child run: its parent, the parent of that, and so on.
    """

    ancestors: list[tuple[str, str]]
    parents: list[ParentLink]


@dataclass(slots=True)
class ServerInfoView:
    """What the server is; `limits` by name, value and unit."""

    version: str
    store_kind: str
    durable: bool
    store_id: str
    store_epoch: int
    features: list[str]
    limits: Sequence[tuple[str, int, str]]


@dataclass(slots=True)
class AgentView:
    """A name that executors poll for. `last_poll_time` 0: not since the server started."""

    name: str
    last_poll_time: int
    executor_count: int
    queued_count: int
    leased_count: int


@dataclass(slots=True)
class Page(Generic[Item]):
    """Items and where the next page starts; None: this was the last."""

    items: Sequence[Item]
    after: tuple[int, str] | None = None


@dataclass(slots=True)
class EventQuery:
    """What a reader of events wants.

    Attributes:
        after: A sequence; None: see `last_events`, else the first event.
        last_events: Start with the newest this many; None: not asked for.
        follow: Go on with what comes.
        run_ids: Only of these runs; empty: all.
        types: Only these kinds, by number; empty: all.
    """

    after: int | None = None
    last_events: int | None = None
    follow: bool = True
    run_ids: frozenset[str] = frozenset()
    types: frozenset[int] = frozenset()
    include_messages: bool = False
    include_deltas: bool = False
    include_control: bool = False


@dataclass(slots=True)
class FeedQuery:
    """What a reader of the feed wants.

    Attributes:
        after: A place; None: the end.
        follow: Go on with what comes.
        types: Only these kinds, by number; empty: all.
    """

    after: FeedPlace | None = FEED_START
    follow: bool = True
    types: frozenset[int] = frozenset()
    include_messages: bool = False


@dataclass(slots=True, frozen=True)
class FeedMark:
    """Where a reader of the feed is."""

    place: FeedPlace
    caught_up: bool
    server_time: int


FeedEvents = list[tuple[FeedPlace, bytes, bytes | None]]
"""Encoded events and where they are, each with its encoded message or None."""


@dataclass(slots=True, frozen=True)
class Gauges:
    """What there is in a server process at one moment.

    Attributes:
        writes_waiting: For a transaction.
        store_away: The store takes no writes.
        hot_sessions: Whose state is kept in memory.
        queued: Activations that wait for an executor; those that back off do not.
        streams: Event streams that are open.
        waits: Calls that wait for the end of a run.
        notices: Not applied yet.
    """

    writes_waiting: int
    store_away: bool
    hot_sessions: int
    streams: int
    waits: int
    leases: int
    queued: int
    queued_oldest_seconds: float
    notices: int


@dataclass(slots=True, frozen=True)
class OverviewView:
    """How a namespace and the server are doing.

    Attributes:
        oldest_queue_time: 0: nothing is queued.
        executors: That polled a short time ago, or poll now.
        quotas: Of the namespace: name, what is used, limit.
    """

    counts: Counts
    queued: int
    oldest_queue_time: int
    leased: int
    executors: int
    streams: int
    store_available: bool
    now: int
    quotas: list[tuple[str, int, int]] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class ExecutorView:
    """What is known of an executor; `last_poll_time` 0: it has not polled."""

    executor_id: str
    agents: list[str]
    last_poll_time: int
    polling: bool
    leased: int
    draining: bool
