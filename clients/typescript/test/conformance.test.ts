import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterAll, beforeAll, expect, test } from "vitest";

import { junit, played, table } from "../conformance/report.js";
import { mismatch } from "../conformance/match.js";
import { load, type Json } from "../conformance/values.js";
import { PYTHON, ROOT, Server } from "./server.js";

const SCENARIOS = load([join(ROOT, "conformance/scenarios")]);

// What shows each fault; more may.
const SHOWN_BY = {
  event_left_out: "a_steer_is_delivered_at_the_final_answer",
  order_swapped: "a_steer_is_delivered_at_the_final_answer",
  piece_after_message: "pieces_of_an_answer_come_before_their_message",
  input_doubled: "a_steer_is_delivered_at_the_final_answer",
  request_id_ignored: "a_request_id_gives_its_first_answer_again",
  reason_changed: "a_race_for_the_lane_has_one_winner",
  field_unnamed: "wrong_requests_name_the_wrong_field",
  stale_accepted: "a_fence_is_dead_after_the_end",
  page_item_lost: "a_fork_has_the_prefix_and_leaves_its_source_alone",
  astral_lost: "pieces_of_an_answer_come_before_their_message",
  number_rounded: "arguments_are_handed_on_byte_for_byte",
};

let server: Server;

beforeAll(async () => {
  server = await Server.started();
});

afterAll(async () => {
  await server[Symbol.asyncDispose]();
});

async function failed(target: string, names: readonly string[]): Promise<string[]> {
  const chosen = SCENARIOS.filter((one) => names.includes(one.name));
  expect(chosen).toHaveLength(names.length);
  const results = await played(target, chosen, 8);
  return results.filter((one) => one.failure !== "").map((one) => one.name);
}

/** Plays scenarios against a server that is made wrong. */
async function failedBehind(fault: string, names: readonly string[]): Promise<string[]> {
  const command = ["-m", "conformance.faulty", "--target", server.target, "--fault", fault];
  const proxy = spawn(PYTHON, command, { stdio: ["ignore", "pipe", "inherit"], cwd: ROOT });
  try {
    const [line] = (await once(createInterface({ input: proxy.stdout }), "line")) as [string];
    return await failed(line.replace("listening on ", ""), names);
  } finally {
    proxy.kill();
    await once(proxy, "exit");
  }
}

test("all scenarios pass", { timeout: 300_000 }, async () => {
  const results = await played(server.target, SCENARIOS, 8);
  const wrong = results.filter((one) => one.failure !== "" || one.skipped !== "");
  expect(wrong).toEqual([]);
  expect(results.length).toBeGreaterThanOrEqual(100);
});

test.each(Object.entries(SHOWN_BY))("the fault %s is found", async (fault, scenario) => {
  expect(await failedBehind(fault, [scenario])).toEqual([scenario]);
});

test("a proxy that changes nothing shows no fault", async () => {
  expect(await failedBehind("none", [...new Set(Object.values(SHOWN_BY))])).toEqual([]);
});

test.each<[string, Json, Json | undefined, boolean]>([
  ["equal", { a: "x" }, { a: "x", b: "y" }, true],
  ["another", { a: "x" }, { a: "y" }, false],
  ["absent", { a: { $absent: true } }, {}, true],
  ["there", { a: { $absent: true } }, { a: "" }, false],
  ["not", { $not: "x" }, undefined, true],
  ["the same list", ["a", "b"], ["a", "b"], true],
  ["a longer list", ["a"], ["a", "b"], false],
  ["in order", { $contains: ["a", "c"] }, ["a", "b", "c"], true],
  ["out of order", { $contains: ["c", "a"] }, ["a", "b", "c"], false],
  ["any order", { $unordered: ["b", "a"] }, ["a", "b"], true],
  ["a number", { $min: 3, $max: 4 }, "3", true],
  ["too small", { $min: 3 }, "2", false],
  ["a text", { $regex: "^run_" }, "run_1", true],
  ["kept beside", { $as: "x", $is: { a: "b" } }, { a: "c" }, false],
])("what fits: %s", (_name, pattern, value, fits) => {
  expect(mismatch(pattern, value, {}) === undefined).toBe(fits);
});

test("the report counts what came", () => {
  const result = { file: "a.json", seconds: 1, failure: "", skipped: "" };
  const results = [
    { ...result, name: "good" },
    { ...result, name: "bad", failure: "it broke <&>\u0000" },
    { ...result, name: "other", skipped: "the server lacks x" },
  ];
  expect(table(results)).toContain("1 ok, 1 failed, 1 skipped");
  expect(junit(results)).toContain('tests="3" failures="1" skipped="1"');
  expect(junit(results)).toContain(">it broke &lt;&amp;&gt;?</failure>");
});
