import pytest
from fakes import CODEC, NOW, event_bytes, message_row, text_content
from runlane.v1 import (
    admin_service_pb2,
    event_pb2,
    executor_service_pb2,
    history_service_pb2,
    interaction_pb2,
    message_pb2,
    run_pb2,
    session_pb2,
    session_service_pb2,
    submission_pb2,
)
from runlane_server.app.views import ControlView
from runlane_server.core import answers, model, words
from runlane_server.core.rows import Closer, Event, EventType, MessageAppended
from runlane_server.transport.codec import feed_batch
from runlane_server.transport.content import text_result
from runlane_server.transport.requests import options
from runlane_server.transport.values import sequence_of, varint

USED = model.Usage(1, 2, 3, 4, 5, 6, 7)
SHOWN = {
    "usage": run_pb2.Usage(input_tokens=1, output_tokens=2, cached_input_tokens=3, reasoning_tokens=4, cost_usd_micros=5, compaction_input_tokens=6, compaction_output_tokens=7),
    "parent": run_pb2.ParentRun(run_id="pr", session_id="ps", tool_call_id="c", depth=2),
    "children": run_pb2.ChildrenWait(mode=run_pb2.ChildrenWait.MODE_ANY, run_ids=["r1", "r2"]),
    "proxy_for": interaction_pb2.ProxySource(run_id="qr", interaction_id="qi", session_id="qs"),
}  # fmt: skip
BODIES = {
    EventType.SESSION_CREATED: {"message_count": 3, "parent_run_id": "p"},
    EventType.SESSION_UPDATED: {"revision": 2},
    EventType.SESSION_CLOSED: {},
    EventType.SESSION_REOPENED: {},
    EventType.SESSION_FORKED: {"source_session_id": "a", "source_run_id": "r", "session_id": "b", "message_count": 1},
    EventType.SESSION_COMPACTED: {"through_message_number": 3, "usage": USED, "model": "gpt"},
    EventType.SESSION_IMPORTED: {"source_session_id": "a", "message_count": 4, "run_count": 2, "content_digest": "0a"},
    EventType.SESSION_DELETED: {},
    EventType.SUBMISSION_PENDING: {"submission_id": "s", "mode": words.Mode.STEER, "route": words.Route.STEER},
    EventType.SUBMISSION_MOVED: {"submission_id": "s", "from_run_id": "r", "mode": words.Mode.STEER},
    EventType.SUBMISSION_DELIVERED: {"submission_id": "s", "mode": words.Mode.STEER, "route": words.Route.STEER, "message_number": 4},
    EventType.SUBMISSION_FAILED: {"submission_id": "s", "mode": words.Mode.STEER, "route": words.Route.STEER, "reason": words.SubmissionFailure.SESSION_CLOSED},
    EventType.SUBMISSION_WITHDRAWN: {"submission_id": "s", "mode": words.Mode.STEER, "route": words.Route.STEER},
    EventType.RUN_CREATED: {"submission_id": "s", "agent": "a", "parent": model.ParentLink("ps", "pr", "c", 2, 9)},
    EventType.RUN_WAITING: {"interaction_id": "i", "children": model.ChildrenWait(words.ChildrenMode.ANY, ("r1", "r2"))},
    EventType.RUN_CANCELLATION_REQUESTED: {"replaced": True},
    EventType.RUN_PAUSE_REQUESTED: {},
    EventType.RUN_PAUSED: {},
    EventType.RUN_UNPAUSED: {},
    EventType.RUN_RECOVERING: {"recoveries": 2, "not_before_time": NOW + 1},
    EventType.RUN_STALLED: {},
    EventType.RUN_ENDING: {"stop_reason": words.StopReason.OUTCOME_UNKNOWN, "cause": words.StopReason.FAILED},
    EventType.RUN_TERMINAL: {"stop_reason": words.StopReason.OUTCOME_UNKNOWN, "cause": words.StopReason.FAILED, "failure_reason": words.RunFailure.EXECUTOR_ERROR, "output_message_number": 2, "message_cutoff": 3},
    EventType.ACTIVATION_QUEUED: {"kind": 1, "agent": "a"},
    EventType.ACTIVATION_LEASED: {"executor_id": "e"},
    EventType.ACTIVATION_ENDED: {"reason": words.EndReason.RELEASED},
    EventType.ACTIVATION_ABANDONED: {"reason": words.AbandonReason.LEASE_EXPIRED},
    EventType.MESSAGE_APPENDED: {"number": 1, "role": words.Role.USER, "author": words.Author.STEER, "step": 1, "submission_id": "s", "model_stream_id": "m"},
    EventType.MODEL_STEP_RESERVED: {"step": 1, "model_stream_id": "m"},
    EventType.MODEL_STEP_COMMITTED: {"step": 1, "model_stream_id": "m", "usage": USED, "model": "gpt", "finish_reason": "stop"},
    EventType.TOOL_CALL_PREPARED: {"tool_call_id": "c", "name": "n", "ordinal": 1},
    EventType.TOOL_CALL_CLAIMED: {"tool_call_id": "c", "idempotent": True},
    EventType.TOOL_CALL_COMMITTED: {"tool_call_id": "c", "outcome": words.ToolOutcome.REJECTED},
    EventType.TOOL_CALL_OUTCOME_UNKNOWN: {"tool_call_id": "c"},
    EventType.TOOL_CALL_CANCELLED: {"tool_call_id": "c"},
    EventType.INTERACTION_OPENED: {"interaction_id": "i", "version": 1, "expire_time": NOW + 1, "proxy_for": model.Question("qs", "qr", "qi", 1)},
    EventType.INTERACTION_ANSWERED: {"interaction_id": "i", "version": 1},
    EventType.INTERACTION_CLOSED: {"interaction_id": "i", "reason": words.InteractionClose.EXPIRED},
    EventType.CHILD_RUN_STARTED: {"tool_call_id": "c", "child_run_id": "cr", "child_session_id": "cs", "agent": "a"},
    EventType.CHILD_RUN_FINISHED: {"tool_call_id": "c", "child_run_id": "cr", "stop_reason": words.StopReason.CANCELLED},
}  # fmt: skip


@pytest.mark.parametrize("kind", EventType)
def test_an_event_round_trips(kind):
    body = BODIES[kind]
    event = Event(kind, 300, NOW, "run", 2, "act", 1, body)
    data = CODEC.event(event, "ses", "client:x", "req")
    read = event_pb2.Event.FromString(data)
    assert (read.sequence, read.session_id, read.type) == (300, "ses", kind)
    assert read.event_time.ToMicroseconds() == NOW
    assert (read.run_id, read.run_sequence, read.activation_id, read.attempt) == (
        "run",
        2,
        "act",
        1,
    )
    assert (read.actor, read.request_id) == ("client:x", "req")
    assert read.may_skip == kind.name.startswith(("ACTIVATION_", "MODEL_STEP_"))
    name = read.WhichOneof("body")
    assert name == kind.name.lower()
    assert event_pb2.Event.DESCRIPTOR.fields_by_name[name].number == kind
    shown = getattr(read, name)
    assert set(body) == {field.name for field in shown.DESCRIPTOR.fields}
    for field, value in body.items():
        if field.endswith("_time"):
            assert getattr(shown, field).ToMicroseconds() == value
        else:
            assert getattr(shown, field) == SHOWN.get(field, value)
    assert sequence_of(data) == 300


@pytest.mark.parametrize(
    ("kind", "field"),
    [(EventType.INTERACTION_OPENED, "expire_time"), (EventType.RUN_RECOVERING, "not_before_time")],
)
def test_a_time_of_zero_is_unset(kind, field):
    event = Event(kind, 1, NOW, "run", body={**BODIES[kind], field: 0})
    read = event_pb2.Event.FromString(CODEC.event(event, "ses", "client", ""))
    assert not getattr(read, kind.name.lower()).HasField(field)


def test_every_kind_of_event_is_one_of_the_proto():
    numbers = dict(event_pb2.Event.Type.items())
    numbers.pop("TYPE_UNSPECIFIED")
    assert numbers == {f"TYPE_{kind.name}": int(kind) for kind in EventType}


@pytest.mark.parametrize(
    ("core", "enum", "prefix"),
    [
        (words.SessionStatus, session_pb2.Session.State, "STATE_"),
        (words.Mode, submission_pb2.Submission.Mode, "MODE_"),
        (words.Route, submission_pb2.Submission.Route, "ROUTE_"),
        (words.SubmissionState, submission_pb2.Submission.State, "STATE_"),
        (words.OnMiss, submission_pb2.Submission.OnMiss, "ON_MISS_"),
        (words.SubmissionFailure, submission_pb2.Submission.FailureReason, "FAILURE_REASON_"),
        (words.Phase, run_pb2.Run.Phase, "PHASE_"),
        (words.Position, run_pb2.Run.Position, "POSITION_"),
        (words.StopReason, run_pb2.Run.StopReason, "STOP_REASON_"),
        (words.RunFailure, run_pb2.RunFailure.Reason, "REASON_"),
        (words.ActivationKind, run_pb2.Activation.Kind, "KIND_"),
        (words.Recovery, run_pb2.Recovery, "RECOVERY_"),
        (words.ToolErrorPolicy, run_pb2.ToolErrorPolicy, "TOOL_ERROR_POLICY_"),
        (words.ToolOutcome, message_pb2.ToolResult.Outcome, "OUTCOME_"),
        (words.ToolCallState, executor_service_pb2.ToolCall.State, "STATE_"),
        (words.InteractionState, interaction_pb2.Interaction.State, "STATE_"),
        (words.InteractionClose, interaction_pb2.Interaction.CloseReason, "CLOSE_REASON_"),
        (answers.PauseReceipt, session_service_pb2.PauseReceipt, "PAUSE_RECEIPT_"),
        (answers.RestoreOutcome, session_service_pb2.RestoreRunResponse.Outcome, "OUTCOME_"),
        (words.ActivationState, run_pb2.Activation.State, "STATE_"),
        (words.EndReason, event_pb2.ActivationEnded.Reason, "REASON_"),
        (words.AbandonReason, event_pb2.ActivationAbandoned.Reason, "REASON_"),
        (words.Role, message_pb2.Message.Role, "ROLE_"),
        (words.Author, message_pb2.Message.Author, "AUTHOR_"),
        (words.Command, session_pb2.Command, "COMMAND_"),
        (words.ChildrenMode, run_pb2.ChildrenWait.Mode, "MODE_"),
        (words.DeltaKind, event_pb2.Delta.Kind, "KIND_"),
    ],
)
def test_numbers_of_the_core_are_those_of_the_proto(core, enum, prefix):
    numbers = {name: number for name, number in enum.items() if number}
    assert numbers == {f"{prefix}{member.name}": int(member) for member in core}


@pytest.mark.parametrize("message", [interaction_pb2.Prompt, interaction_pb2.InteractionAnswer])
def test_kinds_of_questions_are_the_fields_of_the_proto(message):
    numbers = {field.name: field.number for field in message.DESCRIPTOR.fields}
    assert numbers == {kind.name.lower(): int(kind) for kind in words.PromptKind}


@pytest.mark.parametrize("outcome", words.ToolOutcome)
def test_a_closer_is_a_result_in_words(outcome):
    row = MessageAppended(
        3, "run", words.Role.TOOL, words.Author.CLOSER, NOW, 2, closer=Closer("c", outcome, "words"), call=(2, 1)
    )  # fmt: skip
    read = message_pb2.Message.FromString(CODEC.message(row, "ses", None))
    assert (read.number, read.role, read.author) == (3, words.Role.TOOL, words.Author.CLOSER)
    (block,) = read.content
    assert (block.tool_result.tool_call_id, block.tool_result.outcome) == ("c", outcome)
    assert [one.text for one in block.tool_result.content] == ["words"]


def test_a_stored_result_is_joined_to_its_head():
    content = text_result("c", words.ToolOutcome.OK, "done")
    row = MessageAppended(
        3, "run", words.Role.TOOL, words.Author.TOOL, NOW, 2, from_call=(2, 1), call=(2, 1)
    )
    read = message_pb2.Message.FromString(CODEC.message(row, "ses", None) + content.data)
    assert read.content[0].tool_result.content[0].text == "done"
    assert CODEC.role(CODEC.message(row, "ses", None)) == words.Role.TOOL


def test_a_message_is_its_head_and_its_content():
    content = text_content("hi")
    row = MessageAppended(
        3, "run", words.Role.ASSISTANT, words.Author.MODEL, NOW, 2, "sub", "ms", "gpt", content
    )
    whole = CODEC.message(row, "ses", content)
    assert whole == CODEC.message(row, "ses", None) + content.data
    read = message_pb2.Message.FromString(whole)
    assert (read.number, read.session_id, read.run_id, read.step) == (3, "ses", "run", 2)
    assert (read.role, read.author) == (words.Role.ASSISTANT, words.Author.MODEL)
    assert (read.submission_id, read.model_stream_id, read.model) == ("sub", "ms", "gpt")
    assert read.create_time.ToMicroseconds() == NOW
    assert read.content[0].text == "hi"
    assert read.metadata == {"k": "v"}


def test_options_round_trip():
    whole = model.RunOptions(
        "a",
        "m",
        model.RunLimits(7, 8, 9, 10, 11_000_000, 12_000_000, 13_000_001),
        ("t", "u"),
        14_000_000,
        words.ToolErrorPolicy.STOP,
        words.Recovery.MANUAL,
        0,
        1_500_000,
        "{}",
    )
    read = run_pb2.RunOptions.FromString(CODEC.options(whole))
    assert options(read, "run_options") == whole
    assert {field.name for field, _ in read.ListFields()} == set(
        run_pb2.RunOptions.DESCRIPTOR.fields_by_name
    )
    assert {field.name for field, _ in read.limits.ListFields()} == set(
        run_pb2.RunLimits.DESCRIPTOR.fields_by_name
    )
    zero = run_pb2.RunOptions.FromString(CODEC.options(model.RunOptions(cancel_grace=0)))
    assert zero.HasField("cancel_grace_duration")
    assert not zero.HasField("max_recoveries")
    assert not zero.HasField("tool_timeout_duration")
    assert not zero.limits.ListFields()


@pytest.mark.parametrize("length", [1, 100, 127, 128, 20_000, 3_000_000])
def test_joined_bytes_are_what_protobuf_would_make(length):
    first, second = message_row(1, "x" * length), message_row(2)
    plain, with_message = event_bytes(1), event_bytes(2)
    event = event_pb2.Event.FromString(with_message)
    event.message.ParseFromString(first.data)
    events = [event_pb2.Event.FromString(plain), event]
    given = [(plain, None), (with_message, first.data)]

    batch = session_service_pb2.EventBatch(events=events)
    frame = session_service_pb2.StreamEventsResponse(batch=batch)
    assert session_service_pb2.StreamEventsResponse.FromString(CODEC.event_batch(given)) == frame
    run_frame = history_service_pb2.StreamRunEventsResponse(events=events)
    assert (
        history_service_pb2.StreamRunEventsResponse.FromString(CODEC.run_event_batch(given))
        == run_frame
    )
    fed = feed_batch([(plain, None, "c1"), (with_message, first.data, "c2" * length)])
    entries = [
        admin_service_pb2.FeedEvent(event=events[0], cursor="c1"),
        admin_service_pb2.FeedEvent(event=events[1], cursor="c2" * length),
    ]
    assert admin_service_pb2.StreamFeedResponse.FromString(
        fed
    ) == admin_service_pb2.StreamFeedResponse(batch=admin_service_pb2.FeedBatch(events=entries))
    messages = [message_pb2.Message.FromString(row.data) for row in (first, second)]
    joined = CODEC.message_batch([first.data, second.data])
    for response in (
        history_service_pb2.StreamMessagesResponse,
        history_service_pb2.GetHistoryAtRunResponse,
        executor_service_pb2.StreamModelContextResponse,
        executor_service_pb2.ModelContext,
        history_service_pb2.ListMessagesResponse,
    ):
        assert response.FromString(joined) == response(messages=messages)


def test_an_empty_batch_is_a_batch():
    read = session_service_pb2.StreamEventsResponse.FromString(CODEC.event_batch([]))
    assert read.WhichOneof("frame") == "batch"


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16_383, 16_384, 2**31, 2**63 - 1])
def test_varints(value):
    data = message_pb2.Message(number=value).SerializeToString()
    assert data[1:] == (varint(value) if value else b"")


def test_frames_beside_events():
    read = session_service_pb2.StreamEventsResponse.FromString
    mark = read(CODEC.bookmark(7, NOW, caught_up=True)).bookmark
    assert (mark.sequence, mark.caught_up, mark.server_time.ToMicroseconds()) == (7, True, NOW)
    view = ControlView(
        "run",
        words.Phase.ACTIVE,
        model.Activation("act", 2),
        True,
        True,
        1,
        2,
        [words.Command.AUTO],
        True,
        9,
    )
    control = read(CODEC.control(view)).control
    assert (control.run_id, control.phase, control.activation.epoch, control.cancelling) == (
        "run",
        1,
        2,
        True,
    )
    assert (control.pending_steers, control.pending_next_runs, list(control.allowed_commands)) == (
        1,
        2,
        [2],
    )
    assert (control.waiting_for_executor, control.as_of_sequence) == (True, 9)
    assert control.pause_requested
    idle = read(
        CODEC.control(ControlView("", None, None, False, False, 0, 0, [], False, 1))
    ).control
    assert not idle.HasField("activation")
    pieces = [{"append_text": ""}, {"snapshot_text": "x"}, {"block_done": True}]
    deltas = [
        model.Delta("m", "r", "a", 1, 0, words.DeltaKind.TEXT, 1, 2, **piece) for piece in pieces
    ]
    batch = read(CODEC.deltas(deltas)).deltas
    for shown, piece in zip(batch.deltas, pieces, strict=True):
        assert shown.WhichOneof("piece") == next(iter(piece))
        assert (shown.model_stream_id, shown.step, shown.kind, shown.revision) == ("m", 1, 1, 2)


@pytest.mark.parametrize("role", words.Role)
@pytest.mark.parametrize("ids", ["", "x", "x" * 128])
def test_the_role_of_a_message_is_read_in_place(role, ids):
    content = text_content("hi")
    row = MessageAppended(300, ids, role, words.Author.INPUT, NOW, content=content)
    assert CODEC.role(CODEC.message(row, ids, content)) == role
