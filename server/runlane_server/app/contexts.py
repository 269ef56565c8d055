"""What the model of a run is to see: a summary, what it must not lose, and the rest."""

from dataclasses import dataclass

from runlane_server.core.model import SessionKey, SessionState
from runlane_server.store.base import MessageRow, Store, SummaryRow


@dataclass(slots=True, frozen=True)
class ContextPlan:
    """What is to be read, in this order.

    Attributes:
        summary_through: Names the summary; 0: none.
        anchors: Numbers of covered messages that are shown all the same: the run's first
            input, and its latest steer.
        after: Then all messages after this one.
        last: Up to this one.
    """

    summary_through: int
    anchors: tuple[int, ...]
    after: int
    last: int


def plan_context(state: SessionState, after: int) -> ContextPlan:
    """Says what a reader is to get that has seen what comes up to a number; 0: nothing.

    A summary that covers more than that makes it begin anew.
    """
    through, run, last = state.compacted_through, state.run, state.message_count
    if after >= through:
        return ContextPlan(0, (), after, last)
    kept = (run.input_number, run.steer_number) if run is not None else ()
    anchors = tuple(sorted({number for number in kept if 0 < number <= through}))
    return ContextPlan(through, anchors, through, last)


async def read_small(
    store: Store, key: SessionKey, plan: ContextPlan, count_max: int, bytes_max: int
) -> tuple[SummaryRow | None, list[MessageRow]] | None:
    """Reads a whole context where it is no larger than asked for."""
    count = plan.last - plan.after + len(plan.anchors)
    if bytes_max <= 0 or count > count_max:
        return None
    summary = None
    if plan.summary_through:
        summary = await store.summary(key, plan.summary_through)
        if summary is None:  # deleted meanwhile
            return None
    rows = await store.messages_by_number(key, plan.anchors) if plan.anchors else []
    rows += await store.messages(key, plan.after + 1, plan.last, count_max, bytes_max)
    size = sum(len(row.data) for row in rows)
    size += len(summary.text.encode()) if summary is not None else 0
    if len(rows) < count or size > bytes_max:
        return None
    return summary, rows
