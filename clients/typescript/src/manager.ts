// The handle of one session.
import { Linked, unlessAborted } from "./async.js";
import type { Caller, CallOptions } from "./caller.js";
import { submit, type Receipt, type SubmitOptions } from "./client.js";
import { answerTo, type Answer, type Input } from "./content.js";
import {
  isReason,
  ManagerClosedError,
  RunlaneError,
  ServiceError,
  TransportError,
} from "./errors.js";
import { EventStream, type StreamOptions } from "./events.js";
import type {
  AnswerInteractionResponse,
  CloseSessionResponse,
  Interaction,
  InterruptRunResponse,
  LiveState,
  PauseRunResponse,
  RestoreRunResponse,
  RunOptions,
  Session,
  Submission,
  UpdateSessionRequest,
} from "./gen/models.js";
import { SessionService } from "./gen/session_service_pb.js";
import { present, SessionHistory } from "./history.js";
import type { Init } from "./plain.js";
import { liveState, waitRun, whole, type RunResult, type WaitOptions } from "./runs.js";
import { SessionView, type ViewOptions } from "./view.js";

// Inputs to remember before it is looked which of them still wait.
const QUEUED_ROOM = 128;

/** How a session is worked on. */
export interface ManagerOptions {
  /** Agent of the runs that this starts, and default agent of the session where it is made here. */
  readonly agent?: string;
  /** Options of the runs that this starts, where a submit gives none. */
  readonly options?: Init<RunOptions>;
}

/** What a call may carry beside its arguments. */
export interface ChangeOptions extends CallOptions {
  /** Makes the call idempotent beyond its own repeats. */
  readonly requestId?: string | undefined;
}

/**
 * Works on one session, which it makes on first use.
 *
 * Several managers, in one or many processes, may work on the same session at once: all state is
 * the server's.
 */
export class SessionManager {
  readonly sessionId: string;
  readonly #caller: Caller;
  readonly #options: ManagerOptions;
  readonly #closed = new AbortController();
  readonly #streams = new Set<EventStream>();
  readonly #baselines = new Set<Promise<number>>();
  readonly #submitting = new Set<Promise<Receipt>>();
  // Inputs that were pending when they were taken, for close({ cancelRun: true }).
  readonly #queued = new Set<string>();
  #queuedRoom = QUEUED_ROOM;
  #made: Promise<void> | undefined;

  /** @internal Made by `Client.session`. */
  constructor(caller: Caller, sessionId: string, options: ManagerOptions) {
    this.#caller = caller;
    this.sessionId = sessionId;
    this.#options = options;
  }

  /**
   * Gives the session an input; when this returns, it is durable.
   *
   * @throws ServiceError SESSION_BUSY, SESSION_IDLE, SESSION_CLOSED, QUEUE_FULL and others.
   */
  async submit(input: Input, options: SubmitOptions = {}): Promise<Receipt> {
    this.#check();
    const call = this.#submit(input, options);
    // close({ cancelRun: true }) waits for it: so it is always known what there is to take back.
    this.#submitting.add(call);
    try {
      return await call;
    } finally {
      this.#submitting.delete(call);
    }
  }

  async #submit(input: Input, options: SubmitOptions): Promise<Receipt> {
    await this.#ready(options);
    const chosen = options.mode === "steer" ? options.options : this.#runOptions(options.options);
    const given = { ...options, options: chosen };
    const receipt = await submit(this.#caller, input, this.sessionId, given);
    if (receipt.state === "pending") {
      this.#queued.add(receipt.submissionId);
      if (this.#queued.size > this.#queuedRoom) {
        await this.#forgetSettled();
      }
    }
    return receipt;
  }

  /** Forgets the inputs that are pending no more: nothing tells when they settle. */
  async #forgetSettled(): Promise<void> {
    const known = [...this.#queued];
    try {
      const state = await liveState(this.#caller, this.sessionId, 0);
      const pending = new Set(state.pendingSubmissions.map((one) => one.submissionId));
      for (const submissionId of known.filter((one) => !pending.has(one))) {
        this.#queued.delete(submissionId);
      }
    } catch (error) {
      // The input that led here was taken: a failure is none of it, and tried again later.
      if (!(error instanceof RunlaneError)) {
        throw error;
      }
    }
    // Twice what is left: so a look costs little for each input, however many wait.
    this.#queuedRoom = Math.max(QUEUED_ROOM, 2 * this.#queued.size);
  }

  #runOptions(given: Init<RunOptions> | undefined): Init<RunOptions> | undefined {
    const chosen = given ?? this.#options.options;
    const { agent } = this.#options;
    return agent === undefined || chosen?.agent !== undefined ? chosen : { ...chosen, agent };
  }

  /** Gives the session an input and waits until the run that it steers or becomes has ended. */
  async run(input: Input, options: SubmitOptions & WaitOptions = {}): Promise<RunResult> {
    const { until, timeoutSeconds, ...rest } = options;
    const receipt = await this.submit(input, rest);
    return await this.wait(receipt.runId, { until, timeoutSeconds, signal: rest.signal });
  }

  /** Waits until a run of the session has ended, or stopped; a reserved run id too. */
  async wait(runId: string, options: WaitOptions = {}): Promise<RunResult> {
    this.#check();
    const linked = new Linked(options.signal, this.#closed.signal);
    try {
      const { signal } = linked;
      return await waitRun(this.#caller, runId, this.sessionId, { ...options, signal });
    } finally {
      linked.free();
    }
  }

  /** Reads the live state: run, questions, pending input, newest messages, commands. */
  async snapshot(
    options: CallOptions & { readonly messageLimit?: number } = {},
  ): Promise<LiveState> {
    await this.#ready(options);
    return await liveState(this.#caller, this.sessionId, options.messageLimit, options);
  }

  /** Asks for a run to be cancelled, without `runId` the live one; next runs stay queued. */
  async interrupt(
    options: ChangeOptions & {
      readonly runId?: string;
      readonly reason?: string;
      /** Seconds to wait for the run to end: 0 (default) to 300. */
      readonly waitSeconds?: number;
    } = {},
  ): Promise<InterruptRunResponse> {
    await this.#ready(options);
    const { runId, reason, waitSeconds, requestId, ...rest } = options;
    const { sessionId } = this;
    return await this.#caller.unary(
      SessionService.method.interruptRun,
      { sessionId, runId, reason, waitDurationSeconds: waitSeconds, requestId },
      rest,
    );
  }

  /** Stops the live run at its next boundary, or at once where nobody has it. */
  async pause(
    options: ChangeOptions & { readonly runId?: string } = {},
  ): Promise<PauseRunResponse> {
    await this.#ready(options);
    const { runId, requestId, ...rest } = options;
    const request = { sessionId: this.sessionId, runId, requestId };
    return await this.#caller.unary(SessionService.method.pauseRun, request, rest);
  }

  /** Takes a pause, or the request for one, back. */
  async unpause(
    options: ChangeOptions & { readonly runId?: string } = {},
  ): Promise<PauseRunResponse> {
    await this.#ready(options);
    const { runId, requestId, ...rest } = options;
    const request = { sessionId: this.sessionId, runId, requestId };
    return await this.#caller.unary(SessionService.method.unpauseRun, request, rest);
  }

  /** Takes back a pending input. */
  async withdraw(submissionId: string, options: ChangeOptions = {}): Promise<Submission> {
    await this.#ready(options);
    return await this.#withdraw(submissionId, options);
  }

  async #withdraw(submissionId: string, options: ChangeOptions): Promise<Submission> {
    const { requestId, ...rest } = options;
    const request = { submissionId, sessionId: this.sessionId, requestId };
    const { withdrawSubmission } = SessionService.method;
    const answer = await this.#caller.unary(withdrawSubmission, request, rest);
    this.#queued.delete(submissionId);
    return present(answer.submission);
  }

  /**
   * Answers what the session waits for, and returns at once.
   *
   * @param interaction What is answered, or its id; default: what the session waits for now.
   * @throws ServiceError INTERACTION_NOT_FOUND, INTERACTION_CONFLICT, INTERACTION_CLOSED,
   *   ANSWER_INVALID.
   */
  async answer(
    answer: Answer,
    interaction?: Interaction | string,
    options: ChangeOptions = {},
  ): Promise<AnswerInteractionResponse> {
    await this.#ready(options);
    const { requestId, ...rest } = options;
    const asked = await this.#asked(interaction, rest.signal);
    const { runId, interactionId, version } = asked;
    const request = { runId, interactionId, version, answer: answerTo(answer, asked), requestId };
    return await this.#caller.unary(SessionService.method.answerInteraction, request, rest);
  }

  /** Answers what the session waits for, and waits until its run stops again. */
  async resume(
    answer: Answer,
    interaction?: Interaction | string,
    options: ChangeOptions & WaitOptions = {},
  ): Promise<RunResult> {
    await this.#ready(options);
    const { requestId, signal } = options;
    // Of a proxy it is the run of this session that is waited for, not the one that asks.
    const asked = await this.#asked(interaction, signal);
    await this.answer(answer, asked, { requestId, signal });
    return await this.wait(asked.runId, { until: "stopped", ...options });
  }

  async #asked(
    interaction: Interaction | string | undefined,
    signal: AbortSignal | undefined,
  ): Promise<Interaction> {
    if (typeof interaction === "object") {
      return interaction;
    }
    const state = await liveState(this.#caller, this.sessionId, 0, { signal });
    const open = state.openInteractions.find(
      (one) => interaction === undefined || one.interactionId === interaction,
    );
    if (open !== undefined) {
      // One that was settled meanwhile is left to the server to refuse.
      return (await whole(this.#caller, open, signal)) ?? open;
    }
    if (interaction !== undefined) {
      // One that was answered before: the same answer again is no harm.
      const filter = { sessionId: this.sessionId, state: "answered" as const };
      for await (const one of new SessionHistory(this.#caller).interactions(filter, { signal })) {
        if (one.interactionId === interaction) {
          return one;
        }
      }
    }
    const what = interaction === undefined ? "an answer" : `interaction ${interaction}`;
    const message = `session ${this.sessionId} does not wait for ${what}`;
    throw new ServiceError("INTERACTION_NOT_FOUND", message, { code: "NOT_FOUND" });
  }

  /** Brings back a run whose executor was lost, or is thought to be. */
  async restore(
    runId: string,
    options: ChangeOptions & {
      /** The activation that the caller has seen; needed where the run is active. */
      readonly expectedActivationId?: string;
      /** Also where the lease is live: its executor is cut off. */
      readonly force?: boolean;
    } = {},
  ): Promise<RestoreRunResponse> {
    await this.#ready(options);
    const { expectedActivationId, force, requestId, ...rest } = options;
    const request = { runId, expectedActivationId, force, requestId };
    return await this.#caller.unary(SessionService.method.restoreRun, request, rest);
  }

  /** Reads the record of the session. */
  async get(options: CallOptions = {}): Promise<Session> {
    await this.#ready(options);
    const { getSession } = SessionService.method;
    return present((await this.#caller.unary(getSession, this.#named(), options)).session);
  }

  /** Changes the record of the session; what is not given stays. */
  async update(
    change: Omit<Init<UpdateSessionRequest>, "sessionId">,
    options: CallOptions = {},
  ): Promise<Session> {
    await this.#ready(options);
    const request = { ...change, ...this.#named() };
    const { updateSession } = SessionService.method;
    return present((await this.#caller.unary(updateSession, request, options)).session);
  }

  /** Has the session refuse further input; what is pending fails. Not `close()`. */
  async closeSession(
    options: ChangeOptions & { readonly cancelRun?: boolean } = {},
  ): Promise<CloseSessionResponse> {
    await this.#ready(options);
    const { cancelRun, requestId, ...rest } = options;
    const request = { ...this.#named(), cancelRun, requestId };
    return await this.#caller.unary(SessionService.method.closeSession, request, rest);
  }

  /** Has the session take input again. */
  async reopenSession(options: ChangeOptions = {}): Promise<Session> {
    await this.#ready(options);
    const { requestId, ...rest } = options;
    const request = { ...this.#named(), requestId };
    const { reopenSession } = SessionService.method;
    return present((await this.#caller.unary(reopenSession, request, rest)).session);
  }

  /** Deletes the session for good; `force`: also while a run is live. */
  async deleteSession(options: ChangeOptions & { readonly force?: boolean } = {}): Promise<void> {
    await this.#ready(options);
    const { force, requestId, ...rest } = options;
    const request = { ...this.#named(), force, requestId };
    await this.#caller.unary(SessionService.method.deleteSession, request, rest);
  }

  /**
   * Streams the session's events, from where it stands when this is called: everything that this
   * manager does after the call is seen. Each call makes a reader of its own.
   */
  events(options: StreamOptions = {}): EventStream {
    this.#check();
    for (const stream of this.#streams) {
      if (stream.closed) {
        this.#streams.delete(stream);
      }
    }
    const { afterSequence, lastEvents } = options;
    const given = afterSequence !== undefined || lastEvents !== undefined;
    const start = given ? this.#make(afterSequence) : this.#baseline();
    const { reconnectSeconds } = this.#caller;
    const stream = new EventStream(this.#caller, this.sessionId, options, reconnectSeconds, start);
    this.#streams.add(stream);
    return stream;
  }

  /**
   * Follows the session as something ready to draw: iterate over it for a new state after each
   * change. It goes on by itself over lost connections.
   */
  view(options: ViewOptions = {}): SessionView {
    this.#check();
    return new SessionView(
      this.#caller,
      this.sessionId,
      options,
      () => this.#make(0),
      this.#closed.signal,
    );
  }

  /**
   * Detaches this manager: its streams end and it takes no more calls. The session stays as it is.
   *
   * With `cancelRun` it also withdraws what this manager queued, interrupts the live run, whoever
   * started it, and returns when it has ended. Idempotent; after an error it can be called again.
   */
  async close(options: { readonly cancelRun?: boolean } = {}): Promise<void> {
    this.#closed.abort(new ManagerClosedError(`the manager of ${this.sessionId} is closed`));
    for (const stream of this.#streams) {
      stream.close();
    }
    this.#streams.clear();
    if (options.cancelRun === true) {
      await this.#cancelAll();
    }
  }

  async #cancelAll(): Promise<void> {
    await Promise.allSettled(this.#submitting);
    for (const submissionId of [...this.#queued]) {
      try {
        await this.#withdraw(submissionId, {});
      } catch (error) {
        // Delivered, failed, or gone with its session: then there is nothing to take back.
        if (!isReason(error, "SUBMISSION_SETTLED", "SUBMISSION_NOT_FOUND", "SESSION_NOT_FOUND")) {
          throw error;
        }
        this.#queued.delete(submissionId);
      }
    }
    try {
      const request = { ...this.#named(), reason: "the session manager was closed" };
      const asked = await this.#caller.unary(SessionService.method.interruptRun, request);
      if (!asked.settled) {
        await waitRun(this.#caller, present(asked.run).runId, this.sessionId, {});
      }
    } catch (error) {
      // Nothing runs, or it was never begun, or it was deleted meanwhile.
      if (!isReason(error, "SESSION_IDLE", "SESSION_NOT_FOUND", "RUN_NOT_FOUND")) {
        throw error;
      }
    }
  }

  #named(): { readonly sessionId: string } {
    return { sessionId: this.sessionId };
  }

  #check(): void {
    this.#closed.signal.throwIfAborted();
  }

  /** Makes the session on first use, and lets streams that begin find their place. */
  async #ready({ signal, timeoutSeconds }: CallOptions): Promise<void> {
    this.#check();
    signal?.throwIfAborted();
    const linked = new Linked(signal);
    const late = new TransportError("the session was not made in time", {
      code: "DEADLINE_EXCEEDED",
    });
    const timer =
      timeoutSeconds === undefined
        ? undefined
        : setTimeout(() => {
            linked.abort(late);
          }, timeoutSeconds * 1000);
    try {
      // Others wait for the same call: so it goes on where this one does not.
      await unlessAborted(this.#make(0), linked.signal);
      await unlessAborted(Promise.allSettled(this.#baselines), linked.signal);
    } finally {
      clearTimeout(timer);
      linked.free();
    }
    this.#check();
  }

  async #make<T>(then: T): Promise<T> {
    this.#made ??= this.#create();
    try {
      await this.#made;
      return then;
    } catch (error) {
      this.#made = undefined;
      throw error;
    }
  }

  async #create(): Promise<void> {
    const { sessionId } = this;
    const defaultAgent = this.#options.agent;
    const request = { sessionId, defaultAgent, ifExists: "return" as const };
    await this.#caller.unary(SessionService.method.createSession, request);
  }

  #baseline(): Promise<number> {
    const found = this.#make(0).then(async () => {
      return (await liveState(this.#caller, this.sessionId, 0)).sequence;
    });
    this.#baselines.add(found);
    const done = (): void => {
      this.#baselines.delete(found);
    };
    found.then(done, done);
    return found;
  }
}
