"""Times and spans between protobuf and Python."""

from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp


def to_datetime(message: Message, field: str) -> datetime | None:
    """Reads a time field, aware and in UTC; None where it is unset."""
    if not message.HasField(field):
        return None
    stamp: Timestamp = getattr(message, field)
    time: datetime = stamp.ToDatetime(tzinfo=UTC)
    return time


def to_timestamp(time: datetime) -> Timestamp:
    """Writes a time.

    Raises:
        ValueError: The time has no zone.
    """
    if time.tzinfo is None:
        raise ValueError("a time needs a zone")
    stamp = Timestamp()
    stamp.FromDatetime(time)
    return stamp


def to_duration(seconds: float) -> Duration:
    """Writes a span of seconds."""
    span = Duration()
    span.FromTimedelta(timedelta(seconds=seconds))
    return span


def to_seconds(span: Duration) -> float:
    """Reads a span as seconds."""
    length: timedelta = span.ToTimedelta()
    return length.total_seconds()
