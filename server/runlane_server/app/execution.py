"""Use cases of executors: poll, drain, heartbeat, watch, commit, context, deltas."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from runlane_server.app.base import UseCase, request_of, run_view
from runlane_server.app.contexts import plan_context, read_small
from runlane_server.app.control import external_token
from runlane_server.app.views import (
    ActivationControl,
    Caller,
    CommitView,
    LeasedView,
    PollView,
    Result,
)
from runlane_server.core.answers import Answer, CommitAnswer, DrainAnswer, LeaseAnswer
from runlane_server.core.commands import (
    CommitRun,
    LeaseActivation,
    RecordCompaction,
    Release,
    StartChildRun,
    Suspend,
)
from runlane_server.core.context import Context, Decision
from runlane_server.core.errors import NotRead, Reason, Refused
from runlane_server.core.execution import holds
from runlane_server.core.machine import decide_with_child
from runlane_server.core.model import Delta, Fence, SessionKey, SessionState
from runlane_server.core.words import PromptKind, Role
from runlane_server.runtime.dispatch import Waiting
from runlane_server.runtime.engine import Plan, plan
from runlane_server.runtime.records import decode_answer, encode_answer
from runlane_server.store.base import (
    Committed,
    CommitUnit,
    Duplicate,
    LeaseRenewal,
    MessageRow,
    RequestKey,
    RequestRecord,
    SummaryRow,
    ToolCallRow,
)
from runlane_server.store.errors import StoreError, StoreUnavailable

T = TypeVar("T")

READS_MAX = 5
"""Times that a commit is read for again, since more was appended meanwhile."""

LEASED_BYTES = 4 * 1024 * 1024
"""What is read of calls, and of answers, for the answer to a poll."""

FRAME_MESSAGES = 256
FRAME_BYTES = 1024 * 1024


class Execution(UseCase):
    """Commands and reads of executors."""

    async def poll(
        self,
        caller: Caller,
        executor_id: str,
        agents: Sequence[str],
        wait: float,
        lease_duration: int,
        context_bytes_max: int,
    ) -> PollView:
        """Waits for an activation of one of the agents, `wait` seconds at most, and leases it.

        A call that is cancelled while it waits leases nothing.
        """
        services, namespace = self.services, caller.namespace
        request = request_of(caller, executor_id)
        known = await self._lease_known(caller, request, context_bytes_max)
        if known is not None:
            return known
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        dispatch, looked = services.dispatch, False
        executor = dispatch.seen(namespace, executor_id, agents, services.clock.now())
        executor.polling += 1
        try:
            if services.follower is not None and not executor.met:
                # It may have been drained on another server.
                await services.follower.meet()
            while True:
                if (namespace, executor_id) in dispatch.drained:
                    return PollView(draining=True)
                if services.draining:
                    return PollView()
                waiting = dispatch.take(namespace, agents)
                if waiting is not None:
                    command = LeaseActivation(waiting.activation_id, executor_id, lease_duration)
                    view = await self._take(
                        caller, waiting, command, executor_id, context_bytes_max
                    )
                    if view is not None:
                        return view
                    continue
                left = end - loop.time()
                if left <= 0 and services.follower is not None and not looked:
                    # Who waits is fed; who does not has not been yet.
                    looked = True
                    await services.follower.feed(namespace, agents)
                    continue
                if left <= 0:
                    # An earlier call of the same request_id may have waited beside this one.
                    known = await self._lease_known(caller, request, context_bytes_max)
                    return known or PollView()
                await dispatch.wait(namespace, agents, left)
        finally:
            executor.polling -= 1
            executor.last_poll_time = services.clock.now()

    async def drain_executor(self, caller: Caller, executor_id: str) -> Result[DrainAnswer]:
        """Takes no more activations to an executor."""
        services = self.services
        name = (caller.namespace, executor_id)
        if services.follower is not None:
            await services.follower.meet()
        answer = DrainAnswer(services.dispatch.leased_by(*name))
        unit = CommitUnit(drained_executor=name)
        request = request_of(caller, executor_id)
        if request is not None:
            unit.request = RequestRecord(
                request, caller.request_hash, encode_answer(answer), services.clock.now()
            )
        outcome = await services.engine.write(unit)
        if isinstance(outcome, Duplicate):
            if outcome.record.hash != caller.request_hash:
                raise Refused(Reason.REQUEST_ID_REUSED, request_id=caller.request_id)
            stored = decode_answer(outcome.record.answer)
            if isinstance(stored, DrainAnswer):
                return Result(stored, replayed=True)
        if not isinstance(outcome, Committed):
            raise StoreUnavailable("an executor could not be drained")
        services.dispatch.drained.add(name)
        services.dispatch.wake_all()
        return Result(answer, replayed=False)

    async def heartbeat(
        self, caller: Caller, fence: Fence, lease_duration: int
    ) -> ActivationControl:
        """Renews a lease; it ends `lease_duration` from now, also where that is sooner."""
        key = SessionKey(caller.namespace, fence.session_id)
        await self._expect_session(key)
        renewal = LeaseRenewal(fence.activation_id, fence.epoch, lease_duration, 0)
        try:
            state = await self.services.engine.renew(
                key, lambda state: _holds(state, fence), renewal
            )
        except Refused as refusal:
            refusal.metadata["run_id"] = fence.run_id
            raise
        return _control(state, renewal.expire_time)

    async def watch_activation(
        self, caller: Caller, fence: Fence
    ) -> AsyncIterator[ActivationControl]:
        """Gives the control of an activation: at once, then at each change, until it ends."""
        services = self.services
        key = SessionKey(caller.namespace, fence.session_id)
        await self._expect_fence(key, fence)
        subscription = services.bus.subscribe(key)
        last: ActivationControl | None = None
        try:
            while True:
                state, lease_expire_time = await services.engine.settled(key)
                if state is None or not _holds(state, fence):
                    yield ActivationControl(ended=True)
                    return
                control = _control(state, lease_expire_time)
                if (
                    last is None
                    or control.cancel_requested != last.cancel_requested
                    or control.pause_requested != last.pause_requested
                ):
                    yield control
                last = control
                if services.draining:
                    raise Refused(Reason.STREAM_ENDED)
                await subscription.moved()
                subscription.take_tick()
        finally:
            services.bus.unsubscribe(subscription)

    async def commit(self, caller: Caller, command: CommitRun) -> CommitView:
        """Commits facts of an executor, all or none, and renews its lease."""
        services, fence = self.services, command.fence
        key = SessionKey(caller.namespace, fence.session_id)
        state = (await services.engine.peek(key)).state
        if state is None or not _holds(state, fence):
            # Another server may have leased it.
            state, _ = await services.engine.settled(key)
        actor = caller.actor
        if state is not None and state.run is not None and holds(state.run, fence):
            activation = state.run.activation
            actor = f"executor:{activation.executor_id if activation is not None else ''}"
        answer, replayed = await self._committed(caller, key, command, actor)
        assert isinstance(answer, CommitAnswer)  # noqa: S101 - the method is in the key
        delivered: list[MessageRow] = []
        if answer.delivered:
            delivered = await services.store.messages_by_number(key, answer.delivered)
        lost, control = False, self._control_after(answer)
        if replayed:
            state, lease_expire_time = await services.engine.settled(key)
            lost = state is None or not _holds(state, fence)
            control = (
                ActivationControl(ended=True)
                if lost or state is None
                else _control(state, lease_expire_time)
            )
        token = ""
        opened = command.outcome
        asked = isinstance(opened, Suspend) and opened.kind is PromptKind.EXTERNAL
        if answer.interaction_id and asked:
            secret = services.store.info.secret
            token = external_token(secret, key.namespace, answer.interaction_id)
        return CommitView(answer, delivered, control, lost, replayed, token)

    async def _committed(
        self, caller: Caller, key: SessionKey, command: CommitRun, actor: str
    ) -> tuple[Answer, bool]:
        services = self.services
        request = request_of(caller, command.fence.activation_id)
        work = plan(key, command, actor, request, caller.request_hash)
        if any(isinstance(one, StartChildRun) for one in command.operations):
            child = SessionKey(caller.namespace, services.new_id("ses"))

            def choose(
                states: list[SessionState | None], contexts: list[Context]
            ) -> Sequence[Decision]:
                return decide_with_child(states[0], states[1], command, contexts[0], contexts[1])

            work = Plan(
                (key, child), choose, actor, request, caller.request_hash, trace=caller.trace
            )
        summaries = [one for one in command.operations if isinstance(one, RecordCompaction)]
        for _ in range(READS_MAX):
            for one in summaries:
                rows = await services.store.messages_by_number(key, [one.through + 1])
                one.next_role = Role(services.codec.role(rows[0].data)) if rows else None
            with suppress(NotRead):
                return await services.engine.execute(work)
        raise StoreUnavailable("a commit could not be decided: its session changed all the time")

    async def model_context(
        self, caller: Caller, fence: Fence, after: int
    ) -> AsyncIterator[SummaryRow | bytes | int]:
        """Gives what the model is to see that a reader has not seen.

        A summary where there is one to be told, frames of messages, then the number of the
        last one.
        """
        services = self.services
        key = SessionKey(caller.namespace, fence.session_id)
        state, _ = await services.engine.settled(key)
        wanted = plan_context(_fenced(state, fence), after)
        if wanted.summary_through:
            summary = await services.store.summary(key, wanted.summary_through)
            if summary is None:
                raise Refused(Reason.STALE_ACTIVATION, run_id=fence.run_id)
            yield summary
        for number in wanted.anchors:
            # Each in a frame of its own: a message may nearly fill one.
            rows = await services.store.messages_by_number(key, [number])
            yield services.codec.message_batch([row.data for row in rows])
        last, number = wanted.last, wanted.after
        while number < last:
            rows = await services.store.messages(key, number + 1, last, FRAME_MESSAGES, FRAME_BYTES)
            if not rows:
                raise Refused(Reason.STALE_ACTIVATION, run_id=fence.run_id)
            yield services.codec.message_batch([row.data for row in rows])
            number = rows[-1].number
        yield last

    async def publish_deltas(self, caller: Caller, fence: Fence, deltas: Sequence[Delta]) -> int:
        """Passes pieces to those who watch; those of a request that is over are dropped."""
        key = SessionKey(caller.namespace, fence.session_id)
        state = await self._expect_fence(key, fence)
        run = state.run
        stream = run.model_stream_id if run is not None else ""
        current = [one for one in deltas if stream and one.model_stream_id == stream]
        for delta in current:
            # What a reader is told comes from the fence, not from the piece.
            delta.run_id, delta.activation_id = fence.run_id, fence.activation_id
        taken = self.services.bus.take_deltas(key, current, state.sequence) if current else 0
        if taken and self.services.relay is not None:
            self.services.relay.published(key)
        return taken

    async def _take(
        self,
        caller: Caller,
        waiting: Waiting,
        command: LeaseActivation,
        executor_id: str,
        context_bytes_max: int,
    ) -> PollView | None:
        """Leases; where the caller goes meanwhile, others get what it would have been given."""

        async def take() -> PollView | None:
            result = await self._lease(caller, waiting, command, executor_id)
            if result is None:
                return None
            return await self._leased(
                caller.namespace, result.answer, context_bytes_max, replayed=result.replayed
            )

        taking = self._in_background(take())
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._in_background(self._give_back(caller, taking))
            raise

    async def _give_back(self, caller: Caller, taking: "asyncio.Task[PollView | None]") -> None:
        """Releases what was leased for a caller that has gone."""
        # A failure to lease has put it back already; one to release leaves it to its lease.
        with suppress(Refused, StoreError):
            view = await taking
            if view is not None and view.leased is not None and not view.replayed:
                fence = view.leased.fence
                key = SessionKey(caller.namespace, fence.session_id)
                command = CommitRun(fence, [], Release("the poll was cancelled"))
                await self.services.engine.execute(plan(key, command, "server"))

    def _in_background(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Begins work that goes on whatever becomes of the call."""
        task = asyncio.create_task(work)
        self.services.background.add(task)
        task.add_done_callback(self.services.background.discard)
        return task

    async def _lease(
        self, caller: Caller, waiting: Waiting, command: LeaseActivation, executor_id: str
    ) -> Result[LeaseAnswer] | None:
        """Leases what was taken from the index; None: it waits no longer."""
        actor = f"executor:{executor_id}"
        request = request_of(caller, executor_id)
        try:
            answer, replayed = await self.services.engine.execute(
                plan(waiting.key, command, actor, request, caller.request_hash)
            )
        except Refused as refusal:
            if refusal.reason is Reason.STALE_ACTIVATION:
                return None
            self.services.dispatch.put_back(waiting)
            raise
        except BaseException:
            # Cancelled or failed: if it was leased all the same, the next to take it is told
            # that it waits no longer.
            self.services.dispatch.put_back(waiting)
            raise
        assert isinstance(answer, LeaseAnswer)  # noqa: S101 - the method is in the key
        if replayed and answer.fence.activation_id != waiting.activation_id:
            self.services.dispatch.put_back(waiting)
        return Result(answer, replayed)

    async def _lease_known(
        self, caller: Caller, request: RequestKey | None, context_bytes_max: int
    ) -> PollView | None:
        """Returns what an earlier call of the same request_id has leased."""
        if request is None:
            return None
        answer = await self.services.engine.answered(request, caller.request_hash)
        if answer is None:
            return None
        return await self._leased(caller.namespace, answer, context_bytes_max, replayed=True)

    async def _leased(
        self, namespace: str, answer: object, context_bytes_max: int, *, replayed: bool
    ) -> PollView:
        """Returns what an executor needs to go on with a run."""
        assert isinstance(answer, LeaseAnswer)  # noqa: S101 - the method is in the key
        key = SessionKey(namespace, answer.fence.session_id)
        for _ in range(READS_MAX):
            state, lease_expire_time = await self.services.engine.settled(key)
            lost = state is None or not _holds(state, answer.fence)
            view = await self._leased_view(key, answer.fence, state, context_bytes_max)
            if state is not None and not lost:
                view.control = _control(state, lease_expire_time)
                # It was read in pieces: a child run that ended between them would part what
                # the model is to see from the calls that are open.
                now, _ = await self.services.engine.settled(key)
                if now is None or _seen(now) != _seen(state):
                    continue
            return PollView(view, fence_lost=lost, sequence=answer.sequence, replayed=replayed)
        raise StoreUnavailable("a lease could not be read: its session changed all the time")

    async def _leased_view(
        self, key: SessionKey, fence: Fence, state: SessionState | None, context_bytes_max: int
    ) -> LeasedView:
        """Reads what goes with a lease; of one that is lost the run alone."""
        store = self.services.store
        row = await store.run(key.namespace, fence.run_id)
        if row is None:
            raise Refused(Reason.RUN_NOT_FOUND)
        control = ActivationControl(ended=True)
        view = LeasedView(fence, run_view(row), 0, [], [], None, control)
        if state is None or state.run is None or not _holds(state, fence):
            return view
        view.trace = state.run.trace
        view.reserved_step, step = state.run.reserved_step, state.run.steps_committed
        small = await read_small(
            store, key, plan_context(state, 0), FRAME_MESSAGES, context_bytes_max
        )
        if small is not None:
            view.summary, view.context = small
        if state.run.calls:
            view.calls = await self._open_calls(
                key.namespace, fence.run_id, step, len(state.run.calls)
            )
        view.answered = await store.answered_interactions(
            key.namespace, fence.run_id, step, LEASED_BYTES
        )
        return view

    async def _open_calls(
        self, namespace: str, run_id: str, step: int, count: int
    ) -> list[ToolCallRow]:
        """Reads all calls of a batch; results beyond some bytes in all are left out."""
        calls: list[ToolCallRow] = []
        while len(calls) < count:
            more = await self.services.store.list_tool_calls(
                namespace, run_id, (step, len(calls)), count - len(calls), LEASED_BYTES
            )
            if not more:
                break
            if calls:
                for row in more:
                    row.result = b""
            calls += more
        return calls

    async def _expect_session(self, key: SessionKey) -> None:
        state = (await self.services.engine.peek(key)).state
        if state is None or state.deleted:
            _present((await self.services.engine.settled(key))[0])

    async def _expect_fence(self, key: SessionKey, fence: Fence) -> SessionState:
        """Returns the newest decided state; a refusal stands on what is on disk."""
        state = (await self.services.engine.peek(key)).state
        if state is None or not _holds(state, fence):
            state, _ = await self.services.engine.settled(key)
        return _fenced(state, fence)

    def _control_after(self, answer: CommitAnswer) -> ActivationControl:
        if not answer.lease_expire_time:
            return ActivationControl(ended=True)
        cancellation = answer.run.cancellation
        return ActivationControl(
            cancellation is not None,
            cancellation.grace_expire_time if cancellation is not None else 0,
            answer.run.pause_requested,
            answer.lease_expire_time,
        )


def _seen(state: SessionState) -> tuple[object, ...]:
    """Returns what the answer to a poll is read from beside the run itself."""
    calls = state.run.calls if state.run is not None else []
    return state.message_count, state.compacted_through, [call.state for call in calls]


def _present(state: SessionState | None) -> SessionState:
    if state is None or state.deleted:
        raise Refused(Reason.RUN_NOT_FOUND)
    return state


def _fenced(state: SessionState | None, fence: Fence) -> SessionState:
    present = _present(state)
    if not _holds(present, fence):
        raise Refused(Reason.STALE_ACTIVATION, run_id=fence.run_id)
    return present


def _holds(state: SessionState, fence: Fence) -> bool:
    return state.run is not None and holds(state.run, fence)


def _control(state: SessionState, lease_expire_time: int) -> ActivationControl:
    cancellation = state.run.cancellation if state.run is not None else None
    return ActivationControl(
        cancellation is not None,
        cancellation.grace_expire_time if cancellation is not None else 0,
        state.run is not None and state.run.pause_requested,
        lease_expire_time,
    )
