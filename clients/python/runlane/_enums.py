"""The words of the contract as string enums.

Each member prints as its word (`delivered`, `follow_up`, `run.terminal`). A number that a
newer server sends and this client does not know becomes `UNKNOWN`.
"""

import re
from enum import StrEnum
from typing import Final, TypeVar

from google.protobuf.descriptor import EnumDescriptor

from runlane.v1 import (
    api_key_pb2,
    event_pb2,
    executor_service_pb2,
    history_service_pb2,
    interaction_pb2,
    message_pb2,
    run_pb2,
    server_service_pb2,
    session_pb2,
    session_service_pb2,
)
from runlane.v1 import submission_pb2 as sub_pb2

_E = TypeVar("_E", bound=StrEnum)


class SessionState(StrEnum):
    """Whether a session takes new input."""

    UNKNOWN = "unknown"
    OPEN = "open"
    CLOSED = "closed"


class SessionOrder(StrEnum):
    """How sessions are listed."""

    UNKNOWN = "unknown"
    CREATED_DESC = "created_desc"
    CREATED_ASC = "created_asc"
    UPDATED_DESC = "updated_desc"


class Command(StrEnum):
    """What may be asked of a session."""

    UNKNOWN = "unknown"
    START = "start"
    AUTO = "auto"
    QUEUE = "queue"
    STEER = "steer"
    FOLLOW_UP = "follow_up"
    REPLACE = "replace"
    INTERRUPT = "interrupt"
    WITHDRAW = "withdraw"
    CLOSE = "close"
    REOPEN = "reopen"
    DELETE = "delete"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    RESTORE = "restore"
    ANSWER = "answer"


class SubmitMode(StrEnum):
    """What is to be done with an input while a run is live."""

    UNKNOWN = "unknown"
    START = "start"
    AUTO = "auto"
    QUEUE = "queue"
    STEER = "steer"
    FOLLOW_UP = "follow_up"
    REPLACE = "replace"


class SubmitRoute(StrEnum):
    """What was done with an input."""

    UNKNOWN = "unknown"
    RUN = "run"
    STEER = "steer"
    FOLLOW_UP = "follow_up"


class SubmissionState(StrEnum):
    """How far an input has come; all but `PENDING` are ends."""

    UNKNOWN = "unknown"
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


class OnMiss(StrEnum):
    """What happens to a steer that misses its run."""

    UNKNOWN = "unknown"
    FAIL = "fail"
    FOLLOW_UP = "follow_up"


class SubmissionFailure(StrEnum):
    """Why an input failed."""

    UNKNOWN = "unknown"
    TARGET_TERMINAL = "target_terminal"
    TARGET_CANCELLING = "target_cancelling"
    START_FAILED = "start_failed"
    SESSION_CLOSED = "session_closed"


class RunPhase(StrEnum):
    """Whether a run lives."""

    UNKNOWN = "unknown"
    ACTIVE = "active"
    WAITING = "waiting"
    PAUSED = "paused"
    TERMINAL = "terminal"


class RunPosition(StrEnum):
    """Where in its loop a run stands."""

    UNKNOWN = "unknown"
    BEFORE_MODEL = "before_model"
    TOOL_BATCH = "tool_batch"
    OUTCOME_READY = "outcome_ready"


class StopReason(StrEnum):
    """Why a run ended."""

    UNKNOWN = "unknown"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    INTERACTION_EXPIRED = "interaction_expired"
    BUDGET_EXHAUSTED = "budget_exhausted"
    OUTCOME_UNKNOWN = "outcome_unknown"


class RunFailureReason(StrEnum):
    """What kind of failure ended a run."""

    UNKNOWN = "unknown"
    NO_EXECUTOR = "no_executor"
    LEASE_EXPIRED = "lease_expired"
    RECOVERY_EXHAUSTED = "recovery_exhausted"
    TOOL_FAILED = "tool_failed"
    MODEL_UNAVAILABLE = "model_unavailable"
    MODEL_REFUSED = "model_refused"
    EXECUTOR_ERROR = "executor_error"


class ActivationState(StrEnum):
    """Whether an executor has the activation."""

    UNKNOWN = "unknown"
    QUEUED = "queued"
    LEASED = "leased"
    ABANDONED = "abandoned"


class ActivationKind(StrEnum):
    """Why a turn is taken."""

    UNKNOWN = "unknown"
    START = "start"
    CONTINUE = "continue"
    RECOVER = "recover"


class Recovery(StrEnum):
    """What happens when a lease runs out and nothing stands in the way of going on."""

    UNKNOWN = "unknown"
    AUTO = "auto"
    MANUAL = "manual"


class ToolErrorPolicy(StrEnum):
    """What happens when a tool fails or a person says no."""

    UNKNOWN = "unknown"
    RETURN_TO_MODEL = "return_to_model"
    STOP = "stop"


class ToolCallState(StrEnum):
    """How far a tool call got."""

    UNKNOWN = "unknown"
    PREPARED = "prepared"
    CLAIMED = "claimed"
    COMMITTED = "committed"
    OUTCOME_UNKNOWN = "outcome_unknown"
    CANCELLED = "cancelled"


class ToolOutcome(StrEnum):
    """What became of a tool call.

    `UNKNOWN` is a word of the contract here: the call was begun, and whether it had its
    effect is not known.
    """

    OK = "ok"
    ERROR = "error"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


class PromptKind(StrEnum):
    """What an interaction asks for."""

    UNKNOWN = "unknown"
    PERMISSION = "permission"
    QUESTION = "question"
    FORM = "form"
    EXTERNAL = "external"


class InteractionState(StrEnum):
    """Whether an interaction waits for an answer."""

    UNKNOWN = "unknown"
    OPEN = "open"
    ANSWERED = "answered"
    CLOSED = "closed"


class InteractionCloseReason(StrEnum):
    """Why an interaction ended without an answer."""

    UNKNOWN = "unknown"
    RUN_ENDED = "run_ended"
    EXPIRED = "expired"


class Verdict(StrEnum):
    """Whether a tool call may run."""

    UNKNOWN = "unknown"
    APPROVE = "approve"
    REJECT = "reject"


class Scope(StrEnum):
    """What a credential may do; none holds another one."""

    UNKNOWN = "unknown"
    READ = "read"
    SUBMIT = "submit"
    ANSWER = "answer"
    EXECUTE = "execute"
    ADMIN = "admin"


class PauseReceipt(StrEnum):
    """What became of a request to pause or unpause."""

    UNKNOWN = "unknown"
    REQUESTED = "requested"
    PAUSED = "paused"
    RESUMED = "resumed"
    UNCHANGED = "unchanged"


class RestoreOutcome(StrEnum):
    """What became of a request to bring back a run."""

    UNKNOWN = "unknown"
    ATTACHED = "attached"
    STILL_LEASED = "still_leased"
    RECOVERY_QUEUED = "recovery_queued"
    SETTLED = "settled"


class MessageRole(StrEnum):
    """Whose turn a message is."""

    UNKNOWN = "unknown"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class MessageAuthor(StrEnum):
    """How a message came to be."""

    UNKNOWN = "unknown"
    INPUT = "input"
    STEER = "steer"
    MODEL = "model"
    TOOL = "tool"
    CLOSER = "closer"


class MediaKind(StrEnum):
    """What the bytes of a media block are for."""

    UNKNOWN = "unknown"
    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"


class DeltaKind(StrEnum):
    """What the block of a delta is."""

    UNKNOWN = "unknown"
    TEXT = "text"
    REASONING = "reasoning"


class Durability(StrEnum):
    """How durable an answered write is."""

    UNKNOWN = "unknown"
    PROCESS = "process"
    DISK = "disk"


class ActivationEnd(StrEnum):
    """What ended an activation: an act of its executor, or anything else."""

    UNKNOWN = "unknown"
    FINISHED = "finished"
    RELEASED = "released"
    SUSPENDED = "suspended"
    PAUSED = "paused"
    BUDGET_EXHAUSTED = "budget_exhausted"
    TOOL_FAILED = "tool_failed"
    CANCELLED = "cancelled"
    GRACE_EXPIRED = "grace_expired"
    LEASE_EXPIRED = "lease_expired"
    UNCONFIRMED = "unconfirmed"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    RESTORED = "restored"
    NO_EXECUTOR = "no_executor"
    SETTLED = "settled"


class ChildrenMode(StrEnum):
    """How many of its child runs a run waits for."""

    UNKNOWN = "unknown"
    ANY = "any"
    ALL = "all"


class SessionEventKind(StrEnum):
    """Kinds of events about a session."""

    SESSION_CREATED = "session.created"
    SESSION_UPDATED = "session.updated"
    SESSION_CLOSED = "session.closed"
    SESSION_REOPENED = "session.reopened"
    SESSION_FORKED = "session.forked"
    SESSION_COMPACTED = "session.compacted"
    SESSION_IMPORTED = "session.imported"
    SESSION_DELETED = "session.deleted"


class SubmissionEventKind(StrEnum):
    """Kinds of events about an input that was queued."""

    SUBMISSION_PENDING = "submission.pending"
    SUBMISSION_MOVED = "submission.moved"
    SUBMISSION_DELIVERED = "submission.delivered"
    SUBMISSION_FAILED = "submission.failed"
    SUBMISSION_WITHDRAWN = "submission.withdrawn"


class RunEventKind(StrEnum):
    """Kinds of events about a run."""

    RUN_CREATED = "run.created"
    RUN_WAITING = "run.waiting"
    RUN_CANCELLATION_REQUESTED = "run.cancellation_requested"
    RUN_PAUSE_REQUESTED = "run.pause_requested"
    RUN_PAUSED = "run.paused"
    RUN_UNPAUSED = "run.unpaused"
    RUN_RECOVERING = "run.recovering"
    RUN_STALLED = "run.stalled"
    RUN_ENDING = "run.ending"
    RUN_TERMINAL = "run.terminal"
    ACTIVATION_QUEUED = "activation.queued"
    ACTIVATION_LEASED = "activation.leased"
    ACTIVATION_ENDED = "activation.ended"
    ACTIVATION_ABANDONED = "activation.abandoned"
    MESSAGE_APPENDED = "message.appended"
    MODEL_STEP_RESERVED = "model_step.reserved"
    MODEL_STEP_COMMITTED = "model_step.committed"
    TOOL_CALL_PREPARED = "tool_call.prepared"
    TOOL_CALL_CLAIMED = "tool_call.claimed"
    TOOL_CALL_COMMITTED = "tool_call.committed"
    TOOL_CALL_OUTCOME_UNKNOWN = "tool_call.outcome_unknown"
    TOOL_CALL_CANCELLED = "tool_call.cancelled"
    INTERACTION_OPENED = "interaction.opened"
    INTERACTION_ANSWERED = "interaction.answered"
    INTERACTION_CLOSED = "interaction.closed"
    CHILD_RUN_STARTED = "child_run.started"
    CHILD_RUN_FINISHED = "child_run.finished"


EventKind = SessionEventKind | SubmissionEventKind | RunEventKind

# Which enum of the contract each class mirrors, with the prefix of its values.
_SOURCES: Final[dict[type[StrEnum], tuple[EnumDescriptor, str]]] = {
    Scope: (api_key_pb2.ApiKey.Scope.DESCRIPTOR, "SCOPE_"),
    SessionState: (session_pb2.Session.State.DESCRIPTOR, "STATE_"),
    SessionOrder: (history_service_pb2.ListSessionsRequest.Order.DESCRIPTOR, "ORDER_"),
    Command: (session_pb2.Command.DESCRIPTOR, "COMMAND_"),
    SubmitMode: (sub_pb2.Submission.Mode.DESCRIPTOR, "MODE_"),
    SubmitRoute: (sub_pb2.Submission.Route.DESCRIPTOR, "ROUTE_"),
    SubmissionState: (sub_pb2.Submission.State.DESCRIPTOR, "STATE_"),
    OnMiss: (sub_pb2.Submission.OnMiss.DESCRIPTOR, "ON_MISS_"),
    SubmissionFailure: (sub_pb2.Submission.FailureReason.DESCRIPTOR, "FAILURE_REASON_"),
    RunPhase: (run_pb2.Run.Phase.DESCRIPTOR, "PHASE_"),
    RunPosition: (run_pb2.Run.Position.DESCRIPTOR, "POSITION_"),
    StopReason: (run_pb2.Run.StopReason.DESCRIPTOR, "STOP_REASON_"),
    RunFailureReason: (run_pb2.RunFailure.Reason.DESCRIPTOR, "REASON_"),
    ActivationState: (run_pb2.Activation.State.DESCRIPTOR, "STATE_"),
    ActivationKind: (run_pb2.Activation.Kind.DESCRIPTOR, "KIND_"),
    ChildrenMode: (run_pb2.ChildrenWait.Mode.DESCRIPTOR, "MODE_"),
    Recovery: (run_pb2.Recovery.DESCRIPTOR, "RECOVERY_"),
    ToolErrorPolicy: (run_pb2.ToolErrorPolicy.DESCRIPTOR, "TOOL_ERROR_POLICY_"),
    ToolCallState: (executor_service_pb2.ToolCall.State.DESCRIPTOR, "STATE_"),
    ToolOutcome: (message_pb2.ToolResult.Outcome.DESCRIPTOR, "OUTCOME_"),
    InteractionState: (interaction_pb2.Interaction.State.DESCRIPTOR, "STATE_"),
    InteractionCloseReason: (
        interaction_pb2.Interaction.CloseReason.DESCRIPTOR,
        "CLOSE_REASON_",
    ),
    Verdict: (interaction_pb2.Decision.Verdict.DESCRIPTOR, "VERDICT_"),
    PauseReceipt: (session_service_pb2.PauseReceipt.DESCRIPTOR, "PAUSE_RECEIPT_"),
    RestoreOutcome: (
        session_service_pb2.RestoreRunResponse.Outcome.DESCRIPTOR,
        "OUTCOME_",
    ),
    MessageRole: (message_pb2.Message.Role.DESCRIPTOR, "ROLE_"),
    MessageAuthor: (message_pb2.Message.Author.DESCRIPTOR, "AUTHOR_"),
    MediaKind: (message_pb2.Media.Kind.DESCRIPTOR, "KIND_"),
    DeltaKind: (event_pb2.Delta.Kind.DESCRIPTOR, "KIND_"),
    Durability: (server_service_pb2.GetServerInfoResponse.Durability.DESCRIPTOR, "DURABILITY_"),
}


def _numbers(descriptor: EnumDescriptor, prefix: str) -> dict[str, int]:
    return {
        value.name.removeprefix(prefix).lower(): value.number
        for value in descriptor.values
        if value.number
    }


_NUMBERS: Final[dict[type[StrEnum], dict[str, int]]] = {
    kind: _numbers(*source) for kind, source in _SOURCES.items()
}
_MEMBERS: Final[dict[type[StrEnum], dict[int, StrEnum]]] = {
    kind: {number: kind(word) for word, number in words.items() if word in set(kind)}
    for kind, words in _NUMBERS.items()
}
_EVENT_NUMBERS: Final[dict[str, int]] = {
    kind.value: event_pb2.Event.Type.Value(f"TYPE_{kind.name}")
    for kinds in (SessionEventKind, SubmissionEventKind, RunEventKind)
    for kind in kinds
}
_EVENT_KINDS: Final[dict[int, EventKind]] = {
    _EVENT_NUMBERS[kind.value]: kind
    for kinds in (SessionEventKind, SubmissionEventKind, RunEventKind)
    for kind in kinds
}


def member(kind: type[_E], number: int) -> _E:
    """Returns the member for a number of the contract; `UNKNOWN` for one that is new."""
    return kind(_MEMBERS[kind].get(number, "unknown"))


def optional_member(kind: type[_E], number: int) -> _E | None:
    """Returns the member, or None for zero, which stands for an unset field."""
    return member(kind, number) if number else None


def number_of(kind: type[_E], word: str) -> int:
    """Returns the number of a word.

    Raises:
        ValueError: The word is none of this enum.
    """
    try:
        return _NUMBERS[kind][word]
    except KeyError:
        words = ", ".join(_NUMBERS[kind])
        name = re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).lower()
        raise ValueError(f"{word!r} is no {name}; there are {words}") from None


def event_kind(number: int) -> EventKind | None:
    """Returns the kind of an event type; None for one that this client does not know."""
    return _EVENT_KINDS.get(number)


def event_type(kind: str) -> int:
    """Returns the number of an event kind, given as member or as its dotted words.

    Raises:
        ValueError: There is no such kind.
    """
    try:
        return _EVENT_NUMBERS[kind]
    except KeyError:
        raise ValueError(f"{kind!r} is no kind of event") from None
