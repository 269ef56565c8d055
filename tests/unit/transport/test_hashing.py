from dataclasses import fields, replace
from enum import IntEnum

import pytest
from fakes import text_content
from runlane.v1 import message_pb2, run_pb2, session_service_pb2
from runlane_server.app.views import ForkRequest
from runlane_server.core.commands import (
    ClaimToolCalls,
    CommitModelStep,
    CommitRun,
    CommitToolResults,
    CreateSession,
    Finish,
    FinishKind,
    ReserveModelStep,
    RestoreRun,
    SettleRun,
    Submit,
    Suspend,
    ToolResult,
    UpdateSession,
)
from runlane_server.core.model import Failure, Fence, RunLimits, RunOptions, SessionRecord, Usage
from runlane_server.core.words import (
    Mode,
    OnMiss,
    PromptKind,
    Recovery,
    RunFailure,
    StopReason,
    ToolErrorPolicy,
    ToolOutcome,
)
from runlane_server.transport.binding import Call
from runlane_server.transport.hashing import request_hash

RECORD = SessionRecord("n", {"a": "1", "b": "2"}, "{}", "agent")
OPTIONS = RunOptions(
    "a",
    "m",
    RunLimits(1, 2, 3, 4, 5, 6, 7),
    ("t",),
    8,
    ToolErrorPolicy.STOP,
    Recovery.MANUAL,
    0,
    4,
    "{}",
)
COMMANDS = [
    Submit(text_content("a"), Mode.STEER, "r", OnMiss.FOLLOW_UP, OPTIONS, RECORD, 3),
    CreateSession(RECORD, True),
    UpdateSession("n", "{}", "a", {"a": "1"}, ["b"], "r1"),
    ForkRequest("n", {"a": "1"}, "{}", "a", text_content("a"), OPTIONS),
    CommitRun(
        Fence("s", "r", "a", 1),
        [CommitModelStep(text_content("a"), Usage(1, 2, 3, 4, 5), "m", "stop"), ReserveModelStep()],
        Finish(FinishKind.FAILED, "1", Failure(RunFailure.EXECUTOR_ERROR, "x", True)),
    ),
    CommitRun(
        Fence("s", "r", "a", 1),
        [ClaimToolCalls(("c", "d"), True)],
        Suspend(PromptKind.QUESTION, b"prompt", ("c",), 5),
    ),
    CommitRun(
        Fence("s", "r", "a", 1),
        [CommitToolResults((ToolResult("c", ToolOutcome.OK, text_content("a")),))],
    ),
    RestoreRun("r", "a", True),
    SettleRun("r", StopReason.CANCELLED, "x"),
]
OTHER = {str: "other", bytes: b"other", int: 99, bool: False, dict: {"z": "z"}, list: [], tuple: ("z",), type(None): 1}  # fmt: skip


def variants(value):
    """Yields copies of a record, each with one thing in it changed."""
    for field in fields(value):
        old = getattr(value, field.name)
        if type(old).__name__ == "Content":
            yield field.name, replace(value, **{field.name: text_content("other")})
        elif hasattr(old, "__dataclass_fields__"):
            for name, changed in variants(old):
                yield f"{field.name}.{name}", replace(value, **{field.name: changed})
        elif isinstance(old, (list, tuple)) and old and hasattr(old[0], "__dataclass_fields__"):
            for name, changed in variants(old[0]):
                yield (
                    f"{field.name}[0].{name}",
                    replace(value, **{field.name: type(old)([changed, *old[1:]])}),
                )
            yield field.name, replace(value, **{field.name: old[1:]})
        elif isinstance(old, IntEnum):
            other = next(member for member in type(old) if member is not old)
            yield field.name, replace(value, **{field.name: other})
        else:
            yield field.name, replace(value, **{field.name: OTHER[type(old)]})


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_each_field_counts(command):
    seen = {request_hash("M", "s", command): "itself"}
    for name, changed in variants(command):
        digest = request_hash("M", "s", changed)
        assert digest not in seen, (name, seen[digest])
        seen[digest] = name
    assert len(seen) > len(fields(command))
    assert request_hash("M", "t", command) not in seen
    assert request_hash("N", "s", command) not in seen


def test_the_order_of_a_map_does_not_count():
    other = replace(RECORD, labels={"b": "2", "a": "1"})
    assert request_hash("M", CreateSession(RECORD)) == request_hash("M", CreateSession(other))


def test_an_unset_value_is_not_an_empty_one():
    digests = {
        request_hash("M", UpdateSession()),
        request_hash("M", UpdateSession(display_name="")),
        request_hash("M", UpdateSession(metadata_json="")),
    }
    assert len(digests) == 3


async def _asked(request):
    from fakes import FakeApp
    from runlane_server.transport.session import SessionServicer

    class Context:
        def time_remaining(self):
            return None

    app = FakeApp()
    servicer = SessionServicer(app)
    if isinstance(request, session_service_pb2.SubmitRequest):
        await servicer.submit(request, Call("default", "client", "Submit", Context()))
    else:
        await servicer.interrupt_run(request, Call("default", "client", "InterruptRun", Context()))
    return app.asked[-1][1].request_hash


@pytest.mark.asyncio
async def test_request_id_and_waits_do_not_count():
    pb = session_service_pb2
    base = {"session_id": "s", "content": [message_pb2.Block(text="a")]}
    one = await _asked(pb.SubmitRequest(request_id="1", **base))
    assert len(one) == 16
    assert one == await _asked(pb.SubmitRequest(request_id="2", **base))
    assert one == await _asked(pb.SubmitRequest(request_id="2", mode=1, **base))
    assert one != await _asked(pb.SubmitRequest(request_id="1", mode=3, **base))
    assert one != await _asked(
        pb.SubmitRequest(request_id="1", run_options=run_pb2.RunOptions(), **base)
    )
    assert await _asked(pb.SubmitRequest(**base)) == b""
    waiting = pb.InterruptRunRequest(session_id="s", request_id="1")
    waiting.wait_duration.seconds = 5
    assert await _asked(waiting) == await _asked(
        pb.InterruptRunRequest(session_id="s", request_id="2")
    )
    assert await _asked(waiting) != await _asked(
        pb.InterruptRunRequest(session_id="s", reason="x", request_id="1")
    )
