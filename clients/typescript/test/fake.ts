// A service within the process: each method is a function of the test.
import { create, type DescMessage, type MessageShape } from "@bufbuild/protobuf";
import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import { Code, ConnectError, type Transport } from "@connectrpc/connect";

import { Client, type ClientOptions } from "../src/index.js";

type Answer = Record<string, unknown>;
export type Handler = (request: never, signal: AbortSignal | undefined) => unknown;

/** A client of a service that is made of functions, named as the methods. */
export function fakeClient(handlers: Record<string, Handler>, options: ClientOptions = {}): Client {
  return new Client({ ...options, apiKey: "", transport: fakeTransport(handlers) });
}

function fakeTransport(handlers: Record<string, Handler>): Transport {
  const find = (name: string): Handler => {
    const found = handlers[name];
    if (found === undefined) {
      throw new Error(`the test has no ${name}`);
    }
    return found;
  };
  const called = (method: { name: string }) => ({ stream: false, method }) as never;
  return {
    async unary(method, signal, _timeout, header, input) {
      const request = create(method.input, input as never);
      const answer = (await find(method.name)(request as never, signal)) as Answer;
      return {
        ...(called(method) as object),
        stream: false,
        header: new Headers(header),
        trailer: new Headers(),
        message: create(method.output, answer as never),
      } as never;
    },
    async stream(method, signal, _timeout, header, input) {
      const requests: MessageShape<DescMessage>[] = [];
      for await (const one of input) {
        requests.push(create(method.input, one as never));
      }
      const frames = find(method.name)(requests[0] as never, signal) as AsyncIterable<Answer>;
      async function* messages() {
        for await (const frame of frames) {
          yield create(method.output, frame as never);
        }
      }
      return {
        ...(called(method) as object),
        stream: true,
        header: new Headers(header),
        trailer: new Headers(),
        message: messages(),
      } as never;
    },
  };
}

/** What the service says where it refuses. */
export function refusal(
  reason: string,
  code: Code = Code.FailedPrecondition,
  more: {
    metadata?: Record<string, string>;
    violations?: Record<string, string>;
    retrySeconds?: number;
  } = {},
): ConnectError {
  const info = new BinaryWriter().tag(1, WireType.LengthDelimited).string(reason);
  info.tag(2, WireType.LengthDelimited).string("runlane.dev");
  for (const [key, value] of Object.entries(more.metadata ?? {})) {
    info.tag(3, WireType.LengthDelimited).bytes(pair(key, value));
  }
  const error = new ConnectError("as the test says", code, { "grpc-status": String(code) });
  error.details = [{ type: "google.rpc.ErrorInfo", value: info.finish() }];
  const bad = new BinaryWriter();
  for (const [field, description] of Object.entries(more.violations ?? {})) {
    bad.tag(1, WireType.LengthDelimited).bytes(pair(field, description));
  }
  error.details.push({ type: "google.rpc.BadRequest", value: bad.finish() });
  if (more.retrySeconds !== undefined) {
    const whole = Math.floor(more.retrySeconds);
    const span = new BinaryWriter().tag(1, WireType.Varint).int64(BigInt(whole));
    span.tag(2, WireType.Varint).int32(Math.round((more.retrySeconds - whole) * 1e9));
    const value = new BinaryWriter().tag(1, WireType.LengthDelimited).bytes(span.finish()).finish();
    error.details.push({ type: "google.rpc.RetryInfo", value });
  }
  return error;
}

function pair(key: string, value: string): Uint8Array {
  const writer = new BinaryWriter().tag(1, WireType.LengthDelimited).string(key);
  return writer.tag(2, WireType.LengthDelimited).string(value).finish();
}

/** A connection that was lost: the transport's own word. */
export function lost(code: Code = Code.Aborted): ConnectError {
  return new ConnectError("the connection was reset", code);
}

/** A seeded source of numbers in [0, 1). */
export function seeded(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
