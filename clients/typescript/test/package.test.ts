import { execFile } from "node:child_process";
import { cpSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { expect, test } from "vitest";

import * as sources from "../src/index.js";
import manifest from "../package.json" with { type: "json" };

const FOLDER = fileURLToPath(new URL("..", import.meta.url));
const MODULES = join(FOLDER, "node_modules");
const run = promisify(execFile);

const PROGRAM = `
import * as runlane from "runlane";
const client: runlane.Client = new runlane.Client({ target: "127.0.0.1:1" });
client.close();
console.log(Object.keys(runlane).join());
`;

test("the package that npm packs is whole: it is installed, compiled against and run", async () => {
  const folder = mkdtempSync(join(tmpdir(), "runlane-package-"));
  try {
    // As a fresh clone is: nothing was built.
    const clone = join(folder, "clone");
    const left = new Set(["dist", "build", "node_modules"]);
    cpSync(FOLDER, clone, { recursive: true, filter: (file) => !left.has(basename(file)) });
    symlinkSync(MODULES, join(clone, "node_modules"));
    const packed = await run("npm", ["pack", "--json", "--pack-destination", folder], {
      cwd: clone,
    });
    const [{ filename, files }] = JSON.parse(packed.stdout) as [
      { filename: string; files: { path: string }[] },
    ];
    const paths = files.map((file) => file.path);
    expect(paths).toEqual(expect.arrayContaining(["LICENSE", "README.md", "dist/index.d.ts"]));
    expect(paths.filter((path) => /^(src|test|conformance|tools)\//.test(path))).toEqual([]);

    // What it depends on is that of this folder, so that no registry is asked.
    const project = join(folder, "project");
    const needed = Object.keys(manifest.dependencies);
    const dependencies = Object.fromEntries(
      needed.map((name) => [name, `file:${join(MODULES, name)}`]),
    );
    cpSync(join(folder, filename), join(project, "runlane.tgz"));
    const made = { private: true, type: "module", dependencies };
    writeFileSync(join(project, "package.json"), JSON.stringify(made));
    writeFileSync(join(project, "program.mts"), PROGRAM);
    await run("npm", ["install", "--offline", "--no-audit", "--no-fund", "./runlane.tgz"], {
      cwd: project,
    });
    const compiler = join(MODULES, "typescript/bin/tsc");
    const types = ["--typeRoots", join(MODULES, "@types"), "--types", "node"];
    const options = ["--strict", "--module", "nodenext", "--target", "es2023", ...types];
    await run(process.execPath, [compiler, ...options, "program.mts"], { cwd: project });
    const { stdout } = await run(process.execPath, ["program.mjs"], { cwd: project });
    expect(stdout.trim().split(",").sort()).toEqual(Object.keys(sources).sort());
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
