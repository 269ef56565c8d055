"""The calls of a client that stop, answer and bring back runs."""

import json
from collections.abc import Iterable
from typing import Any

from runlane import _convert as convert
from runlane._calls import Caller
from runlane._enums import (
    InteractionState,
    RestoreOutcome,
    StopReason,
    event_type,
    member,
    number_of,
)
from runlane._events import FeedStream
from runlane._interactions import (
    Answer,
    Interaction,
    answer_to_pb,
    external_to_pb,
    interaction_from_pb,
    needs_question,
    not_found,
)
from runlane._models import Answered, ExecutorStatus, Overview, Page, Pausing, Restoration
from runlane._run_models import Run, ToolCall
from runlane.v1 import (
    admin_service_pb2,
    event_pb2,
    history_service_pb2,
    interaction_pb2,
    run_pb2,
)
from runlane.v1 import session_service_pb2 as pb


class ControlCalls:
    """Pauses, answers, recovery, and what operators need."""

    _caller: Caller
    _reconnect_timeout: float

    async def pause(
        self,
        session_id: str | None = None,
        *,
        run_id: str | None = None,
        request_id: str | None = None,
    ) -> Pausing:
        """Stops the live run at its next boundary, or at once where nobody has it.

        Args:
            session_id: The session; may be None where `run_id` is given.
            run_id: Only this run; None: whichever is live.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            SessionIdle: No run is live.
            RunCancelling: Cancellation of the run was requested.
            RunTerminal: The run has ended.
        """
        request = pb.PauseRunRequest(
            session_id=session_id or "", run_id=run_id or "", request_id=request_id or ""
        )
        return convert.pausing(
            await self._caller.unary(self._caller.stubs.sessions.PauseRun, request)
        )

    async def unpause(
        self,
        session_id: str | None = None,
        *,
        run_id: str | None = None,
        request_id: str | None = None,
    ) -> Pausing:
        """Takes a pause, or the request for one, back.

        Args:
            session_id: The session; may be None where `run_id` is given.
            run_id: Only this run; None: whichever is live.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            SessionIdle: No run is live.
            RunCancelling: Cancellation of the run was requested.
            RunTerminal: The run has ended.
        """
        request = pb.UnpauseRunRequest(
            session_id=session_id or "", run_id=run_id or "", request_id=request_id or ""
        )
        return convert.pausing(
            await self._caller.unary(self._caller.stubs.sessions.UnpauseRun, request)
        )

    async def answer(
        self,
        run_id: str,
        interaction_id: str,
        version: int,
        answer: Answer,
        *,
        request_id: str | None = None,
    ) -> Answered:
        """Answers an open interaction; its run goes on. The same answer again is no harm.

        Args:
            run_id: The run that waits.
            interaction_id: The interaction.
            version: The version that is answered.
            answer: A text for a question. For a permission True, False, or one of them with
                a reason, for all its calls, or a mapping of their ids to such verdicts. A
                mapping for a form. Or a record, such as `PermissionAnswer`. What is not a
                text or a record has the question read first.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            ValueError: The answer does not fit the question.
            InteractionNotFound: There is no such interaction of the run.
            InteractionConflict: It has another answer, or another version.
            InteractionClosed: It ended without an answer.
            AnswerInvalid: The answer does not fit the question.
        """
        question = None
        if needs_question(answer):
            question = await self._interaction(run_id, interaction_id)
        return await self._answer(
            run_id, interaction_id, version, answer_to_pb(answer, question), request_id
        )

    async def _answer(
        self,
        run_id: str,
        interaction_id: str,
        version: int,
        answer: interaction_pb2.InteractionAnswer,
        request_id: str | None,
    ) -> Answered:
        return convert.answered(
            await self._caller.unary(
                self._caller.stubs.sessions.AnswerInteraction,
                pb.AnswerInteractionRequest(
                    run_id=run_id,
                    interaction_id=interaction_id,
                    version=version,
                    answer=answer,
                    request_id=request_id or "",
                ),
            )
        )

    async def _interaction(self, run_id: str, interaction_id: str) -> Interaction:
        """Reads an interaction of a run: the open one, or one that has had its end."""
        run = await self._caller.unary(
            self._caller.stubs.history.GetRun, history_service_pb2.GetRunRequest(run_id=run_id)
        )
        for state in (InteractionState.OPEN, InteractionState.ANSWERED, InteractionState.CLOSED):
            after: str | None = None
            while True:
                page = await self.list_interactions(
                    run.run.session_id, state=state, after=after, limit=1000
                )
                for found in page.items:
                    if found.interaction_id == interaction_id and found.run_id == run_id:
                        return found
                if page.next_cursor is None:
                    break
                after = page.next_cursor
        raise not_found(f"run {run_id} has no interaction {interaction_id}")

    async def complete_external(
        self,
        token: str,
        *,
        result: Any = None,
        error: str | None = None,
        request_id: str | None = None,
    ) -> Answered:
        """Completes an external wait.

        Args:
            token: The secret that was given out when the wait was opened.
            result: What came of it, as a value that JSON can hold.
            error: What went wrong instead.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            ValueError: Both a result and an error were given.
            InteractionNotFound: The token is unknown.
            InteractionConflict: It was completed with something else.
            InteractionClosed: The wait ended before.
        """
        if result is not None and error is not None:
            raise ValueError("give either a result or an error")
        said = external_to_pb(None if error is not None else json.dumps(result), error or "")
        return convert.answered(
            await self._caller.unary(
                self._caller.stubs.sessions.CompleteExternal,
                pb.CompleteExternalRequest(token=token, answer=said, request_id=request_id or ""),
            )
        )

    async def restore(
        self,
        run_id: str,
        expected_activation_id: str | None = None,
        *,
        force: bool = False,
        request_id: str | None = None,
    ) -> Restoration:
        """Brings back a run whose executor was lost, or is thought to be.

        Args:
            run_id: The run.
            expected_activation_id: The activation that the caller has seen; needed where
                the run is active.
            force: Also where the lease is live: its executor is cut off.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            RunNotFound: There is no such run.
            ActivationMismatch: Another activation is the current one.
        """
        answer = await self._caller.unary(
            self._caller.stubs.sessions.RestoreRun,
            pb.RestoreRunRequest(
                run_id=run_id,
                expected_activation_id=expected_activation_id or "",
                force=force,
                request_id=request_id or "",
            ),
        )
        return Restoration(
            outcome=member(RestoreOutcome, answer.outcome),
            run=convert.run(answer.run),
            sequence=answer.sequence,
            replayed=answer.replayed,
        )

    async def list_interactions(
        self,
        session_id: str | None = None,
        *,
        state: str | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> Page[Interaction]:
        """Lists interactions over all sessions, oldest first: the inbox of who answers.

        Args:
            session_id: Only those of this session.
            state: Only those in this state, an `InteractionState` or its word; None: open.
            after: The `next_cursor` of the page before; None: the first page.
            limit: How many; above 1,000 cut to it.
        """
        request = history_service_pb2.ListInteractionsRequest(
            page_size=limit,
            page_token=after or "",
            session_id=session_id or "",
            state=interaction_pb2.Interaction.State.ValueType(
                number_of(InteractionState, state) if state else 0
            ),
        )
        answer = await self._caller.unary(self._caller.stubs.history.ListInteractions, request)
        return convert.page(map(interaction_from_pb, answer.interactions), answer.next_page_token)

    async def _whole(self, asked: Interaction) -> Interaction | None:
        """Reads a question whose prompt was too long for the live state; None: it is settled."""
        if asked.prompt is not None:
            return asked
        after: str | None = None
        while True:
            page = await self.list_interactions(asked.session_id, after=after, limit=1000)
            for found in page.items:
                if found.interaction_id == asked.interaction_id:
                    return found
            after = page.next_cursor
            if after is None:
                return None

    async def list_tool_calls(
        self, run_id: str, *, after: str | None = None, limit: int = 50
    ) -> Page[ToolCall]:
        """Lists the tool calls of a run, ascending by step and place in it.

        Args:
            run_id: The run.
            after: The `next_cursor` of the page before; None: the first page.
            limit: How many; above 1,000 cut to it.

        Raises:
            RunNotFound: There is no such run.
        """
        request = history_service_pb2.ListToolCallsRequest(
            page_size=limit, page_token=after or "", run_id=run_id
        )
        answer = await self._caller.unary(self._caller.stubs.history.ListToolCalls, request)
        return convert.page(map(convert.tool_call, answer.tool_calls), answer.next_page_token)

    async def list_stalled_runs(self, *, after: str | None = None, limit: int = 50) -> Page[Run]:
        """Lists runs that are stalled, oldest first.

        Args:
            after: The `next_cursor` of the page before; None: the first page.
            limit: How many; above 1,000 cut to it.
        """
        request = admin_service_pb2.ListStalledRunsRequest(page_size=limit, page_token=after or "")
        answer = await self._caller.unary(self._caller.stubs.admin.ListStalledRuns, request)
        return convert.page(map(convert.run, answer.runs), answer.next_page_token)

    async def settle_run(
        self,
        run_id: str,
        stop_reason: str = StopReason.FAILED,
        *,
        reason: str = "",
        request_id: str | None = None,
    ) -> Run:
        """Ends a live run by hand, whatever it is doing; one that ended is returned as it is.

        Args:
            run_id: The run.
            stop_reason: `failed` or `cancelled`.
            reason: For people.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            RunNotFound: There is no such run.
            RunCancelling: It is ending, and waits for its child runs: settle those.
        """
        answer = await self._caller.unary(
            self._caller.stubs.admin.SettleRun,
            admin_service_pb2.SettleRunRequest(
                run_id=run_id,
                stop_reason=run_pb2.Run.StopReason.ValueType(number_of(StopReason, stop_reason)),
                reason=reason,
                request_id=request_id or "",
            ),
        )
        return convert.run(answer.run)

    async def healthy(self) -> bool:
        """Tells whether the server says that it takes calls, and its store writes.

        Asked once: a server that cannot be reached raises.

        Raises:
            TransportError: It could not be reached.
        """
        return await self._caller.healthy()

    async def overview(self) -> Overview:
        """Tells how the server is doing: what lives, waits, is queued and is connected."""
        answer = await self._caller.unary(
            self._caller.stubs.admin.GetOverview, admin_service_pb2.GetOverviewRequest()
        )
        return convert.overview(answer)

    async def list_executors(
        self, *, after: str | None = None, limit: int = 50
    ) -> Page[ExecutorStatus]:
        """Lists executors that poll or did within the last hour, or have activations, by id.

        Args:
            after: The `next_cursor` of the page before; None: the first page.
            limit: How many; above 1,000 cut to it.
        """
        request = admin_service_pb2.ListExecutorsRequest(page_size=limit, page_token=after or "")
        answer = await self._caller.unary(self._caller.stubs.admin.ListExecutors, request)
        return convert.page(map(convert.executor_status, answer.executors), answer.next_page_token)

    def feed(
        self,
        *,
        after: str | None = None,
        at_end: bool = False,
        follow: bool = True,
        types: Iterable[str] = (),
        include_messages: bool = False,
        reconnect_timeout: float | None = None,
    ) -> FeedStream:
        """Streams the events of all sessions of the namespace, each once, to index, bill or audit.

        Keep the cursor of an item together with what you made of it: who goes on after the
        cursor misses nothing and sees nothing twice. Needs the scope admin.

        Args:
            after: A cursor that was kept, however long ago; None or empty: from the first event.
            at_end: Only what is committed from now on instead.
            follow: Go on with what comes; else the stream ends where the feed ended at first.
            types: Only events of these kinds, members or dotted words. The cursor goes on over
                all others.
            include_messages: Put the messages into their message.appended events; not those of
                sessions that are deleted.
            reconnect_timeout: Seconds without a connection after which to give up; None:
                the client's.

        Raises:
            ValueError: There is no such kind of event, or both `after` and `at_end` were given.
        """
        request = admin_service_pb2.StreamFeedRequest(
            follow=follow,
            types=[event_pb2.Event.Type.ValueType(event_type(kind)) for kind in types],
            include_messages=include_messages,
        )
        if at_end and after:
            raise ValueError("a feed starts after a cursor or at its end, not both")
        if at_end:
            request.at_end = True
        else:
            request.after_cursor = after or ""
        patience = self._reconnect_timeout if reconnect_timeout is None else reconnect_timeout
        return FeedStream(self._caller, request, reconnect_timeout=patience)
