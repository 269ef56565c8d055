import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";

import { Server } from "./server.js";

const EXAMPLE = new URL("../examples/quickstart.mjs", import.meta.url);

test("the README shows its example as it is, and what it prints", async () => {
  const readme = readFileSync(new URL("../README.md", import.meta.url), "utf8");
  const [, shown] = /```js\n([^]*?)```/.exec(readme) ?? [];
  const [, printed] = /```text\n([^]*?)```/.exec(readme) ?? [];
  expect(shown).toBe(readFileSync(EXAMPLE, "utf8"));
  await using server = await Server.started();
  const run = promisify(execFile);
  const { stdout } = await run(process.execPath, [fileURLToPath(EXAMPLE), server.target], {
    timeout: 30_000,
  });
  expect(stdout).toBe(printed);
});
