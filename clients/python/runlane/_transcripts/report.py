"""What becomes of all that a file holds: counted here, by kind, whatever the format is."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

_DEPTH_MAX: Final = 100
_KIND_CHARACTERS: Final = 80
_SECONDS: Final = 4_000_000_000  # beyond that it is counted in milliseconds, then in microseconds


class TranscriptError(ValueError):
    """A file is no transcript of its format; the text names the line, row or place."""


@dataclass
class Report:
    """What becomes of the parts of a transcript, counted by kind."""

    changed: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    _open: list["Piece"] = field(default_factory=list)

    def open(self, value: Mapping[Any, Any], kind: str, place: str) -> "Piece":
        """Begins to read an object; `settle` counts what nobody took of it.

        Args:
            value: The object.
            kind: What it is called where a field of it is counted.
            place: Where it is in the file, for errors.
        """
        piece = Piece(value, kind, place)
        self._open.append(piece)
        return piece

    def settle(self) -> None:
        """Counts what is left in the objects that were read."""
        for piece in self._open:
            for kind in piece.left():
                self.drop(kind)
        self._open.clear()

    def drop(self, kind: str, count: int = 1) -> None:
        """Counts what is not in the archive."""
        if count > 0:
            self.dropped[kind[:_KIND_CHARACTERS]] += count

    def change(self, kind: str, count: int = 1) -> None:
        """Counts what is in the archive in another form."""
        if kind and count > 0:
            self.changed[kind[:_KIND_CHARACTERS]] += count

    def take(self, other: "Report") -> None:
        """Counts what another report has."""
        self.changed.update(other.changed)
        self.dropped.update(other.dropped)


class Piece:
    """An object of a file that knows what of it was taken.

    Every field that holds something is left until it is taken: by a method that gives its value,
    and gives nothing of another type than it asks for, or by `says` and `leave`. So a format
    cannot forget a field, and an object in it cannot be read by other means than these.
    """

    def __init__(self, value: Mapping[Any, Any], kind: str, place: str) -> None:
        """Begins with all fields left."""
        self.place = place
        self._kind = kind
        self._value = {str(name): one for name, one in value.items()}
        self._left = {name: None for name, one in self._value.items() if holds(one)}
        self._inner: list[Piece] = []

    def left(self) -> Iterable[str]:
        """Tells the fields that nobody took, here and in the objects that were taken."""
        yield from (f"{self._kind} field {name}" for name in self._left)
        for piece in self._inner:
            yield from piece.left()

    def whole(self) -> dict[str, Any]:
        """Takes all of it."""
        self._left.clear()
        self._inner.clear()
        return self._value

    def peek(self, name: str) -> Any:
        """Gives a field without taking it."""
        return self._value.get(name)

    def value(self, *names: str) -> Any:
        """Takes the first of these fields that is there and is not null."""
        for name in names:
            if self._value.get(name) is not None:
                self._left.pop(name, None)
                return self._value[name]
        return None

    def text(self, *names: str) -> str:
        """Takes the first of these fields that is a text which is not empty."""
        return next((self.value(n) for n in names if _is_text(self._value.get(n))), "")

    def name(self, *names: str) -> str:
        """Takes the first of these fields that is a text or a whole number, as a text."""
        for name in names:
            given = self._value.get(name)
            if _is_text(given) or (isinstance(given, int) and not isinstance(given, bool)):
                return str(self.value(name))
        return ""

    def time(self, *names: str) -> int | None:
        """Takes the first of these fields that is a time, as microseconds since 1970."""
        for name in names:
            found = time_of(self._value.get(name))
            if found is not None:
                self.leave(name)
                return found
        return None

    def count(self, name: str, most: int) -> int:
        """Takes a whole number that is not negative."""
        given = self._value.get(name)
        if isinstance(given, int) and not isinstance(given, bool) and 0 <= given <= most:
            self.leave(name)
            return given
        return 0

    def says(self, name: str, *values: Any) -> bool:
        """Tells whether a field is one of these values, and takes it if so."""
        given = self._value.get(name)
        found = any(type(given) is type(one) and given == one for one in values)
        if found:
            self.leave(name)
        return found

    def leave(self, *names: str) -> None:
        """Takes fields that are left out without a count, as docs/migrating.md tells."""
        for name in names:
            self._left.pop(name, None)

    def piece(self, name: str, kind: str = "") -> "Piece | None":
        """Takes an object."""
        given = self._value.get(name)
        return self._in(self.value(name), kind or name) if isinstance(given, Mapping) else None

    def pieces(self, name: str, kind: str) -> "list[Piece]":
        """Takes a list of objects.

        Raises:
            TranscriptError: It is something else.
        """
        given = self._value.get(name) or []
        if not isinstance(given, list):
            raise TranscriptError(f"{self.place}: {name} is no list")
        self.leave(name)
        found = []
        for number, one in enumerate(given, 1):
            if not isinstance(one, Mapping):
                raise TranscriptError(f"{self.place}: {kind} {number} is no object")
            found.append(self._in(one, kind, f"{kind} {number}"))
        return found

    def content(self, name: str = "content", kind: str = "part") -> "list[Piece]":
        """Takes a text, or a list of texts and objects; a text is an object of type `text`.

        Raises:
            TranscriptError: It is neither; null is an empty list.
        """
        given = self._value.get(name)
        if isinstance(given, str):
            given = [given] if given else []
        elif given is not None and not isinstance(given, list):
            raise TranscriptError(f"{self.place}: its {name} is neither text nor a list of {kind}s")
        parts = [
            {"type": "text", "text": one} if isinstance(one, str) else one for one in given or []
        ]
        for number, part in enumerate(parts, 1):
            if not isinstance(part, Mapping):
                raise TranscriptError(f"{self.place}, {kind} {number}: is no object")
        self.leave(name)
        return [self._in(part, kind, f"{kind} {n}") for n, part in enumerate(parts, 1)]

    def _in(self, value: Mapping[Any, Any], kind: str, place: str = "") -> "Piece":
        piece = Piece(value, kind, f"{self.place}, {place}" if place else self.place)
        self._inner.append(piece)
        return piece


def holds(value: Any) -> bool:
    """Tells whether a value holds something: it is not null, and not empty."""
    return value is not None and not (isinstance(value, str | list | dict) and not value)


def read_json(text: str | bytes, place: str) -> Any:
    """Reads JSON.

    Raises:
        TranscriptError: It is none, or has a field twice, of which one would be lost.
    """
    try:
        return json.loads(text, object_pairs_hook=_fields)
    except _TwiceError as error:
        raise TranscriptError(f"{place}: {error}") from None
    except (ValueError, TypeError, RecursionError):
        raise TranscriptError(f"{place}: is no JSON") from None


class _TwiceError(ValueError):
    pass


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _TwiceError(f"has the field {twice[:_KIND_CHARACTERS]!r} twice")
    return found


def clean(text: str, report: Report) -> str:
    """Takes out what no message may hold: U+0000, and halves of characters."""
    if "\0" in text:
        report.change("U+0000 (taken out)", text.count("\0"))
        text = text.replace("\0", "")
    kept = text.encode("utf-8", "replace").decode()
    if kept != text:
        report.change("half a character (replaced by ?)")
    return kept


def cut(text: str, size: int, kind: str, report: Report) -> str:
    """Returns a clean text of at most so many bytes."""
    text = clean(text, report)
    kept = text.encode()[:size].decode("utf-8", "ignore")
    if kept != text:
        report.change(f"{kind} (cut at {size} bytes)")
    return kept


def plain_json(value: Any, report: Report) -> str:
    """Returns a value as JSON that a server takes; its texts are cleaned one by one."""
    return json.dumps(_plain(value, report, 0), ensure_ascii=False)


def _plain(value: Any, report: Report, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean(value, report)
    if isinstance(value, int | float):
        if _is_double(value):
            return value
        report.change("number that JSON cannot hold (kept as text)")
        return repr(value)
    if isinstance(value, Mapping | list | tuple) and depth == _DEPTH_MAX:
        report.change("nesting over 100 levels (kept as text)")
        return clean(json.dumps(value, ensure_ascii=False, default=repr), report)
    if isinstance(value, Mapping):
        found: dict[str, Any] = {}
        for name, one in value.items():
            own = clean(str(name), report)
            if own in found:
                report.drop("field that is there twice")
            found[own] = _plain(one, report, depth + 1)
        return found
    if isinstance(value, list | tuple):
        return [_plain(one, report, depth + 1) for one in value]
    report.change("value that is no JSON (kept as text)")
    return clean(repr(value), report)


def _is_double(value: float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def time_of(value: Any) -> int | None:
    """Returns microseconds of an ISO time, or of a number since 1970; None: it is neither."""
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1_000_000)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    for unit in (1_000_000, 1000, 1):
        if 0 < value < _SECONDS * 1_000_000 // unit:
            return int(value * unit)
    return None
