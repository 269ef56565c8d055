import { expect, test, vi } from "vitest";

import { Client, Executor, textOf, type Agent } from "../src/index.js";
import { seeded } from "./fake.js";
import { CuttingProxy } from "./proxy.js";
import { Server } from "./server.js";

const CUTS = 100;

const parrot: Agent = {
  name: "parrot",
  async *model(request) {
    const said = textOf(request.messages.at(-1));
    for (const word of said.split(" ")) {
      yield `${word} `;
      await new Promise((resolve) => setImmediate(resolve));
    }
    return said;
  },
};

test(
  `a stream that is cut ${CUTS} times tells each event once, and no text twice`,
  { timeout: 180_000 },
  async () => {
    await using server = await Server.started();
    const random = seeded(41);
    const proxy = new CuttingProxy(server.target, () => 300 + Math.floor(random() * 8000));
    const target = await proxy.start();
    const direct = new Client(server.target);
    const executor = new Executor(direct, parrot);
    const working = executor.run();
    const watcher = new Client({ target, reconnectSeconds: 60 });
    const manager = direct.session("cut", { agent: "parrot" });
    await manager.snapshot();

    const stop = new AbortController();
    const sequences: number[] = [];
    const watched = (async () => {
      const stream = watcher.session("cut").events({
        afterSequence: 0,
        includeMessages: true,
        includeDeltas: true,
        signal: stop.signal,
      });
      for await (const event of stream) {
        sequences.push(event.sequence);
      }
    })();
    const problems: string[] = [];
    let views = 0;
    let newest = 0;
    const drawn = (async () => {
      for await (const state of watcher.session("cut").view({ signal: stop.signal })) {
        views += 1;
        newest = state.sequence;
        const streams = new Set(state.messages.map((message) => message.modelStreamId));
        if (state.partial !== undefined && streams.has(state.partial.modelStreamId)) {
          problems.push("text on its way is shown beside its message");
        }
        const numbers = state.messages.map((message) => message.number);
        if (
          numbers.some((number, index) => index > 0 && number !== (numbers[index - 1] ?? 0) + 1)
        ) {
          problems.push(`messages ${numbers.join()}`);
        }
        const shown = state.partial?.blocks.map((block) => block.text).join("") ?? "";
        if (!"one two three four five six seven eight ".startsWith(shown)) {
          problems.push(`shown: ${shown}`);
        }
      }
    })();

    let last = 0;
    for (let turn = 0; proxy.cuts < CUTS; turn += 1) {
      expect(turn).toBeLessThan(2000);
      const result = await manager.run("one two three four five six seven eight");
      expect(result.text).toBe("one two three four five six seven eight");
      last = (await manager.snapshot({ messageLimit: 0 })).sequence;
      // What is behind by much comes in frames too large for a short connection.
      await vi.waitFor(() => expect([sequences.at(-1), newest]).toEqual([last, last]), 20_000);
    }
    stop.abort(new Error("seen"));
    await expect(watched).rejects.toThrow("seen");
    await expect(drawn).rejects.toThrow("seen");
    expect(proxy.cuts).toBeGreaterThanOrEqual(CUTS);
    expect(sequences).toEqual(Array.from({ length: last }, (_one, index) => index + 1));
    expect(problems).toEqual([]);
    expect(views).toBeGreaterThan(CUTS / 2);

    await executor.drain();
    await working;
    watcher.close();
    direct.close();
    await proxy.stop();
  },
);
