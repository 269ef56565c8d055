"""Refusals.

    Refused             a rule says no; `reason` and `metadata` are part of the contract
    ├── NotPending      the submission is not pending: the store knows what became of it
    ├── NotLive         the run is not the live one: the store knows what became of it
    ├── NotOpen         the interaction is not open: the store knows what became of it
    └── NotRead         more has happened than the caller has read: it reads again

Those below it never reach a caller: a use case turns them into an answer or
another refusal with what the store knows.
"""

from enum import StrEnum


class Reason(StrEnum):
    """Reasons of refusals; the words of runlane.v1.ErrorReason."""

    FIELD_INVALID = "FIELD_INVALID"
    INPUT_EMPTY = "INPUT_EMPTY"
    OPTIONS_NOT_ALLOWED = "OPTIONS_NOT_ALLOWED"
    PAGE_TOKEN_INVALID = "PAGE_TOKEN_INVALID"  # noqa: S105 - no secret
    PAGE_TOKEN_MISMATCH = "PAGE_TOKEN_MISMATCH"  # noqa: S105 - no secret
    OPERATION_INVALID = "OPERATION_INVALID"
    ANSWER_INVALID = "ANSWER_INVALID"
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
    RUN_NOT_FOUND = "RUN_NOT_FOUND"
    SUBMISSION_NOT_FOUND = "SUBMISSION_NOT_FOUND"
    INTERACTION_NOT_FOUND = "INTERACTION_NOT_FOUND"
    TOOL_CALL_NOT_FOUND = "TOOL_CALL_NOT_FOUND"
    AGENT_NOT_FOUND = "AGENT_NOT_FOUND"
    KEY_NOT_FOUND = "KEY_NOT_FOUND"
    SESSION_EXISTS = "SESSION_EXISTS"
    REQUEST_ID_REUSED = "REQUEST_ID_REUSED"
    SESSION_BUSY = "SESSION_BUSY"
    SESSION_IDLE = "SESSION_IDLE"
    SESSION_CLOSED = "SESSION_CLOSED"
    SESSION_LIVE = "SESSION_LIVE"
    CHILD_SESSION = "CHILD_SESSION"
    RUN_NOT_CURRENT = "RUN_NOT_CURRENT"
    RUN_NOT_TERMINAL = "RUN_NOT_TERMINAL"
    RUN_NOT_TOP_LEVEL = "RUN_NOT_TOP_LEVEL"
    RUN_TERMINAL = "RUN_TERMINAL"
    RUN_CANCELLING = "RUN_CANCELLING"
    INTERACTION_CLOSED = "INTERACTION_CLOSED"
    INTERACTION_CONFLICT = "INTERACTION_CONFLICT"
    SUBMISSION_SETTLED = "SUBMISSION_SETTLED"
    CALL_UNRESOLVED = "CALL_UNRESOLVED"
    CALL_HAS_CHILD = "CALL_HAS_CHILD"
    STALE_ACTIVATION = "STALE_ACTIVATION"
    REVISION_MISMATCH = "REVISION_MISMATCH"
    ETAG_MISMATCH = "ETAG_MISMATCH"
    ACTIVATION_MISMATCH = "ACTIVATION_MISMATCH"
    QUEUE_FULL = "QUEUE_FULL"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    STREAM_LIMIT = "STREAM_LIMIT"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    SEQUENCE_AHEAD = "SEQUENCE_AHEAD"
    CREDENTIAL_MISSING = "CREDENTIAL_MISSING"
    CREDENTIAL_INVALID = "CREDENTIAL_INVALID"
    SCOPE_MISSING = "SCOPE_MISSING"
    DRAINING = "DRAINING"
    STREAM_ENDED = "STREAM_ENDED"
    STORE_UNAVAILABLE = "STORE_UNAVAILABLE"
    STORE_CORRUPT = "STORE_CORRUPT"
    INTERNAL_ERROR = "INTERNAL_ERROR"


class Refused(Exception):  # noqa: N818 - a refusal is an answer, not a fault
    """A rule says no.

    Attributes:
        reason: Which rule.
        metadata: Keys that are part of the contract; never another caller's content.
        violations: Fields that break their rule, each with a description.
        retry_milliseconds: When to try again; 0: the reason alone says whether to.
    """

    def __init__(
        self,
        reason: Reason,
        message: str = "",
        *,
        violations: tuple[tuple[str, str], ...] = (),
        retry_milliseconds: int = 0,
        **metadata: str,
    ) -> None:
        super().__init__(message or reason.value)
        self.reason = reason
        self.message = message or reason.value.lower().replace("_", " ")
        self.violations = violations
        self.retry_milliseconds = retry_milliseconds
        self.metadata = metadata


def invalid(field: str, description: str) -> Refused:
    """Returns the refusal of one field."""
    return Refused(
        Reason.FIELD_INVALID, f"{field}: {description}", violations=((field, description),)
    )


class NotPending(Refused):
    """The submission is not pending."""

    def __init__(self) -> None:
        super().__init__(Reason.SUBMISSION_NOT_FOUND)


class NotLive(Refused):
    """The run is not the session's live one."""

    def __init__(self) -> None:
        super().__init__(Reason.RUN_NOT_FOUND)


class NotOpen(Refused):
    """The interaction is not the open one of the live run."""

    def __init__(self) -> None:
        super().__init__(Reason.INTERACTION_NOT_FOUND)


class NotRead(Refused):
    """The decision needs a fact that is stored, and that its caller has not read."""

    def __init__(self) -> None:
        super().__init__(Reason.INTERNAL_ERROR)
