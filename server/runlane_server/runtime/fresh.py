"""Whether what a server remembers of a session is still what the store has.

Where other servers write too, an answer that writes nothing (a refusal, a no-op) must stand
on what is on disk after the call arrived. Calls that ask at the same time share a read.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from runlane_server.core.model import SessionKey

Read = Callable[[Sequence[SessionKey]], Awaitable[dict[SessionKey, bytes]]]

AT_ONCE = 1_000
"""Sessions in one read."""


class Fresh:
    """Reads tokens: one read at a time, and all that ask meanwhile share the next."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._next: dict[SessionKey, asyncio.Future[bytes | None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def token(self, key: SessionKey) -> bytes | None:
        """Returns the token of a session, from a read that begins after this call.

        None: it is not there.
        """
        future = self._next.get(key)
        if future is None:
            future = self._next[key] = asyncio.get_running_loop().create_future()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        # The read is everybody's: one caller's cancellation does not end it.
        return await asyncio.shield(future)

    async def _run(self) -> None:
        while self._next:
            keys = list(self._next)[:AT_ONCE]
            asked = {key: self._next.pop(key) for key in keys}
            try:
                found = await self._read(keys)
            except Exception as error:  # noqa: BLE001 - told to each
                for future in asked.values():
                    future.set_exception(error)
                    future.exception()  # Nobody may be left to look.
            else:
                for key, future in asked.items():
                    future.set_result(found.get(key))
        self._task = None
