"""Page sizes and page tokens.

A token is opaque: base64url of a version, a hash of the arguments that it was
given for, a checksum and the cursor.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Annotated, Any, Final, TypeVar

import msgspec
from google.protobuf.message import Message

from runlane_server.app.views import Page
from runlane_server.core.errors import Reason, Refused
from runlane_server.store.base import FEED_START, FeedPlace
from runlane_server.transport.hashing import request_hash

PAGE_SIZE_DEFAULT: Final = 50
PAGE_SIZE_MAX: Final = 1000
PAGE_BYTES_MAX: Final = 2 * 1024 * 1024

_VERSION = 1
_HASH = 8
_SUM = 4
_HEAD = 1 + _HASH + _SUM
_FRAMING = 5

Cursor = TypeVar("Cursor")
Item = TypeVar("Item")
Shown = TypeVar("Shown", bound=Message)

_encoder = msgspec.msgpack.Encoder()
_NAME = msgspec.msgpack.Decoder(str)
# Whoever makes a token of their own gets no further than those who are given one.
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_NUMBER = msgspec.msgpack.Decoder(_Number)
_Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}\Z")]
_PLACE = msgspec.msgpack.Decoder(tuple[_Number, _Id])
_PAIR = msgspec.msgpack.Decoder(tuple[_Number, _Number])
_FEED = msgspec.msgpack.Decoder(tuple[_Number, _Number, _Number])


def page_limit(page_size: int) -> int:
    """Returns how many items a page may have."""
    return min(page_size, PAGE_SIZE_MAX) if page_size else PAGE_SIZE_DEFAULT


class Pager:
    """The tokens of one call: bound to its method, namespace and arguments."""

    __slots__ = ("_bound",)
    _what = "page token"

    def __init__(self, method: str, namespace: str, *arguments: Any) -> None:
        self._bound = request_hash(method, namespace, *arguments)[:_HASH]

    def token(self, cursor: int | str | tuple[int, str] | tuple[int, ...] | None) -> str:
        """Returns the token of the page after a cursor; empty where there is none."""
        if cursor is None:
            return ""
        body = _encoder.encode(cursor)
        data = bytes((_VERSION,)) + self._bound + _checksum(self._bound, body) + body
        return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")

    def name(self, token: str) -> str:
        """Returns the name in a token of this call; empty without a token."""
        return self._decode(_NAME, token) if token else ""

    def number(self, token: str) -> int | None:
        """Returns the number in a token of this call; None without a token."""
        return self._decode(_NUMBER, token) if token else None

    def place(self, token: str) -> tuple[int, str] | None:
        """Returns the time and id in a token of this call; None without a token."""
        return self._decode(_PLACE, token) if token else None

    def pair(self, token: str) -> tuple[int, int] | None:
        """Returns the two numbers in a token of this call; None without a token."""
        return self._decode(_PAIR, token) if token else None

    def _decode(self, decoder: msgspec.msgpack.Decoder[Cursor], token: str) -> Cursor:
        try:
            return decoder.decode(self._body(token))
        except msgspec.MsgspecError:
            raise self._malformed() from None

    def _body(self, token: str) -> bytes:
        try:
            data = urlsafe_b64decode(token.encode("ascii") + b"=" * (-len(token) % 4))
        except ValueError:
            raise self._malformed() from None
        bound, total, body = data[1 : 1 + _HASH], data[1 + _HASH : _HEAD], data[_HEAD:]
        if not body or data[0] != _VERSION or total != _checksum(bound, body):
            raise self._malformed()
        if bound != self._bound:
            raise Refused(
                Reason.PAGE_TOKEN_MISMATCH, f"the {self._what} belongs to other arguments"
            )
        return body

    def _malformed(self) -> Refused:
        return Refused(Reason.PAGE_TOKEN_INVALID, f"the {self._what} is not one of this server's")


class FeedCursors(Pager):
    """The cursors of a namespace's feed: bound to the store as it is since its last restore."""

    __slots__ = ()
    _what = "cursor"

    def __init__(self, namespace: str, store_id: str, epoch: int) -> None:
        super().__init__("StreamFeed", namespace, store_id, epoch)

    def feed_place(self, cursor: str) -> FeedPlace:
        """Returns the place that a cursor stands for; empty: the start."""
        return FeedPlace(*self._decode(_FEED, cursor)) if cursor else FEED_START


def _checksum(bound: bytes, body: bytes) -> bytes:
    return blake2b(bytes((_VERSION,)) + bound + body, digest_size=_SUM).digest()


def fill(items: Iterable[Item], show: Callable[[Item], Shown]) -> list[Shown]:
    """Shows items up to the size of a page, at least one where there is one."""
    shown: list[Shown] = []
    room = PAGE_BYTES_MAX
    for item in items:
        message = show(item)
        room -= message.ByteSize() + _FRAMING
        if room < 0 and shown:
            break
        shown.append(message)
    return shown


def after_page(
    page: Page[Item], shown: Sequence[object], place: Callable[[Item], tuple[int, str]]
) -> tuple[int, str] | None:
    """Returns where the next page starts, where perhaps not all of a page is shown."""
    count = len(shown)
    return page.after if count == len(page.items) else place(page.items[count - 1])


def fitting(sizes: Iterable[int]) -> int:
    """Returns how many items of these sizes fit a page, at least one where there is one."""
    count = 0
    room = PAGE_BYTES_MAX
    for size in sizes:
        room -= size + _FRAMING
        if room < 0 and count:
            break
        count += 1
    return count
