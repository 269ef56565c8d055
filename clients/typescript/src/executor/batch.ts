// The open batch of tool calls of a run: claimed before the effect, committed after it.
import { Linked, sleep } from "../async.js";
import type { BlockInit } from "../content.js";
import { isReason } from "../errors.js";
import type {
  CommitModelStep,
  CommitModelStepResult,
  CommitResponse,
  Interaction,
  LeasedActivation,
  Message,
  Operation,
  Prompt,
  ReserveModelStepResult,
  Run,
  StartChildRun,
  ToolCall,
  ToolResult,
} from "../gen/models.js";
import { SessionService } from "../gen/session_service_pb.js";
import type { Init } from "../plain.js";
import { errorResult, okResult, raisedResult } from "./content.js";
import { CancelRequested, Lost, OUTAGE, PARTING, STOP, Stopping, type Lease } from "./lease.js";
import { claimsOf, IDS, isFailed, portions, RESERVE, resultsOf } from "./operations.js";
import { ToolError, type Plan, type Tool, type Toolbox, type ToolContext } from "./tools.js";

// Results that come within this many seconds of each other are committed as one.
const LINGER = 0.05;
const OPEN = "the executor stopped; whether the other system was reached is open";

type Record_ = Pick<ToolCall, "toolCallId" | "name" | "step" | "argumentsJson" | "childRunId">;
type Of<K extends Plan["kind"]> = Extract<Plan, { readonly kind: K }>;

interface Call {
  record: Record_;
  settled: boolean;
  // Known once it was committed here, or came so.
  result: Init<ToolResult> | undefined;
}

/** Brings the calls of one model step to their results. */
export class Batch {
  /** Number of the message that asks for the calls. */
  messageNumber = 0;
  /** Messages that were appended behind the batch: a steer. */
  readonly delivered: Message[] = [];
  /** The next step's reservation; undefined: there was none. */
  grant: ReserveModelStepResult | undefined;
  readonly #lease: Lease;
  readonly #run: Run;
  readonly #toolbox: Toolbox;
  readonly #stops: boolean;
  readonly #calls = new Map<string, Call>();
  readonly #approved = new Set<string>();
  #plans = new Map<string, Plan>();
  // Results of calls that were run, until they are committed.
  #unsent: Init<ToolResult>[] = [];
  // Calls that were claimed here and are not begun.
  #claimed: string[] = [];
  #externalToken = "";

  constructor(lease: Lease, run: Run, toolbox: Toolbox, answered: readonly Interaction[] = []) {
    this.#lease = lease;
    this.#run = run;
    this.#toolbox = toolbox;
    this.#stops = run.options?.toolErrorPolicy === "stop";
    for (const decision of answered.flatMap((one) => one.answer?.permission?.decisions ?? [])) {
      if (decision.verdict === "approve") {
        this.#approved.add(decision.toolCallId);
      }
    }
  }

  /** Whether every call has its result. */
  get closed(): boolean {
    return [...this.#calls.values()].every((call) => call.settled);
  }

  /** Commits the step that asks for the calls, and with it all that can be at once. */
  async open(
    step: Init<CommitModelStep>,
    content: readonly BlockInit[],
    number: number,
  ): Promise<void> {
    for (const use of content.map((block) => block.toolUse).filter((one) => one !== undefined)) {
      const { toolCallId = "", name = "", argumentsJson } = use;
      const record = {
        toolCallId,
        name,
        step: number,
        argumentsJson: argumentsJson ?? "",
        childRunId: "",
      };
      // Arguments that are no JSON get their result from the service.
      this.#calls.set(toolCallId, {
        record,
        settled: argumentsJson === undefined,
        result: undefined,
      });
    }
    await this.#advance({ commitModelStep: step });
  }

  /** Goes on with what an earlier activation left open. */
  async goOn(leased: LeasedActivation, messageNumber: number): Promise<void> {
    this.messageNumber = messageNumber;
    for (const record of leased.toolCalls) {
      const settled = record.state !== "prepared";
      this.#calls.set(record.toolCallId, { record, settled, result: record.result });
    }
    await this.#advance(undefined);
  }

  /** Returns the result messages after a number; undefined where they must be read. */
  messages(after: number): Message[] | undefined {
    const found: Message[] = [];
    const { sessionId, runId } = this.#lease.fence;
    let number = this.messageNumber;
    for (const { record, result } of this.#calls.values()) {
      number += 1;
      if (number <= after) {
        continue;
      }
      if (result === undefined) {
        return undefined;
      }
      const content = [
        { toolResult: result, providerJson: "", metadata: {} },
      ] as Message["content"];
      found.push({
        ...{ number, sessionId, runId, content, step: record.step, role: "tool", author: "tool" },
        ...{ submissionId: "", modelStreamId: "", model: "", metadata: {} },
      });
    }
    return found;
  }

  /** Settles what needs no run, claims and runs what may, and asks for the rest. */
  async #advance(step: Init<Operation> | undefined): Promise<void> {
    this.#plan();
    const settled = this.#of("settle").map(([, plan]) => plan.result);
    const failing = this.#stops && settled.length > 0;
    const running = failing ? [] : this.#of("run");
    const delegated = this.#of("delegate").map(([, plan]) => plan.start);
    const starts = failing ? [] : delegated.filter((start) => start !== undefined);
    const head = step === undefined ? [] : [step];
    const claims = claimsOf(running);
    const [first, ...others] = portions(settled);
    const results = first === undefined ? [] : [resultsOf(first)];
    if (running.length === 0 && others.length === 0 && starts.length === 0) {
      await this.#commitLast([...head, ...claims, ...results], settled.length > 0);
      return;
    }
    const now = starts.length > 0 ? [] : claims;
    await this.#commit([...head, ...now, ...results]);
    for (const portion of others) {
      await this.#unlessOver(() => this.#commit([resultsOf(portion)]));
    }
    for (const start of starts) {
      await this.#unlessOver(() => this.#startChild(start));
    }
    if (starts.length > 0 && claims.length > 0) {
      await this.#unlessOver(() => this.#commit(claims));
    }
    if (this.#lease.over) {
      return;
    }
    await (running.length > 0 ? this.#runAll(running) : this.#commitLast([], false));
  }

  async #unlessOver(work: () => Promise<void>): Promise<void> {
    if (!this.#lease.over) {
      await work();
    }
  }

  #plan(): void {
    const allowed = this.#run.options?.tools ?? [];
    this.#plans = new Map();
    for (const [key, { record, settled }] of this.#calls) {
      if (!settled) {
        const context = this.#context(record, "", this.#lease.signal);
        this.#plans.set(key, this.#toolbox.plan(record, allowed, this.#approved.has(key), context));
      }
    }
  }

  #of<K extends Plan["kind"]>(kind: K): [string, Of<K>][] {
    return [...this.#plans].filter((one): one is [string, Of<K>] => one[1].kind === kind);
  }

  /** Starts a child run; where that is refused, the model is told so. */
  async #startChild(start: Init<StartChildRun>): Promise<void> {
    try {
      await this.#commit([{ startChildRun: start }]);
    } catch (error) {
      const refused = ["AGENT_NOT_FOUND", "FIELD_INVALID", "INPUT_EMPTY"] as const;
      if (!isReason(error, ...refused, "MESSAGE_TOO_LARGE", "OPERATION_INVALID")) {
        throw error;
      }
      this.#lease.tell("a child run was refused", error);
      const told = `the child run could not be started: ${error.reason}`;
      await this.#commit([resultsOf([errorResult(start.toolCallId ?? "", told)])]);
    }
  }

  // --- running -------------------------------------------------------------------------------

  /** Runs claimed calls beside each other and commits their results as they come. */
  async #runAll(running: readonly [string, Of<"run">][]): Promise<void> {
    const stop = new Linked();
    const open = new Map<string, Promise<void>>();
    const all = async (): Promise<void> => {
      await Promise.all(open.values());
    };
    try {
      this.#lease.check();
      for (const [key, plan] of running) {
        const work = this.#runOne(key, plan.tool, plan.given, "", stop.signal).then((result) => {
          open.delete(key);
          if (result !== undefined) {
            this.#unsent.push(result);
          }
        });
        open.set(key, work);
      }
      this.#claimed = [];
      while (open.size > 0) {
        // Under STOP the first failure ends the run: then all results go together.
        await this.#lease.unlessTold(this.#stops ? all() : Promise.race(open.values()));
        await this.#lease.unlessTold(Promise.race([all(), sleep(LINGER)]));
        if (open.size > 0) {
          await this.#commitUnsent();
          if (this.#lease.over) {
            return;
          }
        }
      }
      this.#lease.check();
      await this.#finishRunning();
    } catch (error) {
      stop.abort(error);
      await Promise.race([all(), sleep(STOP)]);
      await this.#afterError(error);
    } finally {
      stop.abort(new Lost("the batch is over"));
    }
  }

  /** Keeps the results that there are, as far as they are still taken. */
  async #afterError(error: unknown): Promise<void> {
    if (error instanceof CancelRequested) {
      this.#leaveUnrun("cancelled", "the run was cancelled before this was run");
      await this.#giveUp();
      return;
    }
    const leaving = error instanceof Lost || (error instanceof Stopping && !error.release);
    if (!leaving) {
      this.#leaveUnrun("error", "the executor stopped before this was run");
      try {
        await this.#commitUnsent(PARTING);
      } catch (problem) {
        this.#lease.tell("results are lost", problem);
      }
    }
    throw error;
  }

  async #finishRunning(): Promise<void> {
    if (this.#stops) {
      // The first failure that is committed ends the run: by then the others are.
      this.#unsent.sort((a, b) => Number(isFailed(a)) - Number(isFailed(b)));
    }
    const failed = this.#unsent.some(isFailed);
    const cut = portions(this.#unsent);
    const last = cut.pop();
    for (const portion of cut) {
      await this.#commit([resultsOf(portion)]);
      if (this.#lease.over) {
        return;
      }
    }
    await this.#commitLast(last === undefined ? [] : [resultsOf(last)], failed);
  }

  #context(record: Record_, externalToken: string, signal: AbortSignal): ToolContext {
    const { sessionId, runId, epoch } = this.#lease.fence;
    const { toolCallId, step, argumentsJson } = record;
    const of = { agent: this.#run.agent, sessionId, runId, toolCallId, step, attempt: epoch };
    return { ...of, argumentsJson, externalToken, signal };
  }

  /** Runs a tool; undefined: it was told to stop, and whether it had its effect is open. */
  async #runOne(
    key: string,
    tool: Tool,
    given: unknown,
    externalToken: string,
    stop: AbortSignal,
  ): Promise<Init<ToolResult> | undefined> {
    const record = this.#calls.get(key)?.record;
    const limit = this.#run.options?.toolTimeoutDurationSeconds || tool.timeoutSeconds;
    const linked = new Linked(stop);
    const late = new ToolError(
      `the tool did not end within ${limit} s; whether it had its effect is open`,
    );
    const timer =
      limit === undefined
        ? undefined
        : setTimeout(() => {
            linked.abort(late);
          }, limit * 1000);
    const timedOut = new Promise<never>((_resolve, reject) => {
      linked.signal.addEventListener("abort", () => {
        if (linked.signal.reason === late) {
          reject(late);
        }
      });
    });
    try {
      const context = this.#context(record as Record_, externalToken, linked.signal);
      const work = Promise.resolve().then(() => tool.run?.(given as never, context));
      work.catch(() => undefined);
      const value = await Promise.race([work, timedOut]);
      // What is returned where another system gives the result may be anything.
      return okResult(key, externalToken === "" ? value : undefined);
    } catch (error) {
      if (stop.aborted && !(error instanceof ToolError)) {
        return undefined;
      }
      this.#lease.tell(`the tool ${tool.name} failed`, error);
      return raisedResult(key, error);
    } finally {
      clearTimeout(timer);
      linked.free();
    }
  }

  /** Gives results to calls that were claimed and not begun: nothing of them is open. */
  #leaveUnrun(outcome: "error" | "cancelled", text: string): void {
    this.#unsent.push(...this.#claimed.splice(0).map((key) => errorResult(key, text, outcome)));
  }

  /** The run is cancelled: what has a result is kept, and the run is settled. */
  async #giveUp(): Promise<void> {
    const cut = portions(this.#unsent);
    const last = cut.pop();
    for (const portion of cut) {
      await this.#lease.commit([resultsOf(portion)], {}, this.#taken);
    }
    const operations = last === undefined ? [] : [resultsOf(last)];
    await this.#lease.commit(operations, { finish: { cancelled: {} } }, this.#taken);
  }

  async #commitUnsent(timeoutSeconds?: number): Promise<void> {
    for (const portion of portions(this.#unsent)) {
      if (this.#lease.over) {
        return;
      }
      if (timeoutSeconds === undefined) {
        await this.#commit([resultsOf(portion)]);
      } else {
        await this.#lease.commit([resultsOf(portion)], {}, this.#taken, timeoutSeconds);
      }
    }
  }

  // --- committing ----------------------------------------------------------------------------

  /** Commits what is left, and with it the question, or the next step's reservation. */
  async #commitLast(operations: readonly Init<Operation>[], failed: boolean): Promise<void> {
    const ended = failed && this.#stops;
    const asking = this.#of("ask").slice(0, IDS);
    const question = this.#of("question")[0];
    const open = this.#of("delegate").some(([key]) => this.#calls.get(key)?.settled === false);
    if (!ended && asking.length > 0) {
      const calls = asking.map(([toolCallId]) => ({ toolCallId }));
      await this.#commit(operations, { prompt: { permission: { calls } } });
    } else if (!ended && question !== undefined) {
      await this.#waitFor(operations, question[0], question[1]);
    } else if (!ended && open) {
      await this.#commit(operations, { children: { mode: "all" } });
    } else if (operations.length > 0) {
      // A boundary takes a pause, and the STOP policy the run: then nothing is to follow.
      const more = ended || this.#lease.pausing ? [] : [RESERVE];
      await this.#commit([...operations, ...more]);
    }
  }

  /** Suspends with a question; where another system answers it, the tool gets the token. */
  async #waitFor(
    operations: readonly Init<Operation>[],
    key: string,
    question: Of<"question">,
  ): Promise<void> {
    await this.#commit(operations, { prompt: question.prompt });
    const token = this.#externalToken;
    if (token === "") {
      return;
    }
    // Where the tool fails, nobody else can complete the wait: so it is completed here. Its work is
    // no longer that of the lease, which is over: a stop of the executor ends it.
    const { stopped } = this.#lease;
    const result = await this.#runOne(key, question.tool, question.given, token, stopped);
    if (result?.outcome === "ok") {
      return;
    }
    const said = (result?.content ?? []).map((block) => block.text ?? "").join("\n");
    const answer = { error: result === undefined ? OPEN : said || "the tool failed" };
    const timeoutSeconds = result === undefined ? PARTING : OUTAGE;
    try {
      const { completeExternal } = SessionService.method;
      const options = { timeoutSeconds, signal: this.#lease.calls };
      await this.#lease.caller.unary(completeExternal, { token, answer }, options);
    } catch (error) {
      // The other system may have been quicker, or the run has ended.
      this.#lease.tell("an external wait stays as it is", error);
    }
  }

  async #commit(
    operations: readonly Init<Operation>[],
    suspend?: { readonly prompt: Init<Prompt> } | { readonly children: { readonly mode: "all" } },
  ): Promise<void> {
    const left = new Set(operations);
    const taken = (done: readonly Init<Operation>[], answer: CommitResponse): void => {
      for (const one of done) {
        left.delete(one);
      }
      this.#taken(done, answer);
    };
    try {
      await this.#lease.commitInTurn(operations, taken, { suspend });
    } catch (error) {
      if (!isReason(error, "RUN_CANCELLING")) {
        throw error;
      }
      // Facts are still taken, once; what was to follow them is not.
      const facts = [...left].filter(
        (one) => one.commitModelStep !== undefined || one.commitToolResults !== undefined,
      );
      await this.#lease.commit(facts, { finish: { cancelled: {} } }, taken);
    }
  }

  /** Notes what was committed. */
  readonly #taken = (operations: readonly Init<Operation>[], answer: CommitResponse): void => {
    this.delivered.push(...answer.delivered);
    this.#externalToken = answer.externalToken;
    for (const operation of operations) {
      this.#claimed.push(...(operation.claimToolCalls?.toolCallIds ?? []));
      for (const result of operation.commitToolResults?.results ?? []) {
        const call = this.#calls.get(result.toolCallId ?? "");
        if (call !== undefined) {
          call.settled = true;
          call.result = result;
        }
      }
    }
    this.#unsent = this.#unsent.filter(
      (one) => this.#calls.get(one.toolCallId ?? "")?.result === undefined,
    );
    for (const made of answer.results) {
      this.grant = made.reserveModelStep ?? this.grant;
      this.#opened(made.commitModelStep);
    }
  };

  #opened(opened: CommitModelStepResult | undefined): void {
    this.messageNumber = opened?.messageNumber ?? this.messageNumber;
    for (const record of opened?.toolCalls ?? []) {
      const call = this.#calls.get(record.toolCallId);
      if (call !== undefined) {
        call.record = record;
        call.settled ||= record.state !== "prepared" && record.state !== "claimed";
        call.result ??= record.result;
      }
    }
  }
}
