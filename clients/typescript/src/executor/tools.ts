// Tools: what a model may ask for, and what is to be done with a call.
import type { BlockInit, Input } from "../content.js";
import { blocksOf } from "../content.js";
import { ArgumentError, RunlaneError } from "../errors.js";
import type { Prompt, RunOptions, StartChildRun, ToolCall, ToolResult } from "../gen/models.js";
import type { Init } from "../plain.js";
import { clean, errorResult, parseArguments, raisedResult } from "./content.js";
import type { Agent } from "./model.js";

/** `ask`: the run waits for a person's word on each call; `deny`: no model is told of it. */
export type ToolPolicy = "allow" | "ask" | "deny";

/** A JSON Schema. */
export type Schema = Readonly<Record<string, unknown>>;

/** What a tool is told of its call. */
export interface ToolContext {
  readonly agent: string;
  readonly sessionId: string;
  readonly runId: string;
  /** With `runId` a key that is the same each time the call is run. */
  readonly toolCallId: string;
  readonly step: number;
  readonly attempt: number;
  /** The arguments as the model wrote them. */
  readonly argumentsJson: string;
  /** The token that completes an external wait: a secret. Empty where there is none. */
  readonly externalToken: string;
  /** Aborted where the result is not wanted any more. What then throws has no result. */
  readonly signal: AbortSignal;
}

/** What gives a call its result in place of the tool. */
export type Asked =
  | { readonly question: string; readonly options?: readonly string[] }
  | { readonly form: Schema; readonly text: string }
  /** Another system; `run` is called once the run waits, to hand on `externalToken`. */
  | { readonly external: string }
  | ChildRun;

/** A run of another agent, whose answer is the result. */
export interface ChildRun {
  readonly agent: string;
  readonly input: Input;
  readonly options?: Omit<Init<RunOptions>, "agent">;
  readonly displayName?: string;
  readonly labels?: Readonly<Record<string, string>>;
}

/** What a model may ask for. */
export interface Tool {
  readonly name: string;
  readonly description?: string;
  /** JSON Schema of its arguments, an object; default: no arguments. The model is told it. */
  readonly schema?: Schema;
  /** It may be run again where its result was lost. Default: no; then it is never run twice. */
  readonly idempotent?: boolean;
  /** Default: `allow`. */
  readonly policy?: ToolPolicy;
  /** Seconds that it may take; the run's own come first. Default: without end. */
  readonly timeoutSeconds?: number;
  /**
   * Checks the arguments, and may change them; what it throws is told to the model. An integer
   * beyond 2^53 comes as a bigint, here and in `run` and `ask`.
   */
  readonly check?: (given: Record<string, unknown>) => unknown;
  /**
   * Does it: returns nothing, a text, a `ToolOutput`, or anything that JSON can hold.
   *
   * What it throws is told to the model as an error.
   */
  readonly run?: (given: never, context: ToolContext) => unknown;
  /** Says who gives the result instead; may be called again, so it does no work. */
  readonly ask?: (given: never, context: ToolContext) => Asked;
}

/** What a model is told of a tool. */
export interface ToolSpec {
  readonly name: string;
  readonly description: string;
  readonly schema: Schema;
}

/** Blocks as the result of a tool. */
export class ToolOutput {
  readonly content: readonly BlockInit[];

  constructor(content: Input) {
    this.content = blocksOf(content);
  }
}

/** Thrown by a tool: its text is what the model is told. */
export class ToolError extends RunlaneError {}

/** Makes a tool of which the arguments are typed. */
export function tool<A = Record<string, unknown>>(
  made: Omit<Tool, "run" | "ask" | "check"> & {
    readonly check?: (given: Record<string, unknown>) => A;
    readonly run?: (given: A, context: ToolContext) => unknown;
    readonly ask?: (given: A, context: ToolContext) => Asked;
  },
): Tool {
  return made as Tool;
}

/** @internal What is to be done with a call. */
export type Plan =
  | { readonly kind: "run"; readonly tool: Tool; readonly given: unknown }
  | { readonly kind: "settle"; readonly result: Init<ToolResult> }
  | { readonly kind: "ask" }
  | {
      readonly kind: "question";
      readonly prompt: Init<Prompt>;
      readonly tool: Tool;
      readonly given: unknown;
    }
  | { readonly kind: "delegate"; readonly start: Init<StartChildRun> | undefined };

const QUESTION_TOOL: Tool = tool<{ question: string; options: string[] }>({
  name: "ask_question",
  description: "Asks the user a question and waits for the answer, however long it takes.",
  schema: {
    type: "object",
    properties: {
      question: { type: "string", minLength: 1, description: "What to ask the user." },
      options: {
        type: "array",
        items: { type: "string" },
        maxItems: 64,
        description: "Answers to choose from; any other will do too.",
      },
    },
    required: ["question"],
    additionalProperties: false,
  },
  check: (given) => {
    const { question, options = [] } = given;
    if (typeof question !== "string" || question.trim() === "") {
      throw new ToolError("question: a text is needed");
    }
    if (!Array.isArray(options) || !options.every((one) => typeof one === "string")) {
      throw new ToolError("options: an array of texts is needed");
    }
    return { question, options: options as string[] };
  },
  ask: (given) => given,
});

/** @internal The tools of an agent. */
export class Toolbox {
  readonly #tools = new Map<string, Tool>();

  constructor(agent: Agent) {
    for (const each of [
      ...(agent.askQuestion === true ? [QUESTION_TOOL] : []),
      ...(agent.tools ?? []),
    ]) {
      if (this.#tools.has(each.name)) {
        throw new ArgumentError("tools", `two tools are named ${JSON.stringify(each.name)}`);
      }
      if (each.run === undefined && each.ask === undefined) {
        throw new ArgumentError("tools", `${each.name} has neither run nor ask`);
      }
      const policy = agent.policies?.[each.name] ?? each.policy ?? "allow";
      this.#tools.set(each.name, { ...each, policy });
    }
    // A name that was mistyped would leave a tool that was to ask free to run.
    for (const name of Object.keys(agent.policies ?? {})) {
      if (!this.#tools.has(name)) {
        throw new ArgumentError("policies", `there is no tool named ${JSON.stringify(name)}`);
      }
    }
  }

  /** Returns what a model is told of; without names, all that is not denied. */
  specs(allowed: readonly string[]): ToolSpec[] {
    return [...this.#tools.values()]
      .filter((each) => each.policy !== "deny" && isAllowed(each.name, allowed))
      .map(({ name, description = "", schema = { type: "object", properties: {} } }) => {
        return { name, description, schema };
      });
  }

  /** Decides what is to be done with a call that has no result. */
  plan(
    call: Pick<ToolCall, "toolCallId" | "name" | "argumentsJson" | "childRunId">,
    allowed: readonly string[],
    approved: boolean,
    context: ToolContext,
  ): Plan {
    const key = call.toolCallId;
    if (call.childRunId !== "") {
      return { kind: "delegate", start: undefined };
    }
    const wanted = this.#tools.get(call.name);
    if (wanted === undefined || !isAllowed(call.name, allowed)) {
      return settle(errorResult(key, `there is no tool named ${JSON.stringify(call.name)}`));
    }
    if (wanted.policy === "deny") {
      const text = `the tool ${JSON.stringify(call.name)} may not be used here`;
      return settle(errorResult(key, text, "rejected"));
    }
    const parsed = parseArguments(call.argumentsJson);
    if (parsed === undefined) {
      return settle(errorResult(key, "the arguments are no JSON object"));
    }
    let given: unknown = parsed;
    try {
      given = wanted.check === undefined ? parsed : wanted.check(parsed);
    } catch (error) {
      const said = error instanceof Error ? error.message : String(error);
      return settle(errorResult(key, `the arguments do not fit the tool: ${said}`));
    }
    if (wanted.policy === "ask" && !approved) {
      return { kind: "ask" };
    }
    if (wanted.ask === undefined) {
      return { kind: "run", tool: wanted, given };
    }
    try {
      const asked = wanted.ask(given as never, context);
      if ("agent" in asked) {
        return { kind: "delegate", start: childRun(key, asked) };
      }
      return { kind: "question", prompt: promptOf(key, asked), tool: wanted, given };
    } catch (error) {
      return settle(raisedResult(key, error));
    }
  }
}

function isAllowed(name: string, allowed: readonly string[]): boolean {
  return allowed.length === 0 || allowed.includes(name);
}

function settle(result: Init<ToolResult>): Plan {
  return { kind: "settle", result };
}

function childRun(toolCallId: string, asked: ChildRun): Init<StartChildRun> {
  const { agent, input, options, displayName, labels } = asked;
  const runOptions = { ...options, agent };
  return { toolCallId, content: blocksOf(input), runOptions, displayName, labels };
}

function promptOf(toolCallId: string, asked: Exclude<Asked, ChildRun>): Init<Prompt> {
  if ("external" in asked) {
    return { external: { reason: clean(asked.external, 4096), toolCallId } };
  }
  if ("form" in asked) {
    const { form, text } = asked;
    return { form: { text: clean(text, 16_384), jsonSchema: JSON.stringify(form), toolCallId } };
  }
  const options = (asked.options ?? []).map((one) => clean(one, 1024).trim());
  const text = clean(asked.question, 16_384);
  return {
    question: { text, options: [...new Set(options.filter((one) => one !== ""))], toolCallId },
  };
}
