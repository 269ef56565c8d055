"""Pieces of an answer on their way to those who watch; best effort."""

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from runlane._calls import Caller
from runlane._enums import DeltaKind, number_of
from runlane._executor.model import ModelDelta
from runlane._retry import STREAM_DEADLINE
from runlane.errors import RunlaneError
from runlane.v1 import event_pb2, run_pb2
from runlane.v1 import executor_service_pb2 as pb

_LOG = logging.getLogger("runlane.executor")
# What comes within this many seconds goes out as one piece.
_COALESCE: Final = 0.05
# How long the end of a stream may hold up the commit that replaces it.
_FLUSH: Final = 0.25
# Characters a piece may have: at four bytes each it stays under 256 KiB.
_PIECE: Final = 64 * 1024


@dataclass(slots=True)
class _BlockState:
    kind: DeltaKind
    pending: str = ""
    revision: int = 0


class DeltaPublisher:
    """Publishes the deltas of one model step.

    Pieces are merged while an earlier one is on its way, so a slow connection costs
    watchers detail and never the model time. A failure ends the publishing of this step.
    """

    def __init__(self, caller: Caller, fence: run_pb2.Fence, stream_id: str, step: int) -> None:
        self._caller = caller
        self._fence = fence
        self._stream_id = stream_id
        self._step = step
        self._blocks: dict[int, _BlockState] = {}
        self._wake = asyncio.Event()
        self._finishing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def push(self, delta: ModelDelta) -> None:
        """Takes a piece; returns at once."""
        if not delta.text:
            return
        block = self._blocks.setdefault(delta.block_index, _BlockState(delta.kind))
        block.pending += delta.text
        self._wake.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def finish(self) -> None:
        """Sends what is left, for a moment at most; then nothing more is sent."""
        task = self._task
        if task is None:
            return
        self._finishing.set()
        self._wake.set()
        await asyncio.wait({task}, timeout=_FLUSH)
        await self.abandon()

    async def abandon(self) -> None:
        """Drops what is left."""
        task = self._task
        if task is None:
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait({task})

    async def _run(self) -> None:
        call: Any = None
        try:
            call = self._caller.stubs.executors.PublishDeltas(
                timeout=STREAM_DEADLINE, metadata=self._caller.metadata
            )
            await self._pump(call)
            await call.done_writing()
            await call
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, RunlaneError) as error:
            # Nothing is lost but what watchers would have seen early.
            _LOG.debug("deltas of step %d are not published: %s", self._step, type(error).__name__)
        finally:
            if call is not None:
                call.cancel()

    async def _pump(self, call: Any) -> None:
        first = True
        while True:
            await self._wake.wait()
            self._wake.clear()
            for deltas in self._take():
                fence = self._fence if first else None
                await call.write(pb.PublishDeltasRequest(fence=fence, deltas=deltas))
                first = False
            if self._finishing.is_set() and not self._wake.is_set():
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._finishing.wait(), _COALESCE)

    def _take(self) -> list[list[event_pb2.Delta]]:
        """Returns what is pending, as one frame for each round of pieces."""
        frames: list[list[event_pb2.Delta]] = []
        while frame := [
            self._piece(index, block) for index, block in self._blocks.items() if block.pending
        ]:
            frames.append(frame[:256])
        return frames

    def _piece(self, index: int, block: _BlockState) -> event_pb2.Delta:
        text, block.pending = block.pending[:_PIECE], block.pending[_PIECE:]
        block.revision += 1
        return event_pb2.Delta(
            model_stream_id=self._stream_id,
            run_id=self._fence.run_id,
            activation_id=self._fence.activation_id,
            step=self._step,
            block_index=index,
            kind=event_pb2.Delta.Kind.ValueType(number_of(DeltaKind, block.kind)),
            base_revision=block.revision - 1,
            revision=block.revision,
            append_text=text,
        )
