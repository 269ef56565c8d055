"""Child runs in a draft: what a session tells its parent, and what it asks of its children.

Nothing here reaches beyond the draft's own session: it is told by notices, each applied
in a commit of its own. What a parent must know of a child is one thing, `told`; where a
decision changes it the parent is told, whatever the decision was.
"""

from runlane_server.core.calls import Calls
from runlane_server.core.drafting import NewId
from runlane_server.core.model import Proxy, Question, Rules, Run, SessionState
from runlane_server.core.rows import (
    EventType,
    InteractionSettled,
    NoticePut,
    ProxyInserted,
    ProxySettled,
)
from runlane_server.core.words import (
    ChildrenMode,
    InteractionClose,
    InteractionState,
    NoticeKind,
)


def questions(state: SessionState) -> tuple[Question, ...]:
    """Returns the open questions of a session's run and of all that are below it."""
    run = state.run
    if run is None:
        return ()
    shown = tuple(proxy.question for proxy in run.proxies)
    wait = run.wait
    if wait is None:
        return shown
    own = Question(state.session_id, run.run_id, wait.interaction_id, wait.version)
    return (own, *shown)


def _told(state: SessionState) -> tuple[str, tuple[Question, ...]] | None:
    """What the parent of a session must know of it; None: it has no parent."""
    if state.parent is None or state.deleted:
        return None
    return (state.run.run_id if state.run is not None else "", questions(state))


class Family(Calls):
    """Steps between a run and its children."""

    __slots__ = ("told_before",)

    def __init__(self, state: SessionState, now: int, new_id: NewId, rules: Rules) -> None:
        super().__init__(state, now, new_id, rules)
        self.told_before = _told(state)

    def tell_parent(self) -> None:
        """Tells the parent of what has changed for it, where something has."""
        state, parent = self.state, self.state.parent
        told = _told(state)
        if parent is None or told == self.told_before or told is None or self.told_before is None:
            return
        self.rows.append(NoticePut(parent.session_id, NoticeKind.CHILD, self.told_before[0]))

    def cancel_children(self) -> None:
        """Asks all live children of the live run to be cancelled."""
        run = self.live()
        for child in run.children:
            self.rows.append(NoticePut(child.session_id, NoticeKind.CANCEL, run.run_id))

    def children_met(self) -> bool:
        """Whether the wait of the live run for its children is over."""
        run = self.live()
        wait = run.children_wait
        if wait is None:
            return False
        live = {child.run_id for child in run.children}
        waiting = sum(1 for run_id in wait.run_ids if run_id in live)
        if wait.mode is ChildrenMode.ANY:
            return waiting < len(wait.run_ids) or not wait.run_ids
        return not waiting

    # --- proxies -----------------------------------------------------------

    def open_proxy(self, child_run_id: str, question: Question) -> None:
        """Shows a question of a child."""
        run = self.live()
        proxy = Proxy(self.new_id("int"), child_run_id, question)
        run.proxies += (proxy,)
        self.rows.append(
            ProxyInserted(proxy.interaction_id, run.run_id, run.steps_committed, question, self.now)
        )
        self.event(
            EventType.INTERACTION_OPENED,
            run.run_id,
            interaction_id=proxy.interaction_id,
            version=question.version,
            proxy_for=question,
        )

    def settle_proxy(
        self, proxy: Proxy, state: InteractionState, reason: InteractionClose | None
    ) -> None:
        """Shows no longer a question that was answered or closed."""
        run = self.live()
        run.proxies = tuple(one for one in run.proxies if one is not proxy)
        self.rows.append(ProxySettled(proxy.interaction_id, proxy.question, self.now))
        if state is InteractionState.ANSWERED:
            self.event(
                EventType.INTERACTION_ANSWERED,
                run.run_id,
                interaction_id=proxy.interaction_id,
                version=proxy.question.version,
            )
        else:
            self._closed(run, proxy.interaction_id, reason or InteractionClose.RUN_ENDED)

    def close_proxies(self) -> None:
        """Shows no question any longer: the run ends, and the children are cancelled."""
        run = self.live()
        proxies, run.proxies = run.proxies, ()
        for proxy in proxies:
            self.rows.append(
                InteractionSettled(
                    proxy.interaction_id,
                    InteractionState.CLOSED,
                    self.now,
                    reason=InteractionClose.RUN_ENDED,
                )
            )
            self._closed(run, proxy.interaction_id, InteractionClose.RUN_ENDED)

    def _closed(self, run: Run, interaction_id: str, reason: InteractionClose) -> None:
        self.event(
            EventType.INTERACTION_CLOSED,
            run.run_id,
            interaction_id=interaction_id,
            reason=reason,
        )
