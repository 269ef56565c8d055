"""The blocking client against a server, on a connection of its own and on a channel it is given."""

import threading

import grpc
import pytest
from runlane import sync
from support_server import unique


class Talker:
    """Answers in pieces; the last comes once the first was seen."""

    def __init__(self) -> None:
        self.seen = threading.Event()

    def stream(self, request):
        yield sync.ModelDelta(text="first, ")
        assert self.seen.wait(20)
        yield sync.ModelDelta(text="last")
        yield sync.ModelResponse(text="first, last")


@pytest.fixture(params=["own", "given"])
def client(request, shared):
    with grpc.insecure_channel(shared.address) as channel:
        given = channel if request.param == "given" else None
        with sync.Client(shared.address, channel=given) as made:
            yield made


def test_pieces_of_a_model_that_blocks_reach_a_reader_that_blocks(client):
    agent, model = unique("talker"), Talker()
    with (
        sync.Executor(client, sync.Agent(agent, model=model)),
        sync.SessionManager(client, unique("sync"), agent=agent) as manager,
        manager.events(include_messages=True, include_deltas=True) as events,
    ):
        receipt = manager.submit("talk")
        pieces, said = [], []
        for item in events:
            if isinstance(item, sync.Delta):
                pieces.append(item.append_text or item.snapshot_text or "")
                model.seen.set()
            elif isinstance(item, sync.RunEvent):
                said += [item.message.text] if item.message else []
                if item.stop_reason:
                    break
        assert said == ["talk", "first, last"]
        assert pieces[0] == "first, "
        assert manager.wait(receipt.run_id, timeout=10).stop_reason == "completed"


def test_a_run_that_is_interrupted_does_not_wait_for_a_model_that_blocks(client):
    agent, model = unique("talker"), Talker()
    with (
        sync.Executor(client, sync.Agent(agent, model=model)) as executor,
        sync.SessionManager(client, unique("sync"), agent=agent) as manager,
        manager.events(include_deltas=True) as events,
    ):
        receipt = manager.submit("talk")
        next(item for item in events if isinstance(item, sync.Delta))
        assert executor.active_count == 1
        manager.interrupt(wait=10)
        assert manager.wait(receipt.run_id, timeout=10).stop_reason == "cancelled"
        model.seen.set()
        executor.drain()
        assert executor.active_count == 0
