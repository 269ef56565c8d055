"""Times, JSON text and protobuf framing: the small change of the door."""

import re
from typing import Any

import msgspec
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from runlane_server.core.errors import invalid

SEND_BYTES_MAX = 4 * 1024 * 1024 - 64 * 1024
"""The largest answer that is sent: no client needs an option to take it."""

_MILLION = 1_000_000
_FIRST_SECOND = -62_135_596_800  # 0001-01-01, the first that a Timestamp can name
_LAST_SECOND = 253_402_300_799  # 9999-12-31
_DURATION_SECONDS = 315_576_000_000
_NUL_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

_decode_json = msgspec.json.Decoder().decode


def timestamp(micros: int) -> Timestamp | None:
    """Returns a time; None, which leaves a field unset, where it is 0."""
    if not micros:
        return None
    seconds, rest = divmod(micros, _MILLION)
    return Timestamp(seconds=seconds, nanos=rest * 1000)


def time_micros(value: Timestamp, field: str) -> int:
    """Returns microseconds, rounded down; refuses what no Timestamp may be."""
    seconds, nanos = value.seconds, value.nanos
    if not (_FIRST_SECOND <= seconds <= _LAST_SECOND and 0 <= nanos < 1_000_000_000):
        raise invalid(field, "must be a time from year 1 to 9999 with nanos from 0 to 999,999,999")
    return seconds * _MILLION + nanos // 1000


def duration(micros: int) -> Duration:
    """Returns a span."""
    seconds, rest = divmod(micros, _MILLION)
    return Duration(seconds=seconds, nanos=rest * 1000)


def duration_micros(value: Duration, field: str) -> int:
    """Returns microseconds, rounded towards zero; refuses what no Duration may be."""
    seconds, nanos = value.seconds, value.nanos
    if not (0 <= seconds <= _DURATION_SECONDS and 0 <= nanos < 1_000_000_000):
        raise invalid(field, "must be a span that is not negative, with nanos below 1,000,000,000")
    return seconds * _MILLION + nanos // 1000


def check_json(text: str, field: str, *, is_object: bool = False) -> Any:
    """Returns the value of JSON text; refuses what is none, or no object where one is asked for.

    Refused is also what some reader of it could not hold: lone surrogates, U+0000, numbers beyond a
    double, nesting that exhausts a stack.
    """
    try:
        value: Any = _decode_json(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise invalid(
            field, "must be valid JSON, without lone surrogates and not nested too deep"
        ) from None
    if is_object and type(value) is not dict:
        raise invalid(field, "must be a JSON object")
    if "\\u0000" in text and _NUL_ESCAPE.search(text):
        raise invalid(field, "must not contain U+0000")
    return value


def varint(value: int) -> bytes:
    """Encodes a length or a number that is not negative."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def length_delimited(tag: bytes, data: bytes) -> bytes:
    """Encodes a field of wire type LEN; `tag` is its encoded key."""
    return b"%b%b%b" % (tag, varint(len(data)), data)


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Decodes a varint at a place; returns it and the place after it."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7


def sequence_of(event: bytes) -> int:
    """Reads the sequence of an encoded event, which is its first field."""
    return read_varint(event, 1)[0]
