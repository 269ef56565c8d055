import { expect, test } from "vitest";
import { Client, Executor } from "../src/index.js";
import { Server } from "./server.js";

test("smoke", async () => {
  await using server = await Server.started();
  const client = new Client(server.target);
  const executor = new Executor(
    client,
    {
      name: "echo",
      async *model(request) {
        yield "you said: ";
        const last = request.messages.at(-1);
        const text = last?.content.map((b) => b.text ?? "").join("") ?? "";
        yield text;
      },
    },
    { log: (m, d) => console.log(m, d) },
  );
  void executor.run();
  const session = client.session("s1", { agent: "echo" });
  const events = session.events({ includeMessages: true });
  const result = await session.run("hello");
  expect(result.text).toBe("you said: hello");
  const seen: string[] = [];
  for await (const event of events) {
    seen.push(event.type);
    if (event.type === "run.terminal") break;
  }
  console.log(seen);
  await executor.drain();
  client.close();
});
