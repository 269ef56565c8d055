"""AdminService."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Protocol

from runlane.v1 import admin_service_pb2 as pb
from runlane.v1 import api_key_pb2

from runlane_server.app.keys import Grant, MadeKey, NewKey
from runlane_server.app.views import ExecutorView, FeedMark, FeedQuery, Page, RunView
from runlane_server.core.errors import Reason, Refused, invalid
from runlane_server.core.keys import ApiKey, Scope, scope_bits, scopes_of
from runlane_server.core.words import Phase, SessionStatus
from runlane_server.transport import requests, responses
from runlane_server.transport.archives import ArchiveReader
from runlane_server.transport.binding import Call
from runlane_server.transport.codec import feed_batch
from runlane_server.transport.paging import FeedCursors, Pager, after_page, fill, page_limit
from runlane_server.transport.port import AppPort
from runlane_server.transport.values import duration, duration_micros, timestamp

_PLACE = re.compile(r"^records\[(\d+)\]")


class KeysPort(Protocol):
    """What makes and ends API keys."""

    async def create(self, grant: Grant, namespace: str, asked: NewKey, actor: str, /) -> MadeKey:
        """Makes a key."""

    async def list(
        self, grant: Grant, after: tuple[int, str] | None, limit: int, /, *, ended: bool
    ) -> Page[ApiKey]:
        """Lists keys."""

    async def revoke(self, grant: Grant, key_id: str, actor: str, /) -> ApiKey:
        """Ends a key."""


def _run(view: RunView) -> tuple[int, str]:
    return view.facts.create_time, view.facts.run_id


def _key(key: ApiKey) -> tuple[int, str]:
    return key.create_time, key.key_id


def api_key(key: ApiKey) -> api_key_pb2.ApiKey:
    """Shows a key."""
    return api_key_pb2.ApiKey(
        key_id=key.key_id,
        name=key.name,
        namespace=key.namespace,
        scopes=[api_key_pb2.ApiKey.Scope.ValueType(scope) for scope in scopes_of(key.scopes)],
        last_characters=key.last_characters,
        create_time=timestamp(key.create_time),
        expire_time=timestamp(key.expire_time),
        revoke_time=timestamp(key.revoke_time),
    )


def _executor(view: ExecutorView) -> pb.ExecutorStatus:
    return pb.ExecutorStatus(
        executor_id=view.executor_id,
        agents=view.agents,
        last_poll_time=timestamp(view.last_poll_time),
        polling=view.polling,
        leased_count=view.leased,
        draining=view.draining,
    )


async def _read(
    incoming: AsyncIterator[pb.ImportSessionRequest], reader: ArchiveReader, silence: float
) -> pb.ImportSessionRequest:
    """Reads a whole archive; returns the first request without its records."""
    first: pb.ImportSessionRequest | None = None
    while True:
        try:
            async with asyncio.timeout(silence):
                request = await anext(incoming, None)
        except TimeoutError:
            raise Refused(
                Reason.STREAM_ENDED, f"nothing of the import came for {silence:g} seconds"
            ) from None
        except Refused as refused:
            raise _placed(refused, reader.count) from None
        if request is None:
            return first or pb.ImportSessionRequest()
        if first is None:
            first = pb.ImportSessionRequest(
                session_id=request.session_id, request_id=request.request_id
            )
        elif request.session_id or request.request_id:
            raise invalid("session_id", "and request_id are allowed in the first request alone")
        reader.take(request.records, request.ByteSize())


def _placed(refused: Refused, before: int) -> Refused:
    """Counts the records of the requests before in: a path names a place in the stream."""

    def moved(text: str) -> str:
        return _PLACE.sub(lambda found: f"records[{int(found[1]) + before}]", text)

    violations = tuple((moved(field), rule) for field, rule in refused.violations)
    message = moved(refused.message)
    return Refused(
        refused.reason,
        message,
        violations=violations,
        retry_milliseconds=refused.retry_milliseconds,
        **refused.metadata,
    )


class AdminServicer:
    """Converts, calls one use case, converts back."""

    def __init__(self, app: AppPort, keys: KeysPort) -> None:
        self._app = app
        self._keys = keys

    async def list_stalled_runs(
        self, request: pb.ListStalledRunsRequest, call: Call
    ) -> pb.ListStalledRunsResponse:
        """Lists the stalled runs."""
        pager = Pager(call.method, call.namespace)
        page = await self._app.list_stalled_runs(
            call.namespace, pager.place(request.page_token), page_limit(request.page_size)
        )
        shown = fill(page.items, responses.run_of)
        after = after_page(page, shown, _run)
        return pb.ListStalledRunsResponse(runs=shown, next_page_token=pager.token(after))

    async def settle_run(self, request: pb.SettleRunRequest, call: Call) -> pb.SettleRunResponse:
        """Ends a live run by hand."""
        command = requests.settle_run(request)
        caller = call.caller(request.request_id, command)
        done = await self._app.settle_run(caller, command)
        return pb.SettleRunResponse(
            run=responses.run(done.answer.run),
            sequence=done.answer.sequence,
            replayed=done.replayed,
        )

    async def create_key(self, request: pb.CreateKeyRequest, call: Call) -> pb.CreateKeyResponse:
        """Makes an API key."""
        asked = NewKey(
            request.name,
            request.namespace or call.namespace,
            scope_bits(*map(Scope, request.scopes)),
            duration_micros(request.expire_duration, "expire_duration"),
            request.request_id,
        )
        made = await self._keys.create(call.grant, call.namespace, asked, call.client)
        return pb.CreateKeyResponse(
            key=api_key(made.key), secret=made.secret, replayed=not made.secret
        )

    async def list_keys(self, request: pb.ListKeysRequest, call: Call) -> pb.ListKeysResponse:
        """Lists the API keys."""
        pager = Pager(call.method, call.namespace, request.include_ended)
        page = await self._keys.list(
            call.grant,
            pager.place(request.page_token),
            page_limit(request.page_size),
            ended=request.include_ended,
        )
        shown = fill(page.items, api_key)
        after = after_page(page, shown, _key)
        return pb.ListKeysResponse(keys=shown, next_page_token=pager.token(after))

    async def revoke_key(self, request: pb.RevokeKeyRequest, call: Call) -> pb.RevokeKeyResponse:
        """Ends an API key."""
        return pb.RevokeKeyResponse(
            key=api_key(await self._keys.revoke(call.grant, request.key_id, call.client))
        )

    async def get_overview(
        self, _request: pb.GetOverviewRequest, call: Call
    ) -> pb.GetOverviewResponse:
        """Tells how the namespace and the server are doing."""
        view = await self._app.overview(call.namespace)
        counts = view.counts
        return pb.GetOverviewResponse(
            open_session_count=counts.sessions.get(SessionStatus.OPEN, 0),
            closed_session_count=counts.sessions.get(SessionStatus.CLOSED, 0),
            more_sessions=counts.more_sessions,
            active_run_count=counts.live_runs.get(Phase.ACTIVE, 0),
            waiting_run_count=counts.live_runs.get(Phase.WAITING, 0),
            paused_run_count=counts.live_runs.get(Phase.PAUSED, 0),
            stalled_run_count=counts.stalled_runs,
            open_interaction_count=counts.open_interactions,
            queued_activation_count=view.queued,
            oldest_queued_duration=duration(view.now - view.oldest_queue_time)
            if view.queued
            else None,
            leased_activation_count=view.leased,
            executor_count=view.executors,
            stream_count=view.streams,
            store_size_bytes=counts.size,
            store_available=view.store_available,
            server_time=timestamp(view.now),
            quotas=[
                pb.QuotaUsage(quota=name, used=used, limit=limit)
                for name, used, limit in view.quotas
            ],
        )

    async def list_executors(
        self, request: pb.ListExecutorsRequest, call: Call
    ) -> pb.ListExecutorsResponse:
        """Lists the executors."""
        pager = Pager(call.method, call.namespace)
        executors, go_on = await self._app.list_executors(
            call.namespace, pager.name(request.page_token), page_limit(request.page_size)
        )
        shown = fill(executors, _executor)
        if len(shown) < len(executors):
            go_on = shown[-1].executor_id
        return pb.ListExecutorsResponse(executors=shown, next_page_token=pager.token(go_on))

    async def stream_feed(self, request: pb.StreamFeedRequest, call: Call) -> AsyncIterator[bytes]:
        """Streams the events of all sessions."""
        info = self._app.server_info()
        cursors = FeedCursors(call.namespace, info.store_id, info.store_epoch)
        at_end = request.WhichOneof("start") == "at_end"
        query = FeedQuery(
            None if at_end else cursors.feed_place(request.after_cursor),
            request.follow if request.HasField("follow") else True,
            frozenset(request.types),
            request.include_messages,
        )
        async for frame in self._app.stream_feed(call.namespace, query):
            if isinstance(frame, FeedMark):
                yield pb.StreamFeedResponse(
                    bookmark=pb.FeedBookmark(
                        cursor=cursors.token(frame.place),
                        caught_up=frame.caught_up,
                        server_time=timestamp(frame.server_time),
                    )
                ).SerializeToString()
            else:
                yield feed_batch(
                    (data, message, cursors.token(place)) for place, data, message in frame
                )

    async def import_session(
        self, incoming: AsyncIterator[pb.ImportSessionRequest], call: Call
    ) -> pb.ImportSessionResponse:
        """Makes a session of the records of an archive."""
        self._app.begin_import()
        try:
            reader = ArchiveReader(*self._app.import_limits)
            first = await _read(incoming, reader, self._app.import_silence)
            archive = reader.finish()
            caller = call.caller(first.request_id, first.session_id, archive.digest)
            done, view = await self._app.import_session(caller, first.session_id, archive)
        finally:
            self._app.end_import()
        answer = done.answer
        return pb.ImportSessionResponse(
            session=responses.session(view),
            message_count=answer.session.message_count,
            run_count=answer.run_count,
            content_digest=answer.digest.hex(),
            skipped_event_count=reader.events,
            sequence=answer.sequence,
            replayed=done.replayed,
        )
