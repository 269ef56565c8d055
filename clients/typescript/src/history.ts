// The read side: sessions, runs, events, messages, fork points, history at a run, and forks.
import type { DescMessage, DescMethodServerStreaming } from "@bufbuild/protobuf";

import { sleep } from "./async.js";
import type { Caller, CallOptions } from "./caller.js";
import { blocksOf, type Input } from "./content.js";
import { ArgumentError, RunlaneError } from "./errors.js";
import type {
  Event,
  ForkPoint,
  ForkSessionRequest,
  ForkSource,
  HistoryHeader,
  Interaction,
  ListEventsRequest,
  ListInteractionsRequest,
  ListMessagesRequest,
  ListRunsRequest,
  ListSessionsRequest,
  ListSubmissionsRequest,
  Message,
  ParentRun,
  Run,
  RunOptions,
  Session,
  Submission,
  ToolCall,
} from "./gen/models.js";
import { HistoryService } from "./gen/history_service_pb.js";
import { List } from "./pages.js";
import type { Init, Plain } from "./plain.js";
import { delaySeconds, isReopenable } from "./policy.js";

type Filter<T> = Omit<Init<T>, "pageSize" | "pageToken" | "sessionId" | "runId">;

/** The committed history at the end of a run. */
export interface HistoryAtRun extends Omit<HistoryHeader, "messageCount"> {
  readonly messages: readonly Message[];
}

/** What a fork is made with. */
export interface ForkOptions
  extends Omit<Init<ForkSessionRequest>, "runId" | "input">, CallOptions {
  /** A first input for the new session, in the same transaction. */
  readonly input?: Input;
  /** Options of the run that this input starts. */
  readonly options?: Init<RunOptions>;
  /** Entries of the application, kept with this input. */
  readonly metadata?: Readonly<Record<string, string>>;
}

/** A session that was forked. */
export interface Fork {
  readonly session: Session;
  readonly forkedFromRunId: string;
  readonly messageCount: number;
  /** Histories with equal digests hold the same messages. */
  readonly digest: string;
  /** The first input; undefined where none was given. */
  readonly submission: Submission | undefined;
  readonly sequence: number;
  readonly replayed: boolean;
}

/** Reads committed history and makes forks; it never starts anything of itself. */
export class SessionHistory {
  readonly #caller: Caller;

  /** @internal Made by `Client.history`. */
  constructor(caller: Caller) {
    this.#caller = caller;
  }

  /** Lists sessions, newest first unless `order` says otherwise. */
  sessions(filter: Filter<ListSessionsRequest> = {}, options: CallOptions = {}): List<Session> {
    const { listSessions } = HistoryService.method;
    return new List(async (pageToken, pageSize) => {
      const page = await this.#caller.unary(
        listSessions,
        { ...filter, pageToken, pageSize },
        options,
      );
      return { items: page.sessions, nextCursor: cursor(page) };
    });
  }

  /** Lists the runs of a session, ascending by creation. */
  runs(
    sessionId: string,
    filter: Filter<ListRunsRequest> = {},
    options: CallOptions = {},
  ): List<Run> {
    const { listRuns } = HistoryService.method;
    return new List(async (pageToken, pageSize) => {
      const request = { ...filter, sessionId, pageToken, pageSize };
      const page = await this.#caller.unary(listRuns, request, options);
      return { items: page.runs, nextCursor: cursor(page) };
    });
  }

  /** Lists the direct child runs of a run, ascending by creation. */
  childRuns(runId: string, options: CallOptions = {}): List<Run> {
    const { listChildRuns } = HistoryService.method;
    return new List(async (pageToken, pageSize) => {
      const page = await this.#caller.unary(listChildRuns, { runId, pageToken, pageSize }, options);
      return { items: page.runs, nextCursor: cursor(page) };
    });
  }

  /** Reads a run. */
  async run(runId: string, options: CallOptions = {}): Promise<Run> {
    const answer = await this.#caller.unary(HistoryService.method.getRun, { runId }, options);
    return present(answer.run);
  }

  /** Lists the submissions of a session, ascending by acceptance. */
  submissions(
    sessionId: string,
    filter: Filter<ListSubmissionsRequest> = {},
    options: CallOptions = {},
  ): List<Submission> {
    const { listSubmissions } = HistoryService.method;
    return new List(async (pageToken, pageSize) => {
      const request = { ...filter, sessionId, pageToken, pageSize };
      const page = await this.#caller.unary(listSubmissions, request, options);
      return { items: page.submissions, nextCursor: cursor(page) };
    });
  }

  /** Lists the events of a session or of a run, ascending. */
  events(
    scope: { readonly sessionId: string } | { readonly runId: string },
    filter: Filter<ListEventsRequest> = {},
    options: CallOptions = {},
  ): List<Event> {
    const { listEvents } = HistoryService.method;
    return new List(async (pageToken, pageSize) => {
      const request = { ...filter, ...scope, pageToken, pageSize };
      const page = await this.#caller.unary(listEvents, request, options);
      return { items: page.events, nextCursor: cursor(page) };
    });
  }

  /** Lists the messages of a session: ascending, or with `beforeNumber` descending. */
  messages(
    sessionId: string,
    filter: Filter<ListMessagesRequest> = {},
    options: CallOptions = {},
  ): List<Message> {
    const { listMessages } = HistoryService.method;
    return new List(async (pageToken, pageSize) => {
      const request = { ...filter, sessionId, pageToken, pageSize };
      const page = await this.#caller.unary(listMessages, request, options);
      return { items: page.messages, nextCursor: cursor(page) };
    });
  }

  /** Lists the tool calls of a run, ascending by step and ordinal. */
  toolCalls(runId: string, options: CallOptions = {}): List<ToolCall> {
    const { listToolCalls } = HistoryService.method;
    return new List(async (pageToken, pageSize) => {
      const page = await this.#caller.unary(listToolCalls, { runId, pageToken, pageSize }, options);
      return { items: page.toolCalls, nextCursor: cursor(page) };
    });
  }

  /** Lists interactions over all sessions, oldest first; default: the open ones. */
  interactions(
    filter: Omit<Init<ListInteractionsRequest>, "pageSize" | "pageToken"> = {},
    options: CallOptions = {},
  ): List<Interaction> {
    const { listInteractions } = HistoryService.method;
    return new List(async (pageToken, pageSize) => {
      const request = { ...filter, pageToken, pageSize };
      const page = await this.#caller.unary(listInteractions, request, options);
      return { items: page.interactions, nextCursor: cursor(page) };
    });
  }

  /** Lists the terminal top-level runs of a session, ascending by creation. */
  forkPoints(sessionId: string, options: CallOptions = {}): List<ForkPoint> {
    const { listForkPoints } = HistoryService.method;
    return new List(async (pageToken, pageSize) => {
      const request = { sessionId, pageToken, pageSize };
      const page = await this.#caller.unary(listForkPoints, request, options);
      return { items: page.forkPoints, nextCursor: cursor(page) };
    });
  }

  /** Reads the whole committed history at the end of a run. */
  async atRun(runId: string, options: CallOptions = {}): Promise<HistoryAtRun> {
    let header: HistoryHeader | undefined;
    let messages: Message[] = [];
    // A lost connection starts the read anew: the history is frozen, so it is the same.
    const request = (): { runId: string } => {
      messages = [];
      return { runId };
    };
    for await (const frame of this.#all(HistoryService.method.getHistoryAtRun, request, options)) {
      header = frame.header ?? header;
      messages.push(...frame.messages);
    }
    if (header === undefined || messages.length !== header.messageCount) {
      throw new RunlaneError(`the history at run ${runId} came incomplete`);
    }
    return { ...header, messages };
  }

  /** Streams the messages of a session up to the last one, ascending. */
  async *streamMessages(
    sessionId: string,
    options: CallOptions & { readonly afterNumber?: number } = {},
  ): AsyncGenerator<Message, void, undefined> {
    let afterNumber = options.afterNumber ?? 0;
    const request = (): { sessionId: string; afterNumber: number } => ({ sessionId, afterNumber });
    for await (const frame of this.#all(HistoryService.method.streamMessages, request, options)) {
      for (const message of frame.messages) {
        afterNumber = message.number;
        yield message;
      }
    }
  }

  /** Streams the events of one run in order, until it has ended. */
  async *runEvents(
    runId: string,
    options: CallOptions & {
      /** After this `runSequence`; 0 is the first event. */
      readonly afterRunSequence?: number;
      readonly follow?: boolean;
      readonly includeMessages?: boolean;
    } = {},
  ): AsyncGenerator<Event, void, undefined> {
    const { follow, includeMessages } = options;
    let afterRunSequence = options.afterRunSequence ?? 0;
    const request = () => ({ runId, afterRunSequence, follow, includeMessages });
    for await (const frame of this.#all(HistoryService.method.streamRunEvents, request, options)) {
      for (const event of frame.events) {
        if (event.runSequence > afterRunSequence) {
          afterRunSequence = event.runSequence;
          yield event;
        }
      }
    }
  }

  /** Makes a new session with the history at the end of a run; the source is not changed. */
  async fork(runId: string, options: ForkOptions = {}): Promise<Fork> {
    const { input, options: runOptions, metadata, signal, timeoutSeconds, ...rest } = options;
    if (input === undefined && (runOptions !== undefined || metadata !== undefined)) {
      throw new ArgumentError("input", "options and metadata belong to an input");
    }
    const first =
      input === undefined ? undefined : { content: blocksOf(input), runOptions, metadata };
    const answer = await this.#caller.unary(
      HistoryService.method.forkSession,
      { ...rest, runId, input: first },
      { signal, timeoutSeconds },
    );
    const session = present(answer.session);
    return {
      session,
      forkedFromRunId: session.forkedFrom?.runId ?? runId,
      messageCount: answer.messageCount,
      digest: answer.digest,
      submission: answer.submission,
      sequence: answer.sequence,
      replayed: answer.replayed,
    };
  }

  /** Reads where a session comes from: by forks from the source up, by child runs from the parent up. */
  async lineage(
    sessionId: string,
    options: CallOptions = {},
  ): Promise<{
    readonly ancestors: readonly ForkSource[];
    readonly parents: readonly ParentRun[];
  }> {
    const { getLineage } = HistoryService.method;
    const { ancestors, parents } = await this.#caller.unary(getLineage, { sessionId }, options);
    return { ancestors, parents };
  }

  /** Lists the sessions that were forked from one directly, ascending by creation. */
  forks(sessionId: string, options: CallOptions = {}): List<Session> {
    const { getLineage } = HistoryService.method;
    return new List(async (pageToken, pageSize) => {
      const page = await this.#caller.unary(
        getLineage,
        { sessionId, pageToken, pageSize },
        options,
      );
      return { items: page.forks, nextCursor: cursor(page) };
    });
  }

  /** Reads a stream to its end, opened again where its connection is lost. */
  async *#all<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    request: () => Init<Plain<I>>,
    options: CallOptions,
  ): AsyncGenerator<Plain<O>, void, undefined> {
    let connected = false;
    let failures = 0;
    let lostSince: number | undefined;
    for (;;) {
      try {
        for await (const frame of this.#caller.frames(method, request(), options.signal)) {
          connected = true;
          failures = 0;
          lostSince = undefined;
          yield frame;
        }
        return;
      } catch (error) {
        options.signal?.throwIfAborted();
        if (!(error instanceof RunlaneError) || !isReopenable(error, connected)) {
          throw error;
        }
        failures += 1;
        const pause = delaySeconds(failures, error);
        const now = performance.now() / 1000;
        lostSince ??= now;
        if (now + pause - lostSince > this.#caller.reconnectSeconds) {
          throw error;
        }
        await sleep(pause, options.signal);
      }
    }
  }
}

function cursor(page: { readonly nextPageToken: string }): string | undefined {
  return page.nextPageToken === "" ? undefined : page.nextPageToken;
}

/** Returns what an answer always holds. */
export function present<T>(value: T | undefined): T {
  if (value === undefined) {
    throw new RunlaneError("the service left out what its contract promises");
  }
  return value;
}
