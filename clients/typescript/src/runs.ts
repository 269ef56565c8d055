// Waiting for runs.
import type { Caller, CallOptions } from "./caller.js";
import { textOf } from "./content.js";
import { WaitTimeoutError } from "./errors.js";
import { EventStream } from "./events.js";
import type {
  EventType,
  Interaction,
  LiveState,
  Message,
  Run,
  RunStopReason,
} from "./gen/models.js";
import { HistoryService } from "./gen/history_service_pb.js";
import { SessionService } from "./gen/session_service_pb.js";
import { SessionHistory, present } from "./history.js";

// One WaitRun waits this many seconds; a wait that lasts longer is made of several.
const WAIT_SECONDS = 60;
// Seconds between looks at an id that is reserved in a session that the caller did not name.
const LOOK_SECONDS = 1;
const STOPS: readonly EventType[] = [
  "run.waiting",
  "run.paused",
  "run.terminal",
  "interaction.opened",
  "submission.moved",
  "submission.failed",
  "submission.withdrawn",
];

/** Where a run has come to. */
export interface RunResult {
  readonly run: Run;
  readonly runId: string;
  readonly sessionId: string;
  /** The message that is its answer; undefined where there is none, or it has not ended. */
  readonly output: Message | undefined;
  /** The text of that message; empty where there is none. */
  readonly text: string;
  /** Why it ended; undefined while it lives. */
  readonly stopReason: RunStopReason | undefined;
  /** What it waits for; undefined where it does not. */
  readonly interaction: Interaction | undefined;
}

/** How long, and until what, a run is waited for. */
export interface WaitOptions {
  /** `terminal`, or `stopped`: also where it waits for an answer, or was paused. */
  readonly until?: "terminal" | "stopped";
  /** Seconds to wait; default: without end. The run goes on either way. */
  readonly timeoutSeconds?: number | undefined;
  /** Ends the wait; it then throws the signal's reason. */
  readonly signal?: AbortSignal | undefined;
}

/** Reads the live state of a session. */
export async function liveState(
  caller: Caller,
  sessionId: string,
  messageLimit?: number,
  options: CallOptions & { readonly minSequence?: number } = {},
): Promise<LiveState> {
  const { minSequence, ...rest } = options;
  const request = { sessionId, messageLimit, minSequence };
  const answer = await caller.unary(SessionService.method.getLiveState, request, rest);
  return present(answer.liveState);
}

/** Waits until a run has ended, or stopped; a reserved run id is waited for too. */
export async function waitRun(
  caller: Caller,
  runId: string,
  sessionId: string | undefined,
  options: WaitOptions,
): Promise<RunResult> {
  const { timeoutSeconds, until, signal } = options;
  if (until !== "stopped") {
    return await ended(caller, runId, sessionId, timeoutSeconds, signal);
  }
  const late = new WaitTimeoutError(`run ${runId} has not stopped within ${timeoutSeconds} s`);
  const timer = new AbortController();
  const set =
    timeoutSeconds === undefined
      ? undefined
      : setTimeout(() => {
          timer.abort(late);
        }, timeoutSeconds * 1000);
  const signals = [timer.signal, ...(signal === undefined ? [] : [signal])];
  try {
    return await stopped(caller, runId, sessionId, AbortSignal.any(signals));
  } finally {
    clearTimeout(set);
  }
}

async function ended(
  caller: Caller,
  runId: string,
  sessionId: string | undefined,
  timeoutSeconds: number | undefined,
  signal: AbortSignal | undefined,
): Promise<RunResult> {
  const end = timeoutSeconds === undefined ? Infinity : performance.now() / 1000 + timeoutSeconds;
  for (;;) {
    const left = Math.max(0, Math.min(WAIT_SECONDS, end - performance.now() / 1000));
    const [run, output] = await look(caller, runId, sessionId, left, signal);
    if (run?.phase === "terminal") {
      return resultOf(run, output);
    }
    if (performance.now() / 1000 >= end) {
      throw new WaitTimeoutError(`run ${runId} has not ended within ${timeoutSeconds} s`);
    }
  }
}

async function stopped(
  caller: Caller,
  runId: string,
  givenSessionId: string | undefined,
  signal: AbortSignal,
): Promise<RunResult> {
  let sessionId = givenSessionId;
  for (let wait = 0; ;) {
    const [found, output] = await look(caller, runId, sessionId, wait, signal);
    if (found?.phase === "terminal") {
      return resultOf(found, output);
    }
    sessionId ??= found?.sessionId;
    if (sessionId === undefined) {
      wait = LOOK_SECONDS;
      continue;
    }
    // One read tells the run, what it waits for, and where to watch it from.
    const state = await liveState(caller, sessionId, 0, { signal });
    const { run } = state;
    if (run?.runId === runId) {
      const asked = state.openInteractions.find((one) => one.runId === runId);
      const question = asked && (await whole(caller, asked, signal));
      if (question !== undefined || (asked === undefined && isStopped(run))) {
        return resultOf(run, undefined, question);
      }
      if (asked !== undefined) {
        // It was answered between the two reads.
        continue;
      }
    } else if (found !== undefined) {
      // It ended between the two reads.
      continue;
    }
    const watched = { afterSequence: state.sequence, runIds: [runId], types: STOPS, signal };
    for await (const _event of new EventStream(
      caller,
      sessionId,
      watched,
      caller.reconnectSeconds,
    )) {
      break;
    }
  }
}

/** Whether nothing goes on; one that waits for child runs goes on: they do. */
function isStopped(run: Run): boolean {
  if (run.waitingChildren !== undefined || run.endingCause !== undefined) {
    return false;
  }
  return run.phase === "paused" || run.phase === "waiting";
}

async function look(
  caller: Caller,
  runId: string,
  sessionId: string | undefined,
  waitDurationSeconds: number,
  signal: AbortSignal | undefined,
): Promise<[Run | undefined, Message | undefined]> {
  const request = { runId, sessionId, waitDurationSeconds, includeOutput: true };
  const answer = await caller.unary(HistoryService.method.waitRun, request, { signal });
  return [answer.run, answer.output];
}

/** Reads a question whose prompt was too long for the live state; undefined: it is settled. */
export async function whole(
  caller: Caller,
  asked: Interaction,
  signal?: AbortSignal,
): Promise<Interaction | undefined> {
  if (asked.prompt !== undefined) {
    return asked;
  }
  const { sessionId, interactionId } = asked;
  for await (const one of new SessionHistory(caller).interactions({ sessionId }, { signal })) {
    if (one.interactionId === interactionId) {
      return one;
    }
  }
  return undefined;
}

function resultOf(run: Run, output: Message | undefined, interaction?: Interaction): RunResult {
  return {
    run,
    runId: run.runId,
    sessionId: run.sessionId,
    output,
    text: textOf(output),
    stopReason: run.outcome?.stopReason,
    interaction,
  };
}
