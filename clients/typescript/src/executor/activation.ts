// Advances the run of one activation until it ends, stops, is lost, or is given back.
import { sleep } from "../async.js";
import type { Caller } from "../caller.js";
import { toolResultOf, toolUsesOf, type BlockInit } from "../content.js";
import { isReason, RunlaneError, TransportError, UnsafeIntegerError } from "../errors.js";
import type {
  CommitModelStep,
  Fence,
  LeasedActivation,
  Message,
  ReserveModelStepResult,
  Run,
  RunFailureReason,
  Summary,
} from "../gen/models.js";
import { ExecutorService } from "../gen/executor_service_pb.js";
import { present } from "../history.js";
import type { Init } from "../plain.js";
import { delaySeconds, isReopenable } from "../policy.js";
import { Batch } from "./batch.js";
import { answerBlocks, clean } from "./content.js";
import { DeltaPublisher } from "./deltas.js";
import {
  CancelRequested,
  isGone,
  kindOf,
  Lease,
  Lost,
  PARTING,
  Stopping,
  type Log,
} from "./lease.js";
import { ModelError, type Agent, type ModelRequest, type ModelResponse } from "./model.js";
import { RESERVE } from "./operations.js";
import type { Toolbox } from "./tools.js";

const MESSAGE_BYTES = 4096;

/** The work on one activation. */
export class ActivationWork {
  readonly #agent: Agent;
  readonly #toolbox: Toolbox;
  readonly #leased: LeasedActivation;
  readonly #run: Run;
  readonly #fence: Fence;
  readonly #lease: Lease;
  readonly #unread: unknown;
  #messages: Message[] = [];
  #summary: Summary | undefined;

  /** @param unread Why the activation could not be read: it is all that is known beside the fence. */
  constructor(
    caller: Caller,
    leased: LeasedActivation,
    agent: Agent,
    toolbox: Toolbox,
    leaseSeconds: number,
    log: Log,
    unread?: unknown,
  ) {
    this.#agent = agent;
    this.#toolbox = toolbox;
    this.#leased = leased;
    this.#run = present(leased.run);
    this.#fence = present(leased.fence);
    this.#lease = new Lease(caller, leased, this.#fence, leaseSeconds, log);
    this.#unread = unread;
  }

  /** Says that the work has to stop. */
  stop(release: boolean): void {
    this.#lease.stop(new Stopping(release));
  }

  /** Does the work; errors end the run or the lease and are logged, never thrown. */
  async run(): Promise<void> {
    this.#lease.keep();
    try {
      await this.#settle();
    } catch (error) {
      if (error instanceof Stopping) {
        if (error.release && !this.#lease.over) {
          await this.#release();
        }
      } else {
        const lost = error instanceof Lost;
        this.#lease.tell(lost ? "an activation was lost" : "an activation was dropped", error);
      }
    } finally {
      this.#lease.letGo();
    }
  }

  /** Works, and commits the end that an error means. */
  async #settle(): Promise<void> {
    try {
      await this.#work();
    } catch (error) {
      if (error instanceof CancelRequested || isReason(error, "RUN_CANCELLING")) {
        await this.#lease.commit([], { finish: { cancelled: {} } });
      } else if (error instanceof ModelError) {
        await this.#fail(error.reason, error.message, error.retryable);
      } else if (isReason(error, "MESSAGE_TOO_LARGE") || error instanceof UnsafeIntegerError) {
        // What is too large is so again the next time: it is told, by its size alone.
        this.#lease.tell("the executor failed at a run", error);
        await this.#fail("executor_error", error.message, false);
      } else if (
        error instanceof Lost ||
        error instanceof Stopping ||
        error instanceof TransportError
      ) {
        throw error;
      } else {
        this.#lease.tell("the executor failed at a run", error);
        // The kind alone: what it says may hold what callers must not see.
        await this.#fail("executor_error", kindOf(error), false);
      }
    }
  }

  async #work(): Promise<void> {
    const lease = this.#lease;
    if (this.#unread !== undefined) {
      lease.check();
      throw this.#unread;
    }
    if (this.#run.position === "outcome_ready") {
      await lease.commit([], { finish: { completed: {} } });
      return;
    }
    await this.#load();
    let grant: ReserveModelStepResult | undefined;
    if (this.#run.position === "tool_batch") {
      lease.check();
      grant = await this.#takeUp();
    }
    while (!lease.over) {
      lease.check();
      grant ??= (await lease.commit([RESERVE])).results[0]?.reserveModelStep;
      if (grant?.state !== "granted") {
        return;
      }
      grant = await this.#answer(grant, await this.#ask(grant));
    }
  }

  // --- context -------------------------------------------------------------------------------

  async #load(): Promise<void> {
    const { context } = this.#leased;
    if (context === undefined) {
      await this.#readOn();
    } else {
      this.#summary = context.summary;
      this.#messages = [...context.messages];
    }
  }

  /** Reads the messages after the last one that is known. */
  async #readOn(): Promise<void> {
    for (let failures = 1; ; failures += 1) {
      let failure: RunlaneError;
      try {
        if (await this.#streamContext(this.#lastNumber)) {
          return;
        }
        failure = new TransportError("the context came incomplete", { code: "UNAVAILABLE" });
      } catch (error) {
        this.#lease.check();
        if (isGone(error)) {
          throw new Lost("the lease is lost", { cause: error });
        }
        if (!(error instanceof RunlaneError) || !isReopenable(error, true)) {
          throw error;
        }
        failure = error;
      }
      await sleep(delaySeconds(failures, failure), this.#lease.signal);
    }
  }

  async #streamContext(afterMessageNumber: number): Promise<boolean> {
    const { caller, signal } = this.#lease;
    const request = { fence: this.#fence, afterMessageNumber };
    let complete = false;
    const { streamModelContext } = ExecutorService.method;
    for await (const frame of caller.frames(streamModelContext, request, signal)) {
      if (frame.summary !== undefined) {
        // It covers more than what was known: what follows is the whole context.
        this.#summary = frame.summary;
        this.#messages = [];
      }
      this.#messages.push(...frame.messages);
      complete ||= frame.end !== undefined;
    }
    return complete;
  }

  get #lastNumber(): number {
    return this.#messages.at(-1)?.number ?? 0;
  }

  // --- the model -----------------------------------------------------------------------------

  async #ask(grant: ReserveModelStepResult): Promise<ModelResponse> {
    const { options } = this.#run;
    const { sessionId, runId, epoch } = this.#fence;
    const request: ModelRequest = {
      agent: this.#agent.name,
      system: this.#agent.system ?? "",
      messages: [...this.#messages],
      summary: this.#summary,
      model: options?.model || (this.#agent.modelName ?? ""),
      optionsJson: options?.requestOptionsJson ?? "",
      sessionId,
      runId,
      step: grant.step,
      attempt: epoch,
      modelStreamId: grant.modelStreamId,
      tools: this.#toolbox.specs(options?.tools ?? []),
      signal: this.#lease.signal,
    };
    const answer = this.#agent.model(request);
    const made =
      Symbol.asyncIterator in answer
        ? await this.#streamed(answer, grant)
        : await this.#told(answer);
    return typeof made === "string" ? { text: made } : made;
  }

  async #told<T>(work: Promise<T>): Promise<T> {
    try {
      return await this.#lease.unlessTold(work);
    } catch (error) {
      // A model that throws what its signal says was told to stop.
      this.#lease.check();
      throw error;
    }
  }

  async #streamed(
    pieces: Extract<ReturnType<Agent["model"]>, AsyncGenerator>,
    grant: ReserveModelStepResult,
  ): Promise<string | ModelResponse> {
    const { modelStreamId, step } = grant;
    const publisher = new DeltaPublisher(this.#lease.caller, this.#fence, modelStreamId, step);
    let text = "";
    try {
      for (;;) {
        const next = await this.#told(pieces.next());
        if (next.done === true) {
          await publisher.finish();
          return next.value ?? text;
        }
        const piece = typeof next.value === "string" ? { text: next.value } : next.value;
        if (piece.kind !== "reasoning") {
          text += piece.text;
        }
        publisher.push(piece);
      }
    } finally {
      publisher.abandon();
      // A generator that waits for something is left to its signal.
      pieces.return(undefined).catch(() => undefined);
    }
  }

  // --- the step ------------------------------------------------------------------------------

  /** Commits a step, and runs its tools or ends the run; returns the next step's grant. */
  async #answer(
    grant: ReserveModelStepResult,
    response: ModelResponse,
  ): Promise<ReserveModelStepResult | undefined> {
    const content = answerBlocks(response, grant.step, this.#usedIds(), this.#hidesSteps());
    const step: Init<CommitModelStep> = {
      content,
      usage: response.usage,
      model: clean(response.model ?? "", 255),
      finishReason: clean(response.finishReason ?? "stop", 64),
    };
    if (content.some((block) => block.toolUse !== undefined)) {
      const batch = new Batch(this.#lease, this.#run, this.#toolbox);
      await batch.open(step, content, grant.step);
      if (this.#lease.over) {
        return undefined;
      }
      this.#appendStep(grant, content, step.model ?? "", batch.messageNumber);
      return await this.#close(batch);
    }
    const finish = { completed: { outputJson: response.outputJson } };
    const answer = await this.#lease.commit([{ commitModelStep: step }], { finish });
    if (this.#lease.over) {
      return undefined;
    }
    if (answer.position === "outcome_ready") {
      await this.#lease.commit([], { finish });
      return undefined;
    }
    const number = answer.results[0]?.commitModelStep?.messageNumber ?? 0;
    this.#appendStep(grant, content, step.model ?? "", number);
    this.#messages.push(...answer.delivered);
    return undefined;
  }

  /** Goes on with the batch that an earlier activation left open. */
  async #takeUp(): Promise<ReserveModelStepResult | undefined> {
    const { runId } = this.#fence;
    const asking = this.#messages.filter(
      (one) => one.runId === runId && toolUsesOf(one).length > 0,
    );
    const answered = this.#leased.answeredInteractions;
    const batch = new Batch(this.#lease, this.#run, this.#toolbox, answered);
    await batch.goOn(this.#leased, asking.at(-1)?.number ?? this.#lastNumber);
    return this.#lease.over ? undefined : await this.#close(batch);
  }

  /** Takes the results of a batch into what the model sees. */
  async #close(batch: Batch): Promise<ReserveModelStepResult | undefined> {
    if (!batch.closed) {
      throw new RunlaneError("a batch of tool calls was left open");
    }
    const results = batch.messages(this.#lastNumber);
    if (results === undefined) {
      // Some results were given by others: by an answer, or before this activation.
      await this.#readOn();
    } else {
      this.#messages.push(...results);
    }
    this.#messages.push(...batch.delivered.filter((one) => one.number > this.#lastNumber));
    return batch.grant;
  }

  /** Whether a summary covers messages of this run: ids that it has used are not seen. */
  #hidesSteps(): boolean {
    const through = this.#summary?.throughMessageNumber ?? 0;
    const { runId } = this.#fence;
    return this.#messages.some((one) => one.runId === runId && one.number <= through);
  }

  #usedIds(): Set<string> {
    const own = this.#messages.filter((one) => one.runId === this.#fence.runId);
    return new Set([
      ...own.flatMap((one) => toolUsesOf(one).map((use) => use.toolCallId)),
      ...own.map((one) => toolResultOf(one)?.toolCallId ?? ""),
    ]);
  }

  #appendStep(
    grant: ReserveModelStepResult,
    content: readonly BlockInit[],
    model: string,
    number: number,
  ): void {
    const { sessionId, runId } = this.#fence;
    const { step, modelStreamId } = grant;
    const whole = content.map((block) => ({ providerJson: "", metadata: {}, ...block }));
    this.#messages.push({
      ...{ number, sessionId, runId, step, modelStreamId, model, role: "assistant" },
      ...{ author: "model", content: whole as Message["content"], submissionId: "", metadata: {} },
    });
  }

  // --- ends ----------------------------------------------------------------------------------

  async #fail(reason: RunFailureReason, message: string, retryable: boolean): Promise<void> {
    const failed = { reason, message: clean(message, MESSAGE_BYTES), retryable };
    await this.#lease.commit([], { finish: { failed } });
  }

  async #release(): Promise<void> {
    try {
      const release = { reason: "the executor stops" };
      await this.#lease.commit([], { release }, undefined, PARTING);
    } catch (error) {
      this.#lease.tell("a run was not given back", error);
    }
  }
}
