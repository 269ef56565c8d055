"""`runlane chat`: a conversation that is typed into while it answers."""

import asyncio
import codecs
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from typing import Annotated

import runlane
import typer
from rich.text import Text
from runlane.errors import RunlaneError

from runlane_server.cli import _show
from runlane_server.cli._client import (
    DEFAULT_TARGET,
    AsJson,
    NotDone,
    Target,
    check_session,
    connected,
    dump,
    emit,
    ending,
    run,
)
from runlane_server.cli._patience import alone, every_moment, watching
from runlane_server.cli._waits import given, open_interactions

_EARLIER_MESSAGES = 20
_LINES_AHEAD = 64


def chat(
    session: Annotated[
        str,
        typer.Argument(
            help="The id of the session; created if it is not there.", show_default=False
        ),
    ],
    target: Target = DEFAULT_TARGET,
    agent: Annotated[
        str | None, typer.Option(help="The agent to talk to.", show_default="the session's")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Talk to an agent.

    What you type while it answers steers it, and where it asks something answers that: y or n
    where tools ask whether they may run. What other agents ask that it gave work to, you answer
    here too. Ctrl-C interrupts the run, Ctrl-D leaves.

    Where stdin is no terminal each line is an input of its own, and each answer is printed
    when its run has ended. Where a run asks something, the next line answers it.
    """
    live = sys.stdin.isatty()
    if live and as_json:
        _show.complain("--json is for input from a pipe or a file")
        raise typer.Exit(2)
    run(target, _chat(target, session, agent, live=live, as_json=as_json))


async def _chat(target: str, session: str, agent: str | None, *, live: bool, as_json: bool) -> None:
    check_session(session)
    async with connected(target) as client:
        await client.create_session(session, default_agent=agent or "", if_exists="return")
        options = runlane.RunOptions(agent=agent) if agent else None
        lines = _Lines(sys.stdin.fileno())
        if live:
            await _Conversation(client, session, options, lines).hold()
        else:
            await _answer(client, session, options, lines, as_json=as_json)


async def _answer(
    client: runlane.Client,
    session: str,
    options: runlane.RunOptions | None,
    lines: "_Lines",
    *,
    as_json: bool,
) -> None:
    """Gives each line a run of its own and prints the answers."""
    problems = 0
    while (text := await lines.next()) is not None:
        if not text.strip():
            continue
        receipt = await client.submit(text, session, mode="queue", options=options)
        try:
            async with watching(client, receipt.run_id):
                result = await _settle(client, receipt.run_id, lines)
        except asyncio.CancelledError:
            await client.interrupt(run_id=receipt.run_id, reason="interrupted at the terminal")
            raise
        if as_json:
            emit({"receipt": receipt, "run": result.run, "output": result.output})
        elif result.output is not None:
            sys.stdout.write(_show.clean(result.text) + "\n")
            sys.stdout.flush()
        problem = ending(result)
        if problem is not None:
            problems += 1
            _show.complain(_show.line(problem, 1000))
    if problems:
        raise NotDone(f"{problems} of the runs did not complete")


async def _settle(client: runlane.Client, run_id: str, lines: "_Lines") -> runlane.RunResult:
    """Waits for the end of a run, and answers what it asks with the lines that follow."""
    while True:
        result = await client.wait_run(run_id, until="stopped")
        asked = result.interaction
        if asked is None and not result.run.terminal:
            result = await client.wait_run(run_id)
        if asked is None or asked.kind is runlane.PromptKind.EXTERNAL:
            return result
        for row in _show.question(asked):
            typer.echo(f"? {row}", err=True)
        text = await lines.next()
        if text is None:
            return result
        try:
            answer = given(asked, text)
            await client.answer(run_id, asked.interaction_id, asked.version, answer)
        except (ValueError, RunlaneError) as error:
            _show.complain(_show.line(str(error), 1000))


_NOTHING_RUNS = "nothing runs; Ctrl-D leaves"


class _Lines:
    """The lines of stdin.

    A thread reads them: a file cannot be waited for, and a read that waits for a person
    must not keep the program from ending, as one through Python's own buffers would.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[str | None] = asyncio.Queue(_LINES_AHEAD)
        self._ended = False
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    async def next(self) -> str | None:
        """Returns the next line; None at the end, and from then on."""
        if self._ended:
            return None
        line = await self._queue.get()
        self._ended = line is None
        return line

    def _read(self) -> None:
        # What it raises says that the loop has ended, and the program with it.
        with contextlib.suppress(RuntimeError, CancelledError):
            for line in self._split():
                self._put(line)
            self._put(None)

    def _split(self) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        held = ""
        # A terminal that was hung up is at its end too.
        with contextlib.suppress(OSError):
            while data := os.read(self._descriptor, 65536):
                *lines, held = (held + decoder.decode(data)).split("\n")
                yield from lines
        if held:
            yield held

    def _put(self, line: str | None) -> None:
        putting = self._queue.put(line)
        try:
            asyncio.run_coroutine_threadsafe(putting, self._loop).result()
        finally:
            putting.close()


class _Answer:
    """The text of an answer on its way, as far as it is on the screen."""

    def __init__(self, model_stream_id: str) -> None:
        self.model_stream_id = model_stream_id
        self._blocks: dict[int, tuple[int, str]] = {}
        self._shown = ""

    def take(self, delta: runlane.Delta) -> str:
        """Takes a piece and returns what is to be written."""
        revision, text = self._blocks.get(delta.block_index, (0, ""))
        if delta.snapshot_text is not None:
            text = delta.snapshot_text
        elif delta.append_text is not None and delta.base_revision == revision:
            text += delta.append_text
        else:
            return ""
        self._blocks[delta.block_index] = (delta.revision, text)
        return self._write("".join(text for _, (_, text) in sorted(self._blocks.items())))

    def replace(self, text: str) -> str:
        """Takes the committed text and returns what is to be written."""
        return self._write(text)

    def _write(self, text: str) -> str:
        shown, self._shown = self._shown, text
        if text.startswith(shown):
            return text.removeprefix(shown)
        # What stands there cannot be taken back: the text begins again below it.
        return f"\n{text}"


class _Conversation:
    """A conversation at a terminal."""

    def __init__(
        self,
        client: runlane.Client,
        session: str,
        options: runlane.RunOptions | None,
        lines: _Lines,
    ) -> None:
        self._client = client
        self._session = session
        self._options = options
        self._lines = lines
        self._run_id: str | None = None
        # What is asked, the oldest first; what is typed next answers the one that is shown.
        self._open: dict[str, runlane.Interaction] = {}
        self._asked: runlane.Interaction | None = None
        self._shown_external: set[str] = set()
        self._answered: set[str] = set()
        self._answer: _Answer | None = None
        self._mine: set[str] = set()
        self._submitting = asyncio.Lock()
        self._interrupting: asyncio.Task[None] | None = None
        self._left = asyncio.Event()

    async def hold(self) -> None:
        """Talks until stdin ends or the session does."""
        state = await self._client.live_state(self._session, message_limit=_EARLIER_MESSAGES)
        for message in state.messages:
            self._message(message)
        if state.run is not None:
            self._run_id = state.run.run_id
        self._ask(await self._read_open())
        self._note("Ctrl-C interrupts the run, Ctrl-D leaves")
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        events = self._client.events(
            self._session,
            after_sequence=state.sequence,
            include_messages=True,
            include_deltas=True,
        )
        tasks = {
            asyncio.create_task(self._follow(events)),
            asyncio.create_task(self._type()),
            asyncio.create_task(self._leave()),
            asyncio.create_task(self._look_for_executors()),
        }
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await events.aclose()

    async def _leave(self) -> None:
        await self._left.wait()

    async def _look_for_executors(self) -> None:
        """Says once of each run that nobody polls for its agent."""
        told: str | None = None
        async for _ in every_moment():
            run_id = self._run_id
            if run_id is not None and run_id != told:
                problem = await alone(self._client, run_id)
                # It may have ended while the server was asked.
                if problem is not None and run_id == self._run_id:
                    told = run_id
                    self._note(problem)

    def _on_interrupt(self) -> None:
        if self._run_id is None:
            self._note(_NOTHING_RUNS)
        elif self._interrupting is None or self._interrupting.done():
            self._interrupting = asyncio.create_task(self._interrupt(self._run_id))
        else:
            # It was asked for already, and the server does not answer.
            self._left.set()

    async def _interrupt(self, run_id: str) -> None:
        try:
            asked = await self._client.interrupt(
                run_id=run_id, reason="interrupted at the terminal"
            )
        except RunlaneError as error:
            self._note(str(error))
        else:
            # It had ended, and the event of that is still on its way here.
            if asked.settled and asked.run.stop_reason is not runlane.StopReason.CANCELLED:
                self._note(_NOTHING_RUNS)

    async def _type(self) -> None:
        while (text := await self._lines.next()) is not None:
            if not text.strip():
                continue
            if self._asked is not None:
                await self._reply(self._asked, text)
                continue
            try:
                # The events of it are shown once it is known as typed here.
                async with self._submitting:
                    receipt = await self._client.submit(
                        text, self._session, mode="auto", on_miss="follow_up", options=self._options
                    )
                    self._mine.add(receipt.submission_id)
            except RunlaneError as error:
                self._note(str(error))

    async def _reply(self, asked: runlane.Interaction, text: str) -> None:
        try:
            await self._client.answer(
                asked.run_id, asked.interaction_id, asked.version, given(asked, text)
            )
        except (ValueError, RunlaneError) as error:
            self._note(str(error))
        else:
            self._answered.add(asked.interaction_id)
            self._settled(asked.interaction_id)

    async def _read_open(self) -> list[runlane.Interaction]:
        return [one async for one in open_interactions(self._client, self._session)]

    def _ask(self, items: Iterable[runlane.Interaction]) -> None:
        """Takes what the run, or a child run of it, waits for, and shows what is new."""
        # What was answered meanwhile may still be open in a list that was read before.
        self._open = {
            one.interaction_id: one for one in items if one.interaction_id not in self._answered
        }
        self._show_next()

    def _settled(self, interaction_id: str) -> None:
        """Forgets a question, and shows the next one where there is one."""
        self._open.pop(interaction_id, None)
        self._show_next()

    def _show_next(self) -> None:
        """Shows the oldest question, unless one stands there; what is typed answers that."""
        if self._asked is not None and self._asked.interaction_id not in self._open:
            self._asked = None
        for asked in self._open.values():
            if asked.kind is runlane.PromptKind.EXTERNAL:
                if asked.interaction_id not in self._shown_external:
                    self._shown_external.add(asked.interaction_id)
                    self._question(asked)
            elif self._asked is None:
                self._asked = asked
                self._question(asked)

    def _question(self, asked: runlane.Interaction) -> None:
        self._end_line()
        if asked.proxy_for is not None:
            self._note(_show.asker(asked.proxy_for))
        for row in _show.question(asked):
            self._write(f"? {row}\n", "bold yellow")
        if asked.kind is runlane.PromptKind.PERMISSION:
            self._note("y lets them run, n does not")

    async def _follow(self, events: runlane.EventStream) -> None:
        async for item in events:
            if isinstance(item, runlane.Delta):
                self._piece(item)
            elif isinstance(item, runlane.RunEvent):
                await self._run_event(item)
            elif isinstance(item, runlane.SubmissionEvent):
                self._submission_event(item)
        self._note("the session was deleted")

    def _submission_event(self, event: runlane.SubmissionEvent) -> None:
        if event.kind is runlane.SubmissionEventKind.SUBMISSION_PENDING:
            steers = event.route is runlane.SubmitRoute.STEER
            self._note("steers the run at its next step" if steers else "waits for its turn")
        elif event.reason is not None:
            self._note(f"an input was not delivered: {event.reason}")

    async def _run_event(self, event: runlane.RunEvent) -> None:
        match event.kind:
            case runlane.RunEventKind.RUN_CREATED:
                self._run_id = event.run_id
            case runlane.RunEventKind.RUN_CANCELLATION_REQUESTED:
                self._note("interrupting")
            case runlane.RunEventKind.MESSAGE_APPENDED if event.message is not None:
                async with self._submitting:
                    if event.submission_id not in self._mine:
                        self._message(event.message)
            case runlane.RunEventKind.INTERACTION_OPENED:
                self._ask(await self._read_open())
            case (
                runlane.RunEventKind.INTERACTION_ANSWERED | runlane.RunEventKind.INTERACTION_CLOSED
            ):
                self._settled(event.interaction_id)
            case runlane.RunEventKind.CHILD_RUN_STARTED:
                self._note(f"   goes to a run of {event.agent}: {event.child_run_id}")
            case runlane.RunEventKind.RUN_ENDING:
                self._note("it ends when its child runs have ended")
            case runlane.RunEventKind.RUN_PAUSED:
                self._note("paused; `runlane unpause` lets it go on")
            case runlane.RunEventKind.RUN_STALLED:
                self._note("its executor was lost; `runlane restore` brings it back")
            case runlane.RunEventKind.RUN_TERMINAL:
                self._run_id = None
                self._end_line()
                if event.stop_reason is not runlane.StopReason.COMPLETED:
                    result = await self._client.wait_run(event.run_id)
                    self._note(ending(result) or "")

    def _piece(self, delta: runlane.Delta) -> None:
        if delta.kind is not runlane.DeltaKind.TEXT:
            return
        if self._answer is None or self._answer.model_stream_id != delta.model_stream_id:
            self._end_line()
            self._answer = _Answer(delta.model_stream_id)
        self._write(self._answer.take(delta))

    def _message(self, message: runlane.Message) -> None:
        if message.role is runlane.MessageRole.USER:
            self._end_line()
            self._write(f"> {message.text}\n", "bold")
            return
        if message.tool_result is not None:
            result = message.tool_result
            self._note(f"   {result.outcome}: {_show.line(result.text)}")
            return
        answer = self._answer
        if answer is None or answer.model_stream_id != message.model_stream_id:
            self._end_line()
            answer = _Answer(message.model_stream_id)
        if message.text or not message.tool_uses:
            self._write(answer.replace(message.text) + "\n")
        self._answer = None
        for use in message.tool_uses:
            arguments = use.arguments_text if use.arguments is None else dump(dict(use.arguments))
            self._note(f"-> {_show.call(use.name, arguments or '')}")

    def _note(self, text: str) -> None:
        self._end_line()
        self._write(f"{text}\n", "dim")

    def _end_line(self) -> None:
        if self._answer is not None:
            self._answer = None
            self._write("\n")

    @staticmethod
    def _write(text: str, style: str = "") -> None:
        if text:
            _show.console.print(Text(_show.clean(text), style=style), end="")
