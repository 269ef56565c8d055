"""The commands that make one call, or follow one stream."""

import sys
from typing import Annotated

import runlane
import typer

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

SessionId = Annotated[str, typer.Argument(help="The session.", show_default=False)]
Agent = Annotated[
    str | None, typer.Option(help="The agent that is to run.", show_default="the session's")
]


def sessions(
    target: Target = DEFAULT_TARGET,
    label: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE; give it again for more.")
    ] = None,
    state: Annotated[str | None, typer.Option(help="open or closed.")] = None,
    order: Annotated[
        str, typer.Option(help="created_desc, created_asc or updated_desc.")
    ] = "updated_desc",
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """List sessions."""
    run(target, _sessions(target, label or [], state, order, limit, after, as_json=as_json))


async def _sessions(
    target: str,
    label: list[str],
    state: str | None,
    order: str,
    limit: int,
    after: str | None,
    *,
    as_json: bool,
) -> None:
    pairs = [text.partition("=") for text in label]
    if any(not equals for _, equals, _ in pairs):
        raise ValueError("--label takes KEY=VALUE")
    labels = {key: value for key, _, value in pairs}
    async with connected(target) as client:
        page = await client.list_sessions(
            labels=labels, state=state, order=order, limit=limit, after=after
        )
    if as_json:
        emit({"items": page.items, "next_cursor": page.next_cursor})
        return
    _show.sessions(page.items)
    _show.more(page.next_cursor)


def runs(
    session: SessionId,
    target: Target = DEFAULT_TARGET,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """List the runs of a session, the first one first."""
    run(target, _runs(target, session, limit, after, as_json=as_json))


async def _runs(target: str, session: str, limit: int, after: str | None, *, as_json: bool) -> None:
    async with connected(target) as client:
        page = await client.list_runs(session, limit=limit, after=after)
    if as_json:
        emit({"items": page.items, "next_cursor": page.next_cursor})
        return
    _show.runs(page.items)
    _show.more(page.next_cursor)


def tail(
    session: SessionId,
    target: Target = DEFAULT_TARGET,
    after: Annotated[
        int, typer.Option(min=0, help="Begin after this sequence; 0: at the first event.")
    ] = 0,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Go on with what comes.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Follow the events of a session."""
    run(target, _tail(target, session, after, follow=follow, as_json=as_json))


async def _tail(target: str, session: str, after: int, *, follow: bool, as_json: bool) -> None:
    async with (
        connected(target) as client,
        client.events(
            session, after_sequence=after, follow=follow, include_messages=True
        ) as events,
    ):
        async for item in events:
            if as_json:
                emit(item)
            elif isinstance(item, runlane.Event):
                _show.event(item)


def submit(
    session: SessionId,
    text: Annotated[
        str, typer.Argument(help="The input; - reads it from stdin.", show_default=False)
    ],
    target: Target = DEFAULT_TARGET,
    mode: Annotated[
        str, typer.Option(help="start, auto, queue, steer, follow_up or replace.")
    ] = "start",
    agent: Agent = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end of the run and print its answer.")
    ] = False,
    wait_seconds: Annotated[
        float | None,
        typer.Option(min=0, help="The longest that --wait waits.", show_default="no limit"),
    ] = None,
    request_id: Annotated[
        str | None, typer.Option(help="Submit once, however often this is run.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give a session an input. A session that does not exist is created."""
    content = sys.stdin.read() if text == "-" else text
    call = _submit(
        target,
        session,
        content,
        mode=mode,
        agent=agent,
        wait=wait or wait_seconds is not None,
        wait_seconds=wait_seconds,
        request_id=request_id,
        as_json=as_json,
    )
    run(target, call)


async def _submit(
    target: str,
    session: str,
    content: str,
    *,
    mode: str,
    agent: str | None,
    wait: bool,
    wait_seconds: float | None,
    request_id: str | None,
    as_json: bool,
) -> None:
    async with connected(target) as client:
        receipt = await client.submit(
            content,
            session,
            mode=mode,
            options=runlane.RunOptions(agent=agent) if agent else None,
            create=True,
            request_id=request_id,
        )
        if not wait:
            if as_json:
                emit(receipt)
            else:
                _show.facts(
                    submission=receipt.submission_id,
                    run=receipt.run_id,
                    route=receipt.route,
                    state=receipt.state,
                )
            return
        result = await client.wait_run(receipt.run_id, timeout=wait_seconds, until="stopped")
    if as_json:
        emit({"receipt": receipt, "run": result.run, "output": result.output})
    elif result.output is not None:
        sys.stdout.write(_show.clean(result.text) + "\n")
    problem = ending(result)
    if problem is not None:
        raise NotDone(problem)


def interrupt(
    session: SessionId,
    target: Target = DEFAULT_TARGET,
    run_id: Annotated[
        str | None, typer.Option("--run", help="Only this run.", show_default="the live one")
    ] = None,
    reason: Annotated[str, typer.Option(help="For people.")] = "",
    wait_seconds: Annotated[
        float, typer.Option(min=0, max=300, help="How long to wait for the run to end.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Ask for the live run of a session to be cancelled. Next runs stay queued."""
    run(target, _interrupt(target, session, run_id, reason, wait_seconds, as_json=as_json))


async def _interrupt(
    target: str,
    session: str,
    run_id: str | None,
    reason: str,
    wait_seconds: float,
    *,
    as_json: bool,
) -> None:
    async with connected(target) as client:
        answer = await client.interrupt(session, run_id=run_id, reason=reason, wait=wait_seconds)
    if as_json:
        emit(answer)
        return
    state = answer.run.stop_reason if answer.settled else "cancellation requested"
    _show.facts(run=answer.run.run_id, state=state)


def withdraw(
    submission: Annotated[str, typer.Argument(help="The submission.", show_default=False)],
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Take back an input that is still pending."""
    run(target, _withdraw(target, submission, as_json=as_json))


async def _withdraw(target: str, submission: str, *, as_json: bool) -> None:
    async with connected(target) as client:
        answer = await client.withdraw(submission)
    if as_json:
        emit(answer)
    else:
        _show.facts(submission=answer.submission_id, state=answer.state)


def fork(
    source: Annotated[
        str, typer.Argument(metavar="RUN", help="The run that has ended.", show_default=False)
    ],
    target: Target = DEFAULT_TARGET,
    session_id: Annotated[
        str | None, typer.Option(help="Id of the new session.", show_default="a new one")
    ] = None,
    first: Annotated[
        str | None, typer.Option("--input", help="A first input for the new session.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a new session with the history at the end of a run."""
    run(target, _fork(target, source, session_id, first, as_json=as_json))


async def _fork(
    target: str, source: str, session_id: str | None, first: str | None, *, as_json: bool
) -> None:
    async with connected(target) as client:
        answer = await runlane.SessionHistory(client).fork(source, session_id, input=first)
    if as_json:
        emit(answer)
        return
    _show.facts(
        session=answer.session_id,
        forked_from=answer.forked_from_run_id,
        messages=answer.message_count,
        run=answer.submission.run_id if answer.submission else None,
    )
