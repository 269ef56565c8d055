// What an executor does with what a service tells it, without a server.
import { expect, test, vi } from "vitest";

import { Executor, type Agent } from "../src/index.js";
import { CommitRequestSchema } from "../src/gen/executor_service_pb.js";
import type { CommitRequest } from "../src/gen/models.js";
import { toPlain } from "../src/plain.js";
import { fakeClient } from "./fake.js";

const LARGE = 2n ** 63n - 1n;
const agent: Agent = { name: "planner", model: () => Promise.resolve("done") };

function activation(runId: string, limits = {}, size = 5n) {
  const source = { case: "uri", value: "https://example.com/a.png" };
  const image = { kind: 1, sizeBytes: size, source };
  const content = [{ block: { case: "media", value: image } }];
  return {
    fence: { sessionId: "s", runId, activationId: `act_${runId}`, epoch: 1 },
    run: { runId, agent: "planner", options: { limits } },
    context: { messages: [{ number: 1n, role: 1, content }] },
  };
}

function stopped(signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    signal?.addEventListener("abort", () => {
      resolve();
    });
  });
}

test("an activation that cannot be read fails its run alone, and the next one is worked on", async () => {
  const leased = [
    activation("many", { maxTotalTokens: LARGE }),
    activation("image", {}, LARGE),
    activation("good", { maxTotalTokens: 2n ** 53n - 1n }),
  ];
  const commits: CommitRequest[] = [];
  const granted = { state: 1, step: 1, modelStreamId: "ms" };
  const client = fakeClient({
    async PollActivation(_request: never, signal) {
      const next = leased.shift();
      if (next === undefined) {
        await stopped(signal);
        signal?.throwIfAborted();
      }
      return { activation: next };
    },
    Commit(request: never) {
      const commit = toPlain(CommitRequestSchema, request);
      commits.push(commit);
      return commit.finish === undefined
        ? { results: [{ result: { case: "reserveModelStep", value: granted } }] }
        : { outcomeApplied: true };
    },
    Heartbeat: () => ({}),
    async *WatchActivation(_request: never, signal) {
      await stopped(signal);
    },
  });
  const executor = new Executor(client, agent);
  const running = executor.run();
  const ends = () => commits.filter((commit) => commit.finish !== undefined);
  await Promise.race([running, vi.waitFor(() => expect(ends()).toHaveLength(3), 10_000)]);
  await executor.close();
  await running;
  const found = Object.fromEntries(ends().map((commit) => [commit.fence?.runId, commit.finish]));
  const failed = { reason: "executor_error", retryable: false };
  expect(found).toMatchObject({
    many: { failed: { ...failed, message: expect.stringContaining("limits.maxTotalTokens") } },
    image: { failed: { ...failed, message: expect.stringContaining("media.sizeBytes") } },
    good: { completed: {} },
  });
});
