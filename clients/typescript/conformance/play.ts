// Plays a scenario.
import { randomBytes } from "node:crypto";

import { Refused, type Binding } from "./binding.js";
import { mismatch, short } from "./match.js";
import {
  filled,
  isObject,
  ScenarioError,
  type Json,
  type JsonObject,
  type Scenario,
  type Scope,
} from "./values.js";

const WITHIN_MS = 15_000;
const SCENARIO_MS = 90_000;
const LOOK_MS = 50;

/** The service, or the client, did not do what the scenario expects. */
export class Failure extends Error {}

type Outcome = { readonly answer: Json } | Refused;

/** An open stream, and what a driver looks after in each. */
class Stream {
  readonly #items: AsyncGenerator<JsonObject>;
  readonly #stop: AbortController;
  readonly #whole: boolean;
  readonly #replaced = new Set<Json>();
  #last: number | undefined;

  constructor(client: Binding, name: string, request: JsonObject) {
    this.#stop = new AbortController();
    this.#items = client.open(name, request, this.#stop.signal);
    this.#whole = request["run_ids"] === undefined && request["types"] === undefined;
    const after = Number(request["after_sequence"] ?? 0);
    this.#last = request["last_events"] === undefined ? after : undefined;
  }

  /** Returns the next item; undefined: it has ended. */
  async next(): Promise<JsonObject | undefined> {
    const { done, value } = await this.#items.next();
    if (done === true) {
      return undefined;
    }
    const { event, delta } = value;
    if (isObject(event) && event["sequence"] !== undefined) {
      this.#follow(Number(event["sequence"]));
      const appended = event["message_appended"];
      this.#replaced.add((isObject(appended) ? appended["model_stream_id"] : undefined) ?? null);
    }
    const stream = isObject(delta) ? delta["model_stream_id"] : undefined;
    if (stream !== undefined && this.#replaced.has(stream)) {
      throw new Failure(`a piece came after the message that replaces it: ${short(value)}`);
    }
    return value;
  }

  #follow(sequence: number): void {
    const last = this.#last;
    if (last !== undefined && (sequence <= last || (this.#whole && sequence !== last + 1))) {
      throw new Failure(`sequence ${sequence} came after ${last}`);
    }
    this.#last = sequence;
  }

  close(): void {
    this.#stop.abort(new Error("the scenario is over"));
  }
}

/** Plays one scenario once. */
export class Player {
  readonly #scenario: Scenario;
  readonly #connect: () => Binding;
  readonly #clients = new Map<string, Binding>();
  readonly #streams = new Map<string, Stream>();
  readonly #started = new Map<string, Promise<Outcome>>();
  readonly #scope: Scope = {};
  readonly #where: string[] = [];

  constructor(scenario: Scenario, connect: () => Binding) {
    this.#scenario = scenario;
    this.#connect = connect;
    for (const name of scenario.ids) {
      this.#scope[name] = `${name}-${randomBytes(8).toString("hex")}`;
    }
  }

  /** Plays it; throws a Failure that tells the step where something was not as it says. */
  async play(): Promise<void> {
    try {
      await within(SCENARIO_MS, this.#steps(this.#scenario.steps));
    } catch (error) {
      const told = error instanceof Failure || error instanceof Refused;
      const said = told || error instanceof ScenarioError ? error.message : String(error);
      throw new Failure(`${this.#where.join(" > ")}: ${said}`, { cause: error });
    } finally {
      for (const stream of this.#streams.values()) {
        stream.close();
      }
      for (const client of this.#clients.values()) {
        client.close();
      }
    }
  }

  async #steps(steps: readonly JsonObject[]): Promise<void> {
    const verbs: Readonly<Record<string, (step: JsonObject) => Promise<void>>> = {
      call: (step) => this.#call(step),
      join: (step) => this.#join(step),
      open: (step) => this.#open(step),
      read: (step) => this.#read(step),
      close: (step) => this.#close(step),
      together: (step) => this.#together(step),
      repeat: (step) => this.#repeat(step),
      use: (step) => this.#use(step),
    };
    for (const [index, step] of steps.entries()) {
      const verb = Object.keys(verbs).find((one) => one in step) ?? "";
      this.#where.push(`step ${index + 1} (${verb} ${short(step[verb]).slice(0, 60)})`);
      const play = verbs[verb];
      if (play === undefined) {
        throw new ScenarioError("a step without a verb");
      }
      await play(step);
      this.#where.pop();
    }
  }

  #client(step: JsonObject): Binding {
    const name = (step["client"] ?? "a") as string;
    const found = this.#clients.get(name) ?? this.#connect();
    this.#clients.set(name, found);
    return found;
  }

  #check(pattern: Json, value: Json): void {
    const captures: Scope = {};
    const why = mismatch(filled(pattern, this.#scope), value, captures);
    if (why !== undefined) {
      throw new Failure(why);
    }
    Object.assign(this.#scope, captures);
  }

  // --- the verbs -----------------------------------------------------------------------------

  async #call(step: JsonObject): Promise<void> {
    if (step["start"] !== undefined) {
      const outcome = this.#outcome(step, this.#scope);
      outcome.catch(() => undefined);
      this.#started.set(step["start"] as string, outcome);
      // It is on its way before anything else is done.
      await new Promise((resolve) => setImmediate(resolve));
      return;
    }
    const end = performance.now() + Number(step["until_ms"] ?? 0);
    for (;;) {
      const outcome = await this.#outcome(step, this.#scope);
      try {
        this.#settle(step, outcome);
        return;
      } catch (error) {
        if (!(error instanceof Failure) || performance.now() >= end) {
          throw error;
        }
        await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
      }
    }
  }

  async #outcome(step: JsonObject, scope: Scope): Promise<Outcome> {
    const client = this.#client(step);
    const name = step["call"] as string;
    const request = filled(step["request"] ?? {}, scope);
    const work =
      step["all_pages"] === true
        ? client.pages(name, request as JsonObject)
        : client.call(name, request, step["raw"] === true);
    try {
      return { answer: await within(Number(step["within_ms"] ?? WITHIN_MS), work) };
    } catch (error) {
      if (error instanceof Refused) {
        return error;
      }
      throw error;
    }
  }

  #settle(step: JsonObject, outcome: Outcome): void {
    if (outcome instanceof Refused) {
      if (step["error"] === undefined) {
        throw new Failure(outcome.message);
      }
      this.#check(step["error"], outcome.told);
      return;
    }
    if (step["error"] !== undefined) {
      throw new Failure(`it was not refused, expected ${short(step["error"])}`);
    }
    if (step["expect"] !== undefined) {
      this.#check(step["expect"], outcome.answer);
    }
    if (step["as"] !== undefined) {
      this.#scope[step["as"] as string] = outcome.answer;
    }
  }

  async #join(step: JsonObject): Promise<void> {
    const outcome = this.#started.get(step["join"] as string);
    if (outcome === undefined) {
      throw new ScenarioError("no call was started under that name");
    }
    this.#settle(step, await outcome);
  }

  async #open(step: JsonObject): Promise<void> {
    const request = filled(step["request"] ?? {}, this.#scope) as JsonObject;
    const name = (step["stream"] ?? "StreamEvents") as string;
    const stream = new Stream(this.#client(step), name, request);
    this.#streams.set(step["open"] as string, stream);
    await Promise.resolve();
  }

  async #read(step: JsonObject): Promise<void> {
    const stream = this.#stream(step["read"]);
    const until = step["until"] === undefined ? undefined : filled(step["until"], this.#scope);
    const read: JsonObject[] = [];
    const take = async (): Promise<void> => {
      const last = (): JsonObject | undefined => read.at(-1);
      while (
        until === undefined ||
        read.length === 0 ||
        mismatch(until, last(), {}) !== undefined
      ) {
        const item = await stream.next();
        if (item === undefined) {
          if (step["end"] !== true) {
            throw new Failure(`the stream ended; there came ${short(read)}`);
          }
          return;
        }
        read.push(item);
      }
      if (step["end"] === true || step["error"] !== undefined) {
        throw new Failure(`the stream did not end; there came ${short(read)}`);
      }
    };
    try {
      await within(Number(step["within_ms"] ?? WITHIN_MS), take());
    } catch (error) {
      if (!(error instanceof Refused) || step["error"] === undefined) {
        const said = error instanceof Error ? error.message : String(error);
        throw new Failure(`${said}; there came ${short(read)}`, { cause: error });
      }
      this.#check(step["error"], error.told);
    }
    const last = read.at(-1);
    if (step["until"] !== undefined && last !== undefined) {
      this.#check(step["until"], last);
    }
    if (step["items"] !== undefined) {
      this.#check(step["items"], read);
    }
  }

  #stream(name: Json | undefined): Stream {
    const found = this.#streams.get(name as string);
    if (found === undefined) {
      throw new ScenarioError("no stream was opened under that name");
    }
    return found;
  }

  async #close(step: JsonObject): Promise<void> {
    this.#stream(step["close"]).close();
    this.#streams.delete(step["close"] as string);
    await Promise.resolve();
  }

  async #together(step: JsonObject): Promise<void> {
    const allowed = step["outcomes"] as JsonObject[];
    const calls = (step["together"] as JsonObject[]).flatMap((call) =>
      Array.from({ length: Number(call["copies"] ?? 1) }, (_one, index) =>
        this.#outcome(call, { ...this.#scope, i: index + 1 }),
      ),
    );
    const counts = allowed.map(() => 0);
    for (const outcome of await Promise.all(calls)) {
      const reasons: string[] = [];
      const fits = allowed.findIndex((one) => {
        try {
          this.#settle(one, outcome);
          return true;
        } catch (error) {
          reasons.push((error as Error).message);
          return false;
        }
      });
      if (fits < 0) {
        throw new Failure(`no outcome fits: ${reasons.join("; ")}`);
      }
      counts[fits] = (counts[fits] ?? 0) + 1;
    }
    const expected = allowed.map((one) => Number(one["count"]));
    if (counts.join() !== expected.join()) {
      throw new Failure(`the outcomes came ${counts.join()} times, expected ${expected.join()}`);
    }
  }

  async #repeat(step: JsonObject): Promise<void> {
    for (let number = 1; number <= Number(step["repeat"]); number += 1) {
      this.#scope["i"] = number;
      await this.#steps(step["steps"] as JsonObject[]);
    }
  }

  async #use(step: JsonObject): Promise<void> {
    const shared = this.#scenario.shared[step["use"] as string];
    if (!isObject(shared)) {
      throw new ScenarioError(`there are no shared steps ${short(step["use"])}`);
    }
    const given = {
      ...((shared["defaults"] ?? {}) as object),
      ...((step["with"] ?? {}) as object),
    };
    Object.assign(this.#scope, filled(given as JsonObject, this.#scope));
    await this.#steps(shared["steps"] as JsonObject[]);
  }
}

async function within<T>(milliseconds: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_resolve, reject) => {
    timer = setTimeout(() => {
      reject(new Failure(`it took longer than ${milliseconds} ms`));
    }, milliseconds);
  });
  work.catch(() => undefined);
  try {
    return await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}
