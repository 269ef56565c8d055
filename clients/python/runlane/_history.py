"""Fork points, history at a run, and forks."""

from collections.abc import AsyncIterator, Mapping

from runlane import _convert as convert
from runlane._client import Client
from runlane._content import Input, Message, content_to_pb, message_from_pb
from runlane._models import Fork, ForkPoint, HistoryAtRun, Lineage, Page
from runlane.errors import RunlaneError
from runlane.v1 import history_service_pb2 as pb


class SessionHistory:
    """Reads committed history and makes forks; it never starts anything.

    Args:
        client: The client to call with.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._caller = client._caller  # noqa: SLF001 - one package, one connection

    async def list_fork_points(
        self, session_id: str, after: str | None = None, limit: int = 50
    ) -> Page[ForkPoint]:
        """Lists the terminal runs of a session, ascending by creation.

        Args:
            session_id: The session.
            after: The `next_cursor` of the page before; None: the first page.
            limit: How many; above 1,000 cut to it.

        Raises:
            SessionNotFound: There is no such session.
        """
        answer = await self._caller.unary(
            self._caller.stubs.history.ListForkPoints,
            pb.ListForkPointsRequest(
                session_id=session_id, page_size=limit, page_token=after or ""
            ),
        )
        return convert.page(map(convert.fork_point, answer.fork_points), answer.next_page_token)

    async def get_at_run(self, run_id: str, *, session_id: str = "") -> HistoryAtRun:
        """Reads the whole committed history at the end of a run.

        Args:
            run_id: The terminal run.
            session_id: The session, to have it checked.

        Raises:
            RunNotFound: There is no such run.
            RunNotTerminal: It has not ended.
        """
        header: pb.HistoryHeader | None = None
        messages: list[Message] = []

        def request() -> pb.GetHistoryAtRunRequest:
            # A lost connection starts the read anew: the history is frozen, so it is the same.
            messages.clear()
            return pb.GetHistoryAtRunRequest(run_id=run_id, session_id=session_id)

        method = self._caller.stubs.history.GetHistoryAtRun
        async for frame in self._client._frames(method, request):  # noqa: SLF001 - as above
            if frame.HasField("header"):
                header = frame.header
            messages.extend(message_from_pb(message) for message in frame.messages)
        if header is None or len(messages) != header.message_count:
            raise RunlaneError(f"the history at run {run_id} came incomplete")
        return HistoryAtRun(
            run=convert.run(header.run),
            messages=tuple(messages),
            digest=header.digest,
            summary=convert.summary(header.summary) if header.HasField("summary") else None,
        )

    async def fork(
        self,
        run_id: str,
        session_id: str | None = None,
        *,
        input: Input | None = None,  # noqa: A002 - the word of the contract
        options: convert.Options = None,
        metadata: Mapping[str, str] | None = None,
        display_name: str = "",
        labels: Mapping[str, str] | None = None,
        metadata_json: str | None = None,
        default_agent: str | None = None,
        request_id: str | None = None,
    ) -> Fork:
        """Makes a new session with the history at the end of a run.

        The source is neither held nor changed, whatever it is doing.

        Args:
            run_id: The terminal run.
            session_id: Id of the new session; None: the server makes one.
            input: A first input for the new session, in the same transaction.
            options: Options of the run that this input starts.
            metadata: Entries of the application, kept with this input.
            display_name: Name of the new session.
            labels: Labels instead of the source's.
            metadata_json: JSON object instead of the source's.
            default_agent: Default agent instead of the source's.
            request_id: Makes the call idempotent beyond its own repeats.

        Raises:
            RunNotFound: There is no such run.
            RunNotTerminal: It has not ended.
            RunNotTopLevel: It is a child run.
            SessionExists: The id of the new session is taken.
            ValueError: Options or metadata without an input.
        """
        request = pb.ForkSessionRequest(
            run_id=run_id,
            session_id=session_id or "",
            display_name=display_name,
            labels=labels,
            metadata_json=metadata_json,
            default_agent=default_agent,
            input=_first_input(input, options, metadata),
            request_id=request_id or "",
        )
        answer = await self._caller.unary(self._caller.stubs.history.ForkSession, request)
        return _fork(answer, run_id)

    def messages(self, session_id: str, *, after_number: int = 0) -> AsyncIterator[Message]:
        """Streams the messages of a session up to the last one, ascending.

        Args:
            session_id: The session.
            after_number: After this number; 0 is the first message.

        Raises:
            SessionNotFound: There is no such session.
        """
        return self._client.stream_messages(session_id, after_number=after_number)

    async def lineage(
        self, session_id: str, *, after: str | None = None, limit: int = 50
    ) -> Lineage:
        """Reads where a session comes from and which were forked from it.

        Args:
            session_id: The session.
            after: The `next_cursor` of the page of forks before; None: the first page.
            limit: How many forks; above 1,000 cut to it.

        Raises:
            SessionNotFound: There is no such session.
        """
        answer = await self._caller.unary(
            self._caller.stubs.history.GetLineage,
            pb.GetLineageRequest(session_id=session_id, page_size=limit, page_token=after or ""),
        )
        return Lineage(
            ancestors=tuple(convert.fork_source(source) for source in answer.ancestors),
            parents=tuple(map(convert.parent_run, answer.parents)),
            forks=convert.page(map(convert.session, answer.forks), answer.next_page_token),
        )


def _first_input(
    content: Input | None, options: convert.Options, metadata: Mapping[str, str] | None
) -> pb.ForkInput | None:
    if content is None:
        if options is not None or metadata is not None:
            raise ValueError("options and metadata belong to an input")
        return None
    return pb.ForkInput(
        content=content_to_pb(content),
        run_options=convert.options_to_pb(options),
        metadata=metadata,
    )


def _fork(answer: pb.ForkSessionResponse, run_id: str) -> Fork:
    session = convert.session(answer.session)
    submission = None
    if answer.HasField("submission"):
        submission = convert.receipt(
            answer.submission,
            sequence=answer.sequence,
            created=True,
            replayed=answer.replayed,
        )
    return Fork(
        session=session,
        forked_from_run_id=session.forked_from.run_id if session.forked_from else run_id,
        message_count=answer.message_count,
        digest=answer.digest,
        submission=submission,
        sequence=answer.sequence,
        replayed=answer.replayed,
    )
