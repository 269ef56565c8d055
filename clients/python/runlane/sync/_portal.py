"""The thread in which the async client runs, and the way there and back.

All blocking clients of a process share one thread with one event loop, which begins with the
first of them and ends with the process.
"""

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from typing import Any, Final, Generic, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Seconds that the end of the process waits for what is still being cancelled.
_PARTING: Final = 2.0
END: Final[Any] = object()
"""Stands for the end of an iterator: a future cannot hold StopIteration."""


class Portal:
    """Runs async functions in the thread of the event loop, for callers that block.

    Safe to use from all threads but one in which an event loop runs: that one would stand
    still, so it is refused. Not to be taken over a fork: the thread does not come along.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="runlane-sync", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def call(
        self,
        function: Callable[_P, Awaitable[_R]],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R:
        """Calls an async function and returns what it returns.

        An exception that interrupts the wait, such as KeyboardInterrupt, cancels the call,
        and is raised when that has ended.

        Raises:
            RuntimeError: An event loop runs in this thread, or the process was forked.
        """
        self._check()
        # The context of the caller goes along, so that a trace is not broken off.
        running = _Call(self._loop, lambda: function(*args, **kwargs))
        try:
            self._loop.call_soon_threadsafe(running.begin)
            return running.result.result()
        except BaseException:
            if not running.result.done():
                self._loop.call_soon_threadsafe(running.cancel)
                # A second interrupt ends this wait, too.
                with contextlib.suppress(Exception):
                    running.result.result()
            raise

    def make(self, function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Calls a plain function in the thread of the event loop.

        Raises:
            RuntimeError: An event loop runs in this thread, or the process was forked.
        """

        async def made() -> _R:
            return function(*args, **kwargs)

        return self.call(made)

    def iterate(
        self,
        function: Callable[_P, AsyncIterator[_R]],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> Generator[_R, None, None]:
        """Yields what an async iterator yields, and closes it at the end or where it is left."""
        source = function(*args, **kwargs)
        try:
            while (item := self.call(_following, source)) is not END:
                yield item
        finally:
            self.soon(getattr(source, "aclose", None))

    def soon(self, function: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
        """Has an async function called, and waits for nothing: also for finalizers.

        Those run in any thread, at any moment, and may hold what the loop waits for.
        """
        if function is None or self._pid != os.getpid():
            return
        # Where the loop has ended, so have the calls.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(_begin, self._loop, function)

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise RuntimeError(
                f"this was made in process {self._pid}, before a fork: make the client after it"
            )
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(
                "runlane.sync blocks, and an event loop runs in this thread: use the async "
                "client of runlane here, or go to another thread (asyncio.to_thread)"
            )
        if self._loop.is_closed() or not self._thread.is_alive():
            raise RuntimeError("the process is ending")

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _stop(self) -> None:
        if self._pid != os.getpid() or not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).add_done_callback(
            lambda _done: self._loop.call_soon_threadsafe(self._loop.stop)
        )
        self._thread.join(_PARTING)


class _Call(Generic[_R]):
    """One call on its way: a task of the loop, and the future that its caller waits for."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, function: Callable[[], Awaitable[_R]]
    ) -> None:
        self.result: Future[_R] = Future()
        self._loop = loop
        self._function = function
        self._task: asyncio.Task[_R] | None = None

    def begin(self) -> None:
        """Starts it; in the thread of the loop."""
        self._task = self._loop.create_task(self._work())
        self._task.add_done_callback(self._settle)

    def cancel(self) -> None:
        """Cancels it; in the thread of the loop."""
        if self._task is not None:
            self._task.cancel()
        else:
            # The interrupt came before it was to begin, and it never will.
            self.result.set_exception(CancelledError())

    async def _work(self) -> _R:
        return await self._function()

    def _settle(self, task: asyncio.Task[_R]) -> None:
        if task.cancelled():
            self.result.set_exception(CancelledError())
        elif (error := task.exception()) is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())


async def _following(source: AsyncIterator[_R]) -> _R:
    return await anext(source, END)


def _begin(
    loop: asyncio.AbstractEventLoop, function: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    task = loop.create_task(function())
    _UNWATCHED.add(task)
    task.add_done_callback(_forget)


def _forget(task: asyncio.Task[None]) -> None:
    _UNWATCHED.discard(task)
    if not task.cancelled():
        # Nobody waits for it.
        task.exception()


_UNWATCHED: Final[set[asyncio.Task[None]]] = set()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_PARTING)


_LOCK = threading.Lock()
_shared: Portal | None = None
_forked = False


def portal() -> Portal:
    """Returns the one of this process.

    Raises:
        RuntimeError: The process was forked from one that had it: gRPC does not survive that.
    """
    global _shared  # noqa: PLW0603 - one a process
    if _forked:
        raise RuntimeError(
            "this process was forked from one that used runlane.sync, which gRPC does not "
            "survive: make the first client after the fork, or start processes by spawn"
        )
    with _LOCK:
        if _shared is None:
            _shared = Portal()
        return _shared


def _after_fork() -> None:
    global _forked, _LOCK, _shared  # noqa: PLW0603 - as above
    # Another thread may have held it, and is not here to let it go.
    _LOCK = threading.Lock()
    _forked, _shared = _forked or _shared is not None, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
