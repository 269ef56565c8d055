"""Slots: the hot states in memory, one a session.

Those used lately are kept, within limits. One that a call holds, or a write on its
way, is there as long as it is held, kept or not: so a session never has two slots
that are valid, and none is forgotten while something stands on it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Protocol
from weakref import WeakValueDictionary

from runlane_server.core.model import SessionKey, SessionState
from runlane_server.runtime.records import decode_state
from runlane_server.store.base import LoadedSession, Outcome

SLOT_BYTES = 1024
"""What a slot takes beside its state, roughly."""


class Unresolved(Protocol):
    """A write on its way."""

    async def outcome(self) -> Outcome:
        """Waits for its outcome."""


class Slot:
    """The hot state of a session: the newest decided, and whether it still stands."""

    __slots__ = (
        "__weakref__",
        "apart",
        "as_of",
        "first_token",
        "key",
        "last_write",
        "lease_confirmed",
        "lease_duration",
        "lease_expire_time",
        "size",
        "state",
        "token",
        "valid",
    )

    def __init__(
        self, key: SessionKey, state: SessionState | None, token: bytes | None, lease: int
    ) -> None:
        self.key = key
        self.state = state
        self.token = token
        self.lease_expire_time = lease
        self.lease_confirmed = True
        self.lease_duration = 0
        self.size = SLOT_BYTES
        self.valid = True
        self.last_write: Unresolved | None = None
        # When it was surely what the store has, on the loop's clock.
        self.as_of = 0.0
        # The number of the first token that was made for it here; 0: none was.
        self.first_token = 0
        # It is one transaction's own, and in no set.
        self.apart = False


def slot_of(key: SessionKey, loaded: LoadedSession | None) -> Slot:
    """Makes the slot of what the store has."""
    if loaded is None:
        return Slot(key, None, None, 0)
    slot = Slot(key, decode_state(loaded.state), loaded.token, loaded.lease_expire_time)
    slot.lease_confirmed = loaded.lease_confirmed
    slot.lease_duration = loaded.lease_duration
    slot.size += len(loaded.state)
    return slot


class Slots:
    """Gives a session its slot."""

    def __init__(
        self,
        load: Callable[[SessionKey], Awaitable[LoadedSession | None]],
        slots_max: int,
        bytes_max: int,
    ) -> None:
        """Makes an empty set.

        Args:
            load: Reads a session.
            slots_max: Slots that are kept.
            bytes_max: Their size, roughly.
        """
        self._load = load
        self._slots_max = slots_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[SessionKey, Slot] = OrderedDict()
        self._held: WeakValueDictionary[SessionKey, Slot] = WeakValueDictionary()
        self._loads: dict[SessionKey, asyncio.Task[Slot]] = {}
        self._late: set[SessionKey] = set()

    def __len__(self) -> int:
        """Returns how many are kept."""
        return len(self._kept)

    async def take(self, key: SessionKey) -> Slot:
        """Returns the slot of a session; it may fall before the caller goes on."""
        slot = self._kept.get(key)
        if slot is not None:
            self._kept.move_to_end(key)
            return slot
        slot = self._held.get(key)
        if slot is not None:
            self._keep(slot)
            return slot
        load = self._loads.get(key)
        if load is None:
            load = asyncio.get_running_loop().create_task(self._loaded(key))
            self._loads[key] = load
        # The load is everybody's: one caller's cancellation does not end it.
        return await asyncio.shield(load)

    def resize(self, slot: Slot, state_bytes: int) -> None:
        """Notes the size of a new state."""
        size = SLOT_BYTES + state_bytes
        if self._kept.get(slot.key) is slot:
            self._bytes += size - slot.size
        slot.size = size

    def drop(self, slot: Slot) -> None:
        """Ends a slot whose state fell: who holds it decides again from the store."""
        slot.valid = False
        if self._held.get(slot.key) is slot:
            del self._held[slot.key]
        if self._kept.get(slot.key) is slot:
            del self._kept[slot.key]
            self._bytes -= slot.size

    def heard(self, key: SessionKey, sequence: int) -> bool:
        """Lets go of what is older than an event that another server has committed.

        Returns:
            Whether that is news.
        """
        if key in self._loads:
            self._late.add(key)
        slot = self._held.get(key)
        if slot is None:
            return True
        if slot.state is not None and slot.state.sequence >= sequence:
            return False
        self.drop(slot)
        return True

    def doubt(self, key: SessionKey) -> None:
        """Lets go of a session's slot: it may be old, and is read anew."""
        self.heard(key, 2**62)

    def doubt_all(self) -> None:
        """Lets go of all slots."""
        for key in {*self._held, *self._loads}:
            self.doubt(key)

    async def _loaded(self, key: SessionKey) -> Slot:
        try:
            while True:
                self._late.discard(key)
                as_of = asyncio.get_running_loop().time()
                loaded = await self._load(key)
                if key not in self._late:
                    break
            slot = slot_of(key, loaded)
            slot.as_of = as_of
        finally:
            self._late.discard(key)
            del self._loads[key]
        self._held[key] = slot
        self._keep(slot)
        return slot

    def _keep(self, slot: Slot) -> None:
        """Keeps a slot, and lets go of those that were used longest ago."""
        self._kept[slot.key] = slot
        self._bytes += slot.size
        while len(self._kept) > 1 and (
            len(self._kept) > self._slots_max or self._bytes > self._bytes_max
        ):
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.size
