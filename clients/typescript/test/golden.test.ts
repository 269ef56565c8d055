// What must not change, as the conformance kit keeps it.
import { readFileSync } from "node:fs";
import { createRegistry, fromBinary, toBinary, toJson, type DescMessage } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { findTrailerError } from "@connectrpc/connect/protocol-grpc";
import { expect, test } from "vitest";

import {
  ExecutorService,
  HistoryService,
  RunlaneError,
  SessionService,
  AdminService,
  ServerService,
} from "../src/index.js";
import { callHeaders } from "../src/access.js";
import { fromConnectError } from "../src/errors.js";
import { CALLS } from "../src/gen/calls.js";
import { ErrorReason } from "../src/gen/error_reason_pb.js";
import { fromPlain, toPlain } from "../src/plain.js";
import { policyOf } from "../src/policy.js";
import { refusal } from "./fake.js";

function golden<T>(name: string): T {
  const path = new URL(`../../../conformance/golden/${name}.json`, import.meta.url);
  return JSON.parse(readFileSync(path, "utf8")) as T;
}

interface Wire {
  readonly name: string;
  readonly message: string;
  readonly binary: string;
  readonly json: Record<string, unknown>;
}

const SERVICES = [SessionService, HistoryService, ExecutorService, AdminService, ServerService];
const registry = createRegistry(...SERVICES.flatMap(({ file }) => [file, ...file.dependencies]));
const methods = SERVICES.flatMap((service) => service.methods);
const messages = golden<Wire[]>("wire").filter((one) => one.message.startsWith("runlane."));

// What a plain form does not hold: kinds that are newer than this client, which it calls unknown.
const NEWER: ReadonlySet<string> = new Set(["a_batch_of_events", "an_enum_that_is_not_known"]);

test.each(messages)("$name is read, and written the same", ({ name, message, binary, json }) => {
  const desc = registry.getMessage(message) as DescMessage;
  const bytes = Buffer.from(binary, "base64");
  const read = fromBinary(desc, bytes);
  const told = (one: typeof read): unknown => toJson(desc, one, { useProtoFieldName: true });
  expect(told(read)).toEqual(json);
  const written = toBinary(desc, read);
  expect(written.length).toBe(bytes.length);
  expect(told(fromBinary(desc, written))).toEqual(json);
  const large = /"-?\d{17,}"/.test(JSON.stringify(json));
  if (large) {
    expect(() => toPlain(desc, read)).toThrow(RunlaneError);
  } else if (NEWER.has(name)) {
    expect(JSON.stringify(toPlain(desc, read))).toContain('"unknown"');
  } else {
    // A Date holds milliseconds.
    const text = JSON.stringify(json).replaceAll(/(\.\d{3})\d+Z"/g, '$1Z"');
    expect(told(fromPlain(desc, toPlain(desc, read)))).toEqual(JSON.parse(text));
  }
});

test("the details of an error are read", () => {
  const [status] = golden<Wire[]>("wire").filter((one) => one.message === "google.rpc.Status");
  const trailer = new Headers({
    "grpc-status": "9",
    "grpc-status-details-bin": status?.binary ?? "",
  });
  expect(fromConnectError(findTrailerError(trailer))).toMatchObject({
    message: "SESSION_BUSY: a run is live",
    reason: "SESSION_BUSY",
    code: "FAILED_PRECONDITION",
    metadata: { phase: "ACTIVE", run_id: "run_1" },
    violations: [{ field: "content[0].text", description: "must not contain NUL" }],
    retryAfterSeconds: 0.2,
  });
});

test("the reasons are those of the client", () => {
  type Reason = { readonly number: number; readonly code: string };
  const reasons = golden<Record<string, Reason>>("reasons");
  const known = Object.entries(ErrorReason).filter(([, number]) => Number(number) > 0);
  const told = Object.entries(reasons).map(([name, { number }]) => [name, number]);
  expect(Object.fromEntries(known)).toEqual(Object.fromEntries(told));
  for (const [reason, { code }] of Object.entries(reasons)) {
    const status =
      Code[
        code
          .toLowerCase()
          .replace(/(?:^|_)(.)/g, (_all, letter: string) => letter.toUpperCase())
          .replace("Cancelled", "Canceled") as "Aborted"
      ];
    expect(fromConnectError(refusal(reason, status))).toMatchObject({ reason, code });
  }
});

test("the table of deadlines and repeats is that of the contract, a row for each call", () => {
  const path = new URL("../../../proto/calls.json", import.meta.url);
  expect(CALLS).toEqual(JSON.parse(readFileSync(path, "utf8")));
  const names = methods.map((method) => `${method.parent.typeName}/${method.name}`);
  expect(Object.keys(CALLS.methods)).toEqual(names);
  for (const method of methods) {
    const { deadline, repeat } = policyOf(method);
    const unary = method.methodKind === "unary";
    const holds = (name: string) => method.input.fields.some((field) => field.name === name);
    const waits = holds("wait_duration") ? "wait" : "call";
    expect(deadline, method.name).toBe(unary ? waits : "stream");
    if (unary) {
      expect(repeat === "request_id", method.name).toBe(holds("request_id"));
    }
  }
});

test("the keys that are sent are those of the contract", () => {
  const access = { apiKey: "rl_1", namespace: "n", clientName: "c", tls: true };
  const sent = [...callHeaders(access, "a:1", false).keys()].sort();
  const told = golden<{ requests: Record<string, string> }>("metadata");
  expect(Object.keys(told.requests).sort()).toEqual(sent);
});
