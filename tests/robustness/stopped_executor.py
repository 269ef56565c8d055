"""An executor without a client of ours, which is stopped past its leases and then continued.

It leases so many runs, commits a reservation in each, and says so. Behind a line on its input
it does with the fence of each, in turn, one thing after the other, and tells what it met.
"""

import asyncio
import json
import sys
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runlane.v1 import executor_service_pb2 as pb
from support_server import COMPLETED, Link, failed, reserve, seconds, step, told
from support_server.turns import asks, claims, question, results


async def met(call) -> str:
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return f"{error.code().name} {told(error).reason}"
    if answer is grpc.aio.EOF:
        return "end"
    if getattr(answer, "replayed", False):
        return f"replayed, lost {answer.fence_lost}"
    if isinstance(answer, pb.WatchActivationResponse):
        return f"ended {answer.control.ended}"
    return "taken"


async def main(target: str, agent: str, count: str, lease: str) -> None:
    loop = asyncio.get_running_loop()
    async with Link(target) as link:
        duration = seconds(float(lease))
        leased = [
            await link.lease(agent, executor_id="stopped", lease_duration=duration)
            for _ in range(int(count))
        ]
        watching = []
        for number, one in enumerate(leased):
            fence = one.fence
            request = pb.WatchActivationRequest(fence=fence)
            watch = link.executors.WatchActivation(request, timeout=120)
            await watch.read()
            watching.append(watch)
            await link.commit(fence, reserve(), lease_duration=duration, request_id="reserve")
            if number % 2:
                await link.commit(fence, asks("c1"), claims("c1", idempotent=True))
                await link.heartbeat(fence, float(lease))
        print("leased", flush=True)
        await loop.run_in_executor(None, sys.stdin.readline)
        found = {}
        for one, watch in zip(leased, watching, strict=True):
            fence = one.fence
            new = link.executors.WatchActivation(pb.WatchActivationRequest(fence=fence), timeout=20)
            found[fence.run_id] = {
                "heartbeat": await met(link.heartbeat(fence, 60)),
                "commit": await met(link.commit(fence)),
                "reserve": await met(link.commit(fence, reserve())),
                "step": await met(link.commit(fence, step("stale"))),
                "claim": await met(link.commit(fence, claims("c1"))),
                "result": await met(link.commit(fence, results("c1"))),
                "answer and finish": await met(link.answer_reserved(fence, "stale")),
                "finish": await met(link.commit(fence, finish=COMPLETED)),
                "fail": await met(link.commit(fence, finish=failed())),
                "suspend": await met(link.commit(fence, suspend=question())),
                "release": await met(link.commit(fence, release=pb.Release())),
                "again": await met(
                    link.commit(fence, reserve(), lease_duration=duration, request_id="reserve")
                ),
                "watch": await met(watch.read()),
                "new watch": await met(new.read()),
            }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
