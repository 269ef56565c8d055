"""Use cases on archives: a session out of a store, and into one."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from runlane_server.app.base import request_of, run_view, session_view
from runlane_server.app.queries import ANCESTORS_MAX, Queries
from runlane_server.app.streams import BATCH_BYTES, BATCH_EVENTS, read_page
from runlane_server.app.views import Caller, LineageView, Result, RunView, SessionView
from runlane_server.core.answers import ImportAnswer
from runlane_server.core.archives import Archive, check_archive
from runlane_server.core.commands import ImportSession
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.imports import AtRest, at_rest
from runlane_server.core.model import SessionKey, SessionState
from runlane_server.core.rows import MessageAppended
from runlane_server.runtime.engine import plan
from runlane_server.runtime.records import decode_state
from runlane_server.store.base import MessageRow, RunRow, SummaryRow

_RUNS = 100
_CALLS = 256


@dataclass(slots=True)
class ExportedRun:
    """A run of an archive, with what a view does not show."""

    view: RunView
    first: int
    summary_through: int


@dataclass(slots=True)
class ExportView:
    """What an archive begins with."""

    session: SessionView
    sequence: int
    lineage: LineageView
    live_run_id: str
    now: int


Exported = ExportView | ExportedRun | SummaryRow | list[MessageRow] | list[bytes]
"""What an export gives, in order: its beginning, runs, summaries, messages, events."""


class Archives(Queries):
    """Export and import."""

    _importing = 0

    async def export_session(
        self, namespace: str, session_id: str, include_events: bool
    ) -> AsyncIterator[Exported]:
        """Gives all that an archive of a session holds, as it is now, in bounded pieces.

        Nothing is held meanwhile: what was committed never changes, so only the state and
        the record are of one moment, and all else is read up to it.
        """
        services = self.services
        key = SessionKey(namespace, session_id)
        row = await services.store.session(key)
        if row is None:
            raise Refused(Reason.SESSION_NOT_FOUND)
        state, now = decode_state(row.state), services.clock.now()
        rest = at_rest(state, now, services.new_id, services.rules) if state.run else None
        ancestors = await services.store.ancestors(key, ANCESTORS_MAX)
        lineage = LineageView(ancestors, await self._parents(namespace, session_id))
        live_run_id = rest.run.run_id if rest is not None else ""
        yield ExportView(session_view(row), state.sequence, lineage, live_run_id, now)
        summaries = {state.compacted_through} - {0}
        async for run in self._runs(key, state, rest):
            summaries |= {run.summary_through} - {0}
            yield run
        for through in sorted(summaries):
            summary = await services.store.summary(key, through)
            if summary is None:
                raise Refused(Reason.SESSION_NOT_FOUND)
            yield summary
        number = 0
        while number < state.message_count:
            rows = await services.store.messages(
                key, number + 1, state.message_count, BATCH_EVENTS, BATCH_BYTES
            )
            if not rows:  # deleted meanwhile
                raise Refused(Reason.SESSION_NOT_FOUND)
            yield rows
            number = rows[-1].number
            self._go_on()
        if rest is not None:
            for closer in rest.closers:
                yield [await self._closer(key, closer)]
        if include_events:
            async for events in self._events(key, state.sequence):
                yield events

    async def _runs(
        self, key: SessionKey, state: SessionState, rest: AtRest | None
    ) -> AsyncIterator[ExportedRun]:
        after: tuple[int, str] | None = None
        while True:
            rows = await self.services.store.list_runs(key, [], after, _RUNS)
            if rows is None:
                raise Refused(Reason.SESSION_NOT_FOUND)
            for row in rows:
                if row.create_time > state.last_run_time:
                    return
                yield _exported(row, state, rest)
            if len(rows) < _RUNS:
                return
            after = rows[-1].create_time, rows[-1].run_id
            self._go_on()

    async def _closer(self, key: SessionKey, row: MessageAppended) -> MessageRow:
        """Makes a message that would close a call of a live run."""
        data = self.services.codec.message(row, key.session_id, None)
        if row.closer is None:
            assert row.from_call is not None, "it is a stored result"  # noqa: S101 - invariant
            step, ordinal = row.from_call
            calls = await self.services.store.list_tool_calls(
                key.namespace, row.run_id, (step, ordinal - 1), 1
            )
            if not calls or not calls[0].result:
                raise Refused(Reason.SESSION_NOT_FOUND)
            # Where it was appended since, it is a whole message: the same fields once more.
            data = calls[0].result + data
        return MessageRow(row.number, data)

    async def _events(self, key: SessionKey, last: int) -> AsyncIterator[list[bytes]]:
        cursor = 0
        while cursor < last:
            page = await read_page(self, key, None, cursor)
            if not page.events:
                raise Refused(Reason.SESSION_NOT_FOUND)
            events = [event.data for sequence, event in page.events if sequence <= last]
            for start in range(0, len(events), BATCH_EVENTS):
                yield events[start : start + BATCH_EVENTS]
            cursor = page.through
            self._go_on()

    def _go_on(self) -> None:
        if self.services.draining:
            raise Refused(Reason.STREAM_ENDED)

    # --- import ------------------------------------------------------------

    def begin_import(self) -> None:
        """Counts an import in, until `end_import`.

        Raises:
            Refused: STREAM_LIMIT: as many go on as may.
        """
        limit = self.services.limits.imports_max
        if self._importing >= limit:
            raise Refused(
                Reason.STREAM_LIMIT,
                "as many imports go on as may",
                retry_milliseconds=1000,
                limit=str(limit),
            )
        self._importing += 1

    def end_import(self) -> None:
        """Counts an import out."""
        self._importing -= 1

    @property
    def import_limits(self) -> tuple[int, int, int]:
        """Bytes, messages and runs that an archive may have."""
        limits = self.services.limits
        return limits.import_bytes_max, limits.import_messages_max, limits.import_runs_max

    @property
    def import_silence(self) -> float:
        """Seconds that may pass between two requests of an import."""
        return self.services.limits.import_silence

    async def import_session(
        self, caller: Caller, session_id: str, archive: Archive
    ) -> tuple[Result[ImportAnswer], SessionView]:
        """Makes a session of an archive; `session_id` empty: an id is made."""
        check_archive(archive, self.services.clock.now())
        key = SessionKey(caller.namespace, session_id or self.services.new_id("ses"))
        result = await self._execute(
            plan(
                key,
                ImportSession(archive),
                caller.actor,
                request_of(caller, ""),
                caller.request_hash,
                caller.toll,
            )
        )
        return result, SessionView(result.answer.session, archive.record)


def _exported(row: RunRow, state: SessionState, rest: AtRest | None) -> ExportedRun:
    if rest is None or row.run_id != rest.run.run_id:
        return ExportedRun(run_view(row), row.message_number, row.summary_through)
    # Whatever has become of it since.
    view = RunView(rest.run, row.options, row.preview)
    return ExportedRun(view, row.message_number, state.compacted_through)
