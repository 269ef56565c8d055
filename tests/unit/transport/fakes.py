"""An app that answers from a script, behind a real server on a real socket."""

import asyncio
from contextlib import asynccontextmanager

import grpc
from google.rpc import error_details_pb2, status_pb2
from runlane_server.app.views import (
    ActivationControl,
    AgentView,
    CommitView,
    ExecutorView,
    HistoryView,
    LeasedView,
    LineageView,
    LiveView,
    OverviewView,
    Page,
    PollView,
    Result,
    RunView,
    ServerInfoView,
    SessionView,
    SubmissionView,
)
from runlane_server.core.answers import (
    CommitAnswer,
    DrainAnswer,
    ForkAnswer,
    InteractionAnswered,
    InteractionFacts,
    OperationResult,
    PauseAnswer,
    PauseReceipt,
    RestoreAnswer,
    RestoreOutcome,
    RunAnswer,
    RunFacts,
    SessionAnswer,
    SessionFacts,
    SubmissionFacts,
    SubmitAnswer,
)
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import (
    Activation,
    Content,
    Fence,
    ParentLink,
    RunLimits,
    RunOptions,
    SessionRecord,
    ToolCall,
    Usage,
)
from runlane_server.core.rows import Event, EventType, MessageAppended
from runlane_server.core.words import (
    ActivationKind,
    Author,
    Command,
    InteractionState,
    Mode,
    Phase,
    Position,
    PromptKind,
    Role,
    Route,
    SessionStatus,
    StopReason,
    SubmissionState,
    ToolCallState,
    ToolOutcome,
)
from runlane_server.store.base import Counts, InteractionRow, MessageRow, SummaryRow, ToolCallRow
from runlane_server.transport.codec import ProtoCodec
from runlane_server.transport.content import input_content, text_result
from runlane_server.transport.server import GrpcServer, GrpcSettings

CODEC = ProtoCodec()
NOW = 1_700_000_000_123_456
FENCE = Fence("s", "run_1", "act_1", 1)


def text_content(text: str) -> Content:
    from runlane.v1 import message_pb2

    return input_content([message_pb2.Block(text=text)], {"k": "v"})


def message_row(number: int, text: str = "hello") -> MessageRow:
    row = MessageAppended(number, "run_1", Role.USER, Author.INPUT, NOW, submission_id="sub_1")
    return MessageRow(number, CODEC.message(row, "s", text_content(text)))


def event_bytes(sequence: int) -> bytes:
    return CODEC.event(Event(EventType.SESSION_CLOSED, sequence, NOW), "s", "client", "")


def session_view(session_id: str = "s", create_time: int = NOW) -> SessionView:
    facts = SessionFacts(session_id, SessionStatus.OPEN, 1, "r1", 1, "", create_time, create_time)
    return SessionView(facts, SessionRecord("name", {"a": "b"}, "{}", "agent"))


def run_facts(run_id: str = "run_1", phase: Phase = Phase.ACTIVE) -> RunFacts:
    done = phase is Phase.TERMINAL
    return RunFacts(
        run_id, "s", "sub_1", "agent", phase, 1, Position.BEFORE_MODEL, NOW, Usage(1, 2, 3, 4, 5), 2, 1,
        activation=None if done else Activation("act_1", 1, ActivationKind.CONTINUE),
        stop_reason=StopReason.COMPLETED if done else None,
        message_cutoff=7 if done else 0,
        end_time=NOW + 1 if done else 0,
        tool_calls=6,
    )  # fmt: skip


def run_view(run_id: str = "run_1", phase: Phase = Phase.ACTIVE, preview: str = "hello") -> RunView:
    options = CODEC.options(RunOptions("agent", "m", RunLimits(20), cancel_grace=30_000_000))
    return RunView(run_facts(run_id, phase), options, preview, digest=b"\x01\x02")


def submission_facts() -> SubmissionFacts:
    return SubmissionFacts("sub_1", "s", "run_1", Mode.START, Route.RUN, SubmissionState.DELIVERED, NOW, NOW, 1)  # fmt: skip


def tool_call_row(ordinal: int = 1, state=ToolCallState.COMMITTED, **fields) -> ToolCallRow:
    name = f"call_{ordinal}"
    given = {
        "arguments_json": '{"a":1}',
        "outcome": ToolOutcome.OK if state is ToolCallState.COMMITTED else 0,
        "result": text_result(name, ToolOutcome.OK, "done").data,
        **fields,
    }
    return ToolCallRow(
        name, "run_1", 1, ordinal, "tool", state=state, idempotent=True, create_time=NOW, settle_time=NOW + 1, **given
    )  # fmt: skip


def interaction_row(prompt=None, **fields) -> InteractionRow:
    from runlane.v1 import interaction_pb2

    given = prompt or interaction_pb2.Prompt(
        question=interaction_pb2.QuestionPrompt(text="why?", tool_call_id="call_1")
    )
    kind = PromptKind[given.WhichOneof("kind").upper()]
    row = InteractionRow(
        "int_1", "run_1", "s", 1, InteractionState.OPEN, kind, given.SerializeToString(), b"", b"", 0, NOW + 9, NOW, 0
    )  # fmt: skip
    for name, value in fields.items():
        setattr(row, name, value)
    return row


class FakeApp:
    """Remembers what it was asked; `raising` is raised instead of an answer."""

    def __init__(self):
        self.asked = []
        self.raising = None
        self.store_up = True
        self.drained = asyncio.Event()
        self.entered = asyncio.Event()
        self.closed = asyncio.Event()
        self.hold = None
        self.messages = [message_row(1), message_row(2)]
        self.interaction = interaction_row()
        self.run = run_view(phase=Phase.TERMINAL)
        self.calls = ([tool_call_row(1), tool_call_row(2, ToolCallState.PREPARED)], (1, 2))
        self.leased = LeasedView(
            FENCE,
            run_view(),
            2,
            self.calls[0],
            [interaction_row(state=InteractionState.ANSWERED)],
            self.messages,
            ActivationControl(lease_expire_time=NOW, pause_requested=True),
        )
        self.result = OperationResult(
            granted=True,
            step=3,
            model_stream_id="ms",
            message_number=5,
            calls=[ToolCall("call_1", "tool", 1)],
            batch_closed=True,
        )
        self.sessions = Page([session_view()], (5, "x"))
        self.events = ([(event_bytes(1), None), (event_bytes(2), message_row(1).data)], 2)

    async def _ask(self, name, *args):
        self.asked.append((name, *args))
        self.entered.set()
        if self.hold is not None:
            await self.hold.wait()
        if self.raising is not None:
            raise self.raising

    async def _session(self, name, *args):
        await self._ask(name, *args)
        view = session_view()
        return Result(SessionAnswer(9, view.facts, created=True), replayed=True), view

    async def create_session(self, *args):
        return await self._session("create_session", *args)

    async def update_session(self, *args):
        return await self._session("update_session", *args)

    async def close_session(self, *args):
        return await self._session("close_session", *args)

    async def reopen_session(self, *args):
        return await self._session("reopen_session", *args)

    async def delete_session(self, *args):
        return (await self._session("delete_session", *args))[0]

    async def submit(self, *args):
        await self._ask("submit", *args)
        return Result(SubmitAnswer(9, submission_facts(), session_created=True), replayed=False)

    async def withdraw(self, *args):
        await self._ask("withdraw", *args)
        return Result(SubmitAnswer(9, submission_facts()), replayed=False)

    async def interrupt(self, *args):
        await self._ask("interrupt", *args)
        now = run_facts(phase=Phase.TERMINAL)
        return Result(RunAnswer(9, run_facts()), replayed=False), now

    async def pause_run(self, *args):
        await self._ask("pause_run", *args)
        return Result(PauseAnswer(9, PauseReceipt.REQUESTED, run_facts()), replayed=False)

    async def unpause_run(self, *args):
        await self._ask("unpause_run", *args)
        return Result(PauseAnswer(9, PauseReceipt.RESUMED, run_facts()), replayed=True)

    async def find_interaction(self, *args):
        await self._ask("find_interaction", *args)
        return self.interaction

    async def find_external(self, *args):
        await self._ask("find_external", *args)
        return "default", self.interaction

    async def answer_interaction(self, *args):
        await self._ask("answer_interaction", *args)
        facts = InteractionFacts("int_1", "run_1", "s", 1, InteractionState.ANSWERED, NOW)
        return Result(InteractionAnswered(9, facts, run_facts()), replayed=True)

    async def restore_run(self, *args):
        await self._ask("restore_run", *args)
        answer = RestoreAnswer(9, RestoreOutcome.RECOVERY_QUEUED, run_facts())
        return Result(answer, replayed=False)

    async def settle_run(self, *args):
        await self._ask("settle_run", *args)
        return Result(RunAnswer(9, run_facts(phase=Phase.TERMINAL)), replayed=True)

    async def list_stalled_runs(self, *args):
        await self._ask("list_stalled_runs", *args)
        return Page([run_view()], (5, "x"))

    async def list_tool_calls(self, *args):
        await self._ask("list_tool_calls", *args)
        rows, after = self.calls
        # A page of all that a batch can hold is the last one.
        return rows, after if args[-1] < 256 else None

    async def list_interactions(self, *args):
        await self._ask("list_interactions", *args)
        return Page([self.interaction], (5, "x"))

    async def fork(self, *args):
        await self._ask("fork", *args)
        view = session_view("f")
        answer = ForkAnswer(3, view.facts, "s", "run_1", 7, b"\x0a\x0b", submission_facts())
        return Result(answer, replayed=False), view

    async def poll(self, *args):
        await self._ask("poll", *args)
        return PollView(self.leased, sequence=4)

    async def drain_executor(self, *args):
        await self._ask("drain_executor", *args)
        return Result(DrainAnswer(2), replayed=False)

    async def heartbeat(self, *args):
        await self._ask("heartbeat", *args)
        return ActivationControl(cancel_requested=True, cancel_grace_expire_time=NOW)

    async def commit(self, caller, command):
        await self._ask("commit", caller, command)
        results = [self.result for _ in command.operations]
        answer = CommitAnswer(9, run_facts(), results, True, [1], NOW)
        return CommitView(
            answer, self.messages, ActivationControl(), fence_lost=False, replayed=False, external_token="t"
        )  # fmt: skip

    async def watch_activation(self, *args):
        await self._ask("watch_activation", *args)
        yield ActivationControl()
        yield ActivationControl(ended=True)

    async def model_context(self, *args):
        await self._ask("model_context", *args)
        yield CODEC.message_batch([row.data for row in self.messages])
        yield 2

    async def publish_deltas(self, caller, fence, deltas):
        await self._ask("publish_deltas", caller, fence, deltas)
        return len(deltas)

    async def get_session(self, *args):
        await self._ask("get_session", *args)
        return session_view()

    async def list_sessions(self, *args):
        await self._ask("list_sessions", *args)
        return self.sessions

    async def get_run(self, *args):
        await self._ask("get_run", *args)
        return self.run

    async def list_runs(self, *args):
        await self._ask("list_runs", *args)
        return Page([run_view()], None)

    async def list_child_runs(self, *args):
        await self._ask("list_child_runs", *args)
        return Page([run_view("child")], (NOW, "child"))

    async def wait_run(self, *args):
        await self._ask("wait_run", *args)
        return run_view(phase=Phase.TERMINAL), self.messages[0]

    async def get_submission(self, *args):
        await self._ask("get_submission", *args)
        return SubmissionView(submission_facts(), "req", self.messages[0].data)

    async def list_submissions(self, *args):
        await self._ask("list_submissions", *args)
        return Page([SubmissionView(submission_facts(), "req", text_content("hi").data)], (5, "x"))

    async def fork_points(self, *args):
        await self._ask("fork_points", *args)
        return Page([run_view(phase=Phase.TERMINAL)], None)

    async def lineage(self, *args):
        await self._ask("lineage", *args)
        return Page([session_view("f")], None), LineageView(
            [("root", "run_0")], [ParentLink("up", "run_up", "c", 1)]
        )

    async def live_state(self, *args):
        await self._ask("live_state", *args)
        pending = [SubmissionView(submission_facts(), "req", b"", truncated=True)]
        return LiveView(
            session_view(), run_view(), pending, self.messages, [Command.START], True, 9, [self.interaction]
        )  # fmt: skip

    async def list_events(self, *args):
        await self._ask("list_events", *args)
        return self.events

    async def list_messages(self, *args):
        await self._ask("list_messages", *args)
        return self.messages, 2

    async def stream_events(self, *args):
        try:
            await self._ask("stream_events", *args)
            yield CODEC.event_batch([(event_bytes(1), None)])
            await self.drained.wait()
            raise Refused(Reason.STREAM_ENDED, "the server ended the stream")
        finally:
            self.closed.set()

    async def stream_run_events(self, *args):
        await self._ask("stream_run_events", *args)
        yield CODEC.run_event_batch([(event_bytes(1), None)])

    async def stream_messages(self, *args):
        await self._ask("stream_messages", *args)
        yield CODEC.message_batch([row.data for row in self.messages])

    async def history_at_run(self, *args):
        await self._ask("history_at_run", *args)
        view = HistoryView(run_view(phase=Phase.TERMINAL), 2, b"\xab", SummaryRow(1, "s", "m", NOW))
        return view, self.stream_messages(*args)

    async def list_agents(self, *args):
        self.asked.append(("list_agents", *args))
        return [AgentView("a", NOW, 1, 2, 3)], "a"

    async def overview(self, *args):
        await self._ask("overview", *args)
        counts = Counts({SessionStatus.OPEN: 3}, True, {Phase.WAITING: 2}, 1, 4, 5_000_000_000)
        return OverviewView(counts, 6, NOW - 1_500_000, 7, 8, 9, True, NOW)

    async def list_executors(self, *args):
        self.asked.append(("list_executors", *args))
        return [ExecutorView("e", ["a", "b"], NOW, True, 2, True)], "e"

    def ready(self):
        return self.store_up

    quotas = None

    def server_info(self, _namespace=""):
        return ServerInfoView("0.1", "memory", False, "store", 1, ["f"], [("x_max", 1, "items")])

    def drain(self):
        self.drained.set()


@asynccontextmanager
async def serving(app, settings=None, identity=None):
    """Gives server and channel."""
    server = GrpcServer(app, app, settings or GrpcSettings(), identity)
    (port,) = await server.start(["127.0.0.1:0"])
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    try:
        yield server, channel
    finally:
        await channel.close()
        await server.drain(0.2)


def details(error: grpc.aio.AioRpcError) -> dict:
    """Returns the details of an error by their kind, and its trailers."""
    trailers = dict(error.trailing_metadata() or ())
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    found = {"status": status, "trailers": trailers}
    for packed in status.details:
        kind = packed.TypeName().rpartition(".")[2]
        message = getattr(error_details_pb2, kind)()
        assert packed.Unpack(message)
        found[kind] = message
    return found
