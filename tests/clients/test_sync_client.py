"""The blocking client on the channel of grpcio-testing, and what is its own: its thread."""

import asyncio
import contextvars
import gc
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import grpc_testing
import pytest
from client_fakes import details_of
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2
from runlane import errors, sync
from runlane.sync import _portal
from runlane.v1 import event_pb2, history_service_pb2, message_pb2, session_pb2, submission_pb2
from runlane.v1 import session_service_pb2 as pb

SESSIONS = pb.DESCRIPTOR.services_by_name["SessionService"]
HISTORY = history_service_pb2.DESCRIPTOR.services_by_name["HistoryService"]
SOON = 10


@pytest.fixture
def channel():
    return grpc_testing.channel([SESSIONS, HISTORY], grpc_testing.strict_real_time())


@pytest.fixture
def client(channel):
    with sync.Client(channel=channel, timeout=20, client_name="test") as made:
        yield made


@pytest.fixture
def threads():
    pool = ThreadPoolExecutor(4)
    yield pool
    # The client, which is closed after this, ends what is still there.
    pool.shutdown(wait=False)


def answer(channel, method, response, *, code=grpc.StatusCode.OK, trailing=()):
    metadata, request, rpc = channel.take_unary_unary(SESSIONS.methods_by_name[method])
    rpc.send_initial_metadata(())
    rpc.terminate(response, trailing, code, "" if code is grpc.StatusCode.OK else "no")
    return dict(metadata), request


def frames_of(channel, *events):
    _, request, rpc = channel.take_unary_stream(SESSIONS.methods_by_name["StreamEvents"])
    rpc.send_initial_metadata(())
    for sequence in events:
        event = event_pb2.Event(sequence=sequence, session_id="main", type=20)
        rpc.send_response(pb.StreamEventsResponse(batch=pb.EventBatch(events=[event])))
    return request, rpc


def submitted(sequence=7):
    submission = submission_pb2.Submission(
        submission_id="sub_1", state=submission_pb2.Submission.STATE_PENDING
    )
    return pb.SubmitResponse(submission=submission, sequence=sequence)


def session(session_id="main"):
    return pb.GetSessionResponse(session=session_pb2.Session(session_id=session_id))


def test_a_call_blocks_until_it_is_answered(channel, client, threads):
    receipt = threads.submit(client.submit, "go on", "main", mode="steer")
    metadata, request = answer(channel, "Submit", submitted())
    assert request.content == [message_pb2.Block(text="go on")]
    assert request.request_id
    assert metadata["runlane-client"] == "test"
    assert receipt.result(SOON).submission_id == "sub_1"


def test_a_server_that_is_away_is_asked_again_with_the_same_request_id(channel, client, threads):
    receipt = threads.submit(client.submit, "hello", "main")
    away = grpc.StatusCode.UNAVAILABLE
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(nanos=1_000_000))
    trailing = (("grpc-status-details-bin", details_of(away, "DRAINING", "no", retry)),)
    _, first = answer(channel, "Submit", None, code=away, trailing=trailing)
    _, second = answer(channel, "Submit", submitted())
    assert second == first
    assert receipt.result(SOON).sequence == 7


def test_a_refusal_is_the_error_of_its_reason(channel, client, threads):
    call = threads.submit(client.get_session, "main")
    code = grpc.StatusCode.NOT_FOUND
    details = details_of(code, "SESSION_NOT_FOUND", session_id="main")
    trailing = (("grpc-status-details-bin", details),)
    answer(channel, "GetSession", None, code=code, trailing=trailing)
    error = call.exception(SOON)
    assert isinstance(error, errors.SessionNotFound)
    assert isinstance(error, sync.SessionNotFound)


def test_a_stream_is_an_iterator_that_goes_on_over_a_lost_connection(channel, client, threads):
    events = client.events("main", after_sequence=4)
    first = threads.submit(next, events)
    _, rpc = frames_of(channel, 5)
    assert first.result(SOON).sequence == 5
    second = threads.submit(next, events)
    rpc.terminate((), grpc.StatusCode.UNAVAILABLE, "away")
    request, rpc = frames_of(channel, 6)
    assert request.after_sequence == 5
    assert second.result(SOON).sequence == 6
    assert events.sequence == 6
    last = threads.submit(list, events)
    rpc.terminate((), grpc.StatusCode.OK, "")
    assert last.result(SOON) == []
    assert events.closed


def test_a_stream_that_is_closed_ends_for_the_thread_that_reads_it(channel, client, threads):
    events = client.events("main")
    reading = threads.submit(list, events)
    _, rpc = frames_of(channel)
    events.close()
    assert reading.result(SOON) == []
    events.close()
    threads.submit(rpc.cancelled).result(SOON)


def test_a_stream_that_is_dropped_is_cancelled(channel, client, threads):
    events = client.events("main")
    first = threads.submit(next, events)
    _, rpc = frames_of(channel, 1)
    assert first.result(SOON).sequence == 1
    del first, events
    gc.collect()
    threads.submit(rpc.cancelled).result(SOON)


def test_an_iterator_that_is_left_early_is_closed(channel, client, threads):
    def first_of_two():
        for message in sync.SessionHistory(client).messages("main"):
            return message.number
        return None

    reading = threads.submit(first_of_two)
    _, _, rpc = channel.take_unary_stream(HISTORY.methods_by_name["StreamMessages"])
    rpc.send_initial_metadata(())
    frame = history_service_pb2.StreamMessagesResponse
    rpc.send_response(frame(messages=[message_pb2.Message(number=n, role=1) for n in (1, 2)]))
    assert reading.result(SOON) == 1
    threads.submit(rpc.cancelled).result(SOON)


def test_many_threads_call_at_once(channel, client, threads):
    ids = [f"s-{number}" for number in range(4)]
    calls = [threads.submit(client.get_session, session_id) for session_id in ids]
    for _ in ids:
        _, request, rpc = channel.take_unary_unary(SESSIONS.methods_by_name["GetSession"])
        rpc.send_initial_metadata(())
        rpc.terminate(session(request.session_id), (), grpc.StatusCode.OK, "")
    assert [call.result(SOON).session_id for call in calls] == ids


def test_two_readers_of_one_stream_are_refused(channel, client, threads):
    events = client.events("main")
    reading = threads.submit(next, events)
    _, rpc = frames_of(channel)
    with pytest.raises(RuntimeError, match="reads this stream"):
        next(events)
    event = event_pb2.Event(sequence=1, session_id="main", type=20)
    rpc.send_response(pb.StreamEventsResponse(batch=pb.EventBatch(events=[event])))
    assert reading.result(SOON).sequence == 1


def test_after_close_calls_are_refused_and_the_given_channel_lives(channel, client, threads):
    client.close()
    client.close()
    with pytest.raises(errors.ClientClosedError):
        client.get_session("main")
    with sync.Client(channel=channel) as other:
        call = threads.submit(other.get_session, "main")
        answer(channel, "GetSession", session())
        assert call.result(SOON).session_id == "main"


def test_a_call_in_a_thread_with_an_event_loop_is_refused_at_once(client):
    async def wrong():
        client.get_session("main")

    with pytest.raises(RuntimeError, match="an event loop runs in this thread"):
        asyncio.run(wrong())


class Slow(grpc.GenericRpcHandler):
    """Answers nothing; says when a call has come, and when it was cancelled."""

    def __init__(self):
        self.came, self.ended = threading.Event(), threading.Event()

    def service(self, handler_call_details):
        def wait(request, context):
            context.add_callback(self.ended.set)
            self.came.set()
            self.ended.wait(SOON)
            return b""

        return grpc.unary_unary_rpc_method_handler(wait)


@pytest.fixture
def slow():
    handler = Slow()
    server = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
    handler.target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield handler
    server.stop(None).wait()


@pytest.mark.parametrize("given", [False, True], ids=["own", "given"])
def test_an_interrupt_cancels_the_call_and_is_raised(slow, threads, given):
    def interrupt():
        assert slow.came.wait(SOON)
        os.kill(os.getpid(), signal.SIGINT)

    told = threads.submit(interrupt)
    with grpc.insecure_channel(slow.target) as channel:
        client = sync.Client(slow.target, channel=channel if given else None)
        with client, pytest.raises(KeyboardInterrupt):
            client.get_session("main")
    told.result(SOON)
    assert slow.ended.wait(SOON)


def test_a_client_that_is_closed_ends_calls_of_other_threads(slow, threads):
    client = sync.Client(slow.target)
    call = threads.submit(client.get_session, "main")
    assert slow.came.wait(SOON)
    client.close()
    assert isinstance(call.exception(SOON), errors.ClientClosedError)


def test_an_interrupt_loses_no_event(client):
    """It may come after the event has, and before the caller has it."""

    class Twin:
        sequence = 4
        closed = False

        async def __anext__(self):
            self.sequence = 5
            return "the event"

        async def aclose(self):
            self.closed = True

    events = sync.EventStream(client._portal, Twin())
    asyncio.run_coroutine_threadsafe(events._fetch(), client._portal._loop).result(SOON)
    assert events.sequence == 4
    assert next(events) == "the event"
    assert events.sequence == 5


def test_a_call_that_is_cancelled_before_it_begins_still_ends(client):
    began = []

    async def function():
        began.append(True)

    call = _portal._Call(client._portal._loop, function)

    def both():
        call.begin()
        call.cancel()

    client._portal._loop.call_soon_threadsafe(both)
    assert "CancelledError" in type(call.result.exception(SOON)).__name__
    assert began == []


def test_an_interrupt_before_a_call_begins_does_not_wait_for_it(client, monkeypatch):
    began = []

    def interrupted(function, *_arguments):
        if function.__name__ == "begin":
            raise KeyboardInterrupt
        monkeypatch.undo()
        client._portal._loop.call_soon_threadsafe(function)

    async def function():
        began.append(True)

    monkeypatch.setattr(client._portal._loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client._portal.call(function)
    assert began == []


def test_the_context_of_the_caller_goes_along(client):
    trace = contextvars.ContextVar("trace", default="none")
    trace.set("mine")

    async def seen():
        return trace.get()

    assert client._portal.call(seen) == "mine"


FORKED = """
import os, sys
from runlane import sync

def tell(function):
    try:
        function()
    except Exception as error:
        print(type(error).__name__, str(error).partition(":")[0], flush=True)

def in_child(function):
    child = os.fork()
    if not child:
        tell(function)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

before = lambda: sync.Client("127.0.0.1:1", timeout=0.2).get_session("main")
in_child(before)
client = sync.Client("127.0.0.1:1", timeout=0.2)
in_child(lambda: client.get_session("main"))
in_child(before)
tell(lambda: client.get_session("main"))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_client_is_made_after_a_fork_or_says_so():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        *("TransportError", "RuntimeError", "RuntimeError", "TransportError")
    ]
    assert "before a fork" in lines[1]
    assert "was forked" in lines[2]


@pytest.mark.parametrize("closed", [True, False])
def test_a_program_ends_at_once_whatever_is_open(closed):
    program = (
        "import threading\nfrom runlane import sync\n"
        "client = sync.Client('127.0.0.1:1')\n"
        "threading.Thread(target=lambda: next(client.events('main')), daemon=True).start()\n"
        "try:\n    sync.Client('127.0.0.1:1', timeout=0.3).get_session('a')\n"
        "except sync.TransportError:\n    pass\n"
        f"client.close() if {closed} else None\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.returncode == 0, done.stderr
