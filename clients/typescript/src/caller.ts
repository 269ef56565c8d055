// Makes the calls: their deadlines, repeats and request ids.
import { setMaxListeners } from "node:events";

import {
  create,
  type DescMessage,
  type DescMethodClientStreaming,
  type DescMethodServerStreaming,
  type DescMethodUnary,
  type MessageInitShape,
  type MessageShape,
} from "@bufbuild/protobuf";
import type { Transport } from "@connectrpc/connect";

import { callHeaders, connection, type Access } from "./access.js";
import { Linked, sleep, unlessAborted } from "./async.js";
import {
  ClientClosedError,
  fromConnectError,
  RunlaneError,
  type ServiceError,
  type TransportError,
} from "./errors.js";
import { newRequestId } from "./ids.js";
import { fromPlain, toPlain, type Init, type Plain } from "./plain.js";
import {
  CALL_SECONDS,
  deadlineSeconds,
  delaySeconds,
  isRepeatable,
  policyOf,
  RECONNECT_SECONDS,
  STREAM_SECONDS,
} from "./policy.js";

/** What holds for one call. */
export interface CallOptions {
  /** Calls it off: then it throws the signal's reason; whether it was carried out is open. */
  readonly signal?: AbortSignal | undefined;
  /** Seconds for all attempts, without the wait that the request asks for. */
  readonly timeoutSeconds?: number | undefined;
}

/** What a caller is made of. */
export interface CallerOptions extends Access {
  /** Seconds that a call may take, its repeats included and its wait not; default: 30. */
  readonly timeoutSeconds?: number;
  /** Seconds that a stream tries for a lost connection; default: 60. */
  readonly reconnectSeconds?: number;
  /** Use this way to the server, and leave it open, instead of opening one. */
  readonly transport?: Transport;
}

type OnRepeat = (failure: ServiceError | TransportError) => void;

/** Owns the connection, which is opened at the first call. */
export class Caller {
  readonly target: string;
  readonly reconnectSeconds: number;
  readonly #headers: Headers;
  readonly #transport: Transport;
  readonly #disconnect: () => void;
  readonly #timeout: number;
  readonly #closed = new AbortController();

  constructor(options: CallerOptions) {
    // As many wait for it as there are calls.
    setMaxListeners(0, this.#closed.signal);
    this.target = options.target ?? "127.0.0.1:7480";
    this.#headers = callHeaders(options, this.target, options.transport !== undefined);
    this.reconnectSeconds = options.reconnectSeconds ?? RECONNECT_SECONDS;
    this.#timeout = options.timeoutSeconds ?? CALL_SECONDS;
    if (options.transport !== undefined) {
      this.#transport = options.transport;
      this.#disconnect = () => undefined;
    } else {
      const opened = connection(options, this.target);
      this.#transport = opened.transport;
      this.#disconnect = opened.close;
    }
  }

  /** Ends the connection; calls that go on throw `ClientClosedError`. */
  close(): void {
    this.#closed.abort(new ClientClosedError("the client is closed"));
    this.#disconnect();
  }

  /** Aborted when the client is closed. */
  get closed(): AbortSignal {
    return this.#closed.signal;
  }

  /** Makes one logical call, in as many attempts as its deadline has room for. */
  async unary<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    init: Init<Plain<I>>,
    options: CallOptions & { readonly onRepeat?: OnRepeat } = {},
  ): Promise<Plain<O>> {
    return toPlain(method.output, await this.message(method, this.#request(method, init), options));
  }

  async message<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageShape<I>,
    options: CallOptions & { readonly onRepeat?: OnRepeat } = {},
  ): Promise<MessageShape<O>> {
    const policy = policyOf(method);
    const wait = secondsOf((request as { waitDuration?: Wait }).waitDuration);
    const allowed = options.timeoutSeconds ?? this.#timeout;
    const end = performance.now() / 1000 + deadlineSeconds(policy, allowed, wait);
    const linked = new Linked(options.signal, this.closed);
    try {
      for (let attempt = 1; ; attempt += 1) {
        linked.signal.throwIfAborted();
        const left = end - performance.now() / 1000;
        const each = Math.min(left, policy.attempt_seconds ?? left);
        let failure: ServiceError | TransportError;
        try {
          const milliseconds = Math.max(1, Math.ceil(each * 1000));
          const { signal } = linked;
          const answer = await this.#transport.unary(
            method,
            signal,
            milliseconds,
            this.#headers,
            request,
          );
          return answer.message as MessageShape<O>;
        } catch (error) {
          linked.signal.throwIfAborted();
          failure = fromConnectError(error);
        }
        const pause = delaySeconds(attempt, failure);
        if (!isRepeatable(failure, policy) || performance.now() / 1000 + pause >= end) {
          throw failure;
        }
        options.onRepeat?.(failure);
        await sleep(pause, linked.signal);
      }
    } finally {
      linked.free();
    }
  }

  /** Opens a stream once; yields its frames, and throws how it ended where that was no end. */
  async *frames<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    init: Init<Plain<I>>,
    signal?: AbortSignal,
  ): AsyncGenerator<Plain<O>, void, undefined> {
    const request = this.#request(method, init);
    const linked = new Linked(signal, this.closed);
    let received: AsyncIterator<MessageShape<O>> | undefined;
    try {
      linked.signal.throwIfAborted();
      try {
        const opened = await this.#transport.stream(
          method,
          linked.signal,
          STREAM_SECONDS * 1000,
          this.#headers,
          once(request),
        );
        received = (opened.message as AsyncIterable<MessageShape<O>>)[Symbol.asyncIterator]();
      } catch (error) {
        linked.signal.throwIfAborted();
        throw fromConnectError(error);
      }
      for (;;) {
        let next: IteratorResult<MessageShape<O>>;
        try {
          next = await unlessAborted(received.next(), linked.signal);
        } catch (error) {
          linked.signal.throwIfAborted();
          throw fromConnectError(error);
        }
        if (next.done === true) {
          return;
        }
        yield toPlain(method.output, next.value);
      }
    } finally {
      linked.abort(new RunlaneError("the stream was left"));
      // The transport lets go of its timer only where somebody sees the end.
      received?.next().catch(() => undefined);
      linked.free();
    }
  }

  /** Sends a stream of requests, once; returns the answer to all of them. */
  async send<I extends DescMessage, O extends DescMessage>(
    method: DescMethodClientStreaming<I, O>,
    requests: AsyncIterable<MessageShape<I>>,
    signal: AbortSignal,
  ): Promise<Plain<O>> {
    try {
      const opened = await this.#transport.stream(
        method,
        signal,
        STREAM_SECONDS * 1000,
        this.#headers,
        requests as AsyncIterable<MessageInitShape<I>>,
      );
      let answer: MessageShape<O> | undefined;
      for await (const one of opened.message) {
        answer = one as MessageShape<O>;
      }
      return toPlain(method.output, answer ?? create(method.output));
    } catch (error) {
      throw fromConnectError(error);
    }
  }

  #request<I extends DescMessage>(
    method: { readonly input: I },
    init: Init<Plain<I>>,
  ): MessageShape<I> {
    const request = fromPlain(method.input, init) as MessageShape<I> & { requestId?: string };
    // All attempts carry the same id: whether an earlier one was taken is settled by it.
    if (request.requestId === "") {
      request.requestId = newRequestId();
    }
    return request;
  }
}

interface Wait {
  readonly seconds: bigint;
  readonly nanos: number;
}

function secondsOf(wait: Wait | undefined): number {
  return wait === undefined ? 0 : Number(wait.seconds) + wait.nanos / 1e9;
}

async function* once<T>(value: T): AsyncGenerator<T> {
  yield value;
}
