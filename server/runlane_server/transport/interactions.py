"""Questions and their answers: from requests to what the core takes.

What a form asks for, and whether an answer fits it, is in `forms`.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec
from runlane.v1 import executor_service_pb2, interaction_pb2

from runlane_server.core.commands import AnswerInteraction, Suspend, Verdict
from runlane_server.core.errors import Reason, Refused, invalid
from runlane_server.core.model import Content
from runlane_server.core.words import InteractionState, PromptKind, ToolOutcome
from runlane_server.store.base import InteractionRow
from runlane_server.transport.content import text_result
from runlane_server.transport.values import check_json, duration_micros

Answer = interaction_pb2.InteractionAnswer
Prompt = interaction_pb2.Prompt

_KINDS = {kind.name.lower(): kind for kind in PromptKind}
_APPROVE = interaction_pb2.Decision.VERDICT_APPROVE
_REJECTED = "A person rejected this call; it was not run."

_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class Call(NamedTuple):
    """What a prompt shows of a tool call."""

    name: str
    arguments_json: str


class _Told(NamedTuple):
    """What an answer says, apart from decisions; `data` tells equal answers."""

    data: list[str]
    outcome: ToolOutcome
    text: str


# --- questions -------------------------------------------------------------


def suspend(given: executor_service_pb2.Suspend, path: str) -> Suspend:
    """Converts Suspend; the names and arguments of calls that ask are left empty."""
    prompt = Prompt()
    prompt.CopyFrom(given.prompt)
    prompt.DiscardUnknownFields()
    name = prompt.WhichOneof("kind") or ""
    calls: tuple[str, ...] = ()
    if name == "permission":
        calls = _asking(prompt.permission, f"{path}prompt.permission.")
    else:
        call = getattr(prompt, name).tool_call_id
        calls = (call,) if call else ()
    return Suspend(
        _KINDS[name],
        prompt.SerializeToString(deterministic=True),
        calls,
        duration_micros(given.expire_duration, f"{path}expire_duration"),
    )


def _asking(prompt: interaction_pb2.PermissionPrompt, path: str) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for index, call in enumerate(prompt.calls):
        if call.tool_call_id in names:
            raise invalid(f"{path}calls[{index}].tool_call_id", "is in this list already")
        names[call.tool_call_id] = None
        # The server's to say: an answer is bound to what the call is.
        call.ClearField("name")
        call.ClearField("arguments_json")
    return tuple(names)


def fill_in(prompt: bytes, calls: Mapping[str, Call]) -> bytes:
    """Returns the encoded prompt of a permission with what its calls are."""
    filled = Prompt.FromString(prompt)
    for asking in filled.permission.calls:
        call = calls.get(asking.tool_call_id)
        if call is not None:
            asking.name, asking.arguments_json = call.name, call.arguments_json
    return filled.SerializeToString(deterministic=True)


# --- answers ---------------------------------------------------------------


def answer(row: InteractionRow, version: int, given: Answer) -> AnswerInteraction:
    """Converts an answer to an interaction; whether it fits is `check_answer`'s to say."""
    copy = Answer()
    copy.CopyFrom(given)
    copy.DiscardUnknownFields()
    name = copy.WhichOneof("kind") or ""
    verdicts: tuple[Verdict, ...] = ()
    outcome, result = ToolOutcome.OK, None
    data: Sequence[object]
    if name == "permission":
        verdicts = tuple(_verdict(one) for one in copy.permission.decisions)
        data = sorted(
            [one.tool_call_id, int(one.verdict), one.reason] for one in copy.permission.decisions
        )
    else:
        told = _told(copy)
        data, outcome = told.data, told.outcome
        result = _result(row, name, told)
    return AnswerInteraction(
        row.run_id,
        row.interaction_id,
        version,
        _KINDS[name],
        copy.SerializeToString(deterministic=True),
        sha256(_encode([name, data])).digest(),
        verdicts,
        outcome,
        result,
    )


def _verdict(given: interaction_pb2.Decision) -> Verdict:
    call = given.tool_call_id
    if given.verdict == _APPROVE:
        return Verdict(call, approve=True)
    result = text_result(call, ToolOutcome.REJECTED, given.reason or _REJECTED)
    return Verdict(call, approve=False, result=result)


def _told(given: Answer) -> _Told:
    kind = given.WhichOneof("kind")
    if kind == "question":
        return _Told([given.question.text], ToolOutcome.OK, given.question.text)
    if kind == "form":
        return _Told([given.form.json], ToolOutcome.OK, given.form.json)
    said = given.external
    if said.WhichOneof("outcome") == "error":
        return _Told(["error", said.error], ToolOutcome.ERROR, said.error)
    return _Told(["result", said.result_json], ToolOutcome.OK, said.result_json)


def _result(row: InteractionRow, name: str, told: _Told) -> Content | None:
    """Returns the result of the call that the question is about; None: it is about none."""
    prompt = Prompt.FromString(row.prompt)
    if prompt.WhichOneof("kind") != name:
        return None
    call = getattr(prompt, name).tool_call_id
    return text_result(call, told.outcome, told.text) if call else None


def check_answer(row: InteractionRow, version: int, given: Answer, *, by_token: bool) -> str:
    """Refuses an answer that does not fit its open question, but for the schema of a form.

    An interaction that is no longer open, or whose version is another, is left to the use
    case, which knows why.

    Returns:
        The schema that the answer's JSON is still to be held to; empty: none.
    """
    if row.state is not InteractionState.OPEN:
        return ""
    name = given.WhichOneof("kind") or ""
    if name == "external" and not by_token:
        raise unfit("answer.external", "is given with the token, through CompleteExternal")
    if row.version != version:
        return ""
    if _KINDS[name] is not row.kind:
        raise unfit(f"answer.{name}", f"the question is a {row.kind.name.lower()}")
    if name == "permission":
        asked = [call.tool_call_id for call in Prompt.FromString(row.prompt).permission.calls]
        decided = [one.tool_call_id for one in given.permission.decisions]
        if sorted(asked) != sorted(decided):
            raise unfit("answer.permission.decisions", "must be one for each call that asks")
    elif name == "form":
        check_answer_json(given.form.json, "answer.form.json")
        return Prompt.FromString(row.prompt).form.json_schema
    elif name == "external" and given.external.WhichOneof("outcome") == "result_json":
        check_answer_json(given.external.result_json, "answer.result_json")
    return ""


def check_answer_json(text: str, field: str) -> None:
    """Refuses an answer that is no JSON."""
    try:
        check_json(text, field)
    except Refused as refusal:
        raise unfit(field, refusal.violations[0][1]) from None


def unfit(field: str, description: str) -> Refused:
    """Returns the refusal of an answer that does not fit its question."""
    return Refused(
        Reason.ANSWER_INVALID, f"{field}: {description}", violations=((field, description),)
    )
