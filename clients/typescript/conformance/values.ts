// What scenarios write for values, and the files they stand in.
import { readdirSync, readFileSync, statSync } from "node:fs";
import { basename, dirname, join } from "node:path";

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type JsonObject = Record<string, Json>;
export type Scope = Record<string, Json>;

/** A scenario says what it cannot mean. */
export class ScenarioError extends Error {}

/** What is done, and what is to come of it. */
export interface Scenario {
  readonly name: string;
  readonly file: string;
  readonly ids: readonly string[];
  readonly needs: readonly string[];
  readonly steps: readonly JsonObject[];
  readonly shared: JsonObject;
}

const NAME = /\$\{([A-Za-z_][A-Za-z0-9_.]*)\}/g;

/** Reads the scenarios of files, in order; a folder stands for the .json files in it. */
export function load(paths: readonly string[]): Scenario[] {
  return paths.flatMap((path) => {
    if (statSync(path).isDirectory()) {
      const files = readdirSync(path).filter((file) => file.endsWith(".json"));
      return load(files.sort().map((file) => join(path, file)));
    }
    const content = read(path);
    const shared = content["shared"] as string | undefined;
    return (content["scenarios"] as JsonObject[]).map((one) => ({
      name: one["name"] as string,
      file: basename(path),
      ids: ["session", "agent", "executor", ...((one["ids"] ?? []) as string[])],
      needs: (one["needs"] ?? []) as string[],
      steps: one["steps"] as JsonObject[],
      shared: shared === undefined ? {} : read(join(dirname(path), shared)),
    }));
  });
}

function read(path: string): JsonObject {
  return JSON.parse(readFileSync(path, "utf8")) as JsonObject;
}

/** Tells whether a value is an object. */
export function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Returns a value with its names replaced by what they stand for. */
export function filled(value: Json, scope: Scope): Json {
  if (typeof value === "string") {
    const whole = /^\$\{([A-Za-z_][A-Za-z0-9_.]*)\}$/.exec(value);
    if (whole?.[1] !== undefined) {
      return lookedUp(whole[1], scope);
    }
    return value.replaceAll(NAME, (_all, name: string) => String(lookedUp(name, scope)));
  }
  if (Array.isArray(value)) {
    return value.map((item) => filled(item, scope));
  }
  if (isObject(value)) {
    if ("$repeat" in value) {
      return String(filled(value["$repeat"] ?? "", scope)).repeat(Number(value["$times"]));
    }
    return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, filled(one, scope)]));
  }
  return value;
}

function lookedUp(name: string, scope: Scope): Json {
  let found: Json = scope;
  for (const part of name.split(".")) {
    const next: Json | undefined = isObject(found) ? found[part] : undefined;
    if (next === undefined) {
      throw new ScenarioError(`nothing is known by the name ${name}`);
    }
    found = next;
  }
  return found;
}
