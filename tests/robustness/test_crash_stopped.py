"""Executors that stand still past their leases and go on as if nothing had been."""

import asyncio
import json
import os
import signal
import sys
import uuid
from pathlib import Path

import pytest
from crash_points import HELD_MOST, agent_of, effects
from crash_process import approve_second_turns, approving, held_process, sessions_at, start
from runlane import Client, Executor
from support_server import Link, dense, until, within
from support_server.link import reserve, unique
from support_server.turns import RUN, claims, closed_once, results

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]
PROGRAM = Path(__file__).with_name("stopped_executor.py")
LEASE = 6
STALE = "FAILED_PRECONDITION STALE_ACTIVATION"
HELD = (
    "after-reserve",
    "model",
    "before-suspend",
    "after-claim",
    "effect",
    "after-effect",
    "before-finish",
)


def rounds(few: int, many: int) -> list:
    return [few, pytest.param(many, marks=[pytest.mark.long, pytest.mark.timeout(900)])]


@pytest.mark.parametrize("count", rounds(20, 100))
async def test_every_call_of_an_executor_that_was_stopped_past_its_lease_is_refused(shared, count):
    """The successor has its runs by then, or has ended them; nothing of that changes."""
    agent = unique("stopped")
    async with Link(shared.address) as link:
        sessions = [f"{agent}.{number}" for number in range(count)]
        runs = await start(link, agent, sessions)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(PROGRAM), shared.address, agent, str(count), str(LEASE)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=2**24,
        )
        try:
            assert await within(30, process.stdout.readline()) == b"leased\n"
            os.kill(process.pid, signal.SIGSTOP)
            leases = [await link.lease(agent, 30, executor_id="successor") for _ in runs]
            for number, leased in enumerate(leases):
                assert (leased.fence.epoch, leased.reserved_step) == (
                    2,
                    1 - bool(leased.tool_calls),
                )
                if number % 3 == 0:
                    await successor_ends(link, leased)
            before = {one: await link.events(one) for one in sessions}
            os.kill(process.pid, signal.SIGCONT)
            process.stdin.write(b"go\n")
            found = json.loads(await within(60, process.stdout.readline()))
            assert set(found) == set(runs.values())
            for calls in found.values():
                assert calls.pop("again") == "replayed, lost True"
                assert calls.pop("watch") in {"ended True", "end"}
                assert set(calls.values()) == {STALE}, calls
            for number, leased in enumerate(leases):
                session = leased.fence.session_id
                assert await link.events(session) == before[session]
                if number % 3:
                    await successor_ends(link, leased)
                run = await link.get_run(leased.fence.run_id)
                assert (run.outcome.stop_reason, run.attempt) == (RUN.STOP_REASON_COMPLETED, 2)
                messages = await link.messages(session)
                closed_once(messages)
                assert messages[-1].content[0].text == "the successor's"
                await link.submit(session, "more")
            for _ in sessions:
                await link.answer((await link.lease(agent)).fence)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            process.stdin.close()
            process._transport.close()


async def successor_ends(link: Link, leased) -> None:
    fence = leased.fence
    if leased.tool_calls:
        await link.commit(fence, claims("c1", idempotent=True))
        await link.commit(fence, results("c1"))
    await link.commit(fence, reserve())
    await link.answer_reserved(fence, "the successor's")


@pytest.mark.parametrize("count", rounds(3, 20))
async def test_a_stopped_executor_of_ours_drops_what_it_has_lost_and_takes_new_work(
    shared, tmp_path, count
):
    """Seven points, three runs at each; what is not idempotent and was claimed is not run again.

    Its places are full, so that no poll of it is open while it stands still.
    """
    marks, name = tmp_path / "marks", f"agent-{uuid.uuid4().hex}"
    sessions = sessions_at(HELD, count)
    async with (
        Link(shared.address) as link,
        held_process(shared.address, name, marks, lease=LEASE, concurrency=len(sessions)) as held,
    ):
        runs = await start(link, name, sessions)
        await approve_second_turns(link, sessions)
        await held.stands(sessions)
        os.kill(held.pid, signal.SIGSTOP)
        async with (
            Client(shared.address) as client,
            approving(link),
            Executor(client, agent_of(name, marks), concurrency=HELD_MOST),
        ):
            ends = {one: await link.wait_run(run_id, 60) for one, run_id in runs.items()}
        happened = effects(marks)
        before = {one: dense(await link.events(one)) for one in sessions}
        os.kill(held.pid, signal.SIGCONT)
        held.let_go()
        # It is alive: new work is done by it, for there is nobody else.
        fresh = sessions_at(["none"], 4)
        async with approving(link):
            more = await start(link, name, fresh)
            for run_id in more.values():
                run = await link.wait_run(run_id, 60)
                assert (run.outcome.stop_reason, run.attempt) == (RUN.STOP_REASON_COMPLETED, 2)
        for session, run in ends.items():
            assert await link.events(session) == before[session], session
            point, tool, _ = session.split(".")
            claimed = tool == "once" and point in {"after-claim", "effect", "after-effect"}
            reason = RUN.STOP_REASON_OUTCOME_UNKNOWN if claimed else RUN.STOP_REASON_COMPLETED
            assert (session, run.outcome.stop_reason) == (session, reason)
            closed_once(await link.messages(session))
            # A tool that was being run when the process stood still may end; once, where it must.
            assert effects(marks)[session] <= (1 if tool == "once" else 2), session
        assert happened <= effects(marks)
        for session in sessions:
            await link.submit(session, "more")
        await until(lambda: all_idle(link, sessions))


async def all_idle(link: Link, sessions) -> bool:
    for session in sessions:
        if (await link.live(session)).run.run_id:
            return False
    return True
