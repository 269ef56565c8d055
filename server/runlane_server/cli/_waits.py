"""The commands for runs that wait, are paused, or lost their executor."""

import contextlib
import json
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any

import runlane
import typer
from runlane.errors import SessionNotFound

from runlane_server.cli import _show
from runlane_server.cli._client import (
    DEFAULT_TARGET,
    After,
    AsJson,
    Limit,
    NotDone,
    Target,
    connected,
    emit,
    ending,
    run,
)
from runlane_server.cli._patience import watching

_YES = frozenset({"y", "yes", "approve"})
_FORM = 'a form is filled with a JSON object, such as {"field": "value"}'
_NO = frozenset({"n", "no", "reject"})

SessionId = Annotated[str, typer.Argument(help="The id of the session.", show_default=False)]
RunId = Annotated[
    str,
    typer.Argument(metavar="RUN", help="The id of the run; `runlane runs` lists them."),
]
OnlyRun = Annotated[
    str | None,
    typer.Option(
        "--run", help="Only if this run is the live one.", show_default="whichever is live"
    ),
]


def pause(
    session: SessionId,
    target: Target = DEFAULT_TARGET,
    run_id: OnlyRun = None,
    as_json: AsJson = False,
) -> None:
    """Stop the live run of a session at its next boundary: between two model steps.

    The run keeps its place, and nothing is lost; `runlane unpause` lets it go on.
    """
    run(target, _pause(target, session, run_id, as_json=as_json))


def unpause(
    session: SessionId,
    target: Target = DEFAULT_TARGET,
    run_id: OnlyRun = None,
    as_json: AsJson = False,
) -> None:
    """Let a paused run go on, or take back the request to pause it."""
    run(target, _pause(target, session, run_id, back=True, as_json=as_json))


async def _pause(
    target: str, session: str, run_id: str | None, *, back: bool = False, as_json: bool
) -> None:
    async with connected(target) as client:
        call = client.unpause if back else client.pause
        answer = await call(session, run_id=run_id)
    if as_json:
        emit(answer)
    else:
        _show.facts(run=answer.run.run_id, receipt=answer.receipt)


def inbox(
    session: Annotated[
        str | None, typer.Option(help="Only this session.", show_default="all sessions")
    ] = None,
    target: Target = DEFAULT_TARGET,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """List the questions that wait for an answer, the oldest first.

    A question of a child run is listed once, with the session of the child. With --session
    those of child runs below that session are listed too. It is all the same where such a
    question is answered.
    """
    run(target, _inbox(target, session, limit, after, as_json=as_json))


async def _inbox(
    target: str, session: str | None, limit: int, after: str | None, *, as_json: bool
) -> None:
    async with connected(target) as client:
        page = await client.list_interactions(session, limit=limit, after=after)
    if as_json:
        emit({"items": page.items, "next_cursor": page.next_cursor})
        return
    for item in page.items:
        _show.interaction(item)
    _show.more(page.next_cursor)


def tools(
    run_id: RunId,
    target: Target = DEFAULT_TARGET,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """List the tool calls of a run, and how far each got.

    Where a call was given to another agent, its child run is named too; `runlane children`
    tells of that.
    """
    run(target, _tools(target, run_id, limit, after, as_json=as_json))


async def _tools(target: str, run_id: str, limit: int, after: str | None, *, as_json: bool) -> None:
    async with connected(target) as client:
        page = await client.list_tool_calls(run_id, limit=limit, after=after)
    if as_json:
        emit({"items": page.items, "next_cursor": page.next_cursor})
        return
    _show.tool_calls(page.items)
    _show.more(page.next_cursor)


def answer(
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT",
            help="The id of the question (`runlane inbox` lists them), or of its session where "
            "one question alone is open in it. For what a child run asks, the session of a run "
            "above it will do too.",
            show_default=False,
        ),
    ],
    text: Annotated[
        str | None,
        typer.Argument(
            help="The answer: a text to a question, JSON to a form, y or n (and why) to tools "
            "that ask whether they may run. - reads it from stdin.",
            show_default=False,
        ),
    ] = None,
    target: Target = DEFAULT_TARGET,
    approve: Annotated[
        bool | None,
        typer.Option(
            "--approve/--reject",
            help="In place of a text: whether the tool calls may run.",
            show_default=False,
        ),
    ] = None,
    but: Annotated[
        list[str] | None,
        typer.Option(
            "--but",
            help="With --approve or --reject: the id of a tool call that gets the other verdict. "
            "Give it again for more.",
        ),
    ] = None,
    reason: Annotated[
        str, typer.Option(help="With --approve or --reject: why, for the model.")
    ] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the run stops, and print its answer.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Answer what a run waits for; the run goes on.

    It says which question was answered. Where a session has several open, name one by its id.
    """
    if (text is None) == (approve is None):
        raise typer.BadParameter("give either a text, or --approve or --reject")
    if approve is None and (but or reason):
        option = "--but" if but else "--reason"
        raise typer.BadParameter(f"{option} goes with --approve or --reject, not with a text")
    said = sys.stdin.read() if text == "-" else text
    run(
        target,
        _answer(target, what, said, approve, but or [], reason, wait=wait, as_json=as_json),
    )


async def _answer(
    target: str,
    what: str,
    text: str | None,
    approve: bool | None,
    but: list[str],
    reason: str,
    *,
    wait: bool,
    as_json: bool,
) -> None:
    async with connected(target) as client:
        asked = await _find(client, what)
        receipt = await client.answer(
            asked.run_id,
            asked.interaction_id,
            asked.version,
            _said(asked, text, approve, but, reason),
        )
        result = None
        if wait:
            if what != asked.interaction_id and not as_json:
                typer.echo(f"answered {_show.brief(asked)}", err=True)
            async with watching(client, asked.run_id):
                result = await client.wait_run(asked.run_id, until="stopped")
    if as_json:
        extra = {} if result is None else {"run": result.run, "output": result.output}
        emit({"receipt": receipt, **extra})
    elif result is None:
        _show.facts(
            run=receipt.run_id,
            interaction=receipt.interaction_id,
            asked=_show.asked(asked),
            state="answered",
        )
    elif result.output is not None:
        sys.stdout.write(_show.clean(result.text) + "\n")
    if result is not None and (problem := ending(result)) is not None:
        raise NotDone(problem)


async def _find(client: runlane.Client, what: str) -> runlane.Interaction:
    """Finds what is open by its own id, or by its session where it is alone there."""
    here = [item async for item in open_interactions(client, what) if item.session_id == what]
    if here:
        return _only(what, here)
    asking: set[str] = set()
    async for item in open_interactions(client, None):
        if what == item.interaction_id:
            return item
        asking.add(item.session_id)
    # The inbox does not list what shows on the runs above a child run: those are looked at last.
    above: set[str] = set()
    for session in asking:
        # A session that was deleted meanwhile asks nothing.
        with contextlib.suppress(SessionNotFound):
            lineage = await runlane.SessionHistory(client).lineage(session, limit=1)
            above |= {parent.session_id for parent in lineage.parents}
    for session in above:
        async for item in open_interactions(client, session):
            if item.interaction_id == what:
                return item
    raise NotDone(f"nothing waits for an answer at {what}; `runlane inbox` lists what does")


def _only(session: str, items: list[runlane.Interaction]) -> runlane.Interaction:
    """Returns the one that a person can answer; what waits for other systems counts last."""
    external = runlane.PromptKind.EXTERNAL
    ours = [item for item in items if item.kind is not external] or items
    if len(ours) > 1:
        listed = "; ".join(map(_show.brief, ours))
        raise NotDone(f"{len(ours)} questions are open in {session}; name one by its id: {listed}")
    return ours[0]


async def open_interactions(
    client: runlane.Client, session: str | None
) -> AsyncIterator[runlane.Interaction]:
    """Yields what is open in a session, or in the inbox, the oldest first."""
    after: str | None = None
    while True:
        page = await client.list_interactions(session, after=after, limit=1000)
        for item in page.items:
            yield item
        after = page.next_cursor
        if after is None:
            return


def _said(
    asked: runlane.Interaction,
    text: str | None,
    approve: bool | None,
    but: list[str],
    reason: str,
) -> runlane.Answer:
    if text is not None:
        return given(asked, text)
    if not asked.calls:
        raise ValueError(f"this is a {asked.kind}, and no tool asks whether it may run")
    unknown = [key for key in but if key not in {call.tool_call_id for call in asked.calls}]
    if unknown:
        raise ValueError(f"{unknown[0]} is no call that asks")
    return {
        call.tool_call_id: ((call.tool_call_id in but) != bool(approve), reason)
        for call in asked.calls
    }


def given(asked: runlane.Interaction, text: str) -> runlane.Answer:
    """Reads what a person typed as an answer.

    Raises:
        ValueError: It fits no such question.
    """
    if asked.kind is runlane.PromptKind.QUESTION:
        return text
    if asked.kind is runlane.PromptKind.PERMISSION:
        word, _, reason = text.strip().partition(" ")
        if word.lower() not in _YES | _NO:
            raise ValueError("say y or n, and after it why if you like")
        return (word.lower() in _YES, reason.strip())
    if asked.kind is runlane.PromptKind.FORM:
        try:
            filled: Any = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{_FORM}; this is no JSON: {error}") from None
        if not isinstance(filled, dict):
            raise ValueError(_FORM)
        return filled
    raise ValueError("this waits for another system, and not for a person")


def restore(
    run_id: RunId,
    target: Target = DEFAULT_TARGET,
    activation: Annotated[
        str | None,
        typer.Option(
            help="Only if this is still its activation, the turn of an executor at it.",
            show_default="the current one",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also where an executor has it, which is cut off then."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Bring back a run whose executor was lost, so that another one takes it."""
    run(target, _restore(target, run_id, activation, force=force, as_json=as_json))


async def _restore(
    target: str, run_id: str, activation: str | None, *, force: bool, as_json: bool
) -> None:
    async with connected(target) as client:
        if activation is None:
            current = (await client.get_run(run_id)).activation
            activation = current.activation_id if current is not None else None
        done = await client.restore(run_id, activation, force=force)
    if as_json:
        emit(done)
        return
    _show.facts(run=done.run.run_id, outcome=done.outcome, state=_show.state(done.run))
