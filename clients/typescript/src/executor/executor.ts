// The executor: polls for activations and works on each.
import { randomUUID } from "node:crypto";
import { hostname } from "node:os";

import { create } from "@bufbuild/protobuf";

import { Linked, Signal, sleep } from "../async.js";
import type { Caller } from "../caller.js";
import type { Client } from "../client.js";
import { ArgumentError, RunlaneError, ServiceError, TransportError } from "../errors.js";
import {
  ExecutorService,
  LeasedActivationSchema,
  PollActivationRequestSchema,
  PollActivationResponseSchema,
  type PollActivationResponse,
} from "../gen/executor_service_pb.js";
import type { LeasedActivation } from "../gen/models.js";
import { present } from "../history.js";
import { newRequestId } from "../ids.js";
import { fromPlain, toPlain } from "../plain.js";
import { delaySeconds } from "../policy.js";
import { ActivationWork } from "./activation.js";
import type { Log } from "./lease.js";
import type { Agent } from "./model.js";
import { Toolbox } from "./tools.js";

// Contexts up to this size come with the lease; larger ones are streamed.
const CONTEXT_BYTES = 1024 * 1024;
// Seconds that a poll may still take once the server was told to give nothing more.
const LAST_POLL = 5;
// Polls in a row that reach nobody, before that is told: the first may meet the end of a connection.
const MISSED = 2;
// Failures that a later poll may not meet: the server, the store or the network.
const PASSING: ReadonlySet<string> = new Set([
  "UNAVAILABLE",
  "DEADLINE_EXCEEDED",
  "INTERNAL",
  "UNKNOWN",
  "CANCELLED",
  "ABORTED",
  "RESOURCE_EXHAUSTED",
  "DATA_LOSS",
]);

/** How an executor works. */
export interface ExecutorOptions {
  /** Names this process; default: its host, its process id and something random. */
  readonly executorId?: string;
  /** Activations at a time; default: 8. */
  readonly concurrency?: number;
  /** Seconds that a lease lasts without a sign of life: 5 to 600; default: 30. */
  readonly leaseSeconds?: number;
  /** Seconds that a poll waits for work: 0 to 300; default: 20. */
  readonly pollSeconds?: number;
  /** Told what goes wrong and is no fault of a caller: ids and kinds, never content. */
  readonly log?: Log;
}

/**
 * Runs agents: leases activations, asks models and commits what they answer.
 *
 * A restart of the server is survived, and leases go on over it. An error of a model ends its run
 * and nothing else.
 */
export class Executor {
  readonly executorId: string;
  readonly #caller: Caller;
  readonly #agents = new Map<string, { readonly agent: Agent; readonly toolbox: Toolbox }>();
  readonly #concurrency: number;
  readonly #leaseSeconds: number;
  readonly #pollSeconds: number;
  readonly #log: Log;
  readonly #work = new Map<ActivationWork, Promise<void>>();
  readonly #polling = new Linked();
  readonly #freed = new Signal();
  #draining = false;
  #running: Promise<void> | undefined;
  #missed = 0;

  /** @throws ArgumentError There is no agent, two have one name, or a number is out of range. */
  constructor(client: Client, agents: Agent | readonly Agent[], options: ExecutorOptions = {}) {
    this.#caller = client.caller;
    for (const agent of Array.isArray(agents) ? (agents as readonly Agent[]) : [agents as Agent]) {
      if (this.#agents.has(agent.name)) {
        throw new ArgumentError("agents", `two are named ${JSON.stringify(agent.name)}`);
      }
      this.#agents.set(agent.name, { agent, toolbox: new Toolbox(agent) });
    }
    if (this.#agents.size === 0) {
      throw new ArgumentError("agents", "an executor needs one");
    }
    this.executorId = options.executorId ?? defaultId();
    this.#concurrency = inRange("concurrency", options.concurrency ?? 8, 1, 100_000);
    this.#leaseSeconds = inRange("leaseSeconds", options.leaseSeconds ?? 30, 5, 600);
    this.#pollSeconds = inRange("pollSeconds", options.pollSeconds ?? 20, 0, 300);
    this.#log = options.log ?? ((): void => undefined);
  }

  /** Activations that it has now. */
  get activeCount(): number {
    return this.#work.size;
  }

  /**
   * Polls and works until it is drained or closed.
   *
   * @param signal Gives back what runs, for others to take at once, and ends this.
   * @throws RunlaneError The server refuses the polls; what runs is finished before.
   */
  run(signal?: AbortSignal): Promise<void> {
    if (this.#running !== undefined) {
      throw new RunlaneError("the executor runs already; make another one");
    }
    const onAbort = (): void => {
      void this.close();
    };
    signal?.addEventListener("abort", onAbort, { once: true });
    if (signal?.aborted === true) {
      onAbort();
    }
    this.#running = this.#pollAll().finally(async () => {
      signal?.removeEventListener("abort", onAbort);
      await this.#idle();
    });
    // Whoever drains or closes it looks at what it ends with, too.
    this.#running.catch(() => undefined);
    return this.#running;
  }

  /**
   * Takes no more activations, and returns when those it has are done. A server that cannot be
   * told is told to the log: nothing more is taken all the same.
   */
  async drain(): Promise<void> {
    this.#stopPolling();
    try {
      const { drainExecutor } = ExecutorService.method;
      const options = { timeoutSeconds: LAST_POLL };
      await this.#caller.unary(drainExecutor, { executorId: this.executorId }, options);
    } catch (error) {
      this.#tell("the server was not told of the drain, which goes on", error);
    }
    // A poll that is on its way has its answer now; one that has not leases nothing.
    const last = setTimeout(() => {
      this.#polling.abort(new RunlaneError("the executor is drained"));
    }, LAST_POLL * 1000);
    try {
      await this.#running?.catch(() => undefined);
      await this.#idle();
    } finally {
      clearTimeout(last);
    }
  }

  /**
   * Stops at once; idempotent.
   *
   * @param options `release`: give back what runs, for others to take at once (default); else
   *   its leases run out, as if the process had died.
   */
  async close(options: { readonly release?: boolean } = {}): Promise<void> {
    this.#stopPolling();
    this.#polling.abort(new RunlaneError("the executor is closed"));
    for (const activation of this.#work.keys()) {
      activation.stop(options.release ?? true);
    }
    await this.#idle();
    await this.#running?.catch(() => undefined);
  }

  #stopPolling(): void {
    this.#draining = true;
    this.#freed.set();
  }

  async #idle(): Promise<void> {
    while (this.#work.size > 0) {
      await Promise.allSettled(this.#work.values());
    }
  }

  async #pollAll(): Promise<void> {
    while (!this.#draining) {
      if (this.#work.size >= this.#concurrency) {
        await this.#freed.take();
        continue;
      }
      const answer = await this.#poll();
      if (answer !== undefined) {
        this.#take(answer);
      }
    }
  }

  /** Asks until there is an answer: the same request id gives the same lease. */
  async #poll(): Promise<PollActivationResponse | undefined> {
    const request = fromPlain(PollActivationRequestSchema, {
      executorId: this.executorId,
      agents: [...this.#agents.keys()].sort(),
      waitDurationSeconds: this.#pollSeconds,
      leaseDurationSeconds: this.#leaseSeconds,
      contextBytesMax: CONTEXT_BYTES,
      requestId: newRequestId(),
    });
    const { signal } = this.#polling;
    const onRepeat = (failure: ServiceError | TransportError): void => {
      this.#unreached(failure);
    };
    for (let failures = 1; ; failures += 1) {
      let answer: PollActivationResponse;
      try {
        const { pollActivation } = ExecutorService.method;
        answer = await this.#caller.message(pollActivation, request, { signal, onRepeat });
      } catch (error) {
        if (signal.aborted) {
          return undefined;
        }
        const told = error instanceof ServiceError || error instanceof TransportError;
        if (!told || !PASSING.has(error.code)) {
          throw error;
        }
        this.#unreached(error);
        if (error instanceof ServiceError) {
          this.#tell("the poll failed", error);
        }
        await sleep(delaySeconds(failures, error), signal).catch(() => undefined);
        if (this.#draining) {
          return undefined;
        }
        continue;
      }
      this.#reached();
      this.#draining ||= answer.draining;
      return answer;
    }
  }

  /** Begins to work on what was leased; one that cannot be read fails its run, and nothing else. */
  #take(answer: PollActivationResponse): void {
    const { activation, fenceLost } = answer;
    if (activation === undefined || fenceLost) {
      return;
    }
    let leased: LeasedActivation;
    let unread: unknown;
    try {
      leased = present(toPlain(PollActivationResponseSchema, answer).activation);
    } catch (error) {
      const { fence, run, control } = activation;
      const known = { fence, control, run: { runId: run?.runId ?? "", agent: run?.agent ?? "" } };
      leased = toPlain(LeasedActivationSchema, create(LeasedActivationSchema, known));
      unread = error;
    }
    this.#start(leased, unread);
  }

  #start(leased: LeasedActivation, unread?: unknown): void {
    const found = this.#agents.get(leased.run?.agent ?? "");
    if (found === undefined) {
      this.#log("an activation of an agent came that was not asked for", {});
      return;
    }
    const { agent, toolbox } = found;
    const work = new ActivationWork(
      this.#caller,
      leased,
      agent,
      toolbox,
      this.#leaseSeconds,
      this.#log,
      unread,
    );
    const done = work
      .run()
      .catch((error: unknown) => {
        this.#tell("an activation ended with an error", error);
      })
      .finally(() => {
        this.#work.delete(work);
        this.#freed.set();
      });
    this.#work.set(work, done);
    if (this.#polling.signal.aborted) {
      work.stop(true);
    }
  }

  /** Says that the server is away, once, and not of a connection that was cut alone. */
  #unreached(error: ServiceError | TransportError): void {
    if (error instanceof TransportError) {
      this.#missed += 1;
      if (this.#missed === MISSED) {
        this.#tell("cannot reach the server, and goes on trying", error);
      }
    }
  }

  #reached(): void {
    if (this.#missed >= MISSED) {
      this.#log("the server answers again", { target: this.#caller.target });
    }
    this.#missed = 0;
  }

  #tell(message: string, error: unknown): void {
    const name = error instanceof Error ? error.name : typeof error;
    const code = error instanceof TransportError ? error.code : name;
    const reason = error instanceof ServiceError ? error.reason : code;
    this.#log(message, { target: this.#caller.target, error: reason });
  }
}

function inRange(name: string, value: number, least: number, most: number): number {
  if (!(value >= least && value <= most)) {
    throw new ArgumentError(name, `is not within ${least} and ${most}`);
  }
  return value;
}

function defaultId(): string {
  const host = hostname()
    .replaceAll(/[^A-Za-z0-9._-]/g, "-")
    .slice(0, 64)
    .replace(/^[._-]+/, "");
  return `${host || "host"}-${process.pid}-${randomUUID().replaceAll("-", "").slice(0, 12)}`;
}
