"""Tasks that nobody waits for: one that fails is said, and begun again."""

import asyncio

import pytest
from runlane_server.runtime import forever as module
from runlane_server.runtime.forever import forever
from structlog.testing import capture_logs

pytestmark = pytest.mark.asyncio


async def rounds(monkeypatch, fails, count: int) -> list[dict]:
    """Runs rounds, of which some fail, without a rest; returns the lines of the log."""
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0)
    done, number = asyncio.Event(), 0

    async def work() -> None:
        nonlocal number
        number += 1
        if number == count:
            done.set()
        await asyncio.sleep(0)
        if fails(number):
            raise KeyError("what a user wrote")

    with capture_logs() as lines:
        task = asyncio.create_task(forever("it", work))
        await asyncio.wait_for(done.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    return lines


async def test_work_that_fails_is_begun_again_and_said(monkeypatch):
    (line,) = await rounds(monkeypatch, lambda number: number == 2, 5)
    assert (line["log_level"], line["task"]) == ("error", "it")
    assert type(line["exc_info"]) is KeyError


async def test_work_that_fails_and_fails_is_said_now_and_then(monkeypatch):
    assert len(await rounds(monkeypatch, lambda _: True, 50)) == 1
    monkeypatch.setattr(module, "TELL_SECONDS", 0)
    assert len(await rounds(monkeypatch, lambda _: True, 50)) >= 49


async def test_a_log_that_takes_no_lines_ends_nothing(monkeypatch):
    class Closed:
        def error(self, *_args, **_fields) -> None:
            raise ValueError("I/O operation on closed file")

    monkeypatch.setattr(module, "_log", Closed())
    assert await rounds(monkeypatch, lambda number: number < 4, 5) == []
