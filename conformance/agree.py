"""Compares the records of Python's client with the messages that they were made from."""

from collections.abc import Collection, Iterator, Mapping
from datetime import UTC
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

_ENUM: Final = FieldDescriptor.TYPE_ENUM
_MESSAGE: Final = FieldDescriptor.TYPE_MESSAGE


def lacking(asked: Message, sent: Message) -> str | None:
    """Returns the field of a request that was not sent as it was asked for."""
    for field, value in asked.ListFields():
        if getattr(sent, field.name) != value:
            return str(field.name)
    return None


def difference(record: Any, *messages: Message, but: Collection[str] = ()) -> str | None:
    """Returns the field in which a record is not what its messages hold; None: there is none.

    Fields that either has alone, under a name of its own, are not compared, nor those in `but`.
    """
    for name in type(record).model_fields.keys() - but:
        for message in messages:
            field = message.DESCRIPTOR.fields_by_name.get(name)
            if field is None or (field.has_presence and not message.HasField(name)):
                continue
            if not _same(getattr(record, name), getattr(message, name), field):
                return f"{type(record).__name__}.{name} is {getattr(record, name)!r}"
            break
    return None


def _same(told: Any, value: Any, field: Any) -> bool:
    entry = field.message_type
    if entry is not None and entry.GetOptions().map_entry:
        return isinstance(told, Mapping) and (
            dict(told) == dict(value) or not isinstance(value, Mapping)
        )
    if field.is_repeated:
        if told is None or isinstance(told, Mapping):
            return len(told or ()) == len(value)
        items = told.items if hasattr(type(told), "model_fields") else told
        return len(items) == len(value) and all(
            _same_one(one, other, field) for one, other in zip(items, value, strict=True)
        )
    return _same_one(told, value, field)


def _same_one(told: Any, value: Any, field: Any) -> bool:
    if isinstance(value, Timestamp):
        return bool(told == value.ToDatetime(tzinfo=UTC))
    if isinstance(value, Duration):
        return bool(told == value.ToTimedelta().total_seconds())
    if field.type == _MESSAGE:
        if not hasattr(type(told), "model_fields"):
            return True
        if value.DESCRIPTOR.full_name == "runlane.v1.Event":
            return of_event(told, value) is None
        return difference(told, value, *_parts(value)) is None
    if field.type == _ENUM:
        word = field.enum_type.values_by_number[value].name.lower()
        return told is None or word.endswith(str(told).replace(".", "_"))
    return bool(told == value) or (told is None and not value)


def _parts(message: Message) -> Iterator[Message]:
    """Gives what is set of a message's oneofs, which records hold flat."""
    for oneof in message.DESCRIPTOR.oneofs:
        name = message.WhichOneof(oneof.name)
        if name and isinstance(getattr(message, name), Message):
            yield getattr(message, name)


def of_answer(record: Any, answer: Message) -> str | None:
    """Returns where a record is not what an answer holds."""
    if record is None:
        return None
    inner = [value for _, value in answer.ListFields() if isinstance(value, Message)]
    lists = [
        (field, value)
        for field, value in answer.ListFields()
        if field.is_repeated and field.type == _MESSAGE
    ]
    if type(record).__name__.startswith("Page") and lists:
        (field, value) = lists[0]
        return None if _same(record.items, value, field) else f"a page of {field.name}"
    return difference(record, answer, *inner)


def of_event(record: Any, event: Any) -> str | None:
    """Returns where what a stream yields is not what the event holds."""
    kind = event.DESCRIPTOR.fields_by_name["type"]
    if hasattr(record, "kind") and not _same_one(record.kind, event.type, kind):
        return f"it is {record.kind}"
    return difference(record, event, *_parts(event), but=("kind",))
