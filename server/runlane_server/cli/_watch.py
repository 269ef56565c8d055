"""The commands that show how a server is doing, and what happens there."""

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
    client_of,
    connected,
    emit,
    run,
)

HEALTH_SECONDS = 5.0


def health(target: Target = DEFAULT_TARGET) -> None:
    """Ask whether a server takes calls, and its store writes: SERVING, or the end is 1.

    It is made to be asked often: by a container, or a supervisor.
    """
    run(target, _health(target))


async def _health(target: str) -> None:
    async with client_of(target, HEALTH_SECONDS) as client:
        if not await client.healthy():
            raise NotDone("NOT_SERVING: it is stopping, or its store takes no writes")
    _show.console.print("SERVING")


def overview(target: Target = DEFAULT_TARGET, as_json: AsJson = False) -> None:
    """Show what lives, waits, is queued and is connected at a server."""
    run(target, _overview(target, as_json=as_json))


async def _overview(target: str, *, as_json: bool) -> None:
    async with connected(target) as client:
        found = await client.overview()
    if as_json:
        emit(found)
        return
    for name, value in _told(found):
        _show.fact(name, value)


def _told(found: runlane.Overview) -> list[tuple[str, str]]:
    more = ", of those that changed last" if found.more_sessions else ""
    queued = str(found.queued_activation_count)
    if found.oldest_queued_seconds is not None:
        queued += f", the oldest for {found.oldest_queued_seconds:.0f} s"
    runs = f", {found.waiting_run_count} waiting, {found.paused_run_count} paused"
    stalled = f" ({found.stalled_run_count} stalled)" if found.stalled_run_count else ""
    quotas = [
        f"{name} {_amount(name, one.used)} of {_amount(name, one.limit)}"
        for name, one in found.quotas.items()
    ]
    refused = "" if found.store_available else ", takes no writes"
    return [
        ("sessions", f"{found.open_session_count} open, {found.closed_session_count} closed{more}"),
        ("live runs", f"{found.active_run_count} active{stalled}{runs}"),
        ("questions", str(found.open_interaction_count)),
        ("queued", queued),
        ("leased", str(found.leased_activation_count)),
        ("executors", str(found.executor_count)),
        ("streams", str(found.stream_count)),
        ("store", _show.size(found.store_size_bytes) + refused),
        *([("quotas", ", ".join(quotas))] if quotas else []),
    ]


def _amount(quota: str, value: int) -> str:
    return _show.size(value) if "bytes" in quota else str(value)


def executors(
    target: Target = DEFAULT_TARGET,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """List the executors that poll or did within the last hour, or are at work, by id."""
    run(target, _executors(target, limit, after, as_json=as_json))


async def _executors(target: str, limit: int, after: str | None, *, as_json: bool) -> None:
    async with connected(target) as client:
        page = await client.list_executors(limit=limit, after=after)
    if as_json:
        emit({"items": page.items, "next_cursor": page.next_cursor})
        return
    _show.executors(page.items)
    _show.more(page.next_cursor)


def feed(
    target: Target = DEFAULT_TARGET,
    after: Annotated[
        str | None,
        typer.Option(
            help="Go on after a cursor that was printed before, however long ago.",
            show_default="from the first event",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            help="Only events of this kind, such as run.terminal; give it again for more.",
            show_default="all",
        ),
    ] = None,
    messages: Annotated[
        bool, typer.Option("--messages", help="With the messages that were appended.")
    ] = False,
) -> None:
    """Print the events of all sessions as JSON, one a line, to index, bill or audit.

    Each line has the event and its cursor. The last line of a run that ends has a cursor alone:
    where the next one goes on.
    """
    run(target, _feed(target, after, kind or [], follow=follow, messages=messages))


async def _feed(
    target: str, after: str | None, kinds: list[str], *, follow: bool, messages: bool
) -> None:
    async with (
        connected(target) as client,
        client.feed(after=after, follow=follow, types=kinds, include_messages=messages) as items,
    ):
        try:
            async for cursor, event in items:
                emit({"cursor": cursor, "event": event})
        except runlane.ServiceError as error:
            if error.reason not in {"PAGE_TOKEN_INVALID", "PAGE_TOKEN_MISMATCH"}:
                raise
            raise NotDone(
                f"{error.reason}: --after takes a cursor that `runlane feed` printed in this "
                "namespace, and none from before the store was restored; without it the feed "
                "begins with the first event"
            ) from None
        emit({"cursor": items.cursor})


def agents(
    target: Target = DEFAULT_TARGET,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """List the agents that executors poll for or did, or that runs wait for, by name."""
    run(target, _agents(target, limit, after, as_json=as_json))


async def _agents(target: str, limit: int, after: str | None, *, as_json: bool) -> None:
    async with connected(target) as client:
        page = await client.list_agents(limit=limit, after=after)
    if as_json:
        emit({"items": page.items, "next_cursor": page.next_cursor})
        return
    _show.agents(page.items)
    _show.more(page.next_cursor)
