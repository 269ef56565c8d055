// The driver of the TypeScript client: `npm run conformance -- --target HOST:PORT FILES`.
import { writeFileSync } from "node:fs";
import { parseArgs } from "node:util";

import { junit, played, table } from "./report.js";
import { load } from "./values.js";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    target: { type: "string" },
    only: { type: "string", multiple: true },
    jobs: { type: "string", default: "8" },
    junit: { type: "string" },
  },
});
const { target, only, jobs } = values;
if (target === undefined || positionals.length === 0) {
  console.error(
    "usage: --target HOST:PORT [--only NAME]... [--jobs N] [--junit FILE] FILE_OR_FOLDER...",
  );
  process.exit(2);
}
const scenarios = load(positionals).filter((one) => only?.includes(one.name) ?? true);
if (scenarios.length === 0) {
  console.error("there is no such scenario");
  process.exit(2);
}
const results = await played(target, scenarios, Number(jobs));
console.log(table(results));
if (values.junit !== undefined) {
  writeFileSync(values.junit, junit(results));
}
process.exit(results.some((one) => one.failure !== "") ? 1 : 0);
