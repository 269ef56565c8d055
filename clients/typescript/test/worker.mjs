// An executor as a process of its own, to be killed: says where it is, and hangs there until a line
// comes. Says, too, what it tells the log.
//
// Arguments: target, agent, where it hangs ("asked", "claimed", "done", "model" or "never"), the
// file in which each effect is a line.
import { once } from "node:events";
import { appendFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { Client, Executor, toolResultOf } from "runlane";

const [target, agent, place, effects] = process.argv.slice(2);
const lines = createInterface({ input: process.stdin });
const hang = async (at) => {
  if (place === at) {
    process.stdout.write(`${at}\n`);
    await once(lines, "line");
  }
};
const pay = {
  name: "pay",
  idempotent: agent.endsWith("idempotent"),
  async run(_given, context) {
    await hang("claimed");
    appendFileSync(effects, `${agent} ${context.runId} ${context.toolCallId}\n`);
    await hang("done");
    return "paid";
  },
};
const executor = new Executor(
  new Client(target),
  {
    name: agent,
    tools: [pay],
    async model(request) {
      const own = request.messages.filter((message) => message.runId === request.runId);
      const results = own.map(toolResultOf).filter((one) => one !== undefined);
      if (results.length === 0) {
        await hang("asked");
        return { toolCalls: [{ toolCallId: "1", name: "pay" }] };
      }
      await hang("model");
      return results.map((one) => one.content[0].text).join();
    },
  },
  { leaseSeconds: 5, log: (message) => process.stdout.write(`${message}\n`) },
);
await executor.run();
