"""What one session has to tell another: applied at least once, each in a commit of its own."""

from collections.abc import Sequence

from runlane_server.app.base import UseCase
from runlane_server.core.children import take_child
from runlane_server.core.commands import TakeChild, TakeNotice
from runlane_server.core.context import Context, Decision
from runlane_server.core.errors import NotRead
from runlane_server.core.model import Child, Run, SessionKey, SessionState
from runlane_server.core.words import (
    InteractionClose,
    InteractionState,
    NoticeKind,
    Phase,
    StopReason,
    ToolOutcome,
)
from runlane_server.runtime.engine import Plan, plan
from runlane_server.store.base import RunRow, StoredNotice

_OUTCOMES = {
    StopReason.COMPLETED: ToolOutcome.OK,
    StopReason.CANCELLED: ToolOutcome.CANCELLED,
    StopReason.OUTCOME_UNKNOWN: ToolOutcome.UNKNOWN,
}


class Notices(UseCase):
    """Applies notices."""

    async def take(self, notice: StoredNotice) -> int | None:
        """Applies a notice; returns when to try again, or None."""
        if notice.kind is NoticeKind.CHILD:
            run = await self._run(notice.key)
            children = run.children if run is not None else ()
            child = next((one for one in children if one.run_id == notice.cause), None)
            if run is not None and child is not None:
                return await self._tell(notice, run, child)
        command = TakeNotice(notice.kind, notice.cause)
        try:
            await self.services.engine.execute(plan(notice.key, command, "server"))
        except NotRead:
            return self.services.clock.now()
        return None

    async def delete_children(self, key: SessionKey, limit: int) -> bool:
        """Deletes sessions of child runs of a deleted session; False: there may be more."""
        found = await self.services.store.child_sessions(key, limit)
        command = TakeNotice(NoticeKind.DELETE, key.session_id)
        for session_id in found:
            child = SessionKey(key.namespace, session_id)
            await self.services.engine.execute(plan(child, command, "server"))
        return not found

    async def _run(self, key: SessionKey) -> Run | None:
        state = (await self.services.engine.peek(key)).state
        return state.run if state is not None else None

    async def _tell(self, notice: StoredNotice, run: Run, child: Child) -> int | None:
        """Tells a parent what has become of a child run."""
        namespace = notice.key.namespace
        row = await self.services.store.run(namespace, child.run_id)
        command = TakeChild(child.run_id, await self._settled(namespace, run, child))
        if row is None or row.phase is Phase.TERMINAL:
            await self._add_end(command, namespace, child, row)

        def choose(
            states: list[SessionState | None], contexts: list[Context]
        ) -> Sequence[Decision]:
            return take_child(states[0], states[1], command, contexts[0])

        keys = (notice.key, SessionKey(namespace, child.session_id))
        try:
            await self.services.engine.execute(Plan(keys, choose, "server"))
        except NotRead:
            return self.services.clock.now()
        return None

    async def _settled(
        self, namespace: str, run: Run, child: Child
    ) -> dict[str, tuple[InteractionState, InteractionClose | None]]:
        settled = {}
        for proxy in run.proxies:
            if proxy.child_run_id != child.run_id:
                continue
            interaction_id = proxy.question.interaction_id
            row = await self.services.store.interaction(namespace, interaction_id)
            if row is None or row.state is not InteractionState.OPEN:
                state = row.state if row is not None else InteractionState.CLOSED
                reason = row.close_reason if row is not None else InteractionClose.RUN_ENDED
                settled[interaction_id] = (state, InteractionClose(reason) if reason else None)
        return settled

    async def _add_end(
        self, command: TakeChild, namespace: str, child: Child, row: RunRow | None
    ) -> None:
        """Adds how a child run ended, and what its call gets of that."""
        services = self.services
        if row is None or row.stop_reason is None:
            command.outcome = ToolOutcome.CANCELLED
            return
        command.stop_reason = row.stop_reason
        command.outcome = _OUTCOMES.get(row.stop_reason, ToolOutcome.ERROR)
        message = b""
        if row.output_message_number:
            key = SessionKey(namespace, child.session_id)
            found = await services.store.messages_by_number(key, [row.output_message_number])
            message = found[0].data if found else b""
        told = ""
        if command.outcome is not ToolOutcome.OK:
            told = f"The child run ended {row.stop_reason.name}."
            if row.failure_message:
                told += f" {row.failure_message}"
        command.result = services.codec.child_result(
            child.tool_call_id, command.outcome, message, row.output_json, told
        )
