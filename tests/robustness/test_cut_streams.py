"""A stream that is cut again and again, at random, tells each thing once, in order."""

import asyncio
import random

import pytest
from runlane import Agent, Client, Delta, Executor, ModelDelta, ModelResponse, sync
from support_server import Proxy, unique, until, within

pytestmark = pytest.mark.asyncio

CUTS = 100
WHOLE = "".join(f"piece {number}, " for number in range(30))


class Talker:
    """Tells the same text in pieces."""

    async def stream(self, request):
        for start in range(0, len(WHOLE), 8):
            yield ModelDelta(text=WHOLE[start : start + 8])
            await asyncio.sleep(0.02)
        yield ModelResponse(text=WHOLE)


class Reader:
    """Folds what a stream tells, and has the connection cut after every few items."""

    def __init__(self, cut, seed: int) -> None:
        self.sequences: list[int] = []
        self.shown: dict[tuple[str, int], tuple[int, str]] = {}
        self.replaced: set[str] = set()
        self.grew = 0
        self.cuts = 0
        self._cut = cut
        self._random = random.Random(seed)
        self._left = 1

    def take(self, item) -> None:
        if isinstance(item, Delta):
            self._show(item)
        else:
            self.sequences.append(item.sequence)
            message = getattr(item, "message", None)
            if message is not None and message.model_stream_id:
                assert message.text == WHOLE
                self.replaced.add(message.model_stream_id)
        self._left -= 1
        if not self._left and self.cuts < CUTS:
            self._left = self._random.randint(1, 4)
            self.cuts += 1
            self._cut()

    def _show(self, delta: Delta) -> None:
        assert delta.model_stream_id not in self.replaced, "it is told by its message already"
        key = (delta.model_stream_id, delta.block_index)
        revision, text = self.shown.get(key, (0, ""))
        if delta.snapshot_text is not None:
            text = delta.snapshot_text
        elif delta.append_text is not None and delta.base_revision == revision:
            text += delta.append_text
        else:
            return
        assert WHOLE.startswith(text), "a piece is shown twice, or one is missing"
        self.grew += 1
        self.shown[key] = (delta.revision, text)


async def reading_async(target, session, reader, ended) -> None:
    async with (
        Client(target) as client,
        client.events(session, include_messages=True, include_deltas=True) as events,
    ):
        async for item in events:
            reader.take(item)
            if ended(reader):
                return


async def reading_blocking(target, session, reader, ended) -> None:
    def read() -> None:
        with (
            sync.Client(target) as client,
            client.events(session, include_messages=True, include_deltas=True) as events,
        ):
            for item in events:
                reader.take(item)
                if ended(reader):
                    return

    await asyncio.to_thread(read)


@pytest.mark.parametrize("reading", [reading_async, reading_blocking])
async def test_a_stream_cut_a_hundred_times_tells_each_thing_once(server, reading):
    session, agent = unique("cut"), unique("talker")
    loop = asyncio.get_running_loop()
    last: list[int] = []
    async with (
        Client(server.address) as client,
        Executor(client, Agent(agent, model=Talker())),
        Proxy(server.address) as proxy,
    ):
        await client.create_session(session, default_agent=agent)
        reader = Reader(lambda: loop.call_soon_threadsafe(proxy.cut), seed=7)

        def ended(told: Reader) -> bool:
            return bool(last) and told.sequences[-1] >= last[0]

        task = asyncio.create_task(reading(proxy.address, session, reader, ended))
        await until(lambda: reader.sequences)
        while reader.cuts < CUTS:
            await within(30, client.start("go on", session))
            assert not task.done(), await task
        last.append((await client.live_state(session)).sequence + 1)
        await client.update_session(session, display_name="the end")
        await within(30, task)
    assert reader.sequences == list(range(1, last[0] + 1))
    assert reader.cuts == CUTS
    assert reader.grew > CUTS / 4
    assert len(reader.replaced) > 1
