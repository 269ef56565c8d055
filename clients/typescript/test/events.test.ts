import { Code } from "@connectrpc/connect";
import { expect, test, vi } from "vitest";

import { StreamGapError, type Event, type EventStream } from "../src/index.js";
import { fakeClient, lost, refusal } from "./fake.js";

const frames = {
  batch: (...sequences: number[]) => ({
    frame: {
      case: "batch",
      value: { events: sequences.map((one) => ({ sequence: BigInt(one), sessionId: "s" })) },
    },
  }),
  bookmark: (sequence: number) => ({
    frame: { case: "bookmark", value: { sequence: BigInt(sequence), caughtUp: true } },
  }),
};

interface Asked {
  start: { case: string; value: bigint };
}

/** A session whose stream ends each time as the test says. */
function session(...scripts: (() => AsyncGenerator<unknown>)[]) {
  const cursors: number[] = [];
  const client = fakeClient({
    CreateSession: () => ({ created: true }),
    GetLiveState: () => ({ liveState: { sequence: 5n } }),
    StreamEvents: (request: Asked) => {
      cursors.push(Number(request.start.value));
      const script = scripts.shift();
      if (script === undefined) {
        throw refusal("SESSION_NOT_FOUND", Code.NotFound);
      }
      return script();
    },
  });
  return { manager: client.session("s"), cursors };
}

async function read(stream: EventStream, count = Infinity): Promise<number[]> {
  const found: number[] = [];
  for await (const event of stream) {
    found.push(event.sequence);
    if (found.length === count) {
      break;
    }
  }
  return found;
}

test("each event is told once, in order, over lost connections", async () => {
  const { manager, cursors } = session(
    async function* () {
      yield frames.batch(1, 2);
      throw lost();
    },
    async function* () {
      yield frames.batch(2, 3);
      yield frames.batch(3, 4);
      throw refusal("DRAINING", Code.Unavailable);
    },
    async function* () {
      throw lost(Code.Unavailable);
    },
    async function* () {
      yield frames.batch(5);
    },
  );
  const stream = manager.events({ afterSequence: 0 });
  expect(await read(stream)).toEqual([1, 2, 3, 4, 5]);
  expect(cursors).toEqual([0, 2, 4, 4]);
  expect(stream.sequence).toBe(5);
  expect(stream.closed).toBe(true);
});

test("a stream that leaves an event out says so, a filtered one may", async () => {
  const script = async function* () {
    yield frames.batch(1);
    yield frames.batch(3);
  };
  const { manager } = session(script, script);
  const whole = read(manager.events({ afterSequence: 0 }));
  await expect(whole).rejects.toMatchObject({ expected: 2, received: 3 });
  await expect(whole).rejects.toBeInstanceOf(StreamGapError);
  expect(await read(manager.events({ afterSequence: 0, types: ["run.terminal"] }))).toEqual([1, 3]);
});

test("a bookmark moves the cursor past what was filtered out", async () => {
  const { manager, cursors } = session(
    async function* () {
      yield frames.batch(6);
      yield frames.bookmark(9);
      throw lost();
    },
    async function* () {
      yield frames.batch(12);
    },
  );
  const stream = manager.events({ runIds: ["run_1"] });
  expect(await read(stream)).toEqual([6, 12]);
  expect(cursors).toEqual([5, 9]);
});

test("a stream begins where the session stood when it was called, and other calls wait", async () => {
  const told: string[] = [];
  let state: (() => void) | undefined;
  const client = fakeClient({
    CreateSession: () => ({}),
    GetLiveState: async () => {
      await new Promise<void>((resolve) => (state = resolve));
      told.push("state");
      return { liveState: { sequence: 5n } };
    },
    Submit: () => {
      told.push("submit");
      return { submission: {} };
    },
    StreamEvents: async function* (request: Asked) {
      told.push(`from ${request.start.value}`);
      yield frames.batch(6);
    },
  });
  const manager = client.session("s");
  const stream = manager.events();
  const submitted = manager.submit("hello");
  await vi.waitFor(() => expect(state).toBeDefined());
  state?.();
  await submitted;
  expect(await read(stream)).toEqual([6]);
  expect(told).toEqual(["state", "submit", "from 5"]);
});

test("what is no loss of a connection ends the stream, and so does too long a one", async () => {
  const { manager } = session();
  const refused = read(manager.events({ afterSequence: 0 }));
  await expect(refused).rejects.toMatchObject({ reason: "SESSION_NOT_FOUND" });
  const away = async function* () {
    throw lost();
  };
  const { manager: other } = session(...Array.from({ length: 50 }, () => away));
  const gone = read(other.events({ afterSequence: 0, reconnectSeconds: 0.2 }));
  await expect(gone).rejects.toMatchObject({ code: "UNAVAILABLE" });
});

test("a stream that was closed ends, one whose signal is aborted throws its reason", async () => {
  const open = async function* (): AsyncGenerator<unknown> {
    yield frames.batch(1);
    await new Promise(() => undefined);
  };
  const { manager } = session(open, open, open);
  const stream = manager.events({ afterSequence: 0 });
  const iterator = stream[Symbol.asyncIterator]();
  expect(((await iterator.next()).value as Event).sequence).toBe(1);
  await iterator.return(undefined);
  expect(await read(stream)).toEqual([]);

  const controller = new AbortController();
  const aborted = manager.events({ afterSequence: 0, signal: controller.signal });
  const reading = read(aborted);
  await vi.waitFor(() => expect(aborted.sequence).toBe(1));
  controller.abort(new Error("enough"));
  await expect(reading).rejects.toThrow("enough");
});
