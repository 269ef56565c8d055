"""How long nothing may come of an import; by fake time."""

import asyncio

import pytest
from runlane.v1 import admin_service_pb2 as pb
from runlane_server.core.errors import Reason, Refused
from runlane_server.transport.admin import _read
from runlane_server.transport.archives import ArchiveReader

pytestmark = pytest.mark.asyncio


async def test_silence_is_counted_from_one_request_to_the_next(monkeypatch):
    loop = asyncio.get_running_loop()
    real, passed, sent = loop.time, 0, 0
    monkeypatch.setattr(loop, "time", lambda: real() + passed)

    async def incoming():
        nonlocal passed, sent
        for _ in range(5):
            passed += 50
            for _ in range(3):  # what is due by now is done
                await asyncio.sleep(0)
            sent += 1
            yield pb.ImportSessionRequest()
        passed += 61
        await asyncio.Event().wait()

    with pytest.raises(Refused) as caught:
        await _read(incoming(), ArchiveReader(1000, 1, 1), 60)
    assert (caught.value.reason, sent) == (Reason.STREAM_ENDED, 5)
    assert caught.value.message == "nothing of the import came for 60 seconds"
