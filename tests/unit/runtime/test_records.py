"""Hot states that an older server wrote."""

import msgspec
from runlane_server.core.model import (
    Queued,
    Run,
    RunLimits,
    RunOptions,
    SessionState,
)
from runlane_server.core.words import Mode, OnMiss, Rank, Recovery, Route, ToolErrorPolicy
from runlane_server.runtime.records import VERSION, decode_state, encode_state


def test_a_state_from_before_traces_is_read():
    run = Run(
        "run_1",
        "sub_1",
        "agent",
        1,
        RunLimits(),
        0,
        ToolErrorPolicy.RETURN_TO_MODEL,
        Recovery.AUTO,
        3,
        1,
        None,
        trace="00-a",
    )
    queued = Queued(
        "sub_2",
        "run_2",
        Mode.QUEUE,
        Route.FOLLOW_UP,
        Rank.FOLLOW_UP,
        OnMiss.FAIL,
        1,
        b"",
        RunOptions(),
        1,
        trace="00-b",
    )
    state = SessionState("default", "s", 1, run=run, next_runs=[queued])
    assert decode_state(encode_state(state)) == state
    old = msgspec.msgpack.decode(encode_state(state)[1:])
    del old["run"]["trace"], old["next_runs"][0]["trace"]
    read = decode_state(VERSION + msgspec.msgpack.encode(old))
    run.trace = queued.trace = ""
    assert read == state
