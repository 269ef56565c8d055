"""ExecutorService."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from runlane.v1 import executor_service_pb2 as pb
from runlane.v1 import run_pb2

from runlane_server.core.errors import invalid
from runlane_server.transport import requests, responses
from runlane_server.transport.binding import Call, close
from runlane_server.transport.codec import repeated
from runlane_server.transport.port import AppPort
from runlane_server.transport.values import length_delimited

if TYPE_CHECKING:
    from runlane_server.core.model import Fence

_FENCED = "executor"
"""Actor of calls that name no executor; the app knows whose lease it is."""

_ACTIVATION = b"\x0a"  # PollActivationResponse field 1
_CONTEXT = b"\x42"  # LeasedActivation field 8
_DELIVERED = b"\x2a"  # CommitResponse field 5


class ExecutorServicer:
    """Converts, calls one use case, converts back."""

    def __init__(self, app: AppPort) -> None:
        self._app = app

    async def poll_activation(self, request: pb.PollActivationRequest, call: Call) -> bytes:
        """Waits for an activation and leases it."""
        wait = call.wait_seconds(requests.wait_micros(request.wait_duration))
        lease = requests.lease_micros(request)
        executor_id = request.executor_id
        agents = list(request.agents)
        context_max = request.context_bytes_max
        caller = call.caller(
            request.request_id,
            executor_id,
            agents,
            lease,
            context_max,
            actor=f"executor:{executor_id}",
        )
        view = await self._app.poll(caller, executor_id, agents, wait, lease, context_max)
        answer = pb.PollActivationResponse(
            draining=view.draining,
            fence_lost=view.fence_lost,
            sequence=view.sequence,
            replayed=view.replayed,
        ).SerializeToString()
        leased = view.leased
        if leased is None:
            return answer
        activation = pb.LeasedActivation(
            fence=responses.fence(leased.fence),
            kind=run_pb2.Activation.KIND_START,
            run=responses.run_of(leased.run),
            reserved_step=leased.reserved_step,
            control=responses.activation_control(leased.control),
        ).SerializeToString()
        if leased.context is not None:
            messages = repeated([row.data for row in leased.context])
            activation += length_delimited(_CONTEXT, messages)
        return answer + length_delimited(_ACTIVATION, activation)

    async def drain_executor(
        self, request: pb.DrainExecutorRequest, call: Call
    ) -> pb.DrainExecutorResponse:
        """Gives an executor no more activations."""
        executor_id = request.executor_id
        caller = call.caller(request.request_id, executor_id, actor=f"executor:{executor_id}")
        done = await self._app.drain_executor(caller, executor_id)
        return pb.DrainExecutorResponse(
            leased_count=done.answer.leased_count, replayed=done.replayed
        )

    async def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatResponse:
        """Renews a lease."""
        control = await self._app.heartbeat(
            call.caller(actor=_FENCED),
            requests.fence(request.fence),
            requests.lease_micros(request),
        )
        return pb.HeartbeatResponse(control=responses.activation_control(control))

    async def watch_activation(
        self, request: pb.WatchActivationRequest, call: Call
    ) -> AsyncIterator[pb.WatchActivationResponse]:
        """Streams the control of an activation."""
        controls = self._app.watch_activation(
            call.caller(actor=_FENCED), requests.fence(request.fence)
        )
        try:
            async for control in controls:
                yield pb.WatchActivationResponse(control=responses.activation_control(control))
        finally:
            await close(controls)

    async def commit(self, request: pb.CommitRequest, call: Call) -> bytes:
        """Commits facts under a fence."""
        command = requests.commit(request)
        caller = call.caller(request.request_id, command, actor=_FENCED)
        view = await self._app.commit(caller, command)
        answer = view.answer
        encoded = pb.CommitResponse(
            results=[
                responses.operation_result(operation, result)
                for operation, result in zip(command.operations, answer.results, strict=True)
            ],
            outcome_applied=answer.outcome_applied,
            position=answer.run.position,  # type: ignore[arg-type]
            run=responses.run(answer.run),
            control=responses.activation_control(view.control),
            fence_lost=view.fence_lost,
            sequence=answer.sequence,
            replayed=view.replayed,
        ).SerializeToString()
        for row in view.delivered:
            encoded += length_delimited(_DELIVERED, row.data)
        return encoded

    async def stream_model_context(
        self, request: pb.StreamModelContextRequest, call: Call
    ) -> AsyncIterator[bytes]:
        """Streams what the model is to see, then its end."""
        frames = self._app.model_context(
            call.caller(actor=_FENCED),
            requests.fence(request.fence),
            request.after_message_number,
        )
        try:
            async for frame in frames:
                if isinstance(frame, bytes):
                    yield frame
                else:
                    end = pb.ContextEnd(message_count=frame)
                    yield pb.StreamModelContextResponse(end=end).SerializeToString()
        finally:
            await close(frames)

    async def publish_deltas(
        self, incoming: AsyncIterator[pb.PublishDeltasRequest], call: Call
    ) -> pb.PublishDeltasResponse:
        """Passes deltas on."""
        caller = call.caller(actor=_FENCED)
        fence: Fence | None = None
        count = 0
        async for request in incoming:
            if fence is None:
                if not request.HasField("fence"):
                    break
                fence = requests.fence(request.fence)
            count += await self._app.publish_deltas(caller, fence, requests.deltas(request, fence))
        if fence is None:
            raise invalid("fence", "is required in the first request")
        return pb.PublishDeltasResponse(delta_count=count)
