import { setTimeout as sleep } from "node:timers/promises";

import { afterAll, beforeAll, expect, test, vi } from "vitest";

import {
  Client,
  Executor,
  ModelError,
  textOf,
  tool,
  ToolError,
  ToolOutput,
  toolResultOf,
  type Agent,
  type ModelRequest,
  type ToolContext,
} from "../src/index.js";
import { Server } from "./server.js";

let server: Server;
let client: Client;
const told: unknown[] = [];

beforeAll(async () => {
  server = await Server.started();
  client = new Client({ target: server.target, clientName: "tests" });
});

afterAll(async () => {
  client.close();
  await server[Symbol.asyncDispose]();
});

/** Runs agents for as long as the test does. */
function working(agents: Agent | Agent[]): AsyncDisposable {
  const executor = new Executor(client, agents, { log: (...one) => told.push(one) });
  const run = executor.run();
  return {
    async [Symbol.asyncDispose]() {
      await executor.close();
      await run;
    },
  };
}

const results = (request: ModelRequest) =>
  request.messages.map(toolResultOf).filter((one) => one !== undefined);

test("every mode does what it says, and what is pending can be seen and taken back", async () => {
  let open: (() => void) | undefined;
  const gate = new Promise<void>((resolve) => (open = resolve));
  await using _ = working({
    name: "slow",
    async model({ messages }) {
      await gate;
      const texts = messages.filter((one) => one.role === "user").map(textOf);
      return `heard ${texts.join(", ")}`;
    },
  });
  const session = client.session("modes", { agent: "slow" });
  const first = await session.submit("tea");
  expect(first).toMatchObject({ state: "delivered", route: "run", mode: "start" });
  await expect(session.submit("again")).rejects.toMatchObject({
    reason: "SESSION_BUSY",
    metadata: { run_id: first.runId },
  });
  const steer = await session.submit("with milk", { mode: "auto" });
  expect(steer).toMatchObject({ state: "pending", route: "steer", runId: first.runId });
  const later = await session.submit("a cake", { mode: "queue" });
  const last = await session.submit("never mind", { mode: "follow_up" });
  const state = await session.snapshot();
  expect(state.pendingSubmissions.map((one) => textOf(one.content))).toEqual([
    "with milk",
    "a cake",
    "never mind",
  ]);
  expect(await session.withdraw(last.submissionId)).toMatchObject({ state: "withdrawn" });
  await expect(session.wait(last.runId)).rejects.toMatchObject({ reason: "SUBMISSION_SETTLED" });
  open?.();
  expect((await session.wait(first.runId)).text).toBe("heard tea, with milk");
  expect((await session.wait(later.runId)).text).toBe("heard tea, with milk, a cake");
  await expect(session.submit("x", { mode: "steer" })).rejects.toMatchObject({
    reason: "SESSION_IDLE",
  });
});

test("a run is replaced, interrupted, paused and goes on", async () => {
  await using _ = working({
    name: "patient",
    async model({ messages, signal }) {
      if (textOf(messages.at(-1)) === "wait") {
        await new Promise((_resolve, reject) => {
          signal.addEventListener("abort", () => {
            reject(signal.reason as Error);
          });
        });
      }
      return "done";
    },
  });
  const session = client.session("control", { agent: "patient" });
  const first = await session.submit("wait");
  const second = await session.submit("wait", { mode: "replace" });
  expect((await session.wait(first.runId)).stopReason).toBe("cancelled");
  const asked = await session.interrupt({ reason: "enough", waitSeconds: 20 });
  expect(asked).toMatchObject({ settled: true, run: { runId: second.runId } });

  const nobody = client.session("nobody", { agent: "nobody-polls" });
  const { runId } = await nobody.submit("hello");
  expect((await nobody.pause()).receipt).toBe("paused");
  expect((await nobody.wait(runId, { until: "stopped" })).run.phase).toBe("paused");
  expect((await nobody.restore(runId)).outcome).toBe("attached");
  expect((await nobody.unpause()).receipt).toBe("resumed");
  await expect(nobody.wait(runId, { timeoutSeconds: 0.2 })).rejects.toThrow("has not ended");
  const late = nobody.wait(runId, { until: "stopped", timeoutSeconds: 0.2 });
  await expect(late).rejects.toThrow("has not stopped");
  await nobody.close({ cancelRun: true });
  await nobody.close({ cancelRun: true });
  expect((await client.waitRun(runId)).stopReason).toBe("cancelled");
  await expect(nobody.submit("x")).rejects.toThrow("is closed");
});

test("tools run, ask for permission, ask the user, and wait for others", async () => {
  const tokens: string[] = [];
  const seen: ToolContext[] = [];
  await using _ = working([
    {
      name: "planner",
      askQuestion: true,
      tools: [
        tool<{ city: string }>({
          name: "weather",
          idempotent: true,
          run: ({ city }, context) => {
            seen.push(context);
            return { city, sunny: true };
          },
        }),
        tool({ name: "book", policy: "ask", run: () => new ToolOutput("booked") }),
        tool({ name: "broken", run: () => Promise.reject(new ToolError("out of order")) }),
        tool({ name: "guests", ask: () => ({ form: { type: "object" }, text: "Who comes?" }) }),
        tool({
          name: "kitchen",
          ask: () => ({ external: "the kitchen's word" }),
          run: (_given, context) => void tokens.push(context.externalToken),
        }),
        tool({ name: "cook", ask: () => ({ agent: "cook", input: "a dessert" }) }),
      ],
      async model(request) {
        const found = results(request);
        switch (found.length) {
          case 0:
            return {
              toolCalls: [
                { toolCallId: "w", name: "weather", arguments: '{"city": "Lyon", "n": 1.0}' },
                { toolCallId: "b", name: "book", arguments: { hotel: "Parc" } },
                { toolCallId: "x", name: "broken" },
                { toolCallId: "n", name: "nothing" },
                { toolCallId: "j", name: "weather", arguments: "{no json" },
                { toolCallId: "h", name: "weather", arguments: '{"city": 1e400}' },
              ],
            };
          case 6:
            return { toolCalls: [{ name: "ask_question", arguments: { question: "Museum?" } }] };
          case 7:
            return {
              toolCalls: [{ name: "guests" }, { name: "kitchen" }, { name: "cook" }],
            };
          default:
            return {
              text: found.map((one) => `${one.outcome}:${textOf(one)}`).join("|"),
              outputJson: '{"n": 1.0}',
            };
        }
      },
    },
    { name: "cook", model: () => Promise.resolve("cake") },
  ]);
  const session = client.session("tools", { agent: "planner" });
  let stopped = await session.run("plan", { until: "stopped" });
  expect(stopped.interaction?.prompt?.permission?.calls).toMatchObject([
    { toolCallId: "b", name: "book", argumentsJson: '{"hotel":"Parc"}' },
  ]);
  expect(seen[0]).toMatchObject({ toolCallId: "w", argumentsJson: '{"city": "Lyon", "n": 1.0}' });
  stopped = await session.resume({ approve: false, reason: "too expensive" });
  expect(stopped.interaction?.prompt?.question?.text).toBe("Museum?");
  stopped = await session.resume("park");
  expect(stopped.interaction?.prompt?.form?.text).toBe("Who comes?");
  await session.answer({ jsonText: '{"adults": 2.0}' });
  await vi.waitFor(() => expect(tokens).toHaveLength(1), 20_000);
  await client.completeExternal(tokens[0] ?? "", { resultJson: '{"ready": "19:00"}' });
  const ended = await session.wait(stopped.runId, { timeoutSeconds: 30 });
  expect(ended.text.split("|")).toEqual([
    'ok:{"city":"Lyon","sunny":true}',
    expect.stringMatching(/^rejected:.*too expensive/),
    "error:out of order",
    'error:there is no tool named "nothing"',
    expect.stringMatching(/^error:/),
    expect.stringMatching(/^error:/),
    "ok:park",
    'ok:{"adults": 2.0}',
    'ok:{"ready": "19:00"}',
    "ok:cake",
  ]);
  expect(ended.run.outcome?.outputJson).toBe('{"n": 1.0}');
  const children = await client.history.childRuns(ended.runId).all();
  expect(children).toMatchObject([{ agent: "cook", outcome: { stopReason: "completed" } }]);
  const calls = await client.history.toolCalls(ended.runId).all();
  expect(calls.map((one) => one.state)).toEqual(calls.map(() => "committed"));
});

test("an external wait outlives the turn that opened it: only the executor's end calls its tool off", async () => {
  const tokens: string[] = [];
  const agent: Agent = {
    name: "host",
    tools: [
      tool<{ forever: boolean }>({
        name: "kitchen",
        ask: () => ({ external: "the kitchen's word" }),
        // As `fetch` does, it heeds the signal.
        run: async ({ forever }, { signal, externalToken }) => {
          tokens.push(externalToken);
          await sleep(forever ? 60_000 : 500, undefined, { signal });
          await client.completeExternal(externalToken, { resultJson: '{"ready": "19:00"}' });
        },
      }),
    ],
    async model(request) {
      const done = results(request).at(-1);
      const forever = textOf(request.messages[0]) === "forever";
      return done === undefined
        ? { toolCalls: [{ name: "kitchen", arguments: { forever } }] }
        : `${done.outcome}:${textOf(done)}`;
    },
  };
  const session = client.session("host", { agent: "host" });
  {
    await using _ = working(agent);
    expect((await session.run("dinner")).text).toBe('ok:{"ready": "19:00"}');
    await client.submit("forever", "left", { create: { defaultAgent: "host" } });
    await vi.waitFor(() => expect(tokens).toHaveLength(2), 20_000);
  }
  await using _ = working(agent);
  const { run } = await client.session("left").snapshot();
  expect((await client.waitRun(run?.runId ?? "", { timeoutSeconds: 20 })).text).toMatch(
    /^error:the executor stopped/,
  );
});

test("a model that fails ends its run, and nothing of what it says is told but by its own word", async () => {
  await using _ = working([
    {
      name: "refuser",
      model: () => Promise.reject(new ModelError("refused", "not this")),
    },
    { name: "faulty", model: () => Promise.reject(new RangeError("a secret")) },
  ]);
  const refused = await client.start("x", undefined, { options: { agent: "refuser" } });
  expect(refused.run.outcome).toMatchObject({
    stopReason: "failed",
    failure: { reason: "model_refused", message: "not this", retryable: false },
  });
  const failed = await client.start("x", undefined, { options: { agent: "faulty" } });
  expect(failed.run.outcome?.failure).toMatchObject({
    reason: "executor_error",
    message: "RangeError",
  });
  expect(JSON.stringify(told)).not.toContain("a secret");
});

test("history is read page by page, and a session is forked at the end of a run", async () => {
  await using _ = working({
    name: "mirror",
    model: ({ messages }) => Promise.resolve([...textOf(messages.at(-1))].reverse().join("")),
  });
  const options = { agent: "mirror" };
  for (const text of ["abc", "def", "ghi"]) {
    await client.start(text, "mirrored", { options });
  }
  const { history } = client;
  const points = await history.forkPoints("mirrored").page({ limit: 2 });
  expect(points.items).toHaveLength(2);
  const rest = await history.forkPoints("mirrored").page({ after: points.nextCursor });
  expect(rest).toMatchObject({ items: [{ inputPreview: "ghi" }], nextCursor: undefined });
  const at = points.items[1]?.runId ?? "";
  const frozen = await history.atRun(at);
  expect(frozen.messages.map(textOf)).toEqual(["abc", "cba", "def", "fed"]);
  const fork = await history.fork(at, { input: "xyz", options, labels: { kind: "fork" } });
  expect(fork).toMatchObject({ messageCount: 4, digest: frozen.digest, forkedFromRunId: at });
  expect((await client.waitRun(fork.submission?.runId ?? "")).text).toBe("zyx");
  const { sessionId } = fork.session;
  expect((await history.messages(sessionId).all()).map((one) => one.number)).toEqual([
    1, 2, 3, 4, 5, 6,
  ]);
  const newest = await history.messages(sessionId, { beforeNumber: 0 }).page({ limit: 2 });
  expect(newest.items.map((one) => one.number)).toEqual([6, 5]);
  const streamed: number[] = [];
  for await (const message of history.streamMessages(sessionId, { afterNumber: 4 })) {
    streamed.push(message.number);
  }
  expect(streamed).toEqual([5, 6]);
  expect(
    (await history.sessions({ labels: { kind: "fork" } }).all()).map((s) => s.sessionId),
  ).toEqual([sessionId]);
  expect((await history.forks("mirrored").all()).map((s) => s.sessionId)).toEqual([sessionId]);
  expect((await history.lineage(sessionId)).ancestors).toMatchObject([{ sessionId: "mirrored" }]);
  const runs = await history.runs("mirrored", { phases: ["terminal"] }).all();
  expect(runs.map((run) => run.inputPreview)).toEqual(["abc", "def", "ghi"]);
  const types: string[] = [];
  for await (const event of history.runEvents(at)) {
    types.push(event.type);
  }
  expect(types[0]).toBe("run.created");
  expect(types.at(-1)).toBe("run.terminal");
  const listed = await history.events({ runId: at }).all();
  expect(listed.map((event) => event.type)).toEqual(types);
});

test("what is said comes back as the same bytes: emoji, 1.0, large numbers, 3 MB", async () => {
  const inputs: string[] = [];
  const json = '{"one": 1, "float": 1.0, "large": 9007199254740993}';
  await using _ = working({
    name: "exact",
    tools: [{ name: "keep", run: (_given, context) => context.argumentsJson }],
    async *model(request) {
      inputs.push(textOf(request.messages[0]));
      const done = results(request).at(-1);
      if (done !== undefined) {
        return textOf(done);
      }
      // An emoji that is cut in two on its way.
      yield "👩‍👩‍👧".slice(0, 1);
      yield "👩‍👩‍👧".slice(1, 4);
      yield "👩‍👩‍👧".slice(4);
      return { text: "👩‍👩‍👧", toolCalls: [{ toolCallId: "k", name: "keep", arguments: json }] };
    },
  });
  const large = "ä".repeat(1_500_000);
  const session = client.session("exact", { agent: "exact" });
  const events = session.events({ includeMessages: true, includeDeltas: true });
  const pieces: string[] = [];
  const reading = (async () => {
    for await (const item of events.items()) {
      if (item.kind === "deltas") {
        pieces.push(...item.deltas.map((one) => one.appendText ?? one.snapshotText ?? ""));
      }
      if (item.kind === "events" && item.events.some((event) => event.type === "run.terminal")) {
        return;
      }
    }
  })();
  const result = await session.run(large);
  await reading;
  expect(result.run.outcome?.failure).toBeUndefined();
  expect(result.text).toBe(json);
  expect(inputs[0] === large).toBe(true);
  expect(pieces.every((piece) => piece.isWellFormed())).toBe(true);
  const messages = await client.history.messages("exact").all();
  expect(textOf(messages[0]) === large).toBe(true);
  expect(textOf(messages[1])).toBe("👩‍👩‍👧");
  await expect(client.submit("x".repeat(3_300_000))).rejects.toMatchObject({
    reason: "MESSAGE_TOO_LARGE",
  });
  await expect(client.submit("half \ud83d")).rejects.toThrow("surrogate");
});

test("an executor and a stream go on over a restart of the server", async () => {
  await using other = await Server.started();
  const direct = new Client(other.target);
  const executor = new Executor(direct, {
    name: "echo",
    async *model({ messages }) {
      yield "a ";
      await vi.waitFor(() => expect(restarted).toBe(true), 30_000);
      return textOf(messages.at(-1));
    },
  });
  let restarted = false;
  const run = executor.run();
  const session = direct.session("s", { agent: "echo" });
  const stream = session.events();
  const receipt = await session.submit("hello");
  const sequences: number[] = [];
  for await (const event of stream) {
    sequences.push(event.sequence);
    if (event.type === "model_step.reserved") {
      await other.restart();
      restarted = true;
    }
    if (event.type === "run.terminal") {
      break;
    }
  }
  expect(sequences).toEqual(sequences.map((_one, index) => (sequences[0] ?? 0) + index));
  expect(await session.wait(receipt.runId)).toMatchObject({ text: "hello", run: { attempt: 1 } });
  await executor.drain();
  await run;
  direct.close();
});

test("an executor that is closed gives back what it has, one that is drained finishes it", async () => {
  const begun: string[] = [];
  let finish: (() => void) | undefined;
  const agent = (name: string): Agent => ({
    name: "given-back",
    async model({ signal }) {
      begun.push(name);
      await new Promise<void>((resolve, reject) => {
        finish = resolve;
        signal.addEventListener("abort", () => {
          reject(signal.reason as Error);
        });
      });
      return name;
    },
  });
  const first = new Executor(client, agent("first"));
  const run = first.run();
  const session = client.session("given", { agent: "given-back" });
  const { runId } = await session.submit("x");
  await vi.waitFor(() => expect(begun).toEqual(["first"]), 20_000);
  await first.close();
  await run;
  const second = new Executor(client, agent("second"));
  const running = second.run();
  await vi.waitFor(() => expect(begun).toEqual(["first", "second"]), 20_000);
  const drained = second.drain();
  finish?.();
  await drained;
  await running;
  expect(await session.wait(runId)).toMatchObject({ text: "second", run: { attempt: 2 } });
});

test("a view draws what there is: messages, text on its way, open tools and questions", async () => {
  let next: (() => void) | undefined;
  await using _ = working({
    name: "drawn",
    askQuestion: true,
    async *model(request) {
      if (results(request).length > 0) {
        return "thanks";
      }
      yield "I ";
      yield "wonder";
      await new Promise<void>((resolve) => (next = resolve));
      return {
        text: "I wonder",
        toolCalls: [{ toolCallId: "q", name: "ask_question", arguments: { question: "Why?" } }],
      };
    },
  });
  const session = client.session("drawn", { agent: "drawn" });
  const seen: string[] = [];
  const view = session.view();
  const reading = (async () => {
    for await (const state of view) {
      const shown = state.partial?.blocks.map((block) => block.text).join("") ?? "";
      const tools = state.openTools.map((one) => one.name).join();
      const asked = state.questions.map((one) => one.prompt?.question?.text).join();
      const line = `${state.messages.length} [${shown}] ${tools} ${asked}`;
      if (line !== seen.at(-1)) {
        seen.push(line);
      }
      if (shown === "I wonder") {
        next?.();
      }
      if (asked === "Why?" && state.run?.phase === "waiting") {
        await session.answer("Because", undefined).catch((error: unknown) => {
          expect(error).toMatchObject({ reason: expect.stringMatching(/^INTERACTION_/) });
        });
      }
      if (state.messages.length === 4 && state.run === undefined) {
        return state;
      }
    }
    return undefined;
  })();
  await session.submit("hello");
  const last = await reading;
  expect(last?.messages.map((one) => textOf(one))).toEqual(["hello", "I wonder", "", "thanks"]);
  expect(last).toMatchObject({ openTools: [], questions: [], partial: undefined, pending: [] });
  expect(seen).toContain("1 [I wonder]  ");
  expect(seen).toContain("2 [] ask_question Why?");
});
