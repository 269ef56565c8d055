"""What queries give: records of the domain, ready to be shown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from runlane_server.core.commands import RunFacts, SessionFacts, SubmissionFacts
from runlane_server.core.model import Activation, Command, Fence, Phase, SessionRecord
from runlane_server.store.base import MessageRow

Item = TypeVar("Item")


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
    """

    namespace: str
    actor: str
    method: str = ""
    request_id: str = ""
    request_hash: bytes = b""


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
    """A submission. `content` is encoded; `truncated`: it is left out or cut."""

    facts: SubmissionFacts
    request_id: str = ""
    content: bytes = b""
    truncated: bool = False


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


@dataclass(slots=True)
class ControlView:
    """The control state of a session."""

    run_id: str
    phase: Phase | None
    activation: Activation | None
    cancelling: bool
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
    lease_expire_time: int = 0
    ended: bool = False


@dataclass(slots=True)
class LeasedView:
    """A leased activation and what is needed to go on with its run.

    Attributes:
        reserved_step: A step that is reserved and not committed; 0: none.
        context: The messages where they fit what was asked for, else None.
    """

    fence: Fence
    run: RunView
    reserved_step: int
    context: list[MessageRow] | None
    control: ActivationControl


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
