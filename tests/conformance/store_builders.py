"""Commits as the engine makes them, built by hand: a session with a counter for each number."""

import itertools
from dataclasses import dataclass, field
from typing import Any

from runlane_server.core.model import Content, RunOptions, SessionKey, SessionRecord, Usage
from runlane_server.core.rows import (
    ActivationDequeued,
    ActivationQueued,
    Closer,
    InteractionInserted,
    InteractionSettled,
    LeaseDropped,
    LeasePut,
    MessageAppended,
    RunEnded,
    RunInserted,
    RunMoved,
    SessionInserted,
    SubmissionInserted,
    SubmissionSettled,
    ToolCallInserted,
    ToolCallMoved,
)
from runlane_server.core.words import (
    Author,
    InteractionClose,
    InteractionState,
    Mode,
    Phase,
    PromptKind,
    Role,
    Route,
    SessionStatus,
    StopReason,
    SubmissionState,
    ToolCallState,
    ToolOutcome,
)
from runlane_server.store.base import (
    CommitUnit,
    EventGroup,
    RequestKey,
    RequestRecord,
    SessionCommit,
)

OPTIONS = RunOptions(agent="main")
_serial = itertools.count(1)


def fresh(prefix: str) -> str:
    """Ids that grow, as UUIDv7 does, and are as long."""
    return f"{prefix}_{next(_serial):08x}-0000-7000-8000-000000000000"


def content(data: bytes, preview: str = "") -> Content:
    return Content(data, len(data), b"h" * 32, preview)


def request(
    session_id: str = "", method: str = "Submit", request_id: str = "", time: int = 1
) -> RequestRecord:
    key = RequestKey("default", method, session_id, request_id or fresh("req"))
    return RequestRecord(key, b"#" * 32, b"answer " * 15, time)


@dataclass
class Scripted:
    """One session's next commits. `commit` takes what was gathered since the last one."""

    session_id: str = field(default_factory=lambda: fresh("ses"))
    namespace: str = "default"
    time: int = 1_000
    token: bytes | None = None
    sequence: int = 0
    messages: int = 0
    run_id: str = ""
    activation_id: str = ""
    submission_id: str = ""
    state: bytes = b"s" * 600
    rows: list[Any] = field(default_factory=list)
    encoded: dict[int, bytes] = field(default_factory=dict)
    update_time: int = 0

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.namespace, self.session_id)

    def add(self, row: Any, encoded: bytes | None = None) -> "Scripted":
        if encoded is not None:
            self.encoded[len(self.rows)] = encoded
        self.rows.append(row)
        return self

    def commit(self, events: int = 1, size: int = 130, token: bytes | None = None) -> SessionCommit:
        group = None
        if events:
            first = self.sequence + 1
            self.sequence += events
            group = EventGroup(first, self.sequence, bytes([self.sequence % 251]) * (size * events))
        token = token or next(_serial).to_bytes(16, "big")
        made = SessionCommit(
            self.key,
            self.token,
            token,
            self.state,
            SessionStatus.OPEN,
            self.run_id,
            self.update_time or self.time,
            group,
            self.rows,
            self.encoded,
        )
        self.token = token
        self.rows, self.encoded = [], {}
        return made

    def unit(self, request: RequestRecord | None = None, **how: Any) -> CommitUnit:
        return CommitUnit([self.commit(**how)], request)

    # --- what happens to a session -------------------------------------------------

    def create(self, record: SessionRecord | None = None, time: int = 0) -> "Scripted":
        self.time = time or self.time
        return self.add(SessionInserted(record or SessionRecord(), self.time))

    def message(self, data: bytes, run_id: str = "") -> "Scripted":
        self.messages += 1
        row = MessageAppended(
            self.messages,
            run_id or self.run_id,
            Role.USER,
            Author.INPUT,
            self.time,
            submission_id=self.submission_id,
            content=content(data),
        )
        return self.add(row, data)

    def start(self, data: bytes = b"m" * 300, time: int = 0, run_id: str = "") -> "Scripted":
        """An input to an idle session."""
        self.time = time or self.time + 1
        self.run_id = run_id or fresh("run")
        self.submission_id = "sub_" + self.run_id[4:]
        self.activation_id = fresh("act")
        self.add(
            RunInserted(
                self.run_id,
                self.submission_id,
                "main",
                Mode.AUTO,
                self.time,
                self.sequence + 1,
                self.messages + 1,
                options=OPTIONS,
                preview="hello",
                request_id="r1",
            ),
            b"options " * 8,
        )
        self.message(data)
        return self.add(ActivationQueued(self.activation_id, self.run_id, "main", self.time, 0))

    def lease(
        self,
        executor: str = "x1",
        expire: int = 500,
        duration: int = 30,
        *,
        confirmed: bool = True,
    ) -> "Scripted":
        self.add(ActivationDequeued(self.activation_id))
        return self.add(
            LeasePut(
                self.activation_id,
                self.run_id,
                1,
                "main",
                executor,
                duration,
                expire,
                confirmed=confirmed,
            )
        )

    def end(self, reason: StopReason = StopReason.COMPLETED, **rest: Any) -> "Scripted":
        self.time += 1
        self.add(LeaseDropped(self.activation_id)).add(ActivationDequeued(self.activation_id))
        values: dict[str, Any] = {
            "failure": None,
            "cancellation": None,
            "output_json": "",
            "output_message_number": 0,
            "cause": None,
            "tool_calls": 0,
            **rest,
        }
        self.add(
            RunEnded(
                run_id=self.run_id,
                stop_reason=reason,
                end_time=self.time,
                last_sequence=self.sequence + 1,
                attempt=1,
                message_cutoff=self.messages,
                digest=b"d" * 32,
                usage=Usage(1, 2),
                steps_reserved=2,
                steps_committed=1,
                **values,
            )
        )
        self.run_id = self.activation_id = ""
        return self

    def queue(self, data: bytes, route: Route = Route.FOLLOW_UP, run_id: str = "") -> str:
        self.time += 1
        submission_id = fresh("sub")
        self.add(
            SubmissionInserted(
                submission_id,
                run_id or fresh("run"),
                Mode.QUEUE,
                route,
                content(data, "queued"),
                OPTIONS,
                "r2",
                self.time,
            ),
            b"queued options",
        )
        return submission_id

    def deliver(self, submission_id: str, prefix: bytes, run_id: str = "") -> "Scripted":
        """A queued input becomes a message; with `run_id`, that of its own run."""
        self.messages += 1
        if run_id:
            self.time += 1
            self.run_id = run_id
            self.add(
                RunInserted(
                    run_id,
                    submission_id,
                    "main",
                    Mode.QUEUE,
                    self.time,
                    self.sequence + 1,
                    self.messages,
                    from_submission=True,
                )
            )
        self.add(
            MessageAppended(
                self.messages,
                self.run_id,
                Role.USER,
                Author.STEER,
                self.time,
                submission_id=submission_id,
            ),
            prefix,
        )
        return self.add(
            SubmissionSettled(
                submission_id, SubmissionState.DELIVERED, self.time, message_number=self.messages
            )
        )

    # --- runs that wait ------------------------------------------------------------

    def hold(self, phase: Phase, *, stalled: bool = False) -> "Scripted":
        """The run has no activation from then on, or one that is lost."""
        self.add(LeaseDropped(self.activation_id)).add(ActivationDequeued(self.activation_id))
        return self.add(RunMoved(self.run_id, phase, stalled))

    def go_on(self, not_before: int = 0) -> "Scripted":
        self.activation_id = fresh("act")
        self.add(RunMoved(self.run_id, Phase.ACTIVE, stalled=False))
        return self.add(
            ActivationQueued(self.activation_id, self.run_id, "main", self.time, not_before)
        )

    def calls(self, step: int, *arguments: str | None) -> "Scripted":
        """A batch that is open; one call for each of the arguments."""
        for ordinal, one in enumerate(arguments, 1):
            call_id = f"call_{step}_{ordinal}"
            self.add(ToolCallInserted(self.run_id, step, ordinal, call_id, "tool", one, self.time))
        return self

    def move_call(
        self,
        step: int,
        ordinal: int,
        state: ToolCallState,
        result: bytes | None = None,
        *,
        outcome: ToolOutcome | None = None,
        idempotent: bool = False,
    ) -> "Scripted":
        self.time += 1
        stored = content(result) if result is not None else None
        return self.add(
            ToolCallMoved(self.run_id, step, ordinal, state, idempotent, outcome, self.time, stored)
        )

    def result(
        self,
        step: int,
        ordinal: int,
        encoded: bytes,
        *,
        stored: bool = False,
        closer: bool = False,
    ) -> "Scripted":
        """A call's result message: given at once, a closer's, or the stored one."""
        self.messages += 1
        place = (step, ordinal)
        row = MessageAppended(
            self.messages,
            self.run_id,
            Role.TOOL,
            Author.CLOSER if closer else Author.TOOL,
            self.time,
            step=step,
            content=None if stored or closer else content(encoded),
            closer=Closer("call", ToolOutcome.ERROR, "words") if closer else None,
            from_call=place if stored else None,
            call=place,
        )
        return self.add(row, encoded)

    def ask(self, step: int = 0, prompt: bytes = b"prompt", expire: int = 0) -> str:
        """The run waits for an answer; returns the interaction's id."""
        interaction_id = fresh("int")
        self.add(
            InteractionInserted(
                interaction_id,
                self.run_id,
                step,
                1,
                PromptKind.QUESTION,
                prompt,
                expire,
                self.time,
            )
        )
        self.hold(Phase.WAITING)
        return interaction_id

    def answer(self, interaction_id: str, answer: bytes = b"answer") -> "Scripted":
        self.time += 1
        self.add(
            InteractionSettled(
                interaction_id, InteractionState.ANSWERED, self.time, answer, b"#" * 32
            )
        )
        return self.go_on()

    def close_interaction(self, interaction_id: str) -> "Scripted":
        self.time += 1
        return self.add(
            InteractionSettled(
                interaction_id,
                InteractionState.CLOSED,
                self.time,
                reason=InteractionClose.RUN_ENDED,
            )
        )

    def fork(self, run_id: str, count: int, time: int = 0) -> "Scripted":
        """A new session with the first `count` messages."""
        made = Scripted(namespace=self.namespace, time=time or self.time + 1, messages=count)
        return made.add(SessionInserted(SessionRecord(), made.time, self.session_id, run_id, count))
