"""Commands as steps: each is made from the state that it meets."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from runlane.v1 import message_pb2
from runlane_server.core.commands import (
    CloseSession,
    CommitModelStep,
    CommitRun,
    CreateSession,
    DeleteSession,
    Finish,
    FinishKind,
    InterruptRun,
    LeaseActivation,
    Release,
    ReopenSession,
    ReserveModelStep,
    Submit,
    WithdrawSubmission,
)
from runlane_server.core.model import (
    Content,
    Failure,
    Fence,
    Mode,
    OnMiss,
    RunFailure,
    SessionRecord,
    SessionState,
    ToolUse,
    Usage,
)
from runlane_server.transport.content import input_content

SECOND = 1_000_000
LEASE = 30 * SECOND
GRACE = 30 * SECOND
AGENT = "main"
COMPLETED = Finish(FinishKind.COMPLETED)
FAILED = Finish(FinishKind.FAILED, failure=Failure(RunFailure.EXECUTOR_ERROR, "broken"))
CANCELLED = Finish(FinishKind.CANCELLED)
RELEASE = Release()


def text(words: str) -> Content:
    """Content as a request brings it."""
    return input_content([message_pb2.Block(text=words)], {})


@dataclass(frozen=True)
class Step:
    """A command to come; `label` is its request_id, and names its input in what follows."""

    make: Callable[[SessionState], Any]
    label: str = ""


def put(label: str, mode: Mode, **how: Any) -> Step:
    """An input whose text is its label."""
    return Step(lambda _: Submit(text(label), mode, **how), label)


def steer(label: str, *, moves: bool = False) -> Step:
    on_miss = OnMiss.FOLLOW_UP if moves else OnMiss.FAIL
    return put(label, Mode.STEER, on_miss=on_miss)


def aimed(label: str, mode: Mode) -> Step:
    """An input at exactly the live run."""
    return Step(lambda s: Submit(text(label), mode, target_run_id=s.run.run_id), label)


def withdraw(place: Callable[[SessionState], str]) -> Step:
    return Step(lambda s: WithdrawSubmission(place(s)))


def interrupt(reason: str = "") -> Step:
    return Step(lambda _: InterruptRun(reason=reason))


def lease(executor_id: str = "x1", duration: int = LEASE) -> Step:
    return Step(lambda s: LeaseActivation(s.run.activation.activation_id, executor_id, duration))


def fence_of(state: SessionState, **other: Any) -> Fence:
    activation = state.run.activation
    right = Fence(state.session_id, state.run.run_id, activation.activation_id, activation.epoch)
    return replace(right, **other)


def commit(*operations: Any, outcome: Any = None, **wrong: Any) -> Step:
    """A Commit under the right fence, but for what is said to be wrong with it."""
    return Step(lambda s: CommitRun(fence_of(s, **wrong), list(operations), outcome, LEASE))


def answer(words: str = "answer", *, tool: bool = False) -> CommitModelStep:
    content = text(words)
    content.tool_uses = (ToolUse("call", "tool", "{}"),) if tool else ()
    return CommitModelStep(content, Usage(10, 5, 1, 2, 100), "m-1", "stop")


RESERVE = ReserveModelStep()
create = Step(lambda _: CreateSession(SessionRecord(default_agent=AGENT)))
first = put("first", Mode.START)
reserve = commit(RESERVE)
close = Step(lambda _: CloseSession())
close_cancel = Step(lambda _: CloseSession(cancel_run=True))
reopen = Step(lambda _: ReopenSession())
delete = Step(lambda _: DeleteSession())
delete_force = Step(lambda _: DeleteSession(force=True))
