// What tools return and models ask for, as blocks that the service takes.
import { randomUUID } from "node:crypto";

import type { BlockInit } from "../content.js";
import type { ToolResult, ToolResultOutcome } from "../gen/models.js";
import type { Init } from "../plain.js";
import type { ModelResponse, ToolCallRequest } from "./model.js";
import { ToolError, ToolOutput } from "./tools.js";

/** What one result may hold; all of a commit are at most 3 MiB. */
const RESULT_BYTES = 1024 * 1024;
const ERROR_BYTES = 2048;
const ID_CHARACTERS = 128;

/** Takes out what the service does not take, and cuts to a number of UTF-8 bytes. */
export function clean(text: string, limit = Infinity): string {
  const kept = text.toWellFormed().replaceAll("\0", "");
  const bytes = Buffer.from(kept);
  if (bytes.length <= limit) {
    return kept;
  }
  // A character that is cut in two is left out.
  let end = limit;
  while (end > 0 && ((bytes[end] ?? 0) & 0xc0) === 0x80) {
    end -= 1;
  }
  return bytes.subarray(0, end).toString();
}

/** Makes the result of a call that went wrong. */
export function errorResult(
  toolCallId: string,
  text: string,
  outcome: ToolResultOutcome = "error",
): Init<ToolResult> {
  return { toolCallId, outcome, content: [{ text: clean(text, ERROR_BYTES) }] };
}

/** Makes the result of a call whose tool threw: what the model is told of it. */
export function raisedResult(toolCallId: string, error: unknown): Init<ToolResult> {
  if (error instanceof ToolError) {
    return errorResult(toolCallId, error.message);
  }
  const told = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  return errorResult(toolCallId, told);
}

/** Writes what a tool returned; an error where it cannot be written. */
export function okResult(toolCallId: string, value: unknown): Init<ToolResult> {
  let content: readonly BlockInit[];
  if (value instanceof ToolOutput) {
    content = value.content;
  } else if (value === undefined) {
    content = [];
  } else {
    const text = typeof value === "string" ? value : (jsonOf(value) ?? "");
    content = [{ text }];
  }
  if (content.length > 256) {
    const told = `the tool returned ${content.length} blocks; at most 256 are taken`;
    return errorResult(toolCallId, told);
  }
  let room = RESULT_BYTES;
  const kept = content.map((block) => {
    const cut = block.text === undefined ? block : { ...block, text: cutText(block.text, room) };
    room -= sizeOf(cut);
    return cut;
  });
  if (room < 0) {
    const told = `the tool returned ${RESULT_BYTES - room} bytes; at most ${RESULT_BYTES} are taken`;
    return errorResult(toolCallId, told);
  }
  return { toolCallId, outcome: "ok", content: kept };
}

function cutText(text: string, room: number): string {
  const kept = clean(text);
  const size = Buffer.byteLength(kept);
  if (size <= room) {
    return kept;
  }
  const note = `\n[cut: the whole has ${size} bytes]`;
  return clean(kept, Math.max(0, room - note.length)) + (room > note.length ? note : "");
}

/** Returns about how many bytes something takes. */
export function sizeOf(value: unknown): number {
  if (typeof value === "string") {
    return Buffer.byteLength(value);
  }
  if (value instanceof Uint8Array) {
    return value.length;
  }
  if (typeof value === "object" && value !== null) {
    return Object.values(value).reduce((size: number, one) => size + sizeOf(one), 0);
  }
  return 8;
}

// A text, or a number outside of one.
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;
// Marks an integer that is written as a text: no argument holds U+0000.
const LARGE = /^\0-?\d+$/;

/**
 * Reads arguments; undefined where they are no JSON object, or one that the service refuses. An
 * integer beyond 2^53, which a number would round, is a bigint.
 */
export function parseArguments(text: string): Record<string, unknown> | undefined {
  try {
    const found: unknown = JSON.parse(text, checked);
    const object = typeof found === "object" && found !== null && !Array.isArray(found);
    return object ? exact(text, found as Record<string, unknown>) : undefined;
  } catch {
    return undefined;
  }
}

/** Reads them once more, with what a number cannot hold as it is. */
function exact(text: string, found: Record<string, unknown>): Record<string, unknown> {
  let rounded = false;
  const marked = text.replaceAll(TOKEN, (token) => {
    const large = /^-?\d+$/.test(token) && !Number.isSafeInteger(Number(token));
    rounded ||= large;
    return large ? `"\\u0000${token}"` : token;
  });
  const whole = (_key: string, value: unknown): unknown =>
    typeof value === "string" && LARGE.test(value) ? BigInt(value.slice(1)) : value;
  return rounded ? (JSON.parse(marked, whole) as Record<string, unknown>) : found;
}

/** Writes JSON, a bigint as the integer that it is: what `parseArguments` gives can be returned. */
function jsonOf(value: unknown): string | undefined {
  const mark = `${randomUUID()}:`;
  const marked = (_key: string, one: unknown): unknown =>
    typeof one === "bigint" ? `${mark}${one}` : one;
  return JSON.stringify(value, marked)?.replaceAll(new RegExp(`"${mark}(-?\\d+)"`, "g"), "$1");
}

/** Refuses what some reader of JSON could not hold. */
function checked(key: string, value: unknown): unknown {
  for (const text of [key, value]) {
    if (typeof text === "string" && (!text.isWellFormed() || text.includes("\0"))) {
      throw new SyntaxError("a text that UTF-8 cannot hold, or U+0000");
    }
  }
  if (typeof value === "number" && !Number.isFinite(value)) {
    throw new SyntaxError("a number beyond a double");
  }
  return value;
}

/**
 * Returns the blocks of an answer, with tool uses such as the service takes.
 *
 * Ids that the model repeats within the run, or that are none, are replaced; arguments that are
 * no JSON object are kept as text; those that are stay as the model wrote them.
 *
 * @param taken Ids that the run has used, as far as they are seen.
 * @param always Makes each id the step's own: others of the run are not seen.
 */
export function answerBlocks(
  response: ModelResponse,
  step: number,
  taken: ReadonlySet<string>,
  always: boolean,
): BlockInit[] {
  const { text, content = [], toolCalls = [] } = response;
  const said = text === undefined || text === "" ? content : [{ text }, ...content];
  const known = new Set(taken);
  const uses = toolCalls.map((call, index) => {
    const given = always
      ? `${(call.toolCallId ?? "").slice(0, ID_CHARACTERS - 16)}-${step}`
      : call.toolCallId;
    const toolCallId = unique(given ?? "", known, `call_${step}_${index + 1}`);
    known.add(toolCallId);
    const name = clean(call.name, 255) || "unnamed";
    return { toolUse: { toolCallId, name, ...argumentsOf(call) } };
  });
  return [...said.map(cleaned), ...uses];
}

function cleaned(block: BlockInit): BlockInit {
  return block.text === undefined ? block : { ...block, text: clean(block.text) };
}

function argumentsOf(call: ToolCallRequest) {
  const given = call.arguments ?? "{}";
  const text = typeof given === "string" ? given || "{}" : (jsonOf(given) ?? "{}");
  return text.isWellFormed() && parseArguments(text) !== undefined
    ? { argumentsJson: text }
    : { argumentsText: clean(text) };
}

function unique(given: string, taken: ReadonlySet<string>, otherwise: string): string {
  const kept = given.replaceAll(/[^A-Za-z0-9._:@-]/g, "-").replace(/^[._:@-]+/, "");
  const base = kept.slice(0, ID_CHARACTERS) || otherwise;
  let name = base;
  for (let count = 2; taken.has(name); count += 1) {
    name = `${base.slice(0, ID_CHARACTERS - 8)}-${count}`;
  }
  return name;
}
