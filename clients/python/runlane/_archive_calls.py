"""The calls of a client that take a session out of a server, and into one."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

import grpc.aio
from google.protobuf import json_format

from runlane import _convert as convert
from runlane._calls import Caller
from runlane._content import Record
from runlane._models import Session
from runlane._retry import STREAM_DEADLINE
from runlane.errors import from_rpc_error
from runlane.v1 import admin_service_pb2 as admin_pb
from runlane.v1 import archive_pb2
from runlane.v1 import history_service_pb2 as history_pb

_REQUEST_BYTES: Final = 1024 * 1024


class ImportedSession(Record):
    """A session that was made of an archive.

    Attributes:
        session: The session.
        message_count: Messages that it took over.
        run_count: Runs that it took over; each is a fork point.
        content_digest: SHA-256 of what it took over, in hex: that of an export of it.
        skipped_event_count: Events in the archive, which are left out.
        replayed: Whether the answer is that of an earlier call with the same request id.
    """

    session: Session
    message_count: int
    run_count: int
    content_digest: str
    skipped_event_count: int
    replayed: bool


class ArchiveCalls:
    """Archives: the history of a session as lines of JSON."""

    _caller: Caller

    async def export_session(self, session_id: str, *, events: bool = False) -> AsyncIterator[str]:
        """Exports a session as the lines of an archive, each a record in JSON, without its end.

        The last line has the digest of the content: an archive without it is not whole. A run
        that is live is in it as if it were cancelled at this moment. Where the connection is
        lost the export fails, and is to be made anew.

        Args:
            session_id: The session.
            events: Also its events, for who reads the archive; an import leaves them out.

        Yields:
            The lines.

        Raises:
            SessionNotFound: There is no such session.
        """
        request = history_pb.ExportSessionRequest(session_id=session_id, include_events=events)
        stub = self._caller.stubs.history
        call = stub.ExportSession(request, timeout=STREAM_DEADLINE, metadata=self._caller.metadata)
        try:
            async for answer in call:
                for record in answer.records:
                    yield json_format.MessageToJson(record, indent=None, ensure_ascii=False)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None
        finally:
            call.cancel()

    async def import_session(
        self,
        lines: Iterable[str],
        session_id: str | None = None,
        *,
        request_id: str | None = None,
        timeout: float = 300.0,
    ) -> ImportedSession:
        """Makes a session of the lines of an archive; needs the scope admin.

        It has the same messages, times and fork points, and new ids of its runs. All of it is
        stored, or nothing.

        Args:
            lines: The lines; empty ones are passed over.
            session_id: Id of the new session; None: the server makes one.
            request_id: Makes the call idempotent beyond its own repeats.
            timeout: Seconds that it may take, its repeats included.

        Raises:
            ValueError: A line is no record of an archive; the text names the line.
            FieldInvalid: The records are no history of a session; `violations` name the record
                by its place, from 0.
            SessionExists: The id is taken.
        """
        requests = _requests(read_records(lines))
        first = requests[0]
        first.session_id, first.request_id = session_id or "", request_id or ""
        stub = self._caller.stubs.admin

        async def send(
            request: admin_pb.ImportSessionRequest, **how: Any
        ) -> admin_pb.ImportSessionResponse:
            return await stub.ImportSession(iter([request, *requests[1:]]), **how)

        answer = await self._caller.unary(send, first, timeout=timeout)
        return ImportedSession(
            session=convert.session(answer.session),
            message_count=answer.message_count,
            run_count=answer.run_count,
            content_digest=answer.content_digest,
            skipped_event_count=answer.skipped_event_count,
            replayed=answer.replayed,
        )


def read_records(lines: Iterable[str]) -> list[archive_pb2.ArchiveRecord]:
    """Reads the lines of an archive.

    Raises:
        ValueError: A line is no record; the text names the line, from 1.
    """
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(json_format.Parse(line, archive_pb2.ArchiveRecord()))
        except (json_format.ParseError, ValueError, RecursionError) as error:
            told = str(error).partition("\n")[0][:200]
            raise ValueError(f"line {number}: is no record of an archive: {told}") from None
    return records


def _requests(
    records: Sequence[archive_pb2.ArchiveRecord],
) -> list[admin_pb.ImportSessionRequest]:
    """Puts records into requests of a bounded size; there is at least one."""
    requests = [admin_pb.ImportSessionRequest()]
    size = 0
    for record in records:
        length = record.ByteSize()
        if size and size + length > _REQUEST_BYTES:
            requests.append(admin_pb.ImportSessionRequest())
            size = 0
        requests[-1].records.append(record)
        size += length
    return requests
