// Plays scenarios, and tells what came of them: a table, and JUnit's XML.
import { Binding } from "./binding.js";
import { Player } from "./play.js";
import type { JsonObject, Scenario } from "./values.js";

/** What came of one scenario. */
export interface Result {
  readonly name: string;
  readonly file: string;
  readonly seconds: number;
  /** What was wrong; empty: nothing. */
  readonly failure: string;
  /** Why it was not played; empty: it was. */
  readonly skipped: string;
}

/** Plays scenarios, some beside each other. */
export async function played(
  target: string,
  scenarios: readonly Scenario[],
  jobs: number,
): Promise<Result[]> {
  const client = new Binding(target);
  const info = (await client.call("GetServerInfo", {}, false)) as JsonObject;
  client.close();
  const features = (info["features"] ?? []) as string[];
  const results: Result[] = [];
  const left = [...scenarios.entries()];
  const work = async (): Promise<void> => {
    for (let next = left.shift(); next !== undefined; next = left.shift()) {
      const [index, scenario] = next;
      results[index] = await one(target, scenario, features);
    }
  };
  await Promise.all(Array.from({ length: jobs }, work));
  return results;
}

async function one(
  target: string,
  scenario: Scenario,
  features: readonly string[],
): Promise<Result> {
  const { name, file, needs } = scenario;
  const lacking = needs.filter((need) => !features.includes(need));
  const result = { name, file, seconds: 0, failure: "", skipped: "" };
  if (lacking.length > 0) {
    return { ...result, skipped: `the server lacks ${lacking.join(", ")}` };
  }
  const began = performance.now();
  let failure = "";
  try {
    await new Player(scenario, () => new Binding(target)).play();
  } catch (error) {
    failure = (error as Error).message;
  }
  return { ...result, failure, seconds: (performance.now() - began) / 1000 };
}

function wordOf(result: Result): "FAILED" | "skipped" | "ok" {
  return result.failure !== "" ? "FAILED" : result.skipped !== "" ? "skipped" : "ok";
}

/** Returns the results as lines, failures told below. */
export function table(results: readonly Result[]): string {
  const width = Math.max(0, ...results.map((result) => result.name.length));
  const lines = results.map((result) => {
    const seconds = result.seconds.toFixed(2).padStart(6);
    return `${wordOf(result).padEnd(8)}${result.name.padEnd(width)}  ${seconds} s`;
  });
  for (const { name, file, failure } of results) {
    if (failure !== "") {
      lines.push("", `${name} (${file})`, `  ${failure}`);
    }
  }
  const count = (word: string): number => results.filter((one) => wordOf(one) === word).length;
  const counted = `${count("ok")} ok, ${count("FAILED")} failed, ${count("skipped")} skipped`;
  return [...lines, "", counted].join("\n");
}

/** Returns the results as JUnit's XML. */
export function junit(results: readonly Result[]): string {
  const failures = results.filter((one) => one.failure !== "").length;
  const skipped = results.filter((one) => one.skipped !== "").length;
  const cases = results.map((one) => {
    const said =
      (one.failure === ""
        ? ""
        : `<failure message="${xml(one.failure.slice(0, 200))}">${xml(one.failure)}</failure>`) +
      (one.skipped === "" ? "" : `<skipped message="${xml(one.skipped)}"/>`);
    const names = `classname="${xml(one.file)}" name="${xml(one.name)}"`;
    return `<testcase ${names} time="${one.seconds.toFixed(3)}">${said}</testcase>`;
  });
  const counts = `tests="${results.length}" failures="${failures}" skipped="${skipped}"`;
  const suite = `<testsuite name="conformance.typescript" ${counts}>`;
  return `<?xml version="1.0" encoding="utf-8"?>\n${suite}${cases.join("\n")}</testsuite>\n`;
}

function xml(text: string): string {
  const kept = text.replaceAll(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "?");
  const marks: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
  return kept.replaceAll(/[&<>"]/g, (mark) => marks[mark] ?? mark);
}
