"""What is stored and streamed as bytes, and who makes the bytes.

The engine and the streams never look into an encoded event, message or option:
they hold this Protocol, which the transport fulfils. Bytes are made once, at
commit, and are passed on as they are.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from runlane_server.core.model import Content, Delta, RunOptions
from runlane_server.core.rows import Event, MessageAppended
from runlane_server.core.words import ToolOutcome


class StoredEvent(msgspec.Struct, array_like=True, frozen=True):
    """One event of a group: what filters need, and its bytes without message.

    Attributes:
        type: An EventType.
        message_number: Of MESSAGE_APPENDED, else 0.
    """

    type: int
    run_id: str
    run_sequence: int
    message_number: int
    data: bytes


_encoder = msgspec.msgpack.Encoder()
_group_decoder = msgspec.msgpack.Decoder(list[StoredEvent])


def encode_group(events: list[StoredEvent]) -> bytes:
    """Encodes the events of one commit of one session."""
    return _encoder.encode(events)


def decode_group(data: bytes) -> list[StoredEvent]:
    """Decodes what `encode_group` made."""
    return _group_decoder.decode(data)


class Codec(Protocol):
    """Encodes what is stored and streamed."""

    def event(self, event: Event, session_id: str, actor: str, request_id: str) -> bytes:
        """Encodes an event, without its message."""

    def message(self, row: MessageAppended, session_id: str, content: Content | None) -> bytes:
        """Encodes a message; without content: all but it, to be followed by content bytes."""

    def child_result(
        self, tool_call_id: str, outcome: ToolOutcome, message: bytes, output_json: str, told: str
    ) -> Content:
        """Makes the result of a call from the end of the child run that answers it.

        Args:
            tool_call_id: The call.
            outcome: What became of it.
            message: The encoded message that is the child's answer; empty: there is none.
            output_json: What its executor gave beside it; empty: nothing.
            told: The server's own words; empty: none.
        """

    def options(self, options: RunOptions) -> bytes:
        """Encodes resolved run options."""

    def event_batch(self, events: Sequence[tuple[bytes, bytes | None]]) -> bytes:
        """Encodes a frame of StreamEvents from events, each with its message or None."""

    def run_event_batch(self, events: Sequence[tuple[bytes, bytes | None]]) -> bytes:
        """Encodes a frame of StreamRunEvents, likewise."""

    def bookmark(self, sequence: int, server_time: int, *, caught_up: bool) -> bytes:
        """Encodes a bookmark frame of StreamEvents."""

    def control(self, control: Any) -> bytes:
        """Encodes a control frame of StreamEvents from an app.views.ControlView."""

    def deltas(self, deltas: Sequence[Delta]) -> bytes:
        """Encodes a frame of deltas of StreamEvents."""

    def message_batch(self, messages: Sequence[bytes]) -> bytes:
        """Encodes messages as field 1 of a response: every stream of messages has it there."""

    def role(self, message: bytes) -> int:
        """Returns the role of an encoded message, without decoding it whole."""
