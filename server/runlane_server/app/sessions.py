"""Use cases on the record of a session: create, update, close, reopen, delete."""

from dataclasses import replace
from typing import Any

from runlane_server.app.base import UseCase, session_view
from runlane_server.app.views import Caller, Result, SessionView
from runlane_server.core.answers import SessionAnswer, SessionFacts
from runlane_server.core.commands import (
    CloseSession,
    CreateSession,
    DeleteSession,
    ReopenSession,
    UpdateSession,
)
from runlane_server.core.model import SessionKey, SessionRecord


class Sessions(UseCase):
    """Commands on the record of a session."""

    async def create_session(
        self, caller: Caller, session_id: str, command: CreateSession
    ) -> tuple[Result[SessionAnswer], SessionView]:
        """Creates a session; `session_id` empty: an id is made."""
        key = SessionKey(caller.namespace, session_id or self.services.new_id("ses"))
        result = await self._command(caller, key, command, scope="")
        if result.answer.created:
            return result, SessionView(result.answer.session, command.record)
        return result, await self._view(caller, result.answer.session)

    async def update_session(
        self, caller: Caller, session_id: str, command: UpdateSession
    ) -> tuple[Result[SessionAnswer], SessionView]:
        """Changes the record of a session."""
        return await self._viewed(caller, session_id, command)

    async def close_session(
        self, caller: Caller, session_id: str, command: CloseSession
    ) -> tuple[Result[SessionAnswer], SessionView]:
        """Refuses further input, and fails what is pending."""
        return await self._viewed(caller, session_id, command)

    async def reopen_session(
        self, caller: Caller, session_id: str, command: ReopenSession
    ) -> tuple[Result[SessionAnswer], SessionView]:
        """Takes input again."""
        return await self._viewed(caller, session_id, command)

    async def delete_session(
        self, caller: Caller, session_id: str, command: DeleteSession
    ) -> Result[SessionAnswer]:
        """Makes the session a tombstone; its rows are swept later."""
        return await self._command(caller, SessionKey(caller.namespace, session_id), command)

    async def _viewed(
        self, caller: Caller, session_id: str, command: Any
    ) -> tuple[Result[SessionAnswer], SessionView]:
        key = SessionKey(caller.namespace, session_id)
        result = await self._command(caller, key, command)
        return result, await self._view(caller, result.answer.session)

    async def _view(self, caller: Caller, facts: SessionFacts) -> SessionView:
        """Returns the session with the states that were answered, whatever came after."""
        row = await self.services.store.session(SessionKey(caller.namespace, facts.session_id))
        if row is None:
            return SessionView(facts, SessionRecord())
        return replace(session_view(row), facts=facts)
