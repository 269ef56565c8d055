"""The messages of `golden/wire.json`: what clients read and write, with the edges of its types."""

from typing import Final

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc import error_details_pb2, status_pb2
from runlane.v1 import event_pb2, interaction_pb2, message_pb2, run_pb2, session_pb2, submission_pb2
from runlane.v1 import executor_service_pb2 as executor_pb
from runlane.v1 import history_service_pb2 as history_pb
from runlane.v1 import session_service_pb2 as session_service_pb

_TIME: Final = Timestamp(seconds=1_700_000_000, nanos=123_456_789)
_ASTRONAUT: Final = "👩‍🚀"
_ARGUMENTS: Final = '{ "n": 9007199254740993, "b": 1.0, "a":1, "e": "\\u00e9🚀" }'
_FENCE: Final = run_pb2.Fence(
    session_id="ses-1", run_id="run_1", activation_id="act_1", epoch=2147483647
)


def _block(text: str) -> message_pb2.Block:
    return message_pb2.Block(text=text)


def _unknown_event() -> event_pb2.Event:
    """An event of a kind that is not known yet: type 1000, with a body in field 1000."""
    event = event_pb2.Event(sequence=7, session_id="ses-1", may_skip=True)
    newer = b"\x20\xe8\x07" + b"\xc2\x3e\x02\x08\x01"
    event.MergeFromString(newer)
    return event


def _error() -> status_pb2.Status:
    status = status_pb2.Status(code=9, message="a run is live")
    status.details.add().Pack(
        error_details_pb2.ErrorInfo(
            reason="SESSION_BUSY",
            domain="runlane.dev",
            metadata={"run_id": "run_1", "phase": "ACTIVE"},
        ),
        deterministic=True,
    )
    status.details.add().Pack(
        error_details_pb2.BadRequest(
            field_violations=[
                error_details_pb2.BadRequest.FieldViolation(
                    field="content[0].text", description="must not contain NUL"
                )
            ]
        ),
        deterministic=True,
    )
    status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=Duration(nanos=200_000_000)))
    return status


CASES: Final[dict[str, Message]] = {
    "an_empty_message": session_service_pb.SubmitRequest(),
    "an_input": session_service_pb.SubmitRequest(
        session_id="ses-1",
        mode=submission_pb2.Submission.MODE_AUTO,
        on_miss=submission_pb2.Submission.ON_MISS_FOLLOW_UP,
        content=[_block(f"hi {_ASTRONAUT}"), _block("")],
        expected_revision=0,
        metadata={"empty": "", "é": "\u202e"},
        run_options=run_pb2.RunOptions(
            agent="helper",
            max_recoveries=0,
            cancel_grace_duration=Duration(nanos=500_000_000),
            limits=run_pb2.RunLimits(
                max_total_tokens=9_007_199_254_740_991, max_duration=Duration(seconds=90)
            ),
        ),
        request_id="r-1",
    ),
    "empty_against_absent": session_service_pb.UpdateSessionRequest(
        session_id="ses-1", display_name="", remove_labels=["a"], set_labels={"b": ""}
    ),
    "zero_against_absent": session_service_pb.GetLiveStateRequest(
        session_id="ses-1", message_limit=0
    ),
    "a_start_of_zero": session_service_pb.StreamEventsRequest(
        session_id="ses-1", after_sequence=0, follow=False
    ),
    "blocks_of_every_kind": message_pb2.Message(
        number=9_007_199_254_740_991,
        session_id="ses-1",
        role=message_pb2.Message.ROLE_ASSISTANT,
        author=message_pb2.Message.AUTHOR_MODEL,
        create_time=_TIME,
        content=[
            _block("a\u0001\n\t\u2028" + _ASTRONAUT),
            message_pb2.Block(
                media=message_pb2.Media(
                    kind=message_pb2.Media.KIND_FILE,
                    media_type="application/octet-stream",
                    inline_data=bytes(range(256)),
                )
            ),
            message_pb2.Block(
                tool_use=message_pb2.ToolUse(
                    tool_call_id="call-1", name="look", arguments_json=_ARGUMENTS
                )
            ),
            message_pb2.Block(
                tool_use=message_pb2.ToolUse(
                    tool_call_id="call-2", name="look", arguments_text='{"n": 1'
                )
            ),
            message_pb2.Block(
                tool_use=message_pb2.ToolUse(tool_call_id="call-3", name="look", arguments_json="")
            ),
            message_pb2.Block(
                tool_result=message_pb2.ToolResult(
                    tool_call_id="call-1",
                    outcome=message_pb2.ToolResult.OUTCOME_OK,
                    content=[_block("found")],
                )
            ),
            message_pb2.Block(reasoning=message_pb2.Reasoning(text="hm", redacted=True)),
            message_pb2.Block(
                data=message_pb2.Data(
                    content_type="application/json", json='{"n": 9007199254740993, "x": 1.0}'
                ),
                provider_json='{"b": 1,  "a": [1.0]}',
                metadata={"m": "1"},
            ),
            message_pb2.Block(data=message_pb2.Data(content_type="x/y", binary=b"")),
        ],
    ),
    "numbers_beyond_two_to_the_53": session_pb2.Session(
        session_id="ses-1",
        message_count=9_007_199_254_740_993,
        revision=9_223_372_036_854_775_807,
        create_time=Timestamp(seconds=253_402_300_799, nanos=999_999_999),
        update_time=Timestamp(seconds=-62_135_596_800),
    ),
    "a_run_that_ended": run_pb2.Run(
        run_id="run_1",
        session_id="ses-1",
        phase=run_pb2.Run.PHASE_TERMINAL,
        outcome=run_pb2.RunOutcome(
            stop_reason=run_pb2.Run.STOP_REASON_OUTCOME_UNKNOWN,
            cause=run_pb2.Run.STOP_REASON_CANCELLED,
            failure=run_pb2.RunFailure(
                reason=run_pb2.RunFailure.REASON_EXECUTOR_ERROR, message="é", retryable=True
            ),
            output_json='{"n": 1.0}',
            message_cutoff=4,
        ),
        usage=run_pb2.Usage(input_tokens=1_000_000_000_000, cost_usd_micros=1),
        end_time=_TIME,
    ),
    "a_batch_of_events": session_service_pb.StreamEventsResponse(
        batch=session_service_pb.EventBatch(
            events=[
                event_pb2.Event(
                    sequence=1,
                    session_id="ses-1",
                    event_time=_TIME,
                    type=event_pb2.Event.TYPE_SESSION_CLOSED,
                    session_closed=event_pb2.SessionClosed(),
                ),
                event_pb2.Event(
                    sequence=2,
                    type=event_pb2.Event.TYPE_MESSAGE_APPENDED,
                    attempt=1,
                    message=message_pb2.Message(number=1, content=[_block(_ASTRONAUT)]),
                    message_appended=event_pb2.MessageAppended(number=1, model_stream_id="ms_1"),
                ),
                _unknown_event(),
            ]
        )
    ),
    "pieces_of_an_answer": session_service_pb.StreamEventsResponse(
        deltas=session_service_pb.DeltaBatch(
            deltas=[
                event_pb2.Delta(
                    model_stream_id="ms_1",
                    kind=event_pb2.Delta.KIND_TEXT,
                    revision=1,
                    append_text="👩",
                ),
                event_pb2.Delta(
                    model_stream_id="ms_1",
                    kind=event_pb2.Delta.KIND_TEXT,
                    base_revision=1,
                    revision=2,
                    append_text="\u200d🚀",
                ),
                event_pb2.Delta(model_stream_id="ms_1", revision=3, snapshot_text=""),
                event_pb2.Delta(model_stream_id="ms_1", revision=4, block_done=True),
            ]
        )
    ),
    "a_commit": executor_pb.CommitRequest(
        fence=_FENCE,
        operations=[
            executor_pb.Operation(
                commit_model_step=executor_pb.CommitModelStep(content=[_block("done")])
            ),
            executor_pb.Operation(
                claim_tool_calls=executor_pb.ClaimToolCalls(
                    tool_call_ids=["call-1"], idempotent=True
                )
            ),
            executor_pb.Operation(reserve_model_step=executor_pb.ReserveModelStep()),
        ],
        finish=executor_pb.Finish(completed=executor_pb.Completed()),
        request_id="c-1",
    ),
    "an_empty_poll": executor_pb.PollActivationResponse(draining=False),
    "a_question": interaction_pb2.Interaction(
        interaction_id="int_1",
        version=1,
        state=interaction_pb2.Interaction.STATE_OPEN,
        prompt=interaction_pb2.Prompt(
            form=interaction_pb2.FormPrompt(text="how many?", json_schema='{"type": "integer"}')
        ),
    ),
    "a_page": history_pb.ListMessagesResponse(
        messages=[message_pb2.Message(number=1), message_pb2.Message(number=2)],
        next_page_token="t\u00e9",  # noqa: S106 - no secret
    ),
    "an_enum_that_is_not_known": submission_pb2.Submission.FromString(b"\x20\x63\x0a\x01s"),
    "the_details_of_an_error": _error(),
}
"""The messages by name."""
