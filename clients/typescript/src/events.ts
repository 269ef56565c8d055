// Event streams that go on over lost connections.
import { Linked, sleep, unlessAborted } from "./async.js";
import type { Caller } from "./caller.js";
import { ArgumentError, RunlaneError, StreamGapError, TransportError } from "./errors.js";
import type {
  Control,
  Delta,
  Event,
  EventType,
  StreamEventsRequest,
  StreamEventsResponse,
} from "./gen/models.js";
import { SessionService } from "./gen/session_service_pb.js";
import type { Init } from "./plain.js";
import { delaySeconds, isReopenable, policyOf } from "./policy.js";

/** What a stream tells, beside events, where it was asked for. */
export type StreamItem =
  | { readonly kind: "events"; readonly events: readonly Event[] }
  | { readonly kind: "deltas"; readonly deltas: readonly Delta[] }
  | { readonly kind: "control"; readonly control: Control };

/** What a stream is to tell. */
export interface StreamOptions {
  /** Start after this sequence; 0 is the first event. */
  readonly afterSequence?: number | undefined;
  /** Start with the newest so many events instead: 0 to 1,000. */
  readonly lastEvents?: number | undefined;
  /** Only events of these runs; the stream ends after the last of them has ended. */
  readonly runIds?: readonly string[];
  /** Only events of these types. */
  readonly types?: readonly EventType[];
  /** Whether to go on with what comes; default: true. */
  readonly follow?: boolean;
  /** Put the messages into their `message.appended` events. */
  readonly includeMessages?: boolean;
  /** Also tell pieces of model answers on their way. */
  readonly includeDeltas?: boolean;
  /** Also tell the control state, first and after each change. */
  readonly includeControl?: boolean;
  /** Seconds without a connection after which to give up; default: the client's. */
  readonly reconnectSeconds?: number | undefined;
  /** Ends the stream: reading it then throws the signal's reason. */
  readonly signal?: AbortSignal | undefined;
}

const LEFT = new RunlaneError("the stream was closed");

/**
 * Tells a session's events in order, each once, also over lost connections.
 *
 * A stream whose connection is lost, or that the server ends to drain, is opened again after the
 * last event it was told. It ends by itself only where the service says that nothing can follow,
 * and throws what the service answers, the last failure where there was no connection for too
 * long, and `StreamGapError` where an event is missing. One reader at a time.
 */
export class EventStream implements AsyncIterable<Event> {
  readonly #caller: Caller;
  readonly #request: Init<StreamEventsRequest>;
  readonly #patience: number;
  readonly #whole: boolean;
  readonly #linked: Linked;
  #start: Promise<number | undefined> | undefined;
  // Undefined until the first event where the stream starts with the newest few.
  #received: number | undefined;
  #told = 0;
  #over = false;
  #connected = false;
  #failures = 0;

  /** @internal */
  constructor(
    caller: Caller,
    sessionId: string,
    options: StreamOptions,
    reconnectSeconds: number,
    start?: Promise<number | undefined>,
  ) {
    const { runIds, types, follow, includeMessages, includeDeltas, includeControl } = options;
    const { afterSequence, lastEvents } = options;
    if (afterSequence !== undefined && lastEvents !== undefined) {
      throw new ArgumentError("lastEvents", "there is afterSequence, too");
    }
    this.#caller = caller;
    this.#request = {
      sessionId,
      lastEvents,
      runIds,
      types,
      follow,
      includeMessages,
      includeDeltas,
      includeControl,
    };
    this.#patience = options.reconnectSeconds ?? reconnectSeconds;
    this.#whole = (runIds ?? []).length === 0 && (types ?? []).length === 0;
    this.#linked = new Linked(options.signal);
    this.#start = start;
    this.#received = lastEvents === undefined ? (afterSequence ?? 0) : undefined;
    this.#told = this.#received ?? 0;
    start?.catch(() => undefined);
  }

  /** The sequence up to which everything was told or filtered out: go on from here. */
  get sequence(): number {
    return this.#told;
  }

  /** Whether it has ended or was closed. */
  get closed(): boolean {
    return this.#over;
  }

  /** Ends the stream, also for a reader that waits; idempotent. */
  close(): void {
    this.#over = true;
    this.#linked.abort(LEFT);
    this.#linked.free();
  }

  /** Tells the events alone. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Event, void, undefined> {
    for await (const item of this.#items()) {
      if (item.kind === "events") {
        for (const event of item.events) {
          this.#told = event.sequence;
          yield event;
        }
      }
    }
  }

  /** Tells all that was asked for, in the order in which it came. */
  async *items(): AsyncGenerator<StreamItem, void, undefined> {
    for await (const item of this.#items()) {
      if (item.kind === "events") {
        this.#told = item.events.at(-1)?.sequence ?? this.#told;
      }
      yield item;
    }
  }

  async *#items(): AsyncGenerator<StreamItem, void, undefined> {
    const { signal } = this.#linked;
    const silence = policyOf(SessionService.method.streamEvents).silence_seconds ?? 60;
    try {
      if (this.#start !== undefined) {
        this.#received = await unlessAborted(this.#start, signal);
        this.#told = this.#received ?? 0;
      }
      let lostSince: number | undefined;
      while (!this.#over) {
        try {
          for await (const frame of this.#once(silence)) {
            lostSince = undefined;
            this.#connected = true;
            const item = this.#take(frame);
            if (item !== undefined) {
              yield item;
            } else {
              this.#told = this.#received ?? 0;
            }
            if (this.#over) {
              return;
            }
          }
          return;
        } catch (error) {
          signal.throwIfAborted();
          if (!(error instanceof RunlaneError) || !isReopenable(error, this.#connected)) {
            throw error;
          }
          this.#failures += 1;
          const pause = delaySeconds(this.#failures, error);
          const now = performance.now() / 1000;
          lostSince ??= now;
          if (now + pause - lostSince > this.#patience) {
            throw error;
          }
          await sleep(pause, signal);
        }
      }
    } catch (error) {
      if (error !== LEFT) {
        throw error;
      }
    } finally {
      this.#over = true;
      this.#linked.free();
    }
  }

  /** Opens the stream once; one that is silent for too long has lost its peer. */
  async *#once(silence: number): AsyncGenerator<StreamEventsResponse, void, undefined> {
    const attempt = new Linked(this.#linked.signal);
    const fail = (): void => {
      const message = "the stream fell silent";
      attempt.abort(new TransportError(message, { code: "UNAVAILABLE" }));
    };
    let timer = setTimeout(fail, silence * 1000);
    try {
      const afterSequence = this.#received;
      const { lastEvents } = this.#request;
      const start = afterSequence === undefined ? { lastEvents } : { lastEvents: undefined };
      const request = { ...this.#request, ...start, afterSequence };
      const { streamEvents } = SessionService.method;
      for await (const frame of this.#caller.frames(streamEvents, request, attempt.signal)) {
        clearTimeout(timer);
        yield frame;
        timer = setTimeout(fail, silence * 1000);
      }
    } finally {
      clearTimeout(timer);
      attempt.free();
    }
  }

  #take(frame: StreamEventsResponse): StreamItem | undefined {
    if (frame.batch !== undefined) {
      const events = frame.batch.events.filter((event) => this.#move(event.sequence, 1));
      const last = events.at(-1);
      if (last?.type === "session.deleted") {
        // Nothing follows it; to ask again would find no session.
        this.#over = true;
      }
      return last === undefined ? undefined : { kind: "events", events };
    }
    if (frame.bookmark !== undefined) {
      this.#move(frame.bookmark.sequence, 0);
      return undefined;
    }
    if (frame.deltas !== undefined) {
      return { kind: "deltas", deltas: frame.deltas.deltas };
    }
    return frame.control === undefined ? undefined : { kind: "control", control: frame.control };
  }

  /** Moves the cursor; false where it is there already. */
  #move(sequence: number, by: 0 | 1): boolean {
    const last = this.#received;
    if (last !== undefined && sequence <= last) {
      return false;
    }
    if (last !== undefined && this.#whole && sequence !== last + by) {
      throw new StreamGapError(last + 1, sequence);
    }
    this.#received = sequence;
    this.#failures = 0;
    return true;
  }
}
