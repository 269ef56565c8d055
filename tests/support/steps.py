"""Commands as steps: each is made from the state that it meets."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from runlane.v1 import message_pb2
from runlane_server.core.commands import (
    AnswerInteraction,
    ClaimToolCalls,
    CloseSession,
    CommitModelStep,
    CommitRun,
    CommitToolResults,
    CreateSession,
    DeleteSession,
    Finish,
    FinishKind,
    InterruptRun,
    LeaseActivation,
    PauseRun,
    RecordCompaction,
    Release,
    ReopenSession,
    ReserveModelStep,
    RestoreRun,
    SettleRun,
    StartChildRun,
    Submit,
    Suspend,
    SuspendForChildren,
    ToolResult,
    UnpauseRun,
    Verdict,
    WithdrawSubmission,
)
from runlane_server.core.model import (
    Content,
    Failure,
    Fence,
    RunOptions,
    SessionRecord,
    SessionState,
    ToolUse,
    Usage,
)
from runlane_server.core.words import (
    ChildrenMode,
    Mode,
    OnMiss,
    PromptKind,
    RunFailure,
    StopReason,
    ToolOutcome,
)
from runlane_server.transport.content import input_content

SECOND = 1_000_000
LEASE = 30 * SECOND
UNCONFIRMED = 10 * SECOND
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
    """A command to come; `label` is its request_id, and names its input in what follows.

    With `passes` it is no command: so many microseconds go by, and what is due happens.
    With `on_child` neither: the steps are done on the session of a child run, counted from 0
    as they were started, and the parent is told.
    """

    make: Callable[[SessionState], Any]
    label: str = ""
    passes: int = 0
    on_child: "tuple[int, tuple[Step, ...]] | None" = None


def passes(microseconds: int) -> Step:
    """Time goes by."""
    return Step(lambda _: None, passes=microseconds)


def on_child(number: int, *steps: "Step") -> Step:
    """Something happens to a child run."""
    return Step(lambda _: None, on_child=(number, steps))


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


def answer(words: str = "answer") -> CommitModelStep:
    return CommitModelStep(text(words), Usage(10, 5, 1, 2, 100), "m-1", "stop")


def asks(*calls: str, malformed: str = "") -> CommitModelStep:
    """An answer that asks for calls."""
    step = answer("asks")
    step.content.tool_uses = tuple(
        ToolUse(call, "tool", None if call == malformed else "{}") for call in calls
    )
    return step


def claims(*calls: str, idempotent: bool = False) -> ClaimToolCalls:
    return ClaimToolCalls(calls, idempotent)


def results(*calls: str, outcome: ToolOutcome = ToolOutcome.OK) -> CommitToolResults:
    return CommitToolResults(tuple(ToolResult(one, outcome, text(f"did {one}")) for one in calls))


def question(*calls: str, kind: PromptKind = PromptKind.QUESTION, expire: int = 0) -> Suspend:
    return Suspend(kind, b"?", calls, expire)


def reply_to(state: SessionState, words: str = "yes", **other: Any) -> AnswerInteraction:
    """An answer that fits; a permission is given for `yes`, else refused."""
    wait, content = state.run.wait, text(words)
    asked = wait.tool_call_ids if wait.kind is PromptKind.PERMISSION else ()
    fits = AnswerInteraction(
        state.run.run_id,
        wait.interaction_id,
        wait.version,
        wait.kind,
        content.data,
        content.hash,
        tuple(Verdict(one, words == "yes", None if words == "yes" else content) for one in asked),
        result=content if wait.tool_call_ids and not asked else None,
    )
    return replace(fits, **other)


def reply(words: str = "yes", **other: Any) -> Step:
    """An answer that fits; where nothing is asked, one that names no interaction."""

    def make(state: SessionState) -> AnswerInteraction:
        if state.run is not None and state.run.wait is not None:
            return reply_to(state, words, **other)
        run_id = state.run.run_id if state.run is not None else "run_x"
        return AnswerInteraction(run_id, "int_x", 1, PromptKind.QUESTION, b"", b"")

    return Step(make)


def restore(*, force: bool = True, activation_id: str | None = None) -> Step:
    def make(state: SessionState) -> RestoreRun:
        run = state.run
        current = run.activation.activation_id if run is not None and run.activation else ""
        named = current if activation_id is None else activation_id
        return RestoreRun(run.run_id if run is not None else "run_x", named, force)

    return Step(make)


def settle(how: StopReason) -> Step:
    return Step(lambda s: SettleRun(s.run.run_id if s.run is not None else "run_x", how, "lost"))


def starts(call: str, **options: Any) -> StartChildRun:
    """A child run answers a call."""
    asked = RunOptions(**options) if options else None
    return StartChildRun(call, text(f"do {call}"), SessionRecord(), asked)


def compacts(through: int) -> RecordCompaction:
    """A summary of so many messages."""
    used = Usage(cost_usd_micros=7, compaction_input_tokens=30, compaction_output_tokens=3)
    return RecordCompaction(through, f"sum of {through}", used, "m-2")


RESERVE = ReserveModelStep()
ALL_CHILDREN = SuspendForChildren(ChildrenMode.ALL)
ANY_CHILD = SuspendForChildren(ChildrenMode.ANY)
create = Step(lambda _: CreateSession(SessionRecord(default_agent=AGENT)))
first = put("first", Mode.START)
reserve = commit(RESERVE)
beat = commit()
pause = Step(lambda _: PauseRun())
unpause = Step(lambda _: UnpauseRun())
close = Step(lambda _: CloseSession())
close_cancel = Step(lambda _: CloseSession(cancel_run=True))
reopen = Step(lambda _: ReopenSession())
delete = Step(lambda _: DeleteSession())
delete_force = Step(lambda _: DeleteSession(force=True))

# What happens to a child run.
child_ends = on_child(0, lease(), reserve, commit(answer("child"), outcome=COMPLETED))
child_fails = on_child(0, lease(), commit(outcome=FAILED))
child_asks = on_child(0, lease(), reserve, commit(outcome=question()))
child_is_answered = on_child(0, reply())
second_ends = on_child(1, lease(), reserve, commit(answer("second"), outcome=COMPLETED))
