// What an agent is, and what its model is asked and answers.
import type { BlockInit } from "../content.js";
import { RunlaneError } from "../errors.js";
import type { Message, Summary, Usage } from "../gen/models.js";
import type { Init } from "../plain.js";
import type { Tool, ToolPolicy, ToolSpec } from "./tools.js";

/** One request to a model. */
export interface ModelRequest {
  /** The agent whose turn it is. */
  readonly agent: string;
  /** Its instructions. */
  readonly system: string;
  /** What the model is to see, in order. */
  readonly messages: readonly Message[];
  /** Stands for the messages before those; undefined: there are none before. */
  readonly summary: Summary | undefined;
  /** The model to use, that of the run, else that of the agent; may be empty. */
  readonly model: string;
  /** The request options of the run as JSON; empty means none. */
  readonly optionsJson: string;
  readonly sessionId: string;
  readonly runId: string;
  /** The model step, from 1 in its run. */
  readonly step: number;
  /** The attempt, from 1 in its run. */
  readonly attempt: number;
  /** Names what is streamed for this step, also where it is asked again. */
  readonly modelStreamId: string;
  /** What the model may ask for. */
  readonly tools: readonly ToolSpec[];
  /** Aborted where the answer is not wanted any more: cancellation, a lost lease, the end. */
  readonly signal: AbortSignal;
}

/** A piece of an answer on its way; a plain text is one of block 0. */
export interface ModelDelta {
  readonly text: string;
  /** Default: `text`. */
  readonly kind?: "text" | "reasoning";
  /** The block of the answer, from 0 (default). */
  readonly blockIndex?: number;
}

/** A tool that a model asks for. */
export interface ToolCallRequest {
  /** Id of the call in its run; default: one is made. */
  readonly toolCallId?: string;
  readonly name: string;
  /** The arguments, as an object or as the JSON that the model wrote, which is kept as it is. */
  readonly arguments?: string | Readonly<Record<string, unknown>>;
}

/** The whole answer of a model; one without tool calls is final. */
export interface ModelResponse {
  /** The answer, where it is a text alone. */
  readonly text?: string;
  /** Its blocks, where it is more; then `text` is not given. */
  readonly content?: readonly BlockInit[];
  readonly toolCalls?: readonly ToolCallRequest[];
  readonly usage?: Init<Usage>;
  /** The model that answered. */
  readonly model?: string;
  /** Why it stopped, in its provider's word. */
  readonly finishReason?: string;
  /** JSON as the result of the run; passed on as it is. */
  readonly outputJson?: string;
}

/**
 * Answers a request: as a whole, or as an async generator in pieces. What a generator returns is
 * the whole answer; where it returns nothing, that is the text of its pieces.
 */
export type Model = (
  request: ModelRequest,
) =>
  | Promise<string | ModelResponse>
  | AsyncGenerator<string | ModelDelta, string | ModelResponse | void, undefined>;

/** A name that an executor polls for, and what answers for it. */
export interface Agent {
  readonly name: string;
  readonly model: Model;
  /** Instructions, handed to the model with each request. */
  readonly system?: string;
  /** Handed to the model where the run names none. */
  readonly modelName?: string;
  readonly tools?: readonly Tool[];
  /** Also lets the model ask the user, by the tool `ask_question`. */
  readonly askQuestion?: boolean;
  /** Policies by tool, in place of the tools' own. */
  readonly policies?: Readonly<Record<string, ToolPolicy>>;
}

/** Thrown by a model: the run ends as failed, and its failure says so. Put no secret into it. */
export class ModelError extends RunlaneError {
  readonly reason: "model_unavailable" | "model_refused";
  /** Whether the same input may well succeed later. */
  readonly retryable: boolean;

  constructor(
    reason: "unavailable" | "refused",
    message?: string,
    options: ErrorOptions & { readonly retryable?: boolean } = {},
  ) {
    super(message ?? `the model is ${reason}`, options);
    this.reason = `model_${reason}`;
    this.retryable = options.retryable ?? reason === "unavailable";
  }
}
