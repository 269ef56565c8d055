// Compares what came with what a scenario expects.
import { isObject, ScenarioError, type Json, type JsonObject, type Scope } from "./values.js";

type Rule = (told: Json, value: Json, captures: Scope, path: string) => string | undefined;

const RULES: Readonly<Record<string, Rule>> = {
  $is: mismatch,
  $regex: (told, value, _captures, path) =>
    typeof value === "string" && new RegExp(told as string, "u").test(value)
      ? undefined
      : `${path} is ${short(value)}, expected /${short(told)}/`,
  $length: (told, value, _captures, path) =>
    Array.isArray(value) && value.length === told
      ? undefined
      : `${path} is ${short(value)}, expected ${short(told)} items`,
  $min: (told, value, _captures, path) =>
    Number(value) >= Number(told)
      ? undefined
      : `${path} is ${short(value)}, expected at least ${short(told)}`,
  $max: (told, value, _captures, path) =>
    Number(value) <= Number(told)
      ? undefined
      : `${path} is ${short(value)}, expected at most ${short(told)}`,
  $contains: contains,
  $unordered: unordered,
};

/**
 * Returns why a value does not fit its pattern; undefined where it does.
 *
 * @param value What came; undefined: nothing.
 * @param captures Gets what `$as` asks for; to be thrown away where it does not fit.
 */
export function mismatch(
  pattern: Json,
  value: Json | undefined,
  captures: Scope,
  path = "it",
): string | undefined {
  if (isObject(pattern) && Object.keys(pattern).some((key) => key.startsWith("$"))) {
    return matched(pattern, value, captures, path);
  }
  if (value === undefined) {
    return `${path} is absent, expected ${short(pattern)}`;
  }
  if (isObject(pattern)) {
    if (!isObject(value)) {
      return `${path} is ${short(value)}, expected an object`;
    }
    return first(Object.entries(pattern), ([key, inner]) =>
      mismatch(inner, value[key], captures, `${path}.${key}`),
    );
  }
  if (Array.isArray(pattern)) {
    if (!Array.isArray(value) || value.length > pattern.length) {
      return `${path} is ${short(value)}, expected ${short(pattern)}`;
    }
    return first([...pattern.entries()], ([index, inner]) =>
      mismatch(inner, value[index], captures, `${path}[${index}]`),
    );
  }
  return pattern === value ? undefined : `${path} is ${short(value)}, expected ${short(pattern)}`;
}

function first<T>(items: readonly T[], check: (item: T) => string | undefined): string | undefined {
  for (const item of items) {
    const why = check(item);
    if (why !== undefined) {
      return why;
    }
  }
  return undefined;
}

function matched(
  pattern: JsonObject,
  value: Json | undefined,
  captures: Scope,
  path: string,
): string | undefined {
  if (pattern["$absent"] === true) {
    return value === undefined ? undefined : `${path} is ${short(value)}, expected none`;
  }
  if (pattern["$not"] !== undefined) {
    const why = mismatch(pattern["$not"], value, {}, path);
    return why === undefined ? `${path} is ${short(value)}, expected another` : undefined;
  }
  if (value === undefined) {
    return `${path} is absent`;
  }
  const told = Object.entries(pattern).filter(([key]) => key !== "$as" && key !== "$any");
  const why = first(told, ([key, inner]) => {
    const rule = RULES[key];
    if (rule === undefined) {
      throw new ScenarioError(`there is no matcher ${key}`);
    }
    return rule(inner, value, captures, path);
  });
  if (why === undefined && typeof pattern["$as"] === "string") {
    captures[pattern["$as"]] = value;
  }
  return why;
}

function contains(told: Json, value: Json, captures: Scope, path: string): string | undefined {
  const rest = Array.isArray(value) ? [...value] : [];
  return first(told as Json[], (inner) => {
    for (let item = rest.shift(); item !== undefined; item = rest.shift()) {
      const trial: Scope = {};
      if (mismatch(inner, item, trial) === undefined) {
        Object.assign(captures, trial);
        return undefined;
      }
    }
    return `${path} has, in this order, no ${short(inner)}: ${short(value)}`;
  });
}

function unordered(told: Json, value: Json, captures: Scope, path: string): string | undefined {
  const expected = told as Json[];
  if (!Array.isArray(value) || value.length !== expected.length) {
    return `${path} is ${short(value)}, expected ${expected.length} items`;
  }
  const rest = [...value];
  return first(expected, (inner) => {
    for (const [index, item] of rest.entries()) {
      const trial: Scope = {};
      if (mismatch(inner, item, trial) === undefined) {
        Object.assign(captures, trial);
        rest.splice(index, 1);
        return undefined;
      }
    }
    return `${path} has no ${short(inner)}: ${short(value)}`;
  });
}

/** Writes a value, cut where it is long. */
export function short(value: Json | undefined): string {
  const text = JSON.stringify(value) ?? "nothing";
  return text.length <= 600 ? text : `${text.slice(0, 600)}... (${text.length} characters)`;
}
