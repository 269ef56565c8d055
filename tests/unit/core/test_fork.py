"""Forks: the prefix of a terminal run, and a source that keeps all it had."""

import pytest
from runlane_server.core.commands import ForkSession
from runlane_server.core.errors import Reason, Refused
from runlane_server.core.model import RunOptions, SessionKey, SessionRecord
from runlane_server.core.sessions import decide_fork
from runlane_server.core.words import Mode
from runlane_server.runtime.records import encode_state
from support.lane import Lane
from support.steps import (
    COMPLETED,
    answer,
    close,
    commit,
    create,
    delete,
    first,
    interrupt,
    lease,
    put,
    reserve,
    steer,
    text,
)

TARGET = SessionKey("default", "ses_2")
RECORD = SessionRecord("copy", {"a": "b"}, "{}", "main")


def _ended() -> Lane:
    lane = Lane()
    lane.do(create, first, lease(), reserve, commit(answer(), outcome=COMPLETED))
    return lane


def _fork(lane: Lane, target: Lane, **how):
    command = ForkSession("ses_1", "run_1", 2, b"digest", RECORD, **how)
    before = encode_state(lane.state) if lane.state is not None else b""
    try:
        return decide_fork(
            lane.state, target.state, command, lane.context(), target.context("label")
        )
    finally:
        assert before == (encode_state(lane.state) if lane.state is not None else b"")


@pytest.mark.parametrize(
    "more",
    [
        (),
        (close,),
        (put("n", Mode.START),),
        (put("n", Mode.START), lease(), steer("s1"), put("f1", Mode.QUEUE)),
        (put("n", Mode.START), lease(), put("f1", Mode.QUEUE), interrupt()),
    ],
)
def test_the_source_gets_an_event_and_nothing_else(more):
    lane = _ended()
    if more:
        lane.do(*more)
    source, _ = _fork(lane, Lane(key=TARGET))
    old, new = lane.state, source.state
    assert [event.type.name for event in source.events] == ["SESSION_FORKED"]
    assert (source.answer, source.rows, source.lease_expire_time) == (None, [], None)
    assert new.sequence == old.sequence + 1
    new.sequence, new.last_time = old.sequence, old.last_time
    assert new == old


def test_the_new_session_has_the_prefix_and_nothing_of_the_lane():
    lane = _ended()
    lane.do(put("n", Mode.START), lease(), steer("s1"))
    _, fork = _fork(lane, Lane(key=TARGET))
    state = fork.state
    assert [event.type.name for event in fork.events] == ["SESSION_CREATED", "SESSION_FORKED"]
    assert (state.message_count, state.digest, state.default_agent) == (2, b"digest", "main")
    assert (state.run, state.steers, state.next_runs) == (None, [], [])
    assert (state.revision, state.sequence, fork.answer.sequence) == (1, 2, 2)
    for event in fork.events[1:]:
        assert event.body == {
            "source_session_id": "ses_1", "source_run_id": "run_1", "session_id": "ses_2", "message_count": 2,
        }  # fmt: skip


def test_a_first_input_starts_in_the_same_transaction():
    _, fork = _fork(_ended(), Lane(key=TARGET), input=text("on"), options=RunOptions("other"))
    assert [event.type.name for event in fork.events] == [
        "SESSION_CREATED", "SESSION_FORKED", "RUN_CREATED", "MESSAGE_APPENDED", "ACTIVATION_QUEUED",
    ]  # fmt: skip
    assert (fork.state.message_count, fork.state.run.agent) == (3, "other")
    assert fork.answer.submission.state.name == "DELIVERED"
    assert fork.answer.submission.message_number == 3
    assert fork.state.digest != b"digest"


def test_refusals():
    gone, taken, fresh = _ended(), Lane(key=TARGET), Lane(key=TARGET)
    gone.do(delete)
    taken.do(create)
    for source, target, reason, metadata in (
        (Lane(), fresh, Reason.RUN_NOT_FOUND, {}),
        (gone, fresh, Reason.RUN_NOT_FOUND, {}),
        (_ended(), taken, Reason.SESSION_EXISTS, {"session_id": "ses_2", "deleted": "false"}),
    ):
        with pytest.raises(Refused) as refusal:
            _fork(source, target)
        assert (refusal.value.reason, refusal.value.metadata) == (reason, metadata)
    taken.do(delete)
    with pytest.raises(Refused) as refusal:
        _fork(_ended(), taken)
    assert refusal.value.metadata["deleted"] == "true"
