// Binds scenarios to the TypeScript client: what it is given and what it returns are compared as
// the JSON of the messages that they stand for.
import {
  create,
  fromJson,
  toJson,
  type DescMessage,
  type DescMethod,
  type DescMethodClientStreaming,
  type DescMethodServerStreaming,
  type DescMethodUnary,
  type MessageShape,
} from "@bufbuild/protobuf";
import { ConnectError, type Transport } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";

import { fromConnectError } from "../src/errors.js";
import { EventStream } from "../src/events.js";
import { ControlSchema, DeltaSchema, EventSchema } from "../src/gen/event_pb.js";
import {
  AdminService,
  Client,
  ExecutorService,
  HistoryService,
  ServerService,
  ServiceError,
  SessionService,
  TransportError,
  type List,
} from "../src/index.js";
import { fromPlain, toPlain, type Init, type Plain } from "../src/plain.js";
import type { Json, JsonObject } from "./values.js";

const METHODS = new Map<string, DescMethod>(
  [SessionService, HistoryService, ExecutorService, AdminService, ServerService].flatMap(
    (service) => service.methods.map((method) => [method.name, method] as const),
  ),
);

/** A call was refused; `told`: the error as a scenario sees it. */
export class Refused extends Error {
  readonly told: JsonObject;

  constructor(told: JsonObject) {
    super(`refused: ${JSON.stringify(told)}`);
    this.told = told;
  }
}

const BARE_MS = 60_000;

type Request = Record<string, never>;
type Values = Record<string, unknown>;

/** One client of its own connection. */
export class Binding {
  readonly #client: Client;
  readonly #bare: Transport;
  readonly #lists: Readonly<Record<string, (filter: Request) => [string, List<unknown>]>>;

  constructor(target: string) {
    this.#client = new Client({ target, clientName: "conformance", reconnectSeconds: 10 });
    this.#bare = createGrpcTransport({ baseUrl: `http://${target}`, idleConnectionTimeoutMs: 1 });
    const { history } = this.#client;
    this.#lists = {
      ListSessions: (filter) => ["sessions", history.sessions(filter)],
      ListRuns: ({ sessionId, ...filter }) => ["runs", history.runs(sessionId ?? "", filter)],
      ListChildRuns: ({ runId }) => ["runs", history.childRuns(runId ?? "")],
      ListSubmissions: ({ sessionId, ...filter }) => [
        "submissions",
        history.submissions(sessionId ?? "", filter),
      ],
      ListEvents: ({ sessionId, runId, ...filter }) => [
        "events",
        history.events({ sessionId, runId } as never, filter),
      ],
      ListMessages: ({ sessionId, ...filter }) => [
        "messages",
        history.messages(sessionId ?? "", filter),
      ],
      ListToolCalls: ({ runId }) => ["toolCalls", history.toolCalls(runId ?? "")],
      ListInteractions: (filter) => ["interactions", history.interactions(filter)],
      ListForkPoints: ({ sessionId }) => ["forkPoints", history.forkPoints(sessionId ?? "")],
    };
  }

  /** Makes a call, as the client makes its calls; `raw`: by the bare stub, once. */
  async call(name: string, request: Json, raw: boolean): Promise<Json> {
    const method = methodOf(name);
    try {
      if (method.methodKind === "client_streaming") {
        return await this.#send(method as DescMethodClientStreaming, request as Json[]);
      }
      const message = fromJson(method.input, request);
      if (raw) {
        return await this.#sent(method as DescMethodUnary | DescMethodServerStreaming, message);
      }
      const plain = toPlain(method.input, message) as Values;
      if (method.methodKind === "server_streaming") {
        return await this.#merged(method as DescMethodServerStreaming, plain);
      }
      return jsonOf(method.output, await this.#unary(method as DescMethodUnary, plain));
    } catch (error) {
      throw refusal(error instanceof ConnectError ? fromConnectError(error) : error);
    }
  }

  /** Sends a request by the bare stub of its method, once. */
  async #sent(
    method: DescMethodUnary | DescMethodServerStreaming,
    request: MessageShape<DescMessage>,
  ): Promise<Json> {
    if (method.methodKind === "unary") {
      const called = await this.#bare.unary(method, undefined, BARE_MS, undefined, request);
      return asJson(method.output, called.message as MessageShape<DescMessage>);
    }
    async function* once() {
      yield request;
    }
    const opened = await this.#bare.stream(method, undefined, BARE_MS, undefined, once());
    const merged: JsonObject = {};
    for await (const frame of opened.message) {
      merge(merged, asJson(method.output, frame as MessageShape<DescMessage>) as JsonObject);
    }
    return merged;
  }

  /** Calls the client's own verb, where it has one. */
  async #unary(method: DescMethodUnary, plain: Values): Promise<unknown> {
    const list = this.#lists[method.name];
    if (list !== undefined) {
      const { pageSize, pageToken, ...filter } = plain;
      const [field, found] = list(filter as Request);
      const page = await found.page({ after: pageToken as string, limit: pageSize as number });
      return { [field]: page.items, nextPageToken: page.nextCursor ?? "" };
    }
    const given = plain as Request;
    switch (method.name) {
      case "Submit": {
        const { content = [], sessionId, runOptions, createSession, ...rest } = given;
        const options = { ...rest, options: runOptions, create: createSession };
        const receipt = await this.#client.submit(content, sessionId ?? "", options as never);
        const { sessionCreated, sequence, replayed, ...submission } = receipt;
        return { submission, sessionCreated, sequence, replayed };
      }
      case "CreateSession":
        return await this.#client.createSession(given as never);
      case "GetRun": {
        const { runId, ...rest } = given;
        return Object.values(rest).every((one) => one === "")
          ? { run: await this.#client.history.run(runId ?? "") }
          : await this.#client.call(method, given as never);
      }
      case "ForkSession": {
        const { runId, input, ...rest } = given as Values & { input?: Values };
        const { content, runOptions, metadata } = input ?? {};
        const first = { input: content, options: runOptions, metadata };
        const fork = await this.#client.history.fork(
          runId as string,
          { ...rest, ...first } as never,
        );
        const { forkedFromRunId: _from, ...answer } = fork;
        return answer;
      }
      case "CompleteExternal": {
        const { token, answer, requestId } = given as Values;
        return requestId === "" && answer !== undefined
          ? await this.#client.completeExternal(token as string, answer as never)
          : await this.#client.call(method, given as never);
      }
      default:
        return await this.#client.call(method, given as never);
    }
  }

  async #send(method: DescMethodClientStreaming, requests: readonly Json[]): Promise<Json> {
    async function* messages() {
      for (const one of requests) {
        yield fromJson(method.input, one);
      }
    }
    const { signal } = new AbortController();
    return jsonOf(method.output, await this.#client.caller.send(method, messages(), signal));
  }

  /** Reads a stream that ends by itself; its frames are merged into one. */
  async #merged(method: DescMethodServerStreaming, plain: Values): Promise<Json> {
    const merged: JsonObject = {};
    for await (const frame of this.#client.caller.frames(method, plain as never)) {
      merge(merged, jsonOf(method.output, frame) as JsonObject);
    }
    return merged;
  }

  /** Reads a list to its end, page by page. */
  async pages(name: string, request: JsonObject): Promise<Json> {
    const merged: JsonObject = {};
    for (let token = ""; ;) {
      const page = (await this.call(name, { ...request, page_token: token }, false)) as JsonObject;
      const { next_page_token: next = "", ...lists } = page;
      for (const [field, items] of Object.entries(lists)) {
        const found = items as Json[];
        if (found.length > Number(request["page_size"] ?? 50)) {
          throw new Error(`a page of ${found.length} ${field}`);
        }
        merged[field] = [...((merged[field] ?? []) as Json[]), ...found];
      }
      token = next as string;
      if (token === "") {
        return merged;
      }
    }
  }

  /** Opens a stream of items. */
  async *open(name: string, request: JsonObject, signal: AbortSignal): AsyncGenerator<JsonObject> {
    const method = methodOf(name) as DescMethodServerStreaming;
    const plain = toPlain(method.input, fromJson(method.input, request)) as Values;
    try {
      if (name === "StreamEvents") {
        yield* this.#events(plain, signal);
        return;
      }
      for await (const frame of this.#client.caller.frames(method, plain as never, signal)) {
        for (const [field, value] of Object.entries(jsonOf(method.output, frame) as JsonObject)) {
          const items = Array.isArray(value) ? value : [value];
          const key = Array.isArray(value) ? field.replace(/s$/, "") : field;
          yield* items.map((one) => ({ [key]: one }));
        }
      }
    } catch (error) {
      throw refusal(error);
    }
  }

  async *#events(plain: Values, signal: AbortSignal): AsyncGenerator<JsonObject> {
    const { sessionId, ...rest } = plain as Values & { sessionId: string };
    const options = { ...rest, signal };
    for await (const item of new EventStream(this.#client.caller, sessionId, options, 10).items()) {
      switch (item.kind) {
        case "events":
          yield* item.events.map((event) => ({ event: jsonOf(EventSchema, event) }));
          break;
        case "deltas":
          yield* item.deltas.map((delta) => ({ delta: jsonOf(DeltaSchema, delta) }));
          break;
        case "control":
          yield { control: jsonOf(ControlSchema, item.control) };
      }
    }
  }

  close(): void {
    this.#client.close();
  }
}

function methodOf(name: string): DescMethod {
  const method = METHODS.get(name);
  if (method === undefined) {
    throw new Error(`there is no method ${name}`);
  }
  return method;
}

function merge(into: JsonObject, frame: JsonObject): void {
  for (const [field, value] of Object.entries(frame)) {
    const held = into[field];
    into[field] = Array.isArray(held) && Array.isArray(value) ? [...held, ...value] : value;
  }
}

function jsonOf<D extends DescMessage>(desc: D, plain: unknown): Json {
  return asJson(desc, fromPlain(desc, plain as Init<Plain<D>>));
}

function asJson(desc: DescMessage, message: MessageShape<DescMessage>): Json {
  return toJson(desc, create(desc, message as never), { useProtoFieldName: true }) as Json;
}

function refusal(error: unknown): unknown {
  if (error instanceof ServiceError) {
    const { code, reason, metadata, violations, retryAfterSeconds } = error;
    const told: JsonObject = { code, reason, message: error.message.replace(`${reason}: `, "") };
    if (Object.keys(metadata).length > 0) {
      told["metadata"] = { ...metadata };
    }
    if (violations.length > 0) {
      told["fields"] = violations.map((one) => one.field);
    }
    if (retryAfterSeconds !== undefined) {
      told["retry_after_ms"] = Math.round(retryAfterSeconds * 1000);
    }
    return new Refused(told);
  }
  if (error instanceof TransportError) {
    return new Refused({ code: error.code, message: error.message });
  }
  return error;
}
