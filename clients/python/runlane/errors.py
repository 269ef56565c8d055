# ruff: noqa: N818
# The classes are named as the reasons of the contract, which do not end in Error.
"""Errors that the client raises, one class for each reason of the service.

    RunlaneError
    +-- ServiceError            the service refused or failed; `reason` says why
    |   +-- FieldInvalid
    |   +-- InputEmpty
    |   +-- OptionsNotAllowed
    |   +-- PageTokenInvalid
    |   +-- PageTokenMismatch
    |   +-- OperationInvalid
    |   +-- AnswerInvalid
    |   +-- SessionNotFound
    |   +-- RunNotFound
    |   +-- SubmissionNotFound
    |   +-- InteractionNotFound
    |   +-- ToolCallNotFound
    |   +-- AgentNotFound
    |   +-- KeyNotFound
    |   +-- SessionExists
    |   +-- RequestIdReused
    |   +-- SessionBusy
    |   +-- SessionIdle
    |   +-- SessionClosed
    |   +-- SessionLive
    |   +-- ChildSession
    |   +-- RunNotCurrent
    |   +-- RunNotTerminal
    |   +-- RunNotTopLevel
    |   +-- RunTerminal
    |   +-- RunCancelling
    |   +-- InteractionClosed
    |   +-- InteractionConflict
    |   +-- SubmissionSettled
    |   +-- CallUnresolved
    |   +-- CallHasChild
    |   +-- StaleActivation
    |   +-- RevisionMismatch
    |   +-- EtagMismatch
    |   +-- ActivationMismatch
    |   +-- QueueFull
    |   +-- QuotaExceeded
    |   +-- StreamLimit
    |   +-- MessageTooLarge
    |   +-- SequenceAhead
    |   +-- CredentialMissing
    |   +-- CredentialInvalid
    |   +-- ScopeMissing
    |   +-- Draining
    |   +-- StreamEnded
    |   +-- StoreUnavailable
    |   +-- StoreCorrupt
    |   +-- InternalError
    +-- TransportError          no word of the service: connection, deadline, proxy
    +-- StreamGapError          a stream broke its promise to leave nothing out
    +-- ClientClosedError       a `Client` was used after `aclose()`
    +-- ManagerClosedError      a `SessionManager` was used after `close()`

A reason that this client does not know is a plain `ServiceError`. Errors of Python itself
keep their meaning: `ValueError` for arguments that make no request, `TimeoutError` where a
wait of the client's own ran out, `asyncio.CancelledError` for a cancelled task.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple

import grpc

from runlane._status import read_status


class RunlaneError(Exception):
    """Anything that this client raises on its own account."""


class FieldViolation(NamedTuple):
    """A field of the request that breaks its rule."""

    field: str
    description: str


class ServiceError(RunlaneError):
    """The service refused the call, or failed.

    Attributes:
        reason: The reason, such as `SESSION_BUSY`; a part of the contract.
        metadata: Entries beside it, as the contract names them for the reason.
        code: The gRPC status code.
        message: Text for people.
        retry_after: Seconds after which to try again, where the service said so.
        violations: The fields that break a rule, where the request was invalid.
    """

    REASON: ClassVar[str] = ""

    def __init__(
        self,
        reason: str,
        message: str,
        *,
        code: grpc.StatusCode,
        metadata: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        violations: Iterable[FieldViolation] = (),
    ) -> None:
        super().__init__(f"{reason}: {message}" if message else reason)
        self.reason = reason
        self.message = message
        self.code = code
        self.metadata: Mapping[str, str] = MappingProxyType(dict(metadata or {}))
        self.retry_after = retry_after
        self.violations = tuple(violations)


class TransportError(RunlaneError):
    """The call failed without a word of the service.

    Attributes:
        code: The gRPC status code: UNAVAILABLE where there is no connection,
            DEADLINE_EXCEEDED where the call's deadline passed.
        message: Text for people, by the transport.
        retry_after: Seconds after which to try again, where the peer said so; negative
            where it asked not to try again.
    """

    def __init__(
        self, code: grpc.StatusCode, message: str, *, retry_after: float | None = None
    ) -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message
        self.retry_after = retry_after


class StreamGapError(RunlaneError):
    """An event stream without a filter left out an event.

    Attributes:
        expected: The sequence that had to come.
        received: The sequence that came.
    """

    def __init__(self, expected: int, received: int) -> None:
        super().__init__(f"expected sequence {expected}, received {received}")
        self.expected = expected
        self.received = received


class ClientClosedError(RunlaneError):
    """The client was closed."""


class ManagerClosedError(RunlaneError):
    """The session manager was closed."""


class FieldInvalid(ServiceError):
    """A field breaks its rule; `violations` names each such field."""

    REASON = "FIELD_INVALID"


class InputEmpty(ServiceError):
    """The input is empty, or white space alone."""

    REASON = "INPUT_EMPTY"


class OptionsNotAllowed(ServiceError):
    """STEER takes no run_options."""

    REASON = "OPTIONS_NOT_ALLOWED"


class PageTokenInvalid(ServiceError):
    """The page token is not one of this server's."""

    REASON = "PAGE_TOKEN_INVALID"


class PageTokenMismatch(ServiceError):
    """The page token belongs to other arguments."""

    REASON = "PAGE_TOKEN_MISMATCH"


class OperationInvalid(ServiceError):
    """An operation of a Commit does not fit the run.

    Metadata: operation_index (from 0; absent where it is the outcome), detail.
    """

    REASON = "OPERATION_INVALID"


class AnswerInvalid(ServiceError):
    """The answer does not fit its question."""

    REASON = "ANSWER_INVALID"


class SessionNotFound(ServiceError):
    """No such session in the namespace, or deleted."""

    REASON = "SESSION_NOT_FOUND"


class RunNotFound(ServiceError):
    """No such run in the namespace; also of a reserved run id."""

    REASON = "RUN_NOT_FOUND"


class SubmissionNotFound(ServiceError):
    """No such submission in the namespace."""

    REASON = "SUBMISSION_NOT_FOUND"


class InteractionNotFound(ServiceError):
    """No such interaction of the run, or no such token."""

    REASON = "INTERACTION_NOT_FOUND"


class ToolCallNotFound(ServiceError):
    """No such call in the open batch.

    Metadata: tool_call_id, operation_index.
    """

    REASON = "TOOL_CALL_NOT_FOUND"


class AgentNotFound(ServiceError):
    """The setting `agents` lists the allowed names, and this is not one.

    Metadata: agent.
    """

    REASON = "AGENT_NOT_FOUND"


class KeyNotFound(ServiceError):
    """No such API key in the namespaces that the credential opens."""

    REASON = "KEY_NOT_FOUND"


class SessionExists(ServiceError):
    """The session id is taken.

    Metadata: session_id, deleted (true where it was used by a session since deleted).
    """

    REASON = "SESSION_EXISTS"


class RequestIdReused(ServiceError):
    """The request_id was used with another request.

    Metadata: request_id.
    """

    REASON = "REQUEST_ID_REUSED"


class SessionBusy(ServiceError):
    """A run is live.

    Metadata: run_id, phase, activation_id, allowed_commands.
    """

    REASON = "SESSION_BUSY"


class SessionIdle(ServiceError):
    """No run is live.

    Metadata: allowed_commands.
    """

    REASON = "SESSION_IDLE"


class SessionClosed(ServiceError):
    """The session takes no input."""

    REASON = "SESSION_CLOSED"


class SessionLive(ServiceError):
    """A run is live; delete with force, or interrupt it first.

    Metadata: run_id.
    """

    REASON = "SESSION_LIVE"


class ChildSession(ServiceError):
    """The session is that of a child run: it takes steers and answers alone.

    Metadata: parent_run_id.
    """

    REASON = "CHILD_SESSION"


class RunNotCurrent(ServiceError):
    """Target_run_id is not the live run.

    Metadata: run_id (the live one, absent where there is none).
    """

    REASON = "RUN_NOT_CURRENT"


class RunNotTerminal(ServiceError):
    """The run has not ended.

    Metadata: run_id, phase.
    """

    REASON = "RUN_NOT_TERMINAL"


class RunNotTopLevel(ServiceError):
    """The run is a child run, which is no fork point.

    Metadata: run_id.
    """

    REASON = "RUN_NOT_TOP_LEVEL"


class RunTerminal(ServiceError):
    """The run has ended.

    Metadata: run_id.
    """

    REASON = "RUN_TERMINAL"


class RunCancelling(ServiceError):
    """Cancellation of the run was requested, or it is ending.

    Metadata: run_id, cause (what it will end with; only of a run that is ending).
    """

    REASON = "RUN_CANCELLING"


class InteractionClosed(ServiceError):
    """The interaction ended without an answer.

    Metadata: interaction_id.
    """

    REASON = "INTERACTION_CLOSED"


class InteractionConflict(ServiceError):
    """The interaction has another answer, or another version.

    Metadata: interaction_id, version.
    """

    REASON = "INTERACTION_CONFLICT"


class SubmissionSettled(ServiceError):
    """The submission has had its end.

    Metadata: submission_id, state.
    """

    REASON = "SUBMISSION_SETTLED"


class CallUnresolved(ServiceError):
    """A claimed call has no result.

    Metadata: tool_call_id.
    """

    REASON = "CALL_UNRESOLVED"


class CallHasChild(ServiceError):
    """A child run will answer the call.

    Metadata: tool_call_id, run_id (of the child run), operation_index.
    """

    REASON = "CALL_HAS_CHILD"


class StaleActivation(ServiceError):
    """The fence is not, or no longer, the right one.

    Metadata: run_id.
    """

    REASON = "STALE_ACTIVATION"


class RevisionMismatch(ServiceError):
    """Expected_revision is not the session's.

    Metadata: revision.
    """

    REASON = "REVISION_MISMATCH"


class EtagMismatch(ServiceError):
    """The record was changed since.

    Metadata: etag.
    """

    REASON = "ETAG_MISMATCH"


class ActivationMismatch(ServiceError):
    """Expected_activation_id is not the current one.

    Metadata: activation_id.
    """

    REASON = "ACTIVATION_MISMATCH"


class QueueFull(ServiceError):
    """A limit of pending input is reached.

    Metadata: limit, queue.
    """

    REASON = "QUEUE_FULL"


class QuotaExceeded(ServiceError):
    """The namespace has as much as it may have, or makes more calls a second than it may.

    Of calls that are too many, `retry_after` is set, and the client has tried until its
    deadline. Metadata: limit, quota.
    """

    REASON = "QUOTA_EXCEEDED"


class StreamLimit(ServiceError):
    """The server has as many streams as it takes, or the namespace as many as it may have.

    Metadata: limit, quota (absent where it is the server's limit).
    """

    REASON = "STREAM_LIMIT"


class MessageTooLarge(ServiceError):
    """Content is over the limit.

    Metadata: size_bytes, limit_bytes.
    """

    REASON = "MESSAGE_TOO_LARGE"


class SequenceAhead(ServiceError):
    """The cursor is beyond the session's last event.

    Metadata: sequence.
    """

    REASON = "SEQUENCE_AHEAD"


class CredentialMissing(ServiceError):
    """The call has no credential, and needs one."""

    REASON = "CREDENTIAL_MISSING"


class CredentialInvalid(ServiceError):
    """The credential is unknown, was revoked, or has expired."""

    REASON = "CREDENTIAL_INVALID"


class ScopeMissing(ServiceError):
    """The credential does not allow the call, or does not open the namespace.

    Metadata: scope (that the call needs), namespace (only where it is about that).
    """

    REASON = "SCOPE_MISSING"


class Draining(ServiceError):
    """The server is stopping; RetryInfo says when to try again."""

    REASON = "DRAINING"


class StreamEnded(ServiceError):
    """The stream was ended by the server; go on from the last sequence."""

    REASON = "STREAM_ENDED"


class StoreUnavailable(ServiceError):
    """The store did not take or give the data.

    Whether a write was made is settled by its request_id.
    """

    REASON = "STORE_UNAVAILABLE"


class StoreCorrupt(ServiceError):
    """What the store holds fails its checks.

    Metadata: incident_id.
    """

    REASON = "STORE_CORRUPT"


class InternalError(ServiceError):
    """A fault of the server.

    Metadata: incident_id, to find it in the log.
    """

    REASON = "INTERNAL_ERROR"


_BY_REASON: Final[Mapping[str, type[ServiceError]]] = {
    kind.REASON: kind for kind in ServiceError.__subclasses__()
}


def from_rpc_error(error: grpc.RpcError) -> ServiceError | TransportError:
    """Returns the error that a failed call stands for.

    Args:
        error: What a stub raised, of a blocking or an asyncio channel.

    Returns:
        The class of the reason where the service gave one, a plain `ServiceError` for a
        reason that is new, and a `TransportError` for everything else.
    """
    told = read_status(error)
    if not told.reason:
        return TransportError(told.code, told.message, retry_after=told.retry_after)
    return _BY_REASON.get(told.reason, ServiceError)(
        told.reason,
        told.message,
        code=told.code,
        metadata=told.metadata,
        retry_after=told.retry_after,
        violations=[FieldViolation(*violation) for violation in told.violations],
    )
