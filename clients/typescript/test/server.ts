// A server as a process of its own, that can be killed and started again on its file and port.
import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, openSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable } from "node:stream";
import { fileURLToPath } from "node:url";

export const ROOT = fileURLToPath(new URL("../../..", import.meta.url));
export const PYTHON = join(ROOT, ".venv/bin/python");

/** `runlane serve` with a store in a folder of its own. */
export class Server {
  readonly folder = mkdtempSync(join(tmpdir(), "runlane-ts-"));
  target: string;
  #process: ChildProcess | undefined;
  readonly #config: string;

  constructor(config = "", target = "127.0.0.1:0") {
    this.target = target;
    this.#config = join(this.folder, "runlane.toml");
    writeFileSync(this.#config, config);
  }

  static async started(config = "", target?: string): Promise<Server> {
    const server = new Server(config, target);
    await server.start();
    return server;
  }

  async start(): Promise<void> {
    const store = ["--store", `sqlite:${join(this.folder, "runlane.db")}`];
    const log = openSync(join(this.folder, "server.log"), "a");
    const process_ = spawn(
      PYTHON,
      [
        "-m",
        "runlane_server",
        "serve",
        "--listen",
        this.target,
        ...store,
        "--config",
        this.#config,
      ],
      { stdio: ["ignore", "pipe", log], cwd: this.folder },
    );
    this.#process = process_;
    const lines = createInterface({ input: process_.stdout as Readable });
    const told = once(lines, "line") as Promise<[string]>;
    const ended = once(process_, "exit").then(() => {
      throw new Error(`the server did not start: see ${this.folder}/server.log`);
    });
    ended.catch(() => undefined);
    const [line] = await Promise.race([told, ended]);
    this.target = line.replace("listening on ", "");
  }

  async kill(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const found = this.#process;
    if (found !== undefined && found.exitCode === null && found.signalCode === null) {
      const ended = once(found, "exit");
      found.kill(signal);
      await ended;
    }
  }

  async restart(): Promise<void> {
    await this.kill();
    await this.start();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.kill();
    rmSync(this.folder, { recursive: true, force: true });
  }
}
