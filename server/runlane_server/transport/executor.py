"""ExecutorService."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from runlane.v1 import executor_service_pb2 as pb
from runlane.v1 import interaction_pb2

from runlane_server.app.views import LeasedView
from runlane_server.core.commands import CommitModelStep, CommitRun, Suspend
from runlane_server.core.errors import Refused, invalid
from runlane_server.core.words import PromptKind
from runlane_server.store.base import SummaryRow
from runlane_server.transport import requests, responses
from runlane_server.transport.binding import Call, close
from runlane_server.transport.codec import repeated
from runlane_server.transport.forms import check_schema
from runlane_server.transport.interactions import Call as AskingCall
from runlane_server.transport.interactions import fill_in
from runlane_server.transport.port import AppPort
from runlane_server.transport.values import SEND_BYTES_MAX, length_delimited

if TYPE_CHECKING:
    from runlane_server.core.model import Fence

_FENCED = "executor"
"""Actor of calls that name no executor; the app knows whose lease it is."""

_ACTIVATION = b"\x0a"  # PollActivationResponse field 1
_CONTEXT = b"\x42"  # LeasedActivation field 8
_DELIVERED = b"\x2a"  # CommitResponse field 5
_BATCH_MAX = 256
_FRAMING = 64


def _leased(view: LeasedView) -> bytes:
    """Encodes a leased activation: of what goes beyond the limit, the rest can be read.

    Calls come first, then the newest answers, then results, and the context where it fits.
    """
    activation = view.run.facts.activation
    calls = [responses.tool_call(row) for row in view.calls]
    results = [one.result.content[:] for one in calls]
    for one in calls:
        if one.HasField("result"):
            one.result.ClearField("content")
    shown = pb.LeasedActivation(
        fence=responses.fence(view.fence),
        kind=activation.kind if activation is not None else 0,  # type: ignore[arg-type]
        run=responses.run_of(view.run),
        reserved_step=view.reserved_step,
        tool_calls=calls,
        control=responses.activation_control(view.control),
        traceparent=view.trace,
    )
    room = SEND_BYTES_MAX - _FRAMING - shown.ByteSize()
    answered = []
    for row in reversed(view.answered):
        interaction = responses.interaction(row)
        responses.without_arguments(interaction)
        room -= interaction.ByteSize() + _FRAMING
        if room < 0:
            break
        answered.append(interaction)
    shown.answered_interactions.extend(reversed(answered))
    for one, content in zip(shown.tool_calls, results, strict=True):
        size = sum(block.ByteSize() + _FRAMING for block in content)
        if content and size <= room:
            one.result.content.extend(content)
            room -= size
    encoded = shown.SerializeToString()
    if view.context is not None:
        messages = repeated([row.data for row in view.context])
        if view.summary is not None:
            shown_summary = responses.summary(view.summary)
            messages += pb.ModelContext(summary=shown_summary).SerializeToString()
        if len(messages) + _FRAMING <= room:
            encoded += length_delimited(_CONTEXT, messages)
    return encoded


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
        return answer + length_delimited(_ACTIVATION, _leased(leased))

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
        await self._complete(command, call)
        view = await self._app.commit(caller, command)
        answer = view.answer
        shown = pb.CommitResponse(
            results=[
                responses.operation_result(operation, result, answer.run)
                for operation, result in zip(command.operations, answer.results, strict=True)
            ],
            outcome_applied=answer.outcome_applied,
            position=answer.run.position,  # type: ignore[arg-type]
            run=responses.run(answer.run),
            control=responses.activation_control(view.control),
            fence_lost=view.fence_lost,
            external_token=view.external_token,
            sequence=answer.sequence,
            replayed=view.replayed,
        )
        delivered = b"".join(length_delimited(_DELIVERED, row.data) for row in view.delivered)
        if shown.ByteSize() + len(delivered) > SEND_BYTES_MAX:
            # The executor wrote the arguments; what was delivered it has not seen.
            for result in shown.results:
                for one in result.commit_model_step.tool_calls:
                    one.ClearField("arguments_json")
        return shown.SerializeToString() + delivered

    async def _complete(self, command: CommitRun, call: Call) -> None:
        """Checks the schema of a form, and says what the calls are that ask for permission.

        That comes after the hash of the request: sent again it may find another batch.
        Whether the calls are open is the core's to say.
        """
        outcome = command.outcome
        if not isinstance(outcome, Suspend):
            return
        if outcome.kind is PromptKind.FORM:
            form = interaction_pb2.Prompt.FromString(outcome.prompt).form
            await asyncio.to_thread(
                check_schema, form.json_schema, "suspend.prompt.form.json_schema"
            )
        elif outcome.kind is PromptKind.PERMISSION:
            outcome.prompt = fill_in(outcome.prompt, await self._asking(command, call))

    async def _asking(self, command: CommitRun, call: Call) -> dict[str, AskingCall]:
        """Returns the calls of the batch that is open once the operations are applied."""
        for operation in command.operations:
            if isinstance(operation, CommitModelStep):
                return {
                    use.tool_call_id: AskingCall(use.name, use.arguments_json or "")
                    for use in operation.content.tool_uses
                }
        fence = command.fence
        # A run that is not there is refused with the command, or its answer is a replay.
        with suppress(Refused):
            run = await self._app.get_run(call.namespace, fence.run_id, fence.session_id)
            found: dict[str, AskingCall] = {}
            place: tuple[int, int] | None = (run.facts.steps_committed, 0)
            while place is not None:
                rows, place = await self._app.list_tool_calls(
                    call.namespace, fence.run_id, place, _BATCH_MAX
                )
                for row in rows:
                    found[row.tool_call_id] = AskingCall(row.name, row.arguments_json or "")
            return found
        return {}

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
                elif isinstance(frame, SummaryRow):
                    first = pb.StreamModelContextResponse(summary=responses.summary(frame))
                    yield first.SerializeToString()
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
