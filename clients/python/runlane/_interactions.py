"""Interactions: questions that runs wait for, and the answers to them."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

import grpc

from runlane._content import Record
from runlane._enums import (
    InteractionCloseReason,
    InteractionState,
    PromptKind,
    Verdict,
    member,
    number_of,
    optional_member,
)
from runlane._time import to_datetime
from runlane.errors import InteractionNotFound
from runlane.v1 import interaction_pb2 as pb


class PermissionCall(Record):
    """A tool call that asks for permission.

    Attributes:
        tool_call_id: The call.
        name: The tool.
        arguments_json: The arguments as JSON; an answer is bound to them.
    """

    tool_call_id: str
    name: str = ""
    arguments_json: str = ""

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments."""
        return json.loads(self.arguments_json) if self.arguments_json else {}


class PermissionPrompt(Record):
    """May these tool calls run?

    Attributes:
        calls: The calls.
        reason: For people.
    """

    calls: tuple[PermissionCall, ...]
    reason: str = ""


class QuestionPrompt(Record):
    """A question to be answered with text.

    Attributes:
        text: The question.
        options: Answers to choose from, for display only.
        tool_call_id: The tool call that the answer is the result of; empty: none.
    """

    text: str
    options: tuple[str, ...] = ()
    tool_call_id: str = ""


class FormPrompt(Record):
    """A question to be answered with JSON.

    Attributes:
        text: The question.
        json_schema: The JSON Schema that an answer fits.
        tool_call_id: The tool call that the answer is the result of; empty: none.
    """

    text: str
    json_schema: str
    tool_call_id: str = ""


class ExternalPrompt(Record):
    """A wait for some other system, which completes it with its token.

    Attributes:
        reason: For people.
        tool_call_id: The tool call that the completion is the result of; empty: none.
    """

    reason: str = ""
    tool_call_id: str = ""


class Decision(Record):
    """Whether a tool call may run.

    Attributes:
        tool_call_id: The call.
        verdict: Whether it may run.
        reason: For the model.
    """

    tool_call_id: str
    verdict: Verdict
    reason: str = ""


class PermissionAnswer(Record):
    """A decision for each call.

    Attributes:
        decisions: The decisions.
    """

    decisions: tuple[Decision, ...]


class QuestionAnswer(Record):
    """Text.

    Attributes:
        text: The text.
    """

    text: str


class FormAnswer(Record):
    """JSON that fits the form's schema.

    Attributes:
        json_text: The JSON.
    """

    json_text: str


class ExternalAnswer(Record):
    """What the other system said.

    Attributes:
        result_json: Its result as JSON; None where it failed.
        error: What went wrong; empty where nothing did.
    """

    result_json: str | None = None
    error: str = ""


Prompt: TypeAlias = PermissionPrompt | QuestionPrompt | FormPrompt | ExternalPrompt
InteractionAnswer: TypeAlias = PermissionAnswer | QuestionAnswer | FormAnswer | ExternalAnswer
_Decided: TypeAlias = bool | tuple[bool, str]
Answer: TypeAlias = str | _Decided | Mapping[str, Any] | InteractionAnswer


class ProxySource(Record):
    """The question that a proxy shows: that of the run that asks, however deep it is.

    Attributes:
        run_id: The run that asks.
        interaction_id: Its interaction.
        session_id: Its session.
    """

    run_id: str
    interaction_id: str
    session_id: str


class Interaction(Record):
    """A question that a run waits for, and what became of it.

    Attributes:
        interaction_id: Its id.
        run_id: The run that waits.
        session_id: Its session.
        version: The version of the question, from 1; an answer names it.
        state: Whether it waits for an answer.
        kind: What it asks for; `unknown` where the prompt is left out.
        prompt: The question; None where it is left out.
        answer: The answer; None unless it was answered.
        close_reason: Why it ended without one.
        proxy_for: Of a proxy, the question of a child run that it shows: an answer to it is
            one to that question.
        expire_time: When it expires, which ends its run; None: never.
        create_time: When it was opened.
        settle_time: When it was answered or closed.
    """

    interaction_id: str
    run_id: str
    session_id: str
    version: int
    state: InteractionState
    kind: PromptKind
    prompt: Prompt | None
    answer: InteractionAnswer | None
    close_reason: InteractionCloseReason | None
    proxy_for: ProxySource | None
    expire_time: datetime | None
    create_time: datetime | None
    settle_time: datetime | None

    @property
    def calls(self) -> tuple[PermissionCall, ...]:
        """The calls that ask for permission; empty where it asks for something else."""
        return self.prompt.calls if isinstance(self.prompt, PermissionPrompt) else ()


def interaction_from_pb(record: pb.Interaction) -> Interaction:
    """Reads an interaction."""
    kind = record.prompt.WhichOneof("kind")
    return Interaction(
        interaction_id=record.interaction_id,
        run_id=record.run_id,
        session_id=record.session_id,
        version=record.version,
        state=member(InteractionState, record.state),
        kind=PromptKind(kind or "unknown"),
        prompt=prompt_from_pb(record.prompt),
        answer=_answer_from_pb(record.answer),
        close_reason=optional_member(InteractionCloseReason, record.close_reason),
        proxy_for=proxy_source(record.proxy_for) if record.HasField("proxy_for") else None,
        expire_time=to_datetime(record, "expire_time"),
        create_time=to_datetime(record, "create_time"),
        settle_time=to_datetime(record, "settle_time"),
    )


def proxy_source(record: pb.ProxySource) -> ProxySource:
    """Reads the question that a proxy shows."""
    return ProxySource(
        run_id=record.run_id,
        interaction_id=record.interaction_id,
        session_id=record.session_id,
    )


def prompt_from_pb(prompt: pb.Prompt) -> Prompt | None:
    """Reads a prompt; None for one that is left out, or of a kind that is new."""
    match prompt.WhichOneof("kind"):
        case "permission":
            return PermissionPrompt(
                calls=tuple(
                    PermissionCall(
                        tool_call_id=call.tool_call_id,
                        name=call.name,
                        arguments_json=call.arguments_json,
                    )
                    for call in prompt.permission.calls
                ),
                reason=prompt.permission.reason,
            )
        case "question":
            question = prompt.question
            return QuestionPrompt(
                text=question.text,
                options=tuple(question.options),
                tool_call_id=question.tool_call_id,
            )
        case "form":
            form = prompt.form
            return FormPrompt(
                text=form.text, json_schema=form.json_schema, tool_call_id=form.tool_call_id
            )
        case "external":
            external = prompt.external
            return ExternalPrompt(reason=external.reason, tool_call_id=external.tool_call_id)
    return None


def _answer_from_pb(answer: pb.InteractionAnswer) -> InteractionAnswer | None:
    match answer.WhichOneof("kind"):
        case "permission":
            return PermissionAnswer(
                decisions=tuple(
                    Decision(
                        tool_call_id=one.tool_call_id,
                        verdict=member(Verdict, one.verdict),
                        reason=one.reason,
                    )
                    for one in answer.permission.decisions
                )
            )
        case "question":
            return QuestionAnswer(text=answer.question.text)
        case "form":
            return FormAnswer(json_text=answer.form.json)
        case "external":
            said = answer.external
            result = said.result_json if said.HasField("result_json") else None
            return ExternalAnswer(result_json=result, error=said.error)
    return None


def not_found(message: str) -> InteractionNotFound:
    """Makes the error where the client itself looked and found none."""
    reason = InteractionNotFound.REASON
    return InteractionNotFound(reason, message, code=grpc.StatusCode.NOT_FOUND)


def needs_question(answer: Answer) -> bool:
    """Whether what an answer means depends on the question."""
    return isinstance(answer, bool | tuple | Mapping)


def answer_to_pb(answer: Answer, question: Interaction | None = None) -> pb.InteractionAnswer:
    """Writes an answer.

    Args:
        answer: A record; a text for a question; True, False, or one of them with a reason,
            for all calls that ask for permission; a mapping of their ids to such verdicts;
            or a mapping that fills a form.
        question: What is answered; needed for verdicts and mappings.

    Raises:
        ValueError: A call that asks has no verdict, or the answer fits no question.
    """
    if isinstance(answer, str):
        return pb.InteractionAnswer(question=pb.QuestionAnswer(text=answer))
    if isinstance(answer, QuestionAnswer):
        return pb.InteractionAnswer(question=pb.QuestionAnswer(text=answer.text))
    if isinstance(answer, FormAnswer):
        return pb.InteractionAnswer(form=pb.FormAnswer(json=answer.json_text))
    if isinstance(answer, ExternalAnswer):
        return pb.InteractionAnswer(external=external_to_pb(answer.result_json, answer.error))
    if isinstance(answer, PermissionAnswer):
        return _permission(answer.decisions)
    if question is None:
        raise ValueError("what this answer means depends on the question")
    if question.kind is PromptKind.FORM and isinstance(answer, Mapping):
        return pb.InteractionAnswer(form=pb.FormAnswer(json=json.dumps(dict(answer))))
    if question.kind is not PromptKind.PERMISSION:
        raise ValueError(f"a {question.kind} is not answered with {type(answer).__name__}")
    asked = [call.tool_call_id for call in question.calls]
    given: Mapping[str, Any] = (
        answer if isinstance(answer, Mapping) else dict.fromkeys(asked, answer)
    )
    if set(given) != set(asked):
        raise ValueError(f"one verdict for each of {', '.join(asked)} is needed")
    return _permission(_decision(call, given[call]) for call in asked)


def _decision(tool_call_id: str, said: _Decided) -> Decision:
    approved, reason = said if isinstance(said, tuple) else (said, "")
    verdict = Verdict.APPROVE if approved else Verdict.REJECT
    return Decision(tool_call_id=tool_call_id, verdict=verdict, reason=reason)


def _permission(decisions: Iterable[Decision]) -> pb.InteractionAnswer:
    return pb.InteractionAnswer(
        permission=pb.PermissionAnswer(
            decisions=[
                pb.Decision(
                    tool_call_id=one.tool_call_id,
                    verdict=pb.Decision.Verdict.ValueType(number_of(Verdict, one.verdict)),
                    reason=one.reason,
                )
                for one in decisions
            ]
        )
    )


def external_to_pb(result_json: str | None, error: str) -> pb.ExternalAnswer:
    """Writes what another system said.

    Raises:
        ValueError: It is neither a result nor an error, or both.
    """
    if (result_json is None) == (not error):
        raise ValueError("give either a result or an error")
    if result_json is not None:
        return pb.ExternalAnswer(result_json=result_json)
    return pb.ExternalAnswer(error=error)
