// Content: what people and agents say.
import { ArgumentError } from "./errors.js";
import type {
  Block,
  Interaction,
  InteractionAnswer,
  Message,
  ToolResult,
  ToolUse,
} from "./gen/models.js";
import type { Init } from "./plain.js";

/** A block as it is given: one of its kinds, such as `{ text }` or `{ media }`. */
export type BlockInit = Init<Block>;
/** What a session is given: a text, a block, or several of them. */
export type Input = string | BlockInit | readonly (string | BlockInit)[];

/** Returns an input as blocks. */
export function blocksOf(input: Input): BlockInit[] {
  const several = Array.isArray(input) ? (input as readonly (string | BlockInit)[]) : [input];
  return (several as readonly (string | BlockInit)[]).map((one) =>
    typeof one === "string" ? { text: one } : one,
  );
}

/** Returns the text of a message, a result or blocks: that of its text blocks, one after the other. */
export function textOf(
  of: Pick<Message | ToolResult, "content"> | readonly BlockInit[] | undefined,
): string {
  const blocks = of === undefined ? [] : "content" in of ? of.content : of;
  return blocks.map((block) => block.text ?? "").join("");
}

/** Returns the tools that a message asks for. */
export function toolUsesOf(message: Pick<Message, "content">): ToolUse[] {
  return message.content.map((block) => block.toolUse).filter((use) => use !== undefined);
}

/** Returns the result that a message of a tool is; undefined: it is none. */
export function toolResultOf(message: Pick<Message, "content">): ToolResult | undefined {
  return message.content.find((block) => block.toolResult !== undefined)?.toolResult;
}

/** A person's word on one tool call. */
export type Verdict = boolean | { readonly approve: boolean; readonly reason?: string };

/**
 * An answer to an interaction: a text to a question; a verdict on all calls of a permission, or
 * one for each by its id; for a form a value, or its JSON text, which is passed on as it is.
 */
export type Answer =
  | string
  | Verdict
  | { readonly decisions: Readonly<Record<string, Verdict>> }
  | { readonly json: unknown }
  | { readonly jsonText: string };

/**
 * Writes an answer for its question.
 *
 * @throws ArgumentError It is not of the question's kind.
 */
export function answerTo(answer: Answer, interaction: Interaction): Init<InteractionAnswer> {
  const { question, form, permission } = interaction.prompt ?? {};
  if (question !== undefined && typeof answer === "string") {
    return { question: { text: answer } };
  }
  if (form !== undefined && typeof answer === "object") {
    if ("jsonText" in answer) {
      return { form: { json: answer.jsonText } };
    }
    if ("json" in answer) {
      return { form: { json: JSON.stringify(answer.json) } };
    }
  }
  if (permission !== undefined) {
    const verdicts = permission.calls.map((call) => {
      const verdict = verdictOn(answer, call.toolCallId);
      return { toolCallId: call.toolCallId, ...verdict };
    });
    return { permission: { decisions: verdicts } };
  }
  throw new ArgumentError(
    "answer",
    `is not of the kind of interaction ${interaction.interactionId}`,
  );
}

function verdictOn(answer: Answer, toolCallId: string) {
  const verdict =
    typeof answer === "object" && "decisions" in answer ? answer.decisions[toolCallId] : answer;
  if (typeof verdict === "boolean") {
    return { verdict: verdict ? ("approve" as const) : ("reject" as const) };
  }
  if (typeof verdict === "object" && "approve" in verdict) {
    const { approve, reason } = verdict;
    return { verdict: approve ? ("approve" as const) : ("reject" as const), reason };
  }
  throw new ArgumentError("answer", `has no verdict on call ${toolCallId}`);
}
