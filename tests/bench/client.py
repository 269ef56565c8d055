"""The client side: stubs, requests as clients send them, and loads."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import msgspec
from runlane.v1 import executor_service_pb2 as executor
from runlane.v1 import history_service_pb2 as history
from runlane.v1 import message_pb2, run_pb2, submission_pb2
from runlane.v1 import session_service_pb2 as session
from runlane.v1.executor_service_pb2_grpc import ExecutorServiceStub
from runlane.v1.history_service_pb2_grpc import HistoryServiceStub
from runlane.v1.session_service_pb2_grpc import SessionServiceStub
from uuid_utils import uuid7

from tests.bench.floor import NAME

TIMEOUT = 60.0
TEXT = "Please look at the build of last night and tell me which of the tests failed, and why."
ANSWER = "Two of them: the clock of the runner was off by a minute, so both leases had run out."
AGENT = "bench"
MODES = submission_pb2.Submission
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
_serial = itertools.count(1)

Job = Callable[[], Awaitable[object]]


def fresh(prefix: str = "ses") -> str:
    return f"{prefix}_{uuid7()}"


@dataclass(slots=True)
class Load:
    """What a load of calls took: calls a second, and seconds of each."""

    rate: float
    seconds: list[float]


async def run(jobs: Iterable[Job], callers: int) -> Load:
    """Lets callers take the jobs in turn, each as soon as its last one is done."""
    remaining = iter(jobs)
    seconds: list[float] = []
    clock = time.perf_counter

    async def caller() -> None:
        for job in remaining:
            start = clock()
            await job()
            seconds.append(clock() - start)

    start = clock()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return Load(len(seconds) / (clock() - start), seconds)


class FloorClient:
    """Calls of the floor."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        unary, stream = channel.unary_unary, channel.unary_stream
        self._echo = unary(f"/{NAME}/Echo")
        self._keep = unary(f"/{NAME}/Keep")
        self._go = unary(f"/{NAME}/Go")
        messages = history.StreamMessagesResponse.FromString
        events = session.StreamEventsResponse.FromString
        self.replay = stream(f"/{NAME}/Replay", response_deserializer=messages)
        self.recode = stream(f"/{NAME}/Recode", response_deserializer=messages)
        self.wait = stream(f"/{NAME}/Wait", response_deserializer=events)

    async def echo(self, data: bytes) -> bytes:
        return await self._echo(data, timeout=TIMEOUT)

    async def keep(self, name: str, frames: Iterable[bytes]) -> None:
        for frame in frames:
            await self._keep(msgspec.msgpack.encode((name, frame)), timeout=TIMEOUT)

    async def go(self, name: str) -> None:
        await self._go(name.encode(), timeout=TIMEOUT)

    async def echo_load(self, callers: int, count: int) -> Load:
        """Echoes what a Submit weighs."""
        data = submit_request(fresh()).SerializeToString()
        return await run((lambda: self.echo(data) for _ in range(count)), callers)


def submit_request(
    session_id: str, mode: int = MODES.MODE_START, text: str = TEXT
) -> session.SubmitRequest:
    return session.SubmitRequest(
        session_id=session_id,
        mode=mode,
        content=[message_pb2.Block(text=text)],
        request_id=str(uuid7()),
    )


def finish_request(fence: run_pb2.Fence) -> executor.CommitRequest:
    """The last commit of a run: the model's answer, and the end."""
    return executor.CommitRequest(
        fence=fence,
        operations=[
            executor.Operation(
                commit_model_step=executor.CommitModelStep(
                    content=[message_pb2.Block(text=ANSWER)],
                    usage=run_pb2.Usage(input_tokens=120, output_tokens=30),
                    model="bench-1",
                    finish_reason="stop",
                )
            )
        ],
        finish=executor.Finish(completed=executor.Completed()),
        request_id=str(uuid7()),
    )


class Client:
    """Calls of Runlane, through generated stubs."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.sessions = SessionServiceStub(channel)
        self.history = HistoryServiceStub(channel)
        self.executors = ExecutorServiceStub(channel)

    async def create(self, session_id: str, agent: str = AGENT) -> str:
        await self.sessions.CreateSession(
            session.CreateSessionRequest(
                session_id=session_id, default_agent=agent, request_id=str(uuid7())
            ),
            timeout=TIMEOUT,
        )
        return session_id

    async def idle_sessions(self, count: int, agent: str = AGENT) -> list[str]:
        """Makes sessions."""
        made = [fresh() for _ in range(count)]
        await run((lambda one=one: self.create(one, agent) for one in made), 64)
        return made

    async def submit(self, session_id: str, mode: int = MODES.MODE_START) -> session.SubmitResponse:
        return await self.sessions.Submit(submit_request(session_id, mode), timeout=TIMEOUT)

    async def submit_new(self) -> session.SubmitResponse:
        """Submits to a session that is made by it."""
        request = submit_request(fresh())
        request.create_session.default_agent = AGENT
        return await self.sessions.Submit(request, timeout=TIMEOUT)

    async def poll(self, agent: str, executor_id: str = "bench-1") -> run_pb2.Fence:
        answer = await self.executors.PollActivation(
            executor.PollActivationRequest(
                executor_id=executor_id, agents=[agent], request_id=str(uuid7())
            ),
            timeout=TIMEOUT,
        )
        return answer.activation.fence

    async def reserve(self, fence: run_pb2.Fence) -> None:
        request = executor.CommitRequest(
            fence=fence,
            operations=[executor.Operation(reserve_model_step=executor.ReserveModelStep())],
            request_id=str(uuid7()),
        )
        request.lease_duration.seconds = 600
        await self.executors.Commit(request, timeout=TIMEOUT)

    async def finish(self, fence: run_pb2.Fence) -> None:
        await self.executors.Commit(finish_request(fence), timeout=TIMEOUT)

    async def ready_to_finish(self, count: int) -> list[run_pb2.Fence]:
        """Makes runs of which only the last commit is missing."""
        agent = f"agent-{next(_serial)}"
        made = await self.idle_sessions(count, agent)
        fences: list[run_pb2.Fence] = []

        async def bring(session_id: str) -> None:
            await self.submit(session_id)
            fence = await self.poll(agent)
            await self.reserve(fence)
            fences.append(fence)

        await run((lambda one=one: bring(one) for one in made), 64)
        return fences

    async def whole_run(self, session_id: str, agent: str, seconds: list[float]) -> None:
        """Submit, poll, reserve, commit and finish: a run, notes how long each call took."""
        clock = time.perf_counter
        start = clock()
        await self.submit(session_id)
        submitted = clock()
        fence = await self.poll(agent)
        polled = clock()
        await self.reserve(fence)
        reserved = clock()
        await self.finish(fence)
        end = clock()
        seconds += [submitted - start, polled - submitted, reserved - polled, end - reserved]


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Client]:
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        await channel.channel_ready()
        yield Client(channel)


@asynccontextmanager
async def connected_floor(address: str) -> AsyncIterator[FloorClient]:
    async with grpc.aio.insecure_channel(address, options=_OPTIONS) as channel:
        await channel.channel_ready()
        yield FloorClient(channel)
