"""How things look for people."""

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

import runlane
import typer
from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

# What a terminal would obey instead of showing: all controls but tab and line feed.
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if code not in {9, 10}}
_PREVIEW = 60
# An address may come where none belongs, so of any kind; a path may hold an @.
_USERINFO = re.compile(r"(?i)\b(?!unix:|sqlite:)([a-z][a-z0-9+.-]*:/+)\S*@")
_PASSWORD = re.compile(r"(?i)\b(password=)[^\s&'\"]+")
_KIND_WIDTH = max(
    len(kind)
    for kinds in (runlane.RunEventKind, runlane.SubmissionEventKind, runlane.SessionEventKind)
    for kind in kinds
)

console = Console(highlight=False, soft_wrap=True)


def clean(text: str) -> str:
    """Takes the control characters out of a text that came from elsewhere."""
    return text.translate(_CONTROLS)


def masked(text: str) -> str:
    """Takes passwords out of the addresses in a text."""
    return _PASSWORD.sub(r"\1...", _USERINFO.sub(r"\1...@", text))


def complain(text: str) -> None:
    """Says on stderr what went wrong; each line of it begins with our name."""
    for row in masked(text).splitlines():
        typer.echo(f"runlane: {row}", err=True)


def line(text: str, length: int = _PREVIEW) -> str:
    """Returns the beginning of a text as one line."""
    flat = " ".join(clean(text).split())
    return flat if len(flat) <= length else flat[: length - 1] + "…"


def moment(time: datetime | None) -> str:
    """Returns a time as this machine's clock shows it."""
    return "" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def sessions(items: Iterable[runlane.Session]) -> None:
    """Shows sessions."""
    rows = [
        (
            item.session_id,
            item.state,
            item.current_run_id or "",
            str(item.message_count),
            moment(item.update_time),
            line(item.display_name),
        )
        for item in items
    ]
    _columns(("session", "state", "live run", "messages", "updated", "name"), rows)


def state(run: runlane.Run) -> str:
    """Returns how far a run is, in a few words."""
    if run.stop_reason is not None:
        return str(run.stop_reason)
    if run.ending_cause is not None:
        return f"ending ({run.ending_cause}): waits for {_child_runs(run.live_child_count)}"
    wait = run.waiting_children
    if wait is not None:
        # Of those that it waited for at first some may have ended.
        count = min(len(wait.run_ids), run.live_child_count)
        some = "one of " if wait.mode is runlane.ChildrenMode.ANY and count > 1 else ""
        return f"waits for {some}{_child_runs(count)}"
    return "stalled" if run.stalled else str(run.phase)


def _child_runs(count: int) -> str:
    return f"{count} child run{'' if count == 1 else 's'}"


def runs(items: Iterable[runlane.Run]) -> None:
    """Shows runs."""
    rows = [
        (
            item.run_id,
            item.agent,
            state(item),
            str(item.usage.model_steps_committed),
            moment(item.create_time),
            line(item.input_preview),
        )
        for item in items
    ]
    _columns(("run", "agent", "state", "steps", "created", "input"), rows)


def executors(items: Iterable[runlane.ExecutorStatus]) -> None:
    """Shows executors."""
    rows = [
        (
            item.executor_id,
            "draining" if item.draining else "polls" if item.polling else "",
            str(item.leased_count),
            moment(item.last_poll_time),
            line(", ".join(item.agents)),
        )
        for item in items
    ]
    _columns(("executor", "state", "runs", "last poll", "agents"), rows)


def agents(items: Iterable[runlane.AgentStatus]) -> None:
    """Shows agents."""
    rows = [
        (
            item.name,
            str(item.executor_count),
            str(item.queued_count),
            str(item.leased_count),
            moment(item.last_poll_time) or "never",
        )
        for item in items
    ]
    _columns(("agent", "executors", "runs queued", "at work", "last poll"), rows)


def size(count: float) -> str:
    """Returns a number of bytes for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def children(items: Iterable[runlane.Run]) -> None:
    """Shows child runs."""
    rows = [
        (
            item.parent.tool_call_id if item.parent is not None else "",
            item.run_id,
            item.session_id,
            item.agent,
            state(item),
            line(item.input_preview),
        )
        for item in items
    ]
    _columns(("call", "run", "session", "agent", "state", "input"), rows)


def tool_calls(items: Sequence[runlane.ToolCall]) -> None:
    """Shows tool calls."""
    rows: list[tuple[str, ...]] = [
        (
            item.tool_call_id,
            f"{item.step}.{item.ordinal}",
            line(item.name),
            str(item.outcome or item.state),
            item.child_run_id or "",
            line(item.arguments_json),
            line(item.text),
        )
        for item in items
    ]
    header: tuple[str, ...] = ("call", "step", "tool", "state", "child run", "arguments", "result")
    if not any(item.child_run_id for item in items):
        place = header.index("child run")
        header, *rows = [(*row[:place], *row[place + 1 :]) for row in (header, *rows)]
    _columns(header, rows)


def interaction(item: runlane.Interaction) -> None:
    """Shows what waits for an answer, and how to give it."""
    head = Text(clean(f"{item.interaction_id}  {item.session_id}  {moment(item.create_time)}"))
    console.print(head.append(f"  {item.kind}", style="bold"))
    if item.proxy_for is not None:
        console.print(Text(f"  {asker(item.proxy_for)}", style="dim"))
    for row in question(item):
        console.print(Text(f"  {row}"))


def asker(source: runlane.ProxySource) -> str:
    """Returns who asks a question that shows on a run above."""
    return f"asked by the child run {source.run_id}"


def question(item: runlane.Interaction) -> list[str]:
    """Returns the lines of a question."""
    prompt = item.prompt
    if isinstance(prompt, runlane.PermissionPrompt):
        rows = [clean(prompt.reason)] if prompt.reason else []
        return rows + [call(one.name, one.arguments_json) for one in prompt.calls]
    if isinstance(prompt, runlane.QuestionPrompt):
        return [*clean(prompt.text).splitlines(), *(f"- {line(one)}" for one in prompt.options)]
    if isinstance(prompt, runlane.FormPrompt):
        return [*clean(prompt.text).splitlines(), _fields(prompt.json_schema)]
    if isinstance(prompt, runlane.ExternalPrompt):
        return [clean(prompt.reason or "waits for another system")]
    return []


def _fields(json_schema: str) -> str:
    """Returns what a form asks for: its fields, or its schema where that is no list of fields."""
    try:
        schema = json.loads(json_schema)
        needed = set(schema.get("required", ()))
        told = [
            f"{name} ({field.get('type', 'any')}{'' if name in needed else ', optional'})"
            for name, field in schema["properties"].items()
        ]
    except (ValueError, TypeError, KeyError, AttributeError):
        return line(json_schema, 1000)
    return line(f"a JSON object with {', '.join(told)}", 1000)


def brief(item: runlane.Interaction) -> str:
    """Returns which question it is, in a few words."""
    return f"{item.interaction_id} ({asked(item)})"


def asked(item: runlane.Interaction) -> str:
    """Returns what is asked, in a few words."""
    return line(next(iter(question(item)), str(item.kind)))


def call(name: str, arguments_json: str) -> str:
    """Returns a tool call as a line."""
    return line(f"{name} {arguments_json}", 1000)


def keys(items: Iterable[runlane.ApiKey], *, ended: bool) -> None:
    """Shows API keys; with `ended` also when they were revoked."""
    header = ("id", "name", "namespace", "scopes", "secret", "expires", "revoked")
    rows = [
        (
            item.key_id,
            line(item.name),
            item.namespace,
            ",".join(item.scopes),
            f"…{item.last_characters}",
            moment(item.expire_time),
            moment(item.revoke_time),
        )
        for item in items
    ]
    shown = None if ended else -1
    _columns(header[:shown], [row[:shown] for row in rows])


def _columns(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Shows rows below each other, whole: ids are there to be copied."""
    widths = [max(map(cell_len, column)) for column in zip(header, *rows, strict=True)]
    for row, style in ((header, "bold"), *((row, "") for row in rows)):
        cells = [set_cell_size(cell, width) for cell, width in zip(row, widths, strict=True)]
        console.print(Text("  ".join(cells).rstrip(), style=style))


def more(cursor: str | None) -> None:
    """Says how to go on where a page was not the last."""
    if cursor is not None:
        console.print(Text(f"more: --after {cursor}", style="dim"))


def event(item: runlane.AnyEvent) -> None:
    """Shows an event as a line."""
    kind = "unknown" if isinstance(item, runlane.UnknownEvent) else str(item.kind)
    text = Text(f"{item.sequence:>6}  ", style="dim")
    text.append(f"{moment(item.time)}  ", style="dim")
    text.append(f"{kind:<{_KIND_WIDTH}}  ", style=_style(kind))
    text.append(" ".join(_details(item)))
    text.rstrip()
    console.print(text)


def _style(kind: str) -> str:
    noun = kind.partition(".")[0]
    return {"submission": "yellow", "run": "bold", "message": "green"}.get(noun, "")


def _details(item: runlane.AnyEvent) -> list[str]:
    words: list[str] = []
    if isinstance(item, runlane.SubmissionEvent):
        words += [str(item.route), item.submission_id]
        if item.reason is not None:
            words.append(str(item.reason))
    elif isinstance(item, runlane.RunEvent):
        told = (item.stop_reason, item.failure_reason, item.end_reason, item.author)
        words += [str(word) for word in told if word is not None]
        told_more = (item.tool_outcome, item.close_reason, item.cause)
        words += [str(word) for word in told_more if word is not None]
        names = (item.agent, item.executor_id, item.model, item.tool_name, item.tool_call_id)
        words += [clean(word) for word in (*names, item.interaction_id) if word]
        if item.child_run_id:
            words.append(clean(item.child_run_id))
        if item.children is not None:
            words.append(f"waits for {_child_runs(len(item.children.run_ids))}")
        if item.proxy_for is not None:
            words.append(asker(item.proxy_for))
        if item.message is not None:
            result = item.message.tool_result
            words.append(line(item.message.text if result is None else result.text))
    elif isinstance(item, runlane.SessionEvent) and item.fork_session_id:
        words.append(f"{item.source_session_id} -> {item.fork_session_id}")
    if item.run_id:
        words.append(item.run_id)
    return words


def facts(**values: object) -> None:
    """Shows a few named values, one a line."""
    for name, value in values.items():
        if value not in {None, ""}:
            fact(name.replace("_", " "), str(value))


def fact(name: str, value: str) -> None:
    """Shows a named value."""
    text = Text(f"{name:<12}", style="dim")
    console.print(text.append(clean(value), style="default"))
