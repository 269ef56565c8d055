"""48 readers that never pause: `readers ADDRESS SESSION_ID ...`, until SIGTERM."""

import asyncio
import itertools
import sys

import grpc
import uvloop
from runlane.v1 import history_service_pb2 as history
from runlane.v1 import session_service_pb2 as session

READERS = 48


async def main(address: str, sessions: list[str]) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        # The answers stay bytes: the readers' own work is to burden the server alone.
        live = channel.unary_unary(
            "/runlane.v1.SessionService/GetLiveState",
            request_serializer=session.GetLiveStateRequest.SerializeToString,
        )
        messages = channel.unary_unary(
            "/runlane.v1.HistoryService/ListMessages",
            request_serializer=history.ListMessagesRequest.SerializeToString,
        )

        async def reader(number: int) -> None:
            for turn in itertools.count(number):
                session_id = sessions[turn % len(sessions)]
                if turn % 2:
                    await live(session.GetLiveStateRequest(session_id=session_id))
                else:
                    await messages(history.ListMessagesRequest(session_id=session_id))

        reading = asyncio.gather(*(reader(number) for number in range(READERS)))
        await asyncio.sleep(0.2)
        print(f"listening on {address}", flush=True)
        await reading


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2:]))
