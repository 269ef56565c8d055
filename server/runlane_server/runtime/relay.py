"""Deltas between servers: from the one that an executor gives them to, to those that read them.

Where nobody reads deltas on another server nothing is written. Where somebody does, that
server says so now and then; then the newest states of blocks are written beside commits, a few
times a second, and taken over there. All of it is best effort, as deltas are.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterable

import msgspec
import structlog

from runlane_server.core.model import Delta, SessionKey, SessionState
from runlane_server.runtime.bus import Bus, Hub, PartialBlock
from runlane_server.runtime.engine import Engine
from runlane_server.runtime.records import decode_state
from runlane_server.store.base import Shared, SharedBlock
from runlane_server.store.errors import StoreError, told

BEAT_SECONDS = 0.1
"""How often blocks are written; each of them once a beat at most."""

BEAT_BYTES = 256 * 1024
"""Text that one beat writes; what does not fit waits for the next. One block always fits."""

LOOK_BYTES = 1024 * 1024
"""Text that one look reads."""

EAGER_SECONDS = 5.0
"""How long a word that somebody reads deltas stands."""

FORGET_SECONDS = 600
"""After this a block of a server that is gone is removed."""

EAGER, PUT = "eager", "deltas"
"""Words to other servers: somebody here reads deltas; there are new ones."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Delta).decode

log = structlog.get_logger(__name__)

Name = tuple[SessionKey, str, int]
Seen = tuple[int, int, bool]


class Relay:
    """Gives what is published here to other servers, and takes in what they have."""

    def __init__(self, shared: Shared, engine: Engine, bus: Bus) -> None:
        self._shared = shared
        self._engine = engine
        self._bus = bus
        self._server = uuid.uuid4().hex
        self._eager_until = 0.0
        self._forget_at = 0.0
        self._dirty: dict[SessionKey, None] = {}
        self._written: dict[Name, Seen] = {}
        self._wanted: Counter[SessionKey] = Counter()
        self._taken: dict[SessionKey, int] = {}
        self._wake = asyncio.Event()

    # --- what is published here ----------------------------------------------

    def published(self, key: SessionKey) -> None:
        """Takes note that blocks of a session have moved."""
        self._dirty[key] = None
        self._wake.set()

    async def run(self) -> None:
        """Writes, for ever, a beat at a time."""
        while True:
            await self._wake.wait()
            try:
                await self.beat()
            except StoreError as error:
                log.debug("deltas are not passed on", error=told(error))
            if not self._dirty and not self._written:
                self._wake.clear()
            await asyncio.sleep(BEAT_SECONDS)

    async def beat(self) -> None:
        """Writes what is new, and removes what is over."""
        now = asyncio.get_running_loop().time()
        new: dict[Name, Seen] = {}
        blocks: list[SharedBlock] = []
        if now < self._eager_until:
            blocks = self._new(new)
        else:
            self._dirty.clear()
        gone = [name for name in self._written if not self._is_on_its_way(name)]
        if not blocks and not gone:
            return
        forget = 0
        if now >= self._forget_at:
            self._forget_at = now + FORGET_SECONDS / 10
            forget = self._engine.clock.now() - FORGET_SECONDS * 1_000_000
        for name in gone:
            del self._written[name]
        self._written |= new
        named = [SharedBlock(*name) for name in gone]
        await self._shared.put_blocks(self._server, blocks, named, forget)
        if blocks:
            self._shared.tell(PUT)

    def _is_on_its_way(self, name: Name) -> bool:
        hub = self._bus.find(name[0])
        return hub is not None and name[1:] in hub.blocks

    def _new(self, new: dict[Name, Seen]) -> list[SharedBlock]:
        """Returns what is not written yet, as much as a beat takes."""
        found: list[SharedBlock] = []
        size = 0
        while self._dirty and size < BEAT_BYTES:
            key = next(iter(self._dirty))
            del self._dirty[key]
            hub = self._bus.find(key)
            for (stream, index), block in hub.blocks.items() if hub is not None else ():
                name = (key, stream, index)
                seen = (block.last.revision, len(block.text), block.last.block_done)
                if self._written.get(name) == seen:
                    continue
                new[name] = seen
                size += len(block.text)
                found.append(SharedBlock(key, stream, index, _encode(_state_of(block))))
        return found

    # --- what is read here -----------------------------------------------------

    def want(self, key: SessionKey) -> None:
        """Begins to take in what others have of a session."""
        self._wanted[key] += 1
        self._taken.setdefault(key, 0)
        self._shared.tell(EAGER)
        self._shared.hear(PUT)

    def unwant(self, key: SessionKey) -> None:
        """Ends what `want` began."""
        self._wanted[key] -= 1
        if not self._wanted[key]:
            del self._wanted[key]
            del self._taken[key]

    async def heard(self, words: set[str], *, whole: bool) -> None:
        """Acts on what other servers told; with `whole` also on what may have been lost."""
        now = asyncio.get_running_loop().time()
        if EAGER in words:
            if now >= self._eager_until:
                # What came before somebody read it is not written yet.
                self._dirty |= dict.fromkeys(self._bus.sessions_with_blocks())
                self._wake.set()
            self._eager_until = now + EAGER_SECONDS
        if whole and self._wanted:
            self._shared.tell(EAGER)
        if self._wanted and (PUT in words or whole):
            await self.look()

    async def doubt(self, keys: Iterable[SessionKey]) -> None:
        """Drops blocks whose model step is over, of sessions that another server has moved."""
        for key in keys:
            hub = self._bus.find(key)
            before = list(hub.blocks.values()) if hub is not None else []
            if hub is None or not before:
                continue
            state = (await self._engine.peek(key)).state
            over = [one for one in before if state is None or not _is_current(state, one.last)]
            self._bus.drop_blocks(key, over)
            if state is not None and hub.blocks:
                hub.since = max(hub.since, state.sequence)

    async def look(self) -> None:
        """Takes in what others have of the sessions that are read here."""
        for found in await self._shared.blocks(self._server, dict(self._taken), LOOK_BYTES):
            hub = self._bus.find(found.key)
            state = decode_state(found.state)
            delta = _decode(found.data)
            if found.key not in self._taken or hub is None or hub.newest > state.sequence:
                continue  # It may be over already; if not, there will be more of it.
            self._taken[found.key] = max(self._taken[found.key], found.put_time)
            if _is_current(state, delta):
                _give(hub, delta, state.sequence)


def _state_of(block: PartialBlock) -> Delta:
    """Returns a block as one piece that needs no other."""
    last = block.last
    return Delta(
        last.model_stream_id,
        last.run_id,
        last.activation_id,
        last.step,
        last.block_index,
        last.kind,
        0,
        last.revision,
        snapshot_text=block.text,
        block_done=last.block_done,
    )


def _is_current(state: SessionState, delta: Delta) -> bool:
    """Tells whether a piece is of the model step that its session's run is in."""
    run = state.run
    if run is None or run.activation is None:
        return False
    return (run.model_stream_id, run.activation.activation_id) == (
        delta.model_stream_id,
        delta.activation_id,
    )


def _give(hub: Hub, delta: Delta, sequence: int) -> None:
    """Gives a hub the newest state of a block: what is new of it, where it knows the rest."""
    name = (delta.model_stream_id, delta.block_index)
    known, text = hub.blocks.get(name), delta.snapshot_text or ""
    if known is not None:
        if known.last.revision >= delta.revision and known.last.block_done >= delta.block_done:
            return
        if text.startswith(known.text):
            delta.base_revision = known.last.revision
            delta.append_text, delta.snapshot_text = text[len(known.text) :], None
    hub.take_deltas([delta], sequence)
