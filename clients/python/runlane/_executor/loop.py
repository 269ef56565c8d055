"""The executor: polls for activations and runs each in a task."""

import asyncio
import contextlib
import logging
import os
import re
import socket
from collections.abc import Iterable, Mapping
from typing import Final, Self
from uuid import uuid4

import grpc

from runlane._client import Client
from runlane._executor.activation import ActivationTask
from runlane._executor.model import Agent
from runlane._executor.toolbox import Toolbox
from runlane._ids import new_request_id
from runlane._retry import delay
from runlane._time import to_duration
from runlane.errors import RunlaneError, ServiceError, TransportError
from runlane.v1 import executor_service_pb2 as pb

_LOG = logging.getLogger("runlane.executor")

# Contexts up to this size come with the lease; larger ones are streamed.
_CONTEXT_BYTES: Final = 1024 * 1024
# Seconds that a poll may still take once the server was told to give nothing more.
_LAST_POLL: Final = 5.0
# Polls in a row that reach nobody, before that is told: the first may meet the end of a connection.
_MISSED: Final = 2
# Failures that a later poll may not meet: the server, the store or the network.
_PASSING: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.DATA_LOSS,
    }
)


class Executor:
    """Runs agents: leases activations, asks models and commits what they answer.

    Use it in the background, or as the main thing of a process:

        async with Executor(client, Agent("echo", model=Echo())):
            ...

        await Executor(client, agents).run()

    A restart of the server is survived, and leases go on over it; where no server answers the
    log of `runlane.executor` says so once, and when one does again. An error of a model ends
    its run and nothing else.

    Args:
        client: The client to call with.
        agents: What to run: one agent, several, or a mapping of names to agents, which
            names them anew.
        executor_id: Names this process; None: its host, its process id and something
            random. Two executors never share one, and one that was drained is not used
            again.
        concurrency: Activations at a time.
        lease_duration: Seconds that a lease lasts without a sign of life: 5 to 600.
        poll_wait: Seconds that a poll waits for work: 0 to 300.

    Raises:
        ValueError: There is no agent, two have one name, two tools of one have, or a
            number is out of its range.
    """

    def __init__(
        self,
        client: Client,
        agents: Agent | Iterable[Agent] | Mapping[str, Agent],
        *,
        executor_id: str | None = None,
        concurrency: int = 8,
        lease_duration: float = 30.0,
        poll_wait: float = 20.0,
    ) -> None:
        if concurrency < 1:
            raise ValueError("concurrency is at least 1")
        self._caller = client._caller  # noqa: SLF001 - one package, one connection
        self._agents = _by_name(agents)
        self._toolboxes = {name: Toolbox(agent) for name, agent in self._agents.items()}
        self._executor_id = executor_id or _default_id()
        self._lease = lease_duration
        self._poll_wait = poll_wait
        self._slots = asyncio.Semaphore(concurrency)
        self._work: dict[asyncio.Task[None], ActivationTask] = {}
        self._draining = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._background: asyncio.Task[None] | None = None
        # Polls that did not reach the server, in a row.
        self._missed = 0

    @property
    def executor_id(self) -> str:
        """What the server knows this executor as."""
        return self._executor_id

    @property
    def active_count(self) -> int:
        """Activations that it has now."""
        return len(self._work)

    async def run(self) -> None:
        """Polls and works until it is drained.

        Where the polls are refused for good, what runs is finished before this raises.
        Where this is cancelled, what runs is given back, for others to take at once.

        Raises:
            RunlaneError: The server refuses the polls, or a source of tools is away.
            RuntimeError: It runs already.
        """
        if self._poller is not None:
            raise RuntimeError("the executor runs already; make another one")
        poller = self._poller = asyncio.create_task(self._open_and_poll())
        try:
            await asyncio.wait({poller})
            error = None if poller.cancelled() else poller.exception()
            if error is not None and self._work:
                _LOG.error("no more is polled, what runs is finished: %s", error)
            # Whoever drains waits for it too, and whoever closes stops it.
            while self._work:
                await asyncio.wait(self._work)
            if error is not None:
                raise error
        finally:
            await self._stop(release=True)
            for toolbox in self._toolboxes.values():
                await toolbox.aclose()

    async def drain(self) -> None:
        """Takes no more activations, and returns when those it has are done.

        A server that cannot be told within 5 s, or refuses to hear it, is a warning in the log
        and no error: nothing more is taken all the same.
        """
        self._draining.set()
        try:
            await self._caller.unary(
                self._caller.stubs.executors.DrainExecutor,
                pb.DrainExecutorRequest(executor_id=self._executor_id),
                timeout=_LAST_POLL,
            )
        except RunlaneError as error:
            _LOG.warning(
                "the server at %s was not told of the drain, which goes on: %s",
                self._caller.target,
                error,
            )
        finally:
            await self._end_polling()
            while self._work:
                await asyncio.wait(self._work)

    async def aclose(self, *, release: bool = True) -> None:
        """Stops at once; idempotent.

        Args:
            release: Give back what runs, for others to take at once; else its leases run
                out, as if the process had died.

        Raises:
            RunlaneError: What ended the polling before, where that ran in the background.
        """
        self._draining.set()
        await self._stop(release=release)
        background, self._background = self._background, None
        if background is not None:
            if self._poller is None:
                # It has not begun; else it ends by itself now.
                background.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await background

    async def __aenter__(self) -> Self:
        self._background = asyncio.create_task(self.run())
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            await self.aclose()
        except RunlaneError:
            # What went wrong inside the block is the better account of it.
            if error is None:
                raise

    async def _stop(self, *, release: bool) -> None:
        if self._poller is not None and not self._poller.done():
            self._poller.cancel()
            await asyncio.wait({self._poller})
        for task, activation in self._work.items():
            activation.stop_gently(release=release)
            task.cancel()
        while self._work:
            await asyncio.wait(self._work)

    async def _end_polling(self) -> None:
        poller = self._poller
        if poller is None:
            return
        await asyncio.wait({poller}, timeout=_LAST_POLL)
        if not poller.done():
            # It leases nothing once its client has gone.
            poller.cancel()
            await asyncio.wait({poller})

    async def _open_and_poll(self) -> None:
        for toolbox in self._toolboxes.values():
            await toolbox.open()
        await self._poll_all()

    async def _poll_all(self) -> None:
        while not self._draining.is_set():
            if not await self._take_slot():
                return
            started = False
            try:
                leased = await self._poll()
                if leased is not None:
                    self._start(leased)
                    started = True
            finally:
                if not started:
                    self._slots.release()

    async def _take_slot(self) -> bool:
        """Waits for a free place; False where draining begins first."""
        slot = asyncio.ensure_future(self._slots.acquire())
        draining = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait({slot, draining}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            draining.cancel()
            if not slot.done():
                slot.cancel()
        return slot.done() and not slot.cancelled()

    async def _poll(self) -> pb.LeasedActivation | None:
        """Asks until there is an answer: the same request id gives the same lease."""
        request = pb.PollActivationRequest(
            executor_id=self._executor_id,
            agents=sorted(self._agents),
            wait_duration=to_duration(self._poll_wait),
            lease_duration=to_duration(self._lease),
            context_bytes_max=_CONTEXT_BYTES,
            request_id=new_request_id(),
        )
        failures = 0
        while True:
            try:
                answer = await self._caller.unary(
                    self._caller.stubs.executors.PollActivation, request, on_repeat=self._unreached
                )
            except (ServiceError, TransportError) as error:
                if error.code not in _PASSING:
                    raise
                failures += 1
                self._unreached(error)
                if isinstance(error, ServiceError):
                    _LOG.warning("the poll failed: %s", error)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._draining.wait(), delay(failures, error))
                if self._draining.is_set():
                    return None
                continue
            self._reached()
            if answer.draining:
                self._draining.set()
            if answer.fence_lost or not answer.HasField("activation"):
                return None
            leased: pb.LeasedActivation = answer.activation
            return leased

    def _unreached(self, error: RunlaneError) -> None:
        """Says that the server is away, once, and not of a connection that was cut alone."""
        if not isinstance(error, TransportError):
            return
        self._missed += 1
        if self._missed == _MISSED:
            _LOG.warning(
                "cannot reach the server at %s, and goes on trying: %s", self._caller.target, error
            )

    def _reached(self) -> None:
        if self._missed >= _MISSED:
            _LOG.info("the server at %s answers again", self._caller.target)
        self._missed = 0

    def _start(self, leased: pb.LeasedActivation) -> None:
        activation = ActivationTask(
            self._caller,
            leased,
            self._agents[leased.run.agent],
            self._toolboxes[leased.run.agent],
            lease_duration=self._lease,
        )
        task = asyncio.create_task(activation.run())
        self._work[task] = activation
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        del self._work[task]
        self._slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("an activation ended with an error", exc_info=error)


def _by_name(agents: Agent | Iterable[Agent] | Mapping[str, Agent]) -> dict[str, Agent]:
    if isinstance(agents, Mapping):
        named = dict(agents)
    else:
        listed = [agents] if isinstance(agents, Agent) else list(agents)
        named = {agent.name: agent for agent in listed}
        if len(named) != len(listed):
            raise ValueError("two agents have one name")
    if not named:
        raise ValueError("an executor needs an agent")
    return named


def _default_id() -> str:
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64].lstrip("._-")
    return f"{host or 'host'}-{os.getpid()}-{uuid4().hex[:12]}"
