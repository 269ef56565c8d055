"""Every example of docs/errors.md that needs no fault of the server, provoked.

What is refused must carry the code and the metadata that the page tells.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from runlane.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    executor_service_pb2,
    executor_service_pb2_grpc,
    history_service_pb2,
    history_service_pb2_grpc,
    session_service_pb2,
    session_service_pb2_grpc,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
SECONDS = 30
SETTINGS = {"RUNLANE_AGENTS": "helper", "RUNLANE_STREAMS_MAX": "1"}
PROVOKED_ELSEWHERE = {
    # They need a fault, or a call at the very moment of a stop: tests/unit/transport has them.
    *("DRAINING", "STORE_UNAVAILABLE", "STORE_CORRUPT", "INTERNAL_ERROR"),
    # They need a server that asks for credentials: test_access.py has them.
    *("CREDENTIAL_MISSING", "CREDENTIAL_INVALID", "SCOPE_MISSING"),
    # It needs a server with quotas: test_quotas.py has it.
    "QUOTA_EXCEEDED",
}
CONDITIONAL = {"tool_call_id", "operation_index", "run_id", "cause", "quota"}
"""Keys that the page calls absent in some cases."""


def told() -> dict[str, tuple[str, str]]:
    rows = PAGE.partition("\n## Reasons\n")[2].partition("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if "|" in row]
    return {row[0]: (row[1], row[3]) for row in cells[2:]}


TOLD = told()


class Calls:
    """Calls by name, with requests as dictionaries."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._stubs = {
            session_service_pb2: session_service_pb2_grpc.SessionServiceStub(channel),
            history_service_pb2: history_service_pb2_grpc.HistoryServiceStub(channel),
            executor_service_pb2: executor_service_pb2_grpc.ExecutorServiceStub(channel),
            admin_service_pb2: admin_service_pb2_grpc.AdminServiceStub(channel),
        }

    def __call__(self, name: str, **fields: Any) -> Any:
        for module, stub in self._stubs.items():
            if hasattr(stub, name):
                request = getattr(module, f"{name}Request")(**fields)
                return getattr(stub, name)(request, timeout=SECONDS)
        raise AssertionError(f"there is no call {name}")

    def submit(self, session: str, text: str = "hello", **fields: Any) -> Any:
        return self("Submit", session_id=session, content=[{"text": text}], **fields)

    def session(self, name: str) -> str:
        self("CreateSession", session_id=name, default_agent="helper")
        return name

    def busy(self, name: str) -> str:
        """Makes a session with a live run; returns the run."""
        return self.submit(self.session(name)).submission.run_id

    def lease(self, name: str) -> Any:
        """Makes a session with a live run and leases it; returns the fence."""
        self.busy(name)
        polled = self("PollActivation", executor_id="docs", agents=["helper"])
        assert polled.activation.fence.session_id == name
        return polled.activation.fence

    def end(self, fence: Any) -> None:
        finish = {"failed": {"reason": 7}}
        self("Commit", fence=fence, finish=finish)


@pytest.fixture
def server(tmp_path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = ["serve", "--listen", "127.0.0.1:0", "--store", "memory", "--log-level", "error"]
    with subprocess.Popen(
        [sys.executable, "-m", "runlane_server", *command],
        cwd=tmp_path,
        env={**os.environ, **SETTINGS},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            yield process, said.removeprefix("listening on ")
        finally:
            process.kill()


def check(reason: str, act: Any) -> None:
    """Acts, and compares the refusal with what the page tells."""
    with pytest.raises(grpc.RpcError) as caught:
        act()
    error: Any = caught.value
    status = status_pb2.Status()
    status.ParseFromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info), error
    assert info.reason == reason, error
    code, metadata = TOLD[reason]
    assert error.code().name == code
    told_keys = set(re.findall(r"`([^`]+)`", re.sub(r"\([^)]*\)", "", metadata)))
    optional = CONDITIONAL if "absent" in metadata else set()
    assert told_keys - optional <= info.metadata.keys() <= told_keys, (reason, info.metadata)
    assert info.domain == "runlane.dev"


def refuse_waits(call: Calls, expect: Callable[[str, Any], None]) -> None:
    """Provokes what is refused of runs that wait."""
    fence = call.lease("waits")
    run = fence.run_id
    expect("ACTIVATION_MISMATCH", lambda: call("RestoreRun", run_id=run))

    def commit(*operations: Any, **outcome: Any) -> Any:
        return call("Commit", fence=fence, operations=operations, **outcome)

    def results(name: str) -> dict[str, Any]:
        return {"commit_tool_results": {"results": [{"tool_call_id": name, "outcome": 1}]}}

    commit({"reserve_model_step": {}})
    use = {"tool_use": {"tool_call_id": "call-1", "name": "look"}}
    commit(
        {"commit_model_step": {"content": [use]}},
        {"claim_tool_calls": {"tool_call_ids": ["call-1"]}},
    )
    expect("OPERATION_INVALID", lambda: commit(finish={"completed": {}}))
    expect("CALL_UNRESOLVED", lambda: commit(release={}))
    ask = {"suspend": {"prompt": {"question": {"text": "Go on?"}}}}
    expect("CALL_UNRESOLVED", lambda: commit(**ask))
    expect("TOOL_CALL_NOT_FOUND", lambda: commit(results("call-9")))
    asked = commit(results("call-1"), **ask).run.interaction_id

    def answer(**kind: Any) -> Any:
        names = {"run_id": run, "interaction_id": asked, "version": 1}
        return call("AnswerInteraction", **names, answer=kind)

    decisions = {"decisions": [{"tool_call_id": "call-1", "verdict": 1}]}
    expect("ANSWER_INVALID", lambda: answer(permission=decisions))
    token = {"token": "made-up-by-someone", "answer": {"error": "no"}}
    expect("INTERACTION_NOT_FOUND", lambda: call("CompleteExternal", **token))
    answer(question={"text": "yes"})
    expect("INTERACTION_CONFLICT", lambda: answer(question={"text": "no"}))

    fence = call("PollActivation", executor_id="docs", agents=["helper"]).activation.fence
    form = {"suspend": {"prompt": {"form": {"json_schema": '{"type": "integer"}'}}}}
    asked = commit(**form).run.interaction_id
    expect("ANSWER_INVALID", lambda: answer(form={"json": '"one"'}))
    call("InterruptRun", session_id="waits")
    expect("INTERACTION_CLOSED", lambda: answer(form={"json": "1"}))
    expect("RUN_TERMINAL", lambda: call("PauseRun", run_id=run))


def refuse_children(call: Calls, expect: Callable[[str, Any], None]) -> None:
    """Provokes what is refused of child runs and of their parents."""
    fence = call.lease("parent")

    def commit(*operations: Any) -> Any:
        return call("Commit", fence=fence, operations=operations)

    commit({"reserve_model_step": {}})
    uses = [{"tool_use": {"tool_call_id": "call-1", "name": "ask"}}]
    start = {"start_child_run": {"tool_call_id": "call-1", "content": [{"text": "help"}]}}
    made = commit({"commit_model_step": {"content": uses}}, start)
    child = made.results[1].start_child_run
    claim = {"claim_tool_calls": {"tool_call_ids": ["call-1"]}}
    expect("CALL_HAS_CHILD", lambda: commit(claim))
    expect("CHILD_SESSION", lambda: call.submit(child.session_id, mode=3))
    call("InterruptRun", run_id=child.run_id)
    expect("RUN_NOT_TOP_LEVEL", lambda: call("ForkSession", run_id=child.run_id))


def test_each_example_is_refused_as_the_page_tells(server):
    process, address = server
    seen: set[str] = set()

    def expect(reason: str, act: Any) -> None:
        check(reason, act)
        seen.add(reason)

    with grpc.insecure_channel(address) as channel:
        call = Calls(channel)
        expect("FIELD_INVALID", lambda: call("ListSessions", page_size=-1))
        expect("KEY_NOT_FOUND", lambda: call("RevokeKey", key_id="key_0"))
        call("CreateSession", session_id="no-agent")
        expect("FIELD_INVALID", lambda: call.submit("no-agent"))
        new = call.session("new")
        expect("INPUT_EMPTY", lambda: call.submit(new, " "))
        expect("PAGE_TOKEN_INVALID", lambda: call("ListSessions", page_token="x"))
        token = call("ListSessions", page_size=1).next_page_token
        expect("PAGE_TOKEN_MISMATCH", lambda: call("ListSessions", page_token=token, order=2))
        expect("SESSION_NOT_FOUND", lambda: call("GetSession", session_id="nobody"))
        expect("SUBMISSION_NOT_FOUND", lambda: call("GetSubmission", submission_id="sub_0"))
        writer = {"agent": "writer"}
        expect("AGENT_NOT_FOUND", lambda: call.submit(new, run_options=writer))
        expect("SESSION_EXISTS", lambda: call("CreateSession", session_id=new))
        expect("SESSION_IDLE", lambda: call.submit(new, mode=4))
        expect("REVISION_MISMATCH", lambda: call.submit(new, expected_revision=7))
        tag = call("GetSession", session_id=new).session.etag
        call("UpdateSession", session_id=new, display_name="a", etag=tag)
        expect(
            "ETAG_MISMATCH",
            lambda: call("UpdateSession", session_id=new, display_name="b", etag=tag),
        )
        large = "x" * (4 * 1024 * 1024)
        expect("MESSAGE_TOO_LARGE", lambda: call.submit(new, large))
        ahead = {"session_id": new, "after_sequence": 1000}
        expect("SEQUENCE_AHEAD", lambda: list(call("StreamEvents", **ahead)))
        call("CloseSession", session_id=new)
        expect("SESSION_CLOSED", lambda: call.submit(new))

        fence = call.lease("leased")
        step = {"operations": [{"commit_model_step": {}}]}
        expect("OPERATION_INVALID", lambda: call("Commit", fence=fence, **step))
        finish = {"finish": {"cancelled": {}}}
        expect("OPERATION_INVALID", lambda: call("Commit", fence=fence, **finish))
        call("InterruptRun", session_id="leased")
        expect("RUN_CANCELLING", lambda: call.submit("leased", mode=4))
        call.end(fence)
        expect("STALE_ACTIVATION", lambda: call.end(fence))

        refuse_waits(call, expect)
        refuse_children(call, expect)

        run = call.busy("busy")
        expect("SESSION_BUSY", lambda: call.submit("busy"))
        options = {"run_options": {"model": "m"}}
        expect("OPTIONS_NOT_ALLOWED", lambda: call.submit("busy", mode=4, **options))
        waits = call.submit("busy", mode=5).submission.run_id
        expect("RUN_NOT_FOUND", lambda: call("GetRun", run_id=waits))
        call.submit("busy", "a", mode=3, request_id="once")
        expect("REQUEST_ID_REUSED", lambda: call.submit("busy", "b", mode=3, request_id="once"))
        expect("SESSION_LIVE", lambda: call("DeleteSession", session_id="busy"))
        ended = {"mode": 2, "target_run_id": fence.run_id}
        expect("RUN_NOT_CURRENT", lambda: call.submit("busy", **ended))
        expect("RUN_NOT_CURRENT", lambda: call.submit("leased", **ended))
        expect("RUN_NOT_TERMINAL", lambda: call("ForkSession", run_id=run))
        started = run.replace("run_", "sub_")
        expect("SUBMISSION_SETTLED", lambda: call("WithdrawSubmission", submission_id=started))
        for _ in range(64):
            call.submit("busy", mode=4)
        expect("QUEUE_FULL", lambda: call.submit("busy", mode=4))

        stream = call("StreamEvents", session_id="busy")
        next(stream)
        expect("STREAM_LIMIT", lambda: next(call("StreamEvents", session_id="busy")))
        process.send_signal(signal.SIGTERM)
        expect("STREAM_ENDED", lambda: list(stream))
    assert seen == TOLD.keys() - PROVOKED_ELSEWHERE
