// What a manager does by itself: it makes its session, and knows what it queued.
import { afterEach, expect, test, vi } from "vitest";

import { fakeClient, lost } from "./fake.js";

afterEach(() => {
  vi.useRealTimers();
});

test("whoever waits for the session to be made is let go by its own signal and time", async () => {
  let made: (() => void) | undefined;
  let calls = 0;
  const client = fakeClient({
    CreateSession: async () => {
      calls += 1;
      await new Promise<void>((resolve) => (made = resolve));
      return {};
    },
    Submit: () => ({ submission: { runId: "run_1" } }),
  });
  const manager = client.session("s");
  const patient = manager.submit("hello");
  const signal = AbortSignal.timeout(10);
  await expect(manager.submit("hello", { signal })).rejects.toThrow("timeout");
  await expect(manager.snapshot({ signal })).rejects.toThrow("timeout");
  await expect(manager.submit("hello", { timeoutSeconds: 0.01 })).rejects.toMatchObject({
    code: "DEADLINE_EXCEEDED",
  });
  const view = manager.view({ signal: AbortSignal.timeout(10) });
  await expect(view[Symbol.asyncIterator]().next()).rejects.toThrow("timeout");
  // Who has time waits on, for the same call.
  made?.();
  expect((await patient).runId).toBe("run_1");
  expect(calls).toBe(1);
});

test("inputs that wait no more are forgotten", async () => {
  const pending: string[] = [];
  const withdrawn: string[] = [];
  let looks = 0;
  let taken = 0;
  const client = fakeClient({
    CreateSession: () => ({}),
    Submit: () => {
      taken += 1;
      pending.push(`sub_${taken}`);
      // One waits at a time, but for the first, which waits for ever.
      pending.splice(1, pending.length - 2);
      return { submission: { submissionId: `sub_${taken}`, state: 1 } };
    },
    GetLiveState: () => {
      looks += 1;
      if (looks === 1) {
        throw lost();
      }
      const pendingSubmissions = pending.map((submissionId) => ({ submissionId }));
      return { liveState: { pendingSubmissions } };
    },
    WithdrawSubmission: ({ submissionId }: { submissionId: string }) => {
      withdrawn.push(submissionId);
      return { submission: { submissionId } };
    },
    InterruptRun: () => ({ settled: true }),
  });
  const manager = client.session("s");
  for (let input = 0; input < 300; input += 1) {
    expect((await manager.submit("later", { mode: "queue" })).state).toBe("pending");
  }
  await manager.close({ cancelRun: true });
  expect(looks).toBeLessThan(6);
  expect(withdrawn.length).toBeLessThan(130);
  expect(withdrawn[0]).toBe("sub_1");
  expect(withdrawn.at(-1)).toBe("sub_300");
});

test("the events of a run that was silent for long outlive a loss", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] });
  const frame = (sequence: number) => ({ events: [{ runSequence: BigInt(sequence) }] });
  const quiet = async (): Promise<void> => {
    await new Promise((resolve) => setTimeout(resolve, 90_000));
  };
  const cursors: number[] = [];
  const client = fakeClient({
    StreamRunEvents: async function* ({ afterRunSequence }: { afterRunSequence: bigint }) {
      cursors.push(Number(afterRunSequence));
      if (cursors.length < 3) {
        yield frame(cursors.length);
        await quiet();
        throw lost();
      }
      if (cursors.length === 4) {
        yield frame(3);
        return;
      }
      throw lost();
    },
  });
  const read = (async () => {
    const found: number[] = [];
    for await (const event of client.history.runEvents("run_1")) {
      found.push(event.runSequence);
    }
    return found;
  })();
  read.catch(() => undefined);
  await vi.advanceTimersByTimeAsync(240_000);
  expect(await read).toEqual([1, 2, 3]);
  expect(cursors).toEqual([0, 1, 2, 2]);
});
