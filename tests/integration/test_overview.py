"""How a server is doing, of a real one."""

import asyncio
import time

import pytest
import runlane
from runlane.v1 import executor_service_pb2, interaction_pb2, run_pb2, session_service_pb2
from runlane_server.cli._app import app
from support_server import Link, seconds, unique, until
from typer.testing import CliRunner

pytestmark = pytest.mark.asyncio
SECONDS = 30


async def terminal(address: str, *arguments: str) -> str:
    result = await asyncio.to_thread(
        CliRunner().invoke, app, [*arguments, "--target", address], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0, result.output
    return result.stdout


async def test_an_overview_counts_what_there_is(server):
    async with Link(server.address) as link, runlane.Client(server.address) as client:
        empty = await client.overview()
        assert empty.open_session_count == 0
        assert empty.oldest_queued_seconds is None
        assert empty.store_available
        assert await client.healthy()
        assert empty.store_size_bytes >= server.path.stat().st_size
        names = {kind: unique(kind) for kind in ("idle", "queued", "leased", "asking", "stalled")}
        await link.run(names["idle"])
        await link.create("closed")
        await link.sessions.CloseSession(
            session_service_pb2.CloseSessionRequest(session_id="closed"), timeout=SECONDS
        )
        await link.submit(names["queued"])
        await link.submit(names["leased"])
        await link.lease(names["leased"], executor_id="worker")
        await ask(link, names["asking"])
        await stall(link, names["stalled"])
        stream = link.stream(names["idle"])
        await stream.read()
        seen = await client.overview()
        assert (seen.open_session_count, seen.closed_session_count) == (5, 1)
        assert not seen.more_sessions
        assert (seen.active_run_count, seen.waiting_run_count, seen.paused_run_count) == (3, 1, 0)
        assert (seen.stalled_run_count, seen.open_interaction_count) == (1, 1)
        assert (seen.queued_activation_count, seen.leased_activation_count) == (1, 1)
        assert 0 <= seen.oldest_queued_seconds < 60
        assert (seen.executor_count, seen.stream_count) == (2, 1)
        assert abs(seen.server_time.timestamp() - time.time()) < 60
        said = await terminal(server.address, "overview")
        assert "5 open, 1 closed" in said
        assert "3 active (1 stalled), 1 waiting, 0 paused" in said
        assert "1, the oldest for" in said
        stream.cancel()


async def test_health_is_a_word_and_an_end(server):
    assert await terminal(server.address, "health") == "SERVING\n"
    assert server.stop() == 0
    result = await asyncio.to_thread(
        CliRunner().invoke, app, ["health", "--target", server.address]
    )
    assert result.exit_code == 1
    assert "no server answers" in result.stderr


async def ask(link: Link, session: str) -> None:
    await link.submit(session)
    leased = await link.lease(session)
    prompt = interaction_pb2.Prompt(question=interaction_pb2.QuestionPrompt(text="which?"))
    question = executor_service_pb2.Suspend(prompt=prompt)
    await link.commit(leased.fence, suspend=question)


async def stall(link: Link, session: str) -> None:
    options = run_pb2.RunOptions(recovery=run_pb2.RECOVERY_MANUAL)
    await link.submit(session, run_options=options)
    leased = await link.lease(session, lease_duration=seconds(5))
    await link.heartbeat(leased.fence, lease=5)

    async def stalled() -> bool:
        return (await link.get_run(leased.fence.run_id)).stalled

    await until(stalled)


async def test_executors_are_listed_by_id_with_what_they_have(server):
    agent = unique("agent")
    async with Link(server.address) as link, runlane.Client(server.address) as client:
        for number in range(3):
            await link.submit(f"{agent}-{number}", create_session={"default_agent": agent})
        for name in ("b", "b", "a"):
            await link.lease(agent, executor_id=name)
        await link.executors.DrainExecutor(
            executor_service_pb2.DrainExecutorRequest(executor_id="a"), timeout=SECONDS
        )
        request = executor_service_pb2.PollActivationRequest(
            executor_id="c", agents=["x", agent], wait_duration=seconds(20)
        )
        poll = link.executors.PollActivation(request, timeout=SECONDS)

        async def polls() -> bool:
            return len((await client.list_executors()).items) == 3

        await until(polls)
        first = await client.list_executors(limit=2)
        rest = await client.list_executors(limit=2, after=first.next_cursor)
        assert rest.next_cursor is None
        told = [
            (one.executor_id, one.agents, one.leased_count, one.polling, one.draining)
            for one in (*first.items, *rest.items)
        ]
        assert told == [
            ("a", (agent,), 1, False, True),
            ("b", (agent,), 2, False, False),
            ("c", tuple(sorted(("x", agent))), 0, True, False),
        ]
        assert all(one.last_poll_time for one in first.items)
        said = await terminal(server.address, "executors")
        assert [row.split()[0] for row in said.splitlines()] == ["executor", "a", "b", "c"]
        assert "draining" in said.splitlines()[1]
        poll.cancel()
        server.restart()
        # What they have is in the store; that they polled is not.
        again = (await client.list_executors()).items
        assert [(one.executor_id, one.leased_count) for one in again] == [("a", 1), ("b", 2)]
        assert (again[0].agents, again[0].last_poll_time) == ((), None)
