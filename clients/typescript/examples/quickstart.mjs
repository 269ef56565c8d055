import { Client, Executor, textOf, tool } from "runlane";

const client = new Client(process.argv[2] ?? "127.0.0.1:7480");

// An agent: a model, here without one behind it, and a tool that a person has to allow.
const book = tool({
  name: "book",
  policy: "ask",
  schema: { type: "object", properties: { hotel: { type: "string" } } },
  run: ({ hotel }) => `a night at ${hotel}`,
});

async function* planner({ messages }) {
  if (messages.at(-1).role === "user") {
    yield "Let me book that."; // told to who watches, as it comes
    return {
      text: "Let me book that.", // kept
      toolCalls: [{ name: "book", arguments: { hotel: textOf(messages.at(-1)) } }],
    };
  }
  return `I have booked ${textOf(messages.at(-1).content[0].toolResult)}.`;
}

const executor = new Executor(client, { name: "planner", model: planner, tools: [book] });
const working = executor.run();

// A conversation: the session is made on first use.
const session = client.session("trip", { agent: "planner" });
const events = session.events({ includeMessages: true });

const receipt = await session.submit("Parc");
const stopped = await session.wait(receipt.runId, { until: "stopped" });
for (const call of stopped.interaction.prompt.permission.calls) {
  console.log(`may ${call.name} run with ${call.argumentsJson}?`);
}
const ended = await session.resume(true);
console.log(ended.stopReason, ended.text);

// What happened, from where the session stood when `events` was called.
for await (const event of events) {
  if (event.type === "message.appended") {
    console.log(event.message.author, textOf(event.message));
  }
  if (event.type === "run.terminal") {
    break;
  }
}

// A fork at the end of that run; the session stays as it is.
const fork = await client.history.fork(ended.runId);
console.log(fork.messageCount, fork.forkedFromRunId === ended.runId);

await executor.drain();
await working;
client.close();
