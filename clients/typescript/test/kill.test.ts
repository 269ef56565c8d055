import { spawn, type ChildProcessByStdio } from "node:child_process";
import { once } from "node:events";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { fileURLToPath } from "node:url";
import { expect, test, vi } from "vitest";

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

/** What it was at when it fell asleep, and what its run then came to with another executor. */
const SLEEPS = [
  // Before any tool was asked for: whoever took over does it all.
  ["asked", "completed"],
  ["done", "outcome_unknown"],
  ["model", "completed"],
] as const;

interface Scene extends AsyncDisposable {
  readonly client: Client;
  readonly worker: (agent: string, place: string) => Worker;
  readonly effects: (agent: string) => string[];
}

/** A worker as a process, which is killed at the end. */
class Worker {
  readonly process: ChildProcessByStdio<Writable, Readable, null>;
  readonly said: string[] = [];
  answering = false;

  constructor(target: string, agent: string, place: string, effects: string) {
    this.process = spawn(process.execPath, [WORKER, target, agent, place, effects], {
      stdio: ["pipe", "pipe", "inherit"],
    });
    createInterface({ input: this.process.stdout }).on("line", (line) => {
      this.said.push(line);
      if (this.answering && line === place) {
        this.goOn();
      }
    });
  }

  async says(line: string): Promise<void> {
    await vi.waitFor(() => expect(this.said).toContain(line), 30_000);
  }

  goOn(): void {
    this.process.stdin.write("go on\n");
  }

  async kill(): Promise<void> {
    if (this.process.exitCode === null && this.process.signalCode === null) {
      const ended = once(this.process, "exit");
      this.process.kill("SIGKILL");
      await ended;
    }
  }
}

async function scene(): Promise<Scene> {
  const server = await Server.started();
  const client = new Client(server.target);
  const file = join(server.folder, "effects");
  const workers: Worker[] = [];
  return {
    client,
    worker(agent, place) {
      const made = new Worker(server.target, agent, place, file);
      workers.push(made);
      return made;
    },
    effects: (agent) =>
      (existsSync(file) ? readFileSync(file, "utf8") : "")
        .split("\n")
        .filter((line) => line.startsWith(`${agent} `)),
    async [Symbol.asyncDispose]() {
      await Promise.all(workers.map((worker) => worker.kill()));
      client.close();
      await server[Symbol.asyncDispose]();
    },
  };
}

test(
  "a run outlives its executor, and a tool that is not idempotent is never run twice",
  { timeout: 120_000 },
  async () => {
    await using at = await scene();
    const one = async ([place, kind, stopReason, count]: (typeof CASES)[number]): Promise<void> => {
      const agent = `${place}-${kind}`;
      const first = at.worker(agent, place);
      const session = at.client.session(agent, { agent });
      const { runId } = await session.submit("pay");
      await first.says(place);
      await first.kill();
      at.worker(agent, "never");
      const result = await session.wait(runId, { timeoutSeconds: 60 });
      expect([agent, result.stopReason]).toEqual([agent, stopReason]);
      expect(result.run.attempt).toBe(stopReason === "completed" ? 2 : 1);
      expect(at.effects(agent)).toHaveLength(count);
      expect(new Set(at.effects(agent)).size).toBeLessThanOrEqual(1);
      if (stopReason === "completed") {
        expect(result.text).toBe("paid");
      }
    };
    await Promise.all(CASES.map(one));
  },
);

test(
  "an executor that slept while its run was taken over commits nothing and repeats no effect",
  { timeout: 120_000 },
  async () => {
    await using at = await scene();
    const one = async ([place, stopReason]: (typeof SLEEPS)[number]): Promise<void> => {
      const agent = `${place}-asleep`;
      const first = at.worker(agent, place);
      const session = at.client.session(agent, { agent });
      const { runId } = await session.submit("pay");
      await first.says(place);
      first.process.kill("SIGSTOP");
      const second = at.worker(agent, "never");
      const result = await session.wait(runId, { timeoutSeconds: 60 });
      expect([agent, result.stopReason]).toEqual([agent, stopReason]);
      const { sequence } = await session.snapshot();
      // It wakes up and goes on with what it was at: too late.
      first.answering = true;
      first.goOn();
      first.process.kill("SIGCONT");
      await first.says("an activation was lost");
      expect((await session.snapshot()).sequence).toBe(sequence);
      expect(at.effects(agent)).toHaveLength(1);
      // Its next run is as good as any.
      await second.kill();
      expect(await session.run("pay")).toMatchObject({ text: "paid", run: { attempt: 1 } });
      expect(at.effects(agent)).toHaveLength(2);
    };
    await Promise.all(SLEEPS.map(one));
  },
);
