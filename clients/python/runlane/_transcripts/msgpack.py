"""Reads MessagePack, and what LangGraph puts into its extension types, as plain values.

An extension names a class and its arguments. It is read as those names and values; the class
is never looked up.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final

_DEPTH_MAX = 64
_FIXED: Final[dict[int, str]] = {
    0xCA: ">f",
    0xCB: ">d",
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_LENGTHS: Final = {1: ">B", 2: ">H", 4: ">I"}


@dataclass(frozen=True)
class Extension:
    """A value of an extension type; `value` is its content, bytes where it is no one value."""

    code: int
    value: Any


def unpack(data: bytes) -> Any:
    """Decodes one value.

    Raises:
        ValueError: It is not well-formed, or nested too deep.
    """
    reader = _Reader(data)
    value = reader.value(0)
    if reader.place != len(data):
        raise ValueError(f"has {len(data) - reader.place} bytes too many")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.place = 0

    def value(self, depth: int) -> Any:
        if depth > _DEPTH_MAX:
            raise ValueError("is nested too deep")
        head = self._take(1)[0]
        if head <= 0x7F:
            return head
        if head >= 0xE0:
            return head - 0x100
        if head <= 0x8F:
            return self._map(head & 0x0F, depth)
        if head <= 0x9F:
            return self._list(head & 0x0F, depth)
        if head <= 0xBF:
            return self._text(head & 0x1F)
        if head in {0xC0, 0xC2, 0xC3}:
            return {0xC0: None, 0xC2: False, 0xC3: True}[head]
        if head in _FIXED:
            return self._number(_FIXED[head])
        return self._sized(head, depth)

    def _sized(self, head: int, depth: int) -> Any:
        if 0xC4 <= head <= 0xC6:
            return self._take(self._length(1 << (head - 0xC4)))
        if 0xC7 <= head <= 0xC9:
            return self._extension(self._length(1 << (head - 0xC7)), depth)
        if 0xD4 <= head <= 0xD8:
            return self._extension(1 << (head - 0xD4), depth)
        if 0xD9 <= head <= 0xDB:
            return self._text(self._length(1 << (head - 0xD9)))
        if 0xDC <= head <= 0xDD:
            return self._list(self._length(2 << (head - 0xDC)), depth)
        if 0xDE <= head <= 0xDF:
            return self._map(self._length(2 << (head - 0xDE)), depth)
        raise ValueError(f"has a byte 0x{head:02x} that begins no value")

    def _take(self, size: int) -> bytes:
        piece = self._data[self.place : self.place + size]
        if len(piece) < size:
            raise ValueError("is cut off")
        self.place += size
        return piece

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]

    def _length(self, width: int) -> int:
        return int(self._number(_LENGTHS[width]))

    def _text(self, size: int) -> str:
        return self._take(size).decode("utf-8", "surrogateescape")

    def _list(self, count: int, depth: int) -> list[Any]:
        return [self.value(depth + 1) for _ in range(count)]

    def _map(self, count: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self.value(depth + 1)
            name = key if isinstance(key, str) else repr(key)
            if name in found:
                raise ValueError(f"has the field {name[:80]!r} twice")
            found[name] = self.value(depth + 1)
        return found

    def _extension(self, size: int, depth: int) -> Extension:
        code = self._number(">b")
        data = self._take(size)
        inner = _Reader(data)
        try:
            value = inner.value(depth + 1)
        except ValueError:
            return Extension(code, data)
        return Extension(code, value if inner.place == len(data) else data)
