"""The words of the domain that are one of a few: states, reasons, kinds.

Numbers equal those of the protos (`runlane.v1`); a test holds them together.
"""

from enum import IntEnum


class SessionStatus(IntEnum):
    """Whether a session takes input."""

    OPEN = 1
    CLOSED = 2


class Mode(IntEnum):
    """What the caller asked to be done with an input."""

    START = 1
    AUTO = 2
    QUEUE = 3
    STEER = 4
    FOLLOW_UP = 5
    REPLACE = 6


class Route(IntEnum):
    """What was done with an input."""

    RUN = 1
    STEER = 2
    FOLLOW_UP = 3


class SubmissionState(IntEnum):
    """How far an input has come; all but PENDING are ends."""

    PENDING = 1
    DELIVERED = 2
    FAILED = 3
    WITHDRAWN = 4


class OnMiss(IntEnum):
    """What happens to a steer that misses its run."""

    FAIL = 1
    FOLLOW_UP = 2


class SubmissionFailure(IntEnum):
    """Why an input failed."""

    TARGET_TERMINAL = 1
    TARGET_CANCELLING = 2
    START_FAILED = 3
    SESSION_CLOSED = 4


class Phase(IntEnum):
    """Whether a run lives."""

    ACTIVE = 1
    WAITING = 2
    PAUSED = 3
    TERMINAL = 4


class Position(IntEnum):
    """Where in its loop a run stands."""

    BEFORE_MODEL = 1
    TOOL_BATCH = 2
    OUTCOME_READY = 3


class StopReason(IntEnum):
    """Why a run ended."""

    COMPLETED = 1
    FAILED = 2
    CANCELLED = 3
    DEADLINE_EXCEEDED = 4
    INTERACTION_EXPIRED = 5
    BUDGET_EXHAUSTED = 6
    OUTCOME_UNKNOWN = 7


class RunFailure(IntEnum):
    """What kind of failure ended a run."""

    NO_EXECUTOR = 1
    LEASE_EXPIRED = 2
    RECOVERY_EXHAUSTED = 3
    TOOL_FAILED = 4
    MODEL_UNAVAILABLE = 5
    MODEL_REFUSED = 6
    EXECUTOR_ERROR = 7


class ActivationKind(IntEnum):
    """Why an executor's turn is taken."""

    START = 1
    CONTINUE = 2
    RECOVER = 3


class ActivationState(IntEnum):
    """Whether an executor has the activation; ABANDONED: of a stalled run."""

    QUEUED = 1
    LEASED = 2
    ABANDONED = 3


class EndReason(IntEnum):
    """The act of its executor that ended an activation."""

    FINISHED = 1
    RELEASED = 2
    SUSPENDED = 3
    PAUSED = 4
    BUDGET_EXHAUSTED = 5
    TOOL_FAILED = 6


class AbandonReason(IntEnum):
    """What ended an activation without an act of its executor."""

    CANCELLED = 1
    GRACE_EXPIRED = 2
    LEASE_EXPIRED = 3
    UNCONFIRMED = 4
    DEADLINE_EXCEEDED = 5
    PAUSED = 6
    RESTORED = 7
    NO_EXECUTOR = 8
    SETTLED = 9


class Role(IntEnum):
    """Whose turn a message is."""

    USER = 1
    ASSISTANT = 2
    TOOL = 3


class Author(IntEnum):
    """How a message came to be."""

    INPUT = 1
    STEER = 2
    MODEL = 3
    TOOL = 4
    CLOSER = 5


class ToolCallState(IntEnum):
    """How far a tool call got."""

    PREPARED = 1
    CLAIMED = 2
    COMMITTED = 3
    OUTCOME_UNKNOWN = 4
    CANCELLED = 5


class ToolOutcome(IntEnum):
    """What became of a tool call."""

    OK = 1
    ERROR = 2
    REJECTED = 3
    CANCELLED = 4
    UNKNOWN = 5


class ToolErrorPolicy(IntEnum):
    """What happens when a tool fails or a person says no."""

    RETURN_TO_MODEL = 1
    STOP = 2


class Recovery(IntEnum):
    """What happens when a lease runs out and nothing stands in the way of going on."""

    AUTO = 1
    MANUAL = 2


class PromptKind(IntEnum):
    """What kind of question a run waits for."""

    PERMISSION = 1
    QUESTION = 2
    FORM = 3
    EXTERNAL = 4


class ChildrenMode(IntEnum):
    """How many of its child runs a run waits for."""

    ANY = 1
    ALL = 2


class NoticeKind(IntEnum):
    """What one session has to tell another; each is applied in a commit of its own."""

    CHILD = 1
    """To a parent: its child run asks, asks no more, or has ended."""
    CANCEL = 2
    """To a child: its parent is being cancelled, or is ending."""
    DELETE = 3
    """To a child: its parent's session was deleted."""


class InteractionState(IntEnum):
    """Whether an interaction waits for an answer."""

    OPEN = 1
    ANSWERED = 2
    CLOSED = 3


class InteractionClose(IntEnum):
    """Why an interaction ended without an answer."""

    RUN_ENDED = 1
    EXPIRED = 2


class Command(IntEnum):
    """What a client may ask of a session; the words of `allowed_commands`."""

    START = 1
    AUTO = 2
    QUEUE = 3
    STEER = 4
    FOLLOW_UP = 5
    REPLACE = 6
    INTERRUPT = 7
    WITHDRAW = 8
    CLOSE = 9
    REOPEN = 10
    DELETE = 11
    PAUSE = 12
    UNPAUSE = 13
    RESTORE = 14
    ANSWER = 15


class Rank(IntEnum):
    """Order of the next-run queue; FIFO within a rank."""

    REPLACE = 1
    MOVED_STEER = 2
    FOLLOW_UP = 3


class TimerKind(IntEnum):
    """Durable timers of a session; at most one of a kind."""

    GRACE = 1
    SWEEP = 2
    DEADLINE = 3
    INTERACTION = 4
    START_TIMEOUT = 5


class DeltaKind(IntEnum):
    """What block a delta is of."""

    TEXT = 1
    REASONING = 2
