// How a server is reached: over TLS, with a certificate of the client's own, by a socket file.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";

import { ArgumentError, Client, Executor, type Access } from "../src/index.js";
import { PYTHON, Server } from "./server.js";

// An authority with a server and a client, and another one with a client of the same name.
const CERTIFICATES = `
import sys, trustme
folder = sys.argv[1]
for name in ("ours", "other"):
    ca = trustme.CA()
    ca.cert_pem.write_to_path(f"{folder}/{name}.ca.pem")
    for part, made in {
        "server": ca.issue_cert("localhost", "127.0.0.1"),
        "client": ca.issue_cert("worker@example.org", common_name="worker"),
    }.items():
        made.private_key_pem.write_to_path(f"{folder}/{name}.{part}.key")
        for place, pem in enumerate(made.cert_chain_pems):
            pem.write_to_path(f"{folder}/{name}.{part}.pem", append=place > 0)
`;
const folder = mkdtempSync(join(tmpdir(), "runlane-tls-"));
const file = (name: string): string => join(folder, name);
const secured = `tls_cert = "${file("ours.server.pem")}"\ntls_key = "${file("ours.server.key")}"\n`;
const clientOf = (name: string) => ({
  ca: file("ours.ca.pem"),
  cert: file(`${name}.client.pem`),
  key: file(`${name}.client.key`),
});

beforeAll(() => {
  execFileSync(PYTHON, ["-c", CERTIFICATES, folder]);
});

afterAll(() => {
  rmSync(folder, { recursive: true });
});

/** Runs an agent by a way to the server: a unary call, streams and a poll. */
async function runBy(access: Access): Promise<string> {
  const client = new Client(access);
  const executor = new Executor(client, {
    name: "echo",
    model: () => Promise.resolve("heard"),
  });
  const running = executor.run();
  try {
    const session = client.session(`s-${Math.random()}`, { agent: "echo" });
    const { text, runId } = await session.run("hello");
    for await (const event of client.history.runEvents(runId)) {
      expect(event.runId).toBe(runId);
    }
    return text;
  } finally {
    await executor.close();
    await running;
    client.close();
  }
}

/** Returns the code that a way to the server ends with. */
async function refusedBy(access: Access): Promise<string> {
  const client = new Client({ ...access, timeoutSeconds: 2 });
  const error: unknown = await client.serverInfo().then(
    () => undefined,
    (found: unknown) => found,
  );
  client.close();
  return (error as { code?: string } | undefined)?.code ?? "none";
}

test("a server is known by its certificate, and a client that speaks in clear gets nowhere", async () => {
  await using server = await Server.started(secured);
  const { target } = server;
  expect(await runBy({ target, tls: file("ours.ca.pem") })).toBe("heard");
  const byName = target.replace("127.0.0.1", "localhost");
  expect(await runBy({ target: byName, tls: { ca: file("ours.ca.pem") } })).toBe("heard");
  expect(await refusedBy({ target, tls: file("other.ca.pem") })).not.toBe("none");
  expect(await refusedBy({ target, tls: true })).not.toBe("none");
  expect(await refusedBy({ target })).not.toBe("none");
});

test("a certificate of the client's own lets it in, one of another authority does not", async () => {
  const config = `${secured}tls_client_ca = "${file("ours.ca.pem")}"\n`;
  await using server = await Server.started(config);
  const { target } = server;
  expect(await runBy({ target, tls: clientOf("ours") })).toBe("heard");
  expect(await refusedBy({ target, tls: clientOf("other") })).not.toBe("none");
  expect(await refusedBy({ target, tls: file("ours.ca.pem") })).not.toBe("none");
  const half = { ca: file("ours.ca.pem"), cert: file("ours.client.pem") };
  expect(() => new Client({ target, tls: half })).toThrow(ArgumentError);
});

test("a server is reached by its socket file", async () => {
  const path = file("runlane.sock");
  await using server = await Server.started("", `unix:${path}`);
  expect(server.target).toBe(`unix:${path}`);
  // No other machine reads a key on its way there.
  for (const target of [server.target, `unix://${path}`]) {
    expect(await runBy({ target, apiKey: "rl_any" })).toBe("heard");
  }
});
