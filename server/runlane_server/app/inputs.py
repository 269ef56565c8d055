"""Use cases on input: submit, withdraw, interrupt, fork."""

from contextlib import suppress

from runlane_server.app.base import UseCase, request_of, run_view, submission_facts
from runlane_server.app.views import Caller, ForkRequest, Result, SessionView
from runlane_server.app.waiting import wait_for_end
from runlane_server.core.answers import (
    ForkAnswer,
    RunAnswer,
    RunFacts,
    SubmitAnswer,
)
from runlane_server.core.commands import ForkSession, InterruptRun, Submit, WithdrawSubmission
from runlane_server.core.context import Context, Decision
from runlane_server.core.errors import NotLive, NotPending, Reason, Refused
from runlane_server.core.model import SessionKey, SessionRecord, SessionState
from runlane_server.core.sessions import decide_fork
from runlane_server.core.words import Phase, SubmissionState
from runlane_server.runtime.engine import Plan


class Inputs(UseCase):
    """Commands that give a session input, take it back, or stop its run."""

    async def submit(
        self, caller: Caller, session_id: str, command: Submit
    ) -> Result[SubmitAnswer]:
        """Gives a session an input; `session_id` empty: a new one is made for it."""
        key = SessionKey(caller.namespace, session_id or self.services.new_id("ses"))
        return await self._command(caller, key, command, scope=session_id)

    async def withdraw(
        self, caller: Caller, session_id: str, submission_id: str
    ) -> Result[SubmitAnswer]:
        """Takes back a pending input. Again: unchanged."""
        store = self.services.store
        found = session_id or await store.find_session_of_submission(
            caller.namespace, submission_id
        )
        if not found:
            raise Refused(Reason.SUBMISSION_NOT_FOUND)
        key = SessionKey(caller.namespace, found)
        with suppress(NotPending):
            return await self._command(caller, key, WithdrawSubmission(submission_id))
        row = await store.submission(caller.namespace, submission_id)
        if row is None or row.session_id != found:
            raise Refused(Reason.SUBMISSION_NOT_FOUND)
        if row.state is not SubmissionState.WITHDRAWN:
            raise Refused(
                Reason.SUBMISSION_SETTLED, submission_id=submission_id, state=row.state.name
            )
        facts = submission_facts(row)
        return await self._unchanged(
            caller, key, Reason.SUBMISSION_NOT_FOUND, lambda sequence: SubmitAnswer(sequence, facts)
        )

    async def interrupt(
        self, caller: Caller, session_id: str, run_id: str, reason: str, wait: float
    ) -> tuple[Result[RunAnswer], RunFacts]:
        """Asks for a run to be cancelled, and waits for its end, `wait` seconds at most."""
        key = await self._session_of_run(caller.namespace, session_id, run_id)
        try:
            result = await self._command(caller, key, InterruptRun(run_id, reason))
        except NotLive:
            row = await self._run_row(caller.namespace, run_id, session_id)
            if row.phase is not Phase.TERMINAL:  # it was reserved, and its turn has come since
                return await self.interrupt(caller, session_id, run_id, reason, wait)
            ended = run_view(row).facts
            result = await self._unchanged(
                caller, key, Reason.RUN_NOT_FOUND, lambda sequence: RunAnswer(sequence, ended)
            )
        facts = result.answer.run
        if facts.phase is not Phase.TERMINAL and wait > 0:
            try:
                row_now = await wait_for_end(self.services, key, facts.run_id, wait)
            except Refused as refused:
                # What was asked is done: without a place to wait it is answered at once.
                if refused.reason is not Reason.STREAM_LIMIT:
                    raise
                row_now = None
            if row_now is not None:
                facts = run_view(row_now).facts
        return result, facts

    async def fork(
        self, caller: Caller, source_run_id: str, session_id: str, asked: ForkRequest
    ) -> tuple[Result[ForkAnswer], SessionView]:
        """Makes a new session with the history at the end of a terminal run."""
        services = self.services
        target = SessionKey(caller.namespace, session_id or services.new_id("ses"))
        request = request_of(caller, "")
        run = await services.store.run(caller.namespace, source_run_id)
        source_row = None
        if run is not None:
            source_row = await services.store.session(SessionKey(caller.namespace, run.session_id))
        record = self._record_of_fork(asked, source_row.record if source_row else None)
        source = SessionKey(caller.namespace, run.session_id if run is not None else "")

        def choose(
            states: list[SessionState | None], contexts: list[Context]
        ) -> tuple[Decision, ...]:
            if run is None:
                raise Refused(Reason.RUN_NOT_FOUND)
            if run.phase is not Phase.TERMINAL:
                raise Refused(Reason.RUN_NOT_TERMINAL, run_id=source_run_id, phase=run.phase.name)
            if run.parent_run_id:
                raise Refused(Reason.RUN_NOT_TOP_LEVEL, run_id=source_run_id)
            if len(states) == 1:  # onto its own source
                raise Refused(Reason.SESSION_EXISTS, session_id=target.session_id, deleted="false")
            command = ForkSession(
                run.session_id,
                source_run_id,
                run.message_cutoff,
                run.digest,
                record,
                asked.input,
                asked.options,
                run.summary_through,
            )
            return decide_fork(states[0], states[1], command, contexts[0], contexts[1])

        keys = (source, target) if source != target else (source,)
        result = await self._execute(
            Plan(
                keys,
                choose,
                caller.actor,
                request,
                caller.request_hash,
                caller.toll,
                caller.trace,
            )
        )
        answer: ForkAnswer = result.answer
        row = await services.store.session(target) if result.replayed else None
        if row is not None:
            record = row.record
        view = SessionView(answer.session, record, answer.source_session_id, answer.source_run_id)
        return result, view

    def _record_of_fork(self, asked: ForkRequest, source: SessionRecord | None) -> SessionRecord:
        old = source or SessionRecord()
        return SessionRecord(
            asked.display_name,
            asked.labels if asked.labels is not None else old.labels,
            asked.metadata_json if asked.metadata_json is not None else old.metadata_json,
            asked.default_agent if asked.default_agent is not None else old.default_agent,
        )

    async def _session_of_run(self, namespace: str, session_id: str, run_id: str) -> SessionKey:
        found: str | None = session_id
        if not session_id:
            found = await self.services.store.find_session_of_run(namespace, run_id)
        if not found:
            raise Refused(Reason.RUN_NOT_FOUND)
        return SessionKey(namespace, found)
