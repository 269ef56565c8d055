// A session as something ready to draw.
import { Linked, sleep, unlessAborted } from "./async.js";
import type { Caller } from "./caller.js";
import { isReason, RunlaneError } from "./errors.js";
import { EventStream, type StreamItem } from "./events.js";
import type {
  Command,
  Control,
  Delta,
  DeltaKind,
  Event,
  Interaction,
  LiveState,
  Message,
  Run,
  Session,
  Submission,
  ToolCall,
  ToolCallState,
} from "./gen/models.js";
import { SessionHistory } from "./history.js";
import { delaySeconds, isReopenable } from "./policy.js";
import { liveState } from "./runs.js";

/** A block of an answer on its way. */
export interface PartialBlock {
  readonly blockIndex: number;
  readonly kind: DeltaKind;
  readonly text: string;
  readonly done: boolean;
}

/** An answer on its way; it is gone once its message is there, and is never history. */
export interface PartialAnswer {
  readonly modelStreamId: string;
  readonly runId: string;
  readonly step: number;
  readonly blocks: readonly PartialBlock[];
}

/** A tool call without a result. */
export interface OpenTool {
  readonly toolCallId: string;
  readonly name: string;
  readonly state: ToolCallState;
}

/** All that is needed to draw a session. Each is new; none changes. */
export interface ViewState {
  readonly session: Session;
  /** The live run; undefined while the session is idle. */
  readonly run: Run | undefined;
  /** The newest messages, ascending. */
  readonly messages: readonly Message[];
  /** The answer on its way, which follows the messages. */
  readonly partial: PartialAnswer | undefined;
  /** Tool calls of the live run without a result, in the order in which they were asked for. */
  readonly openTools: readonly OpenTool[];
  /** Questions that wait for an answer. */
  readonly questions: readonly Interaction[];
  /** Pending input, in the order in which it will be delivered. */
  readonly pending: readonly Submission[];
  /** What the session would accept now. */
  readonly allowedCommands: readonly Command[];
  /** True while the live run waits and no executor polls for its agent. */
  readonly waitingForExecutor: boolean;
  /** True once the session was deleted; nothing follows. */
  readonly deleted: boolean;
  /** The sequence up to which the messages are told. */
  readonly sequence: number;
}

/** How a session is followed. */
export interface ViewOptions {
  /** How many of the newest messages are kept: 1 to 200 (default). */
  readonly messageLimit?: number;
  /** Seconds without a connection after which to give up; default: the client's. */
  readonly reconnectSeconds?: number;
  /** Ends the view: iterating then throws the signal's reason. */
  readonly signal?: AbortSignal;
}

// What changes the records that only a read of the live state tells.
const RECORDS =
  /^(session|submission|run|interaction|child_run)\.|^activation\.(queued|leased|ended|abandoned)$/;
// Ends that are remembered, for pieces that come after them.
const ENDS = 64;
const LIMIT = 200;

/** Folds what a stream tells into states; without io, so that it can be tested alone. */
export class ViewFold {
  readonly #limit: number;
  readonly #tools = new Map<string, OpenTool>();
  // Streams and activations that have ended: what comes of them is shown no more.
  readonly #ended = new Set<string>();
  #live: LiveState;
  #messages: readonly Message[] = [];
  #partial:
    | (PartialAnswer & { readonly activationId: string; readonly revisions: readonly number[] })
    | undefined;
  #control: Control | undefined;
  #deleted = false;
  #sequence: number;
  /** Whether the records are older than the events: then the live state is to be read again. */
  stale = false;

  constructor(live: LiveState, calls: readonly ToolCall[], limit: number) {
    this.#limit = limit;
    this.#live = live;
    this.#sequence = live.sequence;
    this.#messages = live.messages.slice(-limit);
    for (const call of calls) {
      if (call.state === "prepared" || call.state === "claimed") {
        this.#tools.set(call.toolCallId, {
          toolCallId: call.toolCallId,
          name: call.name,
          state: call.state,
        });
      }
    }
  }

  /** The sequence up to which events were folded. */
  get sequence(): number {
    return this.#sequence;
  }

  /** Whether the session was deleted. */
  get deleted(): boolean {
    return this.#deleted;
  }

  /** Takes newer records; the messages are those of the events. */
  refresh(live: LiveState): void {
    this.#live = live;
    this.stale = live.sequence < this.#sequence;
    if ((this.#control?.asOfSequence ?? 0) <= live.sequence) {
      this.#control = undefined;
    }
  }

  /** Takes what a stream tells. */
  take(item: StreamItem): void {
    switch (item.kind) {
      case "events":
        for (const event of item.events) {
          this.#event(event);
        }
        break;
      case "deltas":
        for (const delta of item.deltas) {
          this.#delta(delta);
        }
        break;
      case "control":
        if (item.control.asOfSequence >= this.#live.sequence) {
          this.#control = item.control;
        }
        break;
    }
  }

  /** The state that all of it makes. */
  get state(): ViewState {
    const { session, run, openInteractions, pendingSubmissions } = this.#live;
    const told = this.#control ?? this.#live;
    return {
      session,
      run,
      messages: this.#messages,
      partial: this.#shown(),
      openTools: [...this.#tools.values()],
      questions: openInteractions,
      pending: pendingSubmissions,
      allowedCommands: told.allowedCommands,
      waitingForExecutor: told.waitingForExecutor,
      deleted: this.#deleted,
      sequence: this.#sequence,
    } as ViewState;
  }

  #shown(): PartialAnswer | undefined {
    if (this.#partial === undefined) {
      return undefined;
    }
    const { modelStreamId, runId, step, blocks } = this.#partial;
    return { modelStreamId, runId, step, blocks };
  }

  #event(event: Event): void {
    if (event.sequence <= this.#sequence) {
      return;
    }
    this.#sequence = event.sequence;
    this.stale ||= event.sequence > this.#live.sequence && RECORDS.test(event.type);
    // A kind that this client does not know, and that matters, may have changed anything.
    this.stale ||= event.type === "unknown" && !event.maySkip;
    switch (event.type) {
      case "message.appended":
        if (event.message !== undefined) {
          this.#messages = [...this.#messages, event.message].slice(-this.#limit);
        }
        this.#end(event.body.modelStreamId, (partial) => partial.modelStreamId);
        break;
      case "activation.ended":
      case "activation.abandoned":
        this.#end(event.activationId, (partial) => partial.activationId);
        break;
      case "tool_call.prepared": {
        const { toolCallId, name } = event.body;
        this.#tools.set(toolCallId, { toolCallId, name, state: "prepared" });
        break;
      }
      case "tool_call.claimed": {
        const call = this.#tools.get(event.body.toolCallId);
        if (call !== undefined) {
          this.#tools.set(call.toolCallId, { ...call, state: "claimed" });
        }
        break;
      }
      case "tool_call.committed":
      case "tool_call.outcome_unknown":
      case "tool_call.cancelled":
        this.#tools.delete(event.body.toolCallId);
        break;
      case "run.terminal":
        this.#tools.clear();
        this.#partial = undefined;
        this.#end(event.activationId, (partial) => partial.activationId);
        break;
      case "session.deleted":
        this.#deleted = true;
        break;
    }
  }

  #end(
    id: string,
    of: (partial: { readonly modelStreamId: string; readonly activationId: string }) => string,
  ): void {
    if (id === "") {
      return;
    }
    if (this.#partial !== undefined && of(this.#partial) === id) {
      this.#partial = undefined;
    }
    this.#ended.delete(id);
    this.#ended.add(id);
    for (const oldest of this.#ended) {
      if (this.#ended.size <= ENDS) {
        break;
      }
      this.#ended.delete(oldest);
    }
  }

  #delta(delta: Delta): void {
    if (this.#ended.has(delta.modelStreamId) || this.#ended.has(delta.activationId)) {
      return;
    }
    if (this.#partial !== undefined && this.#partial.modelStreamId !== delta.modelStreamId) {
      // A newer request to the model: what the older one said is void.
      this.#end(this.#partial.modelStreamId, (partial) => partial.modelStreamId);
    }
    const { modelStreamId, runId, activationId, step, blockIndex, baseRevision, revision } = delta;
    const held = this.#partial ?? {
      modelStreamId,
      runId,
      activationId,
      step,
      blocks: [],
      revisions: [],
    };
    const at = held.blocks.findIndex((block) => block.blockIndex === blockIndex);
    const last = held.revisions[at] ?? 0;
    const before = held.blocks[at];
    let text: string;
    if (delta.snapshotText !== undefined) {
      if (revision < last) {
        return;
      }
      text = delta.snapshotText;
    } else if (baseRevision === last) {
      text = (before?.text ?? "") + (delta.appendText ?? "");
    } else {
      // Pieces were lost: what is held stays a beginning until the whole text comes.
      return;
    }
    const block: PartialBlock = {
      blockIndex,
      kind: before?.kind ?? delta.kind ?? "unknown",
      text,
      done: delta.blockDone === true,
    };
    const others = held.blocks.map((one, index) => ({ one, revision: held.revisions[index] ?? 0 }));
    const kept = others.filter(({ one }) => one.blockIndex !== blockIndex);
    const all = [...kept, { one: block, revision: delta.blockDone === true ? last : revision }];
    all.sort((a, b) => a.one.blockIndex - b.one.blockIndex);
    this.#partial = {
      ...held,
      activationId,
      blocks: all.map(({ one }) => one),
      revisions: all.map((one) => one.revision),
    };
  }
}

/**
 * Follows a session: each state that it yields is whole, newer and ready to draw. The stream waits
 * for its reader, and only the newest messages are kept, so memory is bounded.
 */
export class SessionView implements AsyncIterable<ViewState> {
  readonly #caller: Caller;
  readonly #sessionId: string;
  readonly #options: ViewOptions;
  readonly #make: () => Promise<number>;
  readonly #closed: AbortSignal;

  /** @internal Made by `SessionManager.view`. */
  constructor(
    caller: Caller,
    sessionId: string,
    options: ViewOptions,
    make: () => Promise<number>,
    closed: AbortSignal,
  ) {
    this.#caller = caller;
    this.#sessionId = sessionId;
    this.#options = options;
    this.#make = make;
    this.#closed = closed;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ViewState, void, undefined> {
    const linked = new Linked(this.#options.signal, this.#closed);
    const { signal } = linked;
    try {
      await unlessAborted(this.#make(), signal);
      const limit = Math.min(LIMIT, Math.max(1, this.#options.messageLimit ?? LIMIT));
      const fold = await this.#start(limit, signal);
      yield fold.state;
      const stream = new EventStream(
        this.#caller,
        this.#sessionId,
        {
          afterSequence: fold.sequence,
          includeMessages: true,
          includeDeltas: true,
          includeControl: true,
          signal,
        },
        this.#options.reconnectSeconds ?? this.#caller.reconnectSeconds,
      );
      for await (const item of stream.items()) {
        fold.take(item);
        if (fold.stale && !fold.deleted) {
          await this.#refresh(fold, signal);
        }
        yield fold.state;
      }
    } finally {
      linked.free();
    }
  }

  async #start(limit: number, signal: AbortSignal): Promise<ViewFold> {
    const live = await this.#read(limit, 0, signal);
    const inBatch = live.run?.position === "tool_batch";
    const runId = live.run?.runId ?? "";
    const history = new SessionHistory(this.#caller);
    const calls = inBatch ? await history.toolCalls(runId, { signal }).all() : [];
    return new ViewFold(live, calls, limit);
  }

  async #refresh(fold: ViewFold, signal: AbortSignal): Promise<void> {
    try {
      fold.refresh(await this.#read(0, fold.sequence, signal));
    } catch (error) {
      // It was deleted since: the stream is about to tell.
      if (!isReason(error, "SESSION_NOT_FOUND")) {
        throw error;
      }
    }
  }

  /** Reads the live state; a server that is away for a while is waited for. */
  async #read(limit: number, minSequence: number, signal: AbortSignal): Promise<LiveState> {
    for (let failures = 1; ; failures += 1) {
      try {
        return await liveState(this.#caller, this.#sessionId, limit, { minSequence, signal });
      } catch (error) {
        const lost = error instanceof RunlaneError && isReopenable(error, true);
        if (!lost || failures > 3) {
          throw error;
        }
        await sleep(delaySeconds(failures, error), signal);
      }
    }
  }
}
