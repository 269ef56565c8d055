// An executor as a process of its own, to be killed: says where it is, and hangs there.
//
// Arguments: target, agent, where it hangs ("claimed", "done", "model" or "never"), the file in
// which each effect is a line.
import { appendFileSync } from "node:fs";
import { Client, Executor, toolResultOf } from "runlane";

const [target, agent, place, effects] = process.argv.slice(2);
const hang = async (at) => {
  if (place === at) {
    process.stdout.write(`${at}\n`);
    await new Promise(() => setInterval(() => undefined, 1000));
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
      const results = request.messages.map(toolResultOf).filter((one) => one !== undefined);
      if (results.length === 0) {
        return { toolCalls: [{ toolCallId: "1", name: "pay" }] };
      }
      await hang("model");
      return results.map((one) => one.content[0].text).join();
    },
  },
  { leaseSeconds: 5 },
);
await executor.run();
