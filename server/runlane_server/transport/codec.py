"""Encodes what is stored and streamed, and joins bytes without decoding them.

An event, a message and options are encoded once, at commit. What is sent later
is those bytes behind a key and a length: a protobuf message is the sequence of
its fields, so concatenation is all that it takes.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as AnyMessage
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from runlane.v1 import event_pb2, message_pb2, run_pb2, session_service_pb2

from runlane_server.app.views import ControlView
from runlane_server.core.model import (
    ChildrenWait,
    Content,
    Delta,
    ParentLink,
    Question,
    RunOptions,
    Usage,
)
from runlane_server.core.rows import Event, EventType, MessageAppended
from runlane_server.core.words import ToolOutcome
from runlane_server.transport import responses
from runlane_server.transport.content import child_result, tool_result
from runlane_server.transport.values import (
    duration,
    length_delimited,
    read_varint,
    timestamp,
    varint,
)

# What a reader that does not know such a kind may skip: how the work is dispatched and
# priced. All other kinds change what a client draws.
_MAY_SKIP = frozenset(
    {
        EventType.ACTIVATION_QUEUED,
        EventType.ACTIVATION_LEASED,
        EventType.ACTIVATION_ENDED,
        EventType.ACTIVATION_ABANDONED,
        EventType.MODEL_STEP_RESERVED,
        EventType.MODEL_STEP_COMMITTED,
    }
)

_TIMES = {
    EventType.INTERACTION_OPENED: "expire_time",
    EventType.RUN_RECOVERING: "not_before_time",
}
"""Kinds whose body holds a time: the name of that field."""

_MILLION = 1_000_000
_FIELD_1 = b"\x0a"
_EVENT_MESSAGE = b"\x62"  # field 12
_FEED_CURSOR = b"\x12"  # field 2
_ROLE = 0x20  # field 4 of Message, a varint
_LENGTH_DELIMITED = 2


def _bodies() -> dict[int, tuple[str, Callable[..., AnyMessage], bool]]:
    fields = event_pb2.Event.DESCRIPTOR.fields_by_number
    bodies: dict[int, tuple[str, Callable[..., AnyMessage], bool]] = {}
    for kind in EventType:
        body = fields[kind].message_type
        assert body is not None, kind  # noqa: S101 - a body is a message
        bodies[kind] = (fields[kind].name, GetMessageClass(body), kind in _MAY_SKIP)
    return bodies


_BODIES = _bodies()


_RECORDS = frozenset(
    {
        EventType.SESSION_COMPACTED,
        EventType.RUN_CREATED,
        EventType.RUN_WAITING,
        EventType.MODEL_STEP_COMMITTED,
        EventType.INTERACTION_OPENED,
    }
)
"""Kinds whose body may hold a record of the core."""

_SHOWN: dict[type, Callable[[Any], Any]] = {
    Usage: responses.usage,
    ParentLink: responses.parent,
    ChildrenWait: responses.children_wait,
    Question: responses.proxy_source,
}


def _shown(value: Any) -> Any:
    show = _SHOWN.get(type(value))
    return value if show is None else show(value)


def _span(micros: int) -> Duration | None:
    """Returns a span; None, which leaves a field unset, where it is 0."""
    return duration(micros) if micros else None


def repeated(messages: Sequence[bytes]) -> bytes:
    """Encodes encoded messages as field 1."""
    parts: list[bytes] = []
    for data in messages:
        parts += (_FIELD_1, varint(len(data)), data)
    return b"".join(parts)


def _event_parts(data: bytes, message: bytes | None) -> tuple[bytes, ...]:
    """Encodes an event as field 1, with its message or None."""
    if message is None:
        return _FIELD_1, varint(len(data)), data
    size = varint(len(message))
    whole = len(data) + 1 + len(size) + len(message)
    return _FIELD_1, varint(whole), data, _EVENT_MESSAGE, size, message


def feed_batch(events: Iterable[tuple[bytes, bytes | None, str]]) -> bytes:
    """Encodes a frame of StreamFeed from events, each with its message or None, and cursors."""
    parts: list[bytes] = []
    for data, message, cursor in events:
        named = cursor.encode("ascii")
        event = b"".join((*_event_parts(data, message), _FEED_CURSOR, varint(len(named)), named))
        parts += (_FIELD_1, varint(len(event)), event)
    return length_delimited(_FIELD_1, b"".join(parts))


class ProtoCodec:
    """The Codec whose bytes are those of runlane.v1."""

    def event(self, event: Event, session_id: str, actor: str, request_id: str) -> bytes:
        """Encodes an event, without its message."""
        name, body_class, may_skip = _BODIES[event.type]
        body = event.body
        if event.type in _TIMES:
            field = _TIMES[event.type]
            body = {**body, field: timestamp(body.get(field, 0))}
        if event.type in _RECORDS:
            body = {key: _shown(value) for key, value in body.items()}
        seconds, micros = divmod(event.time, _MILLION)
        fields: dict[str, Any] = {name: body_class(**body)}
        return event_pb2.Event(
            sequence=event.sequence,
            session_id=session_id,
            event_time=Timestamp(seconds=seconds, nanos=micros * 1000),
            type=event.type,  # type: ignore[arg-type]
            run_id=event.run_id,
            run_sequence=event.run_sequence,
            activation_id=event.activation_id,
            attempt=event.attempt,
            actor=actor,
            request_id=request_id,
            may_skip=may_skip,
            **fields,
        ).SerializeToString()

    def message(self, row: MessageAppended, session_id: str, content: Content | None) -> bytes:
        """Encodes a message; without content: all but it, to be followed by content bytes.

        The content of a closer is made here.
        """
        head = message_pb2.Message(
            number=row.number,
            session_id=session_id,
            run_id=row.run_id,
            role=row.role,  # type: ignore[arg-type]
            author=row.author,  # type: ignore[arg-type]
            step=row.step,
            submission_id=row.submission_id,
            model_stream_id=row.model_stream_id,
            model=row.model,
            create_time=timestamp(row.create_time),
        ).SerializeToString()
        if row.closer is not None:
            closer = row.closer
            result = tool_result(closer.tool_call_id, closer.outcome, closer.text)
            return head + message_pb2.Message(content=[result]).SerializeToString()
        return head if content is None else head + content.data

    def child_result(
        self, tool_call_id: str, outcome: ToolOutcome, message: bytes, output_json: str, told: str
    ) -> Content:
        """Makes the result of a call from the end of the child run that answers it."""
        return child_result(tool_call_id, outcome, message, output_json, told)

    def options(self, options: RunOptions) -> bytes:
        """Encodes resolved run options."""
        grace, limits = options.cancel_grace, options.limits
        return run_pb2.RunOptions(
            agent=options.agent,
            model=options.model,
            limits=run_pb2.RunLimits(
                max_model_steps=limits.max_model_steps,
                max_tool_calls=limits.max_tool_calls,
                max_total_tokens=limits.max_total_tokens,
                max_cost_usd_micros=limits.max_cost_usd_micros,
                max_duration=_span(limits.max_duration),
                interaction_timeout_duration=_span(limits.interaction_timeout),
                start_timeout_duration=_span(limits.start_timeout),
            ),
            tools=options.tools,
            tool_timeout_duration=_span(options.tool_timeout),
            tool_error_policy=options.tool_error_policy,  # type: ignore[arg-type]
            recovery=options.recovery,  # type: ignore[arg-type]
            max_recoveries=options.max_recoveries,
            cancel_grace_duration=None if grace is None else duration(grace),
            request_options_json=options.request_options_json,
        ).SerializeToString()

    def event_batch(self, events: Sequence[tuple[bytes, bytes | None]]) -> bytes:
        """Encodes a frame of StreamEvents from events, each with its message or None."""
        return length_delimited(_FIELD_1, self.run_event_batch(events))

    def run_event_batch(self, events: Sequence[tuple[bytes, bytes | None]]) -> bytes:
        """Encodes a frame of StreamRunEvents, likewise."""
        parts: list[bytes] = []
        for data, message in events:
            parts += _event_parts(data, message)
        return b"".join(parts)

    def bookmark(self, sequence: int, server_time: int, *, caught_up: bool) -> bytes:
        """Encodes a bookmark frame of StreamEvents."""
        return session_service_pb2.StreamEventsResponse(
            bookmark=session_service_pb2.Bookmark(
                sequence=sequence, caught_up=caught_up, server_time=timestamp(server_time)
            )
        ).SerializeToString()

    def control(self, control: ControlView) -> bytes:
        """Encodes a control frame of StreamEvents."""
        return session_service_pb2.StreamEventsResponse(
            control=responses.control(control)
        ).SerializeToString()

    def deltas(self, deltas: Sequence[Delta]) -> bytes:
        """Encodes a frame of deltas of StreamEvents."""
        return session_service_pb2.StreamEventsResponse(
            deltas=session_service_pb2.DeltaBatch(deltas=[responses.delta(one) for one in deltas])
        ).SerializeToString()

    def message_batch(self, messages: Sequence[bytes]) -> bytes:
        """Encodes messages as field 1 of a response: every stream of messages has it there."""
        return repeated(messages)

    def role(self, message: bytes) -> int:
        """Returns the role of an encoded message, without decoding it whole."""
        # The header comes first, in the order of its fields: number, two ids, role.
        place = 0
        while place < len(message):
            tag = message[place]
            value, place = read_varint(message, place + 1)
            if tag == _ROLE:
                return value
            if tag & 7 == _LENGTH_DELIMITED:
                place += value
        return 0
