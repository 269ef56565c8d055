"""What the machine decides fits the store: random commands on one session, row by row."""

import hashlib
import random
from dataclasses import replace

import pytest
from runlane_server.core.commands import (
    AnswerInteraction,
    ClaimToolCalls,
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
    Release,
    ReserveModelStep,
    RestoreRun,
    SettleRun,
    Submit,
    Suspend,
    ToolResult,
    UnpauseRun,
    Verdict,
)
from runlane_server.core.context import Context
from runlane_server.core.errors import NotLive, NotOpen, Refused
from runlane_server.core.machine import decide, decide_due
from runlane_server.core.model import (
    Content,
    Failure,
    Fence,
    Rules,
    RunLimits,
    RunOptions,
    SessionKey,
    SessionRecord,
    ToolUse,
    Usage,
)
from runlane_server.core.rows import MessageAppended, RunInserted, SubmissionInserted
from runlane_server.core.words import (
    ActivationState,
    InteractionState,
    Mode,
    OnMiss,
    Phase,
    PromptKind,
    Recovery,
    RunFailure,
    StopReason,
    ToolCallState,
    ToolErrorPolicy,
    ToolOutcome,
)
from runlane_server.store.base import Committed, CommitUnit, EventGroup, SessionCommit
from store_builders import fresh
from store_inside import inside

pytestmark = pytest.mark.asyncio

RULES = Rules(default_agent="main", backoff_first=5, backoff_max=50)
SETTLED = (ToolCallState.COMMITTED, ToolCallState.OUTCOME_UNKNOWN, ToolCallState.CANCELLED)


class Lane:
    """One session that is driven through the machine, and written as the engine does."""

    def __init__(self, store, seed):
        self.store, self.dice = store, random.Random(seed)
        self.key = SessionKey("default", fresh("ses"))
        self.state, self.token, self.now = None, None, 1_000
        self.lease, self.confirmed = 0, True
        self.runs = set()
        self.refused = 0

    # --- what happens --------------------------------------------------------

    async def act(self, make):
        """What is due comes first; then the command that is made of the state after it."""
        while self.state is not None and await self.decide(None):
            pass
        await self.decide(make())

    async def decide(self, command):
        """Decides and writes; False where nothing was written."""
        context = Context(
            self.key, self.now, self.lease, fresh, RULES, lease_confirmed=self.confirmed
        )
        try:
            decision = (
                decide_due(self.state, context)
                if command is None
                else decide(self.state, command, context)
            )
        except (Refused, NotLive, NotOpen):
            self.refused += 1
            return False
        if decision is None or decision.state is None:
            return False
        await self.write(decision)
        return True

    async def write(self, decision):
        state, encoded = decision.state, {}
        for index, row in enumerate(decision.rows):
            if isinstance(row, MessageAppended):
                whole = row.content.data if row.content is not None else b""
                whole = row.closer.text.encode() if row.closer is not None else whole
                encoded[index] = b"%d:" % row.number + whole
            elif isinstance(row, (RunInserted, SubmissionInserted)):
                encoded[index] = b"options"
                self.runs.add(row.run_id)
        token = fresh("tok").encode()
        group = None  # A commit may do no more than renew its lease.
        if decision.events:
            group = EventGroup(decision.events[0].sequence, state.sequence, b"events")
        commit = SessionCommit(
            self.key,
            self.token,
            token,
            b"state",
            state.status,
            state.run.run_id if state.run is not None else "",
            state.update_time,
            group,
            decision.rows,
            encoded,
        )
        assert await self.store.commit([CommitUnit([commit])]) == [Committed()], decision.rows
        self.state, self.token = state, token
        if decision.lease_expire_time is not None:
            self.lease, self.confirmed = decision.lease_expire_time, decision.lease_confirmed

    def content(self, uses=()):
        data = self.dice.randbytes(self.dice.choice([0, 1, 40, 5_000]))
        return Content(data, len(data), hashlib.sha256(data).digest(), "", uses)

    def command(self):
        """Something that may happen now; often what the run is waiting for."""
        dice, state = self.dice, self.state
        run = state.run
        outside = [
            self.submit,
            self.submit,
            InterruptRun,
            PauseRun,
            UnpauseRun,
            lambda: None,
        ]
        if run is None:
            return self.submit()
        activation = run.activation
        current = activation.activation_id if activation is not None else ""
        outside.append(lambda: RestoreRun(run.run_id, current, force=dice.random() < 0.5))
        outside.append(lambda: SettleRun(run.run_id, StopReason.FAILED, "by hand"))
        if dice.random() < 0.15:
            return dice.choice(outside)()
        if run.wait is not None:
            if dice.random() < 0.75:
                return self.answer(run)
            self.now = max(self.now, run.wait.expire_time)
            return dice.choice([None, InterruptRun()])
        if activation is None:
            return UnpauseRun()
        if activation.state is ActivationState.QUEUED:
            self.now = max(self.now, run.not_before)
            return LeaseActivation(current, "x1", 300)
        if activation.state is ActivationState.ABANDONED:
            return RestoreRun(run.run_id, current)
        if dice.random() < 0.08:
            self.now = max(self.now, self.lease)
            return None
        return self.turn(run, Fence(state.session_id, run.run_id, current, activation.epoch))

    def submit(self):
        dice = self.dice
        mode = dice.choice(list(Mode))
        options = RunOptions(
            agent="main",
            limits=RunLimits(
                max_model_steps=dice.choice([2, 20]),
                max_tool_calls=dice.choice([0, 12]),
                max_duration=dice.choice([0, 0, 300]),
                interaction_timeout=dice.choice([0, 40]),
                start_timeout=dice.choice([0, 200]),
            ),
            tool_error_policy=dice.choice(
                [*[ToolErrorPolicy.RETURN_TO_MODEL] * 3, ToolErrorPolicy.STOP]
            ),
            recovery=dice.choice(list(Recovery)),
            max_recoveries=1,
            cancel_grace=100,
        )
        return Submit(
            self.content(),
            mode,
            on_miss=dice.choice(list(OnMiss)),
            options=None if mode is Mode.STEER else options,
        )

    def answer(self, run):
        wait, dice = run.wait, self.dice
        verdicts = ()
        if wait.kind is PromptKind.PERMISSION:
            verdicts = tuple(
                Verdict(one, approve, None if approve else self.content())
                for one in wait.tool_call_ids
                for approve in (dice.random() < 0.7,)
            )
        outcome = dice.choice([ToolOutcome.OK, ToolOutcome.ERROR])
        return AnswerInteraction(
            run.run_id,
            wait.interaction_id,
            wait.version,
            wait.kind,
            b"an answer",
            b"#" * 32,
            verdicts,
            outcome,
            self.content(),
        )

    def turn(self, run, fence):
        dice = self.dice
        operations, outcome = [], None
        prepared = [c.tool_call_id for c in run.calls if c.state is ToolCallState.PREPARED]
        claimed = [c.tool_call_id for c in run.calls if c.state is ToolCallState.CLAIMED]
        if run.calls and dice.random() < 0.35 and not claimed:
            kind = dice.choice([PromptKind.PERMISSION, PromptKind.QUESTION])
            most = len(prepared) if kind is PromptKind.PERMISSION else 1
            outcome = Suspend(kind, b"prompt", tuple(prepared[:most]), dice.choice([0, 30]))
        elif dice.random() < 0.05:
            outcome = Release()
        elif run.calls and prepared and dice.random() < 0.5:
            some = dice.sample(prepared, dice.randint(1, len(prepared)))
            operations = [ClaimToolCalls(tuple(some), idempotent=dice.random() < 0.5)]
        elif run.calls:
            some = dice.sample(claimed, dice.randint(0, len(claimed))) or prepared[-1:]
            results = [
                ToolResult(one, self.outcome(one in claimed), self.content()) for one in some
            ]
            operations = [CommitToolResults(tuple(results))]
        elif run.reserved_step:
            uses = tuple(
                ToolUse(
                    fresh("call"), "tool", dice.choice([*["{}", '"' + "x" * 999 + '"'] * 3, None])
                )
                for _ in range(dice.choice([0, 3, 5]))
            )
            operations = [CommitModelStep(self.content(uses), Usage(1, 1))]
            if not uses and dice.random() < 0.5:
                outcome = Finish(FinishKind.COMPLETED)
        elif dice.random() < 0.8:
            operations = [ReserveModelStep()]
        else:
            failed = dice.random() < 0.5
            outcome = Finish(
                FinishKind.FAILED if failed else FinishKind.COMPLETED,
                failure=Failure(RunFailure.EXECUTOR_ERROR) if failed else None,
            )
        return CommitRun(fence, operations, outcome, 300)

    def outcome(self, claimed):
        rejected = [ToolOutcome.ERROR, ToolOutcome.REJECTED]
        return self.dice.choice(
            [*rejected, ToolOutcome.OK, ToolOutcome.OK] if claimed else rejected
        )

    # --- what must be in the store then --------------------------------------

    async def compare(self):
        store, state, run = self.store, self.state, self.state.run
        assert await store.check() == []
        loaded = await store.load(self.key)
        live = await store.live(self.key, 1_000, 10**9, 10**6)
        activation = run.activation if run is not None else None
        leased = activation is not None and activation.state is ActivationState.LEASED
        assert loaded.lease_expire_time == (self.lease if leased else 0)
        assert not leased or loaded.lease_confirmed is self.confirmed
        queued = [(one.activation_id, one.not_before) for one in await store.queued_activations()]
        waits = activation is not None and activation.state is ActivationState.QUEUED
        assert queued == ([(activation.activation_id, run.not_before)] if waits else [])
        assert len(live.messages) == state.message_count
        assert len(live.pending) == len(state.steers) + len(state.next_runs)
        wait = run.wait if run is not None else None
        inbox = await store.list_interactions("default", "", InteractionState.OPEN, None, 9)
        assert live.interactions == inbox
        assert [one.interaction_id for one in inbox] == ([wait.interaction_id] if wait else [])
        stalled = [one.run_id for one in await store.list_stalled_runs("default", None, 9)]
        lost = activation is not None and activation.state is ActivationState.ABANDONED
        assert stalled == ([run.run_id] if lost else [])
        if run is None:
            assert live.run is None
            return
        assert (live.run.run_id, live.run.phase) == (run.run_id, run.phase)
        rows = await store.list_tool_calls("default", run.run_id, (run.steps_committed, 0), 99)
        for row, call in zip(rows, run.calls, strict=False):
            assert (row.tool_call_id, row.ordinal, row.state, row.outcome) == (
                call.tool_call_id,
                call.ordinal,
                call.state,
                call.outcome or 0,
            )
            claimed = call.state is ToolCallState.CLAIMED
            assert not claimed or row.idempotent is call.idempotent
            assert bool(row.settle_time) is (call.state in SETTLED)
        assert len(run.calls) in {0, len(rows)}

    async def compare_ended(self):
        """Each call of an ended run has its one result message, in order."""
        whole = {row.data for row in await self.store.messages(self.key, 1, 10**6, 10**6, 10**9)}
        for run_id in self.runs:
            row = await self.store.run("default", run_id)
            if row is None or row.phase is not Phase.TERMINAL:
                continue
            calls = await self.store.list_tool_calls("default", run_id, None, 10**6)
            assert all(call.state in SETTLED and call.result in whole for call in calls)
            numbers = [int(call.result.partition(b":")[0]) for call in calls]
            assert numbers == sorted(set(numbers))


SEEDS = {"sqlite": 20, "memory": 20, "postgres": 8}
"""On PostgreSQL each statement is a way to another process."""


@pytest.mark.parametrize(
    ("store", "seed"),
    [(store, seed) for store, count in SEEDS.items() for seed in range(count)],
    indirect=["store"],
)
async def test_random_commands_leave_a_store_that_says_what_the_state_says(store, seed):
    lane = Lane(store, seed)
    await lane.act(lambda: CreateSession(SessionRecord()))
    for _ in range(80):
        lane.now += lane.dice.randint(1, 10)
        await lane.act(lane.command)
        await lane.compare()
    await lane.compare_ended()
    assert lane.refused < 40
    live = replace(lane.state).run
    await lane.act(lambda: DeleteSession(force=True))
    assert await store.check() == []
    assert await store.list_interactions("default", "", InteractionState.OPEN, None, 9) == []
    assert await store.list_stalled_runs("default", None, 9) == []
    assert live is None or await store.run("default", live.run_id) is None
    while not await store.sweep(lane.key, 50):
        pass
    for table in ("tool_calls", "interactions", "queued", "leases", "long_arguments", "timers", "runs"):  # fmt: skip
        assert await inside(store, table) == 0, table
