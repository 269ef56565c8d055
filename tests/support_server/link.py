"""Raw stubs on one channel, with the few scenes that nearly every test plays."""

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, NamedTuple, Self

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2_grpc
from runlane.v1 import (
    admin_service_pb2_grpc,
    event_pb2,
    executor_service_pb2,
    executor_service_pb2_grpc,
    history_service_pb2,
    history_service_pb2_grpc,
    message_pb2,
    run_pb2,
    server_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
    submission_pb2,
)

CALL_SECONDS = 30.0
MODE = submission_pb2.Submission.Mode
EVENT = event_pb2.Event.Type

_counter = itertools.count(1)
_ANY_SIZE = [("grpc.use_local_subchannel_pool", 1)]


class Told(NamedTuple):
    """What an error says."""

    code: grpc.StatusCode
    reason: str
    metadata: dict[str, str]
    fields: list[str]
    retry_seconds: float | None
    everything: str


def told(error: grpc.aio.AioRpcError) -> Told:
    """Reads an error with all its details."""
    reason, metadata, fields, retry = "", {}, [], None
    everything = [str(error.details())]
    for key, value in error.trailing_metadata() or ():
        everything.append(f"{key} {value!r}")
        if key != "grpc-status-details-bin":
            continue
        for detail in status_pb2.Status.FromString(value).details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo.FromString(detail.value)
                assert info.domain == "runlane.dev"
                reason, metadata = info.reason, dict(info.metadata)
            elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                bad = error_details_pb2.BadRequest.FromString(detail.value)
                fields = [one.field for one in bad.field_violations]
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                delay = error_details_pb2.RetryInfo.FromString(detail.value).retry_delay
                retry = delay.seconds + delay.nanos / 1e9
    return Told(error.code(), reason, metadata, fields, retry, "\n".join(everything))


async def refused(call: Awaitable[Any]) -> Told:
    """Awaits a call that must be refused; returns what it was told."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return told(caught.value)


def unique(prefix: str) -> str:
    """Returns an id that no other test has."""
    return f"{prefix}-{next(_counter)}-{uuid.uuid4().hex[:8]}"


def text(value: str) -> list[message_pb2.Block]:
    return [message_pb2.Block(text=value)]


def seconds(value: float) -> Duration:
    whole = int(value)
    return Duration(seconds=whole, nanos=round((value - whole) * 1e9))


class _Carried:
    """Adds metadata to each call."""

    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._metadata = metadata

    async def _carry(self, continuation: Any, details: Any, request: Any) -> Any:
        metadata = grpc.aio.Metadata(*(details.metadata or ()), *self._metadata)
        return await continuation(details._replace(metadata=metadata), request)


class _UnaryUnary(_Carried, grpc.aio.UnaryUnaryClientInterceptor):
    intercept_unary_unary = _Carried._carry


class _UnaryStream(_Carried, grpc.aio.UnaryStreamClientInterceptor):
    intercept_unary_stream = _Carried._carry


class _StreamUnary(_Carried, grpc.aio.StreamUnaryClientInterceptor):
    intercept_stream_unary = _Carried._carry


class Link:
    """A channel to a server. The agent of a session has its name, so tests do not mix."""

    def __init__(
        self,
        address: str,
        options: Iterable[tuple[str, Any]] = (),
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        kinds = (_UnaryUnary, _UnaryStream, _StreamUnary)
        self.channel = grpc.aio.insecure_channel(
            address,
            options=[*_ANY_SIZE, *options],
            interceptors=[kind(metadata) for kind in kinds] if metadata else None,
        )
        self.admin = admin_service_pb2_grpc.AdminServiceStub(self.channel)
        self.sessions = session_service_pb2_grpc.SessionServiceStub(self.channel)
        self.history = history_service_pb2_grpc.HistoryServiceStub(self.channel)
        self.executors = executor_service_pb2_grpc.ExecutorServiceStub(self.channel)
        self.server = server_service_pb2_grpc.ServerServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.channel.close()

    # --- input ---------------------------------------------------------------

    async def create(self, session_id: str, **fields: Any) -> Any:
        fields.setdefault("default_agent", session_id)
        request = session_service_pb2.CreateSessionRequest(session_id=session_id, **fields)
        return await self.sessions.CreateSession(request, timeout=CALL_SECONDS)

    async def submit(
        self, session_id: str, words: Any = "hello", *, timeout: float = CALL_SECONDS, **fields: Any
    ) -> Any:
        """Submits a text, or blocks; the session is made where there is none."""
        content = text(words) if isinstance(words, str) else words
        if "create_session" not in fields:
            fields["create_session"] = session_service_pb2.SessionSpec(default_agent=session_id)
        request = session_service_pb2.SubmitRequest(
            session_id=session_id, content=content, **fields
        )
        return await self.sessions.Submit(request, timeout=timeout)

    async def interrupt(self, session_id: str = "", wait: float = 0, **fields: Any) -> Any:
        request = session_service_pb2.InterruptRunRequest(
            session_id=session_id, wait_duration=seconds(wait), **fields
        )
        return await self.sessions.InterruptRun(request, timeout=wait + CALL_SECONDS)

    async def fork(self, run_id: str, **fields: Any) -> Any:
        request = history_service_pb2.ForkSessionRequest(run_id=run_id, **fields)
        return await self.history.ForkSession(request, timeout=CALL_SECONDS)

    async def delete(self, session_id: str, **fields: Any) -> Any:
        request = session_service_pb2.DeleteSessionRequest(session_id=session_id, **fields)
        return await self.sessions.DeleteSession(request, timeout=CALL_SECONDS)

    # --- as an executor ------------------------------------------------------

    async def poll(
        self, agent: str, wait: float = 5, *, executor_id: str = "executor-1", **fields: Any
    ) -> Any:
        """Polls for an agent; returns the whole answer."""
        request = executor_service_pb2.PollActivationRequest(
            executor_id=executor_id, agents=[agent], wait_duration=seconds(wait), **fields
        )
        return await self.executors.PollActivation(request, timeout=wait * 1.25 + CALL_SECONDS)

    async def lease(self, agent: str, wait: float = 5, **fields: Any) -> Any:
        """Polls until there is an activation."""
        answer = await self.poll(agent, wait, **fields)
        assert answer.HasField("activation"), f"nothing to do for {agent}"
        return answer.activation

    async def commit(
        self, fence: run_pb2.Fence, *operations: Any, timeout: float = CALL_SECONDS, **fields: Any
    ) -> Any:
        request = executor_service_pb2.CommitRequest(fence=fence, operations=operations, **fields)
        return await self.executors.Commit(request, timeout=timeout)

    async def heartbeat(self, fence: run_pb2.Fence, lease: float = 30) -> Any:
        request = executor_service_pb2.HeartbeatRequest(fence=fence, lease_duration=seconds(lease))
        return await self.executors.Heartbeat(request, timeout=CALL_SECONDS)

    async def answer(self, fence: run_pb2.Fence, words: Any = "done", **fields: Any) -> Any:
        """Reserves a step, commits its answer and finishes the run."""
        await self.commit(fence, reserve())
        return await self.answer_reserved(fence, words, **fields)

    async def answer_reserved(
        self, fence: run_pb2.Fence, words: Any = "done", **fields: Any
    ) -> Any:
        """Commits the answer of a reserved step and finishes the run."""
        fields.setdefault("finish", COMPLETED)
        return await self.commit(fence, step(words), **fields)

    async def run(self, session_id: str, words: Any = "hello", answer: Any = "done") -> str:
        """Plays a whole run; returns its id."""
        receipt = await self.submit(session_id, words)
        leased = await self.lease(session_id)
        assert leased.fence.run_id == receipt.submission.run_id
        await self.answer(leased.fence, answer)
        return leased.fence.run_id

    # --- reads ---------------------------------------------------------------

    async def session(self, session_id: str) -> Any:
        request = session_service_pb2.GetSessionRequest(session_id=session_id)
        return (await self.sessions.GetSession(request, timeout=CALL_SECONDS)).session

    async def live(self, session_id: str, **fields: Any) -> Any:
        request = session_service_pb2.GetLiveStateRequest(session_id=session_id, **fields)
        return (await self.sessions.GetLiveState(request, timeout=CALL_SECONDS)).live_state

    async def get_run(self, run_id: str) -> Any:
        request = history_service_pb2.GetRunRequest(run_id=run_id)
        return (await self.history.GetRun(request, timeout=CALL_SECONDS)).run

    async def wait_run(self, run_id: str, wait: float = 10, **fields: Any) -> Any:
        request = history_service_pb2.WaitRunRequest(
            run_id=run_id, wait_duration=seconds(wait), **fields
        )
        return (await self.history.WaitRun(request, timeout=wait * 1.25 + CALL_SECONDS)).run

    def stream(self, session_id: str, *, timeout: float = 60, **fields: Any) -> Any:
        """Opens StreamEvents; returns the call."""
        request = session_service_pb2.StreamEventsRequest(session_id=session_id, **fields)
        return self.sessions.StreamEvents(request, timeout=timeout)

    async def follow(self, session_id: str, **fields: Any) -> AsyncIterator[event_pb2.Event]:
        """Gives the events of a stream one by one."""
        call = self.stream(session_id, **fields)
        try:
            async for frame in call:
                for event in frame.batch.events:
                    yield event
        finally:
            call.cancel()

    async def events(self, session_id: str, **fields: Any) -> list[event_pb2.Event]:
        """Reads all events that there are."""
        return [event async for event in self.follow(session_id, follow=False, **fields)]

    async def messages(self, session_id: str, after: int = 0) -> list[message_pb2.Message]:
        request = history_service_pb2.StreamMessagesRequest(
            session_id=session_id, after_number=after
        )
        call = self.history.StreamMessages(request, timeout=CALL_SECONDS)
        return [message async for frame in call for message in frame.messages]

    async def history_at(self, run_id: str) -> tuple[Any, list[bytes]]:
        """Reads the history at a run: its header, and its messages as bytes."""
        request = history_service_pb2.GetHistoryAtRunRequest(run_id=run_id)
        header, messages = None, []
        async for frame in self.history.GetHistoryAtRun(request, timeout=CALL_SECONDS):
            if frame.HasField("header"):
                header = frame.header
            messages += [one.SerializeToString(deterministic=True) for one in frame.messages]
        return header, messages

    async def pages(self, method: Any, request: Any, field: str, size: int) -> list[Any]:
        """Reads a list to its end, page by page."""
        found: list[Any] = []
        request.page_size = size
        while True:
            page = await method(request, timeout=CALL_SECONDS)
            items = getattr(page, field)
            assert len(items) <= size
            found += items
            if not page.next_page_token:
                return found
            assert items, "a page that is not the last has items"
            request.page_token = page.next_page_token


COMPLETED = executor_service_pb2.Finish(completed=executor_service_pb2.Completed())
CANCELLED = executor_service_pb2.Finish(cancelled=executor_service_pb2.Cancelled())


def fence_of(run: run_pb2.Run) -> run_pb2.Fence:
    """Returns the fence of a run's activation."""
    activation = run.activation
    return run_pb2.Fence(
        session_id=run.session_id,
        run_id=run.run_id,
        activation_id=activation.activation_id,
        epoch=activation.epoch,
    )


def failed(message: str = "it broke") -> executor_service_pb2.Finish:
    reason = run_pb2.RunFailure.REASON_EXECUTOR_ERROR
    return executor_service_pb2.Finish(failed=run_pb2.RunFailure(reason=reason, message=message))


def reserve() -> executor_service_pb2.Operation:
    return executor_service_pb2.Operation(
        reserve_model_step=executor_service_pb2.ReserveModelStep()
    )


def step(words: Any = "done") -> executor_service_pb2.Operation:
    content = text(words) if isinstance(words, str) else words
    return executor_service_pb2.Operation(
        commit_model_step=executor_service_pb2.CommitModelStep(content=content)
    )


def dense(events: Iterable[event_pb2.Event], first: int = 1) -> list[event_pb2.Event]:
    """Asserts that sequences have neither gap nor repeat; returns the events."""
    events = list(events)
    assert [one.sequence for one in events] == list(range(first, first + len(events)))
    return events


async def within(limit: float, awaitable: Awaitable[Any]) -> Any:
    """Awaits with a bound."""
    async with asyncio.timeout(limit):
        return await awaitable


async def until(true: Callable[[], bool | Awaitable[bool]], limit: float = 20) -> None:
    """Asks again and again, for what nothing tells of."""
    async with asyncio.timeout(limit):
        while True:
            answer = true()
            if await answer if isinstance(answer, Awaitable) else answer:
                return
            await asyncio.sleep(0.02)


async def rest(call: Any) -> AsyncIterator[Any]:
    """Gives the frames of a call that was read from before."""
    while (frame := await call.read()) is not grpc.aio.EOF:
        yield frame
