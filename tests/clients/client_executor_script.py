"""A server that plays its part towards an executor, and models for it."""

import asyncio
from contextlib import asynccontextmanager

from client_fakes import FakeServer
from runlane import Agent, Executor, ModelRequest, ModelResponse, Usage
from runlane.v1 import executor_service_pb2 as pb
from runlane.v1 import message_pb2, run_pb2


def text_message(number: int, text: str) -> message_pb2.Message:
    return message_pb2.Message(
        number=number,
        role=message_pb2.Message.ROLE_USER,
        content=[message_pb2.Block(text=text)],
    )


def lease(number: int = 1, **fields) -> pb.LeasedActivation:
    fence = run_pb2.Fence(
        session_id="main", run_id=f"run_{number}", activation_id=f"act_{number}", epoch=1
    )
    options = run_pb2.RunOptions(request_options_json='{"temperature": 0}')
    run = run_pb2.Run(run_id=fence.run_id, session_id="main", agent="demo", options=options)
    fields.setdefault("context", pb.ModelContext(messages=[text_message(1, "hello")]))
    return pb.LeasedActivation(fence=fence, run=run, **fields)


class Script:
    """Leases what it is given; grants every step; a run ends at its first finish."""

    def __init__(self, server: FakeServer):
        self.server = server
        self.leases: asyncio.Queue[pb.LeasedActivation] = asyncio.Queue()
        self.steers: list[str] = []
        self.steps = 0
        self.commits: list[pb.CommitRequest] = []
        self.ended = asyncio.Event()
        self.draining = asyncio.Event()
        self.control: asyncio.Queue[pb.ActivationControl] = asyncio.Queue()
        server.handlers |= {
            "PollActivation": self.poll,
            "Commit": self.commit,
            "WatchActivation": self.watch,
            "Heartbeat": self.heartbeat,
            "DrainExecutor": self.drain,
        }

    async def poll(self, request, context):
        get = asyncio.ensure_future(self.leases.get())
        drain = asyncio.ensure_future(self.draining.wait())
        try:
            await asyncio.wait({get, drain}, return_when=asyncio.FIRST_COMPLETED)
            if get.done():
                return pb.PollActivationResponse(activation=get.result())
            return pb.PollActivationResponse(draining=True)
        finally:
            get.cancel()
            drain.cancel()

    async def drain(self, request, context):
        self.draining.set()
        return pb.DrainExecutorResponse()

    async def watch(self, request, context):
        while True:
            await context.write(pb.WatchActivationResponse(control=await self.control.get()))

    async def heartbeat(self, request, context):
        return pb.HeartbeatResponse()

    async def commit(self, request, context):
        self.commits.append(request)
        results, delivered = [], []
        for operation in request.operations:
            if operation.WhichOneof("operation") == "reserve_model_step":
                self.steps += 1
                grant = pb.ReserveModelStepResult(
                    state=pb.ReserveModelStepResult.STATE_GRANTED,
                    step=self.steps,
                    model_stream_id=f"stream_{self.steps}",
                )
                results.append(pb.OperationResult(reserve_model_step=grant))
            else:
                number = 2 * self.steps
                done = pb.CommitModelStepResult(message_number=number)
                results.append(pb.OperationResult(commit_model_step=done))
                if self.steers:
                    delivered = [text_message(number + 1, self.steers.pop(0))]
        applied = bool(request.WhichOneof("outcome")) and not delivered
        if applied:
            self.ended.set()
        return pb.CommitResponse(results=results, outcome_applied=applied, delivered=delivered)

    async def end(self) -> pb.CommitRequest:
        await asyncio.wait_for(self.ended.wait(), 20)
        return self.commits[-1]


class Echo:
    """Answers at once, and keeps what it was asked."""

    def __init__(self):
        self.requests: list[ModelRequest] = []

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.requests.append(request)
        return ModelResponse(
            text=f"answer {request.step}", usage=Usage(input_tokens=3), model="echo-1"
        )


class Gated:
    """Waits until it is let go."""

    def __init__(self):
        self.asked = asyncio.Event()
        self.gate = asyncio.Event()
        self.stopped = asyncio.Event()

    async def complete(self, request: ModelRequest) -> ModelResponse:
        self.asked.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped.set()
            raise
        return ModelResponse(text="done")


class Raising:
    def __init__(self, error: BaseException):
        self.error = error

    async def complete(self, request: ModelRequest) -> ModelResponse:
        raise self.error


@asynccontextmanager
async def running(client, model, **settings):
    agent = Agent("demo", model=model, system="be brief", model_name="m")
    async with Executor(client, agent, lease_duration=5, **settings) as executor:
        yield executor
