// What an executor meets that is no word of a model: what is too large or too precise, and a
// server that does not answer.
import { afterAll, afterEach, beforeAll, expect, test, vi } from "vitest";

import { Client, Executor, textOf, toolResultOf, type Agent } from "../src/index.js";
import { fakeClient } from "./fake.js";
import { Server } from "./server.js";

let server: Server;
let client: Client;

beforeAll(async () => {
  server = await Server.started();
  client = new Client(server.target);
});

afterAll(async () => {
  client.close();
  await server[Symbol.asyncDispose]();
});

afterEach(() => {
  vi.useRealTimers();
});

function working(agent: Agent): AsyncDisposable {
  const executor = new Executor(client, agent);
  const run = executor.run();
  return {
    async [Symbol.asyncDispose]() {
      await executor.close();
      await run;
    },
  };
}

const CONTENT = 3 * 1024 * 1024;
const MIB = 1024 * 1024;

test("an answer that is too large ends its run, told by its size, and no other call", async () => {
  let asked = 0;
  await using _ = working({
    name: "large",
    tools: [{ name: "delegate", ask: () => ({ agent: "large", input: "x".repeat(9 * MIB) }) }],
    model({ messages }) {
      asked += 1;
      const last = messages.at(-1);
      const done = last === undefined ? undefined : toolResultOf(last);
      const said = done === undefined ? textOf(last) : "done";
      const answers: Record<string, Parameters<typeof Promise.resolve>[0]> = {
        "20 MiB": "x".repeat(20 * MIB),
        "4 MiB": "x".repeat(4 * MIB),
        "9 MiB of JSON": { outputJson: JSON.stringify("x".repeat(9 * MIB)) },
        "257 blocks": { content: Array.from({ length: 257 }, () => ({ text: "x" })) },
        "a child run": { toolCalls: [{ name: "delegate" }] },
        done: done === undefined ? "" : textOf(done),
      };
      return Promise.resolve(answers[said] as string);
    },
  });
  const told = "MESSAGE_TOO_LARGE:";
  for (const [input, message] of [
    ["20 MiB", `${told} content of ${20 * MIB + 5} bytes is over the limit of ${CONTENT} bytes`],
    ["4 MiB", `${told} content of ${4 * MIB + 5} bytes is over the limit of ${CONTENT} bytes`],
    [
      "9 MiB of JSON",
      expect.stringMatching(`^${told} a request of \\d+ bytes .* ${8 * MIB} bytes`),
    ],
    ["257 blocks", "FIELD_INVALID"],
  ] as const) {
    asked = 0;
    const session = client.session(`large-${input.replaceAll(" ", "-")}`, { agent: "large" });
    const { run } = await session.run(input);
    expect(run.outcome?.failure).toEqual({ reason: "executor_error", message, retryable: false });
    expect([asked, run.attempt]).toEqual([1, 1]);
    // The connection is as it was.
    await client.serverInfo({ timeoutSeconds: 5 });
  }
  const child = await client.session("large-child", { agent: "large" }).run("a child run");
  expect(child.text).toBe("the child run could not be started: MESSAGE_TOO_LARGE");
});

test("inputs that are too large are refused, and hold up no other call", async () => {
  const fitting = 2.9 * MIB;
  const inputs = [
    20 * MIB,
    ...Array.from({ length: 24 }, (_one, at) => [fitting, 7.9 * MIB][at % 2]),
  ];
  const others = (async () => {
    for (let call = 0; call < 5; call += 1) {
      await client.serverInfo({ timeoutSeconds: 10 });
    }
  })();
  const answers = await Promise.all(
    inputs.map(async (size, at) => {
      const session = client.session(`input-${at}`, { agent: "nobody-polls" });
      return await session.submit("x".repeat(size ?? 0)).then(
        (receipt) => receipt.state,
        (error: unknown) => (error as { code: string }).code,
      );
    }),
  );
  await others;
  const wanted = inputs.map((size) => (size === fitting ? "delivered" : "RESOURCE_EXHAUSTED"));
  expect(answers).toEqual(wanted);
});

test("arguments and results keep integers that a number would round", async () => {
  let seen: unknown;
  await using _ = working({
    name: "exact",
    tools: [{ name: "pay", run: (given) => (seen = given) }],
    model: ({ messages }) =>
      Promise.resolve(
        messages.length > 1
          ? textOf(messages.at(-1)?.content[0]?.toolResult)
          : {
              toolCalls: [
                {
                  name: "pay",
                  arguments:
                    '{"to": 9007199254740993, "n": [-12345678901234567890, 9007199254740991], ' +
                    '"text": "\\"9007199254740993", "amount": 1.0, "e": 1E20}',
                },
              ],
            },
      ),
  });
  const { text } = await client.session("exact", { agent: "exact" }).run("pay");
  expect(text).toBe(
    '{"to":9007199254740993,"n":[-12345678901234567890,9007199254740991],' +
      '"text":"\\"9007199254740993","amount":1,"e":100000000000000000000}',
  );
  expect(seen).toEqual({
    to: 9007199254740993n,
    n: [-12345678901234567890n, 9007199254740991],
    text: '"9007199254740993',
    amount: 1,
    e: 1e20,
  });
});

test("an executor that is closed does not wait for a server that does not answer", async () => {
  let resolve: (() => void) | undefined;
  const committing = new Promise<void>((then) => (resolve = then));
  const never = new Promise<never>(() => undefined);
  const told: string[] = [];
  let commits = 0;
  let polls = 0;
  const fence = { sessionId: "s", runId: "r", activationId: "a", epoch: 1 };
  const hung = (_request: never, signal: AbortSignal | undefined): Promise<never> =>
    new Promise((_resolve, reject) => {
      signal?.addEventListener("abort", () => {
        reject(signal.reason as Error);
      });
    });
  const fake = fakeClient({
    PollActivation: (request: never, signal) => {
      polls += 1;
      const activation = { fence, run: { runId: "r", sessionId: "s", agent: "a" }, context: {} };
      return polls === 1 ? { activation } : hung(request, signal);
    },
    Commit: (request: never, signal) => {
      commits += 1;
      if (commits === 1) {
        const grant = { state: 1, step: 1, modelStreamId: "m" };
        return { results: [{ result: { case: "reserveModelStep", value: grant } }] };
      }
      resolve?.();
      return hung(request, signal);
    },
    Heartbeat: () => ({}),
    async *WatchActivation() {
      yield await never;
    },
  });
  const executor = new Executor(
    fake,
    { name: "a", model: () => Promise.resolve("an answer") },
    { log: (message) => told.push(message) },
  );
  const running = executor.run();
  await committing;
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  let closed = false;
  const closing = executor.close().then(() => (closed = true));
  await vi.advanceTimersByTimeAsync(9_000);
  expect(closed).toBe(false);
  await vi.advanceTimersByTimeAsync(1_500);
  await closing;
  await running;
  expect(told).toContain("an activation was lost");
});
