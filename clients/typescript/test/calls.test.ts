import { Code, ConnectError } from "@connectrpc/connect";
import { expect, test, vi } from "vitest";

import {
  AdminService,
  ArgumentError,
  Client,
  ClientClosedError,
  ExecutorService,
  HistoryService,
  isReason,
  ServerService,
  ServiceError,
  SessionService,
  TransportError,
} from "../src/index.js";
import { fromConnectError } from "../src/errors.js";
import { ErrorReasonSchema } from "../src/gen/error_reason_pb.js";
import { deadlineSeconds, delaySeconds, policyOf } from "../src/policy.js";
import { fakeClient, lost, refusal } from "./fake.js";

const RECEIPT = { submission: { runId: "run_1", submissionId: "sub_1" } };

test("every method of the contract has a deadline", () => {
  for (const service of [
    SessionService,
    HistoryService,
    ExecutorService,
    AdminService,
    ServerService,
  ]) {
    for (const method of service.methods) {
      expect(policyOf(method).deadline, method.name).toMatch(/^(call|wait|stream)$/);
    }
  }
});

test("every reason of the contract is told by its word, with all that comes with it", () => {
  const reasons = ErrorReasonSchema.values.filter((value) => value.number !== 0);
  expect(reasons.length).toBeGreaterThan(40);
  for (const { name } of reasons) {
    const reason = name.replace("ERROR_REASON_", "");
    const more = {
      metadata: { a: "1", b: "" },
      violations: { page_size: "no" },
      retrySeconds: 1.5,
    };
    const error = fromConnectError(refusal(reason, Code.NotFound, more));
    expect(error).toBeInstanceOf(ServiceError);
    expect(error).toMatchObject({
      reason,
      code: "NOT_FOUND",
      metadata: { a: "1", b: "" },
      violations: [{ field: "page_size", description: "no" }],
      retryAfterSeconds: 1.5,
    });
    expect(isReason(error, reason as "SESSION_BUSY")).toBe(true);
    expect(isReason(error, reason === "RUN_TERMINAL" ? "SESSION_BUSY" : "RUN_TERMINAL")).toBe(
      false,
    );
  }
});

test("what the service did not say is of the transport", () => {
  expect(fromConnectError(lost())).toMatchObject({ code: "UNAVAILABLE" });
  expect(fromConnectError(lost(Code.Internal))).toBeInstanceOf(TransportError);
  expect(fromConnectError(lost(Code.DeadlineExceeded))).toMatchObject({
    code: "DEADLINE_EXCEEDED",
  });
  // A status that a proxy gave stays what it is.
  const told = new ConnectError("no", Code.Internal, { "grpc-status": "13" });
  expect(fromConnectError(told)).toMatchObject({ code: "INTERNAL" });
  const pushed = new ConnectError("no", Code.Unavailable, { "grpc-retry-pushback-ms": "-1" });
  expect(fromConnectError(pushed)).toMatchObject({ retryAfterSeconds: -0.001 });
});

test("a call that finds the server away is made again with the same request id", async () => {
  const ids: string[] = [];
  const failures = [lost(), refusal("DRAINING", Code.Unavailable, { retrySeconds: 0.01 })];
  const client = fakeClient({
    Submit: (request: { requestId: string }) => {
      ids.push(request.requestId);
      const failure = failures.shift();
      if (failure !== undefined) {
        throw failure;
      }
      return RECEIPT;
    },
  });
  expect((await client.submit("hello")).runId).toBe("run_1");
  expect(ids).toHaveLength(3);
  expect(new Set(ids).size).toBe(1);
  expect(ids[0]).toMatch(/^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
  await client.submit("again");
  expect(ids[3]).not.toBe(ids[0]);
  await client.submit("mine", undefined, { requestId: "mine" });
  expect(ids[4]).toBe("mine");
});

test.each([
  ["SESSION_BUSY", Code.FailedPrecondition],
  ["INTERNAL_ERROR", Code.Internal],
  ["QUOTA_EXCEEDED", Code.ResourceExhausted],
])("%s is no reason to call again", async (reason, code) => {
  const submit = vi.fn(() => {
    throw refusal(reason, code);
  });
  await expect(fakeClient({ Submit: submit }).submit("hello")).rejects.toMatchObject({ reason });
  expect(submit).toHaveBeenCalledOnce();
});

test("a call that is one too many a second waits as long as it was told", async () => {
  let calls = 0;
  const client = fakeClient({
    Submit: () => {
      calls += 1;
      if (calls === 1) {
        throw refusal("QUOTA_EXCEEDED", Code.ResourceExhausted, { retrySeconds: 0.05 });
      }
      return RECEIPT;
    },
  });
  const begun = performance.now();
  await client.submit("hello");
  expect(performance.now() - begun).toBeGreaterThanOrEqual(50);
});

test("repeats end with the deadline of the call", async () => {
  const client = fakeClient(
    {
      Submit: () => {
        throw lost(Code.Unavailable);
      },
    },
    { timeoutSeconds: 0.3 },
  );
  await expect(client.submit("hello")).rejects.toMatchObject({ code: "UNAVAILABLE" });
});

test("delays grow up to the longest; a wait is added to the deadline with a margin", () => {
  for (let attempt = 1; attempt < 40; attempt += 1) {
    const longest = Math.min(2, 0.05 * 2 ** (attempt - 1));
    expect(delaySeconds(attempt)).toBeLessThanOrEqual(longest);
    expect(delaySeconds(attempt)).toBeGreaterThanOrEqual(longest / 2);
  }
  expect(deadlineSeconds(policyOf(HistoryService.method.waitRun), 30, 60)).toBe(105);
  expect(deadlineSeconds(policyOf(HistoryService.method.getRun), 30, 60)).toBe(30);
});

test("a signal calls off a call, a close all of them", async () => {
  const never = (_request: never, signal: AbortSignal | undefined): Promise<never> =>
    new Promise((_resolve, reject) => {
      signal?.addEventListener("abort", () => {
        reject(lost(Code.Canceled));
      });
    });
  const client = fakeClient({ Submit: never });
  const controller = new AbortController();
  const submitted = client.submit("hello", "s", { signal: controller.signal });
  controller.abort(new Error("enough"));
  await expect(submitted).rejects.toThrow("enough");
  const other = client.submit("hello", "s");
  client.close();
  await expect(other).rejects.toThrow(ClientClosedError);
  await expect(client.submit("hello", "s")).rejects.toThrow(ClientClosedError);
});

test("a key goes in clear to this machine alone", () => {
  const target = "runlane.example.org:7480";
  expect(() => new Client({ target, apiKey: "rl_1" })).toThrow(ArgumentError);
  expect(() => new Client({ target, apiKey: "rl_1\n", tls: true })).toThrow("line feed");
  for (const here of ["127.0.0.1:1", "localhost:1", "[::1]:1", "unix:/tmp/s"]) {
    new Client({ target: here, apiKey: "rl_1" }).close();
  }
  new Client({ target, apiKey: "rl_1", tls: true }).close();
  new Client({ target, apiKey: "rl_1", tls: false }).close();
  expect(() => new Client({ tls: { cert: "a" } })).toThrow("go together");
});
