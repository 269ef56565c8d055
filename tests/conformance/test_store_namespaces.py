"""Every read of what a namespace has, made from another one with the same ids."""

import inspect
from dataclasses import dataclass, replace
from typing import Any

import pytest
from runlane_server.core.model import ParentLink, SessionKey
from runlane_server.core.rows import SummaryInserted
from runlane_server.core.words import InteractionState, Phase
from runlane_server.store.base import (
    FEED_START,
    Committed,
    RequestKey,
    RequestRecord,
    SessionFilter,
    SessionOrder,
    Store,
    Usage,
)
from store_builders import Scripted, fresh

pytestmark = pytest.mark.asyncio

WRITES = {"sweep"}
SIZE = 2**20
READS = {
    "load": lambda to: to.store.load(to.key),
    "find_request": lambda to: to.store.find_request(to.request),
    "find_session_of_run": lambda to: to.store.find_session_of_run(to.namespace, to.run_id),
    "find_session_of_submission": lambda to: to.store.find_session_of_submission(
        to.namespace, to.submission_id
    ),
    "session": lambda to: to.store.session(to.key),
    "list_sessions": lambda to: to.store.list_sessions(
        to.namespace, SessionFilter(), SessionOrder.CREATED_DESC, None, 99
    ),
    "run": lambda to: to.store.run(to.namespace, to.run_id),
    "list_runs": lambda to: to.store.list_runs(to.key, (), None, 99),
    "list_stalled_runs": lambda to: to.store.list_stalled_runs(to.namespace, None, 99),
    "list_child_runs": lambda to: to.store.list_child_runs(to.namespace, to.run_id, None, 99),
    "child_sessions": lambda to: to.store.child_sessions(to.key, 99),
    "summary": lambda to: to.store.summary(to.key, 1),
    "list_tool_calls": lambda to: to.store.list_tool_calls(to.namespace, to.run_id, None, 99),
    "interaction": lambda to: to.store.interaction(to.namespace, to.interaction_id),
    "list_interactions": lambda to: to.store.list_interactions(
        to.namespace, to.listed, InteractionState.OPEN, None, 99
    ),
    "answered_interactions": lambda to: to.store.answered_interactions(to.namespace, to.run_id, 0),
    "submission": lambda to: to.store.submission(to.namespace, to.submission_id),
    "submission_of_reserved_run": lambda to: to.store.submission_of_reserved_run(
        to.namespace, to.reserved_run_id
    ),
    "list_submissions": lambda to: to.store.list_submissions(to.key, (), None, 99, SIZE),
    "last_sequence": lambda to: to.store.last_sequence(to.key),
    "events": lambda to: to.store.events(to.key, 0, 99, 99, SIZE),
    "feed": lambda to: to.store.feed(to.namespace, FEED_START, 99, SIZE),
    "messages": lambda to: to.store.messages(to.key, 1, 99, 99, SIZE),
    "messages_by_number": lambda to: to.store.messages_by_number(to.key, [1, 2]),
    "live": lambda to: to.store.live(to.key, 99, SIZE, SIZE),
    "ancestors": lambda to: to.store.ancestors(to.fork, 99),
    "counts": lambda to: to.store.counts(to.namespace, 99),
    "usage": lambda to: to.store.usage(to.namespace),
}
TWOFOLD = ("list_interactions", "submission", "find_session_of_submission")


@dataclass
class Asker:
    """Knows all ids of a scene, and asks in a namespace."""

    store: Store
    namespace: str
    session_id: str
    fork_id: str
    request_id: str
    run_id: str
    reserved_run_id: str
    submission_id: str
    interaction_id: str
    listed: str = ""

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.namespace, self.session_id)

    @property
    def fork(self) -> SessionKey:
        return SessionKey(self.namespace, self.fork_id)

    @property
    def request(self) -> RequestKey:
        return RequestKey(self.namespace, "Submit", "", self.request_id)

    async def all(self) -> dict[str, Any]:
        """Makes every read; returns what there is, by its name."""
        found = {name: await read(self) for name, read in READS.items()}
        # These read one of two places.
        other = replace(self, listed=self.session_id, submission_id=f"sub_{self.run_id[4:]}")
        for name in TWOFOLD:
            found[f"{name}, otherwise"] = await READS[name](other)
        feed, counts = found["feed"], found["counts"]
        found["feed"] = feed.groups
        found["counts"] = [
            *(counts.sessions, counts.live_runs),
            *(counts.stalled_runs, counts.open_interactions),
        ]
        return {
            name: one
            for name, one in found.items()
            if one not in (None, [], Usage(0, 0), [{}, {}, 0, 0])
        }


async def write(store, *units) -> None:
    assert await store.commit(units) == [Committed()] * len(units)


async def scene(store) -> Asker:
    """A session of which every read finds something, its fork, its child, and a stalled one."""
    mine = {"namespace": "mine"}
    s, stalled, child = Scripted(**mine), Scripted(**mine), Scripted(**mine)
    asker = Asker(store, "mine", s.session_id, "", fresh("req"), "", fresh("run"), "", "")
    record = RequestRecord(asker.request, b"#" * 32, b"answer", 1)
    await write(store, s.create().unit(record), s.start().unit())
    ended = s.run_id
    fork = s.fork(ended, 1)
    asker.fork_id = fork.session_id
    s.add(SummaryInserted(1, "what was said", "model", s.time))
    await write(store, s.end().unit(), fork.unit(), s.start().unit(), s.lease().unit())
    asker.run_id = s.run_id
    await write(store, s.calls(1, "{}", "{}").unit())
    answered = s.ask()
    await write(store, s.unit(), s.answer(answered).unit())
    asker.interaction_id = s.ask()
    asker.submission_id = s.queue(b"waits", run_id=asker.reserved_run_id)
    await write(store, s.unit())
    parent = ParentLink(s.session_id, s.run_id, "call_1_1", 1)
    child.create().rows[0].parent = parent
    await write(store, child.unit())
    child.start().rows[0].parent = parent
    await write(store, child.unit())
    await write(store, stalled.create().unit(), stalled.start().unit(), stalled.lease().unit())
    await write(store, stalled.hold(Phase.ACTIVE, stalled=True).unit())
    return asker


async def test_every_read_of_the_store_that_names_a_place_is_asked():
    named = set()
    for name, method in inspect.getmembers(Store, inspect.isfunction):
        for one in inspect.signature(method).parameters.values():
            if one.name == "namespace" or one.annotation in {SessionKey, RequestKey}:
                named.add(name)
    assert named - WRITES == READS.keys()


async def test_what_another_namespace_has_is_nothing(store):
    asker = await scene(store)
    found = await asker.all()
    wanted = {*READS, *(f"{name}, otherwise" for name in TWOFOLD)}
    assert found.keys() == wanted, "each read is of use here"
    asker.namespace = "theirs"
    assert await asker.all() == {}
    # Also where a session of that name is there: each has its own.
    theirs = Scripted(namespace="theirs", session_id=asker.session_id)
    await write(store, theirs.create().unit())
    own = {"load", "session", "list_sessions", "last_sequence", "events", "feed", "live"}
    assert (await asker.all()).keys() == own | {"counts", "usage"}
    assert await store.last_sequence(asker.key) == 1
    asker.namespace = "mine"
    assert await asker.all() == found
