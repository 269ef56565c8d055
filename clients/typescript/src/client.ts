// The client: one connection, and what is not about one session.
import type { DescMessage, DescMethodUnary } from "@bufbuild/protobuf";

import { Caller, type CallerOptions, type CallOptions } from "./caller.js";
import { answerTo, blocksOf, type Answer, type Input } from "./content.js";
import type {
  AnswerInteractionResponse,
  CompleteExternalResponse,
  CreateSessionRequest,
  CreateSessionResponse,
  GetServerInfoResponse,
  Interaction,
  RunOptions,
  SessionSpec,
  Submission,
  SubmissionMode,
  SubmissionOnMiss,
} from "./gen/models.js";
import { ServerService } from "./gen/server_service_pb.js";
import { SessionService } from "./gen/session_service_pb.js";
import { present, SessionHistory } from "./history.js";
import { SessionManager, type ManagerOptions } from "./manager.js";
import type { Init, Plain } from "./plain.js";
import { waitRun, type RunResult, type WaitOptions } from "./runs.js";

/** How an input is given. */
export interface SubmitOptions extends CallOptions {
  /** What is to happen while a run is live; default: `start`, which needs an idle session. */
  readonly mode?: SubmissionMode | undefined;
  /** Options of the run that is started. */
  readonly options?: Init<RunOptions> | undefined;
  /** What happens to a steer that misses its run. */
  readonly onMiss?: SubmissionOnMiss | undefined;
  /** Only if this run is the live one. */
  readonly targetRunId?: string | undefined;
  /** Only if this is the session's revision. */
  readonly expectedRevision?: number | undefined;
  /** Entries of the application, kept with the message. */
  readonly metadata?: Readonly<Record<string, string>> | undefined;
  /** Makes the call idempotent beyond its own repeats. */
  readonly requestId?: string | undefined;
}

/** An input that was accepted: it is durable, and nothing says that the work is done. */
export interface Receipt extends Submission {
  readonly sessionCreated: boolean;
  /** The session's sequence after it. */
  readonly sequence: number;
  /** Whether the answer is that of an earlier call with the same request id. */
  readonly replayed: boolean;
}

/**
 * A connection to a Runlane server, which is opened at the first call; safe to share.
 *
 * Each call has a deadline. A call that finds the server away is made again with the same request
 * id until then, so that it happens once. `AbortSignal`s call it off.
 */
export class Client {
  /** @internal */
  readonly caller: Caller;
  /** Reads of committed history, and forks. */
  readonly history: SessionHistory;

  constructor(options: CallerOptions | string = {}) {
    this.caller = new Caller(typeof options === "string" ? { target: options } : options);
    this.history = new SessionHistory(this.caller);
  }

  /** Returns a handle of a session, which is made on first use. */
  session(sessionId: string, options: ManagerOptions = {}): SessionManager {
    return new SessionManager(this.caller, sessionId, options);
  }

  /** Creates a session; without an id the server makes one. */
  async createSession(
    spec: Omit<Init<CreateSessionRequest>, "requestId"> & { readonly requestId?: string } = {},
    options: CallOptions = {},
  ): Promise<CreateSessionResponse> {
    return await this.caller.unary(SessionService.method.createSession, spec, options);
  }

  /**
   * Gives a session an input.
   *
   * @param sessionId The session; undefined: a new one.
   * @param options How; with `create` the session is made where it does not exist.
   */
  async submit(
    input: Input,
    sessionId?: string,
    options: SubmitOptions & { readonly create?: Init<SessionSpec> } = {},
  ): Promise<Receipt> {
    const { create = sessionId === undefined ? {} : undefined, ...rest } = options;
    return await submit(this.caller, input, sessionId ?? "", rest, create);
  }

  /** Gives a session an input and waits until the run that it starts has ended. */
  async start(
    input: Input,
    sessionId?: string,
    options: SubmitOptions & WaitOptions & { readonly create?: Init<SessionSpec> } = {},
  ): Promise<RunResult> {
    const { until, timeoutSeconds, create = {}, ...rest } = options;
    const receipt = await this.submit(input, sessionId, { ...rest, create });
    const { signal } = rest;
    return await this.waitRun(receipt.runId, { until, timeoutSeconds, signal });
  }

  /** Waits until a run has ended, or stopped; a reserved run id is waited for too. */
  async waitRun(
    runId: string,
    options: WaitOptions & { readonly sessionId?: string } = {},
  ): Promise<RunResult> {
    return await waitRun(this.caller, runId, options.sessionId, options);
  }

  /** Answers an interaction, such as one of the inbox `history.interactions()`. */
  async answer(
    interaction: Interaction,
    answer: Answer,
    options: CallOptions & { readonly requestId?: string } = {},
  ): Promise<AnswerInteractionResponse> {
    const { requestId, ...rest } = options;
    const { runId, interactionId, version } = interaction;
    const request = {
      runId,
      interactionId,
      version,
      answer: answerTo(answer, interaction),
      requestId,
    };
    return await this.caller.unary(SessionService.method.answerInteraction, request, rest);
  }

  /** Completes an external wait with its token; `resultJson` is passed on as it is. */
  async completeExternal(
    token: string,
    outcome: { readonly resultJson: string } | { readonly error: string },
    options: CallOptions = {},
  ): Promise<CompleteExternalResponse> {
    const request = { token, answer: outcome };
    return await this.caller.unary(SessionService.method.completeExternal, request, options);
  }

  /** Describes the server and its limits. */
  async serverInfo(options: CallOptions = {}): Promise<GetServerInfoResponse> {
    return await this.caller.unary(ServerService.method.getServerInfo, {}, options);
  }

  /**
   * Makes any unary call of the contract, with the deadline and the repeats that it has.
   *
   * @param method Such as `SessionService.method.listAgents`.
   */
  async call<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: Init<Plain<I>>,
    options: CallOptions = {},
  ): Promise<Plain<O>> {
    return await this.caller.unary(method, request, options);
  }

  /** Closes the connection; calls that go on throw `ClientClosedError`. Idempotent. */
  close(): void {
    this.caller.close();
  }
}

/** @internal */
export async function submit(
  caller: Caller,
  input: Input,
  sessionId: string,
  options: SubmitOptions,
  createSession?: Init<SessionSpec>,
): Promise<Receipt> {
  const { options: runOptions, signal, timeoutSeconds, ...rest } = options;
  const content = blocksOf(input);
  const answer = await caller.unary(
    SessionService.method.submit,
    { ...rest, sessionId, content, runOptions, createSession },
    { signal, timeoutSeconds },
  );
  const { sessionCreated, sequence, replayed } = answer;
  return { ...present(answer.submission), sessionCreated, sequence, replayed };
}
