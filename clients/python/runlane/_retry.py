"""The one table of deadlines and retries.

Every unary call of the contract may be repeated: reads change nothing, and mutations carry
a request id that is the same in each attempt, so that the service gives the first answer
again. What is repeated, and for how long, stands in `proto/calls.json`, which is beside the
generated code here and is the same for the clients of all languages.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.message import Message

from runlane import v1
from runlane._time import to_seconds
from runlane.errors import RunlaneError, ServiceError, TransportError

# Imported for their descriptors, which the table speaks of.
from runlane.v1 import (  # noqa: F401
    admin_service_pb2,
    executor_service_pb2,
    history_service_pb2,
    server_service_pb2,
    session_service_pb2,
)

TABLE: Final[Mapping[str, Any]] = json.loads(
    resources.files(v1).joinpath("calls.json").read_text(encoding="utf-8")
)

FIRST_DELAY: Final[float] = TABLE["backoff"]["first_seconds"]
LONGEST_DELAY: Final[float] = TABLE["backoff"]["longest_seconds"]
_GROWTH: Final[float] = TABLE["backoff"]["multiplier"]
_JITTER: Final[float] = TABLE["backoff"]["jitter_from"]
# Of the time that the service may take to answer a wait.
_MARGIN: Final[float] = TABLE["wait_factor"]
# A server ends a stream before this, and it is opened again. That it is met is as good.
STREAM_DEADLINE: Final[float] = TABLE["stream_seconds"]
# Bookmarks come every 15 s: a stream that is silent for longer has lost its peer.
STREAM_SILENCE: Final[float] = TABLE["methods"]["runlane.v1.SessionService/StreamEvents"][
    "silence_seconds"
]


@dataclass(frozen=True, slots=True)
class Policy:
    """How a method is called.

    Attributes:
        attempt_timeout: Seconds for one attempt; None: as long as the whole call. Where it
            is set, an attempt that ran out of time is repeated too.
        waits: Whether the request has a wait_duration, which is added to the deadline.
    """

    attempt_timeout: float | None = None
    waits: bool = False

    def deadline(self, request: Message, timeout: float) -> float:
        """Returns the seconds that the whole call may take.

        The service answers a wait before the deadline, by a tenth of it and at least half
        a second: hence the margin.
        """
        if not self.waits:
            return timeout
        wait = to_seconds(getattr(request, "wait_duration"))  # noqa: B009 - of any request
        return timeout + _MARGIN * wait


def _policy(row: Mapping[str, Any]) -> Policy:
    return Policy(attempt_timeout=row.get("attempt_seconds"), waits=row["deadline"] == "wait")


def _policies() -> dict[type[Message], Policy]:
    pool = descriptor_pool.Default()
    rows = {
        pool.FindMethodByName(name.replace("/", ".")): row for name, row in TABLE["methods"].items()
    }
    return {
        message_factory.GetMessageClass(method.input_type): _policy(row)
        for method, row in rows.items()
        if not method.server_streaming and row["repeat"] != "never"
    }


POLICIES: Final = _policies()
"""How each method with one answer that may be repeated is called, by the type of its request."""


def _codes(names: list[str]) -> frozenset[grpc.StatusCode]:
    return frozenset(grpc.StatusCode[name] for name in names)


# Whether the call was taken is open. CANCELLED too: a call that its caller cancels raises
# CancelledError, so the status is the word of a server or a proxy that goes away.
_AWAY: Final = _codes(TABLE["again"]["transport_codes"])
_AGAIN: Final = _codes(TABLE["again"]["service_codes"])
_BROKEN: Final = _codes(TABLE["reopen"]["transport_codes"])
_REOPENED: Final = _codes(TABLE["reopen"]["service_codes"])
# One of too many a second, and not beyond what may be had.
_PASSING: Final = frozenset(TABLE["again"]["reasons_with_delay"])
# The place that a stream held may not be free yet.
_PLACES: Final = frozenset(TABLE["reopen"]["reasons_if_connected"])


def retryable(error: RunlaneError, policy: Policy) -> bool:
    """Tells whether a unary call that failed so may be repeated."""
    if isinstance(error, TransportError):
        if error.retry_after is not None and error.retry_after < 0:
            return False
        if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return policy.attempt_timeout is not None
        return error.code in _AWAY
    return isinstance(error, ServiceError) and (error.code in _AGAIN or _passes(error))


def _passes(error: ServiceError) -> bool:
    return error.reason in _PASSING and error.retry_after is not None


def reopenable(error: RunlaneError, *, connected: bool) -> bool:
    """Tells whether a stream that ended so may be opened again from its cursor.

    Args:
        error: How it ended.
        connected: Whether it was open before. Then a refusal for want of a place is
            worth another try: the place that it held may not be free yet.
    """
    if isinstance(error, TransportError):
        return error.code in _BROKEN
    if isinstance(error, ServiceError):
        again = error.code in _REOPENED or _passes(error)
        return again or (connected and error.reason in _PLACES)
    return False


def delay(attempt: int, error: RunlaneError | None = None) -> float:
    """Returns the seconds to wait before another attempt.

    Args:
        attempt: Attempts that failed in a row, from 1.
        error: The last failure; what it says of when to try again is heeded.
    """
    grown: float = min(LONGEST_DELAY, FIRST_DELAY * _GROWTH ** min(attempt - 1, 16))
    jittered = grown * random.uniform(_JITTER, 1.0)  # noqa: S311 - spreads load, keeps no secret
    asked: float | None = (
        error.retry_after if isinstance(error, ServiceError | TransportError) else None
    )
    if asked is None or asked < 0:
        return jittered
    return asked + jittered
