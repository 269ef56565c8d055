"""The use cases as the servicers call them."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from runlane_server.app.archives import Exported
from runlane_server.app.views import (
    ActivationControl,
    AgentView,
    Caller,
    CommitView,
    EventQuery,
    ExecutorView,
    FeedEvents,
    FeedMark,
    FeedQuery,
    ForkRequest,
    HistoryView,
    LineageView,
    LiveView,
    OverviewView,
    Page,
    PollView,
    Result,
    RunView,
    ServerInfoView,
    SessionView,
    SubmissionView,
)
from runlane_server.core.answers import (
    DrainAnswer,
    ForkAnswer,
    ImportAnswer,
    InteractionAnswered,
    PauseAnswer,
    RestoreAnswer,
    RunAnswer,
    RunFacts,
    SessionAnswer,
    SubmitAnswer,
)
from runlane_server.core.archives import Archive
from runlane_server.core.commands import (
    AnswerInteraction,
    CloseSession,
    CommitRun,
    CreateSession,
    DeleteSession,
    ReopenSession,
    RestoreRun,
    SettleRun,
    Submit,
    UpdateSession,
)
from runlane_server.core.model import Delta, Fence
from runlane_server.core.words import InteractionState, Phase, SubmissionState
from runlane_server.runtime.quotas import Quotas
from runlane_server.store.base import (
    InteractionRow,
    MessageRow,
    SessionFilter,
    SummaryRow,
    ToolCallRow,
)

Cursor = tuple[int, str]
SessionDone = tuple[Result[SessionAnswer], SessionView]


class AppPort(Protocol):
    """What a server of this contract can do. Every method may raise Refused."""

    async def create_session(
        self, caller: Caller, session_id: str, command: CreateSession, /
    ) -> SessionDone:
        """Creates a session; `session_id` empty: the app makes one."""

    async def update_session(
        self, caller: Caller, session_id: str, command: UpdateSession, /
    ) -> SessionDone:
        """Changes the record of a session."""

    async def close_session(
        self, caller: Caller, session_id: str, command: CloseSession, /
    ) -> SessionDone:
        """Closes a session."""

    async def reopen_session(
        self, caller: Caller, session_id: str, command: ReopenSession, /
    ) -> SessionDone:
        """Opens a session again."""

    async def delete_session(
        self, caller: Caller, session_id: str, command: DeleteSession, /
    ) -> Result[SessionAnswer]:
        """Deletes a session."""

    async def submit(
        self, caller: Caller, session_id: str, command: Submit, /
    ) -> Result[SubmitAnswer]:
        """Gives a session an input."""

    async def withdraw(
        self, caller: Caller, session_id: str, submission_id: str, /
    ) -> Result[SubmitAnswer]:
        """Takes back a pending input."""

    async def interrupt(
        self, caller: Caller, session_id: str, run_id: str, reason: str, wait: float, /
    ) -> tuple[Result[RunAnswer], RunFacts]:
        """Asks for a run to be cancelled and waits for it; also what the run is now."""

    async def pause_run(
        self, caller: Caller, session_id: str, run_id: str, /
    ) -> Result[PauseAnswer]:
        """Stops a run at a boundary, or at once where nobody has it."""

    async def unpause_run(
        self, caller: Caller, session_id: str, run_id: str, /
    ) -> Result[PauseAnswer]:
        """Takes a pause, or the request for one, back."""

    async def find_interaction(
        self, namespace: str, run_id: str, interaction_id: str, /
    ) -> InteractionRow:
        """Reads the interaction that an answer names."""

    async def find_external(self, token: str, /) -> tuple[str, InteractionRow]:
        """Reads the interaction that a token completes."""

    async def answer_interaction(
        self, caller: Caller, row: InteractionRow, command: AnswerInteraction, /
    ) -> Result[InteractionAnswered]:
        """Answers an interaction."""

    async def restore_run(self, caller: Caller, command: RestoreRun, /) -> Result[RestoreAnswer]:
        """Brings back a run whose executor was lost."""

    async def settle_run(self, caller: Caller, command: SettleRun, /) -> Result[RunAnswer]:
        """Ends a live run by hand."""

    async def fork(
        self, caller: Caller, source_run_id: str, session_id: str, request: ForkRequest, /
    ) -> tuple[Result[ForkAnswer], SessionView]:
        """Forks a session at the end of a run."""

    async def poll(
        self,
        caller: Caller,
        executor_id: str,
        agents: Sequence[str],
        wait: float,
        lease_duration: int,
        context_bytes_max: int,
        /,
    ) -> PollView:
        """Waits for an activation and leases it."""

    async def drain_executor(self, caller: Caller, executor_id: str, /) -> Result[DrainAnswer]:
        """Gives an executor no more activations."""

    async def heartbeat(
        self, caller: Caller, fence: Fence, lease_duration: int, /
    ) -> ActivationControl:
        """Renews a lease."""

    async def commit(self, caller: Caller, command: CommitRun, /) -> CommitView:
        """Commits facts under a fence."""

    def watch_activation(self, caller: Caller, fence: Fence, /) -> AsyncIterator[ActivationControl]:
        """Tells the control of an activation, at once and at each change."""

    def model_context(
        self, caller: Caller, fence: Fence, after: int, /
    ) -> AsyncIterator[SummaryRow | bytes | int]:
        """Gives a summary where there is one, frames of messages, and at last their count."""

    async def publish_deltas(self, caller: Caller, fence: Fence, deltas: list[Delta], /) -> int:
        """Passes on deltas; returns how many were taken."""

    async def get_session(self, namespace: str, session_id: str, /) -> SessionView:
        """Reads a session."""

    async def list_sessions(
        self, namespace: str, where: SessionFilter, order: int, after: Cursor | None, limit: int, /
    ) -> Page[SessionView]:
        """Lists sessions."""

    async def get_run(self, namespace: str, run_id: str, session_id: str, /) -> RunView:
        """Reads a run."""

    async def list_runs(
        self,
        namespace: str,
        session_id: str,
        phases: Sequence[Phase],
        after: Cursor | None,
        limit: int,
        /,
    ) -> Page[RunView]:
        """Lists the runs of a session."""

    async def list_child_runs(
        self, namespace: str, run_id: str, after: Cursor | None, limit: int, /
    ) -> Page[RunView]:
        """Lists the direct child runs of a run."""

    async def wait_run(
        self, namespace: str, run_id: str, session_id: str, wait: float, include_output: bool, /
    ) -> tuple[RunView | None, MessageRow | None]:
        """Waits for a run to end."""

    async def get_submission(
        self, namespace: str, submission_id: str, session_id: str, /
    ) -> SubmissionView:
        """Reads a submission."""

    async def list_submissions(
        self,
        namespace: str,
        session_id: str,
        states: Sequence[SubmissionState],
        after: Cursor | None,
        limit: int,
        /,
    ) -> Page[SubmissionView]:
        """Lists the submissions of a session."""

    async def list_stalled_runs(
        self, namespace: str, after: Cursor | None, limit: int, /
    ) -> Page[RunView]:
        """Lists stalled runs."""

    async def list_tool_calls(
        self, namespace: str, run_id: str, after: tuple[int, int] | None, limit: int, /
    ) -> tuple[list[ToolCallRow], tuple[int, int] | None]:
        """Lists the calls of a run; also the step and ordinal that the next page is after."""

    async def list_interactions(
        self,
        namespace: str,
        session_id: str,
        state: InteractionState,
        after: Cursor | None,
        limit: int,
        /,
    ) -> Page[InteractionRow]:
        """Lists interactions of one session, or of all."""

    async def fork_points(
        self, namespace: str, session_id: str, after: Cursor | None, limit: int, /
    ) -> Page[RunView]:
        """Lists the terminal runs of a session."""

    async def lineage(
        self, namespace: str, session_id: str, after: Cursor | None, limit: int, /
    ) -> tuple[Page[SessionView], LineageView]:
        """Lists the forks of a session; also where it comes from."""

    async def live_state(
        self, namespace: str, session_id: str, message_limit: int, min_sequence: int, /
    ) -> LiveView:
        """Reads the live state."""

    async def list_events(
        self,
        namespace: str,
        session_id: str,
        run_id: str,
        after: int,
        types: frozenset[int],
        include_messages: bool,
        limit: int,
        /,
    ) -> tuple[list[tuple[bytes, bytes | None]], int | None]:
        """Lists events of a session or a run; also the sequence the next page is after."""

    async def list_messages(
        self,
        namespace: str,
        session_id: str,
        after: int | None,
        before: int | None,
        roles: frozenset[int],
        limit: int,
        /,
    ) -> tuple[list[MessageRow], int | None]:
        """Lists messages; also the number that the next page is after, or before."""

    def export_session(
        self, namespace: str, session_id: str, include_events: bool, /
    ) -> AsyncIterator[Exported]:
        """Gives what an archive of a session holds."""

    def begin_import(self) -> None:
        """Counts an import in."""

    def end_import(self) -> None:
        """Counts an import out."""

    @property
    def import_limits(self) -> tuple[int, int, int]:
        """Bytes, messages and runs that an archive may have."""

    @property
    def import_silence(self) -> float:
        """Seconds that may pass between two requests of an import."""

    async def import_session(
        self, caller: Caller, session_id: str, archive: Archive, /
    ) -> tuple[Result[ImportAnswer], SessionView]:
        """Makes a session of an archive; `session_id` empty: the app makes one."""

    def stream_events(
        self, namespace: str, session_id: str, query: EventQuery, /
    ) -> AsyncIterator[bytes]:
        """Streams frames of StreamEvents."""

    def stream_run_events(
        self,
        namespace: str,
        run_id: str,
        session_id: str,
        after_run_sequence: int,
        follow: bool,
        include_messages: bool,
        /,
    ) -> AsyncIterator[bytes]:
        """Streams frames of StreamRunEvents."""

    def stream_messages(
        self, namespace: str, session_id: str, after: int, /
    ) -> AsyncIterator[bytes]:
        """Streams frames of messages."""

    async def history_at_run(
        self, namespace: str, run_id: str, session_id: str, /
    ) -> tuple[HistoryView, AsyncIterator[bytes]]:
        """Reads the history at a run; then frames of its messages."""

    def stream_feed(
        self, namespace: str, query: FeedQuery, /
    ) -> AsyncIterator[FeedEvents | FeedMark]:
        """Streams the events of all sessions, and where the reader is."""

    async def list_agents(
        self, namespace: str, after: str, limit: int, /
    ) -> tuple[list[AgentView], str | None]:
        """Lists agents by name; also the name that the next page is after."""

    async def overview(self, namespace: str, /) -> OverviewView:
        """Counts what there is."""

    async def list_executors(
        self, namespace: str, after: str, limit: int, /
    ) -> tuple[list[ExecutorView], str | None]:
        """Lists executors by id; also the id that the next page is after."""

    @property
    def quotas(self) -> Quotas | None:
        """The quotas of namespaces; None: there are none."""

    def ready(self) -> bool:
        """Whether the store takes writes."""

    def server_info(self, namespace: str = "", /) -> ServerInfoView:
        """Describes the server, with the limits of a namespace where one is named."""

    def drain(self) -> None:
        """Ends all streams and waits."""
