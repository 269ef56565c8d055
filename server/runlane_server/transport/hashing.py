"""What a request_id is bound to: a hash of our own encoding of the request.

Not of the protobuf bytes, which differ between libraries and versions for the
same request. Content is told by its hash. The request_id and waits are no part.
"""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from operator import attrgetter
from typing import Any

import msgspec

from runlane_server.core.model import Content

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_PLAIN = frozenset({str, int, bytes, bool, type(None)})
_shapes: dict[type, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {}


def request_hash(*parts: Any) -> bytes:
    """Returns the hash of a method's name and what was asked of it."""
    return blake2b(_encode([canonical(part) for part in parts]), digest_size=16).digest()


def canonical(value: Any) -> Any:
    """Returns plain values that are equal where the values are equal."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is Content:
        return value.hash
    shape = _shapes.get(kind)
    if shape is not None:
        name, values = shape
        return [name, *[canonical(item) for item in values(value)]]
    if kind is dict:
        return {key: canonical(value[key]) for key in sorted(value)}
    if kind in {list, tuple}:
        return [canonical(item) for item in value]
    if is_dataclass(kind):
        _shapes[kind] = (kind.__name__, _getter([field.name for field in fields(kind)]))
        return canonical(value)
    return int(value)  # an IntEnum


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)
