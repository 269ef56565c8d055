"""Runs, what they use and are started with, and their tool calls, as frozen models."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field

from runlane._content import Block, Message, Record, text_of
from runlane._enums import (
    ActivationKind,
    ActivationState,
    ChildrenMode,
    Recovery,
    RunFailureReason,
    RunPhase,
    RunPosition,
    StopReason,
    ToolCallState,
    ToolErrorPolicy,
    ToolOutcome,
)
from runlane._interactions import Interaction


class Usage(Record):
    """What a run, or a step of it, has used.

    Attributes:
        model_steps_reserved: Model steps reserved; only of a run.
        model_steps_committed: Model steps committed; only of a run.
        input_tokens: Tokens read by the model.
        output_tokens: Tokens written by the model.
        cached_input_tokens: Of the input tokens, those read from the provider's cache.
        reasoning_tokens: Of the output tokens, those spent on reasoning.
        tool_calls: Tool calls that model steps asked for; only of a run.
        cost_usd_micros: Cost in millionths of a US dollar; of a run with that of its summaries.
        compaction_input_tokens: Tokens read for summaries; only of a run, and in no budget.
        compaction_output_tokens: Tokens written as summaries; only of a run.
    """

    model_steps_reserved: int = 0
    model_steps_committed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    tool_calls: int = 0
    cost_usd_micros: int = 0
    compaction_input_tokens: int = 0
    compaction_output_tokens: int = 0


class RunOptions(Record):
    """What a run is started with; unset fields take the defaults of session and server.

    Attributes:
        agent: The name that executors poll for.
        model: The model that the executor should use.
        max_model_steps: Model steps that may be reserved: 1 to 10,000.
        max_tool_calls: Tool calls of all model steps; a step with more than are left ends
            the run. None, and 0: as many as come.
        max_total_tokens: Input and output tokens of all model steps.
        max_cost_usd_micros: Cost of all model steps in millionths of a US dollar.
        max_duration: Seconds from the creation of the run to its deadline.
        interaction_timeout: Seconds that an interaction without an expiry of its own stays
            open; None: for ever.
        start_timeout: Seconds that the run waits for its first executor; None: for ever.
        tools: Names of the tools that the run may use; None: all of its agent's.
        tool_timeout: Seconds that a tool may run; None: as the tool says.
        tool_error_policy: What happens when a tool fails or a person says no, a
            `ToolErrorPolicy` or its word; None: `return_to_model`.
        recovery: What happens when its lease runs out, a `Recovery` or its word; None:
            `auto`.
        max_recoveries: Recoveries without progress between them: 0 to 100.
        cancel_grace: Seconds that an executor may take to settle the run after a request
            to cancel it: 0 to 600.
        request_options: A JSON object that the executor hands to the model.
    """

    agent: str | None = None
    model: str | None = None
    max_model_steps: int | None = Field(default=None, ge=1)
    max_tool_calls: int | None = Field(default=None, ge=0)
    max_total_tokens: int | None = Field(default=None, ge=0)
    max_cost_usd_micros: int | None = Field(default=None, ge=0)
    max_duration: float | None = Field(default=None, gt=0)
    interaction_timeout: float | None = Field(default=None, gt=0)
    start_timeout: float | None = Field(default=None, gt=0)
    tools: tuple[str, ...] | None = None
    tool_timeout: float | None = Field(default=None, ge=0)
    tool_error_policy: ToolErrorPolicy | None = None
    recovery: Recovery | None = None
    max_recoveries: int | None = Field(default=None, ge=0)
    cancel_grace: float | None = Field(default=None, ge=0)
    request_options: Mapping[str, Any] | None = None


class Activation(Record):
    """One executor's turn at advancing a run.

    Attributes:
        activation_id: Its id.
        epoch: Attempt in the run, from 1.
        kind: Why the turn is taken.
        state: Whether an executor has it.
        executor_id: The executor that has it; empty while it waits.
    """

    activation_id: str
    epoch: int
    kind: ActivationKind
    state: ActivationState
    executor_id: str


class RunFailure(Record):
    """What made a run fail.

    Attributes:
        reason: What kind of failure it was.
        message: Text for people.
        retryable: Whether the same input may well succeed later.
    """

    reason: RunFailureReason
    message: str
    retryable: bool


class ParentRun(Record):
    """Where a child run comes from.

    Attributes:
        run_id: The run that started it.
        session_id: The session of that run.
        tool_call_id: The tool call that it is the answer to.
        depth: Parents above it, from 1.
    """

    run_id: str
    session_id: str
    tool_call_id: str
    depth: int


class ChildrenWait(Record):
    """The child runs that a run waits for.

    Attributes:
        mode: How many of them have to end.
        run_ids: They.
    """

    mode: ChildrenMode
    run_ids: tuple[str, ...]


class Run(Record):
    """One logical task started by one input.

    Attributes:
        run_id: Its id.
        session_id: The session it belongs to.
        agent: The name that executors poll for.
        phase: Whether it lives.
        attempt: The epoch of the newest activation.
        activation: The newest activation; None once the run is terminal.
        position: Where in its loop it stands.
        options: What it was started with; empty in the answer of a mutating call.
        usage: What it has used.
        submission_id: The submission that started it.
        input_preview: The first 200 characters of its input.
        cancelling: Whether its cancellation was requested.
        cancel_reason: The reason that was given for it.
        pause_requested: Whether a pause was asked for and no boundary has taken it yet.
        stalled: Whether its lease ran out under recovery `manual`: it waits to be restored.
        recoveries: Recoveries since its last progress.
        interaction_id: The interaction that it waits for; None unless it waits for one.
        waiting_children: The child runs that it waits for; None unless it does.
        parent: Where it comes from, where it is a child run.
        ending_cause: What it will end with once its child runs have; None unless it is ending.
        live_child_count: Child runs of it that have not ended.
        deadline_time: When it ends for want of time; None: never.
        stop_reason: Why it ended; None while it lives.
        cause: What ended it, where the stop reason is `outcome_unknown`.
        failure: What went wrong, where it failed.
        output_message_number: Number of the message that is its answer; None without one.
        output_json: JSON that its executor gave as its result; empty means none.
        message_cutoff: Number of the session's last message when it ended.
        create_time: When it was created.
        end_time: When it ended.
    """

    run_id: str
    session_id: str
    agent: str
    phase: RunPhase
    attempt: int
    activation: Activation | None
    position: RunPosition | None
    options: RunOptions
    usage: Usage
    submission_id: str
    input_preview: str
    cancelling: bool
    cancel_reason: str
    pause_requested: bool
    stalled: bool
    recoveries: int
    interaction_id: str | None
    waiting_children: ChildrenWait | None
    parent: ParentRun | None
    ending_cause: StopReason | None
    live_child_count: int
    deadline_time: datetime | None
    stop_reason: StopReason | None
    cause: StopReason | None
    failure: RunFailure | None
    output_message_number: int | None
    output_json: str
    message_cutoff: int | None
    create_time: datetime | None
    end_time: datetime | None

    @property
    def terminal(self) -> bool:
        """Whether it has ended."""
        return self.phase is RunPhase.TERMINAL

    @property
    def stopped(self) -> bool:
        """Whether nothing goes on: it waits for an answer, is paused, or has ended.

        One that waits for child runs goes on: they do.
        """
        if self.waiting_children is not None or self.ending_cause is not None:
            return False
        return self.phase in {RunPhase.WAITING, RunPhase.PAUSED, RunPhase.TERMINAL}


class RunResult(Record):
    """A run that ended, and its answer; or one that stopped, and what it waits for.

    Attributes:
        run: The run.
        output: The message that is its answer; None where it has none.
        interaction: The open interaction that it waits for, or that a child run of it does;
            None unless an answer is waited for.
    """

    run: Run
    output: Message | None
    interaction: Interaction | None = None

    @property
    def phase(self) -> RunPhase:
        """Whether it ended, waits, or is paused."""
        return self.run.phase

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self.run.run_id

    @property
    def session_id(self) -> str:
        """The id of its session."""
        return self.run.session_id

    @property
    def stop_reason(self) -> StopReason:
        """Why it ended; `unknown` where it has not."""
        return self.run.stop_reason or StopReason.UNKNOWN

    @property
    def failure(self) -> RunFailure | None:
        """What went wrong, where it failed."""
        return self.run.failure

    @property
    def text(self) -> str:
        """The text of its answer; empty where it ended without one."""
        return self.output.text if self.output else ""


class ToolCall(Record):
    """One call that the model asked for, and how far it got.

    Attributes:
        tool_call_id: Its id in the run.
        run_id: The run.
        step: The model step that asked for it.
        ordinal: Place in its batch, from 1.
        name: The tool.
        arguments_json: The arguments as JSON; empty where they are malformed.
        state: How far it got.
        idempotent: Whether it was claimed as one that may be run again.
        child_run_id: The child run that will answer it, or has; None: there is none.
        outcome: What became of it; None until it is committed.
        content: Its result.
        create_time: When its step was committed.
        settle_time: When it reached its end.
    """

    tool_call_id: str
    run_id: str
    step: int
    ordinal: int
    name: str
    arguments_json: str
    state: ToolCallState
    idempotent: bool
    child_run_id: str | None
    outcome: ToolOutcome | None
    content: tuple[Block, ...]
    create_time: datetime | None
    settle_time: datetime | None

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments; empty where they are malformed."""
        return json.loads(self.arguments_json) if self.arguments_json else {}

    @property
    def text(self) -> str:
        """The text blocks of the result, joined."""
        return text_of(self.content)
