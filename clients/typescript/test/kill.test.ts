import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";

import { Client } from "../src/index.js";
import { Server } from "./server.js";

const WORKER = fileURLToPath(new URL("worker.mjs", import.meta.url));

/** What becomes of a run whose executor is killed, and how often its tool had its effect. */
const CASES = [
  ["claimed", "once", "outcome_unknown", 0],
  ["done", "once", "outcome_unknown", 1],
  ["model", "once", "completed", 1],
  ["claimed", "idempotent", "completed", 1],
  // Run again, as it was declared that it may be: with the same key.
  ["done", "idempotent", "completed", 2],
] as const;

test(
  "a run outlives its executor, and a tool that is not idempotent is never run twice",
  { timeout: 120_000 },
  async () => {
    await using server = await Server.started();
    const client = new Client(server.target);
    const effects = join(server.folder, "effects");
    const lines = (agent: string): string[] =>
      (existsSync(effects) ? readFileSync(effects, "utf8") : "")
        .split("\n")
        .filter((line) => line.startsWith(`${agent} `));
    const worker = (agent: string, place: string) =>
      spawn(process.execPath, [WORKER, server.target, agent, place, effects], {
        stdio: ["ignore", "pipe", "inherit"],
      });
    const one = async ([place, kind, stopReason, count]: (typeof CASES)[number]): Promise<void> => {
      const agent = `${place}-${kind}`;
      const first = worker(agent, place);
      const told = once(createInterface({ input: first.stdout }), "line");
      const session = client.session(agent, { agent });
      const { runId } = await session.submit("pay");
      expect(await told).toEqual([place]);
      first.kill("SIGKILL");
      await once(first, "exit");
      const second = worker(agent, "never");
      try {
        const result = await session.wait(runId, { timeoutSeconds: 60 });
        expect([agent, result.stopReason]).toEqual([agent, stopReason]);
        expect(result.run.attempt).toBe(stopReason === "completed" ? 2 : 1);
        expect(lines(agent)).toHaveLength(count);
        expect(new Set(lines(agent)).size).toBeLessThanOrEqual(1);
        if (stopReason === "completed") {
          expect(result.text).toBe("paid");
        }
      } finally {
        second.kill("SIGKILL");
      }
    };
    await Promise.all(CASES.map(one));
    client.close();
  },
);
