"""Reads: committed rows, never the cache."""

from collections.abc import Sequence

from runlane_server.app.base import UseCase, check_session, run_view, session_view, submission_facts
from runlane_server.app.views import (
    AgentView,
    LineageView,
    LiveView,
    Page,
    RunView,
    SessionView,
    SubmissionView,
)
from runlane_server.app.waiting import wait_for_end
from runlane_server.core.admission import allowed_commands
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import ParentLink, SessionKey, SessionState
from runlane_server.core.words import ActivationState, Phase, SubmissionState
from runlane_server.runtime.codec import StoredEvent
from runlane_server.runtime.records import decode_state
from runlane_server.store.base import (
    MessageRow,
    SessionFilter,
    SessionOrder,
    SubmissionRow,
)

PAGE_BYTES = 2 * 1024 * 1024
LIVE_MESSAGE_BYTES = 2 * 1024 * 1024
PENDING_CONTENT_BYTES = 4096
WHOLE = 4 * 1024 * 1024
ANCESTORS_MAX = 100


class Queries(UseCase):
    """Reads of sessions, runs, submissions and messages."""

    async def get_session(self, namespace: str, session_id: str) -> SessionView:
        """Reads a session."""
        row = await self.services.store.session(SessionKey(namespace, session_id))
        if row is None:
            raise Refused(Reason.SESSION_NOT_FOUND)
        return session_view(row)

    async def list_sessions(
        self,
        namespace: str,
        where: SessionFilter,
        order: int,
        after: tuple[int, str] | None,
        limit: int,
    ) -> Page[SessionView]:
        """Lists sessions."""
        rows = await self.services.store.list_sessions(namespace, where, order, after, limit + 1)
        views = [session_view(row) for row in rows[:limit]]
        updated = order == SessionOrder.UPDATED_DESC
        cursor = None
        if len(rows) > limit:
            last = views[-1].facts
            cursor = (last.update_time if updated else last.create_time, last.session_id)
        return Page(views, cursor)

    async def get_run(self, namespace: str, run_id: str, session_id: str) -> RunView:
        """Reads a run."""
        return run_view(await self._run_row(namespace, run_id, session_id))

    async def list_runs(
        self,
        namespace: str,
        session_id: str,
        phases: Sequence[Phase],
        after: tuple[int, str] | None,
        limit: int,
    ) -> Page[RunView]:
        """Lists the runs of a session, ascending by creation."""
        key = SessionKey(namespace, session_id)
        rows = await self.services.store.list_runs(key, phases, after, limit + 1)
        if rows is None:
            raise Refused(Reason.SESSION_NOT_FOUND)
        cursor = (rows[limit - 1].create_time, rows[limit - 1].run_id) if rows[limit:] else None
        return Page([run_view(row) for row in rows[:limit]], cursor)

    async def fork_points(
        self, namespace: str, session_id: str, after: tuple[int, str] | None, limit: int
    ) -> Page[RunView]:
        """Lists the terminal top-level runs of a session, ascending by creation."""
        page = await self.list_runs(namespace, session_id, [Phase.TERMINAL], after, limit)
        # The session of a child run has that run alone.
        return Page([one for one in page.items if one.facts.parent is None], page.after)

    async def list_child_runs(
        self, namespace: str, run_id: str, after: tuple[int, str] | None, limit: int
    ) -> Page[RunView]:
        """Lists the direct child runs of a run, ascending by creation."""
        await self._run_row(namespace, run_id)
        rows = await self.services.store.list_child_runs(namespace, run_id, after, limit + 1)
        cursor = (rows[limit - 1].create_time, rows[limit - 1].run_id) if rows[limit:] else None
        return Page([run_view(row) for row in rows[:limit]], cursor)

    async def wait_run(
        self, namespace: str, run_id: str, session_id: str, wait: float, include_output: bool
    ) -> tuple[RunView | None, MessageRow | None]:
        """Waits for a run to end, `wait` seconds at most; None: its id is only reserved."""
        store = self.services.store
        found = await store.find_session_of_run(namespace, run_id)
        if found is None:
            reserved = await store.submission_of_reserved_run(namespace, run_id)
            if reserved is None:
                raise Refused(Reason.RUN_NOT_FOUND)
            found = reserved.session_id
        check_session(session_id, found, Reason.RUN_NOT_FOUND)
        key = SessionKey(namespace, found)
        row = await wait_for_end(self.services, key, run_id, wait)
        if row is None:
            return None, None
        output = None
        if include_output and row.output_message_number:
            messages = await store.messages_by_number(key, [row.output_message_number])
            output = messages[0] if messages else None
        return run_view(row), output

    async def get_submission(
        self, namespace: str, submission_id: str, session_id: str
    ) -> SubmissionView:
        """Reads a submission, whole."""
        row = await self.services.store.submission(namespace, submission_id)
        if row is None:
            raise Refused(Reason.SUBMISSION_NOT_FOUND)
        check_session(session_id, row.session_id, Reason.SUBMISSION_NOT_FOUND)
        return submission_view(row, WHOLE)

    async def list_submissions(
        self,
        namespace: str,
        session_id: str,
        states: Sequence[SubmissionState],
        after: tuple[int, str] | None,
        limit: int,
    ) -> Page[SubmissionView]:
        """Lists the submissions of a session, ascending by acceptance."""
        key = SessionKey(namespace, session_id)
        rows = await self.services.store.list_submissions(
            key, states, after, limit + 1, PENDING_CONTENT_BYTES
        )
        if rows is None:
            raise Refused(Reason.SESSION_NOT_FOUND)
        cursor = None
        if rows[limit:]:
            cursor = (rows[limit - 1].create_time, rows[limit - 1].submission_id)
        return Page([submission_view(row, PENDING_CONTENT_BYTES) for row in rows[:limit]], cursor)

    async def lineage(
        self, namespace: str, session_id: str, after: tuple[int, str] | None, limit: int
    ) -> tuple[Page[SessionView], LineageView]:
        """Reads the forks of a session, and where it comes from."""
        await self.get_session(namespace, session_id)
        where = SessionFilter(forks_of=session_id)
        page = await self.list_sessions(namespace, where, SessionOrder.CREATED_ASC, after, limit)
        ancestors = await self.services.store.ancestors(
            SessionKey(namespace, session_id), ANCESTORS_MAX
        )
        return page, LineageView(ancestors, await self._parents(namespace, session_id))

    async def _parents(self, namespace: str, session_id: str) -> list[ParentLink]:
        """Reads the parents of the session of a child run, the nearest first."""
        parents: list[ParentLink] = []
        while len(parents) < self.services.rules.max_child_depth:
            row = await self.services.store.session(SessionKey(namespace, session_id))
            link = decode_state(row.state).parent if row is not None else None
            if link is None:
                break
            parents.append(link)
            session_id = link.session_id
        return parents

    async def list_messages(
        self,
        namespace: str,
        session_id: str,
        after: int | None,
        before: int | None,
        roles: frozenset[int],
        limit: int,
    ) -> tuple[list[MessageRow], int | None]:
        """Lists messages; returns also the number that the next page starts from.

        Ascending after `after`, or descending before `before` (0: from the newest).
        """
        key = SessionKey(namespace, session_id)
        view = await self.get_session(namespace, session_id)
        newest = view.facts.message_count
        if before is not None:
            first, last = 1, newest if before == 0 else min(before - 1, newest)
        else:
            first, last = (after or 0) + 1, newest
        descending = before is not None
        rows: list[MessageRow] = []
        size = 0
        while len(rows) < limit and first <= last:
            found = await self.services.store.messages(
                key, first, last, limit, PAGE_BYTES - size, descending=descending
            )
            if not found:
                return rows, None
            for row in found:
                if roles and self.services.codec.role(row.data) not in roles:
                    continue
                if len(rows) == limit or (rows and size + len(row.data) > PAGE_BYTES):
                    return rows, rows[-1].number
                rows.append(row)
                size += len(row.data)
            if descending:
                last = found[-1].number - 1
            else:
                first = found[-1].number + 1
        more = first <= last
        return rows, rows[-1].number if more and rows else None

    async def live_state(
        self, namespace: str, session_id: str, message_limit: int, min_sequence: int
    ) -> LiveView:
        """Reads all that a client needs to draw a session, in one snapshot."""
        rows = await self.services.store.live(
            SessionKey(namespace, session_id),
            message_limit,
            LIVE_MESSAGE_BYTES,
            PENDING_CONTENT_BYTES,
        )
        if rows is None:
            raise Refused(Reason.SESSION_NOT_FOUND)
        state = decode_state(rows.session.state)
        if state.sequence < min_sequence:
            raise Refused(Reason.SEQUENCE_AHEAD, sequence=str(state.sequence))
        order = {one.submission_id: i for i, one in enumerate(state.steers + state.next_runs)}
        pending = sorted(rows.pending, key=lambda one: order.get(one.submission_id, len(order)))
        return LiveView(
            session_view(rows.session),
            run_view(rows.run) if rows.run is not None else None,
            [submission_view(one, PENDING_CONTENT_BYTES) for one in pending],
            rows.messages,
            allowed_commands(state),
            waiting_for_executor(self, state),
            state.sequence,
            rows.interactions,
        )

    async def list_agents(
        self, namespace: str, after: str, limit: int
    ) -> tuple[list[AgentView], str | None]:
        """Lists the agents that executors polled for, or that runs wait for, by name."""
        dispatch = self.services.dispatch
        if self.services.follower is not None:
            await self.services.follower.meet()
        now = self.services.clock.now()
        known = [one for one in dispatch.agents(namespace) if one[0] > after]
        views = [
            AgentView(name, polled, dispatch.served(namespace, name, now), queued, leased)
            for name, polled, queued, leased in known[:limit]
        ]
        return views, views[-1].name if len(known) > limit else None


def waiting_for_executor(case: UseCase, state: SessionState) -> bool:
    """Whether the live run waits in the queue and no executor polls for its agent."""
    run = state.run
    activation = run.activation if run is not None else None
    if run is None or activation is None or activation.state is not ActivationState.QUEUED:
        return False
    services = case.services
    return not services.dispatch.served(state.namespace, run.agent, services.clock.now())


def submission_view(row: SubmissionRow, content_max: int) -> SubmissionView:
    """Returns a submission as it is shown; content over the limit is cut to its preview."""
    facts = submission_facts(row)
    truncated = not row.content or len(row.content) > content_max
    content = b"" if truncated else row.content
    return SubmissionView(
        facts, row.request_id, content, truncated, row.preview if truncated else ""
    )


def matches(event: StoredEvent, run_ids: frozenset[str], types: frozenset[int]) -> bool:
    """Whether a reader wants an event."""
    return (not types or event.type in types) and (not run_ids or event.run_id in run_ids)
