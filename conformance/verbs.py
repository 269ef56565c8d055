"""The public verbs of Python's client, for the calls that they make.

A verb takes the message that a scenario sends apart into arguments; the client makes a message of
them again, which must be the same. Where a verb has no argument for what is set, it is `None`, and
the message is sent as the client sends its own.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from google.protobuf.message import Message
from runlane import Client, SessionHistory, sync
from runlane import _convert as convert
from runlane._content import content_from_pb
from runlane._enums import (
    InteractionState,
    MessageRole,
    OnMiss,
    RunPhase,
    SessionOrder,
    SessionState,
    StopReason,
    SubmissionState,
    SubmitMode,
    member,
)
from runlane._event_convert import event_from_pb
from runlane._interactions import _answer_from_pb
from runlane.v1 import event_pb2

Verb = Callable[[Client, Any], Awaitable[Any] | None]


def _history(client: Any) -> Any:
    return (sync.SessionHistory if isinstance(client, sync.Client) else SessionHistory)(client)


def _word(kind: Any, number: int) -> Any:
    return member(kind, number) if number else None


def _given(request: Message, *names: str) -> dict[str, Any]:
    """Returns the fields of those names, unset optional ones as None."""
    fields = request.DESCRIPTOR.fields_by_name
    return {
        name: getattr(request, name)
        if not fields[name].has_presence or request.HasField(name)
        else None
        for name in names
    }


def _page(request: Any) -> dict[str, Any]:
    return {"after": request.page_token or None, "limit": request.page_size or 50}


def _options(holder: Any) -> Any:
    return convert.run_options(holder.run_options) if holder.HasField("run_options") else None


def _create(client: Client, request: Any) -> Awaitable[Any]:
    named = _given(
        request,
        "session_id",
        "display_name",
        "labels",
        "metadata_json",
        "default_agent",
        "request_id",
    )
    return client.create_session(**named, if_exists="return" if request.if_exists == 2 else "error")


def _update(client: Client, request: Any) -> Awaitable[Any]:
    named = ("session_id", "display_name", "metadata_json", "default_agent", "set_labels")
    return client.update_session(**_given(request, *named, "remove_labels", "etag", "request_id"))


def _submit(client: Client, request: Any) -> Awaitable[Any] | None:
    spec = request.create_session
    if request.HasField("create_session") and (
        spec.display_name or spec.labels or spec.metadata_json
    ):
        return None
    return client.submit(
        content_from_pb(request.content),
        request.session_id or None,
        mode=_word(SubmitMode, request.mode),
        options=_options(request),
        on_miss=_word(OnMiss, request.on_miss),
        target_run_id=request.target_run_id,
        metadata=request.metadata,
        create=request.HasField("create_session"),
        default_agent=spec.default_agent,
        **_given(request, "expected_revision", "request_id"),
    )


def _interrupt(client: Client, request: Any) -> Awaitable[Any]:
    return client.interrupt(
        request.session_id,
        wait=request.wait_duration.ToTimedelta().total_seconds(),
        **_given(request, "run_id", "reason", "request_id"),
    )


def _answer(client: Client, request: Any) -> Awaitable[Any] | None:
    answer = _answer_from_pb(request.answer)
    if answer is None:
        return None
    return client.answer(
        request.run_id,
        request.interaction_id,
        request.version,
        answer,
        request_id=request.request_id,
    )


def _list_events(client: Client, request: Any) -> Awaitable[Any]:
    return client.list_events(
        request.session_id or None,
        run_id=request.run_id or None,
        after_sequence=request.after_sequence,
        types=[event_word(number) for number in request.types],
        include_messages=request.include_messages,
        **_page(request),
    )


def event_word(number: int) -> str:
    """Returns the client's word for a kind of event."""
    event = event_from_pb(event_pb2.Event(type=event_pb2.Event.Type.ValueType(number)))
    return str(getattr(event, "kind", number))


def _list_messages(client: Client, request: Any) -> Awaitable[Any]:
    return client.list_messages(
        request.session_id,
        roles=[member(MessageRole, number) for number in request.roles],
        **_given(request, "after_number", "before_number"),
        **_page(request),
    )


def _list_sessions(client: Client, request: Any) -> Awaitable[Any] | None:
    if request.HasField("create_time_from") or request.HasField("create_time_before"):
        return None
    return client.list_sessions(
        labels=request.labels,
        state=_word(SessionState, request.state),
        roots_only=request.roots_only,
        order=member(SessionOrder, request.order or 1),
        **_page(request),
    )


def _fork(client: Client, request: Any) -> Awaitable[Any]:
    named = ("session_id", "display_name", "labels", "metadata_json", "default_agent")
    first: dict[str, Any] = {}
    if request.HasField("input"):
        first = {
            "input": content_from_pb(request.input.content),
            "options": _options(request.input),
            "metadata": request.input.metadata,
        }
    forked: Awaitable[Any] = _history(client).fork(
        request.run_id, **_given(request, *named, "request_id"), **first
    )
    return forked


VERBS: Final[Mapping[str, Verb]] = {
    "CreateSession": _create,
    "GetSession": lambda client, it: client.get_session(it.session_id),
    "UpdateSession": _update,
    "DeleteSession": lambda client, it: client.delete_session(
        it.session_id, force=it.force, request_id=it.request_id
    ),
    "CloseSession": lambda client, it: client.close_session(
        it.session_id, cancel_run=it.cancel_run, request_id=it.request_id
    ),
    "ReopenSession": lambda client, it: client.reopen_session(
        it.session_id, request_id=it.request_id
    ),
    "Submit": _submit,
    "WithdrawSubmission": lambda client, it: client.withdraw(
        it.submission_id, session_id=it.session_id, request_id=it.request_id
    ),
    "GetSubmission": lambda client, it: client.get_submission(
        it.submission_id, session_id=it.session_id
    ),
    "InterruptRun": _interrupt,
    "PauseRun": lambda client, it: client.pause(
        it.session_id, run_id=it.run_id, request_id=it.request_id
    ),
    "UnpauseRun": lambda client, it: client.unpause(
        it.session_id, run_id=it.run_id, request_id=it.request_id
    ),
    "AnswerInteraction": _answer,
    "RestoreRun": lambda client, it: client.restore(
        it.run_id, it.expected_activation_id, force=it.force, request_id=it.request_id
    ),
    "GetLiveState": lambda client, it: client.live_state(
        it.session_id, **_given(it, "message_limit", "min_sequence")
    ),
    "ListAgents": lambda client, it: client.list_agents(**_page(it)),
    "GetServerInfo": lambda client, _: client.server_info(),
    "ListSessions": _list_sessions,
    "ListRuns": lambda client, it: client.list_runs(
        it.session_id, phases=[member(RunPhase, one) for one in it.phases], **_page(it)
    ),
    "ListChildRuns": lambda client, it: client.list_child_runs(it.run_id, **_page(it)),
    "GetRun": lambda client, it: client.get_run(it.run_id, session_id=it.session_id),
    "ListSubmissions": lambda client, it: client.list_submissions(
        it.session_id, states=[member(SubmissionState, one) for one in it.states], **_page(it)
    ),
    "ListEvents": _list_events,
    "ListMessages": _list_messages,
    "ListForkPoints": lambda client, it: _history(client).list_fork_points(
        it.session_id, **_page(it)
    ),
    "ListToolCalls": lambda client, it: client.list_tool_calls(it.run_id, **_page(it)),
    "ListInteractions": lambda client, it: client.list_interactions(
        it.session_id, state=_word(InteractionState, it.state), **_page(it)
    ),
    "ForkSession": _fork,
    "GetLineage": lambda client, it: _history(client).lineage(it.session_id, **_page(it)),
    "ListStalledRuns": lambda client, it: client.list_stalled_runs(**_page(it)),
    "SettleRun": lambda client, it: client.settle_run(
        it.run_id,
        member(StopReason, it.stop_reason or 2),
        reason=it.reason,
        request_id=it.request_id,
    ),
    "ListExecutors": lambda client, it: client.list_executors(**_page(it)),
}
"""The verb that makes each call."""
