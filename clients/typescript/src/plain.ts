// Messages as plain objects: what the application and JSON see.
//
// int64 is a number (refused beyond 2^53), an enum a word, a time a Date, a span a number of
// seconds; what is unset is left out. The types are generated beside this: gen/models.ts.
import {
  create,
  ScalarType,
  type DescEnum,
  type DescField,
  type DescMessage,
  type MessageShape,
} from "@bufbuild/protobuf";
import {
  durationFromMs,
  durationMs,
  timestampFromDate,
  timestampMs,
  type Duration,
  type Timestamp,
} from "@bufbuild/protobuf/wkt";

import { ArgumentError, UnsafeIntegerError } from "./errors.js";
import type { Models } from "./gen/models.js";

/** The plain form of a message. */
export type Plain<D extends DescMessage> = MessageShape<D>["$typeName"] extends keyof Models
  ? Models[MessageShape<D>["$typeName"]]
  : never;

/** What a plain object is made of: the same, and nothing in it is required. */
export type Init<T> = T extends string | number | boolean | Date | Uint8Array
  ? T
  : T extends readonly (infer U)[]
    ? readonly Init<U>[]
    : { readonly [K in keyof T]?: Init<T[K]> | undefined };

type Values = Record<string, unknown>;

const EVENT = "runlane.v1.Event";
const EVENT_TYPE = "runlane.v1.Event.Type";
const NOUN =
  /^(session|submission|run|activation|message|model_step|tool_call|interaction|child_run)_/;
const INT32 = 2 ** 31;

/**
 * Returns the plain form of a message.
 *
 * @throws UnsafeIntegerError An integer in it is beyond 2^53.
 */
export function toPlain<D extends DescMessage>(desc: D, message: MessageShape<D>): Plain<D> {
  return plainMessage(desc, message as unknown as Values, desc.name) as Plain<D>;
}

/**
 * Makes a message of its plain form.
 *
 * @throws ArgumentError A field is not of its type, or is none of the message.
 */
export function fromPlain<D extends DescMessage>(desc: D, init: Init<Plain<D>>): MessageShape<D> {
  return messageOf(desc, init as Values, "") as MessageShape<D>;
}

function plainMessage(desc: DescMessage, message: Values, path: string): unknown {
  switch (desc.typeName) {
    case "google.protobuf.Timestamp":
      return new Date(timestampMs(message as unknown as Timestamp));
    case "google.protobuf.Duration":
      return durationMs(message as unknown as Duration) / 1000;
  }
  const plain: Values = {};
  for (const field of desc.fields) {
    const value = held(field, message);
    if (value !== undefined) {
      const found = plainField(field, value, `${path}.${field.localName}`);
      if (found !== undefined) {
        plain[nameOf(field)] = found;
      }
    }
  }
  return desc.typeName === EVENT ? asEvent(desc, message, plain) : plain;
}

/** Puts the one body of an event into `body`, for its type to tell what it is. */
function asEvent(desc: DescMessage, message: Values, plain: Values): Values {
  const body = message["body"] as { case?: string };
  const field = desc.fields.find((one) => one.localName === body.case);
  if (field === undefined || field.fieldKind !== "message") {
    return { ...plain, type: "unknown" };
  }
  const { [field.localName]: found, ...envelope } = plain;
  return { ...envelope, type: dotted(field.name), body: found };
}

/** Takes the body of an event back to where its type says. */
function fromEvent(desc: DescMessage, plain: Values): Values {
  const { type, body, ...envelope } = plain;
  const field = desc.fields.find((one) => one.oneof !== undefined && dotted(one.name) === type);
  return field === undefined ? envelope : { ...envelope, type, [field.localName]: body };
}

function dotted(name: string): string {
  return name.replace(NOUN, "$1.");
}

function nameOf(field: DescField): string {
  const span = field.message?.typeName === "google.protobuf.Duration";
  return span ? `${field.localName}Seconds` : field.localName;
}

function held(field: DescField, message: Values): unknown {
  if (field.oneof === undefined) {
    return message[field.localName];
  }
  const found = message[field.oneof.localName] as { case?: string; value?: unknown };
  return found.case === field.localName ? found.value : undefined;
}

function plainField(field: DescField, value: unknown, path: string): unknown {
  switch (field.fieldKind) {
    case "scalar":
      return plainScalar(value, path);
    case "enum":
      return wordOf(field.enum, value as number);
    case "message":
      return plainMessage(field.message, value as Values, path);
    case "list":
      return (value as unknown[]).map((item, index) => {
        const at = `${path}[${index}]`;
        switch (field.listKind) {
          case "scalar":
            return plainScalar(item, at);
          case "enum":
            return wordOf(field.enum, item as number) ?? "unknown";
          case "message":
            return plainMessage(field.message, item as Values, at);
        }
      });
    case "map":
      // All maps of the contract are of strings.
      return { ...(value as Values) };
  }
}

function plainScalar(value: unknown, path: string): unknown {
  if (typeof value !== "bigint") {
    return value;
  }
  const number = Number(value);
  if (!Number.isSafeInteger(number)) {
    throw new UnsafeIntegerError(path, value);
  }
  return number;
}

function wordOf(desc: DescEnum, number: number): string | undefined {
  if (number === 0) {
    return undefined;
  }
  const word = desc.value[number]?.localName.toLowerCase();
  if (word === undefined) {
    return "unknown";
  }
  return desc.typeName === EVENT_TYPE ? dotted(word) : word;
}

function messageOf(desc: DescMessage, given: Values, path: string): unknown {
  if (typeof given !== "object" || given === null || Array.isArray(given)) {
    throw new ArgumentError(path, "is no object");
  }
  const init = desc.typeName === EVENT ? fromEvent(desc, given) : given;
  const message = create(desc) as unknown as Values;
  const left = new Set(Object.keys(init));
  for (const field of desc.fields) {
    const name = nameOf(field);
    const found = init[name];
    left.delete(name);
    if (found === undefined) {
      continue;
    }
    const value = fieldOf(field, found, path === "" ? name : `${path}.${name}`);
    if (field.oneof === undefined) {
      message[field.localName] = value;
      continue;
    }
    const chosen = message[field.oneof.localName] as { case?: string };
    if (chosen.case !== undefined) {
      throw new ArgumentError(path, `has both ${chosen.case} and ${name}`);
    }
    message[field.oneof.localName] = { case: field.localName, value };
  }
  for (const name of left) {
    if (init[name] !== undefined) {
      throw new ArgumentError(path === "" ? name : `${path}.${name}`, "there is no such field");
    }
  }
  return message;
}

function fieldOf(field: DescField, given: unknown, path: string): unknown {
  switch (field.fieldKind) {
    case "scalar":
      return scalarOf(field.scalar, given, path);
    case "enum":
      return numberOf(field.enum, given, path);
    case "message":
      return submessageOf(field.message, given, path);
    case "list":
      if (!Array.isArray(given)) {
        throw new ArgumentError(path, "is no array");
      }
      return given.map((item: unknown, index) => {
        const at = `${path}[${index}]`;
        switch (field.listKind) {
          case "scalar":
            return scalarOf(field.scalar, item, at);
          case "enum":
            return numberOf(field.enum, item, at);
          case "message":
            return submessageOf(field.message, item, at);
        }
      });
    case "map":
      return mapOf(given, path);
  }
}

function mapOf(given: unknown, path: string): Record<string, string> {
  if (typeof given !== "object" || given === null || Array.isArray(given)) {
    throw new ArgumentError(path, "is no object");
  }
  const pairs = Object.entries(given).map(([key, value]) => [
    scalarOf(ScalarType.STRING, key, path),
    scalarOf(ScalarType.STRING, value, `${path}.${key}`),
  ]);
  return Object.fromEntries(pairs) as Record<string, string>;
}

function submessageOf(desc: DescMessage, given: unknown, path: string): unknown {
  switch (desc.typeName) {
    case "google.protobuf.Timestamp":
      if (!(given instanceof Date) || Number.isNaN(given.getTime())) {
        throw new ArgumentError(path, "is no Date");
      }
      return timestampFromDate(given);
    case "google.protobuf.Duration":
      if (typeof given !== "number" || !Number.isSafeInteger(Math.round(given * 1000))) {
        throw new ArgumentError(path, "is no number of seconds");
      }
      return durationFromMs(Math.round(given * 1000));
    default:
      return messageOf(desc, given as Values, path);
  }
}

function numberOf(desc: DescEnum, given: unknown, path: string): number {
  const found = desc.values.find(
    (value) => value.number !== 0 && wordOf(desc, value.number) === given,
  );
  if (found === undefined) {
    throw new ArgumentError(path, `${JSON.stringify(given)} is none of its words`);
  }
  return found.number;
}

function scalarOf(scalar: ScalarType, given: unknown, path: string): unknown {
  switch (scalar) {
    case ScalarType.STRING:
      if (typeof given !== "string") {
        throw new ArgumentError(path, "is no string");
      }
      if (!given.isWellFormed()) {
        throw new ArgumentError(path, "holds half of a surrogate pair, which UTF-8 cannot");
      }
      return given;
    case ScalarType.BOOL:
      if (typeof given !== "boolean") {
        throw new ArgumentError(path, "is no boolean");
      }
      return given;
    case ScalarType.BYTES:
      if (!(given instanceof Uint8Array)) {
        throw new ArgumentError(path, "is no Uint8Array");
      }
      return given;
    case ScalarType.INT64:
      if (!Number.isSafeInteger(given)) {
        throw new ArgumentError(path, "is no integer within 2^53");
      }
      return BigInt(given as number);
    case ScalarType.INT32: {
      const number = given as number;
      if (!Number.isInteger(number) || number < -INT32 || number >= INT32) {
        throw new ArgumentError(path, "is no integer of 32 bits");
      }
      return number;
    }
    default:
      return given;
  }
}
