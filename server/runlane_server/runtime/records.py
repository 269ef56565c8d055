"""How hot states and answers are stored: a version byte and msgpack."""

from dataclasses import dataclass
from typing import Any

import msgspec

from runlane_server.core.answers import (
    Answer,
    CommitAnswer,
    DrainAnswer,
    ForkAnswer,
    ImportAnswer,
    InteractionAnswered,
    LeaseAnswer,
    PauseAnswer,
    RestoreAnswer,
    RunAnswer,
    SessionAnswer,
    SubmitAnswer,
)
from runlane_server.core.model import Cancellation, SessionState, Usage
from runlane_server.store.errors import StoreCorrupt

VERSION = b"\x01"
"""New fields with defaults need no new version; a change of meaning does."""

_encoder = msgspec.msgpack.Encoder()
_states = msgspec.msgpack.Decoder(SessionState)
_KINDS: dict[bytes, type] = {
    b"s": SessionAnswer,
    b"u": SubmitAnswer,
    b"r": RunAnswer,
    b"p": PauseAnswer,
    b"i": InteractionAnswered,
    b"e": RestoreAnswer,
    b"f": ForkAnswer,
    b"m": ImportAnswer,
    b"l": LeaseAnswer,
    b"c": CommitAnswer,
    b"d": DrainAnswer,
}
_TAGS = {kind: tag for tag, kind in _KINDS.items()}
_answers: dict[bytes, msgspec.msgpack.Decoder[Any]] = {
    tag: msgspec.msgpack.Decoder(kind) for tag, kind in _KINDS.items()
}


def encode_state(state: SessionState) -> bytes:
    """Encodes a hot state."""
    return VERSION + _encoder.encode(state)


def decode_state(data: bytes) -> SessionState:
    """Decodes a hot state.

    Raises:
        StoreCorrupt: It is of an unknown version, or damaged.
    """
    if data[:1] != VERSION:
        raise StoreCorrupt("hot state of an unknown version")
    try:
        return _states.decode(memoryview(data)[1:])
    except msgspec.MsgspecError as error:
        raise StoreCorrupt("hot state cannot be decoded") from error


def encode_answer(answer: Answer) -> bytes:
    """Encodes an answer, to be stored under its request_id."""
    return VERSION + _TAGS[type(answer)] + _encoder.encode(answer)


def decode_answer(data: bytes) -> Answer:
    """Decodes an answer.

    Raises:
        StoreCorrupt: It is of an unknown version, or damaged.
    """
    decoder = _answers.get(data[1:2])
    if data[:1] != VERSION or decoder is None:
        raise StoreCorrupt("answer of an unknown version")
    try:
        answer: Answer = decoder.decode(memoryview(data)[2:])
    except msgspec.MsgspecError as error:
        raise StoreCorrupt("answer cannot be decoded") from error
    return answer


@dataclass(slots=True)
class RunTotals:
    """What an ended run has used, as its row holds it."""

    usage: Usage
    steps_reserved: int
    steps_committed: int
    tool_calls: int = 0


_totals = msgspec.msgpack.Decoder(RunTotals)
_cancellations = msgspec.msgpack.Decoder(Cancellation)


def decode_totals(data: bytes) -> RunTotals:
    """Decodes RunRow.usage; empty: nothing was used."""
    return _totals.decode(data) if data else RunTotals(Usage(), 0, 0)


def decode_cancellation(data: bytes) -> Cancellation | None:
    """Decodes RunRow.cancellation; empty: there was none."""
    return _cancellations.decode(data) if data else None
