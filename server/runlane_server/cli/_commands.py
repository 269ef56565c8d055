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
    check_session,
    connected,
    emit,
    ending,
    run,
)
from runlane_server.cli._patience import watching

SessionId = Annotated[str, typer.Argument(help="The id of the session.", show_default=False)]
Agent = Annotated[
    str | None,
    typer.Option(
        help="The agent that is to answer. A session that is created with it keeps it as its own; "
        "in one that is there it is for this run alone.",
        show_default="the session's",
    ),
]


def sessions(
    target: Target = DEFAULT_TARGET,
    label: Annotated[
        list[str] | None,
        typer.Option(help="Only with this label, KEY=VALUE; give it again for more."),
    ] = None,
    state: Annotated[
        str | None, typer.Option(help="Only those that are open, or closed.", show_default="both")
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            help="created_desc (the newest first), created_asc, or updated_desc (the one that "
            "changed last first)."
        ),
    ] = "updated_desc",
    roots_only: Annotated[
        bool,
        typer.Option("--roots-only", help="Only those that are neither forks nor of child runs."),
    ] = False,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """List sessions."""
    call = _sessions(
        target,
        label or [],
        state,
        order,
        limit,
        after,
        roots_only=roots_only,
        as_json=as_json,
    )
    run(target, call)


async def _sessions(
    target: str,
    label: list[str],
    state: str | None,
    order: str,
    limit: int,
    after: str | None,
    *,
    roots_only: bool,
    as_json: bool,
) -> None:
    pairs = [text.partition("=") for text in label]
    if any(not equals for _, equals, _ in pairs):
        raise ValueError("--label takes KEY=VALUE")
    labels = {key: value for key, _, value in pairs}
    async with connected(target) as client:
        page = await client.list_sessions(
            labels=labels,
            state=state,
            roots_only=roots_only,
            order=order,
            limit=limit,
            after=after,
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


def children(
    run_id: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="The id of the run that gave work away; `runlane runs` lists runs.",
            show_default=False,
        ),
    ],
    target: Target = DEFAULT_TARGET,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """List the child runs of a run: the work that it gave to other agents.

    An agent may let another agent answer a tool call. That is a child run, in a session of its
    own; its answer is the result of the call. It may have child runs itself. The first one is
    listed first.
    """
    run(target, _children(target, run_id, limit, after, as_json=as_json))


async def _children(
    target: str, run_id: str, limit: int, after: str | None, *, as_json: bool
) -> None:
    async with connected(target) as client:
        page = await client.list_child_runs(run_id, limit=limit, after=after)
    if as_json:
        emit({"items": page.items, "next_cursor": page.next_cursor})
        return
    _show.children(page.items)
    _show.more(page.next_cursor)


def tail(
    session: SessionId,
    target: Target = DEFAULT_TARGET,
    after: Annotated[
        int, typer.Option(min=0, help="Begin after the event of this number; 0: at the first.")
    ] = 0,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Go on with what comes, or end.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Print the events of a session and follow what comes, until Ctrl-C."""
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
        str,
        typer.Option(
            help="Where a run is live already: start is refused; auto and steer add the input "
            "to that run; queue and follow_up make a run of it afterwards; replace cancels "
            "that run first. Where none is: steer and follow_up are refused, the others start one."
        ),
    ] = "start",
    agent: Agent = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the run has ended and print its answer.")
    ] = False,
    wait_seconds: Annotated[
        float | None,
        typer.Option(min=0, help="Wait, but no longer than this.", show_default="no limit"),
    ] = None,
    request_id: Annotated[
        str | None, typer.Option(help="Any id: the same one again submits nothing twice.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say something to an agent: give a session an input, which starts or steers a run.

    A session that does not exist is created.
    """
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
    check_session(session)
    async with connected(target) as client:
        receipt = await client.submit(
            content,
            session,
            mode=mode,
            options=runlane.RunOptions(agent=agent) if agent else None,
            create=True,
            default_agent=agent or "",
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
        async with watching(client, receipt.run_id):
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
        str | None,
        typer.Option(
            "--run", help="Only if this run is the live one.", show_default="whichever is live"
        ),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why, for people: kept with the run.")] = "",
    wait_seconds: Annotated[
        float, typer.Option(min=0, max=300, help="Wait so long for the run to end.")
    ] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Cancel the live run of a session, and its child runs.

    Inputs that wait for runs of their own stay queued.
    """
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
    ends = answer.settled or answer.run.ending_cause is not None
    state = _show.state(answer.run) if ends else "cancellation requested"
    _show.facts(run=answer.run.run_id, state=state)


def withdraw(
    submission: Annotated[
        str, typer.Argument(help="The id that `runlane submit` printed.", show_default=False)
    ],
    target: Target = DEFAULT_TARGET,
    as_json: AsJson = False,
) -> None:
    """Take back an input that is still pending: no run has taken it up yet."""
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
        str,
        typer.Argument(
            metavar="RUN",
            help="The id of a run that has ended; `runlane runs` lists them.",
            show_default=False,
        ),
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
    """Make a new session that begins with all that was said up to the end of a run."""
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
