"""Child runs and summaries over a real server, by the Python executor."""

import asyncio
import uuid

import pytest
import runlane
from runlane import (
    Agent,
    ChildRun,
    Client,
    Compaction,
    Executor,
    ModelResponse,
    RunPhase,
    SessionHistory,
    SessionManager,
    StopReason,
    ToolOutcome,
    ToolUseBlock,
    Usage,
    tool,
)
from runlane._executor.batch import Batch

pytestmark = [pytest.mark.asyncio, pytest.mark.every_store]
SECONDS = 60


class Says:
    """A model that answers from a function of its request."""

    def __init__(self, answer):
        self.answer = answer
        self.requests = []

    async def complete(self, request):
        self.requests.append(request)
        answer = self.answer(request)
        return await answer if asyncio.iscoroutine(answer) else answer


def uses(*names, **arguments):
    calls = [ToolUseBlock(tool_call_id=n, name=n, arguments=arguments) for n in names]
    return ModelResponse(tool_calls=calls)


def results_of(request):
    return [m.tool_result for m in request.messages if m.tool_result]


def calls_then_tells(*names, **arguments):
    """Asks for tools once, then says what came of them."""

    def answer(request):
        results = results_of(request)
        if not results:
            return uses(*names, **arguments)
        return ModelResponse(text=" ".join(f"{r.outcome}:{r.text}" for r in results))

    return Says(answer)


@pytest.fixture
def name():
    return uuid.uuid4().hex


def delegates(to, words="help", *, called="ask_helper", **options):
    """A tool that a child run answers."""

    @tool(agent=to, name=called)
    def ask() -> ChildRun:
        return ChildRun(to, words, options=options or None, display_name="a helper")

    return ask


async def test_tools_questions_and_child_runs_in_one_batch(shared, name):
    ran = []

    @tool
    def add() -> str:
        ran.append("add")
        return "added"

    helper = Says(lambda _: ModelResponse(text="helped", output_json='{"n": 1}'))
    parent = Agent(
        f"p-{name}",
        model=calls_then_tells("add", "ask_helper"),
        tools=[add, delegates(f"c-{name}")],
    )
    async with (
        asyncio.timeout(SECONDS),
        Client(shared.address) as client,
        Executor(client, [parent, Agent(f"c-{name}", model=helper)]),
        SessionManager(client, f"s-{name}", agent=f"p-{name}") as manager,
    ):
        result = await manager.run("go")
        assert result.text == "ok:added ok:helped"
        assert ran == ["add"]
        (child,) = (await client.list_child_runs(result.run_id)).items
        assert child.parent == runlane.ParentRun(
            run_id=result.run_id, session_id=f"s-{name}", tool_call_id="ask_helper", depth=1
        )
        call = (await client.list_tool_calls(result.run_id)).items[1]
        assert (call.child_run_id, call.outcome) == (child.run_id, ToolOutcome.OK)
        assert [type(block).__name__ for block in call.content] == ["TextBlock", "DataBlock"]
        session = await client.get_session(child.session_id)
        assert (session.parent_run_id, session.display_name) == (result.run_id, "a helper")
        lineage = await SessionHistory(client).lineage(child.session_id)
        assert [one.run_id for one in lineage.parents] == [result.run_id]
        with pytest.raises(runlane.ChildSession):
            await client.submit("more", session_id=child.session_id, mode="queue")
        with pytest.raises(runlane.RunNotTopLevel):
            await SessionHistory(client).fork(child.run_id)
        roots = {one.session_id for one in (await client.list_sessions(roots_only=True)).items}
        assert f"s-{name}" in roots
        assert child.session_id not in roots


async def test_a_question_of_a_child_is_answered_at_its_parent(shared, name):
    asks = calls_then_tells("ask_question", question="Which one?")
    async with (
        asyncio.timeout(SECONDS),
        Client(shared.address) as client,
        SessionManager(client, f"s-{name}", agent=f"p-{name}") as manager,
        Executor(
            client,
            [
                Agent(
                    f"p-{name}",
                    model=calls_then_tells("ask_helper"),
                    tools=[delegates(f"c-{name}")],
                ),
                Agent(f"c-{name}", model=asks, ask_question=True),
            ],
        ),
    ):
        receipt = await manager.submit("go")
        async for event in manager.events(after_sequence=0, types=["interaction.opened"]):
            opened = event
            break
        state = await manager.snapshot()
        (proxy,) = state.open_interactions
        assert proxy.interaction_id == opened.interaction_id
        assert proxy.proxy_for == opened.proxy_for
        assert state.run.phase is RunPhase.WAITING
        assert state.run.waiting_children.run_ids == (proxy.proxy_for.run_id,)
        inbox = [one.interaction_id for one in (await client.list_interactions(limit=1000)).items]
        assert proxy.proxy_for.interaction_id in inbox
        assert proxy.interaction_id not in inbox
        stopped = await manager.wait(receipt.run_id, until="stopped")
        assert stopped.interaction == proxy
        ended = await manager.resume("the red one")
        assert ended.text == "ok:ok:the red one"


async def test_to_interrupt_a_parent_ends_all_below_it(shared, name):
    began = asyncio.Event()

    async def never(_request):
        began.set()
        await asyncio.Event().wait()

    leaf = Agent(f"g-{name}", model=Says(never))
    middle = Agent(
        f"c-{name}", model=calls_then_tells("ask_helper"), tools=[delegates(f"g-{name}")]
    )
    top = Agent(f"p-{name}", model=calls_then_tells("ask_helper"), tools=[delegates(f"c-{name}")])
    async with (
        asyncio.timeout(SECONDS),
        Client(shared.address) as client,
        Executor(client, [top, middle, leaf]),
        SessionManager(client, f"s-{name}", agent=f"p-{name}") as manager,
    ):
        receipt = await manager.submit("go")
        await began.wait()
        await manager.interrupt()
        ended = await manager.wait(receipt.run_id)
        assert ended.stop_reason is StopReason.CANCELLED
        (child,) = (await client.list_child_runs(receipt.run_id)).items
        (grandchild,) = (await client.list_child_runs(child.run_id)).items
        assert child.stop_reason is grandchild.stop_reason is StopReason.CANCELLED
        names = ["run.ending", "child_run.finished", "run.terminal"]
        events = manager.events(after_sequence=0, types=names)
        assert [(await anext(events)).kind for _ in names] == names
        messages = (await client.list_messages(f"s-{name}")).items
        assert messages[-1].tool_result.outcome is ToolOutcome.CANCELLED


async def test_a_child_that_cannot_be_started_is_an_error_to_the_model(shared, name):
    bad = delegates(f"c-{name}", "   ")
    async with (
        asyncio.timeout(SECONDS),
        Client(shared.address) as client,
        Executor(client, Agent(f"p-{name}", model=calls_then_tells("ask_helper"), tools=[bad])),
        SessionManager(client, f"s-{name}", agent=f"p-{name}") as manager,
    ):
        result = await manager.run("go")
        assert result.text == "error:the child run could not be started: INPUT_EMPTY"


def payer(ran):
    @tool
    def pay() -> str:
        ran.append("pay")
        return "paid"

    return pay


async def test_no_call_is_claimed_before_child_runs_are_started(shared, name, monkeypatch):
    ran = []
    parent = Agent(
        f"p-{name}",
        model=calls_then_tells("pay", "ask_helper"),
        tools=[payer(ran), delegates(f"c-{name}")],
    )
    async with (
        asyncio.timeout(SECONDS),
        Client(shared.address) as client,
        Executor(client, parent),
        SessionManager(client, f"s-{name}", agent=f"p-{name}") as manager,
    ):
        start = Batch._start_child

        async def interrupted(batch, operation):
            await client.interrupt(f"s-{name}")
            await start(batch, operation)

        monkeypatch.setattr(Batch, "_start_child", interrupted)
        result = await manager.run("go")
        assert (result.stop_reason, ran) == (StopReason.CANCELLED, [])


async def test_under_stop_a_child_that_cannot_be_started_ends_the_run_failed(shared, name):
    ran = []
    parent = Agent(
        f"p-{name}",
        model=calls_then_tells("pay", "ask_helper"),
        tools=[payer(ran), delegates(f"c-{name}", "   ")],
    )
    async with (
        asyncio.timeout(SECONDS),
        Client(shared.address) as client,
        Executor(client, parent),
        SessionManager(client, f"s-{name}", agent=f"p-{name}") as manager,
    ):
        result = await manager.run("go", options={"tool_error_policy": "stop"})
        assert (result.stop_reason, ran) == (StopReason.FAILED, [])


@pytest.mark.parametrize("policy", ["stop", "return_to_model"])
async def test_an_executor_that_stops_before_a_start_leaves_all_to_the_next(
    shared, name, monkeypatch, policy
):
    ran = []
    parent = Agent(
        f"p-{name}",
        model=calls_then_tells("pay", "ask_helper"),
        tools=[payer(ran), delegates(f"c-{name}")],
    )
    helper = Agent(f"c-{name}", model=Says(lambda _: ModelResponse(text="helped")))
    async with (
        asyncio.timeout(SECONDS),
        Client(shared.address) as client,
        SessionManager(client, f"s-{name}", agent=f"p-{name}") as manager,
    ):
        start, there = Batch._start_child, asyncio.Event()

        async def held(_batch, _operation):
            there.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(Batch, "_start_child", held)
        async with Executor(client, parent):
            receipt = await manager.submit("go", options={"tool_error_policy": policy})
            await there.wait()
        monkeypatch.setattr(Batch, "_start_child", start)
        async with Executor(client, [parent, helper]):
            result = await manager.wait(receipt.run_id)
        assert (result.stop_reason, ran) == (StopReason.COMPLETED, ["pay"])


async def test_ids_of_calls_that_a_summary_hides_are_not_used_again(shared, name):
    asked = []

    def answer(_request):
        asked.append(True)
        return uses("add") if len(asked) < 4 else ModelResponse(text="done")

    @tool
    def add() -> str:
        return "x"

    async def compact(request):
        number = request.covered(keep=0)
        return Compaction("s", number) if number else None

    async with (
        asyncio.timeout(SECONDS),
        Client(shared.address) as client,
        Executor(client, Agent(f"a-{name}", model=Says(answer), tools=[add], compact=compact)),
        SessionManager(client, f"s-{name}", agent=f"a-{name}") as manager,
    ):
        result = await manager.run("go")
        ids = [one.tool_call_id for one in (await client.list_tool_calls(result.run_id)).items]
        assert len(set(ids)) == len(ids) == 3


async def test_a_summary_stands_for_the_first_messages(shared, name):
    model = Says(lambda request: ModelResponse(text=f"saw {len(request.messages)}"))

    async def compact(request):
        number = request.covered(keep=1)
        if len(request.messages) < 4 or not number:
            return None
        usage = Usage(input_tokens=7, output_tokens=3, cost_usd_micros=5)
        return Compaction(f"all before {number + 1}", number, usage, "shortener")

    async with (
        asyncio.timeout(SECONDS),
        Client(shared.address) as client,
        Executor(client, Agent(f"a-{name}", model=model, compact=compact)),
        SessionManager(client, f"s-{name}", agent=f"a-{name}") as manager,
    ):
        runs = [await manager.run(word) for word in ("one", "two", "three")]
        # The third run began with five messages, of which a summary took four.
        assert runs[-1].text == "saw 1"
        seen = model.requests[-1]
        assert (seen.summary, [m.text for m in seen.messages]) == ("all before 5", ["three"])
        session = await client.get_session(f"s-{name}")
        assert (session.message_count, session.compacted_through) == (6, 4)
        usage = runs[-1].run.usage
        assert (usage.compaction_input_tokens, usage.compaction_output_tokens) == (7, 3)
        assert usage.cost_usd_micros == 5
        history = SessionHistory(client)
        whole = await history.get_at_run(runs[-1].run_id)
        assert len(whole.messages) == 6, "the history keeps what the model no longer sees"
        assert (whole.summary.text, whole.summary.model) == ("all before 5", "shortener")
        assert (await history.get_at_run(runs[1].run_id)).summary is None
        # A fork takes the summary that stood at its point.
        early = await history.fork(runs[1].run_id)
        late = await history.fork(runs[2].run_id)
        assert early.session.compacted_through is None
        assert late.session.compacted_through == 4
        async with SessionManager(client, late.session_id, agent=f"a-{name}") as forked:
            await forked.run("four")
        assert model.requests[-1].summary == "all before 5"
        assert [m.text for m in model.requests[-1].messages] == ["three", "saw 1", "four"]


@pytest.mark.parametrize(
    ("made", "warnings"),
    [(Compaction("", 1), 1), (Compaction("all", 99), 1), (Compaction("all", 0), 0)],
)
async def test_a_summary_that_does_not_fit_changes_nothing(shared, name, caplog, made, warnings):
    """It is told once in a run, not at each step; one that covers nothing new is none."""
    steps = 3

    async def compact(_request):
        return made

    def answer(request):
        seen.append(len(request.messages))
        return uses("add") if len(seen) < steps else ModelResponse(text="done")

    @tool
    def add() -> str:
        return "x"

    seen: list[int] = []
    model = Says(answer)
    async with (
        asyncio.timeout(SECONDS),
        Client(shared.address) as client,
        Executor(client, Agent(f"a-{name}", model=model, tools=[add], compact=compact)),
        SessionManager(client, f"s-{name}", agent=f"a-{name}") as manager,
    ):
        assert (await manager.run("one")).text == "done"
        assert seen == [1, 3, 5]
        assert model.requests[-1].summary == ""
    told = [record for record in caplog.records if "a summary" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"] * warnings


async def test_agents_of_the_settings_give_work_to_each_other(make_server, tmp_path):
    (tmp_path / "runlane.toml").write_text(
        """
[[agent]]
name = "chief"
model = { kind = "scripted", script = [
    { answer = { tool = "look", arguments = { task = "{input}" } }, then = "it says: {result}" },
] }
[[agent.delegate]]
agent = "librarian"
tool = "look"
description = "Finds books."
policy = "ask"

[[agent]]
name = "librarian"
model = { kind = "scripted", script = [{ answer = "{input} stands on shelf 4" }] }
""",
        encoding="utf-8",
    )
    server = make_server().start()
    async with (
        asyncio.timeout(SECONDS),
        Client(server.address) as client,
        SessionManager(client, "main", agent="chief") as manager,
    ):
        asked = await manager.run("Moby-Dick", until="stopped")
        assert [call.name for call in asked.interaction.calls] == ["look"]
        ended = await manager.resume(True)
        assert ended.text == "it says: Moby-Dick stands on shelf 4"
        (child,) = (await client.list_child_runs(ended.run_id)).items
        assert (child.agent, child.stop_reason) == ("librarian", StopReason.COMPLETED)
