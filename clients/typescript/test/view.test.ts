import { describe, expect, test } from "vitest";

import type { Delta, Event, EventBodies, LiveState, Message } from "../src/index.js";
import { ViewFold } from "../src/view.js";

const LIVE = {
  session: { sessionId: "s" },
  openInteractions: [],
  pendingSubmissions: [],
  messages: [],
  allowedCommands: ["steer"],
  waitingForExecutor: false,
  sequence: 10,
} as unknown as LiveState;

let sequence = 10;

function fold(live: Partial<LiveState> = {}, limit = 200): ViewFold {
  sequence = live.sequence ?? 10;
  return new ViewFold({ ...LIVE, ...live }, [], limit);
}

function event<T extends keyof EventBodies>(type: T, body: Partial<EventBodies[T]>, more = {}) {
  sequence += 1;
  const told = { sequence, type, body, activationId: "act_1", runId: "run_1", ...more };
  return { kind: "events" as const, events: [told as unknown as Event] };
}

function deltas(...given: Partial<Delta>[]) {
  const base = {
    modelStreamId: "m1",
    runId: "run_1",
    activationId: "act_1",
    step: 1,
    blockIndex: 0,
    kind: "text",
  };
  return { kind: "deltas" as const, deltas: given.map((one) => ({ ...base, ...one }) as Delta) };
}

function append(text: string, revision: number, more: Partial<Delta> = {}): Partial<Delta> {
  return { appendText: text, baseRevision: revision - 1, revision, ...more };
}

function message(number: number, modelStreamId = "", text = `text ${number}`) {
  const found = { number, modelStreamId, content: [{ text }] } as unknown as Message;
  return event("message.appended", { number, modelStreamId }, { message: found });
}

const shown = (view: ViewFold) => view.state.partial?.blocks.map((block) => block.text);

describe("text on its way", () => {
  test("grows, and is gone once its message is there", () => {
    const view = fold();
    view.take(deltas(append("Hel", 1), append("lo", 2)));
    expect(shown(view)).toEqual(["Hello"]);
    expect(view.state.messages).toEqual([]);
    view.take(message(1, "m1"));
    expect(shown(view)).toBeUndefined();
    expect(view.state.messages.map((one) => one.number)).toEqual([1]);
  });

  test("that comes after its message is shown no more", () => {
    const view = fold();
    view.take(message(1, "m1"));
    view.take(deltas(append("Hello", 1), { snapshotText: "Hello", revision: 4 }));
    expect(shown(view)).toBeUndefined();
  });

  test("is not put together over a gap, and is whole again with a snapshot", () => {
    const view = fold();
    view.take(deltas(append("a", 1), append("c", 3)));
    expect(shown(view)).toEqual(["a"]);
    view.take(deltas({ snapshotText: "abc", revision: 3 }, append("d", 4), append("d", 4)));
    expect(shown(view)).toEqual(["abcd"]);
    view.take(deltas({ snapshotText: "abc", revision: 3 }));
    expect(shown(view)).toEqual(["abcd"]);
  });

  test("keeps blocks apart, and their ends change no text", () => {
    const view = fold();
    view.take(deltas(append("b", 1, { blockIndex: 1 }), append("a", 1, { kind: "reasoning" })));
    view.take(deltas({ blockDone: true, baseRevision: 1 }));
    expect(view.state.partial?.blocks).toEqual([
      { blockIndex: 0, kind: "reasoning", text: "a", done: true },
      { blockIndex: 1, kind: "text", text: "b", done: false },
    ]);
  });

  test("is void where a newer request is made, or its activation has ended", () => {
    const view = fold();
    view.take(deltas(append("old", 1)));
    view.take(deltas(append("new", 1, { modelStreamId: "m2" })));
    expect(shown(view)).toEqual(["new"]);
    view.take(deltas(append("er", 2)));
    expect(shown(view)).toEqual(["new"]);
    view.take(event("activation.abandoned", {}));
    expect(shown(view)).toBeUndefined();
    view.take(deltas(append("new", 1, { modelStreamId: "m3" })));
    expect(shown(view)).toBeUndefined();
    view.take(deltas(append("x", 1, { modelStreamId: "m4", activationId: "act_2" })));
    expect(shown(view)).toEqual(["x"]);
    view.take(event("run.terminal", {}, { activationId: "act_2" }));
    expect(shown(view)).toBeUndefined();
  });
});

test("an event is folded once, and only the newest messages are kept", () => {
  const view = fold({}, 3);
  const first = message(1);
  view.take(first);
  view.take(first);
  for (let number = 2; number <= 5; number += 1) {
    view.take(message(number));
  }
  expect(view.state.messages.map((one) => one.number)).toEqual([3, 4, 5]);
});

test("tools are open from their step to their result", () => {
  const view = fold();
  view.take(event("tool_call.prepared", { toolCallId: "1", name: "book", ordinal: 1 }));
  view.take(event("tool_call.prepared", { toolCallId: "2", name: "pay", ordinal: 2 }));
  view.take(event("tool_call.claimed", { toolCallId: "1" }));
  expect(view.state.openTools).toEqual([
    { toolCallId: "1", name: "book", state: "claimed" },
    { toolCallId: "2", name: "pay", state: "prepared" },
  ]);
  view.take(event("tool_call.committed", { toolCallId: "1" }));
  view.take(event("tool_call.cancelled", { toolCallId: "2" }));
  expect(view.state.openTools).toEqual([]);
});

test("records are read again where an event changed them, and not where they are as new", () => {
  const view = fold({ sequence: 20 });
  view.take(message(1));
  expect(view.stale).toBe(false);
  view.take(event("submission.pending", { submissionId: "sub_1" }));
  expect(view.stale).toBe(true);
  view.refresh({ ...LIVE, sequence: 30, allowedCommands: ["start"] });
  expect(view.stale).toBe(false);
  view.take(event("run.waiting", {}));
  expect(view.stale).toBe(false);
  expect(view.state.allowedCommands).toEqual(["start"]);
  view.take({
    kind: "events",
    events: [{ sequence: 40, type: "unknown", maySkip: false } as unknown as Event],
  });
  expect(view.stale).toBe(true);
});
