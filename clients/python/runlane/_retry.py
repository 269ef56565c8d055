"""The one table of deadlines and retries.

Every unary call of the contract may be repeated: reads change nothing, and mutations carry
a request id that is the same in each attempt, so that the service gives the first answer
again. What is repeated, and for how long, stands in `POLICIES`.
"""

import random
from dataclasses import dataclass
from typing import Final

import grpc
from google.protobuf.message import Message

from runlane._time import to_seconds
from runlane.errors import (
    Draining,
    QuotaExceeded,
    RunlaneError,
    ServiceError,
    StoreUnavailable,
    StreamEnded,
    StreamLimit,
    TransportError,
)
from runlane.v1 import admin_service_pb2 as admin_pb
from runlane.v1 import executor_service_pb2 as executor_pb
from runlane.v1 import history_service_pb2 as history_pb
from runlane.v1 import server_service_pb2 as server_pb
from runlane.v1 import session_service_pb2 as session_pb

FIRST_DELAY: Final = 0.05
LONGEST_DELAY: Final = 2.0
# A server ends a stream before this, and it is opened again. That it is met is as good.
STREAM_DEADLINE: Final = 3600.0
# Bookmarks come every 15 s: a stream that is silent for longer has lost its peer.
STREAM_SILENCE: Final = 60.0


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
        return timeout + 1.25 * wait


_PLAIN: Final = Policy()
_WAITS: Final = Policy(waits=True)
_FENCED: Final = Policy(attempt_timeout=10.0)

POLICIES: Final[dict[type[Message], Policy]] = {
    session_pb.CreateSessionRequest: _PLAIN,
    session_pb.GetSessionRequest: _PLAIN,
    session_pb.UpdateSessionRequest: _PLAIN,
    session_pb.DeleteSessionRequest: _PLAIN,
    session_pb.CloseSessionRequest: _PLAIN,
    session_pb.ReopenSessionRequest: _PLAIN,
    session_pb.SubmitRequest: _PLAIN,
    session_pb.WithdrawSubmissionRequest: _PLAIN,
    session_pb.GetSubmissionRequest: _PLAIN,
    session_pb.InterruptRunRequest: _WAITS,
    session_pb.PauseRunRequest: _PLAIN,
    session_pb.UnpauseRunRequest: _PLAIN,
    session_pb.AnswerInteractionRequest: _PLAIN,
    session_pb.CompleteExternalRequest: _PLAIN,
    session_pb.RestoreRunRequest: _PLAIN,
    session_pb.GetLiveStateRequest: _PLAIN,
    session_pb.ListAgentsRequest: _PLAIN,
    history_pb.ListSessionsRequest: _PLAIN,
    history_pb.ListRunsRequest: _PLAIN,
    history_pb.ListChildRunsRequest: _PLAIN,
    history_pb.GetRunRequest: _PLAIN,
    history_pb.WaitRunRequest: _WAITS,
    history_pb.ListSubmissionsRequest: _PLAIN,
    history_pb.ListEventsRequest: _PLAIN,
    history_pb.ListMessagesRequest: _PLAIN,
    history_pb.ListForkPointsRequest: _PLAIN,
    history_pb.ListToolCallsRequest: _PLAIN,
    history_pb.ListInteractionsRequest: _PLAIN,
    history_pb.ForkSessionRequest: _PLAIN,
    history_pb.GetLineageRequest: _PLAIN,
    executor_pb.PollActivationRequest: _WAITS,
    executor_pb.DrainExecutorRequest: _PLAIN,
    executor_pb.HeartbeatRequest: _FENCED,
    executor_pb.CommitRequest: _FENCED,
    admin_pb.ListStalledRunsRequest: _PLAIN,
    admin_pb.SettleRunRequest: _PLAIN,
    admin_pb.CreateKeyRequest: _PLAIN,
    admin_pb.ListKeysRequest: _PLAIN,
    admin_pb.RevokeKeyRequest: _PLAIN,
    admin_pb.GetOverviewRequest: _PLAIN,
    admin_pb.ListExecutorsRequest: _PLAIN,
    admin_pb.ImportSessionRequest: _PLAIN,
    server_pb.GetServerInfoRequest: _PLAIN,
}

# Whether the call was taken is open. CANCELLED too: a call that its caller cancels raises
# CancelledError, so the status is the word of a server or a proxy that goes away.
_AWAY: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
_BROKEN: Final = _AWAY | frozenset(
    {
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
    }
)


def retryable(error: RunlaneError, policy: Policy) -> bool:
    """Tells whether a unary call that failed so may be repeated."""
    if isinstance(error, TransportError):
        if error.retry_after is not None and error.retry_after < 0:
            return False
        if error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return policy.attempt_timeout is not None
        return error.code in _AWAY
    return _passes(error) or isinstance(error, Draining | StoreUnavailable | StreamEnded)


def _passes(error: RunlaneError) -> bool:
    """Tells whether a call was one of too many a second, and not beyond what may be had."""
    return isinstance(error, QuotaExceeded) and error.retry_after is not None


def reopenable(error: RunlaneError, *, connected: bool) -> bool:
    """Tells whether a stream that ended so may be opened again from its cursor.

    Args:
        error: How it ended.
        connected: Whether it was open before. Then a refusal for want of a place is
            worth another try: the place that it held may not be free yet.
    """
    if isinstance(error, TransportError):
        return error.code in _BROKEN
    if isinstance(error, StreamLimit):
        return connected
    if isinstance(error, ServiceError):
        return error.code is grpc.StatusCode.UNAVAILABLE or _passes(error)
    return False


def delay(attempt: int, error: RunlaneError | None = None) -> float:
    """Returns the seconds to wait before another attempt.

    Args:
        attempt: Attempts that failed in a row, from 1.
        error: The last failure; what it says of when to try again is heeded.
    """
    grown: float = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(attempt - 1, 16))
    jittered = grown * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, keeps no secret
    asked: float | None = (
        error.retry_after if isinstance(error, ServiceError | TransportError) else None
    )
    if asked is None or asked < 0:
        return jittered
    return asked + jittered
