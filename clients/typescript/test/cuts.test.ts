import { expect, test, vi } from "vitest";

import { Client, Executor, textOf, tool, type Agent } from "../src/index.js";
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

test(
  "an executor whose connection is cut asks, runs and commits each thing once",
  { timeout: 180_000 },
  async () => {
    await using server = await Server.started();
    const random = seeded(7);
    const proxy = new CuttingProxy(server.target, () => 300 + Math.floor(random() * 4000));
    const client = new Client(await proxy.start());
    const effects = new Map<string, number>();
    let asked = 0;
    const pay = tool({
      name: "pay",
      run: (_given, { runId, toolCallId }) => {
        const key = `${runId} ${toolCallId}`;
        effects.set(key, (effects.get(key) ?? 0) + 1);
        return "paid";
      },
    });
    const executor = new Executor(client, {
      name: "payer",
      tools: [pay],
      async *model({ messages, runId }) {
        asked += 1;
        yield "I pay. ";
        const results = messages.filter((one) => one.runId === runId && one.role === "tool");
        return results.length === 4
          ? "All is paid."
          : { toolCalls: ["a", "b"].map((id) => ({ toolCallId: id, name: "pay" })) };
      },
    });
    const working = executor.run();
    const direct = new Client(server.target);
    let runs = 0;
    for (; proxy.cuts < CUTS / 2; runs += 1) {
      expect(runs).toBeLessThan(1000);
      // A session of its own: a context must fit into what a connection lets through.
      const session = `payment-${runs}`;
      const run = direct.session(session, { agent: "payer" }).run("pay", { timeoutSeconds: 60 });
      expect(await run).toMatchObject({ text: "All is paid.", run: { attempt: 1 } });
      expect(await direct.history.messages(session).all()).toHaveLength(8);
    }
    expect(asked).toBe(3 * runs);
    expect(effects.size).toBe(4 * runs);
    expect([...effects.values()].every((times) => times === 1)).toBe(true);

    await executor.close();
    await working;
    client.close();
    direct.close();
    await proxy.stop();
  },
);
