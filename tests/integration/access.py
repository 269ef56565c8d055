"""A server that asks for keys, and the keys of two namespaces."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from google.protobuf.message_factory import GetMessageClass
from runlane.v1 import (
    admin_service_pb2,
    api_key_pb2,
    executor_service_pb2,
    history_service_pb2,
    message_pb2,
    run_pb2,
    server_service_pb2,
    session_service_pb2,
)
from support_server import COMPLETED, Link, ServerProcess, reserve, seconds, text

SERVICES = {
    "SessionService": session_service_pb2,
    "HistoryService": history_service_pb2,
    "ExecutorService": executor_service_pb2,
    "AdminService": admin_service_pb2,
    "ServerService": server_service_pb2,
}
METHODS = {
    f"{name}/{method.name}": method
    for name, module in SERVICES.items()
    for method in module.DESCRIPTOR.services_by_name[name].methods
}
SCOPES = [name.removeprefix("SCOPE_").lower() for name in api_key_pb2.ApiKey.Scope.keys()[1:]]


def scope_of(path: str) -> str:
    """Returns the scope that the contract gives an RPC; empty: it needs none."""
    service, _, name = path.partition("/")
    if name in {"CompleteExternal", "GetServerInfo"}:
        return ""
    if service == "ExecutorService":
        return "execute"
    if service == "AdminService" or name == "DeleteSession":
        return "admin"
    if name == "AnswerInteraction":
        return "answer"
    options = METHODS[path].GetOptions()
    return "read" if options.idempotency_level == options.NO_SIDE_EFFECTS else "submit"


def bearer(secret: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {secret}"),)


def keys(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs `runlane keys`."""
    return subprocess.run(
        [sys.executable, "-m", "runlane_server", "keys", *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def first_key(folder: Path, *scopes: str, store: str = "") -> str:
    """Makes a key for all namespaces where no server has the store; empty: the file."""
    store = store or "sqlite:runlane.db"
    wanted = [word for scope in scopes or ["admin"] for word in ("--scope", scope)]
    made = keys(folder, "create", "root", "--for", "*", *wanted, "--store", store)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


async def new_key(
    admin: Link, name: str, *scopes: str, namespace: str = "", lifetime: float = 0
) -> Any:
    """Makes a key through the server; returns the answer."""
    request = admin_service_pb2.CreateKeyRequest(
        name=name,
        namespace=namespace,
        scopes=[f"SCOPE_{scope.upper()}" for scope in scopes or SCOPES],
        expire_duration=seconds(lifetime) if lifetime else None,
    )
    return await admin.admin.CreateKey(request, timeout=30)


async def revoke(admin: Link, key_id: str) -> None:
    await admin.admin.RevokeKey(admin_service_pb2.RevokeKeyRequest(key_id=key_id), timeout=30)


async def send(link: Link, path: str, raw: bytes, timeout: float = 10) -> Any:
    """Calls an RPC with raw bytes; a stream is read up to its first frame."""
    method, path = METHODS[path], f"/runlane.v1.{path}"
    if method.client_streaming:

        async def one():
            yield raw

        return await link.channel.stream_unary(path)(one(), timeout=timeout)
    if method.server_streaming:
        stream = link.channel.unary_stream(path)(raw, timeout=timeout)
        try:
            return await stream.read()
        finally:
            stream.cancel()
    return await link.channel.unary_unary(path)(raw, timeout=timeout)


class Scene:
    """What a namespace has: a run of each kind, and all ids that name something of it."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.fence = run_pb2.Fence()
        self.token = ""

    async def play(self, link: Link, prefix: str) -> "Scene":
        """Plays two ended runs, one that is leased, one that waits, and an input that waits."""
        done = f"{prefix}-done"
        await link.run(done)
        ended = await link.run(done)
        asked = f"{prefix}-asked"
        await link.submit(asked)
        leased = await link.lease(asked)
        question = executor_service_pb2.Suspend(prompt={"question": {"text": "Well?"}})
        waits = await link.commit(leased.fence, suspend=question)
        outside = f"{prefix}-outside"
        await link.submit(outside)
        leased = await link.lease(outside)
        await link.commit(leased.fence, reserve())
        use = message_pb2.ToolUse(tool_call_id="call-1", name="t", arguments_json="{}")
        external = executor_service_pb2.Suspend(prompt={"external": {"tool_call_id": "call-1"}})
        commits = executor_service_pb2.CommitModelStep(content=[message_pb2.Block(tool_use=use)])
        step = executor_service_pb2.Operation(commit_model_step=commits)
        suspended = await link.commit(leased.fence, step, suspend=external)
        self.token = suspended.external_token
        live = f"{prefix}-live"
        await link.submit(live, request_id=f"{prefix}-request")
        self.fence = (await link.lease(live)).fence
        queued = await link.submit(live, mode="MODE_QUEUE")
        self.ids = {
            "session_id": live,
            "ended_run_id": ended,
            "run_id": self.fence.run_id,
            "waiting_run_id": waits.run.run_id,
            "interaction_id": waits.run.interaction_id,
            "submission_id": queued.submission.submission_id,
            "reserved_run_id": queued.submission.run_id,
        }
        return self

    def made_up(self) -> "Scene":
        """Returns a scene of which nothing is there."""
        other = Scene()
        other.ids = {name: f"none-{name}" for name in self.ids}
        other.fence = run_pb2.Fence(
            session_id="none-session_id", run_id="none-run_id", activation_id="none", epoch=1
        )
        other.token = "none-none-none-none"
        return other

    def request(self, path: str, **ids: str) -> Any:
        """Returns a request of an RPC that is in order, and names what this scene has.

        Args:
            path: The RPC.
            ids: In place of the scene's.
        """
        method = METHODS[path]
        request = GetMessageClass(method.input_type)()
        fits = dict(self.ids)
        if method.name in {"ForkSession", "GetHistoryAtRun"}:
            fits["run_id"] = fits["ended_run_id"]
        if method.name == "AnswerInteraction":
            fits["run_id"] = fits["waiting_run_id"]
            request.version = 1
            request.answer.question.text = "yes"
        ids = {**fits, **ids}
        names = {field.name for field in method.input_type.fields}
        both = {"session_id", "run_id"} <= names
        for name in ids.keys() & names:
            if not (both and name == "session_id"):
                setattr(request, name, ids[name])
        if "fence" in names:
            request.fence.CopyFrom(self.fence)
        if "executor_id" in names:
            request.executor_id = "executor-1"
        if method.name == "PollActivation":
            request.agents.append(self.ids["session_id"])
        elif method.name == "Submit":
            request.content.extend(text("hello"))
            request.mode = "MODE_QUEUE"
        elif method.name == "CompleteExternal":
            request.token = self.token
            request.answer.result_json = "1"
        elif method.name == "Commit":
            request.finish.CopyFrom(COMPLETED)
        elif method.name == "ImportSession":
            request.session_id += "-copy"  # CreateSession takes the id itself
            request.records.add().header.format_version = 1
            request.records.add().end.SetInParent()
        elif method.name == "CreateKey":
            request.name = "made"
            request.scopes.append("SCOPE_READ")
        elif method.name == "RevokeKey":
            request.key_id = "key_none"
        return request


def made_server(make: Any, folder: Path, *scopes: str, **settings: object) -> ServerProcess:
    """Returns a server that asks for keys; its first key is in `settings['root']`."""
    folder.mkdir(exist_ok=True)
    root = first_key(folder, *scopes)
    server = make(folder, auth="keys", **settings)
    server.root = root
    return server.start()
