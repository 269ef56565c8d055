"""Use cases on the live run: pause, answer, complete from outside, restore, settle."""

import base64
import hashlib
import hmac
from contextlib import suppress
from typing import Any, TypeVar

from runlane_server.app.base import UseCase, run_view
from runlane_server.app.notices import Notices
from runlane_server.app.views import Caller, Page, Result, RunView
from runlane_server.core.answers import (
    InteractionAnswered,
    InteractionFacts,
    PauseAnswer,
    RestoreAnswer,
    RestoreOutcome,
    RunAnswer,
)
from runlane_server.core.commands import (
    AnswerInteraction,
    PauseRun,
    RestoreRun,
    SettleRun,
    UnpauseRun,
)
from runlane_server.core.errors import NotLive, NotOpen, Reason, Refused
from runlane_server.core.keys import DEFAULT_NAMESPACE
from runlane_server.core.model import SessionKey
from runlane_server.core.words import InteractionState, NoticeKind, Phase
from runlane_server.store.base import InteractionRow, StoredNotice, ToolCallRow
from runlane_server.store.errors import StoreError

Sized = TypeVar("Sized", ToolCallRow, InteractionRow)


def external_token(secret: bytes, namespace: str, interaction_id: str) -> str:
    """Returns the token that completes an external wait; it is derived, and stored nowhere.

    It says all that its bearer needs: the namespace too, where it is not `default`.
    """
    name = f"{namespace}/{interaction_id}" if namespace != DEFAULT_NAMESPACE else interaction_id
    mac = hmac.digest(secret, name.encode(), hashlib.sha256)
    return f"{name}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


PAGE_BYTES = 2 * 1024 * 1024
"""What of a page is read; what is shown of it may be less."""


def _last_of_page(rows: list[Sized], limit: int) -> Sized | None:
    """Returns the last row of a page that there may be more behind; None: it was the last."""
    more = len(rows) > limit or sum(row.size for row in rows) >= PAGE_BYTES
    return rows[:limit][-1] if rows and more else None


class Control(UseCase):
    """Commands on the live run, and the inbox of those who answer."""

    async def pause_run(self, caller: Caller, session_id: str, run_id: str) -> Result[PauseAnswer]:
        """Stops a run at a boundary, or at once where nobody has it."""
        return await self._paused(caller, session_id, run_id, PauseRun(run_id))

    async def unpause_run(
        self, caller: Caller, session_id: str, run_id: str
    ) -> Result[PauseAnswer]:
        """Takes a pause, or the request for one, back."""
        return await self._paused(caller, session_id, run_id, UnpauseRun(run_id))

    async def find_interaction(
        self, namespace: str, run_id: str, interaction_id: str
    ) -> InteractionRow:
        """Reads the interaction that an answer names; the run may be empty.

        For a proxy it is the question that it shows: that alone decides.
        """
        row = await self.services.store.interaction(namespace, interaction_id)
        if row is None or (run_id and row.run_id != run_id):
            raise Refused(Reason.INTERACTION_NOT_FOUND)
        if not row.proxy_interaction_id:
            return row
        question = await self.find_interaction(
            namespace, row.proxy_run_id, row.proxy_interaction_id
        )
        # What was answered before its parent ended is answered again as it was.
        if row.state is InteractionState.CLOSED and question.state is InteractionState.OPEN:
            raise Refused(Reason.INTERACTION_CLOSED, interaction_id=interaction_id)
        return question

    async def find_external(self, token: str) -> tuple[str, InteractionRow]:
        """Reads the interaction that a token completes; returns its namespace too."""
        namespace, _, interaction_id = token.rpartition(".")[0].rpartition("/")
        namespace = namespace or DEFAULT_NAMESPACE
        secret = self.services.store.info.secret
        right = external_token(secret, namespace, interaction_id)
        if not hmac.compare_digest(right.encode(), token.encode()):
            raise Refused(Reason.INTERACTION_NOT_FOUND)
        return namespace, await self.find_interaction(namespace, "", interaction_id)

    async def answer_interaction(
        self, caller: Caller, row: InteractionRow, command: AnswerInteraction
    ) -> Result[InteractionAnswered]:
        """Answers an interaction. The same answer again gives the stored one."""
        key = SessionKey(caller.namespace, row.session_id)
        try:
            result = await self._command(caller, key, command)
        except (NotLive, NotOpen):
            pass
        else:
            await self._tell_parents(key, command.run_id)
            return result
        settled = await self.find_interaction(
            caller.namespace, command.run_id, command.interaction_id
        )
        if settled.state is InteractionState.CLOSED:
            raise Refused(Reason.INTERACTION_CLOSED, interaction_id=settled.interaction_id)
        if settled.version != command.version or settled.answer_hash != command.hash:
            raise Refused(
                Reason.INTERACTION_CONFLICT,
                interaction_id=settled.interaction_id,
                version=str(settled.version),
            )
        run = run_view(await self._run_row(caller.namespace, settled.run_id)).facts
        facts = InteractionFacts(
            settled.interaction_id,
            settled.run_id,
            settled.session_id,
            settled.version,
            settled.state,
            settled.settle_time,
        )
        return await self._unchanged(
            caller,
            key,
            Reason.INTERACTION_NOT_FOUND,
            lambda sequence: InteractionAnswered(sequence, facts, run),
        )

    async def _tell_parents(self, key: SessionKey, run_id: str) -> None:
        """Tells those above a child run of an answer now: who gave it sees no question again.

        The notices are on disk, so where this fails they come a little later.
        """
        notices = Notices(self.services)
        with suppress(Refused, StoreError):
            while True:
                state = (await self.services.engine.peek(key)).state
                parent = state.parent if state is not None else None
                if parent is None:
                    return
                key = SessionKey(key.namespace, parent.session_id)
                await notices.take(StoredNotice(key, NoticeKind.CHILD, run_id))
                run_id = parent.run_id

    async def restore_run(self, caller: Caller, command: RestoreRun) -> Result[RestoreAnswer]:
        """Brings back a run whose executor was lost."""
        row = await self._run_row(caller.namespace, command.run_id)
        key = SessionKey(caller.namespace, row.session_id)
        try:
            return await self._command(caller, key, command)
        except NotLive:
            facts = run_view(await self._run_row(key.namespace, command.run_id)).facts
            return await self._unchanged(
                caller,
                key,
                Reason.RUN_NOT_FOUND,
                lambda sequence: RestoreAnswer(sequence, RestoreOutcome.SETTLED, facts),
            )

    async def settle_run(self, caller: Caller, command: SettleRun) -> Result[RunAnswer]:
        """Ends a live run by hand."""
        row = await self._run_row(caller.namespace, command.run_id)
        key = SessionKey(caller.namespace, row.session_id)
        try:
            return await self._command(caller, key, command)
        except NotLive:
            facts = run_view(await self._run_row(key.namespace, command.run_id)).facts
            return await self._unchanged(
                caller, key, Reason.RUN_NOT_FOUND, lambda sequence: RunAnswer(sequence, facts)
            )

    async def list_stalled_runs(
        self, namespace: str, after: tuple[int, str] | None, limit: int
    ) -> Page[RunView]:
        """Lists stalled runs, oldest first."""
        rows = await self.services.store.list_stalled_runs(namespace, after, limit + 1)
        cursor = (rows[limit - 1].create_time, rows[limit - 1].run_id) if rows[limit:] else None
        return Page([run_view(row) for row in rows[:limit]], cursor)

    async def list_tool_calls(
        self, namespace: str, run_id: str, after: tuple[int, int] | None, limit: int
    ) -> tuple[list[ToolCallRow], tuple[int, int] | None]:
        """Lists the calls of a run, ascending by step and ordinal."""
        await self._run_row(namespace, run_id)
        rows = await self.services.store.list_tool_calls(
            namespace, run_id, after, limit + 1, PAGE_BYTES
        )
        last = _last_of_page(rows, limit)
        return rows[:limit], (last.step, last.ordinal) if last is not None else None

    async def list_interactions(
        self,
        namespace: str,
        session_id: str,
        state: InteractionState,
        after: tuple[int, str] | None,
        limit: int,
    ) -> Page[InteractionRow]:
        """Lists interactions, oldest first."""
        rows = await self.services.store.list_interactions(
            namespace, session_id, state, after, limit + 1, PAGE_BYTES
        )
        last = _last_of_page(rows, limit)
        cursor = (last.create_time, last.interaction_id) if last is not None else None
        return Page(rows[:limit], cursor)

    async def _paused(
        self, caller: Caller, session_id: str, run_id: str, command: Any
    ) -> Result[PauseAnswer]:
        found = session_id
        if not found:
            found = (await self._run_row(caller.namespace, run_id)).session_id
        try:
            return await self._command(caller, SessionKey(caller.namespace, found), command)
        except NotLive:
            row = await self._run_row(caller.namespace, run_id)
            if row.session_id != found:
                raise Refused(Reason.RUN_NOT_FOUND) from None
            if row.phase is not Phase.TERMINAL:  # it was reserved, and its turn has come since
                return await self._paused(caller, session_id, run_id, command)
            raise Refused(Reason.RUN_TERMINAL, run_id=run_id) from None
