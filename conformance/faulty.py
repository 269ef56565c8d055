"""A proxy that makes the server behind it wrong, so that a driver can be seen to fail.

    python -m conformance.faulty --target HOST:PORT --fault NAME

It prints `listening on HOST:PORT`, and works until it is stopped. The fault `none` changes
nothing.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import error_details_pb2, status_pb2
from runlane.v1 import event_pb2, submission_pb2

from conformance.binding import METHODS

_DETAILS: Final = "grpc-status-details-bin"
_MODE: Final = submission_pb2.Submission.Mode
_Trailers = list[tuple[str, str | bytes]]


class Fault:
    """Changes nothing; each fault changes something."""

    def again(self, method: str, request: Any) -> bool:
        """Changes a request in place; returns whether it is sent once more before."""
        return False

    def answer(self, method: str, answer: Any) -> None:
        """Changes an answer in place."""

    def frames(self, method: str, frame: Any) -> list[Any]:
        """Returns the frames that take the place of one."""
        return [frame]

    def refusal(self, method: str, status: status_pb2.Status) -> bool:
        """Changes a refusal in place; returns False where the call succeeds instead."""
        return True


class EventLeftOut(Fault):
    """The third event of a session is not streamed."""

    def frames(self, method: str, frame: Any) -> list[Any]:
        """Leaves it out."""
        if method == "StreamEvents" and frame.HasField("batch"):
            kept = [one for one in frame.batch.events if one.sequence != 3]
            del frame.batch.events[:]
            frame.batch.events.extend(kept)
        return [frame]


class OrderSwapped(Fault):
    """The facts of the second and third event change places, not their sequences."""

    def __init__(self) -> None:
        self._second: event_pb2.Event | None = None

    def frames(self, method: str, frame: Any) -> list[Any]:
        """Swaps what stands in one batch."""
        if method == "StreamEvents" and frame.HasField("batch"):
            by_sequence = {one.sequence: one for one in frame.batch.events}
            if 2 in by_sequence and 3 in by_sequence:
                _swap(by_sequence[2], by_sequence[3])
        return [frame]


class PieceAfterMessage(Fault):
    """Pieces of an answer come again, after the message that replaces them."""

    def __init__(self) -> None:
        self._held: list[Any] = []

    def frames(self, method: str, frame: Any) -> list[Any]:
        """Holds pieces, and lets them go after a message."""
        if method != "StreamEvents":
            return [frame]
        if frame.HasField("deltas"):
            self._held.append(frame)
        elif self._held and any(one.message_appended.model_stream_id for one in frame.batch.events):
            held, self._held = self._held, []
            return [frame, *held]
        return [frame]


class InputDoubled(Fault):
    """An input is given twice."""

    def again(self, method: str, request: Any) -> bool:
        """Sends it once more, without its request id."""
        return method == "Submit" and request.mode != _MODE.MODE_START


class RequestIdIgnored(Fault):
    """A request id is not heeded."""

    def again(self, method: str, request: Any) -> bool:
        """Takes it away."""
        if method == "Submit":
            request.request_id = ""
        return False


class ReasonChanged(Fault):
    """A busy session is said to be live."""

    def refusal(self, method: str, status: status_pb2.Status) -> bool:
        """Changes the reason."""
        _change_info(status, {"SESSION_BUSY": "SESSION_LIVE"})
        return True


class FieldUnnamed(Fault):
    """The wrong field is not named."""

    def refusal(self, method: str, status: status_pb2.Status) -> bool:
        """Takes the violations away."""
        kept = [
            one for one in status.details if not one.Is(error_details_pb2.BadRequest.DESCRIPTOR)
        ]
        del status.details[:]
        status.details.extend(kept)
        return True


class StaleAccepted(Fault):
    """A write with a dead fence seems to be taken."""

    def refusal(self, method: str, status: status_pb2.Status) -> bool:
        """Lets it succeed."""
        return not any(
            "STALE_ACTIVATION" in str(one.value) for one in status.details if method == "Commit"
        )


class PageItemLost(Fault):
    """The last item of a page that is not the last is lost."""

    def answer(self, method: str, answer: Any) -> None:
        """Loses it."""
        if getattr(answer, "next_page_token", ""):
            for field, value in answer.ListFields():
                if field.is_repeated:
                    del value[-1]


class AstralLost(Fault):
    """A rocket is broken in messages and pieces."""

    def answer(self, method: str, answer: Any) -> None:
        """Breaks it."""
        broken = answer.SerializeToString().replace("🚀".encode(), b"????")
        answer.ParseFromString(broken)

    def frames(self, method: str, frame: Any) -> list[Any]:
        """Breaks it."""
        self.answer(method, frame)
        return [frame]


class NumberRounded(Fault):
    """A number beyond 2^53 is rounded as a double would be."""

    def answer(self, method: str, answer: Any) -> None:
        """Rounds it."""
        rounded = answer.SerializeToString().replace(b"9007199254740993", b"9007199254740992")
        answer.ParseFromString(rounded)


FAULTS: Final[Mapping[str, Callable[[], Fault]]] = {
    "none": Fault,
    "event_left_out": EventLeftOut,
    "order_swapped": OrderSwapped,
    "piece_after_message": PieceAfterMessage,
    "input_doubled": InputDoubled,
    "request_id_ignored": RequestIdIgnored,
    "reason_changed": ReasonChanged,
    "field_unnamed": FieldUnnamed,
    "stale_accepted": StaleAccepted,
    "page_item_lost": PageItemLost,
    "astral_lost": AstralLost,
    "number_rounded": NumberRounded,
}
"""The faults by name; each stream and call has one of its own."""


def _swap(one: event_pb2.Event, other: event_pb2.Event) -> None:
    held = event_pb2.Event()
    held.CopyFrom(one)
    first, second = one.sequence, other.sequence
    one.CopyFrom(other)
    one.sequence = first
    other.CopyFrom(held)
    other.sequence = second


def _change_info(status: status_pb2.Status, reasons: Mapping[str, str]) -> None:
    info = error_details_pb2.ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info) and info.reason in reasons:
            info.reason = reasons[info.reason]
            detail.Pack(info)


class _Proxy(grpc.GenericRpcHandler):
    """Passes calls on, each through a fault of its own."""

    def __init__(self, channel: grpc.aio.Channel, fault: Callable[[], Fault]) -> None:
        self._channel = channel
        self._fault = fault

    def service(self, handler_call_details: Any) -> Any:
        """Finds what answers a method."""
        path = handler_call_details.method
        name = path.rpartition("/")[2]
        if name not in METHODS:
            return None
        _, method = METHODS[name]
        read = GetMessageClass(method.input_type).FromString
        write = GetMessageClass(method.output_type).SerializeToString
        if method.client_streaming:
            return grpc.stream_unary_rpc_method_handler(
                partial(self._client_stream, path, method), read, write
            )
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(
                partial(self._stream, path, method), read, write
            )
        return grpc.unary_unary_rpc_method_handler(partial(self._unary, path, method), read, write)

    async def _unary(
        self, path: str, method: MethodDescriptor, request: Message, context: Any
    ) -> Message:
        fault = self._fault()
        send = self._channel.unary_unary(path, _bytes, _reader(method))
        how = _how(context)
        try:
            if fault.again(method.name, request):
                twin = type(request)()
                twin.CopyFrom(request)
                twin.ClearField("request_id")
                await send(twin, **how)
            answer: Message = await send(request, **how)
        except grpc.aio.AioRpcError as error:
            return await self._refuse(fault, method, error, context)
        fault.answer(method.name, answer)
        return answer

    async def _client_stream(
        self, path: str, method: MethodDescriptor, requests: Any, context: Any
    ) -> Message:
        send = self._channel.stream_unary(path, _bytes, _reader(method))
        try:
            answer: Message = await send(requests, **_how(context))
        except grpc.aio.AioRpcError as error:
            return await self._refuse(self._fault(), method, error, context)
        return answer

    async def _stream(
        self, path: str, method: MethodDescriptor, request: Message, context: Any
    ) -> AsyncIterator[Message]:
        fault = self._fault()
        call = self._channel.unary_stream(path, _bytes, _reader(method))(request, **_how(context))
        try:
            async for frame in call:
                for changed in fault.frames(method.name, frame):
                    yield changed
        except grpc.aio.AioRpcError as error:
            await self._refuse(fault, method, error, context)
        finally:
            call.cancel()

    async def _refuse(
        self, fault: Fault, method: MethodDescriptor, error: grpc.aio.AioRpcError, context: Any
    ) -> Message:
        trailers: _Trailers = []
        for key, value in error.trailing_metadata() or ():
            kept = value
            if key == _DETAILS and isinstance(value, bytes):
                status = status_pb2.Status.FromString(value)
                if not fault.refusal(method.name, status):
                    return GetMessageClass(method.output_type)()
                kept = status.SerializeToString()
            trailers.append((key, kept))
        await context.abort(error.code(), error.details() or "", tuple(trailers))
        raise AssertionError("unreachable")


def _bytes(message: Message) -> bytes:
    return message.SerializeToString()


def _reader(method: MethodDescriptor) -> Callable[[bytes], Message]:
    return GetMessageClass(method.output_type).FromString


def _how(context: Any) -> dict[str, Any]:
    metadata = tuple(
        (key, value)
        for key, value in context.invocation_metadata()
        if key != "user-agent" and not key.startswith("grpc-")
    )
    return {"metadata": metadata, "timeout": context.time_remaining()}


async def served(target: str, fault: str, listen: str = "127.0.0.1:0") -> tuple[Any, str]:
    """Starts the proxy; returns it, to be stopped, and where it listens."""
    channel = grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 8 * 2**20)])
    server.add_generic_rpc_handlers((_Proxy(channel, FAULTS[fault]),))
    port = server.add_insecure_port(listen)
    await server.start()
    return server, f"{listen.rpartition(':')[0]}:{port}"


async def _serve(options: argparse.Namespace) -> None:
    server, address = await served(options.target, options.fault, options.listen)
    print(f"listening on {address}", flush=True)
    await server.wait_for_termination()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the proxy until it is stopped."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.faulty",
        description="A proxy that makes the server behind it wrong.",
        epilog="Faults: "
        + "; ".join(f"{name}: {(made.__doc__ or '').strip()}" for name, made in FAULTS.items()),
    )
    parser.add_argument("--target", required=True, help="the server, HOST:PORT")
    parser.add_argument("--fault", required=True, choices=FAULTS, help="how it is wrong")
    parser.add_argument("--listen", default="127.0.0.1:0", help="where to listen (127.0.0.1:0)")
    options = parser.parse_args(arguments)
    try:
        asyncio.run(_serve(options))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
