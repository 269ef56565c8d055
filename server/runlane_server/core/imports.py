"""A session made from an archive, and the session that an archive is made of."""

from dataclasses import dataclass

from runlane_server.core.answers import ImportAnswer, RunFacts
from runlane_server.core.archives import ArchivedMessage, ArchivedRun
from runlane_server.core.commands import ImportSession
from runlane_server.core.context import Context, Decision, created_draft, decided, exists
from runlane_server.core.draft import Draft, same_uuid
from runlane_server.core.drafting import NewId, session_facts
from runlane_server.core.model import Rules, SessionState
from runlane_server.core.rows import (
    EventType,
    MessageAppended,
    RunEnded,
    RunInserted,
    SummaryInserted,
    ToolCallInserted,
    ToolCallMoved,
)
from runlane_server.core.words import (
    AbandonReason,
    Author,
    Mode,
    StopReason,
    ToolCallState,
    ToolOutcome,
)

_ENDS = {
    ToolOutcome.CANCELLED: ToolCallState.CANCELLED,
    ToolOutcome.UNKNOWN: ToolCallState.OUTCOME_UNKNOWN,
}
"""States of calls with these outcomes; all others were committed."""


def import_session(state: SessionState | None, command: ImportSession, ctx: Context) -> Decision:
    """Makes a session of an archive that was checked."""
    if state is not None:
        raise exists(state)
    archive = command.archive
    draft = created_draft(ctx, archive.record)
    count = len(archive.messages)
    draft.events[0].body["message_count"] = count
    draft.event(
        EventType.SESSION_IMPORTED,
        source_session_id=archive.source_session_id,
        message_count=count,
        run_count=len(archive.runs),
        content_digest=archive.digest.hex(),
    )
    for number, message in enumerate(archive.messages[: archive.taken_over], 1):
        _append(draft, number, message, "")
    for run in archive.runs:
        _append_run(draft, run, archive.messages[run.first - 1 : run.cutoff])
    for summary in archive.summaries:
        row = SummaryInserted(summary.through, summary.text, summary.model, summary.create_time)
        draft.rows.append(row)
        draft.state.compacted_through = summary.through
    return decided(
        draft,
        lambda: ImportAnswer(
            draft.state.sequence,
            session_facts(draft.state),
            len(archive.runs),
            archive.digest,
        ),
    )


def _append(draft: Draft, number: int, message: ArchivedMessage, run_id: str) -> MessageAppended:
    row = MessageAppended(
        number,
        run_id,
        message.role,
        message.author,
        message.create_time,
        step=message.step,
        submission_id=same_uuid(run_id, "sub") if message.author is Author.INPUT and run_id else "",
        model=message.model,
        content=message.content,
    )
    draft.keep(row, message.content.hash)
    return row


def _append_run(draft: Draft, run: ArchivedRun, messages: list[ArchivedMessage]) -> None:
    """Appends a run and its messages."""
    state, run_id = draft.state, draft.new_id("run")
    draft.rows.append(
        RunInserted(
            run_id,
            same_uuid(run_id, "sub"),
            run.options.agent,
            Mode.START,
            run.create_time,
            state.sequence,
            run.first,
            options=run.options,
            preview=messages[0].content.preview,
        )
    )
    step = ordinal = 0
    for number, message in enumerate(messages, run.first):
        if message.outcome is None:
            _append(draft, number, message, run_id)
        else:
            ordinal += 1
            _settle_call(draft, run_id, step, ordinal, message)
            _append(draft, number, message, run_id).call = (step, ordinal)
        if message.author is Author.MODEL:
            step, ordinal = message.step, 0
            for place, use in enumerate(message.content.tool_uses, 1):
                asked = ToolCallInserted(
                    run_id,
                    step,
                    place,
                    use.tool_call_id,
                    use.name,
                    use.arguments_json,
                    message.create_time,
                )
                draft.rows.append(asked)
    draft.rows.append(_end(run, run_id, state))
    state.last_run_time = run.create_time


def _settle_call(
    draft: Draft, run_id: str, step: int, ordinal: int, message: ArchivedMessage
) -> None:
    outcome = message.outcome
    assert outcome is not None, "it is a result"  # noqa: S101 - invariant
    end = _ENDS.get(outcome, ToolCallState.COMMITTED)
    draft.rows.append(
        ToolCallMoved(
            run_id, step, ordinal, end, idempotent=False, outcome=outcome, time=message.create_time
        )
    )


def _end(run: ArchivedRun, run_id: str, state: SessionState) -> RunEnded:
    return RunEnded(
        run_id,
        run.stop_reason,
        run.cause,
        run.end_time,
        # It has no events: who reads them finds its end before the first one.
        state.sequence - 1,
        run.attempt,
        run.cutoff,
        state.digest,
        run.output_message_number,
        run.output_json,
        run.failure,
        run.cancellation,
        run.usage,
        run.steps_reserved,
        run.steps_committed,
        run.tool_calls,
        run.summary_through,
    )


@dataclass(slots=True, frozen=True)
class AtRest:
    """A live run as an archive has it: what it would be, were it cancelled at this moment.

    Attributes:
        run: Ended.
        closers: The messages that would be appended: results that wait for others, and what
            stands in for those that are not there.
    """

    run: RunFacts
    closers: list[MessageAppended]


def at_rest(state: SessionState, now: int, new_id: NewId, rules: Rules) -> AtRest:
    """Tells how a live run would end; nothing is decided by it.

    Its child runs are not waited for: they are sessions of their own.
    """
    draft = Draft(state, now, new_id, rules)
    run = draft.live()
    run.children, run.children_wait, run.ending = (), None, None
    draft.end_run(StopReason.CANCELLED, AbandonReason.CANCELLED)
    closers = [row for row in draft.rows if isinstance(row, MessageAppended)]
    return AtRest(draft.facts, closers)
