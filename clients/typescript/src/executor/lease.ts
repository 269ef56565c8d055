// A lease on a run: its signs of life, its control, and the commits under its fence.
import { toBinary } from "@bufbuild/protobuf";

import { REQUEST_BYTES } from "../access.js";
import { sleep, unlessAborted } from "../async.js";
import type { Caller } from "../caller.js";
import { isReason, RunlaneError, ServiceError, TransportError } from "../errors.js";
import type {
  ActivationControl,
  CommitRequest,
  CommitResponse,
  Fence,
  LeasedActivation,
  Operation,
} from "../gen/models.js";
import { CommitRequestSchema, ExecutorService } from "../gen/executor_service_pb.js";
import { BlockSchema } from "../gen/message_pb.js";
import { fromPlain, type Init } from "../plain.js";
import { delaySeconds, isReopenable } from "../policy.js";

/** Tells what an executor meets that is no fault of a caller; ids and kinds, never content. */
export type Log = (message: string, detail: Readonly<Record<string, string>>) => void;

/** Seconds. The first heartbeat confirms the lease, which would end after 10 s otherwise. */
const FIRST_HEARTBEAT = 3;
// A server that comes back lets leases live for a full term, so an outage ends none: only its
// answer does. This bounds how long the work is kept for a server that does not come back.
export const OUTAGE = 900;
/** Seconds to give a run back, or to say goodbye to it, when the executor stops. */
export const PARTING = 5;
/** Seconds that work may take to stop once it was told to. */
export const STOP = 5;
// Limits of the service. What is beyond them is refused here: the transport's own refusal has no
// reason, and what looks like a loss of the connection would have the model asked again.
const CONTENT_BYTES = 3 * 1024 * 1024;

/** The fence is no longer right: the work is dropped. */
export class Lost extends RunlaneError {}
/** Cancellation of the run was requested. */
export class CancelRequested extends RunlaneError {}
/** The executor stops; `release`: it gives back what it has. */
export class Stopping extends RunlaneError {
  readonly release: boolean;

  constructor(release: boolean) {
    super("the executor stops");
    this.release = release;
  }
}

type Outcome = Pick<Init<CommitRequest>, "finish" | "suspend" | "release">;
export type Taken = (operations: readonly Init<Operation>[], answer: CommitResponse) => void;

/** The right to advance a run, for as long as it lasts. */
export class Lease {
  readonly caller: Caller;
  readonly fence: Fence;
  readonly log: Log;
  /** Whether a commit has ended the activation. */
  over = false;
  /** Whether a pause of the run was requested. */
  pausing = false;
  readonly #seconds: number;
  readonly #told = new AbortController();
  readonly #done = new AbortController();
  readonly #stopped = new AbortController();
  // What commits are made with: it outlives a stop by two partings.
  readonly #calls = new AbortController();
  #last: NodeJS.Timeout | undefined;
  #lost = false;

  constructor(caller: Caller, leased: LeasedActivation, fence: Fence, seconds: number, log: Log) {
    this.caller = caller;
    this.fence = fence;
    this.#seconds = seconds;
    this.log = log;
    this.#heed(leased.control);
  }

  /** Aborted where the work has to stop; the reason says why. */
  get signal(): AbortSignal {
    return this.#told.signal;
  }

  /** Aborted where the executor stops, and by nothing else. */
  get stopped(): AbortSignal {
    return this.#stopped.signal;
  }

  /** Aborted where what is still to be told to the server has no more time. */
  get calls(): AbortSignal {
    return this.#calls.signal;
  }

  get cancelling(): boolean {
    return this.signal.reason instanceof CancelRequested;
  }

  /** Begins to send signs of life and to listen to what the server asks. */
  keep(): void {
    void this.#guard(() => this.#heartbeats());
    void this.#guard(() => this.#watch());
  }

  /** Ends what `keep` began. */
  letGo(): void {
    this.#done.abort();
    clearTimeout(this.#last);
  }

  /** Says that the work has to stop. */
  stop(stopping: Stopping): void {
    this.#told.abort(stopping);
    this.#stopped.abort(stopping);
    // What is on its way is let through, and the parting too.
    this.#last ??= setTimeout(
      () => {
        this.#calls.abort(new Lost("the executor stopped before the server answered"));
      },
      2 * PARTING * 1000,
    );
  }

  /** Throws where the work has to stop. */
  check(): void {
    this.signal.throwIfAborted();
  }

  /** Waits for some work; throws where the work has to stop first. */
  async unlessTold<T>(work: Promise<T>): Promise<T> {
    return await unlessAborted(work, this.signal);
  }

  /**
   * Commits in one transaction, all or none; it is let through also where the work has to stop.
   *
   * @throws Lost The lease is lost, or the executor stopped and the server does not answer.
   * @throws ServiceError The commit was refused.
   */
  async commit(
    operations: readonly Init<Operation>[],
    outcome: Outcome = {},
    taken?: Taken,
    timeoutSeconds = OUTAGE,
  ): Promise<CommitResponse> {
    const { fence } = this;
    const request = { fence, operations, ...outcome, leaseDurationSeconds: this.#seconds };
    checkSize(request);
    let answer: CommitResponse;
    try {
      const options = { timeoutSeconds, signal: this.calls };
      answer = await this.caller.unary(ExecutorService.method.commit, request, options);
    } catch (error) {
      throw isGone(error) ? new Lost("the lease is lost", { cause: error }) : error;
    }
    taken?.(operations, answer);
    const { run } = answer;
    const phase = run?.phase;
    const away = phase === "terminal" || phase === "waiting" || phase === "paused";
    if (answer.outcomeApplied || away || run?.endingCause !== undefined) {
      this.over = true;
      return answer;
    }
    if (answer.fenceLost) {
      throw new Lost("the lease is lost");
    }
    this.#heed(answer.control);
    return answer;
  }

  /**
   * Commits together what also has its sense one by one.
   *
   * An operation may end the activation: by a pause that was asked for meanwhile, or by a budget.
   * Then those after it are refused, and all with them; so they are committed one by one up to
   * that end. `over` tells whether it came.
   */
  async commitInTurn(
    operations: readonly Init<Operation>[],
    taken: Taken,
    outcome: Outcome = {},
  ): Promise<void> {
    const ends = Object.values(outcome).some((one) => one !== undefined);
    try {
      await this.commit(operations, outcome, taken);
      return;
    } catch (error) {
      const alone = operations.length < 2 && (!ends || operations.length === 0);
      if (!isReason(error, "OPERATION_INVALID") || alone) {
        throw error;
      }
    }
    for (const operation of operations) {
      await this.commit([operation], {}, taken);
      if (this.over) {
        return;
      }
    }
    if (ends) {
      await this.commit([], outcome, taken);
    }
  }

  #heed(control: ActivationControl | undefined): void {
    this.pausing = control?.pauseRequested ?? this.pausing;
    if (control?.ended === true) {
      this.#lose();
    }
    if (control?.cancelRequested === true) {
      this.#told.abort(new CancelRequested("cancellation of the run was requested"));
    }
  }

  #lose(): void {
    this.#lost = true;
    this.#told.abort(new Lost("the lease is lost"));
  }

  /** Whether the lease is known to be lost, whatever the work was told first. */
  get lost(): boolean {
    return this.#lost;
  }

  /**
   * Runs a keeper of the lease; a fence that is gone is told to the work. An odd error is no
   * reason to stop: the work goes on, and needs its lease and the word of a cancellation.
   */
  async #guard(keeper: () => Promise<void>): Promise<void> {
    const longest = this.#seconds / 3;
    for (let pause = Math.min(FIRST_HEARTBEAT, longest); ; pause = Math.min(2 * pause, longest)) {
      try {
        await keeper();
        return;
      } catch (error) {
        if (this.#done.signal.aborted) {
          return;
        }
        if (isGone(error)) {
          this.#lose();
          return;
        }
        this.tell("a lease is kept in spite of an error", error);
        if (this.caller.closed.aborted || !(await this.#slept(pause))) {
          return;
        }
      }
    }
  }

  async #slept(seconds: number): Promise<boolean> {
    try {
      await sleep(seconds, this.#done.signal);
      return true;
    } catch {
      return false;
    }
  }

  async #heartbeats(): Promise<void> {
    const { signal } = this.#done;
    const { heartbeat } = ExecutorService.method;
    let wait = Math.min(FIRST_HEARTBEAT, this.#seconds / 3);
    for (;;) {
      // Jitter, so that activations leased together do not beat together.
      await sleep(wait * (0.9 + 0.1 * Math.random()), signal);
      const request = { fence: this.fence, leaseDurationSeconds: this.#seconds };
      const options = { signal, timeoutSeconds: OUTAGE };
      this.#heed((await this.caller.unary(heartbeat, request, options)).control);
      wait = this.#seconds / 3;
    }
  }

  async #watch(): Promise<void> {
    const { signal } = this.#done;
    const { watchActivation } = ExecutorService.method;
    for (let failures = 0; ;) {
      try {
        for await (const frame of this.caller.frames(
          watchActivation,
          { fence: this.fence },
          signal,
        )) {
          failures = 0;
          this.#heed(frame.control);
        }
        // The activation has ended.
        this.#lose();
        return;
      } catch (error) {
        signal.throwIfAborted();
        if (error instanceof TransportError && error.code === "UNIMPLEMENTED") {
          // Heartbeats bring the same, only later.
          return;
        }
        if (!(error instanceof RunlaneError) || !isReopenable(error, true)) {
          throw error;
        }
        failures += 1;
        await sleep(delaySeconds(failures, error), signal);
      }
    }
  }

  /** Tells the log of an error: its kind, for its text may hold what users said. */
  tell(message: string, error: unknown): void {
    const { sessionId, runId, activationId } = this.fence;
    this.log(message, { sessionId, runId, activationId, error: kindOf(error) });
  }
}

/** Names an error without a word of what it says: its reason, else its class. */
export function kindOf(error: unknown): string {
  if (error instanceof ServiceError) {
    return error.reason;
  }
  return error instanceof Error ? error.name : typeof error;
}

/** Whether an error says that the fence is no longer right. */
export function isGone(error: unknown): boolean {
  return isReason(error, "STALE_ACTIVATION", "RUN_NOT_FOUND", "SESSION_NOT_FOUND");
}

/** Refuses what is too large, as the service does. */
function checkSize(request: Init<CommitRequest>): void {
  for (const operation of request.operations ?? []) {
    const blocks = operation.commitModelStep?.content ?? [];
    const sizes = blocks.map((one) => toBinary(BlockSchema, fromPlain(BlockSchema, one)).length);
    check(
      "content",
      sizes.reduce((sum, size) => sum + size, 0),
      CONTENT_BYTES,
    );
  }
  const whole = toBinary(CommitRequestSchema, fromPlain(CommitRequestSchema, request)).length;
  check("a request", whole, REQUEST_BYTES);
}

function check(what: string, size: number, limit: number): void {
  if (size > limit) {
    throw new ServiceError(
      "MESSAGE_TOO_LARGE",
      `${what} of ${size} bytes is over the limit of ${limit} bytes`,
      {
        code: "RESOURCE_EXHAUSTED",
        metadata: { size_bytes: `${size}`, limit_bytes: `${limit}` },
      },
    );
  }
}
